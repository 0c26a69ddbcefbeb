// A machine on paper against closed forms: pipelines' bubbles, lone and contending messages, and work beside
// them. Plans are made by hand; the runtime that runs them is the real one.
#include "actor/virtual_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "compiler/plan/schedule.h"
#include "tests/actor/plan_builder.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMicro = 1'000'000;  // picoseconds

struct Ran {
  std::vector<int64_t> ends;  // of the steps
  std::vector<TraceRecord> records;
};

// Actor "name" takes as long as `times` says, in microseconds.
Ran RunOnPaper(std::vector<PlanBuilder>& builders, VirtualOptions options,
               const std::map<std::string, double>& times, int steps = 1) {
  Ran ran;
  options.record = [&ran](const TraceRecord& r) { ran.records.push_back(r); };
  VirtualMachine machine(std::move(options));
  std::vector<int> ranks;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<plan::Plan> plans;
  for (PlanBuilder& builder : builders) {
    ranks.push_back(builder.plan().rank());
    devices.push_back(machine.MakeDevice(ranks.back()));
    plans.push_back(machine.OnPaper(builder.plan(), [&](const plan::Actor& actor, const plan::Kernel&) {
      return times.at(actor.name()) * 1e-6;
    }));
  }
  Store store(ranks, std::move(devices));
  RuntimeOptions runtime_options;
  runtime_options.peers = machine.peers();
  Runtime runtime(std::move(plans), machine.registry(), &store, machine.executor(), runtime_options);
  for (int step = 0; step < steps; ++step) {
    const Status status = runtime.Launch({}).Wait();
    EXPECT_TRUE(status.ok()) << status.message();
    ran.ends.push_back(machine.now());
  }
  runtime.Close();
  return ran;
}

void AddKernel(plan::Actor* actor) { PlanBuilder::Kernel(actor, "work", {}, {}); }

// One member of a collective that moves nothing which anybody looks at.
plan::Actor* AddCollective(PlanBuilder* rank, int id, const std::string& name, int acts,
                           const std::vector<int>& ranks) {
  plan::Actor* actor = rank->Actor(id, name, acts);
  AddKernel(actor);
  const int me = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank->plan().rank()) - ranks.begin());
  plan::Collective* c =
      PlanBuilder::Collective(actor, id, ranks, me, "sum", std::vector<std::vector<Box>>(ranks.size()),
                              std::vector<std::vector<Box>>(ranks.size()));
  PlanBuilder::Region(c, Box::Whole({1}), {0}, {0});
  return actor;
}

// --- Pipelines ---

// Stages of a pipeline, one a rank, as schedules order them; what goes between stages takes no time.
class Pipeline {
 public:
  Pipeline(PipelineSchedule kind, int stages, int chunks, int micro_batches)
      : stages_(stages), chunks_(chunks), acts_(micro_batches) {
    for (int s = 0; s < stages; ++s) builders_.emplace_back("pipeline", s, stages, micro_batches);
    const int last = stages * chunks - 1;
    for (int place = 0; place <= last; ++place) {
      Work(place, "F", Id(0, place));
      Work(place, "B", Id(1, place));
    }
    for (int place = 0; place < last; ++place) {
      Send(place, place + 1, Id(0, place), Id(0, place + 1), Id(2, place));
      Send(place + 1, place, Id(1, place + 1), Id(1, place), Id(3, place));
    }
    Edge(last % stages, Id(0, last), Id(1, last));
    for (int s = 0; s < stages; ++s) {
      std::vector<int> order;
      for (const Unit& unit : ScheduleOf(kind, {stages, chunks, micro_batches}, s).units)
        order.push_back(Id(unit.part == Phase::kForward ? 0 : 1, unit.chunk * stages + s));
      builders_[s].Stream("compute", order);
    }
    for (const auto& [stage, id] : sends_)
      builders_[stage].Stream("link", std::vector<int>(static_cast<size_t>(acts_), id));
  }
  std::vector<PlanBuilder>& builders() { return builders_; }

