// unique_rows, sgd_rows, adagrad_rows and its state. Ids are sorted with their places, runs of equal ones
// numbered by a block, and each row's gradients added up in their order by a thread for each column: a row
// that very many ids name is slow. Updates in place touch the rows of the list alone.
//
// Floor, bytes: unique_rows reads the gradients once and writes as many values; sgd_rows reads a row, its
// values, and writes the row.
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_sums.h"
#include "ops/cuda/sort.h"
#include "ops/language/schedule.h"
#include "ops/list_parts.h"

namespace oneflow_like::cuda {
namespace {

OFL_KERNEL void EntriesOfIds(IndexView ids, int64_t count, SortEntry* entries) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t id = ids.At(i);
    entries[i] = {id < 0 ? ~uint64_t{0} : static_cast<uint64_t>(id), i};  // no row: last
  }
}

// One block. starts[r]: where run r begins; starts[runs]: where the last one ends; starts[count + 1]: runs.
OFL_KERNEL void NumberRuns(const SortEntry* entries, int64_t count, int64_t* starts) {
  OFL_SHARED int sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int64_t runs = 0, end = 0;
  for (int64_t tile = 0; tile < count; tile += blockDim.x) {
    const int64_t i = tile + threadIdx.x;
    const bool there = i < count && entries[i].key != ~uint64_t{0};
    const bool head = there && (i == 0 || entries[i - 1].key != entries[i].key);
    const unsigned heads = __ballot_sync(0xFFFFFFFFu, head);
    if (lane == 0) sums[warp] = __popc(heads);
    end += __syncthreads_count(there);
    int64_t number = runs + __popc(heads & ((1u << lane) - 1));
    for (int w = 0; w < warps; ++w) {
      if (w < warp) number += sums[w];
      runs += sums[w];
    }
    if (head) starts[number] = i;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  starts[runs] = end;
  starts[count + 1] = runs;
}

struct Runs {
  const SortEntry* entries;
  const int64_t* starts;
  int64_t count, width;
};

OFL_KERNEL void SumRuns(Runs list, FloatView grad, void* rows, bool wide, float* values) {
  const int64_t runs = list.starts[list.count + 1], columns = list.width > 0 ? list.width : 1;
  const int64_t total = list.count * columns, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < total; at += step) {
    const int64_t r = at / columns, c = at % columns;
    const int64_t begin = r < runs ? list.starts[r] : 0, end = r < runs ? list.starts[r + 1] : 0;
    if (c == 0) {
      const int64_t row = r < runs ? static_cast<int64_t>(list.entries[begin].key) : -1;
      if (wide) {
        static_cast<int64_t*>(rows)[r] = row;
      } else {
        static_cast<int32_t*>(rows)[r] = static_cast<int32_t>(row);
      }
    }
    if (list.width == 0) continue;
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += grad.At(list.entries[i].place * list.width + c);
    values[at] = sum;
  }
}

// `count` places of it from `first` on.
TensorArg PartOf(const TensorArg& list, int64_t first, int64_t count) {
  TensorArg part = list;
  const int64_t width = list.extent.rank() > 1 ? list.extent[1] : 1;
  part.data = list.as<char>() + first * width * static_cast<int64_t>(SizeOf(list.dtype));
  part.extent[0] = count;
  return part;
}

