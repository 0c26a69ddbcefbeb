// Seconds that kernels and collectives of a plan take on a machine, from measurements of that machine where
// it has some, and from estimates elsewhere.
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

// The work of one act where kernels were measured: which measurement its time comes from, and the amounts
// that it multiplies.
struct HostWork {
  std::string name;                     // MeasuredKernel::name
  std::vector<std::string> steps = {};  // of a kernel that does these in one pass over memory
  DType dtype = DType::kFloat32;
  Work work = {};
};
// The work of a kernel, divided as the entry of the CPU's kernel in `kernels` says (KernelCost), also for a
// device. `near_bytes`: Machine::NearBytes.
HostWork HostWorkOf(const plan::Kernel& kernel, const KernelRegistry& kernels, double near_bytes);
// The work of one member of a collective: the bytes that it reads and writes itself in an act, on average
// over the acts of a step. An element has `element_bytes`.
HostWork HostWorkOf(const plan::Collective& collective, size_t element_bytes);

// Seconds of an act on a thread of a host: while its other cores are idle, and while they work. On a device
// both are the same.
struct ThreadSeconds {
  double alone = 0, crowded = 0;
};
// As measured, of work that may use `threads` threads (0: of a device); nullopt: nothing of the kind was.
std::optional<ThreadSeconds> MeasuredSeconds(const Machine& machine, const HostWork& of, int threads);
// The seconds of a kernel: measured, or estimated where no measurement has its name.
ThreadSeconds SecondsOnThreads(const Machine& machine, const plan::Kernel& kernel,
                               const KernelRegistry& kernels, int threads);

// The measurement of such a collective among such a group; nullptr: there is none.
const MeasuredCollective* MeasuredOf(const Machine& machine, const BoxingLoad& load);
// The memory and links that one act of collective `n` asks for: as measured, where such a group of its kind
// was, else from latency and bandwidth of the links, by the algorithm that it names. `costs`: of this graph,
// on the links of the machine.
BoxingLoad LoadOf(const Machine& machine, const Graph& graph, int n, CollectiveCosts* costs);

}  // namespace oneflow_like
