#include "actor/net/rendezvous/bootstrap.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "actor/net/rendezvous/frames.h"
#include "actor/net/rendezvous/reception.h"
#include "actor/net/rendezvous/tcp.h"
#include "actor/net/rendezvous/wire.pb.h"
#include "core/error.h"
#include "core/system/text_lines.h"

namespace oneflow_like {
namespace {

constexpr size_t kLongestReason = 8 << 10;  // of a hello

// The side of a process that is not the first: comes to process 0 and hears from it, as often as it takes.
class Visit {
 public:
  // `ends`: see wire::Hello.
  Visit(const ProcessIdentity& identity, const PeerInfo& mine, const RendezvousOptions& options,
        const std::string& ends = "")
      : identity_(identity), options_(options), end_(SteadySeconds() + options.timeout) {
    wire::Hello hello;
    hello.set_processes(identity.processes);
    hello.set_visit(std::strtoull(RandomToken().substr(0, 16).c_str(), nullptr, 16));
    *hello.mutable_peer() = ToWire(mine);
    hello.set_job(identity.job);
    hello.set_ends(ends.substr(0, kLongestReason));
    std::string text = hello.SerializeAsString();
    CHECK_LE(text.size(), kLongestHello) << "what this process tells of itself";
    words_ = Frame(Greeting(identity.token)) + Frame(text);
  }

  std::vector<PeerInfo> Run() {
    double pause = 0.02;
    for (;;) {
      double left = Left();
      double attempt = std::max(0.01, std::min(options_.connection_timeout, left));
      FileDescriptor fd = ConnectTo(identity_.master_host, identity_.master_port, attempt, &why_);
      std::vector<PeerInfo> table;
      if (fd.open() && Talk(fd.get(), &table)) return table;
      if (known_) Lose();
      left = Left();
      if (left <= 0) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(pause, left)));
      pause = std::min(pause * 1.5, 0.5);
    }
    if (lost_end_ > 0)
      Fail("process ", identity_.process, " of ", identity_.processes,
           " waited for the others, but process 0, which was at ", identity_.master_host, ":",
           identity_.master_port, ", is lost: ", lost_why_);
    Fail("process ", identity_.process, " of ", identity_.processes, " has not met the others within ",
         options_.timeout, " s: process 0 was to be at ", identity_.master_host, ":", identity_.master_port,
         why_.empty() ? "" : ", but ", why_);
  }

 private:
  double Left() const { return (lost_end_ > 0 ? std::min(end_, lost_end_) : end_) - SteadySeconds(); }

  void Lose() {
    known_ = false;
    if (lost_end_ > 0) return;
    lost_end_ = SteadySeconds() + options_.lost_timeout;
    lost_why_ = why_;
  }

  // A host that is gone closes nothing.
  void KeepAlive(int fd) const {
    int on = 1, idle = std::max(1, static_cast<int>(options_.lost_timeout * 0.4));
    int interval = std::max(1, static_cast<int>(options_.lost_timeout * 0.2)), count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
  }

  // Whether the table is here and everybody has it. Throws when process 0 refuses.
  bool Talk(int fd, std::vector<PeerInfo>* table) {
    KeepAlive(fd);
    FrameReader in;
    wire::Answer answer;
    double until = std::min(end_, SteadySeconds() + options_.connection_timeout);
    if (!Send(fd, words_, until) || !Hear(fd, until, &in, &answer)) return false;
    if (answer.what_case() != wire::Answer::kWaitSeconds) return OutOfTurn();
    known_ = true;
    lost_end_ = 0;
    // From here on process 0's clock decides, so that all hear the same.
    until = SteadySeconds() + std::clamp(answer.wait_seconds(), 0.0, 1e6) + options_.connection_timeout + 5;
    if (!Hear(fd, until, &in, &answer)) return false;
    if (answer.what_case() != wire::Answer::kTable) return OutOfTurn();
    if (answer.table().peer_size() != identity_.processes) return OutOfTurn();
    for (const wire::Peer& peer : answer.table().peer()) table->push_back(FromWire(peer));
    until += options_.connection_timeout;
    if (!Send(fd, Frame(wire::Confirmed().SerializeAsString()), until)) return false;
    if (!Hear(fd, until, &in, &answer)) return false;
    return answer.what_case() == wire::Answer::kGo || OutOfTurn();
  }

  bool OutOfTurn() {
    why_ = "what listens there spoke out of turn";
    return false;
  }

