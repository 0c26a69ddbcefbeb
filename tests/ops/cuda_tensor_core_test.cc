// ops/cuda/tensor_core.h and warpgroup.h on the emulator: fragments as its head (and the PTX ISA) lays them
// out, products of every layout of their operands against double, copies that arrive when they are waited
// for, banks of shared memory, and wrong uses. Draws come from a seed that a failure prints.
// ctest: asan=10 tsan=10
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/cuda/warpgroup_tile.h"
#include "tests/cuda_emulator/emulator.h"

namespace oneflow_like::cuda {
namespace {

using cuda_emulator::CatchFaults;
using cuda_emulator::Order;

constexpr int kRows = 32, kColumns = 48, kDepth = 64;
enum class Way { kPlain, kLeftAcross, kRightAcross, kBothAcross, kChained };
constexpr Way kWays[] = {Way::kPlain, Way::kLeftAcross, Way::kRightAcross, Way::kBothAcross, Way::kChained};

// All of a tile by one warp, in packs that are copied later.
template <typename T, int kTall, int kBroad>
OFL_DEVICE void Fill(const SharedTile<T, kTall, kBroad>& tile, const T* from) {
  for (int i = static_cast<int>(threadIdx.x) * 8; i < kTall * kBroad; i += 32 * 8)
    CopyLater(tile.At(i / kBroad, i % kBroad), from + i, 8);
  EndCopies();
  WaitForCopies<0>();
  __syncwarp();
}

// to[kRows kColumns] = left[kRows kDepth] right[kDepth kColumns], each of them stored as `way` says.
// kChained: left (right next), with the product of the first two rounded and used as it is, next [kColumns
// kColumns].
template <typename T>
OFL_KERNEL void MultiplyKernel(const T* left, const T* right, const T* next, Way way, float* to) {
  T* room = DynamicShared<T>();
  const SharedTile<T, kRows, kDepth> rows{room};
  const SharedTile<T, kDepth, kRows> rows_across{room};
  room += kRows * kDepth;
  const SharedTile<T, kColumns, kDepth> columns{room};
  const SharedTile<T, kDepth, kColumns> columns_across{room};
  room += kColumns * kDepth;
  const SharedTile<T, kColumns, kColumns> more{room};
  const bool left_across = way == Way::kLeftAcross || way == Way::kBothAcross;
  const bool right_across = way != Way::kPlain && way != Way::kLeftAcross;
  left_across ? Fill(rows_across, left) : Fill(rows, left);
  right_across ? Fill(columns_across, right) : Fill(columns, right);
  SumFragment sum[kRows / 16][kColumns / 8] = {};
  for (int depth = 0; depth < kDepth; depth += 16) {
    LeftFragment a[kRows / 16];
    RightFragment b[kColumns / 8];
    for (int i = 0; i < kRows / 16; ++i)
      a[i] = left_across ? LoadLeftAcross(rows_across, i * 16, depth) : LoadLeft(rows, i * 16, depth);
    for (int j = 0; j < kColumns / 16; ++j) {
      if (right_across) {
        LoadRightAcross(columns_across, depth, j * 16, b + 2 * j);
      } else {
        LoadRight(columns, depth, j * 16, b + 2 * j);
      }
    }
    MultiplyAdd<T>(a, b, sum);
  }
  if (way == Way::kChained) {
    Fill(more, next);
    SumFragment then[kRows / 16][kColumns / 8] = {};
    for (int depth = 0; depth < kColumns; depth += 16) {
      LeftFragment a[kRows / 16];
      RightFragment b[kColumns / 8];
      for (int i = 0; i < kRows / 16; ++i) a[i] = AsLeft<T>(sum[i][depth / 8], sum[i][depth / 8 + 1]);
      for (int j = 0; j < kColumns / 16; ++j) LoadRightAcross(more, depth, j * 16, b + 2 * j);
      MultiplyAdd<T>(a, b, then);
    }
    std::memcpy(&sum, &then, sizeof(sum));
  }
  for (int i = 0; i < kRows / 16; ++i) {
    for (int j = 0; j < kColumns / 8; ++j) {
      for (int at = 0; at < 4; ++at)
        to[(i * 16 + RowOfSum(at)) * kColumns + j * 8 + ColumnOfSum(at)] = sum[i][j].at[at];
    }
  }
}

class TensorCore : public testing::Test {
 public:
  void SetUp() override { Begin(); }
  void TearDown() override { cuda_emulator::Reset(); }
  void Begin() {
    cuda_emulator::Reset({.at_once = true});
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  template <typename T>
  T* Make(const std::vector<T>& values) {
    T* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, values.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    return data;
  }
  template <typename T>
  std::vector<T> Read(const T* data, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  template <typename T>
  void ExpectProducts();
  cudaStream_t stream = nullptr;
};

template <typename T>
struct Drawn {
  std::vector<T> as_is, across;
  std::vector<double> value;
  Drawn(int rows, int columns, std::mt19937* random)
      : as_is(rows * columns), across(rows * columns), value(rows * columns) {
    std::normal_distribution<float> normal;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        const T x = Store<T>(normal(*random));
        as_is[r * columns + c] = across[c * rows + r] = x;
        value[r * columns + c] = Load(x);
      }
    }
  }
};

std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& b, int rows,
                            int columns) {
  std::vector<double> c(rows * columns);
  const int depth = static_cast<int>(b.size()) / columns;
  for (int i = 0; i < rows; ++i) {
    for (int k = 0; k < depth; ++k) {
      for (int j = 0; j < columns; ++j) c[i * columns + j] += a[i * depth + k] * b[k * columns + j];
    }
  }
  return c;
}

template <typename T>
void TensorCore::ExpectProducts() {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const Drawn<T> left(kRows, kDepth, &random), right(kDepth, kColumns, &random),
      next(kColumns, kColumns, &random);
  const std::vector<double> plain = Product(left.value, right.value, kRows, kColumns);
  for (Way way : kWays) {
    const bool chained = way == Way::kChained;
    std::vector<double> want = plain;
    double error = 2e-5;  // of sums of 64 products of normal numbers in fp32
    if (chained) {
      std::vector<double> rounded = plain;
      for (double& x : rounded) x = Load(Store<T>(static_cast<float>(x)));
      want = Product(rounded, next.value, kRows, kColumns);
      error = std::is_same_v<T, BFloat16> ? 1.0 : 0.1;  // a product near the middle may round the other way
    }
    for (Order order : {Order::kForward, Order::kReverse}) {
      cuda_emulator::SetOrder(order);
      float* to = Make(std::vector<float>(kRows * kColumns, NAN));
      const bool left_across = way == Way::kLeftAcross || way == Way::kBothAcross;
      const bool right_across = way != Way::kPlain && way != Way::kLeftAcross;
      Launch(MultiplyKernel<T>,
             Grid{1, 1, 32, (kRows * kDepth + kColumns * kDepth + kColumns * kColumns) * 2}, stream,
             Make(left_across ? left.across : left.as_is), Make(right_across ? right.as_is : right.across),
             Make(next.as_is), way, to);
      const std::vector<float> got = Read(to, kRows * kColumns);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], error) << "way " << static_cast<int>(way) << ", element " << i;
    }
  }
}

