// layer_norm and rms_norm over the last axis, and their gradients.
//
// Floor, bytes per element of x of type T: forward 2 sizeof(T) (the row waits in a warp's registers
// or in shared memory for its statistics), gradient 3 sizeof(T), 4 with a residual: a warp or a block keeps
// the row of dy and x in registers, and with it the sums of its rows for the gradients of gamma and beta,
// which a block leaves in the workspace for a second kernel to add up in the order of blocks: 396 times the
// width on an H100, where rows of 768 are a warp's. Rows that fit neither (long, unaligned, of two types) go
// through slower kernels that read them twice.
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/walk.h"  // OFL_UNROLL

namespace oneflow_like::cuda {
namespace {

// --- Forward ---

struct NormOperands {
  const float *gamma, *beta;  // beta: none without a centre
  FloatView mean, rstd;
  float eps;
  float share;  // 1 / width
};

// The packs of a row that belong to one thread of its team: number me, me + size, ... They are kept as the
// words that were loaded: of 16-bit elements that live on to the next row the compiler makes single halves as
// soon as they are there, that is, it waits for the row it was to load ahead.
template <typename T, int kPacks>
struct RowPart {
  static constexpr int N = kPackOf<T>;
  uint4 words[kPacks];

  OFL_DEVICE void Read(const T* row, int me, int size, int width) {
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int c = (me + p * size) * N;
      if (c < width) words[p] = WordsAt(row + c);
    }
  }
  OFL_DEVICE static uint4 WordsAt(const T* row) { return *reinterpret_cast<const uint4*>(row); }
  OFL_DEVICE Pack<float, N> At(int p) const { return Floats(words[p]); }
  OFL_DEVICE static Pack<float, N> Floats(const uint4& words) {
    Pack<float, N> floats;
    if constexpr (std::is_same_v<T, BFloat16>) {  // an instruction for each
      const uint32_t word[] = {words.x, words.y, words.z, words.w};
      OFL_UNROLL
      for (int i = 0; i < N; ++i)
        floats.at[i] = __uint_as_float(i % 2 == 0 ? word[i / 2] << 16 : word[i / 2] & 0xFFFF0000u);
    } else {
      Pack<T, N> pack;
      memcpy(&pack, &words, sizeof(pack));
      OFL_UNROLL
      for (int i = 0; i < N; ++i) floats.at[i] = Load(pack.at[i]);
    }
    return floats;
  }
};

// A row of up to 4 packs a lane is a warp's, and stays in its registers; the next one is on its way
// meanwhile.
constexpr int kShortWarps = 8, kMostShortPacks = 4;
constexpr int ShortBlocks(int packs) { return packs <= 3 ? 4 : 3; }  // of a multiprocessor: 64, 80 registers
template <typename T, bool kCentred, int kPacks>
OFL_KERNEL void __launch_bounds__(kShortWarps * 32, ShortBlocks(kPacks))
    NormShortRows(const T* x, T* y, NormOperands op, int64_t rows, int width) {
  constexpr int N = kPackOf<T>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t stride = int64_t{gridDim.x} * kShortWarps;
  RowPart<T, kPacks> v, next;
  int64_t row = int64_t{blockIdx.x} * kShortWarps + threadIdx.x / 32;
  if (row < rows) next.Read(x + row * width, lane, 32, width);
  for (; row < rows; row += stride) {
    v = next;
    if (row + stride < rows) next.Read(x + (row + stride) * width, lane, 32, width);
    const auto each = [&](auto&& use) {
      OFL_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const int c = (lane + p * 32) * N;
        if (c < width) use(c, v.At(p));
      }
    };
    float mean = 0.0f, squares = 0.0f;
    if (kCentred) {
      float sum = 0.0f;
      each([&](int, const Pack<float, N>& pack) {
        OFL_UNROLL
        for (int i = 0; i < N; ++i) sum += pack.at[i];
      });
      mean = WarpSum(sum) * op.share;
    }
    each([&](int, const Pack<float, N>& pack) {
      OFL_UNROLL
      for (int i = 0; i < N; ++i) squares += (pack.at[i] - mean) * (pack.at[i] - mean);
    });
    const float rstd = 1.0f / sqrtf(WarpSum(squares) * op.share + op.eps);
    each([&](int c, const Pack<float, N>& pack) {
      Pack<float, N> gamma = LoadFloats<N>(op.gamma + c), beta = {};
      if (kCentred) beta = LoadFloats<N>(op.beta + c);
      Pack<T, N> to;
      OFL_UNROLL
      for (int i = 0; i < N; ++i) to.at[i] = Store<T>((pack.at[i] - mean) * rstd * gamma.at[i] + beta.at[i]);
      StorePack(y + row * width + c, to);
    });
    if (lane != 0) continue;
    if (kCentred) op.mean.Put(row, mean);
    op.rstd.Put(row, rstd);
  }
}

