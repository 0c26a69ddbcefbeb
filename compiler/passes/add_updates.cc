// Updates of variables.
// Needs: a graph whose train node, if there is one, reads weights and gradients; assigns of the user's.
// Leaves: no train node, but for each weight the state and the assigns (phase update, in place) that the
// optimizer makes of it, on the weight's slice; what Updated gave replaced by the new values; fetches last.
// With clipping there is one norm for all, or for each group of weights: per slice the squares are summed,
// the slices' sums are added in slice order, and the factor goes to every update. With a loss scale the
// factor divides by it, and no update is made when the norm of all is not finite. A bound of elements follows
// the factor. With averages each weight has one, which is assigned after it, and the
// training a count of them. A table that is only looked up in gets the rows that the batch touched
// in place of its gradient, where the optimizer can use them. Nodes that nothing of this needs are removed.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"
#include "core/glob.h"
#include "ops/language/functional.h"

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

class Updater {
 public:
  Updater(Graph* graph, const CompileOptions& options, int train)
      : graph_(*graph),
        options_(options),
        training_(*options.training),
        train_(graph->node(train)),
        scaled_(train_.attrs.Has("scaled")),
        readers_(graph->Readers()) {
    origin_.phase = Phase::kUpdate;
    origin_.scope = "update/";
    graph_.Remove(train);
    graph_.SetOrigin(&origin_);
  }
  ~Updater() { graph_.SetOrigin(nullptr); }

  void Run() {
    for (size_t i = TrainHead(train_); i + 1 < train_.in.size(); i += 2) {
      weights_.push_back(train_.in[i]);
      gradients_.push_back(train_.in[i + 1]);
      decays_[train_.in[i]] = Decays(train_.in[i]) ? 1 : 0;
      if (OptimizerOf(train_.in[i]).by_rows) FindRows(train_.in[i], &gradients_.back());
    }
    RequireUsed(training_.optimizer);
    FindClipGroups();
    if (training_.clip_norm > 0 || !training_.clip_groups.empty() || scaled_ || Skips()) MeasureNorms();
    if (training_.average.decay > 0) CountAverages();
    for (size_t i = 0; i < weights_.size(); ++i) Update(i);
    if (updates_.defined()) {
      At(graph_.producer(updates_.id()));
      Assign(updates_, shift(updates_, 1));
      if (counted_.first.defined()) Assign(counted_.first, counted_.second);
    }
    if (!scaled_) return;
    At(graph_.producer(train_.in[1]));
    Apply(&graph_, "update_loss_scale",
          {Tensor(&graph_, train_.in[1]), Tensor(&graph_, train_.in[2]), fits_fp16_});
  }

