// Rows of experts, found on the device: which of them a block of a grouped product works on, and where they
// are. The rows of an expert in all parts of a set, which share its matrix, count as one run.
#pragma once

#include "ops/cuda/operand.h"

namespace oneflow_like::cuda {

// Operands of faults.
constexpr int kNegativeCount = 0, kTooManyRows = 1;

// Over this lane and those before it.
OFL_DEVICE int64_t SumOfLanes(int64_t x) {
  for (int by = 1; by < 32; by <<= 1) {
    const int64_t before = __shfl_up_sync(0xFFFFFFFFu, x, by);
    if (static_cast<int>(threadIdx.x % 32) >= by) x += before;
  }
  return x;
}

// Rows [begin, begin + rows) of all are held here of each part, experts [first, first + experts) of `all`;
// `each` parts are a set. Runs of a part: number 0 has the rows before these experts', 1 to `experts`
// those of each, the last one the rows behind.
//
// In the table, by run: of a part its first row, and how many rows of the run the set's parts before have; of
// a set the first tile, of `tall` rows, and the rows of the run. Where it says a first row or tile, one more
// entry has what is behind the last run.
struct ExpertRuns {
  int64_t all, whole_rows, begin, rows, first, experts, parts, sets, each;
  int tall;
  int64_t* table;

  OFL_DEVICE int64_t Count() const { return experts + 2; }
  OFL_DEVICE int64_t* Row(int64_t part) const { return table + part * 2 * (Count() + 1); }
  OFL_DEVICE int64_t* Before(int64_t part) const { return Row(part) + Count() + 1; }
  OFL_DEVICE int64_t* Tile(int64_t set) const { return Row(parts + set); }
  OFL_DEVICE int64_t* Rows(int64_t set) const { return Before(parts + set); }
  OFL_DEVICE int64_t Clamp(int64_t row) const {
    return row < begin ? 0 : row > begin + rows ? rows : row - begin;
  }
  // Of a set; no fewer than there are.
  int64_t MostTiles() const {
    return std::min(rows * each, (rows * each + (experts + 2) * (tall - 1)) / tall);
  }
  size_t TableBytes() const { return sizeof(int64_t) * (parts + sets) * 2 * (experts + 3); }
};

OFL_DEVICE bool CountsAreWrong(const IndexView& counts, int64_t part, const ExpertRuns& runs) {
  int64_t left = runs.whole_rows;
  for (int64_t e = 0; e < runs.all; ++e) {
    const int64_t count = counts.At(part * runs.all + e);
    if (count < 0 || count > left) return true;
    left -= count;
  }
  return false;
}

// The rows of a part's runs, by a warp. From the first wrong count on experts have no rows; of several parts
// whose counts are wrong the first is reported.
OFL_DEVICE void FindRows(const IndexView& counts, const ExpertRuns& runs, int64_t part, FaultPort port) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t *row = runs.Row(part), before = 0;
  bool wrong = false;
  for (int64_t e0 = 0; e0 <= runs.all; e0 += 32) {
    const int64_t e = e0 + lane, count = e < runs.all && !wrong ? counts.At(part * runs.all + e) : 0;
    int64_t own = count < 0 ? 0 : count > runs.whole_rows ? runs.whole_rows + 1 : count;  // no overflow
    int64_t sum = before + SumOfLanes(own);
    const unsigned bad = __ballot_sync(0xFFFFFFFFu, count < 0 || sum > runs.whole_rows);
    if (bad != 0) {
      wrong = true;
      const int culprit = __ffs(static_cast<int>(bad)) - 1;
      if (lane == culprit) {
        bool earlier = false;
        for (int64_t p = 0; p < part && !earlier; ++p) earlier = CountsAreWrong(counts, p, runs);
        port.operand = count < 0 ? kNegativeCount : kTooManyRows;
        if (!earlier) port.Raise(count < 0 ? e : count, count < 0 ? count : runs.whole_rows);
      }
      const int64_t kept = __shfl_sync(0xFFFFFFFFu, sum - own, culprit);
      if (lane >= culprit) sum = kept, own = 0;
    }
    if (e >= runs.first && e <= runs.first + runs.experts) row[1 + e - runs.first] = runs.Clamp(sum - own);
    before = __shfl_sync(0xFFFFFFFFu, sum, 31);
  }
  if (lane == 0) row[0] = 0, row[runs.Count()] = runs.rows;
}

