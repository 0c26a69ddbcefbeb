// A step is estimated as filling the pipeline, the slowest stage's work on all micro-batches, and what dp
// ranks exchange that nothing hides; memory as what each stage keeps by its schedule.
#include "oneflow_like/planner/plan_estimate.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "compiler/compile.h"
#include "compiler/plan/schedule.h"
#include "compiler/search/cut_layers.h"
#include "core/device/communicators.h"

namespace oneflow_like {
namespace {

// Devices between neighbours along an axis, the innermost of several.
int Stride(const Mesh& mesh, const std::string& axis) {
  int stride = 1;
  for (int a = mesh.AxesOrFail(axis, "a plan").back() + 1; a < mesh.rank(); ++a) stride *= mesh.axis_size(a);
  return stride;
}

// The ranks that ZeRO cuts variables over, and how often these are there.
int ShardsOf(const PlanCandidate& c) { return c.zero > 0 ? c.extent(c.zero_axis) : 1; }
int ReplicasOf(const PlanCandidate& c) { return c.extent("dp") / ShardsOf(c); }

// The candidate with ZeRO over as many of its dp ranks as links of one level join; nothing where these are
// all of them, or each alone.
std::vector<PlanCandidate> InShards(const PlanCandidate& c, const Topology& topology) {
  std::vector<PlanCandidate> all;
  const int dp = c.extent("dp"), stride = Stride(c.mesh, "dp");
  for (const Topology::Link& link : topology.links) {
    if (c.zero == 0 || link.devices == 0) break;
    if (link.devices % stride != 0) continue;
    const int shards = std::gcd(dp, static_cast<int>(link.devices / stride));
    if (shards == 1 || shards == dp) continue;
    if (!all.empty() && all.back().extent("shard") == shards) continue;
    Mesh::Axes axes;
    for (int a = 0; a < c.mesh.rank(); ++a) {
      if (c.mesh.axis_name(a) != "dp") {
        axes.push_back({c.mesh.axis_name(a), c.mesh.axis_size(a)});
        continue;
      }
      axes.push_back({"replica", dp / shards});
      axes.push_back({"shard", shards});
    }
    all.push_back(c);
    all.back().mesh = Mesh(c.mesh.kind(), axes, {}, {{"dp", "replica*shard"}});
    all.back().zero_axis = "shard";
  }
  return all;
}

double MessagesOf(const Machine& machine, const PartOfModel& part, int which, int members, int stride,
                  int node) {
  double seconds = 0;
  for (const auto& [message, count] : part.messages[which])
    seconds += count * SecondsOfMessage(machine, message, members, stride, node);
  return seconds;
}

}  // namespace

PlanEstimator::PlanEstimator(const PlanSpace& space, const Machine& machine, const BuildPlan& build)
    : space_(space), machine_(machine), build_(build) {
  // Two micro-batches far enough apart that what is in between lies on the line through them.
  constexpr int64_t kMany = 8;
  for (int64_t samples = 1; samples <= std::min(kMany, space.batch); ++samples)
    if (space.batch % samples == 0) most_ = samples;
  if (space.micro_batches) {
    const int dp = space.extents.count("dp") ? space.extents.at("dp") : 1;
    most_ = std::max<int64_t>(1, space.batch / *space.micro_batches / dp);
    while (space.batch % most_ != 0) --most_;
  }
}

PlanEstimator::Key PlanEstimator::KeyOf(const PlanCandidate& c) {
  return {c.extent("tp"), c.sequence_parallel, c.recompute};
}

int64_t PlanEstimator::blocks() const {
  int64_t least = 0;
  for (const auto& [key, measured] : measured_)
    for (int64_t blocks : measured.few->blocks) least = least == 0 ? blocks : std::min(least, blocks);
  return std::max<int64_t>(1, least);
}

void PlanEstimator::Prepare(const std::vector<PlanCandidate>& candidates) {
  struct Task {
    Key key;
    const PlanCandidate* like;
    int64_t samples;
    std::shared_ptr<ModelParts> parts;
    std::string why_not;
  };
  std::vector<Task> tasks;
  std::set<Key> seen;
  for (const PlanCandidate& c : candidates) {
    const Key key = KeyOf(c);
    if (measured_.count(key) || !seen.insert(key).second) continue;
    for (int64_t samples : std::set<int64_t>{1, most_}) tasks.push_back({key, &c, samples, nullptr, ""});
  }
  SideBySide(static_cast<int>(tasks.size()), 0, [&](int i) {
    Task& task = tasks[i];
    try {
      task.parts =
          std::make_shared<ModelParts>(MeasureParts(space_, machine_, build_, *task.like, task.samples));
    } catch (const Error& error) {
      task.why_not = error.what();
    }
  });
  for (const Task& task : tasks) {
    if (!task.parts) {
      if (why_not_.empty()) why_not_ = task.why_not;
      continue;
    }
    Measured& measured = measured_[task.key];
    if (!measured.few) measured.few = task.parts;
    measured.many = task.parts;
    node_ = task.parts->node;
  }
}

bool PlanEstimator::IsRepeated(const PlanCandidate& candidate) const {
  const auto [tp, sequence, recompute] = KeyOf(candidate);
  const auto alike = [&](const Measured& a, const Measured& b) {
    return a.few->plan_hash == b.few->plan_hash && a.many->plan_hash == b.many->plan_hash;
  };
  const auto repeats = [&](const Key& key) {
    const auto mine = measured_.find(key);
    return mine != measured_.end() && std::any_of(measured_.begin(), mine, [&](const auto& before) {
             return std::get<0>(before.first) == std::get<0>(key) && alike(before.second, mine->second);
           });
  };
  if (measured_.empty()) return false;
  const int first = std::get<0>(measured_.begin()->first);
  return repeats({tp, sequence, recompute}) || repeats({first, false, recompute});
}

// From the parts of the smallest tp, where weights that tp does not cut have the fewest copies.
double PlanEstimator::LeastVariables() const {
  if (measured_.empty()) return 0;
  const auto& [key, measured] = *measured_.begin();
  double bytes = measured.few->before.weights + measured.few->before.state + measured.few->after.weights +
                 measured.few->after.state;
  for (size_t k = 0; k < measured.few->block.size(); ++k)
    bytes += static_cast<double>(measured.few->blocks[k]) *
             (measured.few->block[k].weights + measured.few->block[k].state);
  return bytes * std::get<0>(key) / space_.devices;
}

bool PlanEstimator::Exhausted() const {
  std::map<int, std::pair<double, double>> least;  // by tp: seconds, bytes
  for (const auto& [key, measured] : measured_) {
    double seconds = 0, bytes = 0;
    const auto add = [&](const PartOfModel& part, double count) {
      seconds += count * (part.forward + part.backward);
      bytes += count * part.weights;
    };
    add(measured.many->before, 1);
    add(measured.many->after, 1);
    for (size_t k = 0; k < measured.many->block.size(); ++k)
      add(measured.many->block[k], static_cast<double>(measured.many->blocks[k]));
    auto [at, fresh] = least.try_emplace(std::get<0>(key), seconds, bytes);
    at->second = {std::min(at->second.first, seconds), std::min(at->second.second, bytes)};
  }
  if (least.size() < 2) return false;
  const auto last = std::prev(least.end()), before = std::prev(last);
  constexpr double kAlike = 0.98;
  return last->second.first > kAlike * before->second.first &&
         last->second.second > kAlike * before->second.second;
}

// Of before, after and each stack: forward and backward, of `few` and then of `many`.
const std::vector<double>& PlanEstimator::MessagesAt(Measured* measured, int stride) {
  auto [at, fresh] = measured->messages.try_emplace(stride);
  if (!fresh) return at->second;
  for (const auto& parts : {measured->few, measured->many}) {
    const auto add = [&](const PartOfModel& part) {
      // The members are those of the key, as sizes of mesh axis tp.
      for (int which : {0, 1})
        at->second.push_back(MessagesOf(machine_, part, which, parts->tp, stride, parts->node));
    };
    add(parts->before);
    add(parts->after);
    for (const PartOfModel& block : parts->block) add(block);
  }
  return at->second;
}

// Blocks of each stage and round, as the model will divide them.
const std::vector<int64_t>& PlanEstimator::Division(const PlanCandidate& c, const ModelParts& parts,
                                                    size_t stack) {
  const int pp = c.extent("pp");
  auto [at, fresh] = divisions_.try_emplace({KeyOf(c), pp, c.virtual_stages, parts.samples, stack});
  if (!fresh) return at->second;
  const PartOfModel& block = parts.block[stack];
  const bool alone = parts.block.size() == 1;
  const auto work = [](const PartOfModel& part) { return part.forward + part.backward; };
  at->second =
      CutLayers(std::vector<double>(parts.blocks[stack], work(block)), alone ? work(parts.before) : 0,
                alone ? work(parts.after) : 0, pp * c.virtual_stages);
  return at->second;
}

std::vector<PlanEstimator::Stage> PlanEstimator::StagesOf(const PlanCandidate& c, Measured* measured,
                                                          const ModelParts& parts, int stride) {
  const int pp = c.extent("pp");
  const std::vector<double>& messages = MessagesAt(measured, stride);
  const double many = static_cast<double>(measured->many->samples), few = measured->few->samples;
  const double at = many > few ? (static_cast<double>(parts.samples) - few) / (many - few) : 0;
  const auto message = [&](size_t part, int which) {
    const size_t i = 2 * part + which;
    const double a = messages[i], b = messages[messages.size() / 2 + i];
    return std::max(0.0, a + (b - a) * at);
  };
  std::vector<Stage> stages(pp);
  const auto add = [&](int stage, const PartOfModel& part, size_t number, double count) {
    Stage& s = stages[stage];
    const double forward = message(number, 0), backward = message(number, 1);
    PartAmounts all = part;
    all.forward += forward;
    all.backward += backward;
    s.Add(all, count);
    s.messages += count * (forward + backward);
    s.layers += part.weights > 0 ? count : 0;
  };
  add(0, parts.before, 0, 1);
  add(pp - 1, parts.after, 1, 1);
  for (size_t k = 0; k < parts.block.size(); ++k) {
    const std::vector<int64_t>& division = Division(c, parts, k);
    for (size_t i = 0; i < division.size(); ++i)
      add(static_cast<int>(i) % pp, parts.block[k], 2 + k, static_cast<double>(division[i]));
  }
  return stages;
}

double PlanEstimator::Seconds(double bytes, const Sbp& from, const Sbp& to, int members, int stride) {
  auto [at, fresh] = seconds_.try_emplace({bytes, from, to, members, stride});
  if (fresh) {
    const int64_t elements = std::max<int64_t>(members, static_cast<int64_t>(bytes / 4));
    at->second = SecondsOfMessage(machine_, {{elements}, 4, from, to}, members, stride, node_);
  }
  return at->second;
}

// What dp ranks exchange in a step that no computing hides: gradients, and weights that ZeRO has cut.
double PlanEstimator::Exchange(const PlanCandidate& c, const Stage& stage) {
  if (c.extent("dp") == 1) return 0;
  const int shards = ShardsOf(c), replicas = ReplicasOf(c), stride = Stride(c.mesh, "dp");
  const double read = stage.narrow > 0 ? stage.narrow : stage.weights;
  // From stage 2 on messages are of one layer.
  const double parts = c.zero >= 2 ? std::max(1.0, stage.layers) : 1;
  const double scatter =
      shards == 1 ? 0 : parts * Seconds(stage.gradients / parts, P(), S(0), shards, stride);
  // Between copies of a shard, once a step.
  const double between =
      replicas == 1 ? 0
                    : parts * Seconds(stage.gradients / shards / parts, P(), B(), replicas, stride * shards);
  const double gather = c.zero > 0 ? parts * Seconds(read / parts, S(0), B(), shards, stride) : 0;
  const double work = stage.forward + stage.backward;
  constexpr double kHidden = 0.5;  // of a micro-batch's backward pass, behind which its sums can be
  if (c.zero < 2) {
    const double sums = scatter + between;
    return std::max(0.1 * sums, sums - kHidden * stage.backward) + gather;
  }
  const double last = std::max(0.1 * between, between - kHidden * stage.backward);
  if (c.zero == 2) return c.micro_batches * std::max(0.1 * scatter, scatter - kHidden * work) + gather + last;
  return c.micro_batches * std::max(0.1 * (scatter + 2 * gather), scatter + 2 * gather - work) + last;
}

// The part of its gradients that a stage holds whole, as they are computed faster than they are summed and
// cut.
double PlanEstimator::Whole(const PlanCandidate& c, const Stage& stage) {
  const double sums = Seconds(stage.gradients, P(), S(0), ShardsOf(c), Stride(c.mesh, "dp"));
  return sums > stage.backward ? 1 - stage.backward / sums : 0;
}

// Micro-batches of which each stage keeps what its gradients need.
const std::vector<double>& PlanEstimator::Kept(const PlanCandidate& c) {
  const int pp = c.extent("pp");
  auto [at, fresh] = kept_.try_emplace({c.schedule, pp, c.virtual_stages, c.micro_batches});
  for (int s = 0; s < pp && fresh; ++s) {
    const PipelineShape shape = {pp, c.virtual_stages, c.micro_batches};
    const bool one = pp == 1 || c.micro_batches == 1;
    at->second.push_back(one ? 1 : ScheduleOf(c.schedule, shape, s).Stashes() / double(c.virtual_stages));
  }
  return at->second;
}

namespace {

// Of NCCL's communicators of a device of a stage: one for each set of axes that communicates in a stage, one
// with each stage to which it is linked, and where stages have several devices a second one with those that
// activations or a table go to. The first stage counts the updates for all others.
double BytesOfCommunicators(const PlanCandidate& c, int stage) {
  if (c.mesh.kind() != "cuda") return 0;
  const int pp = c.extent("pp"), tp = c.extent("tp") > 1, dp = c.extent("dp") > 1;
  std::set<int> linked = {0}, twice = {stage - 1, stage + 1};
  for (int s = 1; s < pp && stage == 0; ++s) linked.insert(s);
  if (stage == 0) twice.insert(pp - 1);
  if (stage == pp - 1) twice.insert(0);
  linked.insert(twice.begin(), twice.end());
  for (std::set<int>* some : {&linked, &twice})
    std::erase_if(*some, [&](int s) { return s < 0 || s >= pp || s == stage; });
  const bool all = tp + dp == 2 && pp > 1;
  const auto count = tp +
                     (dp == 0                  ? 0
                      : c.zero_axis == "shard" ? 3
                                               : 1) +
                     (all ? 1 : 0) + std::ssize(linked) + (tp + dp > 0 ? std::ssize(twice) : 0);
  const int at_once = all ? 4 : std::max(1, tp + dp + (pp > 1 ? 1 : 0));  // link streams
  return static_cast<double>(count * BytesOfCommunicator(at_once));
}

}  // namespace

double PlanEstimator::Bytes(const PlanCandidate& c, const std::vector<Stage>& stages,
                            const ModelParts& parts) {
  const int shards = ShardsOf(c), pp = c.extent("pp");
  const std::vector<double>& kept = Kept(c);
  // Stage 3 of ZeRO gathers a block, and the next one ahead.
  const double blocks = std::accumulate(parts.blocks.begin(), parts.blocks.end(), 0.0) / pp;
  double most = 0;
  for (int s = 0; s < pp; ++s) {
    const Stage& stage = stages[s];
    double bytes = (stage.weights + stage.state) / shards + parts.besides, in_arenas = parts.working;
    bytes += BytesOfCommunicators(c, s);
    bytes += c.zero >= 2 ? Whole(c, stage) * stage.gradients + stage.gradients / shards : stage.gradients;
    const double gathered = stage.narrow > 0 ? stage.narrow : c.zero > 0 ? stage.weights : 0;
    bytes += c.zero == 3 ? std::min(1.0, 3 / std::max(1.0, blocks)) * gathered : gathered;
    in_arenas += kept[s] * stage.stash;
    // Gradients of weights come as many micro-batches late as there are stages before (ScheduleOf).
    if (c.schedule == PipelineSchedule::kZeroBubble)
      in_arenas += std::min(s, c.micro_batches - 1) * stage.late;
    most = std::max(most, bytes + in_arenas * parts.gaps);
  }
  return most;
}

PlanTrial PlanEstimator::EstimateOn(const PlanCandidate& c, Measured* measured, const ModelParts& parts) {
  const int pp = c.extent("pp"), m = c.micro_batches;
  const std::vector<Stage> stages = StagesOf(c, measured, parts, Stride(c.mesh, "tp"));
  size_t slowest = 0;
  double all = 0, exchange = 0, update = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto work = [&](size_t i) { return stages[i].forward + stages[i].backward; };
    if (work(s) > work(slowest)) slowest = s;
    all += work(s);
    exchange = std::max(exchange, Exchange(c, stages[s]));
    update = std::max(update, stages[s].update / ShardsOf(c));
  }
  const Stage& busiest = stages[slowest];
  const double one = busiest.forward + busiest.backward;
  double fill = 0, sends = 0;
  if (pp > 1) {
    const int pair = Stride(c.mesh, "pp") + 1;
    const double send = Seconds(parts.boundary, S(0), B(), 2, pair - 1);
    fill = (all - one) / c.virtual_stages;
    if (c.schedule == PipelineSchedule::kZeroBubble) fill *= 0.4;  // gradients of weights fill the rest
    fill += 2 * (pp - 1) * send;
    sends = std::max(0.0, 2 * c.virtual_stages * send - one) * m;  // a line that is slower than the stage
  }
  PlanTrial trial;
  trial.plan = c;
  trial.messages = m * busiest.messages + sends + exchange;
  trial.compute = m * (one - busiest.messages) + update;
  trial.bubble = fill;
  trial.seconds = trial.compute + trial.messages + trial.bubble;
  trial.bytes = static_cast<int64_t>(Bytes(c, stages, parts));
  return trial;
}

