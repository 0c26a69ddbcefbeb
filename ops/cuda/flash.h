// Attention in 16-bit types by a library's fused kernels (cuDNN: flash_cudnn.cc; library_absent.cc where it
// is missing at build time; loops in tests/cuda_emulator). Operands have the operator's layout, q[b s h d],
// so nothing is copied.
#pragma once

#include <memory>

#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

struct FlashShape {
  int64_t batch = 0, heads = 0, queries = 0, keys = 0, width = 0;
  int64_t key_heads = 0;  // each is shared by heads / key_heads of the queries' heads, one after another
  int64_t all_keys = 0;   // of a sequence in memory: `keys`, and then those that no query sees
  DType dtype = DType::kBFloat16;
  bool backward = false;
  bool causal = false;
  int64_t shift = 0;   // causal: query s sees keys up to s + shift
  int64_t window = 0;  // causal: of these the last so many; 0 is all
  int64_t masks = 0;   // of FlashOperands::mask: `batch`, 1 for all sequences, or 0
  float scale = 1;

  int64_t group() const { return heads / key_heads; }

  bool operator==(const FlashShape& other) const = default;
};

struct FlashOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  // [masks s t] of the operands' type: 0 where the key is seen, else -infinity; every query sees a key.
  const void* mask = nullptr;
  void* o = nullptr;     // written forward, read backward
  float* lse = nullptr;  // [b h s]: the same
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

class Flash {
 public:
  virtual ~Flash() = default;
  // Whether there is a deterministic kernel for the shape on the current device, within the work space. Plans
  // are made here at the first call for a shape, and kept; not to be called first while a stream records.
  virtual bool Takes(const FlashShape& shape, const LaunchContext& launch) = 0;
  // Enqueues. REQUIRES: Takes(shape, launch).
  virtual Status Launch(const FlashShape& shape, const FlashOperands& operands,
                        const LaunchContext& launch) = 0;
};

// nullptr if there is no such library.
std::unique_ptr<Flash> MakeFlash();

// Whether any of these libraries could support the shape; if not, they need not be asked.
inline bool MayFlash(const FlashShape& s) {
  bool narrow = s.dtype == DType::kBFloat16 || s.dtype == DType::kFloat16;
  bool full = !s.causal || s.shift == 0 || s.shift == s.keys - s.queries;
  bool window = s.window == 0 || s.causal;
  return narrow && full && window && s.shift >= 0 && s.width > 0 && s.width % 8 == 0 &&
         s.width <= kMostLibraryAttentionWidth && s.batch > 0 && s.heads > 0 && s.key_heads > 0 &&
         s.queries > 0 && s.keys > 0;
}

// Whether attention asks the library at all; on unless switched off, for comparisons. Kernels ask when made.
void SetFlash(bool allowed);
bool FlashAllowed();

}  // namespace oneflow_like::cuda
