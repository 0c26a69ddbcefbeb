// layer_norm and rms_norm over the last axis, and their gradients.
//
// Floor, bytes per element of x of type T: forward 2 sizeof(T), gradient 3 sizeof(T), 4 with a residual. A
// team of threads, a warp or several, keeps a row in registers, and with it gamma and beta (forward) or the
// sums of its rows for their gradients; the next rows are on their way meanwhile. A small tensor takes as
// long as its launches, so gamma and beta are read in their own types, and a block of the gradient, one for
// each multiprocessor, leaves one row of sums in the workspace for a second kernel to add up in the order of
// blocks: 132 times the width on an H100. Rows that fit neither (long, unaligned, of two types) go through
// slower kernels that read them twice.
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/walk.h"  // OFL_UNROLL

namespace oneflow_like::cuda {
namespace {

// --- Forward ---

struct NormOperands {
  FloatView gamma, beta;  // beta: none without a centre
  FloatView mean, rstd;
  float eps;
  float share;  // 1 / width
};

// N elements of a vector as floats, from element c on, a multiple of N. REQUIRES: Aligned(view.data).
template <int N>
OFL_DEVICE Pack<float, N> FloatsAt(const FloatView& view, int c) {
  if (view.dtype == DType::kFloat32) return LoadFloats<N>(static_cast<const float*>(view.data) + c);
  Pack<float, N> floats;
  const auto widen = [&](const auto& pack) {
    OFL_UNROLL
    for (int i = 0; i < N; ++i) floats.at[i] = Load(pack.at[i]);
  };
  if (view.dtype == DType::kBFloat16) {
    widen(LoadPack<N>(static_cast<const BFloat16*>(view.data) + c));
  } else {
    widen(LoadPack<N>(static_cast<const Float16*>(view.data) + c));
  }
  return floats;
}

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

// The mean of the elements that a warp has of a row, and their squared differences from it.
struct alignas(16) Moments {
  float sum, mean, squares, count;
};

// A row of up to 4 packs a lane is a warp's, a longer one a block's of 2 packs a thread. Of a thread's packs
// only the last may lie beyond the row's end. Two rows are on their way while one is worked on, and registers
// hold gamma and beta: at 16 warps a multiprocessor that is 32 to 48 KiB on their way, twice what its part of
// the bandwidth asks for.
constexpr int kRowWarps = 4, kMostTeamThreads = 512, kMostWarpPacks = 4;
constexpr int WarpBlocks(bool centred, int packs,
                         int n) {  // of a multiprocessor, by the registers that they need
  const int registers = (packs * (n * (centred ? 3 : 2) + 8) + 28 + 7) / 8 * 8;
  const int blocks = 65536 / (registers * kRowWarps * 32);
  return blocks > 8 ? 8 : blocks;
}
constexpr int TeamBlocks(int threads) { return kMostTeamThreads / threads; }  // 128 registers
template <typename T, bool kCentred, bool kWarps, int kPacks>
OFL_KERNEL void __launch_bounds__(kWarps ? kRowWarps * 32 : kMostTeamThreads,
                                  kWarps ? WarpBlocks(kCentred, kPacks, kPackOf<T>) : 1)
    NormHeldRows(const T* x, T* y, NormOperands op, int64_t rows, int width) {
  OFL_SHARED Moments room[2][kWarps ? 1 : kMostTeamThreads / 32];
  constexpr int N = kPackOf<T>;
  using Part = RowPart<T, kPacks>;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int me = kWarps ? lane : static_cast<int>(threadIdx.x);
  const int size = kWarps ? 32 : static_cast<int>(blockDim.x);
  const int64_t first = kWarps ? int64_t{blockIdx.x} * kRowWarps + warp : blockIdx.x;
  const int64_t stride = kWarps ? int64_t{gridDim.x} * kRowWarps : gridDim.x;
  const bool last_inside = (me + (kPacks - 1) * size) * N < width;
  Part even = {}, odd = {};  // zeros where the row has no pack
  if (first < rows) even.Read(x + first * width, me, size, width);
  if (first + stride < rows) odd.Read(x + (first + stride) * width, me, size, width);

  Pack<float, N> gamma[kPacks] = {}, beta[kPacks] = {};
  int count = 0;  // elements of a row that this warp has
  OFL_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int c = (me + p * size) * N, left = width - (c - lane * N);
    count += left < 0 ? 0 : left < 32 * N ? left : 32 * N;
    if (c >= width) continue;
    gamma[p] = FloatsAt<N>(op.gamma, c);
    if (kCentred) beta[p] = FloatsAt<N>(op.beta, c);
  }
  const float each = 1.0f / static_cast<float>(count);

