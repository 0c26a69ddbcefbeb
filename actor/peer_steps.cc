// When a step of several processes has ended.
#include "actor/peer_steps.h"

#include <glog/logging.h>

#include "actor/step.h"

namespace oneflow_like {

void PeerSteps::Launched(StepSlot* slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t number = slot->state->launch;
  launched_ = number;
  Step& step = steps_[number];
  step = {slot, elements_, false};
  auto early = held_.find(number);
  if (early == held_.end()) return;
  for (const Held& piece : early->second) {
    Put(&step, piece.output, piece.box, piece.data.data(), piece.data.size());
  }
  held_.erase(held_.begin(), std::next(early));
}

void PeerSteps::ActsEnded(StepSlot* slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  steps_.at(slot->state->launch).acts_ended = true;
  EndWhereComplete();
}

void PeerSteps::Send(int64_t launch, int output, const Box& box, const void* data, size_t bytes) {
  link_->SendOutput(launch, output, box, data, bytes);
}

void PeerSteps::FailedHere(const std::string& message) {
  link_->SendFailure(message);
  std::lock_guard<std::mutex> lock(mutex_);
  if (collectives_ != nullptr) collectives_->Cancel();
  EndWhereComplete();
}

void PeerSteps::OutputArrived(int64_t launch, int output, const Box& box, const void* data, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  auto under_way = steps_.find(launch);
  if (under_way != steps_.end()) {
    Put(&under_way->second, output, box, data, bytes);
    EndWhereComplete();
  } else if (launch > launched_) {
    const char* begin = static_cast<const char*>(data);
    held_[launch].push_back({output, box, std::vector<char>(begin, begin + bytes)});
  }  // else of a step that a failure has ended
}

void PeerSteps::PeersFailed(const std::string& message) {
  run_->SetError(message);
  run_->cancelled = true;  // what is still to run computes nothing that anybody will see
  std::lock_guard<std::mutex> lock(mutex_);
  if (collectives_ != nullptr) collectives_->Cancel();
  EndWhereComplete();
}

void PeerSteps::SetCollectives(Collectives* collectives) {
  std::lock_guard<std::mutex> lock(mutex_);
  collectives_ = collectives;
}

PeerListener::Awaited PeerSteps::AwaitedOutputs() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [launch, step] : steps_) {
    if (step.left > 0) return {launch, Cat("outputs of step ", step.slot->state->step)};
  }
  return {};
}

void PeerSteps::Drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return steps_.empty() || !run_->error().empty(); });
}

void PeerSteps::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  collectives_ = nullptr;
  steps_.clear();
  held_.clear();
}

void PeerSteps::Put(Step* step, int output, const Box& box, const void* data, size_t bytes) {
  const std::vector<HostTensor>& results = step->slot->state->results;
  CHECK(output >= 0 && output < static_cast<int>(results.size())) << "a piece of output " << output;
  const HostTensor& result = results[output];
  const Box whole = Box::Whole(result.shape);
  CHECK(box.Intersect(whole) == box && bytes == box.elements() * SizeOf(result.dtype))
      << "a piece " << box.str() << " of " << bytes << " bytes of an output " << result.shape.str();
  CopyBox(result.dtype, box, Piece{const_cast<void*>(data), box}, Piece{result.data.get(), whole});
  step->left -= box.elements();
  CHECK_GE(step->left, 0) << "elements of output " << output << " came twice";
}

// A step that failed for a reason not known here waits for it: whoever failed sends it.
void PeerSteps::EndWhereComplete() {
  const std::string error = run_->error();
  for (auto at = steps_.begin(); at != steps_.end();) {
    const Step& step = at->second;
    const bool whole = step.left == 0 && !step.slot->unexplained.load(std::memory_order_relaxed);
    if (!step.acts_ended || (!whole && error.empty())) {
      ++at;
      continue;
    }
    if (!whole) step.slot->state->SetError(error);
    StepSlot* slot = step.slot;
    at = steps_.erase(at);
    run_->EndStep(slot);
  }
  changed_.notify_all();
}

}  // namespace oneflow_like
