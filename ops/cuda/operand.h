// Operands as device code sees them: views for the small ones, whose type is looked at with every access
// (statistics, indices, factors), and how a kernel reports data that make no sense.
#pragma once

#include <cstring>
#include <string>

#include "ops/cuda/kernel.h"
#include "ops/cuda/launch.h"

namespace oneflow_like::cuda {

// Any floating type, element by element. The branch is the same for all threads.
struct FloatView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;

  OFL_DEVICE float At(int64_t i) const {
    if (dtype == DType::kFloat32) return static_cast<const float*>(data)[i];
    if (dtype == DType::kBFloat16) return Load(static_cast<const BFloat16*>(data)[i]);
    return Load(static_cast<const Float16*>(data)[i]);
  }
  // The view of what begins at element i.
  OFL_DEVICE FloatView From(int64_t i) const {
    return {static_cast<char*>(data) + i * (dtype == DType::kFloat32 ? 4 : 2), dtype};
  }
  OFL_DEVICE void Put(int64_t i, float value) const {
    if (dtype == DType::kFloat32) {
      static_cast<float*>(data)[i] = value;
    } else if (dtype == DType::kBFloat16) {
      static_cast<BFloat16*>(data)[i] = Store<BFloat16>(value);
    } else {
      static_cast<Float16*>(data)[i] = Store<Float16>(value);
    }
  }
};
inline FloatView FloatsOf(const TensorArg& arg) { return {arg.data, arg.dtype}; }

// int32 or int64.
struct IndexView {
  const void* data = nullptr;
  bool wide = false;

  OFL_DEVICE int64_t At(int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};
inline IndexView IndicesOf(const TensorArg& arg) { return {arg.data, arg.dtype == DType::kInt64}; }

// Where a kernel says that `value` of operand `operand` is out of range. The first one of a stream is kept.
struct FaultPort {
  Fault* fault = nullptr;
  int kernel = 0;
  int operand = 0;

  OFL_DEVICE void Raise(int64_t value, int64_t limit) const {
    if (atomicCAS(&fault->kernel, 0, kernel) != 0) return;
    fault->operand = operand;
    fault->value = value;
    fault->limit = limit;
  }
};
inline FaultPort FaultOf(const LaunchContext& launch, int operand) {
  return {launch.fault, launch.number, operand};
}

// Looks at index `id` of position `i`: it must be below `limit`, and if `strict` not negative. Of several bad
// ones the one of the lowest position is reported, in every run, since the others look for it.
OFL_DEVICE void CheckIndex(const IndexView& ids, int64_t i, int64_t id, bool strict, int64_t limit,
                           const FaultPort& port) {
  if (id < limit && !(strict && id < 0)) return;
  for (int64_t j = 0; j < i; ++j) {
    int64_t earlier = ids.At(j);
    if (earlier >= limit || (strict && earlier < 0)) return;
  }
  port.Raise(id, limit);
}

// A kernel without state whose data can be at fault, and the sentence for it.
KernelFactory MakeIndexKernel(LaunchFn fn, std::string (*explain)(const Fault&));

inline bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// N elements by one instruction when they are 16 or 8 bytes: the compiler makes one of words, not of 16-bit
// elements. REQUIRES: `from`, `to` are aligned to their size together.
template <typename T, int N>
struct WordsOf {
  using type = Pack<T, N>;
};
template <typename T, int N>
requires(sizeof(T) * N == 16) struct WordsOf<T, N> {
  using type = uint4;
};
template <typename T, int N>
requires(sizeof(T) * N == 8 && N > 1) struct WordsOf<T, N> {
  using type = uint2;
};
template <int N, typename T>
OFL_DEVICE Pack<T, N> LoadPack(const T* from) {
  auto words = *reinterpret_cast<const typename WordsOf<T, N>::type*>(from);
  Pack<T, N> pack;
  memcpy(&pack, &words, sizeof(pack));
  return pack;
}
template <typename T, int N>
OFL_DEVICE void StorePack(T* to, const Pack<T, N>& pack) {
#if defined(__CUDACC__)
  // Said in so many words: of a pack that a lambda was given the compiler makes four stores of 4 bytes.
  if constexpr (sizeof(pack) == 16) {
    uint32_t word[4];
    memcpy(word, &pack, sizeof(pack));
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
    return;
  }
#endif
  typename WordsOf<T, N>::type words;
  memcpy(&words, &pack, sizeof(pack));
  *reinterpret_cast<typename WordsOf<T, N>::type*>(to) = words;
}

// N floats, N a multiple of 4 or 1, from an address aligned to 16 bytes unless N is 1.
template <int N>
OFL_DEVICE Pack<float, N> LoadFloats(const float* from) {
  Pack<float, N> pack;
  if constexpr (N == 1) {
    pack.at[0] = *from;
  } else {
    for (int i = 0; i < N; i += 4) {
      float4 four = *reinterpret_cast<const float4*>(from + i);
      memcpy(pack.at + i, &four, sizeof(four));
    }
  }
  return pack;
}

// Calls f(T{}) with the storage type of `dtype`.
template <typename F>
void WithFloating(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  if (dtype == DType::kFloat16) return f(Float16{});
  f(float{});
}

}  // namespace oneflow_like::cuda
