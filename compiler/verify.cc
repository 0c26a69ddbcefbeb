// The invariants of the logical graph, checked after every pass.
#include <algorithm>

#include "compiler/passes.h"
#include "compiler/text.h"

namespace oneflow_like {

namespace {

// Whether the node's signature along one axis is one of its rule's, which is then given.
bool LegalAlong(const Graph& graph, const Node& node, const BoundRule& rule, int entry, Signature* found) {
  std::vector<std::set<int64_t>> grains(node.in.size());
  for (size_t i = 0; i < node.in.size(); ++i)
    if (node.want[i][entry].is_split()) grains[i].insert(node.want[i][entry].grain);
  for (Signature& s : Signatures(rule, grains, graph.Parts())) {
    bool same = !s.expanded;
    for (size_t i = 0; i < s.in.size() && same; ++i) same = s.in[i] == node.want[i][entry];
    for (size_t o = 0; o < s.out.size() && same; ++o) same = s.out[o] == graph.value(node.out[o]).sbp[entry];
    if (!same) continue;
    *found = std::move(s);
    return true;
  }
  return false;
}

// The signature of a catalog operator is one its rule derives, along every axis: empty, or what is wrong.
std::string WrongWith(const Graph& graph, const Node& node) {
  const OpDef* def = graph.catalog().Find(node.op);
  if (!def || node.kind == NodeKind::kFused) return "";
  OpCall call{node.op, node.name, {}, {}, &node.attrs};
  for (int v : node.in) {
    call.shapes.push_back(graph.value(v).shape);
    call.dtypes.push_back(graph.value(v).dtype);
  }
  BoundRule rule = BindOp(*def, call);
  std::vector<int> sizes = graph.Sizes();
  std::vector<Signature> cuts;
  for (size_t e = 0; e < sizes.size(); ++e) {
    if (sizes[e] == 1 || (e > 0 && node.slice.fixed[e - 1] != Slice::kFree)) continue;
    Signature found;
    if (!LegalAlong(graph, node, rule, static_cast<int>(e), &found))
      return Cat("its signature is not one of the operator's along ",
                 e == 0 ? "time" : graph.mesh().axis_name(static_cast<int>(e) - 1));
    for (const Signature& other : cuts)
      if (!Compatible(found, other))
        return Cat("two axes cut the same axis in different grains, ", other.str(), " and ", found.str());
    cuts.push_back(std::move(found));
  }
  return "";
}

void CheckSignature(const Graph& graph, int n) {
  std::string wrong = WrongWith(graph, graph.node(n));
  if (!wrong.empty()) Fail("verify: ", graph.Describe(n), ": ", wrong);
}

void CheckEdges(const Graph& graph, int n) {
  const Node& node = graph.node(n);
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& v = graph.value(node.in[i]);
    bool transfer = node.kind == NodeKind::kBoxing || IsCollective(node);
    if (v.sbp != node.want[i])
      Fail("verify: ", graph.Describe(n), " wants '", v.name, "' as ",
           SbpText(graph, node.slice, node.want[i]), " but it is ",
           SbpText(graph, graph.producer(node.in[i]).slice, v.sbp), "; a boxing is missing");
    if (!transfer && graph.producer(node.in[i]).slice != node.slice)
      Fail("verify: ", graph.Describe(n), " on ", node.slice.str(graph.mesh()), " reads '", v.name, "' of ",
           graph.producer(node.in[i]).slice.str(graph.mesh()), "; a boxing is missing");
  }
  const OpDef* def = graph.catalog().Find(node.op);
  if (!def) return;
  for (auto [out, in] : def->inplace) {
    const Node& variable = graph.producer(node.in[in]);
    if (variable.kind != NodeKind::kVariable)
      Fail("verify: ", graph.Describe(n), " updates '", graph.value(node.in[in]).name,
           "', which is no variable");
    if (graph.value(node.out[out]).sbp != graph.value(node.in[in]).sbp || variable.slice != node.slice)
      Fail("verify: ", graph.Describe(n), " writes ",
           SbpText(graph, node.slice, graph.value(node.out[out]).sbp), " over variable '", variable.name,
           "' which is ", SbpText(graph, variable.slice, graph.value(node.in[in]).sbp));
  }
}

}  // namespace

bool LegalSignature(const Graph& graph, const Node& node) { return WrongWith(graph, node).empty(); }

void VerifyGraph(const Graph& graph, Level level) {
  std::vector<int> order = graph.Order();
  for (int n : order) {
    const Node& node = graph.node(n);
    for (int v : node.in)
      if (!graph.alive(graph.value(v).producer))
        Fail("verify: ", graph.Describe(n), " reads '", graph.value(v).name, "', whose operator was removed");
    if (level >= Level::kSigned) {
      if (node.want.size() != node.in.size()) Fail("verify: ", graph.Describe(n), " has no signature");
      for (int v : node.out)
        if (graph.value(v).sbp.size() != size_t(1 + graph.mesh().rank()))
          Fail("verify: '", graph.value(v).name, "' has no signature");
      CheckSignature(graph, n);
      if (node.rate != graph.RateOf(n))
        Fail("verify: ", graph.Describe(n), " runs ",
             node.rate == Rate::kOnce ? "once" : "for each micro-batch", " but its signatures say otherwise");
    }
    if (level >= Level::kBoxed) CheckEdges(graph, n);
    if (level >= Level::kLowered && node.kind == NodeKind::kBoxing)
      Fail("verify: ", graph.Describe(n), " was not lowered");
  }
}

void VerifyLogicalPlan(const Graph& graph, const LogicalPlan& plan) {
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const LogicalBuffer& buffer = plan.buffers[b];
    if (buffer.writer < 0 || buffer.write_period == 1) continue;
    for (int n : plan.segments[buffer.writer].nodes)
      for (int v : graph.node(n).in)
        if (plan.buffer_of[v] == static_cast<int>(b))
          Fail("verify: ", graph.Describe(n), " reads '", graph.value(v).name, "' in ",
               plan.segments[buffer.writer].name, ", which finishes it with the last of ",
               buffer.write_period, " acts");
  }
  for (const LogicalEdge& e : plan.edges)
    if (e.slots < std::max(1, e.full))
      Fail("verify: the edge from ", plan.segments[e.writer].name, " to ", plan.segments[e.reader].name,
           " has ", e.slots, " slots");
  TokenGame game = GameOf(graph, plan);
  Status feasible = CheckOrder(game, plan.order);
  if (!feasible.ok()) Fail("verify: the order of acts is no run of the plan: ", feasible.message());
}

}  // namespace oneflow_like
