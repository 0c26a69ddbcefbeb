// Loads a session's plans into a machine on paper, runs steps of them, and adds up where the time went.
#include "oneflow_like/simulate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "actor/trace.h"
#include "actor/virtual_time.h"
#include "compiler/cost/kernel_cost.h"
#include "core/formatted.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/session/plain_cores.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {
namespace {

// Who works on a host whose processor computes: threads of processes.
struct Threads {
  int processes = 1;
  int each = 0;         // of a process; 0: devices work by themselves
  int of_a_kernel = 1;  // that one kernel may use
  int ranks = 1;        // of a process

  int ProcessOf(int rank) const { return rank / ranks; }
};

// As ModelImpl::Load starts them.
Threads ThreadsOf(const ModelOptions& options, const Machine& machine, int world, int processes) {
  CheckRange("SimulateOptions::processes", processes, 1, kMostProcessesHere);
  if (world % processes != 0)
    Fail("SimulateOptions::processes is ", processes, ", which cannot share ", world, " devices equally");
  if (machine.threads == 0) return {.processes = processes, .ranks = world / processes};
  const int cores = std::max(1, machine.threads / processes), ranks = world / processes;
  const int threads = RuntimeThreads(options, ranks, cores);
  const int of_a_kernel = options.kernel_threads > 0 ? options.kernel_threads : std::max(1, cores / threads);
  return {processes, threads, of_a_kernel, ranks};
}

// Ranks that are simulated, and who acts for whom.
struct ActingRanks {
  std::vector<int> ranks;
  std::vector<int> stands_for;  // by rank
};

// What acts of collectives ask of links. One of each segment is the same on all its ranks.
class CollectiveLoads {
 public:
  CollectiveLoads(const Compiled& compiled, const Machine& machine, const Threads& threads,
                  const ActingRanks& acting)
      : compiled_(compiled),
        machine_(machine),
        threads_(threads),
        acting_(acting),
        costs_(compiled.graph, compiled.options.machine.nodes, {machine.topology, machine.shared}) {}

  VirtualLoad Of(const plan::Collective& collective, int rank) {
    const int64_t segment = collective.id();
    auto [at, fresh] = loads_.try_emplace(segment);
    if (fresh)
      for (int n : compiled_.logical.segments[segment].nodes)
        if (IsCollective(compiled_.graph.node(n))) at->second = LoadOf(machine_, compiled_.graph, n, &costs_);
    const BoxingLoad& load = at->second;
    VirtualLoad of_rank;
    of_rank.latency = Picoseconds(load.latency + load.copies);
    // Inside one host without devices, threads move what there is.
    if (machine_.threads > 0 && load.links.size() <= 1) {
      const ThreadSeconds work = MeasuredSeconds(machine_, HostWorkOf(collective, ElementBytes(segment)), 1)
                                     .value_or(ThreadSeconds{load.seconds(), load.seconds()});
      of_rank.latency = Picoseconds(work.alone);
      of_rank.crowded = Picoseconds(work.crowded);
      of_rank.message = Picoseconds(MessageSeconds(collective, rank));
      return of_rank;
    }
    for (size_t level = 0; level < load.links.size(); ++level) {
      const int inside = level == 0 ? 1 : machine_.topology.links[level - 1].devices;
      const bool shared = LinkLevels{machine_.topology, machine_.shared}.IsShared(level);
      const double groups = shared ? GroupsBeside(collective, rank, inside) : 1;
      of_rank.links.push_back({static_cast<int>(level) * kLinksOfLevel + (shared ? rank / inside : rank),
                               Picoseconds(load.links[level] / groups)});
    }
    return of_rank;
  }

 private:
  static constexpr int kLinksOfLevel = 1 << 24;

  // The load of a shared link is that of all groups of its unit, which do the same: so many of them act, and
  // share it once more.
  double GroupsBeside(const plan::Collective& collective, int rank, int inside) const {
    const Segment& segment = compiled_.logical.segments[collective.id()];
    double mine = 0, all = 0;
    for (int other : acting_.ranks) {
      if (other / inside != rank / inside) continue;
      const std::vector<int> coords = compiled_.graph.mesh().Coords(other);
      all += segment.slice.Contains(coords) || segment.from.Contains(coords);
      mine += std::count(collective.rank().begin(), collective.rank().end(), other) > 0;
    }
    return std::max(1.0, all / std::max(1.0, mine));
  }

  size_t ElementBytes(int64_t segment) const {
    for (int n : compiled_.logical.segments[segment].nodes)
      if (const Node& node = compiled_.graph.node(n); IsCollective(node))
        return SizeOf(compiled_.graph.value(node.in[0]).dtype);
    return 0;
  }

