// The workers of a machine on paper, the meetings of its collectives, and plans as it runs them.
#include "actor/virtual_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "actor/virtual_device.h"

namespace oneflow_like {
namespace {

// A thread of the host. Beside asynchronous devices what it does takes no time.
class VirtualWorker final : public Worker {
 public:
  explicit VirtualWorker(Paper* paper) : paper_(paper) {}

  // What a worker posts to another one in the middle of its work arrives at that moment, which the other has
  // yet to reach.
  void Post(Message* message) override {
    if (running_now == nullptr || *running_now == nullptr || *running_now == this || !(*running_now)->spent())
      return mail_.push_back(message);
    paper_->clock.At(paper_->clock.now(), [this, message] { mail_.push_back(message); });
  }
  void Tell(const Receiver*, Receiver* to, int port, bool ok) override { to->Receive(port, ok); }
  void Ready(Runnable* runnable, bool first) override { ready_.Push(runnable, first); }
  void Forget(Runnable* runnable) override { ready_.Remove(runnable); }

  // As a thread does: a message, or where there is none, what is ready. False: nothing can be done now.
  bool RunOnce() {
    begun_ = paper_->clock.now();
    if (free_at_ > begun_ || (mail_.empty() && ready_.size() == 0)) return false;
    *running_now = this;
    if (!ReceiveOne()) ready_.Pop()->RunOne();
    *running_now = nullptr;
    free_at_ = paper_->clock.now();
    paper_->clock.ReturnTo(begun_);
    if (free_at_ > begun_) paper_->clock.At(free_at_, [] {});
    return true;
  }
  bool ReceiveOne() {
    if (mail_.empty()) return false;
    Message* message = mail_.front();
    mail_.pop_front();
    message->Receive();
    return true;
  }

  int64_t free_at() const { return free_at_; }

  VirtualWorker** running_now = nullptr;  // of all workers

 private:
  bool spent() const { return paper_->clock.now() > begun_; }

  Paper* const paper_;
  std::deque<Message*> mail_;
  ReadyList ready_;
  int64_t begun_ = 0, free_at_ = 0;
};

class VirtualExecutor final : public Executor {
 public:
  VirtualExecutor(Paper* paper, int workers) : paper_(paper) {
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(std::make_unique<VirtualWorker>(paper));
      workers_.back()->running_now = &running_;
    }
  }
  int workers() const override { return static_cast<int>(workers_.size()); }
  Worker* worker(int index) override { return workers_[index].get(); }
  Status Await(Completion* completion) override {
    while (!completion->Done())
      if (!RunOne() && !paper_->clock.RunNext()) return Status("no event is left");
    // Threads may be ahead of the clock with what has completed it: the caller goes on when that has ended.
    int64_t end = paper_->clock.now();
    for (const auto& worker : workers_) end = std::max(end, worker->free_at());
    while (RunOne() ||
           (!paper_->clock.empty() && paper_->clock.next_time() <= end && paper_->clock.RunNext())) {
    }
    paper_->clock.ReturnTo(std::max(end, paper_->clock.now()));
    return Status();
  }
  void Fence() override {
    for (bool more = true; more;) {
      more = false;
      for (auto& worker : workers_) more = worker->ReceiveOne() || more;
    }
  }

 private:
  bool RunOne() {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return worker->RunOnce(); });
  }

  Paper* const paper_;
  std::vector<std::unique_ptr<VirtualWorker>> workers_;
  VirtualWorker* running_ = nullptr;
};

class VirtualMember;

// Where the members of one collective meet that are hosted.
struct Meeting {
  std::vector<VirtualMember*> members;
  size_t arrived = 0, working = 0;
  int64_t began = 0;
};

class VirtualCollectives;

class VirtualMember final : public CollectiveMember {
 public:
  VirtualMember(VirtualCollectives* all, const CollectiveSpec& spec, const plan::Collective& collective,
                VirtualLoad load)
      : spec(spec),
        rank(collective.rank(collective.me())),
        actor(static_cast<int>(collective.id())),
        load(std::move(load)),
        all_(all) {
    go_.member = done_.member = this;
    for (const plan::RegionList& list : collective.work()) works_.push_back(list.region_size() > 0);
  }
  // In the act under way.
  bool works() const {
    return !works_.empty() && works_[works_.size() == 1 ? 0 : static_cast<size_t>(acts % spec.acts)];
  }
  void Arrive(Pieces, Pieces, int micro_batch, bool) override;

  // This member's part, on its thread.
  void Work();
  void Done();

  const CollectiveSpec spec;
  const int rank, actor;
  const VirtualLoad load;
  Meeting* meeting = nullptr;
  int64_t came = 0, acts = 0;  // acts that have ended

 private:
  struct Go final : Message {
    VirtualMember* member = nullptr;
    void Receive() override { member->Work(); }
  };
  struct Ended final : Message {
    VirtualMember* member = nullptr;
    void Receive() override { member->spec.listener->CollectiveDone(true); }
  };
  friend class VirtualCollectives;
  VirtualCollectives* const all_;
  std::vector<bool> works_;  // whether it moves anything for the group: in all acts, or in each
  int64_t arrivals_ = 0;
  Go go_;
  Ended done_;
};

