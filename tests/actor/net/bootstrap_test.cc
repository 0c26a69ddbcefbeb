// How processes find one another (actor/net/rendezvous/bootstrap.h): starts with late, missing, duplicate and
// foreign processes, and among thousands of senseless connections. Processes are threads here, but for
// mpirun's: as "bootstrap_test join" this program is one of those.
// ctest: seconds=20 waits
#include "actor/net/rendezvous/bootstrap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <regex>
#include <thread>

#include "actor/net/rendezvous/frames.h"
#include "actor/net/rendezvous/tcp.h"
#include "core/error.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

PeerInfo Peer(int process, const std::string& version = "1.0") {
  std::string address = "worker " + std::to_string(process) + std::string("\0\xff binary", 9);
  return {process, "host" + std::to_string(process % 2), HostKey(), getpid(), address, "region", version};
}

// What a process says at once: its token, and then who it is.
std::string Hello(const ProcessIdentity& identity, int process, uint64_t visit = 1) {
  wire::Hello hello;
  hello.set_processes(identity.processes);
  hello.set_visit(visit);
  *hello.mutable_peer() = ToWire(Peer(process));
  return Frame(hello.SerializeAsString());
}

// A job on the loopback whose processes are threads.
class ThreadJob {
 public:
  explicit ThreadJob(int processes, RendezvousOptions options = {.timeout = 30}) : options(options) {
    listener_ = ListenAt("127.0.0.1", 0);
    identity.processes = processes;
    identity.master_port = PortOf(listener_.get());
    identity.token = RandomToken();
    tables.resize(processes);
    errors.resize(processes);
  }
  ~ThreadJob() { Wait(); }

  void Start(int process, ProcessIdentity as, PeerInfo peer) {
    as.process = peer.process = process;
    if (process == 0 && listens_at_start) as.listen_fd = dup(listener_.get());
    if (process == 0) listener_.Close();
    Run(as, peer, &tables[process], &errors[process]);
  }
  void Start(int process) { Start(process, identity, Peer(process)); }
  // One more process, with tables and errors of its own.
  void Run(ProcessIdentity as, PeerInfo peer, std::vector<PeerInfo>* table, std::string* error) {
    threads_.emplace_back([=, this] {
      try {
        *table = Rendezvous(as, peer, options);
      } catch (const Error& e) {
        *error = e.what();
      }
    });
  }
  void Wait() {
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }
  // Process 0 binds its port when it starts; nobody listens before.
  void ListenLate() {
    listens_at_start = false;
    listener_.Close();
  }
  void ExpectAllMet() {
    Wait();
    for (int p = 0; p < identity.processes; ++p) {
      EXPECT_EQ(errors[p], "") << "process " << p;
      ASSERT_EQ(static_cast<int>(tables[p].size()), identity.processes) << "process " << p;
      for (int q = 0; q < identity.processes; ++q) {
        EXPECT_EQ(tables[p][q].process, q);
        EXPECT_EQ(tables[p][q].address, Peer(q).address);
        EXPECT_EQ(tables[p][q].host, Peer(q).host);
        EXPECT_EQ(tables[p][q].region, "region");
      }
    }
  }
  // For a process 0 that is none of these threads.
  int ListenerOfProcess0() {
    const int fd = dup(listener_.get());
    listener_.Close();
    return fd;
  }
  FileDescriptor Stranger() const {
    std::string why;
    FileDescriptor fd = ConnectTo("127.0.0.1", identity.master_port, 10, &why);
    EXPECT_TRUE(fd.open()) << why;
    return fd;
  }
  std::string Words(int process, uint64_t visit = 1) const {
    return Frame(Greeting(identity.token)) + Hello(identity, process, visit);
  }

  ProcessIdentity identity;
  const RendezvousOptions options;
  bool listens_at_start = true;
  std::vector<std::vector<PeerInfo>> tables;
  std::vector<std::string> errors;

 private:
  FileDescriptor listener_;
  std::vector<std::thread> threads_;
};

void Say(int fd, const std::string& text) {
  // A stranger may find itself dropped at any time.
  if (send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
}

// The next answer; not set when the connection ends or nothing comes within 30 s.
wire::Answer HearAnswer(int fd, FrameReader* in) {
  wire::Answer answer;
  std::string frame;
  while (in->Next(kLongestTable, &frame) != FrameReader::Result::kFrame) {
    pollfd wait = {fd, POLLIN, 0};
    char buffer[4096];
    if (poll(&wait, 1, 30000) <= 0) return answer;
    ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) return answer;
    in->Add(buffer, got);
  }
  EXPECT_TRUE(answer.ParseFromString(frame));
  return answer;
}