  const auto turn = [&](Part* part, int64_t row, Moments* shared) {
    Pack<float, N> v[kPacks];
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) v[p] = part->At(p);
    if (row + 2 * stride < rows) part->Read(x + (row + 2 * stride) * width, me, size, width);
    // One pass, of differences from a mean of 16 bytes of the row: what cancels in the end is then at most as
    // many times the result as the warp has packs.
    float shift = 0.0f, sum = 0.0f, squares = 0.0f;
    if (kCentred) {
      float few[N];
      OFL_UNROLL
      for (int i = 0; i < N; ++i) few[i] = v[0].at[i];
      OFL_UNROLL
      for (int half = N / 2; half > 0; half /= 2) {
        OFL_UNROLL
        for (int i = 0; i < half; ++i) few[i] += few[i + half];
      }
      shift = __shfl_sync(0xFFFFFFFFu, few[0] * (1.0f / N), 0);
    }
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      float pack_sum = 0.0f, pack_squares = 0.0f;
      OFL_UNROLL
      for (int i = 0; i < N; ++i) {
        float& at = v[p].at[i];
        if (kCentred) {
          at = p < kPacks - 1 || last_inside ? at - shift : 0.0f;
          pack_sum += at;
        }
        pack_squares += at * at;
      }
      sum += pack_sum;
      squares += pack_squares;
    }
    if (kCentred) sum = WarpSum(sum);
    squares = WarpSum(squares);
    float away = 0.0f, mean = 0.0f;  // the mean's distance from the shift
    if (kCentred) {
      away = sum * each;
      mean = shift + away;
      squares -= sum * away;
    }
    if constexpr (!kWarps) {
      if (lane == 0)
        shared[warp] = {mean * static_cast<float>(count), mean, squares, static_cast<float>(count)};
      __syncthreads();
      if (kCentred) {
        mean = 0.0f;
        for (int w = 0; w < size / 32; ++w) mean += shared[w].sum;
        mean *= op.share;
        away = mean - shift;
      }
      squares = 0.0f;
      for (int w = 0; w < size / 32; ++w) {
        const float apart = kCentred ? shared[w].mean - mean : 0.0f;
        squares += shared[w].squares + shared[w].count * apart * apart;
      }
    }
    if (kCentred && squares < 0.0f) squares = 0.0f;
    const float rstd = 1.0f / sqrtf(squares * op.share + op.eps), back = -away * rstd;
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (p == kPacks - 1 && !last_inside) continue;
      Pack<T, N> to;
      OFL_UNROLL
      for (int i = 0; i < N; ++i) {
        const float at = v[p].at[i];
        to.at[i] = Store<T>(kCentred ? (at * rstd + back) * gamma[p].at[i] + beta[p].at[i]
                                     : at * rstd * gamma[p].at[i]);
      }
      StorePack(y + row * width + (me + p * size) * N, to);
    }
    if (me != 0) return;
    if (kCentred) op.mean.Put(row, mean);
    op.rstd.Put(row, rstd);
  };
  // A room is written again when a barrier after the next row's has been passed.
  for (int64_t row = first; row < rows; row += 2 * stride) {
    turn(&even, row, room[0]);
    if (row + stride < rows) turn(&odd, row + stride, room[1]);
  }
}

// How many teams of so many that a device has room for get rows: all equally many, or one less, so that none
// of their turns finds most of the device idle.
int64_t TeamsFor(int64_t rows, int64_t room) {
  if (rows == 0) return 0;
  const int64_t each = (rows + room - 1) / room;
  return (rows + each - 1) / each;
}

