#include "compiler/cost/kernel_cost.h"

#include <algorithm>

#include "core/plan/plan_values.h"
#include "ops/tf32.h"

namespace oneflow_like {
namespace {

double Elements(const plan::Operand& operand) {
  double elements = 1;
  if (operand.box_size() > 0)
    for (int64_t extent : operand.box(0).extent()) elements *= static_cast<double>(extent);
  return elements;
}

bool MayRoundToTf32(const plan::Kernel& kernel) {
  for (const plan::Attr& attr : kernel.attr())
    if (attr.name() == kTf32) return attr.i() != 0;
  return false;
}

// The measurement has the passage through memory in it. Links are busy in the proportion that was estimated.
void TakeMeasured(const MeasuredCollective& measured, BoxingLoad* load) {
  const double seconds = measured.SecondsOf(load->bytes);
  load->copies = 0;
  load->latency = std::min(seconds, measured.points[0].second);
  double busiest = 0;
  for (double link : load->links) busiest = std::max(busiest, link);
  for (double& link : load->links) link *= busiest > 0 ? (seconds - load->latency) / busiest : 0;
}

// The measurement of this name whose type is the same, if there is one, and whose number of threads is
// nearest; of two that are equally near, the one with fewer threads. nullptr: the name was not measured. On a
// device (0 threads) a type of another width does not count: its products are many times as fast or slow.
const MeasuredKernel* FindMeasured(const Machine& machine, const std::string& name, DType type, int threads,
                                   bool crowded) {
  const auto distance = [&](const MeasuredKernel& k) {
    const int gap = k.threads <= threads ? threads - k.threads : 10'000 + k.threads;
    return std::pair(k.dtype != type, gap);
  };
  const MeasuredKernel* best = nullptr;
  for (const MeasuredKernel& k : machine.kernels)
    if (k.name == name && k.crowded == crowded && (threads > 0 || SizeOf(k.dtype) == SizeOf(type)) &&
        (best == nullptr || distance(k) < distance(*best)))
      best = &k;
  return best;
}

// One call and one pass over memory, as the slowest step makes it, and the arithmetic of each step.
std::optional<double> SecondsOfSteps(const Machine& machine, const HostWork& of, int threads, bool crowded) {
  Work each;
  for (const std::string& step : of.steps) {
    const MeasuredKernel* k = FindMeasured(machine, step, of.dtype, threads, crowded);
    if (k == nullptr) return std::nullopt;
    each.calls = std::max(each.calls, k->each.calls);
    each.bytes = std::max(each.bytes, k->each.bytes);
    each.far = std::max(each.far, k->each.far);
    each.flops += k->each.flops / static_cast<double>(of.steps.size());
  }
  return MeasuredKernel{.each = each}.SecondsOf(of.work);
}

std::optional<double> MeasuredOn(const Machine& machine, const HostWork& of, int threads, bool crowded) {
  if (!of.steps.empty()) return SecondsOfSteps(machine, of, threads, crowded);
  const MeasuredKernel* k = FindMeasured(machine, of.name, of.dtype, threads, crowded);
  return k == nullptr ? std::nullopt : std::optional(k->SecondsOf(of.work));
}

}  // namespace

DType RateType(const plan::Kernel& kernel) {
  DType type = DType::kFloat32;
  for (const plan::Operand& operand : kernel.in())
    type = NarrowerFloat(type, static_cast<DType>(operand.dtype()));
  return type;
}

Work WorkOf(const plan::Kernel& kernel) {
  Work work = {
      .calls = 1, .flops = kernel.flops(), .bytes = kernel.bytes(), .kind = KindOfWork(kernel.category())};
  if (work.kind != Work::Kind::kOther)
    for (const auto* operands : {&kernel.in(), &kernel.out()})
      for (const plan::Operand& operand : *operands) work.largest = std::max(work.largest, Elements(operand));
  return work;
}

double SecondsOf(const Machine& machine, const plan::Kernel& kernel) {
  return SecondsOf(machine, WorkOf(kernel), RateType(kernel), MayRoundToTf32(kernel)) + machine.overhead;
}

HostWork HostWorkOf(const plan::Kernel& kernel, const KernelRegistry& kernels, double near_bytes) {
  HostWork of = {.name = kernel.name(), .dtype = RateType(kernel), .work = WorkOf(kernel)};
  const KernelCost& cost = kernels.Cost(kernel.name(), "cpu");
  if (!cost.measured_as.empty()) of.name = cost.measured_as;
  if (cost.steps) of.steps = cost.steps(ToSpec(kernel));
  if (cost.work) {
    cost.work(ToSpec(kernel), &of.work);
  } else if (near_bytes > 0) {
    of.work.far = std::max(0.0, of.work.bytes - near_bytes);
  }
  return of;
}

HostWork HostWorkOf(const plan::Collective& collective, size_t element_bytes) {
  double bytes = 0;
  for (const plan::RegionList& list : collective.work())
    for (const plan::Region& region : list.region()) {
      double elements = 1;
      for (int64_t extent : region.box().extent()) elements *= static_cast<double>(extent);
      bytes += elements * (region.source_size() + region.dest_size()) * static_cast<double>(element_bytes);
    }
  if (collective.share() > 0) bytes *= collective.share();
  return {.name = kCollectiveWork,
          .work = {.calls = 1, .bytes = bytes / std::max(1, collective.work_size())}};
}

std::optional<ThreadSeconds> MeasuredSeconds(const Machine& machine, const HostWork& of, int threads) {
  const std::optional<double> alone = MeasuredOn(machine, of, threads, false),
                              crowded = MeasuredOn(machine, of, threads, true);
  if (!alone && !crowded) return std::nullopt;
  return ThreadSeconds{alone ? *alone : *crowded, crowded ? *crowded : *alone};
}

ThreadSeconds SecondsOnThreads(const Machine& machine, const plan::Kernel& kernel,
                               const KernelRegistry& kernels, int threads) {
  const HostWork of = HostWorkOf(kernel, kernels, machine.NearBytes(threads));
  // A device's lines for fp32 are of kernels that do not round to TF32.
  const bool other = threads == 0 && MayRoundToTf32(kernel);
  const auto measured = other ? std::nullopt : MeasuredSeconds(machine, of, threads);
  if (measured) return *measured;
  const double estimated = SecondsOf(machine, kernel);
  return {estimated, estimated};
}

const MeasuredCollective* MeasuredOf(const Machine& machine, const BoxingLoad& load) {
  for (const MeasuredCollective& m : machine.collectives)
    if (m.primitive == load.primitive && m.members == load.members && m.per_unit == load.per_unit) return &m;
  return nullptr;
}

BoxingLoad LoadOf(const Machine& machine, const Graph& graph, int n, CollectiveCosts* costs) {
  const Node& node = graph.node(n);
  const LinkLevels levels{machine.topology, machine.shared};
  BoxingLoad all;
  const double share = ShareMoved(node);
  for (size_t i = 0; i < node.out.size(); ++i) {
    const Value& v = graph.value(node.in[i]);
    const BoxingLoad one = LoadOfBoxingStep(graph.mesh(), graph.times(), v.shape, SizeOf(v.dtype),
                                            graph.LayoutOf(node.in[i]), graph.LayoutOf(node.out[i]), levels);
    all.latency = std::max(all.latency, one.latency);
    all.copies += share * one.copies;
    all.links.resize(std::max(all.links.size(), one.links.size()));
    for (size_t l = 0; l < one.links.size(); ++l) all.links[l] += share * one.links[l];
    all.primitive = one.primitive;
    all.members = one.members;
    all.per_unit = one.per_unit;
    all.bytes += share * one.bytes;
  }
  if (const AlgorithmCost* cost = costs->Named(n)) {
    all.latency = cost->latency;
    all.copies += cost->sums * all.bytes;
    all.links = cost->links;
    for (double& link : all.links) link *= all.bytes;
  }
  if (const MeasuredCollective* measured = MeasuredOf(machine, all)) TakeMeasured(*measured, &all);
  return all;
}

}  // namespace oneflow_like
