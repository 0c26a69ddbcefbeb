#include "oneflow_like/program/plan_file.h"

#include <gflags/gflags.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session/agreement_text.h"

DECLARE_bool(auto);
DECLARE_int32(auto_mesh);
DECLARE_int64(memory_budget);  // of the launcher
DECLARE_string(mesh);          // of the launcher
DECLARE_string(recompute);

namespace oneflow_like {
namespace {

SavedPlan PlanIn(const std::string& text, const std::string& where) {
  try {
    return ParseSavedPlan(text);
  } catch (const Error& error) {
    Fail(where, " is no plan of --save_plan: ", error.what());
  }
}

// Axes of several devices, in the order in which these are numbered.
std::vector<std::pair<std::string, int>> AxesOf(const Mesh& mesh) {
  std::vector<std::pair<std::string, int>> axes;
  for (int a = 0; a < mesh.rank(); ++a)
    if (mesh.axis_size(a) > 1) axes.push_back({mesh.axis_name(a), mesh.axis_size(a)});
  return axes;
}

// Whether the axes that were given to a search have these extents in a mesh.
bool Keeps(const Mesh& mesh, const Mesh& given) {
  for (int a = 0; a < given.rank(); ++a) {
    const int there = mesh.FindAxis(given.axis_name(a));
    if (given.axis_size(a) != (there < 0 ? 1 : mesh.axis_size(there))) return false;
  }
  return true;
}

// The flag that says something else than a plan; empty: none.
std::string Contradiction(const Decisions& d, const std::string& where) {
  const auto sentence = [&](const std::string& flag, const std::string& said) {
    std::string value;
    gflags::GetCommandLineOption(flag.c_str(), &value);
    return Cat("--", flag, "=", value, " contradicts ", where, ", which has ", said);
  };
  if (!FLAGS_mesh.empty()) {
    const Mesh given = Mesh::Parse(FLAGS_mesh);
    const bool searched = FLAGS_auto_mesh > 0 && Keeps(d.mesh, given);
    const bool agrees = given.kind() == d.mesh.kind() && (searched || AxesOf(given) == AxesOf(d.mesh));
    if (!agrees) return sentence("mesh", d.mesh.str());
  }
  const std::pair<const char*, std::string> said[] = {
      {"micro_batches", Cat(d.micro_batches)},
      {"schedule", Name(d.schedule)},
      {"virtual_stages", Cat(d.virtual_stages)},
      {"zero", Cat(d.zero)},
      {"recompute", d.waits.empty() ? Name(d.recompute) : "auto"},
      {"sequence_parallel", d.sequence_parallel ? "true" : "false"},
      {"stages", "blocks of its own"}};
  for (const auto& [flag, value] : said) {
    gflags::CommandLineFlagInfo info;
    if (gflags::GetCommandLineFlagInfo(flag, &info) && !info.is_default && info.current_value != value &&
        info.current_value != "auto")  // which asks for a choice
      return sentence(flag, value);
  }
  return "";
}

}  // namespace

std::optional<SavedPlan> PlanOfFile() {
  if (FLAGS_plan.empty()) return {};
  constexpr int64_t kMost = 64 << 20;
  const std::string where = Cat("--plan=", FLAGS_plan);
  std::string text;
  try {
    text = ReadFile(FLAGS_plan, kMost);
  } catch (const Error& error) {
    Fail(where, ": ", error.what());
  }
  return PlanIn(text, where);
}

void RequireFlagsAgree(const SavedPlan& plan) {
  const std::string why = Contradiction(plan.decisions, Cat("--plan=", FLAGS_plan));
  if (!why.empty()) Fail(why, "; leave one of the two out");
  const char* search = FLAGS_auto                  ? "auto"
                       : FLAGS_auto_mesh > 0       ? "auto_mesh"
                       : FLAGS_recompute == "auto" ? "recompute"
                                                   : nullptr;
  if (search) Fail("--", search, " searches for a plan and --plan=", FLAGS_plan, " is one; leave one out");
}

bool SearchesForPlan() { return FLAGS_auto || FLAGS_auto_mesh > 0 || FLAGS_recompute == "auto"; }

std::string PlanState(const std::string& plan) { return Cat(FLAGS_memory_budget, "\n", plan); }

std::optional<GivenPlan> PlanWithoutSearch(const Launcher& launcher, Job* job) {
  if (FLAGS_plan.empty() && !SearchesForPlan()) return {};
  const std::string text = FromProcessZero(job, "the plan that is given", [&] {
    if (!FLAGS_plan.empty()) return ToText(*PlanOfFile());
    if (!GoesOn(launcher)) return std::string();
    const auto state = CheckpointIndex::Read(BeginningOf(launcher)).state;
    const auto plan = state.find(kPlanState);
    return plan == state.end() ? std::string() : plan->second;  // none: it was not searched for
  });
  if (text.empty()) return {};
  std::string where = Cat("--plan=", FLAGS_plan);
  if (!FLAGS_plan.empty()) return GivenPlan{PlanIn(text, where), where};
  where = Cat("--resume=", FLAGS_resume);
  const size_t line = text.find('\n');
  const int64_t budget = std::atoll(text.c_str());  // of that search; 0: any
  GivenPlan plan{PlanIn(line == std::string::npos ? "" : text.substr(line + 1), where), where};
  const Decisions& d = plan.text.decisions;
  const bool other = !Contradiction(d, where).empty() ||
                     (FLAGS_auto_mesh > 0 && d.mesh.size() != FLAGS_auto_mesh) ||
                     (FLAGS_auto_mesh == 0 && FLAGS_mesh.empty() && d.mesh.size() > 1) ||
                     (FLAGS_memory_budget > 0 && (budget == 0 || budget > FLAGS_memory_budget));
  launcher.Print(other ? "the plan of the run that goes on is for other flags; another is searched for\n"
                       : "the plan is that of the run that goes on\n");
  if (other) return {};
  return plan;
}

void RequirePlanFits(const Launcher& launcher, const GivenPlan& given, const Model& model) {
  const auto& [plan, where] = given;
  if (plan.model != model.WeightsMark())
    Fail(where, " has the plan of a model of ", plan.model, ", and this model has ", model.WeightsMark());
  const std::string here = MachineText(model.impl()->machine);
  if (plan.machine != here)
    launcher.Print("%s was decided for other machines: %s; here they are: %s\n", where.c_str(),
                   plan.machine.c_str(), here.c_str());
}

void SavePlan(const Launcher& launcher, const std::string& text) {
  if (FLAGS_save_plan.empty() || !launcher.main_process()) return;
  std::ofstream file(FLAGS_save_plan);
  file << text;
  file.close();
  if (!file) throw WriteError(Cat("--save_plan=", FLAGS_save_plan, ": ", std::strerror(errno)));
}

}  // namespace oneflow_like
