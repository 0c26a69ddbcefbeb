// Collectives between processes over a network that does all it may (tests/actor/net/fake_job.h), with so
// little staging that it is fought over: random plans must end, right and bit for bit the same, whoever comes
// first.
// ctest: seconds=190 long=380 asan=100 tsan=100
#include "actor/net/collectives/process_collectives.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "actor/runtime.h"
#include "tests/actor/net/collective_scenario.h"
#include "tests/actor/net/fake_job.h"

namespace oneflow_like {
namespace {

constexpr unsigned kPlans = 60, kManyPlans = 300;

// What one run of a scenario shares. Errors are kept and reported by the main thread.
struct Shared {
  const Scenario& scenario;
  std::atomic<int> ranks_left;
  Completion done;
  std::atomic<bool> killed{false};
  std::atomic<int> acts_done{0};
  std::mutex mutex;  // of `errors`, which are rare
  std::vector<std::string> errors;

  void Error(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex);
    if (errors.size() < 5) errors.push_back(text);
  }
};

class RankDriver;

// A rank's end of one collective.
class End final : public CollectiveListener {
 public:
  End(Shared* shared, RankDriver* driver, int c, int me) : shared_(shared), driver_(driver), c_(c), me_(me) {}

  void Join(Collectives* collectives, Worker* worker, MemorySource* source) {
    const Case& c = the_case();
    for (const BoxingProgram& p : c.programs) {
      in_bytes_ = std::max<size_t>(in_bytes_, p.has_in[me_] ? p.in[me_].elements() * SizeOf(c.dtype) : 0);
      out_bytes_ = std::max<size_t>(out_bytes_, p.has_out[me_] ? p.out[me_].elements() * SizeOf(c.dtype) : 0);
    }
    std::unique_ptr<Device> device = MakeHostDevice(0, source);
    if (c.programs[0].has_in[me_]) in_ = device->Allocate(std::max<size_t>(c.operands * in_bytes_, 1), "in");
    if (c.programs[0].has_out[me_])
      out_ = device->Allocate(std::max<size_t>(c.operands * out_bytes_, 1), "out");
    for (int i = 0; i < c.operands; ++i) {
      if (in_ != nullptr) in_pieces_.push_back(In(i));
      if (out_ != nullptr) out_pieces_.push_back(Out(i));
    }
    counts_.resize(c.counts());
    if (!counts_.empty()) in_pieces_.push_back(counts_.data());
    plan_ = c.PlanOf(me_);
    member_ = collectives->Join({"plan",
                                 Cat("collective ", c_),
                                 c.dtype,
                                 c.acts,
                                 worker,
                                 nullptr,
                                 nullptr,
                                 this,
                                 {c.positions.begin(), c.positions.end()}},
                                plan_);
  }

  bool CanArrive(int64_t act) const { return !busy_ && act == next_; }
  void Arrive() {
    busy_ = true;
    const bool ok = shared_->scenario.FailsAt(c_, next_) != me_;
    if (!lost_) Fill();
    member_->Arrive(in_pieces_, out_pieces_, static_cast<int>(next_ % the_case().acts), ok);
  }
  void Leave() { member_.reset(); }

  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override;

  // The whole out piece after each act; empty when it failed.
  std::vector<std::string> results;

 private:
  const Case& the_case() const { return shared_->scenario.cases[c_]; }
  void Fill() {
    const Case& c = the_case();
    const BoxingProgram& p = c.program(next_);
    for (int operand = 0; in_ != nullptr && operand < c.operands; ++operand)
      for (int64_t i = 0; i < p.in[me_].elements(); ++i)
        Put(c.dtype, In(operand), i, shared_->scenario.Value(c_, operand, me_, next_, i));
    for (size_t i = 0; i < counts_.size(); ++i)
      counts_[i] = shared_->scenario.Count(c_, next_, static_cast<int64_t>(i));
    if (out_ != nullptr) memset(out_->data(), 0x7e, out_->bytes());
  }
  // Of what the failing member has a hand in.
  bool IsDownstream(int failing) const {
    if (failing == me_ || shared_->scenario.IsLocal(the_case())) return true;
    for (const auto& work : the_case().program(next_).work) {
      for (const Region& r : work) {
        if (std::count(r.sources.begin(), r.sources.end(), failing) &&
            std::count(r.dests.begin(), r.dests.end(), me_))
          return true;
      }
    }
    return false;
  }
  void Verify();
  char* In(int operand) const { return static_cast<char*>(in_->data()) + operand * in_bytes_; }
  char* Out(int operand) const { return static_cast<char*>(out_->data()) + operand * out_bytes_; }

