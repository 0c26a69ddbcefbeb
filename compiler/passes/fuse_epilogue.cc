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

namespace oneflow_like {

namespace {

constexpr int64_t kGeluMultiple = 8;  // rows of what the library keeps for gelu's slope are multiples of this

class EpilogueFuser {
 public:
  explicit EpilogueFuser(Graph* graph) : graph_(*graph) {}

  void Run() {
    for (auto step : {&EpilogueFuser::FuseForward, &EpilogueFuser::FuseSum, &EpilogueFuser::FuseSlope,
                      &EpilogueFuser::FuseBiasGradient})
      for (int n : Look())
        if (graph_.alive(n) && OnCuda(graph_.node(n).slice)) (this->*step)(n);
    std::vector<int> order = Look();
    for (auto n = order.rbegin(); n != order.rend(); ++n) {
      if (!graph_.alive(*n)) continue;
      FuseNormGradient(*n);
      FuseIndexSum(*n);
    }
  }

 private:
  std::vector<int> Look() {
    readers_ = graph_.Readers();
    std::vector<int> order = graph_.Order();
    position_.assign(graph_.num_nodes(), 0);
    for (size_t i = 0; i < order.size(); ++i) position_[order[i]] = static_cast<int>(i);
    return order;
  }

  bool OnCuda(const Slice& slice) {
    const Mesh& mesh = graph_.mesh();
    if (mesh.kinds().size() == 1) return mesh.kind() == "cuda";
    auto [it, fresh] = on_cuda_.try_emplace(slice, true);
    for (int i = 0; fresh && i < mesh.size(); ++i)
      if (slice.Contains(mesh.Coords(i)) && mesh.KindOf(i) != "cuda") it->second = false;
    return it->second;
  }

  const Value& ValueOf(int v) const { return graph_.value(v); }
  bool IsProduct(int n) const {
    const Node& node = graph_.node(n);
    return node.op == "einsum" || (node.op == "matmul" && ValueOf(node.in[1]).shape.rank() == 2);
  }
  Equation EquationOf(int n) const {
    const Node& node = graph_.node(n);
    if (node.op == "matmul") return MatmulEquation(ValueOf(node.in[0]).shape.rank());
    return ParseEquation(node.op, node.attrs.Str("equation"));
  }
  bool Together(int a, int b) const {
    const Node &x = graph_.node(a), &y = graph_.node(b);
    return x.slice == y.slice && x.phase == y.phase && x.after.empty() && y.after.empty() &&
           x.rate == y.rate && x.part == y.part;
  }
  bool Alike(int v, int w) const {
    return ValueOf(v).dtype == ValueOf(w).dtype && ValueOf(v).shape == ValueOf(w).shape;
  }
  bool OneType(const Node& node) const {
    for (const auto* values : {&node.in, &node.out})
      for (int v : *values)
        if (ValueOf(v).dtype != ValueOf(node.in[0]).dtype) return false;
    return true;
  }
  // The one node that reads v, if it goes together with n.
  int OnlyReader(int v, int n) const {
    return readers_[v].size() == 1 && Together(n, readers_[v][0]) ? readers_[v][0] : -1;
  }
  // The product that made v for `reader` alone; -1: none.
  int ProductFor(int v, int reader) const {
    int n = ValueOf(v).producer;
    return graph_.alive(n) && IsProduct(n) && OnlyReader(v, n) == reader ? n : -1;
  }
  // Whether v is a row, or several, added to each of y's: its axes are the last of y.
  bool IsBias(int v, int y) const {
    const Dims &bias = ValueOf(v).shape, &all = ValueOf(y).shape;
    int lead = all.rank() - bias.rank();
    if (bias.rank() == 0 || lead <= 0) return false;
    for (int axis = 0; axis < bias.rank(); ++axis)
      if (bias[axis] != all[lead + axis]) return false;
    return true;
  }

