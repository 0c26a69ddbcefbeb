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

// The axes of operands that have none of parts.
struct RanksWithoutParts {
  int in[2], out;
};
// Runs kernel(part, adds) of three operands, the last of them counts. Where counts are of parts [p e], for
// each of them; what has one axis more than `ranks` says is of parts, too. Where they are [r p e] all
// operands have an axis r, and a result without p is the sum over parts: the kernel makes it for the first
// and adds to it for others. Without parts held here a sum is `clear`ed.
template <typename Kernel, typename Clear>
Status ForEachPart(const KernelContext& context, const RanksWithoutParts& ranks, Kernel&& kernel,
                   Clear&& clear) {
  const TensorArg& counts = context.in[2];
  if (counts.global.rank() == 1) return kernel(context, false);
  const auto run = [&](const KernelContext& whole, int64_t part, bool of_ranks, auto&& body) {
    TensorArg in[3] = {whole.in[0], whole.in[1], PartOf(whole.in[2], part)}, out = whole.out[0];
    for (int i = 0; i < 2; ++i)
      if (of_ranks || in[i].global.rank() > ranks.in[i]) in[i] = PartOf(in[i], part);
    const bool summed = !of_ranks && out.global.rank() <= ranks.out;
    if (!summed) out = PartOf(out, part);
    return body(
        KernelContext{
            whole.spec, in, {&out, 1}, whole.scratch, whole.step, whole.time, whole.times, whole.seed},
        summed && part > 0);
  };
  const auto for_parts = [&](const KernelContext& whole) {
    if (whole.in[2].extent[0] == 0 && whole.out[0].global.rank() <= ranks.out) return clear(whole.out[0]);
    for (int64_t part = 0; part < whole.in[2].extent[0]; ++part)
      if (const Status done = run(whole, part, false, kernel); !done.ok()) return done;
    return Status();
  };
  if (counts.global.rank() == 2) return for_parts(context);
  for (int64_t rank = 0; rank < counts.extent[0]; ++rank) {
    const Status done =
        run(context, rank, true, [&](const KernelContext& of_rank, bool) { return for_parts(of_rank); });
    if (!done.ok()) return done;
  }
  return Status();
}
// Of kernels whose result has parts where counts have.
template <typename Kernel>
Status ForEachPart(const KernelContext& context, const RanksWithoutParts& ranks, Kernel&& kernel) {
  return ForEachPart(
      context, ranks, [&](const KernelContext& part, bool) { return kernel(part); },
      [](const TensorArg&) { return Status(); });
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
