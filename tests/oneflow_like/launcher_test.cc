// The flags of every program reach the options that they stand for; and what a terminal shows.
// ctest: waits
#include "oneflow_like/launcher.h"

#include <fcntl.h>
#include <gflags/gflags.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "oneflow_like/model/placement.h"
#include "tests/error_of.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

TEST(Launcher, EveryFlagReachesItsOption) {
  const std::string trace = testing::TempDir() + "/launcher_test.trace", dump = testing::TempDir() + "/dump",
                    report = testing::TempDir() + "/launcher_test.html";
  std::vector<std::string> flags = {
      "launcher_test",    "--mesh=cpu:tp=2",    "--devices=2,5", "--seed=7",
      "--threads=3",      "--kernel_threads=2", "--explain",     "--memory_budget=12KiB",
      "--check_feeds",    "--check_replicas=9", "--check_nan",   "--dump_dir=" + dump,
      "--trace=" + trace, "--report=" + report, "--tune=false",  "--tf32"};
  std::vector<char*> pointers;
  for (std::string& flag : flags) pointers.push_back(flag.data());
  int argc = static_cast<int>(pointers.size());
  char** argv = pointers.data();
  Launcher launcher(&argc, &argv, "tests flags");
  const ModelOptions options = launcher.model_options();
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.dump_dir, dump);
  EXPECT_EQ(options.memory_budget, 12 << 10);
  EXPECT_EQ(options.trace_file, trace);
  EXPECT_EQ(options.report_file, report);
  EXPECT_TRUE(options.check_feeds);
  EXPECT_EQ(options.check_replicas, 9);
  EXPECT_TRUE(options.check_nan);
  EXPECT_FALSE(options.tune);
  EXPECT_TRUE(options.tf32);
  EXPECT_EQ(options.devices, (std::vector<int>{2, 5}));
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.kernel_threads, 2);
  EXPECT_EQ(options.job, nullptr);
  EXPECT_TRUE(launcher.explain());
  EXPECT_FALSE(launcher.dry_run());
  EXPECT_TRUE(launcher.main_process());
  EXPECT_EQ(launcher.mesh({"dp", "tp"}, "cpu:dp=4").str(), Mesh::Parse("cpu:dp=1,tp=2").str());
  // A group stands for an axis that the program asks for; what the flag leaves out is of one device.
  const auto mesh = [&](const std::string& text) {
    gflags::SetCommandLineOption("mesh", text.c_str());
    return launcher.mesh({"dp", "tp", "pp"}, "cpu", {"ep"}).str();
  };
  EXPECT_EQ(mesh("cpu:a=2,b=2;dp=a*b"), "cpu:a=2,b=2,tp=1,pp=1;dp=a*b");
  EXPECT_EQ(mesh("cpu:tp=2,dp=2;ep=tp*dp"), "cpu:pp=1,tp=2,dp=2;ep=tp*dp");
  EXPECT_EQ(mesh("cpu:ep=2,dp=2;all=ep*dp"), "cpu:tp=1,pp=1,ep=2,dp=2;all=ep*dp");
  EXPECT_EQ(ErrorOf([&] { mesh("cpu:a=2,dp=2;all=a*dp"); }),
            "mesh cpu:a=2,dp=2;all=a*dp: this program has no mesh axis 'a'; its axes are dp, tp, pp, ep");
  // Threads that read data: what kernels leave, which take no cores on GPUs.
  const auto readers = [&](const std::string& text, const char* threads) {
    gflags::SetCommandLineOption("mesh", text.c_str());
    for (const char* flag : {"threads", "kernel_threads"}) gflags::SetCommandLineOption(flag, threads);
    return launcher.data_threads();
  };
  const int cores = CoresHere(nullptr);
  EXPECT_EQ(readers("cpu:tp=2", "0"), 1);
  EXPECT_EQ(readers("cpu:tp=2", "1"), std::max(1, cores - 1));
  EXPECT_EQ(readers("cuda:dp=1", "0"), std::max(1, cores - 1));
  const auto kernels = [](const char* text, int processes, int threads) {
    return CoresOfKernels(Mesh::Parse(text), processes, 16, threads);
  };
  EXPECT_EQ(kernels("cpu:dp=2", 1, 0), 16);
  EXPECT_EQ(kernels("cpu:dp=2", 1, 6), 6);
  EXPECT_EQ(kernels("cuda:dp=4", 1, 0), 4);
  EXPECT_EQ(kernels("cuda:dp=4", 2, 0), 2);
  EXPECT_EQ(kernels("cpu+cuda:pp=2", 1, 0), 16) << "some are on the CPU";
}

// The terminal's line as it stood whenever the next character moved to its beginning or left it.
std::vector<std::string> Shown(const std::string& printed) {
  std::vector<std::string> shown;
  std::string line;
  size_t at = 0;
  for (char c : printed) {
    if (c != '\r' && c != '\n') {
      line.resize(std::max(line.size(), at + 1), ' ');
      line[at++] = c;
      continue;
    }
    shown.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
    at = 0;
  }
  return shown;
}

// Standard output is a terminal for as long as it lives.
class Terminal {
 public:
  Terminal() : fd_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (fd_ < 0 || grantpt(fd_) != 0 || unlockpt(fd_) != 0) return;
    const int side = open(ptsname(fd_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (side < 0) return;
    termios raw{};  // what is printed comes as it is
    tcgetattr(side, &raw);
    cfmakeraw(&raw);
    tcsetattr(side, TCSANOW, &raw);
    std::fflush(stdout);
    before_ = dup(STDOUT_FILENO);
    dup2(side, STDOUT_FILENO);
    close(side);
  }
  ~Terminal() {
    if (there()) {
      std::fflush(stdout);
      dup2(before_, STDOUT_FILENO);
      close(before_);
    }
    if (fd_ >= 0) close(fd_);
  }
  bool there() const { return before_ >= 0; }
  // All that is printed up to the end of a line.
  std::string ReadLine() const {
    std::string line;
    pollfd wait = {fd_, POLLIN, 0};
    for (char c = 0; c != '\n' && poll(&wait, 1, 30000) == 1 && read(fd_, &c, 1) == 1;) line += c;
    return line;
  }

 private:
  int fd_, before_ = -1;
};

TEST(Launcher, AProgressLineLeavesNothingBehind) {
  const std::vector<std::string> texts = {"step 998 of 1000, loss 3.25", "step 999", "step 1000 of 1000",
                                          "done"};
  std::string printed;
  {
    Terminal terminal;
    if (!terminal.there()) GTEST_SKIP() << "no pseudo-terminal";
    std::string name = "launcher_test";
    char* pointers[] = {name.data(), nullptr};
    int argc = 1;
    char** argv = pointers;
    Launcher launcher(&argc, &argv, "tests progress");
    ProgressLine progress(launcher);
    for (const std::string& text : texts) {
      progress.Update(text);
      Sleep(0.2);  // one that comes sooner is left out
    }
    progress.End();
    printed = terminal.ReadLine();
  }
  std::vector<std::string> wanted = texts;
  wanted.insert(wanted.begin(), "");
  EXPECT_EQ(Shown(printed), wanted);
}

}  // namespace
}  // namespace oneflow_like
