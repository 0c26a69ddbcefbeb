// Elements and parts by index along any axis, and sums and maxima by index. Sums of floating numbers are
// row_sums.cu's, in the order of the indices; those of integers, whose order does not matter, are atomic. So
// are maxima: a float becomes an unsigned number of the same order, in the result's place or, if it is
// narrower, in the work space.
//
// Floor, bytes: take reads and writes each chosen part once, in words of up to 16 bytes; take_along_axis each
// chosen element.
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_sums.h"

namespace oneflow_like::cuda {
namespace {

// A tensor as [outer, along, inner] about the axis that is indexed, which may be cut.
struct Axis {
  int64_t outer = 1, along, inner = 1, begin, global;
  Axis(const TensorArg& arg, const Attrs& attrs) {
    const int axis = static_cast<int>(attrs.Int("axis"));
    for (int i = 0; i < axis; ++i) outer *= arg.extent[i];
    for (int i = axis + 1; i < arg.extent.rank(); ++i) inner *= arg.extent[i];
    along = arg.extent[axis];
    begin = arg.begin[axis];
    global = arg.global[axis];
  }
};

OFL_KERNEL void CheckIds(IndexView ids, int64_t count, int64_t limit, FaultPort port) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    CheckIndex(ids, i, ids.At(i), true, limit, port);
}

// kAlong: an index for every word; else for every part of `inner` words, the same for all outer indices
// unless `batched`.
template <typename Word, bool kAlong>
OFL_KERNEL void TakeWords(const Word* x, IndexView ids, Word* y, Axis at, int64_t count, bool batched) {
  const int64_t total = at.outer * count * at.inner, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t c = i % at.inner, part = i / at.inner, o = part / count;
    const int64_t row = ids.At(kAlong ? i : batched ? part : part - o * count) - at.begin;
    Word value{};
    if (row >= 0 && row < at.along) value = x[(o * at.along + row) * at.inner + c];
    y[i] = value;
  }
}

template <bool kAlong>
Status TakeAny(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &ids = context.in[1], &y = context.out[0];
  Axis at(x, context.spec.attrs);
  const bool batched = context.spec.attrs.Has("batched");
  const int64_t count =
      kAlong || batched ? ids.extent[static_cast<int>(context.spec.attrs.Int("axis"))] : ids.elements();
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype)), bytes = at.inner * size;
  Launch(CheckIds, Grid{.x = BlocksFor(ids.elements(), 256, launch.multiprocessors)}, launch.stream,
         IndicesOf(ids), ids.elements(), at.global, FaultOf(launch, 1));
  if (y.elements() == 0) return Status();
  auto run = [&](auto word) {
    using Word = decltype(word);
    at.inner = bytes / static_cast<int64_t>(sizeof(Word));
    Grid grid{.x = BlocksFor(at.outer * count * at.inner, 256, launch.multiprocessors)};
    Launch(TakeWords<Word, kAlong>, grid, launch.stream, x.as<Word>(), IndicesOf(ids), y.as<Word>(), at,
           count, batched);
  };
  if (!kAlong && bytes % 16 == 0 && Aligned(x.data) && Aligned(y.data)) {
    run(uint4{});
  } else if (size == 8) {
    run(uint64_t{});
  } else if (size == 4) {
    run(uint32_t{});
  } else if (size == 2) {
    run(uint16_t{});
  } else {
    run(uint8_t{});
  }
  return Status();
}

template <typename T>
OFL_KERNEL void AddIntegers(RowKeys keys, const T* from, T* to, int64_t width, int rows) {
  const int64_t total = keys.positions * width, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    const int row = keys.Row(i / width, rows);
    if (row < rows) atomicAdd(to + row * width + i % width, from[i]);
  }
}

