#include "ops/language/numbers.h"

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "core/float16.h"

namespace oneflow_like {

void NeedNumber(const std::string& who, const std::string& name, double number, Domain domain) {
  auto refuse = [&](const char* must) { Fail(who, ": ", name, " is ", number, " but must be ", must); };
  if (domain == Domain::kShare && !(number >= 0 && number <= 1)) refuse("in [0, 1]");
  if (domain == Domain::kBelowOne) {
    if (!(number >= 0 && number < 1)) refuse("in [0, 1)");
    if (static_cast<float>(number) == 1) Fail(who, ": ", name, " must be in [0, 1) but is 1 in fp32");
  }
  if (!std::isfinite(number)) refuse("finite");
  if (domain == Domain::kPositive && !(number > 0)) refuse("greater than 0");
  if ((domain == Domain::kNotNegative || domain == Domain::kDivisor) && !(number >= 0)) refuse("0 or more");
  if (std::fabs(number) > FLT_MAX)
    Fail(who, ": ", name, " is ", number, ", but fp32 holds only numbers up to ", FLT_MAX);
  if ((domain == Domain::kPositive || domain == Domain::kDivisor) && number != 0 && number < FLT_MIN)
    Fail(who, ": ", name, " is ", number, ", but fp32 holds only numbers from ", FLT_MIN, " on");
}

bool Holds(DType dtype, double number) {
  auto inside = [&](auto integer) {
    using T = decltype(integer);
    return number == std::floor(number) && number >= static_cast<double>(std::numeric_limits<T>::min()) &&
           number < static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2;
  };
  const bool in_fp32 = !(std::fabs(number) > FLT_MAX) || std::isinf(number);
  switch (dtype) {
    case DType::kFloat32:
      return in_fp32;
    case DType::kBFloat16:
    case DType::kFloat16: {
      if (!in_fp32 || !std::isfinite(number)) return in_fp32;
      const float wide = static_cast<float>(number);
      return std::isfinite(dtype == DType::kFloat16 ? ToFloat(ToFloat16(wide)) : ToFloat(ToBFloat16(wide)));
    }
    case DType::kInt32:
      return inside(int32_t{});
    case DType::kInt64:
      return inside(int64_t{});
    case DType::kUInt8:
      return inside(uint8_t{});
    case DType::kBool:
      return number == 0 || number == 1;
  }
  return false;
}

}  // namespace oneflow_like
