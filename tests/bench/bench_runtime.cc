// The runtime's own cost: acts whose kernels do nothing, and messages on one thread and between two.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "actor/mailbox.h"
#include "actor/runtime.h"
#include "tests/actor/actor_test_plans.h"
#include "tests/bench/bench.h"

namespace oneflow_like::bench {
namespace {

Status Nothing(const KernelContext&) { return Status(); }

KernelRegistry EmptyKernels() {
  KernelRegistry registry;
  registry.Add("nothing", "cpu", &Nothing);
  return registry;
}

constexpr int kActs = 256;  // of each actor in a step, so that starting a step weighs little

// A chain of `length` actors in one stream, each of `kernels` kernels that read one buffer and write another.
plan::Plan Chain(int length, int kernels) {
  PlanBuilder b("chain", 0, 1, kActs);
  Dims one{8};
  Box whole = Box::Whole(one);
  std::vector<plan::Actor*> actors;
  std::vector<int> buffers{b.Buffer("first", 8, 1)};
  for (int i = 0; i < length; ++i) b.Actor(i, Cat("actor ", i), kActs);
  for (int i = 0; i < length; ++i) {
    actors.push_back(b.plan().mutable_actor(i));
    buffers.push_back(b.Buffer(Cat("buffer ", i), 8, 1));
    for (int k = 0; k < kernels; ++k) {
      b.Kernel(actors[i], "nothing", {b.Operand(buffers[i], one, {whole})},
               {b.Operand(buffers[i + 1], one, {whole})});
    }
    if (i > 0) b.Edge(actors[i - 1], actors[i], 1, 1, 1, 0, kernels - 1, 0);
  }
  std::vector<int> order;
  for (int act = 0; act < kActs; ++act)
    for (int i = 0; i < length; ++i) order.push_back(i);
  b.Stream("compute", order);
  return b.plan();
}

void RunPlan(benchmark::State& state, plan::Plan plan, int64_t acts, int64_t messages) {
  auto store = MakeStore(1);
  auto executor = MakeThreadExecutor(1, 1);
  KernelRegistry registry = EmptyKernels();
  Runtime runtime({std::move(plan)}, registry, store.get(), executor.get(), {});
  (void)runtime.Launch({}).Wait();
  for (auto _ : state) {
    Status status = runtime.Launch({}).Wait();
    if (!status.ok()) return state.SkipWithError(status.message().c_str());
  }
  double steps = static_cast<double>(state.iterations());
  state.counters["acts/s"] = benchmark::Counter(steps * acts, benchmark::Counter::kIsRate);
  state.counters["messages/s"] = benchmark::Counter(steps * messages, benchmark::Counter::kIsRate);
  state.counters["s_per_act"] =
      benchmark::Counter(steps * acts, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// A segment is one act of several kernels: its cost with empty ones is what the runtime adds.
void ActSameThread(benchmark::State& state) {
  const int length = 16, kernels = static_cast<int>(state.range(0));
  RunPlan(state, Chain(length, kernels), kActs * length, kActs * (length - 1) * 2);
}
BENCHMARK(ActSameThread)->ArgName("kernels")->Arg(1)->Arg(8)->UseRealTime();

// One actor feeds many, which read nothing else: two messages to an act and no more.
void MessageSameThread(benchmark::State& state) {
  const int readers = 32;
  PlanBuilder b("fan", 0, 1, kActs);
  for (int i = 0; i <= readers; ++i) b.Actor(i, Cat("actor ", i), i == 0 ? kActs : 1);
  std::vector<int> order(kActs, 0);
  for (int i = 0; i <= readers; ++i) b.Kernel(b.plan().mutable_actor(i), "nothing", {}, {});
  for (int i = 1; i <= readers; ++i) {
    // A message for each act of the hub, taken by the reader all at once.
    b.plan().mutable_actor(i)->set_acts(kActs);
    b.Edge(b.plan().mutable_actor(0), b.plan().mutable_actor(i), 2);
  }
  order.clear();
  for (int act = 0; act < kActs; ++act)
    for (int i = 0; i <= readers; ++i) order.push_back(i);
  b.Stream("compute", order);
  RunPlan(state, b.plan(), kActs * (readers + 1), kActs * readers * 2);
}
BENCHMARK(MessageSameThread)->UseRealTime();

struct Counted : Message {
  void Receive() override {}
};

// One thread posts, another takes and receives.
void MessageCrossThread(benchmark::State& state) {
  constexpr int kMessages = 1 << 18;
  Mailbox mailbox;
  std::vector<Counted> messages(kMessages);
  std::atomic<int64_t> batches{0};
  std::atomic<bool> stop{false};
  std::thread taker([&] {
    for (int64_t taken = 0; !stop.load(std::memory_order_relaxed);) {
      Message* message = mailbox.Take();
      if (message == nullptr) {
        mailbox.Wait(std::chrono::microseconds(5));
        continue;
      }
      message->Receive();
      if (++taken % kMessages == 0) batches.store(taken / kMessages, std::memory_order_release);
    }
  });
  int64_t posted = 0;
  for (auto _ : state) {
    for (Counted& message : messages) mailbox.Post(&message);
    ++posted;
    while (batches.load(std::memory_order_acquire) < posted) std::this_thread::yield();
  }
  stop = true;
  Counted last;
  mailbox.Post(&last);
  taker.join();
  state.counters["messages/s"] =
      benchmark::Counter(static_cast<double>(posted) * kMessages, benchmark::Counter::kIsRate);
}
BENCHMARK(MessageCrossThread)->UseRealTime();

// One message there and back; with a spin of 0 both sides sleep each time.
void MessageRoundTrip(benchmark::State& state) {
  constexpr int kRounds = 1000;
  const std::chrono::microseconds spin(state.range(0));
  Mailbox here, there;
  Counted ball;
  std::atomic<bool> stop{false};
  auto take = [&](Mailbox& mailbox) {
    for (;;) {
      if (Message* message = mailbox.Take()) return message;
      mailbox.Wait(spin);
    }
  };
  std::thread other([&] {
    for (;;) {
      Message* message = take(there);
      if (stop.load(std::memory_order_relaxed)) return;
      here.Post(message);
    }
  });
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
      there.Post(&ball);
      take(here);
    }
  }
  stop = true;
  there.Post(&ball);
  other.join();
  state.counters["s_per_trip"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kRounds,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(MessageRoundTrip)->ArgName("spin_us")->Arg(5)->Arg(0)->UseRealTime();

}  // namespace
}  // namespace oneflow_like::bench
