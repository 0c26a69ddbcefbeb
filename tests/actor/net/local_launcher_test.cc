// --processes=N (actor/net/launch/local_launcher.h): what comes out and in which shape, exit codes, how the
// others end when one fails, that nothing is left. The program starts itself: "parent" runs a job of copies
// that do what their arguments say.
// ctest: seconds=9 waits
#include "actor/net/launch/local_launcher.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "actor/net/launch/line_writer.h"
#include "actor/net/rendezvous/bootstrap.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

using Strings = std::vector<std::string>;

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Strings LinesOf(const std::string& text) {
  Strings lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// A folder of this test, gone with it.
class Folder {
 public:
  Folder() {
    std::string pattern = testing::TempDir() + "/local_launcher.XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A process of this program, its outputs read as they come. Killed with the object.
class Program {
 public:
  // `terminal` >= 0: its standard output.
  explicit Program(Strings arguments, int terminal = -1) {
    int ends[2][2];
    for (auto& e : ends)
      if (pipe2(e, O_CLOEXEC) != 0) std::abort();
    std::string self = std::filesystem::read_symlink("/proc/self/exe");
    arguments.insert(arguments.begin(), self);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(100);
      for (const char* name : {"ONEFLOW_LIKE_PROCESS", "ONEFLOW_LIKE_LABELLED", "ONEFLOW_LIKE_TTY"})
        unsetenv(name);
      dup2(terminal >= 0 ? terminal : ends[0][1], 1);
      dup2(ends[1][1], 2);
      std::vector<char*> argv;
      for (std::string& a : arguments) argv.push_back(a.data());
      argv.push_back(nullptr);
      execv(self.c_str(), argv.data());
      _exit(126);
    }
    for (int i : {0, 1}) {
      close(ends[i][1]);
      from_[i] = ends[i][0];
    }
  }
  Program(const Program&) = delete;
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (int fd : from_)
      if (fd >= 0) close(fd);
  }

  // Reads until `text` has come on standard output; false when it does not within 60 s.
  bool ReadUntil(const std::string& text) {
    double end = Now() + 60;
    while (out().find(text) == std::string::npos)
      if (Now() > end || !ReadSome()) return false;
    return true;
  }
  // To the end of both outputs: of all that hold them. The exit code as a shell says it.
  int Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  void Signal(int number) { kill(pid_, number); }
  const std::string& out() const { return text_[0]; }
  const std::string& err() const { return text_[1]; }

 private:
  bool ReadSome() {
    pollfd fds[2] = {{from_[0], POLLIN, 0}, {from_[1], POLLIN, 0}};
    if (from_[0] < 0 && from_[1] < 0) return false;
    if (poll(fds, 2, 60000) <= 0) return false;
    for (int i : {0, 1}) {
      char buffer[64 << 10];
      if (fds[i].revents == 0) continue;
      ssize_t got = read(from_[i], buffer, sizeof(buffer));
      if (got > 0) text_[i].append(buffer, got);
      if (got > 0) continue;
      close(from_[i]);
      from_[i] = -1;
    }
    return true;
  }

  pid_t pid_ = -1;
  int from_[2] = {-1, -1};
  std::string text_[2];
};

// Processes that have `word` among their arguments: the folder of a test.
int Running(const std::string& word) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(getpid())) continue;
    count += TextOf(entry.path() / "cmdline").find(word) != std::string::npos;
  }
  return count;
}

