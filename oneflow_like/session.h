// Session: a compiled and loaded graph of a model. Train returns one that also updates the weights; Evaluate
// one that only computes. Sessions of one model share its variables and run one after another.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actor/profile.h"
#include "compiler/graph/overlap.h"
#include "compiler/plan/decisions.h"
#include "core/boxes/feeds.h"
#include "oneflow_like/model.h"
#include "ops/language/optimizer.h"
#include "ops/language/optimizers.h"

namespace oneflow_like {

// Roles of mesh axes, or of several by one name (Mesh::FindAxes); empty: cost decides. Along an axis with a
// role activations keep one signature, even if another would be cheaper for few tokens:
//   batch     the batch axis of all inputs, and all that is computed from it, is cut. Without a value: the
//             axes along which annotations cut the batch of inputs into equal shares, if they are the same
//             for all inputs that are cut; without those that have another role
//   tensor    what layers (Scope::Region) give to others is whole, unless it is annotated, as
//             nn::TransformerOptions::sequence does; weights are used as they are annotated, as ever
//   context   what is computed from inputs that are annotated along it is cut where they are
struct Parallel {
  std::optional<std::string> batch;
  std::string tensor, context;
};

struct SessionOptions {
  // Used in dumps and messages; default "train" or "eval". Sessions with the same name belong to one training
  // (or evaluation): they share the number of the next step and, as "<name>:...", optimizer state.
  std::string name;
  int micro_batches = 1;
  int steps_in_flight = 2;  // at most 1024
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  // With virtual stages: micro-batches in groups of exactly as many as there are stages, which must divide
  // their number. Keeps less and idles more.
  bool exact_groups = false;
  Parallel parallel;
  // Products in chunks, overlapped with the messages that they wait for or cause, where a gain is estimated;
  // ModelOptions::link gives the estimate the speed of a line.
  Overlap overlap;
  // kBFloat16 or kFloat16: matrix products, attention and activations in that type; weights, their gradients,
  // optimizer state, reductions and losses stay fp32. With fp16 the loss is scaled by variable
  // "<name>:loss_scale": steps whose gradients overflow change only this variable.
  DType dtype = DType::kFloat32;
  // Rows of logits (tokens of a micro-batch on a device) that exist at a time, where a loss is cross_entropy
  // of a product x[.. k] w[c k]^T that nothing else reads (nn::HeadLoss): it becomes linear_cross_entropy,
  // which takes less memory and one more product, or none where a training takes the mean of the losses and
  // devices have all classes. 0: all. Empty: all, unless they do not fit in the memory that the session may
  // use (ModelOptions::memory_budget, or with recompute=auto a device's), or tiles are estimated faster than
  // what else makes the plan fit.
  std::optional<int64_t> logits_tile;
  // Computed in every step in addition to the outputs: results of assign, for instance.
  std::vector<Tensor> also;
};
struct EvaluateOptions : SessionOptions {
  // Weights to compute with. Empty: the current ones. "average": the average that a training keeps of each
  // weight (TrainOptions::average); if several trainings average one weight, "<training>:average" selects
  // one. Before the first update an average equals its weight. Variables without an average (frozen weights,
  // those of Scope::State) have their current values.
  std::string weights;
};
struct TrainOptions : SessionOptions {
  // The weights that are trained: patterns of their paths ('*': any characters, '?': one). The others are
  // frozen in this training: without gradient, optimizer state, or messages. Empty: all that are not frozen.
  // Trainings of different weights need names of their own. Throws Error for a pattern that matches no weight
  // the loss depends on, or frozen ones alone.
  std::vector<std::string> weights;
  // The type in which gradients of weights are summed over devices. kBFloat16 halves what these sums send.
  // What a device adds up by itself, as over micro-batches, and what optimizers and norms read is fp32; with
  // ZeRO's stages 2 and 3 each micro-batch's gradients are sent. Sums of more than two terms are rounded
  // once, or, where they go round a ring or up a tree, at each device. kFloat16 only where dtype is kFloat16,
  // whose loss scale notices sums that overflow. Gradients of the rows that a batch touched stay fp32.
  DType reduce_dtype = DType::kFloat32;
  // The mesh axis, or several (Mesh::FindAxes), along which sums are in that type; those along others come
  // first, in fp32: "replica" narrows what copies of shards exchange between hosts. Empty: all.
  std::string reduce_axis = "";
  // Running averages of the trained weights, variables "<name>:average/<weight>", cut as optimizer state is;
  // EvaluateOptions::weights reads them.
  Average average;
  double clip_norm = 0;  // global gradient norm; 0: no clipping. The norm is output "grad_norm"
  // Gradient norms by group: {"encoder/*", 1.0}. The weights that a pattern matches first ('*': any
  // characters, '?': one) are clipped to its norm together, and those that none matches to clip_norm. The
  // norms are outputs "grad_norm/<pattern>", and that of all weights "grad_norm". Throws Error for a pattern
  // that is left no weight.
  std::vector<std::pair<std::string, double>> clip_groups;
  // Every element of the gradients, after clipping by norm, is limited to [-clip_value, clip_value]; 0: no
  // limit.
  double clip_value = 0;
  // Recomputation of regions without a setting of their own (Scope::Region; nn::layers makes each layer one).
  // Changes memory and time, and no bit of any result. kAuto: chosen for each of them, so that no device
  // needs more than ModelOptions::memory_budget, or else than the topology's memory_bytes, at the least
  // estimated time. Throws Error, with the least number of bytes that would do, if no choice fits.
  Recompute recompute = Recompute::kNone;
  // Whether results of messages wait for the backward pass as what they were made of, and are sent again
  // there: keys and values that are gathered for attention over a cut sequence, values that are gathered for
  // products with sequence parallelism. What a device keeps then shrinks with the axis; each such message is
  // sent once more. Only where that keeps fewer bytes, and in regions without a setting of their own that
  // compute nothing or little again (kNone, kSelective). Changes no bit of any result. Empty: no, and with
  // kAuto as is best for each region.
  std::optional<bool> gather_again;
  Schedule lr_schedule;
  // Replaces lr_schedule: returns the factor on the learning rate of each step, called at Run. It may read
  // values that change between steps. In a job it must return the same on all processes.
  std::function<double(int64_t step)> lr_function;
  // Steps that are outliers make no update; output "skipped" is then 1, else 0.
  SkipSteps skip;
  std::map<std::string, Tensor> outputs;  // besides "loss"
  bool check_finite = true;  // Run's result throws, naming the step, when the loss is NaN or infinite
};

// The result of a step. Copyable. Reading waits for the step; throws Error with the first failure of the step
// (operator and the user's line), or for a name that is not an output.
class StepResult {
 public:
  float Scalar(const std::string& output) const;
  const HostTensor& Get(const std::string& output) const;
  int64_t step() const;
  void Wait() const;
  // The factor on the learning rates in this step (lr_schedule, lr_function). NaN for an evaluation.
  double lr_factor() const;
  // How long Run waited for the step's data, if it took them from a source; else -1.
  double data_seconds() const;

