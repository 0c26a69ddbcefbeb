#include "actor/net/launch/local_launcher.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "actor/net/launch/child.h"
#include "actor/net/rendezvous/bootstrap.h"
#include "actor/net/rendezvous/frames.h"
#include "actor/net/rendezvous/tcp.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr double kPatienceAfterTerm = 1;  // seconds between SIGTERM and SIGKILL
// These ask a program to end; a second one does not ask.
constexpr int kEndings[] = {SIGINT, SIGTERM, SIGHUP};

// Signals as bytes in a pipe that the loop polls. A signal of the terminal has reached the children already,
// and a byte says so.
class Signals {
 public:
  Signals() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) Fail("no pipe for signals: ", std::strerror(errno));
    read_ = FileDescriptor(ends[0]);
    write_ = FileDescriptor(ends[1]);
    to_ = write_.get();
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      struct sigaction action = {};
      action.sa_sigaction = Note;
      action.sa_flags = SA_SIGINFO | SA_RESTART;
      sigaction(kSignals[i], nullptr, &before_[i]);
      bool ignored =
          before_[i].sa_handler == SIG_IGN && kSignals[i] != SIGCHLD && kSignals[i] != SIGQUIT;  // nohup
      if (!ignored) sigaction(kSignals[i], &action, nullptr);
    }
  }
  Signals(const Signals&) = delete;
  ~Signals() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    to_ = -1;
  }

  int fd() const { return read_.get(); }
  struct Signal {
    int number = 0;
    bool from_terminal = false;
  };
  // Does what SIGTSTP does to a process without a handler, and returns when it continues.
  void Stop() {
    struct sigaction usual = {}, ours = {};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGTSTP, &usual, &ours);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &ours, nullptr);
  }
  bool Next(Signal* signal) {
    char byte;
    if (read(read_.get(), &byte, 1) != 1) return false;
    *signal = {byte & 0x7f, (byte & 0x80) != 0};
    return true;
  }

 private:
  static void Note(int number, siginfo_t* info, void*) {
    int error = errno;
    // The limit of processor time and alarm() are of one process.
    const bool terminal = info->si_code == SI_KERNEL && number != SIGXCPU && number != SIGALRM;
    char byte = static_cast<char>(number | (terminal ? 0x80 : 0));
    if (write(to_, &byte, 1) < 0) errno = error;
    errno = error;
  }

  static volatile sig_atomic_t to_;  // a handler has no object
  FileDescriptor read_, write_;
  struct sigaction before_[std::size(kSignals)];
};
volatile sig_atomic_t Signals::to_ = -1;

class Parent {
 public:
  explicit Parent(const LocalJob& job) : job_(job), program_(ProgramFile()) {
    sigemptyset(&passed_on_);
    CHECK_GE(job.processes, 1);
    CHECK(!job.argv.empty());
  }
  Parent(const Parent&) = delete;
  // Only when something was thrown is anybody left.
  ~Parent() {
    SendToAll(SIGKILL);
    for (Child& c : children_)
      if (c.running()) waitpid(c.pid, nullptr, 0);
  }

  int Run() {
    std::cout.flush();
    std::fflush(nullptr);
    do Attempt();
    while (StartsAgain());
    if (code_ == 0 && outputs_.sinks[0]->error != 0) {
      outputs_.Say(Cat("error: not all that was printed could be written to standard output: ",
                       std::strerror(outputs_.sinks[0]->error)));
      code_ = 1;
    }
    return code_;
  }

