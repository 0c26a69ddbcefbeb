// conv2d and its gradients. The library does them where it has a deterministic kernel
// (convolution_library.h); else they are implicit matrix products, in any type, with fp32 sums on the plain
// cores.
//
// Each of the three is y[m j] = sum over k of a[m k] b[k j] in every group, where the elements of a and b are
// looked up where the window says, and are 0 in the padding:
//   conv2d              m: n h w of y     k: r s c of the window    j: channels k of a group
//   conv2d_grad_input   m: n h w of x     k: r s k of the results   j: channels c of a group
//   conv2d_grad_filter  m: filters        k: n p q                  j: r s c
// A block of 256 threads has a tile of 64 by 64 results, 4 by 4 to a thread, and goes through k in steps of
// 16 that wait in shared memory. Floor: 2 operations per product at the fp32 peak of the plain cores; a block
// reads 8 bytes of its tiles for 64 products. The order of additions is that of k.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "ops/convolution.h"
#include "ops/cuda/convolution_library.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/library_use.h"
#include "ops/cuda/operand.h"
#include "ops/tf32.h"

namespace oneflow_like::cuda {
namespace {

using Kind = ConvolutionKind;

constexpr int kSide = 64, kDepth = 16, kEach = 4;

// The matrices of one group.
struct MatrixExtents {
  int64_t m, k, j;
};
MatrixExtents MatrixExtentsOf(Kind kind, const ConvolutionShape& s) {
  int64_t window = s.rows.window * s.columns.window, results = s.batch * s.rows.out * s.columns.out;
  if (kind == Kind::kForward) return {results, window * s.in, s.out};
  if (kind == Kind::kGradInput) return {s.batch * s.rows.in * s.columns.in, window * s.out, s.in};
  return {s.out, results, window * s.in};
}

// A position in a plane of the batch.
struct Position {
  int64_t n, row, column;
};
OFL_DEVICE Position PositionOf(int64_t at, int64_t rows, int64_t columns) {
  int64_t line = at / columns;
  return {line / rows, line % rows, at - line * columns};
}

// Offset of channel 0 of what stands at a position of x, or -1 in the padding.
OFL_DEVICE int64_t Inside(const ConvolutionShape& s, const Position& y, int64_t r, int64_t column) {
  int64_t h = y.row * s.rows.stride - s.rows.padding + r * s.rows.dilation;
  int64_t w = y.column * s.columns.stride - s.columns.padding + column * s.columns.dilation;
  if (h < 0 || h >= s.rows.in || w < 0 || w >= s.columns.in) return -1;
  return ((y.n * s.rows.in + h) * s.columns.in + w) * s.groups * s.in;
}

// Offset of channel 0 of the result that meets a position of x at element (r, column) of the window, or -1.
OFL_DEVICE int64_t Meeting(const ConvolutionShape& s, const Position& x, int64_t r, int64_t column) {
  int64_t p = x.row + s.rows.padding - r * s.rows.dilation;
  int64_t q = x.column + s.columns.padding - column * s.columns.dilation;
  if (p < 0 || q < 0 || p % s.rows.stride != 0 || q % s.columns.stride != 0) return -1;
  p /= s.rows.stride;
  q /= s.columns.stride;
  if (p >= s.rows.out || q >= s.columns.out) return -1;
  return ((x.n * s.rows.out + p) * s.columns.out + q) * s.groups * s.out;
}

// Elements of the two matrices of a group, by kind; `a` and `b` are the operator's inputs.
template <Kind kKind, typename T>
struct Matrices {
  const ConvolutionShape& s;
  const T *a, *b;
  int64_t group;

  OFL_DEVICE float A(int64_t m, int64_t k) const {
    if (kKind == Kind::kGradFilter) return Load(b[k * s.groups * s.out + group * s.out + m]);
    int64_t channels = kKind == Kind::kForward ? s.in : s.out;
    int64_t element = k / channels, channel = k - element * channels;
    int64_t r = element / s.columns.window, column = element - r * s.columns.window;
    int64_t at = kKind == Kind::kForward ? Inside(s, PositionOf(m, s.rows.out, s.columns.out), r, column)
                                         : Meeting(s, PositionOf(m, s.rows.in, s.columns.in), r, column);
    return at < 0 ? 0.0f : Load(a[at + group * channels + channel]);
  }