 private:
  friend class Session;
  struct State;
  std::shared_ptr<State> state_;
};

// Memory and traffic of one rank, as --dry_run prints them.
struct RankSummary {
  int rank = 0;
  std::vector<int> ranks;  // all identical ranks, this one included; on a mesh of over 64 devices, those of
                           // its stage, of which this one holds most
  std::string stage;       // "pp=1", empty without stages
  int64_t persistent_bytes = 0, transient_bytes = 0, peak_bytes = 0;
  int64_t library_bytes = 0;  // in the peak of a cuda device: work space of its streams, libraries, packing
  int64_t communicator_bytes = 0;  // of these: of NCCL's communicators, at most
  // In the memory of the host (ModelOptions::offload), and bytes copied from there and to there in a step.
  int64_t host_persistent_bytes = 0, host_transient_bytes = 0;
  double bytes_from_host = 0, bytes_to_host = 0;
  // With a job, memory of its process (for all its ranks) in addition to peak_bytes, for data in flight to
  // other processes: shared by all sessions, plus the share of each session with collectives between
  // processes.
  int64_t staging_bytes = 0;
  // Host memory in addition to peak_bytes for the rank's inputs: copies for the steps in flight, and three
  // batches that a pipeline reads ahead or hands over.
  int64_t feed_bytes = 0;
  // Bytes of the arena of the second plan (nn::ExpertOverflow::kRetry), which shares memory with the first;
  // transient_bytes is the larger of the two. 0: there is no second plan.
  int64_t retry_transient_bytes = 0;
  int64_t lower_bound_bytes = 0;  // largest sum of bytes live at once
  // peak_bytes by purpose: weights, optimizer state, gradients, narrow copies, gathered, stash (kept by
  // forward for backward), other, communicators (if there are any).
  std::vector<std::pair<std::string, int64_t>> purposes;
  // The same by block (region) and by kind of operator; blocks that hold the same share an entry.
  std::vector<std::pair<std::string, int64_t>> blocks;
  // The ten largest, with where they come from. Those that differ in the numbers of their names alone, as in
  // the layers of a model, share an entry.
  std::vector<std::pair<std::string, int64_t>> consumers;
  int actors = 0, buffers = 0, collectives = 0;
  double bytes_sent = 0;  // per step
  double flops = 0;       // per step
  // Of these, those on the plain cores of a cuda device (-1: another device), and who has them: operator,
  // line and why not on tensor cores, the largest first.
  double plain_flops = -1;
  std::vector<std::pair<std::string, double>> on_plain_cores;
};

class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();  // Close()

