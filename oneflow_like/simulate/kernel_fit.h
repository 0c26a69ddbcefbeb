// From times of kernels to what their operators take: seconds of each unit of work
// (compiler/cost/kernel_cost.h).
#pragma once

#include <vector>

#include "compiler/cost/kernel_cost.h"

namespace oneflow_like {

// One kernel of a plan, measured.
struct KernelSample : HostWork {
  int threads = 1;
  bool crowded = false;
  double seconds = 0;
};

// Least squares over x >= 0 of sum_i weight_i (row_i x - value_i)^2. Unknowns that the rows cannot tell apart
// share what they explain in some way. REQUIRES: rows of equal length.
std::vector<double> FitNonNegative(const std::vector<std::vector<double>>& rows,
                                   const std::vector<double>& values, const std::vector<double>& weights);

// One entry for each operator, type, number of threads and crowdedness that occurs, in the order of these. An
// operator that occurs as a step of fused kernels, too, is fitted together with all others of that kind: each
// has its own seconds of an operation, and all have those of a call and a byte together. Errors count in
// proportion to the root of a time, so that neither long kernels nor many short ones decide alone, and all
// samples of an entry together take as long as they were measured to. Of products and convolutions of devices
// arithmetic and memory overlap. Rounded to four digits. An operator for which others leave no time has no
// entry.
std::vector<MeasuredKernel> FitKernels(const std::vector<KernelSample>& samples);

// REQUIRES: there are some.
double Median(std::vector<double> values);
// To four digits.
double Rounded(double value);

}  // namespace oneflow_like
