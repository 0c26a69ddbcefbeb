// What the files of bench_gpu share: a GPU with its kernels, and how long one of them takes.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/device/backend.h"

namespace oneflow_like::gpu {

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct MeasuredDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceStream> stream;
  KernelRegistry registry;

  // On GPU number `device` of the backend.
  MeasuredDevice(Backend* backend, int device);
  int64_t FreeBytes() const;  // found by asking, to 64 MiB
};

struct Timing {
  double seconds = 0;  // of one run: the median of several batches
  double bytes = 0;    // that its operands hold, each counted once for being read and once for being written
};

// Contents of integer inputs by the input's number, in place of random ones.
using IntegerInputs = std::map<int, std::vector<int32_t>>;

// Runs the kernel on operands of its own with random contents, many times without a gap: batches are enqueued
// as segments, which the stream replays, and timed from the moment the stream is empty to the moment it is
// again, so that what the host does falls away. Several sets of operands are used in turn, together larger
// than the caches, as far as memory allows. Throws Error when the kernel is missing or fails.
Timing TimeKernel(MeasuredDevice* on, const KernelSpec& spec, int64_t scratch_bytes,
                  const IntegerInputs& integers = {});

// What the card can do, measured through our own kernels.
struct Ceilings {
  double copy = 0;                    // bytes/s, read and written, of a copy of 1 GiB
  double bf16 = 0, f16 = 0, f32 = 0;  // flop/s of the best large square product
  double launch = 0;                  // seconds of a kernel with hardly any work
  double Product(DType dtype) const {
    return dtype == DType::kBFloat16 ? bf16 : dtype == DType::kFloat16 ? f16 : f32;
  }
};
// `small`: of sizes that say nothing of a card but take the emulator seconds.
Ceilings MeasureCeilings(MeasuredDevice* on, bool small);

// Attention and grouped products of 16-bit operands by what they are asked for, forward and backward, beside
// the plain ones (bench_cases.cc): prints a table. `small` as above.
void PrintAttention(MeasuredDevice* on, bool small);
void PrintGroupedProducts(MeasuredDevice* on, bool small);

}  // namespace oneflow_like::gpu
