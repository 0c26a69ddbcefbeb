// The time of steps by kinds of kernels, which the plan names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device/backend.h"

namespace oneflow_like {

namespace plan {  // core/plan.proto
class Actor;
class Kernel;
}  // namespace plan

// One kernel of the plan, on all ranks together (a runtime's: those hosted here).
struct KernelProfile {
  std::string label;  // KernelLabel
  std::string category;
  int64_t runs = 0;
  double seconds = 0;
  double flops = 0, bytes = 0;  // of all runs
};

// All seconds but `wall` are summed over the threads: kernels, waiting and runtime together are wall *
// threads.
struct StepProfile {
  int64_t steps = 0;                      // counted steps
  int64_t warm_up_steps = 0;              // earlier steps that are not counted
  int threads = 0;                        // on which the steps ran
  double wall = 0;                        // while at least one step was under way
  std::map<std::string, double> kernels;  // by the plan's categories; for collectives only the own work
  double waiting = 0;                     // time with nothing ready
  double runtime = 0;                     // between kernels: credits, messages, choosing the next act
  // Seconds for which the program waited for data before these steps (Session::Run from a source), averaged
  // over processes: part of the time between steps, not of `wall`. Negative: no step was fed from a source.
  double data = -1;
  std::vector<KernelProfile> hottest;  // all kernels that ran, the most seconds first
  // Counts of the backend of asynchronous devices. Enqueued and launched work is that of these steps,
  // including warm-up steps; refusals, recordings and bytes are the current values. Zero without such
  // devices.
  BackendCounts devices;
  // Bytes of communicators on these devices, as planned. BackendCounts::other_bytes counts what they take.
  int64_t communicator_bytes = 0;
};

// Puts them (by label) into the profile: the seconds of each category, and the hottest first.
void SetKernels(std::map<std::string, KernelProfile> kernels, StepProfile* profile);

// "h0/up: einsum gpt.cc:45"; of a collective "all_reduce h0/up.b gpt.cc:45". Names the kernel to users.
std::string KernelLabel(const plan::Actor& actor, const plan::Kernel& kernel);

}  // namespace oneflow_like
