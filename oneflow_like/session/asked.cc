// Checks of Train and Evaluate, and the graph that they compile.
#include "oneflow_like/session/asked.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "actor/net/talk/job.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/variables.h"
#include "oneflow_like/session/trained_weights.h"
#include "ops/language/numbers.h"

namespace oneflow_like {

namespace {

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

CompileOptions CompileOptionsOf(const Asked& asked, const Graph& graph) {
  const ModelImpl& model = asked.model();
  const SessionOptions& options = asked.options;
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
  c.training = asked.training;
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
  Asked asked{who, source, options, fetched};
  asked.training = Training{optimizer,         options.lr_schedule,
                            options.clip_norm, options.skip,
                            options.recompute, static_cast<bool>(options.lr_function),
                            options.average,   source};
  asked.training->source_values = source->num_values();
  asked.training->clip_value = options.clip_value;
  asked.training->clip_groups = options.clip_groups;
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
  Asked asked{who, source, options, {}};
  AddOutputs(source, who, options, outputs, &asked.fetched);
  asked.averages = options.weights;
  return asked;
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
  for (const auto& [region, how] : decisions.waits) graph.regions().Choose(region, how);
  CheckSessionOptions(asked.model(), graph, asked.who, asked.options);
  return graph;
}

}  // namespace oneflow_like
