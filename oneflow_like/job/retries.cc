#include "oneflow_like/job/retries.h"

#include <glog/logging.h>

#include <algorithm>

#include "compiler/graph/training.h"

namespace oneflow_like {

Retries::~Retries() { (void)Close(); }

void Retries::Begin(Begun begun) {
  begun_ = std::move(begun);
  if (begun_.together) watch_ = std::thread([this] { Watch(); });
}

std::pair<std::shared_ptr<LaunchedStep>, StepHandle> Retries::Launch(const Feeds& feeds,
                                                                     const FeedPieces& pieces) {
  const std::lock_guard lock(mutex_);
  if (std::ssize(pending_) == begun_.steps_in_flight) SettleFirst();
  RequireNoFailure();
  auto step = std::make_shared<LaunchedStep>();
  Runtime& runtime = left_ > 0 ? *begun_.more : *begun_.few;
  runtime.SetNextStep(*begun_.next_step);
  step->number = *begun_.next_step;
  step->handle = runtime.Launch(feeds, pieces);
  ++*begun_.next_step;
  if (left_ > 0) {
    of_more_ = step->handle;
    --left_;
    ++count_;
  } else {
    pending_.push_back(step);
    changed_.notify_all();
  }
  last_ = step;
  return {step, step->handle};
}

// The first plan's next step waits for the second's last one anyway, but not for how it ended.
void Retries::RequireNoFailure() {
  if (failure_.empty() && of_more_) failure_ = of_more_->Wait().message();
  if (!failure_.empty()) throw Error(failure_);
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
  for (const auto& step : pending_) feeds.push_back(few.FeedsOf(step->handle));
  // Those that have failed run again, too, in every process: in one of them they may not have failed yet. Bad
  // data fails in any plan, and the next step launched in the first plan says if that has failed.
  try {
    std::vector<StepHandle> others;
    for (int64_t i = 0; i < missing; ++i) others.push_back(few.Launch({}, feeds[0]));
    for (const StepHandle& step : others) (void)step.Wait();
  } catch (const Error& error) {
    VLOG(1) << "session " << session_ << ": " << error.what();
  }
  for (size_t i = 0; i < pending_.size(); ++i) {
    LaunchedStep& step = *pending_[i];
    try {
      if (!failure_.empty()) throw Error(failure_);
      (void)step.handle.Wait();
      more.SetNextStep(step.number);
      step.handle = more.Launch({}, feeds[i]);
      of_more_ = step.handle;
      ++count_;
    } catch (const Error& error) {  // of a step before: this one and those behind it do not run again
      step.failure = failure_ = error.what();
    }
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

std::unique_ptr<Runtime> Retries::Close() {
  {
    const std::lock_guard lock(mutex_);
    pending_.clear();
    closed_ = true;
    changed_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
  std::unique_ptr<Runtime> more = std::move(begun_.more);  // results share this, and outlive the model
  if (more) more->Close();
  return more;
}

}  // namespace oneflow_like
