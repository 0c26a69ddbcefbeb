#include "compiler/passes/updates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "compiler/graph/training.h"
#include "core/glob.h"
#include "ops/language/expressions.h"

namespace oneflow_like {

namespace {

// --- Norms of gradients ---

// Weights that are clipped together.
struct ClipGroup {
  std::string pattern;
  double norm = 0;  // 0: not clipped
  std::vector<size_t> weights;
};

// Those of each pattern, then the others, which are all without one.
std::vector<ClipGroup> ClipGroupsOf(const Graph& graph, const Training& training,
                                    const std::vector<TrainedWeight>& weights) {
  std::vector<ClipGroup> groups;
  for (const auto& [pattern, norm] : training.clip_groups) groups.push_back({pattern, norm, {}});
  groups.push_back({"", training.clip_norm, {}});
  for (size_t i = 0; i < weights.size(); ++i)
    std::find_if(groups.begin(), groups.end() - 1, [&](const ClipGroup& g) {
      return MatchesGlob(g.pattern, graph.producer(weights[i].weight).name);
    })->weights.push_back(i);
  for (size_t g = 0; g + 1 < groups.size(); ++g)
    if (groups[g].weights.empty())
      Fail("pattern \"", groups[g].pattern, "\" of clip_groups is left no weight: none that is trained ",
           "matches it, or a pattern before it takes all that do");
  if (groups.back().weights.empty()) groups.pop_back();
  return groups;
}

// The sum of the squares of all elements, on the first slice that has one.
Tensor SquareSum(const std::vector<size_t>& of, const std::vector<TrainedWeight>& weights, UpdateSite* site) {
  Graph& graph = site->graph();
  std::map<Slice, std::vector<Tensor>> squares;
  for (size_t i : of) {
    site->At(graph.producer(weights[i].gradient));
    squares[site->slice()].push_back(Apply(&graph, "square_sum", {Tensor(&graph, weights[i].gradient)})[0]);
  }
  std::vector<Tensor> sums;
  for (auto& [where, terms] : squares) {
    site->At(where);
    sums.push_back(terms.size() > 1 ? add_n(terms) : terms[0]);
  }
  site->At(squares.begin()->first);
  return sums.size() > 1 ? add_n(sums) : sums[0];
}

// From a sum of squares: the factor, the norm, and with a loss scale whether it is finite.
std::vector<Tensor> ClipTo(double norm, Tensor squares, const Node& train, Graph* graph) {
  constexpr double kAny = 1e30;  // a norm that nothing is clipped to
  const bool scaled = train.attrs.Has("scaled");
  const Attrs attrs = {{"max_norm", scaled || norm > 0 ? norm : kAny}};
  return scaled ? Apply(graph, "unscale", {squares, Tensor(graph, train.in[1])}, attrs)
                : Apply(graph, "clip_factor", {squares}, attrs);
}

// Lets updates be made where the norm is below its bounds, and, as in all that is fetched, "skipped" says so.
void SkipOutliers(Tensor norm, const CompileOptions& options, SharedNumbers* numbers, Graph* graph,
                  StepChecks* checks) {
  constexpr double kMost = 3e38, kKeep = 0.98, kFirst = 10;
  const SkipSteps& skip = options.asked.training->skip;
  auto number = [&](double value) { return full(graph, Dims{}, value); };
  Tensor most = number(skip.above > 0 ? skip.above : kMost);
  if (skip.times > 0) {
    const Node like = graph->producer(norm.id());
    Tensor average = AddState(graph, options.asked.name + ":norm_average", Dims{}, 0, like);
    // The average began at 0: divided by 1 - keep^count it is that of the steps there were.
    Tensor weight = shift(neg(exp(scale(numbers->Updates(), std::log(kKeep)))), 1);
    Tensor bound = scale(average / maximum(weight, number(1 - kKeep)), skip.times);
    most = where(less(numbers->Updates(), number(kFirst)), most, minimum(most, bound));
    checks->average = {average, scale(average, kKeep) + scale(norm, 1 - kKeep)};
  }
  checks->applies = less_equal(norm, most);  // of a norm that is no number: false
  graph->AddFetch("skipped", where(checks->applies, number(0), number(1)).id());
}

// --- A weight's update, as optimizers see it ---

// A value of the user's graph, which has the same number here as long as something needs it.
Tensor ReadOfGraph(Graph* graph, const Training& training, const std::string& who, Tensor tensor) {
  if (tensor.graph() == graph) return tensor;
  if (!tensor.defined()) Fail(who, ": Read was given a Tensor that was never given a value");
  if (tensor.graph() != training.source)
    Fail(who, ": '", tensor.name(),
         "' belongs to another graph than the loss; Read takes tensors of its graph");
  if (tensor.id() >= training.source_values || !graph->alive(graph->value(tensor.id()).producer))
    Fail(who, ": it reads '", tensor.name(), "', which this session does not compute; list it in ",
         "Optimizer::reads or in TrainOptions::also");
  return {graph, tensor.id()};
}

class OfWeight : public WeightUpdate {
 public:
  OfWeight(const CompileOptions& options, const TrainedWeight& trained, Tensor factor, Tensor applies,
           SharedNumbers* numbers, Graph* graph)
      : options_(options),
        training_(*options.asked.training),
        trained_(trained),
        weight_(graph, trained.weight),
        raw_(graph, trained.gradient),
        factor_(factor),
        applies_(applies),
        numbers_(*numbers),
        graph_(*graph) {}
  Tensor weight() override { return weight_; }
  Tensor gradient() override {
    if (gradient_.defined()) return gradient_;
    const double most = training_.clip_value;
    gradient_ = factor_.defined() ? mul(raw_, factor_) : raw_;
    if (most > 0) gradient_ = clamp(gradient_, -most, most);
    return gradient_;
  }
  Tensor State(const std::string& name, double first) override {
    std::vector<int> axes(weight_.shape().rank());
    std::iota(axes.begin(), axes.end(), 0);
    return ShapedState(name, weight_.shape(), axes, first);
  }
  Tensor ShapedState(const std::string& name, const Dims& shape, const std::vector<int>& axes,
                     double first) override {
    Tensor& state = states_[name];
    if (state.defined() && state.shape() == shape) return state;
    const Node like = graph_.producer(weight_.id());
    CheckState(name, shape, axes, state);
    state = AddState(&graph_, Cat(options_.asked.name, ":", name, "/", like.name), shape, first, like);
    Node& node = graph_.node(graph_.value(state.id()).producer);
    for (const auto& [entry, sbp] : like.fixed) {
      const auto with = sbp.is_split() ? std::find(axes.begin(), axes.end(), sbp.axis) : axes.end();
      if (sbp.is_split() && with == axes.end()) continue;
      node.fixed[entry] = sbp.is_split() ? S(static_cast<int>(with - axes.begin()), sbp.grain) : sbp;
      if (like.stored.count(entry)) node.stored.insert(entry);
    }
    return state;
  }
  Tensor Read(Tensor of_graph) override { return ReadOfGraph(&graph_, training_, Who(), of_graph); }
  const std::string& path() override { return graph_.producer(weight_.id()).name; }
  double Decay() override {
    const Node& node = graph_.producer(weight_.id());
    return node.attrs.Has("decay") ? node.attrs.Float("decay") : trained_.decay;
  }
  Tensor Rate(double lr) override { return numbers_.Rate(lr * RateFactor()); }
  Tensor Updates() override { return numbers_.Updates(); }
  void Assign(Tensor variable, Tensor value) override {
    if (!value.defined()) Fail(Who(), ": it assigns a Tensor that was never given a value");
    if (variable.graph() != &graph_)
      Fail(Who(), ": it assigns to a variable of the graph; Assign takes the weight and its states");
    const Tensor after = AssignIf(applies_, variable, value);
    if (variable.id() == weight_.id()) after_ = after;
  }
  TouchedRows Rows() override {
    if (!trained_.touched.rows.defined()) return {};
    return {trained_.touched.rows, gradient(), trained_.touched.parts};  // raw_ is that of the rows here
  }
  void FusedRows(const std::string& op, Tensor variable, Tensor values, Attrs numbers) override {
    std::vector<Tensor> in = {variable, Rows().rows, values};
    if (applies_.defined()) in.insert(in.end(), {full(&graph_, Dims{}, 1), applies_});
    Finish(&numbers);
    if (trained_.touched.parts > 0) numbers.Set("parts", trained_.touched.parts);
    const Tensor after = Apply(&graph_, op, in, numbers)[0];
    if (variable.id() == weight_.id()) after_ = after;
  }
  void Fused(const std::string& op, const std::vector<Tensor>& state, bool counts, Attrs numbers) override {
    // With clip_value an update reads the limited gradient, which has the factor already.
    const bool limited = training_.clip_value > 0;
    std::vector<Tensor> in = {weight_, limited ? gradient() : raw_};
    in.insert(in.end(), state.begin(), state.end());
    if (counts) in.push_back(Updates());
    const bool factored = factor_.defined() && !limited;
    if (factored || applies_.defined()) in.push_back(factored ? factor_ : full(&graph_, Dims{}, 1));
    if (applies_.defined()) in.push_back(applies_);
    Finish(&numbers);
    if (training_.fed_rate) {
      in.push_back(numbers_.Rate(numbers.Float("lr")));
      numbers.Set("rated", int64_t{1});
    }
    after_ = Apply(&graph_, op, in, numbers)[0];
  }
  // The weight after the step; undefined: the optimizer gave it no value.
  Tensor after() const { return after_; }

