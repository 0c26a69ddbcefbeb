#include "compiler/cost/described_machine.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>

#include "core/plan.pb.h"
#include "ops/equation.h"
#include "ops/fused.h"

namespace oneflow_like {
namespace {

double Elements(const plan::Operand& operand) {
  double elements = 1;
  if (operand.box_size() > 0)
    for (int64_t extent : operand.box(0).extent()) elements *= static_cast<double>(extent);
  return elements;
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

using Points = std::vector<std::pair<double, double>>;

double LogSlope(const Points& points, size_t next) {  // of the chord that ends there
  return std::log(points[next].second / points[next - 1].second) /
         std::log(points[next].first / points[next - 1].first);
}

// Of a curve through point `i` and both of its neighbours, the slope there as a parabola has it, within what
// keeps the curve monotone (Fritsch and Carlson): 0 at a peak, else at most three times that of the flatter
// chord. At either end the curve does not bend.
double LogSlopeAt(const Points& points, size_t i) {
  const auto usable = [&](size_t at) { return points[at].first > 0 && points[at].second > 0; };
  const bool left = i > 0 && usable(i - 1), right = i + 1 < points.size() && usable(i + 1);
  const auto limited = [](double slope, double chord) {
    return slope * chord <= 0 ? 0 : std::copysign(std::min(std::abs(slope), 3 * std::abs(chord)), chord);
  };
  if (left && right) {
    const double from = LogSlope(points, i), to = LogSlope(points, i + 1);
    if (from * to <= 0) return 0;
    const double before = std::log(points[i].first / points[i - 1].first);
    const double after = std::log(points[i + 1].first / points[i].first);
    return limited(limited((from * after + to * before) / (before + after), from), to);
  }
  const double chord = LogSlope(points, left ? i : i + 1);
  const size_t beside = left ? i - 1 : i + 1;
  const bool bends = beside > 0 && beside + 1 < points.size() && usable(beside - 1) && usable(beside + 1);
  return bends ? limited(1.5 * chord - 0.5 * LogSlopeAt(points, beside), chord) : chord;
}

// REQUIRES: `bytes` lies between the points `next` - 1 and `next`, all of which are above 0.
double BetweenPoints(const Points& points, size_t next, double bytes) {
  const double width = std::log(points[next].first / points[next - 1].first);
  const double chord = LogSlope(points, next) * width;
  const double from = LogSlopeAt(points, next - 1) * width, to = LogSlopeAt(points, next) * width;
  const double t = std::log(bytes / points[next - 1].first) / width, u = 1 - t;
  const double rise = chord * t * t * (3 - 2 * t) + from * t * u * u - to * t * t * u;
  // Whole picoseconds: libraries differ in the last bits of logarithms.
  return std::round(points[next - 1].second * std::exp(rise) * 1e12) / 1e12;
}

// Of the measurements of an operator those of its type, else of another one; of these those on the number of
// threads that is nearest, fewer rather than more. nullptr: there is none.
const MeasuredKernel* FindMeasured(const DescribedMachine& machine, const std::string& name, DType type,
                                   int threads, bool crowded) {
  const auto distance = [&](const MeasuredKernel& k) {
    const int gap = k.threads <= threads ? threads - k.threads : 10'000 + k.threads;
    return std::pair(k.dtype != type, gap);
  };
  const MeasuredKernel* best = nullptr;
  for (const MeasuredKernel& k : machine.kernels)
    if (k.name == name && k.crowded == crowded && (best == nullptr || distance(k) < distance(*best)))
      best = &k;
  return best;
}

// Of a chain of elementwise operators: one call and one pass over memory, as the slowest step makes it, and
// the arithmetic of each. False: a step was not measured.
bool SecondsOfChain(const DescribedMachine& machine, const plan::Kernel& kernel, DType type, int threads,
                    bool crowded, double* seconds) {
  const std::string* program = nullptr;
  for (const plan::Attr& attr : kernel.attr())
    if (attr.name() == "program") program = &attr.s();
  if (program == nullptr) return false;
  double call = 0, flops = 0, byte = 0, far = 0;
  const std::vector<FusedStep> steps = ParseFused(*program, kernel.in_size());
  for (const FusedStep& step : steps) {
    const MeasuredKernel* k = FindMeasured(machine, step.op, type, threads, crowded);
    if (k == nullptr) return false;
    call = std::max(call, k->each.call);
    byte = std::max(byte, k->each.byte);
    far = std::max(far, k->each.far);
    flops += k->each.flop * kernel.flops() / static_cast<double>(steps.size());
  }
  const KernelWork work = WorkOf(kernel, machine.NearBytes(threads));
  *seconds = call + flops + byte * work.byte + far * work.far;
  return true;
}

bool MeasuredSeconds(const DescribedMachine& machine, const plan::Kernel& kernel, int threads, bool crowded,
                     double* seconds) {
  const DType type = RateType(kernel);
  if (kernel.name() == "fused") return SecondsOfChain(machine, kernel, type, threads, crowded, seconds);
  const MeasuredKernel* k = FindMeasured(machine, MeasuredName(kernel), type, threads, crowded);
  if (k == nullptr) return false;
  *seconds = k->SecondsOf(WorkOf(kernel, machine.NearBytes(threads)));
  return true;
}

// Queries and keys [batch, sequence, heads, width] of one head: the pairs of them in the tiles that kernels
// work on, and all pairs.
struct Pairs {
  double in_tiles = 0, all = 0;
};
Pairs PairsOf(const plan::Operand& q, const plan::Operand& k, bool causal, bool gradient) {
  constexpr int64_t kTileQueries = 64;  // ops/cpu/attention_tile.h
  constexpr int64_t kFewQueries = 4;    // ops/cpu/attention_few.cc, without tiles
  const int64_t queries = q.box(0).extent(1), keys = k.box(0).extent(1);
  // Before which key the first local query ends.
  const int64_t ends = q.box(0).begin(1) - k.box(0).begin(1) + k.global().at(1) - q.global().at(1);
  Pairs pairs;
  pairs.all = static_cast<double>(queries) * static_cast<double>(keys);
  for (int64_t s = 0; s < queries; s += kTileQueries) {
    const int64_t end = std::min(s + kTileQueries, queries);
    const int64_t seen = causal ? std::clamp<int64_t>(ends + end, 0, keys) : keys;
    const int64_t rows = !gradient && queries <= kFewQueries ? queries : kTileQueries;
    pairs.in_tiles += static_cast<double>(rows) * static_cast<double>(seen);
  }
  return pairs;
}

KernelWork WorkOfAttention(const plan::Kernel& kernel) {
  KernelWork work = {.call = 1, .flop = kernel.flops(), .byte = kernel.bytes()};
  const bool gradient = kernel.name() == "attention_grad";
  const int q = gradient ? 1 : 0;
  if (kernel.in_size() < q + 2) return work;
  bool causal = false, drops = false;
  for (const plan::Attr& attr : kernel.attr()) {
    causal |= attr.name() == "causal" && attr.i() != 0;
    drops |= attr.name() == "dropout" && attr.f() > 0;
  }
  const plan::Operand &queries = kernel.in(q), &keys = kernel.in(q + 1);
  for (const plan::Operand* operand : {&queries, &keys})
    if (operand->box_size() == 0 || operand->box(0).extent_size() != 4 || operand->global().at_size() != 4)
      return work;
  const Pairs pairs = PairsOf(queries, keys, causal, gradient);
  if (pairs.all == 0) return work;
  const double heads =
      static_cast<double>(queries.box(0).extent(0)) * static_cast<double>(queries.box(0).extent(2));
  work.flop *= pairs.in_tiles / pairs.all;
  work.score = heads * pairs.in_tiles;
  work.dropped = drops ? work.score : 0;
  return work;
}

bool MultipliesMatrices(const plan::Kernel& kernel) {
  return (kernel.name() == "matmul" || kernel.name() == "einsum") && kernel.in_size() >= 2 &&
         kernel.out_size() > 0;
}

double Bytes(const plan::Operand& operand) {
  return Elements(operand) * static_cast<double>(SizeOf(static_cast<DType>(operand.dtype())));
}

Dims GlobalOf(const plan::Operand& operand) {
  Dims global;
  for (int64_t extent : operand.global().at()) global.push_back(extent);
  return global;
}

// A result whose last axis comes from the left operand is computed as its transpose, with the operands
// exchanged.
KernelWork WorkOfProduct(const plan::Kernel& kernel) {
  constexpr double kPage = 4096;
  const plan::Operand *left = &kernel.in(0), *right = &kernel.in(1), &result = kernel.out(0);
  KernelWork work = {.call = 1, .flop = kernel.flops(), .result = Bytes(result)};
  std::string equation;
  for (const plan::Attr& attr : kernel.attr()) {
    if (attr.name() == "equation") equation = attr.s();
    if (attr.name() == kAccumulates && attr.i() != 0) work.sum = work.result;
  }
  std::vector<LabelAxes> labels = kernel.name() == "einsum"
                                      ? EinsumLabels(equation)
                                      : MatmulLabels(GlobalOf(*left), GlobalOf(*right), GlobalOf(result));
  const int last = result.global().at_size() - 1;
  if (std::any_of(labels.begin(), labels.end(), [&](const LabelAxes& l) { return l.y == last && l.b < 0; })) {
    std::swap(left, right);
    for (LabelAxes& l : labels) std::swap(l.a, l.b);
  }
  work.left = Bytes(*left);
  work.right = Bytes(*right);
  // Rows of the left operand, and columns of the right one, that lie beside each other in memory.
  const bool left_turned = std::any_of(labels.begin(), labels.end(), [&](const LabelAxes& l) {
    return l.y >= 0 && l.a == left->global().at_size() - 1;
  });
  const bool right_turned = std::any_of(labels.begin(), labels.end(), [&](const LabelAxes& l) {
    return l.y < 0 && l.b == right->global().at_size() - 1;
  });
  double rows = static_cast<double>(SizeOf(static_cast<DType>(left->dtype())));
  double columns = static_cast<double>(SizeOf(static_cast<DType>(right->dtype())));
  for (const LabelAxes& l : labels) {
    if (l.y < 0 || (l.a >= 0 && l.b >= 0) || result.box_size() == 0) continue;
    (l.a >= 0 ? rows : columns) *= static_cast<double>(result.box(0).extent(l.y));
  }
  if (right_turned) work.turned = work.right;
  if (left_turned && rows >= kPage) work.strided += work.left;
  if (!right_turned && columns >= kPage) work.strided += work.right;
  return work;
}

}  // namespace

std::string MeasuredName(const plan::Kernel& kernel) {
  return MultipliesMatrices(kernel) ? "product" : kernel.name();
}

KernelWork WorkOf(const plan::Kernel& kernel, double near_bytes) {
  if (MultipliesMatrices(kernel)) return WorkOfProduct(kernel);
  if (kernel.name() == "attention" || kernel.name() == "attention_grad") return WorkOfAttention(kernel);
  return {.call = 1,
          .flop = kernel.flops(),
          .byte = kernel.bytes(),
          .far = near_bytes > 0 ? std::max(0.0, kernel.bytes() - near_bytes) : 0};
}

DType RateType(const plan::Kernel& kernel) {
  DType type = DType::kFloat32;
  for (const plan::Operand& operand : kernel.in())
    if (const auto of = static_cast<DType>(operand.dtype()); IsFloating(of) && SizeOf(of) < SizeOf(type))
      type = of;
  return type;
}

double MeasuredKernel::SecondsOf(const KernelWork& work) const {
  double seconds = 0;
  for (const NamedKernelWork& amount : kKernelWork) seconds += each.*amount.value * work.*amount.value;
  return seconds;
}

double MeasuredCollective::SecondsOf(double bytes) const {
  CHECK_GE(points.size(), 2u);
  if (bytes <= points[0].first) return points[0].second;
  size_t next = 1;
  while (next + 1 < points.size() && points[next].first < bytes) ++next;
  const auto& [low, before] = points[next - 1];
  const auto& [high, after] = points[next];
  if (bytes > high) return after + std::max(0.0, after - before) * (bytes - high) / (high - low);
  if (bytes == high) return after;
  if (low <= 0 || before <= 0 || after <= 0) return before + (after - before) * (bytes - low) / (high - low);
  return BetweenPoints(points, next, bytes);
}

double SecondsOf(const DescribedMachine& machine, const plan::Kernel& kernel) {
  Work work{kernel.flops(), kernel.bytes(), UnitOf(kernel.category())};
  if (work.unit != Work::Unit::kOther)
    for (const auto* operands : {&kernel.in(), &kernel.out()})
      for (const plan::Operand& operand : *operands) work.largest = std::max(work.largest, Elements(operand));
  return SecondsOf(machine, work, RateType(kernel)) + machine.overhead;
}

ThreadSeconds SecondsOnThreads(const DescribedMachine& machine, const plan::Kernel& kernel, int threads) {
  ThreadSeconds seconds;
  const bool alone = MeasuredSeconds(machine, kernel, threads, false, &seconds.alone);
  const bool crowded = MeasuredSeconds(machine, kernel, threads, true, &seconds.crowded);
  if (!alone) seconds.alone = crowded ? seconds.crowded : SecondsOf(machine, kernel);
  if (!crowded) seconds.crowded = seconds.alone;
  return seconds;
}

double BytesOfWork(const plan::Collective& collective, size_t element_bytes) {
  double bytes = 0;
  for (const plan::RegionList& list : collective.work())
    for (const plan::Region& region : list.region()) {
      double elements = 1;
      for (int64_t extent : region.box().extent()) elements *= static_cast<double>(extent);
      bytes += elements * (region.source_size() + region.dest_size()) * static_cast<double>(element_bytes);
    }
  return bytes / std::max(1, collective.work_size());
}

bool SecondsOfWork(const DescribedMachine& machine, const plan::Collective& collective, size_t element_bytes,
                   ThreadSeconds* seconds) {
  const double bytes = BytesOfWork(collective, element_bytes);
  const auto of = [&](bool crowded) {
    const MeasuredKernel* k = FindMeasured(machine, kCollectiveWork, DType::kFloat32, 1, crowded);
    return k == nullptr ? -1 : k->SecondsOf({.call = 1, .byte = bytes});
  };
  const double alone = of(false), crowded = of(true);
  if (alone < 0 && crowded < 0) return false;
  *seconds = {alone < 0 ? crowded : alone, crowded < 0 ? alone : crowded};
  return true;
}

BoxingLoad LoadOf(const DescribedMachine& machine, const Graph& graph, int n, CollectiveCosts* costs) {
  const Node& node = graph.node(n);
  const LinkLevels levels{machine.topology, machine.shared};
  BoxingLoad all;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& v = graph.value(node.in[i]);
    const BoxingLoad one = LoadOfBoxingStep(graph.mesh(), graph.times(), v.shape, SizeOf(v.dtype),
                                            graph.LayoutOf(node.in[i]), graph.LayoutOf(node.out[i]), levels);
    all.latency = std::max(all.latency, one.latency);
    all.copies += one.copies;
    all.links.resize(std::max(all.links.size(), one.links.size()));
    for (size_t l = 0; l < one.links.size(); ++l) all.links[l] += one.links[l];
    all.primitive = one.primitive;
    all.members = one.members;
    all.per_unit = one.per_unit;
    all.bytes += one.bytes;
  }
  if (const AlgorithmCost* cost = costs->Named(n)) {
    all.latency = cost->latency;
    all.copies += cost->sums * all.bytes;
    all.links = cost->links;
    for (double& link : all.links) link *= all.bytes;
  }
  for (const MeasuredCollective& m : machine.collectives)
    if (m.primitive == all.primitive && m.members == all.members && m.per_unit == all.per_unit)
      TakeMeasured(m, &all);
  return all;
}

}  // namespace oneflow_like
