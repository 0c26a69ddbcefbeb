#include "actor/net/rendezvous/reception.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "actor/net/rendezvous/frames.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

constexpr int kMostStrangers = 1024;
constexpr int kMostLogged = 10;

// How many connections that nobody vouches for there may be beside those of `processes`, so that descriptors
// are left for everything else.
int StrangersAllowed(int processes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMostStrangers;
  int64_t used = 64;
  std::error_code error;
  for (auto i = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && i != std::filesystem::directory_iterator(); i.increment(error))
    ++used;
  return static_cast<int>(
      std::clamp<int64_t>(static_cast<int64_t>(limit.rlim_cur) - used - processes, 8, kMostStrangers));
}

std::string Refusal(const std::string& why) {
  wire::Answer answer;
  answer.set_refusal(why);
  return Frame(answer.SerializeAsString());
}

// "processes 2, 4-6 and 9".
std::string Listed(const std::vector<int>& processes) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < processes.size();) {
    size_t end = i + 1;
    while (end < processes.size() && processes[end] == processes[end - 1] + 1) ++end;
    if (end - i > 2) {
      runs.push_back(Cat(processes[i], "-", processes[end - 1]));
    } else {
      for (size_t k = i; k < end; ++k) runs.push_back(Cat(processes[k]));
    }
    i = end;
  }
  std::string text = processes.size() == 1 ? "process " : "processes ";
  for (size_t i = 0; i < runs.size(); ++i)
    text += (i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ") + runs[i];
  return text;
}

}  // namespace

Reception::Reception(const ProcessIdentity& identity, const PeerInfo& mine, const RendezvousOptions& options,
                     FileDescriptor listener, std::string reach)
    : identity_(identity),
      options_(options),
      reach_(std::move(reach)),
      greeting_(Greeting(identity.token)),
      listener_(std::move(listener)),
      seats_(identity.processes),
      most_strangers_(StrangersAllowed(identity.processes)) {
  seats_[0].peer = mine;
}

std::vector<PeerInfo> Reception::Run() {
  end_ = SteadySeconds() + options_.timeout;
  while (failure_.empty() && ended_.empty() && !AllHere()) {
    if (SteadySeconds() >= end_) FailAll(Missing());
    Turn(end_);
  }
  if (!ended_.empty()) TellEndToAll();
  if (failure_.empty()) GiveTable();
  double end = SteadySeconds() + std::max(options_.connection_timeout, end_ - SteadySeconds());
  auto waits = [](const Seat& s) { return s.connection != nullptr && !s.connection->confirmed; };
  while (failure_.empty() && std::any_of(seats_.begin(), seats_.end(), waits)) {
    if (SteadySeconds() >= end)
      FailAll(Cat(Who(std::find_if(seats_.begin(), seats_.end(), waits)->peer),
                  " had come, but does not answer any more"));
    Turn(end);
  }
  if (failure_.empty()) {
    wire::Answer go;
    go.set_go(true);
    TellAll(Frame(go.SerializeAsString()));
  }
  // Delivers the last messages to processes that still listen, and the reason of a failed start also to those
  // that connect within the next seconds.
  end = SteadySeconds() + std::min(2.0, options_.connection_timeout);
  while ((!AllWritten() || (listener_.open() && !AllCame())) && SteadySeconds() < end) Turn(end);
  listener_.Close();
  if (dropped_ > kMostLogged)
    LOG(WARNING) << "rendezvous: " << dropped_ << " connections were dropped in all";
  if (!ended_.empty()) throw EndedBeforeStart(ended_);
  if (!failure_.empty()) throw Error(failure_);
  std::vector<PeerInfo> table;
  for (const Seat& s : seats_) table.push_back(s.peer);
  return table;
}

