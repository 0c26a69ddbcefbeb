#include "compiler/search/choose_weights.h"

#include <algorithm>
#include <cctype>

#include "compiler/graph/training.h"

namespace oneflow_like {
namespace {

using Shapes = std::map<std::string, Dims>;  // of variables, by name

Shapes ShapesOf(const Graph& graph) {
  Shapes shapes;
  for (int n = 0; n < graph.num_nodes(); ++n)
    if (graph.alive(n) && graph.node(n).kind == NodeKind::kVariable)
      shapes[graph.node(n).name] = graph.value(graph.node(n).out[0]).shape;
  return shapes;
}

// In each kind of block, the cuts that most of its numbers have, for all of them; the first of equals. Blocks
// are of one kind if their names differ in the number alone and their variables have the same shapes.
VariableCuts AlikeInBlocks(const VariableCuts& cuts, const Shapes& shapes) {
  struct Block {
    std::string kind;
    std::map<std::string, VariableCut> cuts;  // by name in the block
  };
  std::map<std::pair<std::string, int64_t>, Block> blocks;
  const auto block_of = [&](const NameInBlock& at) -> Block& {
    return blocks[{at.block, std::stoll(at.number)}];
  };
  for (const auto& [variable, cut] : cuts) {
    const NameInBlock at = InBlock(variable);
    if (at.block.empty()) continue;
    Block& block = block_of(at);
    block.kind += Cat(block.kind.empty() ? at.block : "", " ", at.name, shapes.at(variable).str());
    block.cuts[at.name] = cut;
  }
  std::map<std::string, std::vector<const Block*>> kinds;
  for (const auto& [number, block] : blocks) kinds[block.kind].push_back(&block);
  std::map<std::string, const Block*> chosen;
  for (const auto& [kind, alike] : kinds) {
    std::ptrdiff_t most = 0;
    for (const Block* block : alike) {
      const auto same = std::count_if(alike.begin(), alike.end(),
                                      [&](const Block* other) { return other->cuts == block->cuts; });
      if (same > most) most = same, chosen[kind] = block;
    }
  }
  VariableCuts alike = cuts;
  for (auto& [variable, cut] : alike)
    if (const NameInBlock at = InBlock(variable); !at.block.empty())
      cut = chosen.at(block_of(at).kind)->cuts.at(at.name);
  return alike;
}

// With the cuts of optimizers' state, which lies as its weight does along the axes that it has.
VariableCuts WithState(const VariableCuts& cuts, const Shapes& shapes) {
  VariableCuts all = cuts;
  for (const auto& [variable, shape] : shapes) {
    if (!IsTrainingState(variable) || cuts.count(variable) > 0) continue;
    const std::string weight = WeightOf(variable);
    const auto cut = cuts.find(weight);
    if (cut == cuts.end()) continue;
    for (const auto& [entry, sbp] : cut->second.fixed) {
      if (sbp.axis >= shape.rank() || shape[sbp.axis] != shapes.at(weight)[sbp.axis]) continue;
      all[variable].fixed[entry] = sbp;
      if (cut->second.stored.count(entry)) all[variable].stored.insert(entry);
    }
  }
  return all;
}

// As if the variables were annotated so.
void Apply(const VariableCuts& cuts, Graph* graph) {
  for (int n = 0; n < graph->num_nodes(); ++n) {
    Node& node = graph->node(n);
    if (!graph->alive(n) || node.kind != NodeKind::kVariable) continue;
    const auto cut = cuts.find(node.name);
    if (cut == cuts.end()) continue;
    node.fixed.insert(cut->second.fixed.begin(), cut->second.fixed.end());
    node.stored.insert(cut->second.stored.begin(), cut->second.stored.end());
  }
}

}  // namespace

NameInBlock InBlock(const std::string& variable) {
  constexpr size_t kMostDigits = 9;
  const auto digit = [&](size_t i) { return std::isdigit(static_cast<unsigned char>(variable[i])) != 0; };
  for (size_t i = 0; i < variable.size(); ++i) {
    if (!digit(i)) continue;
    size_t end = i;
    while (end < variable.size() && digit(end)) ++end;
    const size_t slash = variable.find('/', end);
    if (slash != end || end - i > kMostDigits) {  // only the end of a part of the path numbers blocks
      i = end - 1;
      continue;
    }
    return {variable.substr(0, i) + "#", variable.substr(i, end - i), variable.substr(end)};
  }
  return {"", "", variable};
}

WeightSearch::WeightSearch(Graph graph, const CompileOptions& options)
    : options_(options), graph_(graph), problem_(std::move(graph), options_) {}

double WeightSearch::Seconds(const VariableCuts& cuts) const {
  VariableCuts cut = cuts;
  std::erase_if(cut, [](const auto& variable) { return variable.second.fixed.empty(); });
  for (const auto& [known, seconds] : seconds_)
    if (known == cut) return seconds;
  Graph graph = graph_;
  Apply(WithState(cut, ShapesOf(graph)), &graph);
  ShardVariables(&graph, options_);
  ChooseSignatures(&graph, options_);
  seconds_.emplace_back(std::move(cut), SecondsOfSignatures(graph, options_));
  return seconds_.back().second;
}

VariableCuts WeightSearch::Cuts(double price) const {
  // A byte is worth something in any case: of equals the smaller is the better.
  constexpr double kLeastPrice = 1e-18;
  const bool scarce = price > kLeastPrice;
  price = std::max(price, kLeastPrice);
  const auto worth = [&](const VariableCuts& cuts) { return Seconds(cuts) + price * BytesOf(cuts); };
  VariableCuts of_weights = problem_.CutsOf(problem_.Solve(price));
  std::erase_if(of_weights, [](const auto& variable) { return IsTrainingState(variable.first); });
  const VariableCuts found = AlikeInBlocks(of_weights, ShapesOf(graph_));
  VariableCuts whole = found;
  for (auto& [variable, cut] : whole) cut = {};
  // Where memory is scarce, what is kept beside variables counted for what was found, too.
  return scarce || worth(found) < worth(whole) ? found : whole;
}

double WeightSearch::BytesOf(const VariableCuts& cuts) const {
  return problem_.BytesOf(WithState(cuts, ShapesOf(graph_)));
}

double WeightSearch::HighestPrice() const { return 1e3 * (1e-9 + Seconds({})); }

}  // namespace oneflow_like