template <typename T, bool kCentred>
auto* NormShortRowsFor(int64_t packs) {
  return packs <= 32   ? NormShortRows<T, kCentred, 1>
         : packs <= 64 ? NormShortRows<T, kCentred, 2>
         : packs <= 96 ? NormShortRows<T, kCentred, 3>
                       : NormShortRows<T, kCentred, 4>;
}

// Other rows. 64 registers: four blocks of 256 threads a multiprocessor.
template <typename T, bool kCentred>
OFL_KERNEL void __launch_bounds__(512, 2) NormRows(const T* x, T* y, NormOperands op, RowPlan plan) {
  OFL_SHARED float room[32];
  Team team(plan);
  for (int64_t row = team.first; row < plan.rows; row += team.stride) {
    const T* from = x + row * plan.width;
    T* to = y + row * plan.width;
    T* kept = plan.slot > 0 ? RoomFor(from, plan, team, 0, 1) : nullptr;
    Cut cut = CutRow(from, plan);
    float sum = 0.0f, squares = 0.0f;
    ForRow<T>(
        cut, team, [&](int c, auto n) { return LoadPack<n.value>(from + c); },
        [&](int c, auto n, const auto& pack) {
          if (kept != nullptr) StorePack(kept + c, pack);
          for (int i = 0; i < n.value; ++i) {
            float v = Load(pack.at[i]);
            if (kCentred) {
              sum += v;
            } else {
              squares += v * v;
            }
          }
        });
    const T* again = kept != nullptr ? kept : from;
    auto read = [&](int c, auto n) { return LoadPack<n.value>(again + c); };
    float mean = 0.0f;
    if (kCentred) {
      mean = team.Sum(sum, room) * op.share;
      ForRow<T>(cut, team, read, [&](int, auto n, const auto& pack) {
        for (int i = 0; i < n.value; ++i) {
          float v = Load(pack.at[i]) - mean;
          squares += v * v;
        }
      });
    }
    float rstd = 1.0f / sqrtf(team.Sum(squares, room) * op.share + op.eps);
    ForRow<T>(cut, team, read, [&](int c, auto n, auto pack) {
      // Aligned with the pack: the plan is packed only when rows start at multiples of 16 bytes.
      Pack<float, n.value> gamma = LoadFloats<n.value>(op.gamma + c), beta = {};
      if (kCentred) beta = LoadFloats<n.value>(op.beta + c);
      for (int i = 0; i < n.value; ++i)
        pack.at[i] = Store<T>((Load(pack.at[i]) - mean) * rstd * gamma.at[i] + beta.at[i]);
      StorePack(to + c, pack);
    });
    if (team.me != 0) continue;
    if (kCentred) op.mean.Put(row, mean);
    op.rstd.Put(row, rstd);
  }
}

OFL_KERNEL void Widen(FloatView from, float* to, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = from.At(i);
}

// A vector as fp32: where it is, or widened into the workspace from `*used` bytes on. nullptr: no room.
const float* AsFloats(const TensorArg& arg, const LaunchContext& launch, size_t* used) {
  if (arg.dtype == DType::kFloat32) return arg.as<float>();
  size_t bytes = (arg.elements() * sizeof(float) + 15) / 16 * 16;
  if (*used + bytes > launch.workspace_bytes) return nullptr;
  float* to = reinterpret_cast<float*>(static_cast<char*>(launch.workspace) + *used);
  *used += bytes;
  Launch(Widen, Grid{.x = BlocksFor(arg.elements(), 256, launch.multiprocessors)}, launch.stream,
         FloatsOf(arg), to, arg.elements());
  return to;
}

Status TooWide(int64_t width) {
  return Status(Cat("rows of ", width, " elements are more than the CUDA kernel has room for"));
}

float ShareOf(int64_t width) { return width == 0 ? 0.0f : 1.0f / static_cast<float>(width); }