// Waits for something to happen, at most until `until`, and does what it asks for. Connections that are here
// already are read before new ones are taken: so a flood of new ones pushes out no one who has spoken.
void Reception::Turn(double until) {
  double now = SteadySeconds();
  std::vector<pollfd> fds;
  std::vector<Connection*> of;
  for (Connection& c : connections_) {
    int events = (c.shut || c.out.empty() ? POLLIN : POLLIN | POLLOUT);
    fds.push_back({c.fd.get(), static_cast<short>(events), 0});
    of.push_back(&c);
    if (c.deadline > 0) until = std::min(until, c.deadline);
  }
  bool accept = listener_.open() && now >= no_accept_;
  if (listener_.open() && !accept) until = std::min(until, no_accept_);
  if (accept) fds.push_back({listener_.get(), POLLIN, 0});
  int wait = static_cast<int>(std::clamp((until - now) * 1000 + 1, 0.0, 60000.0));
  if (poll(fds.data(), fds.size(), wait) < 0) {
    PCHECK(errno == EINTR || errno == ENOMEM) << "poll";
    return;
  }
  for (size_t i = 0; i < of.size(); ++i) {
    if (!of[i]->gone && (fds[i].revents & POLLOUT)) Write(of[i]);
    if (!of[i]->gone && (fds[i].revents & (POLLIN | POLLHUP | POLLERR))) Read(of[i]);
  }
  Sweep(SteadySeconds());
  if (accept && listener_.open() && fds.back().revents != 0) Accept();
}

void Reception::Accept() {
  for (int i = 0; i < std::max(1, most_strangers_ / 8); ++i) {
    if (strangers_ >= most_strangers_) DropOldestStranger();
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.open()) {
      const int why = errno;
      if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
        const bool dropped = DropOldestStranger();
        no_accept_ = SteadySeconds() + 0.05;
        if (why == EMFILE && !dropped)  // nothing here will free one
          return FailAll(Cat(Who(seats_[0].peer), " cannot take the connections of all ", identity_.processes,
                             " processes: ", std::strerror(why), "; allow it more, with ulimit -n"));
      }
      if (why == ECONNABORTED || why == EINTR) continue;
      return;
    }
    int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    Connection& c = connections_.emplace_back();
    c.from = PeerOf(fd.get());
    c.fd = std::move(fd);
    c.deadline = SteadySeconds() + options_.connection_timeout;
    ++strangers_;
    Read(&c);
    if (!failure_.empty()) return;
  }
}

// Those that know the token go only when there are no others. Returns whether there was one.
bool Reception::DropOldestStranger() {
  Connection* oldest = nullptr;
  for (Connection& c : connections_) {
    if (c.gone || c.process >= 0) continue;
    if (oldest == nullptr) oldest = &c;
    if (c.knows_token) continue;
    oldest = &c;
    break;
  }
  if (oldest != nullptr) Drop(oldest, "too many connections that do not say who they are");
  Sweep(SteadySeconds());
  return oldest != nullptr;
}

// Once for each turn, so that others get theirs however fast this one writes.
void Reception::Read(Connection* c) {
  char buffer[16 << 10];
  ssize_t got = recv(c->fd.get(), buffer, sizeof(buffer), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) return Drop(c, got == 0 ? "it was closed" : std::strerror(errno));
  if (c->leaving) return;
  c->in.Add(buffer, got);
  std::string frame;
  while (!c->gone && !c->leaving) {
    size_t longest = c->knows_token ? kLongestHello : std::max<size_t>(greeting_.size(), 512);
    FrameReader::Result result = c->in.Next(longest, &frame);
    if (result == FrameReader::Result::kTooLong) return Drop(c, "it sent no frame of ours");
    if (result == FrameReader::Result::kNone) return;
    Hear(c, frame);
  }
}

void Reception::Hear(Connection* c, const std::string& frame) {
  if (!c->knows_token) {
    c->knows_token = SameSecret(frame, greeting_);
    if (c->knows_token) return;
    if (frame.rfind(Greeting(""), 0) != 0) return Drop(c, "it sent no greeting of ours");
    ++wrong_tokens_;
    last_wrong_ = c->from;
    Refuse(
        c,
        Cat("process 0, which listens at ", reach_,
            ", has another token than this process: set "
            "ONEFLOW_LIKE_TOKEN to the same text on all processes, and see that no other job meets there"));
    return;
  }
  if (c->process < 0) return Welcome(c, frame);
  if (!table_given_ || c->confirmed) return Drop(c, "it spoke out of turn");
  c->confirmed = true;
}

