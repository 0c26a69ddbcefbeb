#include "compiler/search/signature_problem.h"

#include <algorithm>
#include <tuple>

namespace oneflow_like {

// The choices of all nodes along one axis.
class SignatureProblem::Axis : public AxisChoices {
 public:
  Axis(Graph* graph, const CompileOptions& options, int entry, NodesOfChoice* nodes)
      : AxisChoices(graph, options, entry, nodes, /*open=*/!HasAxis(ZeroAxes(options.decided), entry - 1)) {
    for (int n : order_) {
      Enumerate(n);
      if (Open(graph_.node(n))) variables_.push_back(n);
    }
  }
  int entry() const { return entry_; }
  const std::vector<Choice>& Of(int n) const { return choices_[n]; }
  bool Follows(int n) const { return follows_[n]; }
  const std::vector<int>& variables() const { return variables_; }
  using AxisChoices::Cuts;
  double ExpansionOf(const LocalWork& piece, double acts) const { return Expansion(piece, acts); }

 private:
  std::vector<int> variables_;  // that are open
};

namespace {

// The operand of an update that is its variable.
bool IsUpdated(const Graph& graph, const Node& node, int operand) {
  const OpDef* def = graph.catalog().Find(node.op);
  return def && std::any_of(def->inplace.begin(), def->inplace.end(),
                            [&](const auto& pair) { return pair.second == operand; });
}

bool HasCut(const std::vector<Sbp>& of) {
  return std::any_of(of.begin(), of.end(), [](const Sbp& sbp) { return sbp.is_split(); });
}

// Whether cuts up to an entry leave some ranks without a part of a tensor of this shape.
bool LeavesSomeEmpty(const Dims& shape, const NdSbp& sbp, int entry, const std::vector<int>& sizes) {
  if (!sbp[entry].is_split()) return false;
  int64_t parts = 1;
  for (int e = 1; e <= entry; ++e)
    if (sbp[e].is_split() && sbp[e].axis == sbp[entry].axis) parts *= sizes[e];
  return parts > shape[sbp[entry].axis];
}

}  // namespace

SignatureProblem::SignatureProblem(Graph graph, const CompileOptions& options)
    : graph_((MarkWrittenVariables(&graph), std::move(graph))),
      options_(options),
      prices_(graph_, options),
      nodes_(&graph_),
      place_(graph_.num_nodes(), 0),
      choices_(graph_.num_nodes()) {
  ChooseOverTime(&graph_, options, &nodes_);
  std::vector<Axis> axes;
  const std::vector<int> sizes = graph_.Sizes();
  for (int entry = 1; entry < static_cast<int>(sizes.size()); ++entry)
    if (sizes[entry] > 1) axes.emplace_back(&graph_, options, entry, &nodes_);
  for (const Axis& axis : axes)
    for (int n : axis.variables()) open_[n].insert(axis.entry());
  for (size_t i = 0; i < nodes_.order.size(); ++i) place_[nodes_.order[i]] = static_cast<int>(i);
  for (int n : nodes_.order) choices_[n] = JointChoices(n, axes);
  std::map<std::tuple<std::string, DType, bool, Sbp, Slice>, int> kinds;
  for (int v = 0; v < graph_.num_values(); ++v) {
    const Value& value = graph_.value(v);
    const Sbp time = value.sbp.empty() ? B() : value.sbp[0];
    kinds_.push_back(
        kinds
            .try_emplace({value.shape.str(), value.dtype, prices_.Narrow(v), time, graph_.producer(v).slice},
                         static_cast<int>(kinds.size()))
            .first->second);
  }
  FindKept();
}

// Whether a node of such a phase reads the value, or a view of it.
bool SignatureProblem::ReadBy(int v, bool (*phase)(Phase)) const {
  return std::any_of(nodes_.readers[v].begin(), nodes_.readers[v].end(), [&](int r) {
    const Node& reader = graph_.node(r);
    return phase(reader.phase) || (graph_.IsView(r) && ReadBy(reader.out[0], phase));
  });
}

void SignatureProblem::FindKept() {
  kept_.assign(graph_.num_values(), 0);
  for (int n : nodes_.order) {
    const Node& node = graph_.node(n);
    const bool variable = node.kind == NodeKind::kVariable;
    if (!variable && (IsEnd(node) || graph_.IsView(n))) continue;
    for (int v : node.out) {
      const bool kept =
          variable || (IsGradient(node.phase) ? ReadBy(v, [](Phase p) { return p == Phase::kUpdate; })
                                              : node.phase == Phase::kForward && ReadBy(v, IsGradient));
      const bool parts = !variable && graph_.value(v).sbp[0].is_split();
      if (kept) kept_[v] = parts ? 1.0 / graph_.times() : 1;
    }
  }
}

int SignatureProblem::NumberOf(const NdSbp& sbp) {
  const auto [at, fresh] = numbers_.try_emplace(sbp, static_cast<int>(sbps_.size()));
  if (fresh) sbps_.push_back(sbp);
  return at->second;
}

// The choices of a node so far, one axis after another.
struct SignatureProblem::Part {
  std::vector<NdSbp> in, out;
  std::vector<const Choice*> along;  // of each axis
  std::vector<std::pair<int, int>> exact;
};

// The parts that continue these along one more axis.
std::vector<SignatureProblem::Part> SignatureProblem::Along(int n, const Axis& axis,
                                                            const std::vector<Part>& parts) const {
  std::vector<Part> longer;
  const int entry = axis.entry();
  bool all_have_some = graph_.node(n).kind == NodeKind::kVariable;
  const std::vector<int> sizes = graph_.Sizes();
  const auto extend = [&](const Part& part, const Choice& c, int origin) {
    for (const Choice* other : part.along)
      if (Axis::Cuts(*other) && Axis::Cuts(c) && !Compatible(*other, c)) return;
    Part next = part;
    next.along.push_back(&c);
    for (size_t i = 0; i < c.in.size(); ++i) next.in[i][entry] = c.in[i];
    for (size_t o = 0; o < c.out.size(); ++o) next.out[o][entry] = c.out[o];
    if (all_have_some &&
        LeavesSomeEmpty(graph_.value(graph_.node(n).out[0]).shape, next.out[0], entry, sizes))
      return;
    if (origin >= 0) next.exact.push_back({origin, entry});
    longer.push_back(std::move(next));
  };
  for (const Part& part : parts)
    for (const Choice& c : axis.Of(n)) {
      if (!axis.Follows(n) || (!HasCut(c.in) && !HasCut(c.out))) extend(part, c, -1);
      if (!axis.Follows(n)) continue;
      for (size_t i = 0; i < c.in.size(); ++i)
        if (c.in[i].is_split()) extend(part, c, static_cast<int>(i));
    }
  if (!longer.empty()) return longer;
  all_have_some = false;          // an annotation cuts it into more parts than it has elements
  for (const Part& part : parts)  // it has none but cut ones
    for (const Choice& c : axis.Of(n)) extend(part, c, -1);
  return longer;
}

// Of the node's own work.
double SignatureProblem::SecondsOfPart(int n, const Part& part, const std::vector<Axis>& axes) {
  if (IsEnd(graph_.node(n))) return 0;
  LocalWork& piece = nodes_.pieces[n];
  const std::vector<int> sizes = graph_.Sizes();
  for (size_t a = 0; a < axes.size(); ++a)
    if (const Choice& c = *part.along[a]; Axis::Cuts(c)) piece.Cut(c.in, c.out, sizes[axes[a].entry()], 0);
  const double acts = nodes_.acts[n];
  double seconds = acts * SecondsOf(options_.machine, piece.work(), graph_, graph_.node(n));
  for (size_t a = 0; a < axes.size(); ++a)
    if (part.along[a]->expanded) seconds += axes[a].ExpansionOf(piece, acts);
  piece.Undo();
  return seconds;
}

std::vector<SignatureProblem::Joint> SignatureProblem::JointChoices(int n, const std::vector<Axis>& axes) {
  const Node& node = graph_.node(n);
  const NdSbp whole(1 + graph_.mesh().rank(), B());
  Part none{std::vector<NdSbp>(node.in.size(), whole), std::vector<NdSbp>(node.out.size(), whole), {}, {}};
  for (size_t i = 0; i < node.in.size(); ++i)
    if (IsUpdated(graph_, node, static_cast<int>(i)))
      for (const Axis& axis : axes) none.exact.push_back({static_cast<int>(i), axis.entry()});
  std::vector<Part> parts{none};
  for (const Axis& axis : axes) parts = Along(n, axis, parts);
  if (parts.empty()) Fail(graph_.Describe(n), ": it has no signature along all axes of the mesh together");
  std::vector<Joint> joints;
  for (const Part& part : parts) {
    Joint joint;
    for (const NdSbp& sbp : part.in) joint.in.push_back(NumberOf(sbp));
    for (const NdSbp& sbp : part.out) joint.out.push_back(NumberOf(sbp));
    joint.exact = part.exact;
    joint.seconds = SecondsOfPart(n, part, axes);
    joints.push_back(std::move(joint));
  }
  return joints;
}

double SignatureProblem::KeptBytes(int v, const NdSbp& sbp) const {
  return kept_[v] > 0 ? kept_[v] * LargestPieceBytes(graph_.value(v), sbp, graph_.Sizes()) : 0;
}

double SignatureProblem::Edge(int v, int from, int to, const Slice& slice, double price) const {
  const Slice& at = graph_.producer(v).slice;
  if (from == to && at == slice) return 0;
  const double held = price > 0 ? price * KeptBytes(v, sbps_[to]) : 0;
  std::string key = Cat(kinds_[v], " ", from, " ", to);
  if (at != slice) key += slice.str(graph_.mesh());
  const auto known = costs_.find(key);
  if (known != costs_.end()) return known->second + held;
  const Value& value = graph_.value(v);
  Layout a{at, sbps_[from]}, b{slice, sbps_[to]};
  // A value that is Partial over time is accumulated before it moves, once per step.
  if (!value.sbp[0].is_partial()) a.sbp[0] = b.sbp[0] = value.sbp[0];
  const double seconds = prices_.Seconds(graph_, v, a, b);
  costs_.emplace(std::move(key), seconds);
  return seconds + held;
}

bool SignatureProblem::Comes(int from, int to, int operand, const Joint& reader) const {
  return std::all_of(reader.exact.begin(), reader.exact.end(), [&](const auto& exact) {
    return exact.first != operand || sbps_[from][exact.second] == sbps_[to][exact.second];
  });
}

double SignatureProblem::LeastWork(int node) const {
  return std::min_element(choices_[node].begin(), choices_[node].end(),
                          [](const Joint& a, const Joint& b) { return a.seconds < b.seconds; })
      ->seconds;
}

double SignatureProblem::Adds(int n, const std::vector<int>& picks, double price) const {
  const Node& node = graph_.node(n);
  const Joint& mine = choices_[n][picks[n]];
  double sum = mine.seconds;
  for (size_t o = 0; o < node.out.size() && price > 0; ++o)
    sum += price * KeptBytes(node.out[o], sbps_[mine.out[o]]);
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& v = graph_.value(node.in[i]);
    const int from = choices_[v.producer][picks[v.producer]].out[v.output], to = mine.in[i];
    if (!Comes(from, to, static_cast<int>(i), mine)) return kImpossibleCost;
    bool known = false;
    for (int r : nodes_.readers[node.in[i]]) {
      const Node& reader = graph_.node(r);
      const bool earlier = place_[r] < place_[n];
      if ((r != n && !earlier) || reader.slice != node.slice) continue;
      for (size_t j = 0; j < (r == n ? i : reader.in.size()); ++j)
        known = known || (reader.in[j] == node.in[i] && choices_[r][picks[r]].in[j] == to);
    }
    if (!known) sum += Edge(node.in[i], from, to, node.slice, price);
  }
  return sum;
}