  bool Wait(int fd, short events, double until) {
    for (;;) {
      double left = until - SteadySeconds();
      pollfd wait = {fd, events, 0};
      int ready = left > 0 ? poll(&wait, 1, static_cast<int>(std::min(left, 1000.0) * 1000) + 1) : 0;
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) PLOG(FATAL) << "poll";
      if (left > 0) continue;
      why_ = "what listens there does not answer";
      return false;
    }
  }

  bool Send(int fd, const std::string& text, double until) {
    for (size_t at = 0; at < text.size();) {
      ssize_t wrote = send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      if (wrote > 0) at += wrote;
      if (wrote >= 0 || errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return Broken(std::strerror(errno));
      if (!Wait(fd, POLLOUT, until)) return false;
    }
    return true;
  }

  bool Hear(int fd, double until, FrameReader* in, wire::Answer* answer) {
    std::vector<char> buffer(64 << 10);
    for (std::string frame;;) {
      FrameReader::Result result = in->Next(kLongestTable, &frame);
      if (result == FrameReader::Result::kTooLong) return OutOfTurn();
      if (result == FrameReader::Result::kFrame) {
        if (!answer->ParseFromString(frame)) return OutOfTurn();
        if (answer->what_case() == wire::Answer::kRefusal) throw Error(answer->refusal());
        if (answer->what_case() == wire::Answer::kEnded) throw EndedBeforeStart(answer->ended());
        return true;
      }
      ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
      if (got > 0) in->Add(buffer.data(), got);
      if (got == 0) return Broken("it closed the connection");
      if (got > 0 || errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return Broken(std::strerror(errno));
      if (!Wait(fd, POLLIN, until)) return false;
    }
  }

  bool Broken(const std::string& why) {
    why_ = "the last attempt was broken off: " + why;
    return false;
  }

  const ProcessIdentity& identity_;
  const RendezvousOptions& options_;
  const double end_;
  std::string words_;     // what is said at once
  std::string why_;       // the last attempt failed
  bool known_ = false;    // process 0 has answered on this connection
  double lost_end_ = 0;   // by then it must be back; 0: it is not lost
  std::string lost_why_;  // its connection ended
};

// The listening socket that came with the identity. Anything else is none of ours to close.
FileDescriptor Given(int fd) {
  if (fd < 0) return FileDescriptor();
  int listens = 0;
  socklen_t length = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0)
    Fail("the environment variable ONEFLOW_LIKE_LISTEN_FD is ", fd, ", but that is no socket that listens");
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return FileDescriptor(fd);
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

std::string HostKey() {
  struct stat network = {};
  PCHECK(stat("/proc/self/ns/net", &network) == 0) << "/proc/self/ns/net";
  std::string boot = FirstLine("/proc/sys/kernel/random/boot_id");
  if (boot.empty()) boot = HostName();
  return Cat(boot, "/", network.st_dev, ":", network.st_ino, "/", getuid());
}

std::string RandomToken() {
  unsigned char bytes[16];
  for (size_t have = 0; have < sizeof(bytes);) {
    ssize_t got = getrandom(bytes + have, sizeof(bytes) - have, 0);
    PCHECK(got > 0 || errno == EINTR) << "getrandom";
    if (got > 0) have += got;
  }
  std::string text;
  for (unsigned char b : bytes) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

namespace {

std::vector<PeerInfo> Meet(const ProcessIdentity& identity, const PeerInfo& mine,
                           const RendezvousOptions& options, const std::string& ends) {
  CHECK_EQ(mine.process, identity.process);
  FileDescriptor listener = Given(identity.listen_fd);
  if (identity.alone()) return {mine};
  if (identity.process != 0) {
    CHECK_GT(identity.master_port, 0) << "where process 0 listens";
    return Visit(identity, mine, options, ends).Run();
  }
  if (!listener.open()) listener = ListenAt(identity.master_host, identity.master_port);
  std::string reach = Cat(identity.master_host, ":", PortOf(listener.get()));
  Reception reception(identity, mine, options, std::move(listener), reach);
  if (!ends.empty()) reception.End(mine, ends);
  return reception.Run();
}

}  // namespace

std::vector<PeerInfo> Rendezvous(const ProcessIdentity& identity, const PeerInfo& mine,
                                 const RendezvousOptions& options) {
  return Meet(identity, mine, options, "");
}

void EndBeforeStart(const ProcessIdentity& identity, const PeerInfo& mine, const std::string& why,
                    double patience) {
  try {
    Meet(identity, mine, {.timeout = patience, .connection_timeout = patience, .lost_timeout = patience},
         why);
  } catch (const Error& error) {
    VLOG(1) << "rendezvous: " << error.what();
  }
}

}  // namespace oneflow_like