 private:
  class OfWeight : public WeightUpdate {
   public:
    OfWeight(Updater* updater, int weight, int gradient)
        : of_(*updater),
          weight_(&of_.graph_, weight),
          raw_(&of_.graph_, gradient),
          factor_(of_.FactorOf(weight)) {}
    Tensor weight() override { return weight_; }
    Tensor gradient() override {
      if (gradient_.defined()) return gradient_;
      const double most = of_.training_.clip_value;
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
      const Node like = of_.graph_.producer(weight_.id());
      CheckState(name, shape, axes, state);
      state = AddState(&of_.graph_, Cat(of_.options_.name, ":", name, "/", like.name), shape, first, like);
      Node& node = of_.graph_.node(of_.graph_.value(state.id()).producer);
      for (const auto& [entry, sbp] : like.fixed) {
        const auto with = sbp.is_split() ? std::find(axes.begin(), axes.end(), sbp.axis) : axes.end();
        if (sbp.is_split() && with == axes.end()) continue;
        node.fixed[entry] = sbp.is_split() ? S(static_cast<int>(with - axes.begin())) : sbp;
        if (like.stored.count(entry)) node.stored.insert(entry);
      }
      return state;
    }
    Tensor Read(Tensor of_graph) override { return of_.Read(Who(), of_graph); }
    const std::string& path() override { return of_.graph_.producer(weight_.id()).name; }
    double Decay() override {
      const Node& node = of_.graph_.producer(weight_.id());
      return node.attrs.Has("decay") ? node.attrs.Float("decay") : of_.decays_.at(weight_.id());
    }
    Tensor Rate(double lr) override { return of_.Rate(lr * RateFactor()); }
    Tensor Updates() override { return of_.Updates(); }
    void Assign(Tensor variable, Tensor value) override {
      if (variable.graph() != &of_.graph_)
        Fail(Who(), ": it assigns to a variable of the graph; Assign takes the weight and its states");
      const Tensor after = of_.Assign(variable, value);
      if (variable.id() == weight_.id()) after_ = after;
    }
    TouchedRows Rows() override {
      auto found = of_.touched_.find(weight_.id());
      if (found == of_.touched_.end()) return {};
      return {found->second.rows, gradient()};  // raw_ is that of the rows here
    }
    void FusedRows(const std::string& op, Tensor variable, Tensor values, Attrs numbers) override {
      std::vector<Tensor> in = {variable, Rows().rows, values};
      if (of_.finite_.defined()) in.insert(in.end(), {full(&of_.graph_, Dims{}, 1), of_.finite_});
      Finish(&numbers);
      const Tensor after = Apply(&of_.graph_, op, in, numbers)[0];
      if (variable.id() == weight_.id()) after_ = after;
    }
    void Fused(const std::string& op, const std::vector<Tensor>& state, bool counts, Attrs numbers) override {
      // With clip_value an update reads the limited gradient, which has the factor already.
      const bool limited = of_.training_.clip_value > 0;
      std::vector<Tensor> in = {weight_, limited ? gradient() : raw_};
      in.insert(in.end(), state.begin(), state.end());
      if (counts) in.push_back(Updates());
      if (limited ? of_.finite_.defined() : factor_.defined())
        in.push_back(limited ? full(&of_.graph_, Dims{}, 1) : factor_);
      if (of_.finite_.defined()) in.push_back(of_.finite_);
      Finish(&numbers);
      if (of_.training_.fed_rate) {
        in.push_back(of_.Rate(numbers.Float("lr")));
        numbers.Set("rated", int64_t{1});
      }
      after_ = Apply(&of_.graph_, op, in, numbers)[0];
    }
    // The weight after the step; undefined: the optimizer gave it no value.
    Tensor after() const { return after_; }

   private:
    // Makes the numbers this weight's and this training's.
    void Finish(Attrs* numbers) const {
      numbers->Set("lr", numbers->Float("lr") * RateFactor());
      const Schedule& schedule = of_.training_.schedule;
      if (schedule.kind != Schedule::Kind::kConstant) SetSchedule(schedule, numbers);
    }
    double RateFactor() const { return of_.graph_.producer(weight_.id()).attrs.Float("rate", 1); }
    std::string Who() { return Cat("optimizer '", of_.training_.optimizer.name, "', weight '", path(), "'"); }
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

    Updater& of_;
    Tensor weight_, raw_, factor_, gradient_, after_;
    std::map<std::string, Tensor> states_;
  };

  // The optimizer that updates a weight: of Groups that of the first pattern that matches.
  const Optimizer& OptimizerOf(int weight) const {
    const Optimizer* of = &training_.optimizer;
    while (const Optimizer* group = GroupOf(*of, weight)) of = group;
    return *of;
  }
  const Optimizer* GroupOf(const Optimizer& groups, int weight) const {
    for (size_t i = 0; i < groups.patterns.size(); ++i)
      if (MatchesGlob(groups.patterns[i], graph_.producer(weight).name)) return &groups.others[i];
    return nullptr;
  }
  void RequireUsed(const Optimizer& groups) const {
    for (size_t i = 0; i < groups.patterns.size(); ++i)
      if (std::none_of(weights_.begin(), weights_.end(),
                       [&](int w) { return GroupOf(groups, w) == &groups.others[i]; }))
        Fail("pattern \"", groups.patterns[i], "\" of Groups is left no weight to update: none that is ",
             "trained matches it, or a pattern before it takes all that do");
  }

