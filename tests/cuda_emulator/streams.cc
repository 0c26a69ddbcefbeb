// Streams as threads with queues, events as moments of them.
#include <algorithm>
#include <chrono>
#include <random>

#include "tests/cuda_emulator/state.h"

namespace cuda_emulator {

void Moment::Finish() {
  std::lock_guard lock(mutex);
  done = true;
  time = std::chrono::steady_clock::now();
  if (cudaStream_t stream = ThisThread().running; stream != nullptr) time += stream->stated;
  changed.notify_all();
}
void Moment::Wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}
bool Moment::Done() {
  std::lock_guard lock(mutex);
  return done;
}

namespace {

constexpr size_t kMostAsleep = 64;  // operations in the queue of a stream that was not woken

void RunOne(cudaStream_t stream, const Work& work) {
  unsigned open = 1u << stream->device;
  DeviceState& device = DeviceOf(stream->device);
  {
    World& world = TheWorld();
    std::unique_lock lock(world.mutex);
    world.resumed.wait(lock, [&] { return world.pauses == 0; });
    for (int peer : device.peers) open |= 1u << peer;
  }
  OpenDevices(open);
  work();
}

// Half of the operations do not wait.
void Delay(std::mt19937_64* random) {
  const int longest = TheWorld().longest_delay_us;
  if (longest <= 0) return;
  const int delay = static_cast<int>((*random)() % (2 * static_cast<uint64_t>(longest)));
  if (delay < longest) std::this_thread::sleep_for(std::chrono::microseconds(delay));
}

void RunStream(cudaStream_t stream) {
  ThisThread().running = stream;
  ThisThread().device = stream->device;
  std::mt19937_64 random(TheWorld().seed * 1000003 + static_cast<uint64_t>(stream->number));
  std::unique_lock lock(stream->mutex);
  while (true) {
    stream->changed.wait(lock, [&] { return stream->closing || (stream->awake && !stream->queue.empty()); });
    if (stream->queue.empty()) return;
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    bool lose = stream->fail_at == stream->done;
    cudaError_t error = stream->fail_with;
    lock.unlock();
    if (lose) LoseDevice(stream->device, error);
    Delay(&random);
    RunOne(stream, work);
    work = nullptr;
    lock.lock();
    ++stream->done;
    if (!stream->queue.empty() && stream->waiting == 0) continue;
    stream->awake = !stream->queue.empty();
    stream->changed.notify_all();
  }
}

// Options::at_once.
void RunAtOnce(cudaStream_t stream, const Work& work) {
  if (stream->fail_at == stream->done) LoseDevice(stream->device, stream->fail_with);
  const ThreadState before = ThisThread();
  const unsigned open = OpenAllDevices();
  ThisThread().running = stream;
  ThisThread().device = stream->device;
  RunOne(stream, work);
  OpenDevices(open);
  ThisThread() = before;
  ++stream->enqueued;
  ++stream->done;
}

// Its mutex is locked.
void WakeLocked(cudaStream_t stream) {
  if (stream->awake || stream->queue.empty()) return;
  stream->awake = true;
  stream->changed.notify_all();
}

// What `stream` has been given so far, as a moment.
std::shared_ptr<Moment> EndOf(cudaStream_t stream) {
  auto moment = std::make_shared<Moment>();
  Push(stream, [moment] { moment->Finish(); });
  Wake(stream);
  return moment;
}

// The legacy stream and blocking ones wait for each other.
void OrderWithLegacy(cudaStream_t stream) {
  World& world = TheWorld();
  std::vector<cudaStream_t> others;
  {
    std::lock_guard lock(world.mutex);
    DeviceState& device = DeviceOf(stream->device);
    if (stream == device.legacy.get()) {
      for (cudaStream_t other : device.streams) {
        if (other->blocking) others.push_back(other);
      }
    } else if (stream->blocking) {
      others.push_back(device.legacy.get());
    }
  }
  for (cudaStream_t other : others) {
    auto moment = EndOf(other);
    Push(stream, [moment] { moment->Wait(); });
  }
}

}  // namespace

void StartStream(cudaStream_t stream) {
  if (TheWorld().options.at_once) return;
  stream->thread = std::thread([stream] { RunStream(stream); });
}

void StopStream(cudaStream_t stream) {
  {
    std::lock_guard lock(stream->mutex);
    stream->closing = stream->awake = true;
    stream->changed.notify_all();
  }
  if (stream->thread.joinable()) stream->thread.join();
}

void Push(cudaStream_t stream, Work work) {
  if (TheWorld().options.at_once) return RunAtOnce(stream, work);
  std::lock_guard lock(stream->mutex);
  stream->queue.push_back(InTurn(stream, std::move(work)));
  ++stream->enqueued;
  // In a hardware queue other streams wait for this one.
  if (stream->queue.size() >= kMostAsleep || TheWorld().options.hardware_queues != 0) WakeLocked(stream);
}

void Wake(cudaStream_t stream) {
  std::lock_guard lock(stream->mutex);
  WakeLocked(stream);
}

void WaitForStream(cudaStream_t stream) {
  std::unique_lock lock(stream->mutex);
  const int64_t until = stream->enqueued;
  WakeLocked(stream);
  ++stream->waiting;
  stream->changed.wait(lock, [&] { return stream->done >= until; });
  --stream->waiting;
}

