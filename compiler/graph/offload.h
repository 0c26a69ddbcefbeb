// Options for values that are kept in the memory of the host instead of the device's.
#pragma once

#include <cstdint>
#include <string>

namespace oneflow_like {

// The parts of a training that are kept in the memory of the hosts, as in ZeRO-Infinity (Rajbhandari et al.
// 2021). Copies between the two memories run beside other work; their bytes are on the plan's link "host".
// Values and losses are the same bit for bit. On a mesh of GPUs that memory is pinned.
struct Offload {
  // The values of the forward pass of a region (Scope::Region, such as a layer) that its gradients read.
  bool activations = false;
  // The share of an optimizer's state, from 0 to 1: it goes through the device in buckets of at most 32 MiB,
  // where the update is made. In training in 16 bits the fp32 weights belong to it; the device makes their
  // narrow copies once a step.
  double optimizer = 0;
  // Weights that are trained; what a device has of one (with ZeRO its shard) is copied for each region that
  // reads it, forward and backward in each micro-batch, and once for its update.
  bool weights = false;
  // Tables of which each step reads and writes some rows, and the state of these: rows are read and written
  // where they lie. A table may be larger than the device.
  bool tables = false;
  // Layers with Recompute::kAuto may wait on the host where the topology says how fast copies are. A search
  // for a mesh looks at that where nothing fits otherwise.
  bool choose = true;
  int prefetch = 1;      // copies begin so many regions, or buckets, before they are read
  int64_t small = 4096;  // values of at most so many elements stay on the device

  bool operator==(const Offload&) const = default;
  bool any() const { return activations || optimizer > 0 || weights || tables; }
};

// "activations,optimizer:0.6,weights,tables"; empty: nothing. Throws Error that begins with `who`.
Offload ParseOffload(const std::string& text, const std::string& who);
std::string OffloadText(const Offload& offload);

}  // namespace oneflow_like
