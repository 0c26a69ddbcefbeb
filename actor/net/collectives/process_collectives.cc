#include "actor/net/collectives/process_collectives.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

#include "actor/net/collectives/monitor.h"
#include "actor/net/collectives/process_group.h"
#include "actor/net/collectives/staging.h"
#include "actor/net/collectives/work.pb.h"
#include "actor/net/shared_memory/inbox.h"
#include "actor/net/talk/job.h"
#include "actor/region_work.h"
#include "core/error.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

using wire::GroupHeader;
using wire::GroupMessage;
using wire::PieceAddress;

class Instance;

int64_t LargestPiece(const plan::Collective& collective, int operand) {
  int64_t largest = 0;
  for (int member = 0; member < collective.rank_size(); ++member) {
    const plan::Piece& piece = PieceOf(collective, operand, member);
    for (const plan::Box& box : piece.in()) largest = std::max(largest, ToBox(box).elements());
    for (const plan::Box& box : piece.out()) largest = std::max(largest, ToBox(box).elements());
  }
  return largest;
}

class ProcessCollectivesImpl final : public ProcessCollectives, public Channel, public GroupHost {
 public:
  ProcessCollectivesImpl(Job* job, const ProcessCollectivesOptions& options)
      : job_(job),
        options_(options),
        node_of_process_(NodeOfProcess(job)),
        monitor_(job->network(), job->process(), job->processes(),
                 [job](int p) { return job->Describe(p); }) {
    MakeInbox();
    MakeStaging();
    retry_.host = this;
    job->network()->SetChannel(Network::kCollective, this);
    job->network()->SetChannel(Network::kMonitor, &monitor_);
    job->AddAwaited(this, [this] { return Awaited(); });
    job->AddFailureListener(this, [this](const std::string&) { Fail(); });
  }

  ~ProcessCollectivesImpl() override {
    job_->RemoveAwaited(this);
    job_->RemoveFailureListener(this);
    OnNetwork([this] {
      job_->network()->SetChannel(Network::kCollective, nullptr);
      job_->network()->SetChannel(Network::kMonitor, nullptr);
      early_.clear();
      // It stays while the network does, since somebody may still write to it.
      if (inbox_ != nullptr) inbox_->SetHandler(nullptr);
    });
  }

  std::unique_ptr<Collectives> Open(int64_t instance) override;
  int64_t staging_bytes() const override { return staging_bytes_.load(std::memory_order_relaxed); }
  int staging_taken() override {
    int taken = 0;
    OnNetwork([&] { taken = staging_->taken(); });
    return taken;
  }

