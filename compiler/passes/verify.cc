// The invariants of the logical graph, checked after every pass.
#include <algorithm>
#include <map>

#include "compiler/graph/text.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

// Whether the node's signature along one axis is one of its rule's, which is then given.
bool LegalAlong(const Graph& graph, const Node& node, const BoundRule& rule, int entry, Signature* found) {
  std::vector<std::set<int64_t>> grains(node.in.size());
  for (size_t i = 0; i < node.in.size(); ++i)
    if (node.want[i][entry].is_split()) grains[i].insert(node.want[i][entry].grain);
  for (Signature& s : SignaturesAlong(graph, node, rule, entry, grains)) {
    bool same = !s.expanded;
    for (size_t i = 0; i < s.in.size() && same; ++i) same = s.in[i] == node.want[i][entry];
    for (size_t o = 0; o < s.out.size() && same; ++o) {
      const Sbp& made = graph.value(node.out[o]).sbp[entry];
      const bool summed = entry == 0 && o == 0 && SumsOverTime(node);
      same = summed ? s.out[o] == P() && made.is_broadcast() : s.out[o] == made;
    }
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
  if (IsHostCopy(node)) {  // of a variable as another session cut it, whose grain may mean nothing here
    const NdSbp& copied = node.want[0];
    const bool kept =
        std::all_of(node.want.begin(), node.want.end(), [&](const NdSbp& want) { return want == copied; }) &&
        std::all_of(node.out.begin(), node.out.end(), [&](int v) { return graph.value(v).sbp == copied; });
    return kept ? "" : "it does not keep the signature of what it copies";
  }
  const BoundRule& rule = graph.rules().Of(graph, node);
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

// Whether all devices of `slice` are of `larger`: there a local step of a boxing finds its operand.
bool IsWithin(const Mesh& mesh, const Slice& slice, const Slice& larger) {
  for (int a = 0; a < mesh.rank(); ++a)
    if (mesh.axis_size(a) > 1 && larger.fixed[a] != Slice::kFree && larger.fixed[a] != slice.fixed[a])
      return false;
  return true;
}

// Ranks that move rows by their number know it alike.
void CheckCounts(const Graph& graph, const Node& node) {
  const int v = CountsOf(node);
  if (v < 0) return;
  const Value &counts = graph.value(v), &rows = graph.value(node.in[0]);
  const bool fits = counts.dtype == DType::kInt32 && counts.shape.rank() == 2 && rows.shape.rank() >= 3 &&
                    counts.shape == Dims{rows.shape[1], rows.shape[0]};
  if (!fits)
    Fail("verify: ", graph.Describe(node), " moves rows of ", rows.shape.str(), " by counts ",
         Name(counts.dtype), counts.shape.str());
  const std::vector<int> sizes = graph.Sizes();
  for (size_t e = 1; e < sizes.size(); ++e)
    if (sizes[e] > 1 && node.slice.fixed[e - 1] == Slice::kFree && !counts.sbp[e].is_broadcast())
      Fail("verify: ", graph.Describe(node), " moves rows by '", counts.name, "', which is ",
           SbpText(graph, node.slice, counts.sbp), ": ranks do not know it alike");
  const bool timed = rows.sbp[0].is_split() ? counts.sbp[0].is_split() : counts.sbp[0].is_broadcast();
  if (!timed)
    Fail("verify: ", graph.Describe(node), " moves rows of a micro-batch by '", counts.name, "' of another");
}

void CheckEdges(const Graph& graph, int n) {
  const Node& node = graph.node(n);
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& v = graph.value(node.in[i]);
    bool transfer = node.kind == NodeKind::kBoxing || IsCollective(node);
    if (v.sbp != node.want[i] &&
        Plain(v.shape, v.sbp, graph.Sizes()) != Plain(v.shape, node.want[i], graph.Sizes()))
      Fail("verify: ", graph.Describe(n), " wants '", v.name, "' as ",
           SbpText(graph, node.slice, node.want[i]), " but it is ",
           SbpText(graph, graph.producer(node.in[i]).slice, v.sbp), "; a boxing is missing");
    const Slice& from = graph.producer(node.in[i]).slice;
    if (!transfer && from != node.slice && !(IsLocalBoxing(node) && IsWithin(graph.mesh(), node.slice, from)))
      Fail("verify: ", graph.Describe(n), " on ", node.slice.str(graph.mesh()), " reads '", v.name, "' of ",
           from.str(graph.mesh()), "; a boxing is missing");
  }
  CheckCounts(graph, node);
  const OpDef* def = graph.catalog().Find(node.op);
  const bool reads_host = IsHostCopy(node) || graph.IsView(n) || (def && !def->chosen.label.empty());
  for (size_t i = 0; i < node.in.size() && (!reads_host || (node.op == kAssignHost && i > 0)); ++i)
    if (graph.OnHost(node.in[i]))
      Fail("verify: ", graph.Describe(n), " reads '", graph.value(node.in[i]).name,
           "', which lies on the host; a copy is missing");
  if (!def) return;
  for (auto [out, in] : def->inplace) {
    const Node& variable = graph.producer(node.in[in]);
    if (variable.op == kFromHost) continue;  // the result is written there by assign_host
    if (variable.kind != NodeKind::kVariable)
      Fail("verify: ", graph.Describe(n), " updates '", graph.value(node.in[in]).name,
           "', which is no variable");
    if (graph.value(node.out[out]).sbp != graph.value(node.in[in]).sbp || variable.slice != node.slice)
      Fail("verify: ", graph.Describe(n), " writes ",
           SbpText(graph, node.slice, graph.value(node.out[out]).sbp), " over variable '", variable.name,
           "' which is ", SbpText(graph, variable.slice, graph.value(node.in[in]).sbp));
  }
}

// How node `late` comes to depend on `early`, or nothing.
std::string PathBetween(const Graph& graph, int early, int late) {
  std::map<int, int> next{{late, -1}};
  std::vector<int> todo{late};
  while (!todo.empty()) {
    const int at = todo.back();
    todo.pop_back();
    if (at == early) {
      std::string text = graph.node(at).name;
      for (int n = next[at]; n >= 0; n = next[n]) text += " -> " + graph.node(n).name;
      return text;
    }
    auto visit = [&](int before) {
      if (graph.alive(before) && next.try_emplace(before, at).second) todo.push_back(before);
    };
    for (int v : graph.node(at).in) visit(graph.value(v).producer);
    for (int before : graph.node(at).after) visit(before);
  }
  return "";
}

// Whoever reads a variable that the node replaces has read it before.
void CheckWrites(const Graph& graph, int n, const std::vector<std::vector<int>>& readers,
                 std::vector<std::string>* implied) {
  const Node& node = graph.node(n);
  for (auto [out, in] : graph.InPlace(n)) {
    std::vector<int> look{node.in[in]};
    while (!look.empty()) {
      const int v = look.back();
      look.pop_back();
      for (int r : readers[v]) {
        const OpDef* reader = graph.catalog().Find(graph.node(r).op);
        if (reader && reader->view) look.push_back(graph.node(r).out[0]);
        if (r == n || std::find(node.after.begin(), node.after.end(), r) != node.after.end()) continue;
        const std::string path = PathBetween(graph, r, n);
        if (path.empty())
          Fail("verify: ", graph.Describe(n), " replaces '", graph.value(node.in[in]).name,
               "', but nothing makes it wait for ", graph.Describe(r), ", which reads it");
        if (implied) implied->push_back(path);
      }
    }
  }
}

}  // namespace

bool LegalSignature(const Graph& graph, const Node& node) { return WrongWith(graph, node).empty(); }

void VerifyGraph(const Graph& graph, Level level, std::vector<std::string>* implied) {
  std::vector<int> order = graph.Order();
  std::vector<std::vector<int>> readers;
  if (level >= Level::kOrdered) readers = graph.Readers();
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
      std::string wrong;
      if (!graph.rules().Passes(graph, node, [&] { return (wrong = WrongWith(graph, node)).empty(); }))
        Fail("verify: ", graph.Describe(n), ": ", wrong);
      const Rate rate = graph.RateOf(n);
      if (node.rate != rate && !(node.rate == Rate::kRemade && rate == Rate::kOnce))
        Fail("verify: ", graph.Describe(n), " runs ",
             node.rate == Rate::kOnce ? "once" : "for each micro-batch", " but its signatures say otherwise");
    }
    if (level >= Level::kBoxed) CheckEdges(graph, n);
    if (level >= Level::kLowered && node.kind == NodeKind::kBoxing)
      Fail("verify: ", graph.Describe(n), " was not lowered");
    if (level >= Level::kOrdered) CheckWrites(graph, n, readers, implied);
  }
}

}  // namespace oneflow_like
