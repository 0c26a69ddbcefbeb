// Updates of variables.
// Needs: a graph whose train node, if there is one, reads weights and gradients; assigns of the user's.
// Leaves: no train node, but for each weight the state and the assigns (phase update, in place) that the
// optimizer makes of it, on the weight's slice; what Updated gave replaced by the new values; fetches last.
// With clipping there is one norm for all, or for each group of weights: per slice the squares are summed,
// the slices' sums are added in slice order, and the factor goes to every update. With a loss scale the
// factor divides by it, and no update is made when the norm of all is not finite. A bound of elements follows
// the factor. With averages each weight has one, which is assigned after it, and the
// training a count of them. Where experts may let steps run again (Training::no_room), a count of choices
// without room holds back every write. A table that is only looked up in gets the rows that the batch touched
// in place of its gradient, where the optimizer can use them. Where gradients are summed in 16 bits, each is
// read through a cast that says so (IsCastForSum). Nodes that nothing of this needs are removed.
#include <algorithm>
#include <map>
#include <set>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"
#include "compiler/passes/updates.h"
#include "core/glob.h"

namespace oneflow_like {

Tensor AddState(Graph* graph, const std::string& name, const Dims& shape, double value, const Node& like) {
  Node node;
  node.op = "variable";
  node.name = name;
  node.line = like.line;
  node.slice = like.slice;
  node.placed = like.placed;
  node.phase = Phase::kUpdate;
  node.attrs.Set("init", std::string("full"));
  node.attrs.Set("value", value);
  int id = graph->AddRaw(std::move(node), {{name, DType::kFloat32, shape}});
  return Tensor(graph, graph->node(id).out[0]);
}

namespace {

// --- Weights ---

// The optimizer of a weight in Groups, that of the first pattern that matches.
const Optimizer* GroupOf(const Optimizer& groups, const std::string& weight) {
  for (size_t i = 0; i < groups.patterns.size(); ++i)
    if (MatchesGlob(groups.patterns[i], weight)) return &groups.others[i];
  return nullptr;
}

// The optimizer that updates a weight.
const Optimizer& OptimizerOf(const Optimizer& optimizer, const std::string& weight) {
  const Optimizer* group = GroupOf(optimizer, weight);
  return group ? OptimizerOf(*group, weight) : optimizer;
}

// Whether node `reader` takes the value as a parameter that stays fp32 beside narrow operands (of a norm).
bool IsWideOperand(const Graph& graph, const OpDef& def, const Node& reader, int value) {
  if (def.wide.empty()) return false;
  const BoundRule rule = BindOp(def, graph.CallOf(reader));
  for (size_t i = 0; i < reader.in.size(); ++i)
    if (reader.in[i] == value && !def.wide.count(rule.in[i].name)) return false;
  return true;
}

// Whether anything but elementwise operators and norms reads the weight, itself or a view of it: weights of
// products, tables and convolutions do decay, biases and what scales a norm do not.
bool Decays(const Graph& graph, const std::vector<std::vector<int>>& readers, int weight) {
  if (graph.value(weight).shape.rank() < 2) return false;
  bool read = false;
  std::vector<int> todo = {weight};
  while (!todo.empty()) {
    const int v = todo.back();
    todo.pop_back();
    if (v >= static_cast<int>(readers.size())) continue;
    for (int n : readers[v]) {
      const Node& reader = graph.node(n);
      const OpDef* def = graph.catalog().Find(reader.op);
      if (reader.phase != Phase::kForward || !def) continue;
      read = true;
      if (reader.in.size() == 1 && reader.out.size() == 1 && def->folds.empty()) {
        todo.push_back(reader.out[0]);
      } else if (def->scalar.empty() && !IsWideOperand(graph, *def, reader, v)) {
        return true;
      }
    }
  }
  return !read;
}

// Rows that the batch touched in place of the gradient of a table, where it is made of such rows and there
// are few of them. Each micro-batch brings its own; the list is of all.
void FindRows(TrainedWeight* trained, UpdateSite* site) {
  Graph& graph = site->graph();
  const Node node = graph.producer(trained->gradient);
  const OpDef* def = graph.catalog().Find(node.op);
  const Dims& table = graph.value(trained->weight).shape;
  if (!def || !def->rows || table.rank() != 2) return;
  std::vector<Tensor> in;
  for (int v : node.in) in.emplace_back(&graph, v);
  if (2 * in[0].shape().elements() > table[0]) return;
  site->At(node);
  const Graph::Origin of_updates = site->origin;
  site->origin.phase = node.phase;
  site->origin.scope = node.name.substr(0, node.name.rfind('/') + 1);
  const auto [ids, values] = def->rows(node.attrs, in);
  site->origin = of_updates;
  site->At(graph.producer(trained->weight));
  trained->touched = unique_rows(ids, values, node.attrs.Int("parts", 0));
  trained->gradient = trained->touched.values.id();
}

// Puts a cast behind the gradient, for everything that reads it. The cast marks the sum over devices that
// insert_boxing is to make of terms in another type.
void ReadSum(TrainedWeight* trained, UpdateSite* site) {
  Graph& graph = site->graph();
  const std::string name = graph.value(trained->gradient).name + ".sum";
  site->At(graph.producer(trained->weight));
  const Attrs attrs = {
      {"dtype", std::string(Name(DType::kFloat32))}, {kTerms, int64_t{0}}, {"wide", int64_t{1}}};
  trained->gradient = Apply(&graph, "cast", {Tensor(&graph, trained->gradient)}, attrs)[0].id();
  Node& sum = graph.node(graph.value(trained->gradient).producer);
  sum.name = graph.value(trained->gradient).name = graph.UniqueName(name);
  sum.fixed = graph.producer(trained->weight).fixed;
}

// The train node's, in its order.
std::vector<TrainedWeight> WeightsOf(const Node& train, const CompileOptions& options, UpdateSite* site) {
  const Training& training = *options.asked.training;
  const Optimizer& optimizer = training.optimizer;
  const Graph& graph = site->graph();
  const std::vector<std::vector<int>> readers = graph.Readers();
  std::vector<TrainedWeight> weights;
  std::vector<const Optimizer*> groups;  // by weight
  const bool narrow = options.decided.reduce_dtype.value_or(DType::kFloat32) != DType::kFloat32;
  for (size_t i = TrainHead(train); i + 1 < train.in.size(); i += 2) {
    const std::string path = graph.producer(train.in[i]).name;
    TrainedWeight& trained = weights.emplace_back(TrainedWeight{train.in[i], train.in[i + 1]});
    trained.decay = Decays(graph, readers, trained.weight) ? 1 : 0;
    if (OptimizerOf(optimizer, path).by_rows && !training.fed_rate) FindRows(&trained, site);
    const bool whole =
        !trained.touched.rows.defined() && graph.value(trained.gradient).dtype == DType::kFloat32;
    if (narrow && whole) ReadSum(&trained, site);
    groups.push_back(GroupOf(optimizer, path));
  }
  for (size_t i = 0; i < optimizer.patterns.size(); ++i)
    if (std::find(groups.begin(), groups.end(), &optimizer.others[i]) == groups.end())
      Fail("pattern \"", optimizer.patterns[i], "\" of Groups is left no weight to update: none that is ",
           "trained matches it, or a pattern before it takes all that do");
  return weights;
}

// The weight on the first stage that has one: what the whole training has one number of is there.
Node FirstOf(const Graph& graph, const std::vector<TrainedWeight>& weights) {
  return graph.producer(
      std::min_element(weights.begin(), weights.end(), [&](const TrainedWeight& a, const TrainedWeight& b) {
        return graph.producer(a.weight).slice < graph.producer(b.weight).slice;
      })->weight);
}

// --- Averages ---

// How much of their value averages keep in this step (Average), and how much of the weights they take.
Averaging CountAverages(const CompileOptions& options, const Node& first, Tensor applies, UpdateSite* site) {
  const Average& average = options.asked.training->average;
  Graph& graph = site->graph();
  Tensor count = AddState(&graph, options.asked.name + kAverages, Dims{}, 0, first);
  site->At(graph.producer(count.id()));
  auto number = [&](double value) { return full(&graph, Dims{}, value); };
  const auto from = static_cast<double>(average.from);
  Tensor keep = number(average.decay);
  if (average.warmup > 0) {
    Tensor t = maximum(shift(count, 1 - from), number(1));
    keep = minimum(keep, shift(neg(exp(scale(log(t), -average.warmup))), 1));
  }
  keep = where(less_equal(count, number(from)), number(0), keep);
  Tensor add = shift(neg(keep), 1);
  AssignIf(applies, count, shift(count, 1));
  return {keep, add};
}

// Replaces train node `train` by updates.
void TrainWeights(const CompileOptions& options, int train, Graph* graph) {
  const Training& training = *options.asked.training;
  const Node node = graph->node(train);
  graph->Remove(train);
  UpdateSite site(graph);
  const std::vector<TrainedWeight> weights = WeightsOf(node, options, &site);
  const Node first = FirstOf(*graph, weights);
  SharedNumbers numbers(options, first, &site);
  StepChecks checks = MeasureNorms(node, options, weights, &numbers, &site);
  HoldBack(options, first, &site, &checks);
  Averaging averaging;
  if (training.average.decay > 0) averaging = CountAverages(options, first, checks.applies, &site);
  for (size_t i = 0; i < weights.size(); ++i)
    UpdateWeight(options, weights[i], checks.factors[i], checks.applies, averaging, &numbers, &site);
  if (const Tensor updates = numbers.updates(); updates.defined()) {
    site.At(graph->producer(updates.id()));
    AssignIf(checks.applies, updates, shift(updates, 1));
    const auto& [average, next] = checks.average;
    if (average.defined()) AssignIf(checks.applies, average, next);
  }
  if (!node.attrs.Has("scaled")) return;
  site.At(graph->producer(node.in[1]));
  std::vector<Tensor> scale = {Tensor(graph, node.in[1]), Tensor(graph, node.in[2]), checks.fits_fp16};
  if (checks.had_room.defined()) scale.push_back(checks.had_room);
  Apply(graph, "update_loss_scale", scale);
}

// --- Values after the step ---

// Of two writers of a variable the error names the user's first, not the training's.
[[noreturn]] void FailTwice(const Graph& graph, int variable, int first, int second) {
  const auto trains = [&](int n) { return graph.node(n).name.starts_with("update/"); };
  if (trains(second)) std::swap(first, second);
  Fail(graph.DescribeForUser(second), ": variable '", graph.value(variable).name, "' is given a value by ",
       trains(first) ? "its training" : graph.DescribeForUser(first), " already; a step can give it one");
}

// By variable, the value that it is given; throws Error for one that is given two.
std::map<int, int> NewValues(const Graph& graph) {
  std::map<int, int> values, writers;
  for (int n : graph.Order()) {
    const OpDef* def = graph.catalog().Find(graph.node(n).op);
    if (!def) continue;
    for (auto [out, in] : def->inplace) {
      int variable = graph.node(n).in[in];
      auto [first, fresh] = writers.try_emplace(variable, n);
      if (!fresh) FailTwice(graph, variable, first->second, n);
      values[variable] = graph.node(n).out[out];
    }
  }
  return values;
}

// Whether the new value of a variable is computed from what node `updated` says of it.
bool NeedsItself(const Graph& graph, const std::map<int, int>& values, int updated) {
  std::set<int> seen;
  std::vector<int> todo = {updated};
  while (!todo.empty()) {
    const int n = todo.back();
    todo.pop_back();
    std::vector<int> in = graph.node(n).in;
    if (graph.node(n).kind == NodeKind::kUpdated)
      if (auto value = values.find(in[0]); value != values.end()) in = {value->second};
    for (int v : in) {
      if (graph.value(v).producer == updated) return true;
      if (seen.insert(graph.value(v).producer).second) todo.push_back(graph.value(v).producer);
    }
  }
  return false;
}

// Puts new values in the place of what Updated gave. False: there are none.
bool ResolveUpdated(Graph* graph) {
  const std::map<int, int> values = NewValues(*graph);
  std::map<int, int> stands_for;
  for (int n = 0; n < graph->num_nodes(); ++n) {
    const Node& node = graph->node(n);
    if (!graph->alive(n) || node.kind != NodeKind::kUpdated) continue;
    auto value = values.find(node.in[0]);
    if (value == values.end())
      Fail(graph->DescribeForUser(n), ": nothing in this session gives '", graph->value(node.in[0]).name,
           "' a new value; it is neither trained nor assigned here");
    if (NeedsItself(*graph, values, n))
      Fail(graph->DescribeForUser(n), ": the new value of '", graph->value(node.in[0]).name,
           "' is computed from itself");
    stands_for[node.out[0]] = value->second;
    graph->Remove(n);
  }
  for (int n = 0; n < graph->num_nodes(); ++n)
    for (int& v : graph->node(n).in)
      if (stands_for.count(v)) v = stands_for.at(v);
  return !stands_for.empty();
}

// Removes what neither a fetch nor an update needs; fetches, by name, come behind all others.
void Tidy(Graph* graph) {
  std::vector<int> roots, order, fetches;
  for (int n = 0; n < graph->num_nodes(); ++n) {
    const OpDef* def = graph->catalog().Find(graph->node(n).op);
    if (!graph->alive(n) || (graph->node(n).kind != NodeKind::kFetch && (!def || def->inplace.empty())))
      continue;
    roots.push_back(n);
  }
  graph->KeepOnly(roots);
  for (int n = 0; n < graph->num_nodes(); ++n)
    if (graph->alive(n)) (graph->node(n).kind == NodeKind::kFetch ? fetches : order).push_back(n);
  std::sort(fetches.begin(), fetches.end(),
            [&](int a, int b) { return graph->node(a).name < graph->node(b).name; });
  order.insert(order.end(), fetches.begin(), fetches.end());
  graph->Renumber(order);
}

}  // namespace

void AddUpdates(Graph* graph, const CompileOptions& options) {
  const int train = TrainNode(*graph);
  if (train >= 0) {
    if (!options.asked.training) Fail(graph->DescribeForUser(train), ": the options say nothing of training");
    TrainWeights(options, train, graph);
  }
  const bool resolved = ResolveUpdated(graph);
  if (train >= 0 || resolved) Tidy(graph);
}

}  // namespace oneflow_like
