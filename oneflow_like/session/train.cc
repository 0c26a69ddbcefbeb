// Train and Evaluate: from what the user asks for to a compiled session, with weights cut and blocks dealt as
// the options say.
#include <glog/logging.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actor/net/talk/job.h"
#include "compiler/graph/training.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/session/agreement_text.h"
#include "oneflow_like/session/auto_cuts.h"
#include "oneflow_like/session/budget.h"
#include "oneflow_like/session/observer.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/trained_weights.h"
#include "ops/language/numbers.h"

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

void CheckRoles(const ModelImpl& model, const Graph& graph, const std::string& who, const Parallel& roles) {
  std::map<std::string, std::string> role_of;  // by axis
  auto check = [&](const std::string& role, const std::string& name) {
    if (name.empty()) return;
    const std::string what = Cat(who, ": parallel.", role);
    const int axis = model.mesh.AxisOrFail(name, what);
    if (auto [other, fresh] = role_of.emplace(name, role); !fresh)
      Fail(what, " is mesh axis ", name, ", which parallel.", other->second, " is too; an axis has one role");
    bool cut = false;
    for (int n = 0; n < graph.num_nodes(); ++n) {
      const Node& node = graph.node(n);
      if (!graph.alive(n)) continue;
      if (node.slice.fixed[axis] != Slice::kFree)
        Fail(what, " is mesh axis ", name, ", along which ", graph.Describe(n), " is on one pipeline stage");
      auto fixed = node.fixed.find(1 + axis);
      cut = cut || (node.kind == NodeKind::kInput && fixed != node.fixed.end() && fixed->second.is_split());
    }
    if (role == "context" && !cut)
      Fail(what, " is mesh axis ", name, ", but no input is cut along it; annotate the sequence axis of ",
           "inputs, as {{\"", name, "\", S(1)}}");
  };
  check("batch", roles.batch.value_or(""));
  check("tensor", roles.tensor);
  check("context", roles.context);
}

void CheckSessionOptions(const ModelImpl& model, const Graph& graph, const std::string& who,
                         const SessionOptions& options) {
  CheckRange(Cat(who, ": micro_batches"), options.micro_batches, 1, kMostMicroBatches);
  CheckRange(Cat(who, ": steps_in_flight"), options.steps_in_flight, 1, kMostStepsInFlight);
  CheckRoles(model, graph, who, options.parallel);
  if (model.options.check_nan && options.dtype == DType::kFloat16)
    Fail(who,
         ": gradients in fp16 overflow by design and steps that do are skipped, so check_nan would stop "
         "at the first; use bf16 or fp32 to look for what is not finite");
  CheckRange(Cat(who, ": overlap.chunks"), options.overlap.chunks, 1, kMostChunks);
  if (!(options.overlap.gain >= 0 && options.overlap.gain < 1))
    Fail(who, ": overlap.gain is ", options.overlap.gain, " but must lie in [0, 1)");
  NeedType(who, options.dtype);
  NeedEnum(who, "schedule", options.schedule, PipelineSchedule::kZeroBubble, "PipelineSchedule");
  if (!IsFloating(options.dtype)) Fail(who, ": dtype is ", Name(options.dtype), ", must be f32, bf16 or f16");
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const Node& node = graph.node(n);
    auto batch = node.fixed.find(0);
    if (node.kind != NodeKind::kInput || batch == node.fixed.end()) continue;
    int64_t extent = graph.value(node.out[0]).shape[batch->second.axis];
    if (options.micro_batches > std::max<int64_t>(1, extent))
      Fail(who, ": micro_batches is ", options.micro_batches, " but input '", node.name, "' has a batch of ",
           extent);
  }
}

// The outermost level of links as the user says; with a job it is between hosts.
void SetLink(const ModelImpl& model, Topology* topology) {
  const double bandwidth = model.options.link.bandwidth;
  if (bandwidth <= 0) return;
  if (const std::shared_ptr<Job>& job = model.options.job) {
    const std::vector<PeerInfo>& peers = job->peers();
    const auto here = std::count_if(peers.begin(), peers.end(),
                                    [&](const PeerInfo& peer) { return peer.host_key == peers[0].host_key; });
    if (here == std::ssize(peers)) return;  // one host has all
    const int devices = model.mesh.size() / job->processes() * static_cast<int>(here);
    if (topology->links.size() == 1) topology->links.push_back(topology->links[0]);
    topology->links[0].devices = devices;
  }
  topology->links.back().bandwidth = bandwidth;
}

