#include "core/system/spinning.h"

#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace oneflow_like {
namespace {

using Clock = std::chrono::steady_clock;

// Spinning threads make the next loop begin at once: on a quiet machine a step of a small model on two kernel
// threads takes two thirds of the time that it takes when they sleep. Beside another program they keep a core
// from those who have work, for longer than a turn of the scheduler: such a step then took up to seven times
// as long. Beside a program on one of two cores, relative to the faster way (medians of five):
//
//                      quiet    shared
//   spinning long       1.0       0.57
//   spinning briefly    0.67      1.0
constexpr std::chrono::milliseconds kLook{200};
// A core is shared when a thread that wanted one for kWantedNs waited for it this part of the time.
constexpr double kShared = 0.2, kWantedNs = 20e6;
constexpr int kInARow = 2;  // looks: a moment's sharing, as at the start, is none
// Without a wait for so long the cores are ours again; each time that proves wrong it takes twice as long.
constexpr std::chrono::seconds kCalm{1}, kLongestCalm{60};

void BlockSignals() {  // handlers of the user's run elsewhere; threads made later inherit it
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// GNU's library reads its settings before main() begins, and users of ours have no main() of ours. But while
// it manages more threads than there are cores, it lets them spin a three-thousandth only. So while this
// lives, a team of one thread more than there are cores sleeps. It may begin in any step, so it allocates
// nothing from the heap of C++ (std::thread would); without a thread it has no effect.
class SpinBriefly {
 public:
  SpinBriefly() {
    started_ = pthread_create(&thread_, nullptr, Start, this) == 0;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return there_ || !started_; });
  }
  SpinBriefly(const SpinBriefly&) = delete;
  ~SpinBriefly() {
    if (!started_) return;
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    pthread_join(thread_, nullptr);
  }

 private:
  static void* Start(void* self) {
    static_cast<SpinBriefly*>(self)->Hold();
    return nullptr;
  }
  void Hold() {
    BlockSignals();
    omp_set_dynamic(0);
#pragma omp parallel num_threads(omp_get_num_procs() + 1)
    asm volatile("");  // the compiler drops a region that is empty
    std::unique_lock lock(mutex_);
    there_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return ended_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false, there_ = false, ended_ = false;
  pthread_t thread_{};
};

// The system's figures of a thread since it began.
struct Turns {
  int thread = 0;
  int64_t ran_ns = 0, waited_ns = 0;  // for a core
};

// False when the thread is gone, or the system does not tell.
bool ReadTurns(int tasks, const char* thread, Turns* turns) {
  char text[sizeof(dirent64::d_name) + 16];
  std::snprintf(text, sizeof text, "%s/schedstat", thread);
  const int fd = openat(tasks, text, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  if (bytes <= 0) return false;
  text[bytes] = 0;
  char* rest = nullptr;
  turns->thread = std::atoi(thread);
  turns->ran_ns = std::strtoll(text, &rest, 10);
  turns->waited_ns = std::strtoll(rest, nullptr, 10);
  return true;
}

// Whether a thread of this process has had to wait for a core lately. Looking allocates nothing.
class Sharing {
 public:
  Sharing() {
    last_.reserve(kMostThreads);
    now_.reserve(kMostThreads);
  }
  // Since the last call.
  bool Look() {
    const int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    now_.clear();
    bool shared = false;
    alignas(dirent64) char entries[4096];
    for (ssize_t bytes; tasks >= 0 && (bytes = getdents64(tasks, entries, sizeof entries)) > 0;) {
      for (ssize_t at = 0; at < bytes;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        Turns turns;
        if (entry->d_name[0] == '.' || now_.size() == kMostThreads) continue;
        if (!ReadTurns(tasks, entry->d_name, &turns)) continue;
        shared |= Waited(turns);
        now_.push_back(turns);
      }
    }
    if (tasks >= 0) close(tasks);
    known_ = !now_.empty();
    std::sort(now_.begin(), now_.end(), ByThread);
    last_.swap(now_);
    return shared;
  }
  bool known() const { return known_; }  // whether the system tells

 private:
  static constexpr size_t kMostThreads = 4096;  // of which more are not looked at
  static bool ByThread(const Turns& a, const Turns& b) { return a.thread < b.thread; }

  bool Waited(const Turns& turns) const {
    const auto before = std::lower_bound(last_.begin(), last_.end(), turns, ByThread);
    if (before == last_.end() || before->thread != turns.thread) return false;
    const auto waited = static_cast<double>(turns.waited_ns - before->waited_ns);
    const double wanted = waited + static_cast<double>(turns.ran_ns - before->ran_ns);
    return wanted > kWantedNs && waited > kShared * wanted;
  }

  std::vector<Turns> last_, now_;  // the last sorted by thread
  bool known_ = true;
};

std::atomic<bool> spins_briefly{false};

[[noreturn]] void Watch(Sharing* watched) {
  BlockSignals();
  Sharing& sharing = *watched;
  std::optional<SpinBriefly> briefly;
  Clock::duration calm = kCalm;
  Clock::time_point last_shared, spinning_since;
  int in_a_row = 0;
  for (;; std::this_thread::sleep_for(kLook)) {
    const bool shared = sharing.Look();
    const Clock::time_point now = Clock::now();
    if (shared) last_shared = now;
    in_a_row = shared ? in_a_row + 1 : 0;
    if (!briefly && (in_a_row == kInARow || !sharing.known())) {
      calm = now - spinning_since < 2 * calm ? std::min<Clock::duration>(2 * calm, kLongestCalm) : kCalm;
      briefly.emplace();
      spins_briefly = true;
    } else if (briefly && sharing.known() && now - last_shared > calm) {
      briefly.reset();
      spins_briefly = false;
      spinning_since = now;
    }
  }
}

}  // namespace

bool SpinsBriefly() { return spins_briefly; }

void WatchSpinning() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
    std::thread(Watch, new Sharing).detach();  // for the rest of the process
  });
}

}  // namespace oneflow_like
