// What a failed act spoils, and nothing else: random plans in which acts fail, against a model of which
// kernels may run; which error a step and a runtime keep; and that what is cancelled stops before its next
// kernel.
// ctest: asan=10 tsan=10
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <random>
#include <set>
#include <tuple>

#include "tests/actor/actor_test_plans.h"
#include "tests/actor/seeded_executor.h"

namespace oneflow_like {
namespace {

// One run of one kernel: (step, actor, act, kernel).
using Ran = std::tuple<int64_t, int, int, int>;

// What the kernels "note" of one test have seen. The seeded executor has one thread.
struct Notes {
  std::set<Ran> fail;
  std::vector<Ran> ran;
  std::vector<std::string> errors;  // in the order in which kernels failed
};
Notes* notes = nullptr;

Status NoteKernel(const KernelContext& c) {
  const int actor = static_cast<int>(c.spec.attrs.Int("actor")),
            kernel = static_cast<int>(c.spec.attrs.Int("kernel"));
  const Ran ran{c.step, actor, static_cast<int>(c.time), kernel};
  notes->ran.push_back(ran);
  if (notes->fail.count(ran) == 0) return Status();
  notes->errors.push_back(
      Cat(c.spec.node, " at ", c.spec.line.str(), ": step ", c.step, ", kernel ", kernel));
  return Status(Cat("step ", c.step, ", kernel ", kernel));
}

// Actors without order between them, joined by edges of several periods.
struct RandomActors {
  struct Edge {
    int writer, reader, write_kernel, read_kernel, slots;
    int in_step;  // slots filled in a step: several acts may fill one, and several read one
  };
  int times;
  std::vector<int> acts, kernels;  // by actor
  std::vector<Edge> edges;

  explicit RandomActors(uint64_t seed) {
    std::mt19937_64 random(seed);
    auto below = [&](int n) { return static_cast<int>(random() % n); };
    times = std::array{1, 2, 4}[below(3)];
    const int actors = 2 + below(6);
    for (int a = 0; a < actors; ++a) {
      acts.push_back(below(3) == 0 ? 1 : times);
      kernels.push_back(1 + below(3));
      for (int from = std::max(0, a - 2); from < a; ++from) {
        if (from < a - 1 && below(2) == 0) continue;
        int in_step = 1;
        if (acts[a] == times && acts[from] == times)
          while (in_step < times && below(3) != 0) in_step *= 2;
        edges.push_back({from, a, below(kernels[from]), below(kernels[a]), in_step + below(3), in_step});
      }
    }
  }

  plan::Plan Plan() const {
    PlanBuilder b("random", 0, 1, times);
    std::vector<plan::Actor*> made;
    for (int a = 0; a < static_cast<int>(acts.size()); ++a) {
      b.Actor(a, Cat("actor", a), acts[a]);
      for (int k = 0; k < kernels[a]; ++k) {
        plan::Kernel* kernel = b.Kernel(b.plan().mutable_actor(a), "note", {}, {});
        b.SetAttr(kernel, "actor", a);
        b.SetAttr(kernel, "kernel", k);
      }
    }
    for (const Edge& e : edges)
      b.Edge(b.plan().mutable_actor(e.writer), b.plan().mutable_actor(e.reader), e.slots,
             acts[e.writer] / e.in_step, acts[e.reader] / e.in_step, 0, e.write_kernel, e.read_kernel);
    return b.plan();
  }