 private:
  // Makes the numbers this weight's and this training's.
  void Finish(Attrs* numbers) const {
    numbers->Set("lr", numbers->Float("lr") * RateFactor());
    const Schedule& schedule = training_.schedule;
    if (schedule.kind != Schedule::Kind::kConstant) SetSchedule(schedule, numbers);
  }
  double RateFactor() const { return graph_.producer(weight_.id()).attrs.Float("rate", 1); }
  std::string Who() { return Cat("optimizer '", training_.optimizer.name, "', weight '", path(), "'"); }
  void CheckState(const std::string& name, const Dims& shape, const std::vector<int>& axes, Tensor there) {
    const std::string who = Cat(Who(), ": state '", name, "' ", shape.str());
    const Dims& weight = weight_.shape();
    if (there.defined()) Fail(who, " was ", there.shape().str(), " before; give it another name");
    if (!axes.empty() && std::ssize(axes) != shape.rank())
      Fail(who, " has ", shape.rank(), " axes but `axes` names ", axes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] == -1) continue;
      if (axes[i] < 0 || axes[i] >= weight.rank())
        Fail(who, ": its axis ", i, " goes with axis ", axes[i], " of the weight, which is ", weight.str());
      if (std::count(axes.begin(), axes.end(), axes[i]) > 1)
        Fail(who, ": two of its axes go with axis ", axes[i], " of the weight; give -1 for one of them");
      if (shape[i] != weight[axes[i]])
        Fail(who, ": its axis ", i, " has extent ", shape[i], " but axis ", axes[i], " of the weight has ",
             weight[axes[i]]);
    }
  }