class VirtualCollectives final : public Collectives {
 public:
  VirtualCollectives(Paper* paper, VirtualLinks* links, const VirtualOptions* options)
      : paper_(paper), links_(links), options_(options) {}

  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                         const plan::Collective& collective) override {
    const int rank = collective.rank(collective.me());
    auto member =
        std::make_unique<VirtualMember>(this, spec, collective, options_->load(collective.id(), rank));
    std::set<int> ranks;
    for (int other : collective.rank())
      ranks.insert(options_->stands_for ? options_->stands_for(other) : other);
    Joined& joined = joined_[{spec.plan, collective.id()}];
    joined.members.push_back(member.get());
    joined.ranks.push_back(std::move(ranks));
    return member;
  }

  // Members whose groups have a rank in common meet: where one rank acts for others, groups that are alike do
  // what one of them does.
  void CheckComplete() override {
    for (auto& [name, joined] : joined_)
      while (!joined.members.empty()) {
        auto meeting = std::make_unique<Meeting>();
        std::set<int> ranks = joined.ranks[0];
        for (size_t before = 0; before != ranks.size();) {
          before = ranks.size();
          for (const std::set<int>& others : joined.ranks)
            if (std::any_of(others.begin(), others.end(), [&](int rank) { return ranks.count(rank) > 0; }))
              ranks.insert(others.begin(), others.end());
        }
        for (size_t i = 0; i < joined.members.size();) {
          if (ranks.count(joined.members[i]->rank) == 0 && ranks.count(*joined.ranks[i].begin()) == 0) {
            ++i;
            continue;
          }
          joined.members[i]->meeting = meeting.get();
          meeting->members.push_back(joined.members[i]);
          joined.members.erase(joined.members.begin() + static_cast<std::ptrdiff_t>(i));
          joined.ranks.erase(joined.ranks.begin() + static_cast<std::ptrdiff_t>(i));
        }
        meetings_.push_back(std::move(meeting));
      }
  }

  void Arrived(VirtualMember* member) {
    Meeting* meeting = member->meeting;
    member->came = paper_->clock.now();
    if (++meeting->arrived < meeting->members.size()) return;
    meeting->arrived = 0;
    meeting->began = paper_->clock.now();
    int64_t latency = 0;
    std::map<int, int64_t> busy;  // of members on one link, the slowest: others of them go over it as well
    for (VirtualMember* each : meeting->members) {
      latency = std::max(latency, each->load.latency);
      for (const VirtualLoad::Busy& on : each->load.links) busy[on.link] = std::max(busy[on.link], on.time);
    }
    if (options_->threads > 0 && busy.empty()) return StartWork(meeting);
    std::vector<VirtualLoad::Busy> links;
    for (const auto& [link, time] : busy) links.push_back({link, time});
    auto move = [this, meeting, links = std::move(links)] {
      links_->Start(links, [this, meeting] { End(meeting); });
    };
    paper_->clock.At(paper_->clock.now() + latency, std::move(move));
  }

  void Worked(Meeting* meeting) {
    if (--meeting->working == 0)
      for (VirtualMember* member : meeting->members) member->Done();
  }

  Paper* paper() const { return paper_; }

 private:
  struct Joined {
    std::vector<VirtualMember*> members;
    std::vector<std::set<int>> ranks;  // of each member's group, those that are hosted
  };

  // By the members' threads, as inside one process.
  void StartWork(Meeting* meeting) {
    for (const VirtualMember* member : meeting->members) meeting->working += member->works();
    if (meeting->working == 0) return End(meeting);
    for (VirtualMember* member : meeting->members)
      if (member->works()) member->spec.worker->Post(&member->go_);
  }
  void End(Meeting* meeting) {
    for (VirtualMember* member : meeting->members) member->Done();
  }

  Paper* const paper_;
  VirtualLinks* const links_;
  const VirtualOptions* const options_;
  std::map<std::pair<std::string, int64_t>, Joined> joined_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
};

void VirtualMember::Arrive(Pieces, Pieces, int, bool) {
  if (spec.stream->synchronous()) return all_->Arrived(this);
  static_cast<VirtualStream*>(spec.stream)->Meet(rank, actor, arrivals_++, [this] { all_->Arrived(this); });
  spec.worker->Post(&done_);  // enqueued, which is all that an act of such a device is
}

void VirtualMember::Work() {
  const int64_t start = all_->paper()->clock.now();
  all_->paper()->clock.Spend(load.latency);
  all_->paper()->records.push_back({start, all_->paper()->clock.now(), acts / spec.acts, rank, actor,
                                    static_cast<int32_t>(acts % spec.acts), 0});
  all_->Worked(meeting);
}