  // Channel.
  void Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) override;

  // By the AllGather of CheckComplete.
  int64_t inbox_offset() const {
    if (inbox_ == nullptr) return -1;
    return static_cast<const char*>(inbox_->address()) - job_->region()->base(job_->process());
  }
  void ConnectInboxes(const std::vector<int64_t>& offsets);
  bool has_inboxes() const { return inboxes_; }

  // GroupHost.
  void SendInNode(int peer, const void* message, size_t bytes) override;
  Network* network() override { return job_->network(); }
  SharedRegion* region() override { return job_->region(); }
  int process() const override { return job_->process(); }
  char* TakeStaging(ProcessGroup* group, bool oldest_op) override;
  void GiveStaging(ProcessGroup* group, char* buffer) override;
  int staged_ops() const override { return std::max(1, staging_->buffers() / Staging::kKept); }
  void AwaitStaging(ProcessGroup* group) override { blocked_.insert(group); }
  void OldestEnded() override { WantRetry(); }
  void CollectiveBegins() override { monitor_.CollectiveBegins(); }
  void CollectiveEnds() override { monitor_.CollectiveEnds(); }
  void Pulled(int process, int64_t bytes, int64_t ns) override { monitor_.Pulled(process, bytes, ns); }

 private:
  friend class Instance;
  struct Retry : Message {
    ProcessCollectivesImpl* host;
    void Receive() override { host->RetryBlocked(); }
  };
  struct Run : Message {
    std::function<void()> what;
    Completion done;
    void Receive() override {
      what();
      done.Signal();
    }
  };
  struct Early {
    int from;
    std::string header;
    std::unique_ptr<Incoming> data;
  };

  void MakeInbox();
  void MakeStaging();
  void WantRetry() {
    if (blocked_.empty() || retry_posted_) return;
    retry_posted_ = true;
    job_->network()->Post(&retry_);
  }
  void RetryBlocked() {
    retry_posted_ = false;
    std::vector<ProcessGroup*> blocked(blocked_.begin(), blocked_.end());
    blocked_.clear();
    for (ProcessGroup* group : blocked) group->Retry();
  }
  // Runs `what` on the network's thread and waits for it.
  void OnNetwork(const std::function<void()>& what) {
    Run run;
    run.what = what;
    job_->network()->Post(&run);
    run.done.Wait();
  }
  void Fail();
  std::string Awaited() const;

  Job* const job_;
  const ProcessCollectivesOptions options_;
  std::vector<int> node_of_process_;
  std::shared_ptr<Inbox> inbox_;  // nullptr: messages inside a node go through the network, too
  bool inboxes_ = false;          // everybody has one. The user's thread
  bool polled_ = false;
  Monitor monitor_;                        // the network's thread
  std::atomic<int64_t> staging_bytes_{0};  // all runtimes' together
  // The network's thread from here on.
  std::map<int64_t, Instance*> instances_;
  std::set<int64_t> closed_;
  std::map<int64_t, std::vector<Early>> early_;  // for instances that are not registered yet
  std::unique_ptr<Staging> staging_;
  std::set<ProcessGroup*> blocked_;
  Retry retry_;
  bool retry_posted_ = false, failed_ = false;
};

// What one runtime joins. On the user's thread until it is registered.
class Instance final : public Collectives {
 public:
  Instance(ProcessCollectivesImpl* host, int64_t number)
      : host_(host), number_(number), local_(MakeLocalCollectives()) {}
  ~Instance() override { Quiesce(); }

  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                         const plan::Collective& collective) override;
  void CheckComplete() override;
  void Quiesce() override;

 private:
  friend class ProcessCollectivesImpl;
  struct Wanted {
    CollectiveSpec spec;
    plan::Collective collective;
    std::vector<std::pair<int, ProcessMember*>> members;
    std::map<int, std::vector<std::vector<MemberRegion>>> work;  // of all members, by act
  };
  using Key = std::pair<int64_t, std::vector<int>>;

  int ProcessOf(int rank) const { return rank / host_->job_->ranks_per_process(); }
  static void AddWork(const plan::Collective& collective, Wanted* wanted);
  std::string MyWork() const;
  int64_t ReadWork(const std::string& text);  // gives where that process has its inbox
  GroupShape ShapeFor(GroupShape shape, const Wanted& wanted, int operand) const;
  static std::vector<MemberRegion> RegionsOf(const Wanted& wanted, int operand, size_t act);
  std::shared_ptr<ProcessGroup> MakeGroup(int64_t id, const Wanted& wanted);
  void SortPositions();
  // The first act of the job's order that this process has not ended.
  bool IsHead(const ProcessGroup* group);
  int Transfers() const;

  ProcessCollectivesImpl* const host_;
  const int64_t number_;
  std::unique_ptr<Collectives> local_;
  std::map<Key, Wanted> wanted_;
  std::set<Worker*> workers_;  // of members
  std::map<int64_t, std::shared_ptr<ProcessGroup>> groups_;
  bool quiet_ = false;
  std::unique_ptr<Staging> kept_;  // for the head's oldest chunk; nullptr without groups
  struct Position {
    int64_t position;
    ProcessGroup* group;
    int64_t act;  // of the step
  };
  std::vector<Position> order_;  // of one step
  int64_t head_step_ = 0;
  size_t head_ = 0;
};

