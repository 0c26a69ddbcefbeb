// Products whose operands are read block by block, each brought into scratch in fp32, whatever their types
// and their places in memory are: nothing is widened, permuted or gathered as a whole. Sums of a block stay
// in registers, so that a product of large fp32 matrices is as fast as the best libraries' (measured beside
// oneDNN's sgemm, which takes 74 KB to 20 MB of its own for a product).
//
// Where the build has the instructions, matrices in bf16 are multiplied as pairs of neighbours along k: a
// block's elements are then pairs, whose 32 bits take the place of a float.
//
// The order of additions follows from the extents alone: the same bits on any number of threads.
#pragma once

#include <cstdint>

namespace oneflow_like::cpu {

// Elements of a block, in fp32, with the distances between its rows and between its columns.
struct PanelBlock {
  const float* data;
  int64_t row, column;
};

// The left operand, [m k].
class LeftPanels {
 public:
  virtual ~LeftPanels() = default;
  // Rows [m, m + rows) of columns [k, k + depth): where they lie, or in `room` of rows * depth floats, where
  // the number of rows may be taken up to a multiple of 32.
  virtual PanelBlock Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const = 0;
};

// Tiles of 16 rows by 16 pairs. Distances in bytes: of rows, of tiles along k, and of tiles along m.
struct LeftTiles {
  const char* data;
  int64_t row, step, below;
};

// The left operand of a product on AMX's tiles (tile_product.h), [m k] of pairs.
class TiledLeft {
 public:
  virtual ~TiledLeft() = default;
  // Whether every block is brought into scratch.
  virtual bool packs() const = 0;
  // Rows [m, m + rows) of pairs [k, k + depth): where they lie, if they fill whole tiles, or in `room`, with
  // zeros up to whole tiles. The room has rows * depth floats, both taken up to multiples of 16.
  virtual LeftTiles Read(int64_t m, int64_t rows, int64_t k, int64_t depth, float* room) const = 0;
};

// The right operand, [k n].
class RightPanels {
 public:
  virtual ~RightPanels() = default;
  // Columns [n, n + columns) of rows [k, k + depth), each row dense and 0 from `columns` up to a multiple of
  // 16: where they lie, if `columns` is one, or in `room` of depth rows of a multiple of 32 floats.
  virtual PanelBlock Read(int64_t k, int64_t depth, int64_t n, int64_t columns, float* room) const = 0;
};

// The result, [m n]. Called for parts that do not overlap from several threads.
class ProductResult {
 public:
  virtual ~ProductResult() = default;
  // Where the element [m, 0] lies, if the result is fp32 and its rows are dense, and products are then added
  // up there; nullptr: they are added up in scratch, and stored at once.
  virtual float* Row(int64_t m) const = 0;
  virtual int64_t row() const = 0;  // floats from one row to the next, for Row
  virtual void Store(int64_t m, int64_t rows, int64_t n, int64_t columns, const float* from,
                     int64_t from_row) const = 0;
};

struct PanelProduct {
  int64_t m = 0, n = 0, k = 0;
  int64_t run = 0;                   // no block has columns (of the left) from two of these; 0: k
  const LeftPanels* left = nullptr;  // nullptr with `tiles`
  const RightPanels* right = nullptr;
  const ProductResult* result = nullptr;
  bool in_place = false;             // the result has Row
  bool add = false;                  // in place to what is there; Store does it otherwise
  bool pairs = false;                // of bf16: k counts pairs
  const TiledLeft* tiles = nullptr;  // of pairs, on AMX's tiles: the left operand
};

// Bytes of scratch for each thread with which RunPanels is fastest. It does with less: blocks are then
// smaller, down to kLeastPanelBytes.
int64_t PanelBytes(int64_t m, int64_t n, int64_t k, bool in_place);
inline constexpr int64_t kLeastPanelBytes = 16 << 10;
// The number of parts, at most `threads`, into which a product is worth being cut.
int PanelParts(int64_t m, int64_t n, int64_t k, int threads);

// On at most `threads` threads, each with `bytes` of the scratch, 64-byte aligned. REQUIRES: k > 0, bytes >=
// min(PanelBytes, kLeastPanelBytes).
void RunPanels(const PanelProduct& product, int threads, void* scratch, int64_t bytes);

}  // namespace oneflow_like::cpu
