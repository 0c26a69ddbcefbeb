// The job of several processes: exchanges, what happens when a process is lost, fails, hangs or leaves early,
// and parting in good order. Every process is a forked one.
// ctest: seconds=15 asan=20 tsan=20 waits
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "actor/net/job/process_job.h"
#include "actor/net/talk/control.h"
#include "actor/net/talk/gather.h"
#include "tests/actor/net/job_processes.h"
#include "tests/actor/net/stub_network.h"

namespace oneflow_like {
namespace {

// Of the clock that all processes of the host have.
int Milliseconds() { return static_cast<int>(ClockNow() / 1000000 % (1 << 30)); }

// Joining, exchanging, parting.

TEST(JobTest, EveryProcessGetsAllTexts) {
  for (int n : {2, 4}) {
    for (bool shared_memory : {true, false}) {
      SCOPED_TRACE(testing::Message() << n << " processes, shared memory " << shared_memory);
      Meeting meeting(n);
      Processes processes(n, [&](int me, Line*) {
        JobOptions options;
        options.shared_memory = shared_memory;
        std::unique_ptr<Job> job = meeting.Join(me, options);
        REQUIRE(job->process() == me && job->processes() == n);
        REQUIRE(static_cast<int>(job->peers().size()) == n && job->peers()[me].pid == getpid());
        REQUIRE((job->region() != nullptr) == shared_memory);
        for (int p = 0; shared_memory && p < n; ++p) REQUIRE(job->region()->base(p) != nullptr);
        for (size_t bytes : {size_t{0}, size_t{1}, size_t{3000}, size_t{100000}, size_t{5} << 20}) {
          // Each of another size; process 1 has nothing to say.
          auto text = [&](int p) { return p == 1 ? std::string() : Pattern(p, bytes + p); };
          std::vector<std::string> all = job->AllGather("texts", text(me));
          REQUIRE(static_cast<int>(all.size()) == n);
          for (int p = 0; p < n; ++p) REQUIRE(all[p] == text(p), "of process ", p, " at ", bytes, " bytes");
        }
        for (int i = 0; i < 200; ++i) {
          std::vector<std::string> all = job->AllGather(Cat("round ", i), Cat(me * 1000 + i));
          for (int p = 0; p < n; ++p) REQUIRE(all[p] == Cat(p * 1000 + i));
        }
        job->Finish(true);
        REQUIRE(job->failure().empty());
      });
      processes.ExpectAllWell();
    }
  }
}

TEST(JobTest, ProcessesOfDifferentBuildsRefuseOneAnother) {
  for (int odd : {0, 1}) {
    Meeting meeting(2);
    Processes processes(2, [&](int me, Line*) {
      JobOptions options;
      options.build = me == odd ? "0.3 (sources b)" : "0.2 (sources a)";
      std::string error = ErrorOf([&] { meeting.Join(me, options); });
      for (const char* words : {"runs build 0.3 (sources b)", "runs build 0.2 (sources a)",
                                "; start the same build on all hosts"})
        REQUIRE(Has(error, words), error);
    });
    processes.ExpectAllWell();
  }
}

TEST(JobTest, DescribesProcessesByTheirRanks) {
  InJob(2, [&](int me, std::unique_ptr<Job> job) {
    const PeerInfo& other = job->peers()[1];
    std::string where = Cat(" (host ", other.host, ", pid ", other.pid, ")");
    REQUIRE(job->Describe(1) == "process 1" + where);
    REQUIRE(job->ranks_per_process() == 1);
    std::string error = ErrorOf([&] { job->SetWorld(3); });
    REQUIRE(Has(error, "a mesh of 3 ranks cannot be spread over 2 processes"), error);
    job->SetWorld(2);
    REQUIRE(job->Describe(1) == "rank 1" + where);
    job->SetWorld(8);
    REQUIRE(job->Describe(1) == "ranks 4-7" + where);
    REQUIRE(job->ranks_per_process() == 4);
    job->Finish(true);
  });
}

TEST(JobTest, WhoAsksForSomethingElseIsNamed) {
  InJob(4, [&](int me, std::unique_ptr<Job> job) {
    std::string error = ErrorOf([&] { job->AllGather(me == 2 ? "weights" : "plans", "x"); });
    REQUIRE(error == Cat("the processes have come apart: ", job->Describe(0), " is at 'plans', ",
                         job->Describe(2), " at 'weights'; all must run the same program in the same order"),
            error);
    REQUIRE(job->failure().empty());
    REQUIRE(job->AllGather("again", Cat(me)) == (std::vector<std::string>{"0", "1", "2", "3"}));
    job->Finish(true);
  });
}

TEST(JobTest, FinishWaitsForAllAndLeavesNothing) {
  for (bool shared_memory : {true, false}) {
    Meeting meeting(3);
    Flags flags;
    Processes processes(3, [&](int me, Line*) {
      const size_t threads = CountLastingThreads(), files = EntriesOf("/proc/self/fd");
      {
        JobOptions options;
        options.shared_memory = shared_memory;
        std::unique_ptr<Job> job = meeting.Join(me, options);
        if (me == 1) Sleep(0.5);
        ++flags[0];
        job->Finish(true);
        REQUIRE(flags[0] == 3);
        job->Finish(true);  // once more is nothing
      }
      // The meeting's socket is closed by now.
      REQUIRE(EntriesOf("/proc/self/fd") == files - 1, EntriesOf("/proc/self/fd"), " instead of ", files - 1);
      WaitUntil([&] { return CountThreads() <= threads; });
    });
    processes.ExpectAllWell();
  }
}

TEST(JobTest, ProcessesOfOneHostShareMemoryOrDoNot) {
  Meeting meeting(2);
  Processes processes(2, [&](int me, Line*) {
    JobOptions options;
    options.shared_memory = me == 0;
    std::string error = ErrorOf([&] { meeting.Join(me, options); });
    REQUIRE(Has(error, me == 0 ? "process 1 (host " : "process 0 (host ") && Has(error, "--shared_memory"),
            error);
  });
  processes.ExpectAllWell();
}

// Losing a process.

TEST(JobTest, AProcessKilledDuringAnExchangeIsNamed) {
  for (int victim : {0, 2}) {
    Meeting meeting(4);
    Processes processes(4, [&](int me, Line* line) {
      std::unique_ptr<Job> job = meeting.Join(me);
      job->SetWorld(8);
      line->Say("joined");
      if (me == victim) {
        for (;;) pause();
      }
      std::string error = ErrorOf([&] { job->AllGather("plans", "x"); });
      REQUIRE(error == Cat(job->Describe(victim),
                           ": its connection was closed; awaited here: the exchange 'plans'"),
              error);
      REQUIRE(Has(error, Cat("ranks ", 2 * victim, "-", 2 * victim + 1, " (host ")), error);
      REQUIRE(job->failure() == error);
      REQUIRE(ErrorOf([&] { job->AllGather("more", ""); }) == error);
      job->Finish(false);
    });
    for (int p = 0; p < 4; ++p) processes.line(p).Hear();
    Sleep(0.3);
    processes.Signal(victim, SIGKILL);
    EXPECT_EQ(processes.Ended(victim), -SIGKILL);
    processes.ExpectAllWell();
  }
}

TEST(JobTest, AProcessKilledWhileOthersComputeIsKnownWithoutAsking) {
  Meeting meeting(2);
  Processes processes(2, [&](int me, Line* line) {
    std::unique_ptr<Job> job = meeting.Join(me);
    line->Say("joined");
    if (me == 1) {
      for (;;) pause();
    }
    WaitUntil([&] { return !job->failure().empty(); });
    std::string expected =
        Cat(job->Describe(1), ": its connection was closed; nothing of it was awaited here");
    REQUIRE(job->failure() == expected, job->failure());
    REQUIRE(ErrorOf([&] { job->AllGather("plans", ""); }) == expected);
    REQUIRE(ErrorOf([&] { job->peers_of_runtimes()->Connect("train", nullptr); }) == expected);
  });
  for (int p = 0; p < 2; ++p) processes.line(p).Hear();
  processes.Signal(1, SIGKILL);
  processes.Ended(1);
  processes.ExpectAllWell();
}

TEST(JobTest, AProcessThatFallsSilentIsLost) {
  Meeting meeting(3);
  Processes processes(3, [&](int me, Line* line) {
    JobOptions options;
    options.peer_timeout = 2;
    std::unique_ptr<Job> job = meeting.Join(me, options);
    line->Say("joined");
    if (me == 1) {
      for (;;) pause();
    }
    std::string error = ErrorOf([&] { job->AllGather("plans", ""); });
    const std::string silent = ": nothing heard of it for ";
    REQUIRE(Has(error, job->Describe(1) + silent) && Has(error, "; awaited here: the exchange 'plans'"),
            error);
    // After 0.6 of peer_timeout and not before; well before all must have ended ten times over.
    const double seconds = std::strtod(error.c_str() + error.find(silent) + silent.size(), nullptr);
    REQUIRE(seconds >= 0.59 * options.peer_timeout && seconds < 3 * options.peer_timeout, error);
  });
  for (int p = 0; p < 3; ++p) processes.line(p).Hear();
  processes.Signal(1, SIGSTOP);
  EXPECT_EQ(processes.Ended(0), 0);
  EXPECT_EQ(processes.Ended(2), 0);
}

TEST(JobTest, AProcessLostDuringFinishFailsTheOthers) {
  Meeting meeting(2);
  Processes processes(2, [&](int me, Line* line) {
    std::unique_ptr<Job> job = meeting.Join(me);
    line->Say("joined");
    if (me == 1) {
      for (;;) pause();
    }
    std::string error = ErrorOf([&] { job->Finish(true); });
    REQUIRE(Has(error, job->Describe(1) + ": its connection was closed"), error);
  });
  for (int p = 0; p < 2; ++p) processes.line(p).Hear();
  Sleep(0.2);
  processes.Signal(1, SIGKILL);
  EXPECT_EQ(processes.Ended(0), 0);
}

TEST(JobTest, FinishingAfterAFailureThrowsIt) {
  InJob(2, [&](int me, std::unique_ptr<Job> job) {
    if (me == 1) job->Fail("the disk is full");
    WaitUntil([&] { return !job->failure().empty(); });
    std::string failure = job->failure();
    REQUIRE(ErrorOf([&] { job->Finish(me == 0); }) == (me == 0 ? failure : ""));
    job->Finish(true);  // it has finished
  });
}

// What process 0 says, others that say the same need not, nor those that are told of it first.
TEST(JobTest, AnErrorThatAllMakeIsToBePrintedOnce) {
  Flags flags;
  InJob(4, [&](int me, std::unique_ptr<Job> job) {
    flags.Meet(0, 4);
    if (me == 3) {
      const std::string told = ErrorOf([&] { job->AllGather("plans", ""); });
      const bool same = Has(told, ": no such file");  // else process 1 was the first to fail
      REQUIRE(job->FinishWith(told, kRunError) == !same, told);
    } else {
      const std::string error = me == 1 ? "no such mesh" : "no such file";
      REQUIRE(job->FinishWith(error, kUsageError) == (me != 2), Cat(me));
    }
  });
}

// Who hears of a failure that is not process 0's own prints it, process 0 or not, and ends with its code.
TEST(JobTest, AFailureIsEverybodysToPrint) {
  Flags flags;
  InJob(3, [&](int me, std::unique_ptr<Job> job) {
    flags.Meet(0, 3);
    if (me == 1) REQUIRE(job->FinishWith("the disk is full", kUsageError));
    if (me != 1) REQUIRE(job->FinishWith(ErrorOf([&] { job->AllGather("plans", ""); }), kRunError));
    REQUIRE(job->exit_code() == kUsageError, job->exit_code());
  });
}

// Process 0 prints nothing when it just ends.
TEST(JobTest, ASilentEndOfProcessZeroIsEverybodysToPrint) {
  for (bool at_once : {true, false}) {
    Flags flags;
    InJob(3, [&](int me, std::unique_ptr<Job> job) {
      flags.Meet(0, 3);
      if (me == 0 && at_once) _exit(0);
      if (me == 0) return job.reset();
      const std::string error = ErrorOf([&] { job->AllGather("plans", ""); });
      REQUIRE(job->FinishWith(error, kRunError), error);
      REQUIRE(job->exit_code() == (at_once ? kLostPeer : kRunError), job->exit_code());
    });
  }
}

// What the memory table says of it is what is taken.
TEST(JobTest, StagingIsKnownBefore) {
  Meeting meeting(2);
  Processes processes(2, [&](int me, Line*) {
    const int64_t before = GetHostMemoryStats().bytes;
    std::unique_ptr<Job> job = meeting.Join(me);
    REQUIRE(GetHostMemoryStats().bytes - before == StagingOfJob().process);
    job->Finish(true);
  });
  processes.ExpectAllWell();
}

// Failing together.

TEST(JobTest, AFailureIsToldEverywhereInOrder) {
  Flags flags;
  InJob(3, [&](int me, std::unique_ptr<Job> job) {
    std::vector<std::string> told;
    int who = 0;
    std::atomic<bool> all_told{false};
    job->AddAwaited(&who, [&] {
      told.push_back("asked");
      return me == 1 ? "all_reduce 'h0/up.grad' of step 7 (train)" : "";
    });
    job->AddFailureListener(&who, [&](const std::string& message) {
      told.push_back("collectives: " + message);
      all_told = true;
    });
    Listener listener(&told);
    std::unique_ptr<PeerLink> link = job->peers_of_runtimes()->Connect("train", &listener);
    flags.Meet(0, 3);
    if (me == 2) {
      job->Fail("the disk is full");
      job->Fail("something else");
    }
    WaitUntil([&] { return all_told.load(); });
    std::string failure = job->failure();
    std::string named = job->Describe(2) + ": the disk is full; ";
    if (me == 0) REQUIRE(failure == named + "nothing of it was awaited here", failure);
    if (me == 1)
      REQUIRE(failure == named + "awaited here: all_reduce 'h0/up.grad' of step 7 (train)", failure);
    if (me == 2) REQUIRE(failure == "the disk is full", failure);
    job->RemoveFailureListener(&who);
    job->RemoveAwaited(&who);
    if (me != 2) {
      REQUIRE(told.front() == "asked");
      told.erase(told.begin());
    }
    REQUIRE(told == (std::vector<std::string>{"runtime: " + failure, "collectives: " + failure}));
    link.reset();
    job->Finish(false);
    REQUIRE(job->failure() == failure);
  });
}

// What has been removed is not called any more, however the failure and the removal fall together.
TEST(JobTest, RemovedCallbacksAreNotCalled) {
  InJob(2, [&](int me, std::unique_ptr<Job> job) {
    for (int i = 0; i < 300; ++i) {
      auto alive = std::make_unique<std::string>("here");
      job->AddAwaited(alive.get(), [at = alive.get()] {
        REQUIRE(*at == "here");
        return std::string();
      });
      job->AddFailureListener(alive.get(),
                              [at = alive.get()](const std::string&) { REQUIRE(*at == "here"); });
      if (i == 150 && me == 1) job->Fail("a failure");
      job->RemoveAwaited(alive.get());
      job->RemoveFailureListener(alive.get());
      *alive = "gone";
      usleep(100);
    }
    WaitUntil([&] { return !job->failure().empty(); });
  });
}

TEST(JobTest, AProgramThatDoesNotEndIsEnded) {
  constexpr double kPeerTimeout = 4;
  Meeting meeting(3);
  Flags flags;
  Processes processes(3, [&](int me, Line* line) {
    JobOptions options;
    options.peer_timeout = kPeerTimeout;
    std::unique_ptr<Job> job = meeting.Join(me, options);
    job->SetDirectOutput([&](const std::string& text) { line->Say(text); });
    flags.Meet(0, 3);
    if (me == 2) flags[1] = Milliseconds();
    if (me == 0) {
      for (;;) pause();  // in the user's code
    }
    if (me == 1) {
      std::string error = ErrorOf([&] { job->AllGather("plans", ""); });
      job->Finish(false);
      Sleep(0.2);
      line->Say("ends by itself: " + error);
      job.reset();
      return;
    }
    job->Fail("the disk is full");
    for (;;) pause();
  });
  EXPECT_EQ(processes.Ended(0), 1);
  EXPECT_EQ(processes.Ended(1), 0);
  EXPECT_EQ(processes.Ended(2), 1);
  // Not before it had its time to end by itself, and all by peer_timeout.
  const double took = (Milliseconds() - flags[1]) / 1e3;
  EXPECT_GE(took, 0.19 * kPeerTimeout);
  EXPECT_LT(took, kPeerTimeout);
  std::string said = processes.line(0).Hear();
  EXPECT_EQ(said.rfind("error: process 2 (host ", 0), 0u) << said;
  EXPECT_TRUE(Has(said, ": the disk is full; nothing of it was awaited here")) << said;
  said = processes.line(1).Hear();
  EXPECT_EQ(said.rfind("ends by itself: process 2 (host ", 0), 0u) << said;
  EXPECT_TRUE(Has(said, "): the disk is full; ")) << said;
  EXPECT_TRUE(Gives(said, said.substr(0, said.find("; ")))) << said;
  EXPECT_EQ(processes.line(2).Hear(), "error: the disk is full");
  for (int p = 0; p < 3; ++p)
    EXPECT_ANY_THROW(processes.line(p).Hear()) << "process " << p << " has said it twice";
}

// A program that has come to Finish and hangs then is ended too, but its error is its own to print.
TEST(JobTest, AProgramThatHangsAfterFinishIsEndedSilently) {
  constexpr double kPeerTimeout = 3;
  Meeting meeting(2);
  Flags flags;
  Processes processes(2, [&](int me, Line* line) {
    JobOptions options;
    options.peer_timeout = kPeerTimeout;
    std::unique_ptr<Job> job = meeting.Join(me, options);
    job->SetDirectOutput([&](const std::string& text) { line->Say(text); });
    if (me == 1) flags[1] = Milliseconds();
    if (me == 1) job->Fail("the disk is full");
    WaitUntil([&] { return !job->failure().empty(); });
    job->Finish(false);
    for (;;) pause();
  });
  for (int p = 0; p < 2; ++p) {
    EXPECT_EQ(processes.Ended(p), 1);
    EXPECT_ANY_THROW(processes.line(p).Hear());
  }
  const double took = (Milliseconds() - flags[1]) / 1e3;
  EXPECT_GE(took, 0.39 * kPeerTimeout) << "what prints its error has longer";
  EXPECT_LT(took, kPeerTimeout);
}

// Leaving early.

TEST(JobTest, LeavingWithoutFinishIsAFailure) {
  Flags flags;
  InJob(3, [&](int me, std::unique_ptr<Job> job) {
    flags.Meet(0, 3);
    if (me == 1) return job.reset();
    std::string error = ErrorOf([&] { job->AllGather("plans", ""); });
    REQUIRE(Gives(error, job->Describe(1) + " has ended its program early"), error);
  });
}

TEST(JobTest, ExitingAtOnceIsAFailure) {
  Flags flags;
  InJob(3, [&](int me, std::unique_ptr<Job> job) {
    flags.Meet(0, 3);
    if (me == 2) _exit(0);
    std::string error = ErrorOf([&] { job->AllGather("plans", ""); });
    REQUIRE(Gives(error, job->Describe(2) + ": its connection was closed"), error);
  });
}

TEST(JobTest, FinishingWhileOthersExchangeIsAFailure) {
  for (int leaver : {0, 2}) {
    Meeting meeting(3);
    Flags flags;
    Processes processes(3, [&](int me, Line*) {
      std::unique_ptr<Job> job = meeting.Join(me);
      flags.Meet(0, 3);
      std::string error = ErrorOf([&] {
        if (me == leaver) job->Finish(true);
        job->AllGather("plans", "");
      });
      REQUIRE(Gives(error, job->Describe(leaver) + " has ended its program"), error);
    });
    processes.ExpectAllWell();
  }
}

// Data of a message that comes when the test says so.
struct LateData final : Incoming {
  LateData(std::string text, std::vector<std::function<void(bool whole)>>* arrivals)
      : text_(std::move(text)), arrivals_(arrivals) {}
  size_t bytes() const override { return text_.size(); }
  const void* data() const override { return nullptr; }
  void Receive(void* to, Transfer* done) override {
    arrivals_->push_back([text = text_, to, done](bool whole) {
      if (whole) std::memcpy(to, text.data(), text.size());
      done->TransferDone(whole);
    });
  }

