// The flags of programs that train, and what they ask for. What each flag does: TrainingGroups(),
// --help=GROUP, docs/flags.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/oneflow_like.h"

namespace oneflow_like {

// Values of the flags of these names. A program sets its own defaults here before it makes its Launcher.
struct TrainingFlags {
  std::string unit = "samples";  // what a batch consists of, for messages: "sequences". No flag
  int64_t batch = 64, steps = 200, eval_batches = 16, micro_batches = 1;
  double lr = 1e-3;
  int64_t warmup = 20, schedule_steps = 0;
  double clip = 1, average = 0;
  std::string dtype = "fp32";
  bool compare_data = true;

  std::string schedule = "1f1b", stages = "auto", recompute = "none", zero_axis = "dp", bucket = "25MB";
  int32_t virtual_stages = 1, zero = 0, prefetch = 1, overlap = 1, auto_mesh = 0;
  bool gather_again = false, automatic = false;  // automatic: --auto
  double link = 0;
  std::string offload, collective, reduce_dtype = "fp32", reduce_axis, topology, plan, save_plan;
  bool simulate = false;

  std::string save, resume, load;
  int64_t save_every = 0, keep = 3;
  bool local = false, load_partial = false;

  std::string log_json, tensorboard;
  double peak_flops = 0;
};
TrainingFlags& training_flags();  // of this process

// "training", "parallelism", "checkpoints", "metrics".
std::vector<FlagGroup> TrainingGroups();

inline constexpr int kStepsInFlight = 2;
inline const char* const kTrainingMesh = "cpu:dp=1,tp=1,pp=1";  // the default
// Mesh axes of every program, and those that a mesh may have: copies of the model whose ZeRO is their own.
inline const std::vector<std::string> kAxes = {"dp", "tp", "pp"}, kMoreAxes = {"replica"};
// The mesh axis that cuts the batch of a program: "dp", or with axis replica both, "replica*dp".
std::string BatchAxis(const Mesh& mesh);
inline Annotation CutBatch(const Mesh& mesh) { return {{BatchAxis(mesh), S(0)}}; }

// Returns what these flags mean to the Launcher of a program. Throws Error for a mesh of several kinds of
// devices with --auto_mesh.
ProgramFlags TrainingProgram();
int64_t BytesOfBucket();  // --bucket
// Throws Error if flags contradict one another; takes the slash off the end of folders.
void CheckTrainingFlags();
// Returns what the groups "parallelism" and those of the launcher ask of a model. Call it when all files that
// flags name are open, because later failures count as those of the run (Launcher::Main). Collective. Throws
// Error for a --topology with too few devices, and for flags that differ between processes.
ModelOptions ModelOptionsOfFlags(const Launcher& launcher);
// Throws Error, which begins with `who`, for a mesh that is too large for plans.
void RequireMeshSize(const Mesh& mesh, const std::string& who);
// Throws Error if --virtual_stages is given and a pipeline of `pp` stages has but one.
void RequireStagesFor(int pp);
// Throws Error, naming the flag, where --zero_axis or --reduce_axis names an axis that the mesh lacks.
void RequireAxesOfFlags(const Mesh& mesh);
uint64_t SeedOfFlags();
// Roles of mesh axes dp and tp among them.
TrainOptions TrainOptionsOfFlags();
// Returns the options of what computes with the weights after the training, in --dtype: with --average with
// their averages.
EvaluateOptions EvaluateOptionsOfFlags(const std::string& name);
// Returns the value for EvaluateOptions::weights and Conversion::weights: "average" with --average, else
// empty.
std::string WeightsOfFlags();

// Prints what --simulate finds about a session, whose step makes `per_step` of `unit`; nothing is run.
void PrintSimulation(const Launcher& launcher, const Session& session, double per_step,
                     const std::string& unit);

}  // namespace oneflow_like
