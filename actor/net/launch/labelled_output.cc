// The label of a process that another launcher than ours has started. What the process writes goes through
// pipes to a copy of it that does nothing else, so that the last words of a crash come out too.
#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>

#include "actor/net/launch/line_writer.h"
#include "actor/net/launch/local_launcher.h"
#include "actor/net/rendezvous/file_descriptor.h"
#include "actor/net/rendezvous/frames.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

struct Pipe {
  FileDescriptor read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) Fail("no pipe for labelled output: ", std::strerror(errno));
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
};

FileDescriptor Copy(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

// Of one stream, what is there now. False when nothing more will come.
bool Relay(int from, LineWriter* to, bool all) {
  char buffer[64 << 10];
  for (;;) {
    ssize_t got = read(from, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0) return false;
    to->Add(buffer, got, SteadySeconds());
    if (!all) return true;
  }
}

// The life of the copy: relays until `end` is closed, by whatever way the process ended, or says so. Not only
// until both streams are closed: the process would write to `end` when nobody reads it any more.
[[noreturn]] void RelayUntilEnd(int process, const int from[2], const int to[2], int end) {
  // The process decides what a signal means; its last words may come after one.
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU})
    signal(s, SIG_IGN);
  std::string label = Cat("[", process, "] ");
  LineWriter writers[2] = {{std::make_shared<Sink>(Sink{to[0]}), label},
                           {std::make_shared<Sink>(Sink{to[1]}), label}};
  pollfd fds[3] = {{from[0], POLLIN, 0}, {from[1], POLLIN, 0}, {end, POLLIN, 0}};
  for (int i : {0, 1}) fcntl(from[i], F_SETFL, O_NONBLOCK);
  while (fds[2].revents == 0) {
    double due = 0;
    for (LineWriter& w : writers)
      if (w.due() > 0 && (due == 0 || w.due() < due)) due = w.due();
    int wait = due == 0 ? -1 : std::max(0, static_cast<int>((due - SteadySeconds()) * 1000) + 1);
    if (poll(fds, 3, wait) < 0) continue;
    for (int i : {0, 1}) {
      if (fds[i].revents != 0 && !Relay(from[i], &writers[i], false)) fds[i].fd = -1;
      if (writers[i].due() > 0 && SteadySeconds() >= writers[i].due()) writers[i].Flush();
    }
  }
  for (int i : {0, 1}) {
    Relay(from[i], &writers[i], true);
    writers[i].Flush();
  }
  _exit(0);
}

}  // namespace

struct LabelledOutput::Impl {
  std::string label;
  FileDescriptor real[2];  // standard output and error as they were
  FileDescriptor end;      // closed by whatever ends this process
  pid_t copy = -1;
  bool stopped = false;

  explicit Impl(int process) : label(Cat("[", process, "] ")) {
    Pipe streams[2], ending;
    for (int i : {0, 1}) {
      real[i] = Copy(i + 1);
      if (!real[i].open()) Fail("standard ", i == 0 ? "output" : "error", " is closed, so it gets no labels");
    }
    std::fflush(nullptr);
    copy = fork();
    if (copy < 0) Fail("no process for labelled output: ", std::strerror(errno));
    if (copy == 0) {
      const int from[2] = {streams[0].read.get(), streams[1].read.get()};
      const int to[2] = {real[0].get(), real[1].get()};
      // Whatever else this process has open is not to stay open by the copy.
      int most = static_cast<int>(std::min<int64_t>(sysconf(_SC_OPEN_MAX), 1 << 16));
      for (int fd = 0; fd < most; ++fd)
        if (fd != from[0] && fd != from[1] && fd != to[0] && fd != to[1] && fd != ending.read.get())
          close(fd);
      RelayUntilEnd(process, from, to, ending.read.get());
    }
    for (int i : {0, 1}) PCHECK(dup2(streams[i].write.get(), i + 1) >= 0);
    end = std::move(ending.write);
  }

  void Stop() {
    if (stopped) return;
    stopped = true;
    std::cout.flush();
    std::fflush(nullptr);
    for (int i : {0, 1}) dup2(real[i].get(), i + 1);
    // Said, not only closed: a child of this process may hold it open.
    WriteAll(end.get(), "e", 1);
    end.Close();
    while (waitpid(copy, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
};

namespace {

// Programs may exit() past destructors; what they have written is to come out with its label.
LabelledOutput** AtExit() {
  static LabelledOutput* current = nullptr;
  return &current;
}

}  // namespace

LabelledOutput::LabelledOutput(int process) {
  const char* labelled = std::getenv("ONEFLOW_LIKE_LABELLED");
  if (labelled != nullptr && std::strcmp(labelled, "1") == 0) return;
  impl_ = new Impl(process);
  static const bool registered = [] {
    return std::atexit([] {
             if (*AtExit() != nullptr) (*AtExit())->impl_->Stop();
           }) == 0;
  }();
  if (!registered) LOG(WARNING) << "output written before exit() may lack its label";
  *AtExit() = this;
}

LabelledOutput::~LabelledOutput() {
  if (impl_ == nullptr) return;
  if (*AtExit() == this) *AtExit() = nullptr;
  impl_->Stop();
  delete impl_;
}

void LabelledOutput::WriteDirectly(const std::string& line) const {
  static const char kNewline = '\n';
  iovec parts[3];
  int count = 0;
  auto add = [&](const char* data, size_t bytes) { parts[count++] = {const_cast<char*>(data), bytes}; };
  if (impl_ != nullptr) add(impl_->label.data(), impl_->label.size());
  add(line.data(), line.size());
  if (line.empty() || line.back() != '\n') add(&kNewline, 1);
  if (writev(impl_ != nullptr ? impl_->real[1].get() : STDERR_FILENO, parts, count) < 0) return;
}

}  // namespace oneflow_like
