// Memory.
// Needs: one rank's plan. Leaves: an offset in its arena for every buffer and every kernel's scratch. Each
// arena is placed by itself.
//
// Time is the position in the compute stream's list of kernels, which is the same in every step. A slot lives
// from the first kernel that writes it to the last that reads it. Collectives and transfers run beside that
// stream: such an act starts after its operands were announced and after the acts before it in its own stream
// started, and it has ended when an act of the compute stream that waits for its result starts; where neither
// is known (feeds, fetches, sends to another stage) the buffer keeps its bytes to itself. Two blocks share
// bytes only when none of their intervals meet. A block is a buffer with all its slots, side by side; where
// that leaves gaps, each message that a step writes to the buffer, or, of very many, those that take turns in
// one place. Blocks are placed by falling size, or by falling size times lifetime, those alike by rising
// begin, each at the lowest offset that is free; what needs least memory is kept. Blocks of one size placed
// by rising begin need no more than are alive at once, as in the coloring of an interval graph.
#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "compiler/plan/make_plans.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {

namespace {

constexpr int kNever = -1, kAlways = 1 << 30;
constexpr double kClose = 1.02;           // to the lower bound: good enough
constexpr size_t kManyBlocks = 20'000;    // placing takes their square, in part
constexpr size_t kManyTurns = 5'000;      // blocks of several messages
constexpr int64_t kLargeBuffers = 1'000;  // there are fewer that hold more of all bytes

struct Span {
  int begin, end;  // inclusive
};

struct Block {
  int64_t bytes = 0, unit = 0;  // unit: of one slot
  bool exclusive = false;
  std::vector<Span> messages;  // of a buffer, in their order: when each of a step's is alive
  std::vector<Span> live;      // those, sorted and merged
  int64_t offset = -1;
  plan::Buffer* buffer = nullptr;
  plan::Kernel* kernel = nullptr;
};

struct Use {
  int actor, first, last, period;  // kernels of the actor
};

class Placer {
 public:
  Placer(plan::Plan* plan, int arena) : plan_(*plan), arena_(arena) {}

  int64_t Run(std::map<int, int64_t>* at_peak, LiveBytes* live) {
    Positions();
    CollectUses();
    LinkBounds();
    MakeBlocks();
    int64_t bound = LowerBound(at_peak);
    Place(bound);
    if (live != nullptr) {
      for (auto [id, bytes] : always_) live->changes.push_back({0, id, bytes});
      live->changes.insert(live->changes.end(), changes_.begin(), changes_.end());
      live->positions = end_;
    }
    return bound;
  }

 private:
  void Positions() {
    int most = -1;
    for (const plan::Actor& actor : plan_.actor()) most = std::max(most, actor.id());
    index_.assign(most + 1, -1);
    for (int i = 0; i < plan_.actor_size(); ++i) index_[plan_.actor(i).id()] = i;
    start_.resize(plan_.actor_size());
    for (const plan::Stream& stream : plan_.stream()) {
      if (stream.kind() != plan::COMPUTE) continue;
      CHECK_EQ(end_, 0) << "positions are of one stream, and plan " << plan_.name()
                        << " has two that compute";
      for (int id : stream.actor()) {
        int a = index_[id];
        start_[a].push_back(end_);
        end_ += std::max(1, plan_.actor(a).kernel_size());
      }
    }
  }

