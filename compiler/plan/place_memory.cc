// Memory.
// Needs: one rank's plan. Leaves: an offset in its arena for every buffer and every kernel's scratch. Each
// arena is placed by itself.
//
// Two blocks share bytes only when none of the spans in which they are alive meet (lifetimes.h); a buffer
// whose life nothing bounds keeps its bytes to itself. A block is a buffer with all its slots, side by side;
// where that leaves gaps, each message that a step writes to the buffer, or, of very many, those that take
// turns in one place. Blocks are placed by falling size, or by falling size times lifetime, those alike by
// rising begin, each at the lowest offset that is free; what needs least memory is kept. Blocks of one size
// placed by rising begin need no more than are alive at once, as in the coloring of an interval graph.
//
// Operands and results of products that stand side by side (line_up_products.cc) are placed in a row if that
// takes no more memory. One call can then do these products: it needs operands that lie equally far apart.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "compiler/plan/lifetimes.h"
#include "compiler/plan/make_plans.h"
#include "core/plan/plan_values.h"
#include "ops/equation.h"

namespace oneflow_like {

namespace {

constexpr int kBeforeAll = -1;            // a position before the first
constexpr double kClose = 1.02;           // to the lower bound: good enough
constexpr size_t kManyBlocks = 20'000;    // placing takes their square, in part
constexpr size_t kManyTurns = 5'000;      // blocks of several messages
constexpr int64_t kLargeBuffers = 1'000;  // there are fewer that hold more of all bytes

struct Block {
  int64_t bytes = 0, unit = 0;  // unit: of one slot
  bool exclusive = false;
  std::vector<Span> messages;  // of a buffer, in their order: when each of a step's is alive
  std::vector<Span> live;      // those, sorted and merged
  int64_t offset = -1;
  plan::Buffer* buffer = nullptr;
  plan::Kernel* kernel = nullptr;
  int row = -1, part = 0, seat = 0;  // of a row of buffers; of their messages; and the place there
};

void Merge(std::vector<Span>* live) {
  std::sort(live->begin(), live->end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  size_t n = 0;
  for (size_t i = 0; i < live->size(); ++i) {
    if (n > 0 && (*live)[i].begin <= (*live)[n - 1].end + 1)
      (*live)[n - 1].end = std::max((*live)[n - 1].end, (*live)[i].end);
    else
      (*live)[n++] = (*live)[i];
  }
  live->resize(n);
}

// The buffers of an arena, and in the first the scratch of kernels.
std::vector<Block> BlocksOf(plan::Plan* plan, int arena, const Lifetimes& lifetimes) {
  std::vector<Block> blocks;
  for (plan::Buffer& b : *plan->mutable_buffer()) {
    if (IsVariable(b) || b.arena() != arena) continue;
    b.clear_offset();
    Block& block = blocks.emplace_back();
    block.buffer = &b;
    block.unit = b.slot_bytes();
    block.bytes = b.slot_bytes() * b.slots();
    block.exclusive = !lifetimes.buffers[b.id()].bounded;
    block.live = block.messages = lifetimes.buffers[b.id()].messages;
    Merge(&block.live);
  }
  for (int a = 0; a < plan->actor_size() && arena == 0; ++a)
    for (int k = 0; k < plan->actor(a).kernel_size(); ++k) {
      plan::Kernel* kernel = plan->mutable_actor(a)->mutable_kernel(k);
      if (kernel->scratch_bytes() == 0) continue;
      Block& block = blocks.emplace_back();
      block.kernel = kernel;
      block.unit = block.bytes = kernel->scratch_bytes();
      block.exclusive = !InStream(*plan, a, plan::COMPUTE);
      for (int start : lifetimes.starts[a]) block.live.push_back({start + k, start + k});
    }
  return blocks;
}

// How many products there are side by side from this one on, and the operand that they share.
std::pair<int, int> SideBySide(const plan::Kernel& kernel) {
  for (const plan::Attr& attr : kernel.attr())
    if (attr.name() == kTogether)
      return {static_cast<int>(attr.ints().at(0)), static_cast<int>(attr.ints().at(1))};
  return {1, -1};
}

// The ids of buffers that belong side by side.
std::vector<std::vector<int>> RowsOfBuffers(const plan::Plan& plan) {
  std::vector<std::vector<int>> rows;
  std::set<int> seated;
  const auto add = [&](const std::vector<int>& row) {
    const std::set<int> all(row.begin(), row.end());
    const auto known = [&](int id) { return seated.count(id) != 0; };
    if (all.size() != row.size() || std::any_of(all.begin(), all.end(), known)) return;
    seated.insert(all.begin(), all.end());
    rows.push_back(row);
  };
  for (const plan::Actor& actor : plan.actor())
    for (int k = 0; k < actor.kernel_size();) {
      const plan::Kernel& first = actor.kernel(k);
      const auto [count, shared] = SideBySide(first);
      std::vector<const plan::Kernel*> group;
      for (int i = k; i < std::min(k + count, actor.kernel_size()); ++i)
        if (const plan::Kernel& kernel = actor.kernel(i); kernel.in_size() == first.in_size() &&
                                                          kernel.out_size() == first.out_size() &&
                                                          SideBySide(kernel) == SideBySide(first))
          group.push_back(&kernel);
      if (count < 2 || std::ssize(group) != count) {
        ++k;
        continue;
      }
      k += count;
      for (int o = 0; o < first.in_size() + first.out_size(); ++o) {
        std::vector<int> row;
        for (const plan::Kernel* kernel : group)
          row.push_back((o < first.in_size() ? kernel->in(o) : kernel->out(o - first.in_size())).buffer());
        if (o != shared) add(row);
      }
    }
  return rows;
}

// Seats buffers of one size.
void SeatRows(const plan::Plan& plan, std::vector<Block>* blocks) {
  std::map<int, Block*> of_buffer;
  for (Block& b : *blocks)
    if (b.buffer != nullptr && !b.exclusive) of_buffer[b.buffer->id()] = &b;
  int number = 0;
  for (const std::vector<int>& row : RowsOfBuffers(plan)) {
    const auto fits = [&](int id) {
      const auto first = of_buffer.find(row[0]), at = of_buffer.find(id);
      return first != of_buffer.end() && at != of_buffer.end() && first->second->bytes == at->second->bytes &&
             first->second->unit == at->second->unit;
    };
    if (!std::all_of(row.begin(), row.end(), fits)) continue;
    for (size_t i = 0; i < row.size(); ++i) {
      of_buffer[row[i]]->row = number;
      of_buffer[row[i]]->seat = static_cast<int>(i);
    }
    ++number;
  }
}

// --- The lower bound ---

// How the live bytes change, by position; those that are always live come first, at kBeforeAll.
std::vector<LiveBytes::Change> ChangesOf(const std::vector<Block>& blocks) {
  std::vector<LiveBytes::Change> changes;
  for (const Block& block : blocks) {
    const int id = block.buffer ? block.buffer->id() : kScratch;
    if (block.exclusive) {
      changes.push_back({kBeforeAll, id, block.bytes});
      continue;
    }
    // Bounds of collectives are loose, so more spans may seem to meet than there are slots.
    std::vector<std::pair<int, int>> taken;  // position, slots taken or given back
    for (const Span& s : block.buffer ? block.messages : block.live) {
      taken.push_back({s.begin, 1});
      taken.push_back({s.end + 1, -1});
    }
    std::sort(taken.begin(), taken.end());
    int64_t live = 0, counted = 0;
    for (size_t i = 0; i < taken.size(); ++i) {
      const int position = taken[i].first;
      live += taken[i].second * block.unit;
      if (i + 1 < taken.size() && taken[i + 1].first == position) continue;
      const int64_t now = std::min(live, block.bytes);
      if (now != counted) changes.push_back({position, id, now - counted});
      counted = now;
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const auto& a, const auto& b) { return a.position < b.position; });
  return changes;
}

// The largest sum of bytes live at once; and, where asked for, whose they are.
int64_t MostLive(const std::vector<LiveBytes::Change>& changes, std::map<int, int64_t>* at_peak) {
  int64_t now = 0, most = 0;
  size_t peak = 0;  // the changes up to the peak
  for (size_t i = 0; i < changes.size(); ++i) {
    now += changes[i].bytes;
    if (i + 1 < changes.size() && changes[i + 1].position == changes[i].position) continue;
    if (now > most) peak = i + 1;
    most = std::max(most, now);
  }
  for (size_t i = 0; at_peak != nullptr && i < peak; ++i) (*at_peak)[changes[i].buffer] += changes[i].bytes;
  return most;
}

// --- Placing ---

int FirstPosition(const Block& b) { return b.live.empty() ? kBeforeAll : b.live[0].begin; }

bool Meet(const Block& a, const Block& b) {
  if (a.exclusive || b.exclusive) return true;
  if (a.live.empty() || b.live.empty()) return false;
  if (a.live.back().end < b.live[0].begin || b.live.back().end < a.live[0].begin) return false;
  for (size_t i = 0, j = 0; i < a.live.size() && j < b.live.size();) {
    if (a.live[i].end < b.live[j].begin)
      ++i;
    else if (b.live[j].end < a.live[i].begin)
      ++j;
    else
      return true;
  }
  return false;
}

// Blocks with offsets, and where others can be.
class Placed {
 public:
  int64_t top() const { return top_; }

  void AddExclusive(Block* b) {
    Put(b, floor_);
    floor_ = top_;
  }
  void Add(Block* b) { Insert(b, Lowest(*b)); }

  // Adds blocks of one size side by side, in this order, or each by itself where that ends lower.
  void AddRow(const std::vector<Block*>& row) {
    const std::vector<Block*> before = placed_;
    const int64_t top = top_, size = row[0]->bytes, side_by_side = Lowest(row);
    for (Block* b : row) Add(b);
    if (side_by_side + std::ssize(row) * size > top_) return;
    placed_ = before;
    top_ = top;
    for (size_t i = 0; i < row.size(); ++i) Insert(row[i], side_by_side + static_cast<int64_t>(i) * size);
  }

 private:
  int64_t Lowest(const Block& b) const {
    int64_t at = floor_;
    for (const Block* p : placed_) {
      if (p->offset >= at + b.bytes) break;
      if (p->offset + p->bytes > at && Meet(*p, b)) at = p->offset + p->bytes;
    }
    return at;
  }
  // The lowest offset at which these can lie side by side.
  int64_t Lowest(const std::vector<Block*>& row) const {
    const int64_t size = row[0]->bytes, count = std::ssize(row);
    int64_t at = floor_;
    for (bool again = true; again;) {
      again = false;
      for (const Block* p : placed_) {
        if (p->offset >= at + count * size) break;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t begin = at + i * size;
          if (p->offset >= begin + size || p->offset + p->bytes <= begin || !Meet(*p, *row[i])) continue;
          at = p->offset + p->bytes - i * size;
          again = true;  // another one of them may now meet what was passed
        }
      }
    }
    return at;
  }

  void Put(Block* b, int64_t at) {
    b->offset = at;
    top_ = std::max(top_, at + b->bytes);
  }
  void Insert(Block* b, int64_t at) {
    Put(b, at);
    placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), b,
                                    [](Block* x, Block* y) { return x->offset < y->offset; }),
                   b);
  }

  int64_t floor_ = 0, top_ = 0;
  std::vector<Block*> placed_;  // not exclusive, by offset
};

