#include "oneflow_like/session/trained_weights.h"

#include <algorithm>

#include "compiler/graph/training.h"
#include "core/glob.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/variables.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

namespace {

// Whether node `n` gives the variable a new value.
bool Writes(const Graph& graph, int n, int variable) {
  const OpDef* def = graph.catalog().Find(graph.node(n).op);
  return def && std::any_of(def->inplace.begin(), def->inplace.end(),
                            [&](const auto& pair) { return graph.node(n).in[pair.second] == variable; });
}

}  // namespace

std::set<int> Ancestors(const Graph& graph, const std::vector<int>& values) {
  std::set<int> seen;
  std::vector<int> todo;
  for (int v : values) todo.push_back(graph.value(v).producer);
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    if (!seen.insert(n).second) continue;
    for (int v : graph.node(n).in) todo.push_back(graph.value(v).producer);
  }
  return seen;
}

void TrainOnly(const std::string& who, const std::vector<std::string>& patterns, int loss, Graph* graph) {
  if (patterns.empty()) return;
  std::vector<std::string> trainable;
  std::vector<bool> used(patterns.size(), false);
  std::vector<std::string> frozen(patterns.size());  // one that matches, if any
  for (int n : Ancestors(*graph, {loss})) {
    Node& node = graph->node(n);
    if (node.kind != NodeKind::kVariable) continue;
    const bool may = node.attrs.Int("frozen", 0) == 0;
    bool wanted = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!MatchesGlob(patterns[i], node.name)) continue;
      wanted = true;
      used[i] = used[i] || may;
      if (!may) frozen[i] = node.name;
    }
    if (may) trainable.push_back(node.name);
    if (!wanted) node.attrs.Set("frozen", int64_t{1});
  }
  std::sort(trainable.begin(), trainable.end());
  constexpr size_t kShown = 6;
  std::string names;
  for (size_t i = 0; i < std::min(trainable.size(), kShown); ++i)
    names += Cat(i == 0 ? "'" : ", '", trainable[i], "'");
  if (trainable.size() > kShown) names += Cat(" and ", trainable.size() - kShown, " more");
  for (size_t i = 0; i < patterns.size(); ++i)
    if (!used[i])
      Fail(who, ": pattern \"", patterns[i], "\" of TrainOptions::weights matches no weight ",
           "that could be trained for the loss '", graph->value(loss).name, "'",
           frozen[i].empty() ? "" : Cat(", only frozen ones, '", frozen[i], "' among them"),
           names.empty() ? "; all that it depends on are frozen" : Cat("; it depends on ", names));
}

void CheckSameTraining(const std::string& who, const ModelImpl& model, const TrainOptions& options) {
  auto steps = model.steps.find(options.name);
  if (steps == model.steps.end() || steps->second.of != SessionSteps::Of::kTraining) return;
  const char* other = steps->second.weights != options.weights
                          ? "trains other weights (TrainOptions::weights)"
                      : steps->second.averages == (options.average.decay > 0) ? nullptr
                      : steps->second.averages ? "keeps averages of weights (TrainOptions::average)"
                                               : "keeps no averages of weights (TrainOptions::average)";
  if (other)
    Fail(who, ": an earlier session of training ", options.name, " ", other,
         "; both would count its steps; give this one another name");
}

void CheckAverage(const std::string& who, const Average& average) {
  NeedNumber(who, "average.decay", average.decay, Domain::kShare);
  NeedNumber(who, "average.warmup", average.warmup, Domain::kNotNegative);
  CheckRange<int64_t>(Cat(who, ": average.from"), average.from, 0, kMostAveragedFrom);
  if (average.decay == 0 && (average.warmup > 0 || average.from > 0))
    Fail(who, ": average.", average.warmup > 0 ? "warmup" : "from", " is given without average.decay");
  if (static_cast<float>(average.decay) == 1 && average.warmup == 0)
    Fail(who, ": average.decay is 1, with which an average never changes; give a smaller one, or a warmup");
}

void ReadAverages(const std::string& who, const ModelImpl& model, const std::string& weights, Graph* graph) {
  if (weights.empty()) return;
  const size_t colon = weights.rfind(':');
  const std::string wanted = colon == std::string::npos ? "" : weights.substr(0, colon);
  if (weights.substr(colon == std::string::npos ? 0 : colon + 1) != kAverage)
    Fail(who, ": weights is \"", weights, "\" but must be empty, \"average\" or \"<training>:average\"");
  const std::vector<std::vector<int>> readers = graph->Readers();
  bool any = false;
  for (int n = 0; n < graph->num_nodes(); ++n) {
    Node& node = graph->node(n);
    if (!graph->alive(n) || node.kind != NodeKind::kVariable) continue;
    std::string found;  // the training
    for (const auto& [training, steps] : model.steps) {
      if (!steps.averages || (!wanted.empty() && training != wanted)) continue;
      if (!model.variables.count(AverageOf(training, node.name))) continue;
      if (!found.empty())
        Fail(who, ": both training ", found, " and training ", training, " average weight '", node.name,
             "'; say \"", found, ":average\" or \"", training, ":average\"");
      found = training;
    }
    if (found.empty()) continue;
    for (int r : readers[node.out[0]])
      if (Writes(*graph, r, node.out[0]))
        Fail(who, ": ", graph->DescribeForUser(r), " gives weight '", node.name,
             "' a new value, but the session reads its average in its place");
    const Node& average = model.variables.at(AverageOf(found, node.name)).node;
    node.name = average.name;
    node.attrs = average.attrs;
    node.fixed = average.fixed;
    node.stored = average.stored;
    node.slice = average.slice;
    node.placed = average.placed;
    any = true;
  }
  if (!any)
    Fail(who, ": weights is \"", weights, "\" but no training made so far averages a weight that is read ",
         "here; make it before, with TrainOptions::average");
}

}  // namespace oneflow_like
