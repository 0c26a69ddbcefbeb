// Calibrate: measures this machine and describes it as a topology file does. Simulations on the description
// predict the times of runs here (docs/simulation.md).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compiler/cost/machine.h"

namespace oneflow_like {

class Job;  // actor/net/talk/job.h
namespace plan {
class Kernel;  // core/plan.proto
class Plan;
}  // namespace plan

inline constexpr int kMostModels = 9;

struct CalibrateOptions {
  // Number of rounds over all measurements (at least 3). The time of a kernel is the median over the faster
  // half of its model's steps, which other programs disturbed least; that of waits for messages is the mean
  // of the shorter three quarters.
  int rounds = 6;
  // Number of models that are trained to measure their kernels: the first ones of the list.
  int models = kMostModels;
  // Number of cores of the described machine, at most those of this one. 0: all.
  int cores = 0;
  // A job whose processes are all on this host; messages between them are measured, too. All processes call
  // Calibrate with the same options; process 0 gets the machine, the others one without its kernels. nullptr:
  // messages between processes are assumed to take as long as those between threads.
  std::shared_ptr<Job> job;
  // The kind of device: "cpu", or "cuda" for the GPUs of this host, of which one is measured, and collectives
  // among all. Of the options above only `models` then counts.
  std::string kind = "cpu";
  // Numbers of the GPUs; the first one is measured. Empty: all.
  std::vector<int> devices;
  // Models, copies and products of sizes that say nothing of a GPU, for an emulator.
  bool small = false;
  // Replaces the clock for kernels of GPUs: returns the seconds of one run of a kernel, which is not run
  // then; all else is measured as if `small`. Empty: each is run and measured.
  std::function<double(const plan::Kernel&)> time;
  // The same for a whole training step of a plan, of which `time` alone has none measured.
  std::function<double(const plan::Plan&)> time_step;
  // Called now and then with the name of the current measurement. May be empty.
  std::function<void(const std::string& what)> progress;
};

// On a processor, trains small models like GPT and Llama here (in fp32 and bf16, of different shapes; none is
// kept) on one thread, on one thread whose kernels use all cores, and on as many threads as there are cores,
// and measures each kernel. So kernels find caches and neighbours as in a training. Operators that do not
// occur in such models keep their estimate by peak and bandwidth. Throws Error for options out of range.
// Nothing else should run on the machine meanwhile; programs that run for less than half of the time change
// little. On a GPU, times the kernels of a few compiled models one by one, some of these models' whole steps,
// and copies to the host and back, in about a minute; where there are several cards, collectives among them,
// too. Throws Error where there is no GPU.
Machine Calibrate(const CalibrateOptions& options = {});

// Returns the kind of the devices of a mesh of this text. Throws Error if they cannot be measured: there are
// none here, or they are of several kinds. For --calibrate=FILE.
std::string CheckCalibration(const std::string& mesh);
// Calibrates; process 0 writes the topology file. Throws Error if it cannot be written.
void CalibrateTo(const std::string& file, const CalibrateOptions& options);

}  // namespace oneflow_like
