#include "oneflow_like/job/stalls.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "actor/net/talk/job.h"
#include "core/error.h"
#include "core/formatted.h"

namespace oneflow_like {
namespace {

constexpr double kPatience = 0.5;  // seconds for each session, and for the network
constexpr size_t kMostLines = 40;  // of a session
constexpr uint64_t kQuit = 1, kStop = 1ull << 32;

double StallClock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string SecondsSince(double since) { return Formatted("%.1f s", StallClock() - since); }

// A handler has no object.
std::atomic<int> quit_event{-1};
static_assert(std::atomic<int>::is_always_lock_free);
void QuitCame(int) {
  const int error = errno, event = quit_event.load();
  if (event >= 0 && write(event, &kQuit, sizeof kQuit) < 0) errno = error;
  errno = error;
}

// Ours unless the program has a handler. One that is ignored, as shells have it for what they start in the
// background, is ours too: nothing ends by it.
void TakeQuit(int event) {
  struct sigaction before = {}, ours = {};
  sigaction(SIGQUIT, nullptr, &before);
  const bool users =
      (before.sa_flags & SA_SIGINFO) != 0 ||
      (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN && before.sa_handler != QuitCame);
  if (users) return;
  quit_event.store(event);
  ours.sa_handler = QuitCame;
  ours.sa_flags = SA_RESTART;
  sigaction(SIGQUIT, &ours, nullptr);
}

}  // namespace

StallWatch::StallWatch(double seconds, int process) : seconds_(seconds), process_(process) {
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  PCHECK(event_ >= 0) << "eventfd";
  TakeQuit(event_);
  last_ended_ = moved_at_ = StallClock();
  thread_ = std::thread([this] { Watch(); });
}

StallWatch::~StallWatch() { Stop(); }

// The handler stays, so that a late SIGQUIT ends nothing.
void StallWatch::Stop() {
  if (!thread_.joinable()) return;
  int ours = event_;
  quit_event.compare_exchange_strong(ours, -1);
  PCHECK(write(event_, &kStop, sizeof kStop) == static_cast<ssize_t>(sizeof kStop));
  thread_.join();
  close(event_);
}

void StallWatch::SetJob(Job* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  job_ = job;
}

void StallWatch::Add(const void* who, Session session) {
  std::lock_guard<std::mutex> lock(mutex_);
  sessions_[who] = std::move(session);
}

void StallWatch::Remove(const void* who) {
  std::lock_guard<std::mutex> lock(mutex_);
  sessions_.erase(who);
}

StallWatch::Doing::Doing(StallWatch* watch, const std::string& what) : watch_(watch) {
  if (watch == nullptr) return;
  std::lock_guard<std::mutex> lock(watch->mutex_);
  call_ = watch->calls_.insert(watch->calls_.end(), {std::this_thread::get_id(), what, StallClock()});
  ++watch->calls_begun_;
}

StallWatch::Doing::~Doing() {
  if (watch_ == nullptr) return;
  std::lock_guard<std::mutex> lock(watch_->mutex_);
  watch_->last_call_ = call_->what;
  watch_->last_ended_ = StallClock();
  watch_->calls_.erase(call_);
}

int64_t StallWatch::Moves() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t moves = calls_begun_;
  for (const auto& [who, session] : sessions_) moves += session.acts_ended();
  return moves;
}

std::string StallWatch::Report() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  bool under_way = false;
  for (const auto& [who, session] : sessions_) {
    const std::vector<std::string> lines = session.who_waits(kPatience);
    if (lines.empty()) continue;
    under_way = true;
    text += Cat("\n  session ", session.name, ":");
    for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) text += "\n    " + lines[i];
    if (lines.size() > kMostLines) text += Cat("\n    and ", lines.size() - kMostLines, " more");
  }
  const std::string awaited = job_ == nullptr ? "" : job_->AwaitedNow(kPatience);
  if (!awaited.empty()) text += "\n  of other processes: " + awaited;
  std::map<std::thread::id, const Call*> innermost;
  for (const Call& call : calls_) innermost[call.thread] = &call;
  for (const auto& [thread, call] : innermost)
    text += Cat("\n  the program: in ", call->what, ", for ", SecondsSince(call->since));
  if (innermost.empty())
    text += Cat("\n  the program: in code of its own for ", SecondsSince(last_ended_),
                last_call_.empty() ? "" : ", since " + last_call_,
                under_way ? "" : "; no step is under way, Session::Run was not called");
  return text;
}

void StallWatch::Print(const std::string& why) {
  LOG(WARNING) << (process_ < 0 ? "" : Cat("process ", process_, ": ")) << why
               << "; who waits for what:" << Report();
}

void StallWatch::Watch() {
  const double every = std::clamp(seconds_ / 8, 0.01, 0.5);
  double reported = 0;
  for (;;) {
    pollfd fd = {event_, POLLIN, 0};
    (void)poll(&fd, 1, seconds_ > 0 ? static_cast<int>(1000 * every) : -1);
    uint64_t came = 0;
    if (read(event_, &came, sizeof came) < 0) came = 0;
    if (came >= kStop) return;
    const int64_t moves = Moves();
    const double now = StallClock();
    if (moves != moves_) {
      moves_ = moves;
      moved_at_ = now;
    }
    if (came > 0) Print("asked by SIGQUIT");
    if (seconds_ <= 0 || now - std::max(moved_at_, reported) < seconds_) continue;
    Print(Cat("nothing has moved for ", SecondsSince(moved_at_)));
    reported = StallClock();
  }
}

}  // namespace oneflow_like