template <bool kCentred>
Status Norm(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0], &rstd = context.out[kCentred ? 2 : 1];
  int64_t width = x.extent.back();
  size_t used = 0;
  NormOperands op;
  op.gamma = AsFloats(context.in[1], launch, &used);
  op.beta = kCentred ? AsFloats(context.in[2], launch, &used) : op.gamma;
  if (op.gamma == nullptr || op.beta == nullptr) return TooWide(width);
  op.mean = FloatsOf(context.out[1]);
  op.rstd = FloatsOf(rstd);
  op.eps = static_cast<float>(context.spec.attrs.Float("eps"));
  op.share = ShareOf(width);
  RowPlan plan =
      PlanRows(rstd.elements(), width, SizeOf(x.dtype), {x.data, y.data}, 1, launch.multiprocessors);
  plan.packed = plan.packed && Aligned(x.data) && width * SizeOf(x.dtype) % 16 == 0 && Aligned(op.gamma) &&
                Aligned(op.beta);
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    if (const int64_t packs = width / kPackOf<T>; plan.packed && packs <= kMostShortPacks * 32) {
      const int64_t room = int64_t{launch.multiprocessors} * ShortBlocks(static_cast<int>((packs + 31) / 32));
      const int64_t blocks = std::min((plan.rows + kShortWarps - 1) / kShortWarps, room);
      Launch(NormShortRowsFor<T, kCentred>(packs),
             Grid{.x = static_cast<unsigned>(blocks), .threads = kShortWarps * 32}, launch.stream, x.as<T>(),
             y.as<T>(), op, plan.rows, plan.width);
      return;
    }
    Launch(NormRows<T, kCentred>, plan.grid, launch.stream, x.as<T>(), y.as<T>(), op, plan);
  });
  return Status();
}

// --- Gradient ---

// With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)) [+ residual],
// dgamma = sum(dy n) and dbeta = sum(dy) over the rows.

struct TwoSums {
  float a = 0.0f, b = 0.0f;
};

// One barrier: the room (64 floats) may be used again only after another barrier.
OFL_DEVICE TwoSums BlockSums(TwoSums x, float* room) {
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = {WarpSum(x.a), WarpSum(x.b)};
  if (warps == 1) return x;
  if (lane == 0) {
    room[warp] = x.a;
    room[32 + warp] = x.b;
  }
  __syncthreads();
  bool there = lane < warps;
  return {WarpSum(there ? room[lane] : 0.0f), WarpSum(there ? room[32 + lane] : 0.0f)};
}

struct NormGradOperands {
  const float* gamma;
  FloatView mean, rstd;
  float* sums;  // [blocks][dgamma, dbeta][width]
  int64_t rows;
  int width;
  float share;
};

// Rows of up to 3 packs a lane are a warp's: it needs no barrier, and what is done once for a row is shared
// by more elements. Longer ones are a block's.
constexpr int kGradWarps = 4, kMostWarpPacks = 3, kMostGradThreads = 512;
constexpr int GradThreads(bool warps) { return warps ? kGradWarps * 32 : kMostGradThreads; }
// Blocks of warps that a multiprocessor has room for: 128 registers a thread, 168 of three packs.
constexpr int GradBlocks(bool warps, int packs) { return !warps ? 1 : packs <= 2 ? 4 : 3; }

// A block's sums for gamma and beta go to the workspace; of warps one adds its own to those of the one
// before.
template <bool kCentred, bool kWarps, int kPacks, int N>
OFL_DEVICE void PutSums(float (&to_gamma)[kPacks][N], float (&to_beta)[kPacks][N], int me, int size,
                        const NormGradOperands& op) {
  float* sums = op.sums + int64_t{blockIdx.x} * (kCentred ? 2 : 1) * op.width;
  const auto put = [&](int p) {
    const int c = (me + p * size) * N;
    if (c >= op.width) return;
    OFL_UNROLL
    for (int i = 0; i < N; i += 4) {
      StorePack(sums + c + i,
                Pack<float, 4>{to_gamma[p][i], to_gamma[p][i + 1], to_gamma[p][i + 2], to_gamma[p][i + 3]});
      if (kCentred)
        StorePack(sums + op.width + c + i,
                  Pack<float, 4>{to_beta[p][i], to_beta[p][i + 1], to_beta[p][i + 2], to_beta[p][i + 3]});
    }
  };
  if constexpr (kWarps) {
    OFL_SHARED float before[kCentred ? 2 : 1][kPacks][N][32];
    const int warp = static_cast<int>(threadIdx.x / 32);
    for (int turn = 0; turn < kGradWarps; ++turn) {
      __syncthreads();
      if (turn != warp) continue;
      OFL_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        OFL_UNROLL
        for (int i = 0; i < N; ++i) {
          if (warp > 0) {
            to_gamma[p][i] += before[0][p][i][me];
            if (kCentred) to_beta[p][i] += before[kCentred ? 1 : 0][p][i][me];
          }
          before[0][p][i][me] = to_gamma[p][i];
          if (kCentred) before[kCentred ? 1 : 0][p][i][me] = to_beta[p][i];
        }
        if (warp == kGradWarps - 1) put(p);
      }
    }
  } else {
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) put(p);
  }
}