  Shared* const shared_;
  RankDriver* const driver_;
  const int c_, me_;
  plan::Collective plan_;
  std::unique_ptr<Memory> in_, out_;  // of all operands
  size_t in_bytes_ = 0, out_bytes_ = 0;
  std::vector<void*> in_pieces_, out_pieces_;
  std::vector<int32_t> counts_;
  std::unique_ptr<CollectiveMember> member_;
  bool busy_ = false;
  bool lost_ = false;  // its act was ended by a failure of the job: peers may still look at the pieces
  int64_t next_ = 0;
};

// One rank: arrives where it may, on its worker's thread.
class RankDriver {
 public:
  RankDriver(Shared* shared, int rank, unsigned seed) : shared_(shared), random_(seed) {
    const Scenario& s = shared->scenario;
    for (size_t c = 0; c < s.cases.size(); ++c) {
      const std::vector<int>& ranks = s.cases[c].ranks();
      auto at = std::find(ranks.begin(), ranks.end(), rank);
      ends_.push_back(at == ranks.end()
                          ? nullptr
                          : std::make_unique<End>(shared, this, c, static_cast<int>(at - ranks.begin())));
    }
    todo_.resize(s.runtimes);
    for (int step = 0; step < s.steps; ++step) {
      for (auto [c, act] : s.order) {
        if (ends_[c] == nullptr) continue;
        todo_[s.cases[c].runtime].push_back({c, int64_t{step} * s.cases[c].acts + act});
      }
    }
    // Runtimes have no order between them, so there nobody may wait for one act before the next.
    outstanding_limit_ = s.runtimes == 1 && Draw(random_, 3) == 0 ? 1 : 100;
    window_ = outstanding_limit_ == 1 ? 1 : 1 + Draw(random_, 6);
  }

  void Join(const std::vector<std::unique_ptr<Collectives>>& runtimes, Worker* worker, MemorySource* source) {
    worker_ = worker;
    for (size_t c = 0; c < ends_.size(); ++c) {
      if (ends_[c] == nullptr) continue;
      ends_[c]->Join(runtimes[shared_->scenario.cases[c].runtime].get(), worker, source);
    }
  }
  void Start() {
    start_.driver = this;
    worker_->Post(&start_);
  }
  void Leave() {
    for (auto& end : ends_) {
      if (end != nullptr) end->Leave();
    }
  }
  void Ended() {
    --outstanding_;
    ++shared_->acts_done;
    ArriveWhereICan();
  }
  const End* end(int c) const { return ends_[c].get(); }

 private:
  struct Start_ : Message {
    RankDriver* driver;
    void Receive() override { driver->ArriveWhereICan(); }
  };

  void ArriveWhereICan() {
    while (outstanding_ < outstanding_limit_) {
      std::vector<std::pair<size_t, size_t>> may;  // (runtime, entry)
      for (size_t r = 0; r < todo_.size(); ++r) {
        for (size_t i = 0; i < todo_[r].size() && i < static_cast<size_t>(window_); ++i) {
          if (ends_[todo_[r][i].first]->CanArrive(todo_[r][i].second)) may.emplace_back(r, i);
        }
      }
      if (may.empty()) break;
      if (Draw(random_, 16) == 0) std::this_thread::sleep_for(std::chrono::microseconds(Draw(random_, 300)));
      const auto [r, i] = may[Draw(random_, static_cast<int>(may.size()))];
      End* end = ends_[todo_[r][i].first].get();
      todo_[r].erase(todo_[r].begin() + static_cast<long>(i));
      ++outstanding_;
      end->Arrive();
    }
    const bool all = std::all_of(todo_.begin(), todo_.end(), [](const auto& todo) { return todo.empty(); });
    if (all && outstanding_ == 0 && --shared_->ranks_left == 0) shared_->done.Signal();
  }

