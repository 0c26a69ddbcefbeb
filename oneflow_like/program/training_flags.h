// Flags that all programs which train have (--help says what they mean), and what they ask for. A program
// defines two of them itself, as it knows what its samples are: --batch and --eval_batches.
#pragma once

#include <gflags/gflags_declare.h>

#include <cstdint>
#include <string>

#include "oneflow_like/oneflow_like.h"

DECLARE_int64(batch);         // defined by the program
DECLARE_int64(eval_batches);  // defined by the program
DECLARE_int64(steps);
DECLARE_double(lr);
DECLARE_string(dtype);
DECLARE_int64(micro_batches);
DECLARE_string(plan);
DECLARE_string(save_plan);
DECLARE_bool(simulate);
DECLARE_bool(compare_data);
DECLARE_string(log_json);
DECLARE_string(tensorboard);
DECLARE_double(peak_flops);
DECLARE_string(save);
DECLARE_int64(save_every);
DECLARE_bool(local);
DECLARE_int64(keep);
DECLARE_string(resume);
DECLARE_string(load);
DECLARE_bool(load_partial);

namespace oneflow_like {

inline constexpr int kStepsInFlight = 2;
inline const char* const kTrainingMesh = "cpu:dp=1,tp=1,pp=1";  // the default

// What these flags mean to the Launcher of a program: its last argument.
ProgramFlags TrainingProgram();
// Throws Error for what is out of range or contradicts itself; takes the slash off the end of folders.
// `samples` is what a batch has: "sequences".
void CheckTrainingFlags(const std::string& samples);
bool IsGiven(const char* flag);  // and not left at its default
// Another default, of a program; before its Launcher is made.
void SetDefault(const char* flag, const char* value);
// --auto, --virtual_stages, --stages, --zero, --zero_axis, --prefetch, --bucket, and the launcher's own. Call
// it when all files that flags name are open, because later failures count as those of the run
// (Launcher::Main). Collective. Throws Error for a --topology with too few devices, and for flags that differ
// between processes.
ModelOptions ModelOptionsOfFlags(const Launcher& launcher);
uint64_t SeedOfFlags();
// Roles of mesh axes dp and tp among them.
TrainOptions TrainOptionsOfFlags();
// Options of what computes with the weights after the training, in --dtype: with --average with their
// averages.
EvaluateOptions EvaluateOptionsOfFlags(const std::string& name);
// The value for EvaluateOptions::weights and Conversion::weights: "average" with --average, else empty.
std::string WeightsOfFlags();

// What --simulate prints of a session, whose step makes `per_step` of `unit`; nothing is run.
void PrintSimulation(const Launcher& launcher, const Session& session, double per_step,
                     const std::string& unit);

}  // namespace oneflow_like
