// The message rows of bench_runtime.cc with actors of the C++ Actor Framework: the same patterns, empty
// messages, event-based actors. In a file of its own, as CAF's headers are slow to compile; left out where
// CAF is missing.
#include <benchmark/benchmark.h>

#include <atomic>
#include <caf/all.hpp>
#include <thread>
#include <vector>

namespace oneflow_like::bench {
namespace {

using Empty = caf::atom_constant<caf::atom("empty")>;
using Start = caf::atom_constant<caf::atom("start")>;
using Done = caf::atom_constant<caf::atom("done")>;

struct Workers : caf::actor_system_config {
  explicit Workers(int threads) { set("scheduler.max-threads", threads); }
};

caf::behavior Echo(caf::event_based_actor* self) {
  return {[](Empty) { return Empty::value; }};
}

void SetMessageRate(benchmark::State& state, double messages) {
  state.counters["messages/s"] = benchmark::Counter(messages, benchmark::Counter::kIsRate);
}

// As MessageSameThread: a hub feeds every reader and is at most two acts ahead; each message is answered by
// one that gives the place back. One worker runs them all.
constexpr int kReaders = 32, kActs = 256;

class Hub : public caf::event_based_actor {
 public:
  explicit Hub(caf::actor_config& config) : event_based_actor(config) {
    for (int i = 0; i < kReaders; ++i) readers_.push_back(spawn(Echo));
  }

  caf::behavior make_behavior() override {
    return {
        [this](Start) {
          waiting_ = caf::actor_cast<caf::actor>(current_sender());
          sent_ = answered_ = 0;
          Feed();
          Feed();
        },
        [this](Empty) {
          if (++answered_ == kActs * kReaders) {
            send(waiting_, Done::value);
          } else if (answered_ % kReaders == 0 && sent_ < kActs) {
            Feed();
          }
        },
    };
  }

 private:
  void Feed() {
    for (const caf::actor& reader : readers_) send(reader, Empty::value);
    ++sent_;
  }

  std::vector<caf::actor> readers_;
  caf::actor waiting_;
  int sent_ = 0, answered_ = 0;
};

void CafMessageSameThread(benchmark::State& state) {
  Workers workers(1);
  caf::actor_system system(workers);
  caf::scoped_actor self(system);
  caf::actor hub = system.spawn<Hub>();
  for (auto _ : state) {
    self->send(hub, Start::value);
    self->receive([](Done) {});
  }
  self->send_exit(hub, caf::exit_reason::kill);
  SetMessageRate(state, static_cast<double>(state.iterations()) * kActs * kReaders * 2);
}
BENCHMARK(CafMessageSameThread)->UseRealTime();

// As MessageCrossThread: one thread posts, another takes and receives: the only worker, or (detached) the
// actor's own thread. Ours posts messages that exist already, CAF makes each one.
void CafMessageCrossThread(benchmark::State& state) {
  constexpr int kMessages = 1 << 18;
  Workers workers(1);
  caf::actor_system system(workers);
  std::atomic<int64_t> batches{0};
  auto count = [&batches](caf::event_based_actor*) -> caf::behavior {
    return {[&batches, taken = int64_t{0}](Empty) mutable {
      if (++taken % kMessages == 0) batches.store(taken / kMessages, std::memory_order_release);
    }};
  };
  caf::actor taker = state.range(0) ? system.spawn<caf::detached>(count) : system.spawn(count);
  int64_t posted = 0;
  for (auto _ : state) {
    for (int i = 0; i < kMessages; ++i) caf::anon_send(taker, Empty::value);
    ++posted;
    while (batches.load(std::memory_order_acquire) < posted) std::this_thread::yield();
  }
  caf::anon_send_exit(taker, caf::exit_reason::kill);
  SetMessageRate(state, static_cast<double>(posted) * kMessages);
}
BENCHMARK(CafMessageCrossThread)->ArgName("detached")->Arg(0)->Arg(1)->UseRealTime();

// As MessageRoundTrip: one message there and back. Detached, each side has a thread of its own, which sleeps
// while it waits, as ours with spin_us:0. With two workers CAF may run both sides on one of them.
class Server : public caf::event_based_actor {
 public:
  static constexpr int kRounds = 1000;
  Server(caf::actor_config& config, caf::actor other) : event_based_actor(config), other_(std::move(other)) {}

  caf::behavior make_behavior() override {
    return {
        [this](Start) {
          waiting_ = caf::actor_cast<caf::actor>(current_sender());
          rounds_ = 0;
          send(other_, Empty::value);
        },
        [this](Empty) {
          if (++rounds_ == kRounds) {
            send(waiting_, Done::value);
          } else {
            send(other_, Empty::value);
          }
        },
    };
  }

 private:
  caf::actor other_, waiting_;
  int rounds_ = 0;
};

void CafMessageRoundTrip(benchmark::State& state) {
  const bool detached = state.range(0);
  Workers workers(2);
  caf::actor_system system(workers);
  caf::scoped_actor self(system);
  caf::actor other = detached ? system.spawn<caf::detached>(Echo) : system.spawn(Echo);
  caf::actor server = detached ? system.spawn<Server, caf::detached>(other) : system.spawn<Server>(other);
  for (auto _ : state) {
    self->send(server, Start::value);
    self->receive([](Done) {});
  }
  self->send_exit(server, caf::exit_reason::kill);
  self->send_exit(other, caf::exit_reason::kill);
  state.counters["s_per_trip"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * Server::kRounds,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(CafMessageRoundTrip)->ArgName("detached")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace oneflow_like::bench