// Each block at the lowest offset that is free, those of large weight first; returns the end of the last.
// Rows of buffers lie side by side only `in_rows`.
template <typename Weight>
int64_t PlaceBy(Weight weight, std::vector<Block>* blocks, bool in_rows = false) {
  std::vector<std::pair<double, Block*>> order;
  std::map<std::pair<int, int>, std::vector<Block*>> rows;  // by row and part
  for (Block& b : *blocks) {
    order.push_back({weight(b), &b});
    if (in_rows && b.row >= 0) rows[{b.row, b.part}].push_back(&b);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    if (a.second->exclusive != b.second->exclusive) return a.second->exclusive;
    if (a.first != b.first) return a.first > b.first;
    return FirstPosition(*a.second) < FirstPosition(*b.second);
  });
  Placed placed;
  for (auto [_, b] : order) {
    const auto found = rows.find({b->row, b->part});
    if (b->exclusive) {
      placed.AddExclusive(b);
    } else if (found == rows.end()) {
      placed.Add(b);
    } else if (!found->second.empty()) {  // else it is there, by another one of its row
      std::vector<Block*> row = std::exchange(found->second, {});
      std::sort(row.begin(), row.end(), [](Block* x, Block* y) { return x->seat < y->seat; });
      if (std::all_of(row.begin(), row.end(), [&](Block* x) { return x->bytes == row[0]->bytes; })) {
        placed.AddRow(row);
      } else {
        for (Block* x : row) placed.Add(x);
      }
    }
  }
  return placed.top();
}

