// Calibration of devices with memory of their own (GPUs): times the kernels of a few models one by one,
// copies to and from the host, and collectives among cards.
#pragma once

#include <vector>

#include "oneflow_like/calibrate.h"
#include "oneflow_like/simulate/kernel_fit.h"

namespace oneflow_like {

// Throws Error if the devices cannot be opened.
Machine CalibrateDevices(const CalibrateOptions& options);

// A kernel's work as estimates take it (SecondsOf), and how long it was measured to take.
struct EstimatedSample {
  Work work;
  DType dtype = DType::kFloat32;
  double seconds = 0;
};
// The constants of estimates (Machine::efficiency) with which the samples of products, and of attention, in
// 16 bits take as long together as they did. REQUIRES: the machine's peaks and bandwidth.
Efficiency FitEfficiency(const Machine& machine, const std::vector<EstimatedSample>& samples);

}  // namespace oneflow_like
