// Measured times on a machine (machine.h): of kernels by the amounts of their work, of collectives by bytes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/device/work.h"
#include "core/dtype.h"
#include "sbp/boxing.h"

namespace oneflow_like {

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

// Measured times of the kernels of one operator and type: on a host with a number of threads, or on a device.
struct MeasuredKernel {
  // The operator, or the name that its entry gives (KernelCost::measured_as); a kernel of several steps takes
  // the time of these in one pass over memory. kCollectiveWork: what a thread moves for its group in a
  // collective.
  std::string name;
  DType dtype = DType::kFloat32;  // the narrowest floating one among the operands
  int threads = 1;                // that the kernel may use; 0: it is a device's
  bool crowded = false;           // while all other cores have work, too
  Work each;                      // seconds of each unit of its amounts
  // Arithmetic and memory work at the same time: their seconds count as the root of the sum of their squares,
  // which is the longer one where they differ much.
  bool overlap = false;

  // The seconds of a kernel with this work: the sum of its units' seconds unless they overlap.
  double SecondsOf(const Work& work) const;
  bool operator==(const MeasuredKernel&) const = default;
};
inline constexpr char kCollectiveWork[] = "collective";

}  // namespace oneflow_like
