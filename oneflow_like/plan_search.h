// The search for a plan: of all ways to train a model on so many devices of a described machine the fastest
// that fits. What is found has been compiled, and simulated as Simulate does; nothing is run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/cost/machine.h"
#include "compiler/decisions.h"
#include "oneflow_like/session.h"

namespace oneflow_like {

// One way to train on a number of devices: decisions on a mesh of axes dp (parts of the batch), tp (parts of
// products) and pp (stages), in the order in which devices are numbered: neighbours differ along the last
// axis. ZeRO is over dp.
struct PlanCandidate : Decisions {
  // Left to Train, which fits the rest into so many bytes of a device: what weights are cut along, and how
  // values of each region wait.
  bool open_cuts = false, open_waits = false;
  int64_t memory = 0;
  int64_t most_blocks = 0;  // Pipeline::most_blocks, where the search measures parts of a model

  // Sets what the options of a model and of its training say of these; sequence_parallel is for the user.
  void Set(ModelOptions* model, TrainOptions* train) const;
  int extent(const std::string& axis) const { return mesh.axis_size(mesh.AxisOrFail(axis, "a plan")); }
  std::string str() const;  // the flags that ask a program of examples/ for it
  bool operator==(const PlanCandidate&) const = default;
};

// What may be chosen. What is given here stays as it is given.
struct PlanSpace {
  std::string kind = "cpu";  // of device
  int devices = 1;
  int64_t batch = 1;                   // samples of a step; each dp rank gets equally many in a micro-batch
  std::map<std::string, int> extents;  // of axes dp, tp, pp
  std::optional<int> micro_batches, virtual_stages, zero;
  std::optional<PipelineSchedule>
      schedule;  // else all but gpipe, which keeps more than 1f1b and saves nothing
  std::optional<Recompute> recompute;
  std::optional<bool> sequence_parallel;
  // Whether cuts of weights (AutoCuts::kAll), and recomputation of each region, are searched for, too, in the
  // candidates that may hope for most.
  bool cuts = false, waits = false;
};

// Builds the session of a candidate: a Model on its mesh, with what Set says, and Train. `job`, files and
// memory_budget of ModelOptions must be left out. Called by several threads at once; also for meshes of more
// devices than the space has, to measure parts. An Error that it throws is why the candidate is none.
using BuildPlan = std::function<Session(const PlanCandidate& candidate)>;

struct PlanSearchOptions {
  int64_t memory = 0;  // bytes of a device; 0: those of the machine, or any where it says none
  int compiled = 24;   // the most candidates that are compiled and simulated
  // Of several processes that run the same program, process 0 searches and the others get its result, without
  // `lost`. Collective.
  std::shared_ptr<Job> job;
};

// A candidate and what is known of it. Shares of a step are seconds of the stage that works longest.
struct PlanTrial {
  PlanCandidate plan;
  bool compiled = false;  // and simulated: else figures are estimates, good to order candidates by
  double seconds = 0;     // of a step
  double compute = 0, messages = 0, bubble = 0;
  int64_t bytes = 0;  // of the rank that holds most
  std::string why;    // it lost; empty for those that fit and are among the best
};

struct PlanSearchResult {
  std::vector<PlanTrial> best;            // at most ten, fastest first; all compiled, and all fit
  std::vector<PlanTrial> lost;            // of each other shape of the mesh the plan that comes closest
  int64_t candidates = 0, too_large = 0;  // all there are; those estimated to need more than `memory`
  int compiled = 0;
  int64_t memory = 0;  // bytes of a device that a plan may use; 0: any

  const PlanCandidate& chosen() const { return best.front().plan; }
  // On one screen: the best with their times and memory, why others lost, and the flags of the first.
  std::string Text() const;
};

// The same result on every machine and in every repetition: limits count candidates, never seconds. Throws
// Error when the space has no candidate, saying what divides what; when none can be built, with the reason of
// the first; and when none fits, saying by how much the smallest misses.
PlanSearchResult SearchPlans(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                             const PlanSearchOptions& options = {});

// All candidates of a space, for a model of so many blocks in stages (nn::layers; 1: it has no stages), each
// with axes in the order dp, tp, pp. Throws Error when there are none.
std::vector<PlanCandidate> CandidatesOf(const PlanSpace& space, int64_t blocks);

}  // namespace oneflow_like