// While a row is worked on, the next one's elements and statistics are on their way, and its own residual,
// unless rows are so long that registers are short.
template <typename T, bool kCentred, bool kWarps, int kPacks>
OFL_KERNEL void __launch_bounds__(GradThreads(kWarps), GradBlocks(kWarps, kPacks))
    NormGradRows(const T* dy, const T* x, const T* residual, T* dx, NormGradOperands op) {
  OFL_SHARED float room[2][64];
  constexpr int N = kPackOf<T>;
  constexpr bool kAhead = kWarps || kPacks < 4;
  const int me = static_cast<int>(kWarps ? threadIdx.x % 32 : threadIdx.x);
  const int size = static_cast<int>(kWarps ? 32 : blockDim.x);
  const int64_t first = kWarps ? int64_t{blockIdx.x} * kGradWarps + threadIdx.x / 32 : blockIdx.x;
  const int64_t stride = kWarps ? int64_t{gridDim.x} * kGradWarps : gridDim.x;
  float to_gamma[kPacks][N] = {}, to_beta[kPacks][N] = {};
  using Part = RowPart<T, kPacks>;
  Part d, v, next_d, next_v, beside;
  float mean = 0.0f, rstd = 0.0f, next_mean = 0.0f, next_rstd = 0.0f;
  int turn = 0;
  const auto read = [&](int64_t row, Part* d_of, Part* v_of, float* mean_of, float* rstd_of) {
    d_of->Read(dy + row * op.width, me, size, op.width);
    v_of->Read(x + row * op.width, me, size, op.width);
    if (kCentred) *mean_of = op.mean.At(row);
    *rstd_of = op.rstd.At(row);
  };
  if (kAhead && first < op.rows) read(first, &next_d, &next_v, &next_mean, &next_rstd);
  for (int64_t row = first; row < op.rows; row += stride, turn ^= 1) {
    if (kAhead) {
      d = next_d;
      v = next_v;
      mean = next_mean;
      rstd = next_rstd;
      if (residual != nullptr) beside.Read(residual + row * op.width, me, size, op.width);
      if (row + stride < op.rows) read(row + stride, &next_d, &next_v, &next_mean, &next_rstd);
    } else {
      read(row, &d, &v, &mean, &rstd);
    }
    TwoSums mine;
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int c = (me + p * size) * N;
      if (c >= op.width) continue;
      const Pack<float, N> gamma = LoadFloats<N>(op.gamma + c);
      const Pack<float, N> d_at = d.At(p), v_at = v.At(p);
      OFL_UNROLL
      for (int i = 0; i < N; ++i) {
        const float dyi = d_at.at[i], g = dyi * gamma.at[i], n = (v_at.at[i] - mean) * rstd;
        mine.a += g;
        mine.b += g * n;
        to_gamma[p][i] += dyi * n;
        to_beta[p][i] += dyi;
      }
    }
    const TwoSums sums = kWarps ? TwoSums{WarpSum(mine.a), WarpSum(mine.b)} : BlockSums(mine, room[turn]);
    const float mean_g = kCentred ? sums.a * op.share : 0.0f, mean_gn = sums.b * op.share;
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int c = (me + p * size) * N;
      if (c >= op.width) continue;
      const Pack<float, N> gamma = LoadFloats<N>(op.gamma + c);
      uint4 words = beside.words[p];
      if (!kAhead && residual != nullptr) words = Part::WordsAt(residual + row * op.width + c);
      const Pack<float, N> added = Part::Floats(words);
      const Pack<float, N> d_at = d.At(p), v_at = v.At(p);
      Pack<T, N> to;
      OFL_UNROLL
      for (int i = 0; i < N; ++i) {
        const float g = d_at.at[i] * gamma.at[i], n = (v_at.at[i] - mean) * rstd;
        float to_x = rstd * (g - mean_g - n * mean_gn);
        if (residual != nullptr) to_x += added.at[i];
        to.at[i] = Store<T>(to_x);
      }
      StorePack(dx + row * op.width + c, to);
    }
  }
  PutSums<kCentred, kWarps, kPacks>(to_gamma, to_beta, me, size, op);
}