 private:
  static int Id(int what, int place) { return what * 1000 + place; }
  void Work(int place, const std::string& name, int id) {
    plan::Actor* actor = builders_[place % stages_].Actor(id, name, acts_);
    AddKernel(actor);
  }
  plan::Actor* Find(int stage, int id) {
    for (plan::Actor& actor : *builders_[stage].plan().mutable_actor())
      if (actor.id() == id) return &actor;
    return nullptr;
  }
  void Edge(int stage, int writer, int reader) {
    builders_[stage].Edge(Find(stage, writer), Find(stage, reader), acts_);
  }
  void Send(int from, int to, int writer, int reader, int id) {
    const int a = from % stages_, b = to % stages_;
    if (a == b) return Edge(a, writer, reader);  // a pipeline of one stage
    for (int stage : {a, b}) {
      AddCollective(&builders_[stage], id, "send", acts_, {a, b});
      sends_.push_back({stage, id});
    }
    Edge(a, writer, id);
    Edge(b, id, reader);
  }

  const int stages_, chunks_, acts_;
  std::vector<PlanBuilder> builders_;
  std::vector<std::pair<int, int>> sends_;
};

TEST(VirtualTime, PipelinesIdleAsTheirFormulasSay) {
  struct Case {
    PipelineSchedule kind;
    int chunks;
  };
  for (const Case& c : {Case{PipelineSchedule::kGPipe, 1}, Case{PipelineSchedule::k1F1B, 1},
                        Case{PipelineSchedule::kInterleaved, 2}, Case{PipelineSchedule::kInterleaved, 3}})
    for (int stages : {2, 3, 4, 8})
      for (int micro_batches : {stages, stages + 1, 2 * stages, 3 * stages + 1})
        for (bool host : {false, true})
          for (double forward : {30.0, 12.0}) {
            Pipeline pipeline(c.kind, stages, c.chunks, micro_batches);
            const double each = 90;  // of a micro-batch on a stage, forward and backward
            VirtualOptions options;
            options.threads = host ? stages : 0;
            options.load = [](const plan::Collective&, int) { return VirtualLoad(); };
            const Ran ran =
                RunOnPaper(pipeline.builders(), options,
                           {{"F", forward / c.chunks}, {"B", (each - forward) / c.chunks}, {"send", 0}});
            const double ideal = micro_batches * each, bubble = (stages - 1) * each / c.chunks;
            EXPECT_EQ(ran.ends[0], Picoseconds((ideal + bubble) * 1e-6))
                << Name(c.kind) << " p=" << stages << " v=" << c.chunks << " m=" << micro_batches
                << (host ? " threads" : " devices") << " forward=" << forward;
          }
}

// --- Messages ---

// Ranks 2i and 2i + 1 share collective i, which nothing goes before.
std::vector<PlanBuilder> Pairs(int pairs, bool work_beside) {
  std::vector<PlanBuilder> ranks;
  for (int r = 0; r < 2 * pairs; ++r) {
    ranks.emplace_back("pairs", r, 2 * pairs, 1);
    AddCollective(&ranks[r], r / 2, "sum", 1, {r / 2 * 2, r / 2 * 2 + 1});
    ranks[r].Stream("link", {r / 2});
    if (!work_beside) continue;
    AddKernel(ranks[r].Actor(100, "work", 1));
    ranks[r].Stream("compute", {100});
  }
  return ranks;
}

TEST(VirtualTime, ALoneMessageTakesItsLatencyAndTheSlowestOfItsLinks) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 50; ++trial) {
    const auto draw = [&](int most) { return static_cast<int64_t>(random() % most) * kMicro; };
    const int64_t latency = draw(100), a = draw(1000), b = draw(1000);
    std::vector<PlanBuilder> ranks = Pairs(1, false);
    VirtualOptions options;
    options.load = [&](const plan::Collective&, int rank) {
      return VirtualLoad{latency, {{rank, a}, {10 + rank, b}}};
    };
    EXPECT_EQ(RunOnPaper(ranks, options, {}).ends[0], latency + std::max(a, b)) << "trial " << trial;
  }
}

