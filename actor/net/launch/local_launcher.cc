#include "actor/net/launch/local_launcher.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string_view>
#include <utility>

#include "actor/net/launch/line_writer.h"
#include "actor/net/rendezvous/bootstrap.h"
#include "actor/net/rendezvous/file_descriptor.h"
#include "actor/net/rendezvous/frames.h"
#include "actor/net/rendezvous/tcp.h"
#include "core/error.h"

extern char** environ;

namespace oneflow_like {
namespace {

constexpr double kPatienceAfterTerm = 1;  // seconds between SIGTERM and SIGKILL
// These ask a program to end; a second one does not ask.
constexpr int kEndings[] = {SIGINT, SIGTERM, SIGHUP};
// All that others send to a program to tell it something, which the copies may have handlers for. SIGQUIT has
// them say who waits for what (oneflow_like/job/stalls.h), here it is passed on even where a shell has it
// ignored.
constexpr int kSignals[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                            SIGALRM, SIGXCPU, SIGTSTP, SIGCONT, SIGCHLD};

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

// One stream of a child: read here, written as lines and into the log.
struct Stream {
  FileDescriptor from;
  std::unique_ptr<LineWriter> to;
  std::string last = "\n";  // characters read, to find a line that begins with kErrorLine
};
constexpr std::string_view kErrorLine = "\nerror: ";

struct Child {
  pid_t pid = -1;
  bool ended = false;
  int code = 0;  // as a shell says it
  int signal = 0;
  bool hung = false;  // had to be ended after another's failure
  bool told = false;  // has printed an error
  FileDescriptor log;
  Stream streams[2];
};

class Parent {
 public:
  explicit Parent(const LocalJob& job) : job_(job) {
    sigemptyset(&passed_on_);
    CHECK_GE(job.processes, 1);
    CHECK(!job.argv.empty());
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
    program_ = length > 0 && length < static_cast<ssize_t>(sizeof(path)) ? std::string(path, length) : "";
    for (int i : {0, 1}) sinks_[i] = std::make_shared<Sink>(Sink{i + 1});
    struct stat out = {}, err = {};
    if (fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev && out.st_ino == err.st_ino)
      sinks_[1] = sinks_[0];  // one terminal or file: a progress line on one is in the way of the other
  }
  Parent(const Parent&) = delete;
  // Only when something was thrown is anybody left.
  ~Parent() {
    SendToAll(SIGKILL);
    for (Child& c : children_)
      if (Running(c)) waitpid(c.pid, nullptr, 0);
  }

  int Run() {
    std::cout.flush();
    std::fflush(nullptr);
    do Attempt();
    while (StartsAgain());
    if (code_ == 0 && sinks_[0]->error != 0) {
      Say(Cat("error: not all that was printed could be written to standard output: ",
              std::strerror(sinks_[0]->error)));
      code_ = 1;
    }
    return code_;
  }

 private:
  static bool Running(const Child& c) { return c.pid > 0 && !c.ended; }

  // All copies, from their start to the end of the last.
  void Attempt() {
    for (auto& sink : sinks_) EndLine(sink.get());
    children_ = std::vector<Child>(job_.processes);
    code_ = 0;
    told_to_end_ = false;
    next_kill_ = 0;
    OpenLogs();
    FileDescriptor listener = ListenAt("127.0.0.1", 0);
    std::string token = RandomToken();
    for (int k = 0; k < job_.processes; ++k) Start(k, listener.get(), token);
    listener.Close();
    while (std::any_of(children_.begin(), children_.end(), Running)) Turn();
    for (Child& c : children_) Drain(&c);
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
      Say(Cat("error: ", what, "; all restarts are used up (--restarts=", job_.restarts, ")"));
      return false;
    }
    const std::string how = job_.shrink ? job_.shrink(static_cast<int>(lost.size()), &job_) : "";
    Say(Cat(what, "; restart ", ++restarted_, " of ", job_.restarts, how));
    return true;
  }

