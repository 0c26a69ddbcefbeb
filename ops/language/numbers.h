// Domains of numbers that a user gives as an option: of an operator, a loss, an optimizer, a layer.
// Kernels compute with it in fp32, so a number that fp32 does not hold (1e39) is refused like one outside of
// its domain.
#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace oneflow_like {

enum class Domain {
  kFinite,
  kNotNegative,  // 0 or more
  kDivisor,      // the same, but not one that is above 0 and is 0 in fp32 (1e-300): kernels divide by it
  kPositive,     // above 0, in fp32 too
  kShare,        // [0, 1]
  kBelowOne,     // [0, 1)
};

// Throws Error, beginning with `who`, unless `number` is in the domain, and in fp32 too. `name` is the user's
// name for it: "eps".
void NeedNumber(const std::string& who, const std::string& name, double number, Domain domain);

// Throws Error, beginning with `who`, unless the number cast to an enum is one of its values, the last of
// which is `last`: `name` is the option's, `type` the enum's.
template <typename Enum>
void NeedEnum(const std::string& who, const std::string& name, Enum value, Enum last, const char* type) {
  if (static_cast<int64_t>(value) < 0 || value > last)
    Fail(who, ": ", name, " is ", static_cast<int64_t>(value), ", which is no ", type);
}
inline void NeedType(const std::string& who, DType dtype) {
  NeedEnum(who, "dtype", dtype, DType::kBool, "DType");
}

// Whether the type holds the number: rounded, if it is floating, but not to infinity.
bool Holds(DType dtype, double number);

}  // namespace oneflow_like
