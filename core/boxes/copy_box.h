// Moves a box of a tensor between row-major pieces of it: copy, or combine. The inner loop of every boxing.
#pragma once

#include <string>
#include <vector>

#include "core/dims.h"
#include "core/dtype.h"

namespace oneflow_like {

enum class Reduce { kNone, kSum, kMax, kMin };
const char* Name(Reduce reduce);              // "", "sum", "max", "min"
Reduce ParseReduce(const std::string& name);  // throws Error

// A row-major piece of a tensor in memory: it holds `box` of the global index space.
struct Piece {
  void* data = nullptr;
  Box box;
};

// A part of a tensor that a group of ranks moves: the fold of the sources' values, in this order, is written
// to each destination. Without sources, the identity of the fold is written.
struct Region {
  Box box;
  std::vector<int> sources, dests;  // members of the group
  int operand = 0;                  // of a collective that moves several tensors
  int64_t count = -1;               // index of the count of its rows; -1: all are moved
};

// A box in two: the indices along `axis` that are less than `count`, any number, and those behind.
struct CountedBox {
  Box moved, behind;
};
CountedBox CutAtCount(const Box& box, int axis, int64_t count);

// to[box] = from[box]; `box` lies inside both pieces. No allocation.
void CopyBox(DType dtype, const Box& box, const Piece& from, const Piece& to);

// to[box] = from[0][box] op from[1][box] op ..., in that order, for every `to` the same bits (bf16 and f16
// are added in fp32 and rounded once). With no source, to[box] = the identity of `reduce` (0, -inf, +inf; the
// least or greatest value of an integer type).
void CombineBox(DType dtype, Reduce reduce, const Box& box, const Piece* from, int num_from, const Piece* to,
                int num_to);

}  // namespace oneflow_like