  double MessageSeconds(const plan::Collective& collective, int rank) const {
    bool inside = true;
    for (int other : collective.rank())
      inside = inside && threads_.ProcessOf(other) == threads_.ProcessOf(rank);
    return inside ? machine_.message : machine_.process_message;
  }

  const Compiled& compiled_;
  const Machine& machine_;
  const Threads& threads_;
  const ActingRanks& acting_;
  CollectiveCosts costs_;
  std::map<int64_t, BoxingLoad> loads_;
};

struct Interval {
  int64_t start = 0, end = 0;
};

// Adds one that ends no earlier than any of `joined`, which are ascending and apart.
void Join(Interval interval, std::vector<Interval>* joined) {
  if (interval.start == interval.end) return;
  for (; !joined->empty() && joined->back().end >= interval.start; joined->pop_back())
    interval.start = std::min(interval.start, joined->back().start);
  joined->push_back(interval);
}

int64_t LengthSince(int64_t start, const std::vector<Interval>& joined) {
  int64_t length = 0;
  for (const Interval& i : joined) length += std::max<int64_t>(0, i.end - std::max(i.start, start));
  return length;
}

// Adds up records as they end: there may be too many to keep.
class StepRecorder {
 public:
  // `keep`: all records.
  StepRecorder(int steps, bool keep) : ends_(static_cast<size_t>(steps)), keep_(keep) {}

  void Expect(const plan::Plan& plan) {
    for (const plan::Actor& actor : plan.actor())  // copies from and to the host are as messages are
      if (actor.stream() >= 0 && plan.stream(actor.stream()).kind() != plan::COMPUTE)
        messages_.insert({plan.rank(), actor.id()});
  }
  void Add(const TraceRecord& r) {
    if (keep_) records_.push_back(r);
    if (r.step >= std::ssize(ends_)) return;
    ends_[r.step] = std::max(ends_[r.step], r.end);
    if (r.kernel < 0 || r.step + 1 < std::ssize(ends_)) return;
    Busy& busy = of_rank_[r.rank];
    if (messages_.count({r.rank, r.actor}) == 0) Join({r.start, r.end}, &busy.compute);
    Join({r.start, r.end}, &busy.all);
  }

  const std::vector<TraceRecord>& records() const { return records_; }
  double first() const { return ends_[0] / kPicosecondsPerSecond; }
  // Of the last step.
  double seconds() const { return (ends_.back() - start()) / kPicosecondsPerSecond; }
  // Where its time went.
  void AddUp(int rank, SimulatedStage* stage) const {
    const auto at = of_rank_.find(rank);
    const Busy none, &busy = at == of_rank_.end() ? none : at->second;
    const int64_t computed = LengthSince(start(), busy.compute), all = LengthSince(start(), busy.all);
    stage->compute = computed / kPicosecondsPerSecond;
    stage->communication = (all - computed) / kPicosecondsPerSecond;
    stage->bubble = (ends_.back() - start() - all) / kPicosecondsPerSecond;
  }

 private:
  struct Busy {
    std::vector<Interval> compute, all;  // of the last step
  };
  int64_t start() const { return ends_[ends_.size() - 2]; }