// CompileOptions::nodes: the processes of the job, or without one what the described devices are.
std::vector<int> NodesOf(const ModelImpl& model) {
  const int world = model.mesh.size();
  std::vector<int> nodes(world, 0);
  if (const std::shared_ptr<Job>& job = model.options.job) {
    const std::vector<int> node_of_process = NodeOfProcess(job.get());
    const int ranks = world / job->processes();
    for (int rank = 0; rank < world; ++rank) nodes[rank] = node_of_process[rank / ranks] * ranks;
  } else if (const int devices = model.devices_of_node; devices > 0) {
    for (int rank = 0; rank < world; ++rank) nodes[rank] = rank / devices * devices;
  }
  const bool one = std::count(nodes.begin(), nodes.end(), nodes[0]) == world;
  return one ? std::vector<int>() : nodes;
}

// Parallel::batch of a session of this graph, as a mesh axis; -1: none.
int BatchAxis(const Graph& graph, const SessionOptions& options) {
  const Mesh& mesh = graph.mesh();
  const Parallel& roles = options.parallel;
  if (roles.batch) return mesh.FindAxis(*roles.batch);
  std::set<int> cut, others = {mesh.FindAxis(roles.tensor), mesh.FindAxis(roles.context)};
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const Node& node = graph.node(n);
    if (!graph.alive(n)) continue;
    const auto batch = node.fixed.find(0);
    for (int a = 0; a < mesh.rank(); ++a) {
      if (node.slice.fixed[a] != Slice::kFree) others.insert(a);
      const auto said = node.fixed.find(1 + a);
      if (node.kind == NodeKind::kInput && batch != node.fixed.end() && said != node.fixed.end() &&
          said->second.is_split() && said->second.axis == batch->second.axis && mesh.axis_size(a) > 1) {
        // Where the shares are not equal, work that is cut otherwise may be.
        const int64_t samples = graph.value(node.out[0]).shape[batch->second.axis];
        const int64_t shares = int64_t{options.micro_batches} * mesh.axis_size(a);
        (samples % shares == 0 ? cut : others).insert(a);
      }
    }
  }
  for (int a : others) cut.erase(a);
  return cut.size() == 1 ? *cut.begin() : -1;
}

CompileOptions ToCompileOptions(const ModelImpl& model, const Graph& graph, const SessionOptions& options) {
  CompileOptions c;
  c.name = options.name;
  c.times = options.micro_batches;
  c.schedule = options.schedule;
  c.exact_groups = options.exact_groups;
  c.seed = model.options.seed;
  c.dtype = options.dtype;
  c.machine = model.machine;
  SetLink(model, &c.machine.topology);
  c.nodes = NodesOf(model);
  c.algorithms = model.algorithms;
  c.overlap = options.overlap;
  c.roles = {BatchAxis(graph, options), model.mesh.FindAxis(options.parallel.tensor),
             model.mesh.FindAxis(options.parallel.context)};
  c.zero_axis = model.zero_axis;
  c.zero_stage = model.options.zero.stage;
  c.zero_prefetch = model.options.zero.prefetch;
  c.zero_small = model.options.zero.small;
  c.bucket_bytes = model.options.zero.bucket_bytes;
  c.fuse = !model.options.check_nan;
  c.kernels = &model.registry;
  c.kernel_threads = model.kernel_threads;
  return c;
}

// Sessions of one name share their step number, which must mean one thing.
void CheckStepsOf(const std::string& who, const ModelImpl& model, const std::string& session,
                  SessionSteps::Of of) {
  auto steps = model.steps.find(session);
  if (steps == model.steps.end() || steps->second.of == SessionSteps::Of::kNone || steps->second.of == of)
    return;
  const bool training = of == SessionSteps::Of::kTraining;
  Fail(who, ": session ", session, " is ", training ? "a training" : "an evaluation",
       " but an earlier one of that ", "name is ", training ? "an evaluation" : "a training",
       ", and both would count its steps; give it another ", "name");
}

// The session that `finish` gives. While it is over the budget, blocks move off stages that are; where none
// can, the first refusal stands, and the blocks where they were at first. Refusals that name the least there
// can be do not depend on the budget, so the divisions that are tried do not, either: the one that names
// least then stands, and a budget of so many bytes is enough.
Session FitBudget(GraphOfModel* source, const std::function<Session()>& finish) {
  std::optional<OverBudget> refusal;
  MoveBlocksBack(source);
  while (true) {
    try {
      return finish();
    } catch (const OverBudget& over) {
      if (!refusal || (over.least && over.bytes < refusal->bytes)) refusal = over;
      if (MoveBlocksOff(source, over.ranks)) continue;
    }
    MoveBlocksBack(source);
    throw *refusal;
  }
}