Status UniqueRowsOfPart(const TensorArg& ids, const TensorArg& grad, const TensorArg& rows,
                        const TensorArg& values, const LaunchContext& launch) {
  const int64_t count = ids.elements();
  const int64_t most = static_cast<int64_t>(launch.workspace_bytes / (2 * sizeof(SortEntry) + 16));
  if (count + 2 > most) return Status(Cat("a GPU sorts at most ", most, " ids, but there are ", count));
  auto* entries = static_cast<SortEntry*>(launch.workspace);
  auto* starts = reinterpret_cast<int64_t*>(entries + 2 * most);
  Launch(EntriesOfIds, Grid{.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream,
         IndicesOf(ids), count, entries);
  const SortEntry* sorted = SortLines(entries, entries + most, 1, count, count, launch);
  Launch(NumberRuns, Grid{.x = 1}, launch.stream, sorted, count, starts);
  const Runs runs{sorted, starts, count, values.extent[1]};
  const int64_t elements = values.extent[1] > 0 ? values.elements() : count;
  Launch(SumRuns, Grid{.x = BlocksFor(elements, 256, launch.multiprocessors)}, launch.stream, runs,
         FloatsOf(grad), rows.data, rows.dtype == DType::kInt64, values.as<float>());
  return Status();
}

Status UniqueRows(const KernelContext& context, const LaunchContext& launch) {
  const int64_t all = context.in[0].elements();
  const ListParts parts = PartsOf(context.spec.attrs, context.in[0], 0);
  const int64_t count = parts.places > 0 ? parts.places : all;
  for (int64_t first = 0; first < all; first += count) {
    const auto part = [&](const TensorArg& list) { return PartOf(list, first, count); };
    Status status = UniqueRowsOfPart(part(context.in[0]), part(context.in[1]), part(context.out[0]),
                                     part(context.out[1]), launch);
    if (!status.ok()) return status;
  }
  return Status();
}

// --- Updates -------------------------------------------------------------------------------------

// Operands of faults: a row outside the table, one that does not rise.
constexpr int kOutside = 0, kFalls = 1;

struct Touched {
  IndexView rows;
  int64_t count, begin, extent, global, width;
  ListParts parts;
  const Fault* fault;

  // Whether CheckTouched, launched before, found the list wrong: a row that stands there twice would be
  // updated by two threads at once.
  OFL_DEVICE bool Refused() const { return fault->kernel != 0; }
  OFL_DEVICE int Wrong(int64_t i) const {  // -1: nothing
    const int64_t row = rows.At(i);
    if (row < 0) return -1;
    if (row >= global) return kOutside;
    return !parts.Begins(i) && (rows.At(i - 1) < 0 || rows.At(i - 1) >= row) ? kFalls : -1;
  }
  // The row of place i, counted from the first held here; -1: none of these.
  OFL_DEVICE int64_t Local(int64_t i) const {
    const int64_t row = rows.At(i), local = row - begin;
    return row >= 0 && local >= 0 && local < extent && parts.Has(i, row) ? local : -1;
  }
};

Touched ListOf(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &rows = context.in[1], &table = context.out[0];
  const int64_t width = table.extent.rank() > 1 ? table.extent[1] : 1;
  return {IndicesOf(rows),
          rows.elements(),
          table.begin[0],
          table.extent[0],
          table.global[0],
          width,
          PartsOf(context.spec.attrs, rows, table.global[0]),
          launch.fault};
}

// Of several that are wrong the first is reported.
OFL_KERNEL void CheckTouched(Touched list, FaultPort port) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < list.count; i += step) {
    const int wrong = list.Wrong(i);
    if (wrong < 0) continue;
    bool first = true;
    for (int64_t j = 0; j < i && first; ++j) first = list.Wrong(j) < 0;
    port.operand = wrong;
    if (first) port.Raise(list.rows.At(i), list.global);
  }
}

struct Numbers {
  double lr, decay, eps;
  Schedule schedule;
  FloatView factor;    // no data: 1
  const bool* finite;  // not there: yes
};

Numbers NumbersOf(const KernelContext& context, size_t factor_input) {
  const Attrs& attrs = context.spec.attrs;
  Numbers numbers{attrs.Float("lr"),
                  attrs.Float("weight_decay", 0),
                  attrs.Float("eps", 1e-8),
                  ReadSchedule(attrs),
                  FloatView{},
                  nullptr};
  if (context.in.size() > factor_input) numbers.factor = FloatsOf(context.in[factor_input]);
  if (context.in.size() > factor_input + 1) numbers.finite = context.in[factor_input + 1].as<bool>();
  return numbers;
}

OFL_KERNEL void UpdateRows(Touched list, Numbers numbers, const ActState* act, FloatView values,
                           FloatView table) {
  if (list.Refused() || (numbers.finite != nullptr && !*numbers.finite)) return;
  const float rate = static_cast<float>(numbers.lr * FactorAt(numbers.schedule, act->step));
  const float factor = numbers.factor.data == nullptr ? 1.0f : numbers.factor.At(0);
  const float decay = static_cast<float>(numbers.decay);
  const int64_t total = list.count * list.width, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < total; at += step) {
    const int64_t local = list.Local(at / list.width);
    if (local < 0) continue;
    const int64_t to = local * list.width + at % list.width;
    const float weight = table.At(to);
    table.Put(to, weight - rate * (factor * values.At(at) + decay * weight));
  }
}