// Which row of the result each position names.
template <bool kAlong>
RowKeys KeysOf(const TensorArg& ids, const Axis& at, const Attrs& attrs) {
  const bool batched = attrs.Has("batched");
  const int64_t count = kAlong || batched ? ids.extent[static_cast<int>(attrs.Int("axis"))] : ids.elements();
  RowKeys keys;
  keys.ids = IndicesOf(ids);
  keys.begin = at.begin;
  keys.extent = at.along;
  keys.global = at.global;
  keys.columns = kAlong ? at.inner : 1;
  keys.each = count * keys.columns;
  keys.positions = at.outer * keys.each;
  keys.plain = at.outer == 1 && keys.columns == 1;
  keys.shared = !kAlong && !batched;
  return keys;
}

template <bool kAlong>
Status SumAny(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &ids = context.in[0], &from = context.in[1], &y = context.out[0];
  const Axis at(y, context.spec.attrs);
  const RowKeys keys = KeysOf<kAlong>(ids, at, context.spec.attrs);
  const int64_t width = kAlong ? 1 : at.inner;
  if (at.outer * at.inner == 0) {  // no sums, but indices that may be wrong
    Launch(CheckIds, Grid{.x = BlocksFor(ids.elements(), 256, launch.multiprocessors)}, launch.stream,
           IndicesOf(ids), ids.elements(), at.global, FaultOf(launch, 0));
    return Status();
  }
  const TensorArg* x = context.in.size() > 2 ? &context.in[2] : nullptr;
  if (from.dtype != DType::kInt32 && from.dtype != DType::kInt64)
    return SumRows(keys, from, width, x, y, launch);
  Launch(CheckIds, Grid{.x = BlocksFor(ids.elements(), 256, launch.multiprocessors)}, launch.stream,
         IndicesOf(ids), ids.elements(), at.global, FaultOf(launch, 0));
  if (Status begun = x ? CopyTo(*x, y, launch) : FillZeros(y, launch); !begun.ok()) return begun;
  const int rows = static_cast<int>(y.elements() / width);
  Grid grid{.x = BlocksFor(from.elements(), 256, launch.multiprocessors)};
  if (from.dtype == DType::kInt32) {
    Launch(AddIntegers<int32_t>, grid, launch.stream, keys, from.as<int32_t>(), y.as<int32_t>(), width, rows);
  } else {  // atomics know 64 bits without a sign; the sum is the same
    using Bits = unsigned long long;
    Launch(AddIntegers<Bits>, grid, launch.stream, keys, from.as<Bits>(), y.as<Bits>(), width, rows);
  }
  return Status();
}