// How a row of so many packs is held in registers; packs 0: it is not.
struct HeldPlan {
  bool warps = false;
  int threads = 0, packs = 0;  // of a block; of a thread
};
HeldPlan PlanHeld(int64_t packs) {
  if (packs <= kMostWarpPacks * 32) return {true, kRowWarps * 32, static_cast<int>((packs + 31) / 32)};
  const int64_t threads = (packs + 63) / 64 * 32;
  if (threads <= kMostTeamThreads) return {false, static_cast<int>(threads), 2};
  return {};
}

template <typename T, bool kCentred>
auto* NormHeldRowsFor(const HeldPlan& plan) {
  if (!plan.warps) return NormHeldRows<T, kCentred, false, 2>;
  return plan.packs == 1   ? NormHeldRows<T, kCentred, true, 1>
         : plan.packs == 2 ? NormHeldRows<T, kCentred, true, 2>
         : plan.packs == 3 ? NormHeldRows<T, kCentred, true, 3>
                           : NormHeldRows<T, kCentred, true, 4>;
}

// Other rows. 64 registers: four blocks of 256 threads a multiprocessor.
template <typename T, bool kCentred>
OFL_KERNEL void __launch_bounds__(512, 2)
    NormRows(const T* x, T* y, const float* gammas, const float* betas, NormOperands op, RowPlan plan) {
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
      Pack<float, n.value> gamma = LoadFloats<n.value>(gammas + c), beta = {};
      if (kCentred) beta = LoadFloats<n.value>(betas + c);
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
  const int64_t width = x.extent.back(), rows = rstd.elements();
  NormOperands op;
  op.gamma = FloatsOf(context.in[1]);
  op.beta = kCentred ? FloatsOf(context.in[2]) : op.gamma;
  op.mean = FloatsOf(context.out[1]);
  op.rstd = FloatsOf(rstd);
  op.eps = static_cast<float>(context.spec.attrs.Float("eps"));
  op.share = ShareOf(width);
  const int64_t bytes = width * static_cast<int64_t>(SizeOf(x.dtype));
  const HeldPlan held = PlanHeld(bytes / 16);
  const bool whole = width > 0 && bytes % 16 == 0 && Aligned(x.data) && Aligned(y.data) &&
                     Aligned(op.gamma.data) && Aligned(op.beta.data);
  if (whole && held.packs > 0) {
    WithFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      const int64_t teams = held.warps ? kRowWarps : 1;
      const int blocks_at_once =
          held.warps ? WarpBlocks(kCentred, held.packs, kPackOf<T>) : TeamBlocks(held.threads);
      const int64_t room = launch.multiprocessors * teams * blocks_at_once;
      const int64_t blocks = (TeamsFor(rows, room) + teams - 1) / teams;
      Launch(NormHeldRowsFor<T, kCentred>(held),
             Grid{.x = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(held.threads)},
             launch.stream, x.as<T>(), y.as<T>(), op, rows, static_cast<int>(width));
    });
    return Status();
  }
  size_t used = 0;
  const float* gamma = AsFloats(context.in[1], launch, &used);
  const float* beta = kCentred ? AsFloats(context.in[2], launch, &used) : gamma;
  if (gamma == nullptr || beta == nullptr) return TooWide(width);
  RowPlan plan = PlanRows(rows, width, SizeOf(x.dtype), {x.data, y.data}, 1, launch.multiprocessors);
  plan.packed = plan.packed && Aligned(x.data) && bytes % 16 == 0 && Aligned(gamma) && Aligned(beta);
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(NormRows<T, kCentred>, plan.grid, launch.stream, x.as<T>(), y.as<T>(), gamma, beta, op, plan);
  });
  return Status();
}

// --- Gradient ---

// With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)) [+ residual],
// dgamma = sum(dy n) and dbeta = sum(dy) over the rows.

struct TwoSums {
  float a, b;
};

// Sums over a team of so many warps, the block's from `first` on. One barrier of the whole block: the room (a
// place for each of its warps) may be used again only after another one.
OFL_DEVICE TwoSums TeamSums(TwoSums x, int first, int warps, TwoSums* room) {
  x = {WarpSum(x.a), WarpSum(x.b)};
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  x = room[first];
  for (int w = first + 1; w < first + warps; ++w) x = {x.a + room[w].a, x.b + room[w].b};
  return x;
}

struct NormGradOperands {
  FloatView gamma;
  FloatView mean, rstd;
  float* sums;  // [blocks][dgamma, dbeta][width]
  int64_t rows;
  int width;
  int size;  // threads of a team
  float share;
};

