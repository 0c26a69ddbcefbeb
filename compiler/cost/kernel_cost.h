// What the kernels and collectives of a plan take on a machine: estimated from their work, or as measured
// there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/cost/collective_costs.h"
#include "compiler/cost/cost.h"
#include "core/device/kernel.h"
#include "sbp/boxing_load.h"

namespace oneflow_like {

namespace plan {  // core/plan.proto
class Collective;
class Kernel;
}  // namespace plan

// The work of one act of a kernel, and the narrowest floating type among its operands, which determines its
// rate. REQUIRES: no collective.
Work WorkOf(const plan::Kernel& kernel);
DType RateType(const plan::Kernel& kernel);
// Estimated seconds of one act.
double SecondsOf(const Machine& machine, const plan::Kernel& kernel);

// What is measured of an act on a host, and how much of it there is. Simulation and calibration share it.
struct HostWork {
  std::string name;                     // MeasuredKernel::name
  std::vector<std::string> steps = {};  // of a kernel that does these in one pass over memory
  DType dtype = DType::kFloat32;
  Work work = {};
};
// Of a kernel, as its entry of `kernels` divides its work (KernelCost). `near_bytes`: Machine::NearBytes.
HostWork HostWorkOf(const plan::Kernel& kernel, const KernelRegistry& kernels, double near_bytes);
// Of what one member moves itself in an act of a collective whose elements have so many bytes, on average
// over a step's acts: bytes that it reads and writes.
HostWork HostWorkOf(const plan::Collective& collective, size_t element_bytes);

// Seconds of an act on a thread of a host: while its other cores are idle, and while they work.
struct ThreadSeconds {
  double alone = 0, crowded = 0;
};
// As measured, of work that may use so many threads; nullopt: nothing of the kind was.
std::optional<ThreadSeconds> MeasuredSeconds(const Machine& machine, const HostWork& of, int threads);
// Of a kernel: as measured, else as estimated.
ThreadSeconds SecondsOnThreads(const Machine& machine, const plan::Kernel& kernel,
                               const KernelRegistry& kernels, int threads);

// The memory and links that one act of collective `n` asks for: as measured, where such a group of its kind
// was, else from latency and bandwidth of the links, by the algorithm that it names. `costs`: of this graph,
// on the links of the machine.
BoxingLoad LoadOf(const Machine& machine, const Graph& graph, int n, CollectiveCosts* costs);

}  // namespace oneflow_like
