#include "ops/cpu/matrix_product.h"

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/matrix_panels.h"
#include "ops/cpu/pair_panels.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

bool InPlace(const ProductLayout& l, DType result) {
  return result == DType::kFloat32 && (l.y_column == 1 || l.n == 1);
}

// Stored by columns, the result is that of the transposed product.
bool ByColumns(const ProductLayout& l) { return l.y_column != 1 && l.n > 1 && (l.y_row == 1 || l.m == 1); }

MatrixProduct TurnedProduct(const MatrixProduct& p, SummedAxis* summed) {
  MatrixProduct turned = p;
  turned.layout = p.layout.Turned();
  for (size_t i = 0; i < p.summed.size(); ++i) summed[i] = {p.summed[i].extent, p.summed[i].b, p.summed[i].a};
  turned.summed = {summed, p.summed.size()};
  return turned;
}

constexpr size_t kMostSummed = 3 * Dims::kMaxRank;  // labels of an equation

// run(the result), of type T or fp32.
template <typename T, typename F>
void WithResult(const MatrixProduct& p, void* y, F&& run) {
  if (p.result == DType::kFloat32) return run(MatrixResult<float>(p, y));
  run(MatrixResult<T>(p, y));
}

}  // namespace

int64_t MatrixProduct::depth() const {
  int64_t depth = layout.k;
  for (const SummedAxis& axis : summed) depth *= axis.extent;
  return depth;
}

int64_t MatrixProduct::bytes() const {
  const ProductLayout l = ByColumns(layout) ? layout.Turned() : layout;
  return (PanelBytes(l.m, l.n, depth(), InPlace(l, result)) + 63) / 64 * 64;
}

void MatrixProduct::Run(const void* a, const void* b, void* y, int threads, void* scratch,
                        int64_t room) const {
  if (ByColumns(layout)) {
    SummedAxis axes[kMostSummed];
    return TurnedProduct(*this, axes).Run(b, a, y, threads, scratch, room);
  }
#if defined(OFL_NARROW_TILES)
  if (dtype == DType::kBFloat16 && WorthPairs(*this)) {
    const PairRight right(layout, b);
#if defined(OFL_AMX_TILES)
    if (HasTiles() && WorthTiles(*this)) {
      const TileLeft left(layout, a);
      return WithResult<BFloat16>(*this, y, [&](const ProductResult& to) {
        RunPanels({layout.m, layout.n, (layout.k + 1) / 2, 0, nullptr, &right, &to, InPlace(layout, result),
                   add, true, &left},
                  threads, scratch, room);
      });
    }
#endif
    const PairLeft left(layout, a);
    return WithResult<BFloat16>(*this, y, [&](const ProductResult& to) {
      RunPanels(
          {layout.m, layout.n, (layout.k + 1) / 2, 0, &left, &right, &to, InPlace(layout, result), add, true},
          threads, scratch, room);
    });
  }
#endif
  DispatchFloating(dtype, [&](auto t) {
    using T = decltype(t);
    const MatrixLeft<T> left(*this, a);
    const MatrixRight<T> right(*this, b);
    WithResult<T>(*this, y, [&](const ProductResult& to) {
      RunPanels({layout.m, layout.n, depth(), layout.k, &left, &right, &to, InPlace(layout, result), add},
                threads, scratch, room);
    });
  });
}

}  // namespace oneflow_like::cpu