// Every NaN is above infinity.
OFL_DEVICE uint32_t Ordered(float value) {
  if (value != value) return 0xFFFFFFFFu;
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
OFL_DEVICE float FromOrdered(uint32_t order) {
  const uint32_t bits = (order & 0x80000000u) != 0 ? order & 0x7FFFFFFFu : ~order;
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
struct Order {
  using Bits = uint32_t;
  OFL_DEVICE static Bits Of(T value) { return Ordered(Load(value)); }
  OFL_DEVICE static T From(Bits order) { return Store<T>(FromOrdered(order)); }
};
template <>
struct Order<float> {
  using Bits = uint32_t;
  OFL_DEVICE static Bits Of(float value) { return Ordered(value); }
  OFL_DEVICE static float From(Bits order) { return FromOrdered(order); }
};
template <>
struct Order<int32_t> {
  using Bits = int32_t;
  OFL_DEVICE static Bits Of(int32_t value) { return value; }
  OFL_DEVICE static int32_t From(Bits order) { return order; }
};
template <>
struct Order<int64_t> {
  using Bits = long long;
  OFL_DEVICE static Bits Of(int64_t value) { return value; }
  OFL_DEVICE static int64_t From(Bits order) { return order; }
};

template <typename T>
OFL_KERNEL void ToOrder(const T* x, typename Order<T>::Bits* to, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = Order<T>::Of(x[i]);
}
template <typename T>
OFL_KERNEL void FromOrder(const typename Order<T>::Bits* from, T* y, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    y[i] = Order<T>::From(from[i]);
}
// Of the places [first, first + count) of the result.
template <typename T>
OFL_KERNEL void RaiseTo(RowKeys keys, const T* from, typename Order<T>::Bits* to, int64_t width, int rows,
                        int64_t first, int64_t count) {
  const int64_t total = keys.positions * width, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    const int row = keys.Row(i / width, rows);
    const int64_t place = row * width + i % width - first;
    if (row < rows && place >= 0 && place < count) atomicMax(to + place, Order<T>::Of(from[i]));
  }
}

template <typename T, bool kAlong>
void MaxOf(const KernelContext& context, const LaunchContext& launch) {
  using Bits = typename Order<T>::Bits;
  const TensorArg &ids = context.in[0], &from = context.in[1], &x = context.in[2], &y = context.out[0];
  const Axis at(y, context.spec.attrs);
  const RowKeys keys = KeysOf<kAlong>(ids, at, context.spec.attrs);
  const int64_t width = kAlong ? 1 : at.inner, all = y.elements();
  const bool in_place = sizeof(Bits) == sizeof(T);
  const int64_t most = in_place ? all : static_cast<int64_t>(launch.workspace_bytes / sizeof(Bits));
  for (int64_t first = 0; first < all; first += most) {
    const int64_t count = all - first < most ? all - first : most;
    auto* to = static_cast<Bits*>(in_place ? y.data : launch.workspace);
    const Grid grid{.x = BlocksFor(count, 256, launch.multiprocessors)};
    Launch(ToOrder<T>, grid, launch.stream, static_cast<const T*>(x.as<T>()) + first, to, count);
    Launch(RaiseTo<T>, Grid{.x = BlocksFor(from.elements(), 256, launch.multiprocessors)}, launch.stream,
           keys, static_cast<const T*>(from.as<T>()), to, width, static_cast<int>(all / width), first, count);
    Launch(FromOrder<T>, grid, launch.stream, static_cast<const Bits*>(to), y.as<T>() + first, count);
  }
}

template <bool kAlong>
Status MaxAny(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &ids = context.in[0], &y = context.out[0];
  const Axis at(y, context.spec.attrs);
  Launch(CheckIds, Grid{.x = BlocksFor(ids.elements(), 256, launch.multiprocessors)}, launch.stream,
         IndicesOf(ids), ids.elements(), at.global, FaultOf(launch, 0));
  if (y.elements() == 0) return Status();
  const int64_t rows = y.elements() / (kAlong ? 1 : at.inner);
  if (rows > INT32_MAX)
    return Status(Cat("maxima in ", rows, " places, but a GPU has room for at most ", INT32_MAX));
  if (y.dtype == DType::kInt32) {
    MaxOf<int32_t, kAlong>(context, launch);
  } else if (y.dtype == DType::kInt64) {
    MaxOf<int64_t, kAlong>(context, launch);
  } else {
    WithFloating(y.dtype, [&](auto t) { MaxOf<decltype(t), kAlong>(context, launch); });
  }
  return Status();
}

std::string Outside(const Fault& fault) {
  return Cat("index ", fault.value, " is outside [0, ", fault.limit, ")");
}

}  // namespace

void AddTakeKernels(KernelRegistry* registry) {
  registry->Add("take", "cuda", MakeIndexKernel(TakeAny<false>, Outside));
  registry->Add("take_along_axis", "cuda", MakeIndexKernel(TakeAny<true>, Outside));
  registry->Add("index_sum", "cuda", MakeIndexKernel(SumAny<false>, Outside));
  registry->Add("scatter_sum", "cuda", MakeIndexKernel(SumAny<true>, Outside));
  registry->Add("index_max", "cuda", MakeIndexKernel(MaxAny<false>, Outside));
  registry->Add("scatter_max", "cuda", MakeIndexKernel(MaxAny<true>, Outside));
}

}  // namespace oneflow_like::cuda
