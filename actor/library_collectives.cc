// Collectives as calls of the device vendor's library: which call, and packing what it wants in runs.
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "actor/device_collectives.h"
#include "core/device/backend.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

using Kind = LibraryWork::Kind;

// Whether the elements of `part` follow one another in `whole`.
bool IsRun(const Box& part, const Box& whole) {
  int axis = 0, rank = whole.extent.rank();
  while (axis < rank && part.extent[axis] == 1) ++axis;
  for (int i = axis + 1; i < rank; ++i) {
    if (part.extent[i] != whole.extent[i]) return false;
  }
  return true;
}

int64_t OffsetIn(const Box& part, const Box& whole) {
  int64_t offset = 0;
  for (int i = 0; i < whole.extent.rank(); ++i) {
    offset = offset * whole.extent[i] + part.begin[i] - whole.begin[i];
  }
  return offset;
}

struct Ends {
  std::vector<Box> in, out;  // by member; of a member without such an end a box without extents
  std::vector<bool> has_in, has_out;
};

Ends EndsOf(const plan::Collective& collective, int operand, int act) {
  Ends ends;
  auto add = [&](const google::protobuf::RepeatedPtrField<plan::Box>& boxes, std::vector<Box>* to,
                 std::vector<bool>* has) {
    has->push_back(!boxes.empty());
    to->push_back(boxes.empty() ? Box() : ToBox(boxes[boxes.size() == 1 ? 0 : act]));
  };
  for (int member = 0; member < collective.rank_size(); ++member) {
    const plan::Piece& piece = PieceOf(collective, operand, member);
    add(piece.in(), &ends.in, &ends.has_in);
    add(piece.out(), &ends.out, &ends.has_out);
  }
  return ends;
}

bool All(const std::vector<bool>& flags) {
  return std::all_of(flags.begin(), flags.end(), [](bool b) { return b; });
}
bool AllEqual(const std::vector<Box>& boxes) {
  return std::all_of(boxes.begin(), boxes.end(), [&](const Box& b) { return b == boxes[0]; });
}
bool SameSizes(const std::vector<Box>& boxes) {
  return std::all_of(boxes.begin(), boxes.end(),
                     [&](const Box& b) { return b.elements() == boxes[0].elements(); });
}
// Whether boxes that differ along one axis alone are disjoint; nothing where they differ along several.
std::optional<bool> DisjointAlongAxis(std::vector<Box> boxes) {
  int axis = -1;
  for (const Box& box : boxes)
    for (int a = 0; a < box.extent.rank(); ++a) {
      if (box.begin[a] == boxes[0].begin[a] && box.extent[a] == boxes[0].extent[a]) continue;
      if (axis >= 0 && a != axis) return std::nullopt;
      axis = a;
    }
  if (axis < 0) return std::nullopt;
  std::erase_if(boxes, [](const Box& box) { return box.empty(); });
  std::sort(boxes.begin(), boxes.end(),
            [axis](const Box& a, const Box& b) { return a.begin[axis] < b.begin[axis]; });
  for (size_t i = 1; i < boxes.size(); ++i)
    if (boxes[i].begin[axis] < boxes[i - 1].begin[axis] + boxes[i - 1].extent[axis]) return false;
  return true;
}
bool Disjoint(const Ends& ends) {
  std::vector<Box> boxes;
  for (size_t m = 0; m < ends.in.size(); ++m)
    if (ends.has_in[m]) boxes.push_back(ends.in[m]);
  if (const std::optional<bool> known = DisjointAlongAxis(std::move(boxes))) return *known;
  for (size_t a = 0; a < ends.in.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (ends.has_in[a] && ends.has_in[b] && !ends.in[a].Intersect(ends.in[b]).empty()) return false;
    }
  }
  return true;
}
// Whether part m is the m-th of equal runs of the whole.
bool RunsInOrder(const std::vector<Box>& parts, const Box& whole) {
  for (size_t m = 0; m < parts.size(); ++m) {
    if (!IsRun(parts[m], whole)) return false;
    if (OffsetIn(parts[m], whole) != static_cast<int64_t>(m) * parts[0].elements()) return false;
  }
  return true;
}

// What member `me` sends and receives when every element comes from the one member that has it.
struct Copies {
  struct Part {
    int peer;
    Box box;
    bool packed;
  };
  std::vector<Part> sends, receives;
  Box own;  // stays here; without extents: nothing
  bool has_own = false;
};