// A session of the graph's nodes that the fetches and `roots` need. `who` is the user's Train or Evaluate:
// what cannot be compiled is reported with both lines, the call's and the node's.
Session Finish(const std::string& who, ModelImpl* model, Graph graph, const SessionOptions& options,
               const std::map<std::string, int>& fetched, std::vector<int> roots,
               const std::optional<Training>& training, const std::string& finite,
               bool recompute_all = false) {
  RequirePatternsMatched(who, *model);
  const SessionSteps::Of of = training ? SessionSteps::Of::kTraining : SessionSteps::Of::kEvaluation;
  CheckStepsOf(who, *model, options.name, of);
  for (const auto& [name, value] : fetched) roots.push_back(graph.AddFetch(name, value));
  for (const Tensor& tensor : options.also) roots.push_back(graph.value(tensor.id()).producer);
  graph.KeepOnly(roots);
  CheckSessionOptions(*model, graph, who, options);
  std::string input_graph;
  std::vector<ModelVariable> state;
  WholeFn whole = [&](const Graph& g) {
    state = NewState(Cat("session ", options.name), *model, g);
    if (model->options.job) input_graph = GraphLines(g);
  };
  CompileOptions compile = ToCompileOptions(*model, graph, options);
  compile.training = training;
  SetBudget(who, *model, graph, &compile);
  compile.recompute_all = recompute_all;
  std::unique_ptr<Session::Impl> impl;
  try {
    Compiled compiled = Compile(std::move(graph), compile, Dumper(*model, options.name), whole);
    impl.reset(new Session::Impl{model->shared_from_this(),
                                 std::move(compiled),
                                 options,
                                 {},
                                 {},
                                 finite,
                                 std::move(input_graph),
                                 nullptr});
  } catch (const WriteError& error) {
    throw WriteError(Cat(who, ": ", error.what()));
  } catch (const Error& error) {
    Fail(who, ": ", error.what());
  }
  impl->trains = of == SessionSteps::Of::kTraining;
  for (int n : impl->compiled.graph.Order()) {
    const Node& node = impl->compiled.graph.node(n);
    if (node.kind == NodeKind::kInput) impl->inputs[node.name] = node.out[0];
    if (node.kind == NodeKind::kFetch) impl->outputs.insert(node.name);
  }
  Session session(std::move(impl));
  if (model->options.compiled) *model->options.compiled = true;
  CheckBudget(who, session);
  if (model->report && (!model->options.job || model->options.job->process() == 0))
    model->report->AddCompiled(*session.impl());
  VLOG(1) << "session " << options.name << " is compiled: " << session.impl()->compiled.graph.Order().size()
          << " nodes on " << model->mesh.str();
  for (ModelVariable& variable : state) model->variables.emplace(variable.node.name, std::move(variable));
  model->steps[options.name].of = of;
  return session;
}

// The graph of Finish as far as the compiler brings it before it chooses signatures.
Graph PlacedGraph(const std::string& who, const ModelImpl& model, Graph graph, const SessionOptions& options,
                  const std::map<std::string, int>& fetched, std::vector<int> roots,
                  const CompileOptions& compile) {
  RequirePatternsMatched(who, model);
  for (const auto& [name, value] : fetched) roots.push_back(graph.AddFetch(name, value));
  for (const Tensor& tensor : options.also) roots.push_back(graph.value(tensor.id()).producer);
  graph.KeepOnly(roots);
  CheckSessionOptions(model, graph, who, options);
  graph.set_times(options.micro_batches);
  try {
    for (const Pass& pass : Passes()) {
      pass.run(&graph, compile);
      if (pass.leaves == Level::kPlaced) break;
    }
  } catch (const Error& error) {
    Fail(who, ": ", error.what());
  }
  return graph;
}

[[noreturn]] void FailTaken(const std::string& who, const std::string& name) {
  Fail(who, ": the session gives an output '", name, "' of its own; name yours otherwise");
}

