// Messages through shared memory and the duty of driving the network, with threads in the place of processes.
// ctest: asan=10 tsan=10
#include "actor/net/shared_memory/inbox.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actor/net/ucx/duty.h"
#include "actor/runtime.h"
#include "tests/sbp/random_boxing.h"

namespace oneflow_like {
namespace {

struct Two {
  std::unique_ptr<Inbox> inbox[2];
  Two() {
    for (int me : {0, 1})
      inbox[me] = std::make_unique<Inbox>(me, 2, MakeHostDevice(0)->Allocate(Inbox::BytesFor(2), "an inbox"));
    for (int me : {0, 1}) inbox[me]->Connect(1 - me, const_cast<void*>(inbox[1 - me]->address()));
  }
};

TEST(InboxTest, WhatDoesNotFitIsRefusedAndTheRestComesInOrder) {
  Two two;
  std::vector<std::string> come;
  two.inbox[1]->SetHandler([&](int from, const void* message, size_t bytes) {
    EXPECT_EQ(from, 0);
    come.emplace_back(static_cast<const char*>(message), bytes);
  });
  std::vector<std::string> sent;
  for (int round = 0; round < 3; ++round) {
    for (;;) {
      std::string text(sent.size() * 7 % (Inbox::kMaxBytes + 1), static_cast<char>('a' + sent.size() % 26));
      const Inbox::Outcome outcome = two.inbox[0]->Send(1, text.data(), text.size());
      if (outcome == Inbox::Outcome::kFull) break;
      EXPECT_EQ(outcome, Inbox::Outcome::kSent);
      sent.push_back(std::move(text));
      ASSERT_LT(sent.size(), 10000u);
    }
    EXPECT_TRUE(two.inbox[1]->Poll());
    EXPECT_FALSE(two.inbox[1]->Poll());
    EXPECT_EQ(come, sent);
  }
}

TEST(InboxTest, WhoSleepsIsRungOnce) {
  Two two;
  EXPECT_TRUE(two.inbox[1]->FallAsleep());
  EXPECT_EQ(two.inbox[0]->Send(1, "x", 1), Inbox::Outcome::kRing);
  EXPECT_EQ(two.inbox[0]->Send(1, "y", 1), Inbox::Outcome::kSent);
  EXPECT_FALSE(two.inbox[1]->FallAsleep());
  two.inbox[1]->Poll();
  EXPECT_TRUE(two.inbox[1]->FallAsleep());
  two.inbox[1]->WakeUp();
  EXPECT_EQ(two.inbox[0]->Send(1, "z", 1), Inbox::Outcome::kSent);
}

// The owner sleeps whenever it may; a message that rang nobody would stay for ever.
TEST(InboxTest, NoMessageIsSleptThrough) {
  Two two;
  constexpr int kMessages = 200000;
  std::atomic<bool> rung{false};
  int come = 0;
  two.inbox[1]->SetHandler([&](int, const void* message, size_t) {
    int number;
    std::memcpy(&number, message, sizeof number);
    EXPECT_EQ(number, come++);
  });
  std::thread sender([&] {
    for (int i = 0; i < kMessages;) {
      const Inbox::Outcome outcome = two.inbox[0]->Send(1, &i, sizeof i);
      if (outcome == Inbox::Outcome::kRing) rung = true;
      if (outcome == Inbox::Outcome::kFull) std::this_thread::yield();
      if (outcome != Inbox::Outcome::kFull) ++i;
    }
  });
  while (come < kMessages) {
    if (two.inbox[1]->Poll() || !two.inbox[1]->FallAsleep()) continue;
    while (!rung.exchange(false)) std::this_thread::yield();
    two.inbox[1]->WakeUp();
  }
  sender.join();
}

// A network of nothing but its mailbox, driven as network.cc drives its own: by its thread and by workers.
class Driven : public Duty::Work {
 public:
  explicit Driven(int spins, bool few_cores = false)
      : duty(std::make_shared<Duty>(this, few_cores)), spins_(spins), thread_([this] { Run(); }) {}
  ~Driven() override {
    duty->End();
    thread_.join();
    close(no_event_);
  }
  void DriveUntil(Mailbox* mail) override {
    duty->mailbox()->WakeUp();
    ++driven;
    for (int idle = 0; !mail->posted() && !duty->ended();) {
      if (Pass()) {
        idle = 0;
        continue;
      }
      if (++idle < spins_ || !duty->mailbox()->FallAsleep()) continue;
      if (mail->FallAsleep()) {
        if (!duty->ended()) duty->Sleep(no_event_, INT64_MAX);
        mail->WakeUp();
      }
      duty->mailbox()->WakeUp();
    }
  }
  void TakeTurn() override {
    duty->mailbox()->WakeUp();
    ++between_acts;
    while (Pass()) {
    }
  }
  const std::shared_ptr<Duty> duty;
  int driven = 0;  // as all else, whoever has the duty
  int between_acts = 0;
  int64_t turns = 0;  // of the thread
  void RunOn(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(thread_.native_handle(), sizeof one, &one);
  }

