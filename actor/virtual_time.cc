// The workers of a machine on paper, and the meetings of its collectives.
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
class VirtualWorker final : public Worker, public VirtualTurn {
 public:
  VirtualWorker(Paper* paper, VirtualCores* cores) : paper_(paper), cores_(cores) {}

  void Post(Message* message) override {
    paper_->Then([this, message] { mail_.push_back(message); });
  }
  void Tell(const Receiver*, Receiver* to, int port, bool ok) override { to->Receive(port, ok); }
  void Ready(Runnable* runnable, bool first) override { ready_.Push(runnable, first); }
  void Forget(Runnable* runnable) override { ready_.Remove(runnable); }

  // As a thread does: a message, or where there is none, what is ready. False: nothing can be done now.
  bool RunOnce() {
    if (busy() || (mail_.empty() && ready_.size() == 0)) return false;
    ++turns_;
    paper_->turn = this;
    if (!ReceiveOne()) ready_.Pop()->RunOne();
    paper_->turn = nullptr;
    Proceed();
    return true;
  }
  bool ReceiveOne() {
    if (mail_.empty()) return false;
    Message* message = mail_.front();
    mail_.pop_front();
    message->Receive();
    return true;
  }

  // Its last turn has not ended.
  bool busy() const { return !left_.empty(); }
  bool waits() const { return !busy() && mail_.empty() && ready_.size() == 0; }
  int64_t turns() const { return turns_; }  // begun so far

  void Work(int64_t alone, int64_t crowded, std::function<void(int64_t start)> done) override {
    if (alone == 0 && left_.empty()) return done(paper_->clock.now());
    left_.push_back({alone, crowded, std::move(done)});
  }
  void Then(std::function<void()> what) override {
    if (left_.empty()) return what();
    left_.push_back({0, 0, [what = std::move(what)](int64_t) { what(); }});
  }

 private:
  struct Part {
    int64_t alone, crowded;
    std::function<void(int64_t start)> done;
  };

  void Proceed() {
    while (!left_.empty() && left_.front().alone == 0) EndPart(paper_->clock.now());
    if (left_.empty()) return;
    cores_->Start(left_.front().alone, left_.front().crowded, [this, start = paper_->clock.now()] {
      EndPart(start);
      Proceed();
    });
  }
  void EndPart(int64_t start) {
    left_.front().done(start);
    left_.pop_front();
  }

  Paper* const paper_;
  VirtualCores* const cores_;
  std::deque<Message*> mail_;
  ReadyList ready_;
  std::deque<Part> left_;  // of the turn under way
  int64_t turns_ = 0;
};

class VirtualExecutor final : public Executor {
 public:
  VirtualExecutor(Paper* paper, VirtualCores* cores, const VirtualOptions& options)
      : paper_(paper), thread_of_(options.thread_of) {
    for (int i = 0; i < std::max(1, options.threads); ++i)
      threads_.push_back(std::make_unique<VirtualWorker>(paper, cores));
  }
  // As many as ranks where these say on which threads they are: number i of them is on worker i.
  int workers() const override {
    return static_cast<int>(thread_of_.empty() ? threads_.size() : thread_of_.size());
  }
  Worker* worker(int index) override {
    return threads_[thread_of_.empty() ? index : thread_of_[index]].get();
  }
  Status Await(Completion* completion) override {
    while (!completion->Done())
      if (!RunOne() && !paper_->clock.RunNext()) return Status("no event is left");
    // Turns that had begun may have had a part in it: the caller goes on when they have ended.
    std::vector<std::pair<const VirtualWorker*, int64_t>> begun;
    for (const auto& thread : threads_) begun.push_back({thread.get(), thread->turns()});
    const auto under_way = [](const auto& turn) {
      return turn.first->busy() && turn.first->turns() == turn.second;
    };
    while (std::any_of(begun.begin(), begun.end(), under_way))
      if (!RunOne() && !paper_->clock.RunNext()) return Status("no event is left");
    return Status();
  }
  void Fence() override {
    for (bool more = true; more;) {
      more = false;
      for (auto& thread : threads_) more = thread->ReceiveOne() || more;
    }
  }

