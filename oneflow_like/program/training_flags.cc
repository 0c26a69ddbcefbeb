#include "oneflow_like/program/training_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/plan_file.h"
#include "oneflow_like/program/precision.h"
#include "oneflow_like/simulate.h"
#include "sbp/collective_cost.h"

DEFINE_bool(auto, false, "cut weights by estimate");
DEFINE_int32(auto_mesh, 0, "devices to plan for; 0: as --mesh");
DEFINE_string(plan, "", "file: a plan of --save_plan");
DEFINE_string(save_plan, "", "file that gets the plan");
DEFINE_int64(micro_batches, 1, "parts of the batch");
DEFINE_int64(steps, 200, "optimizer steps");
DEFINE_double(lr, 1e-3, "learning rate at its highest");
DEFINE_int64(warmup, 20, "steps of rise; then a cosine");
DEFINE_int64(schedule_steps, 0, "of the cosine; 0: --steps");
DEFINE_double(clip, 1.0, "largest gradient norm; 0: any");
DEFINE_double(average, 0, "decay of averages; 0: none");
DEFINE_string(dtype, "fp32", "fp32, bf16, or fp16");
DEFINE_string(schedule, "1f1b", "of the pipeline: 1f1b, gpipe, interleaved, zero_bubble");
DEFINE_int32(virtual_stages, 1, "rounds over the stages");
DEFINE_string(stages, "auto", "layers of each: 3,5 or auto");
DEFINE_string(recompute, "none", "none, selective, full or auto");
DEFINE_int32(zero, 0, "stage of ZeRO, 1 to 3; 0: none");
DEFINE_int32(prefetch, 1, "layers ahead in stage 3");
DEFINE_string(bucket, "25MB", "of small messages; 0: none");
DEFINE_int32(overlap, 1, "product chunks beside messages");
DEFINE_double(link, 0, "Mbit/s between hosts; 0: guessed");
DEFINE_string(collective, "", "of messages: ring, tree; empty: auto");
DEFINE_string(zero_axis, "dp", "mesh axis of --zero");
DEFINE_bool(simulate, false, "steps on paper: times, memory");
DEFINE_string(topology, "", "file: the machines to plan for");
DEFINE_bool(compare_data, true, "hosts must have equal data");
DEFINE_string(log_json, "", "gets one JSON object per step");
DEFINE_string(tensorboard, "", "folder for TensorBoard's files");
DEFINE_double(peak_flops, 0, "a device's, for mfu; 0: unknown");
DEFINE_string(save, "", "folder that gets checkpoints");
DEFINE_int64(save_every, 0, "steps; 0: at the end alone");
DEFINE_bool(local, false, "--save where hosts share none");
DEFINE_int64(keep, 3, "newest checkpoints kept; 0: all");
DEFINE_string(resume, "", "goes on from checkpoints, if any");
DEFINE_string(load, "", "checkpoint with first weights");
DEFINE_bool(load_partial, false, "--load what both have");

DECLARE_int64(memory_budget);  // of the launcher
DECLARE_string(mesh);          // of the launcher
DECLARE_string(trace);         // of the launcher
DECLARE_uint64(seed);          // of the launcher
DECLARE_int32(processes);      // of the launcher

namespace oneflow_like {
namespace {

Recompute RecomputeOf(const std::string& name) {
  for (Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull, Recompute::kAuto})
    if (name == Name(r)) return r;
  Fail("--recompute=", name, ": must be none, selective, full or auto");
}

PipelineSchedule ScheduleNamed(const std::string& name) {
  for (PipelineSchedule s : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
                             PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble})
    if (name == Name(s)) return s;
  Fail("--schedule=", name, ": must be 1f1b, gpipe, interleaved or zero_bubble");
}

// "3,4,4" -> {3, 4, 4}, "auto" -> {}.
std::vector<int64_t> LayersOfStages() {
  std::vector<int64_t> layers;
  if (FLAGS_stages == "auto") return layers;
  if (FLAGS_stages.empty()) Fail("--stages is empty: must be auto, or numbers of layers like 3,4,4,3");
  std::stringstream text(FLAGS_stages);
  for (std::string number; std::getline(text, number, ',');) {
    size_t used = 0;
    try {
      layers.push_back(std::stoll(number, &used));
    } catch (const std::exception&) {
      used = std::string::npos;
    }
    if (number.empty() || used != number.size())
      Fail("--stages=", FLAGS_stages, ": must be auto, or numbers of layers like 3,4,4,3");
  }
  return layers;
}