// A job of `processes` copies that do `what`; `options` for the parent: "grace=0.3", "log_dir=...".
Strings Job(int processes, Strings what, Strings options = {}) {
  Strings all = {"parent", std::to_string(processes)};
  all.insert(all.end(), options.begin(), options.end());
  all.push_back("--");
  all.insert(all.end(), what.begin(), what.end());
  return all;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(LocalLauncherTest, LinesHaveLabels) {
  Program job(Job(3, {"lines"}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  Strings out = LinesOf(job.out()), err = LinesOf(job.err());
  std::sort(out.begin(), out.end());
  std::sort(err.begin(), err.end());
  // Process 0's text is as it was, but that another line may have ended its last one, which had no end.
  out.erase(std::remove(out.begin(), out.end(), ""), out.end());
  EXPECT_EQ(out, (Strings{"[1] ", "[1] first of 1", "[1] second of 1", "[1] unfinished of 1", "[2] ",
                          "[2] first of 2", "[2] second of 2", "[2] unfinished of 2", "first of 0",
                          "second of 0", "unfinished of 0"}));
  EXPECT_EQ(err, (Strings{"[1] error of 1", "[2] error of 2", "error of 0"}));
}

TEST(LocalLauncherTest, CopiesMeet) {
  Program job(Job(4, {"meet"}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  for (int p = 0; p < 4; ++p)
    EXPECT_EQ(Count(job.out(), Cat("process ", p, " met 4, labelled 1\n")), 1) << job.out();
}

TEST(LocalLauncherTest, OneCopyIsAJobToo) {
  Program job(Job(1, {"exit", "5"}));
  EXPECT_EQ(job.Wait(), 5);
  EXPECT_EQ(job.err(), "");
}

TEST(LocalLauncherTest, TheFirstFailureIsTheExitCode) {
  Program fine(Job(3, {"exit", "0"}));
  EXPECT_EQ(fine.Wait(), 0);
  EXPECT_EQ(fine.err(), "");
  // Process 2 fails; the others fail when they hear of it, by a file.
  Folder folder;
  Program job(Job(3, {"fail_one_by_one", folder / "failed"}));
  EXPECT_EQ(job.Wait(), 7);
  EXPECT_NE(job.err().find("error: process 2 (pid "), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("ended with exit code 7"), std::string::npos) << job.err();
  EXPECT_EQ(Count(job.err(), "error:"), 1) << job.err();
}

TEST(LocalLauncherTest, AnErrorThatACopyPrintsIsNotRepeated) {
  Program job(Job(3, {"fail_aloud"}));
  EXPECT_EQ(job.Wait(), 3);
  EXPECT_EQ(Count(job.err(), "error:"), 1) << job.err();
  EXPECT_EQ(Count(job.err(), "error: out of cheese"), 1) << job.err();
}

TEST(LocalLauncherTest, AKilledProcessIsNamed) {
  Folder folder;
  Program job(Job(3, {"die", folder / "x", std::to_string(SIGSEGV)}, {"grace=0.2"}));
  EXPECT_EQ(job.Wait(), 128 + SIGSEGV);
  EXPECT_NE(job.err().find("error: process 1 (pid "), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("ended by signal 11 (Segmentation fault)"), std::string::npos) << job.err();
  EXPECT_NE(job.err().find("error: process 2 (pid "), std::string::npos) << job.err();
  EXPECT_EQ(Running(folder / "x"), 0);
}

TEST(LocalLauncherTest, TheOthersGetTimeToEnd) {
  Folder folder;
  Program job(Job(3, {"end_well_after_failure", folder / "x"}, {"grace=60"}));
  EXPECT_EQ(job.Wait(), 3);
  EXPECT_EQ(Count(job.out(), "ended well"), 2) << job.out();
}

TEST(LocalLauncherTest, DeafAndStoppedProcessesEnd) {
  for (const char* how : {"deaf", "stopped"}) {
    Folder folder;
    Program job(Job(4, {"fail_beside", folder / "x", how}, {"grace=0.2"}));
    EXPECT_EQ(job.Wait(), 3) << how;
    EXPECT_EQ(Running(folder / "x"), 0) << how;
  }
}

TEST(LocalLauncherTest, WhoEndsWellEarlyStopsNobody) {
  Program job(Job(3, {"end_in_turn"}, {"grace=0.01"}));
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(Count(job.out(), "ended"), 3) << job.out();
}

TEST(LocalLauncherTest, LogsHoldWhatEachHasPrinted) {
  Folder folder;
  Program job(Job(2, {"lines"}, {"log_dir=" + (folder / "a/b")}));
  EXPECT_EQ(job.Wait(), 0);
  for (int p : {0, 1}) {
    std::string text = TextOf(folder / Cat("a/b/process", p, ".log"));
    EXPECT_EQ(Count(text, Cat("first of ", p, "\nsecond of ", p, "\n\nunfinished of ", p)), 1) << text;
    EXPECT_EQ(Count(text, Cat("error of ", p, "\n")), 1) << text;
    EXPECT_EQ(Count(text, "["), 0) << text;
  }
  std::ofstream(folder / "file") << "no folder";
  Program refused(Job(2, {"lines"}, {"log_dir=" + (folder / "file")}));
  EXPECT_EQ(refused.Wait(), 1);
  EXPECT_NE(refused.err().find("process0.log cannot be written: Not a directory"), std::string::npos)
      << refused.err();
}

// What is lost of standard output fails a job that would have ended well; a failure of its own comes first.
TEST(LocalLauncherTest, AFullDiskUnderStandardOutputIsReported) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "this system has no /dev/full";
  const std::string lost =
      "error: not all that was printed could be written to standard output: No space left on device\n";
  for (int processes : {1, 3}) {
    Program prints(Job(processes, {"lines"}), full);
    EXPECT_EQ(prints.Wait(), 1) << processes;
    EXPECT_EQ(Count(prints.err(), lost), 1) << prints.err();
    for (int p = 0; p < processes; ++p)
      EXPECT_EQ(Count(prints.err(), Cat("error of ", p, "\n")), 1) << prints.err();
    Program silent(Job(processes, {"exit", "0"}), full);
    EXPECT_EQ(silent.Wait(), 0) << "nothing was to be written";
    EXPECT_EQ(silent.err(), "");
    Program fails(Job(processes, {"exit", "5"}), full);
    EXPECT_EQ(fails.Wait(), 5);
  }
  close(full);
}

TEST(LocalLauncherTest, LargeOutputsComeWhole) {
  constexpr int kProcesses = 3, kLines = 20000;
  Program job(Job(kProcesses, {"much", std::to_string(kLines)}));
  EXPECT_EQ(job.Wait(), 0);
  std::vector<int> next(kProcesses);
  std::vector<size_t> long_bytes(kProcesses);
  for (std::string line : LinesOf(job.out())) {
    int p = 0;
    if (line[0] == '[') {
      p = line[1] - '0';
      line = line.substr(4);
    }
    ASSERT_LT(p, kProcesses);
    if (line.find_first_not_of('x') == std::string::npos) {
      long_bytes[p] += line.size();
      continue;
    }
    ASSERT_EQ(line, Cat("line ", next[p], " of process ", p, " ", std::string(80, 'a' + next[p] % 26)));
    ++next[p];
  }
  for (int p = 0; p < kProcesses; ++p) {
    EXPECT_EQ(next[p], kLines);
    EXPECT_EQ(long_bytes[p], 3000000u);
  }
}

TEST(LocalLauncherTest, NobodyOutlivesTheParent) {
  Folder folder;
  Program job(Job(3, {"wait_for", folder / "never"}));
  for (int p = 0; p < 3; ++p) ASSERT_TRUE(job.ReadUntil(Cat("process ", p, " waits"))) << job.out();
  EXPECT_EQ(Running(folder / "never"), 4);
  job.Signal(SIGKILL);
  EXPECT_EQ(job.Wait(), 128 + SIGKILL);
  double end = Now() + 30;
  while (Running(folder / "never") > 0 && Now() < end) Sleep(0.01);
  EXPECT_EQ(Running(folder / "never"), 0);
}

TEST(LocalLauncherTest, SignalsArePassedOn) {
  for (int number : {SIGINT, SIGTERM}) {
    Folder folder;
    Program job(Job(3, {"wait_for", folder / "never"}));
    for (int p = 0; p < 3; ++p) ASSERT_TRUE(job.ReadUntil(Cat("process ", p, " waits"))) << job.out();
    job.Signal(number);
    EXPECT_EQ(job.Wait(), 128 + number);
    EXPECT_EQ(job.err(), "");
  }
}

TEST(LocalLauncherTest, ASecondSignalKills) {
  Folder folder;
  Program job(Job(2, {"count_signals", folder / "x"}, {"grace=60"}));
  for (int p = 0; p < 2; ++p) ASSERT_TRUE(job.ReadUntil(Cat("process ", p, " waits"))) << job.out();
  job.Signal(SIGINT);
  for (int p = 0; p < 2; ++p) ASSERT_TRUE(job.ReadUntil(Cat("process ", p, " goes on"))) << job.out();
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 128 + SIGKILL);
  EXPECT_EQ(Running(folder / "x"), 0);
}

TEST(LocalLauncherTest, WhatIsLostStartsAgain) {
  for (int number : {SIGKILL, SIGSEGV, SIGABRT, SIGBUS}) {
    Folder folder;
    Program job(Job(3, {"die_twice", folder / "x", std::to_string(number)},
                    {"grace=0.2", "restarts=3", "log_dir=" + (folder / "logs")}));
    EXPECT_EQ(job.Wait(), 0) << job.err();
    for (int r : {1, 2})
      EXPECT_EQ(Count(job.err(), Cat("process 1 was killed by signal ", number, "; restart ", r, " of 3\n")),
                1)
          << job.err();
    EXPECT_EQ(Count(job.err(), "; restart"), 2) << job.err();
    EXPECT_EQ(Count(job.out(), "attempt 3 of 0"), 1) << job.out();
    const std::string log = TextOf(folder / "logs/process0.log");
    for (int a : {1, 2, 3}) EXPECT_EQ(Count(log, Cat("attempt ", a, " of 0")), 1) << log;
    EXPECT_EQ(Running(folder / "x"), 0);
  }
}

TEST(LocalLauncherTest, RestartsAreUsedUp) {
  Folder folder;
  Program job(Job(2, {"die_twice", folder / "x", std::to_string(SIGKILL)}, {"grace=0.2", "restarts=1"}));
  EXPECT_EQ(job.Wait(), 128 + SIGKILL);
  EXPECT_EQ(Count(job.err(), "; restart 1 of 1\n"), 1) << job.err();
  EXPECT_EQ(Count(job.err(), "all restarts are used up"), 1) << job.err();
}

TEST(LocalLauncherTest, WhatHangsStartsAgain) {
  Folder folder;
  Program job(Job(2, {"hang_once", folder / "x"}, {"grace=0.2", "restarts=1"}));
  EXPECT_EQ(job.Wait(), 0) << job.err();
  EXPECT_EQ(Count(job.err(), "process 1 hung; restart 1 of 1\n"), 1) << job.err();
}

TEST(LocalLauncherTest, ErrorsAndRequestsToEndDoNotStartAgain) {
  for (const char* code : {"1", "3", "75"}) {
    Program job(Job(3, {"exit", code}, {"restarts=3"}));
    EXPECT_EQ(job.Wait(), std::stoi(code));
    EXPECT_EQ(Count(job.err(), "restart"), 0) << job.err();
  }
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    Folder folder;
    Program job(Job(3, {"wait_for", folder / "never"}, {"restarts=3", "grace=0.2"}));
    for (int p = 0; p < 3; ++p) ASSERT_TRUE(job.ReadUntil(Cat("process ", p, " waits"))) << job.out();
    job.Signal(number);
    EXPECT_EQ(job.Wait(), 128 + number) << job.err();
    EXPECT_EQ(Count(job.err(), "restart"), 0) << job.err();
  }
}

TEST(LocalLauncherTest, AnInterruptionThatIsSavedIsNoFailure) {
  Program saved(Job(3, {"exit", "75"}));
  EXPECT_EQ(saved.Wait(), 75);
  EXPECT_EQ(saved.err(), "");
  // One could not, however early the others were.
  Program failed(Job(3, {"exit_each", "75", "75", "4"}));
  EXPECT_EQ(failed.Wait(), 4);
  EXPECT_EQ(Count(failed.err(), "error: process 2 (pid "), 1) << failed.err();
}

TEST(LocalLauncherTest, LessMayStartAgain) {
  Folder folder;
  Program job(
      Job(3, {"die_twice", folder / "x", std::to_string(SIGKILL)}, {"grace=0.2", "restarts=3", "shrink=1"}));
  EXPECT_EQ(job.Wait(), 1) << job.err();
  EXPECT_EQ(Count(job.err(), "; restart 1 of 3 with 2\n"), 1) << job.err();
  EXPECT_EQ(Count(job.out(), "attempt 2 of 0"), 1) << job.out();
  EXPECT_EQ(Count(job.err(), "error: too little is left\n"), 1) << job.err();
}

TEST(LocalLauncherTest, UnfinishedLinesComeInTime) {
  Folder folder;
  Program job(Job(2, {"ask", folder / "answer"}));
  ASSERT_TRUE(job.ReadUntil("[1] question of 1\n")) << job.out();
  ASSERT_TRUE(job.ReadUntil("question of 0")) << job.out();
  std::ofstream(folder / "answer") << "yes";
  EXPECT_EQ(job.Wait(), 0);
}

TEST(LocalLauncherTest, AProgressLinePassesAndIsInNobodysWay) {
  Folder folder;
  Program job(Job(2, {"progress", folder / "go", folder / "on"}));
  ASSERT_TRUE(job.ReadUntil("\r10%")) << job.out();
  std::ofstream(folder / "go") << "1";
  ASSERT_TRUE(job.ReadUntil("\r10%\n[1] a line\n")) << job.out();
  std::ofstream(folder / "on") << "1";
  ASSERT_TRUE(job.ReadUntil("[1] a line\n\r20%")) << job.out();
  EXPECT_EQ(job.Wait(), 0);
}

// A line of process 0 that is printed piece by piece is broken by the lines of others alone, and those come
// whole however they are cut.
TEST(LineWriterTest, PiecesOfALineStayTogether) {
  const Strings texts = {"\r10%", " of all", ".", " and\nmore", "an end\n", "\n"};
  Folder folder;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::string path = folder / "output";
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    auto sink = std::make_shared<Sink>(Sink{fd});
    LineWriter first(sink, ""), second(sink, "[1] ");
    std::string wanted;
    bool begun = false;  // a line of the first one's
    for (int i = 0; i < 30; ++i) {
      if (random() % 3 != 0) {
        const std::string& piece = texts[random() % texts.size()];
        first.Add(piece.data(), piece.size(), 0);
        first.Flush();
        wanted += piece;
        begun = piece.back() != '\n';
      } else {
        const std::string line = "line " + std::to_string(i) + "\n";
        const size_t cut = random() % line.size();
        second.Add(line.data(), cut, 0);
        second.Add(line.data() + cut, line.size() - cut, 0);
        wanted += (begun ? "\n[1] " : "[1] ") + line;
        begun = false;
      }
    }
    close(fd);
    EXPECT_EQ(TextOf(path), wanted);
  }
}

TEST(LocalLauncherTest, ProcessZeroKnowsOfTheTerminal) {
  int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) GTEST_SKIP() << "no pseudo-terminal";
  int side = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(side, 0);
  Program job(Job(2, {"terminal"}), side);
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(Count(job.err(), "process 0: 1\n"), 1) << job.err();
  EXPECT_EQ(Count(job.err(), "process 1: none\n"), 1) << job.err();
  close(side);
  close(terminal);
  Program piped(Job(2, {"terminal"}));
  EXPECT_EQ(piped.Wait(), 0);
  EXPECT_EQ(Count(piped.err(), "process 0: none\n"), 1) << piped.err();
}