void ExpectHas(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
}

// Whoever is there hears it at once, and so does who comes a little later.
TEST(BootstrapTest, AProcessThatEndsBeforeTheStartEndsAll) {
  for (int ends : {0, 1}) {
    ThreadJob job(3);
    const int here = 1 - ends, late = 2;
    job.Start(here);
    ProcessIdentity as = job.identity;
    as.process = ends;
    if (ends == 0) as.listen_fd = job.ListenerOfProcess0();
    std::thread ending([&] { EndBeforeStart(as, Peer(ends), "there is no flag --foo", 30); });
    Sleep(0.2);
    job.Start(late);
    ending.join();
    job.Wait();
    const std::string told = Cat("process ", ends, " (host host", ends, ", pid ", getpid(),
                                 ") has ended before the start: there is no flag --foo");
    EXPECT_EQ(job.errors[here], told);
    EXPECT_EQ(job.errors[late], told);
  }
}

// All have the same wrong flag: nobody waits for those that it has heard of.
TEST(BootstrapTest, ProcessesThatAllEndBeforeTheStartDoNotWait) {
  ThreadJob job(3);
  std::vector<std::thread> ending;
  for (int p = 0; p < 3; ++p) {
    ProcessIdentity as = job.identity;
    as.process = p;
    if (p == 0) as.listen_fd = job.ListenerOfProcess0();
    ending.emplace_back([as, p] { EndBeforeStart(as, Peer(p), "there is no flag --foo", 1e6); });
  }
  for (std::thread& thread : ending) thread.join();
}

TEST(BootstrapTest, FramesComeWholeAndBounded) {
  std::string text = Frame("") + Frame("abc") + Frame(std::string(300, 'x'));
  FrameReader in;
  std::vector<std::string> frames;
  std::string frame;
  for (char c : text) {
    in.Add(&c, 1);
    while (in.Next(300, &frame) == FrameReader::Result::kFrame) frames.push_back(frame);
  }
  EXPECT_EQ(frames, (std::vector<std::string>{"", "abc", std::string(300, 'x')}));
  EXPECT_EQ(in.Next(300, &frame), FrameReader::Result::kNone);
  std::string longer = Frame(std::string(301, 'x')).substr(0, 4);
  in.Add(longer.data(), 4);
  EXPECT_EQ(in.Next(300, &frame), FrameReader::Result::kTooLong);
}

TEST(BootstrapTest, SecretsAreCompared) {
  EXPECT_TRUE(SameSecret("", ""));
  EXPECT_TRUE(SameSecret("abc", "abc"));
  for (const char* other : {"abd", "xbc", "ab", "abcd", ""}) EXPECT_FALSE(SameSecret("abc", other)) << other;
  EXPECT_NE(RandomToken(), RandomToken());
  EXPECT_EQ(RandomToken().size(), 32u);
}

TEST(BootstrapTest, OneAloneMeetsNobody) {
  std::vector<PeerInfo> table = Rendezvous({}, Peer(0));
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table[0].address, Peer(0).address);
}

TEST(BootstrapTest, ProcessesMeet) {
  for (int n : {2, 8}) {
    ThreadJob job(n);
    for (int p = 0; p < n; ++p) job.Start(p);
    job.ExpectAllMet();
  }
}

TEST(BootstrapTest, EmptyTokenAndLargeAddresses) {
  ThreadJob job(3);
  job.identity.token = "";
  PeerInfo large = Peer(2);
  large.region = std::string(40000, 'r');
  job.Start(0);
  job.Start(1);
  job.Start(2, job.identity, large);
  job.Wait();
  for (int p = 0; p < 3; ++p) {
    ASSERT_EQ(job.tables[p].size(), 3u) << job.errors[p];
    EXPECT_EQ(job.tables[p][2].region, large.region);
  }
}

TEST(BootstrapTest, AnyOrderOfComing) {
  ThreadJob job(4);
  job.ListenLate();
  for (int p : {3, 1}) job.Start(p);
  Sleep(0.3);
  job.Start(0);
  Sleep(0.3);
  job.Start(2);
  job.ExpectAllMet();
}

