// Names and sizes of element types.
#include "core/dtype.h"

#include <glog/logging.h>

namespace oneflow_like {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  size_t bytes;
  bool floating;
};

constexpr DTypeRow kRows[] = {
    {DType::kFloat32, "f32", 4, true}, {DType::kBFloat16, "bf16", 2, true}, {DType::kFloat16, "f16", 2, true},
    {DType::kInt32, "i32", 4, false},  {DType::kInt64, "i64", 8, false},    {DType::kUInt8, "u8", 1, false},
    {DType::kBool, "bool", 1, false},
};

const DTypeRow& Row(DType dtype) {
  size_t at = static_cast<size_t>(dtype);
  CHECK_LT(at, std::size(kRows));
  return kRows[at];
}

}  // namespace

size_t SizeOf(DType dtype) { return Row(dtype).bytes; }
const char* Name(DType dtype) { return Row(dtype).name; }
bool IsFloating(DType dtype) { return Row(dtype).floating; }

bool ParseDType(const std::string& text, DType* dtype) {
  for (const DTypeRow& row : kRows) {
    if (text == row.name) {
      *dtype = row.dtype;
      return true;
    }
  }
  return false;
}

}  // namespace oneflow_like