// The rows of a run, one part's after the other's.
class RowWalk {
 public:
  // Of the parts [part, behind), of which the first begins with row `first` of the run or before. Rows are
  // counted from that one on.
  OFL_DEVICE RowWalk(const ExpertRuns& runs, int64_t part, int64_t behind, int64_t run, int first)
      : row_(runs.Row(part) + run),
        next_(static_cast<int>(runs.Count() + 1) * 2),
        parts_(static_cast<int>(behind - part)),
        rows_(static_cast<int>(runs.rows)),
        first_(static_cast<int>(part * runs.rows)),
        end_(part < behind ? static_cast<int>(runs.Before(part)[run]) - first : 0) {}
  // Which row of all parts is number `number`, at least that of the call before; -1: it is beyond the last.
  OFL_DEVICE int operator()(int number) {
    while (number >= end_ && parts_ > 0) {
      const int low = static_cast<int>(row_[0]), rows = static_cast<int>(row_[1]) - low;
      base_ = first_ + low - end_;
      end_ += rows;
      first_ += rows_;
      row_ += next_;
      --parts_;
    }
    return number < end_ ? base_ + number : -1;
  }

 private:
  const int64_t* row_;
  int next_, parts_, rows_, first_;  // the part that follows
  int end_, base_ = 0;               // of the part in which the walk is
};

// What a block computes: `rows` rows of a run from number `first` on, and columns from `column` on.
struct RunTile {
  int64_t set, run;
  int first, rows, column;
  // Of the experts of all sets; -1: rows of none.
  OFL_DEVICE int64_t Matrix(const ExpertRuns& runs) const {
    return run >= 1 && run <= runs.experts ? set * runs.experts + run - 1 : -1;
  }
  // From the part that has the first row.
  OFL_DEVICE RowWalk Walk(const ExpertRuns& runs) const {
    const int64_t part0 = set * runs.each, behind = part0 + runs.each;
    int64_t part = part0 - 1;  // the last one that begins at or before it
    for (int64_t from = part0; from < behind; from += 32) {
      const int64_t p = from + threadIdx.x % 32;
      const unsigned begun = __ballot_sync(0xFFFFFFFFu, p < behind && runs.Before(p)[run] <= first);
      part += __popc(begun);
      if (begun != 0xFFFFFFFFu) break;
    }
    return RowWalk(runs, part, behind, run, first);
  }
};

// False: there is no such tile. Blocks follow each other down kBand tiles of rows, then across: those that
// run at the same time share rows of x and columns of w. All lanes of a warp take part.
OFL_DEVICE bool FindRunTile(const ExpertRuns& runs, int64_t most_tiles, int m, int broad, RunTile* found) {
  constexpr int64_t kBand = 8;
  const int64_t across = (m + broad - 1) / broad, of_set = most_tiles * across;
  found->set = blockIdx.x / of_set;
  const int64_t index = blockIdx.x % of_set, band = index / (kBand * across),
                within = index % (kBand * across);
  const int64_t down = most_tiles - band * kBand < kBand ? most_tiles - band * kBand : kBand;
  const int64_t number = band * kBand + within % down, *tile = runs.Tile(found->set);
  int64_t run = -1;  // the last one that begins at or before the tile
  for (int64_t run0 = 0; run0 <= runs.Count(); run0 += 32) {
    const int64_t r = run0 + threadIdx.x % 32;
    const unsigned begun = __ballot_sync(0xFFFFFFFFu, r <= runs.Count() && tile[r] <= number);
    run += __popc(begun);
    if (begun != 0xFFFFFFFFu) break;
  }
  if (run == runs.Count()) return false;
  found->run = run;
  found->first = static_cast<int>((number - tile[run]) * runs.tall);
  found->rows = static_cast<int>(runs.Rows(found->set)[run]) - found->first;
  found->column = static_cast<int>(within / down) * broad;
  return true;
}

// blockIdx.x: set, expert, and tile of its matrix.
struct MatrixTile {
  int64_t matrix, set, run;
  int row, column, depth;

  OFL_DEVICE MatrixTile(const ExpertRuns& runs, int k, int m, int tall, int broad) {
    const int across = (m + broad - 1) / broad, down = (k + tall - 1) / tall;
    column = static_cast<int>(blockIdx.x % across) * broad;
    row = static_cast<int>(blockIdx.x / across % down) * tall;
    matrix = blockIdx.x / across / down;
    set = matrix / runs.experts;
    run = matrix % runs.experts + 1;
    depth = static_cast<int>(runs.Rows(set)[run]);
  }
  OFL_DEVICE RowWalk Walk(const ExpertRuns& runs) const {
    return RowWalk(runs, set * runs.each, (set + 1) * runs.each, run, 0);
  }
};

}  // namespace oneflow_like::cuda
