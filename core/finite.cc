#include "core/finite.h"

#include "core/float16.h"

namespace oneflow_like {
namespace {

// Not finite: all bits of the exponent are set.
template <typename Bits>
int64_t FirstWith(const void* data, int64_t elements, Bits exponent) {
  const Bits* bits = static_cast<const Bits*>(data);
  for (int64_t i = 0; i < elements; ++i)
    if ((bits[i] & exponent) == exponent) return i;
  return -1;
}

}  // namespace

int64_t FirstNotFinite(DType dtype, const void* data, int64_t elements) {
  switch (dtype) {
    case DType::kFloat32:
      return FirstWith<uint32_t>(data, elements, 0x7F800000u);
    case DType::kBFloat16:
      return FirstWith<uint16_t>(data, elements, 0x7F80u);
    case DType::kFloat16:
      return FirstWith<uint16_t>(data, elements, 0x7C00u);
    default:
      return -1;
  }
}

float FloatAt(DType dtype, const void* data, int64_t index) {
  if (dtype == DType::kBFloat16) return ToFloat(static_cast<const BFloat16*>(data)[index]);
  if (dtype == DType::kFloat16) return ToFloat(static_cast<const Float16*>(data)[index]);
  return static_cast<const float*>(data)[index];
}

}  // namespace oneflow_like