void VirtualMember::Done() {
  Paper* paper = all_->paper();
  const int64_t now = paper->clock.now(), step = acts / spec.acts;
  const auto act = static_cast<int32_t>(acts++ % spec.acts);
  paper->records.push_back({came, now, step, rank, actor, act, -1});
  if (spec.stream->synchronous()) {
    if (!load.links.empty()) paper->records.push_back({meeting->began, now, step, rank, actor, act, 0});
    return spec.worker->Post(&done_);
  }
  paper->records.push_back({meeting->began, now, step, rank, actor, act, 0});
  static_cast<VirtualStream*>(spec.stream)->Resume();
}

// The runtime's other processes, of which there are none: how it comes by its collectives.
class VirtualPeers final : public Peers, public PeerLink {
 public:
  explicit VirtualPeers(Collectives* collectives) : collectives_(collectives) {}
  std::unique_ptr<PeerLink> Connect(const std::string&, PeerListener*) override {
    return std::make_unique<VirtualPeers>(collectives_);
  }
  Collectives* collectives() override { return collectives_; }
  std::vector<std::string> Exchange(const std::string&, const std::string& mine) override { return {mine}; }
  void SendOutput(int64_t, int, const Box&, const void*, size_t) override {}
  void SendFailure(const std::string&) override {}

 private:
  Collectives* const collectives_;
};

}  // namespace

int64_t Picoseconds(double seconds) { return std::llround(seconds * kPicosecondsPerSecond); }

class VirtualMachine::Impl {
 public:
  explicit Impl(VirtualOptions given)
      : options(std::move(given)),
        links(&paper.clock),
        executor(&paper, std::max(1, options.threads)),
        collectives(&paper, &links, &options),
        peers(&collectives) {
    registry.Add(kPaperKernel, "paper",
                 [this](const KernelSpec& spec) { return std::make_unique<VirtualKernel>(spec, &paper); });
  }

  const VirtualOptions options;
  Paper paper;
  VirtualLinks links;
  VirtualExecutor executor;
  VirtualCollectives collectives;
  VirtualPeers peers;
  KernelRegistry registry;
};

VirtualMachine::VirtualMachine(VirtualOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
VirtualMachine::~VirtualMachine() = default;

std::unique_ptr<Device> VirtualMachine::MakeDevice(int rank) {
  return std::make_unique<VirtualDevice>(rank, impl_->options.threads > 0, &impl_->paper);
}
const KernelRegistry& VirtualMachine::registry() const { return impl_->registry; }
Executor* VirtualMachine::executor() { return &impl_->executor; }
Peers* VirtualMachine::peers() { return &impl_->peers; }
int64_t VirtualMachine::now() const { return impl_->paper.clock.now(); }

plan::Plan VirtualMachine::OnPaper(
    const plan::Plan& plan,
    const std::function<double(const plan::Actor&, const plan::Kernel&)>& seconds) const {
  plan::Plan paper = plan;
  std::map<std::pair<int, int>, int> periods;  // of each edge's end at an actor
  for (const plan::Actor& actor : plan.actor())
    for (const auto* ports : {&actor.in(), &actor.out()})
      for (const plan::Port& port : *ports) periods[{actor.id(), port.edge()}] = std::max(1, port.period());
  for (const plan::Actor& actor : plan.actor())
    for (const auto* ports : {&actor.in(), &actor.out()})
      for (const plan::Port& port : *ports)
        impl_->paper.edges[{plan.rank(), actor.id(), port.peer()}].push_back(
            {port.credits(), std::max(1, port.period()), periods[{port.peer(), port.edge()}]});
  paper.set_device_kind("paper");
  paper.clear_device_kinds();
  paper.clear_input();
  paper.clear_output();
  auto become = [&](plan::Kernel* kernel, int64_t time, int actor, int index, int acts) {
    kernel->set_name(kPaperKernel);
    kernel->clear_attr();
    kernel->clear_scratch_bytes();
    for (const auto& [name, value] : {std::pair<const char*, int64_t>{kPaperTime, time},
                                      {kPaperRank, plan.rank()},
                                      {kPaperActor, actor},
                                      {kPaperIndex, index},
                                      {kPaperActs, acts}}) {
      plan::Attr* attr = kernel->add_attr();
      attr->set_name(name);
      attr->set_i(value);
    }
  };
  for (plan::Variable& variable : *paper.mutable_variable()) become(variable.mutable_init(), 0, -1, 0, 1);
  for (plan::Actor& actor : *paper.mutable_actor()) {
    if (actor.has_collective()) continue;
    const bool moves = !actor.feed().empty() || !actor.fetch().empty();
    actor.clear_feed();
    actor.clear_fetch();
    for (int k = 0; k < actor.kernel_size(); ++k)
      become(actor.mutable_kernel(k), moves ? 0 : Picoseconds(seconds(actor, actor.kernel(k))), actor.id(), k,
             actor.acts());
  }
  return paper;
}

std::vector<TraceRecord> VirtualMachine::TakeRecords() { return std::exchange(impl_->paper.records, {}); }

}  // namespace oneflow_like
