#include "compiler/cost/machine.h"

namespace oneflow_like {

double Machine::FlopsOf(DType dtype, bool tf32) const {
  if (SizeOf(dtype) < 4) return narrow_flops;
  return tf32 && dtype == DType::kFloat32 && tf32_flops > 0 ? tf32_flops : flops;
}

Machine MachineOf(const Mesh& mesh) {
  if (mesh.kind() != "cuda") {
    Machine host;  // whose devices have its memory
    host.host = {.latency = host.overhead, .bandwidth = host.topology.memory_bandwidth / 2};
    return host;
  }
  // GPUs of the H100's kind, eight of a host joined by NVLink, hosts by a 400 Gb/s network card for each GPU.
  Machine gpu;
  gpu.topology.links = {{.devices = 8, .latency = 8e-6, .bandwidth = 2e11},
                        {.devices = 0, .latency = 2e-5, .bandwidth = 4e10}};
  gpu.topology.memory_bandwidth = 2e12;
  gpu.flops = 5e13;
  gpu.tf32_flops = 1.5e14;
  gpu.narrow_flops = 3e14;
  gpu.overhead = 2e-6;
  return gpu;
}

}  // namespace oneflow_like
