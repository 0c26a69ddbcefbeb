// embedding_bag: a thread for each element of the result adds up its bag's rows, neighbours reading
// neighbouring columns. Gradients of the table are row_sums.cu's; those of weights a warp's sum over columns
// for each id.
//
// Floor, bytes: forward every row that an id names once, the result once.
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_sums.h"

namespace oneflow_like::cuda {
namespace {

// Operands of faults here.
constexpr int kIds = 0, kLengths = 1;

struct BagList {
  IndexView ids, lengths;
  int64_t count, room, first, most;    // bags; ids of each held here, the first of them; ids of all
  int64_t begin, rows, global, width;  // of the table

  OFL_DEVICE int64_t Used(int64_t bag) const {
    const int64_t used = lengths.At(bag) - first;
    return used < 0 ? 0 : used < room ? used : room;
  }
  // -1: held elsewhere.
  OFL_DEVICE int64_t Row(int64_t at) const {
    const int64_t row = ids.At(at) - begin;
    return row >= 0 && row < rows ? row : -1;
  }
};

BagList ListOf(const TensorArg& ids, const TensorArg& lengths, const TensorArg& table) {
  return {IndicesOf(ids), IndicesOf(lengths), ids.extent[0],   ids.extent[1],   ids.begin[1],
          ids.global[1],  table.begin[0],     table.extent[0], table.global[0], table.extent[1]};
}

OFL_KERNEL void CheckLengths(BagList bags, FaultPort port) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < bags.count; b += step)
    CheckIndex(bags.lengths, b, bags.lengths.At(b), true, bags.most + 1, port);
}

OFL_KERNEL void CheckIds(BagList bags, FaultPort port) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bags.count * bags.room; i += step) {
    const int64_t id = bags.ids.At(i);
    if (i % bags.room < bags.Used(i / bags.room) && (id < 0 || id >= bags.global))
      port.Raise(id, bags.global);
  }
}

// Lengths first: those that are wrong make ids of padding.
void Check(const BagList& bags, const LaunchContext& launch) {
  Launch(CheckLengths, Grid{.x = BlocksFor(bags.count, 256, launch.multiprocessors)}, launch.stream, bags,
         FaultOf(launch, kLengths));
  Launch(CheckIds, Grid{.x = BlocksFor(bags.count * bags.room, 256, launch.multiprocessors)}, launch.stream,
         bags, FaultOf(launch, kIds));
}

enum class Mode { kSum, kMean, kMax };

OFL_KERNEL void SumBagRows(BagList bags, FloatView table, FloatView weights, FloatView y, Mode mode) {
  const int64_t total = bags.count * bags.width, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    const int64_t bag = i / bags.width, c = i - bag * bags.width, length = bags.lengths.At(bag);
    const bool greatest = mode == Mode::kMax && length > 0;
    float sum = greatest ? -INFINITY : 0.0f;
    for (int64_t j = 0, used = bags.Used(bag); j < used; ++j) {
      const int64_t at = bag * bags.room + j, row = bags.Row(at);
      if (row < 0) continue;
      const float value = table.At(row * bags.width + c);
      if (greatest) {
        sum = value > sum || value != value ? value : sum;
      } else {
        sum += weights.data == nullptr ? value : weights.At(at) * value;
      }
    }
    y.Put(i, mode == Mode::kMean && length > 0 ? sum / static_cast<float>(length) : sum);
  }
}

Status EmbeddingBag(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &table = context.in[0], &y = context.out[0];
  const BagList bags = ListOf(context.in[1], context.in[2], table);
  const std::string& mode = context.spec.attrs.Str("mode");
  Check(bags, launch);
  Launch(SumBagRows, Grid{.x = BlocksFor(y.elements(), 256, launch.multiprocessors)}, launch.stream, bags,
         FloatsOf(table), context.in.size() > 3 ? FloatsOf(context.in[3]) : FloatView{}, FloatsOf(y),
         mode == "sum"    ? Mode::kSum
         : mode == "mean" ? Mode::kMean
                          : Mode::kMax);
  return Status();
}

RowKeys KeysOf(const TensorArg& ids, const TensorArg& lengths, const TensorArg& dtable) {
  RowKeys keys = PlainKeys(ids, dtable);
  keys.lengths = IndicesOf(lengths);
  keys.room = ids.extent[1];
  keys.first = ids.begin[1];
  keys.check = false;  // done here: ids of padding may be anything
  return keys;
}

Status EmbeddingBagGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &ids = context.in[0], &lengths = context.in[1], &dtable = context.out[0];
  Check(ListOf(ids, lengths, dtable), launch);
  BagTerms terms;
  if (context.in.size() > 3) terms.weights = FloatsOf(context.in[3]);
  terms.mean = context.spec.attrs.Str("mode") == "mean";
  return SumBags(KeysOf(ids, lengths, dtable), context.in[2], terms, dtable.extent[1], dtable, launch);
}

Status EmbeddingBagMaxGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &table = context.in[0], &ids = context.in[1], &lengths = context.in[2],
                  &dtable = context.out[0];
  Check(ListOf(ids, lengths, table), launch);
  BagTerms terms;
  terms.table = FloatsOf(table);
  terms.y = FloatsOf(context.in[3]);
  return SumBags(KeysOf(ids, lengths, dtable), context.in[4], terms, dtable.extent[1], dtable, launch);
}

OFL_KERNEL void DotRows(BagList bags, FloatView table, FloatView dy, FloatView dweights) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  for (int64_t at = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32; at < bags.count * bags.room;
       at += warps) {
    const int64_t bag = at / bags.room, row = at % bags.room < bags.Used(bag) ? bags.Row(at) : -1;
    float sum = 0;
    for (int64_t c = lane; c < bags.width && row >= 0; c += 32)
      sum += table.At(row * bags.width + c) * dy.At(bag * bags.width + c);
    sum = WarpSum(sum);
    if (lane == 0) dweights.Put(at, sum);
  }
}

Status EmbeddingBagWeightsGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &table = context.in[0], &dweights = context.out[0];
  const BagList bags = ListOf(context.in[1], context.in[2], table);
  Check(bags, launch);
  Launch(DotRows, Grid{.x = BlocksFor(dweights.elements(), 8, launch.multiprocessors)}, launch.stream, bags,
         FloatsOf(table), FloatsOf(context.in[3]), FloatsOf(dweights));
  return Status();
}

std::string ExplainBag(const Fault& fault) {
  if (fault.operand == kLengths)
    return Cat("a bag has length ", fault.value, " but ids has room for ", fault.limit - 1);
  return Cat("id ", fault.value, " is outside the table of ", fault.limit, " rows");
}

}  // namespace

void AddEmbeddingBagKernels(KernelRegistry* registry) {
  registry->Add("embedding_bag", "cuda", MakeIndexKernel(EmbeddingBag, ExplainBag));
  registry->Add("embedding_bag_grad", "cuda", MakeIndexKernel(EmbeddingBagGrad, ExplainBag));
  registry->Add("embedding_bag_max_grad", "cuda", MakeIndexKernel(EmbeddingBagMaxGrad, ExplainBag));
  registry->Add("embedding_bag_weights_grad", "cuda", MakeIndexKernel(EmbeddingBagWeightsGrad, ExplainBag));
}

}  // namespace oneflow_like::cuda
