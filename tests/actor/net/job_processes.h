// Processes of a job for tests: forked ones that meet on the loopback device, flags that all of them see, and
// a listener that keeps what it is told.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>

#include "actor/net/job/process_job.h"
#include "tests/actor/net/network_processes.h"
#include "tests/error_of.h"

namespace oneflow_like {

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Whether `error` gives `reason`, and says of this process that it was in the exchange 'plans', or not yet.
inline bool Gives(const std::string& error, const std::string& reason) {
  return error == reason + "; awaited here: the exchange 'plans'" ||
         error == reason + "; nothing of it was awaited here";
}

inline size_t EntriesOf(const std::string& folder) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

// Flags that all processes of a test see.
class Flags {
 public:
  Flags() {
    void* room = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) std::abort();
    flags_ = new (room) std::atomic<int>[64]();
  }
  ~Flags() { munmap(flags_, 4096); }
  std::atomic<int>& operator[](int i) { return flags_[i]; }
  // Until `n` processes have come here.
  void Meet(int i, int n) {
    ++flags_[i];
    WaitUntil([&] { return flags_[i] >= n; });
  }

 private:
  std::atomic<int>* flags_;
};

// Where the processes of one job meet: made before they are forked.
class Meeting {
 public:
  explicit Meeting(int processes) : processes_(processes) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd_, 64) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      std::abort();
    }
    port_ = ntohs(address.sin_port);
  }
  ~Meeting() { close(fd_); }

  std::unique_ptr<Job> Join(int me, JobOptions options = {}) const {
    ProcessIdentity identity;
    identity.process = identity.local = me;
    identity.processes = identity.locals = processes_;
    identity.launcher = "--processes";
    identity.master_port = port_;
    identity.token = "a secret of this test";
    if (me == 0) {
      identity.listen_fd = dup(fd_);
    }
    close(fd_);
    return JoinJob(identity, options);
  }

 private:
  int processes_, fd_ = -1, port_ = 0;
};

// As each of `processes` that have joined one job; all must end well.
inline void InJob(int processes, const std::function<void(int me, std::unique_ptr<Job> job)>& body) {
  Meeting meeting(processes);
  Processes all(processes, [&](int me, Line*) { body(me, meeting.Join(me)); });
  all.ExpectAllWell();
}

inline std::string Pattern(int process, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 257 + 7 * process);
  return text;
}

// Writes down what it is told, in the order of the whole process.
struct Listener : PeerListener {
  struct Output {
    int64_t step;
    int output;
    Box box;
    std::string data;
  };
  explicit Listener(std::vector<std::string>* told = nullptr) : told(told) {}
  void OutputArrived(int64_t step, int output, const Box& box, const void* data, size_t bytes) override {
    std::lock_guard lock(mutex);
    outputs.push_back({step, output, box, std::string(static_cast<const char*>(data), bytes)});
  }
  void PeersFailed(const std::string& message) override {
    std::lock_guard lock(mutex);
    failures.push_back(message);
    if (told != nullptr) told->push_back("runtime: " + message);
  }
  size_t count() {
    std::lock_guard lock(mutex);
    return outputs.size();
  }
  std::vector<std::string> Failures() {
    std::lock_guard lock(mutex);
    return failures;
  }
  std::mutex mutex;
  std::vector<Output> outputs;
  std::vector<std::string> failures;
  std::vector<std::string>* told;
};

}  // namespace oneflow_like