TEST(LabelledOutputTest, LinesHaveTheLabel) {
  Program program({"labelled", "return"});
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(program.out(), "[3] printed\n[3] streamed\n[3] unfinished\nafter\n");
  EXPECT_EQ(program.err(), "[3] direct\n[3] direct too\n[3] error\n");
}

TEST(LabelledOutputTest, ExitAndCrashLoseNothing) {
  Program exits({"labelled", "exit"});
  EXPECT_EQ(exits.Wait(), 4);
  EXPECT_EQ(exits.out(), "[3] printed\n[3] streamed\n[3] unfinished\n");
  Program aborts({"labelled", "abort"});
  EXPECT_EQ(aborts.Wait(), 128 + SIGABRT);
  EXPECT_EQ(aborts.out(), "[3] printed\n[3] streamed\n[3] unfinished\n");
  EXPECT_NE(aborts.err().find("[3] error\n"), std::string::npos);
  Program much({"labelled", "much"});
  EXPECT_EQ(much.Wait(), 128 + SIGKILL);
  EXPECT_EQ(Count(much.out(), "[3] line "), 5000);
}

TEST(LabelledOutputTest, UnderOurLauncherItDoesNothing) {
  Program job(Job(2, {"labelled", "return"}));
  EXPECT_EQ(job.Wait(), 0);
  EXPECT_EQ(Count(job.out(), "[1] printed\n"), 1) << job.out();
  EXPECT_EQ(Count(job.out(), "[3]"), 0) << job.out();
  EXPECT_EQ(Count(job.err(), "[1] direct\n"), 1) << job.err();
}

