// The backend for NVIDIA GPUs. Programs get it from OpenBackend("cuda") (core/device/backend.h), which opens
// the library made of this folder and ops/cuda; tests on the emulator link it and create their own.
#pragma once

#include <memory>

#include "core/device/backend.h"

namespace oneflow_like::cuda {

// Throws Error in one sentence when the driver is missing or too old, or there is no device. Touches no
// device.
std::unique_ptr<Backend> MakeBackend();

}  // namespace oneflow_like::cuda

// The library's entry: the one backend of the process, created at the first call and never destroyed. Throws
// Error as MakeBackend does, each time until it succeeds. Thread-safe.
extern "C" __attribute__((visibility("default"))) oneflow_like::Backend* OflBackend();
