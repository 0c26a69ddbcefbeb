// Model: variables over one mesh, which all its sessions share, and a graph under construction. ModelGraph:
// another graph over the same variables. Scope: where in a graph a weight stands (its path) and on which
// pipeline stage.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/regions.h"
#include "core/host_tensor.h"
#include "oneflow_like/weight.h"
#include "ops/functional.h"
#include "ops/op.h"
#include "sbp/mesh.h"

namespace oneflow_like {

class Job;         // actor/net/talk/job.h
class StallWatch;  // oneflow_like/stalls.h
struct GraphOfModel;
struct ModelImpl;

// A path in the model and a stage; a small value, passed down. Scope / "name" goes one level deeper.
class Scope {
 public:
  Scope operator/(const std::string& name) const;
  // Weights made here, and what is computed from them, live on coordinate `index` of mesh axis `axis`. Throws
  // Error for an unknown axis or an index outside it.
  Scope Stage(const std::string& axis, int index, OFL_HERE) const;
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
  // start as Full or FromTensor say.
  Tensor State(const std::string& name, const Dims& shape, const Initializer& init,
               const StateOptions& options = {}, OFL_HERE) const;
  // Computed in every training of this graph that computes all that `assigned` needs, as
  // SessionOptions::also would have it; in no evaluation. For layers that keep state: their users need not
  // know of it.
  void InTraining(Tensor assigned, OFL_HERE) const;
  // All that is computed below this scope is a region (compiler/regions.h): its forward pass may be computed
  // again for its gradients, as `recompute` says, or the session where it says nothing. nn::layers makes each
  // layer one. A region within another is part of that one, and an Error when it
  // says something of its own.
  const Scope& Region(std::optional<Recompute> recompute = {}, OFL_HERE) const;
  const std::string& path() const { return path_; }
  GraphBuilder* graph() const;  // for functions without a tensor to start from
  const Mesh& mesh() const;

 private:
  friend struct GraphOfModel;
  std::string Path(const std::string& name) const { return path_.empty() ? name : path_ + "/" + name; }

  GraphOfModel* graph_ = nullptr;
  std::string path_;
  std::vector<int> stage_;
};

// ZeRO (Rajbhandari et al. 2020): variables that their annotation does not cut along mesh axis `axis` are cut
// there too, along their longest axis that is free; empty: none.
//   stage 1   weights and optimizer state; weights are gathered once a step, gradients are summed and cut
//   once stage 2   the gradients too: cut in each micro-batch, and only a rank's part is added up stage 3
//   weights of more than `small` elements are gathered in each micro-batch before each layer
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
  // How often blocks go round the stages: with p stages, block group i of p * virtual_stages is on stage i %
  // p.
  int virtual_stages = 1;
  // Blocks of each group. Empty: cut by estimated time, what stands before the blocks and behind them
  // counted, when the model is first used.
  std::vector<int64_t> layers = {};
};

// A line between hosts, as estimates see it; within a host they take what its kind of device has.
// Where no job says which devices share a host, lines are between all devices of a cpu mesh, and between each
// eight of a cuda mesh.
struct Link {
  double bandwidth = 0;  // bytes/s that one device sends; 0: 5e9 of a cpu mesh, 4e10 of a cuda mesh
};

struct ModelOptions {
  uint64_t seed = 1;
  Pipeline pipeline;
  Zero zero;  // together with the annotations it decides where variables lie, in all sessions alike
  Link link;
  std::vector<WeightPattern> weights;  // options of weights by their paths
  // Runtime threads, at most one for each device here; 0: as many as cores (of this process's share).
  int threads = 0;
  // Which of this host's devices a cuda mesh uses, by number; empty: all. With more ranks than devices
  // several ranks share one (virtual devices, each with streams and memory of its own), neighbours together.
  std::vector<int> devices;
  int kernel_threads = 0;  // threads that one kernel may use; 0: an equal share of the cores
  std::string dump_dir;    // every session writes its graph after each pass, and its plans, below this folder
  std::string
      trace_file;  // every session adds what its streams did when, once it closes (ui.perfetto.dev opens it)
  // An HTML file that shows each session: memory over a step, communication, schedule, graph, estimated
  // times, and once a session closes the measured ones (oneflow_like/report/report.h). The main process
  // writes it.
  std::string report_file;
  // This process is one of several that run the same program (Launcher makes it); nullptr: alone. Each hosts
  // an equal share of the mesh's ranks, and writes its part of the trace to <trace_file>.process<k>, which
  // Launcher::Main joins at the end. All must make the same models and sessions and call the same methods of
  // them in the same order; what a method gives is the same on all of them.
  std::shared_ptr<Job> job;
  // Told what the sessions and the program do, so that it can say who waits for what (Launcher makes it).
  std::shared_ptr<StallWatch> stalls;
  // With a job, compare what the processes feed in every step, not only in a session's first two. That waits
  // for all of them at each Run.
  bool check_feeds = false;
  // Every so many steps of a training, and before a save: variables that several ranks hold alike are
  // compared bit for bit; a difference ends the run with an Error. That waits for steps under way. 0: never.
  int64_t check_replicas = 0;
  // After every kernel, look whether its results are finite; the first operator that gives a number that is
  // not, of numbers that are, is an Error that names it, its line, rank, micro-batch and step. For CPU
  // meshes, in fp32 and bf16: gradients in fp16 overflow by design. Operators are not fused then, so results
  // may differ by the rounding between them.
  bool check_nan = false;
  int64_t memory_budget = 0;  // bytes per device; a plan above it is refused; 0: none
  // The user's own operators: table entries (ops/op.h) beside the built-in ones, called with Apply(). Their
  // reference kernels run wherever `kernels` registers no faster one.
  std::vector<OpDef> operators;
  std::function<void(KernelRegistry*)> kernels;
};