  std::vector<int64_t> ends_;  // of the steps
  const bool keep_;
  std::set<std::pair<int, int>> messages_;  // actors, by rank
  std::unordered_map<int, Busy> of_rank_;
  std::vector<TraceRecord> records_;
};

ActingRanks ActingRanksOf(const Compiled& compiled, int most) {
  ActingRanks acting;
  const int world = compiled.graph.mesh().size();
  std::map<std::string, int> first;
  for (int rank = 0; rank < world; ++rank) {
    const int acts = world <= most ? rank : first.try_emplace(StageOf(compiled, rank), rank).first->second;
    acting.stands_for.push_back(acts);
    if (acts == rank) acting.ranks.push_back(rank);
  }
  return acting;
}

struct Played {
  std::vector<RankPlan> plans;  // the real ones
  StepRecorder recorder;
};

Played PlaySteps(const Compiled& compiled, const Machine& machine, const ActingRanks& acting,
                 const KernelRegistry& kernels, const Threads& threads, int steps, int in_flight,
                 bool trace) {
  Played played = {.recorder = StepRecorder(steps, /*keep=*/trace)};
  CollectiveLoads loads(compiled, machine, threads, acting);
  std::vector<int> thread_of;
  for (int rank : acting.ranks)
    if (threads.processes > 1 && threads.each > 0)
      thread_of.push_back(threads.ProcessOf(rank) * threads.each + rank % threads.ranks % threads.each);
  VirtualMachine paper({.threads = threads.processes * threads.each,
                        .thread_of = std::move(thread_of),
                        .cores = machine.threads,
                        .kernel_cores = threads.of_a_kernel,
                        .each_kernel = trace,
                        .load = [&](const plan::Collective& c, int rank) { return loads.Of(c, rank); },
                        .stands_for = [&](int rank) { return acting.stands_for[rank]; },
                        .record = [&](const TraceRecord& r) { played.recorder.Add(r); }});
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<plan::Plan> on_paper;
  for (RankPlan& made : PlansOf(compiled, acting.ranks, 0, PlanDetail::kOutline)) {
    devices.push_back(paper.MakeDevice(made.plan.rank()));
    on_paper.push_back(paper.OnPaper(made.plan, [&](const plan::Actor&, const plan::Kernel& k) {
      if (threads.each == 0) return ThreadTime(SecondsOnThreads(machine, k, kernels, 0).alone);
      const ThreadSeconds seconds = SecondsOnThreads(machine, k, kernels, threads.of_a_kernel);
      const double longer = threads.processes > 1 ? machine.process_work : 1;
      return ThreadTime(longer * seconds.alone, longer * seconds.crowded);
    }));
    played.recorder.Expect(made.plan);
    played.plans.push_back(std::move(made));
  }
  Store store(acting.ranks, std::move(devices));
  RuntimeOptions options;
  options.steps_in_flight = in_flight;
  options.peers = paper.peers();
  Runtime runtime(std::move(on_paper), paper.registry(), &store, paper.executor(), options);
  std::vector<StepHandle> handles;
  for (int step = 0; step < steps; ++step) {
    while (std::ssize(handles) < std::min(steps, step + in_flight)) handles.push_back(runtime.Launch({}));
    const Status status = handles[step].Wait();
    if (!status.ok()) throw Error(status.message());
  }
  runtime.Close();
  if (paper.now() == kLastPicosecond)
    Fail(
        "Simulate: ", steps, " steps take more than the ",
        static_cast<int>(kLastPicosecond / kPicosecondsPerSecond / 86400),
        " days that can be simulated; take more devices, a smaller batch or model, or correct the numbers of "
        "the topology");
  return played;
}

// Steps of many acts take as long as the first one where the second does: more are not played then.
Played PlayEnough(const Compiled& compiled, const Machine& machine, const ActingRanks& acting,
                  const KernelRegistry& kernels, const Threads& threads, int steps, int64_t many_acts,
                  int in_flight) {
  if (steps > 2 && std::ssize(compiled.logical.order) > many_acts) {
    Played played = PlaySteps(compiled, machine, acting, kernels, threads, 2, in_flight, /*trace=*/false);
    if (played.recorder.seconds() == played.recorder.first()) return played;
  }
  return PlaySteps(compiled, machine, acting, kernels, threads, steps, in_flight, /*trace=*/false);
}

// An act lasts from its first kernel's start to its last one's end.
void AddActs(std::vector<TraceRecord>* records) {
  std::map<std::tuple<int, int, int64_t, int>, TraceRecord> acts;
  std::set<std::tuple<int, int>> there;
  for (const TraceRecord& r : *records)
    if (r.kernel < 0) there.insert({r.rank, r.actor});
  for (const TraceRecord& r : *records) {
    if (there.count({r.rank, r.actor}) > 0) continue;
    auto [at, fresh] = acts.try_emplace({r.rank, r.actor, r.step, r.act}, r);
    at->second.kernel = -1;
    at->second.start = std::min(at->second.start, r.start);
    at->second.end = std::max(at->second.end, r.end);
  }
  for (const auto& [key, act] : acts) records->push_back(act);
}

void WriteTrace(const std::string& path, const Played& played) {
  TraceFile file(path);
  file.SetOrigin(0);
  std::vector<TraceRecord> records = played.recorder.records();
  AddActs(&records);
  std::vector<TraceBuffer> buffers;
  buffers.emplace_back(static_cast<int64_t>(records.size()));
  for (const TraceRecord& r : records) buffers.back().Add(r);
  constexpr int64_t kTicks = 1'000'000;  // picoseconds
  std::vector<plan::Plan> plans;
  for (const RankPlan& made : played.plans) plans.push_back(made.plan);
  file.Add(plans, buffers, TickScale({0, 0}, {kTicks, kTicks / 1000}));
}

// Of a stage's ranks the one that holds most speaks for all.
void AddStage(SimulatedStage stage, std::vector<SimulatedStage>* stages) {
  const auto same = std::find_if(stages->begin(), stages->end(),
                                 [&](const SimulatedStage& s) { return s.stage == stage.stage; });
  if (same == stages->end()) return stages->push_back(std::move(stage));
  std::vector<int> ranks = same->memory.ranks;
  ranks.insert(ranks.end(), stage.memory.ranks.begin(), stage.memory.ranks.end());
  std::sort(ranks.begin(), ranks.end());
  if (stage.memory.peak_bytes > same->memory.peak_bytes) *same = std::move(stage);
  same->memory.ranks = std::move(ranks);
}

}  // namespace