// What the copies do; process, arguments -> exit code.

int Me() { return std::atoi(std::getenv("ONEFLOW_LIKE_PROCESS")); }

void WaitForFile(const std::string& path) {
  while (!std::filesystem::exists(path)) Sleep(0.005);
}

int Lines(const Strings&) {
  std::cout << "first of " << Me() << "\nsecond of " << Me() << "\n\nunfinished of " << Me() << std::flush;
  std::cerr << "error of " << Me() << std::endl;
  return 0;
}

int Meet(const Strings&) {
  ProcessIdentity id = ReadIdentity([](const char* name) -> const char* { return std::getenv(name); });
  PeerInfo mine;
  mine.process = id.process;
  size_t all = Rendezvous(id, mine).size();
  std::cout << Cat("process ", id.process, " met ", all, ", labelled ", std::getenv("ONEFLOW_LIKE_LABELLED"),
                   "\n");
  return 0;
}

int FailOneByOne(const Strings& a) {
  if (Me() == 2) std::ofstream(a[1]) << getpid();
  if (Me() == 2) return 7;
  WaitForFile(a[1]);
  // Until process 2 is gone altogether.
  while (TextOf(a[1]).empty() || kill(std::stoi(TextOf(a[1])), 0) == 0) Sleep(0.005);
  return 9;
}

