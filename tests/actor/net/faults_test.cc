// Processes of a job that are killed, stopped, cut off or end early, at random moments: everybody else ends
// within --peer_timeout with one sentence that names who was lost, and nothing is left.
//   faults_test --faults=100        the long run; --seed=S --only=I runs one fault again
// ctest: seconds=36 long=30 waits serial programs=fault_program
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "tests/hosts.h"
#include "tests/processes.h"

DEFINE_int32(faults, 14, "How many to try; the long test tries 28 at least");
DEFINE_uint64(seed, 1, "Draws kind, moment, victim and mesh of every fault");
DEFINE_int32(only, -1, "Runs this one fault alone, and shows what everybody said");
DEFINE_string(kind, "", "Only faults of this kind: killed, stopped, cut off, throws, ...");
DEFINE_double(peer_timeout, 3, "Of the jobs, in seconds");

namespace oneflow_like {
namespace {

const double kStartTimeout = 4;  // seconds
// Who has reached process 0 lets its clock decide when time is up, and gives it so much longer to say so.
const double kStartPatience = 10;
const double kDeadline = 120;  // seconds for a fault on a busy machine: keeps a hang from hanging

enum class Kind { kKilled, kStopped, kCutOff, kExits0, kExits3, kReturns0, kThrows };
const std::array<const char*, 7> kKindNames = {"killed",       "stopped",         "cut off", "exits with 0",
                                               "exits with 3", "returns 0 early", "throws"};

struct Fault {
  int index = 0;
  Kind kind = Kind::kKilled;
  std::string moment;  // "start" or one of fault_program's
  double delay = 0;    // seconds after that moment
  int processes = 2, victim = 0;
  std::string mesh;
  bool shared_memory = true;

  bool from_outside() const { return kind <= Kind::kCutOff; }
  // The fault may come before all have found one another.
  bool at_start() const { return moment == "start"; }
  // Whoever is left has surely been waiting for something by the time it ends.
  bool silent() const { return kind == Kind::kStopped || kind == Kind::kCutOff; }
  bool while_running() const { return moment.rfind("step", 0) == 0 || moment.rfind("evaluation", 0) == 0; }
  std::string str() const {
    char delay_text[32];
    std::snprintf(delay_text, sizeof delay_text, "%.0f ms", 1e3 * delay);
    return "fault " + std::to_string(index) + " (--seed=" + std::to_string(FLAGS_seed) + "): process " +
           std::to_string(victim) + " of " + std::to_string(processes) + " " +
           kKindNames[static_cast<int>(kind)] + " " + delay_text + " after '" + moment + "', " + mesh +
           (shared_memory ? "" : ", no shared memory");
  }
};

Fault Draw(int index, bool with_hosts) {
  std::mt19937_64 random(FLAGS_seed * 1000003 + index);
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  Fault f;
  f.index = index;
  // Every kind in turn, so that few faults meet all of them; cut off is one of the first to be left out.
  f.kind = static_cast<Kind>(index % kKindNames.size());
  if (f.kind == Kind::kCutOff && !with_hosts) f.kind = Kind::kKilled;
  f.processes = below(2) ? 4 : 2;
  f.victim = below(f.processes);
  const std::string n = std::to_string(f.processes);
  const std::array<std::string, 4> meshes = {"cpu:dp=" + n, "cpu:tp=" + n, "cpu:pp=" + n,
                                             f.processes == 4 ? "cpu:dp=2,pp=2" : "cpu:dp=2"};
  f.mesh = meshes[below(4)];
  f.shared_memory = below(2) == 0;
  switch (below(8)) {
    case 0:
      f.moment = f.from_outside() ? "start" : "compile";
      break;
    case 1:
      f.moment = "compile";
      break;
    case 2:
      f.moment = "step 0";
      break;
    case 3:
      f.moment = "evaluation " + std::to_string(below(10));
      break;
    case 4:
      // Who ends of its own accord at the end has done nothing wrong, unless it throws.
      f.moment = f.from_outside() || f.kind == Kind::kThrows ? "end" : "step 1";
      break;
    default:
      f.moment = "step " + std::to_string(1 + below(40));
  }
  if (f.from_outside()) f.delay = below(1000) / 1e3 * (f.at_start() ? 0.12 : f.moment == "end" ? 0.1 : 0.04);
  return f;
}

// Listens anybody on this port?
bool SomebodyListens(int port) {
  char wanted[16];
  std::snprintf(wanted, sizeof wanted, ":%04X", port);
  for (const std::string& line : LinesOf(TextOf("/proc/net/tcp"))) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "0A" && local.find(wanted) != std::string::npos) return true;
  }
  return false;
}