 private:
  bool RunOne() {
    return std::any_of(threads_.begin(), threads_.end(),
                       [](const auto& thread) { return thread->RunOnce(); });
  }

  Paper* const paper_;
  const std::vector<int> thread_of_;
  std::vector<std::unique_ptr<VirtualWorker>> threads_;
};

class VirtualMember;

// Where the members of one collective meet that are hosted.
struct Meeting {
  std::vector<VirtualMember*> members;
  size_t arrived = 0, working = 0;
  int64_t began = 0;
  // The load of all members together.
  int64_t latency = 0;
  bool by_links = false;
  std::vector<VirtualLoad::Busy> links;
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
        all_(all),
        arrive_([this] { HasCome(); }) {
    go_.member = all_worked_.member = done_.member = this;
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
  // Words of another member: to work, and that all have worked.
  struct Word : Message {
    VirtualMember* member = nullptr;
    int64_t time = 0;  // that it takes its thread to hear it
    void Hear();
  };
  struct Go final : Word {
    void Receive() override {
      Hear();
      member->Work();
    }
  };
  struct AllWorked final : Word {
    void Receive() override;
  };
  struct Ended final : Message {
    VirtualMember* member = nullptr;
    void Receive() override { member->spec.listener->CollectiveDone(true); }
  };
  friend class VirtualCollectives;
  void HasCome();

  VirtualCollectives* const all_;
  std::vector<bool> works_;  // whether it moves anything for the group: in all acts, or in each
  const std::function<void()> arrive_;
  int64_t arrivals_ = 0;
  Go go_;
  AllWorked all_worked_;
  Ended done_;
};

class VirtualCollectives final : public Collectives {
 public:
  VirtualCollectives(Paper* paper, VirtualLinks* links, const VirtualOptions* options)
      : paper_(paper), links_(links), options_(options) {}

  std::unique_ptr<CollectiveMember> Join(const CollectiveSpec& spec,
                                         const plan::Collective& collective) override {
    const int rank = collective.rank(collective.me());
    auto member = std::make_unique<VirtualMember>(this, spec, collective, options_->load(collective, rank));
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
        AddLoads(meeting.get());
        meetings_.push_back(std::move(meeting));
      }
  }

  void Arrived(VirtualMember* member) {
    paper_->Then([this, member] { HasArrived(member); });
  }

  void Worked(VirtualMember* member) {
    if (--member->meeting->working == 0) End(member);
  }

  Paper* paper() const { return paper_; }

 private:
  struct Joined {
    std::vector<VirtualMember*> members;
    std::vector<std::set<int>> ranks;  // of each member's group, those that are hosted
  };

  void HasArrived(VirtualMember* member) {
    Meeting* meeting = member->meeting;
    member->came = paper_->clock.now();
    if (++meeting->arrived < meeting->members.size()) return;
    meeting->arrived = 0;
    meeting->began = paper_->clock.now();
    if (options_->threads > 0 && !meeting->by_links) return StartWork(member);
    paper_->clock.At(paper_->clock.now() + meeting->latency, [this, meeting] {
      links_->Start(&meeting->links, [meeting] {
        for (VirtualMember* each : meeting->members) each->Done();
      });
    });
  }

  // Of members on one link the slowest counts: others of them go over it as well.
  static void AddLoads(Meeting* meeting) {
    std::map<int, int64_t> busy;
    for (const VirtualMember* each : meeting->members) {
      meeting->latency = std::max(meeting->latency, each->load.latency);
      for (const VirtualLoad::Busy& on : each->load.links) busy[on.link] = std::max(busy[on.link], on.time);
    }
    meeting->by_links = !busy.empty();
    for (const auto& [link, time] : busy)
      if (time > 0) meeting->links.push_back({link, time});
  }

