#include "actor/net/launch/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "actor/net/rendezvous/frames.h"
#include "actor/net/rendezvous/tcp.h"
#include "core/error.h"

extern char** environ;

namespace oneflow_like {
namespace {

constexpr std::string_view kErrorLine = "\nerror: ";

void EndLine(Sink* sink) {
  if (sink->unfinished != nullptr) WriteAll(sink->fd, "\n", 1);
  sink->unfinished = nullptr;
}

std::vector<std::string> EnvironmentOf(int processes, int k, int listen_fd, const std::string& token,
                                       int restarted) {
  std::vector<std::string> ours = {Cat("ONEFLOW_LIKE_PROCESS=", k),
                                   Cat("ONEFLOW_LIKE_PROCESSES=", processes),
                                   Cat("ONEFLOW_LIKE_PORT=", PortOf(listen_fd)),
                                   Cat("ONEFLOW_LIKE_TOKEN=", token),
                                   "ONEFLOW_LIKE_LABELLED=1",
                                   k == 0 ? Cat("ONEFLOW_LIKE_LISTEN_FD=", listen_fd) : "",
                                   k == 0 && isatty(1) ? "ONEFLOW_LIKE_TTY=1" : "",
                                   restarted > 0 ? Cat("ONEFLOW_LIKE_RESTART=", restarted) : ""};
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

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& t : *texts) pointers.push_back(t.data());
  pointers.push_back(nullptr);
  return pointers;
}

// In the child, between fork and exec: system calls only.
[[noreturn]] void Become(const std::string& program, pid_t parent, int k, int listen_fd, int out, int err,
                         char** argv, char** envp, const sigset_t& mask) {
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
  if (!program.empty()) execve(program.c_str(), argv, envp);
  execve("/proc/self/exe", argv, envp);  // the file was replaced or removed since
  const char* error = std::strerror(errno);
  for (const char* text : {"error: this program cannot be started again: ", error, "\n"})
    if (write(2, text, std::strlen(text)) < 0) break;
  _exit(127);
}

}  // namespace

Outputs::Outputs() {
  for (int i : {0, 1}) sinks[i] = std::make_shared<Sink>(Sink{i + 1});
  struct stat out = {}, err = {};
  if (fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev && out.st_ino == err.st_ino)
    sinks[1] = sinks[0];  // one terminal or file: a progress line on one is in the way of the other
}

void Outputs::EndLines() const {
  for (const auto& sink : sinks) EndLine(sink.get());
}

void Outputs::Say(const std::string& line) const {
  EndLine(sinks[1].get());
  const std::string text = line + "\n";
  WriteAll(2, text.data(), text.size());
}

std::string ProgramFile() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 && length < static_cast<ssize_t>(sizeof(path)) ? std::string(path, length) : "";
}

FileDescriptor OpenLog(const std::string& dir, int k, bool append) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const std::string path = Cat(dir, "/process", k, ".log");
  FileDescriptor log(
      open(path.c_str(), O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_CLOEXEC, 0666));
  if (!log.open()) Fail("the log ", path, " cannot be written: ", std::strerror(errno));
  return log;
}

void StartChild(const LocalJob& job, int k, const std::string& program, int listen_fd,
                const std::string& token, int restarted, const Outputs& outputs, Child* child) {
  FileDescriptor write_ends[2];
  for (int i : {0, 1}) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) Fail("no pipe for process ", k, ": ", std::strerror(errno));
    child->streams[i].from = FileDescriptor(ends[0]);
    write_ends[i] = FileDescriptor(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    child->streams[i].to = std::make_unique<LineWriter>(outputs.sinks[i], k == 0 ? "" : Cat("[", k, "] "));
  }
  std::vector<std::string> arguments = job.argv;
  std::vector<std::string> variables = EnvironmentOf(job.processes, k, listen_fd, token, restarted);
  std::vector<char*> argv = Pointers(&arguments), envp = Pointers(&variables);
  const int out = write_ends[0].get(), err = write_ends[1].get();
  const pid_t parent = getpid();
  // Our handlers write into our pipe, and the child is not to do so before it is another program.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  pid_t pid = fork();
  if (pid == 0) Become(program, parent, k, listen_fd, out, err, argv.data(), envp.data(), before);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) Fail("process ", k, " cannot be started: ", std::strerror(errno));
  child->pid = pid;
}

bool Relay(const Outputs& outputs, Child* c, ChildStream* s) {
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
    outputs.Say(Cat("warning: the log of a process cannot be written any more: ", std::strerror(errno)));
    c->log.Close();
  }
  return true;
}

void RelayAll(const Outputs& outputs, Child* child) {
  for (ChildStream& s : child->streams)
    while (s.from.open() && Relay(outputs, child, &s)) {
    }
}

void Drain(const Outputs& outputs, Child* child) {
  for (ChildStream& s : child->streams) {
    while (s.from.open() && Relay(outputs, child, &s)) {
    }
    s.to->Flush();
    s.from.Close();
  }
}

}  // namespace oneflow_like