// Of those who could be a job's: its own, and its libraries'. Other programs come and go there, too.
std::set<std::string> SharedMemoryFiles() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    for (const char* prefix : {"oneflow_like", "ucx", "nccl", "sem."})
      if (name.starts_with(prefix)) names.insert(name);
  }
  return names;
}

// Does a living process have this file in its memory? It belongs to somebody else's job, then.
bool SomebodyMaps(const std::string& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error))
    if (TextOf(entry.path().string() + "/maps").find(path) != std::string::npos) return true;
  return false;
}

// One fault: what happened, and what was wrong with that.
class Trial {
 public:
  Trial(const Fault& fault, const TestFolder& folder, Hosts* hosts)
      : fault_(fault), name_(folder / ("fault" + std::to_string(fault.index))), hosts_(hosts) {}

  // What was wrong, a line each; empty when all was right.
  std::string Run() {
    const std::set<std::string> files = SharedMemoryFiles();
    ProcessJob job(MakeCommand());
    if (Strike(job)) {
      const double deadline = struck_ + kDeadline;
      // All of them at once, for the time each takes.
      for (bool all = false; !all && Seconds() < deadline; Sleep(0.002)) {
        all = true;
        for (int k = 0; k < job.count(); ++k) all = (job[k].Ended() || !Survives(k)) && all;
      }
      for (int k = 0; k < job.count(); ++k)
        if (Survives(k)) CheckSurvivor(job, k);
      if (!Survives(fault_.victim)) CheckVictim(job, job[fault_.victim]);
    }
    if (hosts_) hosts_->SetAllLines({});
    CheckNothingIsLeft(job, files);
    if (!wrong_.empty() || FLAGS_only >= 0) said_ = job.Said();
    return wrong_;
  }

  double longest() const { return longest_; }  // seconds until the last of the others had ended
  bool awaited() const { return awaited_; }    // all of them said what they were waiting for
  const std::string& said() const { return said_; }

 private:
  std::string run_variable() const { return std::to_string(getpid()) + "." + std::to_string(fault_.index); }
  std::string mark_file() const { return name_ + ".mark"; }
  // Who is cut off is alone, and must find out as the others do.
  bool Survives(int k) const { return k != fault_.victim || fault_.kind == Kind::kCutOff; }
  void Wrong(const std::string& what) { wrong_ += "  " + what + "\n"; }

  JobCommand MakeCommand() const {
    const bool evaluates = fault_.moment.rfind("evaluation", 0) == 0, ends = fault_.moment == "end";
    JobCommand command{
        .program = std::string(OFL_BINARY_DIR) + "/tests/fault_program",
        .flags = {"--mesh=" + fault_.mesh, "--peer_timeout=" + std::to_string(FLAGS_peer_timeout),
                  "--start_timeout=" + std::to_string(kStartTimeout),
                  std::string("--shared_memory=") + (fault_.shared_memory ? "true" : "false"),
                  ends || evaluates ? "--steps=3" : "--steps=1000000000",
                  ends ? "--evaluations=3" : "--evaluations=1000000000"},
        .processes = fault_.processes,
        .output = name_,
        .hosts = hosts_,
        .variables = {{"OFL_TEST_RUN", run_variable()}}};
    std::vector<std::string>& own = command.own_flags[fault_.victim];
    own = {"--moment=" + fault_.moment, "--mark_file=" + mark_file()};
    if (fault_.kind == Kind::kExits0 || fault_.kind == Kind::kExits3) own.push_back("--act=exit");
    if (fault_.kind == Kind::kExits3) own.push_back("--exit_code=3");
    if (fault_.kind == Kind::kReturns0) own.push_back("--act=return");
    if (fault_.kind == Kind::kThrows) own.push_back("--act=throw");
    if (fault_.moment == "end") own.push_back("--pause_ms=400");
    return command;
  }