TEST(BootstrapTest, TheMissingAreNamed) {
  ThreadJob job(6, {.timeout = 0.7, .connection_timeout = 0.5});
  for (int p : {0, 4}) job.Start(p);
  job.Wait();
  std::string port = std::to_string(job.identity.master_port);
  for (int p : {0, 4})
    ExpectHas(job.errors[p],
              {"processes 1-3 and 5 of 6 have not come within 0.7 s", "host host0", "127.0.0.1:" + port});
  ThreadJob neighbours(4, {.timeout = 0.3});
  for (int p : {0, 3}) neighbours.Start(p);
  neighbours.Wait();
  ExpectHas(neighbours.errors[0], {"processes 1 and 2 of 4 have not come within 0.3 s"});
  // Where nobody has come, process 0 says where it listens, whatever port it had been told.
  ThreadJob pair(2, {.timeout = 0.2});
  ProcessIdentity any_port = pair.identity;
  any_port.master_port = 0;
  pair.Start(0, any_port, Peer(0));
  pair.Wait();
  ExpectHas(pair.errors[0],
            {"process 1 of 2 has not come within 0.2 s", Cat("127.0.0.1:", pair.identity.master_port)});
}

// A descriptor that the environment names by mistake is refused, and stays as it was.
TEST(BootstrapTest, OnlyAListeningSocketIsTaken) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int unbound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), closed = dup(unbound);
  close(closed);
  for (int fd : {unbound, ends[0], closed}) {
    ProcessIdentity id;
    id.processes = 2;
    id.listen_fd = fd;
    const bool open = fcntl(fd, F_GETFD) >= 0;
    EXPECT_EQ(ErrorOf([&] { Rendezvous(id, Peer(0), {.timeout = 0.2}); }),
              Cat("the environment variable ONEFLOW_LIKE_LISTEN_FD is ", fd,
                  ", but that is no socket that listens"));
    EXPECT_EQ(fcntl(fd, F_GETFD) >= 0, open) << fd;
  }
  for (int fd : {unbound, ends[0], ends[1]}) close(fd);
}

TEST(BootstrapTest, AMissingFirstIsNamed) {
  ThreadJob job(4, {.timeout = 0.5});
  job.ListenLate();
  job.Start(3);
  job.Wait();
  ExpectHas(job.errors[3],
            {"process 3 of 4", "0.5 s", "process 0 was to be at 127.0.0.1:", "Connection refused"});
}

TEST(BootstrapTest, DuplicateNumbersAreToldToAll) {
  ThreadJob job(4);
  std::vector<PeerInfo> table;
  std::string error;
  job.Start(0);
  job.Start(2);
  PeerInfo second = Peer(2);
  second.host = "elsewhere";
  second.pid = 4711;
  ProcessIdentity as = job.identity;
  as.process = 2;
  // Both have come when there is an error, whichever was first.
  job.Run(as, second, &table, &error);
  // Who comes a little later hears it, too.
  Sleep(0.2);
  job.Start(1);
  job.Wait();
  for (const std::string& e : {job.errors[0], job.errors[1], job.errors[2], error})
    ExpectHas(e, {"two processes claim number 2", "(host host0, pid ", "(host elsewhere, pid 4711)"});
}

TEST(BootstrapTest, AnotherProcessZero) {
  ThreadJob job(3);
  FileDescriptor stranger = job.Stranger();
  job.Start(0);
  Say(stranger.get(), job.Words(0));
  FrameReader in;
  ExpectHas(HearAnswer(stranger.get(), &in).refusal(), {"two processes claim number 0"});
  job.Wait();
  ExpectHas(job.errors[0], {"two processes claim number 0"});

  FileDescriptor first = ListenAt("127.0.0.1", 0);
  ProcessIdentity id;
  id.processes = 2;
  id.master_port = PortOf(first.get());
  try {
    Rendezvous(id, Peer(0));
    ADD_FAILURE() << "bound a port that is taken";
  } catch (const Error& e) {
    ExpectHas(e.what(), {"process 0 cannot listen at 127.0.0.1:", "in use", "another process 0"});
  }
}

