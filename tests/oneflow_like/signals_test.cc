// Signals that shells, Slurm and Kubernetes send to a program that starts with Launcher, as 1, 2 and 4
// processes: each does what it does to any program, to all processes, and handlers of the user's are called;
// and what interrupts a program that asks for it (oneflow_like/interruptions.h). The test starts itself as a
// program that waits to be signalled.
// ctest: seconds=11
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <optional>

#include "oneflow_like/interruptions.h"
#include "oneflow_like/launcher.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

constexpr double kPatience = 30;  // seconds: only what hangs takes as long

const char* const kFolder = "SIGNALS_TEST_FOLDER";    // where the program says what happens to it
const char* const kHandled = "SIGNALS_TEST_HANDLED";  // the signal it has a handler for
const char* const kAfter = "SIGNALS_TEST_AFTER";      // the handler is installed when Launcher is there
const char* const kAsks = "SIGNALS_TEST_ASKS";        // it asks for interruptions
constexpr int kAgreed = 100;                          // what it then says more when interrupted

std::atomic<int> handled{0};
void Count(int) { ++handled; }

void InstallHandler(bool now) {
  const char* number = std::getenv(kHandled);
  if (number == nullptr || now != (std::getenv(kAfter) != nullptr)) return;
  struct sigaction action = {};
  action.sa_handler = Count;
  sigaction(std::atoi(number), &action, nullptr);
}

// Says when it waits and how often its handler was called; ends with code 7 when there is a file "end".
int WaitForSignals(int argc, char** argv) {
  InstallHandler(false);
  Launcher launcher(&argc, &argv, "Waits to be signalled.");
  std::optional<Interruptions> interruptions;
  if (std::getenv(kAsks) != nullptr) interruptions.emplace(launcher);
  InstallHandler(true);
  bool agreed = false;
  return launcher.Main([&] {
    const char* mine = std::getenv("ONEFLOW_LIKE_PROCESS");
    const std::string file = std::string(std::getenv(kFolder)) + "/" + (mine ? mine : "0");
    for (int said = -1; !std::filesystem::exists(std::string(std::getenv(kFolder)) + "/end"); Sleep(0.005)) {
      if (interruptions && !agreed) agreed = interruptions->Agreed();
      const int now = handled + (agreed ? kAgreed : 0);
      if (said == now) continue;
      said = now;
      std::ofstream(file + ".new") << said << "\n";
      std::filesystem::rename(file + ".new", file);
    }
    return 7;
  });
}

class Signalled {
 public:
  Signalled(int processes, int handled = 0, bool after = false, int ignored = 0, bool asks = false)
      : folder_("signals_test." + std::to_string(number_++)), processes_(processes) {
    Command command{.program = std::filesystem::read_symlink("/proc/self/exe"),
                    .flags = {"--processes=" + std::to_string(processes)},
                    .variables = {{kFolder, folder_ / "."}},
                    .output = folder_ / "output"};
    if (handled != 0) command.variables[kHandled] = std::to_string(handled);
    if (after) command.variables[kAfter] = "1";
    if (asks) command.variables[kAsks] = "1";
    if (ignored != 0) std::signal(ignored, SIG_IGN);
    process_ = std::make_unique<Process>(command);
    if (ignored != 0) std::signal(ignored, SIG_DFL);
  }

  Process& process() { return *process_; }
  // Until all copies say that their handlers were called `times` times.
  bool Handled(int times) {
    return Until([&] {
      for (int p = 0; p < processes_; ++p)
        if (TextOf(folder_ / std::to_string(p)) != std::to_string(times) + "\n") return false;
      return true;
    });
  }
  bool Ready() { return Handled(0); }
  void LetEnd() { folder_.Write("end", ""); }
  bool Ends() { return process_->WaitUntil(Seconds() + kPatience); }
  std::vector<pid_t> Copies() const {
    std::vector<pid_t> copies = Alive();
    std::erase(copies, process_->pid());
    return copies;
  }
  // Parent and copies, but for those that are ending.
  std::vector<pid_t> Alive() const { return ProcessesWith(std::string(kFolder) + "=" + (folder_ / ".")); }
  bool AllGone() {
    return Until([&] { return Alive().empty(); });
  }
  // Whether all of them are stopped, or none.
  bool Stopped(bool stopped) {
    return Until([&] {
      const std::vector<pid_t> alive = Alive();
      return !alive.empty() && AllStopped(alive, stopped);
    });
  }
  // Stops the copies, but not their parent, by what nobody can catch.
  bool StopCopies() {
    const std::vector<pid_t> copies = Copies();
    for (pid_t pid : copies) kill(pid, SIGSTOP);
    return static_cast<int>(copies.size()) == processes_ && Until([&] { return AllStopped(copies, true); });
  }
  std::string Said() const { return process_->out() + process_->err(); }

