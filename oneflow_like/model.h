// Model: variables over one mesh, which all its sessions share, and a graph under construction. ModelGraph:
// another graph over the same variables. Scope: where in a graph a weight stands (its path) and on which
// pipeline stage.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/offload.h"
#include "compiler/graph/regions.h"
#include "compiler/plan/decisions.h"
#include "core/host_tensor.h"
#include "oneflow_like/weight.h"
#include "ops/language/functional.h"
#include "ops/op.h"
#include "sbp/mesh.h"

namespace oneflow_like {

class Job;         // actor/net/talk/job.h
class StallWatch;  // oneflow_like/job/stalls.h
struct GraphOfModel;
struct ModelImpl;

class Scope;

// While it exists, operators that are made in the scope's graph belong to the scope, as Scope::Run says.
// Those of one graph end in the opposite order. Not thread-safe, as its graph.
class RunningScope {
 public:
  // kLayer: functions of nn. They may run within a block, and are then part of it even if they are given
  // another scope; their end does not separate what comes after.
  enum class Of { kBlock, kLayer };
  explicit RunningScope(const Scope& scope, Of of = Of::kBlock);
  ~RunningScope();
  RunningScope(const RunningScope&) = delete;

 private:
  GraphOfModel* const graph_;
};

// A path in the model and a stage; a small value, passed down. Scope / "name" goes one level deeper.
//
// An operator has a place in the graph, too: the name it has in messages, dumps and as the source of random
// draws, its region and its stage. While the function of a block runs (Run; nn::layers), what it makes
// belongs to the block. Elsewhere an operator belongs with its operands, in whatever order these are given:
// it is in the scope of a weight among them, else of the one that was made last (of a block that has ended:
// in the scope around that block), and per mesh axis on the highest stage of any.
class Scope {
 public:
  Scope operator/(const std::string& name) const;
  // Weights made here, and what is computed from them, live on coordinate `index` of mesh axis `axis`. Throws
  // Error for an unknown axis or an index outside it.
  Scope Stage(const std::string& axis, int index, OFL_HERE) const;
  // Weights made here, and what is computed from them alone or by Run, live on all devices along mesh axis
  // `axis`, whose stages other parts of the model are on: as an image encoder before a pipelined text model,
  // whose batch `axis` cuts as well. nn::layers deals none of its blocks over it. Throws Error for an unknown
  // axis; such a model may have stages along one axis only.
  Scope Everywhere(const std::string& axis, OFL_HERE) const;
  // Whether the scope is made by Everywhere, for mesh axis number `axis`.
  bool IsEverywhere(int axis) const { return stage_[axis] == kEverywhere; }
  // Returns function(). All operators that it makes belong to this scope whatever they read: their names are
  // below its path, so they are in its region, and they are on its stage, where it has one. Functions of nn
  // run in the scope that they are given in the same way.
  template <typename Function>
  auto Run(const Function& function) const {
    const RunningScope running(*this);
    return function();
  }
  // A trainable variable named <path>/<name>. Requested again under the same name, in this graph or another
  // of the model, it is the same variable. The later request repeats shape and initialiser, and may leave out
  // the annotation and the stage; one that contradicts the first request is an Error that names both lines.
  // Throws Error for a name with a ':', which is how the state of trainings is named.
  Tensor Weight(const std::string& name, const Dims& shape, const Initializer& init, NoOptions = {},
                OFL_HERE) const;
  Tensor Weight(const std::string& name, const Dims& shape, const Initializer& init, const Annotation& sbp,
                OFL_HERE) const;
  Tensor Weight(const std::string& name, const Dims& shape, const Initializer& init,
                const WeightOptions& options, OFL_HERE) const;
  // A variable that no training changes but by assign: running statistics, averages of weights, caches,
  // counters. Names and repeated requests as for weights; the tensor is of the variable's type. Integers
  // start as Full or FromTensor say. A Weight requested later under the path of a state is that state, as it
  // starts and is cut: so the function of a network, called below the scope of averages, computes with them.
  Tensor State(const std::string& name, const Dims& shape, const Initializer& init,
               const StateOptions& options = {}, OFL_HERE) const;
  // Adds `assigned` to SessionOptions::also of every training of this graph that computes all its operands,
  // and of no evaluation. For layers that keep state: their users need not know of it.
  void InTraining(Tensor assigned, OFL_HERE) const;
  // Adds an output named <path>/<name> to every training of this graph that computes all its operands, and to
  // no evaluation: for layers that have something to show. The first of a name counts, and an output of
  // TrainOptions::outputs before it.
  void Output(const std::string& name, Tensor shown, OFL_HERE) const;
  // All operators in this scope are a region (compiler/graph/regions.h): its forward pass may be
  // recomputed for its gradients, as `recompute` says (kAuto: as the compiler chooses, within
  // ModelOptions::memory_budget); without a value, as the session says. nn::layers makes each layer
  // a region. A region within another is part of the outer one; giving it a `recompute` of its own is an
  // Error.
  const Scope& Region(std::optional<Recompute> recompute = {}, OFL_HERE) const;
  const std::string& path() const { return path_; }
  GraphBuilder* graph() const;  // for functions without a tensor to start from
  const Mesh& mesh() const;