TEST(BootstrapTest, DifferentVersionsAndSizes) {
  ThreadJob versions(3);
  versions.Start(0);
  versions.Start(2, versions.identity, Peer(2, "1.1"));
  versions.Wait();
  for (int p : {0, 2})
    ExpectHas(versions.errors[p], {"process 2 (host host0", "runs build 1.1", "process 0 (host host0",
                                   "runs build 1.0", "start the same build"});

  ThreadJob sizes(3);
  ProcessIdentity other = sizes.identity;
  other.processes = 5;
  sizes.Start(0);
  sizes.Start(1, other, Peer(1));
  sizes.Wait();
  for (int p : {0, 1})
    ExpectHas(sizes.errors[p], {"process 1 (host host1", "one of 5 processes", "process 0", "one of 3"});
}

TEST(BootstrapTest, AWrongTokenIsToldAndStopsNobody) {
  auto refusal = [](const ThreadJob& job) {
    ProcessIdentity wrong = job.identity;
    wrong.process = 1;
    wrong.token[0] ^= 1;
    try {
      Rendezvous(wrong, Peer(1));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("(none)");
  };
  ThreadJob job(2);
  job.Start(0);
  ExpectHas(refusal(job), {"127.0.0.1:", "another token", "ONEFLOW_LIKE_TOKEN"});
  job.Start(1);
  job.ExpectAllMet();

  ThreadJob missing(2, {.timeout = 0.5});
  missing.Start(0);
  refusal(missing);
  missing.Wait();
  ExpectHas(missing.errors[0],
            {"process 1 of 2 has not come", "1 connection was refused because of a wrong token",
             "the last one from 127.0.0.1", "ONEFLOW_LIKE_TOKEN must be the same text"});
}

// Two jobs that were given one port and one token: whoever of the other comes first takes nobody's place.
TEST(BootstrapTest, ProcessesOfAnotherJobAreToldSoAlone) {
  for (const auto& [ours, theirs] :
       {std::pair{"slurm/7/0", "slurm/8/0"}, std::pair{"a", ""}, std::pair{"", "a"}}) {
    for (int size : {2, 3}) {
      ThreadJob job(3);
      job.identity.job = ours;
      job.Start(0);
      ProcessIdentity other = job.identity;
      other.job = theirs;
      other.processes = size;
      other.process = 1;
      std::vector<PeerInfo> table;
      std::string error;
      job.Run(other, Peer(1, "2.0"), &table, &error);
      Sleep(0.1);
      job.Start(1);
      job.Start(2);
      job.ExpectAllMet();
      EXPECT_NE(error.find(Cat("belongs to job '", theirs, "', but process 0")), std::string::npos) << error;
      EXPECT_NE(error.find(Cat("to job '", ours, "'")), std::string::npos) << error;
      EXPECT_TRUE(table.empty());
    }
  }
}

// Those that wait in vain hear of it, and, where nobody was refused, what to look at.
TEST(BootstrapTest, WhoWasRefusedIsSaidOfTheMissing) {
  ThreadJob job(4, {.timeout = 1.5});
  job.identity.job = "a";
  job.identity.launcher = "torchrun";
  job.Start(0);
  job.Start(1);
  std::vector<PeerInfo> table;
  std::string error;
  ProcessIdentity other = job.identity;
  other.job = "b";
  other.process = 3;
  job.Run(other, Peer(3), &table, &error);
  job.Wait();
  ExpectHas(error, {"process 3 (host host1", "belongs to job 'b', but process 0"});
  for (int p : {0, 1}) {
    ExpectHas(job.errors[p], {"processes 2 and 3 of 4 have not come", "1 process of another job was refused",
                              "the last one process 3 (host host1", "from 127.0.0.1",
                              "which belongs to job 'b' instead of 'a'"});
    EXPECT_EQ(job.errors[p].find("check that each process has"), std::string::npos) << job.errors[p];
  }
  ThreadJob silent(2, {.timeout = 0.3});
  silent.identity.launcher = "torchrun";
  silent.Start(0);
  silent.Wait();
  ExpectHas(silent.errors[0], {"process 1 of 2 has not come",
                               "has its own RANK, and the MASTER_ADDR and MASTER_PORT of process 0"});
}

// A number that no process has ends all at once, too.
TEST(BootstrapTest, AProcessWithoutASeatThatEndsIsToldToAll) {
  ThreadJob job(3);
  job.Start(0);
  job.Start(2);
  ProcessIdentity as = job.identity;
  as.process = 5;
  EndBeforeStart(as, Peer(5), "RANK is 5", 30);
  Sleep(0.1);
  job.Start(1);  // heard a little later
  job.Wait();
  for (int p : {0, 1, 2})
    ExpectHas(job.errors[p], {"process 5 (host host1", "has ended before the start: RANK is 5"});
}

TEST(BootstrapTest, WhoLeavesMayComeAgain) {
  ThreadJob job(3);
  job.Start(0);
  {
    FileDescriptor early = job.Stranger();
    Say(early.get(), job.Words(1));
    FrameReader in;
    EXPECT_GT(HearAnswer(early.get(), &in).wait_seconds(), 0);
  }
  // A second attempt of one process, while process 0 still has the first.
  FileDescriptor again = job.Stranger(), third = job.Stranger();
  FrameReader again_in, third_in;
  Say(again.get(), job.Words(1, 77));
  EXPECT_GT(HearAnswer(again.get(), &again_in).wait_seconds(), 0);
  Say(third.get(), job.Words(1, 77));
  EXPECT_GT(HearAnswer(third.get(), &third_in).wait_seconds(), 0);
  third.Close();
  job.Start(1);
  job.Start(2);
  job.ExpectAllMet();
}

TEST(BootstrapTest, LeavingAfterTheTableFailsTheStart) {
  ThreadJob job(3);
  job.Start(0);
  job.Start(2);
  FileDescriptor one = job.Stranger();
  Say(one.get(), job.Words(1));
  FrameReader in;
  EXPECT_GT(HearAnswer(one.get(), &in).wait_seconds(), 0);
  EXPECT_EQ(HearAnswer(one.get(), &in).table().peer_size(), 3);
  one.Close();
  job.Wait();
  for (int p : {0, 2}) ExpectHas(job.errors[p], {"process 1 (host host1", "left while the job was starting"});
}

TEST(BootstrapTest, SilenceAfterTheTableFailsTheStart) {
  ThreadJob job(3, {.timeout = 1, .connection_timeout = 0.5});
  job.Start(0);
  job.Start(2);
  FileDescriptor one = job.Stranger();
  Say(one.get(), job.Words(1));
  job.Wait();
  for (int p : {0, 2}) ExpectHas(job.errors[p], {"process 1 (host host1", "does not answer"});
}

TEST(BootstrapTest, SomethingElseListens) {
  FileDescriptor other = ListenAt("127.0.0.1", 0);
  std::atomic<bool> end = false;
  std::thread answers([&] {
    while (!end) {
      FileDescriptor c(accept(other.get(), nullptr, nullptr));
      if (c.open()) Say(c.get(), "HTTP/1.1 400 Bad Request\r\n\r\n");
      Sleep(0.01);
    }
  });
  ProcessIdentity id;
  id.process = 1;
  id.processes = 2;
  id.master_port = PortOf(other.get());
  try {
    Rendezvous(id, Peer(1), {.timeout = 0.5, .connection_timeout = 0.2});
    ADD_FAILURE() << "met a web server";
  } catch (const Error& e) {
    ExpectHas(e.what(), {"process 1 of 2 has not met the others within 0.5 s", "but "});
  }
  end = true;
  answers.join();
}

// Process 1 of 2, which comes to a process 0 of the test's own.
class Visitor {
 public:
  Visitor(const FileDescriptor& listener, const RendezvousOptions& options) {
    id.process = 1;
    id.processes = 2;
    id.master_port = PortOf(listener.get());
    id.token = "a secret of this test";
    thread_ = std::thread([this, id = id, options] {
      try {
        Rendezvous(id, Peer(1), options);
      } catch (const oneflow_like::Error& e) {
        error_ = e.what();
      }
    });
  }
  // Once it has given up, why.
  std::string Error() {
    thread_.join();
    return error_;
  }
  ProcessIdentity id;

 private:
  std::string error_ = "met";
  std::thread thread_;
};

// The next visitor of a process 0 of the test's own, which it tells to wait.
FileDescriptor Welcome(int listener) {
  pollfd wait = {listener, POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 30000), 1);
  FileDescriptor c(accept(listener, nullptr, nullptr));
  wire::Answer answer;
  answer.set_wait_seconds(30);
  Say(c.get(), Frame(answer.SerializeAsString()));
  char words[4096];
  EXPECT_GT(recv(c.get(), words, sizeof(words), 0), 0);
  return c;
}