 private:
  const std::string text_;
  std::vector<std::function<void(bool whole)>>* const arrivals_;
};

// Texts come in any order, and some are cut off: the others are handed on once, as their sender sent them; an
// abort as soon as it has come.
TEST(ControlTest, WholeTextsAreHandedOnOnceAndInOrder) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    StubNetwork network;
    std::vector<std::string> got, wanted, aborts;
    ControlChannel control(
        &network, 2,
        [&](int from, ControlKind kind, int64_t number, const std::string& text) {
          EXPECT_EQ(from, 1);
          EXPECT_EQ(text, Pattern(static_cast<int>(number), 10 * number));
          (kind == ControlKind::kAbort ? aborts : got).push_back(Cat(number));
        },
        [] {});
    std::vector<std::function<void(bool whole)>> arrivals;
    const int64_t messages = 1 + random() % 6, abort = random() % 9, cut = random() % 9;
    for (int64_t m = 0; m < messages; ++m) {
      const ControlKind kind = m == abort ? ControlKind::kAbort : ControlKind::kGatherPart;
      control.Send(1, kind, m, std::make_shared<std::string>());
      const std::string header = network.sent_to[1].back();
      control.Deliver(1, header.data(), header.size(),
                      std::make_unique<LateData>(Pattern(static_cast<int>(m), 10 * m), &arrivals));
      if (m != abort && m != cut) wanted.push_back(Cat(m));
    }
    std::vector<int64_t> order(messages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (int64_t m : order) {
      arrivals[m](m != cut);
      if (m == abort && m != cut) {
        EXPECT_EQ(aborts, std::vector<std::string>{Cat(m)}) << "at once";
      }
    }
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(aborts.size(), abort < messages && abort != cut ? 1u : 0u);
  }
}

// Whether it ends before this process begins the exchange or in its midst. All need process 0, and it needs
// all.
TEST(GatherTest, WhoHasEndedIsNotWaitedFor) {
  constexpr int kProcesses = 3;
  for (int me = 0; me < kProcesses; ++me)
    for (int other = 0; other < kProcesses; ++other)
      for (bool before : {true, false}) {
        if (other == me) continue;
        SCOPED_TRACE(testing::Message() << me << " waits, " << other << " has ended, before " << before);
        StubNetwork network;
        ControlChannel control(
            &network, kProcesses, [](int, ControlKind, int64_t, const std::string&) {}, [] {});
        std::vector<int> left_by;
        Gather gather(&control, me, kProcesses,
                      {.describe = [](int process) { return Cat("process ", process); },
                       .done = [](const std::string&, const std::vector<std::string>&) {},
                       .left_alone = [&](int process) { left_by.push_back(process); }});
        if (before) gather.Ended(other);
        EXPECT_TRUE(left_by.empty()) << "nothing is awaited";
        gather.Start("plans", "");
        if (!before) gather.Ended(other);
        const bool needed = me == 0 || other == 0;
        EXPECT_EQ(left_by, needed ? std::vector<int>{other} : std::vector<int>{});
      }
}

// The exchange after which a process finishes is large, and still on its way when it says goodbye.
TEST(JobTest, AGoodbyeDoesNotOvertakeAnExchange) {
  InJob(4, [&](int me, std::unique_ptr<Job> job) {
    for (int i = 0; i < 5; ++i)
      REQUIRE(job->AllGather("large", Pattern(me, 3 << 20))[3] == Pattern(3, 3 << 20));
    job->Finish(true);
  });
}

TEST(JobTest, AwaitingAProcessThatHasFinishedIsAFailure) {
  InJob(2, [&](int me, std::unique_ptr<Job> job) {
    int who = 0;
    job->AddAwaited(&who, [&] { return me == 0 ? "all_reduce 'x' with " + job->Describe(1) : ""; });
    if (me == 1) {
      std::string error = ErrorOf([&] { job->Finish(true); });
      REQUIRE(Has(error, job->Describe(1) + " has ended its program"), error);
    } else {
      WaitUntil([&] { return !job->failure().empty(); });
      REQUIRE(job->failure() == Cat(job->Describe(1),
                                    " has ended its program; awaited here: all_reduce 'x' with ",
                                    job->Describe(1)),
              job->failure());
    }
    job->RemoveAwaited(&who);
  });
}

// Things that come of it one after another were on their way; one that is awaited for a second never comes.
TEST(JobTest, WhatComesOfAProcessThatHasFinishedIsNoFailure) {
  InJob(2, [&](int me, std::unique_ptr<Job> job) {
    int who = 0;
    const auto begin = std::chrono::steady_clock::now();
    auto part = [=] { return (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(300); };
    auto awaited = [&] { return Cat("part ", std::min<int64_t>(part(), 8), " of ", job->Describe(1)); };
    job->AddAwaited(&who, [&] { return me == 0 ? awaited() : ""; });
    if (me == 1) {
      const std::string error = ErrorOf([&] { job->Finish(true); });
      REQUIRE(Has(error, job->Describe(1) + " has ended its program"), error);
    } else {
      WaitUntil([&] { return !job->failure().empty(); });
      REQUIRE(Has(job->failure(), "has ended its program; awaited here: part 8 of "), job->failure());
    }
    job->RemoveAwaited(&who);
  });
}

// Two stages of a pipeline work on for one another when the third has ended.
TEST(JobTest, OthersMayWorkOnWhenAProcessHasFinished) {
  InJob(3, [&](int me, std::unique_ptr<Job> job) {
    int who = 0;
    if (me != 2) {
      job->AddAwaited(&who, [&] { return "send 'x' with " + job->Describe(1 - me); });
      Sleep(2);
      job->RemoveAwaited(&who);
    }
    job->Finish(true);
    REQUIRE(job->failure().empty());
  });
}

}  // namespace
}  // namespace oneflow_like