TEST_F(TensorCore, ProductsInBf16) { ExpectProducts<BFloat16>(); }
TEST_F(TensorCore, ProductsInFp16) { ExpectProducts<Float16>(); }

// --- Layouts, as tensor_core.h tells them

constexpr int kSide = 32;  // of a tile whose element (r, c) has the bits 100 r + c

OFL_KERNEL void FragmentsKernel(const Float16* from, int row, int column, uint32_t* to) {
  const SharedTile<Float16, kSide, kSide> tile{DynamicShared<Float16>()};
  Fill(tile, from);
  const LeftFragment left = LoadLeft(tile, row, column), across = LoadLeftAcross(tile, column, row);
  RightFragment right[2], right_across[2];
  LoadRight(tile, column, row, right);
  LoadRightAcross(tile, row, column, right_across);
  to += threadIdx.x * 16;
  for (int i = 0; i < 4; ++i) to[i] = left.at[i], to[4 + i] = across.at[i];
  for (int i = 0; i < 2; ++i) {
    for (int two = 0; two < 2; ++two)
      to[8 + two * 2 + i] = right[two].at[i], to[12 + two * 2 + i] = right_across[two].at[i];
  }
}

TEST_F(TensorCore, FragmentsLieAsDocumented) {
  std::vector<Float16> tile(kSide * kSide);
  for (int i = 0; i < kSide * kSide; ++i) tile[i].bits = static_cast<uint16_t>(i / kSide * 100 + i % kSide);
  const auto word = [](int r, int c, bool down) {  // element (r, c) and the next one in its row or column
    const uint32_t first = static_cast<uint32_t>(r * 100 + c);
    return (first + (down ? 100 : 1)) << 16 | first;
  };
  for (auto [row, column] : {std::pair(0, 0), std::pair(8, 16), std::pair(16, 8)}) {
    uint32_t* to = Make(std::vector<uint32_t>(32 * 16));
    Launch(FragmentsKernel, Grid{1, 1, 32, kSide * kSide * 2}, stream, Make(tile), row, column, to);
    const std::vector<uint32_t> got = Read(to, 32 * 16);
    for (int lane = 0; lane < 32; ++lane) {
      SCOPED_TRACE(testing::Message() << "lane " << lane << " of the fragment at " << row << ", " << column);
      const uint32_t* at = got.data() + lane * 16;
      const int group = lane / 4, pair = lane % 4;
      for (int i = 0; i < 4; ++i) {
        const int r = group + i % 2 * 8, depth = 2 * pair + i / 2 * 8;
        EXPECT_EQ(at[i], word(row + r, column + depth, false)) << "left " << i;
        EXPECT_EQ(at[4 + i], word(row + depth, column + r, true)) << "left across " << i;
      }
      for (int two = 0; two < 2; ++two) {
        for (int i = 0; i < 2; ++i) {
          const int depth = 2 * pair + i * 8, c = group + two * 8;
          EXPECT_EQ(at[8 + two * 2 + i], word(row + c, column + depth, false)) << "right " << two << i;
          EXPECT_EQ(at[12 + two * 2 + i], word(row + depth, column + c, true)) << "right across " << two << i;
        }
      }
    }
  }
}