TEST(VirtualTime, MessagesOnOneLinkTakeTheSum) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 50; ++trial) {
    const int pairs = 2 + static_cast<int>(random() % 4);
    std::vector<int64_t> times;
    int64_t sum = 0, most = 0;
    for (int i = 0; i < pairs; ++i) {
      times.push_back(static_cast<int64_t>(1 + random() % 1000) * kMicro);
      sum += times.back();
      most = std::max(most, times.back());
    }
    for (bool shared : {true, false}) {
      std::vector<PlanBuilder> ranks = Pairs(pairs, false);
      VirtualOptions options;
      options.load = [&](const plan::Collective& c, int) {
        return VirtualLoad{0, {{shared ? 0 : static_cast<int>(c.id()), times[c.id()]}}};
      };
      const Ran ran = RunOnPaper(ranks, options, {});
      EXPECT_NEAR(static_cast<double>(ran.ends[0]), static_cast<double>(shared ? sum : most), pairs)
          << "trial " << trial;
      if (!shared) continue;
      // The shortest leaves when each of them has had as much of the link as it needs.
      int64_t first = ran.ends[0];
      for (const TraceRecord& r : ran.records) first = std::min(first, r.end);
      EXPECT_NEAR(static_cast<double>(first),
                  static_cast<double>(pairs * *std::min_element(times.begin(), times.end())), pairs);
    }
  }
}

TEST(VirtualTime, WorkAndMessagesGoOnBesideEachOther) {
  for (int64_t work : {0, 10, 50, 90})
    for (int64_t message : {1, 40, 50, 70}) {
      std::vector<PlanBuilder> ranks = Pairs(1, true);
      VirtualOptions options;
      options.load = [&](const plan::Collective&, int) { return VirtualLoad{0, {{0, message * kMicro}}}; };
      EXPECT_EQ(RunOnPaper(ranks, options, {{"work", static_cast<double>(work)}}).ends[0],
                std::max(work, message) * kMicro);
      // Threads of a host do one after the other where they move the data themselves.
      ranks = Pairs(1, true);
      options.threads = 2;
      options.load = [&](const plan::Collective&, int) { return VirtualLoad{message * kMicro, {}}; };
      EXPECT_EQ(RunOnPaper(ranks, options, {{"work", static_cast<double>(work)}}).ends[0],
                (work + message) * kMicro);
    }
}

// Work and messages of any length, up to far more than the clock has: the steps end, in their order.
TEST(VirtualTime, StopsWhereItsTimeEnds) {
  int stopped = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::mt19937 random(trial);
    const auto draw = [&] { return std::pow(10, static_cast<int>(random() % 20) - 10) * (1 + random() % 9); };
    std::vector<PlanBuilder> ranks = Pairs(2, true);
    VirtualOptions options;
    options.threads = static_cast<int>(random() % 3);
    options.cores = options.threads > 0 ? static_cast<int>(random() % 3) : 0;
    const int64_t latency = Picoseconds(draw()), a = Picoseconds(draw()), b = Picoseconds(draw());
    options.load = [&](const plan::Collective&, int rank) {
      return VirtualLoad{latency, {{0, 1 + a}, {10 + rank, 1 + b}}};
    };
    const double work = draw();
    const Ran ran = RunOnPaper(ranks, options, {{"work", work * 1e6}}, 3);
    int64_t before = 0;
    for (int64_t end : ran.ends) {
      EXPECT_GE(end, before) << "trial " << trial;
      EXPECT_LE(end, kLastPicosecond) << "trial " << trial;
      before = end;
    }
    stopped += before == kLastPicosecond;
    if (3 * work > 30 * 86400) {
      EXPECT_EQ(before, kLastPicosecond) << "trial " << trial;
    }
    EXPECT_GE(before, std::min(kLastPicosecond, latency + std::max(a, b))) << "trial " << trial;
  }
  EXPECT_GT(stopped, 50);
  EXPECT_LT(stopped, 190);
}

TEST(VirtualTime, AThreadDoesTheWorkOfItsRanksInTurn) {
  for (int ranks : {1, 2, 5})
    for (int threads : {1, 2, 3}) {
      std::vector<PlanBuilder> builders;
      for (int r = 0; r < ranks; ++r) {
        builders.emplace_back("plan", r, ranks, 1);
        AddKernel(builders[r].Actor(0, "work", 1));
        builders[r].Stream("compute", {0});
      }
      VirtualOptions options;
      options.threads = threads;
      EXPECT_EQ(RunOnPaper(builders, options, {{"work", 7}}).ends[0],
                (ranks + threads - 1) / threads * 7 * kMicro);
    }
}

