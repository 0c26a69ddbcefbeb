// The kernels of act_state.h.
#include "actor/cuda/act_state.h"
#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {
namespace {

OFL_KERNEL void WriteActKernel(ActState* act, int64_t step, int64_t time) {
  act->step = step;
  act->time = time;
}

OFL_KERNEL void TakeFaultKernel(Fault* fault, Fault* to) {
  *to = *fault;
  *fault = Fault();
}

}  // namespace

void LaunchWriteAct(cudaStream_t stream, ActState* act, int64_t step, int64_t time) {
  Launch(WriteActKernel, Grid{.x = 1, .y = 1, .threads = 1, .shared = 0}, stream, act, step, time);
}

void LaunchTakeFault(cudaStream_t stream, Fault* fault, Fault* to) {
  Launch(TakeFaultKernel, Grid{.x = 1, .y = 1, .threads = 1, .shared = 0}, stream, fault, to);
}

}  // namespace oneflow_like::cuda