  // Starts one step with a copy of its feeds; waits while steps_in_flight steps are in flight. `feeds` are
  // whole inputs: the batch of all processes. `pieces` are inputs of which this process feeds only the boxes
  // that its ranks read: disjoint, covering all of Needs(), and each needed by a rank here. Throws Error for
  // an input that is missing, unknown, fed twice, or of another shape or type.
  StepResult Run(const Feeds& feeds, const FeedPieces& pieces = {});
  // Feeds the source's next batch (oneflow_like/data/pipeline.h); the profile has the time spent waiting for
  // it. `also` feeds the inputs that the source lacks. In a job the processes first compare a new source,
  // once: throws Error if they read different data.
  StepResult Run(FeedSource& source, const Feeds& also = {});
  // The boxes of each input that ranks of this process read; known before the first step.
  FeedNeeds Needs() const;
  std::vector<Box> Needs(const std::string& input) const;
  // Pads a smaller batch to the session's size: rows after an input's own are filled with the number given
  // for it, or 0. Fill targets with a value that does not count: a negative class in cross_entropy, which
  // masked_mean(loss, greater_equal(targets, ...)) leaves out. Throws Error for inputs of different batch
  // sizes, and for one that does not fit.
  Feeds Padded(const Feeds& feeds, const std::map<std::string, double>& fill = {}) const;
  // Cancels steps in flight and adds the session to ModelOptions::trace_file; may be called at any time.
  // Steps of Train are completed first: cancelled during their updates they would leave copies of a weight
  // that differ.
  void Close();
  // Memory and traffic of each rank, from compilation alone; nothing is loaded. Identical ranks share one
  // entry.
  std::vector<RankSummary> Summaries() const;
  std::string SummaryText() const;
  // Explains the communication: every boxing with its estimated time, its bytes, its reason and the user's
  // line, most expensive first; what each way of waiting for gradients keeps and repeats of each region; and
  // each rank's work relative to the mean.
  std::string ExplainText() const;
  // Sentences about mesh axes of several devices over which neither inputs nor variables nor annotated values
  // are cut and no stages lie, where at most half of the work is divided over their devices: these repeat the
  // rest.
  std::vector<std::string> AxisWarnings() const;
  // What was decided about its plan, and for which weights and machines: for ModelOptions::plan, and as text
  // (ToText) a file of --plan.
  SavedPlan Plan() const;
  int64_t next_step() const;  // Model::next_step of its name
  // Where the time of all steps went since the last call of TakeProfile or ProfileText (or since the first
  // step); waits for steps in flight. In a job it covers all processes and is collective.
  StepProfile TakeProfile();
  // The same on one screen, per step: matmul, attention, other kernels, boxing, waiting, runtime; then the
  // ten hottest kernels with the user's lines; on cuda devices the share of operations on plain cores. And
  // of all steps whose results were waited for, single numbers that layers showed (Scope::Output).
  std::string ProfileText();

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  Impl* impl() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

// Compiles training of the weights that `loss` (one element) depends on. Memory and threads are allocated at
// the first Run, so a session of a mesh larger than the machine can be compiled and summarised. Throws Error.
Session Train(Tensor loss, const Optimizer& optimizer, const TrainOptions& options = {}, OFL_HERE);
// The value of the variable (a weight that the session trains, or one that it assigns) after the step, for
// instance for averages of weights: assign(mean, scale(mean, 0.99) + scale(Updated(w), 0.01)).
Tensor Updated(Tensor variable, OFL_HERE);
Session Evaluate(const std::map<std::string, Tensor>& outputs, const EvaluateOptions& options = {}, OFL_HERE);
Session Evaluate(const std::map<std::string, Tensor>& outputs, const SessionOptions& options, OFL_HERE);

}  // namespace oneflow_like
