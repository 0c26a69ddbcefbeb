// grouped_matmul and the gradient of its matrices, a product by panels for each expert. Many small groups
// share the threads, few large ones use them all, one after another.
#include <cstring>

#include "core/device/scratch.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/matrix_product.h"
#include "ops/cpu/panel_product.h"
#include "ops/groups.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

struct ExpertRows {
  int64_t expert, begin, end;  // rows
};

// The groups of an act, and the room of each thread for a product of at most these extents.
struct GroupedRoom {
  ExpertRows* groups;
  char* products;
  int64_t bytes, each;
  int slots;
  GroupedRoom(const KernelSpec& spec, const MatrixProduct& most, int64_t experts, void* memory) {
    Scratch scratch(memory);
    each = std::max(most.bytes(), kLeastPanelBytes);
    groups = scratch.Take<ExpertRows>(experts);
    const ProductLayout& l = most.layout;
    slots = static_cast<int>(
        std::min<int64_t>(spec.threads, std::max<int64_t>(experts, PanelParts(l.m, l.n, l.k, spec.threads))));
    slots = std::max(1, slots);
    products = scratch.Take<char>(slots * each);
    bytes = scratch.bytes();
  }
};

// Calls body(group, threads of its product, their room) for all experts held here; `flops` of a row.
template <typename F>
void ForEachGroup(const KernelContext& context, const GroupedRoom& room, const TensorArg& w, double flops,
                  F&& body) {
  const int threads = room.slots;
  int64_t n = 0;
  ForGroups(context.in[2], context.in[0], w.begin[0], w.extent[0],
            [&](int64_t e, int64_t begin, int64_t end) {
              room.groups[n++] = {e, begin, end};
            });
  const int64_t rows = n > 0 ? room.groups[n - 1].end - room.groups[0].begin : 0;
  const bool spread = n >= 2 * threads && flops * static_cast<double>(rows) < 2e7 * static_cast<double>(n);
  ParallelForParts(n, spread ? 1 : n, threads, [&](int64_t low, int64_t high, int part) {
    for (int64_t i = low; i < high; ++i)
      body(room.groups[i], spread ? 1 : threads, room.products + part * room.each);
  });
}

// Rows of x times an expert's matrix [k m], or [m k] transposed. At most `rows` of them.
MatrixProduct RowsProductOf(const KernelSpec& spec, int64_t rows, int64_t k, int64_t m) {
  const bool transposed = spec.attrs.Int("transposed", 0) != 0;
  return {{rows, m, k, k, 1, transposed ? 1 : m, transposed ? k : 1, m, 1},
          {},
          spec.in[0].dtype,
          spec.out[0].dtype};
}

Status RunGroupedOfPart(const KernelContext& context) {
  const TensorArg &x = context.in[0], &w = context.in[1], &counts = context.in[2], &y = context.out[0];
  Status checked = CheckCounts(counts, x.global[0]);
  const int64_t k = x.extent[1], m = y.extent[1], experts = w.extent[0];
  if (!checked.ok() || y.elements() == 0) return checked;
  const GroupedRoom room(context.spec, RowsProductOf(context.spec, x.extent[0], k, m), experts,
                         context.scratch);
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype)), size_y = static_cast<int64_t>(SizeOf(y.dtype));
  ForEachGroup(context, room, w, 2.0 * static_cast<double>(k) * static_cast<double>(m),
               [&](const ExpertRows& g, int threads, char* own) {
                 const int64_t rows = g.end - g.begin;
                 if (rows == 0) return;
                 char* to = y.as<char>() + g.begin * m * size_y;
                 if (k == 0) {
                   std::memset(to, 0, rows * m * size_y);
                   return;
                 }
                 RowsProductOf(context.spec, rows, k, m)
                     .Run(x.as<char>() + g.begin * k * size, w.as<char>() + g.expert * k * m * size, to,
                          threads, own, room.each);
               });
  // Rows of experts that are held elsewhere, and of none.
  const int64_t first = experts > 0 ? room.groups[0].begin : 0,
                last = experts > 0 ? room.groups[experts - 1].end : 0;
  FillZero(y.data, first * m * size_y);
  FillZero(y.as<char>() + last * m * size_y, (y.extent[0] - last) * m * size_y);
  return checked;
}