// --- Cores that threads share ---

// Ranks with one piece of work each, all on threads of their own.
std::vector<PlanBuilder> Workers(int ranks) {
  std::vector<PlanBuilder> builders;
  for (int r = 0; r < ranks; ++r) {
    builders.emplace_back("plan", r, ranks, 1);
    AddKernel(builders[r].Actor(0, Cat("work", r), 1));
    builders[r].Stream("compute", {0});
  }
  return builders;
}

// The seconds of a kernel are those of VirtualOptions: drawn here, alone and crowded.
Ran RunOnCores(const std::vector<ThreadTime>& works, int cores, int kernel_cores) {
  std::vector<PlanBuilder> builders = Workers(static_cast<int>(works.size()));
  Ran ran;
  VirtualMachine machine({.threads = static_cast<int>(works.size()),
                          .cores = cores,
                          .kernel_cores = kernel_cores,
                          .record = [&ran](const TraceRecord& r) { ran.ends.push_back(r.end); }});
  std::vector<int> ranks;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<plan::Plan> plans;
  for (PlanBuilder& builder : builders) {
    const int rank = builder.plan().rank();
    ranks.push_back(rank);
    devices.push_back(machine.MakeDevice(rank));
    plans.push_back(machine.OnPaper(builder.plan(),
                                    [&](const plan::Actor&, const plan::Kernel&) { return works[rank]; }));
  }
  Store store(ranks, std::move(devices));
  RuntimeOptions options;
  options.peers = machine.peers();
  Runtime runtime(std::move(plans), machine.registry(), &store, machine.executor(), options);
  const Status status = runtime.Launch({}).Wait();
  EXPECT_TRUE(status.ok()) << status.message();
  runtime.Close();
  std::sort(ran.ends.begin(), ran.ends.end());
  return ran;
}

// Threads that begin together, in the order in which they end: between two ends so many work, each at the
// speed that these leave it.
std::vector<double> EndsByHand(std::vector<ThreadTime> works, int cores, int kernel_cores) {
  std::vector<double> left(works.size(), 1), ends;
  double now = 0;
  while (ends.size() < works.size()) {
    const double n = static_cast<double>(works.size() - ends.size()), busy = n * kernel_cores;
    const double beside = cores > kernel_cores ? std::min(1.0, (busy - kernel_cores) / (cores - kernel_cores))
                                               : (n > 1 ? 1.0 : 0.0);
    const double turns = std::max(1.0, busy / std::max(cores, kernel_cores));
    std::vector<double> takes;
    for (const ThreadTime& w : works) takes.push_back((w.alone + beside * (w.crowded - w.alone)) * turns);
    size_t next = works.size();
    for (size_t i = 0; i < works.size(); ++i)
      if (left[i] > 0 && (next == works.size() || left[i] * takes[i] < left[next] * takes[next])) next = i;
    const double passed = left[next] * takes[next];
    now += passed;
    for (size_t i = 0; i < works.size(); ++i)
      if (left[i] > 0) left[i] = i == next ? 0 : std::max(1e-12, left[i] - passed / takes[i]);
    ends.push_back(now);
  }
  return ends;
}

TEST(VirtualTime, ThreadsShareCores) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 100; ++trial) {
    const int threads = 1 + static_cast<int>(random() % 6), cores = 1 + static_cast<int>(random() % 4),
              kernel_cores = 1 + static_cast<int>(random() % 2);
    std::vector<ThreadTime> works;
    for (int t = 0; t < threads; ++t) {
      const double alone = static_cast<double>(1 + random() % 1000) * 1e-6;
      works.push_back({alone, alone * (1 + static_cast<double>(random() % 100) / 100)});
    }
    const std::vector<double> expected = EndsByHand(works, cores, kernel_cores);
    const Ran ran = RunOnCores(works, cores, kernel_cores);
    ASSERT_EQ(ran.ends.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(static_cast<double>(ran.ends[i]), expected[i] * kPicosecondsPerSecond, 100)
          << "trial " << trial << ", " << threads << " threads on " << cores << " cores of which each takes "
          << kernel_cores;
  }
}