double SignatureProblem::Cost(const std::vector<int>& picks, double price) const {
  double sum = 0;
  for (int n : nodes_.order) sum += Adds(n, picks, price);
  return sum;
}

std::vector<SignatureProblem::Use> SignatureProblem::UsesOf(int v) const {
  std::vector<Use> uses;
  const std::set<int> readers(nodes_.readers[v].begin(), nodes_.readers[v].end());
  for (int r : readers)
    for (size_t i = 0; i < graph_.node(r).in.size(); ++i)
      if (graph_.node(r).in[i] == v) uses.push_back({r, static_cast<int>(i)});
  return uses;
}

// A member that says in which forms a value is had: it costs what makes them, and each reader's is among
// them.
void SignatureProblem::AddDelivery(int v, const std::vector<Use>& uses, const std::vector<int>& members,
                                   double price, ChoiceNetwork* network) const {
  constexpr size_t kMostSets = 64;  // of more: pairs, and all together
  const Value& value = graph_.value(v);
  std::vector<std::pair<int, const Slice*>> targets;
  const auto target_of = [&](const Use& use, const Joint& joint) {
    const Slice& slice = graph_.node(use.reader).slice;
    for (size_t t = 0; t < targets.size(); ++t)
      if (targets[t].first == joint.in[use.operand] && *targets[t].second == slice) return t;
    targets.push_back({joint.in[use.operand], &slice});
    return targets.size() - 1;
  };
  for (const Use& use : uses)
    for (const Joint& joint : choices_[use.reader]) target_of(use, joint);
  // One form for each reader makes a set; a set with more costs more.
  std::set<uint64_t> sets = {0};
  for (const Use& use : uses) {
    if (sets.size() > kMostSets) break;
    std::set<uint64_t> larger;
    for (const Joint& joint : choices_[use.reader])
      for (uint64_t set : sets) larger.insert(set | uint64_t{1} << target_of(use, joint));
    sets = std::move(larger);
  }
  if (sets.size() > kMostSets) {
    sets = {(uint64_t{1} << targets.size()) - 1};
    for (size_t a = 0; a < targets.size(); ++a)
      for (size_t b = a; b < targets.size(); ++b) sets.insert(uint64_t{1} << a | uint64_t{1} << b);
  }
  std::vector<double> costs;
  for (const Joint& from : choices_[value.producer])
    for (uint64_t set : sets) {
      double sum = 0;
      for (size_t t = 0; t < targets.size(); ++t)
        if (set >> t & 1) sum += Edge(v, from.out[value.output], targets[t].first, *targets[t].second, price);
      costs.push_back(sum);
    }
  const int forms = network->AddMember(std::vector<double>(sets.size(), 0));
  network->AddPair(members[value.producer], forms, std::move(costs));
  for (const Use& use : uses) {
    std::vector<double> lacks;
    for (uint64_t set : sets)
      for (const Joint& joint : choices_[use.reader])
        lacks.push_back(set >> target_of(use, joint) & 1 ? 0 : kImpossibleCost);
    network->AddPair(forms, members[use.reader], std::move(lacks));
  }
}