  // A value of the user's graph, which has the same number here as long as something needs it.
  Tensor Read(const std::string& who, Tensor tensor) {
    if (tensor.graph() == &graph_) return tensor;
    if (!tensor.defined()) Fail(who, ": Read was given a Tensor that was never given a value");
    if (tensor.graph() != training_.source)
      Fail(who, ": '", tensor.name(),
           "' belongs to another graph than the loss; Read takes tensors of its graph");
    if (tensor.id() >= training_.source_values || !graph_.alive(graph_.value(tensor.id()).producer))
      Fail(who, ": it reads '", tensor.name(), "', which this session does not compute; list it in ",
           "Optimizer::reads or in TrainOptions::also");
    return {&graph_, tensor.id()};
  }

  // Nodes added from here on stand with that node.
  void At(const Node& like) {
    slice_ = like.slice;
    origin_.slice = like.placed ? &slice_ : nullptr;
    origin_.line = like.line;
  }

  // Rows that the batch touched in place of the gradient of a table, where it is made of such rows and there
  // are few of them. Each micro-batch brings its own; the list is of all.
  void FindRows(int weight, int* gradient) {
    const Node node = graph_.producer(*gradient);
    const OpDef* def = graph_.catalog().Find(node.op);
    if (!def || !def->rows || training_.fed_rate || graph_.value(weight).shape.rank() != 2) return;
    std::vector<Tensor> in;
    for (int v : node.in) in.emplace_back(&graph_, v);
    if (2 * in[0].shape().elements() > graph_.value(weight).shape[0]) return;
    At(node);
    const Graph::Origin of_updates = origin_;
    origin_.phase = node.phase;
    origin_.scope = node.name.substr(0, node.name.rfind('/') + 1);
    const auto [ids, values] = def->rows(node.attrs, in);
    origin_ = of_updates;
    At(graph_.producer(weight));
    touched_[weight] = unique_rows(ids, values);
    *gradient = touched_[weight].values.id();
  }

  // Whether anything but elementwise operators and norms reads the weight, itself or a view of it: weights of
  // products, tables and convolutions do decay, biases and what scales a norm do not.
  bool Decays(int weight) const {
    if (graph_.value(weight).shape.rank() < 2) return false;
    bool read = false;
    std::vector<int> todo = {weight};
    while (!todo.empty()) {
      const int v = todo.back();
      todo.pop_back();
      if (v >= static_cast<int>(readers_.size())) continue;
      for (int n : readers_[v]) {
        const Node& reader = graph_.node(n);
        const OpDef* def = graph_.catalog().Find(reader.op);
        if (reader.phase != Phase::kForward || !def) continue;
        read = true;
        if (reader.in.size() == 1 && reader.out.size() == 1 && def->folds.empty()) {
          todo.push_back(reader.out[0]);
        } else if (def->scalar.empty() && !IsWideOperand(*def, reader, v)) {
          return true;
        }
      }
    }
    return !read;
  }

  // Whether node `reader` takes the value as a parameter that stays fp32 beside narrow operands (of a norm).
  bool IsWideOperand(const OpDef& def, const Node& reader, int value) const {
    if (def.wide.empty()) return false;
    const BoundRule rule = BindOp(def, graph_.CallOf(reader));
    for (size_t i = 0; i < reader.in.size(); ++i)
      if (reader.in[i] == value && !def.wide.count(rule.in[i].name)) return false;
    return true;
  }

  void Update(size_t i) {
    const Node weight = graph_.producer(weights_[i]);
    At(weight);
    OfWeight update(this, weights_[i], gradients_[i]);
    origin_.of_another =
        Cat("; optimizer '", training_.optimizer.name, "' computes with what WeightUpdate ",
            "gives it: weight, gradient, states, Rate, Updates, and tensors of the graph by ", "Read");
    training_.optimizer.update(update);
    origin_.of_another.clear();
    if (!update.after().defined())
      Fail("optimizer '", training_.optimizer.name, "' assigns nothing to weight '", weight.name, "'");
    if (!keep_.defined()) return;
    Tensor average = update.State(kAverage, 0);
    Assign(average, average * keep_ + update.after() * add_);
  }

