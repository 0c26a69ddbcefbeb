#include "actor/device_collectives.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "actor/region_work.h"
#include "core/device/backend.h"
#include "core/device/communicators.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

// --- Events

class EventGroup;

class EventMember final : public CollectiveMember {
 public:
  EventMember(std::shared_ptr<EventGroup> group, const CollectiveSpec& spec,
              const plan::Collective& collective);
  ~EventMember() override;
  void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override;

 private:
  friend class EventGroup;
  struct Done : Message {
    EventMember* member;
    bool ok = true;
    void Receive() override { member->spec_.listener->CollectiveDone(ok); }
  };
  std::vector<RegionWork>& Work() { return work_[work_.size() == 1 ? 0 : micro_batch_]; }
  Status Move();

  std::shared_ptr<EventGroup> group_;
  const CollectiveSpec spec_;
  const int me_;
  Reduce reduce_;
  std::vector<std::vector<RegionWork>> work_;  // one entry, or one for each micro-batch
  std::unique_ptr<DeviceEvent> arrived_ = spec_.stream->MakeEvent(), moved_ = spec_.stream->MakeEvent();
  Done done_;
  // Of the act under way: written before this member arrives.
  std::vector<void*> in_, out_;  // by operand
  int micro_batch_ = 0;
  bool ok_ = true;
};

// The last to arrive enqueues for all, on their streams: every member's stream waits for all arrivals, moves
// its regions, and waits for all others to have moved theirs. Acts of all groups are enqueued one after
// another (one lock), so the waits between streams follow one order and cannot form a circle.
class EventGroup {
 public:
  EventGroup(int members, std::shared_ptr<std::mutex> enqueuing)
      : members_(members), enqueuing_(std::move(enqueuing)) {}

  void Arrived() {
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < static_cast<int>(members_.size())) return;
    arrived_.store(0, std::memory_order_relaxed);
    bool ok = std::all_of(members_.begin(), members_.end(), [](const EventMember* m) { return m->ok_; });
    if (ok) ok = Enqueue();
    for (EventMember* m : members_) {
      m->done_.ok = ok;
      m->spec_.worker->Post(&m->done_);
    }
  }

 private:
  friend class EventMember;
  friend class DeviceCollectives;

  bool Enqueue() {
    std::lock_guard<std::mutex> lock(*enqueuing_);
    bool ok = true;
    for (EventMember* m : members_) {
      if (m->Work().empty()) continue;
      for (EventMember* other : members_) {
        if (other != m) m->spec_.stream->WaitFor(*other->arrived_);
      }
      Status status = m->Move();
      if (!status.ok()) LOG(ERROR) << "collective " << m->spec_.actor << ": " << status.message();
      ok = ok && status.ok();
      m->spec_.stream->Record(m->moved_.get());
    }
    for (EventMember* m : members_) {
      for (EventMember* other : members_) {
        if (other != m && !other->Work().empty()) m->spec_.stream->WaitFor(*other->moved_);
      }
    }
    return ok;
  }

  std::vector<EventMember*> members_;
  std::string actor_;
  std::shared_ptr<std::mutex> enqueuing_;
  std::atomic<int> arrived_{0};
};

EventMember::EventMember(std::shared_ptr<EventGroup> group, const CollectiveSpec& spec,
                         const plan::Collective& collective)
    : group_(std::move(group)), spec_(spec), me_(collective.me()), reduce_(ParseReduce(collective.reduce())) {
  done_.member = this;
  in_.reserve(OperandsOf(collective) + 1);
  out_.reserve(OperandsOf(collective));
  work_ = ReadyWork(spec, collective);
}

EventMember::~EventMember() { group_->members_[me_] = nullptr; }

void EventMember::Arrive(Pieces in, Pieces out, int micro_batch, bool ok) {
  in_.assign(in.begin(), in.end());
  out_.assign(out.begin(), out.end());
  micro_batch_ = micro_batch;
  ok_ = ok;
  spec_.stream->Record(arrived_.get());
  group_->Arrived();
}

Status EventMember::Move() {
  for (RegionWork& w : Work()) {
    for (size_t i = 0; i < w.from.size(); ++i)
      w.from[i].data = group_->members_[w.sources[i]]->in_[w.operand];
    for (size_t i = 0; i < w.to.size(); ++i) w.to[i].data = group_->members_[w.dests[i]]->out_[w.operand];
    Reduce reduce = w.from.size() == 1         ? Reduce::kNone
                    : reduce_ == Reduce::kNone ? Reduce::kSum  // nothing comes here: the identity
                                               : reduce_;
    if (Status s = spec_.stream->Combine(spec_.dtype, reduce, w.box, w.from, w.to); !s.ok()) return s;
  }
  return Status();
}