  OFL_DEVICE float B(int64_t k, int64_t j) const {
    int64_t window = s.rows.window * s.columns.window;
    if (kKind == Kind::kForward) return Load(b[(group * s.out + j) * window * s.in + k]);
    if (kKind == Kind::kGradInput) {
      int64_t element = k / s.out, filter = k - element * s.out;
      return Load(b[((group * s.out + filter) * window + element) * s.in + j]);
    }
    int64_t element = j / s.in, channel = j - element * s.in;
    int64_t r = element / s.columns.window, column = element - r * s.columns.window;
    int64_t at = Inside(s, PositionOf(k, s.rows.out, s.columns.out), r, column);
    return at < 0 ? 0.0f : Load(a[at + group * s.in + channel]);
  }

  OFL_DEVICE int64_t ResultAt(int64_t m, int64_t j) const {
    if (kKind == Kind::kForward) return m * s.groups * s.out + group * s.out + j;
    if (kKind == Kind::kGradInput) return m * s.groups * s.in + group * s.in + j;
    return (group * s.out + m) * s.rows.window * s.columns.window * s.in + j;
  }
};

template <Kind kKind, typename T>
OFL_KERNEL void ConvolutionTiles(ConvolutionShape shape, MatrixExtents extents, const T* first,
                                 const T* second, FloatView result) {
  OFL_SHARED float a[kDepth][kSide + 4];
  OFL_SHARED float b[kDepth][kSide + 4];
  int64_t across = (extents.j + kSide - 1) / kSide, down = (extents.m + kSide - 1) / kSide;
  int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  for (int64_t tile = blockIdx.x; tile < shape.groups * down * across; tile += gridDim.x) {
    Matrices<kKind, T> of{shape, first, second, tile / (down * across)};
    int64_t m0 = tile / across % down * kSide, j0 = tile % across * kSide;
    float sum[kEach][kEach] = {};
    for (int64_t k0 = 0; k0 < extents.k; k0 += kDepth) {
      for (int i = static_cast<int>(threadIdx.x); i < kSide * kDepth; i += 256) {
        // Neighbouring threads read along the axis that is dense in memory.
        int am = kKind == Kind::kGradFilter ? i % kSide : i / kDepth;
        int ak = kKind == Kind::kGradFilter ? i / kSide : i % kDepth;
        a[ak][am] = m0 + am < extents.m && k0 + ak < extents.k ? of.A(m0 + am, k0 + ak) : 0.0f;
        int bj = kKind == Kind::kForward ? i / kDepth : i % kSide;
        int bk = kKind == Kind::kForward ? i % kDepth : i / kSide;
        b[bk][bj] = j0 + bj < extents.j && k0 + bk < extents.k ? of.B(k0 + bk, j0 + bj) : 0.0f;
      }
      __syncthreads();
      for (int k = 0; k < kDepth; ++k) {
        for (int i = 0; i < kEach; ++i) {
          float factor = a[k][row * kEach + i];
          for (int j = 0; j < kEach; ++j) sum[i][j] += factor * b[k][column * kEach + j];
        }
      }
      __syncthreads();
    }
    for (int i = 0; i < kEach; ++i) {
      for (int j = 0; j < kEach; ++j) {
        int64_t m = m0 + row * kEach + i, n = j0 + column * kEach + j;
        if (m < extents.m && n < extents.j) result.Put(of.ResultAt(m, n), sum[i][j]);
      }
    }
  }
}

template <Kind kKind>
Status LaunchTiles(const ConvolutionShape& shape, const KernelContext& context, const LaunchContext& launch) {
  MatrixExtents extents = MatrixExtentsOf(kKind, shape);
  int64_t tiles = shape.groups * ((extents.m + kSide - 1) / kSide) * ((extents.j + kSide - 1) / kSide);
  Grid grid{.x = static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{1} << 30))};
  WithFloating(context.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    Launch(ConvolutionTiles<kKind, T>, grid, launch.stream, shape, extents, context.in[0].as<T>(),
           context.in[1].as<T>(), FloatsOf(context.out[0]));
  });
  return Status();
}

std::atomic<bool> library_allowed{true};

