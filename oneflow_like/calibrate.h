// Calibration: this machine as a topology file describes one, measured. Simulations on it predict what runs
// here (docs/simulation.md).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compiler/cost/machine.h"

namespace oneflow_like {

class Job;  // actor/net/talk/job.h

inline constexpr int kMostModels = 9;

struct CalibrateOptions {
  // Rounds over all that is measured, in which each takes its turn. Of kernels the median over the faster
  // half of their model's steps counts, which others disturbed least; of waits for messages the mean of the
  // shorter three quarters. At least 3.
  int rounds = 6;
  int models = kMostModels;  // that are trained to watch their kernels: the first ones of those below
  int cores = 0;             // that the described machine has, at most those of this one; 0: all
  // Of processes that are all on this host: messages between them are measured, too. All of them call
  // Calibrate with the same options; process 0 gets the machine, the others one without its kernels. nullptr:
  // messages between processes are taken for those between threads.
  std::shared_ptr<Job> job;
  std::function<void(const std::string& what)> progress;  // told now and then what is measured; may be empty
};

// Trains small models here (of GPT's and Llama's kind, in fp32 and bf16, of different shapes; none is kept)
// on one thread, on one thread whose kernels use all cores, and on as many threads as there are cores, and
// takes the time of each kernel from there. So kernels find caches and neighbours as in a training; operators
// that do not occur in such models keep the estimate by peak and bandwidth. Throws Error for options out of
// range. Nothing else should run on the machine meanwhile; what does for less than half of the time changes
// little.
Machine Calibrate(const CalibrateOptions& options = {});

// For --calibrate=FILE: throws Error when a mesh of this text asks for devices that cannot be measured.
void CheckCalibration(const std::string& mesh);
// Calibrates and writes the topology file (from process 0). Throws Error when it cannot be written.
void CalibrateTo(const std::string& file, const CalibrateOptions& options);

}  // namespace oneflow_like
