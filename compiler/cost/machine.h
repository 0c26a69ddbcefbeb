// Machine: what compilation assumes of the devices and their links. DescribedMachine (described_machine.h)
// adds what only a simulation needs.
#pragma once

#include <vector>

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

// The machine that estimates assume: devices of one kind, and the links between them.
struct Machine {
  Topology topology;           // links between devices, and the memory of one
  std::vector<bool> shared;    // by level of its links: LinkLevels
  double flops = 5e10;         // per second and device, of products in fp32
  double narrow_flops = 5e10;  // of products in bf16 or f16
  double overhead = 1e-7;      // additional seconds of every kernel
  Efficiency efficiency;

  double FlopsOf(DType dtype) const;
};
// The machine for the mesh's kind of device; only orders of magnitude matter.
Machine MachineOf(const Mesh& mesh);

}  // namespace oneflow_like