// A process 0 of the test's own, which has answered and is gone: for good, or until it is started again.
TEST(BootstrapTest, LosingProcessZeroIsSaid) {
  for (bool again : {false, true}) {
    FileDescriptor listener = ListenAt("127.0.0.1", 0);
    Visitor visitor(listener, {.timeout = 30, .lost_timeout = again ? 20.0 : 0.5});
    FileDescriptor c = Welcome(listener.get());
    if (again) {
      c.Close();
      ProcessIdentity first = visitor.id;
      first.process = 0;
      first.listen_fd = dup(listener.get());
      listener.Close();
      EXPECT_EQ(Rendezvous(first, Peer(0), {.timeout = 30}).size(), 2u);
    } else {
      listener.Close();
      c.Close();
    }
    const std::string lost =
        Cat("process 1 of 2 waited for the others, but process 0, which was at 127.0.0.1:",
            visitor.id.master_port, ", is lost: the last attempt was broken off: it closed the connection");
    EXPECT_EQ(visitor.Error(), again ? "met" : lost);
  }
}

// Started again and lost once more: that is another loss, with its own time and reason.
TEST(BootstrapTest, OfSeveralLossesOfProcessZeroTheLastCounts) {
  FileDescriptor listener = ListenAt("127.0.0.1", 0);
  Visitor visitor(listener, {.timeout = 60, .lost_timeout = 3});
  Welcome(listener.get()).Close();
  FileDescriptor again = Welcome(listener.get());
  listener.Close();
  wire::Answer go;
  go.set_go(true);
  Say(again.get(), Frame(go.SerializeAsString()));  // without the table
  ExpectHas(visitor.Error(), {"process 1 of 2 waited for the others, but process 0, which was at 127.0.0.1:",
                              "is lost: what listens there spoke out of turn"});
}

