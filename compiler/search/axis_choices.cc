// Signatures of nodes along one axis, by their rules, by annotations, and by roles.
#include "compiler/search/axis_choices.h"

#include <algorithm>

#include "compiler/graph/variable_cuts.h"

namespace oneflow_like {

namespace {

// All, where none is as wanted.
template <typename Wanted>
void KeepOnly(std::vector<Choice>* choices, Wanted wanted) {
  if (std::any_of(choices->begin(), choices->end(), wanted))
    std::erase_if(*choices, [&](const Choice& c) { return !wanted(c); });
}

// A cut over tensor-parallel ranks does not go on through a sum over it: cost decides whether partial sums
// are cheaper than the whole.
bool PassesOn(const Choice& c) {
  return std::any_of(c.out.begin(), c.out.end(), [](const Sbp& sbp) { return sbp.is_split(); });
}

}  // namespace

Role RoleOf(const Roles& roles, int axis) {
  if (axis < 0) return Role::kNone;
  return HasAxis(roles.batch, axis)     ? Role::kBatch
         : HasAxis(roles.tensor, axis)  ? Role::kTensor
         : HasAxis(roles.context, axis) ? Role::kContext
                                        : Role::kNone;
}

NodesOfChoice::NodesOfChoice(Graph* graph)
    : order(graph->Order()),
      readers(graph->Readers()),
      rules(graph->num_nodes()),
      pieces(graph->num_nodes()),
      acts(graph->num_nodes(), 1),
      settled(graph->num_nodes()) {
  const int entries = 1 + graph->mesh().rank();
  for (int n : order) {
    Node& node = graph->node(n);
    if (!IsEnd(node)) {
      rules[n] = &graph->RuleOf(n);
      pieces[n] = LocalWork(*graph, n, *rules[n]);
    }
    node.want.assign(node.in.size(), NdSbp(entries, B()));
    for (int v : node.out) graph->value(v).sbp.assign(entries, B());
  }
}

AxisChoices::AxisChoices(Graph* graph, const CompileOptions& options, int entry, NodesOfChoice* nodes,
                         bool open)
    : graph_(*graph),
      machine_(options.machine),
      entry_(entry),
      role_(RoleOf(options.asked.roles, entry - 1)),
      parts_(graph->Sizes()[entry]),
      open_(open),
      order_(nodes->order),
      readers_(nodes->readers),
      nodes_(*nodes),
      choices_(graph->num_nodes()),
      varying_(graph->num_values(), false),
      follows_(graph->num_nodes(), false),
      promised_(graph->num_values()) {
  if (role_ == Role::kTensor) FindHeld();
}

void AxisChoices::Enumerate(int n) {
  choices_[n] = ChoicesOf(n);
  KeepPromises(n);
}

bool AxisChoices::FreeAlong(const Node& node) const {
  return parts_ > 1 && (entry_ == 0 || node.slice.fixed[entry_ - 1] == Slice::kFree);
}

bool AxisChoices::Open(const Node& node) const {
  return open_ && entry_ > 0 && node.kind == NodeKind::kVariable && node.fixed.count(entry_) == 0 &&
         FreeAlong(node);
}

// Of a node that no rule is of: a variable, an input, a fetch.
std::vector<Choice> AxisChoices::ChoicesOfEnd(int n, Choice plain) {
  const Node& node = graph_.node(n);
  if (node.kind != NodeKind::kFetch) {
    const auto fixed = node.fixed.find(entry_);
    if (fixed != node.fixed.end()) plain.out[0] = fixed->second;
    const auto batch = node.fixed.find(0);
    const bool cut_batch =
        role_ == Role::kBatch && node.kind == NodeKind::kInput && batch != node.fixed.end();
    if (fixed == node.fixed.end() && cut_batch) plain.out[0] = batch->second;
    std::vector<Choice> all{plain};
    if (node.kind == NodeKind::kInput && fixed == node.fixed.end() && entry_ > 0 && !cut_batch)
      AddCuts(graph_.value(node.out[0]).shape, &all, false);
    if (Open(node)) {
      AddCuts(graph_.value(node.out[0]).shape, &all, false);
      const std::vector<int> sizes = graph_.Sizes();
      std::erase_if(all, [&](const Choice& c) {  // some ranks would hold nothing
        if (!c.out[0].is_split()) return false;
        FixedSbp nested = node.fixed;
        nested[entry_] = c.out[0];
        return NestedParts(nested, c.out[0].axis, sizes) > graph_.value(node.out[0]).shape[c.out[0].axis];
      });
    }
    return all;
  }
  std::vector<Choice> all{plain};
  AddCuts(graph_.value(node.in[0]).shape, &all, true);
  const Value& v = graph_.value(node.in[0]);
  for (const Choice& c : choices_[v.producer])  // a merged axis is cut in grains
    if (c.out[v.output].is_split() && c.out[v.output].grain > 1) {
      all.push_back(plain);
      all.back().in[0] = c.out[v.output];
    }
  return all;
}

std::vector<Choice> AxisChoices::ChoicesOf(int n) {
  const Node& node = graph_.node(n);
  Choice plain;
  plain.in.assign(node.in.size(), B());
  plain.out.assign(node.out.size(), B());
  if (!Free(n)) return {plain};
  if (node.kind == NodeKind::kVariable || node.kind == NodeKind::kInput || node.kind == NodeKind::kFetch)
    return ChoicesOfEnd(n, plain);
  const auto fixed = node.fixed.find(entry_);
  std::vector<std::set<int64_t>> grains(node.in.size());
  for (size_t i = 0; i < node.in.size(); ++i) {
    const Value& v = graph_.value(node.in[i]);
    for (const Choice& c : choices_[v.producer])
      if (c.out[v.output].is_split()) grains[i].insert(c.out[v.output].grain);
  }
  const std::vector<Choice> all = SignaturesAlong(graph_, node, *nodes_.rules[n], entry_, grains);
  std::vector<Choice> legal;
  for (const Choice& c : all)
    if (!Illegal(n, c)) legal.push_back(c);
  if (legal.empty()) {
    std::string text;
    for (const Choice& c : all) text += (text.empty() ? "" : ", ") + c.str();
    Fail(graph_.Describe(n), ": no signature along ", EntryName(), " gives ",
         fixed != node.fixed.end() ? fixed->second.str() : "its variable's placement", "; legal are ", text);
  }
  return legal;
}

bool AxisChoices::Illegal(int n, const Choice& c) const {
  const Node& node = graph_.node(n);
  const OpDef& def = graph_.catalog().Get(node.op);
  const auto fixed = node.fixed.find(entry_);
  if (fixed != node.fixed.end() && c.out[0] != fixed->second) return true;
  if (c.expanded && (entry_ == 0 || !def.expand)) return true;
  if (MixesTerms(n, c)) return true;
  for (const Choice& other : nodes_.settled[n])
    if (!Compatible(other, c)) return true;
  for (auto [out, in] : def.inplace) {  // an update reads exactly its variable's placement
    const Node& of = graph_.producer(node.in[in]);
    const auto said = of.fixed.find(entry_);
    const Sbp variable = said == of.fixed.end() ? B() : said->second;
    if (Open(of) ? c.in[in] != c.out[out] : c.in[in] != variable || c.out[out] != variable) return true;
  }
  return false;
}

// Whether terms of a sum over the batch would meet, before they are added up, what differs between them:
// the sum of products is not the product of the sum.
bool AxisChoices::MixesTerms(int n, const Choice& c) const {
  const std::vector<int>& in = graph_.node(n).in;
  if (entry_ > 0 || std::none_of(in.begin(), in.end(), [&](int v) { return varying_[v]; })) return false;
  return std::any_of(c.in.begin(), c.in.end(), [](const Sbp& sbp) { return sbp.is_partial(); });
}

// A weight is used as it is annotated: along this axis, choices of a node are those that read it so. Where
// a node has none for the very cut, those that cut the same tensor axis, in other grains, come next; where
// it has none of either, it gathers. The promise goes on through nodes of one operand (casts, views,
// transposes) to whoever computes with what they make.
//
// Along an axis with a role every cut goes on through every node that can keep it: of the batch or the
// sequence from the inputs, of tensor parallelism from what weights make of activations and from what is
// held to a cut. A weight's word counts for more than theirs.
void AxisChoices::KeepPromises(int n) {
  const Node& node = graph_.node(n);
  std::vector<Choice>& choices = choices_[n];
  if (entry_ == 0 || !Free(n)) return;
  if (node.kind == NodeKind::kVariable) {
    auto fixed = node.fixed.find(entry_);
    if (fixed == node.fixed.end() || node.stored.count(entry_)) return;
    promised_[node.out[0]] = {fixed->second, kOfWeight};
    return;
  }
  if (node.kind == NodeKind::kFetch) return;
  if (node.kind == NodeKind::kInput) {
    if (role_ != Role::kNone && choices.size() == 1) promised_[node.out[0]] = {choices[0].out[0], 1};
    return;
  }
  if (role_ == Role::kTensor) KeepWhole(n);
  const int most = KeepMost(n);
  if (most > 0 && node.in.size() == 1)
    promised_[node.out[0]] = {choices[0].out[0], promised_[node.in[0]].weight};
  else if (role_ != Role::kNone)
    for (size_t o = 0; o < node.out.size(); ++o)
      if (std::all_of(choices.begin(), choices.end(),
                      [&](const Choice& c) { return c.out[o] == choices[0].out[o]; }))
        promised_[node.out[o]] = {choices[0].out[o], 1};
}

// Of a node's choices those that keep most promises of its operands; gives how many they keep.
int AxisChoices::KeepMost(int n) {
  const Node& node = graph_.node(n);
  std::vector<Choice>& choices = choices_[n];
  int most = 0;
  std::vector<int> kept(choices.size(), 0);
  for (size_t s = 0; s < choices.size(); ++s) {
    for (size_t i = 0; i < node.in.size(); ++i) {
      const auto& [promise, weight] = promised_[node.in[i]];
      const Sbp& in = choices[s].in[i];
      if (promise.is_split() && in.is_split() && in.axis == promise.axis &&
          (weight >= kOfWeight || role_ != Role::kTensor || PassesOn(choices[s])))
        kept[s] += in == promise ? 2 * weight : weight;
    }
    most = std::max(most, kept[s]);
  }
  if (most == 0) return 0;
  size_t left = 0;
  for (size_t s = 0; s < choices.size(); ++s)
    if (kept[s] == most) std::swap(choices[left++], choices[s]);
  choices.resize(left);
  return most;
}

// Along an axis of tensor parallelism: what a region gives to others is whole, and so is what no cut weight
// has to do with, unless something is held to a cut in the region: then cost decides about that.
void AxisChoices::KeepWhole(int n) {
  const Node& node = graph_.node(n);
  if (node.fixed.count(entry_) || node.phase == Phase::kUpdate) return;
  const std::string region = graph_.regions().Of(node.name);
  if (held_.count(region)) return;
  if (LeavesRegion(n, region))
    KeepOnly(&choices_[n], [](const Choice& c) { return c.out[0].is_broadcast(); });
  if (std::any_of(node.in.begin(), node.in.end(), [&](int v) { return promised_[v].sbp.is_split(); })) return;
  if (open_)
    follows_[n] = true;
  else
    KeepOnly(&choices_[n], [](const Choice& c) {
      auto cut = [](const Sbp& sbp) { return sbp.is_split(); };
      return std::none_of(c.in.begin(), c.in.end(), cut) && std::none_of(c.out.begin(), c.out.end(), cut);
    });
}

bool AxisChoices::LeavesRegion(int n, const std::string& region) const {
  if (region.empty() || graph_.node(n).phase != Phase::kForward) return false;
  const std::vector<int>& readers = readers_[graph_.node(n).out[0]];
  return std::any_of(readers.begin(), readers.end(), [&](int r) {
    const Node& reader = graph_.node(r);
    return reader.phase == Phase::kForward && graph_.regions().Of(reader.name) != region;
  });
}

void AxisChoices::FindHeld() {
  for (int n : order_) {
    const Node& node = graph_.node(n);
    if (node.kind == NodeKind::kVariable || node.kind == NodeKind::kInput) continue;
    auto fixed = node.fixed.find(entry_);
    if (fixed != node.fixed.end() && fixed->second.is_split()) held_.insert(graph_.regions().Of(node.name));
  }
}

void AxisChoices::AddCuts(const Dims& shape, std::vector<Choice>* all, bool in) const {
  for (int a = 0; a < shape.rank(); ++a) {
    Choice c = (*all)[0];
    (in ? c.in : c.out)[0] = S(a);
    all->push_back(c);
  }
}

// Estimated seconds of a step that the node itself takes on the busiest rank.
double AxisChoices::Own(int n, const Choice& c) {
  const Node& node = graph_.node(n);
  if (IsEnd(node)) return 0;
  LocalWork& piece = nodes_.pieces[n];
  if (Cuts(c)) piece.Cut(c.in, c.out, parts_, 0);
  double acts = entry_ == 0 && EachAct(c) ? parts_ : nodes_.acts[n];
  double seconds = acts * SecondsOf(machine_, piece.work(), graph_, node);
  if (c.expanded) seconds += Expansion(piece, acts);
  piece.Undo();
  return seconds;
}

// Two all-reduces of what the label is lost from.
double AxisChoices::Expansion(const LocalWork& piece, double acts) const {
  const Topology::Link& link = machine_.topology.Spanning(parts_);
  const double lost = 4.0 * static_cast<double>(piece.out(0).elements());
  return acts * 2 * (2 * link.latency + 2 * lost / link.bandwidth);
}

bool AxisChoices::EachAct(const Choice& c) {
  auto differs = [](const Sbp& sbp) { return !sbp.is_broadcast(); };
  return std::any_of(c.in.begin(), c.in.end(), differs) || std::any_of(c.out.begin(), c.out.end(), differs);
}

}  // namespace oneflow_like
