// ctc_loss and its gradient: a block for each sample, a thread for each state, place by place. What all ways
// to a state have as their probability lies in the work space: two places of it forward, all of them for the
// gradient, for which as many samples are taken at a time as it has room for.
//
// Floor, bytes: log_probs once; the gradient once more, and its result once. It is bound by the places, which
// follow one another.
#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"

namespace oneflow_like::cuda {
namespace {

constexpr int kCtcThreads = 128;

struct CtcBatch {
  FloatView log_probs;
  IndexView targets, input_lengths, target_lengths;
  int64_t samples, places, classes, room, blank;
  float* space;  // of the work space: `each` floats for each block
  int64_t each;

  OFL_DEVICE int64_t Within(int64_t value, int64_t most) const {  // what is outside is reported
    return value < 0 ? 0 : value > most ? most : value;
  }
  OFL_DEVICE int64_t Places(int64_t n) const { return Within(input_lengths.At(n), places); }
  OFL_DEVICE int64_t Length(int64_t n) const { return Within(target_lengths.At(n), room); }
  OFL_DEVICE int64_t Class(int64_t n, int64_t state) const {
    return state % 2 == 0 ? blank : Within(targets.At(n * room + state / 2), classes - 1);
  }
  OFL_DEVICE float Log(int64_t n, int64_t t, int64_t state) const {
    return log_probs.At((n * places + t) * classes + Class(n, state));
  }
  OFL_DEVICE bool Leaps(int64_t n, int64_t state) const {
    return state % 2 == 1 && state > 1 && Class(n, state) != Class(n, state - 2);
  }
};

OFL_DEVICE float LogAdd(float a, float b) {
  const float most = a > b ? a : b, least = a > b ? b : a;
  return least == -INFINITY ? most : most + log1pf(expf(least - most));
}

// Position p is, of sample p / (room + 2), the length of its input, that of its targets, or a target. The
// first that is wrong is reported, in every run. One block.
OFL_KERNEL void CheckSpellings(CtcBatch batch, FaultPort inputs, FaultPort lengths, FaultPort targets) {
  OFL_SHARED int64_t wrong[kCtcThreads];
  const int64_t each = batch.room + 2, count = batch.samples * each;
  const auto value_at = [&](int64_t p) {
    const int64_t n = p / each, k = p % each;
    return k == 0   ? batch.input_lengths.At(n)
           : k == 1 ? batch.target_lengths.At(n)
                    : batch.targets.At(n * batch.room + k - 2);
  };
  int64_t first = count;
  for (int64_t p = threadIdx.x; p < count && first == count; p += blockDim.x) {
    const int64_t k = p % each, value = value_at(p);
    const bool good = k == 0   ? value >= 0 && value <= batch.places
                      : k == 1 ? value >= 0 && value <= batch.room
                               : k - 2 >= batch.Length(p / each) ||
                                     (value >= 0 && value < batch.classes && value != batch.blank);
    if (!good) first = p;
  }
  wrong[threadIdx.x] = first;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < static_cast<int>(blockDim.x); ++i) first = wrong[i] < first ? wrong[i] : first;
  if (first == count) return;
  const int64_t k = first % each;
  (k == 0   ? inputs
   : k == 1 ? lengths
            : targets)
      .Raise(value_at(first), k == 0   ? batch.places
                              : k == 1 ? batch.room
                                       : batch.classes);
}

// The ways to each state at place t, given those at the place before.
OFL_DEVICE void StepForward(const CtcBatch& batch, int64_t n, int64_t t, int64_t states, const float* from,
                            float* to) {
  for (int64_t s = threadIdx.x; s < states; s += blockDim.x) {
    float sum = t > 0 ? from[s] : s < 2 ? 0.0f : -INFINITY;
    if (t > 0 && s > 0) sum = LogAdd(sum, from[s - 1]);
    if (t > 0 && batch.Leaps(n, s)) sum = LogAdd(sum, from[s - 2]);
    to[s] = sum + batch.Log(n, t, s);
  }
}

OFL_DEVICE float LossOf(const float* ways, int64_t places, int64_t states) {
  if (places == 0) return states == 1 ? 0.0f : INFINITY;
  return -(states == 1 ? ways[0] : LogAdd(ways[states - 1], ways[states - 2]));
}

OFL_KERNEL void CtcLoss(CtcBatch batch, float* loss) {
  for (int64_t n = blockIdx.x; n < batch.samples; n += gridDim.x) {
    const int64_t places = batch.Places(n), states = 2 * batch.Length(n) + 1;
    float *from = batch.space + blockIdx.x * batch.each, *to = from + 2 * batch.room + 1;
    for (int64_t t = 0; t < places; ++t) {
      StepForward(batch, n, t, states, from, to);
      __syncthreads();
      float* last = from;
      from = to;
      to = last;
    }
    if (threadIdx.x == 0) loss[n] = LossOf(from, places, states);
    __syncthreads();
  }
}

OFL_KERNEL void CtcLossGrad(CtcBatch batch, FloatView dloss, FloatView to) {
  OFL_SHARED float room[32];
  const int64_t most = 2 * batch.room + 1;
  for (int64_t n = blockIdx.x; n < batch.samples; n += gridDim.x) {
    const int64_t places = batch.Places(n), states = 2 * batch.Length(n) + 1,
                  base = n * batch.places * batch.classes;
    float *table = batch.space + blockIdx.x * batch.each, *after = table + batch.places * most,
          *before = after + most, *shares = before + most;
    for (int64_t i = threadIdx.x; i < batch.places * batch.classes; i += blockDim.x) to.Put(base + i, 0.0f);
    for (int64_t t = 0; t < places; ++t) {
      StepForward(batch, n, t, states, table + (t > 0 ? t - 1 : 0) * states, table + t * states);
      __syncthreads();
    }
    const float loss = LossOf(table + (places > 0 ? places - 1 : 0) * states, places, states),
                factor = -dloss.At(n);
    const bool possible = loss < INFINITY && loss > -INFINITY;
    for (int64_t t = places - 1; t >= 0 && possible; --t) {
      float blanks = 0.0f;
      for (int64_t i = threadIdx.x; i < states; i += blockDim.x) {
        float sum = i >= states - 2 ? 0.0f : -INFINITY;
        if (t + 1 < places) {
          sum = after[i] + batch.Log(n, t + 1, i);
          if (i + 1 < states) sum = LogAdd(sum, after[i + 1] + batch.Log(n, t + 1, i + 1));
          if (i + 2 < states && batch.Leaps(n, i + 2))
            sum = LogAdd(sum, after[i + 2] + batch.Log(n, t + 1, i + 2));
        }
        before[i] = sum;
        shares[i] = expf(table[t * states + i] + sum + loss);
        if (i % 2 == 0) blanks += shares[i];
      }
      blanks = BlockSum(blanks, room);  // a barrier, too
      if (threadIdx.x == 0) to.Put(base + t * batch.classes + batch.blank, factor * blanks);
      for (int64_t i = 1 + 2 * int64_t{threadIdx.x}; i < states; i += 2 * int64_t{blockDim.x}) {
        const int64_t own = batch.Class(n, i);
        bool earlier = false;  // whose first state adds up all of the class
        for (int64_t j = 1; j < i && !earlier; j += 2) earlier = batch.Class(n, j) == own;
        if (earlier || own == batch.blank) continue;
        float sum = 0.0f;
        for (int64_t j = i; j < states; j += 2) sum += batch.Class(n, j) == own ? shares[j] : 0.0f;
        to.Put(base + t * batch.classes + own, factor * sum);
      }
      __syncthreads();
      float* last = after;
      after = before;
      before = last;
    }
    __syncthreads();
  }
}

CtcBatch BatchOf(const KernelContext& context, const LaunchContext& launch, int64_t each) {
  const TensorArg &log_probs = context.in[0], &targets = context.in[1];
  return {FloatsOf(log_probs),
          IndicesOf(targets),
          IndicesOf(context.in[2]),
          IndicesOf(context.in[3]),
          log_probs.extent[0],
          log_probs.extent[1],
          log_probs.extent[2],
          targets.extent[1],
          context.spec.attrs.Int("blank"),
          static_cast<float*>(launch.workspace),
          each};
}

// Checks the data, and says how the samples are given to blocks, each with `each` floats of the work space;
// an error where it has not so many.
Status Begin(const KernelContext& context, const LaunchContext& launch, int64_t each, CtcBatch* batch,
             Grid* grid) {
  const auto room = static_cast<int64_t>(launch.workspace_bytes / sizeof(float)) / each;
  if (room == 0)
    return Status(Cat("a sample needs ", each * static_cast<int64_t>(sizeof(float)),
                      " bytes of work space, but a GPU's stream has ", launch.workspace_bytes,
                      "; use shorter inputs or targets"));
  *batch = BatchOf(context, launch, each);
  Launch(CheckSpellings, Grid{.threads = kCtcThreads}, launch.stream, *batch, FaultOf(launch, 2),
         FaultOf(launch, 3), FaultOf(launch, 1));
  const int64_t samples = context.in[0].extent[0];
  *grid = {.x = BlocksFor(samples < room ? samples : room, 1, launch.multiprocessors),
           .threads = kCtcThreads};
  return Status();
}

Status RunCtcLoss(const KernelContext& context, const LaunchContext& launch) {
  if (context.in[0].extent[0] == 0) return Status();
  CtcBatch batch;
  Grid grid;
  const Status status = Begin(context, launch, 2 * (2 * context.in[1].extent[1] + 1), &batch, &grid);
  if (status.ok()) Launch(CtcLoss, grid, launch.stream, batch, context.out[0].as<float>());
  return status;
}

Status RunCtcLossGrad(const KernelContext& context, const LaunchContext& launch) {
  if (context.in[0].extent[0] == 0) return Status();
  const int64_t states = 2 * context.in[1].extent[1] + 1, places = context.in[0].extent[1];
  CtcBatch batch;
  Grid grid;
  const Status status = Begin(context, launch, states * (places + 3), &batch, &grid);
  if (status.ok())
    Launch(CtcLossGrad, grid, launch.stream, batch, FloatsOf(context.in[4]), FloatsOf(context.out[0]));
  return status;
}

std::string WrongSpelling(const Fault& fault) {
  if (fault.operand == 1 && fault.value >= 0 && fault.value < fault.limit)
    return Cat("target ", fault.value, " is the blank, which spells nothing");
  if (fault.operand == 1) return Cat("target ", fault.value, " is outside [0, ", fault.limit, ")");
  return Cat(fault.operand == 2 ? "input length " : "target length ", fault.value, " is outside [0, ",
             fault.limit, "]");
}

}  // namespace

void AddTemporalClassificationKernels(KernelRegistry* registry) {
  registry->Add("ctc_loss", "cuda", MakeIndexKernel(RunCtcLoss, WrongSpelling));
  registry->Add("ctc_loss_grad", "cuda", MakeIndexKernel(RunCtcLossGrad, WrongSpelling));
}

}  // namespace oneflow_like::cuda