 private:
  friend struct GraphOfModel;
  friend class RunningScope;
  std::string Path(const std::string& name) const { return path_.empty() ? name : path_ + "/" + name; }

  static constexpr int kEverywhere = -2;

  GraphOfModel* graph_ = nullptr;
  std::string path_;
  std::vector<int> stage_;  // by mesh axis: the stage, kEverywhere, or Slice::kFree: none is said
};

// ZeRO (Rajbhandari et al. 2020): variables that their annotation does not cut along mesh axis `axis`, or
// several by one name (Mesh::FindAxes), are cut there too, along their longest axis that is free; empty:
// none.
//   stage 1   weights and optimizer state; once a step weights are gathered, gradients are summed and cut
//   stage 2   the gradients too: cut in each micro-batch, and a rank sums only its part
//   stage 3   weights of more than `small` elements are gathered in each micro-batch before each layer
//             (Scope::Region), forward and backward, at most `prefetch` layers ahead
// Gathers of weights and sums of gradients travel in buckets: one message for several tensors of one type, up
// to `bucket_bytes` of what a device holds of them; 0: each by itself. That holds without an axis too, and
// changes no bit of a result on the CPU. In stages 2 and 3 a bucket is of one layer.
struct Zero {
  std::string axis;
  int stage = 1;
  int prefetch = 1;
  int64_t small = 4096;
  int64_t bucket_bytes = 25 << 20;
};

// How a model's blocks (nn::layers) are dealt over the stages of a pipeline; weights lie with their blocks.
struct Pipeline {
  // How many times the blocks go round the stages: with p stages, block group i of p * virtual_stages is on
  // stage i % p.
  int virtual_stages = 1;
  // Blocks of each group, at least one. Empty: divided by estimated time when the model is first used;
  // operators before and after the blocks count, too.
  std::vector<int64_t> layers = {};
  // What gives `layers`, for messages: a flag and its value. Empty: Pipeline::layers.
  std::string layers_from = {};
  // Largest number of blocks of each nn::layers that are built; 0: all. For estimates of a model by few
  // blocks.
  int64_t most_blocks = 0;
};

// The speed of a line between hosts, for estimates; within a host they assume a speed by kind of device.
// Without a job, which would say which devices share a host, lines are assumed between all devices of a cpu
// mesh, and between each eight of a cuda mesh.
struct Link {
  double bandwidth = 0;  // bytes/s that one device sends; 0: 5e9 of a cpu mesh, 4e10 of a cuda mesh
};

// How it is decided what weights are cut along over the mesh.
//   kNone   their annotations alone; what is not annotated is whole
//   kOpen   annotations hold; along mesh axes that a weight's annotation does not name, the model's first
//           session chooses, for the least estimated time of its step that fits in memory_budget
//   kAll    the same, but annotations of weights in code do not hold, only those of ModelOptions::weights:
//           for models whose layers annotate their weights, as those of nn do
// Weights of repeated layers are cut alike. Weights first requested after that session are not chosen.
enum class AutoCuts : uint8_t { kNone, kOpen, kAll };

struct ModelOptions {
  uint64_t seed = 1;
  AutoCuts auto_cuts = AutoCuts::kNone;
  Pipeline pipeline;
  Zero zero;        // with the annotations decides where variables lie, for all sessions
  Offload offload;  // what waits in the memory of the hosts (compiler/graph/offload.h)
  Link link;
  // A topology file (examples/topologies/README.md) of the machines that plans are made for, which choices
  // between plans and estimates then assume; empty: machines typical of the mesh's kind of device.
  std::string topology;
  // How collectives between hosts, or processes without shared memory, are done in place of the cheapest way:
  // "ring", for all that can be, or "all_reduce:ring,all_gather:direct" (docs/simulation.md has the names).
  // Empty: by estimate. Error on a mesh of GPUs, where NCCL chooses.
  std::string collectives;
  std::vector<WeightPattern> weights;  // options of weights by their paths
  // Runtime threads, at most one for each device here; 0: as many as cores (of this process's share).
  int threads = 0;
  // Which of this host's devices a cuda mesh uses, by number; empty: all. With more ranks than devices
  // several ranks share one (virtual devices, each with streams and memory of its own), neighbours together.
  std::vector<int> devices;
  int kernel_threads = 0;  // threads that one kernel may use; 0: an equal share of the cores
  std::string dump_dir;    // every session writes its graph after each pass, and its plans, below this folder
  std::string trace_file;  // every session adds its streams' acts with times when it closes (open it in
                           // ui.perfetto.dev)
  // An HTML file that shows each session: memory over a step, communication, schedule, graph, estimated
  // times, and once a session closes the measured ones (oneflow_like/report/report.h). The main process
  // writes it.
  std::string report_file;
  // This process is one of several that run the same program (Launcher makes it); nullptr: alone. Each hosts
  // an equal share of the mesh's ranks, and writes its part of the trace to <trace_file>.process<k>, which
  // Launcher::Main joins at the end. All must create the same models and sessions and call their methods in
  // the same order; a method returns the same on all of them.
  std::shared_ptr<Job> job;
  // Becomes true when a session has been compiled (Launcher makes it): mistakes until then are those of the
  // command that gave the model its form.
  std::shared_ptr<std::atomic<bool>> compiled;
  // Receives what the sessions and the program do, to report which part waits for what (Launcher makes it).
  std::shared_ptr<StallWatch> stalls;
  // With a job, compare the feeds of the processes in every step, not only in a session's first two. Each Run
  // then waits for all processes.
  bool check_feeds = false;
  // Every `check_replicas` steps of a training, and before a save, copies of variables on several ranks are
  // compared bit for bit, which waits for steps in flight; a difference ends the run with an Error. 0: never.
  int64_t check_replicas = 0;
  // On GPUs, time cuBLASLt's proposals for each product of a plan when it is loaded, and take the fastest:
  // one to three seconds, unless an earlier run has kept its choices on disk. Off: its first proposals, which
  // makes the same bits more likely on machines of one kind.
  bool tune = true;
  // On GPUs, matrix products and convolutions in fp32 round their operands to TF32 (10 bits of mantissa) and
  // run on tensor cores: several times as fast, and losses agree with those of a CPU to some 1e-3 only. What
  // mixed precision leaves in fp32, such as routers of experts, Fourier transforms and loops, does not.
  bool tf32 = false;
  // After every kernel, check that its results are finite; the first operator that computes a non-finite
  // number from finite ones is an Error with its name, line, rank, micro-batch and step. For CPU meshes, in
  // fp32 and bf16: gradients in fp16 overflow by design. Operators are not fused then, so results may differ
  // by the rounding between them.
  bool check_nan = false;
  // Bytes per device; a plan above it is refused, and with Recompute::kAuto what is computed again makes the
  // plan fit; 0: none.
  int64_t memory_budget = 0;
  // What was decided before for an equal model (Session::plan, a file of --save_plan): of its blocks' stages,
  // cuts of weights and waits nothing is searched for.
  std::optional<Decisions> plan;
  // The user's own operators: table entries (ops/op.h) beside the built-in ones, called with Apply(). Their
  // reference kernels run wherever `kernels` registers no faster one; an entry that is a program of steps
  // (OpDef::scalar) needs neither.
  std::vector<OpDef> operators;
  std::function<void(KernelRegistry*)> kernels;
};

// A graph of a model: names, inputs and random draws are its own, so that building or dropping one changes no
// other; the variables are the model's. Copies are the same graph, which lives as long as any of them; its
// Tensors and Scopes must not outlive it, its sessions may.
class ModelGraph {
 public:
  Scope scope() const;  // the root
  // An input of a step: fed with the whole batch, all micro-batches of it. Micro-batches cut axis
  // `batch_axis`; -1: every micro-batch sees the whole input.
  Tensor Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp = {},
               int batch_axis = 0, OFL_HERE);
  // The tensor of that name in the graph, as dumps, errors and profiles have it ("block0/mlp/gelu"), to look
  // at what a model computes inside. Throws Error, naming the closest, when there is none.
  Tensor Find(const std::string& name, OFL_HERE) const;
  // For functions without a tensor to start from: uniform(graph.builder(), {4}, 0, 1).
  GraphBuilder* builder() const;
  // The graph as text, one operator a line (compiler/graph/text.h): to read, to save, and for
  // Model::NewGraph.
  std::string Text() const;