  Shared* const shared_;
  Random random_;
  Worker* worker_ = nullptr;
  std::vector<std::unique_ptr<End>> ends_;  // by case
  // By runtime: (case, act since the start), in its order.
  std::vector<std::vector<std::pair<int, int64_t>>> todo_;
  int outstanding_ = 0, outstanding_limit_, window_;
  Start_ start_;
};

void End::CollectiveDone(bool ok) {
  const int failing = shared_->scenario.FailsAt(c_, next_);
  const bool killed = shared_->killed;
  if (ok && failing >= 0 && IsDownstream(failing)) {
    shared_->Error(
        Cat("collective ", c_, " act ", next_, ": member ", me_, " does not know that ", failing, " failed"));
  }
  if (!ok && failing < 0 && !killed) shared_->Error(Cat("collective ", c_, " act ", next_, " failed"));
  if (ok) Verify();
  lost_ = lost_ || (!ok && killed);
  results.emplace_back();
  if (ok && out_ != nullptr) results.back().assign(static_cast<const char*>(out_->data()), out_->bytes());
  busy_ = false;
  ++next_;
  driver_->Ended();
}

void End::Verify() {
  const Scenario& s = shared_->scenario;
  const Case& c = the_case();
  if (out_ == nullptr || (!s.exact && c.dtype != DType::kInt32)) return;
  const BoxingProgram& p = c.program(next_);
  for (const auto& work : p.work) {
    for (const Region& r : work) {
      if (std::count(r.dests.begin(), r.dests.end(), me_) == 0) continue;
      ForEach(r.box, [&](const Dims& at) {
        for (int operand = 0; operand < c.operands; ++operand) {
          double sum = 0;
          const bool moved = c.counted.empty() || at[2] < s.Count(c_, next_, at[1] * c.counted[0] + at[0]);
          for (int m : r.sources) sum += moved ? s.Value(c_, operand, m, next_, IndexIn(p.in[m], at)) : 0;
          const double value = Get(c.dtype, Out(operand), IndexIn(p.out[me_], at));
          if (value != sum) {
            shared_->Error(Cat("collective ", c_, " act ", next_, ": member ", me_, " has ", value, " at ",
                               at.str(), " of operand ", operand, " and not ", sum));
          }
        }
      });
    }
  }
}

// What a process does, on its user's thread.
class Process {
 public:
  Process(Shared* shared, FakeJob* job, unsigned seed) : shared_(shared), job_(job) {
    Random random(seed);
    executor_ = MakeThreadExecutor(1 + Draw(random, 2), 1);
    for (int i = 0; i < shared->scenario.ranks_each; ++i) {
      const int rank = job->process() * shared->scenario.ranks_each + i;
      drivers_.push_back(std::make_unique<RankDriver>(shared, rank, seed * 7 + static_cast<unsigned>(i)));
    }
    thread_ = std::thread([this] { Run(); });
  }
  void Wait() { thread_.join(); }
  const End* end(int rank, int c) const { return drivers_[rank % shared_->scenario.ranks_each]->end(c); }

 private:
  void Run() {
    std::unique_ptr<ProcessCollectives> between = ProcessCollectives::Make(job_, shared_->scenario.options);
    std::vector<std::unique_ptr<Collectives>> runtimes;
    for (int r = 0; r < shared_->scenario.runtimes; ++r) runtimes.push_back(between->Open(5 + r));
    for (size_t i = 0; i < drivers_.size(); ++i) {
      drivers_[i]->Join(runtimes, executor_->worker(static_cast<int>(i) % executor_->workers()),
                        job_->region());
    }
    for (auto& runtime : runtimes) runtime->CheckComplete();
    for (auto& driver : drivers_) driver->Start();
    shared_->done.Wait();
    for (auto& runtime : runtimes) runtime->Quiesce();
    if (job_->transfers() > 0)
      shared_->Error(Cat("process ", job_->process(), " is quiet but for transfers"));
    executor_->Fence();
    for (auto& driver : drivers_) driver->Leave();
    runtimes.clear();
  }

