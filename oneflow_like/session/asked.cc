// Checks of Train and Evaluate, and the graph that they compile.
#include "oneflow_like/session/asked.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>
#include <set>

#include "actor/net/talk/job.h"
#include "compiler/graph/more_room.h"
#include "compiler/graph/training.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/session/logit_tiles.h"
#include "oneflow_like/session/trained_weights.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

namespace {

void CheckRoles(const ModelImpl& model, const Graph& graph, const std::string& who, const Parallel& roles) {
  std::map<int, std::string> role_of;  // by axis
  auto check = [&](const std::string& role, const std::string& name) {
    if (name.empty()) return;
    const std::string what = Cat(who, ": parallel.", role);
    for (int axis : model.mesh.AxesOrFail(name, what)) {
      const std::string& axis_name = model.mesh.axis_name(axis);
      if (auto [other, fresh] = role_of.emplace(axis, role); !fresh)
        Fail(what, " is mesh axis ", axis_name, ", which parallel.", other->second,
             " is too; an axis has one role");
      bool cut = false;
      for (int n = 0; n < graph.num_nodes(); ++n) {
        const Node& node = graph.node(n);
        if (!graph.alive(n)) continue;
        if (node.slice.fixed[axis] != Slice::kFree)
          Fail(what, " is mesh axis ", axis_name, ", along which ", graph.Describe(n),
               " is on one pipeline stage");
        auto fixed = node.fixed.find(1 + axis);
        cut = cut || (node.kind == NodeKind::kInput && fixed != node.fixed.end() && fixed->second.is_split());
      }
      if (role == "context" && !cut)
        Fail(what, " is mesh axis ", axis_name,
             ", but no input is cut along it; annotate the sequence axis of ", "inputs, as {{\"", axis_name,
             "\", S(1)}}");
    }
  };
  check("batch", roles.batch.value_or(""));
  check("tensor", roles.tensor);
  check("context", roles.context);
}

void CheckSessionOptions(const ModelImpl& model, const Graph& graph, const std::string& who,
                         const SessionOptions& options) {
  if (options.name.find(':') != std::string::npos)
    Fail(who, ": the session's name '", options.name,
         "' has a ':', behind which names of optimizer state go on; leave it out");
  CheckRange(Cat(who, ": micro_batches"), options.micro_batches, 1, kMostMicroBatches);
  CheckRange<int64_t>(Cat(who, ": logits_tile"), options.logits_tile.value_or(0), 0, kMostLogitRows);
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

// Machine::nodes: the processes of the job, or without one what the described devices are.
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

// The axes that annotations cut the batch of an input along.
MeshAxes CutOfBatch(const Mesh& mesh, const Node& input) {
  MeshAxes axes;
  const auto batch = input.fixed.find(0);
  for (int a = 0; a < mesh.rank() && batch != input.fixed.end(); ++a) {
    const auto said = input.fixed.find(1 + a);
    if (said != input.fixed.end() && said->second.is_split() && said->second.axis == batch->second.axis &&
        mesh.axis_size(a) > 1)
      axes.push_back(a);
  }
  return axes;
}

// Parallel::batch of a session of this graph.
MeshAxes BatchAxes(const Graph& graph, const SessionOptions& options) {
  const Mesh& mesh = graph.mesh();
  const Parallel& roles = options.parallel;
  if (roles.batch) return mesh.FindAxes(*roles.batch);
  std::set<MeshAxes> cuts;  // of inputs into equal shares
  std::set<int> others;
  for (const std::string& name : {roles.tensor, roles.context})
    for (int a : mesh.FindAxes(name)) others.insert(a);
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const Node& node = graph.node(n);
    if (!graph.alive(n)) continue;
    for (int a = 0; a < mesh.rank(); ++a)
      if (node.slice.fixed[a] != Slice::kFree) others.insert(a);
    const MeshAxes cut = node.kind == NodeKind::kInput ? CutOfBatch(mesh, node) : MeshAxes();
    if (cut.empty()) continue;
    // Where the shares are not equal, work that is cut otherwise may be.
    const int64_t samples = graph.value(node.out[0]).shape[node.fixed.at(0).axis];
    if (samples % (int64_t{options.micro_batches} * mesh.SizeAlong(cut)) == 0)
      cuts.insert(cut);
    else
      others.insert(cut.begin(), cut.end());
  }
  std::set<MeshAxes> left;
  for (MeshAxes cut : cuts) {
    std::erase_if(cut, [&](int a) { return others.count(a) > 0; });
    if (!cut.empty()) left.insert(cut);
  }
  return left.size() == 1 ? *left.begin() : MeshAxes();
}

[[noreturn]] void FailTaken(const std::string& who, const std::string& name) {
  Fail(who, ": the output name '", name, "' is reserved; rename yours");
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

void CheckReduceType(const std::string& who, const TrainOptions& options) {
  NeedType(who, options.reduce_dtype);
  const DType to = options.reduce_dtype;
  if (to == DType::kFloat16 && options.dtype != DType::kFloat16)
    Fail(who, ": reduce_dtype is f16 but dtype is ", Name(options.dtype),
         "; sums in f16 overflow, which only the loss scale of dtype f16 notices; use bf16");
  if (!IsFloating(to)) Fail(who, ": reduce_dtype is ", Name(to), ", must be f32, bf16 or f16");
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

// Adds what layers show to the outputs, and what they keep to what is computed; gives Training::no_room.
std::vector<int> AddOfLayers(const GraphOfModel& graph, std::map<std::string, int>* fetched,
                             SessionOptions* options) {
  std::vector<int> values;
  for (const auto& [name, value] : Roots(*fetched, *options)) values.push_back(value);
  const std::set<int> trained = Ancestors(graph, values);
  for (const Tensor& tensor : graph.in_training)
    if (BelongsTo(graph, trained, tensor)) options->also.push_back(tensor);
  for (const auto& [name, tensor] : graph.shown)
    if (BelongsTo(graph, trained, tensor)) fetched->emplace(name, tensor.id());
  std::vector<int> no_room;
  for (const Tensor& tensor : graph.no_room) {
    if (!BelongsTo(graph, trained, tensor)) continue;
    options->also.push_back(tensor);
    no_room.push_back(tensor.id());
  }
  return no_room;
}

// Asked::given, but for what only trainings have.
Decisions GivenBy(const ModelImpl& model, const SessionOptions& options) {
  const Zero& zero = model.options.zero;
  const Offload& offload = model.options.offload;
  Decisions given{.mesh = model.mesh, .micro_batches = options.micro_batches, .schedule = options.schedule};
  given.exact_groups = options.exact_groups;
  given.virtual_stages = model.options.pipeline.virtual_stages;
  if (!model.zero_axes.empty()) given.zero = zero.stage, given.zero_axis = zero.axis;
  given.zero_small = zero.small;
  given.offload = offload;
  given.offload.choose = true;  // which is of what is open
  given.logits_tile = options.logits_tile.value_or(0);
  given.overlap = options.overlap;
  given.bucket = zero.bucket_bytes;
  given.prefetch = given.zero < 3 && offload.any() ? offload.prefetch : zero.prefetch;
  given.algorithms = model.algorithms;
  return given;
}

}  // namespace

void SetLink(const ModelOptions& options, int devices, Topology* topology) {
  if (options.link.bandwidth <= 0) return;
  if (const std::shared_ptr<Job>& job = options.job) {
    const std::vector<PeerInfo>& peers = job->peers();
    const auto here = std::count_if(peers.begin(), peers.end(),
                                    [&](const PeerInfo& peer) { return peer.host_key == peers[0].host_key; });
    if (here == std::ssize(peers)) return;  // one host has all
    if (topology->links.size() == 1) topology->links.push_back(topology->links[0]);
    topology->links[0].devices = devices / job->processes() * static_cast<int>(here);
  }
  topology->links.back().bandwidth = options.link.bandwidth;
}

Machine MachineOf(const ModelImpl& model) {
  Machine machine = model.machine;
  SetLink(model.options, model.mesh.size(), &machine.topology);
  machine.nodes = NodesOf(model);
  return machine;
}

bool RoundsToTf32(const ModelImpl& model, DType dtype) {
  const std::vector<std::string> kinds = model.mesh.kinds();
  const bool gpus = std::find(kinds.begin(), kinds.end(), "cuda") != kinds.end();
  return model.options.tf32 && gpus && dtype == DType::kFloat32;
}

CompileOptions CompileOptionsOf(const Asked& asked, const Decisions& decisions, const Graph& graph) {
  const ModelImpl& model = asked.model();
  const SessionOptions& options = asked.options;
  CompileOptions c{.decided = decisions, .machine = MachineOf(model)};
  c.asked.name = options.name;
  c.asked.seed = model.options.seed;
  c.asked.dtype = options.dtype;
  c.asked.tf32 = RoundsToTf32(model, options.dtype);
  c.asked.roles = {BatchAxes(graph, options), model.mesh.FindAxes(options.parallel.tensor),
                   model.mesh.FindAxes(options.parallel.context)};
  c.asked.training = asked.training;
  c.asked.fuse = !model.options.check_nan;
  c.asked.choose_host = model.options.offload.choose;
  for (const auto& [name, variable] : model.variables)
    if (variable.on_host) c.asked.on_host.insert(name);
  c.asked.kernels = &model.registry;
  c.asked.kernel_threads = model.kernel_threads;
  return c;
}

Asked AskedOf(Tensor loss, const Optimizer& optimizer, const TrainOptions& user_options,
              const SourceLine& line) {
  TrainOptions options = user_options;
  if (options.name.empty()) options.name = "train";
  const std::string who = Cat("Train at ", line.str());
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
  CheckReduceType(who, options);
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
  const std::vector<int> no_room = AddOfLayers(*source, &fetched, &options);
  if (!no_room.empty() && fetched.count(kRetried)) FailTaken(who, kRetried);
  Asked asked{who, source, options, GivenBy(*source->model, options), fetched};
  asked.training = Training{optimizer,         options.lr_schedule,
                            options.clip_norm, options.skip,
                            options.recompute, static_cast<bool>(options.lr_function),
                            options.average,   source};
  asked.training->source_values = source->num_values();
  asked.training->clip_value = options.clip_value;
  asked.training->clip_groups = options.clip_groups;
  asked.given.reduce_dtype = options.reduce_dtype;
  if (!options.reduce_axis.empty())
    asked.given.reduce_axis = source->mesh().NameOf(
        source->mesh().AxesOrFail(options.reduce_axis, Cat(asked.who, ": reduce_axis")));
  asked.training->gather_again = options.gather_again;
  asked.training->no_room = no_room;
  if (options.gather_again == true) asked.training->recompute = WithGather(options.recompute);
  if (options.recompute != Recompute::kAuto)
    asked.given.recompute = asked.training->recompute;
  else if (options.gather_again == true)  // a plan says so, whatever is chosen and whether that has messages
    asked.given.recompute = Recompute::kGather;
  asked.loss = loss.id();
  asked.line = line;
  asked.weights = options.weights;
  asked.check_finite = options.check_finite && loss.dtype() == DType::kFloat32;
  return asked;
}

Asked AskedOf(const std::map<std::string, Tensor>& outputs, const EvaluateOptions& user_options,
              const SourceLine& line) {
  EvaluateOptions options = user_options;
  if (options.name.empty()) options.name = "eval";
  const std::string who = Cat("Evaluate at ", line.str());
  if (outputs.empty() && options.also.empty()) Fail(who, ": no outputs are asked for");
  GraphOfModel* source =
      outputs.empty() ? GraphOf(options.also[0], Cat(who, ": SessionOptions::also"))
                      : GraphOf(outputs.begin()->second, Cat(who, ": output '", outputs.begin()->first, "'"));
  Asked asked{who, source, options, GivenBy(*source->model, options), {}};
  AddOutputs(source, who, options, outputs, &asked.fetched);
  asked.averages = options.weights;
  return asked;
}

int64_t PartsOfTokens(const Asked& asked, const Graph& graph) {
  MeshAxes axes = BatchAxes(graph, asked.options);
  for (int a : graph.mesh().FindAxes(asked.options.parallel.context)) axes.push_back(a);
  return int64_t{asked.options.micro_batches} * graph.mesh().SizeAlong(axes);
}

Graph GraphOf(const Asked& asked, const Decisions& decisions) {
  Graph graph =
      SessionGraph(*asked.source, Roots(asked.fetched, asked.options), decisions.stages, decisions.cuts);
  std::vector<int> roots;
  if (asked.training) {
    TrainOnly(asked.who, asked.weights, asked.loss, &graph);
    roots.push_back(graph.AddTrain(asked.loss, asked.line));
  } else {
    ReadAverages(asked.who, asked.model(), asked.averages, &graph);
  }
  for (const auto& [name, value] : asked.fetched) roots.push_back(graph.AddFetch(name, value));
  for (const Tensor& tensor : asked.options.also) roots.push_back(graph.value(tensor.id()).producer);
  graph.KeepOnly(roots);
  if (!asked.training || asked.training->has_more_room) WithMoreRoom(&graph);
  if (decisions.logits_tile > 0)
    TileLogits(&graph, decisions.logits_tile, PartsOfTokens(asked, graph), asked.training.has_value(),
               asked.options.dtype);
  for (const auto& [region, how] : decisions.waits) graph.regions().Choose(region, how);
  CheckSessionOptions(asked.model(), graph, asked.who, asked.options);
  return graph;
}

}  // namespace oneflow_like