// Processes have threads of their own: ranks are on the threads that they are given.
TEST(VirtualTime, RanksWorkOnTheirThreads) {
  std::mt19937 random(12);
  for (int trial = 0; trial < 30; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 8), threads = 1 + static_cast<int>(random() % 4);
    std::vector<PlanBuilder> builders = Workers(ranks);
    VirtualOptions options;
    options.threads = threads;
    std::map<std::string, double> times;
    std::vector<int64_t> sums(threads, 0);
    for (int r = 0; r < ranks; ++r) {
      options.thread_of.push_back(static_cast<int>(random() % threads));
      const int64_t micros = 1 + static_cast<int64_t>(random() % 100);
      times[Cat("work", r)] = static_cast<double>(micros);
      sums[options.thread_of.back()] += micros * kMicro;
    }
    EXPECT_EQ(RunOnPaper(builders, options, times).ends[0], *std::max_element(sums.begin(), sums.end()))
        << "trial " << trial;
  }
}

// Members on threads: the last to come wakes the others, and the last to have worked does.
TEST(VirtualTime, MembersWaitForMessagesBetweenThreads) {
  for (int64_t message : {0, 1, 20})
    for (int64_t work : {0, 3, 50}) {
      std::vector<PlanBuilder> ranks = Pairs(1, false);
      VirtualOptions options;
      options.threads = 2;
      options.load = [&](const plan::Collective&, int) {
        return VirtualLoad{.latency = work * kMicro, .message = message * kMicro};
      };
      // Both work, the first when the second has told it to; when it has, it tells the second.
      EXPECT_EQ(RunOnPaper(ranks, options, {}).ends[0], (2 * message + work) * kMicro)
          << message << " " << work;
    }
}

// To hear one another takes a core, and nothing of a thread that is at work.
TEST(VirtualTime, WakingUpIsWork) {
  for (bool crowded : {false, true}) {
    std::vector<PlanBuilder> ranks = Pairs(1, false);
    if (crowded) ranks.emplace_back("plan", 2, 3, 1);
    PlanBuilder& busy = crowded ? ranks.back() : ranks.front();
    AddKernel(busy.Actor(7, "busy", 1));
    busy.Stream("busy", {7});
    VirtualOptions options;
    options.threads = crowded ? 3 : 2;
    options.cores = crowded ? 1 : 2;
    options.load = [&](const plan::Collective&, int) {
      return VirtualLoad{.latency = 3 * kMicro, .message = 20 * kMicro};
    };
    // The first member is told to work, and tells the second. In the crowd they share one core with a third
    // thread, which is never idle; else the first thread is at work when it is told.
    EXPECT_EQ(RunOnPaper(ranks, options, {{"busy", 100}}).ends[0],
              (crowded ? 20 + 3 + 3 + 100 + 20 : 100 + 3 + 20) * kMicro)
        << crowded;
  }
}

// --- Ranks that act for others ---

TEST(VirtualTime, OneOfRanksThatAreAlikeActsForAll) {
  // Two stages of four ranks; each stage sums over its ranks, and pairs send to the next stage.
  for (bool all : {true, false}) {
    std::vector<PlanBuilder> ranks;
    for (int r = 0; r < 8; ++r) {
      if (!all && r % 4 != 0) continue;
      PlanBuilder& plan = ranks.emplace_back("plan", r, 8, 1);
      const int first = r / 4 * 4;
      plan::Actor* sum = AddCollective(&plan, 0, "sum", 1, {first, first + 1, first + 2, first + 3});
      plan::Actor* send = AddCollective(&plan, 1, "send", 1, {r % 4, r % 4 + 4});
      plan.Edge(sum, send, 1);
      plan.Stream("link", {0, 1});
    }
    VirtualOptions options;
    options.load = [](const plan::Collective& c, int rank) {
      return VirtualLoad{(c.id() == 0 ? 3 : 5) * kMicro, {{rank, rank < 4 ? 20 * kMicro : 40 * kMicro}}};
    };
    options.stands_for = [&](int rank) { return all ? rank : rank / 4 * 4; };
    EXPECT_EQ(RunOnPaper(ranks, options, {}).ends[0], (3 + 40 + 5 + 40) * kMicro) << all;
  }
}

}  // namespace
}  // namespace oneflow_like