  const CompileOptions& options_;
  const Training& training_;
  const TrainedWeight& trained_;
  const Tensor weight_, raw_, factor_, applies_;
  SharedNumbers& numbers_;
  Graph& graph_;
  Tensor gradient_, after_;
  std::map<std::string, Tensor> states_;
};

}  // namespace

Tensor SharedNumbers::Updates() {
  if (!updates_.defined())
    updates_ = AddState(&site_.graph(), options_.asked.name + ":updates", Dims{}, 0, first_);
  return updates_;
}

Tensor SharedNumbers::Rate(double lr) {
  const Training& training = *options_.asked.training;
  Graph& graph = site_.graph();
  Tensor& rate = rates_[{site_.slice(), lr}];
  if (rate.defined()) return rate;
  if (!training.fed_rate) {
    Attrs attrs = {{"lr", lr}};
    if (training.schedule.kind != Schedule::Kind::kConstant) SetSchedule(training.schedule, &attrs);
    return rate = Apply(&graph, "learning_rate", {}, attrs)[0];
  }
  if (!fed_.defined()) {  // the factor that the session feeds, one for the whole training
    Node node;
    node.op = "input";
    node.name = options_.asked.name + ":lr_factor";
    node.line = site_.origin.line;
    const std::string name = node.name;
    const int id = graph.AddRaw(std::move(node), {{name, DType::kFloat32, Dims{}}});
    fed_ = Tensor(&graph, graph.node(id).out[0]);
  }
  return rate = scale(fed_, lr);
}

