// Collectives inside one process: two counts. The last to arrive tells every member that has work to go; the
// last to finish its work tells every member that the act is done.
#include "actor/collective.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>
#include <vector>

#include "actor/clock.h"
#include "actor/region_work.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

// Of a region that goes to several destinations: what a core's cache keeps from one to the next.
constexpr int64_t kBlockBytes = 256 << 10;

// A box in blocks of at most so many elements: some indices of one axis, whole in the axes behind it, at one
// index of each axis before it. Calls `move` with each; allocates nothing.
template <typename Move>
void ForEachBlock(const Box& box, int64_t elements, Move move) {
  int cut = box.extent.rank();  // axes from here on are whole
  int64_t whole = 1;
  while (cut > 0 && whole * box.extent[cut - 1] <= elements) whole *= box.extent[--cut];
  if (cut == 0) return move(box);
  --cut;
  const int64_t step = std::max<int64_t>(1, elements / whole);
  Box block = box;
  for (int a = 0; a < cut; ++a) block.extent[a] = 1;
  for (int a = 0; a >= 0;) {
    for (int64_t done = 0; done < box.extent[cut]; done += step) {
      block.begin[cut] = box.begin[cut] + done;
      block.extent[cut] = std::min(step, box.extent[cut] - done);
      move(block);
    }
    for (a = cut - 1; a >= 0 && ++block.begin[a] == box.begin[a] + box.extent[a]; --a) {
      block.begin[a] = box.begin[a];
    }
  }
}

class Group;

class LocalMember final : public CollectiveMember {
 public:
  LocalMember(std::shared_ptr<Group> group, const CollectiveSpec& spec, const plan::Collective& collective);
  ~LocalMember() override;
  void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override;

 private:
  friend class Group;
  struct Go : Message {
    LocalMember* member;
    void Receive() override { member->Work(); }
  };
  struct Done : Message {
    LocalMember* member;
    bool ok = true;
    void Receive() override { member->spec_.listener->CollectiveDone(ok); }
  };

  std::vector<RegionWork>& WorkOf(int micro_batch) { return work_[work_.size() == 1 ? 0 : micro_batch]; }
  void Work();

  std::shared_ptr<Group> group_;
  const CollectiveSpec spec_;
  const int me_, rows_;  // rows_: the axis that is counted
  Reduce reduce_;
  std::vector<std::vector<RegionWork>> work_;  // one entry, or one for each micro-batch
  Go go_;
  Done done_;
  // Of the act under way: written by this member before it arrives, read by all after the last has arrived.
  std::vector<void*> in_, out_;  // by operand; in_: then counts
  int micro_batch_ = 0;
  bool ok_ = true;
};

class Group {
 public:
  explicit Group(int members) : members_(members) {}

  // The last to arrive starts the work. Counts are put back before any message, so the next act finds them
  // ready.
  void Arrived(int micro_batch) {
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < static_cast<int>(members_.size())) return;
    arrived_.store(0, std::memory_order_relaxed);
    bool ok = true;
    int workers = 0;
    for (LocalMember* m : members_) {
      ok = ok && m->ok_;
      workers += !m->WorkOf(micro_batch).empty();
    }
    if (!ok || workers == 0) return AllDone(ok);
    working_.store(workers, std::memory_order_relaxed);
    // A member that is told to go may finish, but none can arrive again before the last of them has.
    for (LocalMember* m : members_) {
      if (!m->WorkOf(micro_batch).empty()) m->spec_.worker->Post(&m->go_);
    }
  }

  void Worked() {
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) AllDone(true);
  }

 private:
  friend class LocalMember;
  friend class LocalCollectives;

  void AllDone(bool ok) {
    for (LocalMember* m : members_) {
      m->done_.ok = ok;
      m->spec_.worker->Post(&m->done_);
    }
  }

  std::vector<LocalMember*> members_;
  std::string actor_;
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<int> working_{0};
};

LocalMember::LocalMember(std::shared_ptr<Group> group, const CollectiveSpec& spec,
                         const plan::Collective& collective)
    : group_(std::move(group)),
      spec_(spec),
      me_(collective.me()),
      rows_(collective.rows()),
      reduce_(ParseReduce(collective.reduce())) {
  go_.member = done_.member = this;
  in_.reserve(OperandsOf(collective) + 1);
  out_.reserve(OperandsOf(collective));
  work_ = ReadyWork(spec, collective);
}

LocalMember::~LocalMember() { group_->members_[me_] = nullptr; }

void LocalMember::Arrive(Pieces in, Pieces out, int micro_batch, bool ok) {
  in_.assign(in.begin(), in.end());
  out_.assign(out.begin(), out.end());
  micro_batch_ = micro_batch;
  ok_ = ok;
  group_->Arrived(micro_batch);
}

void LocalMember::Work() {
  int64_t start = Ticks();
  for (RegionWork& w : WorkOf(micro_batch_)) {
    for (size_t i = 0; i < w.from.size(); ++i)
      w.from[i].data = group_->members_[w.sources[i]]->in_[w.operand];
    for (size_t i = 0; i < w.to.size(); ++i) w.to[i].data = group_->members_[w.dests[i]]->out_[w.operand];
    Box moved = w.box;
    if (w.count >= 0) {
      const CountedBox parts = PartsOf(w, rows_, in_.back());
      CombineBox(spec_.dtype, Reduce::kSum, parts.behind, nullptr, 0, w.to.data(),
                 static_cast<int>(w.to.size()));
      moved = parts.moved;
      if (moved.empty()) continue;
    }
    if (w.from.size() == 1) {
      ForEachBlock(moved, kBlockBytes / static_cast<int64_t>(SizeOf(spec_.dtype)), [&](const Box& block) {
        for (const Piece& to : w.to) CopyBox(spec_.dtype, block, w.from[0], to);
      });
    } else {
      Reduce reduce =
          reduce_ == Reduce::kNone ? Reduce::kSum : reduce_;  // only nothing comes here: the identity
      CombineBox(spec_.dtype, reduce, moved, w.from.data(), static_cast<int>(w.from.size()), w.to.data(),
                 static_cast<int>(w.to.size()));
    }
  }
  spec_.listener->CollectiveWorked(start, Ticks());
  group_->Worked();
}

class LocalCollectives final : public Collectives {
 public:
  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                         const plan::Collective& collective) override {
    std::vector<int> ranks(collective.rank().begin(), collective.rank().end());
    int me = collective.me();
    CheckMembers(spec, collective);
    std::shared_ptr<Group>& group = groups_[{spec.plan, collective.id(), ranks}];
    if (group == nullptr) {
      group = std::make_shared<Group>(static_cast<int>(ranks.size()));
      group->actor_ = spec.actor;
    }
    if (group->members_[me] != nullptr) {
      Fail("collective ", spec.actor, ": rank ", ranks[me], " takes part twice");
    }
    auto member = std::make_unique<LocalMember>(group, spec, collective);
    group->members_[me] = member.get();
    return member;
  }

  void CheckComplete() override {
    for (const auto& [name, group] : groups_) {
      for (size_t i = 0; i < group->members_.size(); ++i) {
        if (group->members_[i] == nullptr) {
          Fail("collective ", group->actor_, " of plan '", std::get<0>(name), "' waits for rank ",
               std::get<2>(name)[i], ", which this process does not host");
        }
      }
    }
  }

 private:
  std::map<std::tuple<std::string, int64_t, std::vector<int>>, std::shared_ptr<Group>> groups_;
};

}  // namespace

std::unique_ptr<Collectives> MakeLocalCollectives() { return std::make_unique<LocalCollectives>(); }

}  // namespace oneflow_like
