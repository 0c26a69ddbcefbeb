// Train and Evaluate: what is asked for is decided, written to the model and compiled.
#include <glog/logging.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actor/net/talk/job.h"
#include "compiler/search/wait_prices.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/session/agreement_text.h"
#include "oneflow_like/session/decide.h"
#include "oneflow_like/session/observer.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

namespace {

DumpFn Dumper(const ModelImpl& model, const std::string& session) {
  if (model.options.dump_dir.empty()) return {};
  std::string folder = model.options.dump_dir + "/" + session;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("dump folder ", folder, " cannot be made: ", error.message());
  if (model.options.job && model.options.job->process() != 0) return {};  // the same there
  return [folder](int number, const std::string& pass, const std::string& text) {
    std::string file = Cat(folder, "/", number < 10 ? "0" : "", number, "_", pass, ".txt");
    WriteDump(file, text);
  };
}

// Sessions of one name share their step number, which must mean one thing.
void CheckStepsOf(const Asked& asked) {
  const ModelImpl& model = asked.model();
  const std::string& session = asked.options.name;
  const SessionSteps::Of of = asked.training ? SessionSteps::Of::kTraining : SessionSteps::Of::kEvaluation;
  auto steps = model.steps.find(session);
  if (steps == model.steps.end() || steps->second.of == SessionSteps::Of::kNone || steps->second.of == of)
    return;
  const bool training = asked.training.has_value();
  Fail(asked.who, ": session ", session, " is ", training ? "a training" : "an evaluation",
       " but an earlier one of that ", "name is ", training ? "an evaluation" : "a training",
       ", and both would count its steps; give it another ", "name");
}

// Writes decisions to the model; unless they are kept, they are taken back.
class ModelChange {
 public:
  ModelChange(const Asked& asked, const Decided& decided) : model_(asked.model()), stages_(model_.stages) {
    for (const auto& [name, variable] : model_.variables) before_[name] = PlaceOf(variable);
    Settle(asked.source, decided.decisions.stages);
    for (const auto& [name, cut] : decided.decisions.cuts) {
      const auto known = model_.variables.find(name);
      if (known == model_.variables.end()) continue;
      known->second.node.fixed.insert(cut.fixed.begin(), cut.fixed.end());
      known->second.node.stored.insert(cut.stored.begin(), cut.stored.end());
    }
  }
  ~ModelChange() {
    if (kept_) return;
    model_.stages = stages_;
    for (auto& [name, place] : before_) {
      ModelVariable& variable = model_.variables.at(name);
      variable.node.fixed = place.fixed;
      variable.node.stored = place.stored;
      variable.node.slice = place.slice;
      variable.node.placed = place.placed;
      variable.settled = place.settled;
    }
  }
  ModelChange(const ModelChange&) = delete;
  void Keep() { kept_ = true; }

 private:
  struct Place {
    FixedSbp fixed;
    std::set<int> stored;
    Slice slice;
    bool placed = false, settled = false;
  };
  static Place PlaceOf(const ModelVariable& v) {
    return {v.node.fixed, v.node.stored, v.node.slice, v.node.placed, v.settled};
  }