  // A node in the place of product n that does n's product first.
  Node Begin(int n, const std::string& op, const Equation& equation) const {
    Node node = graph_.node(n);
    node.op = op;
    node.attrs = {{"equation", equation.str()}};
    if (graph_.node(n).attrs.Has("tf32")) node.attrs.Set("tf32", graph_.node(n).attrs.Int("tf32"));
    node.out.clear();
    return node;
  }
  void AddInput(Node* node, int reader, size_t operand) const {
    node->in.push_back(graph_.node(reader).in[operand]);
    node->want.push_back(graph_.node(reader).want[operand]);
  }

  // Puts `node` in n's place and removes the others, whose values it now makes; or does nothing where its
  // operator has no such signature.
  bool Replace(int n, Node node, const std::vector<int>& others, const std::string& why) {
    if (!LegalSignature(graph_, node)) return false;
    node.name = ValueOf(node.out[0]).name;
    node.why = why;
    for (int o : others) {
      for (int v : graph_.node(n).out) graph_.value(v).producer = o;  // nobody reads them any more
      graph_.Remove(o);
    }
    for (size_t o = 0; o < node.out.size(); ++o) {  // values keep their ids: readers need no change
      graph_.value(node.out[o]).producer = n;
      graph_.value(node.out[o]).output = static_cast<int>(o);
    }
    for (int v : node.in)
      for (int& r : readers_[v])
        if (std::find(others.begin(), others.end(), r) != others.end()) r = n;
    graph_.node(n) = std::move(node);
    return true;
  }

  // --- x w + b, and then gelu or + c

  void FuseForward(int n) {
    if (!IsProduct(n)) return;
    int y = graph_.node(n).out[0], sum = OnlyReader(y, n);
    if (sum < 0 || graph_.node(sum).op != "add") return;
    size_t bias = graph_.node(sum).in[0] == y ? 1 : 0;
    int added = graph_.node(sum).out[0];
    if (!IsBias(graph_.node(sum).in[bias], y) || !Alike(added, y)) return;
    Node linear = Begin(n, "linear", EquationOf(n));
    AddInput(&linear, sum, bias);
    linear.attrs.Set("bias", int64_t{1});
    if (ThenGelu(n, sum, linear) || ThenResidual(n, sum, linear)) return;
    for (int r : readers_[added])
      if (JoinsALoop(r, sum)) return;  // which adds the bias at no cost
    linear.out = {added};
    if (OneType(linear)) Replace(n, std::move(linear), {sum}, "product and bias");
  }

  bool ThenGelu(int n, int sum, Node linear) {
    int added = graph_.node(sum).out[0];
    if (ValueOf(linear.in.back()).shape.elements() % kGeluMultiple != 0) return false;
    for (int gelu : readers_[added]) {
      if (graph_.node(gelu).op != "gelu" || !Together(n, gelu)) continue;
      linear.attrs.Set("gelu", int64_t{1});
      linear.out = {graph_.node(gelu).out[0]};
      if (readers_[added].size() > 1) {
        linear.attrs.Set("pre", int64_t{1});
        linear.out.push_back(added);
      }
      return OneType(linear) && Replace(n, std::move(linear), {sum, gelu}, "product, bias and gelu");
    }
    return false;
  }

  bool ThenResidual(int n, int sum, Node linear) {
    int added = graph_.node(sum).out[0], last = OnlyReader(added, n);
    if (last < 0 || graph_.node(last).op != "add") return false;
    size_t other = graph_.node(last).in[0] == added ? 1 : 0;
    if (!Alike(graph_.node(last).in[other], added) || !Alike(graph_.node(last).out[0], added)) return false;
    AddInput(&linear, last, other);
    linear.attrs.Set("residual", int64_t{1});
    linear.out = {graph_.node(last).out[0]};
    return OneType(linear) && Replace(n, std::move(linear), {sum, last}, "product, bias and residual");
  }

  bool JoinsALoop(int r, int sum) const {
    const Node& node = graph_.node(r);
    const OpDef* def = graph_.catalog().Find(node.op);
    if (!def || def->view || node.out.size() != 1 || !Together(r, sum)) return false;
    std::vector<DType> in;
    for (int v : node.in) in.push_back(ValueOf(v).dtype);
    return ValueOf(node.out[0]).shape == ValueOf(graph_.node(sum).out[0]).shape &&
           Fusible(*def, in, {ValueOf(node.out[0]).dtype});
  }

