// Products take in what follows them, on devices whose library does it before the product is stored; and
// gradients of norms and sums by index, on any device, what is added to them.
// Needs: lowered boxing. Leaves: on cuda, in place of a product that only the next one reads, and of that,
//   x w + b -> gelu                linear: gelu, and what it was taken of where that is read (backward)
//   x w + b + c, or x w + b        linear: c has y's shape; b alone where no elementwise loop would add it
//   x w + c, add_n(x w, x' w', c)  linear: one product after another adds to what there is
//   gelu_grad(dy w, pre)           linear_grad_gelu
//   x^T dy, and sum_to(dy)         linear_grad_weight: the gradients of a weight and of its bias
// (ops/linear.cc), all in one type, but that gradients of both may be wider than what they are sums of; and
// in place of a norm's gradient whose dx only a sum of two reads, which no loop would take, and of that sum,
//   layer_norm_grad(...) + c       the same operator (ops/norm.cc) with c, of the branch beside the norm
// and likewise of sums by index, which then begin at x and not at 0: one pass over the result less,
//   index_sum(ids, src) + x        the same operator (ops/take.cc) with x; so index_add and scatter_add
//
// A node stands where what it begins with stood, so a gradient is not put off. What a signature does not
// allow stays as it was: a bias and an x are added once, so not to partial sums, and two sums are one node
// only when both are partial alike. Where the library cannot after all (pieces of odd sizes) the kernel does
// the steps one by one.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "compiler/passes/passes.h"
#include "ops/equation.h"
#include "ops/fused.h"
#include "ops/tf32.h"