Copies CopiesOf(const Ends& ends, int me) {
  Copies copies;
  for (int peer = 0; peer < static_cast<int>(ends.in.size()); ++peer) {
    auto meet = [&](int from, int to) {
      return ends.has_in[from] && ends.has_out[to] ? ends.in[from].Intersect(ends.out[to]) : Box();
    };
    Box send = meet(me, peer), receive = meet(peer, me);
    bool sends = ends.has_in[me] && ends.has_out[peer] && !send.empty();
    bool receives = ends.has_in[peer] && ends.has_out[me] && !receive.empty();
    if (peer == me) {
      copies.own = send;
      copies.has_own = sends;
      continue;
    }
    if (sends) copies.sends.push_back({peer, send, !IsRun(send, ends.in[me])});
    if (receives) copies.receives.push_back({peer, receive, !IsRun(receive, ends.out[me])});
  }
  return copies;
}

LibraryWork WorkOfOperand(const plan::Collective& collective, int operand) {
  LibraryWork chosen;
  int acts = std::max(1, collective.work_size());
  for (int act = 0; act < acts; ++act) {
    Ends ends = EndsOf(collective, operand, act);
    LibraryWork work;
    bool whole = All(ends.has_in) && All(ends.has_out);
    const std::string& primitive = collective.primitive();
    if (primitive == "all_reduce" && whole && AllEqual(ends.in) && ends.out == ends.in) {
      work = {Kind::kAllReduce, ends.in[0].elements(), 0};
    } else if (primitive == "reduce_scatter" && whole && AllEqual(ends.in) && SameSizes(ends.out)) {
      work = {Kind::kReduceScatter, ends.out[0].elements(),
              RunsInOrder(ends.out, ends.in[0]) ? 0 : ends.in[0].elements()};
    } else if (primitive == "all_gather" && whole && AllEqual(ends.out) && SameSizes(ends.in) &&
               (RunsInOrder(ends.in, ends.out[0]) || Disjoint(ends))) {
      work = {Kind::kAllGather, ends.in[0].elements(),
              RunsInOrder(ends.in, ends.out[0]) ? 0 : ends.out[0].elements()};
    } else if (collective.reduce().empty() && Disjoint(ends)) {
      work = {Kind::kCopies, 0, 0};
    }
    if (work.kind == Kind::kNone) return work;
    // Acts that time cuts unevenly differ in counts: as copies, or not at all.
    if (act > 0 && (work.kind != chosen.kind || work.count != chosen.count ||
                    work.packed_elements != chosen.packed_elements)) {
      return LibraryWork();
    }
    chosen = work;
  }
  return chosen;
}

// Bytes in which an operand is packed, rounded up so that the next one is aligned.
int64_t PackedBytes(const plan::Collective& collective, int operand, const LibraryWork& work, DType dtype) {
  constexpr int64_t kAlignment = 256;
  int64_t most = work.packed_elements;
  const int acts = work.kind == Kind::kCopies ? std::max(1, collective.work_size()) : 0;
  for (int act = 0; act < acts; ++act) {
    const Copies copies = CopiesOf(EndsOf(collective, operand, act), collective.me());
    int64_t elements = 0;
    for (const auto& part : copies.sends) elements += part.packed ? part.box.elements() : 0;
    for (const auto& part : copies.receives) elements += part.packed ? part.box.elements() : 0;
    most = std::max(most, elements);
  }
  return (most * static_cast<int64_t>(SizeOf(dtype)) + kAlignment - 1) / kAlignment * kAlignment;
}

// One operand of a member's collective.
class Operand {
 public:
  // It packs from `begin` on.
  Operand(const CollectiveSpec& spec, const plan::Collective& collective, int operand,
          const LibraryWork& work, std::shared_ptr<PackingMemory> packing, int64_t begin)
      : spec_(spec),
        work_(work),
        me_(collective.me()),
        reduce_(ParseReduce(collective.reduce())),
        packing_(std::move(packing)),
        begin_(begin),
        bytes_(PackedBytes(collective, operand, work, spec.dtype)) {
    int acts = std::max(1, collective.work_size());
    for (int act = 0; act < acts; ++act) {
      ends_.push_back(EndsOf(collective, operand, act));
      copies_.push_back(work.kind == Kind::kCopies ? CopiesOf(ends_.back(), me_) : Copies());
    }
    packing_->Reserve(begin_ + bytes_);
  }

  int64_t end() const { return begin_ + bytes_; }  // of what it packs

  // Of the next act.
  void Bring(void* in, void* out, int micro_batch) {
    in_ = in;
    out_ = out;
    act_ = ends_.size() == 1 ? 0 : micro_batch;
  }