TEST(BootstrapTest, WhereProcessZeroListens) {
  // An address of some other machine, as a service's or a translated one: whatever reaches us will do.
  FileDescriptor all = ListenAt("203.0.113.7", 0);
  std::string why;
  EXPECT_TRUE(ConnectTo("127.0.0.1", PortOf(all.get()), 5, &why).open()) << why;
  // The loopback is not open to others.
  FileDescriptor loopback = ListenAt("localhost", 0);
  for (const std::string& address : OwnAddresses())
    EXPECT_FALSE(ConnectTo(address, PortOf(loopback.get()), 1, &why).open()) << address;
  // Of several addresses the one that answers is found.
  EXPECT_TRUE(ConnectTo("127.0.0.2,127.0.0.1", PortOf(loopback.get()), 5, &why).open()) << why;
}

TEST(BootstrapTest, HostKeysTellNetworksApart) {
  EXPECT_EQ(HostKey(), HostKey());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    std::string key = unshare(CLONE_NEWNET) == 0 ? HostKey() : "";
    _exit(write(ends[1], key.data(), key.size()) < 0);
  }
  close(ends[1]);
  char key[512];
  ssize_t got = read(ends[0], key, sizeof(key));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (got <= 0) GTEST_SKIP() << "no right to make a network namespace";
  EXPECT_NE(HostKey(), std::string(key, got));
}

// With a time of 600 s for each connection, one that was waited for would be waited for in vain.
TEST(BootstrapTest, SilentConnectionsDelayNobody) {
  ThreadJob job(4, {.timeout = 60, .connection_timeout = 600});
  job.Start(0);
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(job.Stranger());
    if (i % 3 == 1) Say(silent.back().get(), std::string(3, '\0'));
    if (i % 3 == 2) Say(silent.back().get(), job.Words(1).substr(0, 60));
  }
  for (int p = 1; p < 4; ++p) job.Start(p);
  job.ExpectAllMet();
}

TEST(BootstrapTest, SilentConnectionsAreDroppedInTime) {
  ThreadJob job(2, {.timeout = 60, .connection_timeout = 0.3});
  job.Start(0);
  FileDescriptor silent = job.Stranger();
  FrameReader in;
  EXPECT_EQ(HearAnswer(silent.get(), &in).what_case(), wire::Answer::WHAT_NOT_SET);
  char byte;
  EXPECT_EQ(recv(silent.get(), &byte, 1, 0), 0) << "the connection was to be closed";
  job.Start(1);
  job.ExpectAllMet();
}