  void CollectUses() {
    int most = -1;
    for (const plan::Buffer& b : plan_.buffer()) most = std::max(most, b.id());
    for (auto* uses : {&readers_, &writers_}) uses->resize(most + 1);
    carried_.resize(most + 1);
    auto add = [](std::vector<std::vector<Use>>* uses, int a, int k, const plan::Operand& o) {
      std::vector<Use>& list = (*uses)[o.buffer()];
      for (Use& u : list)
        if (u.actor == a) {
          u.last = k;
          return;
        }
      list.push_back({a, k, k, std::max(1, o.period())});
    };
    for (const plan::Buffer& b : plan_.buffer()) carried_[b.id()] = IsVariable(b);
    for (int a = 0; a < plan_.actor_size(); ++a)
      for (int k = 0; k < plan_.actor(a).kernel_size(); ++k) {
        for (const plan::Operand& o : plan_.actor(a).kernel(k).in()) add(&readers_, a, k, o);
        for (const plan::Operand& o : plan_.actor(a).kernel(k).out()) add(&writers_, a, k, o);
      }
  }

  bool On(int a, plan::StreamKind kind) const {
    int stream = plan_.actor(a).stream();
    return stream >= 0 && plan_.stream(stream).kind() == kind;
  }
  bool OnCompute(int a) const { return On(a, plan::COMPUTE); }
  bool OnLink(int a) const { return On(a, plan::LINK); }

  // Where the compute stream stands, at least, when all edges from it have let an act begin: also those that
  // no operand stands behind.
  int AnnouncedBefore(int a, int act) const {
    int position = kNever;
    for (const plan::Port& in : plan_.actor(a).in()) {
      const int writer = index_[in.peer()];
      if (!OnCompute(writer)) continue;
      for (const plan::Port& out : plan_.actor(writer).out()) {
        if (out.edge() != in.edge()) continue;
        const int last = (act / in.period() + 1 - in.credits()) * out.period() - 1;
        if (last >= 0 && last < static_cast<int>(start_[writer].size()))
          position = std::max(position, start_[writer][last] + out.kernel());
      }
    }
    return position;
  }

  // Where the compute stream stands, at most, before an edge from a link act has let it go on.
  int AwaitedBy(int a, int act) const {
    int position = kAlways;
    for (const plan::Port& out : plan_.actor(a).out()) {
      const int reader = index_[out.peer()];
      if (!OnCompute(reader)) continue;
      for (const plan::Port& in : plan_.actor(reader).in()) {
        if (in.edge() != out.edge()) continue;
        const int first = (act / out.period() + in.credits()) * in.period();
        if (first < static_cast<int>(start_[reader].size()))
          position = std::min(position, start_[reader][first] - 1);
      }
    }
    return position;
  }

  // Earliest start and latest proven end of every act of the link streams, in compute positions.
  void LinkBounds() {
    lower_.resize(plan_.actor_size());
    upper_.resize(plan_.actor_size());
    std::vector<int> running(plan_.stream_size(),
                             kNever);             // where the last act of the stream started, at least
    std::vector<std::tuple<int, int, int>> acts;  // position in the order of the job, actor, act
    for (int a = 0; a < plan_.actor_size(); ++a)
      for (int act = 0; OnLink(a) && act < plan_.actor(a).acts(); ++act)
        acts.push_back({plan_.actor(a).collective().position(act), a, act});
    std::sort(acts.begin(), acts.end());
    for (auto [position, a, act] : acts) {
      int& start = running[plan_.actor(a).stream()];
      for (const plan::Operand& o : plan_.actor(a).kernel(0).in()) {
        if (carried_[o.buffer()]) continue;  // a variable: it was written in the step before
        for (const Use& w : writers_[o.buffer()]) {
          int writer_act = (act / std::max(1, o.period()) + 1) * w.period - 1;
          if (OnCompute(w.actor) && writer_act < static_cast<int>(start_[w.actor].size()))
            start = std::max(start, start_[w.actor][writer_act] + w.first);
          else if (OnLink(w.actor) && writer_act < static_cast<int>(lower_[w.actor].size()))
            start = std::max(start, lower_[w.actor][writer_act]);
        }
      }
      start = std::max(start, AnnouncedBefore(a, act));
      lower_[a].push_back(start);
    }
    for (int a = 0; a < plan_.actor_size(); ++a) upper_[a].assign(lower_[a].size(), kAlways);
    for (auto it = acts.rbegin(); it != acts.rend(); ++it) {
      auto [position, a, act] = *it;
      for (const plan::Operand& o : plan_.actor(a).kernel(0).out())
        for (const Use& r : readers_[o.buffer()]) {
          int reader_act = act / std::max(1, o.period()) * r.period;
          int bound = kAlways;
          if (OnCompute(r.actor) && reader_act < static_cast<int>(start_[r.actor].size()))
            bound = start_[r.actor][reader_act] - 1;
          else if (OnLink(r.actor) && reader_act < static_cast<int>(upper_[r.actor].size()))
            bound = upper_[r.actor][reader_act];
          upper_[a][act] = std::min(upper_[a][act], bound);
        }
      upper_[a][act] = std::min(upper_[a][act], AwaitedBy(a, act));
    }
  }

