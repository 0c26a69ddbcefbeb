// --plan, --save_plan: a plan that was decided is kept in a file, or with the run's checkpoints, and taken
// again without a search.
#pragma once

#include <optional>
#include <string>

#include "oneflow_like/plan_search.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {

// What checkpoints of a run keep of a plan that was searched for, with the budget it was found within.
inline constexpr char kPlanState[] = "plan";
std::string PlanState(const std::string& plan);
bool SearchesForPlan();  // whether flags ask for a search

// The plan of --plan; nothing without the flag. Throws Error for a file that is none.
std::optional<SavedPlan> PlanOfFile();
// Throws Error, naming both, for a flag that says something else than the plan of --plan.
void RequireFlagsAgree(const SavedPlan& plan);

struct GivenPlan {
  SavedPlan text;
  std::string where;  // it comes from
};
// The plan that a program takes instead of searching for one: of --plan; else, where flags ask for a search
// and do not contradict it, of the run that goes on. Collective: process 0 reads. Throws Error as the two
// above.
std::optional<GivenPlan> PlanWithoutSearch(const Launcher& launcher, Job* job);
// Throws Error if the plan is for a model of other weights; prints what machines it was decided for, if
// others.
void RequirePlanFits(const Launcher& launcher, const GivenPlan& plan, const Model& model);

// Writes --save_plan, on the main process. Throws Error.
void SavePlan(const Launcher& launcher, const std::string& text);

}  // namespace oneflow_like