// One after the other, each with a line of its own, in pieces.
int FailAloud(const Strings&) {
  Sleep(0.2 * Me());
  std::cerr << "fine so far\ner" << std::flush;
  Sleep(0.02);
  std::cerr << (Me() == 0 ? "ror: out of cheese\n" : "rata\n") << std::flush;
  return Me() == 0 ? 3 : 0;
}

int Die(const Strings& a) {
  if (Me() == 1) {
    signal(std::stoi(a[2]), SIG_DFL);
    raise(std::stoi(a[2]));
  }
  Sleep(90);
  return 0;
}

// Says which attempt this is and waits for all to have said so. In the first two process 1 dies.
int DieTwice(const Strings& a) {
  const std::string mine = a[1] + std::to_string(Me()), other = a[1] + std::to_string(1 - Me());
  std::ofstream(mine, std::ios::app) << "x";
  const size_t attempt = TextOf(mine).size();
  std::cout << Cat("attempt ", attempt, " of ", Me(), "\n") << std::flush;
  if (Me() > 1) return 0;
  while (TextOf(other).size() < attempt) Sleep(0.005);
  if (attempt > 2) return 0;
  if (Me() == 0) Sleep(90);
  signal(std::stoi(a[2]), SIG_DFL);
  raise(std::stoi(a[2]));
  return 0;
}