  Shared* const shared_;
  FakeJob* const job_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::unique_ptr<RankDriver>> drivers_;
  std::thread thread_;
};

// Ends the program, saying where it hangs, unless `done` in time.
class HangDetector {
 public:
  HangDetector(const std::string& what, std::function<std::string()> awaited)
      : thread_([this, what, awaited] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (changed_.wait_for(lock, std::chrono::seconds(60), [this] { return ended_; })) return;
          std::fprintf(stderr, "hangs: %s\n%s\n", what.c_str(), awaited().c_str());
          std::abort();
        }) {}
  ~HangDetector() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

std::string AwaitedOf(FakeCluster* cluster) {
  std::string text;
  for (int p = 0; p < cluster->processes(); ++p) {
    cluster->On(p, [&] { text += Cat("  process ", p, " waits for: ", cluster->job(p)->awaited(), "\n"); });
  }
  return text;
}

// All ranks' pieces after every act: [case][member][act].
using Results = std::vector<std::vector<std::vector<std::string>>>;

// Messages from one process to another.
using Messages = std::map<std::pair<int, int>, int64_t>;

Results RunOnce(const Scenario& s, unsigned chance, int64_t* messages = nullptr, int64_t* bytes = nullptr,
                Messages* between = nullptr) {
  Results results;
  SCOPED_TRACE(Cat("chance ", chance, ", ", Describe(s)));
  FakeCluster cluster(s.host, s.shared_memory, s.ranks_each, chance);
  Shared shared{s, s.world()};
  std::vector<std::unique_ptr<Process>> processes;
  {
    HangDetector detector(Cat("chance ", chance, ", ", Describe(s)), [&] { return AwaitedOf(&cluster); });
    for (int p = 0; p < s.processes; ++p) {
      processes.push_back(
          std::make_unique<Process>(&shared, cluster.job(p), chance * 131 + static_cast<unsigned>(p)));
    }
    if (s.kill >= 0) {
      Random random(chance);
      const int after = 1 + Draw(random, 20);
      // A real job makes its collectives before it hears of any loss.
      for (int p = 0; p < s.processes; ++p)
        while (!cluster.job(p)->has_listener()) std::this_thread::sleep_for(std::chrono::microseconds(20));
      for (int i = 0; i < 2000 && shared.acts_done < after; ++i)
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      shared.killed = true;
      for (int p = 0; p < s.processes; ++p) {
        const bool told_first = Draw(random, 2) == 0;
        cluster.On(p, [&] { cluster.job(p)->Lost(s.kill, told_first); });
      }
    }
    for (auto& process : processes) process->Wait();
    EXPECT_TRUE(cluster.Settled()) << "a transfer has no end";
  }
  if (messages != nullptr) *messages = cluster.messages();
  if (bytes != nullptr) *bytes = cluster.bytes();
  for (int p = 0; p < s.processes && between != nullptr; ++p)
    for (int q = 0; q < s.processes; ++q) (*between)[{p, q}] = cluster.network(p)->sent_to(q);
  for (const std::string& error : shared.errors) ADD_FAILURE() << error;
  for (size_t c = 0; c < s.cases.size(); ++c) {
    results.emplace_back();
    for (int rank : s.cases[c].ranks()) {
      results.back().push_back(processes[s.ProcessOf(rank)]->end(rank, static_cast<int>(c))->results);
    }
  }
  return results;
}

void ExpectRight(unsigned plans) {
  for (unsigned seed = 1; seed <= plans && !::testing::Test::HasFailure(); ++seed) {
    RunOnce(MakeScenario(seed), seed);
  }
}
TEST(ProcessCollectives, RandomPlansEndAndAreRight) { ExpectRight(kPlans); }
TEST(LongProcessCollectives, RandomPlansEndAndAreRight) { ExpectRight(kManyPlans); }

void ExpectTheSameBits(unsigned plans) {
  for (unsigned seed = 1001; seed <= 1000 + plans && !::testing::Test::HasFailure(); ++seed) {
    Scenario s = MakeScenario(seed);
    s.exact = false;
    const Results first = RunOnce(s, seed), second = RunOnce(s, seed + 5000);
    EXPECT_EQ(first, second) << Describe(s);
    // And so are all copies of one sum.
    for (size_t c = 0; c < s.cases.size(); ++c) {
      const Case& the_case = s.cases[c];
      const size_t size = SizeOf(the_case.dtype);
      for (int64_t act = 0; act < int64_t{s.steps} * the_case.acts; ++act) {
        const BoxingProgram& p = the_case.program(act);
        for (const auto& work : p.work) {
          for (const Region& r : work) {
            ForEach(r.box, [&](const Dims& at) {
              auto bits = [&](int m) { return first[c][m][act].substr(IndexIn(p.out[m], at) * size, size); };
              for (int d : r.dests) ASSERT_EQ(bits(d), bits(r.dests[0])) << Describe(s);
            });
          }
        }
      }
    }
  }
}

TEST(ProcessCollectives, RepeatedRunsAreTheSameBitForBit) { ExpectTheSameBits(kPlans / 3); }
TEST(LongProcessCollectives, RepeatedRunsAreTheSameBitForBit) { ExpectTheSameBits(kManyPlans / 3); }

void ExpectFailuresWhereTheyAre(unsigned plans) {
  for (unsigned seed = 2001; seed <= 2000 + plans && !::testing::Test::HasFailure(); ++seed) {
    Scenario s = MakeScenario(seed);
    s.fail_percent = 30;
    s.steps = 4;
    RunOnce(s, seed);
  }
}

TEST(ProcessCollectives, AFailedMemberFailsItsActAndNoOther) { ExpectFailuresWhereTheyAre(kPlans / 3); }
TEST(LongProcessCollectives, AFailedMemberFailsItsActAndNoOther) {
  ExpectFailuresWhereTheyAre(kManyPlans / 3);
}

void ExpectEndsOfAllActs(unsigned plans) {
  for (unsigned seed = 3001; seed <= 3000 + plans && !::testing::Test::HasFailure(); ++seed) {
    Scenario s = MakeScenario(seed);
    s.steps = 6;
    s.kill = static_cast<int>(seed) % s.processes;
    RunOnce(s, seed);
  }
}

TEST(ProcessCollectives, ALostProcessEndsEveryAct) { ExpectEndsOfAllActs(kPlans / 2); }
TEST(LongProcessCollectives, ALostProcessEndsEveryAct) { ExpectEndsOfAllActs(kManyPlans / 2); }

Case OneCase(const NdSbp& from, const std::vector<int>& from_ranks, const NdSbp& to,
             const std::vector<int>& to_ranks, const Dims& shape) {
  Case c;
  const BoxingEnd f = {{static_cast<int>(from_ranks.size())}, from_ranks, from};
  const BoxingEnd t = {{static_cast<int>(to_ranks.size())}, to_ranks, to};
  c.programs.push_back(RouteAll(Box::Whole(shape), f, t));
  c.positions.push_back(0);
  return c;
}

TEST(ProcessCollectives, AGroupInsideAProcessNeedsNoNetwork) {
  Scenario s;
  s.ranks_each = 2;
  s.host = {0, 1};
  s.order = {{0, 0}, {1, 0}};
  s.cases = {OneCase({P()}, {0, 1}, {B()}, {0, 1}, {20}), OneCase({S(0)}, {2, 3}, {B()}, {2, 3}, {20})};
  s.cases[1].id = 1;
  int64_t messages = -1;
  RunOnce(s, 1, &messages);
  EXPECT_EQ(messages, 0);
}

// Units are of so many ranks, two of which are a process: of two units one process each speaks with the other
// unit, where without units each speaks with each.
TEST(ProcessCollectives, UnitsSpeakThroughOneProcess) {
  const auto between_units = [](int unit) {
    Scenario s;
    s.processes = 4;
    s.ranks_each = 2;
    s.host = {0, 1, 2, 3};
    s.order = {{0, 0}};
    const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
    s.cases = {OneCase({P()}, all, {B()}, all, {2000})};
    s.cases[0].algorithm = Name(CollectiveAlgorithm::kTwoLevel);
    s.cases[0].unit = unit;
    Messages messages;
    RunOnce(s, 1, nullptr, nullptr, &messages);
    int64_t crossing = 0;
    for (const auto& [ends, count] : messages) crossing += ends.first / 2 != ends.second / 2 ? count : 0;
    return crossing;
  };
  // Half as many; how many acknowledgements are sent depends on when data come.
  const int64_t of_units = between_units(4), of_processes = between_units(0);
  EXPECT_GT(of_units, 0);
  EXPECT_NEAR(static_cast<double>(of_processes), 2.0 * static_cast<double>(of_units), .1 * of_units);
}

// One process of a host gets what comes from another host, for all of its host: when that has failed all must
// know.
TEST(ProcessCollectives, AFailureOnAnotherHostIsKnownToAllOfThisOne) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    Scenario s;
    s.seed = seed;
    s.processes = 3;
    s.host = {0, 0, 1};
    s.steps = 8;
    s.fail_percent = 60;
    s.options = {1024, 0, 4096};
    s.order = {{0, 0}};
    s.cases = {OneCase({B()}, {2}, {B()}, {0, 1}, {20})};
    RunOnce(s, seed);
  }
}

