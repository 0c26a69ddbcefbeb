#include "oneflow_like/program/training_flags.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "oneflow_like/launch/launcher_flags.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/picture_data.h"
#include "oneflow_like/program/plan_file.h"
#include "oneflow_like/program/precision.h"
#include "oneflow_like/simulate.h"
#include "sbp/collective_cost.h"

namespace oneflow_like {
namespace {

constexpr double kMostBucketBytes = 0x1p40;

Recompute RecomputeOf(const std::string& name) {
  // What gathers again is another flag's.
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
  if (training_flags().stages == "auto") return layers;
  if (training_flags().stages.empty())
    Fail("--stages is empty: must be auto, or numbers of layers like 3,4,4,3");
  std::stringstream text(training_flags().stages);
  for (std::string number; std::getline(text, number, ',');) {
    size_t used = 0;
    try {
      layers.push_back(std::stoll(number, &used));
    } catch (const std::exception&) {
      used = std::string::npos;
    }
    if (number.empty() || used != number.size())
      Fail("--stages=", training_flags().stages, ": must be auto, or numbers of layers like 3,4,4,3");
  }
  return layers;
}

// Machines that cannot be planned for or simulated are refused before anything has begun.
void CheckTopology() {
  if (training_flags().simulate && training_flags().topology.empty())
    Fail("--simulate needs --topology, a file that describes the machines; examples/topologies has some");
  if (training_flags().topology.empty()) return;
  const int64_t chosen = TrainingProgram().chosen_mesh_devices;
  RequireDevices(
      ReadTopology(training_flags().topology),
      chosen > 0 ? chosen
                 : Mesh::Parse(launcher_flags().mesh.empty() ? kTrainingMesh : launcher_flags().mesh).size());
}

}  // namespace

void RequireMeshSize(const Mesh& mesh, const std::string& who) {
  if (mesh.size() > kMostDevices)
    Fail(who, ": ", mesh.size(), " devices, but plans can be made for at most ", kMostDevices);
  const bool estimated = !training_flags().topology.empty() && mesh.kind() != "cuda";
  const int most = estimated ? kMostEstimatedAlongAxis : kMostAlongAxis;
  for (int a = 0; a < mesh.rank(); ++a)
    if (mesh.axis_size(a) > most)
      Fail(who, ": ", mesh.axis_size(a), " devices along axis ", mesh.axis_name(a), ", but plans",
           estimated ? " of processors with --topology" : "", " can be made for at most ", most,
           " along one; cut along two axes");
}

TrainingFlags& training_flags() {
  static auto* flags = new TrainingFlags;  // gflags keeps pointers to the fields
  return *flags;
}

int64_t BytesOfBucket() { return ParseBytes("bucket", training_flags().bucket, kMostBucketBytes); }

std::vector<FlagGroup> TrainingGroups() {
  constexpr double kMany = 1e9;
  TrainingFlags& f = training_flags();
  return {
      {"training",
       "Training",
       {{"batch", &f.batch, Cat("Sets how many ", f.unit, " one step takes, over all devices."),
         RangeOf(1, 1 << 20), kCommon | kKept},
        {"micro_batches", &f.micro_batches, "Divides the batch into this many parts, one after the other.",
         RangeOf(1, kMostMicroBatches), kCommon},
        {"steps", &f.steps, "Trains until this many optimizer steps have been made.", RangeOf(1, kMany),
         kCommon},
        {"lr", &f.lr, "Sets the highest learning rate, from which a cosine falls to a tenth.",
         RangeAbove(0, 1e30), kCommon},
        {"warmup", &f.warmup,
         "Raises the learning rate linearly for this many steps, but at most half of all, before the cosine "
         "decay.",
         RangeOf(0, kMany)},
        {"schedule_steps", &f.schedule_steps,
         "Sets the number of steps after which the cosine decay ends; 0 means --steps.", RangeOf(0, kMany)},
        {"clip", &f.clip, "Scales gradients down to this norm if theirs is larger; 0 never does.",
         RangeOf(0, 1e30), kKept},
        {"average", &f.average,
         "Keeps averages of the weights with this decay, for example 0.999, and evaluates with them; 0 keeps "
         "none.",
         RangeOf(0, 0.999999)},
        {"dtype", &f.dtype, "Computes matrix products and activations in fp32, bf16 or fp16.",
         ChoiceOf({"fp32", "bf16", "fp16"}), kCommon | kKept},
        {"eval_batches", &f.eval_batches,
         Cat("Measures at most this many batches of held-out ", f.unit, " at the end; 0 measures none."),
         RangeOf(0, kMany)},
        {"compare_data", &f.compare_data, "Requires that the files of all hosts have equal contents."}}},
      {"parallelism",
       "Parallelism",
       {{"zero", &f.zero,
         "Cuts the optimizer state over --zero_axis (1), also gradients (2), also weights (3); 0 cuts "
         "nothing.",
         RangeOf(0, 3), kCommon},
        {"zero_axis", &f.zero_axis, "Names the mesh axis of --zero, or several such as dp*tp."},
        {"prefetch", &f.prefetch,
         "Gathers the weights of this many layers ahead with --zero=3, and copies this many ahead with "
         "--offload.",
         RangeOf(0, kMostAhead)},
        {"offload", &f.offload,
         "Keeps parts in the memory of the hosts: activations, optimizer, optimizer:0.5 (a share), weights "
         "and tables, separated by commas."},
        {"recompute", &f.recompute,
         "Recomputes parts of each layer in the backward pass to save memory: none, selective, full or auto.",
         ChoiceOf({"none", "selective", "full", "auto"}), kCommon},
        {"gather_again", &f.gather_again,
         "Sends messages again in the backward pass instead of keeping their results."},
        {"schedule", &f.schedule,
         "Orders the micro-batches of a pipeline: 1f1b, gpipe, interleaved or zero_bubble.",
         ChoiceOf({"1f1b", "gpipe", "interleaved", "zero_bubble"})},
        {"virtual_stages", &f.virtual_stages,
         "Distributes the layers over the stages of a pipeline in this many rounds.",
         RangeOf(1, kMostRounds)},
        {"stages", &f.stages,
         "Lists the number of layers of each stage, for example 3,5; auto divides them by time."},
        {"auto_mesh", &f.auto_mesh,
         "Finds mesh, micro-batches, schedule, ZeRO and recomputation for this many devices; 0 takes --mesh.",
         RangeOf(0, kMostDevices), kCommon},
        {"auto", &f.automatic,
         "Chooses the mesh axes along which each weight is cut, by the estimated time of a step."},
        {"plan", &f.plan,
         "Uses the plan in this file, which --save_plan wrote, instead of searching for one."},
        {"save_plan", &f.save_plan, "Writes the plan of the run to this file."},
        {"topology", &f.topology, "Plans for the machines that this file describes."},
        {"simulate", &f.simulate,
         "Runs the plan on a virtual clock, on the machines of --topology, and prints what a step takes."},
        {"bucket", &f.bucket,
         "Joins small messages of weights and gradients up to this size, for example 25MB; 0 joins none.",
         BytesUpTo(kMostBucketBytes)},
        {"overlap", &f.overlap,
         "Cuts matrix products into up to this many chunks, so that one is computed while another is sent.",
         RangeOf(1, kMostChunks)},
        {"link", &f.link,
         "Sets the bandwidth between hosts that estimates assume, in Mbit/s; 0 means the default of the kind "
         "of device.",
         RangeOf(0, 1e9)},
        {"collective", &f.collective,
         "Names the algorithm by which processors exchange messages, for example ring or "
         "all_reduce:ring,all_gather:direct; empty chooses the cheapest."},
        {"reduce_dtype", &f.reduce_dtype, "Sends and sums gradients in fp32, bf16 or fp16.",
         ChoiceOf({"fp32", "bf16", "fp16"})},
        {"reduce_axis", &f.reduce_axis,
         "Limits --reduce_dtype to these mesh axes, for example replica; empty means all."}}},
      {"checkpoints",
       "Checkpoints",
       {{"save", &f.save, "Writes checkpoints to this folder.", kAnyValue, kCommon},
        {"save_every", &f.save_every,
         "Sets after how many steps a checkpoint is saved; 0 saves only at the end.", RangeOf(0, kMany),
         kCommon},
        {"keep", &f.keep, "Keeps this many of the newest checkpoints; 0 keeps all.", RangeOf(0, kMany)},
        {"resume", &f.resume,
         "Continues from the newest checkpoint in this folder, or from the one that is named; without any, "
         "the run starts afresh.",
         kAnyValue, kCommon},
        {"load", &f.load, "Begins with the weights of a checkpoint or a safetensors file."},
        {"load_partial", &f.load_partial,
         "Allows --load to skip weights that only the model or only the file has."},
        {"local", &f.local,
         "Saves the part of each host on its own disk, in a folder of the name of --save."}}},
      {"metrics",
       "Metrics",
       {{"log_json", &f.log_json, "Writes one JSON object per step to this file.", kAnyValue,
         kCommon | kPerProcess},
        {"tensorboard", &f.tensorboard, "Writes TensorBoard's event files to this folder.", kAnyValue,
         kCommon | kPerProcess},
        {"peak_flops", &f.peak_flops,
         "Sets the floating-point operations per second of a device, for mfu; 0 means unknown.",
         RangeOf(0, 1e30)}}}};
}

void PrintSimulation(const Launcher& launcher, const Session& session, double per_step,
                     const std::string& unit) {
  if (!launcher.main_process()) return;
  const Simulated simulated =
      Simulate(session, ReadTopology(training_flags().topology),
               {.trace_file = launcher_flags().trace, .processes = launcher_flags().processes});
  launcher.Print("%s", simulated.Text(per_step, unit).c_str());
}

void CheckTrainingFlags() {
  RequireMeshSize(Mesh::Parse(launcher_flags().mesh.empty() ? kTrainingMesh : launcher_flags().mesh),
                  "--mesh=" + launcher_flags().mesh);
  for (std::string* path : {&training_flags().save, &training_flags().resume, &training_flags().load})
    while (path->size() > 1 && path->back() == '/') path->pop_back();
  if (training_flags().save.empty() && training_flags().save_every > 0)
    Fail("--save_every needs --save, the folder to save in");
  if (!training_flags().resume.empty() && !training_flags().load.empty())
    Fail("--resume goes on with a run and --load begins one: give one of the two");
  if (IsGiven("keep") && training_flags().save.empty())
    Fail("--keep=", training_flags().keep, " says how many checkpoints of --save stay, which is not given");
  if (training_flags().local && training_flags().save.empty())
    Fail("--local says how to --save, which is not given");
  if (training_flags().load_partial && training_flags().load.empty())
    Fail("--load_partial says how to --load, which is not given");
  if (training_flags().micro_batches > training_flags().batch)
    Fail("--micro_batches=", training_flags().micro_batches, ": more than --batch=", training_flags().batch,
         " ", training_flags().unit);
  if (PrecisionOf(training_flags().reduce_dtype, "reduce_dtype") == DType::kFloat16 &&
      training_flags().dtype != "fp16")
    Fail("--reduce_dtype=fp16 with --dtype=", training_flags().dtype,
         ": sums in fp16 overflow, which only the loss ", "scale of --dtype=fp16 notices; use bf16");
  const std::optional<SavedPlan> plan = PlanOfFile();
  if (plan) {
    RequireFlagsAgree(*plan);
    TakeSequenceCuts(*plan);
  }
  if (RecomputeOf(training_flags().recompute) == Recompute::kAuto && MemoryBudget() == 0 &&
      training_flags().topology.empty() &&
      training_flags().auto_mesh == 0)  // which chooses it, with or without a budget
    Fail(
        "--recompute=auto recomputes what makes the plan fit: it needs --memory_budget, the bytes of a "
        "device, or ",
        "--topology, a file that says them");
  if (!training_flags().reduce_axis.empty() && training_flags().reduce_dtype == "fp32" &&
      !(plan && plan->decisions.reduce_dtype))
    Fail("--reduce_axis=", training_flags().reduce_axis,
         " says where --reduce_dtype applies, which is not given");
  for (const auto& [flag, folder] :
       {std::pair{"save", &training_flags().save}, {"tensorboard", &training_flags().tensorboard}})
    if (!folder->empty() && *folder == training_flags().save_plan)
      Fail("--save_plan=", training_flags().save_plan, " is the folder of --", flag, "; name a file");
  LayersOfStages();
  ParseOffload(training_flags().offload, "--offload=" + training_flags().offload);
  ParseWantedAlgorithms(training_flags().collective, Cat("--collective=", training_flags().collective));
  if (!training_flags().collective.empty() && !launcher_flags().mesh.empty() &&
      Mesh::Parse(launcher_flags().mesh).kind() != "cpu")
    Fail("--collective=", training_flags().collective, ": on --mesh=", launcher_flags().mesh,
         " NCCL chooses how messages are sent");
  if (training_flags().zero > 0 && training_flags().zero_axis.empty())
    Fail("--zero=", training_flags().zero, " needs --zero_axis, the mesh axis that cuts variables");
  if (training_flags().zero > 0 && training_flags().zero_axis == "pp")
    Fail("--zero_axis=pp: stages have weights of their own, which pp cuts no further; name another axis");
  const TrainingFlags& f = training_flags();
  const bool chosen = f.auto_mesh > 0 || !f.plan.empty();  // and with it the stage of ZeRO
  if (IsGiven("zero_axis") && f.zero == 0 && !chosen)
    Fail("--zero_axis=", f.zero_axis, " says over what --zero cuts variables, which is not given");
  if (IsGiven("prefetch") && f.zero != 3 && f.offload.empty() && !chosen)
    Fail("--prefetch=", f.prefetch,
         " says how early --zero=3 gathers weights and --offload copies, and --zero is ", f.zero,
         " and --offload empty");
}

namespace {

// What flags of programs that train name to be read, whole or in part. Empty: the flag is not given.
std::vector<std::pair<std::string, std::string>> InputsOfFlags() {
  const TrainingFlags& f = training_flags();
  std::vector<std::pair<std::string, std::string>> inputs = {{"topology", f.topology},
                                                             {"plan", f.plan},
                                                             {"load", f.load},
                                                             {"resume", f.resume},
                                                             {"load_hf", hugging_face_flags().load_hf}};
  if (const std::string& images = picture_flags().images; !images.empty())
    for (const char* part : {"/train", "/val"}) inputs.push_back({"images", images + part});
  return inputs;
}

}  // namespace

ProgramFlags TrainingProgram() {
  if (const std::string& mesh = launcher_flags().mesh;
      training_flags().auto_mesh > 0 && mesh.substr(0, mesh.find(':')).find('+') != std::string::npos)
    Fail("--mesh=", mesh, ": --auto_mesh finds plans for devices of one kind; name one, as in --mesh=cuda");
  const std::optional<SavedPlan> plan = PlanOfFile();
  return {.simulates = training_flags().simulate,
          .chosen_mesh_devices = plan ? plan->decisions.mesh.size() : training_flags().auto_mesh,
          .chosen_by =
              plan ? Cat("--plan=", training_flags().plan) : Cat("--auto_mesh=", training_flags().auto_mesh),
          .saves = true,
          .save_folder = training_flags().save,
          .local = training_flags().local,
          .batch = training_flags().batch,
          .micro_batches = training_flags().micro_batches,
          .inputs = InputsOfFlags(),
          .outputs = {{"save_plan", training_flags().save_plan}}};
}

std::string BatchAxis(const Mesh& mesh) {
  const int replica = mesh.FindAxis("replica");
  return replica < 0 || HasAxis(mesh.FindAxes("dp"), replica) ? "dp" : "replica*dp";
}

ModelOptions ModelOptionsOfFlags(const Launcher& launcher) {
  CheckTopology();
  launcher.RequireSameFlags();
  ModelOptions options = launcher.model_options();
  if (training_flags().simulate) options.trace_file.clear();  // it gets what is simulated
  options.pipeline = {.virtual_stages = training_flags().virtual_stages,
                      .layers = LayersOfStages(),
                      .layers_from = "--stages=" + training_flags().stages};
  if (training_flags().zero > 0)
    options.zero = {.axis = training_flags().zero_axis, .stage = training_flags().zero};
  options.zero.prefetch = training_flags().prefetch;  // also where a search chooses the stage
  options.zero.bucket_bytes = BytesOfBucket();
  options.offload = ParseOffload(training_flags().offload, "--offload=" + training_flags().offload);
  options.offload.prefetch = training_flags().prefetch;
  options.link.bandwidth = training_flags().link * 1e6 / 8;
  options.topology = training_flags().topology;
  options.collectives = training_flags().collective;
  if (training_flags().automatic) options.auto_cuts = AutoCuts::kAll;
  return options;
}

void RequireStagesFor(int pp) {
  if (training_flags().virtual_stages > 1 && pp == 1)
    Fail("--virtual_stages=", training_flags().virtual_stages,
         " deals layers out to the stages of a pipeline in rounds, and pp=1 is one stage; take pp=2 or more ",
         "in --mesh, or leave the flag out");
}

void RequireAxesOfFlags(const Mesh& mesh) {
  const TrainingFlags& f = training_flags();
  if (f.zero > 0) mesh.AxesOrFail(f.zero_axis, "--zero_axis=" + f.zero_axis);
  if (!f.reduce_axis.empty()) mesh.AxesOrFail(f.reduce_axis, "--reduce_axis=" + f.reduce_axis);
}

uint64_t SeedOfFlags() { return launcher_flags().seed; }

TrainOptions TrainOptionsOfFlags() {
  TrainOptions options;
  options.micro_batches = static_cast<int>(training_flags().micro_batches);
  options.steps_in_flight = kStepsInFlight;
  options.schedule = ScheduleNamed(training_flags().schedule);
  options.dtype = PrecisionOf(training_flags().dtype);
  options.reduce_dtype = PrecisionOf(training_flags().reduce_dtype, "reduce_dtype");
  options.reduce_axis = training_flags().reduce_axis;
  options.recompute = RecomputeOf(training_flags().recompute);
  if (IsGiven("gather_again")) options.gather_again = training_flags().gather_again;
  options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
  options.overlap.chunks = training_flags().overlap;
  options.clip_norm = training_flags().clip;
  options.average.decay = training_flags().average;
  const int64_t total =
      training_flags().schedule_steps > 0 ? training_flags().schedule_steps : training_flags().steps;
  options.lr_schedule = {.kind = Schedule::Kind::kCosine,
                         .warmup = std::min(training_flags().warmup, total / 2),
                         .total = total,
                         .final = 0.1};
  return options;
}

EvaluateOptions EvaluateOptionsOfFlags(const std::string& name) {
  EvaluateOptions options;
  options.name = name;
  options.dtype = PrecisionOf(training_flags().dtype);
  options.weights = WeightsOfFlags();
  return options;
}

std::string WeightsOfFlags() { return training_flags().average > 0 ? "average" : ""; }

}  // namespace oneflow_like