  // One interval for each message that a step writes to the buffer; false when one of them is not bounded.
  bool Intervals(int buffer, std::vector<Span>* live) {
    const std::vector<Use>& writers = writers_[buffer];
    const std::vector<Use>& readers = readers_[buffer];
    if (writers.size() != 1) return false;
    const Use& w = writers[0];
    if (!OnCompute(w.actor) && !OnLink(w.actor)) return false;
    int acts = static_cast<int>(OnCompute(w.actor) ? start_[w.actor].size() : lower_[w.actor].size());
    for (int message = 0; message < acts / w.period; ++message) {
      Span i;
      int first = message * w.period, last = (message + 1) * w.period - 1;
      if (OnCompute(w.actor)) {
        i.begin = start_[w.actor][first] + w.first;
        i.end = start_[w.actor][last] + w.last;
      } else {
        i.begin = lower_[w.actor][first];
        i.end = upper_[w.actor][last];
        if (i.begin == kNever) return false;
      }
      for (const Use& r : readers) {
        int read = (message + 1) * r.period - 1;
        if (OnCompute(r.actor) && read < static_cast<int>(start_[r.actor].size()))
          i.end = std::max(i.end, start_[r.actor][read] + r.last);
        else if (OnLink(r.actor) && read < static_cast<int>(upper_[r.actor].size()))
          i.end = std::max(i.end, upper_[r.actor][read]);
        else
          return false;
      }
      if (i.end >= kAlways) return false;
      live->push_back(i);
    }
    return true;
  }

