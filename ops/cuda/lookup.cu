// Operators that choose by index: embedding, gather, pick, pick_grad, one_hot, assign_slice. The gradients of
// embedding and gather, which add up rows, are in row_sums.cu.
//
// Floor, bytes: embedding and gather read and write each chosen row once, in words of up to 16 bytes;
// pick_grad and one_hot write their output once (a fill at the speed of memory, then one element per row);
// pick touches one element per row.
#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/row_sums.h"
#include "ops/list_parts.h"

namespace oneflow_like::cuda {

namespace {

class IndexKernel : public CudaKernel {
 public:
  IndexKernel(LaunchFn fn, std::string (*explain)(const Fault&)) : fn_(fn), explain_(explain) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    return fn_(context, launch);
  }
  std::string Explain(const Fault& fault) const override { return explain_(fault); }

 private:
  LaunchFn fn_;
  std::string (*explain_)(const Fault&);
};

// What an index means here: the rows of all, and those held.
struct Held {
  int64_t begin, extent, global;
};
Held HeldOf(const TensorArg& arg, int axis) { return {arg.begin[axis], arg.extent[axis], arg.global[axis]}; }

// Row ids[i] of the table, of `words` words, to row i of y; zeros where the row is held elsewhere.
template <typename Word>
OFL_KERNEL void CopyRows(const Word* table, IndexView ids, Word* y, int64_t count, int64_t words, Held held,
                         ListParts parts, FaultPort port) {
  int64_t each = words > 0 ? words : 1, total = count * each, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < total; at += step) {
    int64_t i = at / each, word = at - i * each, id = ids.At(i), row = id - held.begin;
    if (word == 0 && parts.places == 0) CheckIndex(ids, i, id, true, held.global, port);
    if (words == 0) continue;
    Word value{};
    if (row >= 0 && row < held.extent && parts.Has(i, id)) value = table[row * words + word];
    y[at] = value;
  }
}

Status TakeRows(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &table = context.in[0], &ids = context.in[1], &y = context.out[0];
  int64_t bytes = static_cast<int64_t>(SizeOf(table.dtype)), count = ids.elements();
  for (int axis = 1; axis < table.extent.rank(); ++axis) bytes *= table.extent[axis];
  Held held = HeldOf(table, 0);
  const ListParts parts = PartsOf(context.spec.attrs, ids, table.global[0]);
  auto copy = [&](auto word) {
    using Word = decltype(word);
    int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
    Grid grid{.x = BlocksFor(count * std::max<int64_t>(1, words), 256, launch.multiprocessors)};
    Launch(CopyRows<Word>, grid, launch.stream, table.as<Word>(), IndicesOf(ids), y.as<Word>(), count, words,
           held, parts, FaultOf(launch, 1));
  };
  if (bytes % 16 == 0 && Aligned(table.data) && Aligned(y.data)) {
    copy(uint4{});
  } else if (SizeOf(table.dtype) == 4) {
    copy(uint32_t{});
  } else {
    copy(uint16_t{});
  }
  return Status();
}

OFL_KERNEL void PickElements(FloatView x, IndexView ids, FloatView y, int64_t count, Held held,
                             FaultPort port) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t id = ids.At(i), local = id - held.begin;
    CheckIndex(ids, i, id, false, held.global, port);
    bool here = id >= 0 && local >= 0 && local < held.extent;
    y.Put(i, here ? x.At(i * held.extent + local) : 0.0f);
  }
}

Status Pick(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &ids = context.in[1];
  int64_t count = ids.elements();
  Launch(PickElements, Grid{.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream, FloatsOf(x),
         IndicesOf(ids), FloatsOf(context.out[0]), count, HeldOf(x, x.extent.rank() - 1), FaultOf(launch, 1));
  return Status();
}

// The chosen element of each row of y: dy's, or 1 where there is no dy. `strict`: an index past the end is a
// fault.
OFL_KERNEL void PutElements(IndexView ids, FloatView dy, FloatView y, int64_t count, Held held, bool strict,
                            FaultPort port) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t id = ids.At(i), local = id - held.begin;
    if (strict) CheckIndex(ids, i, id, false, held.global, port);
    if (local >= 0 && local < held.extent)
      y.Put(i * held.extent + local, dy.data == nullptr ? 1.0f : dy.At(i));
  }
}

Status PutOne(const KernelContext& context, const LaunchContext& launch, FloatView dy, bool strict) {
  const TensorArg &ids = context.in[0], &y = context.out[0];
  int64_t count = ids.elements();
  if (Status zeroed = FillZeros(y, launch); !zeroed.ok()) return zeroed;
  Launch(PutElements, Grid{.x = BlocksFor(count, 256, launch.multiprocessors)}, launch.stream, IndicesOf(ids),
         dy, FloatsOf(y), count, HeldOf(y, y.extent.rank() - 1), strict, FaultOf(launch, 0));
  return Status();
}
Status PickGrad(const KernelContext& context, const LaunchContext& launch) {
  return PutOne(context, launch, FloatsOf(context.in[1]), false);
}
Status OneHot(const KernelContext& context, const LaunchContext& launch) {
  return PutOne(context, launch, FloatView{}, true);
}