  // Waits for the moment and does it; false when the moment never comes.
  bool Strike(ProcessJob& job) {
    Process& victim = job[fault_.victim];
    const double deadline = Seconds() + kDeadline;
    while (!fault_.at_start() && !std::filesystem::exists(mark_file())) {
      if (Seconds() > deadline || victim.Ended()) {
        Wrong("the moment was not reached");
        return false;
      }
      Sleep(0.0005);
    }
    if (fault_.from_outside()) Sleep(fault_.delay);
    struck_ = Seconds();
    if (fault_.kind == Kind::kKilled) victim.Signal(SIGKILL);
    if (fault_.kind == Kind::kStopped) victim.Signal(SIGSTOP);
    if (fault_.kind == Kind::kCutOff) hosts_->SetLine(fault_.victim, {.cut = true});
    return true;
  }

  // A victim at the end may have heard from all others that they are done: its own end is then a good one.
  bool MayEndWell(const Process& p) const {
    return fault_.moment == "end" && p.code() == 0 && p.err().empty();
  }

  void CheckSurvivor(ProcessJob& job, int k) {
    Process& p = job[k];
    const std::string who = "process " + std::to_string(k);
    if (!p.Ended()) return Wrong(who + " had not ended " + std::to_string(kDeadline) + " s later");
    const double took = p.ended_at() - struck_;
    longest_ = std::max(longest_, took);
    const double allowed = fault_.at_start() ? kStartTimeout + kStartPatience + 1 : FLAGS_peer_timeout;
    if (took > allowed) Wrong(who + " took " + std::to_string(took) + " s to end");
    if (k == fault_.victim && MayEndWell(p)) return;
    if (p.code() == 0 || p.code() >= 126) Wrong(who + " ended with code " + std::to_string(p.code()));
    const std::string error = OnlyError(p, who);
    if (error.empty()) return;
    // Whom it must name: the victim; who was cut off itself, anybody else.
    bool named = false;
    for (int lost = 0; lost < job.count(); ++lost) {
      if (k == fault_.victim ? lost != k : lost == fault_.victim) named = named || Names(error, job, lost);
    }
    if (!named) Wrong(who + " does not name who was lost: " + error);
    if (error.find("awaited here: ") == std::string::npos) {
      awaited_ = false;
      if (fault_.silent() && fault_.while_running()) Wrong(who + " does not say what it awaited: " + error);
    }
  }

  // Rank, host and process id. Before all have met only the number can be known, and of the first process,
  // without which nobody meets, only its address.
  bool Names(const std::string& error, ProcessJob& job, int lost) const {
    const std::string number = std::to_string(lost);
    const bool ranked = error.find("rank " + number) != std::string::npos ||
                        error.find("process " + number) != std::string::npos;
    if (fault_.at_start()) {
      const std::string address = hosts_ ? Hosts::address(0) : "127.0.0.1";
      return ranked || Lists(error, lost) || (lost == 0 && error.find(address) != std::string::npos);
    }
    return ranked && error.find("pid " + std::to_string(job[lost].pid())) != std::string::npos &&
           error.find(hosts_ ? Hosts::name(lost) : "host") != std::string::npos;
  }

  // Several at once: "processes 0, 2-4 and 6 of 8 have not come".
  static bool Lists(const std::string& error, int lost) {
    const std::string begin = "processes ";
    const size_t at = error.find(begin), end = error.find(" of ", at);
    if (at == std::string::npos || end == std::string::npos) return false;
    std::istringstream list(error.substr(at + begin.size(), end - at - begin.size()));
    for (std::string part; list >> part;) {
      if (part == "and") continue;
      const int first = std::atoi(part.c_str());
      const size_t dash = part.find('-');
      const int last = dash == std::string::npos ? first : std::atoi(part.c_str() + dash + 1);
      if (first <= lost && lost <= last) return true;
    }
    return false;
  }