// Any row, any types: dx alone, both operands read twice.
OFL_KERNEL void NormGradAnyRows(FloatView dy, FloatView x, FloatView residual, FloatView dx,
                                NormGradOperands op, bool centred) {
  OFL_SHARED float room[2][64];
  int turn = 0;
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x, turn ^= 1) {
    float mean = centred ? op.mean.At(row) : 0.0f, rstd = op.rstd.At(row);
    int64_t begin = row * op.width;
    TwoSums mine;
    for (int c = threadIdx.x; c < op.width; c += blockDim.x) {
      float g = dy.At(begin + c) * op.gamma[c];
      mine.a += g;
      mine.b += g * (x.At(begin + c) - mean) * rstd;
    }
    TwoSums sums = BlockSums(mine, room[turn]);
    float mean_g = centred ? sums.a * op.share : 0.0f, mean_gn = sums.b * op.share;
    for (int c = threadIdx.x; c < op.width; c += blockDim.x) {
      float g = dy.At(begin + c) * op.gamma[c], n = (x.At(begin + c) - mean) * rstd;
      float to_x = rstd * (g - mean_g - n * mean_gn);
      if (residual.data != nullptr) to_x += residual.At(begin + c);
      dx.Put(begin + c, to_x);
    }
  }
}

// A thread per column, blockIdx.y for a band of rows: the sums that NormGradRows leaves, for any rows.
OFL_KERNEL void NormGradBands(FloatView dy, FloatView x, NormGradOperands op, bool centred) {
  int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= op.width) return;
  int64_t band = (op.rows + gridDim.y - 1) / gridDim.y, row = blockIdx.y * band;
  int64_t end = row + band < op.rows ? row + band : op.rows;
  float to_gamma = 0.0f, to_beta = 0.0f;
  for (; row < end; ++row) {
    float d = dy.At(row * op.width + c), mean = centred ? op.mean.At(row) : 0.0f;
    to_gamma += d * (x.At(row * op.width + c) - mean) * op.rstd.At(row);
    to_beta += d;
  }
  float* sums = op.sums + int64_t{blockIdx.y} * (centred ? 2 : 1) * op.width;
  sums[c] = to_gamma;
  if (centred) sums[op.width + c] = to_beta;
}

// dgamma, dbeta: the sums of all parts. 32 columns per block, its warps share the parts and have kAtOnce of
// them on their way: there are 8 parts for each multiprocessor, and fewer blocks than multiprocessors.
constexpr int kFinishWarps = 32;
OFL_KERNEL void FinishNormGrad(const float* sums, int parts, int width, int columns, FloatView dgamma,
                               FloatView dbeta) {
  OFL_SHARED float room[kFinishWarps][32];
  constexpr int kAtOnce = 8;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = static_cast<int>(blockIdx.x) * 32 + lane;
  float sum = 0.0f;
  for (int first = warp; first < parts && column < columns; first += kFinishWarps * kAtOnce) {
    float at[kAtOnce];
    OFL_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      int part = first + i * kFinishWarps;
      at[i] = part < parts ? sums[int64_t{part} * columns + column] : 0.0f;
    }
    OFL_UNROLL
    for (int i = 0; i < kAtOnce; ++i) sum += at[i];
  }
  room[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int w = 1; w < kFinishWarps; ++w) sum += room[w][lane];
  if (column < width) {
    dgamma.Put(column, sum);
  } else {
    dbeta.Put(column - width, sum);
  }
}

// How NormGradRows has rows of so many packs: by a warp or a block of so many threads, packs for a thread.
// packs 0: the row is not for it.
struct GradPlan {
  bool warps = false;
  int threads = 0, packs = 0;
  int blocks = 0;  // of a multiprocessor
};
GradPlan PlanGrad(int64_t width, size_t size) {
  const int64_t packs = width * static_cast<int64_t>(size) / 16;
  if (packs <= kMostWarpPacks * 32) {
    const int each = static_cast<int>((packs + 31) / 32);
    return {true, GradThreads(true), each, GradBlocks(true, each)};
  }
  for (int each : {2, 4}) {
    const int64_t threads = ((packs + each - 1) / each + 31) / 32 * 32;
    if (threads <= kMostGradThreads)
      return {false, static_cast<int>(threads), each, static_cast<int>(std::max<int64_t>(1, 512 / threads))};
  }
  return {};
}

