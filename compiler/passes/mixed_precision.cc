// Mixed precision.
// Needs: a built graph in fp32, its gradients and updates included. Leaves: operators that are worth it in
// the narrow type, as their table entries say (Precision, ops/op.h), and casts where a reader wants another
// type than the value has: one for each value and type, shared by all its readers. Master weights, their
// gradients, optimizer state, reductions and losses stay fp32. Types the user chose are left alone.
//
// Weights, constants and what is computed from them alone are neutral: they take the type of what they meet.
// They are cast where they begin, ahead of all that a micro-batch repeats, so a weight is cast once per step.
#include <algorithm>
#include <map>

#include "compiler/passes/passes.h"
#include "ops/tf32.h"

namespace oneflow_like {

namespace {

constexpr char kCast[] = "cast";

// A value's type as far as it is known before it is settled.
enum class Kind : uint8_t { kNeutral, kNarrow, kWide, kOther };  // other: not fp32 to begin with
// What the readers of a value have in common.
enum class Demand : uint8_t { kNone, kWide, kNarrow };

class Narrower {
 public:
  Narrower(Graph* graph, DType narrow)
      : graph_(*graph),
        narrow_(narrow),
        order_(graph->Order()),
        kind_(graph->num_values(), Kind::kOther),
        runs_narrow_(graph->num_nodes(), false),
        wide_output_(graph->num_nodes(), false) {
    for (int v = 0; v < graph->num_values(); ++v) was_.push_back(graph->value(v).dtype);
  }

  void Run() {
    for (int n : order_) Guess(n);
    Settle();
    for (int n : order_) Rewrite(n);
    RemoveUnread();
    Reorder();
  }

 private:
  const OpDef* Def(int n) const { return graph_.catalog().Find(graph_.node(n).op); }
  // As the table entry says, unless the node's attribute "wide" asks for fp32.
  Precision PrecisionOf(int n) const {
    return graph_.node(n).attrs.Has("wide") ? Precision::kWide : Def(n)->precision;
  }

  // Whether it widens narrow operands itself.
  bool ReadsAnyType(int n) const {
    return Def(n)->any_type && PrecisionOf(n) == Precision::kWide && !graph_.node(n).attrs.Has("wide");
  }

  // Whether the user mixed types here.
  bool UsersTypes(int n) const {
    for (int v : graph_.node(n).in)
      if (IsFloating(was_[v]) && was_[v] != DType::kFloat32) return true;
    return false;
  }

  // Per operand, whether it is fp32 and free to become narrow.
  std::vector<bool> Free(int n) const {
    const Node& node = graph_.node(n);
    const OpDef* def = Def(n);
    std::vector<bool> free;
    for (int v : node.in) free.push_back(was_[v] == DType::kFloat32);
    if (def->wide.empty()) return free;
    BoundRule rule = BindOp(*def, graph_.CallOf(graph_.node(n)));
    for (size_t i = 0; i < free.size(); ++i) free[i] = free[i] && !def->wide.count(rule.in[i].name);
    return free;
  }

  // What a following operator runs in, by the kinds of its free operands.
  Kind Followed(int n) const {
    std::vector<bool> free = Free(n);
    bool any = false, narrow = false;
    for (size_t i = 0; i < free.size(); ++i) {
      if (!free[i]) continue;
      Kind kind = kind_[graph_.node(n).in[i]];
      if (kind == Kind::kWide) return Kind::kWide;
      any = true;
      narrow = narrow || kind == Kind::kNarrow;
    }
    return narrow ? Kind::kNarrow : any ? Kind::kNeutral : Kind::kWide;
  }

  // Forward: the kind of every value, as if no reader had a say.
  void Guess(int n) {
    const Node& node = graph_.node(n);
    const OpDef* def = Def(n);
    Kind kind = Kind::kWide;
    if (node.kind == NodeKind::kVariable || (def && node.in.empty())) {
      kind = Kind::kNeutral;
    } else if (def && !UsersTypes(n)) {
      if (PrecisionOf(n) == Precision::kNarrow) kind = Kind::kNarrow;
      if (PrecisionOf(n) == Precision::kFollow) kind = Followed(n);
    }
    runs_narrow_[n] = kind == Kind::kNarrow;
    SetKinds(n, kind);
  }

  // Outputs have the kind where the operator's types say that they follow its operands.
  void SetKinds(int n, Kind kind) {
    const Node& node = graph_.node(n);
    for (int v : node.out)
      if (was_[v] == DType::kFloat32) kind_[v] = kind == Kind::kNarrow ? Kind::kWide : kind;
    if (kind != Kind::kNarrow) return;
    std::vector<DType> types = TypesOf(n, true);
    for (size_t o = 0; o < types.size(); ++o)
      if (types[o] == narrow_ && was_[node.out[o]] == DType::kFloat32) kind_[node.out[o]] = Kind::kNarrow;
  }

