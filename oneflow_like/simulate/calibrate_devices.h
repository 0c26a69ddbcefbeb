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

// A whole step of a training, and what its kernels take together as they were measured one by one.
struct StepSample {
  double seconds = 0;
  double arithmetic = 0, others = 0;  // seconds of products, convolutions and attention; of all other kernels
  double kernels = 0;                 // how many of both
};
// What whole steps have that kernels by themselves do not: a card that computes for long lowers its clock, so
// that arithmetic takes so many times as long, and there is some time between a kernel and the next.
struct StepFit {
  double arithmetic = 1, between = 0;
};
// The factor by least squares of relative errors, at least 1; then the time between kernels is the median of
// what the samples leave, so that one that something else delayed does not decide, and at least 0. Without
// samples, nothing is added. REQUIRES: samples have kernels.
StepFit FitSteps(const std::vector<StepSample>& samples);

}  // namespace oneflow_like