// Random tables of rows for 8 ranks on two hosts, of two processes each: what goes between processes is the
// rows that are counted, and no byte of others. Within a host rows are read where they are.
void ExpectCountedRowsAlone(int runs) {
  constexpr int kCases = 4, kActs = 5, kSteps = 10;  // 200 tables in a run
  for (int run = 0; run < runs && !::testing::Test::HasFailure(); ++run) {
    Scenario s;
    s.seed = 700 + static_cast<unsigned>(run);
    s.processes = 4;
    s.ranks_each = 2;
    s.host = {0, 0, 1, 1};
    s.shared_memory = run % 2 == 1;
    s.steps = kSteps;
    s.options = {256, 64, 2048};
    const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int c = 0; c < kCases; ++c) {
      s.cases.push_back(CountedCase({8, c < 2 ? 8 : 16, 3 + c, 11}, all, c % 2 == 1, kActs));
      s.cases.back().id = c;
      s.cases.back().dtype = c == 2 ? DType::kBFloat16 : DType::kFloat32;
      for (int act = 0; act < kActs; ++act) {
        s.order.emplace_back(c, act);
        s.cases.back().positions.push_back(static_cast<int>(s.order.size()) - 1);
      }
    }
    int64_t wanted = 0;
    for (int c = 0; c < kCases; ++c) {
      const int64_t pools = s.cases[c].counted[1], size = static_cast<int64_t>(SizeOf(s.cases[c].dtype));
      for (int64_t act = 0; act < kSteps * kActs; ++act)
        for (int64_t p = 0; p < pools; ++p)
          for (int64_t r = 0; r < 8; ++r) {
            const int64_t other = p / (pools / 8);
            const bool crosses = s.shared_memory ? r / 4 != other / 4 : r / 2 != other / 2;
            if (crosses) wanted += s.Count(c, act, p * 8 + r) * 11 * size;
          }
    }
    int64_t bytes = -1;
    RunOnce(s, static_cast<unsigned>(run), nullptr, &bytes);
    EXPECT_EQ(bytes, wanted) << "run " << run << (s.shared_memory ? ", hosts" : ", processes alone");
  }
}
TEST(ProcessCollectives, SendTheRowsThatAreCountedAlone) { ExpectCountedRowsAlone(2); }
TEST(LongProcessCollectives, SendTheRowsThatAreCountedAlone) { ExpectCountedRowsAlone(50); }