namespace oneflow_like {

namespace {

constexpr int64_t kGeluMultiple = 8;  // rows of what the library keeps for gelu's slope are multiples of this

// The graph as a step of this pass finds it.
struct Found {
  std::vector<int> order;
  std::vector<int> position;              // by node, in that order
  std::vector<std::vector<int>> readers;  // by value; Replace keeps them up to date
};

Found Find(const Graph& graph) {
  Found found{graph.Order(), std::vector<int>(graph.num_nodes(), 0), graph.Readers()};
  for (size_t i = 0; i < found.order.size(); ++i) found.position[found.order[i]] = static_cast<int>(i);
  return found;
}

// A node to put in the place of node `at`, which makes what the others made.
struct Replacement {
  int at;
  Node node;
  std::vector<int> others;
};
// The ways to replace something, the best first.
using Replacements = std::vector<Replacement>;

// --- What is where ---

bool IsProduct(const Graph& graph, int n) {
  const Node& node = graph.node(n);
  return node.op == "einsum" || (node.op == "matmul" && graph.value(node.in[1]).shape.rank() == 2);
}

Equation EquationOf(const Graph& graph, int n) {
  const Node& node = graph.node(n);
  if (node.op == "matmul") return MatmulEquation(graph.value(node.in[0]).shape.rank());
  return ParseEquation(node.op, node.attrs.Str("equation"));
}

bool Together(const Graph& graph, int a, int b) {
  const Node &x = graph.node(a), &y = graph.node(b);
  return x.slice == y.slice && x.phase == y.phase && x.after.empty() && y.after.empty() && x.rate == y.rate &&
         x.part == y.part;
}

bool Alike(const Graph& graph, int v, int w) {
  return graph.value(v).dtype == graph.value(w).dtype && graph.value(v).shape == graph.value(w).shape;
}

bool OneType(const Graph& graph, const Node& node) {
  for (const auto* values : {&node.in, &node.out})
    for (int v : *values)
      if (graph.value(v).dtype != graph.value(node.in[0]).dtype) return false;
  return true;
}

// The one node that reads v, if it goes together with n; -1: none.
int OnlyReader(const Graph& graph, const Found& found, int v, int n) {
  const std::vector<int>& readers = found.readers[v];
  return readers.size() == 1 && Together(graph, n, readers[0]) ? readers[0] : -1;
}

// The product that made v for `reader` alone; -1: none.
int ProductFor(const Graph& graph, const Found& found, int v, int reader) {
  const int n = graph.value(v).producer;
  return graph.alive(n) && IsProduct(graph, n) && OnlyReader(graph, found, v, n) == reader ? n : -1;
}

// Whether v is a row, or several, added to each of y's: its axes are the last of y.
bool IsBias(const Graph& graph, int v, int y) {
  const Dims &bias = graph.value(v).shape, &all = graph.value(y).shape;
  const int lead = all.rank() - bias.rank();
  if (bias.rank() == 0 || lead <= 0) return false;
  for (int axis = 0; axis < bias.rank(); ++axis)
    if (bias[axis] != all[lead + axis]) return false;
  return true;
}

// Whether node r would be a loop with node `sum`, which then adds at no cost.
bool JoinsALoop(const Graph& graph, int r, int sum) {
  const Node& node = graph.node(r);
  const OpDef* def = graph.catalog().Find(node.op);
  if (!def || def->view || node.out.size() != 1 || !Together(graph, r, sum)) return false;
  std::vector<DType> in;
  for (int v : node.in) in.push_back(graph.value(v).dtype);
  const Value& out = graph.value(node.out[0]);
  return out.shape == graph.value(graph.node(sum).out[0]).shape && Fusible(*def, in, {out.dtype});
}
bool AnyJoinsALoop(const Graph& graph, const Found& found, int sum) {
  const std::vector<int>& readers = found.readers[graph.node(sum).out[0]];
  return std::any_of(readers.begin(), readers.end(), [&](int r) { return JoinsALoop(graph, r, sum); });
}

// Whether node n depends on value v.
bool Reaches(const Graph& graph, const Found& found, int v, int n) {
  std::vector<int> todo = {v};
  std::set<int> seen;
  while (!todo.empty()) {
    const int value = todo.back();
    todo.pop_back();
    for (int r : found.readers[value]) {
      if (r == n) return true;
      if (!graph.alive(r) || !seen.insert(r).second) continue;
      todo.insert(todo.end(), graph.node(r).out.begin(), graph.node(r).out.end());
    }
  }
  return false;
}

// --- New nodes ---

// A node in the place of product n that does n's product first, and then `why`.
Node Begin(const Graph& graph, int n, const std::string& op, const std::string& why) {
  Node node = graph.node(n);
  node.op = op;
  node.why = why;
  node.attrs = {{"equation", EquationOf(graph, n).str()}};
  if (graph.node(n).attrs.Has(kTf32)) node.attrs.Set(kTf32, graph.node(n).attrs.Int(kTf32));
  node.out.clear();
  return node;
}

// Adds the operand of `reader` to a node.
void AddInput(const Node& reader, size_t operand, Node* node) {
  node->in.push_back(reader.in[operand]);
  node->want.push_back(reader.want[operand]);
}

// Does so, or nothing where the node's operator has no such signature.
bool Replace(Replacement with, Graph* graph, Found* found) {
  auto& [n, node, others] = with;
  if (!LegalSignature(*graph, node)) return false;
  node.name = graph->value(node.out[0]).name;
  for (int o : others) {
    for (int v : graph->node(n).out) graph->value(v).producer = o;  // nobody reads them any more
    graph->Remove(o);
  }
  for (size_t o = 0; o < node.out.size(); ++o) {  // values keep their ids: readers need no change
    graph->value(node.out[o]).producer = n;
    graph->value(node.out[o]).output = static_cast<int>(o);
  }
  for (int v : node.in)
    for (int& r : found->readers[v])
      if (std::find(others.begin(), others.end(), r) != others.end()) r = n;
  graph->node(n) = std::move(node);
  return true;
}

// --- x w + b, and then gelu or + c ---

// `linear`, product n with the bias that `sum` adds, and then gelu. Of that it keeps what others read.
std::optional<Replacement> ThenGelu(const Graph& graph, const Found& found, int n, int sum, Node linear) {
  const int added = graph.node(sum).out[0];
  const std::vector<int>& readers = found.readers[added];
  const auto gelu = std::find_if(readers.begin(), readers.end(),
                                 [&](int r) { return graph.node(r).op == "gelu" && Together(graph, n, r); });
  if (gelu == readers.end() || graph.value(linear.in.back()).shape.elements() % kGeluMultiple != 0)
    return std::nullopt;
  linear.why = "product, bias and gelu";
  linear.attrs.Set("gelu", int64_t{1});
  linear.out = {graph.node(*gelu).out[0]};
  if (readers.size() > 1) {
    linear.attrs.Set("pre", int64_t{1});
    linear.out.push_back(added);
  }
  return Replacement{n, std::move(linear), {sum, *gelu}};
}

// The same, and then + c.
std::optional<Replacement> ThenResidual(const Graph& graph, const Found& found, int n, int sum, Node linear) {
  const int added = graph.node(sum).out[0], last = OnlyReader(graph, found, added, n);
  if (last < 0 || graph.node(last).op != "add") return std::nullopt;
  const Node& residual = graph.node(last);
  const size_t other = residual.in[0] == added ? 1 : 0;
  if (!Alike(graph, residual.in[other], added) || !Alike(graph, residual.out[0], added)) return std::nullopt;
  linear.why = "product, bias and residual";
  AddInput(residual, other, &linear);
  linear.attrs.Set("residual", int64_t{1});
  linear.out = {residual.out[0]};
  return Replacement{n, std::move(linear), {sum, last}};
}

Replacements Linear(const Graph& graph, const Found& found, int n) {
  if (!IsProduct(graph, n)) return {};
  const int y = graph.node(n).out[0], sum = OnlyReader(graph, found, y, n);
  if (sum < 0 || graph.node(sum).op != "add") return {};
  const size_t bias = graph.node(sum).in[0] == y ? 1 : 0;
  const int added = graph.node(sum).out[0];
  if (!IsBias(graph, graph.node(sum).in[bias], y) || !Alike(graph, added, y)) return {};
  Node linear = Begin(graph, n, "linear", "product and bias");
  AddInput(graph.node(sum), bias, &linear);
  linear.attrs.Set("bias", int64_t{1});
  Replacements ways;
  const auto add_way = [&](std::optional<Replacement> way) {
    if (way && OneType(graph, way->node)) ways.push_back(std::move(*way));
  };
  add_way(ThenGelu(graph, found, n, sum, linear));
  add_way(ThenResidual(graph, found, n, sum, linear));
  if (AnyJoinsALoop(graph, found, sum)) return ways;  // which adds the bias at no cost
  linear.out = {added};
  add_way(Replacement{n, std::move(linear), {sum}});
  return ways;
}

// --- A sum of products and at most one thing else ---

// One product after another adds to what there is: each of these is done, or none.
std::vector<Replacement> SumOfProducts(const Graph& graph, const Found& found, int n) {
  const Node& sum = graph.node(n);
  if ((sum.op != "add" && sum.op != "add_n") || sum.in.size() < 2) return {};
  std::vector<int> products;
  std::optional<size_t> rest;
  for (size_t i = 0; i < sum.in.size(); ++i) {
    if (!Alike(graph, sum.in[i], sum.out[0])) return {};
    const int p = ProductFor(graph, found, sum.in[i], n);
    if (p >= 0 && OneType(graph, graph.node(p))) {
      products.push_back(p);
    } else if (rest) {
      return {};
    } else {
      rest = i;
    }
  }
  if (products.empty() || (products.size() == 1 && !rest)) return {};
  // None needs another's: only the sum reads them. But none is put off until the rest is there, which would
  // keep what it reads.
  const std::vector<int>& position = found.position;
  std::sort(products.begin(), products.end(), [&](int p, int q) { return position[p] < position[q]; });
  if (rest && position[graph.value(sum.in[*rest]).producer] > position[products[0]]) return {};
  int before = rest ? sum.in[*rest] : graph.node(products[0]).out[0];
  std::vector<Replacement> chain;
  for (size_t p = rest ? 0 : 1; p < products.size(); ++p) {
    const bool last = p + 1 == products.size();
    Node next = Begin(graph, products[p], "linear", "product added to what there is");
    next.attrs.Set("residual", int64_t{1});
    next.in.push_back(before);
    next.want.push_back(sum.want[rest.value_or(0)]);
    before = graph.node(products[p]).out[0];
    next.out = {last ? sum.out[0] : before};
    if (!LegalSignature(graph, next)) return {};
    chain.push_back({products[p], std::move(next), last ? std::vector<int>{n} : std::vector<int>{}});
  }
  return chain;
}

void FuseSum(int n, Graph* graph, Found* found) {
  for (Replacement& r : SumOfProducts(*graph, *found, n)) {
    const int product = r.at, before = r.node.in[2];
    Replace(std::move(r), graph, found);
    for (int& reader : found->readers[before]) reader = reader == n ? product : reader;
  }
}

// --- Gradients ---

Replacements LinearGradGelu(const Graph& graph, const Found& found, int n) {
  if (!IsProduct(graph, n)) return {};
  const int y = graph.node(n).out[0], slope = OnlyReader(graph, found, y, n);
  if (slope < 0 || graph.node(slope).op != "gelu_grad" || graph.node(slope).in[0] != y) return {};
  const int pre = graph.node(slope).in[1];
  if (pre == y || !Alike(graph, pre, y) || graph.value(y).shape.rank() == 0) return {};
  if (graph.value(y).shape.back() % kGeluMultiple != 0) return {};
  Node node = Begin(graph, n, "linear_grad_gelu", "product and the slope of gelu");
  AddInput(graph.node(slope), 1, &node);
  node.out = {graph.node(slope).out[0]};
  if (!OneType(graph, node)) return {};
  return {{n, std::move(node), {slope}}};
}

// Whether dw of x, dy -> dw ends with the last `rank` labels of dy, and sums over dy's others.
bool SumsAlike(const Equation& e, int rank) {
  const size_t kept = static_cast<size_t>(rank);
  if (kept > e.y.size() || kept > e.b.size()) return false;
  const std::string labels = e.b.substr(e.b.size() - kept);
  if (e.y.substr(e.y.size() - kept) != labels) return false;
  for (char label : e.b)
    if (HasLabel(e.y, label) != HasLabel(labels, label)) return false;
  for (char label : e.Summed())
    if (!HasLabel(e.b, label)) return false;
  return std::none_of(labels.begin(), labels.end(), [&](char label) { return HasLabel(e.a, label); });
}

// n sums dy; some product of dy and something else sums over the same things.
Replacements LinearGradWeight(const Graph& graph, const Found& found, int n) {
  const Node& sum = graph.node(n);
  if (sum.op != "sum_to") return {};
  const int dy = sum.in[0], db = sum.out[0];
  if (!IsBias(graph, db, dy)) return {};
  const DType type = graph.value(db).dtype;
  const int rank = graph.value(db).shape.rank();
  Replacements ways;
  for (int product : found.readers[dy]) {
    if (!graph.alive(product) || !IsProduct(graph, product) || !Together(graph, product, n)) continue;
    const Node& was = graph.node(product);
    if (was.in[0] == was.in[1] || graph.value(was.out[0]).dtype != type) continue;
    Equation e = EquationOf(graph, product);
    Node node = Begin(graph, product, "linear_grad_weight", "gradients of weight and bias");
    if (was.in[0] == dy) {
      e = e.Swapped();
      node.attrs.Set("equation", e.str());
      std::swap(node.in[0], node.in[1]);
      std::swap(node.want[0], node.want[1]);
    }
    if (!SumsAlike(e, rank) || Reaches(graph, found, db, product)) continue;
    node.attrs.Set("bias_rank", int64_t{rank});
    if (type != graph.value(dy).dtype) node.attrs.Set("dtype", std::string(Name(type)));
    node.out = {was.out[0], db};
    ways.push_back({product, std::move(node), {n}});
  }
  return ways;
}

// --- A sum behind a node's first result ---

// What n becomes with the sum of its first result and of another value, unless a loop adds it at no cost.
// What is added must be there before n: then it does not depend on n either.
Replacements WithSumAfter(const Graph& graph, const Found& found, int n, const char* why) {
  const int first = graph.node(n).out[0], sum = OnlyReader(graph, found, first, n);
  if (sum < 0) return {};
  const Node& add = graph.node(sum);
  if ((add.op != "add" && add.op != "add_n") || add.in.size() != 2) return {};
  const size_t other = add.in[0] == first ? 1 : 0;
  const int added = add.in[other];
  if (!Alike(graph, added, first) || !Alike(graph, add.out[0], first)) return {};
  if (found.position[graph.value(added).producer] >= found.position[n]) return {};
  if (AnyJoinsALoop(graph, found, sum)) return {};
  Node node = graph.node(n);
  node.why = why;
  AddInput(add, other, &node);
  node.out[0] = add.out[0];
  return {{n, std::move(node), {sum}}};
}

Replacements NormGradient(const Graph& graph, const Found& found, int n) {
  const Node& norm = graph.node(n);
  if ((norm.op != "layer_norm_grad" && norm.op != "rms_norm_grad") || norm.attrs.Has("residual")) return {};
  Replacements ways = WithSumAfter(graph, found, n, "gradients of norm and residual");
  for (Replacement& way : ways) way.node.attrs.Set("residual", int64_t{1});
  return ways;
}

Replacements IndexSum(const Graph& graph, const Found& found, int n) {
  const Node& sums = graph.node(n);
  if ((sums.op != "index_sum" && sums.op != "scatter_sum") || sums.in.size() != 2) return {};
  return WithSumAfter(graph, found, n, "sums by index added to x");
}

// Whether every device of a slice is of kind cuda.
bool AllCuda(const Mesh& mesh, const Slice& slice) {
  if (mesh.kinds().size() == 1) return mesh.kind() == "cuda";
  for (int i = 0; i < mesh.size(); ++i)
    if (slice.Contains(mesh.Coords(i)) && mesh.KindOf(i) != "cuda") return false;
  return true;
}

// Does the first of these that an operator has a signature for.
void ReplaceByFirst(Replacements ways, Graph* graph, Found* found) {
  for (Replacement& way : ways)
    if (Replace(std::move(way), graph, found)) return;
}

}  // namespace

void FuseEpilogue(Graph* graph, const CompileOptions& options) {
  if (!options.asked.fuse) return;
  std::map<Slice, bool> on_cuda;
  const auto each_on_cuda = [&](auto fuse) {
    Found found = Find(*graph);
    for (int n : found.order) {
      if (!graph->alive(n)) continue;
      auto [cuda, fresh] = on_cuda.try_emplace(graph->node(n).slice, false);
      if (fresh) cuda->second = AllCuda(graph->mesh(), cuda->first);
      if (cuda->second) fuse(n, &found);
    }
  };
  const auto replace_by = [&](auto ways) {
    each_on_cuda([&](int n, Found* found) { ReplaceByFirst(ways(*graph, *found, n), graph, found); });
  };
  replace_by(Linear);
  each_on_cuda([&](int n, Found* found) { FuseSum(n, graph, found); });
  replace_by(LinearGradGelu);
  replace_by(LinearGradWeight);
  // From the last norm to the first: a sum that another sum reads, of the norm before it, is then not taken
  // for the beginning of a loop.
  Found found = Find(*graph);
  for (auto n = found.order.rbegin(); n != found.order.rend(); ++n) {
    if (!graph->alive(*n)) continue;
    ReplaceByFirst(NormGradient(*graph, found, *n), graph, &found);
    ReplaceByFirst(IndexSum(*graph, found, *n), graph, &found);
  }
}

}  // namespace oneflow_like