void SignatureProblem::AddBoxing(int v, const std::vector<int>& members, double price,
                                 ChoiceNetwork* network) const {
  constexpr size_t kMostTargets = 12;  // of a value in several forms; of more each reader is charged
  const Value& value = graph_.value(v);
  const std::vector<Use> uses = UsesOf(v);
  std::set<std::pair<int, Slice>> targets;
  for (const Use& use : uses)
    for (const Joint& joint : choices_[use.reader])
      targets.insert({joint.in[use.operand], graph_.node(use.reader).slice});
  const bool shared = uses.size() > 1 && targets.size() <= kMostTargets;
  if (shared) AddDelivery(v, uses, members, price, network);
  for (const Use& use : uses) {
    std::vector<double> costs;
    bool any = false;
    for (const Joint& from : choices_[value.producer])
      for (const Joint& to : choices_[use.reader]) {
        const int is = from.out[value.output], wanted = to.in[use.operand];
        const bool comes = Comes(is, wanted, use.operand, to);
        costs.push_back(!comes   ? kImpossibleCost
                        : shared ? 0
                                 : Edge(v, is, wanted, graph_.node(use.reader).slice, price));
        any = any || costs.back() != 0;
      }
    if (any) network->AddPair(members[value.producer], members[use.reader], std::move(costs));
  }
}