OFL_KERNEL void AddSquares(Touched list, Numbers numbers, FloatView squares, FloatView state) {
  if (list.Refused() || (numbers.finite != nullptr && !*numbers.finite)) return;
  const float factor = numbers.factor.data == nullptr ? 1.0f : numbers.factor.At(0);
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < list.count; i += step) {
    const int64_t local = list.Local(i);
    if (local < 0) continue;
    state.Put(local, state.At(local) + factor * factor * squares.At(i));
  }
}

OFL_KERNEL void AdaptRows(Touched list, Numbers numbers, const ActState* act, FloatView values,
                          FloatView state, FloatView table) {
  if (list.Refused() || (numbers.finite != nullptr && !*numbers.finite)) return;
  const float factor = numbers.factor.data == nullptr ? 1.0f : numbers.factor.At(0);
  const float lr = static_cast<float>(numbers.lr * FactorAt(numbers.schedule, act->step)) * factor;
  const float eps = static_cast<float>(numbers.eps);
  const int64_t total = list.count * list.width, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < total; at += step) {
    const int64_t local = list.Local(at / list.width);
    if (local < 0) continue;
    const int64_t to = local * list.width + at % list.width;
    table.Put(to, table.At(to) - lr / (sqrtf(state.At(local)) + eps) * values.At(at));
  }
}

void CheckRows(const Touched& list, const LaunchContext& launch) {
  Launch(CheckTouched, Grid{.x = BlocksFor(list.count, 256, launch.multiprocessors)}, launch.stream, list,
         FaultOf(launch, 0));
}

Status SgdRows(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& table = context.out[0];
  const Touched list = ListOf(context, launch);
  CheckRows(list, launch);
  if (Status copied = CopyTo(context.in[0], table, launch); !copied.ok()) return copied;
  Launch(UpdateRows, Grid{.x = BlocksFor(list.count * list.width, 256, launch.multiprocessors)},
         launch.stream, list, NumbersOf(context, 3), launch.act, FloatsOf(context.in[2]), FloatsOf(table));
  return Status();
}

Status AddSquaresToRows(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& state = context.out[0];
  const Touched list = ListOf(context, launch);
  CheckRows(list, launch);
  if (Status copied = CopyTo(context.in[0], state, launch); !copied.ok()) return copied;
  Launch(AddSquares, Grid{.x = BlocksFor(list.count, 256, launch.multiprocessors)}, launch.stream, list,
         NumbersOf(context, 3), FloatsOf(context.in[2]), FloatsOf(state));
  return Status();
}

Status AdagradRows(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg& table = context.out[0];
  const Touched list = ListOf(context, launch);
  CheckRows(list, launch);
  if (Status copied = CopyTo(context.in[0], table, launch); !copied.ok()) return copied;
  Launch(AdaptRows, Grid{.x = BlocksFor(list.count * list.width, 256, launch.multiprocessors)}, launch.stream,
         list, NumbersOf(context, 4), launch.act, FloatsOf(context.in[2]), FloatsOf(context.in[3]),
         FloatsOf(table));
  return Status();
}

std::string ExplainRow(const Fault& fault) {
  if (fault.operand == kFalls) return "rows do not rise, as unique_rows gives them";
  return Cat("row ", fault.value, " is outside the table of ", fault.limit, " rows");
}

}  // namespace

void AddSparseRowsKernels(KernelRegistry* registry) {
  registry->Add("unique_rows", "cuda", MakeLaunchKernel(UniqueRows));
  registry->Add("sgd_rows", "cuda", MakeIndexKernel(SgdRows, ExplainRow));
  registry->Add("add_squares_to_rows", "cuda", MakeIndexKernel(AddSquaresToRows, ExplainRow));
  registry->Add("adagrad_rows", "cuda", MakeIndexKernel(AdagradRows, ExplainRow));
}

}  // namespace oneflow_like::cuda