Simulated Simulate(const Session& session, const Machine& machine, const SimulateOptions& options) {
  if (options.steps < 2) Fail("SimulateOptions::steps is ", options.steps, " but must be at least 2");
  const Session::Impl& impl = *session.impl();
  const Compiled& compiled = impl.compiled;
  const int world = compiled.graph.mesh().size();
  RequireDevices(machine, world);
  const ActingRanks acting = ActingRanksOf(compiled, options.most_ranks);
  const Threads threads = ThreadsOf(impl.model->options, machine, world, options.processes);
  const int in_flight = options.steps_in_flight > 0 ? options.steps_in_flight : impl.options.steps_in_flight;
  const KernelRegistry& kernels = impl.model->registry;
  const bool trace = !options.trace_file.empty();
  const Played played =
      trace ? PlaySteps(compiled, machine, acting, kernels, threads, options.steps, in_flight, trace)
            : PlayEnough(compiled, machine, acting, kernels, threads, options.steps, options.many_acts,
                         in_flight);
  if (trace) WriteTrace(options.trace_file, played);

  Simulated result;
  result.devices = world;
  result.first_seconds = played.recorder.first();
  result.seconds = played.recorder.seconds();
  result.model_flops = ModelFlops(compiled);
  result.acts = std::ssize(compiled.logical.order);
  for (const RankPlan& made : played.plans) result.plan_hash = HashOf(made.plan, result.plan_hash);
  std::vector<RankSummary> summaries = SummariesOf(impl, played.plans);
  if (std::string warning = PlainCoresWarning(summaries); !warning.empty())
    result.warnings.push_back(std::move(warning));
  const bool tf32 = compiled.options.asked.tf32;
  if (tf32 && machine.tf32_flops == 0)
    result.warnings.push_back(
        "the topology lacks flops_tf32: products that round to TF32 take the time of whole fp32");
  for (RankSummary& summary : summaries) {
    SimulatedStage stage;
    stage.stage = summary.stage;
    stage.rank = summary.rank;
    const auto alike = static_cast<double>(summary.ranks.size());
    result.flops += summary.flops * alike;
    if (summary.plain_flops >= 0)
      result.plain_flops = std::max(0.0, result.plain_flops) + summary.plain_flops * alike;
    played.recorder.AddUp(summary.rank, &stage);
    if (machine.memory_bytes > 0 && static_cast<double>(summary.peak_bytes) > machine.memory_bytes)
      result.warnings.push_back(Cat("rank ", summary.rank, " needs ", BytesText(summary.peak_bytes),
                                    " but the device has ", BytesText(machine.memory_bytes)));
    stage.memory = std::move(summary);
    AddStage(std::move(stage), &result.stages);
  }
  const double peak = machine.FlopsOf(impl.options.dtype, tf32) * world;
  result.mfu = result.seconds > 0 ? result.model_flops / result.seconds / peak : 0;
  return result;
}

std::string Simulated::Text(double per_step, const std::string& unit) const {
  std::string text = Cat("simulated: a step takes ", SecondsText(seconds));
  if (per_step > 0) text += Formatted(", %.0f %s/s", per_step / seconds, unit.c_str());
  const double each = model_flops / seconds / devices;
  const bool many = each >= 1e11;  // else tenths of TFLOP/s say too little
  const double scale = many ? 1e12 : 1e9;
  text += Formatted("; MFU %.1f %%, %.1f %s a device (%.1f with what is computed again)\n", 100 * mfu,
                    each / scale, many ? "TFLOP/s" : "GFLOP/s", flops / seconds / devices / scale);
  if (plain_flops >= 0) text += Cat("  operations: ", PlainCoresText(plain_flops, flops), "\n");
  text += Formatted("  %-12s %10s %10s %10s  %s\n", "ranks", "computes", "messages", "bubble",
                    "peak memory, by purpose");
  for (const SimulatedStage& s : stages) {
    std::string purposes;
    for (const auto& [purpose, bytes] : s.memory.purposes)
      if (bytes > 0) purposes += Cat(purposes.empty() ? "" : ", ", purpose, " ", BytesText(bytes));
    text += Formatted("  %-12s %10s %10s %10s  %s: %s\n",
                      s.stage.empty() ? RangesText(s.memory.ranks).c_str() : s.stage.c_str(),
                      PercentText(s.compute, seconds).c_str(), PercentText(s.communication, seconds).c_str(),
                      PercentText(s.bubble, seconds).c_str(), BytesText(s.memory.peak_bytes).c_str(),
                      purposes.c_str());
  }
  for (const std::string& warning : warnings) text += Cat("  ", warning, "\n");
  return text;
}

}  // namespace oneflow_like