std::vector<int> SignatureProblem::Solve(double price) const {
  ChoiceNetwork network;
  std::vector<int> members(graph_.num_nodes(), -1);
  for (int n : nodes_.order) {
    std::vector<double> costs;
    for (const Joint& joint : choices_[n]) {
      costs.push_back(joint.seconds);
      for (size_t o = 0; o < joint.out.size() && price > 0; ++o)
        costs.back() += price * KeptBytes(graph_.node(n).out[o], sbps_[joint.out[o]]);
    }
    members[n] = network.AddMember(std::move(costs));
  }
  for (int n : nodes_.order)
    for (int v : graph_.node(n).out) AddBoxing(v, members, price, &network);
  const std::vector<int> of_members = network.Solve();
  std::vector<int> picks(graph_.num_nodes(), 0);
  for (int n : nodes_.order) picks[n] = of_members[members[n]];
  return picks;
}

// Whether someone who computes with a variable reads it as it is cut along the entry: through casts and
// views.
bool SignatureProblem::ReadAsCut(int v, int entry, const std::vector<int>& picks) const {
  const Value& value = graph_.value(v);
  const Sbp& cut = sbps_[choices_[value.producer][picks[value.producer]].out[value.output]][entry];
  const std::vector<Use> uses = UsesOf(v);
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    const Node& reader = graph_.node(use.reader);
    if (IsUpdated(graph_, reader, use.operand)) return false;
    const Sbp& read = sbps_[choices_[use.reader][picks[use.reader]].in[use.operand]][entry];
    if (!read.is_split() || read.axis != cut.axis) return false;
    if (reader.in.size() > 1 || reader.out.size() != 1 || IsEnd(reader)) return true;
    const Sbp& passed = sbps_[choices_[use.reader][picks[use.reader]].out[0]][entry];
    return !passed.is_split() || ReadAsCut(reader.out[0], entry, picks);
  });
}