std::unique_ptr<CollectiveMember> Instance::Join(const CollectiveSpec& spec,
                                                 const plan::Collective& collective) {
  const int here = host_->process();
  if (std::all_of(collective.rank().begin(), collective.rank().end(),
                  [&](int rank) { return ProcessOf(rank) == here; })) {
    return local_->Join(spec, collective);
  }
  std::vector<int> ranks(collective.rank().begin(), collective.rank().end());
  const int me = collective.me();
  CheckMembers(spec, collective);
  Wanted& wanted = wanted_[{collective.id(), ranks}];
  wanted.spec = spec;
  workers_.insert(spec.worker);
  if (wanted.members.empty()) wanted.collective = collective;
  for (const auto& [index, member] : wanted.members) {
    if (index == me) Fail("collective ", spec.actor, ": rank ", ranks[me], " takes part twice");
  }
  AddWork(collective, &wanted);
  auto member = std::make_unique<ProcessMember>(host_->network(), spec, me, OperandsOf(collective));
  wanted.members.push_back({me, member.get()});
  return member;
}

void Instance::AddWork(const plan::Collective& collective, Wanted* wanted) {
  std::vector<std::vector<MemberRegion>>& acts = wanted->work[collective.me()];
  acts.clear();
  for (const plan::RegionList& list : collective.work()) {
    acts.emplace_back();
    for (const plan::Region& r : list.region()) acts.back().push_back({ToRegion(r), collective.me()});
  }
}

std::string Instance::MyWork() const {
  wire::CollectiveWork all;
  all.set_inbox(host_->inbox_offset());
  for (const auto& [key, wanted] : wanted_) {
    for (const auto& [member, acts] : wanted.work) {
      wire::MemberWork* work = all.add_member();
      work->set_id(key.first);
      for (int rank : key.second) work->add_rank(rank);
      work->set_member(member);
      for (const auto& regions : acts) {
        plan::RegionList* list = work->add_act();
        for (const MemberRegion& r : regions) Set(r, list->add_region());
      }
    }
  }
  return all.SerializeAsString();
}

int64_t Instance::ReadWork(const std::string& text) {
  wire::CollectiveWork all;
  CHECK(all.ParseFromString(text));
  for (const wire::MemberWork& work : all.member()) {
    auto at = wanted_.find({work.id(), {work.rank().begin(), work.rank().end()}});
    if (at == wanted_.end()) continue;  // a group without members here
    plan::Collective collective;
    collective.set_me(work.member());
    *collective.mutable_work() = work.act();
    AddWork(collective, &at->second);
  }
  return all.inbox();
}

void Instance::CheckComplete() {
  local_->CheckComplete();
  std::vector<std::string> all = host_->job_->AllGather(Cat("collectives of runtime ", number_), MyWork());
  std::vector<int64_t> inboxes(all.size(), host_->inbox_offset());
  for (int p = 0; p < host_->job_->processes(); ++p) {
    if (p != host_->process()) inboxes[p] = ReadWork(all[p]);
  }
  host_->ConnectInboxes(inboxes);
  for (auto& [key, wanted] : wanted_) {
    for (size_t m = 0; m < key.second.size(); ++m) {
      if (wanted.work.count(static_cast<int>(m)) == 0) {
        Fail("collective ", wanted.spec.actor, " of plan '", wanted.spec.plan, "' waits for rank ",
             key.second[m], ", whose process does not take part");
      }
    }
    // A rank is in one group of a logical node, so the first names it.
    const int64_t id = key.first << 24 | key.second[0];
    std::shared_ptr<ProcessGroup> group = MakeGroup(id, wanted);
    for (const auto& [index, member] : wanted.members) {
      group->Join(index, member);
      member->set_group(group);
    }
    groups_[id] = std::move(group);
  }
  wanted_.clear();
  SortPositions();
  if (!groups_.empty()) {
    const int64_t chunk = host_->options_.chunk_bytes;
    kept_ =
        std::make_unique<Staging>(MakeHostDevice(0, host_->region())
                                      ->Allocate(Staging::kKept * chunk, "staging of the oldest collective"),
                                  chunk);
    host_->staging_bytes_ += kept_->bytes();
  }
  for (Worker* worker : workers_) worker->WhenIdle(host_->network()->idle_work());
  host_->OnNetwork([this] {
    host_->instances_[number_] = this;
    if (host_->failed_) {
      for (const auto& [id, group] : groups_) group->Fail();
    }
    auto early = std::move(host_->early_[number_]);
    host_->early_.erase(number_);
    for (auto& e : early) host_->Deliver(e.from, e.header.data(), e.header.size(), std::move(e.data));
  });
}