int HangOnce(const Strings& a) {
  const bool again = std::filesystem::exists(a[1]);
  if (again) return 0;
  if (Me() == 0) {
    WaitForFile(a[1] + "hangs");
    std::ofstream(a[1]) << "";
    return 1;
  }
  signal(SIGTERM, SIG_IGN);
  std::ofstream(a[1] + "hangs") << "";
  Sleep(90);
  return 0;
}

int EndWellAfterFailure(const Strings& a) {
  if (Me() == 1) std::ofstream(a[1]) << "failed";
  if (Me() == 1) return 3;
  WaitForFile(a[1]);
  Sleep(0.3);
  std::cout << "ended well" << std::endl;
  return 0;
}

int FailBeside(const Strings& a) {
  std::string file = a[1];
  if (Me() == 3) {
    for (int p : {0, 1, 2}) WaitForFile(file + std::to_string(p));
    Sleep(0.05);
    return 3;
  }
  if (a[2] == "deaf") signal(SIGTERM, SIG_IGN);
  std::ofstream(file + std::to_string(Me())) << "ready";
  if (a[2] == "stopped") raise(SIGSTOP);
  Sleep(90);
  return 0;
}

int EndInTurn(const Strings&) {
  Sleep(0.15 * Me());
  std::cout << "ended" << std::endl;
  return 0;
}

int Much(const Strings& a) {
  for (int i = 0; i < std::stoi(a[1]); ++i)
    std::cout << "line " << i << " of process " << Me() << " " << std::string(80, 'a' + i % 26) << "\n";
  std::cout << std::string(3000000, 'x') << std::flush;
  return 0;
}