// --- Through the host's memory

// How many words of devices are still to come, for Quiesce.
class Outstanding {
 public:
  void Begin() { Add(1); }
  void End() { Add(-1); }
  void WaitForNone() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  void Add(int n) {
    std::lock_guard<std::mutex> lock(mutex_);
    count_ += n;
    if (count_ == 0) changed_.notify_all();
  }
  std::mutex mutex_;  // device threads against the one that closes
  std::condition_variable changed_;
  int count_ = 0;
};

// A member's pieces of one operand on one side.
struct HostCopy {
  std::vector<size_t> bytes;  // one, or one for each micro-batch
  std::unique_ptr<Memory> memory;
  void* piece = nullptr;  // on the device, of the act under way

  size_t At(int micro_batch) const { return bytes[bytes.size() == 1 ? 0 : micro_batch]; }
};

// Empty when the member has no such end.
std::vector<size_t> Bytes(const google::protobuf::RepeatedPtrField<plan::Box>& boxes, DType dtype) {
  std::vector<size_t> bytes;
  for (const plan::Box& box : boxes) bytes.push_back(ToBox(box).elements() * SizeOf(dtype));
  return bytes;
}
size_t CountsBytes(const plan::Collective& collective) {
  return static_cast<size_t>(collective.counts()) * SizeOf(DType::kInt32);
}
size_t Most(const std::vector<size_t>& bytes) {
  return bytes.empty() ? 0 : std::max<size_t>(1, *std::max_element(bytes.begin(), bytes.end()));
}

class StagedMember final : public CollectiveMember, private CollectiveListener {
 public:
  StagedMember(const CollectiveSpec& spec, const plan::Collective& collective, Collectives* host,
               Outstanding* outstanding)
      : spec_(spec), outstanding_(outstanding) {
    const std::string what = Cat("the host's copy of collective ", spec.actor);
    auto add = [&](std::vector<size_t> bytes, std::vector<HostCopy>* copies) {
      if (bytes.empty()) return;
      HostCopy copy{std::move(bytes), nullptr};
      copy.memory = spec.device->AllocateHost(Most(copy.bytes), what);
      copies->push_back(std::move(copy));
    };
    for (int i = 0; i < OperandsOf(collective); ++i) {
      const plan::Piece& piece = PieceOf(collective, i, collective.me());
      add(Bytes(piece.in(), spec.dtype), &in_);
      add(Bytes(piece.out(), spec.dtype), &out_);
    }
    if (collective.counts() > 0) add({CountsBytes(collective)}, &in_);
    for (const HostCopy& copy : in_) in_host_.push_back(copy.memory->data());
    for (const HostCopy& copy : out_) out_host_.push_back(copy.memory->data());
    CollectiveSpec on_host = spec;
    on_host.listener = this;
    on_host.stream = nullptr;
    on_host.device = nullptr;
    member_ = host->Join(on_host, collective);
    copied_.member = this;
  }

  void Arrive(Pieces in, Pieces out, int micro_batch, bool ok) override {
    for (size_t i = 0; i < out_.size(); ++i) out_[i].piece = i < out.size() ? out[i] : nullptr;
    micro_batch_ = micro_batch;
    if (!ok) return ArriveOnHost(false);
    // What comes is written to the host's copy once the last act's has been read, what goes is read once it
    // is there.
    for (size_t i = 0; i < std::min(in_.size(), in.size()); ++i)
      spec_.stream->CopyOut(in_host_[i], in[i], in_[i].At(micro_batch));
    outstanding_->Begin();
    spec_.stream->NotifyWhenDone([this](Status status) {
      copied_.ok = status.ok();
      spec_.worker->Post(&copied_);
      outstanding_->End();
    });
  }

 private:
  struct Copied : Message {
    StagedMember* member;
    bool ok = true;
    void Receive() override { member->ArriveOnHost(ok); }
  };

  void ArriveOnHost(bool ok) { member_->Arrive(in_host_, out_host_, micro_batch_, ok); }
  void CollectiveWorked(int64_t start, int64_t end) override { spec_.listener->CollectiveWorked(start, end); }
  void CollectiveDone(bool ok) override {
    for (size_t i = 0; ok && i < out_.size(); ++i)
      if (out_[i].piece != nullptr)
        spec_.stream->CopyIn(out_[i].piece, out_host_[i], out_[i].At(micro_batch_));
    spec_.listener->CollectiveDone(ok);
  }