// Elements of value[outer part inner] to y[outer all inner], from `begin` on.
template <typename Word>
OFL_KERNEL void PutPart(const Word* value, IndexView begin, Word* y, int64_t outer, int64_t part, int64_t all,
                        int64_t inner, FaultPort port) {
  const int64_t from = begin.At(0), step = int64_t{gridDim.x} * blockDim.x;
  const bool inside = from >= 0 && from <= all - part;
  if (blockIdx.x == 0 && threadIdx.x == 0) CheckIndex(begin, 0, from, true, all - part + 1, port);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; inside && i < outer * part * inner;
       i += step) {
    const int64_t row = i / (part * inner);
    y[row * all * inner + from * inner + (i - row * part * inner)] = value[i];
  }
}

Status AssignSlice(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &variable = context.in[0], &value = context.in[1], &y = context.out[0];
  const int axis = static_cast<int>(context.spec.attrs.Int("axis"));
  const size_t bytes = static_cast<size_t>(y.elements()) * SizeOf(y.dtype);
  if (bytes > 0 && variable.data != y.data)
    cudaMemcpyAsync(y.data, variable.data, bytes, cudaMemcpyDefault, launch.stream);
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < y.extent.rank(); ++i) (i < axis ? outer : inner) *= i == axis ? 1 : y.extent[i];
  auto put = [&](auto word) {
    using Word = decltype(word);
    Grid grid{.x = BlocksFor(std::max<int64_t>(1, value.elements()), 256, launch.multiprocessors)};
    Launch(PutPart<Word>, grid, launch.stream, value.as<Word>(), IndicesOf(context.in[2]), y.as<Word>(),
           outer, value.extent[axis], y.extent[axis], inner, FaultOf(launch, 2));
  };
  switch (SizeOf(y.dtype)) {
    case 1:
      put(uint8_t{});
      break;
    case 2:
      put(uint16_t{});
      break;
    case 8:
      put(uint64_t{});
      break;
    default:
      put(uint32_t{});
  }
  return Status();
}

std::string OutsideTable(const Fault& fault) {
  return Cat("id ", fault.value, " is outside the table of ", fault.limit, " rows");
}
std::string Outside(const Fault& fault) {
  return Cat("index ", fault.value, " is outside [0, ", fault.limit, ")");
}
std::string OutsideFirst(const Fault& fault) { return Outside(fault) + " of axis 0"; }
std::string OutsideLast(const Fault& fault) { return Outside(fault) + " of the last axis"; }

}  // namespace

KernelFactory MakeIndexKernel(LaunchFn fn, std::string (*explain)(const Fault&)) {
  return [fn, explain](const KernelSpec&) -> std::unique_ptr<Kernel> {
    return std::make_unique<IndexKernel>(fn, explain);
  };
}

Status FillZeros(const TensorArg& to, const LaunchContext& launch) {
  size_t bytes = static_cast<size_t>(to.elements()) * SizeOf(to.dtype);
  if (bytes == 0) return Status();
  cudaError_t error = cudaMemsetAsync(to.data, 0, bytes, launch.stream);
  return error == cudaSuccess ? Status() : Status(Cat("cudaMemsetAsync: ", cudaGetErrorString(error)));
}

Status CopyTo(const TensorArg& from, const TensorArg& to, const LaunchContext& launch) {
  size_t bytes = static_cast<size_t>(from.elements()) * SizeOf(from.dtype);
  if (bytes == 0 || from.data == to.data) return Status();
  cudaError_t error = cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDefault, launch.stream);
  return error == cudaSuccess ? Status() : Status(Cat("cudaMemcpyAsync: ", cudaGetErrorString(error)));
}

void AddLookupKernels(KernelRegistry* registry) {
  registry->Add("embedding", "cuda", MakeIndexKernel(TakeRows, OutsideTable));
  registry->Add("embedding_grad", "cuda", MakeIndexKernel(SumRowsByIndex, OutsideTable));
  registry->Add("gather", "cuda", MakeIndexKernel(TakeRows, OutsideFirst));
  registry->Add("gather_grad", "cuda", MakeIndexKernel(SumRowsByIndex, OutsideFirst));
  registry->Add("assign_slice", "cuda", MakeIndexKernel(AssignSlice, Outside));
  registry->Add("pick", "cuda", MakeIndexKernel(Pick, OutsideLast));
  registry->Add("pick_grad", "cuda", MakeLaunchKernel(PickGrad));
  registry->Add("one_hot", "cuda", MakeIndexKernel(OneHot, OutsideLast));
}

}  // namespace oneflow_like::cuda