  std::string OnlyError(const Process& p, const std::string& who) {
    std::string error;
    int errors = 0;
    for (const std::string& line : LinesOf(p.err()))
      if (line.find("error:") != std::string::npos) {
        error = line;
        ++errors;
      }
    if (errors == 1) return error;
    Wrong(who + " printed " + std::to_string(errors) + " lines with 'error:'");
    return "";
  }

  // The victim, too, ends: of itself, or once it goes on and finds everybody gone.
  void CheckVictim(ProcessJob& job, Process& victim) {
    victim.Signal(SIGCONT);
    if (!victim.WaitUntil(Seconds() + kDeadline)) return Wrong("the victim had not ended");
    const int code = victim.code();
    switch (fault_.kind) {
      case Kind::kKilled:
        if (code != 128 + SIGKILL) Wrong("the killed process ended with code " + std::to_string(code));
        break;
      case Kind::kThrows:
        if (code != 1) Wrong("the process that threw ended with code " + std::to_string(code));
        if (OnlyError(victim, "the victim").find("as asked for") == std::string::npos)
          Wrong("the process that threw does not say what");
        break;
      case Kind::kStopped:
        if (MayEndWell(victim)) break;
        if (code == 0 || code >= 126)
          Wrong("the stopped process, continued, ended with code " + std::to_string(code));
        OnlyError(victim, "the stopped process, continued,");
        break;
      default:
        break;  // its exit code is its own business
    }
  }

  void CheckNothingIsLeft(ProcessJob& job, const std::set<std::string>& files_before) {
    for (int k = 0; k < job.count(); ++k) job[k].Signal(SIGKILL);
    job.WaitUntil(Seconds() + kDeadline);
    // What only labels the lines of a killed process ends when it has passed on the last one.
    const double deadline = Seconds() + FLAGS_peer_timeout;
    std::vector<pid_t> left;
    do {
      left = ProcessesWith("OFL_TEST_RUN=" + run_variable());
    } while (!left.empty() && Seconds() < deadline);
    for (pid_t pid : left) Wrong("process " + std::to_string(pid) + " is left");
    if (!hosts_ && SomebodyListens(job.port()))
      Wrong("somebody listens on port " + std::to_string(job.port()));
    for (const std::string& file : SharedMemoryFiles())
      if (!files_before.count(file) && !SomebodyMaps("/dev/shm/" + file))
        Wrong("/dev/shm/" + file + " is left");
  }

  Fault fault_;
  std::string name_;
  Hosts* hosts_;
  double struck_ = 0, longest_ = 0;
  bool awaited_ = true;
  std::string wrong_, said_;
};

void TryFaults(int faults) {
  const std::string why_no_hosts = Hosts::Unavailable();
  if (!why_no_hosts.empty()) std::printf("no process is cut off: %s\n", why_no_hosts.c_str());
  TestFolder folder("faults_test");
  std::map<Kind, std::vector<double>> seconds;
  int right = 0, tried = 0, awaited = 0;
  const int first = FLAGS_only >= 0 ? FLAGS_only : 0, end = FLAGS_only >= 0 ? FLAGS_only + 1 : faults;
  for (int i = first; i < end; ++i) {
    const Fault fault = Draw(i, why_no_hosts.empty());
    if (!FLAGS_kind.empty() && FLAGS_kind != kKindNames[static_cast<int>(fault.kind)]) continue;
    std::optional<Hosts> hosts;
    if (fault.kind == Kind::kCutOff) hosts.emplace(fault.processes, FLAGS_seed + i);
    Trial trial(fault, folder, hosts ? &*hosts : nullptr);
    const std::string wrong = trial.Run();
    ++tried;
    right += wrong.empty();
    awaited += trial.awaited();
    seconds[fault.kind].push_back(trial.longest());
    if (FLAGS_only >= 0) std::printf("%s\n%s", fault.str().c_str(), trial.said().c_str());
    EXPECT_EQ(wrong, "") << fault.str() << "\n" << trial.said();
  }
  std::printf("%d of %d faults were right; in %d all others said what they awaited\n", right, tried, awaited);
  for (auto& [kind, took] : seconds) {
    std::sort(took.begin(), took.end());
    std::printf("%-16s %3zu times, the others had ended after %.2f s (median), %.2f s (longest)\n",
                kKindNames[static_cast<int>(kind)], took.size(), took[took.size() / 2], took.back());
  }
}

