// Session: a compiled and loaded graph of a model. Train makes one that also updates the weights; Evaluate
// one that only computes. Sessions of one model share its variables and run one after another.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/profile.h"
#include "compiler/overlap.h"
#include "compiler/pipeline_schedule.h"
#include "core/feeds.h"
#include "oneflow_like/model.h"
#include "ops/optimizer.h"
#include "ops/optimizers.h"

namespace oneflow_like {

// What mesh axes are for; empty: cost decides. Along an axis with a role activations keep one form, whatever
// would be cheaper for a few tokens:
//   batch     the batch axis of all inputs, and all that is computed from it, is cut
//   tensor    what layers (Scope::Region) give to others is whole, unless it is annotated, as
//             nn::TransformerOptions::sequence does; weights are used as they are annotated, as ever
//   context   what is computed from inputs that are annotated along it is cut where they are
struct Parallel {
  std::string batch, tensor, context;
};

struct SessionOptions {
  // In dumps and messages; default "train" or "eval". Sessions of one name are one training (or evaluation):
  // they share the number of the next step and, as "<name>:...", optimizer state.
  std::string name;
  int micro_batches = 1;
  int steps_in_flight = 2;  // at most 1024
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  // Where a model comes back to its stages (virtual stages): micro-batches in groups of exactly as many as
  // there are stages, which must divide them. Keeps less and idles more.
  bool exact_groups = false;
  Parallel parallel;
  // Products in chunks beside the messages they wait for or cause, where the estimate gains by it, for which
  // ModelOptions::link says how fast a line is.
  Overlap overlap;
  // kBFloat16 or kFloat16: matrix products, attention and activations in that type; weights, their gradients,
  // optimizer state, reductions and losses stay fp32. With fp16 the loss is scaled by variable
  // "<name>:loss_scale": steps whose gradients overflow change nothing but that.
  DType dtype = DType::kFloat32;
  // Computed in every step beside the outputs, though nobody reads it: what assign returns.
  std::vector<Tensor> also;
};
struct TrainOptions : SessionOptions {
  double clip_norm = 0;  // global gradient norm; 0: no clipping. The norm is output "grad_norm"
  // Of regions that say nothing themselves (Scope::Region; nn::layers makes each layer one): what they repeat
  // for their gradients. Changes memory and time, and no bit of any result.
  Recompute recompute = Recompute::kNone;
  Schedule lr_schedule;
  // In place of lr_schedule: the factor on the learning rate in each step, called at Run. What it reads may
  // change between steps. In a job all processes give the same.
  std::function<double(int64_t step)> lr_function;
  // Steps that are outliers update nothing; output "skipped" is then 1, else 0.
  SkipSteps skip;
  std::map<std::string, Tensor> outputs;  // besides "loss"
  bool check_finite = true;  // Run's result throws, naming the step, when the loss is NaN or infinite
};

// What a step gave. Copyable. Reading waits for the step; throws Error with the first failure of the step
// (operator and the user's line), or for a name the session does not give.
class StepResult {
 public:
  float Scalar(const std::string& output) const;
  const HostTensor& Get(const std::string& output) const;
  int64_t step() const;
  void Wait() const;
  // What the learning rates were multiplied with in this step (lr_schedule, lr_function). NaN of an
  // evaluation.
  double lr_factor() const;
  // How long Run waited for the step's data, where it took them from a source; else -1.
  double data_seconds() const;

 private:
  friend class Session;
  struct State;
  std::shared_ptr<State> state_;
};

// What --dry_run prints of one rank.
struct RankSummary {
  int rank = 0;
  std::vector<int> ranks;  // all that are alike, this one included; of a mesh of over 64 devices, those of
                           // its stage, of which this one holds most
  std::string stage;       // "pp=1", empty without stages
  int64_t persistent_bytes = 0, transient_bytes = 0, peak_bytes = 0;
  int64_t library_bytes = 0;  // in the peak of a cuda device: work space of its streams, libraries, packing
  // With a job, of its process (all its ranks') beside peak_bytes, for data on its way to other processes:
  // what all sessions share and what one with collectives between processes adds.
  int64_t staging_bytes = 0;
  int64_t lower_bound_bytes = 0;  // largest sum of bytes live at once
  // peak_bytes by what they are for: weights, optimizer state, gradients, narrow copies, gathered, stash
  // (what forward keeps for backward), other.
  std::vector<std::pair<std::string, int64_t>> purposes;
  std::vector<std::pair<std::string, int64_t>> consumers;  // ten largest, with where they come from
  int actors = 0, buffers = 0, collectives = 0;
  double bytes_sent = 0;  // per step
  double flops = 0;       // per step
};

class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();  // Close()

  // Starts one step with a copy of its feeds; waits while steps_in_flight are under way. `feeds` are inputs
  // whole: the batch of all processes. `pieces` are inputs of which this process gives only what its ranks
  // read: disjoint boxes that hold all of Needs() and none that is needed by no rank here. Throws Error for
  // what is missing, unknown, fed twice, or of another shape or type.
  StepResult Run(const Feeds& feeds, const FeedPieces& pieces = {});
  // With what the source gives next (oneflow_like/data/pipeline.h); the profile says how long it took. Inputs
  // that the source does not give are fed by `also`.
  StepResult Run(FeedSource& source, const Feeds& also = {});
  // The boxes of each input that ranks of this process read, before any step too.
  FeedNeeds Needs() const;
  std::vector<Box> Needs(const std::string& input) const;
  // A smaller batch made up to the session's: each input of it behind its own rows filled with the number
  // given for it, or 0. Fill targets with what counts nothing: a negative class in cross_entropy, which
  // masked_mean(loss, greater_equal(targets, ...)) leaves out. Throws Error for inputs of different batches,
  // and for one that does not fit.
  Feeds Padded(const Feeds& feeds, const std::map<std::string, double>& fill = {}) const;
  // Ends steps in flight and adds the session to ModelOptions::trace_file; may be called at any moment. Steps
  // of Train come to their end first: cut off among their updates they would leave copies of a weight that
  // differ.
  void Close();
  // Compiled but never loaded: what each rank would hold and send. Ranks alike are given once, the first for
  // all.
  std::vector<RankSummary> Summaries() const;
  std::string SummaryText() const;
  // Why it sends what it sends: every boxing with its estimated time, its bytes, its reason and the user's
  // line, dearest first; and how much each rank computes beside the mean.
  std::string ExplainText() const;
  int64_t next_step() const;  // Model::next_step of its name
  // Where the time of all steps since the last call of either (or the first step) went; waits for steps in
  // flight. In a job of several processes it is of all of them, and all call it together.
  StepProfile TakeProfile();
  // The same on one screen, per step: matmul, attention, other kernels, boxing, waiting, runtime; then the
  // ten hottest kernels with the user's lines.
  std::string ProfileText();

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  Impl* impl() const { return impl_.get(); }

 private:
  std::unique_ptr<Impl> impl_;
};

// Compiles training of all weights that `loss` (one element) depends on. Loading (memory, threads) waits for
// the first Run, so a session of a mesh larger than the machine can be compiled and summarised. Throws Error.
Session Train(Tensor loss, const Optimizer& optimizer, const TrainOptions& options = {}, OFL_HERE);
// The value of the variable (a weight that the session trains, or one that it assigns) after the step: for
// averages of weights, say, assign(mean, scale(mean, 0.99) + scale(Updated(w), 0.01)).
Tensor Updated(Tensor variable, OFL_HERE);
Session Evaluate(const std::map<std::string, Tensor>& outputs, const SessionOptions& options = {}, OFL_HERE);

}  // namespace oneflow_like
