// Stream capture and graphs: a capture keeps what would have been enqueued, in the order of the calls.
#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {

void Invalidate(const std::shared_ptr<Capture>& capture) { capture->invalid = true; }

cudaError_t EnterUnsafe() {
  if (ThisThread().mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  World& world = TheWorld();
  std::lock_guard lock(world.mutex);
  for (const auto& capture : world.captures) {
    bool mine = capture->thread == std::this_thread::get_id();
    bool global =
        capture->mode == cudaStreamCaptureModeGlobal && ThisThread().mode == cudaStreamCaptureModeGlobal;
    if (!global && !(mine && capture->mode == cudaStreamCaptureModeThreadLocal)) continue;
    Invalidate(capture);
    return Tell(cudaErrorStreamCaptureUnsupported);
  }
  return cudaSuccess;
}

}  // namespace cuda_emulator

using namespace cuda_emulator;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (stream == nullptr || stream == cudaStreamLegacy) return Tell(cudaErrorStreamCaptureUnsupported);
  stream = StreamOf(stream);
  if (stream->capture != nullptr) return Tell(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->origin = stream;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->streams.insert(stream);
  std::lock_guard lock(TheWorld().mutex);
  TheWorld().captures.insert(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  stream = StreamOf(stream);
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return Tell(cudaErrorIllegalState);
  if (capture->origin != stream) return Tell(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return Tell(cudaErrorStreamCaptureWrongThread);
  for (cudaStream_t member : capture->streams) member->capture = nullptr;
  World& world = TheWorld();
  std::lock_guard lock(world.mutex);
  world.captures.erase(capture);
  if (world.fail_capture >= 0 && world.fail_capture-- == 0) return Tell(cudaErrorStreamCaptureInvalidated);
  if (capture->invalid) return Tell(cudaErrorStreamCaptureInvalidated);
  if (!capture->unjoined.empty()) return Tell(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{capture->operations};
  world.graphs.insert(*graph);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  stream = StreamOf(stream);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, ThisThread().mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  MayWait("cudaGraphInstantiate");
  World& world = TheWorld();
  std::lock_guard lock(world.mutex);
  if (world.graphs.count(graph) == 0) return Tell(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<std::function<void()>>>(graph->operations)};
  world.execs.insert(*exec);
  ++world.instantiated;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, struct CUgraphNode_st**, size_t* count) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  *count = graph->operations.size();
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return Enter(); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  {
    std::lock_guard lock(TheWorld().mutex);
    if (TheWorld().execs.count(exec) == 0) return Tell(cudaErrorInvalidValue);
  }
  ++TheWorld().launches;
  stream = StreamOf(stream);
  Submit(stream, [stream, operations = exec->operations] {
    for (const auto& operation : *operations) {
      if (DeviceOf(stream->device).sticky == cudaSuccess) operation();
    }
  });
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  std::lock_guard lock(TheWorld().mutex);
  if (TheWorld().execs.erase(exec) == 0) return Tell(cudaErrorInvalidValue);
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  std::lock_guard lock(TheWorld().mutex);
  if (TheWorld().graphs.erase(graph) == 0) return Tell(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