  const CollectiveSpec spec_;
  Outstanding* const outstanding_;
  std::vector<HostCopy> in_, out_;  // by operand; empty when there is no such end
  std::vector<void*> in_host_, out_host_;
  std::unique_ptr<CollectiveMember> member_;
  Copied copied_;
  int micro_batch_ = 0;
};

// --- Which way

// What everybody must know of a rank.
struct RankPlace {
  int process = 0;
  std::string hardware;  // empty: the host
  // Whether its process has the library, and whether its groups may share devices with other processes.
  enum Library { kNone, kOwnDevices, kSharedDevices };
  int library = kNone;
};

std::string ToText(const std::vector<int>& ranks, const std::vector<Device*>& devices, int library) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    std::string hardware = devices[i]->hardware();
    text += Cat(ranks[i], " ", library, " ", hardware.empty() ? "-" : hardware, "\n");
  }
  return text;
}

class DeviceCollectives final : public Collectives {
 public:
  explicit DeviceCollectives(DeviceCollectivesOptions options) : options_(std::move(options)) {
    for (size_t i = 0; i < options_.ranks.size(); ++i) devices_[options_.ranks[i]] = options_.devices[i];
    const Backend* backend = options_.backend;
    const int library = backend == nullptr || !backend->HasGroups() ? RankPlace::kNone
                        : backend->GroupsShareDevices()             ? RankPlace::kSharedDevices
                                                                    : RankPlace::kOwnDevices;
    std::string mine = ToText(options_.ranks, options_.devices, library);
    std::vector<std::string> all = Exchange(Cat("devices of plan ", options_.plan), mine);
    for (size_t process = 0; process < all.size(); ++process) {
      std::istringstream lines(all[process]);
      int rank = 0;
      RankPlace place;
      while (lines >> rank >> place.library >> place.hardware) {
        if (place.hardware == "-") place.hardware.clear();
        place.process = static_cast<int>(process);
        places_[rank] = place;
        ++ranks_of_process_[place.process];
        share_devices_ = share_devices_ && place.library == RankPlace::kSharedDevices;
      }
    }
  }