// Where messages inside a node go through the network small data goes with them: one trip instead of two.
GroupShape Instance::ShapeFor(GroupShape shape, const Wanted& wanted, int operand) const {
  if (!host_->has_inboxes() &&
      LargestPiece(wanted.collective, operand) * static_cast<int64_t>(SizeOf(wanted.spec.dtype)) <=
          host_->options_.latency_bound_bytes)
    std::iota(shape.node_of_process.begin(), shape.node_of_process.end(), 0);
  return shape;
}

std::vector<MemberRegion> Instance::RegionsOf(const Wanted& wanted, int operand, size_t act) {
  std::vector<MemberRegion> regions;
  for (const auto& [member, work] : wanted.work) {
    if (work.empty()) continue;
    for (const MemberRegion& region : work[work.size() == 1 ? 0 : act])
      if (region.operand == operand) regions.push_back(region);
  }
  return regions;
}

std::shared_ptr<ProcessGroup> Instance::MakeGroup(int64_t id, const Wanted& wanted) {
  ProcessGroupSpec spec;
  spec.instance = number_;
  spec.id = id;
  spec.plan = wanted.spec.plan;
  spec.actor = wanted.spec.actor;
  spec.primitive = wanted.collective.primitive();
  spec.dtype = wanted.spec.dtype;
  spec.reduce = ParseReduce(wanted.collective.reduce());
  spec.shape.node_of_process = host_->node_of_process_;
  for (int rank : wanted.collective.rank()) spec.shape.process.push_back(ProcessOf(rank));
  std::optional<CollectiveAlgorithm> algorithm;
  if (CollectiveAlgorithm named; ParseCollectiveAlgorithm(wanted.collective.algorithm(), &named))
    algorithm = named;
  if (const int unit = wanted.collective.unit(); unit > 0)
    for (int p = 0; p < host_->job_->processes(); ++p)
      spec.shape.unit_of_process.push_back(p * host_->job_->ranks_per_process() / unit);
  spec.operands = OperandsOf(wanted.collective);
  spec.counted = wanted.collective.counts() > 0;
  spec.rows = wanted.collective.rows();
  spec.pieces = {wanted.collective.piece().begin(), wanted.collective.piece().end()};
  size_t acts = 1;
  for (const auto& [member, work] : wanted.work) acts = std::max(acts, work.size());
  spec.ops.resize(acts);
  std::vector<int> chunks(acts, 0);
  bool apart = true;  // nobody reads another process's pieces
  for (int operand = 0; operand < spec.operands; ++operand) {
    const GroupShape shape = ShapeFor(spec.shape, wanted, operand);
    apart = apart && shape.node_of_process != spec.shape.node_of_process;
    for (size_t act = 0; act < acts; ++act)
      AddChunkOps(RegionsOf(wanted, operand, act), shape, host_->process(),
                  static_cast<int64_t>(SizeOf(spec.dtype)),
                  {host_->options_.chunk_bytes, host_->options_.latency_bound_bytes}, &chunks[act],
                  &spec.ops[act], algorithm);
  }
  if (apart) std::iota(spec.shape.node_of_process.begin(), spec.shape.node_of_process.end(), 0);
  spec.positions = wanted.spec.positions;
  spec.positions.resize(wanted.spec.acts, static_cast<int64_t>(groups_.size()));
  return std::make_shared<ProcessGroup>(host_, std::move(spec));
}