 private:
  bool Pass() {
    Message* message = duty->mailbox()->Take();
    if (message == nullptr) return false;
    message->Receive();
    return true;
  }
  void Run() {
    duty->Release();
    for (;;) {
      if (!duty->TakeAwakened()) {
        duty->AwaitTurn(-1, INT64_MAX);
        continue;
      }
      ++turns;
      duty->mailbox()->WakeUp();
      if (duty->ended()) return;
      bool asleep = false;
      while (!asleep && !duty->ended()) asleep = !Pass() && duty->mailbox()->FallAsleep();
      if (!asleep) return;  // it has ended
      duty->Release();
      duty->AwaitTurn(no_event_, INT64_MAX);
    }
  }
  const int spins_;
  const int no_event_ = eventfd(0, EFD_CLOEXEC);
  std::thread thread_;
};

// Asks the network, which answers to the worker, which asks again; now and then the worker does something
// else meanwhile. What got lost would keep this waiting for ever.
struct Asker {
  struct Question : Message {
    Asker* asker;
    void Receive() override {
      ++*asker->counted;
      asker->worker->Post(&asker->answer);
    }
  };
  struct Answer : Message {
    Asker* asker;
    void Receive() override { asker->Ask(); }
  };
  struct Other : Runnable {
    Asker* asker;
    void RunOne() override {
      if (Draw(asker->random, 100) == 0) std::this_thread::sleep_for(std::chrono::microseconds(700));
    }
  };
  Asker(Driven* driven, Worker* worker, int64_t* counted, int times, unsigned seed)
      : driven(driven), worker(worker), counted(counted), left(times), random(seed) {
    question.asker = answer.asker = other.asker = this;
  }
  void Ask() {
    if (left-- == 0) return done.Signal();
    if (Draw(random, 2) == 0 && worker->idle_work() == driven->duty.get()) {
      driven->duty->PostSoon(&question);
    } else {
      driven->duty->Post(&question);
    }
    if (Draw(random, 4) == 0) worker->Ready(&other, false);
  }
  Driven* const driven;
  Worker* const worker;
  int64_t* const counted;  // by all, without an order but that of the duty
  int left;
  std::mt19937 random;
  Question question;
  Answer answer;
  Other other;
  Completion done;
};

TEST(DutyTest, NothingIsLostAsItChangesHands) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr int kWorkers = 3, kTimes = 4000;
  for (const auto& [spins, few_cores] : {std::pair{0, false}, {200, false}, {0, true}, {200, true}}) {
    std::unique_ptr<Executor> executor = MakeThreadExecutor(kWorkers, 1);
    int64_t counted = 0;
    {
      Driven driven(spins, few_cores);
      for (int w = 0; w < kWorkers; ++w) executor->worker(w)->WhenIdle(driven.duty);
      std::vector<std::unique_ptr<Asker>> askers;
      for (int w = 0; w < kWorkers; ++w) {
        askers.push_back(std::make_unique<Asker>(&driven, executor->worker(w), &counted, kTimes, seed + w));
        executor->worker(w)->Post(&askers.back()->answer);
      }
      for (const auto& asker : askers) asker->done.Wait();
      executor->Fence();
    }
    // The workers go on without it.
    executor->Fence();
    EXPECT_EQ(counted, kWorkers * kTimes);
  }
}

// Workers with nothing else to do take the duty over and over; the network's thread gets it all the same.
TEST(DutyTest, ItEndsWhileWorkersAskForIt) {
  std::unique_ptr<Executor> executor = MakeThreadExecutor(3, 1);
  for (int k = 0; k < 1000; ++k) {
    Driven driven(0);
    for (int w = 0; w < executor->workers(); ++w) executor->worker(w)->WhenIdle(driven.duty);
    executor->Fence();
  }
}

struct Turns {
  int64_t turns = 0;  // of the thread
  int between_acts = 0;
};

// Read by whoever has the duty.
Turns TurnsOf(Driven* driven) {
  struct Read : Message {
    Driven* driven;
    Turns turns;
    Completion done;
    void Receive() override {
      turns = {driven->turns, driven->between_acts};
      done.Signal();
    }
  } read;
  read.driven = driven;
  driven->duty->Post(&read);
  read.done.Wait();
  return read.turns;
}

// On one core the thread often runs before who woke it has returned from doing so.
TEST(DutyTest, ASignalWakesTheThreadOnce) {
  constexpr int kSignals = 300;
  Driven driven(0);
  struct Count : Message {
    Completion done;
    void Receive() override { done.Signal(); }
  };
  std::thread poster([&] {
    const int core = sched_getcpu();
    driven.RunOn(core);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    Count count;
    for (int k = 0; k < kSignals; ++k) {
      for (const auto begin = std::chrono::steady_clock::now();
           std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1);) {
      }
      driven.duty->Post(&count);
      count.done.Wait();
      count.done.Reset();
    }
  });
  poster.join();
  EXPECT_LE(TurnsOf(&driven).turns, 2 * (kSignals + 2));
}