std::vector<PlanTrial> PlanEstimator::Estimate(const PlanCandidate& candidate) {
  constexpr double kNotMuch = 1.1;  // times the fastest
  const auto at = measured_.find(KeyOf(candidate));
  if (at == measured_.end() || !at->second.few) return {};
  const int64_t samples = space_.batch / candidate.extent("dp") / candidate.micro_batches;
  auto [known, fresh] = parts_.try_emplace({at->first, samples});
  if (fresh) known->second = PartsAt(*at->second.few, *at->second.many, samples);
  const ModelParts& parts = known->second;
  std::vector<PlanTrial> trials;
  size_t best = 0;
  for (const PlanCandidate& c : InOrders(candidate)) {
    trials.push_back(EstimateOn(c, &at->second, parts));
    if (trials.back().seconds < trials[best].seconds * (1 - 1e-6)) best = trials.size() - 1;
    if (machine_.topology.links.size() == 1) break;  // all devices are alike
  }
  std::rotate(trials.begin(), trials.begin() + static_cast<std::ptrdiff_t>(best),
              trials.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  // Estimates of what dp ranks and stages exchange are rough, as other work hides much of it; nothing hides
  // what tp ranks exchange.
  const double most = trials.front().seconds * kNotMuch;
  const int nearest = Stride(trials.front().plan.mesh, "tp");
  std::erase_if(trials,
                [&](const PlanTrial& t) { return t.seconds > most || Stride(t.plan.mesh, "tp") > nearest; });
  // In parts of dp a plan keeps more, and is worth a look where it is faster for that.
  const std::vector<PlanTrial> whole = space_.hybrid_zero ? trials : std::vector<PlanTrial>();
  for (const PlanTrial& trial : whole) {
    for (const PlanCandidate& c : InShards(trial.plan, machine_.topology)) {
      PlanTrial faster = EstimateOn(c, &at->second, parts);
      if (faster.seconds < trial.seconds) trials.push_back(std::move(faster));
    }
  }
  return trials;
}

}  // namespace oneflow_like
