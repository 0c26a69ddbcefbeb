// For processors with AVX-512 BF16. On tiles of AMX, products go by panels (tile_product.h): this library, of
// version 2.6, packs the right operand once for each 256 rows of the left one.
//
// Measured on a core with AVX-512 BF16 and no AMX, over all layouts of GPT's forward, input-gradient and
// weight-gradient products: 490-530 GFLOP/s from plain operands, where fp32 sgemm gives 250-270. Packing the
// weights in the library's own order gains 3 %, and doing so once per step takes as much, so operands stay as
// they lie.
#include "ops/cpu/narrow_product.h"

#include <algorithm>
#include <dnnl.hpp>

#include "core/device/parallel_for.h"
#include "core/error.h"
#include "ops/cpu/primitives.h"

namespace oneflow_like::cpu {
namespace {

using dnnl::memory;

// A matrix with one dense side, whatever the strides of extents of 1 are.
memory::desc NarrowMatrix(int64_t rows, int64_t columns, int64_t row, int64_t column,
                          memory::data_type type) {
  bool by_rows = column == 1 || columns == 1;
  memory::dims strides = by_rows ? memory::dims{std::max(rows == 1 ? columns : row, columns), 1}
                                 : memory::dims{1, std::max(column, rows)};
  return memory::desc({rows, columns}, type, strides);
}

}  // namespace

struct NarrowProduct::Impl {
  dnnl::stream stream{HostEngine()};
  dnnl::matmul product;
  memory a, b, y, scratch;
  int threads = 1;
  bool swapped = false;  // y is stored transposed: y^T = b^T a^T
};

NarrowProduct::NarrowProduct(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NarrowProduct::~NarrowProduct() = default;

bool NarrowProduct::Worthwhile(DType dtype) {
  if (dtype != DType::kBFloat16) return false;
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      return true;
    default:
      return false;
  }
}

// On one thread products of GPTs take 9 KB to 1.7 MB; on 16 and more, where it gives each thread a share of
// k, sums of the whole result for each: up to 100 MB. Such products go by pairs, which are as fast.
int64_t NarrowProduct::MostBytes(const ProductLayout& l, int threads) {
  constexpr int64_t kFixed = 64 << 10, kLeast = 256 << 10, kMost = 2 << 20, kOfAll = 16 << 20;
  const int64_t operands = 2 * (l.m * l.k + l.k * l.n) + 4 * l.m * l.n;  // and sums
  return threads * (kFixed + std::min(operands, std::clamp(kOfAll / threads, kLeast, kMost)));
}

std::unique_ptr<NarrowProduct> NarrowProduct::Make(const ProductLayout& l, DType result, bool add,
                                                   int64_t most_bytes) {
  CheckRoomForCode("the code of a bf16 product");
  memory::data_type bf16 = memory::data_type::bf16,
                    type = result == DType::kFloat32 ? memory::data_type::f32 : bf16;
  try {
    auto impl = std::make_unique<Impl>();
    impl->swapped = l.y_column != 1 && l.n != 1;
    memory::desc a = NarrowMatrix(l.m, l.k, l.a_row, l.a_column, bf16),
                 b = NarrowMatrix(l.k, l.n, l.b_row, l.b_column, bf16);
    memory::desc y = NarrowMatrix(l.m, l.n, l.y_row, l.y_column, type);
    if (impl->swapped) {
      a = NarrowMatrix(l.n, l.k, l.b_column, l.b_row, bf16);
      b = NarrowMatrix(l.k, l.m, l.a_column, l.a_row, bf16);
      y = NarrowMatrix(l.n, l.m, l.y_column, l.y_row, type);
    }
    dnnl::primitive_attr attr = OwnScratch();
    dnnl::post_ops after;
    if (add) after.append_sum();
    attr.set_post_ops(after);
    dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(a, b, y), attr, HostEngine());
    if (!IsOwn(desc) || ScratchOf(desc) > most_bytes) return nullptr;
    impl->product = dnnl::matmul(desc);
    impl->a = memory(a, HostEngine(), nullptr);
    impl->b = memory(b, HostEngine(), nullptr);
    impl->y = memory(y, HostEngine(), nullptr);
    impl->scratch = memory(desc.scratchpad_desc(), HostEngine(), nullptr);
    impl->threads = ParallelThreads();
    return std::unique_ptr<NarrowProduct>(new NarrowProduct(std::move(impl)));
  } catch (const dnnl::error&) {  // not implemented for this layout
    return nullptr;
  }
}

void NarrowProduct::Run(const void* a, const void* b, void* y, void* scratch) {
  const TeamSize team(impl_->threads);
  if (impl_->swapped) std::swap(a, b);
  impl_->a.set_data_handle(const_cast<void*>(a));
  impl_->b.set_data_handle(const_cast<void*>(b));
  impl_->y.set_data_handle(y);
  impl_->scratch.set_data_handle(scratch);
  impl_->product.execute(impl_->stream, {{DNNL_ARG_SRC, impl_->a},
                                         {DNNL_ARG_WEIGHTS, impl_->b},
                                         {DNNL_ARG_DST, impl_->y},
                                         {DNNL_ARG_SCRATCHPAD, impl_->scratch}});
  impl_->stream.wait();
}

}  // namespace oneflow_like::cpu