  void OpenLogs() {
    if (job_.log_dir.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(job_.log_dir, error);
    for (int k = 0; k < job_.processes; ++k) {
      std::string path = Cat(job_.log_dir, "/process", k, ".log");
      const int old = restarted_ > 0 ? O_APPEND : O_TRUNC;
      children_[k].log = FileDescriptor(open(path.c_str(), O_WRONLY | O_CREAT | old | O_CLOEXEC, 0666));
      if (!children_[k].log.open()) Fail("the log ", path, " cannot be written: ", std::strerror(errno));
    }
  }

  std::vector<std::string> EnvironmentOf(int k, int listen_fd, int port, const std::string& token) const {
    std::vector<std::string> ours = {Cat("ONEFLOW_LIKE_PROCESS=", k),
                                     Cat("ONEFLOW_LIKE_PROCESSES=", job_.processes),
                                     Cat("ONEFLOW_LIKE_PORT=", port),
                                     Cat("ONEFLOW_LIKE_TOKEN=", token),
                                     "ONEFLOW_LIKE_LABELLED=1",
                                     k == 0 ? Cat("ONEFLOW_LIKE_LISTEN_FD=", listen_fd) : "",
                                     k == 0 && isatty(1) ? "ONEFLOW_LIKE_TTY=1" : "",
                                     restarted_ > 0 ? Cat("ONEFLOW_LIKE_RESTART=", restarted_) : ""};
    ours.erase(std::remove(ours.begin(), ours.end(), ""), ours.end());
    const char* replaced[] = {
        "ONEFLOW_LIKE_PROCESS=",  "ONEFLOW_LIKE_PROCESSES=", "ONEFLOW_LIKE_PORT=", "ONEFLOW_LIKE_TOKEN=",
        "ONEFLOW_LIKE_LABELLED=", "ONEFLOW_LIKE_LISTEN_FD=", "ONEFLOW_LIKE_TTY=",  "ONEFLOW_LIKE_RESTART="};
    for (char** e = environ; *e != nullptr; ++e)
      if (std::none_of(std::begin(replaced), std::end(replaced),
                       [&](const char* name) { return std::strncmp(*e, name, std::strlen(name)) == 0; }))
        ours.push_back(*e);
    return ours;
  }

  static std::vector<char*> Pointers(std::vector<std::string>* texts) {
    std::vector<char*> pointers;
    for (std::string& t : *texts) pointers.push_back(t.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  void Start(int k, int listen_fd, const std::string& token) {
    Child& child = children_[k];
    FileDescriptor write_ends[2];
    for (int i : {0, 1}) {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) Fail("no pipe for process ", k, ": ", std::strerror(errno));
      child.streams[i].from = FileDescriptor(ends[0]);
      write_ends[i] = FileDescriptor(ends[1]);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
      child.streams[i].to = std::make_unique<LineWriter>(sinks_[i], k == 0 ? "" : Cat("[", k, "] "));
    }
    std::vector<std::string> arguments = job_.argv;
    std::vector<std::string> variables = EnvironmentOf(k, listen_fd, PortOf(listen_fd), token);
    std::vector<char*> argv = Pointers(&arguments), envp = Pointers(&variables);
    const int out = write_ends[0].get(), err = write_ends[1].get();
    const pid_t parent = getpid();
    // Our handlers write into our pipe, and the child is not to do so before it is another program.
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) Become(parent, k, listen_fd, out, err, argv.data(), envp.data(), before);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) Fail("process ", k, " cannot be started: ", std::strerror(errno));
    child.pid = pid;
  }

  // In the child, between fork and exec: system calls only.
  [[noreturn]] void Become(pid_t parent, int k, int listen_fd, int out, int err, char** argv, char** envp,
                           const sigset_t& mask) const {
    for (int s : kSignals) {
      struct sigaction action = {};
      sigaction(s, nullptr, &action);
      if (action.sa_handler != SIG_IGN) signal(s, SIG_DFL);
    }
    signal(SIGQUIT, SIG_IGN);  // until it has its handler
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    if (k == 0) {
      fcntl(listen_fd, F_SETFD, 0);
    } else {
      int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (nothing >= 0) dup2(nothing, 0);
    }
    dup2(out, 1);
    dup2(err, 2);
    if (!program_.empty()) execve(program_.c_str(), argv, envp);
    execve("/proc/self/exe", argv, envp);  // the file was replaced or removed since
    const char* error = std::strerror(errno);
    for (const char* text : {"error: this program cannot be started again: ", error, "\n"})
      if (write(2, text, std::strlen(text)) < 0) break;
    _exit(127);
  }