template <typename T, bool kCentred>
auto* NormGradRowsFor(const GradPlan& plan) {
  if (!plan.warps)
    return plan.packs == 2 ? NormGradRows<T, kCentred, false, 2> : NormGradRows<T, kCentred, false, 4>;
  return plan.packs == 1   ? NormGradRows<T, kCentred, true, 1>
         : plan.packs == 2 ? NormGradRows<T, kCentred, true, 2>
                           : NormGradRows<T, kCentred, true, 3>;
}

template <bool kCentred>
Status NormGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &dy = context.in[0], &x = context.in[1], &dx = context.out[0];
  const TensorArg& rstd = context.in[kCentred ? 4 : 3];
  constexpr size_t kOperands = kCentred ? 5 : 4;
  const TensorArg* residual = context.in.size() > kOperands ? &context.in[kOperands] : nullptr;
  int64_t width = x.extent.back(), columns = width * (kCentred ? 2 : 1);
  if (width == 0) return Status();
  size_t used = 0;
  NormGradOperands op;
  op.gamma = AsFloats(context.in[2], launch, &used);
  if (op.gamma == nullptr) return TooWide(width);
  op.mean = FloatsOf(context.in[3]);
  op.rstd = FloatsOf(rstd);
  op.sums = reinterpret_cast<float*>(static_cast<char*>(launch.workspace) + used);
  op.rows = rstd.elements();
  op.width = static_cast<int>(width);
  op.share = ShareOf(width);

  int64_t most = static_cast<int64_t>((launch.workspace_bytes - used) / (columns * sizeof(float)));
  if (most == 0) return TooWide(width);
  GradPlan plan = PlanGrad(width, SizeOf(x.dtype));
  bool packed = dy.dtype == x.dtype && width * SizeOf(x.dtype) % 16 == 0 && Aligned(dy.data) &&
                Aligned(x.data) && Aligned(dx.data) && Aligned(op.gamma) && plan.packs > 0 &&
                (residual == nullptr || (residual->dtype == x.dtype && Aligned(residual->data)));
  int64_t parts;
  if (packed) {
    const int64_t teams = plan.warps ? kGradWarps : 1;
    parts = std::min({(op.rows + teams - 1) / teams, most, int64_t{launch.multiprocessors} * plan.blocks});
    Grid grid{.x = static_cast<unsigned>(parts), .threads = static_cast<unsigned>(plan.threads)};
    WithFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      auto* kernel = NormGradRowsFor<T, kCentred>(plan);
      Launch(kernel, grid, launch.stream, dy.as<T>(), x.as<T>(),
             residual != nullptr ? residual->as<T>() : nullptr, dx.as<T>(), op);
    });
  } else {
    Grid rows{.x = static_cast<unsigned>(std::min(op.rows, int64_t{launch.multiprocessors} * 16))};
    Launch(NormGradAnyRows, rows, launch.stream, FloatsOf(dy), FloatsOf(x),
           residual != nullptr ? FloatsOf(*residual) : FloatView(), FloatsOf(dx), op, kCentred);
    parts = std::min({(op.rows + 31) / 32, most, int64_t{512}});
    Grid bands{
        .x = static_cast<unsigned>((width + 127) / 128), .y = static_cast<unsigned>(parts), .threads = 128};
    Launch(NormGradBands, bands, launch.stream, FloatsOf(dy), FloatsOf(x), op, kCentred);
  }
  Grid finish{.x = static_cast<unsigned>((columns + 31) / 32), .threads = 32 * kFinishWarps};
  Launch(FinishNormGrad, finish, launch.stream, op.sums, static_cast<int>(parts), op.width,
         static_cast<int>(columns), FloatsOf(context.out[1]), FloatsOf(context.out[kCentred ? 2 : 1]));
  return Status();
}

}  // namespace

void AddNormKernels(KernelRegistry* registry) {
  registry->Add("layer_norm", "cuda", MakeLaunchKernel(Norm<true>));
  registry->Add("rms_norm", "cuda", MakeLaunchKernel(Norm<false>));
  registry->Add("layer_norm_grad", "cuda", MakeLaunchKernel(NormGrad<true>));
  registry->Add("rms_norm_grad", "cuda", MakeLaunchKernel(NormGrad<false>));
}

}  // namespace oneflow_like::cuda
