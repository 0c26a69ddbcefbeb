#include "compiler/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "compiler/cost/collective_costs.h"
#include "compiler/graph/text.h"

namespace oneflow_like {

namespace {

// The weight that a value is another form of, through boxing and nodes of one operand; -1: of none.
int WeightBehind(const Graph& graph, int value) {
  for (;;) {
    int n = graph.value(value).producer;
    if (graph.node(n).kind == NodeKind::kVariable) return n;
    value = graph.OperandBehind(value);
    if (value < 0) return -1;
  }
}

// Why a weight is gathered that was annotated to be used in pieces; empty when none is.
std::string WhyGathered(const Graph& graph, const Node& boxing) {
  std::string text;
  for (size_t i = 0; i < boxing.out.size(); ++i) {
    const int weight = WeightBehind(graph, boxing.in[i]);
    if (weight < 0) continue;
    const NdSbp &from = graph.value(boxing.in[i]).sbp, &to = graph.value(boxing.out[i]).sbp;
    const Node& variable = graph.node(weight);
    for (const auto& [entry, sbp] : variable.fixed)
      if (!variable.stored.count(entry) && from[entry].is_split() && !to[entry].is_split())
        text +=
            Cat(text.empty() ? "" : "; ", "weight '", variable.name, "' is annotated ", sbp.str(), " over ",
                graph.mesh().axis_name(entry - 1), ", but its reader cannot compute with it so");
  }
  return text;
}

// Up to so many devices bytes are counted by routing; beyond, the closed form's estimate must do.
constexpr int kManyDevices = 64;

// Elements between ranks in a step. Boxing of layers that are alike is counted once.
using Moved = std::map<std::string, double>;
double MovedOf(const Graph& graph, const Node& boxing, size_t operand, Moved* known) {
  const int in = boxing.in[operand];
  const Layout from = graph.LayoutOf(in), to = graph.LayoutOf(boxing.out[operand]);
  auto [it, fresh] =
      known->try_emplace(Cat(graph.value(in).shape.str(), from.str(graph.mesh(), graph.times()),
                             to.str(graph.mesh(), graph.times())),
                         0);
  if (!fresh) return it->second;
  const BoxingEnd source = EndOf(graph.mesh(), from), dest = EndOf(graph.mesh(), to);
  const int acts = ActsOf(graph, boxing), pieces = from.sbp[0].is_split() ? acts : 1;
  double& moved = it->second;
  for (int t = 0; t < pieces; ++t) {
    Box box = MicroBatch(graph.value(in).shape, graph.times(), t, from.sbp[0]);
    moved += static_cast<double>(RouteAll(box, source, dest).Moved()) * acts / pieces;
  }
  return moved;
}

double MovedBy(const Graph& graph, const Node& boxing, const BoxingCost& estimate, Moved* known) {
  if (IsLocalBoxing(boxing)) return 0;
  if (graph.mesh().size() > kManyDevices) return estimate.moved;
  double moved = 0;
  for (size_t i = 0; i < boxing.out.size(); ++i) moved += MovedOf(graph, boxing, i, known);
  return moved * ShareMoved(boxing);
}

}  // namespace

std::vector<BoxingPrice> PricesOfBoxing(const Compiled& compiled, bool gathered_alone) {
  const Graph& graph = compiled.graph;
  CostModel cost(graph, compiled.options.machine);
  Moved moved;
  std::vector<BoxingPrice> prices;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (!IsCollective(node) && !IsLocalBoxing(node)) continue;
    std::string gathered = WhyGathered(graph, node);
    if (gathered_alone && gathered.empty()) continue;
    const Value &in = graph.value(node.in[0]), &out = graph.value(node.out[0]);
    BoxingCost price = cost.Boxing(n);
    bool moves = graph.producer(node.in[0]).slice != node.slice;  // to another stage
    auto place = [&](int v) {
      const Slice& slice = graph.producer(v).slice;
      return SbpText(graph, slice, graph.value(v).sbp) + (moves ? "@" + slice.str(graph.mesh()) : "");
    };
    size_t reader = node.why.find("wanted by");
    const std::string what = node.out.size() == 1 ? in.name
                                                  : Cat(in.name, " and ", node.out.size() - 1,
                                                        node.out.size() == 2 ? " other" : " others");
    prices.push_back({n, node.op, AlgorithmText(node), what, place(node.in[0]), place(node.out[0]),
                      reader == std::string::npos ? node.why : node.why.substr(reader), gathered,
                      MovedBy(graph, node, price, &moved) * SizeOf(out.dtype), price.seconds});
  }
  std::stable_sort(prices.begin(), prices.end(),
                   [](const BoxingPrice& a, const BoxingPrice& b) { return a.seconds > b.seconds; });
  return prices;
}

Overlapped OverlappedIn(const Compiled& compiled) {
  const std::string first = Cat(kInChunks, "1 of ");
  Overlapped found;
  for (int n : compiled.graph.Order()) {
    const Node& node = compiled.graph.node(n);
    if (node.part < 0 || !compiled.graph.IsHeavy(n)) continue;
    if (node.why.rfind(first, 0) == 0) found.products.push_back(n);
    if (node.why.rfind(kPutBehind, 0) == 0) found.behind.push_back(n);
  }
  return found;
}

std::string StageOf(const Compiled& compiled, int rank) {
  const Mesh& mesh = compiled.graph.mesh();
  std::vector<int> coords = mesh.Coords(rank);
  Slice slice = WholeMesh(mesh);
  for (const Segment& s : compiled.logical.segments)
    for (int a = 0; a < mesh.rank(); ++a)
      if (s.slice.fixed[a] != Slice::kFree) slice.fixed[a] = coords[a];
  return slice.str(mesh);
}

