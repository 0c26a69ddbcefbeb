#include "oneflow_like/interruptions.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <iterator>

#include "actor/net/talk/job.h"
#include "oneflow_like/launcher.h"

namespace oneflow_like {
namespace {

constexpr int kWarnings[] = {SIGTERM, SIGUSR1};

// A handler has no object.
struct sigaction before[std::size(kWarnings)];
std::atomic<int> noted{0};  // the last signal
static_assert(std::atomic<int>::is_always_lock_free);

struct sigaction& Before(int number) {
  return before[number == kWarnings[0] ? 0 : 1];
}

bool IsHandler(const struct sigaction& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

void Note(int number, siginfo_t* info, void* context) {
  noted = number;
  const struct sigaction& users = Before(number);
  if (!IsHandler(users)) return;
  if (users.sa_flags & SA_SIGINFO) {
    users.sa_sigaction(number, info, context);
  } else {
    users.sa_handler(number);
  }
}

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == Note;
}

}  // namespace

Interruptions::Interruptions(const Launcher& launcher) : job_(launcher.model_options().job) {
  noted = 0;
  for (int number : kWarnings) {
    struct sigaction now = {}, ours = {};
    sigaction(number, nullptr, &now);
    if (IsOurs(now)) continue;  // of an object that was agreed on: what was before it counts
    Before(number) = now;
    if (now.sa_handler == SIG_IGN) continue;
    ours.sa_flags = SA_RESTART;
    if (IsHandler(now)) {
      ours = now;  // its flags and mask
    } else if (number == SIGTERM && !launcher.copy()) {
      ours.sa_flags |= SA_RESETHAND;
    }
    ours.sa_flags |= SA_SIGINFO;
    ours.sa_sigaction = Note;
    sigaction(number, &ours, nullptr);
  }
}

Interruptions::~Interruptions() {
  if (agreed_) return;
  for (int number : kWarnings) {
    struct sigaction now = {};
    sigaction(number, nullptr, &now);
    if (IsOurs(now)) sigaction(number, &Before(number), nullptr);
  }
  const int late = noted.exchange(0);
  // A program that ends by an error says that; a handler of the user's has run.
  if (late != 0 && std::uncaught_exceptions() == 0 && !IsHandler(Before(late))) raise(late);
}

bool Interruptions::Agreed() {
  if (!job_) return agreed_ = agreed_ || noted != 0;
  const std::vector<std::string> all = job_->AllGather("interruptions", noted != 0 ? "1" : "");
  return agreed_ = std::find(all.begin(), all.end(), "1") != all.end() || agreed_;
}

}  // namespace oneflow_like