  // Types of the operator's outputs when its free operands are narrow, or all are fp32.
  std::vector<DType> TypesOf(int n, bool narrow) const {
    OpCall call = graph_.CallOf(graph_.node(n));
    std::vector<bool> free = Free(n);
    for (size_t i = 0; i < free.size(); ++i)
      if (was_[graph_.node(n).in[i]] == DType::kFloat32)
        call.dtypes[i] = narrow && free[i] ? narrow_ : DType::kFloat32;
    return Infer(*Def(n), call).dtypes;
  }

  // Backward: a neutral operator is narrow where all its readers are; a product all of whose readers are wide
  // (a weight's gradient, a fetched value) gives fp32 itself.
  void Settle() {
    std::vector<Demand> demand(graph_.num_values(), Demand::kNone);
    auto ask = [&](int v, Demand d) { demand[v] = std::max(demand[v], d); };
    auto all_wide = [&](int n) {
      for (int v : graph_.node(n).out)
        if (was_[v] == DType::kFloat32 && demand[v] != Demand::kWide) return false;
      return true;
    };
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const Node& node = graph_.node(*it);
      const OpDef* def = Def(*it);
      if (!def || UsersTypes(*it)) {
        for (int v : node.in) ask(v, Demand::kWide);
        continue;
      }
      bool neutral =
          PrecisionOf(*it) == Precision::kFollow && !node.in.empty() && Followed(*it) == Kind::kNeutral;
      if (neutral)
        runs_narrow_[*it] = !node.out.empty() && std::all_of(node.out.begin(), node.out.end(), [&](int v) {
          return demand[v] == Demand::kNarrow && !mixed_.count(v);
        });
      bool wide = all_wide(*it);
      if (PrecisionOf(*it) == Precision::kNarrow && def->typed && wide) wide_output_[*it] = true;
      bool narrow = runs_narrow_[*it] && (PrecisionOf(*it) == Precision::kNarrow || !wide);
      if (ReadsAnyType(*it)) continue;
      std::vector<bool> free = Free(*it);
      for (size_t i = 0; i < node.in.size(); ++i) {
        Demand d = narrow && free[i] ? Demand::kNarrow : Demand::kWide;
        if (demand[node.in[i]] != Demand::kNone && demand[node.in[i]] != d) mixed_.insert(node.in[i]);
        ask(node.in[i], d);
      }
    }
    for (int n : order_) {
      const OpDef* def = Def(n);
      if (def && PrecisionOf(n) == Precision::kFollow && kind_[graph_.node(n).out[0]] == Kind::kNeutral &&
          runs_narrow_[n])
        SetKinds(n, Kind::kNarrow);
    }
  }

  // Forward: casts the operands, and sets the types of the outputs.
  void Rewrite(int n) {
    const OpDef* def = Def(n);
    bool users = UsersTypes(n);
    if (!def || users) {  // ends, and what the user typed: the types they had
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) CastOperand(n, i, was_[graph_.node(n).in[i]]);
      return;
    }
    bool any_type = ReadsAnyType(n);
    bool narrow = runs_narrow_[n];
    if (PrecisionOf(n) == Precision::kFollow && !graph_.node(n).in.empty()) {
      Kind kind = Followed(n);
      if (kind != Kind::kNeutral) narrow = kind == Kind::kNarrow;
    }
    std::vector<bool> free = Free(n);
    for (size_t i = 0; i < free.size() && !any_type; ++i)
      if (was_[graph_.node(n).in[i]] == DType::kFloat32)
        CastOperand(n, i, narrow && free[i] ? narrow_ : DType::kFloat32);
    Node& node = graph_.node(n);
    if (node.in.empty()) return;
    if (def->typed && (wide_output_[n] || any_type) && ReadsNarrow(n) &&
        was_[node.out[0]] == DType::kFloat32 && !node.attrs.Has("dtype"))
      node.attrs.Set("dtype", std::string(Name(DType::kFloat32)));
    std::vector<DType> types = Infer(*def, graph_.CallOf(graph_.node(n))).dtypes;
    for (size_t o = 0; o < types.size(); ++o) {
      int v = node.out[o];
      graph_.value(v).dtype = types[o];
      if (was_[v] == DType::kFloat32 && (kind_[v] != Kind::kNeutral || types[o] == narrow_))
        kind_[v] = types[o] == narrow_ ? Kind::kNarrow : Kind::kWide;
    }
  }

  bool ReadsNarrow(int n) const {
    for (int v : graph_.node(n).in)
      if (graph_.value(v).dtype == narrow_) return true;
    return false;
  }

  // The value of type `to` that a cast made `v` of (a frozen weight that is stored narrow), or -1.
  int WidenedFrom(int v, DType to) const {
    const Node& cast = graph_.producer(v);
    if (cast.op != kCast || was_[v] != DType::kFloat32) return -1;
    return graph_.value(cast.in[0]).dtype == to ? cast.in[0] : -1;
  }

