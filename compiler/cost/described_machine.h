// A machine as a topology file describes it: what a simulator knows beyond what compilation assumes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compiler/cost/collective_costs.h"
#include "compiler/cost/cost.h"
#include "sbp/boxing_load.h"

namespace oneflow_like {

namespace plan {  // core/plan.proto
class Collective;
class Kernel;
}  // namespace plan

// Measured times of a collective, by the bytes of the tensor that its group has together.
struct MeasuredCollective {
  Primitive primitive = Primitive::kAllReduce;
  int members = 2;                                // of the group
  int per_unit = 2;                               // of these, in one unit of the innermost level
  std::vector<std::pair<double, double>> points;  // bytes, which rise, and seconds; at least two

  // As measured at the points. Between two, the logarithm of the time is a cubic polynomial of that of the
  // bytes, which bends as the neighbouring points do and never leaves the range of the two (linear in bytes
  // from a point at 0). Fewer bytes than at the first point take as long as there; more than at the last
  // continue at the rate of the last two.
  double SecondsOf(double bytes) const;
};

// Amounts that a kernel's time on a host grows with.
struct KernelWork {
  double call = 0, flop = 0, byte = 0;
  // Of a product: bytes of its left and right operand; of a right one stored transposed; of those whose
  // neighbours in a column, along which it is packed, are a page or more apart; of its result, and of a
  // result that it adds to.
  double left = 0, right = 0, turned = 0, strided = 0, result = 0, sum = 0;
  // Of attention: scores in its tiles, and of these such that dropout is drawn for.
  double score = 0, dropped = 0;
  // Of any other kernel: bytes in excess of those that it may find in its cores' own caches.
  double far = 0;

  bool operator==(const KernelWork&) const = default;
};
struct NamedKernelWork {
  const char* name;
  double KernelWork::*value;
  bool of_all = false;  // operators
};
inline constexpr NamedKernelWork kKernelWork[] = {
    {"call", &KernelWork::call, true}, {"flop", &KernelWork::flop, true}, {"byte", &KernelWork::byte, true},
    {"left", &KernelWork::left},       {"right", &KernelWork::right},     {"turned", &KernelWork::turned},
    {"strided", &KernelWork::strided}, {"result", &KernelWork::result},   {"sum", &KernelWork::sum},
    {"score", &KernelWork::score},     {"dropped", &KernelWork::dropped}, {"far", &KernelWork::far}};

// Measured: what kernels of one operator take, of one type, on so many threads.
struct MeasuredKernel {
  // MeasuredName of the kernel; a fused one takes the time of its steps in one pass over memory.
  // kCollectiveWork: what a thread moves for its group in a collective.
  std::string name;
  DType dtype = DType::kFloat32;  // the narrowest floating one among the operands
  int threads = 1;                // that the kernel may use
  bool crowded = false;           // while all other cores have work, too
  KernelWork each;                // seconds of each unit of its work

  // Of a kernel with so much work: what its parts take, added up.
  double SecondsOf(const KernelWork& work) const;
  bool operator==(const MeasuredKernel&) const = default;
};
inline constexpr char kCollectiveWork[] = "collective";

// Seconds of an act on a thread of a host: while its other cores are idle, and while they work.
struct ThreadSeconds {
  double alone = 0, crowded = 0;
};

struct DescribedMachine : Machine {
  std::string name;  // of the device, for people
  std::vector<MeasuredCollective> collectives;
  double memory_bytes = 0;  // of one device; 0: unknown
  int threads = 0;          // of a host that computes on its processor; 0: each device works by itself
  std::vector<MeasuredKernel> kernels;
  // Of such a host: seconds until a thread that waits learns what another one of its process, or of another
  // process there, tells it.
  double message = 0, process_message = 0;
  double process_work = 1;  // how many times as long kernels take where several processes share a mesh
  double cache_bytes = 0;  // that a core of such a host has for itself; 0: unknown

  // Of a kernel that may use so many threads: bytes that it may find in caches, or 0. Another kernel has just
  // written them: both pass through the cache, so half of the cache is left for either.
  double NearBytes(int kernel_threads) const { return cache_bytes / 2 * kernel_threads; }
};

// Under which name times of a kernel are measured: its operator, or "product" of those that multiply
// matrices.
std::string MeasuredName(const plan::Kernel& kernel);
// One call, its floating-point operations, and the bytes that it reads and writes. A product has those of
// each matrix apart: how often one is read, packed or written depends on the extents of the others. Attention
// works on whole tiles of queries, unless there are few, up to the last key that one of them sees: its
// operations and scores are those of these tiles. `near_bytes`: NearBytes of the machine.
KernelWork WorkOf(const plan::Kernel& kernel, double near_bytes = 0);
// The narrowest floating type among a kernel's operands, which determines its rate.
DType RateType(const plan::Kernel& kernel);
// Estimated seconds of one act of a kernel that a plan holds. REQUIRES: no collective.
double SecondsOf(const DescribedMachine& machine, const plan::Kernel& kernel);
// The same of a kernel that may use `threads` threads of a host: as measured, where kernels of its operator
// and type were.
ThreadSeconds SecondsOnThreads(const DescribedMachine& machine, const plan::Kernel& kernel, int threads);
// What one member moves itself in an act of a collective whose elements have so many bytes, on its thread.
// False: nothing of the kind was measured.
bool SecondsOfWork(const DescribedMachine& machine, const plan::Collective& collective, size_t element_bytes,
                   ThreadSeconds* seconds);
// Read and written by that member, on average over a step's acts.
double BytesOfWork(const plan::Collective& collective, size_t element_bytes);
// The memory and links that one act of collective `n` asks for: as measured, where such a group of its kind
// was, else from latency and bandwidth of the links, by the algorithm that it names. `costs`: of this graph,
// on the links of the machine.
BoxingLoad LoadOf(const DescribedMachine& machine, const Graph& graph, int n, CollectiveCosts* costs);

}  // namespace oneflow_like