  // By the members' threads, as inside one host: the last to come tells the others to work.
  void StartWork(VirtualMember* last) {
    Meeting* meeting = last->meeting;
    for (const VirtualMember* member : meeting->members) meeting->working += member->works();
    if (meeting->working == 0) return End(last);
    for (VirtualMember* member : meeting->members)
      if (member->works()) Tell(last, member, &member->go_);
  }
  // The last that has worked tells them that all is done.
  void End(VirtualMember* last) {
    for (VirtualMember* member : last->meeting->members) Tell(last, member, &member->all_worked_);
  }
  // A thread that waits must wake up for it; one at work finds it when it comes to that.
  static void Tell(const VirtualMember* from, VirtualMember* to, VirtualMember::Word* word) {
    const auto* worker = static_cast<const VirtualWorker*>(to->spec.worker);
    word->time = worker != from->spec.worker && worker->waits() ? to->load.message : 0;
    to->spec.worker->Post(word);
  }

  Paper* const paper_;
  VirtualLinks* const links_;
  const VirtualOptions* const options_;
  std::map<std::pair<std::string, int64_t>, Joined> joined_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
};

void VirtualMember::Word::Hear() {
  member->all_->paper()->Work(time, time, [](int64_t) {});
}

void VirtualMember::AllWorked::Receive() {
  Hear();
  member->all_->paper()->Then([this] { member->Done(); });
}

void VirtualMember::HasCome() { all_->Arrived(this); }

void VirtualMember::Arrive(Pieces, Pieces, int, bool) {
  if (spec.stream->synchronous()) return HasCome();
  static_cast<VirtualStream*>(spec.stream)->Meet(rank, actor, arrivals_++, &arrive_);
  spec.worker->Post(&done_);  // enqueued, which is all that an act of such a device is
}

void VirtualMember::Work() {
  Paper* paper = all_->paper();
  paper->Work(load.latency, std::max(load.latency, load.crowded), [this, paper](int64_t start) {
    paper->Record({start, paper->clock.now(), acts / spec.acts, rank, actor,
                   static_cast<int32_t>(acts % spec.acts), 0});
    all_->Worked(this);
  });
}

void VirtualMember::Done() {
  Paper* paper = all_->paper();
  const int64_t now = paper->clock.now(), step = acts / spec.acts;
  const auto act = static_cast<int32_t>(acts++ % spec.acts);
  paper->Record({came, now, step, rank, actor, act, -1});
  if (spec.stream->synchronous()) {
    if (!load.links.empty()) paper->Record({meeting->began, now, step, rank, actor, act, 0});
    return spec.worker->Post(&done_);
  }
  paper->Record({meeting->began, now, step, rank, actor, act, 0});
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

int64_t Picoseconds(double seconds) {
  return std::llround(std::min(seconds * kPicosecondsPerSecond, static_cast<double>(kLastPicosecond)));
}

class VirtualMachine::Impl {
 public:
  explicit Impl(VirtualOptions given)
      : options(std::move(given)),
        paper(options.record),
        links(&paper.clock),
        cores(&paper.clock, options.cores, options.kernel_cores),
        executor(&paper, &cores, options),
        collectives(&paper, &links, &options),
        peers(&collectives) {
    registry.Add(kPaperKernel, "paper",
                 [this](const KernelSpec& spec) { return std::make_unique<VirtualKernel>(spec, &paper); });
  }

  const VirtualOptions options;
  Paper paper;
  VirtualLinks links;
  VirtualCores cores;
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
    const std::function<ThreadTime(const plan::Actor&, const plan::Kernel&)>& time) const {
  std::map<std::pair<int, int>, int> periods;  // of each edge's end at an actor
  for (const plan::Actor& actor : plan.actor())
    for (const auto* ports : {&actor.in(), &actor.out()})
      for (const plan::Port& port : *ports) periods[{actor.id(), port.edge()}] = std::max(1, port.period());
  for (const plan::Actor& actor : plan.actor())
    for (const auto* ports : {&actor.in(), &actor.out()})
      for (const plan::Port& port : *ports)
        impl_->paper.AddEnd(
            plan.rank(), actor.id(), port.peer(),
            {port.credits(), std::max(1, port.period()), periods[{port.peer(), port.edge()}]});
  return PlanOnPaper(
      plan, time, {.asynchronous = impl_->options.threads == 0, .each_kernel = impl_->options.each_kernel});
}

}  // namespace oneflow_like