// Rows of up to 3 packs a lane are a warp's: it needs no barrier, and what is done once for a row is shared
// by more elements. Longer ones are that of several warps. A block has all teams of a multiprocessor, so that
// it leaves few sums: 128 registers a thread, 168 of a warp's three packs.
constexpr int kMostWarpGradPacks = 3;
constexpr int MostGradThreads(bool warps, int packs) { return warps && packs == 3 ? 384 : 512; }

// A block's sums for gamma or beta go to the workspace: each thread adds up the teams' for four columns.
template <int kPacks, int N>
OFL_DEVICE void PutSums(const float (&mine)[kPacks][N], int team, int me, int size, float* to, int width) {
  constexpr int kOfPack = N / 4, kQuads = kPacks * kOfPack;
  float4* room = DynamicShared<float4>();
  __syncthreads();  // what was there is no longer read
  OFL_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    OFL_UNROLL
    for (int i = 0; i < N; i += 4)
      room[(team * kQuads + p * kOfPack + i / 4) * size + me] = {mine[p][i], mine[p][i + 1], mine[p][i + 2],
                                                                 mine[p][i + 3]};
  }
  __syncthreads();
  const int teams = static_cast<int>(blockDim.x) / size, all = kQuads * size;
  for (int e = static_cast<int>(threadIdx.x); e < all; e += static_cast<int>(blockDim.x)) {
    float4 sum = room[e];
    for (int t = 1; t < teams; ++t) {
      const float4 at = room[t * all + e];
      sum = {sum.x + at.x, sum.y + at.y, sum.z + at.z, sum.w + at.w};
    }
    const int quad = e / size, c = (e - quad * size + quad / kOfPack * size) * N + quad % kOfPack * 4;
    if (c < width) StorePack(to + c, Pack<float, 4>{sum.x, sum.y, sum.z, sum.w});
  }
}

