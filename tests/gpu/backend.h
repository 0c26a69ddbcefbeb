// The backend that the programs of this folder test: the library with a real GPU, or the emulator of
// tests/cuda_emulator in programs named *_emulated.
#pragma once

#include <string>

#include "core/device/backend.h"

namespace oneflow_like::gpu {

// Throws Error in one sentence when there is no GPU to be had.
Backend* TestedBackend();
// Whether it is the emulator: slow, and without the vendor's libraries.
bool Emulated();

// What main() prints last, as "figure: ...": run.sh puts it into its table.
void SetFigure(const std::string& figure);

}  // namespace oneflow_like::gpu