  static void Merge(std::vector<Span>* live) {
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

  void MakeBlocks() {
    for (plan::Buffer& b : *plan_.mutable_buffer()) {
      if (IsVariable(b) || b.arena() != arena_) continue;
      b.clear_offset();
      Block block;
      block.buffer = &b;
      block.unit = b.slot_bytes();
      block.bytes = b.slot_bytes() * b.slots();
      block.exclusive = !Intervals(b.id(), &block.messages);
      block.live = block.messages;
      Count(block);
      Merge(&block.live);
      blocks_.push_back(std::move(block));
    }
    for (int a = 0; a < plan_.actor_size() && arena_ == 0; ++a)
      for (int k = 0; k < plan_.actor(a).kernel_size(); ++k) {
        plan::Kernel* kernel = plan_.mutable_actor(a)->mutable_kernel(k);
        if (kernel->scratch_bytes() == 0) continue;
        Block block;
        block.kernel = kernel;
        block.unit = block.bytes = kernel->scratch_bytes();
        block.exclusive = !OnCompute(a);
        for (int start : start_[a]) block.live.push_back({start + k, start + k});
        Count(block);
        blocks_.push_back(std::move(block));
      }
  }

  // Bytes live at each position, for the lower bound.
  void Count(const Block& block) {
    const int id = block.buffer ? block.buffer->id() : kScratch;
    if (block.exclusive) {
      always_.push_back({id, block.bytes});
      return;
    }
    // Bounds of collectives are loose, so more intervals may seem to meet than there are slots.
    std::vector<std::pair<int, int>> taken;  // position, slots taken or given back
    for (const Span& i : block.live) {
      taken.push_back({i.begin, 1});
      taken.push_back({i.end + 1, -1});
    }
    std::sort(taken.begin(), taken.end());
    int64_t live = 0, counted = 0;
    for (size_t i = 0; i < taken.size(); ++i) {
      const int position = taken[i].first;
      live += taken[i].second * block.unit;
      if (i + 1 < taken.size() && taken[i + 1].first == position) continue;
      int64_t now = std::min(live, block.bytes);
      if (now != counted) changes_.push_back({position, id, now - counted});
      counted = now;
    }
  }

  static int Begin(const Block& b) { return b.live.empty() ? kNever : b.live[0].begin; }

  static bool Meet(const Block& a, const Block& b) {
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

  // Where rings by size leave gaps, messages apart are tried, and rings by size times lifetime, so that what
  // lives long, and is in the way of much, goes to the bottom.
  void Place(int64_t bound) {
    auto size = [](const Block& b) { return static_cast<double>(b.bytes); };
    auto area = [](const Block& b) {
      double positions = 0;
      for (const Span& s : b.live) positions += s.end - s.begin + 1;
      return positions * static_cast<double>(b.bytes);
    };
    int64_t least = PlaceBy(size, &blocks_);
    const auto good_enough = [&] {
      return static_cast<double>(least) <= kClose * static_cast<double>(bound);
    };
    // Keeps those of the two that need less.
    const auto attempt = [&](auto weight, std::vector<Block>* blocks) {
      if (blocks->empty()) return;
      const int64_t top = PlaceBy(weight, blocks);
      if (top >= least) return;
      least = top;
      blocks_.swap(*blocks);
    };
    if (!good_enough()) {
      const int64_t of_rings = least;
      std::vector<Block> others = MessagesApart();
      attempt(size, &others);
      if (least == of_rings) others = blocks_;  // else they are the rings
      if (!good_enough()) attempt(area, &others);
    }
    for (Block& b : blocks_) {
      if (b.kernel) b.kernel->set_scratch_offset(b.offset);
      for (int64_t at = 0; b.buffer && at < b.bytes; at += b.unit) b.buffer->add_offset(b.offset + at);
    }
    plan_.mutable_arena(arena_)->set_bytes(least);
  }

  // In how many blocks messages of a buffer lie apart, which they take in turns: at most `most`, but one for
  // each slot at least. A divisor of their number, so that all steps are alike. Buffers of up to `small`
  // bytes stay whole.
  static size_t PartsOf(const Block& b, size_t most, int64_t small) {
    const size_t messages = b.messages.size();
    if (b.exclusive || !b.buffer || messages < 2 || b.bytes <= small) return 1;
    const size_t slots = static_cast<size_t>(std::max(1, b.buffer->slots()));
    for (size_t parts = std::min(most, messages); parts >= slots; --parts)
      if (messages % parts == 0) return parts;
    return 1;
  }

  // Blocks with each message of a buffer for itself. Where these are too many, messages of large buffers take
  // turns in fewer.
  std::vector<Block> MessagesApart() const {
    size_t most = 1;
    int64_t bytes = 0;
    for (const Block& b : blocks_) {
      most = std::max(most, b.messages.size());
      bytes += b.bytes;
    }
    const auto count = [&](int64_t small) {
      size_t parts = 0;
      for (const Block& b : blocks_) parts += PartsOf(b, most, small);
      return parts;
    };
    const int64_t small = count(0) > kManyBlocks ? bytes / kLargeBuffers : 0;
    while (small > 0 && most > 1 && count(small) > kManyTurns) most = most * 7 / 8;
    std::vector<Block> apart;
    const size_t parts = count(small);
    if (parts == blocks_.size() || parts > kManyBlocks) return apart;
    apart.reserve(parts);
    for (const Block& b : blocks_) {
      const size_t n = PartsOf(b, most, small), first = apart.size();
      if (n == 1) {
        apart.push_back(b);
        continue;
      }
      for (size_t i = 0; i < n; ++i) apart.push_back({.bytes = b.unit, .unit = b.unit, .buffer = b.buffer});
      for (size_t i = 0; i < b.messages.size(); ++i) apart[first + i % n].live.push_back(b.messages[i]);
      for (size_t i = first; i < apart.size(); ++i) Merge(&apart[i].live);
    }
    return apart;
  }

  // Each block at the lowest offset that is free, those of large weight first; returns the end of the last.
  template <typename Weight>
  static int64_t PlaceBy(Weight weight, std::vector<Block>* blocks) {
    std::vector<std::pair<double, Block*>> order;
    for (Block& b : *blocks) order.push_back({weight(b), &b});
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      if (a.second->exclusive != b.second->exclusive) return a.second->exclusive;
      if (a.first != b.first) return a.first > b.first;
      return Begin(*a.second) < Begin(*b.second);
    });
    int64_t floor = 0, top = 0;
    std::vector<Block*> placed;  // not exclusive, by offset
    for (auto [_, b] : order) {
      if (b->exclusive) {
        b->offset = floor;
        floor += b->bytes;
        top = floor;
        continue;
      }
      int64_t at = floor;
      for (Block* p : placed) {
        if (p->offset >= at + b->bytes) break;
        if (p->offset + p->bytes > at && Meet(*p, *b)) at = p->offset + p->bytes;
      }
      b->offset = at;
      top = std::max(top, at + b->bytes);
      placed.insert(std::upper_bound(placed.begin(), placed.end(), b,
                                     [](Block* x, Block* y) { return x->offset < y->offset; }),
                    b);
    }
    return top;
  }