// While a row is worked on, the next one's elements and statistics are on their way, and its own residual,
// unless rows are so long that registers have room for the sums of gamma alone: then a row is read again
// after its sums. Gamma is in shared memory, four columns of each thread's next to each other; of such long
// rows the sums of beta are. Teams of a block take turns together.
template <typename T, bool kCentred, bool kWarps, int kPacks>
OFL_KERNEL void __launch_bounds__(MostGradThreads(kWarps, kPacks), 1)
    NormGradRows(const T* dy, const T* x, const T* residual, T* dx, NormGradOperands op) {
  OFL_SHARED TwoSums room[2][kWarps ? 1 : 16];
  constexpr int N = kPackOf<T>, kOfPack = N / 4;
  constexpr bool kAhead = kWarps || kPacks < 4;
  const int size = kWarps ? 32 : op.size, team = static_cast<int>(threadIdx.x) / size;
  const int me = static_cast<int>(threadIdx.x) - team * size, teams = static_cast<int>(blockDim.x) / size;
  const int64_t stride = int64_t{gridDim.x} * teams;
  constexpr bool kBetaShared = kCentred && !kAhead;  // of the block's one team
  float4* shared = DynamicShared<float4>();
  float to_gamma[kPacks][N] = {}, to_beta[kPacks][N] = {};
  using Part = RowPart<T, kPacks>;
  Part d, v, next_d, next_v, beside;
  float mean = 0.0f, rstd = 0.0f, next_mean = 0.0f, next_rstd = 0.0f;
  int turn = 0;
  const auto read = [&](int64_t row, Part* d_of, Part* v_of, float* mean_of, float* rstd_of) {
    if (row >= op.rows) return;
    d_of->Read(dy + row * op.width, me, size, op.width);
    v_of->Read(x + row * op.width, me, size, op.width);
    if (kCentred) *mean_of = op.mean.At(row);
    *rstd_of = op.rstd.At(row);
  };
  int64_t row = int64_t{blockIdx.x} * teams + team;
  if (kAhead) read(row, &next_d, &next_v, &next_mean, &next_rstd);
  OFL_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int c = (me + p * size) * N;
    if (team > 0 || c >= op.width) continue;
    const Pack<float, N> gamma = kBetaShared ? Pack<float, N>{} : FloatsAt<N>(op.gamma, c);
    OFL_UNROLL
    for (int i = 0; i < N; i += 4)
      shared[(p * kOfPack + i / 4) * size + me] = {gamma.at[i], gamma.at[i + 1], gamma.at[i + 2],
                                                   gamma.at[i + 3]};
  }
  __syncthreads();
  const auto gamma_at = [&](int p) {
    if constexpr (kBetaShared) return FloatsAt<N>(op.gamma, (me + p * size) * N);
    Pack<float, N> gamma;
    OFL_UNROLL
    for (int i = 0; i < N; i += 4) {
      const float4 four = shared[(p * kOfPack + i / 4) * size + me];
      memcpy(gamma.at + i, &four, sizeof(four));
    }
    return gamma;
  };
  // Of a block's teams some may have no row in the last turn.
  for (; (kWarps ? row : row - team) < op.rows; row += stride, turn ^= 1) {
    const bool there = kWarps || row < op.rows;
    if (kAhead) {
      d = next_d;
      v = next_v;
      mean = next_mean;
      rstd = next_rstd;
      if (residual != nullptr && there) beside.Read(residual + row * op.width, me, size, op.width);
      read(row + stride, &next_d, &next_v, &next_mean, &next_rstd);
    } else {
      read(row, &d, &v, &mean, &rstd);
    }
    TwoSums mine = {};
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (!there || (me + p * size) * N >= op.width) continue;
      const Pack<float, N> gamma = gamma_at(p), d_at = d.At(p), v_at = v.At(p);
      OFL_UNROLL
      for (int i = 0; i < N; ++i) {
        const float dyi = d_at.at[i], g = dyi * gamma.at[i], n = (v_at.at[i] - mean) * rstd;
        mine.a += g;
        mine.b += g * n;
        to_gamma[p][i] += dyi * n;
        if (!kBetaShared) to_beta[p][i] += dyi;
      }
      OFL_UNROLL
      for (int i = 0; kBetaShared && i < N; i += 4) {
        float4& to = shared[(p * kOfPack + i / 4) * size + me];
        to = {to.x + d_at.at[i], to.y + d_at.at[i + 1], to.z + d_at.at[i + 2], to.w + d_at.at[i + 3]};
      }
    }
    TwoSums sums;
    if constexpr (kWarps) {
      sums = {WarpSum(mine.a), WarpSum(mine.b)};
    } else {
      sums = TeamSums(mine, team * (size / 32), size / 32, room[turn]);
    }
    const float mean_g = kCentred ? sums.a * op.share : 0.0f, mean_gn = sums.b * op.share;
    OFL_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int c = (me + p * size) * N;
      if (!there || c >= op.width) continue;
      const int64_t at = row * op.width + c;
      uint4 d_words = d.words[p], v_words = v.words[p], words = beside.words[p];
      if constexpr (!kAhead) {
        d_words = Part::WordsAt(dy + at);
        v_words = Part::WordsAt(x + at);
        if (residual != nullptr) words = Part::WordsAt(residual + at);
      }
      const Pack<float, N> gamma = gamma_at(p), added = Part::Floats(words);
      const Pack<float, N> d_at = Part::Floats(d_words), v_at = Part::Floats(v_words);
      Pack<T, N> to;
      OFL_UNROLL
      for (int i = 0; i < N; ++i) {
        const float g = d_at.at[i] * gamma.at[i], n = (v_at.at[i] - mean) * rstd;
        float to_x = rstd * (g - mean_g - n * mean_gn);
        if (residual != nullptr) to_x += added.at[i];
        to.at[i] = Store<T>(to_x);
      }
      StorePack(dx + at, to);
    }
  }
  OFL_UNROLL
  for (int p = 0; kBetaShared && p < kPacks; ++p) {
    if ((me + p * size) * N >= op.width) continue;
    OFL_UNROLL
    for (int i = 0; i < N; i += 4) {
      const float4 four = shared[(p * kOfPack + i / 4) * size + me];
      memcpy(&to_beta[p][i], &four, sizeof(four));
    }
  }
  float* sums = op.sums + int64_t{blockIdx.x} * (kCentred ? 2 : 1) * op.width;
  PutSums<kPacks>(to_gamma, team, me, size, sums, op.width);
  if (kCentred) PutSums<kPacks>(to_beta, team, me, size, sums + op.width, op.width);
}

