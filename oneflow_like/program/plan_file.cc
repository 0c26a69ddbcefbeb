#include "oneflow_like/program/plan_file.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/one_line.h"
#include "core/system/file_check.h"
#include "oneflow_like/checkpoint/index.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/launch/launcher_flags.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/program/auto_mesh.h"
#include "oneflow_like/program/precision.h"
#include "oneflow_like/program/training_flags.h"
#include "oneflow_like/session/agreement_text.h"

namespace oneflow_like {
namespace {

// "--plan=FILE: line 4: mesh cpu:dp=2", of what stands in a line by SavedPlan::lines.
std::string LineInFile(const SavedPlan& plan, const std::string& where, const std::string& key,
                       const std::string& value) {
  const size_t space = key.find(' ');
  const auto line = plan.lines.find(key);
  return Cat(where, ": ", line == plan.lines.end() ? "" : Cat("line ", line->second, ": "),
             key.substr(0, space), " ", value, space == std::string::npos ? "" : key.substr(space));
}

std::string NumbersText(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += Cat(text.empty() ? "" : ",", number);
  return text;
}

// Refuses what the plan's own mesh cannot have.
void RequireMeshOf(const SavedPlan& plan, const std::string& where) {
  const Decisions& d = plan.decisions;
  const std::string mesh = d.mesh.str();
  RequireMeshSize(d.mesh, LineInFile(plan, where, "mesh", mesh));
  for (const auto& [what, on, axis] :
       {std::tuple{"context_parallel", d.context_parallel, "cp"}, {"ulysses", d.ulysses, "sp"}})
    if (on && d.mesh.FindAxes(axis).empty())
      Fail(LineInFile(plan, where, what, "1"), " cuts sequences over mesh axis ", axis, ", which the mesh ",
           mesh, " of line ", plan.lines.at("mesh"), " lacks; leave the line out");
  const MeshAxes pp = d.mesh.FindAxes("pp");
  const auto of_stages = [&](const MeshAxes& axes) { return !pp.empty() && HasAxis(axes, pp[0]); };
  constexpr const char* kWhy = ": pp divides a model into stages, each with its weights, and cuts none";
  if (of_stages(ZeroAxes(d)))
    Fail(LineInFile(plan, where, "zero", Cat(d.zero, " over ", d.zero_axis)), kWhy, "; name other axes of ",
         mesh);
  for (const auto& [weight, cut] : d.cuts)
    for (const auto& [entry, sbp] : cut.fixed)
      if (sbp.is_split() && of_stages({entry - 1}))
        Fail(LineInFile(plan, where, "weight " + weight, Cat("pp:", sbp.str())), kWhy,
             "; name another axis of ", mesh);
  if (d.virtual_stages > 1 && d.mesh.SizeAlong(pp) == 1)
    Fail(LineInFile(plan, where, "virtual_stages", Cat(d.virtual_stages)),
         " divides blocks over stages in rounds, but the mesh ", mesh, " has one stage; write 1");
  for (const auto& [stack, blocks] : d.stages)
    if (d.mesh.SizeAlong(pp) == 1)
      Fail(LineInFile(plan, where, "blocks " + stack, NumbersText(blocks)),
           " divides blocks over stages, but the mesh ", mesh, " has one stage; leave the line out");
}

SavedPlan PlanIn(const std::string& text, const std::string& where) {
  SavedPlan plan;
  try {
    plan = ParseSavedPlan(text);
  } catch (const Error& error) {
    Fail(where, " is no plan of --save_plan: ", error.what());
  }
  RequireMeshOf(plan, where);
  return plan;
}

std::string TextOfFile() {
  constexpr int64_t kMost = 64 << 20;
  const std::string& file = training_flags().plan;
  if (const std::string why = WhyNotReadable(file, kMost); !why.empty())
    Fail("--plan=", file, " cannot be read: ", why);
  try {
    return ReadFile(file, kMost);
  } catch (const Error& error) {
    Fail("--plan=", file, ": ", error.what());
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
    // A search may divide an axis, whose name then stands for both parts.
    if (given.axis_size(a) != mesh.SizeAlong(mesh.FindAxes(given.axis_name(a)))) return false;
  }
  return true;
}

// What --gather_again says of a plan; nothing if that makes no difference, or differs between regions.
std::optional<std::string> GathersAgainIn(const Decisions& d) {
  if (!d.waits.empty() && GathersAgain(d.recompute)) return "true";  // of a search that was to do so
  std::set<bool> said;
  const auto add = [&](Recompute mode) {
    if (mode != Recompute::kFull) said.insert(GathersAgain(mode));
  };
  for (const auto& [region, mode] : d.waits) add(mode);
  if (d.waits.empty()) add(d.recompute);
  if (said.size() != 1) return {};
  return *said.begin() ? "true" : "false";
}

// Flags of messages, and what a plan has for them. Where the two mean the same it is the flag's own value.
std::vector<std::pair<const char*, std::string>> SaidOfMessages(const Decisions& d) {
  const TrainingFlags& f = training_flags();
  std::vector<std::pair<const char*, std::string>> said;
  if (d.overlap) said.push_back({"overlap", Cat(d.overlap->chunks)});
  if (d.prefetch) said.push_back({"prefetch", Cat(*d.prefetch)});
  if (d.bucket) said.push_back({"bucket", BytesOfBucket() == *d.bucket ? f.bucket : Cat(*d.bucket)});
  if (d.algorithms) {
    const bool same = ParseWantedAlgorithms(f.collective, "--collective") == *d.algorithms;
    said.push_back({"collective", same                    ? f.collective
                                  : d.algorithms->empty() ? "the cheapest"
                                                          : ToText(*d.algorithms)});
  }
  // Along an axis that the plan's mesh lacks sums are fp32 (OnMesh).
  const bool lacks = !f.reduce_axis.empty() && d.mesh.FindAxes(f.reduce_axis).empty();
  if (!d.reduce_dtype || (lacks && d.reduce_dtype == DType::kFloat32)) return said;
  said.push_back({"reduce_dtype", PrecisionName(*d.reduce_dtype)});
  const MeshAxes axes = d.mesh.FindAxes(f.reduce_axis);
  const bool same = !axes.empty() && axes == d.mesh.FindAxes(d.reduce_axis);
  said.push_back({"reduce_axis", same ? f.reduce_axis : d.reduce_axis.empty() ? "all axes" : d.reduce_axis});
  return said;
}

// What a plan has for --stages: the flag's own value where each division is that one. Empty: a plan of
// another number of stages.
std::string StagesIn(const Decisions& d) {
  const std::string& flag = training_flags().stages;
  // Plans of older builds lack a division by this flag.
  const int64_t stages = int64_t{d.mesh.SizeAlong(d.mesh.FindAxes("pp"))} * d.virtual_stages;
  if (d.stages.empty()) return std::count(flag.begin(), flag.end(), ',') + 1 == stages ? flag : "";
  std::string said;
  for (const auto& [stack, blocks] : d.stages) {
    const std::string list = NumbersText(blocks);
    if (said.empty() || said == flag) said = list;
  }
  return said;
}

// The axis of --zero: as the flag names it where that is the same axis of the plan's mesh.
std::string ZeroAxisIn(const Decisions& d) {
  const std::string& flag = training_flags().zero_axis;
  const MeshAxes axes = d.mesh.FindAxes(flag);
  return d.zero == 0 || (!axes.empty() && axes == d.mesh.FindAxes(d.zero_axis)) ? flag : d.zero_axis;
}

// What a plan has for --offload: the flag's own value where that means the same.
std::string OffloadIn(const Decisions& d) {
  const std::string& flag = training_flags().offload;
  const std::string said = OffloadText(d.offload);
  return OffloadText(ParseOffload(flag, "--offload")) == said ? flag : said;
}

// The flag that says something else than a plan; empty: none.
std::string Contradiction(const Decisions& d, const std::string& where) {
  const auto sentence = [&](const std::string& flag, const std::string& said) {
    std::string value;
    gflags::GetCommandLineOption(flag.c_str(), &value);
    return Cat("--", flag, "=", value, " contradicts ", where, ", which has ", said.empty() ? "none" : said);
  };
  if (!launcher_flags().mesh.empty()) {
    const Mesh given = Mesh::Parse(launcher_flags().mesh);
    // Beside a search for a mesh, and beside what that has found, the flag gives some of its axes.
    const bool open = training_flags().auto_mesh > 0 || !training_flags().plan.empty();
    const bool searched = open && Keeps(d.mesh, given);
    const bool agrees = given.kind() == d.mesh.kind() && (searched || AxesOf(given) == AxesOf(d.mesh));
    if (!agrees) return sentence("mesh", d.mesh.str());
  }
  const auto text = [](bool on) { return std::string(on ? "true" : "false"); };
  std::vector<std::pair<const char*, std::string>> said = {
      {"micro_batches", Cat(d.micro_batches)},
      {"schedule", Name(d.schedule)},
      {"virtual_stages", Cat(d.virtual_stages)},
      {"zero", Cat(d.zero)},
      {"zero_axis", ZeroAxisIn(d)},
      {"offload", OffloadIn(d)},
      {"recompute", d.waits.empty() ? Name(WithoutGather(d.recompute)) : "auto"},
      {"sequence_parallel", text(d.sequence_parallel)},
      {"context_parallel", text(d.context_parallel)},
      {"ulysses", text(d.ulysses)},
      {"logits_tile", Cat(d.logits_tile)},
      {"stages", StagesIn(d)}};
  for (const auto& flag : SaidOfMessages(d)) said.push_back(flag);
  if (const auto gathers = GathersAgainIn(d); gathers && IsGiven("gather_again")) {
    if (*gathers != (training_flags().gather_again ? "true" : "false"))
      return sentence("gather_again", *gathers);
  }
  for (const auto& [flag, value] : said) {
    gflags::CommandLineFlagInfo info;
    if (gflags::GetCommandLineFlagInfo(flag, &info) && !info.is_default && info.current_value != value &&
        info.current_value != "auto")  // which asks for a choice
      return sentence(flag, value);
  }
  return "";
}

// In what the flags of a run that goes on differ from those that its plan was found with, within `budget`
// bytes (0: any) of a device; empty: in nothing.
std::string OtherFlags(const Decisions& d, const std::string& where, int64_t budget) {
  if (const std::string flag = Contradiction(d, where); !flag.empty()) return flag;
  for (const auto& [flag, on] : {std::pair{"context_parallel", d.context_parallel}, {"ulysses", d.ulysses}})
    if (on != IsOn(flag)) return Cat("the plan of ", where, " has --", flag, on ? "" : " off");
  const int devices = training_flags().auto_mesh;
  const bool one = devices == 0 && launcher_flags().mesh.empty();  // device
  if (one ? d.mesh.size() > 1 : devices > 0 && d.mesh.size() != devices)
    return Cat("the plan of ", where, " is for ", d.mesh.size(), " devices and ",
               one ? "this run has no --mesh" : Cat("--auto_mesh=", devices));
  const int64_t memory = MemoryBudget();
  if (memory > 0 && (budget == 0 || budget > memory))
    return Cat("the plan of ", where, " was found within ",
               budget == 0 ? "any memory" : Cat(budget, " bytes of a device"),
               " and --memory_budget=", memory);
  return "";
}

// Parts of a machine's text, between commas, that another's lacks; each as often as it is there.
std::string PartsBeside(const std::string& text, const std::string& other) {
  const auto parts_of = [](const std::string& of) {
    std::vector<std::string> parts;
    for (size_t at = 0, end = 0; end != std::string::npos; at = end + 2) {
      end = of.find(", ", at);
      parts.push_back(of.substr(at, end == std::string::npos ? end : end - at));
    }
    return parts;
  };
  std::vector<std::string> known = parts_of(other);
  std::string beside;
  for (const std::string& part : parts_of(text)) {
    const auto at = std::find(known.begin(), known.end(), part);
    if (at == known.end())
      beside += Cat(beside.empty() ? "" : ", ", part);
    else
      known.erase(at);
  }
  return beside;
}

}  // namespace

std::optional<SavedPlan> PlanOfFile() {
  if (training_flags().plan.empty()) return {};
  return PlanIn(TextOfFile(), Cat("--plan=", training_flags().plan));
}

void RequireFlagsAgree(const SavedPlan& plan) {
  const std::string why = Contradiction(plan.decisions, Cat("--plan=", training_flags().plan));
  if (!why.empty()) Fail(why, "; leave one of the two out");
  const char* search = training_flags().automatic             ? "auto"
                       : training_flags().auto_mesh > 0       ? "auto_mesh"
                       : training_flags().recompute == "auto" ? "recompute=auto"
                                                              : nullptr;
  if (search)
    Fail("--", search, " searches for a plan and --plan=", training_flags().plan, " is one; leave one out");
}

void TakeSequenceCuts(const SavedPlan& plan) {
  const Decisions& d = plan.decisions;
  for (const auto& [flag, on] : {std::pair{"context_parallel", d.context_parallel}, {"ulysses", d.ulysses}})
    if (on && gflags::SetCommandLineOption(flag, "true").empty())
      Fail("--plan=", training_flags().plan, " is for a program that has --", flag,
           ", which this one has not");
}

bool SearchesForPlan() {
  return training_flags().automatic || training_flags().auto_mesh > 0 || training_flags().recompute == "auto";
}

std::string PlanState(const std::string& plan) { return Cat(MemoryBudget(), "\n", plan); }

std::optional<GivenPlan> PlanWithoutSearch(const Launcher& launcher, Job* job) {
  if (training_flags().plan.empty() && !SearchesForPlan()) return {};
  const std::string text = FromProcessZero(job, "the plan that is given", [&] {
    if (!training_flags().plan.empty()) return TextOfFile();
    if (!GoesOn(launcher)) return std::string();
    const auto state = CheckpointIndex::Read(BeginningOf(launcher)).state;
    const auto plan = state.find(kPlanState);
    return plan == state.end() ? std::string() : plan->second;  // none: it was not searched for
  });
  if (text.empty()) return {};
  std::string where = Cat("--plan=", training_flags().plan);
  if (!training_flags().plan.empty()) return GivenPlan{PlanIn(text, where), where};
  where = Cat("--resume=", training_flags().resume);
  const size_t line = text.find('\n');
  const int64_t budget = std::atoll(text.c_str());  // of that search; 0: any
  GivenPlan plan{PlanIn(line == std::string::npos ? "" : text.substr(line + 1), where), where};
  const std::string other = OtherFlags(plan.text.decisions, where, budget);
  if (other.empty()) {
    launcher.Print("the plan is that of the run that goes on\n");
    return plan;
  }
  launcher.Print("%s", Cat(other, "; another plan is searched for\n").c_str());
  return {};
}

void RequirePlanFits(const GivenPlan& given, const Model& model) {
  const auto& [plan, where] = given;
  if (plan.model != model.WeightsMark())
    Fail(where, " has the plan of a model of ", plan.model, ", and this model has ", model.WeightsMark());
  const Decisions& d = plan.decisions;
  const ModelImpl& impl = *model.impl();
  for (const auto& [weight, cut] : d.cuts) {
    const auto known = impl.variables.find(weight);
    const std::string line = LineInFile(plan, where, "weight " + weight, ToText(d.mesh, cut));
    if (known == impl.variables.end()) Fail(line, ": the model has no weight of that name");
    for (const auto& [entry, sbp] : cut.fixed)
      if (const Dims& shape = known->second.shape; sbp.is_split() && sbp.axis >= shape.rank())
        Fail(line, " cuts dimension ", sbp.axis, " of a weight of shape ", shape.str(), ", whose last is ",
             shape.rank() - 1);
  }
  for (const auto& [region, how] : d.waits)
    if (impl.graph.regions().all().count(region) == 0)
      Fail(LineInFile(plan, where, "wait " + region, Name(how)), ": the model has no region of that name");
  for (const auto& [stack, blocks] : d.stages) {
    const std::string line = LineInFile(plan, where, "blocks " + stack, NumbersText(blocks));
    const auto& all = impl.graph.stacks;
    const auto here = std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.name == stack; });
    if (here == all.end()) Fail(line, ": the model has no blocks that begin with that one");
    const int64_t stages = int64_t{d.mesh.axis_size(here->axis)} * here->rounds;
    if (std::ssize(blocks) != stages)
      Fail(line, " has numbers of ", blocks.size(), " stages and rounds, but there are ", stages,
           ", pp=", d.mesh.axis_size(here->axis), " in ", here->rounds,
           here->rounds == 1 ? " round" : " rounds");
    const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
    if (sum != std::ssize(here->blocks))
      Fail(line, " divides ", sum, " blocks, but the model has ", here->blocks.size());
  }
}

