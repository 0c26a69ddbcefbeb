// Shared by kernels of grouped products on the host: the rows of each expert.
#pragma once

#include <algorithm>
#include <utility>

#include "core/device/kernel.h"
#include "ops/reference.h"

namespace oneflow_like {

// counts[e] is whole on every rank; rows and experts may be cut.
inline Status CheckCounts(const TensorArg& counts, int64_t rows) {
  int64_t sum = 0;
  for (int64_t e = 0; e < counts.elements(); ++e) {
    int64_t count = LoadInt(counts, e);
    if (count < 0) return Status(Cat("expert ", e, " has a count of ", count));
    sum += std::min(count, rows + 1);  // no overflow
    if (sum > rows) return Status(Cat("counts add up to more than the ", rows, " rows of x"));
  }
  return Status();
}

// The operand at index `part` of its first axis, as an operand without this axis.
inline TensorArg PartOf(const TensorArg& of, int64_t part) {
  TensorArg one = of;
  for (auto [from, to] : {std::pair(&of.global, &one.global), std::pair(&of.begin, &one.begin),
                          std::pair(&of.extent, &one.extent)})
    *to = Dims(from->begin() + 1, from->end());
  one.data = of.as<char>() + part * one.elements() * static_cast<int64_t>(SizeOf(of.dtype));
  return one;
}

// Runs a kernel of three operands, the last of them counts, for each part where counts are of parts [p e];
// what has one axis more than `ranks` says of it is of parts, too.
struct RanksWithoutParts {
  int in[2], out;
};
template <typename Kernel>
Status ForEachPart(const KernelContext& context, const RanksWithoutParts& ranks, Kernel&& kernel) {
  if (context.in[2].global.rank() == 1) return kernel(context);
  for (int64_t part = 0; part < context.in[2].extent[0]; ++part) {
    TensorArg in[3] = {context.in[0], context.in[1], PartOf(context.in[2], part)}, out = context.out[0];
    for (int i = 0; i < 2; ++i)
      if (in[i].global.rank() > ranks.in[i]) in[i] = PartOf(in[i], part);
    if (out.global.rank() > ranks.out) out = PartOf(out, part);
    const Status done = kernel({context.spec,
                                in,
                                {&out, 1},
                                context.scratch,
                                context.step,
                                context.time,
                                context.times,
                                context.seed});
    if (!done.ok()) return done;
  }
  return Status();
}
constexpr RanksWithoutParts kGroupedRanks = {{2, 3}, 2};        // x, w -> y
constexpr RanksWithoutParts kGroupedWeightRanks = {{2, 2}, 3};  // x, dy -> dw

// Calls body(expert, begin, end) for the experts [first, first + experts) with the expert's rows among the
// rows of `x` held here, counted from the first of these; begin <= end.
template <typename F>
void ForGroups(const TensorArg& counts, const TensorArg& x, int64_t first, int64_t experts, F&& body) {
  int64_t at = 0;
  for (int64_t e = 0; e < first + experts; ++e) {
    int64_t end = at + LoadInt(counts, e), low = x.begin[0], high = low + x.extent[0];
    if (e >= first) body(e - first, std::clamp(at, low, high) - low, std::clamp(end, low, high) - low);
    at = end;
  }
}

}  // namespace oneflow_like
