// Killed at any moment of saving, a run has a complete checkpoint or none, and what goes on from it is what
// an undisturbed run would have been: bit for bit on the same mesh, up to the rounding of other sums on
// another.
// ctest: seconds=33 long=25 waits programs=gpt,checkpoint
#include <gflags/gflags.h>

#include "tests/examples/saved_runs.h"

DEFINE_int32(kills, 3, "Kills of whole runs; the long test has 12 at least");
DEFINE_uint32(seed, 1, "Of the moments");

namespace oneflow_like {
namespace {

class Kill : public SavedRuns {
 protected:
  // All processes at once, as a machine that loses its power.
  void KillSoon(Process& run, const std::string& name, double seconds) const {
    Sleep(seconds);
    kill(run.pid(), SIGKILL);  // first, since it starts others
    for (const double end = seconds + Seconds() + kPatience; Seconds() < end; Sleep(0.001)) {
      const std::vector<pid_t> left = ProcessesWith("OFL_TEST_RUN=" + Mark(name));
      if (left.empty()) return;
      for (pid_t copy : left) kill(copy, SIGKILL);
    }
  }
  void ExpectWhole(const std::string& name) {
    const std::string folder = folder_ / name;
    bool any = false;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.path().filename().string().rfind("step-", 0) == 0) {
        any = true;
        auto check = Start("verify", {"verify", entry.path()}, "checkpoint");
        EXPECT_EQ(End(*check, "verify"), 0) << entry.path() << check->out() << check->err();
      }
    found_ += any;
  }
  void ExpectWholeAfterKills(int most, size_t shapes);
  int found_ = 0;  // kills after which there was a checkpoint
};
class LongKill : public Kill {};

// Runs of several shapes, or of the first alone.
void Kill::ExpectWholeAfterKills(int most, size_t shapes) {
  std::mt19937 random(FLAGS_seed);
  const std::pair<int, const char*> runs[] = {{2, "cpu:dp=2"}, {1, "cpu:tp=2"}, {4, "cpu:dp=2,tp=2"}};
  int killed = 0;
  for (size_t number = 0; killed < most; ++number) {
    const auto [processes, mesh] = runs[number % shapes];
    const std::string name = "killed" + std::to_string(number);
    SCOPED_TRACE(name);
    const Flags flags = Run(name, mesh, processes,
                            {SaveFlag(name), "--resume=" + (folder_ / name), "--save_every=1", "--keep=2"});
    // Some at its start, most while it saves after every step.
    for (int kills = 0; kills < 3 && killed < most; ++kills, ++killed) {
      auto run = Start(name, flags);
      KillSoon(*run, name, std::uniform_real_distribution<double>(0.05, 0.7)(random));
      (void)End(*run, name);
      ExpectWhole(name);
    }
    std::filesystem::create_directories(folder_ / name);  // where all kills came early
    std::filesystem::copy(folder_ / name, folder_ / (name + ".other"),
                          std::filesystem::copy_options::recursive);
    auto run = Start(name, flags);
    EXPECT_EQ(End(*run, name), 0) << run->err();
    ExpectAsUndisturbed(name, mesh, processes);
    const std::string other = name + ".other";
    auto elsewhere = Start(
        other, Run(other, "cpu:dp=4", 2, {SaveFlag(other), "--resume=" + (folder_ / other), "--keep=2"}));
    EXPECT_EQ(End(*elsewhere, other), 0) << elsewhere->err();
    const std::vector<double> wanted = Undisturbed(mesh, processes).losses, got = Losses(other);
    ASSERT_LE(got.size(), wanted.size());
    for (size_t i = 0; i < std::min<size_t>(got.size(), 10); ++i)
      EXPECT_NEAR(got[i], wanted[wanted.size() - got.size() + i], 1e-5) << i;
    std::filesystem::remove_all(folder_ / other);
    std::filesystem::remove_all(folder_ / name);
  }
  EXPECT_GE(found_, most / 3) << "most came before the first checkpoint";
}

TEST_F(Kill, LeavesWholeCheckpoints) { ExpectWholeAfterKills(FLAGS_kills, 1); }
TEST_F(LongKill, LeavesWholeCheckpoints) { ExpectWholeAfterKills(std::max(FLAGS_kills, 12), 3); }

}  // namespace
}  // namespace oneflow_like