 private:
  static bool AllStopped(const std::vector<pid_t>& pids, bool stopped) {
    return std::all_of(pids.begin(), pids.end(), [&](pid_t pid) {
      const std::string stat = TextOf("/proc/" + std::to_string(pid) + "/stat");
      return (stat.substr(stat.rfind(')') + 2, 1) == "T") == stopped;
    });
  }
  template <typename F>
  bool Until(F done) {
    const double end = Seconds() + kPatience;
    while (!done()) {
      if (Seconds() > end) return false;
      Sleep(0.005);
    }
    return true;
  }

  static inline int number_ = 0;
  TestFolder folder_;
  int processes_;
  std::unique_ptr<Process> process_;
};

struct Name {
  int signal;
  const char* name;
};
// But for SIGQUIT, which asks who waits for what (stall_test).
const Name kEnding[] = {{SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGTERM, "TERM"}, {SIGUSR1, "USR1"},
                        {SIGUSR2, "USR2"}, {SIGALRM, "ALRM"}, {SIGXCPU, "XCPU"}, {SIGPIPE, "PIPE"}};
const Name kHandleable[] = {{SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"},
                            {SIGTERM, "TERM"}, {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"},
                            {SIGALRM, "ALRM"}, {SIGXCPU, "XCPU"}, {SIGCONT, "CONT"}};

TEST(Signals, ThatEndAProgramEndAllItsProcesses) {
  for (int processes : {1, 2, 4})
    for (const Name& s : kEnding) {
      SCOPED_TRACE(std::string(s.name) + ", processes " + std::to_string(processes));
      Signalled program(processes);
      ASSERT_TRUE(program.Ready()) << program.Said();
      program.process().Signal(s.signal);
      ASSERT_TRUE(program.Ends());
      EXPECT_EQ(program.process().code(), 128 + s.signal) << program.Said();
      EXPECT_TRUE(program.AllGone());
    }
}

// A copy of the system's, or a scheduler, may send it to every process of the job.
TEST(Signals, ToTheWholeGroupEndAll) {
  for (const Name& s : {kEnding[0], kEnding[1], kEnding[2], kEnding[3]}) {
    SCOPED_TRACE(s.name);
    Signalled program(2);
    ASSERT_TRUE(program.Ready()) << program.Said();
    kill(-program.process().pid(), s.signal);
    ASSERT_TRUE(program.Ends());
    EXPECT_EQ(program.process().code(), 128 + s.signal) << program.Said();
    EXPECT_TRUE(program.AllGone());
  }
}

TEST(Signals, ThatChangeNothingChangeNothing) {
  for (int processes : {1, 2, 4}) {
    SCOPED_TRACE(processes);
    Signalled program(processes);
    ASSERT_TRUE(program.Ready()) << program.Said();
    for (int s : {SIGCONT, SIGWINCH, SIGURG, SIGCHLD, SIGQUIT}) program.process().Signal(s);
    program.LetEnd();
    ASSERT_TRUE(program.Ends());
    EXPECT_EQ(program.process().code(), 7) << program.Said();
  }
}

TEST(Signals, StopAndContinueAllProcesses) {
  for (int processes : {1, 2, 4}) {
    SCOPED_TRACE(processes);
    Signalled program(processes);
    ASSERT_TRUE(program.Ready()) << program.Said();
    for (int times = 0; times < 2; ++times) {
      program.process().Signal(SIGTSTP);
      ASSERT_TRUE(program.Stopped(true));
      program.process().Signal(SIGCONT);
      ASSERT_TRUE(program.Stopped(false));
    }
    program.LetEnd();
    ASSERT_TRUE(program.Ends());
    EXPECT_EQ(program.process().code(), 7) << program.Said();
  }
}

// Nobody need continue them first.
TEST(Signals, ThatAskToEndAlsoEndCopiesThatAreStopped) {
  for (const Name& s : {kEnding[0], kEnding[1], kEnding[2]}) {
    SCOPED_TRACE(s.name);
    Signalled program(2);
    ASSERT_TRUE(program.Ready()) << program.Said();
    ASSERT_TRUE(program.StopCopies()) << program.Said();
    program.process().Signal(s.signal);
    ASSERT_TRUE(program.Ends());
    EXPECT_EQ(program.process().code(), 128 + s.signal) << program.Said();
    EXPECT_TRUE(program.AllGone());
  }
}

// As nohup has it.
TEST(Signals, HangupsIgnoredFromTheBeginningStayIgnored) {
  for (int processes : {1, 2}) {
    SCOPED_TRACE(processes);
    Signalled program(processes, 0, false, SIGHUP);
    ASSERT_TRUE(program.Ready()) << program.Said();
    program.process().Signal(SIGHUP);
    program.LetEnd();
    ASSERT_TRUE(program.Ends());
    EXPECT_EQ(program.process().code(), 7) << program.Said();
  }
}

TEST(Signals, HandlersOfTheUsersAreCalledInEveryProcess) {
  for (int processes : {1, 2, 4})
    for (const Name& s : kHandleable)
      for (bool after : {false, true}) {
        if (processes == 4 && after) continue;
        SCOPED_TRACE(std::string(s.name) + ", processes " + std::to_string(processes) +
                     (after ? ", installed after Launcher" : ", installed before Launcher"));
        Signalled program(processes, s.signal, after);
        ASSERT_TRUE(program.Ready()) << program.Said();
        program.process().Signal(s.signal);
        EXPECT_TRUE(program.Handled(1)) << program.Said();
        program.LetEnd();
        ASSERT_TRUE(program.Ends());
        EXPECT_EQ(program.process().code(), 7) << program.Said();
      }
}

// A scheduler warns by USR1, perhaps more than once: that kills nobody who handles it.
TEST(Signals, AreHandledAsOftenAsTheyAreSent) {
  Signalled program(2, SIGUSR1);
  ASSERT_TRUE(program.Ready()) << program.Said();
  for (int times = 1; times <= 3; ++times) {
    program.process().Signal(SIGUSR1);
    ASSERT_TRUE(program.Handled(times)) << program.Said();
  }
  program.process().Signal(SIGTERM);
  ASSERT_TRUE(program.Ends());
  EXPECT_EQ(program.process().code(), 128 + SIGTERM) << program.Said();
}

TEST(Interruptions, AreAgreedOnByAllWhoeverHearsOfThem) {
  enum To { kLauncher, kOneCopy, kAll };
  for (int processes : {1, 2, 4})
    for (int s : {SIGTERM, SIGUSR1})
      for (To to : {kLauncher, kOneCopy, kAll}) {
        if (processes == 1 && to != kLauncher) continue;
        SCOPED_TRACE(testing::Message() << strsignal(s) << ", processes " << processes << ", to " << to);
        Signalled program(processes, 0, false, 0, true);
        ASSERT_TRUE(program.Ready()) << program.Said();
        if (to == kLauncher) program.process().Signal(s);
        if (to == kOneCopy) kill(program.Copies().back(), s);
        if (to == kAll) kill(-program.process().pid(), s);
        ASSERT_TRUE(program.Handled(kAgreed)) << program.Said();
        program.LetEnd();
        ASSERT_TRUE(program.Ends());
        EXPECT_EQ(program.process().code(), 7) << program.Said();
        EXPECT_TRUE(program.AllGone());
      }
}

TEST(Interruptions, ASecondSignalThatAsksToEndEndsAtOnce) {
  for (int processes : {1, 2})
    for (int s : {SIGTERM, SIGINT}) {
      SCOPED_TRACE(testing::Message() << strsignal(s) << ", processes " << processes);
      Signalled program(processes, 0, false, 0, true);
      ASSERT_TRUE(program.Ready()) << program.Said();
      program.process().Signal(SIGTERM);
      ASSERT_TRUE(program.Handled(kAgreed)) << program.Said();
      program.process().Signal(s);
      ASSERT_TRUE(program.Ends());
      EXPECT_EQ(program.process().code(), 128 + (processes == 1 ? s : SIGKILL)) << program.Said();
      EXPECT_TRUE(program.AllGone());
    }
}

TEST(Interruptions, LeaveHandlersOfTheUsersAlone) {
  for (int processes : {1, 2})
    for (int s : {SIGTERM, SIGUSR1}) {
      SCOPED_TRACE(testing::Message() << strsignal(s) << ", processes " << processes);
      Signalled before(processes, s, false, 0, true);
      ASSERT_TRUE(before.Ready()) << before.Said();
      before.process().Signal(s);
      EXPECT_TRUE(before.Handled(kAgreed + 1)) << before.Said();
      Signalled after(processes, s, true, 0, true);
      ASSERT_TRUE(after.Ready()) << after.Said();
      after.process().Signal(s);
      EXPECT_TRUE(after.Handled(1)) << after.Said();
    }
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  if (std::getenv(oneflow_like::kFolder) != nullptr) return oneflow_like::WaitForSignals(argc, argv);
  // nohup, or a shell that starts tests in the background, has them ignored; programs would inherit that.
  for (int s : {SIGHUP, SIGINT, SIGQUIT}) std::signal(s, SIG_DFL);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