template <int kBroad>
void ExpectEightGroupsOfBanks() {
  constexpr int kTall = 16;
  alignas(128) static Float16 data[kTall * kBroad];
  const SharedTile<Float16, kTall, kBroad> tile{data};
  std::set<const Float16*> all;
  for (int r = 0; r < kTall; ++r) {
    for (int c = 0; c < kBroad; ++c) {
      all.insert(tile.At(r, c));
      EXPECT_EQ(tile.At(r, c), tile.At(r, c / 8 * 8) + c % 8);
      EXPECT_TRUE(tile.At(r, c) >= data && tile.At(r, c) < data + kTall * kBroad);
    }
  }
  EXPECT_EQ(static_cast<int>(all.size()), kTall * kBroad);
  for (int row = 0; row < kTall; row += 8) {
    for (int c = 0; c < kBroad; c += 8) {
      std::set<int64_t> groups;
      for (int r = 0; r < 8; ++r) groups.insert((tile.At(row + r, c) - data) / 8 % 8);
      EXPECT_EQ(groups.size(), 8u) << kBroad << " columns, rows from " << row << ", column " << c;
    }
  }
}

TEST_F(TensorCore, RowsOfAPackLieInDifferentBanks) {
  ExpectEightGroupsOfBanks<8>();
  ExpectEightGroupsOfBanks<16>();
  ExpectEightGroupsOfBanks<24>();
  ExpectEightGroupsOfBanks<32>();
  ExpectEightGroupsOfBanks<64>();
  ExpectEightGroupsOfBanks<80>();
  ExpectEightGroupsOfBanks<96>();
  ExpectEightGroupsOfBanks<128>();
  ExpectEightGroupsOfBanks<192>();
  ExpectEightGroupsOfBanks<256>();
}

// --- Copies

// Three groups of a pack each; what is in shared memory after waiting for all but `left`.
OFL_KERNEL void CopiesKernel(const BFloat16* from, int left, uint16_t* to) {
  BFloat16* room = DynamicShared<BFloat16>() + threadIdx.x * 24;
  const int count[3] = {8, static_cast<int>(threadIdx.x) % 9, 0};
  for (int group = 0; group < 3; ++group) {
    CopyLater(room + group * 8, count[group] == 0 ? nullptr : from + group * 8, count[group]);
    EndCopies();
  }
  if (left == 2) WaitForCopies<2>();
  if (left == 1) WaitForCopies<1>();
  if (left == 0) WaitForCopies<0>();
  for (int i = 0; i < 24; ++i) to[threadIdx.x * 24 + i] = room[i].bits;
  WaitForCopies<0>();
}

