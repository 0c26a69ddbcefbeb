// Shared by kernels of row-wise updates on the host: the check of a list of touched rows, and the numbers of
// one update.
#pragma once

#include "core/device/kernel.h"
#include "ops/language/schedule.h"
#include "ops/list_parts.h"
#include "ops/reference.h"

namespace oneflow_like {

// Checks for ascending rows of a table of `limit` rows, followed by -1: then each occurs once. Of each part.
inline Status CheckTouched(const TensorArg& rows, int64_t limit, const ListParts& parts) {
  for (int64_t i = 0; i < rows.elements(); ++i) {
    int64_t row = LoadInt(rows, i);
    if (row < 0) continue;
    if (row >= limit) return Status(Cat("row ", row, " is outside the table of ", limit, " rows"));
    int64_t before = parts.Begins(i) ? row - 1 : LoadInt(rows, i - 1);
    if (before < 0 && !parts.Begins(i)) before = limit;  // rows after the list's end
    if (before >= row) return Status("rows do not rise, as unique_rows gives them");
  }
  return Status();
}

// The numbers of one act. Inputs from `factor_input` on: a factor on the gradient, whether to update at all.
struct RowsUpdate {
  double lr = 0, factor = 1;
  bool skipped = false;
  RowsUpdate(const KernelContext& context, size_t factor_input) {
    lr = context.spec.attrs.Float("lr") * ScheduleFactor(context.spec.attrs, context.step);
    if (context.in.size() > factor_input) factor = LoadFloat(context.in[factor_input], 0);
    skipped = context.in.size() > factor_input + 1 && !*context.in[factor_input + 1].as<bool>();
  }
};

// An update of the rows that input 1 lists of the table that is input 0 and then the result: calls
// update(numbers, parts) after copy(from, to), unless the act is skipped.
template <typename Copy, typename Update>
Status UpdateTouched(const KernelContext& context, size_t factor_input, Copy copy, Update update) {
  const TensorArg &rows = context.in[1], &table = context.out[0];
  const ListParts parts = PartsOf(context.spec.attrs, rows, table.global[0]);
  if (Status checked = CheckTouched(rows, table.global[0], parts); !checked.ok()) return checked;
  copy(context.in[0], table);
  const RowsUpdate numbers(context, factor_input);
  if (!numbers.skipped) update(numbers, parts);
  return Status();
}

}  // namespace oneflow_like
