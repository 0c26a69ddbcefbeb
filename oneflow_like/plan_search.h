// SearchPlans: finds the fastest way to train a model on a number of devices of a described machine, among
// those that fit into its memory. The result has been compiled, and simulated as Simulate does; nothing is
// run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/cost/machine.h"
#include "compiler/plan/decisions.h"
#include "core/error.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

// One way to train on a number of devices: decisions on a mesh of axes dp (parts of the batch), tp (parts of
// products) and pp (stages), in the order in which devices are numbered: neighbours differ along the last
// axis. ZeRO is over dp, or over a part of it: then "dp" is the group replica*shard, and ZeRO is over shard,
// the devices that faster links join (hybrid sharding: Zhao et al. 2023, PyTorch FSDP).
struct PlanCandidate : Decisions {
  // Whether Train chooses the cuts of weights, and how values of each region wait for their gradients.
  bool open_cuts = false, open_waits = false;
  int64_t memory = 0;  // bytes of a device that such a choice may use
  // Pipeline::most_blocks, for candidates by which the search measures parts of a model.
  int64_t most_blocks = 0;

  // Sets these decisions in the options of a model and of its training, except sequence_parallel, which the
  // user's code must apply.
  void Set(ModelOptions* model, TrainOptions* train) const;
  int extent(const std::string& axis) const { return mesh.SizeAlong(mesh.AxesOrFail(axis, "a plan")); }
  std::string str() const;  // the flags that ask a program of examples/ for it
  bool operator==(const PlanCandidate&) const = default;
};

// The plans among which the search chooses. Members that have a value are fixed.
struct PlanSpace {
  std::string kind = "cpu";  // kind of device
  int devices = 1;
  int64_t batch = 1;                   // samples of a step; each dp rank gets equally many in a micro-batch
  std::map<std::string, int> extents;  // fixed extents of axes dp, tp and pp
  std::optional<int> micro_batches, virtual_stages, zero;
  bool hybrid_zero = true;  // false: ZeRO is over all of dp, and never over a part of it
  // Without a value all but gpipe, which keeps more than 1f1b and saves nothing.
  std::optional<PipelineSchedule> schedule;
  std::optional<Recompute> recompute;
  std::optional<bool> sequence_parallel;
  // TrainOptions::gather_again, for candidates that recompute nothing or little.
  bool gather_again = false;
  // Whether cuts of weights (AutoCuts::kAll), and recomputation of each region, are searched for as well, in
  // the most promising candidates. With `waits`, and a machine that gives the speed of copies to the host,
  // activations, optimizer state and weights are kept there if nothing fits otherwise.
  bool cuts = false, waits = false;
  bool host = true;  // false: nothing is kept there but what the model's options say
};

// Builds the session of a candidate: a Model on its mesh, with the options that Set sets, and Train. It must
// not set `job`, files and memory_budget of ModelOptions. Several threads call it at once, also for meshes of
// more devices than the space has, to measure parts. If it throws Error, the candidate is left out for that
// reason.
using BuildPlan = std::function<Session(const PlanCandidate& candidate)>;

struct PlanSearchOptions {
  int64_t memory = 0;  // bytes of a device; 0: those of the machine, or unlimited if it has no number
  int compiled = 24;   // largest number of candidates that are compiled and simulated
  // With several processes that run the same program, process 0 searches and the others get its result,
  // without `lost`. Collective.
  std::shared_ptr<Job> job;
};

// A candidate with its figures.
struct PlanTrial {
  PlanCandidate plan;
  bool compiled = false;  // whether it was compiled and simulated; otherwise the figures are estimates
  double seconds = 0;     // duration of a step
  double compute = 0, messages = 0, bubble = 0;  // seconds of a step, of the stage that computes longest
  int64_t bytes = 0;                             // memory of the fullest rank
  std::string why;                               // reason why it lost; empty for the best that fit
};

struct PlanSearchResult {
  std::vector<PlanTrial> best;            // at most ten, fastest first; all compiled, and all fit
  std::vector<PlanTrial> lost;            // the best plan of each other shape of the mesh
  int64_t candidates = 0, too_large = 0;  // number of all, and of those estimated to need more than `memory`
  int compiled = 0;                       // number of those compiled and simulated
  int64_t memory = 0;                     // bytes of a device that a plan may use; 0: unlimited

  const PlanCandidate& chosen() const { return best.front().plan; }
  // Returns text for one screen: the best plans with their times and memory, why others lost, and the flags
  // of the best.
  std::string Text() const;
};

// Plans can be built, but none that was found fits into the memory of a device.
class NoPlanFits : public Error {
 public:
  using Error::Error;
};

// Searches. The result is the same on every machine and in every repetition, because limits count candidates
// and never seconds. Throws Error if the space has no candidate, with the numbers that do not divide each
// other, and if none can be built, with the reason of the first. Throws NoPlanFits, on all processes, with
// the bytes that the smallest lacks.
PlanSearchResult SearchPlans(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                             const PlanSearchOptions& options = {});

// Returns all candidates of a space, with axes in the order dp, tp, pp, for a model with `blocks` blocks in
// stages (nn::layers; 1: it has no stages). Throws Error if there is none.
std::vector<PlanCandidate> CandidatesOf(const PlanSpace& space, int64_t blocks);
// Returns the candidate, and then the candidate on each other order of its mesh axes of several devices, of
// which none is in a group.
std::vector<PlanCandidate> InOrders(const PlanCandidate& candidate);

}  // namespace oneflow_like
