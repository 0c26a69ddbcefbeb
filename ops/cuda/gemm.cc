// What products are described by, whoever does them.
#include "ops/cuda/gemm.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

namespace oneflow_like::cuda {
namespace {

std::atomic<bool> tf32_allowed{false};

struct Stored {
  int32_t transposed;
  int64_t ld;
};

// A matrix read as [rows columns], as a column-major one. A leading dimension is at least the rows stored,
// which the library checks even for a single column.
Stored StoredAs(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if (row_stride == 1 || rows == 1) return {0, std::max(columns == 1 ? rows : column_stride, rows)};
  return {1, std::max(rows == 1 ? columns : row_stride, columns)};
}

}  // namespace

GemmDescriptor DescribeGemm(const ProductStrides& p) {
  GemmDescriptor d;
  d.k = p.k;
  d.swapped = p.y_n == 1 || p.n == 1;
  Stored a, b;
  if (d.swapped) {
    d.m = p.n;
    d.n = p.m;
    a = StoredAs(p.n, p.k, p.b_n, p.b_k);
    b = StoredAs(p.k, p.m, p.a_k, p.a_m);
    d.ldd = std::max(p.m == 1 ? p.n : p.y_m, p.n);
  } else {
    d.m = p.m;
    d.n = p.n;
    a = StoredAs(p.m, p.k, p.a_m, p.a_k);
    b = StoredAs(p.k, p.n, p.b_k, p.b_n);
    d.ldd = std::max(p.y_n, p.m);
  }
  d.transposed_a = a.transposed;
  d.lda = a.ld;
  d.transposed_b = b.transposed;
  d.ldb = b.ld;
  return d;
}

void SetTf32(bool allowed) { tf32_allowed = allowed; }
bool Tf32() { return tf32_allowed; }

void SayRefused(const std::string& kind, const std::string& instead, const Status& why) {
  static std::mutex mutex;  // ranks of one process meet the same
  static auto* said = new std::set<std::string>;
  std::lock_guard lock(mutex);
  if (said->insert(kind).second) LOG(WARNING) << kind << ": " << instead << ", since " << why.message();
}

bool GemmTakes(DType in, DType out) { return IsFloating(in) && (out == in || out == DType::kFloat32); }

}  // namespace oneflow_like::cuda
