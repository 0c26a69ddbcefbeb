// Fragments of a warp, as PTX lays them out over its lanes, to matrices and back.
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "core/float16.h"
#include "tests/cuda_emulator/cuda_runtime.h"
#include "tests/cuda_emulator/emulator.h"

namespace cuda_emulator {
namespace {

constexpr int kLanes = 32;

bool Load(const uint64_t (&of_lane)[kLanes]) {
  MatrixLoad* load[kLanes];
  uint16_t row[kLanes][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    load[lane] = reinterpret_cast<MatrixLoad*>(of_lane[lane]);
    if (load[lane]->transposed != load[0]->transposed) return false;
    std::memcpy(row[lane], &load[lane]->row, sizeof(row[lane]));
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const uint16_t(*rows)[8] = row + matrix * 8;
      const int r = lane / 4, c = lane % 4 * 2;
      const uint32_t low = load[0]->transposed ? rows[c][r] : rows[r][c];
      const uint32_t high = load[0]->transposed ? rows[c + 1][r] : rows[r][c + 1];
      load[lane]->word[matrix] = high << 16 | low;
    }
  }
  return true;
}

template <typename T>
float FloatOf(uint32_t word, int half) {
  return ToFloat(T{static_cast<uint16_t>(word >> (16 * half))});
}

template <typename T>
void Multiply(MatrixProduct* const (&of)[kLanes], int down, int wide) {
  thread_local std::vector<std::array<float, 16 * 8>> rights;  // [depth column]
  rights.resize(static_cast<size_t>(wide));
  for (int j = 0; j < wide; ++j) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int at = 0; at < 4; ++at)
        rights[j][(lane % 4 * 2 + at / 2 * 8 + at % 2) * 8 + lane / 4] =
            FloatOf<T>(of[lane]->right[j * 2 + at / 2], at % 2);
    }
  }
  for (int i = 0; i < down; ++i) {
    float left[16][16];  // [row depth]
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int at = 0; at < 8; ++at)
        left[lane / 4 + at / 2 % 2 * 8][lane % 4 * 2 + at / 4 * 8 + at % 2] =
            FloatOf<T>(of[lane]->left[i * 4 + at / 2], at % 2);
    }
    for (int j = 0; j < wide; ++j) {
      float sum[16][8];
      const auto each = [&](auto&& take) {
        for (int lane = 0; lane < kLanes; ++lane) {
          float* mine = of[lane]->sum + (i * wide + j) * 4;
          for (int at = 0; at < 4; ++at) take(mine[at], sum[lane / 4 + at / 2 * 8][lane % 4 * 2 + at % 2]);
        }
      };
      each([](float& mine, float& all) { all = mine; });
      for (int r = 0; r < 16; ++r) {
        for (int depth = 0; depth < 16; ++depth) {
          for (int c = 0; c < 8; ++c) sum[r][c] += left[r][depth] * rights[j][depth * 8 + c];
        }
      }
      each([](float& mine, float& all) { mine = all; });
    }
  }
}

struct Copies {
  struct Kept {
    LateCopy copy;
    int64_t group;
  };
  struct OfThread {
    std::vector<Kept> kept;  // in the order in which they were asked for
    size_t done = 0;
    int64_t groups = 0;    // ended
    bool unknown = false;  // to tensor cores that read shared memory: not published since some arrived
  };
  std::array<OfThread, 1024> of;
  int64_t unfinished = 0;
};
Copies& CopiesOfBlock() {
  static thread_local Copies copies;
  return copies;
}

struct LateProduct {
  uint64_t left, right;
  bool left_across, right_across, bf16;
  float* sums;
};
struct Products {
  struct OfThread {
    std::vector<std::vector<LateProduct>> ended;  // groups
    std::vector<LateProduct> open;
  };
  std::array<OfThread, 1024> of;
  int64_t unfinished = 0;
};
Products& ProductsOfBlock() {
  static thread_local Products products;
  return products;
}

constexpr uint32_t kSharedBegin = 1040;
std::atomic<bool> warpgroups_spoiled{false};

// Element `side` (a row of the left, a column of the right operand) at depth 0 to 15.
float OperandElement(const LateProduct& product, bool right, int side, int depth) {
  const uint64_t descriptor = right ? product.right : product.left;
  if (descriptor >> 62 != 1) Trap("wgmma of an operand that is not in the 128-byte swizzle");
  const auto bytes = [&](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3FFF) << 4; };
  uint32_t address = bytes(0);
  if (right ? product.right_across : product.left_across) {
    address += static_cast<uint32_t>(side / 64) * bytes(16) + static_cast<uint32_t>(depth / 8) * bytes(32) +
               static_cast<uint32_t>(depth % 8 * 128 + side % 64 * 2);
  } else {
    address +=
        static_cast<uint32_t>(side / 8) * bytes(32) + static_cast<uint32_t>(side % 8 * 128 + depth * 2);
  }
  address ^= (address >> 7 & 7) << 4;
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(Shared()) + (address - kSharedBegin), sizeof(bits));
  return product.bf16 ? ToFloat(oneflow_like::BFloat16{bits}) : ToFloat(oneflow_like::Float16{bits});
}