  // The largest sum of bytes live at once; and, where asked for, whose they are.
  int64_t LowerBound(std::map<int, int64_t>* at_peak) {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const auto& a, const auto& b) { return a.position < b.position; });
    int64_t now = 0;
    for (auto [id, bytes] : always_) now += bytes;
    int64_t most = now;
    size_t peak = 0;  // the changes up to the peak
    for (size_t i = 0; i < changes_.size(); ++i) {
      now += changes_[i].bytes;
      if (i + 1 < changes_.size() && changes_[i + 1].position == changes_[i].position) continue;
      if (now > most) peak = i + 1;
      most = std::max(most, now);
    }
    if (at_peak == nullptr) return most;
    for (auto [id, bytes] : always_) (*at_peak)[id] += bytes;
    for (size_t i = 0; i < peak; ++i) (*at_peak)[changes_[i].buffer] += changes_[i].bytes;
    return most;
  }

  plan::Plan& plan_;
  const int arena_;
  std::vector<int> index_;               // actor id -> index in the plan, -1
  std::vector<std::vector<int>> start_;  // per actor and act: position of its first kernel
  int end_ = 0;
  std::vector<std::vector<Use>> writers_, readers_;  // by buffer
  std::vector<bool> carried_;                        // by buffer: whether it outlives the step
  std::vector<std::vector<int>> lower_, upper_;      // of link acts
  std::vector<Block> blocks_;
  std::vector<std::pair<int, int64_t>> always_;  // by buffer or kScratch
  std::vector<LiveBytes::Change> changes_;
};

}  // namespace

int64_t PlaceMemory(plan::Plan* plan, std::map<int, int64_t>* at_peak, LiveBytes* live) {
  int64_t bound = 0;
  for (int arena = 0; arena < plan->arena_size(); ++arena) bound += Placer(plan, arena).Run(at_peak, live);
  if (live != nullptr)
    std::stable_sort(live->changes.begin(), live->changes.end(),
                     [](const auto& a, const auto& b) { return a.position < b.position; });
  return bound;
}

}  // namespace oneflow_like