// More connections than descriptors: the oldest of those that do not know the token go, and then the oldest
// of those that have not said who they are; whoever has stays.
TEST(BootstrapTest, DescriptorsDoNotRunOut) {
  FileDescriptor listener = ListenAt("127.0.0.1", 0);
  ProcessIdentity id;
  id.processes = 3;
  id.master_port = PortOf(listener.get());
  id.token = "secret";
  RendezvousOptions options = {.timeout = 60, .connection_timeout = 600};
  pid_t first = fork();
  if (first == 0) {
    alarm(100);
    rlimit few = {80, 80};
    setrlimit(RLIMIT_NOFILE, &few);
    id.listen_fd = listener.get();
    try {
      _exit(Rendezvous(id, Peer(0), options).size() == 3 ? 0 : 1);
    } catch (const Error& e) {
      std::cerr << e.what() << std::endl;
      _exit(2);
    }
  }
  listener.Close();
  std::vector<FileDescriptor> others;
  auto connect = [&](const std::string& words) {
    std::string why;
    others.push_back(ConnectTo("127.0.0.1", id.master_port, 30, &why));
    ASSERT_TRUE(others.back().open()) << why;
    Say(others.back().get(), words);
  };
  const std::string greeting = Frame(Greeting(id.token));
  connect(greeting);
  const int one = others[0].get();
  for (int i = 0; i < 400; ++i) connect("");
  Say(one, Hello(id, 1));
  FrameReader in;
  EXPECT_GT(HearAnswer(one, &in).wait_seconds(), 0) << "who knew the token was dropped";
  for (int i = 0; i < 30; ++i) connect(greeting);
  id.process = 2;
  std::string error;
  std::thread two([&] { error = ErrorOf([&] { Rendezvous(id, Peer(2), options); }); });
  EXPECT_EQ(HearAnswer(one, &in).table().peer_size(), 3) << "who had said who it is was dropped";
  Say(one, Frame(""));  // that it has heard the table
  two.join();
  EXPECT_EQ(error, "");
  int status = -1;
  waitpid(first, &status, 0);
  EXPECT_EQ(status, 0);
}

// Fewer descriptors than processes: the start fails at once, and says of what there is too little.
TEST(BootstrapTest, TooFewDescriptorsAreSaid) {
  for (int spare : {0, 1, 2, 5}) {
    FileDescriptor listener = ListenAt("127.0.0.1", 0);
    ProcessIdentity id;
    id.processes = 8;
    id.master_port = PortOf(listener.get());
    id.token = "secret";
    const RendezvousOptions options = {.timeout = 200, .lost_timeout = 1};
    FileDescriptor ends[2];
    int both[2];
    ASSERT_EQ(pipe(both), 0);
    ends[0] = FileDescriptor(both[0]);
    ends[1] = FileDescriptor(both[1]);
    const pid_t first = fork();
    if (first == 0) {
      alarm(100);
      id.listen_fd = listener.get();
      rlim_t end = 0;  // below it so many descriptors are free
      for (int free = 0; free < spare || fcntl(static_cast<int>(end), F_GETFD) >= 0; ++end)
        free += fcntl(static_cast<int>(end), F_GETFD) < 0;
      const rlimit few = {end, end};
      setrlimit(RLIMIT_NOFILE, &few);
      const std::string error = ErrorOf([&] { Rendezvous(id, Peer(0), options); });
      _exit(write(both[1], error.data(), error.size()) == static_cast<ssize_t>(error.size()) ? 0 : 1);
    }
    listener.Close();
    ends[1].Close();
    std::vector<FileDescriptor> others;
    for (int p = 1; p < id.processes; ++p) {
      std::string why;
      others.push_back(ConnectTo("127.0.0.1", id.master_port, 30, &why));
      if (!others.back().open()) break;  // the start has failed
      Say(others.back().get(), Frame(Greeting(id.token)) + Hello(id, p));
      if (p > spare) continue;
      FrameReader in;
      EXPECT_GT(HearAnswer(others.back().get(), &in).wait_seconds(), 0) << "process " << p << " of " << spare;
    }
    char text[1000];
    const ssize_t got = read(both[0], text, sizeof(text));
    ExpectHas(
        std::string(text, std::max<ssize_t>(got, 0)),
        {"process 0", "cannot take the connections of all 8 processes", "Too many open files", "ulimit -n"});
    int status = -1;
    waitpid(first, &status, 0);
    EXPECT_EQ(status, 0) << spare;
  }
}

// 10,000 connections that make no sense, of every kind, while the processes of the job come.
class Fuzz {
 public:
  Fuzz(const ThreadJob& job, uint64_t seed) : job_(job), random_(seed) {}