// This lane's sums.
void Multiply(const LateProduct& product) {
  const int row = static_cast<int>(threadIdx.x % 128 / 32) * 16 + Lane() / 4, column = Lane() % 4 * 2;
  float left[2][16];
  for (int down = 0; down < 2; ++down)
    for (int depth = 0; depth < 16; ++depth)
      left[down][depth] = OperandElement(product, false, row + down * 8, depth);
  for (int wide = 0; wide < 32; ++wide) {
    const int j = wide / 2, odd = wide % 2;
    float right[16];
    for (int depth = 0; depth < 16; ++depth)
      right[depth] = OperandElement(product, true, j * 8 + column + odd, depth);
    for (int down = 0; down < 2; ++down) {
      float& sum = product.sums[j * 4 + down * 2 + odd];
      for (int depth = 0; depth < 16; ++depth) sum += left[down][depth] * right[depth];
      if (warpgroups_spoiled) sum += 1;
    }
  }
}

}  // namespace

bool DoForWarp(WarpOperation operation, const uint64_t (&of_lane)[kLanes]) {
  if (operation == WarpOperation::kLoadMatrices) return Load(of_lane);
  MatrixProduct* product[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    product[lane] = reinterpret_cast<MatrixProduct*>(of_lane[lane]);
    if (product[lane]->down != product[0]->down || product[lane]->wide != product[0]->wide ||
        product[lane]->bf16 != product[0]->bf16)
      return false;
  }
  if (product[0]->bf16) {
    Multiply<oneflow_like::BFloat16>(product, product[0]->down, product[0]->wide);
  } else {
    Multiply<oneflow_like::Float16>(product, product[0]->down, product[0]->wide);
  }
  return true;
}

void KeepCopy(const LateCopy& copy) {
  Copies& copies = CopiesOfBlock();
  Copies::OfThread& mine = copies.of[threadIdx.x];
  mine.kept.push_back({copy, mine.groups});
  ++copies.unfinished;
}
void EndCopies() { ++CopiesOfBlock().of[threadIdx.x].groups; }
bool NextCopy(int left, LateCopy* copy) {
  Copies& copies = CopiesOfBlock();
  Copies::OfThread& mine = copies.of[threadIdx.x];
  if (mine.done == mine.kept.size()) {
    mine.kept.clear();
    mine.done = 0;
    return false;
  }
  if (mine.kept[mine.done].group >= mine.groups - left) return false;
  *copy = mine.kept[mine.done++].copy;
  mine.unknown = true;
  --copies.unfinished;
  return true;
}
int64_t UnfinishedCopies() { return CopiesOfBlock().unfinished; }
void ForgetCopies() {
  for (auto& thread : CopiesOfBlock().of) thread.kept.clear(), thread.done = 0;
  CopiesOfBlock().unfinished = 0;
}
void BeginCopies() {
  for (auto& thread : CopiesOfBlock().of) thread.unknown = false;
}
void PublishCopies() { CopiesOfBlock().of[threadIdx.x].unknown = false; }

uint32_t SharedAddress(const void* at) {
  return kSharedBegin + static_cast<uint32_t>(static_cast<const char*>(at) - static_cast<char*>(Shared()));
}
void AddProducts(uint64_t left, bool left_across, uint64_t right, bool right_across, bool bf16, float* sums) {
  for (unsigned thread = 0; thread < blockDim.x; ++thread)
    if (CopiesOfBlock().of[thread].unknown)
      Trap("wgmma of operands that a thread has copied and not published (fence.proxy.async)");
  ProductsOfBlock().of[threadIdx.x].open.push_back({left, right, left_across, right_across, bf16, sums});
  ++ProductsOfBlock().unfinished;
}
void EndProducts() {
  Products::OfThread& mine = ProductsOfBlock().of[threadIdx.x];
  mine.ended.push_back(std::move(mine.open));
  mine.open.clear();
}
void WaitForProducts(int left) {
  Products::OfThread& mine = ProductsOfBlock().of[threadIdx.x];
  while (mine.ended.size() > static_cast<size_t>(left)) {
    for (const LateProduct& product : mine.ended.front()) Multiply(product);
    ProductsOfBlock().unfinished -= static_cast<int64_t>(mine.ended.front().size());
    mine.ended.erase(mine.ended.begin());
  }
}
void SpoilWarpgroups(bool spoil) { warpgroups_spoiled = spoil; }
int64_t UnfinishedProducts() { return ProductsOfBlock().unfinished; }
void ForgetProducts() {
  for (auto& thread : ProductsOfBlock().of) thread.ended.clear(), thread.open.clear();
  ProductsOfBlock().unfinished = 0;
}

}  // namespace cuda_emulator
