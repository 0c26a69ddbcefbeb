#include "actor/net/ucx/duty.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "actor/net/ucx/network.h"
#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oneflow_like {
namespace {

// A worker that left may be back soon: for so long nobody takes its place. To call the network's thread each
// time that a worker leaves something under way made steps of many small collectives slower by up to a half.
constexpr int64_t kPatience = 200'000;
// The same where cores are few: each time the thread wakes up, it takes one from a worker and leaves it cold
// caches. With the patience above it did so 90 times in a step of 71 ms of four processes on two cores.
constexpr int64_t kPatienceOfFewCores = 5'000'000;
// How long a worker on few cores runs acts before it looks whether anything has come.
constexpr int64_t kBetweenTurns = 200'000;
// How long a worker tries to get the duty from one who is about to give it away.
constexpr int64_t kPersistence = 10'000;

void Drain(int fd) {
  uint64_t count;
  PCHECK(read(fd, &count, sizeof count) > 0 || errno == EAGAIN);
}

void Signal(int fd) {
  const uint64_t one = 1;
  PCHECK(write(fd, &one, sizeof one) == sizeof one || errno == EAGAIN);
}

void Poll(pollfd* fds, int count, int64_t deadline) {
  const int64_t wait = std::max<int64_t>(0, deadline - ClockNow());
  const timespec timeout = {wait / kSecond, wait % kSecond};
  ppoll(fds, count, &timeout, nullptr);
}

}  // namespace

Duty::Duty(Work* work, bool few_cores) : work_(work), few_cores_(few_cores) {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  call_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (wake_fd_ < 0 || call_fd_ < 0 || timer_fd_ < 0)
    Fail("no network: ", std::strerror(errno), "; allow this process more, with ulimit -n");
}

Duty::~Duty() {
  for (int fd : {wake_fd_, call_fd_, timer_fd_}) close(fd);
}

void Duty::SetTimer() {
  const itimerspec in_a_while = {{0, 0}, {0, few_cores_ ? kPatienceOfFewCores : kPatience}};
  PCHECK(timerfd_settime(timer_fd_, 0, &in_a_while, nullptr) == 0);
}

// A signal is taken from the descriptor by nobody but the holder, who else might sleep through what it was
// for.
bool Duty::Take() {
  if (taken_.exchange(true)) return false;
  if (woken_.load() && woken_.exchange(false)) Drain(wake_fd_);
  return true;
}

bool Duty::TakeAwakened() {
  if (!Take()) return false;
  if (std::exchange(signalled_, false)) Drain(wake_fd_);
  return true;
}

void Duty::Leave() {
  left_.fetch_add(1);
  if (few_cores_) left_at_.store(ClockNow(), std::memory_order_relaxed);
  taken_.store(false);
  if (!timer_set_.load() && !timer_set_.exchange(true)) SetTimer();
}

void Duty::Sleep(int event_fd, int64_t deadline) {
  pollfd fds[] = {{wake_fd_, POLLIN, 0}, {event_fd, POLLIN, 0}};
  Poll(fds, 2, deadline);
  if (fds[0].revents == 0) return;
  woken_.store(false);
  Drain(wake_fd_);
}

void Duty::AwaitTurn(int event_fd, int64_t deadline) {
  for (;;) {
    // Those of number -1 are not looked at.
    pollfd fds[] = {{call_fd_, POLLIN, 0},
                    {timer_fd_, POLLIN, 0},
                    {event_fd < 0 ? -1 : wake_fd_, POLLIN, 0},
                    {event_fd, POLLIN, 0}};
    Poll(fds, 4, deadline);
    signalled_ = fds[2].revents != 0;
    if (fds[0].revents != 0) {
      Drain(call_fd_);
      called_.store(false);
    }
    const bool only_timer = fds[0].revents == 0 && fds[2].revents == 0 && fds[3].revents == 0;
    if (fds[1].revents == 0) return;
    Drain(timer_fd_);
    timer_set_.store(false);
    const uint64_t left = left_.load();
    if (left == left_seen_ || !only_timer || ended()) return;
    // Workers come and go: they are talking, and waking up for each word would only disturb them.
    left_seen_ = left;
    if (!timer_set_.exchange(true)) SetTimer();
  }
}

void Duty::CallThread() { Signal(call_fd_); }

void Duty::End() {
  ended_.store(true, std::memory_order_release);
  CallThread();
  Wake();
}

bool Duty::TakeInTurn(Mailbox* mail) {
  if (ended()) return false;
  if (Take()) return true;
  wanted_.store(true, std::memory_order_relaxed);
  const int64_t until = ClockNow() + kPersistence;
  do {
    if (mail->posted() || ClockNow() > until || ended()) return false;
#if defined(__x86_64__)
    _mm_pause();
#endif
  } while (!Take());
  return true;
}

bool Duty::RunUntil(Mailbox* mail) {
  if (!TakeInTurn(mail)) {
    PayWake();
    return false;
  }
  wake_owed_.store(false, std::memory_order_relaxed);
  work_->DriveUntil(mail);
  Leave();
  return true;
}

void Duty::Wake() {
  Signal(wake_fd_);
  woken_.store(true);
}

bool Duty::TakeTurn() {
  if (ended() || !Take()) return false;
  wake_owed_.store(false, std::memory_order_relaxed);
  work_->TakeTurn();
  Leave();
  return true;
}

void Duty::GoesOn() {
  const bool posted = mailbox_.posted();
  if (few_cores_ && (posted || ClockNow() - left_at_.load(std::memory_order_relaxed) >= kBetweenTurns) &&
      TakeTurn())
    return;
  if (!posted) return;
  if (taken_.load()) {
    PayWake();
  } else {
    Call();
  }
}

}  // namespace oneflow_like