 private:
  friend class Model;
  std::shared_ptr<GraphOfModel> impl_;
};

class Model {
 public:
  // Throws Error when the processes of a job cannot share the mesh equally, and for an unknown axis of
  // `zero`.
  explicit Model(Mesh mesh, const ModelOptions& options = {});
  ~Model();
  Model(const Model&) = delete;

  const Mesh& mesh() const;
  // The model's own graph, for programs that need no other.
  Scope scope() const;
  Tensor Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp = {},
               int batch_axis = 0, OFL_HERE);
  GraphBuilder* builder() const;
  Tensor Find(const std::string& name, OFL_HERE) const;
  // Another, empty graph, for evaluation, generation, another training. `name` is for messages.
  ModelGraph NewGraph(const std::string& name);
  // Rebuilds the graph that Text() of this or another model returned: its inputs, weights and operators,
  // which Find returns by name. A weight that the model has already must be the same. The mesh is this
  // model's and must have the axes that the text names. Throws Error, with the text's line or the node, for
  // an invalid text, an operator that the model lacks, results that an operator does not give, and a new
  // weight that was initialised from a tensor, whose numbers a text does not contain. A text does not contain
  // source lines, Scope::InTraining and Output, and the permission for nn::layers to divide its blocks again.
  ModelGraph NewGraph(const std::string& name, const std::string& text, OFL_HERE);
  std::string Text() const;  // of the model's own graph

  // Of the weights requested so far: how many, of how many elements, and a hash of their names and shapes.
  std::string WeightsMark() const;
  // What ModelOptions::auto_cuts has chosen: for patterns of weights their cut, as WeightPattern and
  // Annotation write them ("stored": gathered for use), bytes on a device, and estimated times. Empty until
  // then.
  const std::string& CutsText() const;
  // The reasons: what a step would take longer, by estimate, with weights whole that are cut. Empty in other
  // processes than the first, and once memory has been allocated.
  std::string CutReasons() const;

  // The variables: every weight that was requested, and the state of every training made so far, named
  // "<training>:adam_m/<weight>". They may be read and written before any session has run. In a job of
  // several processes Read and Write are collective: all processes call them in the same order.
  std::vector<std::string> Variables() const;
  // A whole variable, assembled from the ranks; the same on all processes. Waits for steps in flight. Throws
  // Error when there is no variable of that name.
  HostTensor Read(const std::string& variable) const;
  // Replaces it; throws Error for another shape or type. All processes write the same value.
  void Write(const std::string& variable, const HostTensor& value);

  // The number of the next step of all sessions of this name ("train", "eval", SessionOptions::name):
  // learning rates follow it, random operators draw by it. It begins at 0 and counts the steps of all of them
  // together, so that a second session of a training continues where the first ended.
  int64_t next_step(const std::string& session = "train") const;
  // For a training that is resumed. Throws Error below 0. In a job all processes set the same number.
  void SetNextStep(const std::string& session, int64_t step);
  std::map<std::string, int64_t> NextSteps() const;  // by name; for names of sessions created so far, or
                                                     // set

  ModelImpl* impl() const { return impl_.get(); }

 private:
  std::shared_ptr<ModelImpl> impl_;  // shared with its sessions, which may outlive the Model
};