TEST(FaultsTest, EverybodyElseEndsAndSaysWhy) { TryFaults(FLAGS_faults); }
TEST(LongFaultsTest, EverybodyElseEndsAndSaysWhy) { TryFaults(std::max(FLAGS_faults, 28)); }

// Nobody waits for the last stage but for what it puts out.
TEST(FaultsTest, TheLastStageEndsEarly) {
  TestFolder folder("faults_test_last_stage");
  for (int processes : {2, 4}) {
    const Fault fault{.index = processes,
                      .kind = Kind::kReturns0,
                      .moment = "evaluation 4",
                      .processes = processes,
                      .victim = processes - 1,
                      .mesh = "cpu:pp=" + std::to_string(processes)};
    Trial trial(fault, folder, nullptr);
    const std::string wrong = trial.Run();
    EXPECT_EQ(wrong, "") << fault.str() << "\n" << trial.said();
  }
}

// --processes=N: the parent and its copies.
class LocalJobTest : public ::testing::Test {
 protected:
  LocalJobTest() : folder_("local_job_test") {}

  // Starts four processes and waits until they train.
  void Start() {
    const std::string mark_file = folder_ / "mark";
    parent_ = std::make_unique<Process>(
        Command{.program = std::string(OFL_BINARY_DIR) + "/tests/fault_program",
                .flags = {"--processes=4", "--mesh=cpu:dp=2,pp=2", "--moment=step 5",
                          "--mark_file=" + mark_file, "--peer_timeout=" + std::to_string(FLAGS_peer_timeout)},
                .variables = {{"OFL_TEST_RUN", run_variable_}},
                .output = folder_ / "parent"});
    const double deadline = Seconds() + kDeadline;
    while (!std::filesystem::exists(mark_file) && Seconds() < deadline && !parent_->Ended()) Sleep(0.002);
    ASSERT_TRUE(std::filesystem::exists(mark_file)) << parent_->err();
    for (pid_t pid : ProcessesWith("OFL_TEST_RUN=" + run_variable_))
      if (pid != parent_->pid()) copies_.push_back(pid);
    ASSERT_EQ(copies_.size(), 4u) << parent_->err();
  }
  bool NobodyIsLeft(double deadline) const {
    while (!ProcessesWith("OFL_TEST_RUN=" + run_variable_).empty()) {
      if (Seconds() > deadline) return false;
      Sleep(0.01);
    }
    return true;
  }

  TestFolder folder_;
  const std::string run_variable_ = "local." + std::to_string(getpid());
  std::unique_ptr<Process> parent_;
  std::vector<pid_t> copies_;
};

TEST_F(LocalJobTest, OneKilledCopyEndsTheJobWithItsCode) {
  ASSERT_NO_FATAL_FAILURE(Start());
  kill(copies_[2], SIGKILL);
  ASSERT_TRUE(parent_->WaitUntil(Seconds() + kDeadline)) << parent_->err();
  EXPECT_EQ(parent_->code(), 128 + SIGKILL) << parent_->err();
  EXPECT_NE(parent_->err().find("pid " + std::to_string(copies_[2])), std::string::npos) << parent_->err();
  EXPECT_TRUE(NobodyIsLeft(Seconds() + FLAGS_peer_timeout));
}

TEST_F(LocalJobTest, AKilledParentTakesItsCopiesAlong) {
  ASSERT_NO_FATAL_FAILURE(Start());
  parent_->Signal(SIGKILL);
  EXPECT_TRUE(NobodyIsLeft(Seconds() + kDeadline));
}

TEST_F(LocalJobTest, InterruptEndsEverybody) {
  ASSERT_NO_FATAL_FAILURE(Start());
  parent_->Signal(SIGINT);
  ASSERT_TRUE(parent_->WaitUntil(Seconds() + kDeadline)) << parent_->err();
  EXPECT_NE(parent_->code(), 0);
  EXPECT_TRUE(NobodyIsLeft(Seconds() + FLAGS_peer_timeout));
}

}  // namespace
}  // namespace oneflow_like
