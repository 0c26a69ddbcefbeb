// --restarts and --elastic: a gpt whose processes are killed ends as if nothing had been, what would fail
// again is not started again, and who asks it to end is obeyed.
// ctest: seconds=19 long=30 waits programs=gpt,mlp
#include <gtest/gtest.h>

#include <random>

#include "core/system/exit_codes.h"
#include "tests/examples/saved_runs.h"

namespace oneflow_like {
namespace {

class Restart : public SavedRuns {
 protected:
  Flags Restarting(const std::string& name, const std::string& mesh, int processes, int restarts,
                   const Flags& more = {}) const {
    Flags flags = Run(name, mesh, processes,
                      {SaveFlag(name), "--save_every=20", "--restarts=" + std::to_string(restarts),
                       // What a process waits that is starting when another is killed.
                       "--peer_timeout=5"});
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // Kills copies at random moments, also of the start and of saving.
  void KillAtRandom(int processes, int kills, uint32_t seed) {
    const std::string name = "kills" + std::to_string(processes) + "." + std::to_string(seed);
    SCOPED_TRACE(name);  // names the seed
    const std::string mesh = "cpu:dp=" + std::to_string(processes);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> pause(0, 0.8);
    auto run = Start(name, Restarting(name, mesh, processes, kills));
    for (int killed = 0; killed < kills && !run->Ended();) {
      Sleep(pause(random));
      const std::vector<pid_t> copies = Copies(*run, name);
      if (!copies.empty() && kill(copies[random() % copies.size()], SIGKILL) == 0) ++killed;
    }
    EXPECT_EQ(End(*run, name), 0) << run->err();
    EXPECT_LE(Count(run->err(), " was killed by signal 9; restart "), kills) << run->err();
    ExpectAsUndisturbed(name, mesh, processes);
  }

  // Kills one copy when the run has made `steps` of `of`. False when it was too fast.
  bool KillAfter(Process& run, const std::string& name, int steps, int of = kSteps, int signal = SIGKILL) {
    while (StopAfter(run, name, steps, of)) {
      const std::vector<pid_t> copies = Copies(run, name);
      if (!copies.empty()) kill(copies.back(), signal);
      kill(-run.pid(), SIGCONT);
      if (!copies.empty()) return true;
    }
    return false;
  }

  void AwaitError(Process& run, const std::string& words) {
    const double end = Seconds() + kPatience;
    while (run.err().find(words) == std::string::npos && !run.Ended() && Seconds() < end) Sleep(0.01);
    EXPECT_EQ(Count(run.err(), words), 1) << words << "\n" << run.err();
  }

  // Ends with one sentence that has these words, and is started once.
  void ExpectMistake(const Flags& flags, const std::string& words, const std::string& program = "gpt",
                     const std::map<std::string, std::string>& variables = {}, int code = kUsageError) {
    SCOPED_TRACE(words);
    auto run = Start("mistake", flags, program, variables);
    EXPECT_EQ(End(*run, "mistake"), code) << run->err();
    EXPECT_NE(run->err().find(words), std::string::npos) << run->err();
    EXPECT_EQ(Count(run->err(), "restart 1 of"), 0) << run->err();
  }
};

TEST_F(Restart, KillsLeaveNoTrace) {
  uint32_t seed = 1;
  for (int processes : {1, 2, 4}) KillAtRandom(processes, 3, seed++);
}

TEST_F(Restart, AnyDeathIsALossAndLogsGoOn) {
  const std::string name = "deaths", mesh = "cpu:dp=2";
  auto run = Start(name, Restarting(name, mesh, 2, 4, {"--log_dir=" + (folder_ / "logs")}));
  int deaths = 0;
  for (int signal : {SIGSEGV, SIGABRT, SIGBUS})
    if (!run->Ended() && KillAfter(*run, name, 50 + 50 * deaths, kSteps, signal)) {
      ++deaths;
      const std::string line = " was killed by signal " + std::to_string(signal) + "; restart " +
                               std::to_string(deaths) + " of 4\n";
      AwaitError(*run, line);
    } else {
      kill(-run->pid(), SIGCONT);
    }
  EXPECT_EQ(End(*run, name), 0) << run->err();
  EXPECT_GT(deaths, 0);
  const std::string log = TextOf(folder_ / "logs/process0.log");
  EXPECT_EQ(Count(log, "tokens to learn from"), deaths + 1) << log;
  EXPECT_EQ(Count(log, "going on from "), deaths) << log;
  ExpectAsUndisturbed(name, mesh, 2);
}

TEST_F(Restart, IsUsedUp) {
  const std::string name = "used_up";
  auto run = Start(name, Restarting(name, "cpu:dp=2", 2, 1, {"--steps=100000"}));
  ASSERT_TRUE(KillAfter(*run, name, 30, 100000)) << run->err();
  AwaitError(*run, "; restart 1 of 1\n");
  ASSERT_TRUE(KillAfter(*run, name, 200, 100000)) << run->err();
  EXPECT_EQ(End(*run, name), 128 + SIGKILL) << run->err();
  EXPECT_EQ(Count(run->err(), "; restart 1 of 1\n"), 1) << run->err();
  EXPECT_EQ(Count(run->err(), "all restarts are used up"), 1) << run->err();
}

TEST_F(Restart, EndsWhenItIsAskedTo) {
  const std::map<int, int> codes = {{SIGINT, 128 + SIGINT}, {SIGTERM, 75}, {SIGUSR1, 75}};
  for (int processes : {1, 2})
    for (const auto& [signal, code] : codes) {
      const std::string name = "asked" + std::to_string(processes) + "." + std::to_string(signal);
      SCOPED_TRACE(name);
      const std::string mesh = "cpu:dp=" + std::to_string(processes);
      auto run = Start(name, Restarting(name, mesh, processes, 3, {"--steps=100000"}));
      ASSERT_TRUE(StopAfter(*run, name, 10, 100000)) << run->err();
      run->Signal(signal);
      kill(-run->pid(), SIGCONT);
      EXPECT_EQ(End(*run, name), code) << run->err();
      EXPECT_EQ(Count(run->err(), "restart"), 0) << run->err();
    }
}

// The curve is that of the whole mesh, up to the rounding of other sums.
TEST_F(Restart, ElasticGoesOnWithFewerProcesses) {
  constexpr int kFew = 150;
  const Flags few = {"--steps=" + std::to_string(kFew), "--lr=1e-4"};
  const std::string name = "elastic", mesh = "cpu:dp=4";
  Flags more = few;
  more.insert(more.end(), {"--elastic=dp", "--out=" + (folder_ / "out")});
  auto run = Start(name, Restarting(name, mesh, 4, 5, more));
  int deaths = 0;
  // Of 4 processes 3 are left, then 2, then 1; the batch of 4 is not cut over 3.
  const char* const left[] = {"on cpu:dp=2, processes 2\n", "on cpu:dp=2, processes 2\n",
                              "on cpu:dp=1, processes 1\n"};
  for (const char* shape : left) {
    if (run->Ended() || !KillAfter(*run, name, 25 + 40 * deaths, kFew)) break;
    const std::string line = "; restart " + std::to_string(++deaths) + " of 5 " + shape;
    AwaitError(*run, line);
  }
  kill(-run->pid(), SIGCONT);
  EXPECT_EQ(End(*run, name), 0) << run->err();
  EXPECT_GT(deaths, 0);
  EXPECT_LE(CurveDifference(Losses(name), Undisturbed(mesh, 4, few).losses), 1e-5);
  EXPECT_NE(TextOf(folder_ / "out/config").find("--mesh=" + mesh + "\n"), std::string::npos)
      << "as it was begun";
}

TEST_F(Restart, MistakesAreNotRepeated) {
  const std::string mesh = "cpu:dp=2";
  ExpectMistake(Restarting("a", mesh, 2, 3, {"--heads=3"}), "heads");
  ExpectMistake(Restarting("b", mesh, 2, 3, {"--text=" + (folder_ / "none")}), "No such file");
  ExpectMistake(Restarting("c", mesh, 2, 3, {"--lr=1e30", "--clip=0"}), "lower the learning rate", "gpt", {},
                kRunError);
  folder_.Write("file", "no folder");
  ExpectMistake(Restarting("d", mesh, 2, 3, {SaveFlag("file/x")}), "file/x");
}

TEST_F(Restart, WhatCannotStartAgainIsRefused) {
  const std::string mesh = "cpu:dp=2,tp=1", save = SaveFlag("refused");
  ExpectMistake(Run("a", mesh, 2, {"--restarts=3"}), "--restarts=3 needs --save");
  ExpectMistake({"--restarts=3"}, "--restarts=3: this program saves nothing", "mlp");
  ExpectMistake(Run("a", mesh, 2, {save, "--restarts=-1"}), "--restarts is -1");
  ExpectMistake(Run("a", mesh, 2, {save, "--elastic=dp"}), "--elastic=dp needs --restarts");
  for (const std::string axis : {"xp", "tp"})
    ExpectMistake(Run("a", mesh, 2, {save, "--restarts=3", "--elastic=" + axis}), "no axis '" + axis + "'");
  ExpectMistake(Run("a", mesh, 1, {save, "--restarts=3", "--elastic=dp"}), "--processes of at least 2");
  ExpectMistake(Run("a", mesh, 1, {save, "--restarts=3"}), "use one of the two", "gpt",
                {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
}

class LongRestart : public Restart {};

TEST_F(LongRestart, TwentyKillsLeaveNoTrace) {
  for (uint32_t seed = 100; seed < 105; ++seed) KillAtRandom(4, 4, seed);
}

}  // namespace
}  // namespace oneflow_like