// The gradient of a filter of one element is a product, dw[k c] = dy[r k]^T x[r c] over all rows, which
// cuBLASLt gives in fp32; cuDNN's are of 16 bits.
class FilterProduct {
 public:
  // Made with the kernel, so that the library's proposals are timed with those for other products.
  void Prepare(const LibraryConvolution& c) {
    asked_ = c;
    checked_ = false;
    gemm_.reset();
    const ConvolutionShape& s = c.shape;
    const auto one = [](const ConvolutionAxis& axis) {
      return axis.window == 1 && axis.stride == 1 && axis.padding == 0;
    };
    if (c.kind != Kind::kGradFilter || c.result != DType::kFloat32 || c.dtype == c.result || s.groups != 1 ||
        !one(s.rows) || !one(s.columns))
      return;
    GemmDescriptor product = DescribeGemm({.m = s.out,
                                           .n = s.in,
                                           .k = s.batch * s.rows.in * s.columns.in,
                                           .a_m = 1,
                                           .a_k = s.out,
                                           .b_k = s.in,
                                           .b_n = 1,
                                           .y_m = s.in,
                                           .y_n = 1});
    product.in = static_cast<int32_t>(c.dtype);
    product.out = static_cast<int32_t>(c.result);
    product.workspace_bytes = static_cast<int64_t>(kWorkspaceBytes);
    gemm_ = MakeGemm(product);
  }
  // Whether it takes the convolution on the current device. First asked in the first act, which is not
  // recorded.
  bool Takes(const LibraryConvolution& c) {
    if (!(asked_ == c)) Prepare(c);
    if (gemm_ && !checked_ && !gemm_->Check().ok()) gemm_.reset();
    checked_ = true;
    return gemm_ != nullptr;
  }
  Status Launch(const ConvolutionArgs& args, const LaunchContext& launch) {
    GemmOperands operands;
    operands.a = args.y->data;
    operands.b = args.x->data;
    if (gemm_->descriptor().swapped) std::swap(operands.a, operands.b);
    operands.d = args.filter->data;
    operands.workspace = launch.workspace;
    return gemm_->Launch(operands, launch);
  }

 private:
  LibraryConvolution asked_;
  std::unique_ptr<Gemm> gemm_;
  bool checked_ = false;
};

template <Kind kKind>
class ConvolutionKernel : public CudaKernel {
 public:
  explicit ConvolutionKernel(const KernelSpec& spec) {
    if (library_allowed) library_ = MakeConvolutionLibrary();
    if (library_) product_.Prepare(AskedOf(spec, spec));
  }

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    const TensorArg& out = context.out[0];
    if (out.elements() == 0) return Status();
    const ConvolutionArgs args = ConvolutionArgsOf(kKind, context);
    const LibraryConvolution asked = AskedOf(context.spec, context);
    if (!MayAsk(context) || !MayConvolve(asked.shape))
      return LaunchTiles<kKind>(asked.shape, context, launch);
    if (product_.Takes(asked)) {
      Count(LibraryUse::kProduct);
      return product_.Launch(args, launch);
    }
    if (library_->Takes(asked, launch)) {
      Count(LibraryUse::kConvolution);
      return library_->Launch(asked, {args.x->data, args.filter->data, args.y->data}, launch);
    }
    return LaunchTiles<kKind>(asked.shape, context, launch);
  }

 private:
  // `of`: the spec, or the context of an act.
  template <typename Args>
  static LibraryConvolution AskedOf(const KernelSpec& spec, const Args& of) {
    return {kKind, ShapeOfConvolution(spec.attrs, ConvolutionArgsOf(kKind, of)), of.in[0].dtype,
            of.out[0].dtype, MayRoundToTf32(spec.attrs)};
  }
  bool MayAsk(const KernelContext& context) const {
    if (!library_) return false;
    uintptr_t bits = reinterpret_cast<uintptr_t>(context.out[0].data);
    for (const TensorArg& in : context.in) {
      if (in.elements() == 0 || in.dtype != context.in[0].dtype) return false;
      bits |= reinterpret_cast<uintptr_t>(in.data);
    }
    return bits % 16 == 0;
  }

  std::unique_ptr<ConvolutionLibrary> library_;
  FilterProduct product_;
};

template <Kind kKind>
void AddConvolutionKernel(const char* name, KernelRegistry* registry) {
  registry->Add(name, "cuda",
                [](const KernelSpec& spec) { return std::make_unique<ConvolutionKernel<kKind>>(spec); });
}

}  // namespace

void SetConvolutionLibrary(bool allowed) { library_allowed = allowed; }

void AddConvolutionKernels(KernelRegistry* registry) {
  AddConvolutionKernel<Kind::kForward>("conv2d", registry);
  AddConvolutionKernel<Kind::kGradInput>("conv2d_grad_input", registry);
  AddConvolutionKernel<Kind::kGradFilter>("conv2d_grad_filter", registry);
}

}  // namespace oneflow_like::cuda
