// SIGTERM and SIGUSR1 to a gpt with --save, as 1, 2 and 4 processes: all agree, save once and end with 75;
// what goes on from there ends as if nothing had been, bit for bit. signals_test has what signals do
// otherwise.
// ctest: seconds=17 long=12 programs=gpt
#include <gtest/gtest.h>

#include "core/system/exit_codes.h"
#include "tests/examples/saved_runs.h"

namespace oneflow_like {
namespace {

enum To { kLauncher, kOneCopy, kAll };

class Interrupt : public SavedRuns {
 protected:
  // Starts a run and signals it when it has made `steps`.
  std::unique_ptr<Process> Strike(const std::string& name, const Flags& flags, int signal, To to, int steps) {
    for (int tries = 0; tries < 10; ++tries) {
      auto run = Start(name, flags);
      if (!StopAfter(*run, name, steps)) {
        if (run->Ended() && run->code() != 0) break;
        std::filesystem::remove_all(folder_ / name);
        std::filesystem::remove(folder_ / (name + ".json"));
        continue;
      }
      if (to == kLauncher) run->Signal(signal);
      if (to == kOneCopy) kill(Copies(*run, name).back(), signal);
      if (to == kAll) kill(-run->pid(), signal);
      kill(-run->pid(), SIGCONT);
      End(*run, name);
      return run;
    }
    ADD_FAILURE() << "no run that can be stopped in the middle: "
                  << TextOf(folder_ / (name + ".printed.err"));
    return nullptr;
  }

  // It has saved what it has learnt, and says so.
  void ExpectInterrupted(const Process& run, const std::string& name) {
    EXPECT_EQ(run.code(), kInterrupted) << run.out() << run.err();
    EXPECT_EQ(Count(run.err(), "error:"), 0) << run.err();
    EXPECT_EQ(Count(run.out(), "interrupted: "), 1) << run.out();
    char path[32];
    std::snprintf(path, sizeof path, "/step-%08zu", Losses(name).size());
    EXPECT_TRUE(std::filesystem::exists((folder_ / name) + path)) << path << "\n" << run.out();
    EXPECT_EQ(Count(run.out(), (folder_ / name) + path + ","), 1) << run.out();
    EXPECT_EQ(Count(run.out(), "held-out loss"), 0) << run.out();
  }

  // Signalled by each of two signals in each way, or by one of the two.
  void ExpectSavedAndGoneOn(int processes, bool both_signals) {
    for (To to : {kLauncher, kOneCopy, kAll})
      for (int signal : {SIGTERM, SIGUSR1}) {
        if (processes == 1 && to != kLauncher) continue;
        if (!both_signals && (signal == SIGTERM) != ((to + processes / 2) % 2 == 0)) continue;
        const std::string mesh = "cpu:dp=" + std::to_string(processes);
        const std::string name =
            "run" + std::to_string(processes) + "." + std::to_string(signal) + "." + std::to_string(to);
        SCOPED_TRACE(name);
        Flags flags = Run(name, mesh, processes, {SaveFlag(name)});
        auto run = Strike(name, flags, signal, to, 5);
        ASSERT_NE(run, nullptr);
        ExpectInterrupted(*run, name);
        flags.push_back("--resume=" + (folder_ / name));
        run = Start(name, flags);
        EXPECT_EQ(End(*run, name), 0) << run->err();
        EXPECT_EQ(Count(run->out(), "held-out loss"), 1) << run->out();
        ExpectAsUndisturbed(name, mesh, processes);
      }
  }
};
class LongInterrupt : public Interrupt {};

TEST_F(Interrupt, SavesAndGoesOnWhoeverIsSignalled) {
  ExpectSavedAndGoneOn(1, true);
  ExpectSavedAndGoneOn(2, false);
  ExpectSavedAndGoneOn(4, false);
}
TEST_F(LongInterrupt, SavesAndGoesOnWhoeverIsSignalled) {
  for (int processes : {2, 4}) ExpectSavedAndGoneOn(processes, true);
}

TEST_F(Interrupt, AgainAndAgain) {
  const std::string name = "again", mesh = "cpu:dp=2";
  const Flags first = Run(name, mesh, 2, {SaveFlag(name), "--save_every=50"});
  Flags later = first;
  later.push_back("--resume=" + (folder_ / name));
  auto run = Strike(name, first, SIGTERM, kLauncher, 20);
  ASSERT_NE(run, nullptr);
  ExpectInterrupted(*run, name);
  for (int steps : {60, 110, 160}) {
    run = Start(name, later);
    if (!StopAfter(*run, name, steps)) break;
    run->Signal(SIGUSR1);
    kill(-run->pid(), SIGCONT);
    End(*run, name);
    ExpectInterrupted(*run, name);
  }
  if (!run->Ended()) {  // it was too fast to be stopped
    kill(-run->pid(), SIGCONT);
    EXPECT_EQ(End(*run, name), 0) << run->err();
  } else if (run->code() == kInterrupted) {
    run = Start(name, later);
    EXPECT_EQ(End(*run, name), 0) << run->err();
  }
  ExpectAsUndisturbed(name, mesh, 2);
}

TEST_F(Interrupt, EndsWhatHasNothingToSaveIn) {
  for (int processes : {1, 2})
    for (int signal : {SIGTERM, SIGUSR1}) {
      const std::string name = "unsaved" + std::to_string(processes) + "." + std::to_string(signal);
      SCOPED_TRACE(name);
      const std::string mesh = "cpu:dp=" + std::to_string(processes);
      auto run = Strike(name, Run(name, mesh, processes), signal, kLauncher, 5);
      ASSERT_NE(run, nullptr);
      EXPECT_EQ(run->code(), 128 + signal) << run->err();
      EXPECT_EQ(Count(run->out(), "interrupted"), 0) << run->out();
    }
}

}  // namespace
}  // namespace oneflow_like
