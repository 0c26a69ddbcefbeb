// Machine: devices of one kind, the links between them, and what was measured there. Compilation chooses by
// it, simulations take their times from it, a topology file describes it
// (oneflow_like/model/topology_file.h), and calibration makes one.
#pragma once

#include <string>
#include <vector>

#include "compiler/cost/measured.h"
#include "core/dtype.h"
#include "sbp/boxing.h"
#include "sbp/mesh.h"

namespace oneflow_like {

// How much of the peak is reached, by what an operator is and by its shape.
struct Efficiency {
  double product = 1;    // of large matrix products
  double attention = 1;  // of attention
  // A product or an attention whose smallest extent is this one reaches half of that: short extents leave
  // parts of a device idle.
  double half_extent = 0;
};

// Between a device and the memory of its host, in each direction by itself.
struct HostLink {
  double latency = 10e-6;   // of one copy, in seconds
  double bandwidth = 25e9;  // of one device, in bytes/s
  bool known = false;       // from a topology file: plans may count on it without being asked to
};

struct Machine {
  Topology topology;  // links between devices, and the memory of one
  // For each rank, the first of the ranks that reach its memory by address: collectives exchange messages
  // between these sets. Empty: all reach each other's.
  std::vector<int> nodes;
  std::vector<bool> shared;    // by level of its links: LinkLevels
  double flops = 5e10;         // per second and device, of products in fp32
  double tf32_flops = 0;       // of those whose operands are rounded to TF32; 0: unknown, as in fp32
  double narrow_flops = 5e10;  // of products in bf16 or f16
  double overhead = 1e-7;      // additional seconds of every kernel
  Efficiency efficiency;
  HostLink host;

  std::string name;         // of the device, for people
  double memory_bytes = 0;  // of one device; 0: unknown
  std::vector<MeasuredCollective> collectives;

  // The cores of a host that computes on its processor; 0: each device works by itself.
  int threads = 0;
  std::vector<MeasuredKernel> kernels;
  // Of such a host: seconds until a thread that waits learns what another one of its process, or of another
  // process there, tells it.
  double message = 0, process_message = 0;
  double process_work = 1;  // how many times as long kernels take where several processes share a mesh
  double cache_bytes = 0;   // that a core has for itself; 0: unknown

  // Per second, of products with operands of this type; `tf32`: those in fp32 are rounded to TF32.
  double FlopsOf(DType dtype, bool tf32 = false) const;
  // Bytes that a kernel on `kernel_threads` threads may find in caches, or 0. Another kernel has just written
  // them: both pass through the cache, so half of the cache is left for either.
  double NearBytes(int kernel_threads) const { return cache_bytes / 2 * kernel_threads; }
};
// The machine that is assumed for the mesh's kind of device; only orders of magnitude matter.
Machine MachineOf(const Mesh& mesh);

}  // namespace oneflow_like
