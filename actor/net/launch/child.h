// A copy of this program: how it is started, and what it prints.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <memory>
#include <string>

#include "actor/net/launch/line_writer.h"
#include "actor/net/launch/local_launcher.h"
#include "actor/net/rendezvous/file_descriptor.h"

namespace oneflow_like {

// All that others send to a program to tell it something, which the copies may have handlers for. SIGQUIT has
// them say who waits for what (oneflow_like/job/stalls.h), here it is passed on even where a shell has it
// ignored.
inline constexpr int kSignals[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1, SIGUSR2,
                                   SIGALRM, SIGXCPU, SIGTSTP, SIGCONT, SIGCHLD};

// Standard output and error of this process, for its children's lines and its own.
struct Outputs {
  Outputs();
  // Ends lines that a child has begun.
  void EndLines() const;
  // Writes a line to standard error.
  void Say(const std::string& line) const;

  std::shared_ptr<Sink> sinks[2];
};

// One stream of a child: read here, written as lines and into the log.
struct ChildStream {
  FileDescriptor from;
  std::unique_ptr<LineWriter> to;
  std::string last = "\n";  // characters read, to find a line that begins with "error: "
};

struct Child {
  pid_t pid = -1;
  bool ended = false;
  int code = 0;  // as a shell says it
  int signal = 0;
  bool hung = false;  // had to be ended after another's failure
  bool told = false;  // has printed an error
  FileDescriptor log;
  ChildStream streams[2];

  bool running() const { return pid > 0 && !ended; }
};

// The file of this program, to be asked for before it can be replaced.
std::string ProgramFile();
// The log of process `k`. Throws Error if it cannot be written.
FileDescriptor OpenLog(const std::string& dir, int k, bool append);
// Starts process `k` of a job, whose process 0 listens at `listen_fd`; `restarted`: how often the job was.
// Throws Error if it cannot be started.
void StartChild(const LocalJob& job, int k, const std::string& program, int listen_fd,
                const std::string& token, int restarted, const Outputs& outputs, Child* child);
// Passes on one piece of what a child has printed. False when there is none now.
bool Relay(const Outputs& outputs, Child* child, ChildStream* stream);
// Passes on all that is there now.
void RelayAll(const Outputs& outputs, Child* child);
// The same, of a child that has ended: what it had written lies in its pipes; whatever it has left running
// may go on holding them.
void Drain(const Outputs& outputs, Child* child);

}  // namespace oneflow_like