  ModelImpl& model_;
  const StageCuts stages_;
  std::map<std::string, Place> before_;
  bool kept_ = false;
};

// What is asked of the plan in which steps run again for which experts had no room: regions are computed
// again, so that it hardly needs more memory.
Asked AskedWithMoreRoom(const Asked& asked) {
  Asked more = asked;
  more.training->has_more_room = true;
  return more;
}
Decisions ComputedAgain(Decisions decisions) {
  decisions.recompute = Recompute::kFull;
  decisions.overlap = Overlap();
  for (auto& [region, how] : decisions.waits) how = Recompute::kFull;
  return decisions;
}

// What both plans take their signatures from: results are then those of a training with more room throughout.
// Where something was searched for within a budget, now or for a plan that was saved, that was by the
// signatures of the first plan.
std::shared_ptr<const Graph> SignedForRetries(const Asked& asked, const Budget& budget,
                                              const Decisions& decisions) {
  const bool searched =
      budget.bytes > 0 || budget.cuts || !decisions.waits.empty() || !decisions.cuts.empty();
  const Asked from = searched ? asked : AskedWithMoreRoom(asked);
  Graph graph = GraphOf(from, decisions);
  const CompileOptions options = CompileOptionsOf(from, decisions, graph);
  return std::make_shared<const Graph>(RunPasses("", "choose_signatures", std::move(graph), options));
}

// What was asked, as it was decided. What cannot be compiled is reported with both lines, the call's and the
// node's.
std::unique_ptr<Session::Impl> CompileSession(const Asked& asked, const Budget& budget,
                                              const Decisions& decisions, std::vector<ModelVariable>* state) {
  ModelImpl& model = asked.model();
  Graph graph = GraphOf(asked, decisions);
  CompileOptions options = CompileOptionsOf(asked, decisions, graph);
  std::string input_graph;
  const WholeFn whole = [&](const Graph& g) {
    *state = NewState(Cat("session ", asked.options.name), model, g);
    if (model.options.job) input_graph = GraphLines(g);
  };
  try {
    const bool retries = asked.training && !asked.training->no_room.empty();
    if (retries) options.asked.signed_as = SignedForRetries(asked, budget, decisions);
    std::unique_ptr<Session::Impl> impl(new Session::Impl{
        model.shared_from_this(),
        Compile(std::move(graph), options, Dumper(model, asked.options.name), whole), asked.options});
    impl->input_graph = std::move(input_graph);
    if (retries) {
      const Asked more = AskedWithMoreRoom(asked);
      const Decisions again = ComputedAgain(decisions);
      Graph larger = GraphOf(more, again);
      CompileOptions same = CompileOptionsOf(more, again, larger);
      same.asked.signed_as = options.asked.signed_as;
      impl->retries = std::make_shared<Retries>(Compile(std::move(larger), same), asked.options.name);
    }
    return impl;
  } catch (const WriteError& error) {
    throw WriteError(Cat(asked.who, ": ", error.what()));
  } catch (const Error& error) {
    Fail(asked.who, ": ", error.what());
  }
}

// The session, once it is decided and compiled, and what it changes of the model.
Session SessionOf(const Asked& asked) {
  ModelImpl& model = asked.model();
  const std::string& name = asked.options.name;
  RequirePatternsMatched(asked.who, model);
  CheckStepsOf(asked);
  const Budget budget = BudgetOf(asked, *asked.source);
  const Decided decided = Decide(asked, budget);
  ModelChange change(asked, decided);
  std::vector<ModelVariable> state;
  std::unique_ptr<Session::Impl> impl = CompileSession(asked, budget, decided.decisions, &state);
  impl->trains = asked.training.has_value();
  impl->next_waits = decided.next_waits;
  if (impl->trains) {
    impl->wait_prices = [asked, decisions = decided.decisions, &options = impl->compiled.options,
                         known = std::optional<std::vector<WaitPrice>>()]() mutable {
      if (!known)
        known = PricesOfWaits(RunPasses("", kBeforeWaits, GraphOf(asked, decisions), options), options);
      return *known;
    };
    impl->all_kept = [asked, decisions = decided.decisions, &options = impl->compiled.options] {
      return SecondsOfAllKept(RunPasses("", kBeforeWaits, GraphOf(asked, decisions), options), options);
    };
  }
  // What is said of a plan is all of it; nothing moves these blocks.
  impl->compiled.options.decided.stages.merge(DivisionOfOptions(*asked.source));
  if (asked.check_finite) impl->finite = "loss";
  for (int n : impl->compiled.graph.Order()) {
    const Node& node = impl->compiled.graph.node(n);
    if (node.kind == NodeKind::kInput) impl->inputs[node.name] = node.out[0];
    if (node.kind != NodeKind::kFetch) continue;
    impl->outputs.insert(node.name);
    const Value& value = impl->compiled.graph.value(node.in[0]);
    if (asked.source->shown.count(node.name) > 0 && value.shape.elements() == 1 &&
        value.dtype == DType::kFloat32)
      impl->shown->Follow(node.name);
  }
  Session session(std::move(impl));
  if (model.options.compiled) *model.options.compiled = true;
  CheckBudget(asked, budget, decided.tried, session);
  change.Keep();
  if (budget.cuts) {
    model.cuts_chosen = true;
    model.cuts_text = decided.cuts_text;
    model.cut_reasons = decided.cut_reasons;
  }
  if (model.report && (!model.options.job || model.options.job->process() == 0))
    model.report->AddCompiled(*session.impl());
  VLOG(1) << "session " << name << " is compiled: " << session.impl()->compiled.graph.Order().size()
          << " nodes on " << model.mesh.str();
  for (ModelVariable& variable : state) model.variables.emplace(variable.node.name, std::move(variable));
  const Graph& graph = session.impl()->compiled.graph;
  for (int n : graph.Order())
    if (const Node& node = graph.node(n); node.kind == NodeKind::kVariable && graph.OnHost(node.out[0]))
      if (const auto found = model.variables.find(node.name); found != model.variables.end())
        found->second.on_host = true;  // else it is of the plan alone
  model.steps[name].of = asked.training ? SessionSteps::Of::kTraining : SessionSteps::Of::kEvaluation;
  return session;
}

}  // namespace

Tensor Updated(Tensor variable, Here at) {
  const std::string who = Cat("Updated at ", SourceLine(at).str());
  Graph& graph = *GraphOf(variable, who);
  const Node from = graph.producer(variable.id());
  if (from.kind != NodeKind::kVariable)
    Fail(who, ": '", variable.name(),
         "' is not a variable, only what Scope::Weight and Scope::State give is one");
  Node node;
  node.op = "updated";
  node.name = graph.UniqueName("updated/" + from.name);
  node.in = {variable.id()};
  node.line = SourceLine(at);
  node.slice = from.slice;
  node.placed = from.placed;
  node.phase = Phase::kUpdate;
  const std::string name = node.name;
  int id = graph.AddRaw(std::move(node), {{name, variable.dtype(), variable.shape()}});
  return Tensor(&graph, graph.node(id).out[0]);
}

Session Train(Tensor loss, const Optimizer& optimizer, const TrainOptions& options, Here at) {
  const Asked asked = AskedOf(loss, optimizer, options, SourceLine(at));
  Session session = SessionOf(asked);
  session.impl()->lr_function = options.lr_function;
  session.impl()->lr_schedule = options.lr_schedule;
  SessionSteps& steps = asked.model().steps.at(asked.options.name);
  steps.weights = options.weights;
  steps.averages = options.average.decay > 0;
  if (optimizer.numbers.Has("lr")) session.impl()->lr = optimizer.numbers.Float("lr");
  return session;
}

Session Evaluate(const std::map<std::string, Tensor>& outputs, const SessionOptions& options, Here at) {
  EvaluateOptions all;
  static_cast<SessionOptions&>(all) = options;
  return Evaluate(outputs, all, at);
}

Session Evaluate(const std::map<std::string, Tensor>& outputs, const EvaluateOptions& options, Here at) {
  Session session = SessionOf(AskedOf(outputs, options, SourceLine(at)));
  session.impl()->reads_averages = !options.weights.empty();
  return session;
}

}  // namespace oneflow_like