void TellOtherMachine(const Launcher& launcher, const GivenPlan& given, const std::string& here) {
  const std::string there = given.text.machine;
  if (there == here) return;
  const std::string lost = PartsBeside(there, here), found = PartsBeside(here, there);
  std::string differs;
  if (!lost.empty()) differs += Cat("; only that one has ", lost);
  if (!found.empty()) differs += Cat("; only this one has ", found);
  if (differs.empty()) differs = "; its levels are in another order";
  launcher.Print(
      "%s was decided for another machine than this run's%s. This run chooses what the plan leaves open for "
      "its own machine, so memory and last digits may differ\n",
      given.where.c_str(), OnOneLine(differs).c_str());
}

void TellOtherRate(const Launcher& launcher, const GivenPlan& given, bool tf32) {
  if (given.text.tf32 == tf32) return;
  launcher.Print(
      "%s was decided %s --tf32 and this run is %s it: products take other times, so another plan may be "
      "faster\n",
      given.where.c_str(), tf32 ? "without" : "with", tf32 ? "with" : "without");
}

void SavePlan(const Launcher& launcher, const std::string& text) {
  if (training_flags().save_plan.empty() || !launcher.main_process()) return;
  std::ofstream file(training_flags().save_plan);
  file << text;
  file.close();
  if (!file) throw WriteError(Cat("--save_plan=", training_flags().save_plan, ": ", std::strerror(errno)));
}

}  // namespace oneflow_like