int WaitFor(const Strings& a) {
  std::cout << Cat("process ", Me(), " waits\n") << std::flush;
  WaitForFile(a[1]);
  return 0;
}

volatile sig_atomic_t signals_seen = 0;
int CountSignals(const Strings&) {
  for (int s : {SIGINT, SIGTERM}) signal(s, [](int) { signals_seen = signals_seen + 1; });
  std::cout << Cat("process ", Me(), " waits\n") << std::flush;
  while (signals_seen == 0) usleep(1000);
  std::cout << Cat("process ", Me(), " goes on\n") << std::flush;
  for (;;) pause();
}

int Ask(const Strings& a) {
  std::cout << "question of " << Me() << std::flush;
  WaitForFile(a[1]);
  return 0;
}

int Progress(const Strings& a) {
  if (Me() == 1) {
    WaitForFile(a[1]);
    std::cout << "a line" << std::endl;
  } else {
    std::cout << "\r10%" << std::flush;
    WaitForFile(a[2]);
    std::cout << "\r20%" << std::endl;
  }
  return 0;
}

int Terminal(const Strings&) {
  const char* terminal = std::getenv("ONEFLOW_LIKE_TTY");
  std::cerr << Cat("process ", Me(), ": ", terminal == nullptr ? "none" : terminal, "\n");
  return 0;
}

int Labelled(const Strings& a) {
  {
    LabelledOutput output(3);
    output.WriteDirectly("direct");
    output.WriteDirectly("direct too\n");
    std::printf("printed\n");
    std::fflush(stdout);
    std::cout << "streamed\n" << std::flush;
    std::cerr << "error" << std::endl;
    std::cout << "unfinished";
    if (a[1] == "exit") std::exit(4);
    std::cout << std::flush;
    if (a[1] == "abort") std::abort();
    if (a[1] == "much") {
      std::cout << "\n";
      for (int i = 0; i < 5000; ++i) std::cout << "line " << i << "\n";
      std::cout << std::flush;
      raise(SIGKILL);
    }
  }
  std::cout << "after" << std::endl;
  return 0;
}

int RunParent(const Strings& a) {
  LocalJob job;
  job.processes = std::stoi(a[1]);
  size_t i = 2;
  for (; a[i] != "--"; ++i) {
    if (a[i].rfind("grace=", 0) == 0) job.grace = std::stod(a[i].substr(6));
    if (a[i].rfind("log_dir=", 0) == 0) job.log_dir = a[i].substr(8);
    if (a[i].rfind("restarts=", 0) == 0) job.restarts = std::stoi(a[i].substr(9));
    if (a[i] == "shrink=1")
      job.shrink = [](int lost, LocalJob* job) {
        job->processes -= lost;
        if (job->processes < 2) Fail("too little is left");
        return Cat(" with ", job->processes);
      };
  }
  job.argv = {"copy"};
  job.argv.insert(job.argv.end(), a.begin() + i + 1, a.end());
  try {
    return RunLocalJob(job);
  } catch (const Error& e) {
    std::cerr << "error: " << e.what() << std::endl;
    return 1;
  }
}

const std::map<std::string, int (*)(const Strings&)> kPrograms = {
    {"parent", RunParent},
    {"lines", Lines},
    {"meet", Meet},
    {"exit", [](const Strings& a) { return std::stoi(a[1]); }},
    {"exit_each", [](const Strings& a) { return std::stoi(a[1 + Me()]); }},
    {"die_twice", DieTwice},
    {"hang_once", HangOnce},
    {"fail_one_by_one", FailOneByOne},
    {"fail_aloud", FailAloud},
    {"die", Die},
    {"end_well_after_failure", EndWellAfterFailure},
    {"fail_beside", FailBeside},
    {"end_in_turn", EndInTurn},
    {"much", Much},
    {"wait_for", WaitFor},
    {"count_signals", CountSignals},
    {"ask", Ask},
    {"progress", Progress},
    {"terminal", Terminal},
    {"labelled", Labelled},
};

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (argc > 1) {
    auto program = oneflow_like::kPrograms.find(arguments[0]);
    if (program != oneflow_like::kPrograms.end()) return program->second(arguments);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