StepChecks MeasureNorms(const Node& train, const CompileOptions& options,
                        const std::vector<TrainedWeight>& weights, SharedNumbers* numbers, UpdateSite* site) {
  const Training& training = *options.asked.training;
  Graph& graph = site->graph();
  const std::vector<ClipGroup> groups = ClipGroupsOf(graph, training, weights);
  const bool clips = training.clip_norm > 0 || !training.clip_groups.empty();
  const bool scaled = train.attrs.Has("scaled"), skips = training.skip.above > 0 || training.skip.times > 0;
  StepChecks checks;
  checks.factors.resize(weights.size());
  if (!clips && !scaled && !skips) return checks;
  std::vector<Tensor> squares, of_all;
  for (const ClipGroup& group : groups) {
    squares.push_back(SquareSum(group.weights, weights, site));
    of_all = ClipTo(group.norm, squares.back(), train, &graph);
    for (size_t i : group.weights) checks.factors[i] = of_all[0];
    if (!group.pattern.empty()) graph.AddFetch("grad_norm/" + group.pattern, of_all[1].id());
  }
  if (groups.size() > 1) {
    const auto slice = [&](Tensor t) -> const Slice& { return graph.producer(t.id()).slice; };
    site->At(slice(*std::min_element(squares.begin(), squares.end(),
                                     [&](Tensor a, Tensor b) { return slice(a) < slice(b); })));
    of_all = ClipTo(0, add_n(squares), train, &graph);
  }
  if (scaled) checks.applies = checks.fits_fp16 = of_all[2];
  if (clips) graph.AddFetch("grad_norm", of_all[1].id());
  if (skips) SkipOutliers(of_all[1], options, numbers, &graph, &checks);
  return checks;
}

void HoldBack(const CompileOptions& options, const Node& first, UpdateSite* site, StepChecks* checks) {
  const Training& training = *options.asked.training;
  if (training.no_room.empty()) return;
  Graph& graph = site->graph();
  std::vector<int> writers;  // of the user's
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const OpDef* def = graph.alive(n) ? graph.catalog().Find(graph.node(n).op) : nullptr;
    if (def && !def->inplace.empty()) writers.push_back(n);
  }
  std::map<Slice, std::vector<Tensor>> terms;
  for (int v : training.no_room) terms[graph.producer(v).slice].emplace_back(&graph, v);
  std::vector<Tensor> sums;
  for (auto& [where, some] : terms) {
    site->At(graph.producer(some[0].id()));
    sums.push_back(some.size() > 1 ? add_n(some) : some[0]);
  }
  Tensor before = AddState(&graph, options.asked.name + kNoRoom, Dims{}, 0, first);
  graph.node(graph.value(before.id()).producer).attrs.Set(kOfPlan, int64_t{1});
  site->At(first);
  // Steps in flight behind one without room find its number. Those with more room begin anew.
  sums.push_back(scale(before, training.has_more_room ? 0 : 1));
  Tensor now = add_n(sums);
  assign(before, now);
  graph.AddFetch(kRetried, shift(now, training.has_more_room ? 1 : 0).id());
  const Tensor fits = less_equal(now, 0);
  for (int n : writers) {
    Node& node = graph.node(n);
    if (node.op != "assign" || node.attrs.Has("each_micro_batch"))
      Fail(graph.DescribeForUser(n), ": it writes ",
           node.op == "assign" ? "in each micro-batch" : "a part of a variable",
           ", which a step that experts have no room for (nn::ExpertOverflow::kRetry) cannot take back; "
           "assign the whole variable once a step, or let experts drop");
    const int variable = node.in[0], value = node.in[1];
    site->At(graph.producer(variable));
    const Tensor held = where(fits, Tensor(&graph, value), Tensor(&graph, variable));
    graph.node(n).in[1] = held.id();
  }
  site->At(first);
  checks->had_room = fits;
  checks->applies =
      checks->applies.defined() ? greater(where(checks->applies, where(fits, 1, 0), 0), 0.5) : fits;
}

Tensor AssignIf(Tensor applies, Tensor variable, Tensor value) {
  return assign(variable, applies.defined() ? where(applies, value, variable) : value);
}

void UpdateWeight(const CompileOptions& options, const TrainedWeight& trained, Tensor factor, Tensor applies,
                  const Averaging& averaging, SharedNumbers* numbers, UpdateSite* site) {
  const Optimizer& optimizer = options.asked.training->optimizer;
  const Node weight = site->graph().producer(trained.weight);
  site->At(weight);
  OfWeight update(options, trained, factor, applies, numbers, &site->graph());
  site->origin.of_another =
      Cat("; optimizer '", optimizer.name, "' computes with what WeightUpdate ",
          "gives it: weight, gradient, states, Rate, Updates, and tensors of the graph by ", "Read");
  optimizer.update(update);
  site->origin.of_another.clear();
  if (!update.after().defined())
    Fail("optimizer '", optimizer.name, "' assigns nothing to weight '", weight.name, "'");
  if (!averaging.keep.defined()) return;
  Tensor average = update.State(kAverage, 0);
  AssignIf(applies, average, average * averaging.keep + update.after() * averaging.add);
}

}  // namespace oneflow_like