  // All leave before any is waited for.
  ~DeviceCollectives() override {
    for (auto& [ranks, members] : connected_) {
      for (auto& [me, member] : members) member->BeginLeaving();
    }
  }

  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                         const plan::Collective& collective) override {
    if (spec.stream->synchronous()) return options_.host->Join(spec, collective);
    std::vector<int> ranks(collective.rank().begin(), collective.rank().end());
    CheckMembers(spec, collective);
    const std::vector<LibraryWork> works = ChooseLibraryWork(collective);
    if (OwnDevices(ranks) && !works.empty()) {
      auto& [device, packing] = packing_[spec.stream];
      device = spec.device;
      if (packing == nullptr) packing = std::make_shared<PackingMemory>();
      auto member =
          MakeLibraryMember(spec, collective, works, LibraryGroupOf(spec, collective, ranks), packing);
      library_members_[ranks].push_back({collective.me(), member.get()});
      return member;
    }
    if (InReach(ranks)) return JoinEvents(spec, collective, ranks);
    return std::make_unique<StagedMember>(spec, collective, options_.host, &outstanding_);
  }

  void CheckComplete() override {
    for (const auto& [name, group] : event_groups_) {
      for (size_t i = 0; i < group->members_.size(); ++i) {
        if (group->members_[i] == nullptr) {
          Fail("collective ", group->actor_, " of plan '", std::get<0>(name), "' waits for rank ",
               std::get<2>(name)[i], ", which this process does not host");
        }
      }
    }
    options_.host->CheckComplete();
    for (auto& [stream, packing] : packing_) packing.second->Allocate(packing.first);
    ConnectLibrary();
  }

  void Cancel() override {
    std::lock_guard<std::mutex> lock(cancelling_);
    if (std::exchange(cancelled_, true)) return;
    for (auto& [ranks, members] : connected_) {
      for (auto& [me, member] : members) member->Abort();
    }
    options_.host->Cancel();
  }

  void Quiesce() override {
    outstanding_.WaitForNone();
    options_.host->Quiesce();
  }

 private:
  std::vector<std::string> Exchange(const std::string& what, const std::string& mine) const {
    return options_.exchange ? options_.exchange(what, mine) : std::vector<std::string>{mine};
  }

  // Whether the group can be the library's: every member has a device of its own, or a process of its own if
  // that is enough for the libraries of the job. Several ranks of a process would be several threads that
  // launch onto a device which other processes share, in an order that nobody keeps.
  bool OwnDevices(const std::vector<int>& ranks) const {
    std::set<std::string> devices;
    bool shared = share_devices_;
    for (int rank : ranks) {
      auto place = places_.find(rank);
      if (place == places_.end() || place->second.hardware.empty()) return false;
      if (place->second.library == RankPlace::kNone) return false;
      devices.insert(place->second.hardware);
      shared = shared && ranks_of_process_.at(place->second.process) == 1;
    }
    return shared || devices.size() == ranks.size();
  }

  bool InReach(const std::vector<int>& ranks) const {
    for (int rank : ranks) {
      auto device = devices_.find(rank);
      if (device == devices_.end() || device->second->hardware().empty()) return false;
      for (int other : ranks) {
        auto there = devices_.find(other);
        if (there == devices_.end() || !device->second->Reaches(*there->second)) return false;
      }
    }
    return true;
  }

  std::unique_ptr<CollectiveMember> JoinEvents(const CollectiveSpec& spec, const plan::Collective& collective,
                                               const std::vector<int>& ranks) {
    std::shared_ptr<EventGroup>& group = event_groups_[{spec.plan, collective.id(), ranks}];
    if (group == nullptr) {
      group = std::make_shared<EventGroup>(static_cast<int>(ranks.size()), enqueuing_);
      group->actor_ = spec.actor;
    }
    if (group->members_[collective.me()] != nullptr) {
      Fail("collective ", spec.actor, ": rank ", ranks[collective.me()], " takes part twice");
    }
    auto member = std::make_unique<EventMember>(group, spec, collective);
    group->members_[collective.me()] = member.get();
    return member;
  }

  std::shared_ptr<LibraryGroup> LibraryGroupOf(const CollectiveSpec& spec, const plan::Collective& collective,
                                               const std::vector<int>& ranks) {
    int here = 0;
    std::set<std::string> hardware;
    for (int rank : ranks) here += devices_.count(rank) != 0 ? 1 : 0;
    for (const auto& [rank, device] : devices_) hardware.insert(device->hardware());
    hardware.erase("");
    // Launched by several processes and by several threads here, collectives would have to be in one order
    // that nobody keeps; calls that wait for one on one card would hold up another one's launch.
    if (here < static_cast<int>(ranks.size()) && hardware.size() > 1) {
      Fail("collective ", spec.actor, " joins ranks of several processes, and this process has ",
           hardware.size(), " GPUs: start one process for each GPU (--processes), or one process with all");
    }
    std::shared_ptr<LibraryGroup>& group = library_groups_[{spec.plan, collective.id(), ranks}];
    if (group == nullptr) group = std::make_shared<LibraryGroup>(here, options_.backend, enqueuing_);
    return group;
  }

  // One communicator for each set of ranks. Whoever hosts a group's first member makes its identifier; all
  // connect their groups in the same order, so nobody waits in a circle.
  void ConnectLibrary() {
    if (library_members_.empty() && !options_.exchange) return;
    std::string mine;
    for (const auto& [ranks, members] : library_members_) {
      if (places_[ranks[0]].process == places_[options_.ranks[0]].process) {
        std::string id = options_.backend->MakeGroupId();
        mine += Cat(Name(ranks), " ", id.size(), " ", id, "\n");
      }
    }
    std::map<std::string, std::string> ids;
    for (const std::string& text : Exchange(Cat("groups of plan ", options_.plan), mine)) {
      std::istringstream parts(text);
      std::string name;
      size_t bytes = 0;
      while (parts >> name >> bytes) {
        parts.get();
        std::string id(bytes, '\0');
        parts.read(id.data(), static_cast<std::streamsize>(bytes));
        ids[name] = id;
      }
    }
    // Of all processes, the largest first: a group is made of one that has its ranks where there is one.
    std::vector<std::vector<int>> groups;
    for (const auto& [name, id] : ids) groups.push_back(RanksOf(name));
    std::stable_sort(groups.begin(), groups.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    for (size_t g = 0; g < groups.size(); ++g) {
      const size_t parent = ParentOf(groups, g);
      MakeEnds(groups[g], parent == g ? nullptr : &groups[parent], ids[Name(groups[g])]);
    }
    for (auto& [ranks, members] : library_members_) {
      for (auto& [me, member] : members) member->SetGroup(connected_[ranks][me].get());
    }
  }

  // The part of the group that is here: nothing where none of its, or of its parent's, ranks are.
  void MakeEnds(const std::vector<int>& ranks, const std::vector<int>* parent, const std::string& id) {
    if (parent != nullptr && connected_.count(*parent) != 0) {
      std::map<int, GroupMember*> parents;
      for (auto& [me, member] : connected_[*parent]) parents[me] = member.get();
      auto ends = options_.backend->Split({Name(*parent), *parent}, parents, SpecOf(ranks));
      if (ends.has_value()) return Keep(ranks, std::move(*ends));
    }
    std::vector<int> here;
    std::vector<Device*> devices;
    for (size_t m = 0; m < ranks.size(); ++m) {
      auto device = devices_.find(ranks[m]);
      if (device == devices_.end()) continue;
      here.push_back(static_cast<int>(m));
      devices.push_back(device->second);
    }
    if (here.empty()) return;
    auto ends = options_.backend->Connect(id, SpecOf(ranks), here, devices);
    std::map<int, std::unique_ptr<GroupMember>> made;
    for (size_t i = 0; i < here.size(); ++i) made[here[i]] = std::move(ends[i]);
    Keep(ranks, std::move(made));
  }

  void Keep(const std::vector<int>& ranks, std::map<int, std::unique_ptr<GroupMember>> ends) {
    if (ends.empty()) return;
    std::lock_guard<std::mutex> lock(cancelling_);
    for (auto& [me, end] : ends) {
      if (cancelled_) end->Abort();
      connected_[ranks][me] = std::move(end);
    }
  }

  static std::vector<int> RanksOf(std::string name) {
    std::replace(name.begin(), name.end(), ',', ' ');
    std::istringstream words(name);
    std::vector<int> ranks;
    for (int rank = 0; words >> rank;) ranks.push_back(rank);
    return ranks;
  }

  GroupSpec SpecOf(const std::vector<int>& ranks) const {
    GroupSpec spec{Name(ranks), ranks};
    spec.at_once = options_.link_streams;
    return spec;
  }

  static std::string Name(const std::vector<int>& ranks) {
    std::string name;
    for (int rank : ranks) name += Cat(name.empty() ? "" : ",", rank);
    return name;
  }

  const DeviceCollectivesOptions options_;
  std::map<int, Device*> devices_;   // hosted here, by rank
  std::map<int, RankPlace> places_;  // of the job, by rank
  std::map<int, int> ranks_of_process_;
  bool share_devices_ = true;  // the libraries of all processes let them
  std::shared_ptr<std::mutex> enqueuing_ = std::make_shared<std::mutex>();
  std::map<std::tuple<std::string, int64_t, std::vector<int>>, std::shared_ptr<EventGroup>> event_groups_;
  std::map<std::tuple<std::string, int64_t, std::vector<int>>, std::shared_ptr<LibraryGroup>> library_groups_;
  std::map<std::vector<int>, std::vector<std::pair<int, LibraryMember*>>> library_members_;
  std::map<DeviceStream*, std::pair<Device*, std::shared_ptr<PackingMemory>>> packing_;
  std::mutex cancelling_;  // a peer may be lost while groups are made
  bool cancelled_ = false;
  std::map<std::vector<int>, std::map<int, std::unique_ptr<GroupMember>>> connected_;
  Outstanding outstanding_;
};

}  // namespace

GroupMemory MemoryOfMember(const plan::Collective& collective, DType dtype, GroupWay way) {
  GroupMemory memory;
  if (way == GroupWay::kLibrary) {
    memory.device = PackedBytes(collective, ChooseLibraryWork(collective), dtype);
  } else if (way == GroupWay::kStaged) {
    for (int i = 0; i < OperandsOf(collective); ++i) {
      const plan::Piece& piece = PieceOf(collective, i, collective.me());
      memory.host += static_cast<int64_t>(Most(Bytes(piece.in(), dtype)) + Most(Bytes(piece.out(), dtype)));
    }
    memory.host += static_cast<int64_t>(CountsBytes(collective));
  }
  return memory;
}

std::unique_ptr<Collectives> MakeDeviceCollectives(DeviceCollectivesOptions options) {
  return std::make_unique<DeviceCollectives>(std::move(options));
}

}  // namespace oneflow_like