  void CastOperand(int n, size_t operand, DType to) {
    int v = graph_.node(n).in[operand];
    DType from = graph_.value(v).dtype;
    if (from == to || !IsFloating(from) || !IsFloating(to)) return;
    if (const int narrow = WidenedFrom(v, to); narrow >= 0) {
      graph_.node(n).in[operand] = narrow;
      return;
    }
    auto [it, fresh] = casts_.try_emplace({v, to}, -1);
    if (fresh) {
      const int origin = graph_.value(v).producer;
      const Node& producer = graph_.node(origin);
      const Node& reader = graph_.node(n);
      Node cast;
      cast.op = kCast;
      cast.attrs.Set("dtype", std::string(Name(to)));
      cast.in = {v};
      cast.line = producer.line.str().empty() ? reader.line : producer.line;
      cast.slice = producer.slice;
      cast.placed = producer.placed;
      // What the backward pass keeps is the narrow one.
      cast.phase = to == narrow_ ? producer.phase : std::max(producer.phase, reader.phase);
      cast.name = graph_.UniqueName(Cat(graph_.value(v).name, ".", Name(to)));
      cast.why = Cat("cast ", graph_.value(v).name, ": ", Name(from), "→", Name(to), ", wanted by ",
                     graph_.Describe(n));
      Graph::NewValue result{cast.name, to, graph_.value(v).shape};
      int id = graph_.AddRaw(std::move(cast), {result});
      it->second = graph_.node(id).out[0];
      casts_of_[origin].push_back(id);
    }
    graph_.node(n).in[operand] = it->second;
  }

  // Casts of the user's all of whose readers take the operand itself now.
  void RemoveUnread() {
    const std::vector<std::vector<int>> readers = graph_.Readers();
    for (int n : order_)
      if (graph_.node(n).op == kCast && readers[graph_.node(n).out[0]].empty()) graph_.Remove(n);
    std::erase_if(order_, [&](int n) { return !graph_.alive(n); });
  }

  // Variables and what follows from them alone first, each with its casts.
  void Reorder() {
    std::vector<bool> early(graph_.num_nodes(), false);
    for (int n : order_) {
      const Node& node = graph_.node(n);
      bool first = node.phase == Phase::kForward && node.after.empty() && node.kind != NodeKind::kInput &&
                   !node.out.empty();
      for (int v : node.in) first = first && early[graph_.value(v).producer];
      early[n] = first;
      for (int c : Casts(n)) early[c] = first;
    }
    std::vector<int> order;
    for (bool turn : {true, false})
      for (int n : order_) {
        if (early[n] != turn) continue;
        order.push_back(n);
        for (int c : Casts(n)) order.push_back(c);
      }
    graph_.Renumber(order);
  }

  const std::vector<int>& Casts(int n) const {
    static const std::vector<int> none;
    auto it = casts_of_.find(n);
    return it == casts_of_.end() ? none : it->second;
  }

  Graph& graph_;
  const DType narrow_;
  std::vector<int> order_;
  std::vector<DType> was_;                      // per value, before the pass
  std::vector<Kind> kind_;                      // per value
  std::vector<bool> runs_narrow_;               // per node
  std::vector<bool> wide_output_;               // per node: a narrow product that gives fp32
  std::set<int> mixed_;                         // values that some readers want narrow and others wide
  std::map<std::pair<int, DType>, int> casts_;  // (value, type): the value cast to it
  std::map<int, std::vector<int>> casts_of_;    // by node, the casts of its outputs
};

// Whether rounding its operands takes a node from a GPU's plain cores to its tensor cores: not those whose
// kernels have no TF32 (attention, products by expert) or that no library takes.
bool TakesTf32(const Graph& graph, const Node& node, const OpDef& def) {
  if (!def.cuda_unit || node.in.empty() || graph.value(node.in[0]).dtype != DType::kFloat32) return false;
  KernelSpec spec{.name = node.op, .attrs = node.attrs};
  for (auto [values, args] : {std::pair(&node.in, &spec.in), std::pair(&node.out, &spec.out)})
    for (int v : *values) {
      const Value& value = graph.value(v);
      args->push_back({.dtype = value.dtype,
                       .global = value.shape,
                       .begin = Box::Whole(value.shape).begin,
                       .extent = value.shape});
    }
  if (def.cuda_unit(spec).kind != ComputeUnit::Kind::kPlain) return false;
  spec.attrs.Set(kTf32, int64_t{1});
  return def.cuda_unit(spec).kind != ComputeUnit::Kind::kPlain;
}

// For what mixed precision would narrow but reads fp32. Routers, Fourier transforms and gradients of solves
// ("wide") stay in whole fp32.
void AllowTf32(Graph* graph) {
  for (int n : graph->Order()) {
    Node& node = graph->node(n);
    const OpDef* def = graph->catalog().Find(node.op);
    if (def && def->precision == Precision::kNarrow && !node.attrs.Has("wide") &&
        TakesTf32(*graph, node, *def))
      node.attrs.Set(kTf32, int64_t{1});
  }
}

}  // namespace

void MixedPrecision(Graph* graph, const CompileOptions& options) {
  if (options.asked.dtype != DType::kFloat32) Narrower(graph, options.asked.dtype).Run();
  if (options.asked.tf32) AllowTf32(graph);
}

}  // namespace oneflow_like