// Acts of a worker that is never idle. Each waits until what the one before has posted to the network has
// been received, then posts once more.
struct Busy : Runnable {
  static constexpr int kActs = 2000;
  struct Count : Message {
    Busy* busy = nullptr;
    void Receive() override {
      if (++busy->received == kActs) busy->done.Signal();
    }
  };
  Busy(Driven* driven, Worker* worker) : driven(driven), worker(worker), counts(kActs) {
    for (Count& count : counts) count.busy = this;
  }
  void RunOne() override {
    while (received < acts) std::this_thread::yield();
    driven->duty->PostSoon(&counts[acts++]);
    if (acts < kActs) worker->Ready(this, false);
  }
  Driven* const driven;
  Worker* const worker;
  std::vector<Count> counts;
  int acts = 0;
  std::atomic<int> received{0};
  Completion done;
};

// The thread would take the core from a worker for each of its messages.
TEST(DutyTest, OnFewCoresABusyWorkerTakesTurnsItself) {
  std::unique_ptr<Executor> executor = MakeThreadExecutor(1, 1);
  Driven driven(0, /*few_cores=*/true);
  Busy busy(&driven, executor->worker(0));
  struct Start : Message {
    Busy* busy;
    void Receive() override { busy->worker->Ready(busy, false); }
  } start;
  start.busy = &busy;
  executor->worker(0)->WhenIdle(driven.duty);
  executor->worker(0)->Post(&start);
  busy.done.Wait();
  executor->Fence();
  const Turns turns = TurnsOf(&driven);
  EXPECT_LE(turns.turns, Busy::kActs / 2);
  EXPECT_GE(turns.between_acts, Busy::kActs / 2);
}

TEST(DutyTest, AnIdleWorkerDrives) {
  std::unique_ptr<Executor> executor = MakeThreadExecutor(1, 1);
  Driven driven(0);
  executor->worker(0)->WhenIdle(driven.duty);
  struct Count : Message {
    Driven* driven;
    Completion done;
    int found = 0;
    void Receive() override {
      found = driven->driven;
      done.Signal();
    }
  } count;
  count.driven = &driven;
  // The worker takes the duty within the time that the network's thread is asleep.
  do {
    executor->Fence();
    count.done.Reset();
    driven.duty->Post(&count);
    count.done.Wait();
  } while (count.found == 0);
}

}  // namespace
}  // namespace oneflow_like
