// What products are described by, whoever does them; and gradients of biases by sums beside a product.
#include "ops/cuda/gemm.h"

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "ops/cuda/product_choices.h"
#include "ops/cuda/reduce.h"

namespace oneflow_like::cuda {
namespace {

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

// With kBiasGradA, in one of the two ways, once a device is current and all has been decided.
class ProductWithSums : public Gemm {
 public:
  explicit ProductWithSums(const GemmDescriptor& descriptor) : what_(descriptor) {
    if (what_.choice == kDecided) Choices().Want(what_);
  }
  const GemmDescriptor& descriptor() const override { return what_; }

  Status Check() override {
    int device = -1;
    if (cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
      return Status(Cat("cudaGetDevice: ", cudaGetErrorString(error)));
    if (product_ != nullptr && device == device_) return product_->Check();
    device_ = device;
    const int64_t choice = ProposalFor(what_, device);
    if (what_.choice == kDecided) Choices().Settle(WorkOf(what_, device));
    Status status = Take(choice);
    // What was kept by an earlier run may have been of a library that knew more.
    if (!status.ok() && what_.choice == kDecided && choice != 0) status = Take(0);
    return status;
  }

  Status Launch(const GemmOperands& operands, const LaunchContext& launch) override {
    if (Status status = Check(); !status.ok()) return status;
    if (!apart_) return product_->Launch(operands, launch);
    GemmOperands alone = operands;
    alone.bias = nullptr;
    if (Status status = product_->Launch(alone, launch); !status.ok()) return status;
    const DType in = static_cast<DType>(what_.in), out = static_cast<DType>(what_.out);
    SummedMatrix a{operands.a, in, what_.m, what_.k, 1, what_.lda};
    if (what_.transposed_a) std::swap(a.to_next_result, a.to_next_term);
    for (int64_t i = 0; i < what_.batch; ++i) {
      a.data = ElementAt(operands.a, i * what_.stride_a, in);
      LaunchMatrixSums(a, ElementAt(operands.bias, i * what_.stride_bias, out), out, launch);
    }
    return Status();
  }

 private:
  Status Take(int64_t choice) {
    apart_ = choice >= kSumsApart;
    GemmDescriptor product = what_;
    product.choice = apart_ ? choice - kSumsApart : choice;
    if (apart_) product.epilogue = Epilogue::kNone;
    product_ = MakeGemm(product);
    return product_->Check();
  }

  GemmDescriptor what_;
  int device_ = -1;
  bool apart_ = false;
  std::unique_ptr<Gemm> product_;  // on device_
};

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

std::unique_ptr<Gemm> MakeProduct(const GemmDescriptor& descriptor) {
  if (descriptor.epilogue != Epilogue::kBiasGradA) return MakeGemm(descriptor);
  return std::make_unique<ProductWithSums>(descriptor);
}

void SayRefused(const std::string& kind, const std::string& instead, const Status& why) {
  static std::mutex mutex;  // ranks of one process meet the same
  static auto* said = new std::set<std::string>;
  std::lock_guard lock(mutex);
  if (said->insert(kind).second) LOG(WARNING) << kind << ": " << instead << ", since " << why.message();
}

bool GemmTakes(DType in, DType out) { return IsFloating(in) && (out == in || out == DType::kFloat32); }

}  // namespace oneflow_like::cuda