// In how many blocks messages of a buffer lie apart, which they take in turns: at most `most`, but one for
// each slot at least. A divisor of their number, so that all steps are alike. Buffers of up to `small`
// bytes stay whole.
size_t PlacesOf(const Block& b, size_t most, int64_t small) {
  const size_t messages = b.messages.size();
  if (b.exclusive || !b.buffer || messages < 2 || b.bytes <= small) return 1;
  const size_t slots = static_cast<size_t>(std::max(1, b.buffer->slots()));
  for (size_t parts = std::min(most, messages); parts >= slots; --parts)
    if (messages % parts == 0) return parts;
  return 1;
}

// Blocks with each message of a buffer for itself. Where these are too many, messages of large buffers take
// turns in fewer.
std::vector<Block> MessagesApart(const std::vector<Block>& blocks) {
  size_t most = 1;
  int64_t bytes = 0;
  for (const Block& b : blocks) {
    most = std::max(most, b.messages.size());
    bytes += b.bytes;
  }
  const auto count = [&](int64_t small) {
    size_t parts = 0;
    for (const Block& b : blocks) parts += PlacesOf(b, most, small);
    return parts;
  };
  const int64_t small = count(0) > kManyBlocks ? bytes / kLargeBuffers : 0;
  while (small > 0 && most > 1 && count(small) > kManyTurns) most = most * 7 / 8;
  std::vector<Block> apart;
  const size_t parts = count(small);
  if (parts == blocks.size() || parts > kManyBlocks) return apart;
  apart.reserve(parts);
  for (const Block& b : blocks) {
    const size_t n = PlacesOf(b, most, small), first = apart.size();
    if (n == 1) {
      apart.push_back(b);
      continue;
    }
    for (size_t i = 0; i < n; ++i)
      apart.push_back({.bytes = b.unit,
                       .unit = b.unit,
                       .buffer = b.buffer,
                       .row = b.row,
                       .part = static_cast<int>(i),
                       .seat = b.seat});
    for (size_t i = 0; i < b.messages.size(); ++i) apart[first + i % n].live.push_back(b.messages[i]);
    for (size_t i = first; i < apart.size(); ++i) Merge(&apart[i].live);
  }
  return apart;
}

