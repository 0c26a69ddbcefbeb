#include "oneflow_like/job/retries.h"

#include <glog/logging.h>

#include <algorithm>

#include "compiler/graph/training.h"

namespace oneflow_like {

Retries::~Retries() { Close(nullptr); }

void Retries::Begin(Begun begun) {
  begun_ = std::move(begun);
  if (begun_.together) watch_ = std::thread([this] { Watch(); });
}

std::shared_ptr<LaunchedStep> Retries::Launch(const Feeds& feeds, const FeedPieces& pieces) {
  const std::lock_guard lock(mutex_);
  if (std::ssize(pending_) == begun_.steps_in_flight) SettleFirst();
  auto step = std::make_shared<LaunchedStep>();
  Runtime& runtime = left_ > 0 ? *begun_.more : *begun_.few;
  runtime.SetNextStep(*begun_.next_step);
  step->handle = runtime.Launch(feeds, pieces);
  ++*begun_.next_step;
  if (left_ > 0) {
    --left_;
    ++count_;
  } else {
    pending_.push_back(step);
    changed_.notify_all();
  }
  last_ = step;
  return step;
}

void Retries::Settle(const LaunchedStep& step) {
  const std::lock_guard lock(mutex_);
  const auto is = [&](const auto& pending) { return pending.get() == &step; };
  while (std::any_of(pending_.begin(), pending_.end(), is)) SettleFirst();
}

void Retries::Settle() {
  const std::lock_guard lock(mutex_);
  while (!pending_.empty()) SettleFirst();
}

StepHandle Retries::last() const {
  const std::lock_guard lock(mutex_);
  return last_ ? last_->handle : StepHandle();
}

int64_t Retries::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void Retries::SettleFirst() {
  const StepHandle first = pending_.front()->handle;
  if (!first.Wait().ok() || first.Get(kRetried).as<float>()[0] == 0)
    pending_.pop_front();
  else
    RunAgain();
}

void Retries::RunAgain() {
  Runtime &few = *begun_.few, &more = *begun_.more;
  const StepHandle first = pending_.front()->handle;
  const int64_t missing = begun_.together ? begun_.steps_in_flight - std::ssize(pending_) : 0;
  std::vector<FeedPieces> feeds;
  for (const auto& step : pending_) feeds.push_back(few.FeedsOf(step->handle.step()));
  try {
    std::vector<StepHandle> others;
    for (int64_t i = 0; i < missing; ++i) others.push_back(few.Launch({}, feeds[0]));
    for (const StepHandle& step : others) (void)step.Wait();
    for (size_t i = 0; i < pending_.size(); ++i) {
      StepHandle& handle = pending_[i]->handle;
      if (!handle.Wait().ok()) continue;  // as for a token outside the vocabulary, which fails in any plan
      more.SetNextStep(handle.step());
      handle = more.Launch({}, feeds[i]);
      ++count_;
    }
  } catch (const Error& error) {
    for (const auto& step : pending_) step->failure = error.what();
  }
  LOG_IF(WARNING, begun_.tells && !told_)
      << "session " << session_ << ": in step " << first.step() << " experts had no room for "
      << first.Get(kRetried).as<float>()[0] << " choices, so it and the steps behind it run again with more "
      << "room, as others may from now on; the profile (Session::ProfileText) says what room would suffice";
  told_ = true;
  left_ = missing;
  pending_.clear();
}

void Retries::Watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !pending_.empty(); });
    if (closed_) return;
    const std::shared_ptr<LaunchedStep> first = pending_.front();
    const StepHandle handle = first->handle;
    lock.unlock();
    (void)handle.Wait();
    lock.lock();
    if (!pending_.empty() && pending_.front() == first) SettleFirst();
  }
}

int64_t Retries::Close(TraceFile* trace) {
  {
    const std::lock_guard lock(mutex_);
    pending_.clear();
    closed_ = true;
    changed_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
  const std::unique_ptr<Runtime> more = std::move(begun_.more);  // results share this, and outlive the model
  if (!more) return 0;
  more->Close();
  return trace != nullptr ? more->WriteTrace(trace) : 0;
}

}  // namespace oneflow_like
