// What the files of the program `bench` share: the machine's ceilings, measured once per run, and the models
// that are measured. Rates are counters of Google Benchmark; "of_peak" is the share of the ceiling of the
// same run.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "examples/gpt_model.h"

namespace oneflow_like::bench {

using namespace examples;

// What this machine can do with so many threads, each measured on first use and then remembered.
struct Ceiling {
  double sgemm = 0;  // flop/s of the best large square fp32 product
  double bf16 =
      0;  // the same with bf16 operands and packed weights; 0 where the processor has no such product
  double triad = 0;  // bytes/s of a[i] = b[i] + s * c[i] on arrays far larger than the caches
};
const Ceiling& CeilingOf(int threads);

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct MeasuredModel {
  std::string name;
  GptConfig config;
  int64_t batch = 0;
  int steps = 0;  // measured in one run, after two that are not
  int64_t tokens() const { return batch * config.context; }
};
const std::vector<MeasuredModel>& MeasuredModels();

// The model and its training with AdamW on a mesh of `dp` devices.
class Training {
 public:
  Training(const MeasuredModel& measured, int dp, int threads, int kernel_threads,
           DType dtype = DType::kFloat32);
  Session& session() { return session_; }
  Model& model() { return model_; }
  double Step();  // runs one step on new tokens and gives its loss

 private:
  MeasuredModel measured_;
  Model model_;
  Session session_;
  int64_t steps_ = 0;
};

// Each file's benchmarks that are not known before the program runs.
void RegisterBoxing();
void RegisterKernels();
void RegisterGptSteps();

}  // namespace oneflow_like::bench