// Gives the blocks, or others in their place, their offsets; returns the end of the last. Where rings by size
// leave gaps, messages apart are tried, and rings by size times lifetime, so that what lives long, and is in
// the way of much, goes to the bottom.
int64_t PlaceBlocks(int64_t bound, std::vector<Block>* blocks) {
  const auto size = [](const Block& b) { return static_cast<double>(b.bytes); };
  const auto area = [](const Block& b) {
    double positions = 0;
    for (const Span& s : b.live) positions += s.end - s.begin + 1;
    return positions * static_cast<double>(b.bytes);
  };
  const bool rows = std::any_of(blocks->begin(), blocks->end(), [](const Block& b) { return b.row >= 0; });
  std::vector<Block> in_rows = rows ? *blocks : std::vector<Block>();
  int64_t of_rows = rows ? PlaceBy(size, &in_rows, true) : 0;
  if (rows && of_rows <= bound) {
    blocks->swap(in_rows);
    return of_rows;
  }
  int64_t least = PlaceBy(size, blocks);
  const auto good_enough = [&] { return static_cast<double>(least) <= kClose * static_cast<double>(bound); };
  // Keeps those of the two that need less.
  const auto attempt = [&](auto weight, std::vector<Block>* others) {
    if (others->empty()) return false;
    const int64_t top = PlaceBy(weight, others);
    if (top >= least) return false;
    least = top;
    blocks->swap(*others);
    if (!rows) return true;
    in_rows = *blocks;
    of_rows = PlaceBy(weight, &in_rows, true);
    return true;
  };
  if (!good_enough()) {
    std::vector<Block> others = MessagesApart(*blocks);
    if (!attempt(size, &others)) others = *blocks;  // else they are the rings
    if (!good_enough()) attempt(area, &others);
  }
  if (!rows || of_rows > least) return least;
  blocks->swap(in_rows);
  return of_rows;
}

}  // namespace

int64_t PlaceMemory(plan::Plan* plan, std::map<int, int64_t>* at_peak, LiveBytes* live) {
  const Lifetimes lifetimes = FindLifetimes(*plan);
  int64_t of_device = 0;
  for (int arena = 0; arena < plan->arena_size(); ++arena) {
    std::vector<Block> blocks = BlocksOf(plan, arena, lifetimes);
    SeatRows(*plan, &blocks);
    const std::vector<LiveBytes::Change> changes = ChangesOf(blocks);
    const int64_t bound = MostLive(changes, arena == 0 ? at_peak : nullptr);
    plan->mutable_arena(arena)->set_bytes(PlaceBlocks(bound, &blocks));
    for (Block& b : blocks) {
      if (b.kernel) b.kernel->set_scratch_offset(b.offset);
      for (int64_t at = 0; b.buffer && at < b.bytes; at += b.unit) b.buffer->add_offset(b.offset + at);
    }
    if (arena > 0) continue;
    of_device = bound;
    if (live != nullptr) live->changes = changes;
  }
  if (live == nullptr) return of_device;
  live->positions = lifetimes.positions;
  for (LiveBytes::Change& change : live->changes) change.position = std::max(0, change.position);
  std::stable_sort(live->changes.begin(), live->changes.end(),
                   [](const auto& a, const auto& b) { return a.position < b.position; });
  return of_device;
}

}  // namespace oneflow_like
