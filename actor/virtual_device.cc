#include "actor/virtual_device.h"

#include <algorithm>

namespace oneflow_like {
namespace {

uint64_t Both(int actor, int peer) {
  return static_cast<uint64_t>(actor) << 32 | static_cast<uint32_t>(peer);
}

}  // namespace

void Paper::AddEnd(int rank, int actor, int peer, const End& end) {
  if (rank >= std::ssize(edges_)) edges_.resize(rank + 1);
  edges_[rank][Both(actor, peer)].push_back(end);
}

int64_t Paper::Needs(int rank, int actor, int64_t act, int peer) const {
  int64_t needs = 0;
  const auto ends = edges_[rank].find(Both(actor, peer));
  if (ends == edges_[rank].end()) return 0;
  for (const End& end : ends->second)
    needs = std::max(needs, (act / end.period + 1 - end.credits) * end.peer_period);
  return needs;
}

Status VirtualKernel::Run(const KernelContext&) {
  paper_->Work(time, crowded, [this](int64_t start) { Ran(start); });
  return Status();
}

void VirtualKernel::Ran(int64_t start) {
  if (actor >= 0)
    paper_->Record(
        {start, paper_->clock.now(), runs_ / acts, rank, actor, static_cast<int32_t>(runs_ % acts), index});
  ++runs_;
}

Status VirtualStream::Run(Kernel& kernel, const KernelContext& context) {
  if (synchronous_) return kernel.Run(context);
  auto* next = static_cast<VirtualKernel*>(&kernel);
  if (next->index == 0) Begin(next->rank, next->actor, next->enqueued);
  ++next->enqueued;
  Enqueue(next);
  return Status();
}

void VirtualStream::NotifyWhenDone(std::function<void(Status)> done) {
  if (synchronous_) return done(Status());
  calls_.push_back([done = std::move(done)] { done(Status()); });
  Enqueue(Calls());
}

Status VirtualStream::RunSegment(DeviceSegment*, std::span<const KernelRun> kernels) {
  for (const KernelRun& run : kernels) {
    if (Status status = Run(*run.kernel, run.context); !status.ok()) return status;
  }
  return Status();
}

void VirtualStream::Record(DeviceEvent* event) {
  auto* recorded = static_cast<VirtualEvent*>(event);
  recorded->actor = actor_;
  Enqueue(Records{recorded});
}

void VirtualStream::WaitFor(const DeviceEvent& event) {
  // Waiting streams are noted in the event, which is this machine's own.
  awaited_.push_back(const_cast<VirtualEvent*>(static_cast<const VirtualEvent*>(&event)));
}

void VirtualStream::Meet(int rank, int actor, int64_t act, const std::function<void()>* begin) {
  Begin(rank, actor, act);
  Enqueue(Meets{begin});
}

void VirtualStream::Resume() {
  busy_ = false;
  Pump();
}

void VirtualStream::Begin(int rank, int actor, int64_t act) {
  actor_ = actor;
  for (VirtualEvent* event : std::exchange(awaited_, {}))
    if (event->actor >= 0) Enqueue(Waits{event, paper_->Needs(rank, actor, act, event->actor)});
}

void VirtualStream::Enqueue(Task task) {
  tasks_.push_back(task);
  Pump();
}

void VirtualStream::Pump() {
  if (pumping_) return;  // it goes on in the loop that has led here
  pumping_ = true;
  while (!busy_ && !tasks_.empty()) {
    const Task task = tasks_.front();
    if (const auto* wait = std::get_if<Waits>(&task); wait && wait->event->happened < wait->asked) {
      std::vector<VirtualStream*>& waiting = wait->event->waiting;
      if (std::find(waiting.begin(), waiting.end(), this) == waiting.end()) waiting.push_back(this);
      break;
    }
    tasks_.pop_front();
    if (std::holds_alternative<Calls>(task)) {
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      call();
    } else if (const auto* records = std::get_if<Records>(&task)) {
      Happen(records->event);
    } else if (const auto* meets = std::get_if<Meets>(&task)) {
      busy_ = true;
      (*meets->begin)();
    } else if (const auto* kernel = std::get_if<VirtualKernel*>(&task)) {
      Start(*kernel);
    }
  }
  pumping_ = false;
}

void VirtualStream::Happen(VirtualEvent* event) {
  ++event->happened;
  for (VirtualStream* stream : std::exchange(event->waiting, {})) stream->Pump();
}

void VirtualStream::Start(VirtualKernel* kernel) {
  began_ = paper_->clock.now();
  if (kernel->time == 0) return kernel->Ran(began_);
  busy_ = true;
  paper_->clock.At(began_ + kernel->time, [this, kernel] {
    kernel->Ran(began_);
    Resume();
  });
}

}  // namespace oneflow_like