  // --- A sum of products and at most one thing else

  void FuseSum(int n) {
    const Node sum = graph_.node(n);
    if ((sum.op != "add" && sum.op != "add_n") || sum.in.size() < 2) return;
    std::vector<int> products;
    std::optional<size_t> rest;
    for (size_t i = 0; i < sum.in.size(); ++i) {
      if (!Alike(sum.in[i], sum.out[0])) return;
      int p = ProductFor(sum.in[i], n);
      if (p >= 0 && OneType(graph_.node(p))) {
        products.push_back(p);
      } else if (rest) {
        return;
      } else {
        rest = i;
      }
    }
    if (products.empty() || (products.size() == 1 && !rest)) return;
    // None needs another's: only the sum reads them. But none is put off until the rest is there, which would
    // keep what it reads.
    std::sort(products.begin(), products.end(), [&](int p, int q) { return position_[p] < position_[q]; });
    if (rest && position_[ValueOf(sum.in[*rest]).producer] > position_[products[0]]) return;
    size_t first = rest ? 0 : 1;
    int before = rest ? sum.in[*rest] : graph_.node(products[0]).out[0];
    NdSbp want = sum.want[rest.value_or(0)];
    std::vector<Node> linear;
    for (size_t p = first; p < products.size(); ++p) {
      Node next = Begin(products[p], "linear", EquationOf(products[p]));
      next.attrs.Set("residual", int64_t{1});
      next.in.push_back(before);
      next.want.push_back(want);
      before = graph_.node(products[p]).out[0];
      next.out = {p + 1 == products.size() ? sum.out[0] : before};
      if (!LegalSignature(graph_, next)) return;
      linear.push_back(std::move(next));
    }
    for (size_t p = first; p < products.size(); ++p) {
      bool last = p + 1 == products.size();
      Replace(products[p], std::move(linear[p - first]), last ? std::vector<int>{n} : std::vector<int>{},
              "product added to what there is");
      for (int& r : readers_[graph_.node(products[p]).in[2]]) r = r == n ? products[p] : r;
    }
  }

  // --- Gradients

  void FuseSlope(int n) {
    if (!IsProduct(n)) return;
    int y = graph_.node(n).out[0], slope = OnlyReader(y, n);
    if (slope < 0 || graph_.node(slope).op != "gelu_grad" || graph_.node(slope).in[0] != y) return;
    int pre = graph_.node(slope).in[1];
    if (pre == y || !Alike(pre, y) || ValueOf(y).shape.rank() == 0) return;
    if (ValueOf(y).shape.back() % kGeluMultiple != 0) return;
    Node node = Begin(n, "linear_grad_gelu", EquationOf(n));
    AddInput(&node, slope, 1);
    node.out = {graph_.node(slope).out[0]};
    if (OneType(node)) Replace(n, std::move(node), {slope}, "product and the slope of gelu");
  }

  // n sums dy; some product of dy and something else sums over the same things.
  void FuseBiasGradient(int n) {
    const Node sum = graph_.node(n);
    if (sum.op != "sum_to") return;
    int dy = sum.in[0], db = sum.out[0];
    if (!IsBias(db, dy)) return;
    for (int product : readers_[dy]) {
      if (!graph_.alive(product) || !IsProduct(product) || !Together(product, n)) continue;
      const Node was = graph_.node(product);
      if (was.in[0] == was.in[1] || ValueOf(was.out[0]).dtype != ValueOf(db).dtype) continue;
      Equation e = EquationOf(product);
      Node node = Begin(product, "linear_grad_weight", e);
      if (was.in[0] == dy) {
        e = e.Swapped();
        node.attrs.Set("equation", e.str());
        std::swap(node.in[0], node.in[1]);
        std::swap(node.want[0], node.want[1]);
      }
      int rank = ValueOf(db).shape.rank();
      if (!SumsAlike(e, rank) || Reaches(db, product)) continue;
      node.attrs.Set("bias_rank", int64_t{rank});
      if (ValueOf(db).dtype != ValueOf(dy).dtype)
        node.attrs.Set("dtype", std::string(Name(ValueOf(db).dtype)));
      node.out = {was.out[0], db};
      if (Replace(product, std::move(node), {n}, "gradients of weight and bias")) return;
    }
  }

