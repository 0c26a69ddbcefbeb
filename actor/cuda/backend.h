// The backend for NVIDIA's GPUs. Programs reach it through OpenBackend("cuda") (core/backend.h), which opens
// the library that this folder and ops/cuda become; tests on the emulator link it and make their own.
#pragma once

#include <memory>

#include "core/backend.h"

namespace oneflow_like::cuda {

// Throws Error in one sentence when the driver is missing or too old, or no device is there. Touches no
// device.
std::unique_ptr<Backend> MakeBackend();

}  // namespace oneflow_like::cuda

// The library's entry: the one backend of the process, made when first asked for and never destroyed. Throws
// Error as MakeBackend does, each time until it succeeds. Thread safe.
extern "C" __attribute__((visibility("default"))) oneflow_like::Backend* OflBackend();
