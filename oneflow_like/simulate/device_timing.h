// How long kernels, copies and collectives take on a device with memory and streams of its own (a GPU): what
// calibration and tests/gpu/bench_gpu measure.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/device/backend.h"
#include "sbp/boxing.h"

namespace oneflow_like {

struct MeasuredDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceStream> stream;
  KernelRegistry registry;

  // On GPU number `number` of the backend, as rank `rank`.
  MeasuredDevice(Backend* backend, int number, int rank = 0);
  int64_t FreeBytes() const;  // found by asking, to 64 MiB

  // Random contents of operands in pinned memory, by type and by what integers are below.
  std::map<std::pair<DType, int64_t>, std::unique_ptr<Memory>> patterns;
};

struct Timing {
  double seconds = 0;  // of one run: the median of several batches
  double bytes = 0;    // that its operands hold, each counted once for being read and once for being written
};

struct TimingOptions {
  double batch_seconds = 0.02;  // length of the shorter of two batches whose difference counts
  int batches = 5;              // pairs of batches; the median counts
  int least_runs = 8;           // of the kernel in a segment, which the stream replays
  int most_sets = 16;           // of operands
  // Contents of int32 inputs by the input's number, in place of random ones.
  std::map<int, std::vector<int32_t>> integers;
};

// Runs the kernel on operands of its own with random contents, many times without a gap: batches are enqueued
// as segments, which the stream replays, and timed from the moment the stream is empty to the moment it is
// again, so that what the host does falls away. Several sets of operands are used in turn, together larger
// than the caches, as far as memory allows. Throws Error when the kernel is missing or fails.
Timing TimeKernel(MeasuredDevice* on, const KernelSpec& spec, int64_t scratch_bytes,
                  const TimingOptions& options = {});

// What the card can do, measured through our own kernels.
struct Ceilings {
  double copy = 0;                    // bytes/s, read and written, of a copy of 1 GiB
  double bf16 = 0, f16 = 0, f32 = 0;  // flop/s of the best large square product
  double tf32 = 0;                    // the same, of operands in fp32 that are rounded to TF32
  double launch = 0;                  // seconds of a kernel with hardly any work
  double Product(DType dtype) const {
    return dtype == DType::kBFloat16 ? bf16 : dtype == DType::kFloat16 ? f16 : f32;
  }
};
// `small`: of sizes that say nothing of a card but take the emulator seconds.
Ceilings MeasureCeilings(MeasuredDevice* on, bool small, const TimingOptions& options = {});

// Copies between the device and pinned memory of its host.
struct HostCopies {
  double latency = 0;    // seconds of a copy of few bytes
  double bandwidth = 0;  // bytes/s of a large one, in the slower direction
};
HostCopies MeasureHostCopies(MeasuredDevice* on, bool small);

// Seconds of a collective among all `devices` of the backend, by the bytes of its whole tensor, at each of
// `sizes`. REQUIRES: the backend HasGroups, and the devices are different cards.
std::vector<std::pair<double, double>> TimeCollective(Backend* backend,
                                                      const std::vector<MeasuredDevice*>& devices,
                                                      Primitive primitive, const std::vector<int64_t>& sizes);

}  // namespace oneflow_like