  // How much of their value averages keep in this step (Average), and how much of the weights they take.
  void CountAverages() {
    const Average& average = training_.average;
    Tensor count = AddState(&graph_, options_.name + kAverages, Dims{}, 0, FirstWeight());
    At(graph_.producer(count.id()));
    auto number = [&](double value) { return full(&graph_, Dims{}, value); };
    const auto from = static_cast<double>(average.from);
    Tensor keep = number(average.decay);
    if (average.warmup > 0) {
      Tensor t = maximum(shift(count, 1 - from), number(1));
      keep = minimum(keep, shift(neg(exp(scale(log(t), -average.warmup))), 1));
    }
    keep_ = where(less_equal(count, number(from)), number(0), keep);
    add_ = shift(neg(keep_), 1);
    Assign(count, shift(count, 1));
  }

  // Weights that are clipped together: those of each pattern, then the others, which are all without one.
  struct ClipGroup {
    std::string pattern;
    double norm = 0;  // 0: not clipped
    std::vector<int> gradients;
    Tensor factor;
  };
  void FindClipGroups() {
    for (const auto& [pattern, norm] : training_.clip_groups) groups_.push_back({pattern, norm, {}, {}});
    groups_.push_back({"", training_.clip_norm, {}, {}});
    for (size_t i = 0; i < weights_.size(); ++i) {
      size_t g = 0;
      while (g + 1 < groups_.size() && !MatchesGlob(groups_[g].pattern, graph_.producer(weights_[i]).name))
        ++g;
      groups_[g].gradients.push_back(gradients_[i]);
      group_of_[weights_[i]] = g;
    }
    for (size_t g = 0; g + 1 < groups_.size(); ++g)
      if (groups_[g].gradients.empty())
        Fail("pattern \"", groups_[g].pattern, "\" of clip_groups is left no weight: none that is trained ",
             "matches it, or a pattern before it takes all that do");
    if (groups_.back().gradients.empty()) groups_.pop_back();
  }
  Tensor FactorOf(int weight) const { return groups_[group_of_.at(weight)].factor; }

  void Stand(const Slice& where) {
    slice_ = where;
    if (origin_.slice) origin_.slice = &slice_;
  }

  // The sum of the squares of all elements, on the first slice that has one.
  Tensor SquareSum(const std::vector<int>& gradients) {
    std::map<Slice, std::vector<Tensor>> squares;
    for (int g : gradients) {
      At(graph_.producer(g));
      squares[slice_].push_back(Apply(&graph_, "square_sum", {Tensor(&graph_, g)})[0]);
    }
    std::vector<Tensor> sums;
    for (auto& [where, terms] : squares) {
      Stand(where);
      sums.push_back(terms.size() > 1 ? add_n(terms) : terms[0]);
    }
    Stand(squares.begin()->first);
    return sums.size() > 1 ? add_n(sums) : sums[0];
  }

  // From a sum of squares: the factor, the norm, and with a loss scale whether it is finite.
  std::vector<Tensor> ClipTo(double norm, Tensor squares) {
    constexpr double kAny = 1e30;  // a norm that nothing is clipped to
    const Attrs attrs = {{"max_norm", scaled_ || norm > 0 ? norm : kAny}};
    return scaled_ ? Apply(&graph_, "unscale", {squares, Tensor(&graph_, train_.in[1])}, attrs)
                   : Apply(&graph_, "clip_factor", {squares}, attrs);
  }

  // The operands that updates share: the factor on gradients of each group, and with a loss scale whether
  // they are finite.
  void MeasureNorms() {
    std::vector<Tensor> squares, of_all;
    for (ClipGroup& group : groups_) {
      squares.push_back(SquareSum(group.gradients));
      of_all = ClipTo(group.norm, squares.back());
      group.factor = of_all[0];
      if (!group.pattern.empty()) graph_.AddFetch("grad_norm/" + group.pattern, of_all[1].id());
    }
    if (groups_.size() > 1) {
      Stand(graph_
                .producer(std::min_element(squares.begin(), squares.end(),
                                           [&](Tensor a, Tensor b) {
                                             return graph_.producer(a.id()).slice <
                                                    graph_.producer(b.id()).slice;
                                           })
                              ->id())
                .slice);
      of_all = ClipTo(0, add_n(squares));
    }
    if (scaled_) finite_ = fits_fp16_ = of_all[2];
    if (training_.clip_norm > 0 || !training_.clip_groups.empty())
      graph_.AddFetch("grad_norm", of_all[1].id());
    if (Skips()) SkipOutliers(of_all[1]);
  }

