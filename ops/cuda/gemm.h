// The interface to matrix products for kernels of this folder. cuBLASLt computes them (gemm_cublaslt.cc); the
// emulator of tests/cuda_emulator has plain loops that read the same descriptor.
//
// A library wants matrices column-major. The derivation, once for all: a row-major y[m n] is, read
// column-major, y^T[n m], and y^T = b^T a^T. So where n runs along y's memory the library's M is our n, its A
// our b and its B our a; where m does (y itself is stored transposed) M is m, A is a and B is b. An operand
// that the product reads as [rows columns] is passed as it is when rows run along memory, else as its
// transpose. DescribeGemm does this for strides of any kind and is all that knows of it.
#pragma once

#include <memory>
#include <string>

#include "ops/cuda/kernel.h"

namespace oneflow_like::cuda {

// Operations on the product before it is stored. Vectors (bias, bias gradient) are along the descriptor's M.
enum class Epilogue : int32_t {
  kNone,
  kBias,          // d = ab + bias
  kGeluBias,      // aux = ab + bias; d = gelu(aux), tanh form; aux is not kept where ld_aux is 0
  kGeluGrad,      // d = ab * gelu'(aux)
  kGeluGradBias,  // the same, and bias = d summed over N
  kBiasGradA,     // d = ab, and bias = op(A) summed over K
};

// In place of a number: the proposal that was decided on when plans were loaded (product_choices.h), else the
// first.
constexpr int64_t kDecided = -1;

// d[M N] = op(a)[M K] op(b)[K N], column-major, `batch` times. Element (i, j) of d lies at i + j * ldd, of
// op(a) at i + j * lda, or j + i * lda when it is stored transposed; likewise b. Sums are in fp32. All
// integers, no gaps: descriptors are compared as bytes.
struct GemmDescriptor {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0, ld_aux = 0;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_d = 0;  // in elements; 0: the same for all
  int64_t stride_bias = 0;                                      // of the vectors of a batch
  int64_t alignment = 16;                                       // of all pointers, in bytes
  int64_t workspace_bytes = 0;
  // Which of the library's proposals, from 0, its best; or kDecided. MakeProduct has further numbers.
  int64_t choice = kDecided;
  int32_t in = 0, out = 0;  // DType of a and b; of d, bias and aux
  int32_t transposed_a = 0, transposed_b = 0;
  int32_t swapped = 0;  // a and b are the caller's b and a
  int32_t tf32 = 0;
  Epilogue epilogue = Epilogue::kNone;
  int32_t adds_c = 0;  // ab + c in place of ab; c lies as d does, and may be d
};

// Extents and element strides of y[m n] = a[m k] b[k n]. REQUIRES: in every operand one of the two strides is
// 1, or belongs to an extent of 1.
struct ProductStrides {
  int64_t m = 1, n = 1, k = 1;
  int64_t a_m = 0, a_k = 0, b_k = 0, b_n = 0, y_m = 0, y_n = 0;
};
// Strides of a batch, types and epilogue are the caller's to fill in. An epilogue wants a vector along n: it
// may be used where the result says `swapped`, which it does whenever y_n is 1.
GemmDescriptor DescribeGemm(const ProductStrides& product);

struct GemmOperands {
  const void* a = nullptr;  // the descriptor's a and b: MakeOperands swaps
  const void* b = nullptr;
  const void* c = nullptr;  // where the descriptor adds it
  void* d = nullptr;
  void* bias = nullptr;  // read or written, as the epilogue says
  void* aux = nullptr;
  void* workspace = nullptr;
};

// Element `at` of an operand, which may be null.
inline char* ElementAt(const void* data, int64_t at, DType dtype) {
  if (data == nullptr) return nullptr;
  return static_cast<char*>(const_cast<void*>(data)) + at * static_cast<int64_t>(SizeOf(dtype));
}

class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual const GemmDescriptor& descriptor() const = 0;
  // OK if the library supports this product on the current device, else the reason. Callers with an
  // alternative check it before the first launch.
  virtual Status Check() = 0;
  // Enqueues. The same bits for the same operands, in every run on one kind of device.
  virtual Status Launch(const GemmOperands& operands, const LaunchContext& launch) = 0;
};
// The library's. Chooses an algorithm now where a device is current, and again when it is launched on
// another, or first launched after another proposal was decided on.
std::unique_ptr<Gemm> MakeGemm(const GemmDescriptor& descriptor);
// The same; with kBiasGradA the library's, or, where the choice is kSumsApart + i, its proposal i for the
// product alone and then the sums of A in launches of their own (reduce.h), deterministic as well.
std::unique_ptr<Gemm> MakeProduct(const GemmDescriptor& descriptor);

// The library and its version ("cuBLASLt 130100"), with what else numbers of proposals depend on, and how
// many of its proposals for a product are worth timing, of which there may be fewer: 1 where they are all the
// same.
struct GemmLibrary {
  std::string version;
  int proposals = 1;
};
GemmLibrary DescribeGemmLibrary();

// Logs, once for each `kind` of product, that the library refuses it, why, and the alternative used: a
// correct but slower computation must not go unnoticed.
void SayRefused(const std::string& kind, const std::string& instead, const Status& why);

// Whether the library multiplies these types into that one.
bool GemmTakes(DType in, DType out);

}  // namespace oneflow_like::cuda