void Reception::Welcome(Connection* c, const std::string& frame) {
  wire::Hello hello;
  if (!hello.ParseFromString(frame)) return Drop(c, "it has the token, but its hello cannot be read");
  PeerInfo peer = FromWire(hello.peer());
  const PeerInfo& me = seats_[0].peer;
  if (hello.job() != identity_.job) {
    ++other_jobs_;
    last_other_ = Cat(Who(peer), " from ", c->from, ", which belongs to job '", hello.job(), "' instead of '",
                      identity_.job, "'");
    return Refuse(c, Cat(Who(peer), " belongs to job '", hello.job(), "', but process 0, which listens at ",
                         reach_, ", to job '", identity_.job, "': give each job a port of its own"));
  }
  if (peer.process >= 0 && peer.process < identity_.processes) came_.insert(peer.process);
  if (!failure_.empty()) return Refuse(c, failure_);
  if (!hello.ends().empty()) End(peer, hello.ends());
  if (!ended_.empty()) return TellEnd(c);
  if (peer.version != me.version)
    return FailAll(Cat(Who(peer), " runs build ", peer.version, " of the library, ", Who(me), " runs build ",
                       me.version, "; start the same build on all hosts"),
                   c);
  if (hello.processes() != identity_.processes)
    return FailAll(Cat(Who(peer), " was started as one of ", hello.processes(), " processes, ", Who(me),
                       " as one of ", identity_.processes),
                   c);
  if (peer.process < 0 || peer.process >= identity_.processes)
    return FailAll(Cat(Who(peer), " is none of the processes 0 to ", identity_.processes - 1), c);
  Seat& seat = seats_[peer.process];
  // Started again, it can be here before the end of its last connection has been looked at.
  if (seat.connection != nullptr) Read(seat.connection);
  if (peer.process == 0 || (seat.connection != nullptr && seat.connection->visit != hello.visit()))
    return FailAll(Cat("two processes claim number ", peer.process, ": ", Who(seat.peer), " and ", Who(peer),
                       "; every process of a job needs a number of its own"),
                   c);
  if (seat.connection != nullptr) Drop(seat.connection, "it came again on another connection");
  c->process = peer.process;
  c->visit = hello.visit();
  c->deadline = 0;
  --strangers_;
  seat = {c, peer};
  wire::Answer answer;
  answer.set_wait_seconds(std::max(0.0, end_ - SteadySeconds()));
  c->out += Frame(answer.SerializeAsString());
  Write(c);
}

