// Grouped products by warpgroups. This file alone is compiled for sm_90a, which has their instructions.
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/warpgroup_tile.h"

namespace oneflow_like::cuda {
namespace {

template <typename F>
void WithNarrow(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) return f(BFloat16{});
  f(Float16{});
}

}  // namespace

void LaunchRowsByWarpgroups(DType dtype, const ExpertRuns& runs, const RowsProduct& p, cudaStream_t stream) {
  WithNarrow(dtype, [&](auto element) { LaunchRows<decltype(element), WarpgroupTile>(runs, p, stream); });
}
void LaunchColumnsByWarpgroups(DType dtype, const ExpertRuns& runs, const MatricesProduct& p,
                               cudaStream_t stream) {
  WithNarrow(dtype, [&](auto element) { LaunchColumns<decltype(element), WarpgroupTile>(runs, p, stream); });
}

}  // namespace oneflow_like::cuda