  // Waits for output, a signal or a deadline, and serves all of them.
  void Turn() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<std::pair<Child*, Stream*>> of = {{nullptr, nullptr}};
    double due = next_kill_;
    for (Child& c : children_) {
      for (Stream& s : c.streams) {
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
      if (fds[i].revents != 0) Relay(of[i].first, of[i].second);
    double now = SteadySeconds();
    for (Child& c : children_)
      for (Stream& s : c.streams)
        if (s.to->due() > 0 && now >= s.to->due()) s.to->Flush();
    ReadSignals();
    Reap();
    if (next_kill_ > 0 && SteadySeconds() >= next_kill_) EndTheRest();
  }

  // One piece. False when there is none now.
  bool Relay(Child* c, Stream* s) {
    char buffer[64 << 10];
    ssize_t got = read(s->from.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) return true;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got <= 0) {
      s->to->Flush();
      s->from.Close();
      return false;
    }
    s->to->Add(buffer, got, SteadySeconds());
    s->last.append(buffer, got);
    c->told = c->told || s->last.find(kErrorLine) != std::string::npos;
    s->last.erase(0, s->last.size() - std::min(s->last.size(), kErrorLine.size() - 1));
    if (c->log.open() && !WriteAll(c->log.get(), buffer, got)) {
      Say(Cat("warning: the log of a process cannot be written any more: ", std::strerror(errno)));
      c->log.Close();
    }
    return true;
  }

  // All that a process that has ended had written lies in its pipes; whatever it has left running may go on
  // holding them.
  void Drain(Child* c) {
    for (Stream& s : c->streams) {
      while (s.from.open() && Relay(c, &s)) {
      }
      s.to->Flush();
      s.from.Close();
    }
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
      if (Running(c)) kill(c.pid, signal);
  }

  void Reap() {
    for (size_t k = 0; k < children_.size(); ++k) {
      Child& c = children_[k];
      int status = 0;
      if (!Running(c) || waitpid(c.pid, &status, WNOHANG) != c.pid) continue;
      c.ended = true;
      c.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      c.code = c.signal != 0 ? 128 + c.signal : WEXITSTATUS(status);
      Drain(&c);
      Ended(static_cast<int>(k));
    }
  }

  // Whether a copy has printed what went wrong, so that it need not be said again.
  bool Told() {
    for (Child& c : children_)
      for (Stream& s : c.streams)
        while (s.from.open() && Relay(&c, &s)) {
        }
    return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.told; });
  }

  // Takes note of how a copy ended.
  void Ended(int k) {
    const Child& c = children_[k];
    const bool first = code_ == 0 || (code_ == EX_TEMPFAIL && c.code != EX_TEMPFAIL);
    if (c.code == 0 || !first) return;
    code_ = c.code;
    if (job_.processes > 1 && !interrupted_ && code_ != EX_TEMPFAIL && (c.signal != 0 || !Told()))
      Say(c.signal != 0 ? Cat("error: process ", k, " (pid ", c.pid, ") was ended by signal ", c.signal, " (",
                              strsignal(c.signal), ")")
                        : Cat("error: process ", k, " (pid ", c.pid, ") ended with exit code ", c.code));
    next_kill_ = SteadySeconds() + job_.grace;
  }

  // Those that go on though one has failed long ago.
  void EndTheRest() {
    for (size_t k = 0; k < children_.size() && !told_to_end_; ++k) {
      if (!Running(children_[k])) continue;
      children_[k].hung = true;
      Say(Cat("error: process ", k, " (pid ", children_[k].pid, ") had not ended ", job_.grace,
              " s later and is ended"));
    }
    SendToAll(told_to_end_ ? SIGKILL : SIGTERM);
    SendToAll(SIGCONT);
    told_to_end_ = true;
    next_kill_ = SteadySeconds() + kPatienceAfterTerm;
  }

  static void EndLine(Sink* sink) {
    if (sink->unfinished != nullptr) WriteAll(sink->fd, "\n", 1);
    sink->unfinished = nullptr;
  }

  void Say(const std::string& line) {
    EndLine(sinks_[1].get());
    const std::string text = line + "\n";
    WriteAll(2, text.data(), text.size());
  }

  LocalJob job_;  // of this attempt
  std::string program_;
  Signals signals_;
  std::shared_ptr<Sink> sinks_[2];  // standard output and error
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