  Status Pack() {
    const Ends& ends = ends_[act_];
    if (work_.kind == Kind::kReduceScatter && bytes_ > 0) {
      for (size_t m = 0; m < ends.out.size(); ++m) {
        Piece part{At(packed_at(), static_cast<int64_t>(m) * work_.count), ends.out[m]};
        if (Status s = Copy(ends.out[m], {in_, ends.in[me_]}, part); !s.ok()) return s;
      }
    }
    return work_.kind == Kind::kCopies ? PackCopies(ends, copies_[act_]) : Status();
  }

  Status Call(GroupMember* group) {
    void* packed = bytes_ == 0 ? nullptr : packed_at();
    switch (work_.kind) {
      case Kind::kAllReduce:
        return group->AllReduce(spec_.stream, spec_.dtype, reduce_, in_, out_, work_.count);
      case Kind::kReduceScatter:
        return group->ReduceScatter(spec_.stream, spec_.dtype, reduce_, packed ? packed : in_, out_,
                                    work_.count);
      case Kind::kAllGather:
        return group->AllGather(spec_.stream, spec_.dtype, in_, packed ? packed : out_, work_.count);
      case Kind::kCopies:
        return group->Exchange(spec_.stream, transfers_);
      case Kind::kNone:
        break;
    }
    return Status("this collective is none of the library's");
  }

  Status Unpack() {
    const Ends& ends = ends_[act_];
    if (work_.kind == Kind::kAllGather && bytes_ > 0) {
      for (size_t m = 0; m < ends.in.size(); ++m) {
        Piece part{At(packed_at(), static_cast<int64_t>(m) * work_.count), ends.in[m]};
        if (Status s = Copy(ends.in[m], part, {out_, ends.out[me_]}); !s.ok()) return s;
      }
    }
    return work_.kind == Kind::kCopies ? UnpackCopies(ends, copies_[act_]) : Status();
  }

 private:
  Status Copy(const Box& box, const Piece& from, const Piece& to) {
    return spec_.stream->Combine(spec_.dtype, Reduce::kNone, box, {&from, 1}, {&to, 1});
  }
  void* packed_at() const { return packing_->data() + begin_; }
  char* At(void* data, int64_t elements) const {
    return static_cast<char*>(data) + elements * static_cast<int64_t>(SizeOf(spec_.dtype));
  }

  // Also says what goes where: sends, then receives.
  Status PackCopies(const Ends& ends, const Copies& copies) {
    transfers_.clear();
    int64_t used = 0;
    auto room = [&](const Box& box) {
      char* at = At(packed_at(), used);
      used += box.elements();
      return at;
    };
    auto bytes = [&](const Box& box) { return box.elements() * static_cast<int64_t>(SizeOf(spec_.dtype)); };
    Status status;
    for (const auto& part : copies.sends) {
      void* from = part.packed ? room(part.box) : At(in_, OffsetIn(part.box, ends.in[me_]));
      if (part.packed && status.ok()) status = Copy(part.box, {in_, ends.in[me_]}, {from, part.box});
      transfers_.push_back({true, part.peer, from, bytes(part.box)});
    }
    for (const auto& part : copies.receives) {
      void* to =
          part.packed ? static_cast<void*>(room(part.box)) : At(out_, OffsetIn(part.box, ends.out[me_]));
      transfers_.push_back({false, part.peer, to, bytes(part.box)});
    }
    return status;
  }

  Status UnpackCopies(const Ends& ends, const Copies& copies) {
    for (size_t i = 0; i < copies.receives.size(); ++i) {
      const auto& part = copies.receives[i];
      if (!part.packed) continue;
      void* from = transfers_[copies.sends.size() + i].data;
      if (Status s = Copy(part.box, {from, part.box}, {out_, ends.out[me_]}); !s.ok()) return s;
    }
    if (!copies.has_own) return Status();
    return Copy(copies.own, {in_, ends.in[me_]}, {out_, ends.out[me_]});
  }

  const CollectiveSpec spec_;
  const LibraryWork work_;
  const int me_;
  const Reduce reduce_;
  std::vector<Ends> ends_;  // one, or one for each micro-batch
  std::vector<Copies> copies_;
  const std::shared_ptr<PackingMemory> packing_;
  const int64_t begin_, bytes_;  // in it
  std::vector<GroupMember::Transfer> transfers_;
  // Of the act under way.
  void *in_ = nullptr, *out_ = nullptr;
  size_t act_ = 0;
};

class Member final : public LibraryMember {
 public:
  Member(const CollectiveSpec& spec, const plan::Collective& collective,
         const std::vector<LibraryWork>& works, std::shared_ptr<LibraryGroup> together,
         const std::shared_ptr<PackingMemory>& packing)
      : spec_(spec), together_(std::move(together)) {
    for (size_t i = 0; i < works.size(); ++i)
      operands_.emplace_back(spec, collective, static_cast<int>(i), works[i], packing,
                             operands_.empty() ? 0 : operands_.back().end());
    done_.member = this;
    together_->Add(this);
  }
  ~Member() override { together_->Remove(this); }