  // Which kernels run in `steps` steps when those of `fail` fail, if they are run at all.
  std::vector<Ran> Model(int steps, const std::set<Ran>& fail) const {
    std::vector<Ran> ran;
    for (int step = 0; step < steps; ++step) {
      std::vector<std::vector<int>> good(acts.size());  // by actor and act: so many kernels ended well
      for (int a = 0; a < static_cast<int>(acts.size()); ++a) {
        for (int act = 0; act < acts[a]; ++act) {
          bool skipped = false;
          for (const Edge& e : edges) {
            if (e.reader != a) continue;
            const int slot = act / (acts[a] / e.in_step), fill = acts[e.writer] / e.in_step;
            for (int w = slot * fill; w < (slot + 1) * fill; ++w)
              skipped = skipped || good[e.writer][w] <= e.write_kernel;
          }
          int well = 0;
          for (bool ok = !skipped; ok && well < kernels[a]; well += ok) {
            ran.push_back({step, a, act, well});
            ok = fail.count(ran.back()) == 0;
          }
          good[a].push_back(well);
        }
      }
    }
    return ran;
  }
};

TEST(ActorFailure, WhatReadsAFailedSlotIsSkippedAndNothingElse) {
  constexpr int kSteps = 3;
  int spoilt = 0, several = 0;
  for (uint64_t seed = 1; seed <= 600 && !HasFailure(); ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    const RandomActors actors(seed);
    const std::vector<Ran> all = actors.Model(kSteps, {});
    std::mt19937_64 random(seed * 7919);
    Notes noted;
    notes = &noted;
    for (int i = static_cast<int>(random() % 3); i >= 0; --i) noted.fail.insert(all[random() % all.size()]);
    std::vector<Ran> wanted = actors.Model(kSteps, noted.fail);

    KernelRegistry registry;
    registry.Add("note", "cpu", &NoteKernel);
    auto store = MakeStore(1);
    auto executor = MakeSeededExecutor(seed);
    Runtime runtime({actors.Plan()}, registry, store.get(), executor.get(), {.steps_in_flight = kSteps});
    std::vector<StepHandle> handles;
    for (int step = 0; step < kSteps; ++step) handles.push_back(runtime.Launch({}));  // nothing has run yet
    std::vector<std::string> said;
    for (const StepHandle& handle : handles) said.push_back(handle.Wait().message());

    std::sort(noted.ran.begin(), noted.ran.end());
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(noted.ran, wanted) << "(step, actor, act, kernel)";
    // A step says the first of its own failures, the runtime the first of all.
    for (int step = 0; step < kSteps; ++step) {
      std::string first;
      for (const std::string& error : noted.errors)
        if (first.empty() && error.find(Cat(": step ", step, ",")) != std::string::npos) first = error;
      EXPECT_EQ(said[step], first) << "step " << step;
    }
    ASSERT_FALSE(noted.errors.empty());
    std::string refused;
    try {
      runtime.Launch({});
    } catch (const Error& error) {
      refused = error.what();
    }
    EXPECT_EQ(refused, noted.errors[0]);
    spoilt += wanted.size() + noted.errors.size() < all.size();
    several += noted.errors.size() > 1;
  }
  EXPECT_GT(spoilt, 100) << "too few failures had anybody behind them";
  EXPECT_GT(several, 100) << "too few runs had several failures";
}

// Micro-batch 1 of 4 fails: the other three are read, their sum is not.
TEST(ActorFailure, OneMicroBatchSpoilsItsReaderAndTheSumOfAll) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    PlanBuilder b("four", 0, 1, 4);
    const std::array names{"forward", "backward", "sum", "update"};
    for (int a = 0; a < 4; ++a) {
      plan::Kernel* kernel = b.Kernel(b.Actor(a, names[a], a < 3 ? 4 : 1), "note", {}, {});
      b.SetAttr(kernel, "actor", a);
      b.SetAttr(kernel, "kernel", 0);
    }
    auto actor = [&](int a) { return b.plan().mutable_actor(a); };
    b.Edge(actor(0), actor(1), 4);
    b.Edge(actor(0), actor(2), 2);
    b.Edge(actor(2), actor(3), 1, 4, 1);
    Notes noted;
    notes = &noted;
    noted.fail = {{0, 0, 1, 0}};
    KernelRegistry registry;
    registry.Add("note", "cpu", &NoteKernel);
    auto store = MakeStore(1);
    auto executor = MakeSeededExecutor(seed);
    Runtime runtime({b.plan()}, registry, store.get(), executor.get(), {});
    EXPECT_EQ(runtime.Launch({}).Wait().message(), "forward at test.cc:10: step 0, kernel 0");
    std::sort(noted.ran.begin(), noted.ran.end());
    const std::vector<Ran> wanted = {{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 2, 0}, {0, 0, 3, 0}, {0, 1, 0, 0},
                                     {0, 1, 2, 0}, {0, 1, 3, 0}, {0, 2, 0, 0}, {0, 2, 2, 0}, {0, 2, 3, 0}};
    EXPECT_EQ(noted.ran, wanted);
  }
}

// --- Cancelling ---

std::atomic<int> slow_runs{0};
Status SlowKernel(const KernelContext&) {
  ++slow_runs;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return Status();
}

TEST(ActorFailure, CloseStopsAnActBeforeItsNextKernel) {
  constexpr int kKernels = 20000;  // some twenty seconds, if nothing stops them
  PlanBuilder b("long", 0, 1, 1);
  plan::Actor* actor = b.Actor(0, "slow", 1);
  for (int i = 0; i < kKernels; ++i) b.Kernel(actor, "slow", {}, {});
  KernelRegistry registry;
  registry.Add("slow", "cpu", &SlowKernel);
  slow_runs = 0;
  auto store = MakeStore(1);
  auto executor = MakeThreadExecutor(1, 1);
  Runtime runtime({b.plan()}, registry, store.get(), executor.get(), {});
  StepHandle handle = runtime.Launch({});
  while (slow_runs == 0) std::this_thread::yield();
  runtime.Close();
  EXPECT_LT(slow_runs, kKernels);
  EXPECT_EQ(handle.Wait().message(), "closed");
}

}  // namespace
}  // namespace oneflow_like
