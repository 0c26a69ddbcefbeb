#include "oneflow_like/program/auto_mesh.h"

#include <gflags/gflags.h>

#include "oneflow_like/launch/launcher_flags.h"
#include "oneflow_like/session/asked.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {
namespace {

// The machines of --topology, else those that estimates assume for this kind of device, with --link.
Machine MachineOfFlags(const Program& program, const PlanSpace& space) {
  Machine machine = training_flags().topology.empty() ? MachineOf(Mesh(space.kind, {{"dp", 1}}))
                                                      : ReadTopology(training_flags().topology);
  SetLink(program.model, space.devices, &machine.topology);
  return machine;
}

PlanSpace SpaceOfFlags(const Program& program) {
  PlanSpace space;
  const Mesh given = Mesh::Parse(launcher_flags().mesh.empty() ? "cpu" : launcher_flags().mesh);
  space.kind = given.kind();
  if (launcher_flags().mesh.find(':') != std::string::npos)
    for (int a = 0; a < given.rank(); ++a) {
      const std::string axis = given.axis_name(a);
      if (axis != "dp" && axis != "tp" && axis != "pp")
        Fail("--mesh=", launcher_flags().mesh,
             ": --auto_mesh finds extents of dp, tp and pp; it knows no axis ", axis);
      space.extents[axis] = given.axis_size(a);
    }
  if (training_flags().stages != "auto")
    Fail("--stages=", training_flags().stages,
         ": --auto_mesh divides layers by their time; leave --stages out");
  if (training_flags().zero_axis != "dp")
    Fail("--zero_axis=", training_flags().zero_axis, ": --auto_mesh cuts weights over dp alone");
  if (const std::string& along = program.train.reduce_axis; !along.empty()) {
    const Mesh all(space.kind, {{"replica", 1}, {"shard", 1}, {"tp", 1}, {"pp", 1}}, {},
                   {{"dp", "replica*shard"}});  // that candidates may have
    all.AxesOrFail(along, Cat("--reduce_axis=", along, " with --auto_mesh"));
  }
  space.devices = training_flags().auto_mesh;
  space.batch = training_flags().batch;
  if (IsGiven("micro_batches")) space.micro_batches = static_cast<int>(training_flags().micro_batches);
  if (IsGiven("virtual_stages")) space.virtual_stages = training_flags().virtual_stages;
  if (const auto pp = space.extents.find("pp"); pp != space.extents.end()) RequireStagesFor(pp->second);
  if (IsGiven("zero")) space.zero = training_flags().zero;
  space.hybrid_zero = !IsGiven("zero_axis");
  if (IsGiven("schedule")) space.schedule = program.train.schedule;
  space.waits = program.train.recompute == Recompute::kAuto;
  space.host = !IsGiven("offload");
  space.cuts = program.model.auto_cuts != AutoCuts::kNone;
  if (IsGiven("recompute") && !space.waits) space.recompute = program.train.recompute;
  space.gather_again = program.train.gather_again.value_or(false);
  if (!program.cut_loss)
    space.sequence_parallel = false;
  else if (IsGiven("sequence_parallel"))
    space.sequence_parallel = IsOn("sequence_parallel");
  return space;
}

}  // namespace

TrainOptions OnMesh(TrainOptions train, const Mesh& mesh) {
  if (train.reduce_axis.empty() || !mesh.FindAxes(train.reduce_axis).empty()) return train;
  train.reduce_axis = "";
  train.reduce_dtype = DType::kFloat32;
  return train;
}

bool IsOn(const char* flag) {
  std::string value;
  return gflags::GetCommandLineOption(flag, &value) && value == "true";
}

std::optional<PlanCandidate> PlanOfAutoMesh(const Launcher& launcher, const Program& program) {
  if (training_flags().auto_mesh == 0) return {};
  const PlanSpace space = SpaceOfFlags(program);
  ModelOptions quiet = program.model;  // leaves nothing behind
  PlanSearchOptions search{.memory = std::exchange(quiet.memory_budget, 0),
                           .job = std::exchange(quiet.job, {})};
  quiet.auto_cuts = AutoCuts::kNone;  // candidates say whether cuts are open
  quiet.stalls = nullptr;
  quiet.compiled = nullptr;  // what is searched for has not begun
  for (std::string* path : {&quiet.dump_dir, &quiet.trace_file, &quiet.report_file}) path->clear();
  const BuildPlan build = [&](const PlanCandidate& candidate) {
    ModelOptions options = quiet;
    TrainOptions train = OnMesh(program.train, candidate.mesh);
    candidate.Set(&options, &train);
    Model model(candidate.mesh, options);
    Tensor loss =
        program.cut_loss ? program.cut_loss(model, candidate.sequence_parallel) : program.loss(model);
    return Train(loss, program.optimizer, train);
  };
  try {
    const PlanSearchResult found = SearchPlans(space, MachineOfFlags(program, space), build, search);
    launcher.Print("%s", found.Text().c_str());
    return found.chosen();
  } catch (const NoPlanFits&) {
    // The command is ended as by the plan of a given mesh that does not fit.
    if (program.model.compiled) *program.model.compiled = true;
    throw;
  }
}

}  // namespace oneflow_like
