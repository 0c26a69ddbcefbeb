// --plan and --save_plan: a plan is kept in a file, or in the checkpoints of a run, and used again without a
// search.
#pragma once

#include <optional>
#include <string>

#include "oneflow_like/plan_search.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {

// Name and text of the state of checkpoints that keeps a plan that was searched for, with the memory budget
// of the search.
inline constexpr char kPlanState[] = "plan";
std::string PlanState(const std::string& plan);
// Returns whether flags ask for a search.
bool SearchesForPlan();

// Returns the plan in the file of --plan, or nothing without the flag. Throws Error for a file that has no
// plan.
std::optional<SavedPlan> PlanOfFile();
// Throws Error if a flag contradicts the plan of --plan; the message has both values.
void RequireFlagsAgree(const SavedPlan& plan);
// Sets --context_parallel and --ulysses to the plan's values, for all code that reads these flags. Throws
// Error if the plan needs them and the program has no such flags.
void TakeSequenceCuts(const SavedPlan& plan);

struct GivenPlan {
  SavedPlan text;
  std::string where;  // origin of the plan, for messages: "--plan=FILE"
};
// Returns the plan that a program uses instead of searching for one: that of --plan; otherwise, if flags ask
// for a search and do not contradict it, that of the run that is resumed. Collective: process 0 reads. Throws
// Error as PlanOfFile.
std::optional<GivenPlan> PlanWithoutSearch(const Launcher& launcher, Job* job);
// Throws Error if the plan is for a model with other weights.
void RequirePlanFits(const GivenPlan& plan, const Model& model);
// Prints in what the machine that the plan was made for differs from this one (SavedPlan::machine), if it
// does.
void TellOtherMachine(const Launcher& launcher, const GivenPlan& plan, const std::string& here);
// Prints that the plan was made with --tf32 and this run is without it (`tf32`: RoundsToTf32), or the other
// way round, if so.
void TellOtherRate(const Launcher& launcher, const GivenPlan& plan, bool tf32);

// Writes the file of --save_plan on the main process. Throws Error if it cannot be written.
void SavePlan(const Launcher& launcher, const std::string& text);

}  // namespace oneflow_like