VariableCuts SignatureProblem::CutsOf(const std::vector<int>& picks) const {
  VariableCuts cuts;
  for (const auto& [n, entries] : open_) {
    const Node& node = graph_.node(n);
    VariableCut& cut = cuts[node.name];
    for (int entry : entries) {
      const Sbp& sbp = sbps_[choices_[n][picks[n]].out[0]][entry];
      if (!sbp.is_split()) continue;
      cut.fixed[entry] = sbp;
      const Role role = RoleOf(options_.asked.roles, entry - 1);
      if (role == Role::kBatch || role == Role::kContext || !ReadAsCut(node.out[0], entry, picks))
        cut.stored.insert(entry);
    }
  }
  return cuts;
}

double SignatureProblem::BytesOf(const VariableCuts& cuts) const {
  double bytes = 0;
  for (int n : nodes_.order) {
    const Node& node = graph_.node(n);
    if (node.kind != NodeKind::kVariable) continue;
    NdSbp sbp(1 + graph_.mesh().rank(), B());
    for (const auto& [entry, cut] : node.fixed) sbp[entry] = cut;
    if (const auto chosen = cuts.find(node.name); chosen != cuts.end())
      for (const auto& [entry, cut] : chosen->second.fixed) sbp[entry] = cut;
    bytes += LargestPieceBytes(graph_.value(node.out[0]), sbp, graph_.Sizes());
  }
  return bytes;
}

double SecondsOfSignatures(const Graph& graph, const CompileOptions& options) {
  const Machine& machine = options.machine;
  CostModel model(graph, machine);
  const BoxingPrices prices(graph, options);
  const std::vector<int> first(1 + graph.mesh().rank(), 0);
  const std::vector<std::vector<int>> readers = graph.Readers();
  double sum = 0;
  for (int n : graph.Order()) {
    const Node& node = graph.node(n);
    if (!IsEnd(node)) sum += ActsOf(graph, node) * SecondsOf(machine, model.WorkAt(n, first), graph, node);
    for (int v : node.out) {
      const Value& value = graph.value(v);
      std::set<std::pair<Slice, NdSbp>> wanted;
      for (int r : readers[v])
        for (size_t i = 0; i < graph.node(r).in.size(); ++i)
          if (graph.node(r).in[i] == v) wanted.insert({graph.node(r).slice, graph.node(r).want[i]});
      for (const auto& [slice, sbp] : wanted) {
        Layout a = graph.LayoutOf(v), b{slice, sbp};
        a.sbp[0] = b.sbp[0] = value.sbp[0].is_partial() ? B() : value.sbp[0];
        if (a != b) sum += prices.Seconds(graph, v, a, b);
      }
    }
  }
  return sum;
}

}  // namespace oneflow_like
