// Options for values that are kept in the memory of the host instead of the device's.
#pragma once

#include <cstdint>
#include <string>

namespace oneflow_like {

// The parts of a training that are kept in the memory of the hosts, as in ZeRO-Infinity (Rajbhandari et al.
// 2021). Copies between the two memories run beside other work; their bytes are on the plan's link "host".
// Values and losses are the same bit for bit. On a mesh of GPUs that memory is pinned.
struct Offload {
  // Values of the forward pass that the gradients of their region (Scope::Region, such as a layer) read.
  bool activations = false;
  // The share of the optimizer's state, from 0 to 1. It passes through the device, which computes the update,
  // in buckets of at most 32 MiB. In 16-bit training it includes the fp32 weights, of which the device makes
  // narrow copies once a step.
  double optimizer = 0;
  // Trained weights. A device's part of a weight (with ZeRO its shard) is copied for each region that reads
  // it, forward and backward in each micro-batch, and once for its update.
  bool weights = false;
  // Tables of which a step reads and writes only some rows, and their optimizer state. Rows are read and
  // written in the memory of the host, so a table may be larger than the device.
  bool tables = false;
  // Whether layers with Recompute::kAuto may wait on the host, if the topology says how fast copies are. A
  // search for a mesh tries this only if nothing fits otherwise.
  bool choose = true;
  int prefetch = 1;      // number of regions, or buckets, by which copies run ahead of their readers
  int64_t small = 4096;  // largest value, in elements, that stays on the device

  bool operator==(const Offload&) const = default;
  bool any() const { return activations || optimizer > 0 || weights || tables; }
};

// "activations,optimizer:0.6,weights,tables"; empty: nothing. Throws Error that begins with `who`.
Offload ParseOffload(const std::string& text, const std::string& who);
std::string OffloadText(const Offload& offload);

}  // namespace oneflow_like
