// AMX's tiles: eight registers of up to 16 rows of 64 bytes, and products of them in bf16. Kernels are
// templates of the class of tiles: AmxTiles are the processor's, PlainTiles compute the same in C++ on any
// machine, so that a test can run every kernel.
//
// A kernel makes one object for each part of a parallel loop, on the thread that runs it:
//
//   T tiles(shapes);                   // ldtilecfg: all tiles are 0
//   tiles.Load<4>(a, row_bytes);       // 16 rows of 32 bf16
//   tiles.Load<6>(b, row_bytes);       // 16 rows of 16 pairs: [k / 2][n][2], as PairRows writes them
//   tiles.AddProduct<0, 4, 6>();       // tile 0, 16 rows of 16 floats
//   tiles.Store<0>(c, row_bytes);
//
// No two objects of a thread live at a time. A tile's number is a constant: registers have no others.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/levels.h"
#include "ops/cpu/narrow_tile.h"

namespace oneflow_like::cpu {

inline constexpr int kAmxTiles = 8, kAmxRows = 16, kAmxRowBytes = 64;

// The shapes of the tiles, as ldtilecfg reads them. A tile without rows must not be used.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};

  // All tiles of 16 rows of 64 bytes.
  static TileShapes Full() {
    TileShapes shapes;
    for (int i = 0; i < kAmxTiles; ++i) shapes.Set(i, kAmxRows, kAmxRowBytes);
    return shapes;
  }
  // REQUIRES: 1 to 16 rows of 4 to 64 bytes, a multiple of 4.
  void Set(int tile, int tile_rows, int row_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    bytes[tile] = static_cast<uint16_t>(row_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

// What the instructions do, by number of tile. Wrong use, which the processor answers with a signal, ends the
// program here.
class PlainTiles {
 public:
  PlainTiles() = default;
  explicit PlainTiles(const TileShapes& shapes) { Configure(shapes); }
  PlainTiles(const PlainTiles&) = delete;
  PlainTiles& operator=(const PlainTiles&) = delete;

  template <int kTile>
  void Zero() {
    ZeroAt(kTile);
  }
  template <int kTile>
  void Load(const void* from, int64_t row_bytes) {
    LoadAt(kTile, from, row_bytes);
  }
  template <int kTile>
  void Store(void* to, int64_t row_bytes) {
    StoreAt(kTile, to, row_bytes);
  }
  template <int kSum, int kLeft, int kRight>
  void AddProduct() {
    AddProductAt(kSum, kLeft, kRight);
  }

  void Configure(const TileShapes& shapes) {
    bool right = shapes.palette == 1 && shapes.start_row == 0;
    for (uint8_t byte : shapes.reserved) right = right && byte == 0;
    for (int i = 0; i < 16; ++i) {
      right = right && shapes.rows[i] <= (i < kAmxTiles ? kAmxRows : 0) &&
              shapes.bytes[i] <= (i < kAmxTiles ? kAmxRowBytes : 0);
    }
    Require(right, "a configuration that no processor takes");
    shapes_ = shapes;
    std::memset(data_, 0, sizeof data_);
  }
  void Release() {
    shapes_ = {};
    std::memset(data_, 0, sizeof data_);
  }

  void ZeroAt(int tile) {
    Require(HasShape(tile), "a tile without a shape");
    std::memset(data_[tile], 0, sizeof data_[tile]);
  }
  void LoadAt(int tile, const void* from, int64_t row_bytes) {
    ZeroAt(tile);  // the rest of the register
    for (int i = 0; i < shapes_.rows[tile]; ++i)
      std::memcpy(data_[tile][i], static_cast<const char*>(from) + i * row_bytes, shapes_.bytes[tile]);
  }
  void StoreAt(int tile, void* to, int64_t row_bytes) const {
    Require(HasShape(tile), "a tile without a shape");
    for (int i = 0; i < shapes_.rows[tile]; ++i)
      std::memcpy(static_cast<char*>(to) + i * row_bytes, data_[tile][i], shapes_.bytes[tile]);
  }
  // sum[m n] += left[m k] right[k n]. The first elements of pairs are added up, and the second ones, from 0;
  // then both, then to the sum. Numbers below fp32's normal range are 0.
  void AddProductAt(int sum, int left, int right) {
    Require(HasShape(sum) && HasShape(left) && HasShape(right), "a tile without a shape");
    Require(sum != left && sum != right && left != right && shapes_.rows[sum] == shapes_.rows[left] &&
                shapes_.bytes[sum] == shapes_.bytes[right] && shapes_.bytes[left] == 4 * shapes_.rows[right],
            "a product of tiles whose shapes do not agree");
    for (int i = 0; i < shapes_.rows[sum]; ++i) {
      float first[16] = {}, second[16] = {};
      for (int k = 0; k < shapes_.rows[right]; ++k) {
        const uint32_t pair = data_[left][i][k];
        const float low = Low(pair), high = High(pair);
        for (int j = 0; j < 16; ++j) {
          first[j] = Normal(first[j] + low * Low(data_[right][k][j]));
          second[j] = Normal(second[j] + high * High(data_[right][k][j]));
        }
      }
      float before[16];
      std::memcpy(before, data_[sum][i], sizeof before);
      for (int j = 0; j < 16; ++j) before[j] = Normal(Normal(before[j]) + Normal(first[j] + second[j]));
      std::memcpy(data_[sum][i], before, sizeof before);
    }
  }

 private:
  static void Require(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "AMX tiles: %s\n", what);
    std::abort();
  }
  bool HasShape(int tile) const { return shapes_.rows[tile] > 0 && shapes_.bytes[tile] > 0; }
  static float Normal(float x) { return x < 1.17549435e-38f && x > -1.17549435e-38f ? 0.0f : x; }
  static float FromBits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return Normal(x);
  }
  static float Low(uint32_t pair) { return FromBits(pair << 16); }
  static float High(uint32_t pair) { return FromBits(pair & 0xFFFF0000u); }

  TileShapes shapes_;
  alignas(64) uint32_t data_[kAmxTiles][kAmxRows][kAmxRowBytes / 4] = {};
};

// Clang's names before version 16 come second.
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__)) || (defined(__AMXTILE__) && defined(__AMXBF16__))
#define OFL_AMX_INSTRUCTIONS 1

// Instructions are written out: GCC's own functions for loads do not say that they read memory.
class AmxTiles {
 public:
  explicit AmxTiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  ~AmxTiles() { asm volatile("tilerelease"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  template <int kTile>
  [[gnu::always_inline]] void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  [[gnu::always_inline]] void Load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] void Store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kSum, int kLeft, int kRight>
  [[gnu::always_inline]] void AddProduct() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

#endif

// Kernels on tiles prepare their operands by AVX-512's instructions for bf16. A build for this machine alone
// may lack them beside AMX: in a virtual machine that hides them.
#if defined(OFL_AMX_INSTRUCTIONS) && defined(OFL_NARROW_TILES)
#define OFL_AMX_TILES 1
#endif

// Whether kernels are to use tiles: those of the level with AMX do, those of a build for this machine alone
// (OFL_NATIVE) where Linux lets them.
inline bool HasTiles() {
#if !defined(OFL_AMX_TILES)
  return false;
#elif defined(OFL_CPU_ENTRY)
  return true;
#else
  return MayUseTiles();
#endif
}

}  // namespace oneflow_like::cpu
