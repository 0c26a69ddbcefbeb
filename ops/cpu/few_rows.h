// Products with few rows, for instance one token at a time: they take as long as reading the other operand
// once.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/cpu/product_layout.h"

namespace oneflow_like::cpu {

constexpr int64_t kFewRows = 4;

// Whether RunFewRows is meant for the product: m small, b with one dense side and large enough to matter.
bool HasFewRows(const ProductLayout& layout, DType dtype);
// Bytes of its scratch.
int64_t FewRowsBytes(const ProductLayout& layout);
// y (+)= a b, operands of one floating type, y of that or fp32; sums in fp32. Each element is summed in an
// order of its own shape alone, whatever the threads. REQUIRES: HasFewRows, and without `add` unless y is
// fp32.
void RunFewRows(const ProductLayout& layout, DType dtype, const void* a, const void* b, DType result, void* y,
                bool add, void* scratch);

}  // namespace oneflow_like::cpu