std::vector<StageTime> TimesOfStages(const Compiled& compiled) {
  const Mesh& mesh = compiled.graph.mesh();
  std::vector<StageTime> stages;
  std::set<std::string> known;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    StageTime stage{StageOf(compiled, rank)};
    if (!known.insert(stage.stage).second) continue;
    std::vector<int> coords = mesh.Coords(rank);
    for (const Segment& s : compiled.logical.segments)
      if (compiled.logical.On(s, StreamKind::kCompute) && s.slice.Contains(coords))
        stage.seconds += s.seconds * (s.per_micro_batch ? compiled.graph.times() : 1);
    double step = compiled.logical.makespan;
    stage.bubble = step > 0 ? 1 - stage.seconds / step : 0;
    stages.push_back(std::move(stage));
  }
  return stages;
}

RankWork WorkOfRank(const Compiled& compiled, int rank) {
  const Graph& graph = compiled.graph;
  CostModel cost(graph, compiled.options.machine);
  std::vector<int> coords = graph.mesh().Coords(rank);
  RankWork all;
  for (const Segment& s : compiled.logical.segments) {
    if (!s.slice.Contains(coords)) continue;
    for (int n : s.nodes) {
      double flops = cost.WorkOfStep(n, coords).flops;
      all.flops += flops;
      if (graph.IsHeavy(n)) all.heavy_flops += flops;
    }
  }
  return all;
}

double ModelFlops(const Compiled& compiled) {
  const Graph& graph = compiled.graph;
  double flops = 0;
  for (int n : graph.Order())
    if (graph.IsHeavy(n) && !graph.node(n).why.starts_with(kComputedAgain))
      flops += LocalWork(graph, n, graph.RuleOf(n)).work().flops;
  return flops;
}

const char* Name(Purpose purpose) {
  static const char* const names[] = {"weights",  "optimizer state", "gradients", "narrow copies",
                                      "gathered", "stash",           "other"};
  return names[static_cast<int>(purpose)];
}

namespace {

// Values on the way from a weight's gradient, as backward makes it, to the update that reads it.
std::vector<bool> Gradients(const Graph& graph, const std::vector<int>& order) {
  std::vector<bool> gradient(graph.num_values(), false);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node& node = graph.node(*it);
    const OpDef* def = graph.catalog().Find(node.op);
    if (node.op == kAssignHost) continue;
    if (def && !def->inplace.empty()) {
      std::set<int> updated;
      for (auto [out, in] : def->inplace) updated.insert(in);
      for (size_t i = 0; i < node.in.size(); ++i)
        if (!updated.count(static_cast<int>(i)) &&
            graph.value(node.in[i]).shape == graph.value(node.out[0]).shape)
          gradient[node.in[i]] = true;
    } else {
      for (int v : node.out)
        if (const int in = graph.OperandBehind(v);
            in >= 0 && gradient[v] && graph.value(in).shape == graph.value(v).shape)
          gradient[in] = true;
    }
  }
  return gradient;
}

}  // namespace

std::vector<Purpose> PurposesOf(const Compiled& compiled) {
  const Graph& graph = compiled.graph;
  const LogicalPlan& plan = compiled.logical;
  const auto piece = [&graph, sizes = graph.Sizes()](int v) {
    return LargestPiece(graph.value(v).shape, graph.value(v).sbp, sizes).elements();
  };
  std::vector<int> order = graph.Order();
  std::vector<bool> gradient = Gradients(graph, order), forward(graph.num_values(), false);
  for (int n : order)
    if (graph.node(n).phase == Phase::kForward)
      for (int v : graph.node(n).in) forward[v] = true;
  // What is a weight in another form, by the way it came.
  std::vector<Purpose> form(graph.num_values(), Purpose::kOther);
  for (int n : order) {
    const Node& node = graph.node(n);
    if (node.kind == NodeKind::kVariable) {
      form[node.out[0]] = forward[node.out[0]] ? Purpose::kWeights : Purpose::kOptimizerState;
      continue;
    }
    for (int v : node.out) {
      const int from = graph.OperandBehind(v);
      const Purpose was = from < 0 ? Purpose::kOther : form[from];
      bool of_weight = was == Purpose::kWeights || was == Purpose::kNarrowCopies || was == Purpose::kGathered;
      if (!of_weight) continue;
      const Value &in = graph.value(from), &out = graph.value(v);
      if (IsCollective(node) && piece(v) >= piece(from))
        form[v] = Purpose::kGathered;
      else if (SizeOf(out.dtype) < SizeOf(in.dtype) && was == Purpose::kWeights)
        form[v] = Purpose::kNarrowCopies;
      else if (was != Purpose::kWeights && out.shape == in.shape)
        form[v] = was;
    }
  }
  std::vector<Purpose> purposes;
  for (const LogicalBuffer& b : plan.buffers) {
    Purpose purpose = form[b.value];
    if (b.variable.empty() && purpose == Purpose::kOther) {
      // Kept from one part of a micro-batch's work to a later one.
      bool stash = b.writer >= 0 && std::any_of(b.readers.begin(), b.readers.end(), [&](int r) {
                     const Phase part = plan.segments[r].phase;
                     return plan.segments[b.writer].phase < part && part < Phase::kUpdate;
                   });
      purpose = gradient[b.value] ? Purpose::kGradients : stash ? Purpose::kStash : Purpose::kOther;
    }
    purposes.push_back(purpose);
  }
  return purposes;
}

}  // namespace oneflow_like