// A graph of a model: names, inputs and random draws are its own, so that building or dropping one changes no
// other; the variables are the model's. Copies are the same graph, which lives as long as any of them; its
// Tensors and Scopes must not outlive it, its sessions may.
class ModelGraph {
 public:
  Scope scope() const;  // the root
  // What a step is fed: the whole batch, all micro-batches of it. Micro-batches cut axis `batch_axis`; -1:
  // every micro-batch sees all of it.
  Tensor Input(const std::string& name, const Dims& shape, DType dtype, const Annotation& sbp = {},
               int batch_axis = 0, OFL_HERE);
  // The tensor of that name in the graph, as dumps, errors and profiles have it ("block0/mlp/gelu"), to look
  // at what a model computes inside. Throws Error, naming the closest, when there is none.
  Tensor Find(const std::string& name, OFL_HERE) const;
  // For functions without a tensor to start from: uniform(graph.builder(), {4}, 0, 1).
  GraphBuilder* builder() const;
  // The graph as text, an operator a line (compiler/text.h): to look at, to keep, and for Model::NewGraph.
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
  // An empty graph beside it, for evaluation, generation, another training. `name` is for messages.
  ModelGraph NewGraph(const std::string& name);
  // The graph that Text() of this or another model gave: its inputs, weights and operators, which Find gives
  // by name. A weight that the model has already must be the same. The mesh is this model's and needs the
  // axes that the text names. Throws Error, with the text's line or the node, for a text that is none, an
  // operator that the model has not, results that an operator does not give, and a new weight that began as a
  // tensor's numbers, which a text does not hold. Not in a text: source lines, Scope::InTraining, and that
  // nn::layers may cut its blocks again.
  ModelGraph NewGraph(const std::string& name, const std::string& text, OFL_HERE);
  std::string Text() const;  // of the model's own graph

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
  std::map<std::string, int64_t> NextSteps() const;  // by name; of names that have made a session or been set

  ModelImpl* impl() const { return impl_.get(); }

 private:
  std::shared_ptr<ModelImpl> impl_;  // shared with its sessions, which may outlive the Model
};

// Blocks of one kind, one behind another, over the stages of a mesh axis as ModelOptions::pipeline says: what
// nn::layers is made of.
class Blocks {
 public:
  // n blocks below scope `s`; `per_stage`, where not empty, is heard in place of Pipeline::layers. A mesh
  // without axis `axis`, or an empty name, has them all in one place. Throws Error for numbers that
  // contradict each other.
  Blocks(Scope s, const std::string& axis, int64_t n, const std::vector<int64_t>& per_stage, OFL_HERE);
  // The scope of the next block, <path of s>/<name>, on its stage, to which x is brought.
  Scope Next(const std::string& name, Tensor* x);
  void End();  // of the last one

 private:
  Scope scope_;
  std::string axis_;
  SourceLocation at_;
  int stack_ = -1;  // of the graph; -1: on one stage
  int64_t next_ = 0;
};

// d y / d x for each x, of its shape and type: operators like others, of which a loss may be made (gradient
// penalties, saliency). y is one floating point number. Throws Error for an x that y does not depend on, and
// for an operator on the way that has no gradient.
std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& x, OFL_HERE);
// x, held to the given signatures; boxing is inserted where they differ from what x has. `gradient` holds the
// gradient of x, as it comes back from the result's readers, likewise:
//   annotate(x, {{"tp", B()}}, {.gradient = {{"tp", S(1)}}})
struct AnnotateOptions {
  Annotation gradient;
};
Tensor annotate(Tensor x, const Annotation& sbp, OFL_HERE);
Tensor annotate(Tensor x, const Annotation& sbp, const AnnotateOptions& options, OFL_HERE);
// x, on another pipeline stage: what is computed from the result lives there.
Tensor to_stage(Tensor x, const std::string& axis, int index, OFL_HERE);
// x, on the stage that `other` is on: for weights that are read in several places. x itself where both are on
// one, or `other` is on none.
Tensor to_stage_of(Tensor x, Tensor other, OFL_HERE);

}  // namespace oneflow_like