// A sequence of blocks of one kind over the stages of a mesh axis, as ModelOptions::pipeline says; nn::layers
// is built on it.
class Blocks {
 public:
  // n blocks below scope `s`; `per_stage`, if not empty, overrides Pipeline::layers and may have 0. On a mesh
  // without axis `axis`, or with an empty name, all blocks lie in one place. Throws Error for numbers that
  // contradict each other.
  Blocks(Scope s, const std::string& axis, int64_t n, const std::vector<int64_t>& per_stage, OFL_HERE);
  // How many blocks to build: n, or fewer, as Pipeline::most_blocks says.
  int64_t size() const { return size_; }
  // Returns the scope of the next block, <path of s>/<name>, on its stage, and moves x to that stage. The
  // scope runs (Scope::Run) until the next call or End().
  Scope Next(const std::string& name, Tensor* x);
  void End();  // call it after the last block

 private:
  Scope scope_;
  std::string axis_;
  SourceLocation at_;
  int stack_ = -1;  // of the graph; -1: on one stage
  int64_t size_ = 0, next_ = 0;
  std::optional<RunningScope> running_;  // of the block under construction
};

// d y / d x for each x, with x's shape and type: tensors of the graph, which a loss may use (gradient
// penalties, saliency). y is one floating point number. Throws Error for an x that y does not depend on, and
// for an operator on the way that has no gradient.
std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& x, OFL_HERE);
// x with the given signatures; boxing is inserted where they differ from those of x. `gradient` fixes the
// signatures of x's gradient, as it comes from the result's readers:
//   annotate(x, {{"tp", B()}}, {.gradient = {{"tp", S(1)}}})
struct AnnotateOptions {
  Annotation gradient;
};
Tensor annotate(Tensor x, const Annotation& sbp, OFL_HERE);
Tensor annotate(Tensor x, const Annotation& sbp, const AnnotateOptions& options, OFL_HERE);
// x on another pipeline stage: values computed from the result are on that stage, but for those of a block
// that has a stage along this axis (Scope::Run).
Tensor to_stage(Tensor x, const std::string& axis, int index, OFL_HERE);
// x on the stage of `other`: for weights that are read in several places. Returns x itself if both are on the
// same stage, or `other` is on none.
Tensor to_stage_of(Tensor x, Tensor other, OFL_HERE);

}  // namespace oneflow_like