void AddOutputs(const GraphOfModel* graph, const std::string& who, const SessionOptions& options,
                const std::map<std::string, Tensor>& outputs, std::map<std::string, int>* fetched) {
  for (const auto& [name, tensor] : outputs) {
    const GraphOfModel* of = GraphOf(tensor, Cat(who, ": output '", name, "'"));
    if (of != graph)
      Fail(who, ": output '", name, "' belongs to another ", of->model == graph->model ? "graph" : "model");
    if (!fetched->emplace(name, tensor.id()).second) FailTaken(who, name);
  }
  for (const Tensor& tensor : options.also)
    if (GraphOf(tensor, Cat(who, ": SessionOptions::also")) != graph)
      Fail(who, ": '", tensor.name(), "' of SessionOptions::also belongs to another graph");
}

// Adds what an optimizer reads to what the session computes.
void AddReads(const GraphOfModel* graph, const std::string& who, const Optimizer& optimizer,
              SessionOptions* options) {
  for (const Tensor& tensor : optimizer.reads) {
    if (GraphOf(tensor, Cat(who, ": Optimizer::reads")) != graph)
      Fail(who, ": '", tensor.name(), "' of Optimizer::reads belongs to another graph");
    options->also.push_back(tensor);
  }
  for (const Optimizer& other : optimizer.others) AddReads(graph, who, other, options);
}

// The values that a session computes: its outputs and SessionOptions::also.
std::map<std::string, int> Roots(std::map<std::string, int> fetched, const SessionOptions& options) {
  for (size_t i = 0; i < options.also.size(); ++i) fetched[Cat("also ", i)] = options.also[i].id();
  return fetched;
}

// The part of a graph that values are computed from.
Graph Needed(Graph graph, const std::map<std::string, int>& values) {
  std::vector<int> roots;
  for (const auto& [name, value] : values) roots.push_back(graph.value(value).producer);
  graph.KeepOnly(roots);
  return graph;
}

// Whether what a layer keeps or shows belongs to a training that computes the nodes `trained`: it shares an
// operator with them and needs no other input.
bool BelongsTo(const GraphOfModel& graph, const std::set<int>& trained, Tensor tensor) {
  bool shared = false;
  for (int n : Ancestors(graph, {tensor.id()})) {
    const bool there = trained.count(n) != 0;
    if (!there && graph.node(n).kind == NodeKind::kInput) return false;
    shared = shared || (there && graph.node(n).kind == NodeKind::kOperator);
  }
  return shared;
}

