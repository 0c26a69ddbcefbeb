#include "compiler/cost/collective_costs.h"

#include <algorithm>

namespace oneflow_like {
namespace {

constexpr char kAlgorithm[] = "algorithm", kUnit[] = "unit";

// Ranks of one end of a group, at coordinate 0 of the mesh axes that are outside of it.
std::vector<int64_t> RanksOfEnd(const Mesh& mesh, const Slice& slice, const std::vector<int64_t>& axes) {
  std::vector<int64_t> ranks = {0};
  for (int a = 0; a < mesh.rank(); ++a) {
    const bool spread = slice.fixed[a] == Slice::kFree && std::count(axes.begin(), axes.end(), a) > 0;
    const int64_t fixed = slice.fixed[a] == Slice::kFree ? 0 : slice.fixed[a];
    std::vector<int64_t> longer;
    for (int64_t rank : ranks)
      for (int c = 0; c < (spread ? mesh.axis_size(a) : 1); ++c)
        longer.push_back(rank * mesh.axis_size(a) + (spread ? c : fixed));
    ranks.swap(longer);
  }
  return ranks;
}

}  // namespace

std::vector<int64_t> CollectiveCosts::MembersOf(const Node& node) const {
  const std::vector<int64_t>& axes = node.attrs.Ints("axes");
  const Slice& source = graph_.producer(node.in[0]).slice;
  std::vector<int64_t> members = RanksOfEnd(graph_.mesh(), source, axes);
  if (source == node.slice) return members;
  if (members.size() > 1) return {};  // several have what a broadcast hands out
  for (int64_t rank : RanksOfEnd(graph_.mesh(), node.slice, axes))
    if (rank != members[0]) members.push_back(rank);
  return members;
}

// Groups of one slice do the same at the same time, so those of a unit share its links.
std::vector<double> CollectiveCosts::BesideOf(const Node& node, const std::vector<int64_t>& members) const {
  std::vector<double> beside(levels_.topology.links.size(), 1);
  for (size_t level = 1; level < beside.size(); ++level) {
    const int64_t unit = levels_.topology.links[level - 1].devices;
    if (!levels_.IsShared(level) || unit == 0) continue;
    const int64_t first = members[0] / unit * unit;
    double here = 0, all = 0;
    for (int64_t rank : members) here += rank / unit == members[0] / unit;
    for (int64_t rank = first; rank < std::min<int64_t>(first + unit, graph_.mesh().size()); ++rank)
      all += node.slice.Contains(graph_.mesh().Coords(static_cast<int>(rank)));
    beside[level] = std::max(1.0, all / here);
  }
  return beside;
}

const std::vector<AlgorithmCost>& CollectiveCosts::Of(int n) {
  static const std::vector<AlgorithmCost> none;
  const Node& node = graph_.node(n);
  if (nodes_.empty() || !IsCollective(node) || !HasAlgorithm(node.primitive, CollectiveAlgorithm::kRing))
    return none;
  if (!node.attrs.Has("axes")) return none;
  std::string key = Cat(node.op, " from ", graph_.producer(node.in[0]).slice.str(graph_.mesh()), " to ",
                        node.slice.str(graph_.mesh()));
  for (int64_t axis : node.attrs.Ints("axes")) key += Cat(" ", axis);
  auto [at, fresh] = known_.try_emplace(key);
  if (!fresh) return at->second;
  const std::vector<int64_t> members = MembersOf(node);
  std::map<int, Participant> by_node;
  for (int64_t rank : members) {
    auto [p, first] = by_node.try_emplace(nodes_[rank], Participant{rank, 0});
    p->second.device = std::min(p->second.device, rank);
    ++p->second.members;
  }
  std::vector<Participant> group;
  for (const auto& [number, participant] : by_node) group.push_back(participant);
  if (node.primitive == Primitive::kBroadcast && !group.empty())  // round about, from who has it
    std::rotate(group.begin(),
                std::find_if(group.begin(), group.end(),
                             [&](const Participant& p) { return nodes_[p.device] == nodes_[members[0]]; }),
                group.end());
  if (group.size() > 1)
    at->second = CostsOfCollective(node.primitive, group, levels_, BesideOf(node, members));
  return at->second;
}

double CollectiveCosts::BytesOf(int n) const {
  const Node& node = graph_.node(n);
  double bytes = 0;
  for (size_t i = 0; i < node.out.size(); ++i) {
    const Value& v = graph_.value(node.in[i]);
    bytes += ShareMoved(node) * LoadOfBoxingStep(graph_.mesh(), graph_.times(), v.shape, SizeOf(v.dtype),
                                                 graph_.LayoutOf(node.in[i]), graph_.LayoutOf(node.out[i]),
                                                 levels_)
                                    .bytes;
  }
  return bytes;
}

const AlgorithmCost* CollectiveCosts::Named(int n) {
  const std::optional<NamedAlgorithm> named = AlgorithmOf(graph_.node(n));
  if (!named) return nullptr;
  for (const AlgorithmCost& cost : Of(n))
    if (cost.algorithm == named->algorithm && cost.unit == named->unit) return &cost;
  return nullptr;
}

std::optional<NamedAlgorithm> AlgorithmOf(const Node& node) {
  NamedAlgorithm named{};
  if (!IsCollective(node) || !node.attrs.Has(kAlgorithm) ||
      !ParseCollectiveAlgorithm(node.attrs.Str(kAlgorithm), &named.algorithm))
    return std::nullopt;
  if (node.attrs.Has(kUnit)) named.unit = static_cast<int>(node.attrs.Int(kUnit));
  return named;
}

void SetAlgorithm(const AlgorithmCost& cost, Node* node) {
  node->attrs.Set(kAlgorithm, std::string(Name(cost.algorithm)));
  if (cost.unit > 0) node->attrs.Set(kUnit, static_cast<int64_t>(cost.unit));
}

std::string AlgorithmText(const Node& node) {
  const std::optional<NamedAlgorithm> named = AlgorithmOf(node);
  if (!named) return "";
  return named->unit > 0 ? Cat(Name(named->algorithm), " of ", named->unit) : Name(named->algorithm);
}

}  // namespace oneflow_like