void Instance::SortPositions() {
  for (const auto& [id, group] : groups_) {
    for (size_t act = 0; act < group->spec().positions.size(); ++act) {
      order_.push_back({group->spec().positions[act], group.get(), static_cast<int64_t>(act)});
    }
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [](const Position& a, const Position& b) { return a.position < b.position; });
}

bool Instance::IsHead(const ProcessGroup* group) {
  while (!order_.empty()) {
    const Position& p = order_[head_];
    const int64_t acts = static_cast<int64_t>(p.group->spec().positions.size());
    if (p.group->acts_done() <= head_step_ * acts + p.act) return p.group == group;
    if (++head_ == order_.size()) {
      head_ = 0;
      ++head_step_;
    }
  }
  return false;
}

int Instance::Transfers() const {
  int transfers = 0;
  for (const auto& [id, group] : groups_) transfers += group->transfers();
  return transfers;
}

void Instance::Quiesce() {
  if (quiet_) return;
  quiet_ = true;
  local_->Quiesce();
  host_->OnNetwork([this] {
    for (const auto& [id, group] : groups_) group->Fail();
    for (const auto& [id, group] : groups_) host_->blocked_.erase(group.get());
    host_->instances_.erase(number_);
    host_->closed_.insert(number_);
    host_->early_.erase(number_);
  });
  // What the network still has of our pieces. A peer that fails does not keep us: its transfers end then.
  for (;;) {
    int left = 0;
    host_->OnNetwork([&] { left = Transfers(); });
    if (left == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (kept_ != nullptr) host_->staging_bytes_ -= kept_->bytes();
}

void ProcessCollectivesImpl::MakeInbox() {
  if (job_->region() == nullptr || !job_->network()->polls()) return;
  const int n = job_->processes();
  inbox_ = std::make_shared<Inbox>(
      job_->process(), n,
      MakeHostDevice(0, job_->region())->Allocate(Inbox::BytesFor(n), "messages between processes"));
  inbox_->SetHandler(
      [this](int from, const void* message, size_t bytes) { Deliver(from, message, bytes, nullptr); });
}

// The inbox takes its memory from what is for staging.
void ProcessCollectivesImpl::MakeStaging() {
  const int64_t inbox = inbox_ == nullptr ? 0 : static_cast<int64_t>(Inbox::BytesFor(job_->processes()));
  const int64_t bytes = std::max(options_.staging_bytes - inbox, options_.chunk_bytes);
  staging_ = std::make_unique<Staging>(
      MakeHostDevice(0, job_->region())->Allocate(bytes, "staging of collectives between processes"),
      options_.chunk_bytes);
  staging_bytes_ = staging_->bytes() + inbox;
}

void ProcessCollectivesImpl::ConnectInboxes(const std::vector<int64_t>& offsets) {
  inboxes_ = std::none_of(offsets.begin(), offsets.end(), [](int64_t offset) { return offset < 0; });
  if (!inboxes_) return;
  OnNetwork([&] {
    if (!polled_) job_->network()->AddPoller(inbox_);
    polled_ = true;
    for (int p = 0; p < job_->processes(); ++p) {
      if (p == process() || node_of_process_[p] != node_of_process_[process()]) continue;
      inbox_->Connect(p, job_->region()->base(p) + offsets[p]);
    }
  });
}

void ProcessCollectivesImpl::SendInNode(int peer, const void* message, size_t bytes) {
  Inbox::Outcome outcome = Inbox::Outcome::kFull;
  if (inbox_ != nullptr && inbox_->Connected(peer)) outcome = inbox_->Send(peer, message, bytes);
  // In which order they come does not matter.
  if (outcome == Inbox::Outcome::kFull) {
    network()->Send(peer, Network::kCollective, message, bytes, nullptr, 0, nullptr);
  } else if (outcome == Inbox::Outcome::kRing) {
    const GroupHeader ring{GroupMessage::kRing, 1, 0, 0, 0, 0, 0, 0};
    network()->Send(peer, Network::kCollective, &ring, sizeof ring, nullptr, 0, nullptr);
  }
}

std::unique_ptr<Collectives> ProcessCollectivesImpl::Open(int64_t instance) {
  return std::make_unique<Instance>(this, instance);
}

void ProcessCollectivesImpl::Deliver(int from, const void* header, size_t header_bytes,
                                     std::unique_ptr<Incoming> data) {
  struct {
    GroupHeader header;
    PieceAddress address[wire::kMostPieces];
  } message;
  CHECK_LE(header_bytes, sizeof message);
  CHECK_GE(header_bytes, sizeof(GroupHeader));
  memcpy(&message, header, header_bytes);
  CHECK_EQ(header_bytes, sizeof(GroupHeader) + message.header.pieces * sizeof(PieceAddress));
  if (message.header.kind == GroupMessage::kRing) return;
  monitor_.Came(from, message.header.sent);
  auto at = instances_.find(message.header.instance);
  if (at == instances_.end()) {
    if (closed_.count(message.header.instance) == 0) {
      early_[message.header.instance].push_back(
          {from, std::string(static_cast<const char*>(header), header_bytes), std::move(data)});
    }
    return;
  }
  auto group = at->second->groups_.find(message.header.group);
  if (group == at->second->groups_.end()) {
    LOG(ERROR) << "process " << from << " speaks of a collective that has no member here";
    return;
  }
  group->second->Deliver(from, message.header, message.address, std::move(data));
}

char* ProcessCollectivesImpl::TakeStaging(ProcessGroup* group, bool oldest_op) {
  char* buffer = staging_->Take();
  if (buffer != nullptr) return buffer;
  Instance* instance = instances_.at(group->spec().instance);
  if (oldest_op && instance->IsHead(group)) buffer = instance->kept_->Take();
  if (buffer == nullptr) blocked_.insert(group);
  return buffer;
}

void ProcessCollectivesImpl::GiveStaging(ProcessGroup* group, char* buffer) {
  if (staging_->Owns(buffer)) {
    staging_->Give(buffer);
  } else if (auto at = instances_.find(group->spec().instance); at != instances_.end()) {
    at->second->kept_->Give(buffer);
  }  // else nobody will take it any more
  WantRetry();
}

void ProcessCollectivesImpl::Fail() {
  failed_ = true;
  for (const auto& [number, instance] : instances_) {
    for (const auto& [id, group] : instance->groups_) group->Fail();
  }
}

std::string ProcessCollectivesImpl::Awaited() const {
  // The oldest in the job's order that waits for somebody.
  const ProcessGroup* found = nullptr;
  std::tuple<int64_t, int64_t, int64_t> best;
  for (const auto& [number, instance] : instances_) {
    for (const auto& [id, group] : instance->groups_) {
      if (!group->under_way() || group->Awaited().empty()) continue;
      const int64_t acts = static_cast<int64_t>(group->spec().positions.size());
      std::tuple<int64_t, int64_t, int64_t> key{number, group->acts_done() / acts,
                                                group->spec().positions[group->acts_done() % acts]};
      if (found == nullptr || key < best) found = group.get(), best = key;
    }
  }
  if (found == nullptr) return "";
  const int64_t acts = static_cast<int64_t>(found->spec().positions.size());
  std::string from;
  for (int process : found->Awaited()) from += (from.empty() ? "" : ", ") + job_->Describe(process);
  std::string what = found->spec().primitive.empty() ? "collective" : found->spec().primitive;
  return Cat(what, " '", found->spec().actor, "' of step ", found->acts_done() / acts, " (",
             found->spec().plan, ") with ", from);
}

}  // namespace

std::unique_ptr<ProcessCollectives> ProcessCollectives::Make(Job* job,
                                                             const ProcessCollectivesOptions& options) {
  return std::make_unique<ProcessCollectivesImpl>(job, options);
}

}  // namespace oneflow_like