// Adds what layers show to the outputs, and what they keep to what is computed.
void AddOfLayers(const GraphOfModel& graph, std::map<std::string, int>* fetched, SessionOptions* options) {
  std::vector<int> values;
  for (const auto& [name, value] : Roots(*fetched, *options)) values.push_back(value);
  const std::set<int> trained = Ancestors(graph, values);
  for (const Tensor& tensor : graph.in_training)
    if (BelongsTo(graph, trained, tensor)) options->also.push_back(tensor);
  for (const auto& [name, tensor] : graph.shown)
    if (BelongsTo(graph, trained, tensor)) fetched->emplace(name, tensor.id());
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

Session Train(Tensor loss, const Optimizer& optimizer, const TrainOptions& user_options, Here at) {
  TrainOptions options = user_options;
  if (options.name.empty()) options.name = "train";
  std::string who = Cat("Train at ", SourceLine(at).str());
  GraphOfModel* source = GraphOf(loss, who);
  CheckOptimizer(who, optimizer, options.lr_schedule);
  NeedEnum(who, "recompute", options.recompute, Recompute::kAuto, "Recompute");
  for (double* bound : {&options.clip_norm, &options.clip_value, &options.skip.above, &options.skip.times})
    if (*bound == INFINITY) *bound = FLT_MAX;  // norms are fp32: what none exceeds
  NeedNumber(who, "clip_norm", options.clip_norm, Domain::kDivisor);
  NeedNumber(who, "clip_value", options.clip_value, Domain::kDivisor);
  for (auto& [pattern, norm] : options.clip_groups) {
    if (norm == INFINITY) norm = FLT_MAX;
    NeedNumber(who, Cat("clip_groups of \"", pattern, "\""), norm, Domain::kPositive);
  }
  NeedNumber(who, "skip.above", options.skip.above, Domain::kDivisor);
  NeedNumber(who, "skip.times", options.skip.times, Domain::kDivisor);
  CheckAverage(who, options.average);
  CheckSameTraining(who, *source->model, options);
  if (options.lr_function && options.lr_schedule != Schedule{})
    Fail(who, ": both lr_schedule and lr_function are given; leave one out");
  std::map<std::string, int> fetched{{"loss", loss.id()}};
  AddOutputs(source, who, options, options.outputs, &fetched);
  const bool skips = options.skip.above > 0 || options.skip.times > 0;
  std::set<std::string> norms;  // that add_updates gives
  if (options.clip_norm > 0 || !options.clip_groups.empty()) norms.insert("grad_norm");
  for (const auto& [pattern, norm] : options.clip_groups)
    if (!norms.insert("grad_norm/" + pattern).second)
      Fail(who, ": clip_groups has pattern \"", pattern, "\" twice");
  for (const std::string& norm : norms)
    if (fetched.count(norm)) FailTaken(who, norm);
  if (skips && fetched.count("skipped")) FailTaken(who, "skipped");
  AddReads(source, who, optimizer, &options);
  AddOfLayers(*source, &fetched, &options);
  Training training{optimizer,         options.lr_schedule,
                    options.clip_norm, options.skip,
                    options.recompute, static_cast<bool>(options.lr_function),
                    options.average,   source};
  training.clip_value = options.clip_value;
  training.clip_groups = options.clip_groups;
  bool large = false;  // so that searches begin with less
  const auto begin = [&](Training* of) {
    Graph graph = SessionGraph(source, Roots(fetched, options));
    of->source_values = graph.num_values();
    TrainOnly(who, options.weights, loss.id(), &graph);
    return graph;
  };
  const auto finish = [&](SearchDepth depth) {
    Graph graph = begin(&training);
    const int train = graph.AddTrain(loss.id(), SourceLine(at));
    const bool scalar = graph.value(loss.id()).dtype == DType::kFloat32;
    return Finish(who, source->model, std::move(graph), options, fetched, {train}, training,
                  options.check_finite && scalar ? "loss" : "", large && depth == SearchDepth::kFirstLook);
  };
  CompileOptions compile =
      ToCompileOptions(*source->model, Needed(*source, Roots(fetched, options)), options);
  compile.training = training;
  const auto placed = [&] {
    Graph graph = begin(&*compile.training);
    const int train = graph.AddTrain(loss.id(), SourceLine(at));
    return PlacedGraph(who, *source->model, std::move(graph), options, fetched, {train}, compile);
  };
  CompileOptions within = compile;
  SetBudget(who, *source->model, *source, &within);
  if (within.memory_budget > 0 || source->model->options.memory_budget > 0) {
    const Graph graph = placed();
    const bool both = options.recompute == Recompute::kAuto &&
                      source->model->options.auto_cuts != AutoCuts::kNone && !source->model->cuts_chosen;
    large = both || IsLarge(graph);
    if (large) CheckVariables(who, source->model, graph, within);
  }
  Session session = WithCutsChosen(source->model, compile, placed, [&](SearchDepth depth) {
    if (large && depth == SearchDepth::kFirstLook) return finish(depth);  // blocks stay on their stages
    return FitBudget(source, [&] { return finish(depth); });
  });
  session.impl()->lr_function = options.lr_function;
  session.impl()->lr_schedule = options.lr_schedule;
  SessionSteps& steps = source->model->steps.at(options.name);
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

Session Evaluate(const std::map<std::string, Tensor>& outputs, const EvaluateOptions& user_options, Here at) {
  EvaluateOptions options = user_options;
  if (options.name.empty()) options.name = "eval";
  std::string who = Cat("Evaluate at ", SourceLine(at).str());
  if (outputs.empty() && options.also.empty()) Fail(who, ": no outputs are asked for");
  GraphOfModel* source =
      outputs.empty() ? GraphOf(options.also[0], Cat(who, ": SessionOptions::also"))
                      : GraphOf(outputs.begin()->second, Cat(who, ": output '", outputs.begin()->first, "'"));
  std::map<std::string, int> fetched;
  AddOutputs(source, who, options, outputs, &fetched);
  const auto begin = [&] {
    Graph graph = SessionGraph(source, Roots(fetched, options));
    ReadAverages(who, *source->model, options.weights, &graph);
    return graph;
  };
  const auto finish = [&] { return Finish(who, source->model, begin(), options, fetched, {}, {}, ""); };
  const CompileOptions compile =
      ToCompileOptions(*source->model, Needed(*source, Roots(fetched, options)), options);
  const auto placed = [&] {
    return PlacedGraph(who, *source->model, begin(), options, fetched, {}, compile);
  };
  Session session =
      WithCutsChosen(source->model, compile, placed, [&](SearchDepth) { return FitBudget(source, finish); });
  session.impl()->reads_averages = !options.weights.empty();
  return session;
}

}  // namespace oneflow_like
