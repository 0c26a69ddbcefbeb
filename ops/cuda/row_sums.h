// Rows added up by index: gradients of embedding, gather, take, take_along_axis and embedding_bag. The order
// of the additions is fixed.
#pragma once

#include "ops/cuda/operand.h"
#include "ops/list_parts.h"

namespace oneflow_like::cuda {

// Which row of the result each position of a list names. Positions are (outer, index, column), columns
// fastest; the result is [outer, extent, columns] rows.
struct RowKeys {
  IndexView ids;
  int64_t positions = 0;
  int64_t begin = 0, extent = 0, global = 0;  // of the axis that ids index: held here, and of all
  // Beyond a plain list, where outer and columns are 1:
  bool plain = true;
  int64_t each = 1, columns = 1;  // positions of an outer index; columns
  bool shared = false;            // ids are [index], the same for all outer indices and columns
  // Bags: positions are [bag, room]; those from lengths[bag] on, counted from `first`, name no row.
  IndexView lengths;
  int64_t room = 1, first = 0;
  bool check = true;  // ids outside [0, global) are a fault
  ListParts parts;    // of a plain list

  OFL_DEVICE int64_t Id(int64_t position) const {  // where its index stands
    return shared ? position % each / columns : position;
  }
  OFL_DEVICE bool Counts(int64_t position) const {
    return lengths.data == nullptr || first + position % room < lengths.At(position / room);
  }
  // `rows` for one that is not held here.
  OFL_DEVICE int Row(int64_t position, int rows) const {
    const int64_t local = ids.At(plain ? position : Id(position)) - begin;
    if (local < 0 || local >= extent || !Counts(position)) return rows;
    if (plain) return parts.Has(position, begin + local) ? static_cast<int>(local) : rows;
    return static_cast<int>((position / each * extent + local) * columns + position % columns);
  }
};
RowKeys PlainKeys(const TensorArg& ids, const TensorArg& table);  // ids[n] of rows of the table's first axis

// The sum's term of a position of bags: dy[bag], times its weight or divided by the bag's length; or, where
// table and y are given, in those columns where it is the first of its bag that is y.
struct BagTerms {
  FloatView weights;
  bool mean = false;
  FloatView table, y;
};

// to[rows, width]: every row the sum of from[position, width], in the order of the positions, in fp32, plus
// the same row of `x`, of to's shape and type; it may be null. Faults are of operand 0.
Status SumRows(const RowKeys& keys, const TensorArg& from, int64_t width, const TensorArg* x,
               const TensorArg& to, const LaunchContext& launch);
// The same for bags: from[bag, width].
Status SumBags(const RowKeys& keys, const TensorArg& from, const BagTerms& terms, int64_t width,
               const TensorArg& to, const LaunchContext& launch);

// in: ids[..], dy[.. row]; out: dtable[v row]. An id outside [0, global extent of v) is a fault.
Status SumRowsByIndex(const KernelContext& context, const LaunchContext& launch);

Status FillZeros(const TensorArg& to, const LaunchContext& launch);
// `from`, of the same bytes, which may be `to`.
Status CopyTo(const TensorArg& from, const TensorArg& to, const LaunchContext& launch);

}  // namespace oneflow_like::cuda
