// What device code is written with, as host C++: the threads of a block are fibers of one thread (fibers.cc),
// so that barriers and shuffles mean what they mean on a GPU, and missing ones end the program with a
// sentence.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "cuda_runtime_api.h"

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of the fiber that runs.
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_emulator {

// Runs `work` on the stream's thread after what was enqueued before, or records it when the stream is
// capturing.
void Enqueue(cudaStream_t stream, std::function<void()> work);
// Before the launch of a kernel: its code is loaded when the thread's device first runs it.
void LoadCode(const void* code);
// A grid of x times y blocks, one after another, on the calling thread; `body` is one thread's work.
// `shared`: bytes that Shared() points to, filled with 0xFF before every block.
void RunGrid(unsigned x, unsigned y, unsigned threads, size_t shared, const std::function<void()>& body);
void* Shared();

// --- What the functions below are made of
enum class WarpOperation { kSync, kShuffle, kBallot, kLoadMatrices, kMultiply };
// All lanes of `mask` arrive with the same mask and operation; the result is the value of lane `source`, or
// the bits of lanes whose value is not 0. Of the last two operations `value` is where the lane's operands and
// results are (tensor_cores.h).
uint64_t ExchangeInWarp(WarpOperation operation, unsigned mask, uint64_t value, int source);
// All threads of the block; the sum of their values.
int Barrier(int value);
[[noreturn]] void Trap(const char* why);

inline int Lane() { return static_cast<int>(threadIdx.x % 32); }
template <typename T>
T ShuffleFrom(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = ExchangeInWarp(WarpOperation::kShuffle, mask, bits, source);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_emulator

#include "tests/cuda_emulator/tensor_cores.h"

inline void __syncthreads() { cuda_emulator::Barrier(0); }
inline int __syncthreads_count(int predicate) { return cuda_emulator::Barrier(predicate != 0); }
inline int __syncthreads_or(int predicate) { return cuda_emulator::Barrier(predicate != 0) != 0; }
inline int __syncthreads_and(int predicate) { return cuda_emulator::Barrier(predicate == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  cuda_emulator::ExchangeInWarp(cuda_emulator::WarpOperation::kSync, mask, 0, 0);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  int lane = cuda_emulator::Lane();
  return cuda_emulator::ShuffleFrom(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  int lane = cuda_emulator::Lane(), source = lane ^ lanes;
  return cuda_emulator::ShuffleFrom(mask, value, source / width > lane / width ? lane : source);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = cuda_emulator::Lane(), source = lane + static_cast<int>(delta);
  return cuda_emulator::ShuffleFrom(mask, value, source / width == lane / width ? source : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = cuda_emulator::Lane(), source = lane - static_cast<int>(delta);
  return cuda_emulator::ShuffleFrom(mask, value, source >= (lane & ~(width - 1)) ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(
      cuda_emulator::ExchangeInWarp(cuda_emulator::WarpOperation::kBallot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
[[noreturn]] inline void __trap() { cuda_emulator::Trap("__trap()"); }

// --- Atomics on integers; sums of floats would depend on the order, so there are none
template <typename T, typename V>
requires std::is_integral_v<T> T atomicAdd(T* at, V value) {
  return __atomic_fetch_add(at, static_cast<T>(value), __ATOMIC_RELAXED);
}
float atomicAdd(float*, float) = delete;
double atomicAdd(double*, double) = delete;
template <typename T>
requires std::is_integral_v<T> T atomicSub(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_sub(at, value, __ATOMIC_RELAXED);
}
template <typename T>
requires std::is_integral_v<T> T atomicOr(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <typename T>
requires std::is_integral_v<T> T atomicAnd(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_and(at, value, __ATOMIC_RELAXED);
}
template <typename T>
requires std::is_integral_v<T> T atomicExch(T* at, std::type_identity_t<T> value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
template <typename T>
requires std::is_integral_v<T> T atomicCAS(T* at, std::type_identity_t<T> expected,
                                           std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <typename T>
requires std::is_integral_v<T> T atomicMax(T* at, std::type_identity_t<T> value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < value &&
         !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <typename T>
requires std::is_integral_v<T> T atomicMin(T* at, std::type_identity_t<T> value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < old &&
         !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
#define atomicCAS_system atomicCAS
#define atomicAdd_system atomicAdd

// --- Loads, bits, mathematics
template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, T value) {
  *at = value;
}
template <typename T>
void __stcg(T* at, T value) {
  *at = value;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 1 ? 1.0f : x > 0 ? x : 0.0f; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }

#define OFL_EMULATED_MIN_MAX(T)                    \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
OFL_EMULATED_MIN_MAX(int)
OFL_EMULATED_MIN_MAX(unsigned)
OFL_EMULATED_MIN_MAX(long)
OFL_EMULATED_MIN_MAX(unsigned long)
OFL_EMULATED_MIN_MAX(long long)
OFL_EMULATED_MIN_MAX(unsigned long long)
#undef OFL_EMULATED_MIN_MAX
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