 private:
  // All copies, from their start to the end of the last.
  void Attempt() {
    outputs_.EndLines();
    children_ = std::vector<Child>(job_.processes);
    code_ = 0;
    told_to_end_ = false;
    next_kill_ = 0;
    for (int k = 0; k < job_.processes && !job_.log_dir.empty(); ++k)
      children_[k].log = OpenLog(job_.log_dir, k, restarted_ > 0);
    FileDescriptor listener = ListenAt("127.0.0.1", 0);
    const std::string token = RandomToken();
    for (int k = 0; k < job_.processes; ++k)
      StartChild(job_, k, program_, listener.get(), token, restarted_, outputs_, &children_[k]);
    listener.Close();
    while (std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.running(); }))
      Turn();
    for (Child& c : children_) Drain(outputs_, &c);
  }

  // After an attempt: those that were killed, or when none was, those that had to be ended. (Of those that
  // wait for one that was killed, some may have had to as well.)
  std::vector<size_t> Lost() const {
    std::vector<size_t> killed, hung;
    for (size_t k = 0; k < children_.size(); ++k) {
      const Child& c = children_[k];
      if (c.hung) {
        hung.push_back(k);
      } else if (c.signal != 0 && sigismember(&passed_on_, c.signal) == 0) {
        killed.push_back(k);
      }
    }
    return killed.empty() ? hung : killed;
  }

  bool StartsAgain() {
    ReadSignals();  // whoever has ended a copy may have signalled us as well
    const std::vector<size_t> lost = Lost();
    if (lost.empty() || interrupted_ || job_.restarts == 0) return false;
    const Child& first = children_[lost[0]];
    const std::string what =
        Cat("process ", lost[0], first.hung ? " hung" : Cat(" was killed by signal ", first.signal));
    if (restarted_ == job_.restarts) {
      outputs_.Say(Cat("error: ", what, "; all restarts are used up (--restarts=", job_.restarts, ")"));
      return false;
    }
    const std::string how = job_.shrink ? job_.shrink(static_cast<int>(lost.size()), &job_) : "";
    outputs_.Say(Cat(what, "; restart ", ++restarted_, " of ", job_.restarts, how));
    return true;
  }

  // Waits for output, a signal or a deadline, and serves all of them.
  void Turn() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<std::pair<Child*, ChildStream*>> of = {{nullptr, nullptr}};
    double due = next_kill_;
    for (Child& c : children_) {
      for (ChildStream& s : c.streams) {
        double flush = s.to->due();
        if (flush > 0 && (due == 0 || flush < due)) due = flush;
        if (!s.from.open()) continue;
        fds.push_back({s.from.get(), POLLIN, 0});
        of.push_back({&c, &s});
      }
    }
    int wait = due == 0 ? -1 : static_cast<int>(std::clamp((due - SteadySeconds()) * 1000 + 1, 0.0, 1e6));
    if (poll(fds.data(), fds.size(), wait) < 0) {
      PCHECK(errno == EINTR || errno == ENOMEM) << "poll";
      return;
    }
    for (size_t i = 1; i < fds.size(); ++i)
      if (fds[i].revents != 0) Relay(outputs_, of[i].first, of[i].second);
    double now = SteadySeconds();
    for (Child& c : children_)
      for (ChildStream& s : c.streams)
        if (s.to->due() > 0 && now >= s.to->due()) s.to->Flush();
    ReadSignals();
    Reap();
    if (next_kill_ > 0 && SteadySeconds() >= next_kill_) EndTheRest();
  }

  void ReadSignals() {
    for (Signals::Signal s; signals_.Next(&s);)
      if (s.number != SIGCHLD) Forward(s);
  }

  void Forward(const Signals::Signal& s) {
    const bool ending = std::find(std::begin(kEndings), std::end(kEndings), s.number) != std::end(kEndings);
    if (ending && interrupted_) return SendToAll(SIGKILL);
    interrupted_ = interrupted_ || ending;
    sigaddset(&passed_on_, s.number);
    if (!s.from_terminal) SendToAll(s.number);
    if (ending) SendToAll(SIGCONT);  // a stopped process hears nothing else
    if (s.number == SIGTSTP) signals_.Stop();
  }

  void SendToAll(int signal) {
    for (Child& c : children_)
      if (c.running()) kill(c.pid, signal);
  }

  void Reap() {
    for (size_t k = 0; k < children_.size(); ++k) {
      Child& c = children_[k];
      int status = 0;
      if (!c.running() || waitpid(c.pid, &status, WNOHANG) != c.pid) continue;
      c.ended = true;
      c.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      c.code = c.signal != 0 ? 128 + c.signal : WEXITSTATUS(status);
      Drain(outputs_, &c);
      Ended(static_cast<int>(k));
    }
  }

  // Whether a copy has printed what went wrong, so that it need not be said again.
  bool Told() {
    for (Child& c : children_) RelayAll(outputs_, &c);
    return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.told; });
  }

  // Takes note of how a copy ended.
  void Ended(int k) {
    const Child& c = children_[k];
    const bool first = code_ == 0 || (code_ == EX_TEMPFAIL && c.code != EX_TEMPFAIL);
    if (c.code == 0 || !first) return;
    code_ = c.code;
    if (job_.processes > 1 && !interrupted_ && code_ != EX_TEMPFAIL && (c.signal != 0 || !Told()))
      outputs_.Say(c.signal != 0
                       ? Cat("error: process ", k, " (pid ", c.pid, ") was ended by signal ", c.signal, " (",
                             strsignal(c.signal), ")")
                       : Cat("error: process ", k, " (pid ", c.pid, ") ended with exit code ", c.code));
    next_kill_ = SteadySeconds() + job_.grace;
  }

  // Those that go on though one has failed long ago.
  void EndTheRest() {
    for (size_t k = 0; k < children_.size() && !told_to_end_; ++k) {
      if (!children_[k].running()) continue;
      children_[k].hung = true;
      outputs_.Say(Cat("error: process ", k, " (pid ", children_[k].pid, ") had not ended ", job_.grace,
                       " s later and is ended"));
    }
    SendToAll(told_to_end_ ? SIGKILL : SIGTERM);
    SendToAll(SIGCONT);
    told_to_end_ = true;
    next_kill_ = SteadySeconds() + kPatienceAfterTerm;
  }

  LocalJob job_;  // of this attempt
  const std::string program_;
  Signals signals_;
  const Outputs outputs_;
  std::vector<Child> children_;
  int code_ = 0;       // of the first to fail
  int restarted_ = 0;  // times
  bool interrupted_ = false;
  sigset_t passed_on_;  // signals
  bool told_to_end_ = false;
  double next_kill_ = 0;
};

}  // namespace

int RunLocalJob(const LocalJob& job) { return Parent(job).Run(); }

}  // namespace oneflow_like