  bool Skips() const { return training_.skip.above > 0 || training_.skip.times > 0; }

  // Updates are made where the norm is below its bounds, and, as in all that is fetched, "skipped" says so.
  void SkipOutliers(Tensor norm) {
    constexpr double kMost = 3e38, kKeep = 0.98, kFirst = 10;
    auto number = [&](double value) { return full(&graph_, Dims{}, value); };
    Tensor most = number(training_.skip.above > 0 ? training_.skip.above : kMost);
    if (training_.skip.times > 0) {
      const Node like = graph_.producer(norm.id());
      Tensor average = AddState(&graph_, options_.name + ":norm_average", Dims{}, 0, like);
      // The average began at 0: divided by 1 - keep^count it is that of the steps there were.
      Tensor weight = shift(neg(exp(scale(Updates(), std::log(kKeep)))), 1);
      Tensor bound = scale(average / maximum(weight, number(1 - kKeep)), training_.skip.times);
      most = where(less(Updates(), number(kFirst)), most, minimum(most, bound));
      counted_ = {average, scale(average, kKeep) + scale(norm, 1 - kKeep)};
    }
    finite_ = less_equal(norm, most);  // of a norm that is no number: false
    graph_.AddFetch("skipped", where(finite_, number(0), number(1)).id());
  }

  // The factor that the session feeds, one for the whole training.
  Tensor FedFactor() {
    if (fed_.defined()) return fed_;
    Node node;
    node.op = "input";
    node.name = options_.name + ":lr_factor";
    node.line = origin_.line;
    const std::string name = node.name;
    const int id = graph_.AddRaw(std::move(node), {{name, DType::kFloat32, Dims{}}});
    fed_ = Tensor(&graph_, graph_.node(id).out[0]);
    return fed_;
  }

  Tensor Rate(double lr) {
    Tensor& rate = rates_[{slice_, lr}];
    if (!rate.defined()) {
      Attrs attrs = {{"lr", lr}};
      if (training_.schedule.kind != Schedule::Kind::kConstant) SetSchedule(training_.schedule, &attrs);
      rate = training_.fed_rate ? scale(FedFactor(), lr) : Apply(&graph_, "learning_rate", {}, attrs)[0];
    }
    return rate;
  }

  // On the first stage that has one: what the whole training has one number of is there.
  Node FirstWeight() const {
    return graph_.producer(*std::min_element(weights_.begin(), weights_.end(), [&](int a, int b) {
      return graph_.producer(a).slice < graph_.producer(b).slice;
    }));
  }

  // One number for the whole training.
  Tensor Updates() {
    if (!updates_.defined())
      updates_ = AddState(&graph_, options_.name + ":updates", Dims{}, 0, FirstWeight());
    return updates_;
  }

  Tensor Assign(Tensor variable, Tensor value) {
    return assign(variable, finite_.defined() ? where(finite_, value, variable) : value);
  }

  Graph& graph_;
  const CompileOptions& options_;
  const Training& training_;
  const Node train_;
  const bool scaled_;
  Graph::Origin origin_;
  Slice slice_;
  const std::vector<std::vector<int>> readers_;  // of the values there are before updates
  std::vector<int> weights_, gradients_;
  std::map<int, TouchedRows> touched_;  // by weight, of tables; their gradient is that of the values
  std::map<int, double> decays_;        // by weight, WeightUpdate::Decay where no option says it
  std::vector<ClipGroup> groups_;
  std::map<int, size_t> group_of_;  // by weight
  Tensor updates_, fed_, keep_, add_;
  Tensor finite_, fits_fp16_;          // whether updates are made; whether no gradient overflowed
  std::pair<Tensor, Tensor> counted_;  // a state of the training, and what it is where the step counts
  std::map<std::pair<Slice, double>, Tensor> rates_;
};

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

// Puts new values in the place of the nodes that Updated made. False: there are none.
bool ResolveUpdated(Graph* graph, const std::map<int, int>& values) {
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
    if (!options.training) Fail(graph->DescribeForUser(train), ": the options say nothing of training");
    Updater(graph, options, train).Run();
  }
  const bool resolved = ResolveUpdated(graph, NewValues(*graph));
  if (train >= 0 || resolved) Tidy(graph);
}

}  // namespace oneflow_like