void Reception::Write(Connection* c) {
  while (!c->out.empty() && !c->shut) {
    ssize_t wrote = send(c->fd.get(), c->out.data(), c->out.size(), MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (wrote < 0) return Drop(c, std::strerror(errno));
    c->out.erase(0, wrote);
  }
  if (!c->leaving || c->shut) return;
  // Closing at once would make the system discard what the other end has not read when it has sent more.
  shutdown(c->fd.get(), SHUT_WR);
  c->shut = true;
}

void Reception::Drop(Connection* c, const std::string& why) {
  if (c->gone) return;
  c->gone = true;
  if (c->process < 0) {
    --strangers_;
    if (!c->leaving && ++dropped_ <= kMostLogged)
      LOG(WARNING) << "rendezvous: a connection from " << c->from << " was dropped: " << why;
    return;
  }
  Seat& seat = seats_[c->process];
  if (seat.connection != c) return;
  seat.connection = nullptr;
  if (c->leaving || c->confirmed) return;
  if (table_given_) return FailAll(Cat(Who(seat.peer), " has left while the job was starting: ", why));
  LOG(WARNING) << "rendezvous: " << Who(seat.peer) << " has left again: " << why;
}

void Reception::Refuse(Connection* c, const std::string& why) { LeaveWith(c, Refusal(why)); }

void Reception::LeaveWith(Connection* c, const std::string& last_frame) {
  c->leaving = true;
  c->out += last_frame;
  c->deadline = SteadySeconds() + std::min(1.0, options_.connection_timeout);
  Write(c);
}

void Reception::Sweep(double now) {
  for (Connection& c : connections_)
    if (!c.gone && c.deadline > 0 && now >= c.deadline)
      Drop(&c, c.leaving ? "" : Cat("it has not said who it is within ", options_.connection_timeout, " s"));
  connections_.remove_if([](const Connection& c) { return c.gone; });
}

void Reception::GiveTable() {
  listener_.Close();
  for (Connection& c : connections_)
    if (c.process < 0) Drop(&c, "all processes have come");
  table_given_ = true;
  wire::Answer answer;
  for (const Seat& s : seats_) *answer.mutable_table()->add_peer() = ToWire(s.peer);
  TellAll(Frame(answer.SerializeAsString()));
}

void Reception::TellAll(const std::string& frame) {
  for (Seat& s : seats_) {
    Connection* c = s.connection;
    if (c == nullptr) continue;
    c->out += frame;
    Write(c);
  }
}

bool Reception::AllWritten() const {
  return std::all_of(connections_.begin(), connections_.end(), [&](const Connection& c) {
    return c.gone || (c.leaving ? false : c.process < 0 || c.out.empty());
  });
}

// The start has failed: all that are known hear why, `c` too. If it is what `c` says that is wrong, others
// may still come.
void Reception::FailAll(const std::string& why, Connection* c) {
  if (!failure_.empty()) return;
  failure_ = why;
  if (c == nullptr) listener_.Close();
  for (Connection& other : connections_)
    if (!other.gone && (other.process >= 0 || &other == c)) Refuse(&other, why);
}

void Reception::End(const PeerInfo& peer, const std::string& why) {
  if (ended_.empty()) ended_ = Cat(Who(peer), " has ended before the start: ", why);
}

void Reception::TellEnd(Connection* c) {
  wire::Answer answer;
  answer.set_ended(ended_);
  LeaveWith(c, Frame(answer.SerializeAsString()));
}

// Also those that are still to come, for a few seconds: processes of a job start at about the same time.
void Reception::TellEndToAll() {
  for (size_t p = 1; p < seats_.size(); ++p)
    if (Connection* c = seats_[p].connection; c != nullptr) TellEnd(c);
  const double end = std::min(end_, SteadySeconds() + options_.connection_timeout);
  while (failure_.empty() && !AllCame() && SteadySeconds() < end) Turn(end);
  listener_.Close();
  if (failure_.empty()) failure_ = ended_;
}

bool Reception::AllCame() const { return static_cast<int>(came_.size()) >= identity_.processes - 1; }

int Reception::Come() const {
  return 1 + static_cast<int>(std::count_if(seats_.begin(), seats_.end(),
                                            [](const Seat& s) { return s.connection != nullptr; }));
}

// Looks at all once more: who has come and left is not to fail the start of those that wait for it.
bool Reception::AllHere() {
  if (Come() < identity_.processes) return false;
  for (Seat& s : seats_)
    if (s.connection != nullptr) Read(s.connection);
  return failure_.empty() && Come() == identity_.processes;
}

std::string Reception::Missing() const {
  std::vector<int> missing;
  for (int p = 1; p < identity_.processes; ++p)
    if (seats_[p].connection == nullptr) missing.push_back(p);
  std::string text = Cat(Listed(missing), " of ", identity_.processes, missing.size() == 1 ? " has" : " have",
                         " not come within ", options_.timeout, " s; process 0 (host ", seats_[0].peer.host,
                         ") waits at ", reach_);
  if (wrong_tokens_ > 0)
    text += Cat("; ", wrong_tokens_, wrong_tokens_ == 1 ? " connection was" : " connections were",
                " refused because of a wrong token, the last one from ", last_wrong_,
                ": ONEFLOW_LIKE_TOKEN must be the same text on all processes");
  if (other_jobs_ > 0)
    text += Cat("; ", other_jobs_,
                other_jobs_ == 1 ? " process of another job was" : " processes of other jobs were",
                " refused, the last one ", last_other_);
  if (wrong_tokens_ + other_jobs_ == 0 && identity_.launcher == "torchrun")
    text += "; check that each process has its own RANK, and the MASTER_ADDR and MASTER_PORT of process 0";
  return text;
}

std::string Reception::Who(const PeerInfo& peer) const {
  return Cat("process ", peer.process, " (host ", peer.host, ", pid ", peer.pid, ")");
}

}  // namespace oneflow_like
