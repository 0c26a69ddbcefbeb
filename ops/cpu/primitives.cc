#include "ops/cpu/primitives.h"

namespace oneflow_like::cpu {

// Never destroyed: threads may run kernels while the process ends.
const dnnl::engine& HostEngine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

}  // namespace oneflow_like::cpu