TEST_F(TensorCore, CopiesArriveWhenTheyAreWaitedFor) {
  std::vector<BFloat16> from(24);
  for (int i = 0; i < 24; ++i) from[i].bits = static_cast<uint16_t>(i + 1);
  for (int left : {3, 2, 1, 0}) {
    uint16_t* to = Make(std::vector<uint16_t>(64 * 24));
    Launch(CopiesKernel, Grid{1, 1, 64, 64 * 24 * 2}, stream, Make(from), left, to);
    const std::vector<uint16_t> got = Read(to, 64 * 24);
    for (int i = 0; i < 64 * 24; ++i) {
      const int thread = i / 24, group = i % 24 / 8, at = i % 8;
      const int count = group == 0 ? 8 : group == 1 ? thread % 9 : 0;
      const int want = group >= 3 - left ? 0xFFFF : at < count ? i % 24 + 1 : 0;
      ASSERT_EQ(got[i], want) << left << " groups left, thread " << thread << ", element " << i % 24;
    }
  }
}

// --- Warpgroups

// to[rows columns] = left[rows depth] right[depth columns] by one tile; across: stored [depth rows], and else
// the right one is [columns depth].
template <typename T, bool kLeftAcross, bool kRightAcross>
OFL_KERNEL void WarpgroupKernel(const T* left, const T* right, int rows, int columns, int depth, float* to) {
  using Tile = WarpgroupTile<T, kLeftAcross, kRightAcross>;
  Tile tile;
  typename Tile::Left from_left(left, kLeftAcross ? rows : depth, kLeftAcross ? rows : depth);
  typename Tile::Right from_right(right, kRightAcross ? columns : depth, kRightAcross ? columns : depth);
  int done = 0;
  tile.Multiply(rows, columns, [&](const auto& left_tile, const auto& right_tile) {
    if (done >= depth) return false;
    const auto row = [&](int number, bool across, int side) {
      const int at = number + (across ? done : 0);
      return at < (across ? depth : side) ? at : -1;
    };
    from_left.Load(left_tile, [&](int i) { return row(Tile::Left::Number(i), kLeftAcross, rows); });
    from_right.Load(right_tile, [&](int i) { return row(Tile::Right::Number(i), kRightAcross, columns); });
    if (!kLeftAcross) from_left.Next();
    if (!kRightAcross) from_right.Next();
    done += Tile::kDepth;
    return true;
  });
  tile.Put({FloatView{to, DType::kFloat32}, columns, columns, false},
           [&](int number) { return number < rows ? number : -1; });
}

template <typename T, bool kLeftAcross, bool kRightAcross>
void ExpectWarpgroupProduct(TensorCore* test, int rows, int columns, int depth, unsigned seed) {
  std::mt19937 random(seed);
  const Drawn<T> left(rows, depth, &random), right(depth, columns, &random);
  const std::vector<double> want = Product(left.value, right.value, rows, columns);
  using Tile = WarpgroupTile<T, kLeftAcross, kRightAcross>;
  for (Order order : {Order::kForward, Order::kReverse}) {
    cuda_emulator::SetOrder(order);
    float* to = test->Make(std::vector<float>(want.size(), NAN));
    Launch(WarpgroupKernel<T, kLeftAcross, kRightAcross>, Grid{1, 1, Tile::kThreads, Tile::kShared},
           test->stream, test->Make(kLeftAcross ? left.across : left.as_is),
           test->Make(kRightAcross ? right.as_is : right.across), rows, columns, depth, to);
    const std::vector<float> got = test->Read(to, want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 1e-4) << rows << " x " << columns << " x " << depth << ", element " << i;
  }
}

TEST_F(TensorCore, ProductsByWarpgroups) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const auto& [rows, columns, depth] :
       {std::array{128, 128, 64}, std::array{104, 120, 264}, std::array{40, 8, 24}, std::array{128, 72, 0}}) {
    ExpectWarpgroupProduct<BFloat16, false, false>(this, rows, columns, depth, seed);
    ExpectWarpgroupProduct<BFloat16, false, true>(this, rows, columns, depth, seed);
    ExpectWarpgroupProduct<BFloat16, true, false>(this, rows, columns, depth, seed);
    ExpectWarpgroupProduct<Float16, true, true>(this, rows, columns, depth, seed);
  }
}

// --- Wrong uses