void Submit(cudaStream_t stream, Work work) {
  ++TheWorld().operations;
  if (stream->capture != nullptr) {
    Capture& capture = *stream->capture;
    capture.operations.push_back(std::move(work));
    if (stream != capture.origin) capture.unjoined.insert(stream);
    return;
  }
  OrderWithLegacy(stream);
  // A lost device runs nothing any more; streams of other devices may wait for its moments, so those go on.
  Push(stream, [stream, work = std::move(work)] {
    if (DeviceOf(stream->device).sticky == cudaSuccess) work();
  });
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (Enter() != cudaSuccess) return;
  stream = StreamOf(stream);
  if (stream->device != ThisThread().device) {  // copies may be of another device, kernels not
    Tell(cudaErrorInvalidResourceHandle);
    return;
  }
  Submit(stream, std::move(work));
}

}  // namespace cuda_emulator

using namespace cuda_emulator;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (flags > cudaStreamNonBlocking) return Tell(cudaErrorInvalidValue);
  World& world = TheWorld();
  auto* made = new CUstream_st;
  made->device = ThisThread().device;
  made->blocking = (flags & cudaStreamNonBlocking) == 0;
  made->priority = std::clamp(priority, -5, 0);
  {
    std::lock_guard lock(world.mutex);
    made->number = world.next_stream++;
    DeviceOf(made->device).streams.insert(made);
  }
  StartStream(made);
  *stream = made;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  *priority = StreamOf(stream)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaError_t error = Enter();
  if (stream == nullptr) return Tell(cudaErrorInvalidResourceHandle);
  World& world = TheWorld();
  {
    std::lock_guard lock(world.mutex);
    if (DeviceOf(stream->device).streams.erase(stream) == 0) return Tell(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture != nullptr) Invalidate(stream->capture);
  StopStream(stream);
  delete stream;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  stream = StreamOf(stream);
  if (stream->capture != nullptr) {
    Invalidate(stream->capture);
    return Tell(cudaErrorStreamCaptureUnsupported);
  }
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  ++TheWorld().host_synchronisations;
  WaitForStream(stream);
  return Tell(DeviceOf(stream->device).sticky);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  stream = StreamOf(stream);
  if (stream->capture != nullptr) {
    Invalidate(stream->capture);
    return Tell(cudaErrorStreamCaptureUnsupported);
  }
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  if (cudaError_t lost = DeviceOf(stream->device).sticky; lost != cudaSuccess) return Tell(lost);
  Wake(stream);
  std::lock_guard lock(stream->mutex);
  return Tell(stream->done == stream->enqueued ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (event == nullptr) return Tell(cudaErrorInvalidResourceHandle);
  stream = StreamOf(stream);
  if (event->capture != nullptr) {  // the stream joins the capture, or the capture's branch joins the stream
    Capture& capture = *event->capture;
    if (capture.invalid) return Tell(cudaErrorStreamCaptureInvalidated);
    if (stream->capture != nullptr && stream->capture != event->capture) {
      Invalidate(stream->capture);
      return Tell(cudaErrorStreamCaptureMerge);
    }
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      capture.streams.insert(stream);
    }
    if (stream == capture.origin) {
      capture.unjoined.erase(event->captured_on);
    } else if (capture.unjoined.erase(event->captured_on) != 0) {
      capture.unjoined.insert(stream);
    }
    return cudaSuccess;
  }
  if (event->moment == nullptr) return cudaSuccess;
  if (stream->capture != nullptr) {
    Invalidate(stream->capture);
    return Tell(cudaErrorStreamCaptureIsolation);
  }
  ++TheWorld().operations;
  OrderWithLegacy(stream);
  Push(stream, [moment = event->moment] { moment->Wait(); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  stream = StreamOf(stream);
  Submit(stream, [=] {
    OpenDevices(0);
    ThisThread().host_function = true;
    function(data);
    ThisThread().host_function = false;
  });
  Wake(stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  auto* made = new CUevent_st;
  made->device = ThisThread().device;
  made->timing = (flags & cudaEventDisableTiming) == 0;
  std::lock_guard lock(TheWorld().mutex);
  TheWorld().events.insert(made);
  *event = made;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (event == nullptr) return Tell(cudaErrorInvalidResourceHandle);
  stream = StreamOf(stream);
  if (event->device != stream->device) return Tell(cudaErrorInvalidResourceHandle);
  ++TheWorld().operations;
  if (stream->capture != nullptr) {
    event->capture = stream->capture;
    event->captured_on = stream;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->moment = std::make_shared<Moment>();
  OrderWithLegacy(stream);
  Push(stream, [moment = event->moment] { moment->Finish(); });
  Wake(stream);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (event == nullptr) return Tell(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) {
    Invalidate(event->capture);
    return Tell(cudaErrorCapturedEvent);
  }
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  return Tell(event->moment == nullptr || event->moment->Done() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (event == nullptr) return Tell(cudaErrorInvalidResourceHandle);
  if (event->capture != nullptr) {
    Invalidate(event->capture);
    return Tell(cudaErrorCapturedEvent);
  }
  if (cudaError_t error = EnterUnsafe(); error != cudaSuccess) return error;
  ++TheWorld().host_synchronisations;
  if (event->moment != nullptr) event->moment->Wait();
  return Enter();
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  {
    std::lock_guard lock(TheWorld().mutex);
    if (TheWorld().events.erase(event) == 0) return Tell(cudaErrorInvalidResourceHandle);
  }
  delete event;
  return Enter();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (cudaError_t error = Enter(); error != cudaSuccess) return error;
  if (from == nullptr || to == nullptr || from->moment == nullptr || to->moment == nullptr || !from->timing ||
      !to->timing)
    return Tell(cudaErrorInvalidResourceHandle);
  if (!from->moment->Done() || !to->moment->Done()) return Tell(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->moment->time - from->moment->time).count();
  return cudaSuccess;
}

}  // extern "C"