// "25MB", "64KB", "0", "1000000"
int64_t BytesOfBucket() {
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  std::istringstream text(FLAGS_bucket);
  int64_t number = -1;
  std::string unit;
  const bool is_number = static_cast<bool>(text >> number);
  text >> unit;
  const std::map<std::string, int64_t> units = {{"", 1}, {"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}};
  std::string rest;
  if (!is_number || number < 0 || units.count(unit) == 0 || text >> rest ||
      number > kMostBytes / units.at(unit))
    Fail("--bucket=", FLAGS_bucket, ": must be a size such as 25MB, 64KB or 0, below a terabyte");
  return number * units.at(unit);
}

// Machines that cannot be planned for or simulated are refused before anything has begun.
void CheckTopology() {
  if (FLAGS_simulate && FLAGS_topology.empty())
    Fail("--simulate needs --topology, a file that describes the machines; examples/topologies has some");
  if (FLAGS_topology.empty()) return;
  const int64_t chosen = TrainingProgram().chosen_mesh_devices;
  RequireDevices(ReadTopology(FLAGS_topology),
                 chosen > 0 ? chosen : Mesh::Parse(FLAGS_mesh.empty() ? kTrainingMesh : FLAGS_mesh).size());
}

void CheckMeshSize() {
  const Mesh mesh = Mesh::Parse(FLAGS_mesh.empty() ? kTrainingMesh : FLAGS_mesh);
  const std::string who = "--mesh=" + FLAGS_mesh;
  if (mesh.size() > kMostDevices)
    Fail(who, ": ", mesh.size(), " devices, but plans can be made for at most ", kMostDevices);
  const bool estimated = !FLAGS_topology.empty() && mesh.kind() != "cuda";
  const int most = estimated ? kMostEstimatedAlongAxis : kMostAlongAxis;
  for (int a = 0; a < mesh.rank(); ++a)
    if (mesh.axis_size(a) > most)
      Fail(who, ": ", mesh.axis_size(a), " devices along axis ", mesh.axis_name(a), ", but plans",
           estimated ? " of processors with --topology" : "", " can be made for at most ", most,
           " along one; cut along two axes");
}

}  // namespace

void PrintSimulation(const Launcher& launcher, const Session& session, double per_step,
                     const std::string& unit) {
  if (!launcher.main_process()) return;
  const Simulated simulated = Simulate(session, ReadTopology(FLAGS_topology),
                                       {.trace_file = FLAGS_trace, .processes = FLAGS_processes});
  launcher.Print("%s", simulated.Text(per_step, unit).c_str());
}

void CheckTrainingFlags(const std::string& samples) {
  constexpr int64_t kMany = 1'000'000'000;
  CheckMeshSize();
  CheckRange<int64_t>("--batch", FLAGS_batch, 1, 1 << 20);
  CheckRange<int64_t>("--micro_batches", FLAGS_micro_batches, 1, kMostMicroBatches);
  CheckRange<int64_t>("--steps", FLAGS_steps, 1, kMany);
  CheckRange<int64_t>("--warmup", FLAGS_warmup, 0, kMany);
  CheckRange<int64_t>("--schedule_steps", FLAGS_schedule_steps, 0, kMany);
  CheckRange<int64_t>("--save_every", FLAGS_save_every, 0, kMany);
  CheckRange<int64_t>("--keep", FLAGS_keep, 0, kMany);
  CheckRange<int64_t>("--eval_batches", FLAGS_eval_batches, 0, kMany);
  for (std::string* path : {&FLAGS_save, &FLAGS_resume, &FLAGS_load})
    while (path->size() > 1 && path->back() == '/') path->pop_back();
  if (FLAGS_save.empty() && FLAGS_save_every > 0) Fail("--save_every needs --save, the folder to save in");
  if (!FLAGS_resume.empty() && !FLAGS_load.empty())
    Fail("--resume goes on with a run and --load begins one: give one of the two");
  if (FLAGS_local && FLAGS_save.empty()) Fail("--local says how to --save, which is not given");
  if (FLAGS_load_partial && FLAGS_load.empty()) Fail("--load_partial says how to --load, which is not given");
  if (FLAGS_micro_batches > FLAGS_batch)
    Fail("--micro_batches=", FLAGS_micro_batches, ": more than --batch=", FLAGS_batch, " ", samples);
  if (!(FLAGS_lr > 0 && FLAGS_lr <= 1e30)) Fail("--lr is ", FLAGS_lr, ", must be more than 0, at most 1e30");
  CheckRange("--clip", FLAGS_clip, 0.0, 1e30);
  CheckRange("--average", FLAGS_average, 0.0, 0.999999);
  CheckRange("--peak_flops", FLAGS_peak_flops, 0.0, 1e30);
  PrecisionOf(FLAGS_dtype);
  if (RecomputeOf(FLAGS_recompute) == Recompute::kAuto && FLAGS_memory_budget == 0 &&
      FLAGS_topology.empty() && FLAGS_auto_mesh == 0)  // which chooses it, with or without a budget
    Fail(
        "--recompute=auto recomputes what makes the plan fit: it needs --memory_budget, the bytes of a "
        "device, or ",
        "--topology, a file that says them");
  if (const std::optional<SavedPlan> plan = PlanOfFile()) RequireFlagsAgree(*plan);
  for (const auto& [flag, folder] : {std::pair{"save", &FLAGS_save}, {"tensorboard", &FLAGS_tensorboard}})
    if (!folder->empty() && *folder == FLAGS_save_plan)
      Fail("--save_plan=", FLAGS_save_plan, " is the folder of --", flag, "; name a file");
  BytesOfBucket();
  ScheduleNamed(FLAGS_schedule);
  LayersOfStages();
  CheckRange("--virtual_stages", FLAGS_virtual_stages, 1, 1000);
  CheckRange("--overlap", FLAGS_overlap, 1, kMostChunks);
  CheckRange("--link", FLAGS_link, 0.0, 1e9);
  ParseWantedAlgorithms(FLAGS_collective, Cat("--collective=", FLAGS_collective));
  if (!FLAGS_collective.empty() && !FLAGS_mesh.empty() && Mesh::Parse(FLAGS_mesh).kind() != "cpu")
    Fail("--collective=", FLAGS_collective, ": on --mesh=", FLAGS_mesh,
         " NCCL chooses how messages are sent");
  CheckRange("--zero", FLAGS_zero, 0, 3);
  CheckRange("--prefetch", FLAGS_prefetch, 0, 1000);
  CheckRange("--auto_mesh", FLAGS_auto_mesh, 0, kMostDevices);
}

namespace {

// What flags of any program that trains name to be read, whole or in part.
std::vector<std::pair<std::string, std::string>> InputsOfFlags() {
  std::vector<std::pair<std::string, std::string>> inputs;
  gflags::CommandLineFlagInfo known;
  for (const char* flag : {"topology", "plan", "load", "resume", "load_hf"})
    if (gflags::GetCommandLineFlagInfo(flag, &known)) inputs.push_back({flag, known.current_value});
  if (gflags::GetCommandLineFlagInfo("images", &known) && !known.current_value.empty())
    for (const char* part : {"/train", "/val"}) inputs.push_back({"images", known.current_value + part});
  return inputs;
}

}  // namespace

ProgramFlags TrainingProgram() {
  const std::optional<SavedPlan> plan = PlanOfFile();
  return {.simulates = FLAGS_simulate,
          .chosen_mesh_devices = plan ? plan->decisions.mesh.size() : FLAGS_auto_mesh,
          .chosen_by = plan ? Cat("--plan=", FLAGS_plan) : Cat("--auto_mesh=", FLAGS_auto_mesh),
          .saves = true,
          .save_folder = FLAGS_save,
          .local = FLAGS_local,
          .batch = FLAGS_batch,
          .micro_batches = FLAGS_micro_batches,
          .inputs = InputsOfFlags(),
          .outputs = {{"save_plan", FLAGS_save_plan}}};
}

bool IsGiven(const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; }

void SetDefault(const char* flag, const char* value) {
  gflags::SetCommandLineOptionWithMode(flag, value, gflags::SET_FLAGS_DEFAULT);
}

ModelOptions ModelOptionsOfFlags(const Launcher& launcher) {
  CheckTopology();
  launcher.RequireSameFlags();
  ModelOptions options = launcher.model_options();
  if (FLAGS_simulate) options.trace_file.clear();  // it gets what is simulated
  options.pipeline = {.virtual_stages = FLAGS_virtual_stages, .layers = LayersOfStages()};
  if (FLAGS_zero > 0)
    options.zero = {.axis = FLAGS_zero_axis, .stage = FLAGS_zero, .prefetch = FLAGS_prefetch};
  options.zero.bucket_bytes = BytesOfBucket();
  options.link.bandwidth = FLAGS_link * 1e6 / 8;
  options.topology = FLAGS_topology;
  options.collectives = FLAGS_collective;
  if (FLAGS_auto) options.auto_cuts = AutoCuts::kAll;
  return options;
}

uint64_t SeedOfFlags() { return FLAGS_seed; }

TrainOptions TrainOptionsOfFlags() {
  TrainOptions options;
  options.micro_batches = static_cast<int>(FLAGS_micro_batches);
  options.steps_in_flight = kStepsInFlight;
  options.schedule = ScheduleNamed(FLAGS_schedule);
  options.dtype = PrecisionOf(FLAGS_dtype);
  options.recompute = RecomputeOf(FLAGS_recompute);
  options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
  options.overlap.chunks = FLAGS_overlap;
  options.clip_norm = FLAGS_clip;
  options.average.decay = FLAGS_average;
  const int64_t total = FLAGS_schedule_steps > 0 ? FLAGS_schedule_steps : FLAGS_steps;
  options.lr_schedule = {.kind = Schedule::Kind::kCosine,
                         .warmup = std::min(FLAGS_warmup, total / 2),
                         .total = total,
                         .final = 0.1};
  return options;
}

EvaluateOptions EvaluateOptionsOfFlags(const std::string& name) {
  EvaluateOptions options;
  options.name = name;
  options.dtype = PrecisionOf(FLAGS_dtype);
  options.weights = WeightsOfFlags();
  return options;
}

std::string WeightsOfFlags() { return FLAGS_average > 0 ? "average" : ""; }

}  // namespace oneflow_like