  // --- A sum behind a node's first result

  // The sum of it and of operand `other` that takes n's place; -1: none, or a loop adds it at no cost. What
  // is added must be there before n: then it does not depend on n either.
  int SumAfter(int n, size_t* other) const {
    int first = graph_.node(n).out[0], sum = OnlyReader(first, n);
    if (sum < 0) return -1;
    const Node& add = graph_.node(sum);
    if ((add.op != "add" && add.op != "add_n") || add.in.size() != 2) return -1;
    *other = add.in[0] == first ? 1 : 0;
    int added = add.in[*other];
    if (!Alike(added, first) || !Alike(add.out[0], first)) return -1;
    if (position_[ValueOf(added).producer] >= position_[n]) return -1;
    for (int r : readers_[add.out[0]])
      if (JoinsALoop(r, sum)) return -1;
    return sum;
  }

  // From the last norm to the first: a sum that another sum reads, of the norm before it, is then not taken
  // for the beginning of a loop.
  void FuseNormGradient(int n) {
    const Node& norm = graph_.node(n);
    if ((norm.op != "layer_norm_grad" && norm.op != "rms_norm_grad") || norm.attrs.Has("residual")) return;
    size_t other;
    int sum = SumAfter(n, &other);
    if (sum < 0) return;
    Node node = norm;
    AddInput(&node, sum, other);
    node.attrs.Set("residual", int64_t{1});
    node.out[0] = graph_.node(sum).out[0];
    Replace(n, std::move(node), {sum}, "gradients of norm and residual");
  }

  void FuseIndexSum(int n) {
    const Node& sums = graph_.node(n);
    if ((sums.op != "index_sum" && sums.op != "scatter_sum") || sums.in.size() != 2) return;
    size_t other;
    int sum = SumAfter(n, &other);
    if (sum < 0) return;
    Node node = sums;
    AddInput(&node, sum, other);
    node.out[0] = graph_.node(sum).out[0];
    Replace(n, std::move(node), {sum}, "sums by index added to x");
  }

  // Whether dw of x, dy -> dw ends with the last `rank` labels of dy, and sums over dy's others.
  static bool SumsAlike(const Equation& e, int rank) {
    size_t kept = static_cast<size_t>(rank);
    if (kept > e.y.size() || kept > e.b.size()) return false;
    std::string labels = e.b.substr(e.b.size() - kept);
    if (e.y.substr(e.y.size() - kept) != labels) return false;
    for (char label : e.b)
      if (HasLabel(e.y, label) != HasLabel(labels, label)) return false;
    for (char label : e.Summed())
      if (!HasLabel(e.b, label)) return false;
    return std::none_of(labels.begin(), labels.end(), [&](char label) { return HasLabel(e.a, label); });
  }

  // Whether node n depends on value v.
  bool Reaches(int v, int n) const {
    std::vector<int> todo = {v};
    std::set<int> seen;
    while (!todo.empty()) {
      int value = todo.back();
      todo.pop_back();
      for (int r : readers_[value]) {
        if (r == n) return true;
        if (!graph_.alive(r) || !seen.insert(r).second) continue;
        todo.insert(todo.end(), graph_.node(r).out.begin(), graph_.node(r).out.end());
      }
    }
    return false;
  }

  Graph& graph_;
  std::vector<std::vector<int>> readers_;
  std::vector<int> position_;  // per node, in the order before the step
  std::map<Slice, bool> on_cuda_;
};

}  // namespace

void FuseEpilogue(Graph* graph) { EpilogueFuser(graph).Run(); }

}  // namespace oneflow_like
