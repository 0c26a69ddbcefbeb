#include "oneflow_like/program/auto_mesh.h"

#include <gflags/gflags.h>

#include "oneflow_like/simulate.h"

DECLARE_int32(auto_mesh);
DECLARE_int32(virtual_stages);
DECLARE_int32(zero);
DECLARE_string(stages);
DECLARE_string(topology);
DECLARE_string(zero_axis);
DECLARE_string(mesh);  // of the launcher

namespace oneflow_like {
namespace {

constexpr char kSequenceParallel[] = "sequence_parallel";  // which only programs of language models have

// The machines of --topology, else those that estimates assume for this kind of device.
Machine MachineOfFlags(const std::string& kind) {
  if (!FLAGS_topology.empty()) return ReadTopology(FLAGS_topology);
  return MachineOf(Mesh(kind, {{"dp", 1}}));
}

PlanSpace SpaceOfFlags(const Program& program) {
  PlanSpace space;
  const Mesh given = Mesh::Parse(FLAGS_mesh.empty() ? "cpu" : FLAGS_mesh);
  space.kind = given.kind();
  if (given.kinds().size() > 1)
    Fail("--mesh=", FLAGS_mesh, ": --auto_mesh finds plans for devices of one kind");
  if (FLAGS_mesh.find(':') != std::string::npos)
    for (int a = 0; a < given.rank(); ++a) {
      const std::string axis = given.axis_name(a);
      if (axis != "dp" && axis != "tp" && axis != "pp")
        Fail("--mesh=", FLAGS_mesh, ": --auto_mesh finds extents of dp, tp and pp; it knows no axis ", axis);
      space.extents[axis] = given.axis_size(a);
    }
  if (FLAGS_stages != "auto")
    Fail("--stages=", FLAGS_stages, ": --auto_mesh divides layers by their time; leave --stages out");
  if (FLAGS_zero_axis != "dp")
    Fail("--zero_axis=", FLAGS_zero_axis, ": --auto_mesh cuts weights over dp alone");
  space.devices = FLAGS_auto_mesh;
  space.batch = FLAGS_batch;
  if (IsGiven("micro_batches")) space.micro_batches = static_cast<int>(FLAGS_micro_batches);
  if (IsGiven("virtual_stages")) space.virtual_stages = FLAGS_virtual_stages;
  if (IsGiven("zero")) space.zero = FLAGS_zero;
  if (IsGiven("schedule")) space.schedule = program.train.schedule;
  space.waits = program.train.recompute == Recompute::kAuto;
  space.cuts = program.model.auto_cuts != AutoCuts::kNone;
  if (IsGiven("recompute") && !space.waits) space.recompute = program.train.recompute;
  if (!program.cut_loss)
    space.sequence_parallel = false;
  else if (IsGiven(kSequenceParallel))
    space.sequence_parallel = CutsSequences();
  return space;
}

}  // namespace

bool CutsSequences() {
  std::string value;
  return gflags::GetCommandLineOption(kSequenceParallel, &value) && value == "true";
}

std::optional<PlanCandidate> PlanOfAutoMesh(const Launcher& launcher, const Program& program) {
  if (FLAGS_auto_mesh == 0) return {};
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
    TrainOptions train = program.train;
    candidate.Set(&options, &train);
    Model model(candidate.mesh, options);
    Tensor loss =
        program.cut_loss ? program.cut_loss(model, candidate.sequence_parallel) : program.loss(model);
    return Train(loss, program.optimizer, train);
  };
  const PlanSearchResult found = SearchPlans(space, MachineOfFlags(space.kind), build, search);
  launcher.Print("%s", found.Text().c_str());
  return found.chosen();
}

}  // namespace oneflow_like