  void Connect() {
    FileDescriptor fd = job_.Stranger();
    if (!fd.open()) return;
    std::string words = job_.Words(Below(job_.identity.processes));
    size_t greeting = Frame(Greeting(job_.identity.token)).size();
    switch (Below(8)) {
      case 0:  // says nothing for as long as it is let
        held_.push_back(std::move(fd));
        if (held_.size() > 200) held_.erase(held_.begin() + Below(held_.size()));
        return;
      case 1:  // garbage
        return Say(fd.get(), Bytes(Below(3000)));
      case 2:  // a real process cut off anywhere, staying or leaving
        Say(fd.get(), words.substr(0, Below(words.size())));
        if (Below(4) == 0) held_.push_back(std::move(fd));
        return;
      case 3:  // a wrong token of the right length
        words[greeting - 1 - Below(job_.identity.token.size())] ^= static_cast<char>(1 << Below(7));
        return Say(fd.get(), words);
      case 4:  // a length past all bounds
        return Say(fd.get(), "\xff\xff" + Bytes(Below(100)));
      case 5:  // the token, then a length past all bounds
        return Say(fd.get(), words.substr(0, greeting) + "\x7f" + Bytes(50));
      case 6:  // the token, then a hello that is none
        return Say(fd.get(), words.substr(0, greeting) + Frame(std::string(1 + Below(500), '\xff')));
      default:  // a reset
        linger now = {1, 0};
        setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        return Say(fd.get(), words.substr(0, Below(greeting)));
    }
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }
  std::string Bytes(size_t count) {
    std::string bytes;
    while (bytes.size() < count) bytes += static_cast<char>(random_());
    return bytes;
  }

  const ThreadJob& job_;
  std::mt19937_64 random_;
  std::vector<FileDescriptor> held_;
};

TEST(BootstrapTest, TenThousandStrangers) {
  uint64_t seed = 20240;
  if (const char* given = std::getenv("SEED")) seed = std::strtoull(given, nullptr, 10);
  SCOPED_TRACE("SEED=" + std::to_string(seed));
  constexpr int kProcesses = 5, kConnections = 10000;
  ThreadJob job(kProcesses, {.timeout = 60, .connection_timeout = 1});
  job.Start(0);
  Fuzz fuzz(job, seed);
  for (int i = 0; i < kConnections; ++i) {
    fuzz.Connect();
    if (HasFatalFailure() || HasNonfatalFailure()) break;
    // The last one comes when all strangers have been there; the others in their midst.
    for (int p = 1; p < kProcesses; ++p)
      if (i + 1 == p * kConnections / (kProcesses - 1)) job.Start(p);
  }
  job.ExpectAllMet();
}

TEST(BootstrapTest, MpirunNeedsNoVariables) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  // libpmix leaves some bytes of its own behind, which a sanitizer would count as ours.
  std::string command =
      "ASAN_OPTIONS=detect_leaks=0 timeout -k 5 90 mpirun -n 4 --allow-run-as-root --oversubscribe " +
      std::filesystem::read_symlink("/proc/self/exe").string() + " join 2>&1";
  FILE* run = popen(command.c_str(), "r");
  ASSERT_NE(run, nullptr);
  std::string output;
  for (int c; (c = std::fgetc(run)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(run), 0) << output;
  if (output.find("built without PMIx") != std::string::npos) GTEST_SKIP() << output;
  for (int p = 0; p < 4; ++p)
    EXPECT_NE(output.find("process " + std::to_string(p) + " of 4, started by mpirun, local " +
                          std::to_string(p) + " of 4, met 0 1 2 3\n"),
              std::string::npos)
        << output;
}

// One process of a job, whoever started it.
int Join() {
  try {
    ProcessIdentity id = ReadIdentity([](const char* name) -> const char* { return std::getenv(name); });
    std::string line = Cat("process ", id.process, " of ", id.processes, ", started by ", id.launcher,
                           ", local ", id.local, " of ", id.locals, ", met");
    for (const PeerInfo& p : Rendezvous(id, Peer(id.process))) line += Cat(" ", p.process);
    line += "\n";
    std::cout << line << std::flush;
    return 0;
  } catch (const Error& e) {
    std::cout << e.what() << std::endl;
    return 1;
  }
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "join") return oneflow_like::Join();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
