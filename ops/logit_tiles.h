// Kernels of the operators that make logits x w^T and never have them all: a tile of rows at a time goes
// through the kernels of the two operators that would have them, those of the device. Attribute "tile" says
// how many rows a tile has: a multiple of 8, to which it is rounded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/kernel.h"

namespace oneflow_like {

// What tiles ask of the device that runs them.
class TileDevice {
 public:
  virtual ~TileDevice() = default;
  // `adds`: the kernel, a product with attribute "accumulates", adds to its result in any micro-batch.
  virtual Status Run(Kernel* kernel, const KernelContext& context, bool adds) = 0;
};

// linear_cross_entropy, linear_class_statistics, linear_cross_entropy_sum and linear_cross_entropy_grad on a
// rank's pieces: classes held here, all of each row's hidden axis. The scratch has the logits of one tile, in
// the type of x; their gradient takes their place. The gradient of w is added up tile by tile in its result.
class LogitTiles {
 public:
  LogitTiles(const KernelSpec& spec, const InnerKernels& kernels);
  ~LogitTiles();
  // The first bytes of the scratch, which the tiles leave to the device.
  static constexpr int64_t kDeviceBytes = 64;
  Status Run(const KernelContext& context, TileDevice* device);
  std::vector<Kernel*> kernels() const;

  static int64_t Scratch(const KernelSpec& spec, const InnerKernels& kernels);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oneflow_like
