// The candidates of a space.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "oneflow_like/model/limits.h"
#include "oneflow_like/plan_search.h"

namespace oneflow_like {
namespace {

std::vector<int64_t> Divisors(int64_t of) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d * d <= of; ++d) {
    if (of % d != 0) continue;
    small.push_back(d);
    if (d * d != of) large.push_back(of / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

template <typename T>
std::vector<T> Given(const std::optional<T>& given, std::vector<T> otherwise) {
  return given ? std::vector<T>{*given} : std::move(otherwise);
}

class Space {
 public:
  Space(const PlanSpace& space, int64_t blocks) : space_(space), blocks_(blocks) {}

  std::vector<PlanCandidate> All() {
    for (int64_t tp : Divisors(space_.devices))
      for (int64_t pp : Divisors(space_.devices / tp)) {
        const int64_t dp = space_.devices / tp / pp;
        if (Fits("dp", dp) && Fits("tp", tp) && Fits("pp", pp) && pp <= blocks_)
          OfMesh(static_cast<int>(dp), static_cast<int>(tp), static_cast<int>(pp));
      }
    if (all_.empty()) Refuse();
    return std::move(all_);
  }

 private:
  bool Fits(const std::string& axis, int64_t extent) const {
    if (extent > (space_.kind == "cpu" ? kMostEstimatedAlongAxis : kMostAlongAxis)) return false;
    const auto given = space_.extents.find(axis);
    return given == space_.extents.end() || given->second == extent;
  }

  void OfMesh(int dp, int tp, int pp) {
    if (space_.batch % dp != 0) return;
    PlanCandidate c;
    c.mesh = Mesh(space_.kind, {{"dp", dp}, {"tp", tp}, {"pp", pp}});
    for (int64_t m : Divisors(space_.batch / dp)) {
      if (m > kMostMicroBatches || (space_.micro_batches && m != *space_.micro_batches)) continue;
      c.micro_batches = static_cast<int>(m);
      for (int v : Rounds(pp, m)) {
        c.virtual_stages = v;
        for (PipelineSchedule schedule : Schedules(pp, v)) {
          c.schedule = schedule;
          AddRest(c, dp, tp);
        }
      }
    }
  }

  // Virtual stages: those that divide the blocks evenly, where there are such.
  std::vector<int> Rounds(int pp, int64_t m) const {
    if (space_.virtual_stages) {
      // In rounds over one stage nothing is divided.
      const bool possible =
          int64_t{pp} * *space_.virtual_stages <= blocks_ && (pp > 1 || *space_.virtual_stages == 1);
      return possible ? std::vector<int>{*space_.virtual_stages} : std::vector<int>();
    }
    std::vector<int> rounds{1};
    for (int v = 2; pp > 1 && m >= pp && int64_t{pp} * v <= blocks_; ++v)
      if (blocks_ % (int64_t{pp} * v) == 0) rounds.push_back(v);
    if (rounds.size() == 1 && pp > 1 && m >= pp && 2 * int64_t{pp} <= blocks_) rounds.push_back(2);
    return rounds;
  }

  std::vector<PipelineSchedule> Schedules(int pp, int v) const {
    if (space_.schedule) return {*space_.schedule};
    if (pp == 1) return {PipelineSchedule::k1F1B};
    if (v > 1) return {PipelineSchedule::kInterleaved};
    return {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble};
  }

  void AddRest(PlanCandidate c, int dp, int tp) {
    const std::vector<int> zeros = dp > 1 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0};
    const std::vector<bool> cut = tp > 1 ? std::vector<bool>{false, true} : std::vector<bool>{false};
    // The third stage gathers weights for one micro-batch after another, so that stages with several chunks
    // of work wait for one another.
    const bool both = space_.zero && space_.virtual_stages;
    for (int zero : Given(space_.zero, zeros)) {
      if (zero == 3 && c.virtual_stages > 1 && !both) continue;
      for (Recompute recompute :
           Given(space_.recompute, {Recompute::kNone, Recompute::kSelective, Recompute::kFull}))
        for (bool sequence : Given(space_.sequence_parallel, cut)) {
          c.zero = zero;
          c.recompute = space_.gather_again ? WithGather(recompute) : recompute;
          c.sequence_parallel = sequence;
          all_.push_back(c);
        }
    }
  }

  [[noreturn]] void Refuse() const {
    std::string given;
    int64_t product = 1;
    for (const auto& [axis, extent] : space_.extents) {
      given += Cat(given.empty() ? "" : ", ", axis, "=", extent);
      product *= extent;
    }
    if (space_.devices % product != 0 || (space_.extents.size() == 3 && product != space_.devices))
      Fail("no mesh of ", space_.devices, " devices has ", given, ", which are ", product, " devices");
    if (const auto pp = space_.extents.find("pp"); pp != space_.extents.end() && pp->second > blocks_)
      Fail("no plan has pp=", pp->second, ": the model has ", blocks_, " blocks to divide into stages");
    Fail("no plan divides ", space_.devices, " devices", given.empty() ? "" : Cat(" with ", given),
         " over a batch of ", space_.batch,
         space_.micro_batches ? Cat(" in ", *space_.micro_batches, " micro-batches") : "", " and ", blocks_,
         blocks_ == 1 ? " block" : " blocks",
         "; dp times the micro-batches must divide the batch, pp times the virtual stages be at most the "
         "blocks, and pp more than 1 if there are virtual stages");
  }

  const PlanSpace& space_;
  const int64_t blocks_;
  std::vector<PlanCandidate> all_;
};

}  // namespace

void PlanCandidate::Set(ModelOptions* model, TrainOptions* train) const {
  model->pipeline.virtual_stages = virtual_stages;
  model->pipeline.most_blocks = most_blocks;
  model->zero.axis = zero > 0 ? zero_axis : "";
  model->zero.stage = std::max(1, zero);
  model->offload.choose = false;
  // A number of the plan that is the default leaves the program's own.
  const Decisions usual;
  if (zero_small != usual.zero_small) model->zero.small = zero_small;
  if (exact_groups) train->exact_groups = true;
  if (offload.any()) {
    const Offload given = std::exchange(model->offload, offload);
    model->offload.prefetch = given.prefetch;
    if (offload.small == usual.offload.small) model->offload.small = given.small;
    model->offload.choose = false;
  }
  if (prefetch) {
    model->zero.prefetch = *prefetch;
    model->offload.prefetch = offload.any() ? offload.prefetch : *prefetch;
  }
  if (bucket) model->zero.bucket_bytes = *bucket;
  train->micro_batches = micro_batches;
  train->schedule = schedule;
  if (overlap) {
    train->overlap.chunks = overlap->chunks;
    if (overlap->gain != Overlap().gain) train->overlap.gain = overlap->gain;
    if (overlap->always) train->overlap.always = true;
  }
  if (algorithms) model->collectives = ToText(*algorithms);
  if (reduce_dtype) train->reduce_dtype = *reduce_dtype, train->reduce_axis = reduce_axis;
  train->recompute = open_waits ? Recompute::kAuto : recompute;
  if (!open_waits) train->gather_again = GathersAgain(recompute);
  // What nobody asked for is not open here: each candidate's search would take as long again.
  if (logits_tile > 0 || !train->logits_tile) train->logits_tile = logits_tile;
  if (open_cuts || !cuts.empty()) model->auto_cuts = AutoCuts::kAll;
  if (open_cuts || open_waits)
    model->memory_budget = memory;
  else if (!stages.empty() || !cuts.empty() || !waits.empty() || logits_tile > 0) {
    model->plan = *this;
    model->plan->logits_tile = *train->logits_tile;
  }
}

std::string PlanCandidate::str() const {
  const std::string quote =
      mesh.groups().empty() ? "" : "\"";  // for shells, which end a command at a semicolon
  std::string text = Cat("--mesh=", quote, mesh.str(), quote, " --micro_batches=", micro_batches);
  if (schedule != PipelineSchedule::k1F1B) text += Cat(" --schedule=", Name(schedule));
  if (virtual_stages > 1) text += Cat(" --virtual_stages=", virtual_stages);
  if (zero > 0) text += Cat(" --zero=", zero, zero_axis == "dp" ? "" : " --zero_axis=" + zero_axis);
  if (!waits.empty())
    text += " --recompute=auto";
  else if (WithoutGather(recompute) != Recompute::kNone)
    text += Cat(" --recompute=", Name(WithoutGather(recompute)));
  if (GathersAgain(recompute)) text += " --gather_again";
  if (sequence_parallel) text += " --sequence_parallel";
  if (offload.any()) text += Cat(" --offload=", OffloadText(offload));
  if (logits_tile > 0) text += Cat(" --logits_tile=", logits_tile);
  if (!cuts.empty()) text += " --auto";
  return text;
}

std::vector<PlanCandidate> CandidatesOf(const PlanSpace& space, int64_t blocks) {
  CheckRange("PlanSpace::devices", space.devices, 1, kMostDevices);
  CheckRange<int64_t>("PlanSpace::batch", space.batch, 1, int64_t{1} << 40);
  for (const auto& [axis, extent] : space.extents) {
    if (axis != "dp" && axis != "tp" && axis != "pp")
      Fail("a plan has axes dp, tp and pp, but PlanSpace::extents has '", axis, "'");
    CheckRange(Cat("the extent of ", axis), extent, 1,
               space.kind == "cpu" ? kMostEstimatedAlongAxis : kMostAlongAxis);
  }
  return Space(space, blocks).All();
}

std::vector<PlanCandidate> InOrders(const PlanCandidate& plan) {
  std::vector<PlanCandidate> all;
  std::vector<int> axes(plan.mesh.rank());  // before, of each axis
  std::iota(axes.begin(), axes.end(), 0);
  std::set<Mesh::Axes> seen;  // of several devices
  do {
    PlanCandidate candidate = plan;
    Mesh::Axes ordered, wide;
    for (int a : axes) ordered.push_back({plan.mesh.axis_name(a), plan.mesh.axis_size(a)});
    std::copy_if(ordered.begin(), ordered.end(), std::back_inserter(wide),
                 [](const auto& axis) { return axis.second > 1; });
    if (!seen.insert(wide).second) continue;
    candidate.mesh = Mesh(plan.mesh.kind(), ordered);
    for (auto& [weight, cut] : candidate.cuts) {
      const VariableCut before = std::exchange(cut, {});
      for (size_t a = 0; a < axes.size(); ++a) {
        const auto entry = before.fixed.find(1 + axes[a]);
        if (entry == before.fixed.end()) continue;
        cut.fixed[1 + static_cast<int>(a)] = entry->second;
        if (before.stored.count(entry->first)) cut.stored.insert(1 + static_cast<int>(a));
      }
    }
    all.push_back(std::move(candidate));
  } while (std::next_permutation(axes.begin(), axes.end()));
  return all;
}

}  // namespace oneflow_like