class Counter final : public CollectiveListener {
 public:
  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override { ++(ok ? good : bad); }
  std::atomic<int> good{0}, bad{0};
};

// Process 0 sends to process 1, whose member never comes; both leave. Whatever lies where, everything ends.
TEST(ProcessCollectives, QuiesceDropsWhatNobodyAwaits) {
  int ended_well = 0, ended_badly = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    FakeCluster cluster({0, 1}, true, 1, seed);
    HangDetector detector(Cat("seed ", seed), [&] { return AwaitedOf(&cluster); });
    const Case c = OneCase({S(0)}, {0}, {S(0)}, {1}, {100});
    const plan::Collective plans[] = {c.PlanOf(0), c.PlanOf(1)};
    std::vector<float> piece(100);
    Counter counters[2];
    ProcessCollectivesOptions options;
    options.chunk_bytes = 64;
    options.staging_bytes = 64;
    Meeting told(2);
    const auto run = [&](int me) {
      std::unique_ptr<Executor> executor = MakeThreadExecutor(1, 1);
      std::unique_ptr<ProcessCollectives> between = ProcessCollectives::Make(cluster.job(me), options);
      std::unique_ptr<Collectives> collectives = between->Open(0);
      const CollectiveSpec spec{"plan",  "send",  DType::kFloat32, 1, executor->worker(0),
                                nullptr, nullptr, &counters[me]};
      std::unique_ptr<CollectiveMember> member = collectives->Join(spec, plans[me]);
      EXPECT_THROW(collectives->Join(spec, plans[me]), Error);  // twice
      collectives->CheckComplete();
      if (me == 0) {
        void* from = piece.data();
        member->Arrive({&from, 1}, {}, 0, true);
        while (cluster.messages() == 0) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        std::string awaited;
        cluster.On(0, [&] { awaited = cluster.job(0)->awaited(); });
        EXPECT_TRUE(awaited.empty() || awaited == "routed 'send' of step 0 (plan) with process 1") << awaited;
      }
      told.Gather(me, "sent", "");
      if (me == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      collectives->Quiesce();
      EXPECT_EQ(cluster.network(me)->transfers(), 0);
      executor->Fence();
      member.reset();
      collectives.reset();
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
    EXPECT_TRUE(cluster.Settled()) << "a transfer has no end";
    EXPECT_EQ(counters[0].good + counters[0].bad, 1);
    EXPECT_EQ(counters[1].good + counters[1].bad, 0);
    ended_well += counters[0].good;
    ended_badly += counters[0].bad;
  }
  EXPECT_GT(ended_well, 0);
  EXPECT_GT(ended_badly, 0);
}

// Runtimes that are closed in the middle of an act, again and again: data lies in staging, is being received
// into it or sent from it. When they are quiet all of it is back, and so is what they took for themselves.
TEST(ProcessCollectives, StagingIsBackWhenRuntimesCloseInTheMiddle) {
  constexpr int kProcesses = 3, kRounds = 30;
  int in_the_middle = 0;
  for (unsigned seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(Cat("seed ", seed));
    FakeCluster cluster({0, 1, 2}, seed % 2 == 0, 1, seed);
    HangDetector detector(Cat("seed ", seed), [&] { return AwaitedOf(&cluster); });
    // Columns have gaps in their pieces, and are sent from staging.
    const Case c = OneCase({P()}, {0, 1, 2}, {seed < 3 ? S(1) : B()}, {0, 1, 2}, {20, 30});
    ProcessCollectivesOptions options;
    options.chunk_bytes = 64;
    options.latency_bound_bytes = 0;
    options.staging_bytes = 64 * 12;
    std::atomic<int> ended_badly{0};
    Meeting told(kProcesses);
    const auto run = [&](int me) {
      Random random(seed * 1000 + static_cast<unsigned>(me));
      const plan::Collective plan = c.PlanOf(me);
      std::vector<int16_t> in(600, 1), out(600);
      std::unique_ptr<Executor> executor = MakeThreadExecutor(1, 1);
      std::unique_ptr<ProcessCollectives> between = ProcessCollectives::Make(cluster.job(me), options);
      const int64_t bytes = between->staging_bytes();
      for (int round = 0; round < kRounds; ++round) {
        Counter counter;
        std::unique_ptr<Collectives> collectives = between->Open(round);
        const CollectiveSpec spec{"plan",  "sum",   DType::kBFloat16, 1, executor->worker(0),
                                  nullptr, nullptr, &counter};
        std::unique_ptr<CollectiveMember> member = collectives->Join(spec, plan);
        collectives->CheckComplete();
        EXPECT_GT(between->staging_bytes(), bytes);
        void *from = in.data(), *to = out.data();
        member->Arrive({&from, 1}, {&to, 1}, 0, true);
        std::this_thread::sleep_for(std::chrono::microseconds(Draw(random, 600)));
        collectives->Quiesce();
        EXPECT_EQ(between->staging_taken(), 0) << "process " << me << " after round " << round;
        EXPECT_EQ(between->staging_bytes(), bytes);
        executor->Fence();
        ended_badly += counter.bad;
        member.reset();
        collectives.reset();
      }
      told.Gather(me, "all rounds", "");
    };
    std::vector<std::thread> threads;
    for (int p = 0; p < kProcesses; ++p) threads.emplace_back(run, p);
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(cluster.Settled()) << "a transfer has no end";
    in_the_middle += ended_badly;
  }
  EXPECT_GT(in_the_middle, 60) << "too few were closed in the middle of an act";
}

// What comes for a runtime after it was closed is let go at once: its sender does not wait for the end of the
// job.
TEST(ProcessCollectives, WhatComesForAClosedRuntimeIsDropped) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    FakeCluster cluster({0, 1}, false, 1, seed);
    HangDetector detector(Cat("seed ", seed), [&] { return AwaitedOf(&cluster); });
    const Case c = OneCase({S(0)}, {0}, {S(0)}, {1}, {100});
    std::vector<float> piece(100);
    Counter counters[2];
    ProcessCollectivesOptions options;
    options.chunk_bytes = 64;
    Meeting told(2);
    const auto run = [&](int me) {
      const plan::Collective plan = c.PlanOf(me);
      std::unique_ptr<Executor> executor = MakeThreadExecutor(1, 1);
      std::unique_ptr<ProcessCollectives> between = ProcessCollectives::Make(cluster.job(me), options);
      std::unique_ptr<Collectives> collectives = between->Open(0);
      std::unique_ptr<CollectiveMember> member = collectives->Join(
          {"plan", "send", DType::kFloat32, 1, executor->worker(0), nullptr, nullptr, &counters[me]}, plan);
      collectives->CheckComplete();
      if (me == 1) {
        collectives->Quiesce();
        told.Gather(me, "closed", "");
      } else {
        told.Gather(me, "closed", "");
        void* from = piece.data();
        member->Arrive({&from, 1}, {}, 0, true);
        for (int i = 0; i < 10000 && counters[0].good + counters[0].bad == 0; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(counters[0].good, 1) << "process 1 is still there, and holds what nobody there wants";
      }
      told.Gather(me, "sent", "");
      if (me == 0) collectives->Quiesce();
      executor->Fence();
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
    EXPECT_TRUE(cluster.Settled()) << "a transfer has no end";
  }
}

TEST(ProcessCollectives, AMissingMemberIsAnError) {
  FakeCluster cluster({0, 1}, true, 1, 1);
  HangDetector detector("a missing member", [&] { return AwaitedOf(&cluster); });
  const plan::Collective plan = OneCase({P()}, {0, 1}, {B()}, {0, 1}, {10}).PlanOf(0);
  Counter counter;
  const auto run = [&](int me) {
    std::unique_ptr<Executor> executor = MakeThreadExecutor(1, 1);
    std::unique_ptr<ProcessCollectives> between = ProcessCollectives::Make(cluster.job(me), {64, 32, 256});
    std::unique_ptr<Collectives> collectives = between->Open(0);
    if (me == 1) return collectives->CheckComplete();
    std::unique_ptr<CollectiveMember> member = collectives->Join(
        {"train", "sum", DType::kFloat32, 1, executor->worker(0), nullptr, nullptr, &counter}, plan);
    try {
      collectives->CheckComplete();
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "collective sum of plan 'train' waits for rank 1, whose process does not take part");
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

}  // namespace
}  // namespace oneflow_like
