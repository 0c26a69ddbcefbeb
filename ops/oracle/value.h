// What the operator oracle computes with: tensors in memory that notice what was not written and what was
// written behind them, and a generator of random numbers that is equal on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "core/dims.h"
#include "core/dtype.h"
#include "core/float16.h"

namespace oneflow_like::oracle {

constexpr uint64_t kSeed = 20240607;  // of all draws; failures print it

// A tensor in memory, 64-byte aligned, with guard bytes behind it that an overrun would change.
class Value {
 public:
  Value() = default;
  Value(DType dtype, Dims shape);
  Value(const Value& other) : Value(other.dtype_, other.shape_) {
    if (other.storage_) std::memcpy(data(), other.data(), bytes());
  }
  Value(Value&&) = default;
  Value& operator=(Value&&) = default;
  Value& operator=(const Value& other) { return *this = Value(other); }

  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  int64_t elements() const { return shape_.elements(); }
  size_t bytes() const { return elements() * SizeOf(dtype_); }
  char* data() const { return storage_.get() + offset_; }
  double Get(int64_t index) const;  // any type, as a double
  void Set(int64_t index, double value);
  // Fills with a pattern no kernel writes: unwritten elements are seen afterwards.
  void Poison();
  bool Poisoned(int64_t index) const;
  int64_t FirstPoisoned() const;  // elements() if there is none
  bool GuardIntact() const;

 private:
  DType dtype_ = DType::kFloat32;
  Dims shape_;
  std::unique_ptr<char[]> storage_;
  size_t offset_ = 0;
};

// A small generator of our own, equal on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  uint64_t Bits();
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

constexpr size_t kGuard = 64;
constexpr char kGuardByte = 0x3C;

inline Value::Value(DType dtype, Dims shape) : dtype_(dtype), shape_(shape) {
  const size_t size = bytes();
  storage_ = std::make_unique_for_overwrite<char[]>(size + kGuard + 64);
  offset_ = (64 - reinterpret_cast<uintptr_t>(storage_.get()) % 64) % 64;
  std::memset(data() + size, kGuardByte, kGuard);
}

inline bool Value::GuardIntact() const {
  const char* const guard = data() + bytes();
  return std::all_of(guard, guard + kGuard, [](char byte) { return byte == kGuardByte; });
}

inline double Value::Get(int64_t i) const {
  switch (dtype_) {
    case DType::kFloat32:
      return reinterpret_cast<const float*>(data())[i];
    case DType::kBFloat16:
      return ToFloat(reinterpret_cast<const BFloat16*>(data())[i]);
    case DType::kFloat16:
      return ToFloat(reinterpret_cast<const Float16*>(data())[i]);
    case DType::kInt32:
      return reinterpret_cast<const int32_t*>(data())[i];
    case DType::kInt64:
      return static_cast<double>(reinterpret_cast<const int64_t*>(data())[i]);
    default:
      return reinterpret_cast<const uint8_t*>(data())[i];
  }
}

inline void Value::Set(int64_t i, double value) {
  switch (dtype_) {
    case DType::kFloat32:
      reinterpret_cast<float*>(data())[i] = static_cast<float>(value);
      break;
    case DType::kBFloat16:
      reinterpret_cast<BFloat16*>(data())[i] = ToBFloat16(static_cast<float>(value));
      break;
    case DType::kFloat16:
      reinterpret_cast<Float16*>(data())[i] = ToFloat16(static_cast<float>(value));
      break;
    case DType::kInt32:
      reinterpret_cast<int32_t*>(data())[i] = static_cast<int32_t>(value);
      break;
    case DType::kInt64:
      reinterpret_cast<int64_t*>(data())[i] = static_cast<int64_t>(value);
      break;
    default:
      reinterpret_cast<uint8_t*>(data())[i] = static_cast<uint8_t>(value);
      break;
  }
}

// All ones is a NaN no arithmetic makes; 0xA5.. is no class, index, flag or small number.
inline int PoisonByte(DType dtype) { return IsFloating(dtype) ? 0xFF : 0xA5; }
inline void Value::Poison() { std::memset(data(), PoisonByte(dtype_), bytes()); }
inline bool Value::Poisoned(int64_t index) const {
  const size_t size = SizeOf(dtype_);
  const char* const at = data() + index * size;
  const char poison = static_cast<char>(PoisonByte(dtype_));
  return std::all_of(at, at + size, [poison](char byte) { return byte == poison; });
}
inline int64_t Value::FirstPoisoned() const {
  const int64_t count = elements();
  const size_t size = SizeOf(dtype_);
  const char poison = static_cast<char>(PoisonByte(dtype_));
  for (int64_t i = 0; i < count; ++i)
    if (data()[i * size] == poison && Poisoned(i)) return i;
  return count;
}

inline uint64_t Draws::Bits() {  // splitmix64
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace oneflow_like::oracle
