// Several real processes for tests of the network: forked children, each with a line to the test, and a
// NetworkNode in each child that records what its network tells. Every child has an alarm, so nothing hangs.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actor/net/ucx/network.h"
#include "core/device/parallel_for.h"
#include "core/error.h"

namespace oneflow_like {

// In a child: says what is wrong and ends it, which fails the test.
#define REQUIRE(condition, ...)                                                      \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not so: %s %s\n", __FILE__, __LINE__, #condition, \
                   Cat("" __VA_OPT__(, ) __VA_ARGS__).c_str());                      \
      _exit(1);                                                                      \
    }                                                                                \
  } while (false)

inline void Sleep(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

// Until it is so; the alarm ends a wait in vain.
template <typename F>
void WaitUntil(F is_so) {
  while (!is_so()) usleep(200);
}

// This process's threads. A thread that has ended may be listed for a moment still.
inline size_t CountThreads() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

// The threads that stay when a first one has come and gone: it brings a sanitizer's own, and those of OpenMP,
// which LLVM's keeps and GNU's ends a little after the first one's end.
inline size_t CountLastingThreads() {
  std::thread(FlushDenormals).join();
  size_t least = CountThreads();
  for (int look = 0; look < 100; ++look) {
    usleep(1000);
    least = std::min(least, CountThreads());
  }
  return least;
}

// One end of a line between a child and its test: whole texts.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void Say(const std::string& text) {
    uint64_t size = text.size();
    Whole([&](void* p, size_t n) { return write(fd_, p, n); }, &size, sizeof size);
    Whole([&](void* p, size_t n) { return write(fd_, p, n); }, const_cast<char*>(text.data()), size);
  }
  std::string Hear() {
    uint64_t size = 0;
    Whole([&](void* p, size_t n) { return read(fd_, p, n); }, &size, sizeof size);
    std::string text(size, '\0');
    Whole([&](void* p, size_t n) { return read(fd_, p, n); }, text.data(), size);
    return text;
  }

 private:
  template <typename F>
  void Whole(F move, void* p, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      ssize_t n = move(static_cast<char*>(p) + done, bytes - done);
      if (n <= 0) Fail("the other end of a test's line is gone");
      done += static_cast<size_t>(n);
    }
  }
  int fd_;
};

class Processes {
 public:
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  static constexpr int kAlarm = 300;  // everything takes several times as long
#else
  static constexpr int kAlarm = 60;
#endif
  // Child `me` runs body(me, line) and ends with 0 if it returns. What takes longer than the alarm hangs.
  Processes(int count, std::function<void(int, Line*)> body, int alarm_seconds = kAlarm) {
    signal(SIGPIPE, SIG_IGN);
    for (int me = 0; me < count; ++me) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      pid_t pid = fork();
      if (pid == 0) {
        alarm(static_cast<unsigned>(alarm_seconds));
        for (int fd : fds_) close(fd);
        close(ends[0]);
        Line line(ends[1]);
        try {
          body(me, &line);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "child %d: %s\n", me, error.what());
          _exit(1);
        }
        std::fflush(nullptr);
        _exit(0);
      }
      close(ends[1]);
      fds_.push_back(ends[0]);
      lines_.emplace_back(ends[0]);
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (size_t k = 0; k < pids_.size(); ++k) {
      if (pids_[k] > 0) {
        kill(pids_[k], SIGKILL);
        waitpid(pids_[k], nullptr, 0);
      }
      close(fds_[k]);
    }
  }

  // The texts that all children say are told to all.
  void Exchange() {
    std::vector<std::string> texts;
    for (Line& line : lines_) texts.push_back(line.Hear());
    for (Line& line : lines_) {
      for (const std::string& text : texts) line.Say(text);
    }
  }
  Line& line(int child) { return lines_[child]; }
  void Signal(int child, int number) { kill(pids_[child], number); }
  // How it ended: its exit code, or minus the signal.
  int Ended(int child) {
    int status = 0;
    waitpid(pids_[child], &status, 0);
    pids_[child] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void ExpectAllWell() {
    for (size_t k = 0; k < pids_.size(); ++k) {
      if (pids_[k] == 0) continue;
      EXPECT_EQ(Ended(static_cast<int>(k)), 0) << "child " << k;
    }
  }

 private:
  std::vector<int> fds_;
  std::vector<Line> lines_;
  std::vector<pid_t> pids_;
};

// A transfer to look at from any thread.
struct Flag : Transfer {
  std::atomic<int> ended{0};
  std::atomic<bool> ok{false};
  void TransferDone(bool is_ok) override {
    ok = is_ok;
    ++ended;
  }
  bool done() const { return ended != 0; }
};

struct Call : Message {
  std::function<void()> what;
  std::atomic<bool> done{false};
  void Receive() override {
    what();
    done = true;
  }
};

// A child's network.
class NetworkNode : public Channel {
 public:
  using Handler = std::function<void(int, const std::string&, std::unique_ptr<Incoming>)>;

  NetworkNode(int me, int count, Line* line, NetworkOptions options = {}, Handler handler = nullptr)
      : me(me), handler(std::move(handler)), network(Network::Make(options)) {
    network->SetChannel(Network::kFree, this);
    network->SetChannel(Network::kFree + 1, &second_);
    network->SetFailureListener([this](const Network::Failure& failure) {
      std::lock_guard<std::mutex> lock(mutex_);
      failures_.push_back(failure);
    });
    line->Say(network->address());
    std::vector<PeerInfo> peers(count);
    for (int k = 0; k < count; ++k) {
      peers[k].process = k;
      peers[k].host = Cat("host", k);
      peers[k].address = line->Hear();
    }
    network->Connect(me, peers);
  }

  void Deliver(int from, const void* header, size_t bytes, std::unique_ptr<Incoming> data) override {
    if (handler) handler(from, std::string(static_cast<const char*>(header), bytes), std::move(data));
  }

  // Runs on the network's thread; returns when it has.
  void Run(std::function<void()> what) {
    Call call;
    call.what = std::move(what);
    network->Post(&call);
    while (!call.done) usleep(50);
  }
  // From any thread but the network's.
  void Send(int to, const std::string& header, const void* data = nullptr, size_t bytes = 0,
            Transfer* done = nullptr) {
    Run([&] { network->Send(to, Network::kFree, header.data(), header.size(), data, bytes, done); });
  }
  std::vector<Network::Failure> failures() {
    std::lock_guard<std::mutex> lock(mutex_);
    return failures_;
  }
  void End() {
    delete network.get();  // whose thread still looks at `network` until it has ended
    network.release();
  }

  const int me;
  Handler handler;
  Handler second_handler;
  std::unique_ptr<Network> network;

 private:
  struct Second : Channel {
    explicit Second(NetworkNode* node) : node(node) {}
    void Deliver(int from, const void* header, size_t bytes, std::unique_ptr<Incoming> data) override {
      node->second_handler(from, std::string(static_cast<const char*>(header), bytes), std::move(data));
    }
    NetworkNode* node;
  } second_{this};
  std::mutex mutex_;  // the test's thread looks at what the network's has written
  std::vector<Network::Failure> failures_;
};

}  // namespace oneflow_like