// An expert's rows of x, transposed, times those of dy.
MatrixProduct WeightProductOf(const KernelSpec& spec, int64_t rows, int64_t k, int64_t m) {
  return {{k, m, rows, 1, k, m, 1, m, 1}, {}, spec.in[0].dtype, spec.out[0].dtype};
}

Status RunGradWeightOfPart(const KernelContext& context, bool adds) {
  const TensorArg &x = context.in[0], &dy = context.in[1], &counts = context.in[2], &dw = context.out[0];
  Status checked = CheckCounts(counts, x.global[0]);
  const int64_t k = x.extent[1], m = dy.extent[1];
  if (!checked.ok() || dw.elements() == 0) return checked;
  const GroupedRoom room(context.spec, WeightProductOf(context.spec, x.extent[0], k, m), dw.extent[0],
                         context.scratch);
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype)), size_w = static_cast<int64_t>(SizeOf(dw.dtype));
  ForEachGroup(context, room, dw, 2.0 * static_cast<double>(k) * static_cast<double>(m),
               [&](const ExpertRows& g, int threads, char* own) {
                 const int64_t rows = g.end - g.begin;
                 char* to = dw.as<char>() + g.expert * k * m * size_w;
                 if (rows == 0) {
                   if (!adds) std::memset(to, 0, k * m * size_w);
                   return;
                 }
                 MatrixProduct product = WeightProductOf(context.spec, rows, k, m);
                 product.add = adds;
                 product.Run(x.as<char>() + g.begin * k * size, dy.as<char>() + g.begin * m * size, to,
                             threads, own, room.each);
               });
  return checked;
}

Status RunGrouped(const KernelContext& context) {
  return ForEachPart(context, kGroupedRanks, RunGroupedOfPart);
}
Status RunGradWeight(const KernelContext& context) {
  return ForEachPart(context, kGroupedWeightRanks, RunGradWeightOfPart, [](const TensorArg& dw) {
    FillZero(dw.data, dw.elements() * static_cast<int64_t>(SizeOf(dw.dtype)));
    return Status();
  });
}

// The extents of a part.
Dims OfPart(const Dims& extent, int rank) { return Dims(extent.end() - rank, extent.end()); }

// Matrices of one floating type, the result of that or fp32.
bool FitsPanels(const KernelSpec& spec) {
  const DType dtype = spec.in[0].dtype, result = spec.out[0].dtype;
  return IsFloating(dtype) && spec.in[1].dtype == dtype && (result == dtype || result == DType::kFloat32);
}

// A sum over parts is added up in fp32.
bool FitsWeightPanels(const KernelSpec& spec) {
  const bool summed = spec.in[2].global.rank() == 3;
  return FitsPanels(spec) && (!summed || spec.out[0].dtype == DType::kFloat32);
}

}  // namespace

KernelPtr MakeGroupedMatmul(const KernelSpec& spec) {
  return FitsPanels(spec) ? MakeFunctionKernel(RunGrouped)(spec) : MakeReference(spec);
}
KernelPtr MakeGroupedMatmulGradWeight(const KernelSpec& spec) {
  return FitsWeightPanels(spec) ? MakeFunctionKernel(RunGradWeight)(spec) : MakeReference(spec);
}
int64_t GroupedMatmulScratch(const KernelSpec& spec) {
  if (!FitsPanels(spec)) return ReferenceScratch(spec);
  const Dims x = OfPart(spec.in[0].extent, 2);
  return GroupedRoom(spec, RowsProductOf(spec, x[0], x[1], spec.out[0].extent.back()),
                     OfPart(spec.in[1].extent, 3)[0], nullptr)
      .bytes;
}
int64_t GroupedMatmulGradWeightScratch(const KernelSpec& spec) {
  if (!FitsWeightPanels(spec)) return ReferenceScratch(spec);
  const Dims x = OfPart(spec.in[0].extent, 2);
  return GroupedRoom(spec, WeightProductOf(spec, x[0], x[1], spec.in[1].extent.back()),
                     OfPart(spec.out[0].extent, 3)[0], nullptr)
      .bytes;
}

}  // namespace oneflow_like::cpu