// Any row, any types: dx alone, both operands read twice.
OFL_KERNEL void NormGradAnyRows(FloatView dy, FloatView x, FloatView residual, FloatView dx,
                                NormGradOperands op, bool centred) {
  OFL_SHARED TwoSums room[2][32];
  int turn = 0;
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x, turn ^= 1) {
    float mean = centred ? op.mean.At(row) : 0.0f, rstd = op.rstd.At(row);
    int64_t begin = row * op.width;
    TwoSums mine = {};
    for (int c = threadIdx.x; c < op.width; c += blockDim.x) {
      float g = dy.At(begin + c) * op.gamma.At(c);
      mine.a += g;
      mine.b += g * (x.At(begin + c) - mean) * rstd;
    }
    TwoSums sums = TeamSums(mine, 0, static_cast<int>(blockDim.x / 32), room[turn]);
    float mean_g = centred ? sums.a * op.share : 0.0f, mean_gn = sums.b * op.share;
    for (int c = threadIdx.x; c < op.width; c += blockDim.x) {
      float g = dy.At(begin + c) * op.gamma.At(c), n = (x.At(begin + c) - mean) * rstd;
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
// them on their way: together one for each multiprocessor, so that they are read in one go.
constexpr int kFinishWarps = 16;
OFL_KERNEL void FinishNormGrad(const float* sums, int parts, int width, int columns, FloatView dgamma,
                               FloatView dbeta) {
  OFL_SHARED float room[kFinishWarps][32];
  constexpr int kAtOnce = 10;
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
  OFL_UNROLL
  for (int w = 1; w < kFinishWarps; ++w) sum += room[w][lane];
  if (column < width) {
    dgamma.Put(column, sum);
  } else {
    dbeta.Put(column - width, sum);
  }
}

// How NormGradRows has rows of so many packs: by teams of so many threads, packs for a thread. packs 0: the
// row is not for it.
struct GradPlan {
  bool warps = false;
  int size = 0, packs = 0;
  int teams = 0;  // of a block
};
GradPlan PlanGrad(int64_t packs) {
  if (packs <= kMostWarpGradPacks * 32) {
    const int each = static_cast<int>((packs + 31) / 32);
    return {true, 32, each, MostGradThreads(true, each) / 32};
  }
  for (int each : {2, 4}) {
    const int64_t threads = ((packs + each - 1) / each + 31) / 32 * 32, most = MostGradThreads(false, each);
    if (threads <= most) return {false, static_cast<int>(threads), each, static_cast<int>(most / threads)};
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
  NormGradOperands op;
  op.gamma = FloatsOf(context.in[2]);
  op.mean = FloatsOf(context.in[3]);
  op.rstd = FloatsOf(rstd);
  op.sums = static_cast<float*>(launch.workspace);
  op.rows = rstd.elements();
  op.width = static_cast<int>(width);
  op.share = ShareOf(width);

  int64_t most = static_cast<int64_t>(launch.workspace_bytes / (columns * sizeof(float)));
  if (most == 0) return TooWide(width);
  GradPlan plan = PlanGrad(width * static_cast<int64_t>(SizeOf(x.dtype)) / 16);
  bool packed = dy.dtype == x.dtype && width * SizeOf(x.dtype) % 16 == 0 && Aligned(dy.data) &&
                Aligned(x.data) && Aligned(dx.data) && Aligned(op.gamma.data) && plan.packs > 0 &&
                (residual == nullptr || (residual->dtype == x.dtype && Aligned(residual->data)));
  int64_t parts;
  if (packed) {
    op.size = plan.size;
    parts = TeamsFor(op.rows, int64_t{launch.multiprocessors} * plan.teams);
    parts = std::min((parts + plan.teams - 1) / plan.teams, most);
    const int threads = plan.size * plan.teams;
    Grid grid{.x = static_cast<unsigned>(parts), .threads = static_cast<unsigned>(threads)};
    WithFloating(x.dtype, [&](auto t) {
      using T = decltype(t);
      grid.shared = static_cast<size_t>(threads * plan.packs * kPackOf<T>) * sizeof(float);
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