  void SetGroup(GroupMember* group) override { group_ = group; }

  void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override {
    for (size_t i = 0; i < operands_.size(); ++i)
      operands_[i].Bring(i < in.size() ? in[i] : nullptr, i < out.size() ? out[i] : nullptr, micro_batch);
    ok_ = ok;
    together_->Arrived();
  }

  int calls() const override { return static_cast<int>(operands_.size()); }
  Status Pack() override {
    return ForEach([](Operand& operand) { return operand.Pack(); });
  }
  // All, also when one fails: the others' calls are enqueued.
  Status Call() override {
    Status first;
    for (Operand& operand : operands_) {
      Status status = operand.Call(group_);
      if (first.ok()) first = std::move(status);
    }
    return first;
  }
  Status Unpack() override {
    return ForEach([](Operand& operand) { return operand.Unpack(); });
  }

  void PostDone(bool ok) override {
    done_.ok = ok_ && ok;
    spec_.worker->Post(&done_);
  }

 private:
  struct Done : Message {
    Member* member;
    bool ok = true;
    void Receive() override { member->spec_.listener->CollectiveDone(ok); }
  };

  template <typename Do>
  Status ForEach(Do what) {
    for (Operand& operand : operands_)
      if (Status status = what(operand); !status.ok()) return status;
    return Status();
  }

  const CollectiveSpec spec_;
  std::vector<Operand> operands_;
  const std::shared_ptr<LibraryGroup> together_;
  GroupMember* group_ = nullptr;
  Done done_;
  bool ok_ = true;  // of the act under way
};

}  // namespace

LibraryGroup::LibraryGroup(int members_here, Backend* backend, std::shared_ptr<std::mutex> enqueuing)
    : members_here_(members_here), backend_(backend), enqueuing_(std::move(enqueuing)) {}

void LibraryGroup::Add(LibraryMember* member) { members_.push_back(member); }
void LibraryGroup::Remove(LibraryMember* member) { std::erase(members_, member); }

void LibraryGroup::Arrived() {
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < members_here_) return;
  arrived_.store(0, std::memory_order_relaxed);
  Enqueue();
}

// A member that fails must still take its part: the others' calls are or will be enqueued. What they get is
// then of no use, which the error that stopped this one tells them.
void LibraryGroup::Enqueue() {
  std::vector<Status> statuses;
  {
    std::lock_guard<std::mutex> lock(*enqueuing_);
    for (LibraryMember* member : members_) statuses.push_back(member->Pack());
    auto call = [this] {
      Status first;
      for (LibraryMember* member : members_) {
        Status status = member->Call();
        if (first.ok()) first = std::move(status);
      }
      return first;
    };
    const bool several = members_here_ > 1 || members_[0]->calls() > 1;
    const Status called = several ? backend_->LaunchTogether(call) : call();
    for (size_t m = 0; m < members_.size(); ++m) {
      if (statuses[m].ok()) statuses[m] = called;
      if (statuses[m].ok()) statuses[m] = members_[m]->Unpack();
      LOG_IF(ERROR, !statuses[m].ok()) << "a collective: " << statuses[m].message();
    }
  }
  for (size_t m = 0; m < members_.size(); ++m) members_[m]->PostDone(statuses[m].ok());
}

std::vector<LibraryWork> ChooseLibraryWork(const plan::Collective& collective) {
  std::vector<LibraryWork> works;
  for (int i = 0; i < OperandsOf(collective); ++i) {
    works.push_back(WorkOfOperand(collective, i));
    if (works.back().kind == LibraryWork::Kind::kNone) return {};
  }
  return works;
}

int64_t PackedBytes(const plan::Collective& collective, const std::vector<LibraryWork>& works, DType dtype) {
  int64_t bytes = 0;
  for (size_t i = 0; i < works.size(); ++i)
    bytes += PackedBytes(collective, static_cast<int>(i), works[i], dtype);
  return bytes;
}

void PackingMemory::Allocate(Device* device) {
  if (bytes_ > 0 && memory_ == nullptr)
    memory_ = device->Allocate(bytes_, "the packing of a stream's collectives");
}

std::unique_ptr<LibraryMember> MakeLibraryMember(const CollectiveSpec& spec,
                                                 const plan::Collective& collective,
                                                 const std::vector<LibraryWork>& works,
                                                 std::shared_ptr<LibraryGroup> together,
                                                 std::shared_ptr<PackingMemory> packing) {
  return std::make_unique<Member>(spec, collective, works, std::move(together), packing);
}

}  // namespace oneflow_like