OFL_KERNEL void NotWaitedKernel(const BFloat16* from) {
  CopyLater(DynamicShared<BFloat16>() + threadIdx.x * 8, from, 8);
  EndCopies();
}
// Of copies that are not published, or without waiting for the sums.
OFL_KERNEL void EarlyWarpgroupKernel(const BFloat16* from, bool publishes, float* to) {
  BFloat16* room = DynamicShared<BFloat16>() + (1024 - SharedAddress(DynamicShared<BFloat16>()) % 1024) / 2;
  for (int i = static_cast<int>(threadIdx.x); i < 128 * 64 / 8; i += 128) CopyLater(room + i * 8, from, 8);
  EndCopies();
  WaitForCopies<0>();
  if (publishes) PublishCopies();
  __syncthreads();
  WarpgroupSums sums = {};
  BeginProducts(sums);
  AddProducts<BFloat16, false, false, 64 * 64>(room, room, sums);
  EndProducts();
  to[threadIdx.x] = sums[0].at[0];
}
OFL_KERNEL void LaneMissingKernel(float* to) {
  LeftFragment left[1] = {};
  RightFragment right[1] = {};
  SumFragment sum[1][1] = {};
  if (threadIdx.x != 9) MultiplyAdd<BFloat16>(left, right, sum);
  to[threadIdx.x] = sum[0][0].at[0];
}
OFL_KERNEL void UnlikeKernel(float* to) {
  LeftFragment left[1] = {};
  RightFragment right[1] = {};
  SumFragment sum[1][1] = {};
  if (threadIdx.x < 16) {
    MultiplyAdd<BFloat16>(left, right, sum);
  } else {
    MultiplyAdd<Float16>(left, right, sum);
  }
  to[threadIdx.x] = sum[0][0].at[0];
}
OFL_KERNEL void LoadsAndProductsKernel(float* to) {
  LeftFragment left[1] = {};
  RightFragment right[1] = {};
  SumFragment sum[1][1] = {};
  const SharedTile<BFloat16, 16, 16> tile{DynamicShared<BFloat16>()};
  if (threadIdx.x < 16) {
    MultiplyAdd<BFloat16>(left, right, sum);
  } else {
    left[0] = LoadLeft(tile, 0, 0);
  }
  to[threadIdx.x] = sum[0][0].at[0] + static_cast<float>(left[0].at[0]);
}

TEST_F(TensorCore, WrongUsesAreTold) {
  struct {
    const char* sentence;
    std::function<void(float*)> launch;
  } wrong[] = {
      {"copies to shared memory that no thread has waited for",
       [&](float*) {
         Launch(NotWaitedKernel, Grid{1, 1, 32, 512}, stream, Make(std::vector<BFloat16>(8)));
       }},
      {"has copied and not published",
       [&](float*) {
         Launch(EarlyWarpgroupKernel, Grid{1, 1, 128, 20 << 10}, stream, Make(std::vector<BFloat16>(8)),
                false, Make(std::vector<float>(128)));
       }},
      {"products of warpgroups that no thread has waited for",
       [&](float*) {
         Launch(EarlyWarpgroupKernel, Grid{1, 1, 128, 20 << 10}, stream, Make(std::vector<BFloat16>(8)), true,
                Make(std::vector<float>(128)));
       }},
      {"for lane 9, which has ended",
       [&](float* to) {
         Launch(LaneMissingKernel, Grid{1, 1, 32, 0}, stream, to);
       }},
      {"with different shapes",
       [&](float* to) {
         Launch(UnlikeKernel, Grid{1, 1, 32, 0}, stream, to);
       }},
      {"with another mask or operation",
       [&](float* to) {
         Launch(LoadsAndProductsKernel, Grid{1, 1, 32, 512}, stream, to);
       }},
  };
  for (auto& each : wrong) {
    Begin();
    CatchFaults faults;
    each.launch(Make(std::vector<float>(32)));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure) << each.sentence;
    ASSERT_EQ(faults.faults().size(), 1u) << each.sentence;
    EXPECT_NE(faults.faults()[0].find(each.sentence), std::string::npos) << faults.faults()[0];
  }
  Begin();  // copies of a block that failed are forgotten
  uint16_t* to = Make(std::vector<uint16_t>(64 * 24));
  Launch(CopiesKernel, Grid{1, 1, 64, 64 * 24 * 2}, stream, Make(std::vector<BFloat16>(24)), 0, to);
  EXPECT_EQ(Read(to, 1)[0], 0);
}

}  // namespace
}  // namespace oneflow_like::cuda
