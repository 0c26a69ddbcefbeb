// How an actor acts: credits in, kernels, announcements, credits back.
#include "actor/actor.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "actor/peer_steps.h"
#include "actor/step.h"
#include "core/finite.h"

namespace oneflow_like {

void RunState::EndStep(StepSlot* slot) {
  int64_t now = Ticks();
  if (ended++ < warm_up_steps) {
    ++warm_up_ended;
  } else {
    wall_ticks += now - std::max(slot->launched_ticks, last_end);
    ++steps_ended;
  }
  last_end = now;
  if (slot->unexplained.load(std::memory_order_relaxed)) {
    const std::string reason = error();
    slot->state->SetError(reason.empty() ? "closed" : reason);  // unless the step has an error of its own
  }
  slot->state->done.Signal();
}

void RunState::FailDevice(StepSlot* slot, const std::string& message) {
  const bool first = SetError(message);
  slot->state->SetError(first ? message : error());
  if (first && peers != nullptr) peers->FailedHere(message);
}

bool RunState::SetError(const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!error_.empty()) return false;
  error_ = message;
  return true;
}

std::string RunState::error() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void Actor::Loaded() {
  waiting_ =
      static_cast<int>(std::count_if(ports.begin(), ports.end(), [](const Port& p) { return p.starved(); }));
  device_done_.actor = this;
}

StepSlot& Actor::slot() const { return *shard->run->slots[slot_]; }

void Actor::Receive(int port, bool ok) {
  Port& p = ports[port];
  if (!ok) p.bad.push_back(p.taken + p.credits);
  bool fed = !busy_ && p.starved();
  ++p.credits;
  if (fed && --waiting_ == 0) Wake();
}

void Actor::Wake() {
  if (stream != nullptr) {
    if (stream->head() == this || stream->in_turn) stream->Wake();
  } else if (ready() && shard->open(step_)) {
    shard->worker->Ready(this, kind == Kind::kCollective);
  }
}

bool Actor::TakeCredits() {
  bool ok = true;
  for (Port& p : ports) {
    if (p.phase == 0) {
      --p.credits;
      p.ok = p.bad.empty() || p.bad.front() != p.taken;
      if (!p.ok) p.bad.erase(p.bad.begin());
      ++p.taken;
      if (p.after != nullptr) device_stream->WaitFor(*p.after);
    }
    if (!p.out && !p.ok) ok = false;
  }
  return ok;
}

void Actor::Act() {
  busy_ = true;
  announced_ = 0;
  bool ok = TakeCredits();
  CountWrites();
  if (!variables.empty()) TellWatch();
  if (shard->run->recording.load(std::memory_order_relaxed)) start_ = shard->run->Now();
  if (shard->trace.on()) start_ticks_ = Ticks();
  if (!ok) FailStep(nullptr, shard->run->error());
  if (kind == Kind::kCollective) {
    KernelCall& call = kernels[0];
    Locate(call);
    if (ok && Cancelled()) ok = false;
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = call.args[i].data;
    const CollectiveMember::Pieces all(pieces);
    member->Arrive(all.first(call.inputs), all.subspan(call.inputs), t_, ok);
    return;
  }
  if (synchronous) return Finish(RunKernels(ok));
  if (kind == Kind::kKernels) return Finish(LaunchKernels(ok));
  LaunchMove(ok);
}

bool Actor::Cancelled() {
  if (!shard->run->cancelled.load(std::memory_order_relaxed)) return false;
  FailStep(nullptr, "");
  return true;
}

bool Actor::LaunchKernels(bool ok) {
  std::vector<KernelRun>& runs = shard->kernel_runs;
  int64_t step = ok ? slot().state->step : 0;
  size_t begin = 0;
  for (KernelLaunch& launch : launches) {
    if (ok && Cancelled()) ok = false;
    if (ok) {
      runs.clear();
      for (size_t i = begin; i < launch.end; ++i) {
        Locate(kernels[i]);
        runs.push_back({kernels[i].kernel.get(), ContextOf(kernels[i], step)});
      }
      int64_t start = Ticks();
      shard->now.Begin(this, static_cast<int>(begin), start);
      Status status = device_stream->RunSegment(launch.segment.get(), runs);
      shard->now.End();
      Count(static_cast<int>(begin), start, Ticks());
      if (!status.ok()) {
        FailDevice(status.message());
        ok = false;
      }
    }
    if (launch.event != nullptr) device_stream->Record(launch.event.get());
    Announce(static_cast<int>(launch.end) - 1, ok);
    begin = launch.end;
  }
  return ok;
}

// A feed's slot is announced when its copy is enqueued; the act lasts until the copy is done, since its
// staging memory is written again by the next.
void Actor::LaunchMove(bool ok) {
  KernelCall& call = kernels[0];
  if (ok && Cancelled()) ok = false;
  Locate(call);
  const TensorArg& arg = call.args[0];
  Box box{arg.begin, arg.extent};
  if (ok && !box.empty()) {
    size_t bytes = box.elements() * SizeOf(arg.dtype);
    if (kind == Kind::kFeed) {
      CopyBox(arg.dtype, box, Fed(), {staging->data(), box});
      device_stream->CopyIn(arg.data, staging->data(), bytes);
    } else {
      device_stream->CopyOut(staging->data(), arg.data, bytes);
    }
  }
  if (launches[0].event != nullptr) device_stream->Record(launches[0].event.get());
  Announce(0, ok);
  if (!ok) return Finish(false);
  shard->DeviceStarted();
  device_stream->NotifyWhenDone([this](Status status) {
    device_done_.status = std::move(status);
    shard->worker->Post(&device_done_);
  });
}

void Actor::DeviceDone::Receive() {
  Shard* shard = actor->shard;
  bool ok = status.ok();
  if (!ok) {
    actor->FailDevice(status.message());
  } else if (actor->kind == Kind::kFetch) {
    actor->Deliver(actor->kernels[0].args[0], actor->staging->data());
  }
  actor->Finish(ok);
  shard->DeviceEnded();
}

bool Actor::RunKernels(bool ok) {
  int64_t step = ok ? slot().state->step : 0;
  int64_t start = Ticks();
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (ok && Cancelled()) ok = false;
    if (ok) {
      Locate(kernels[i]);
      shard->now.Begin(this, static_cast<int>(i), start);
      Status status = shard->run->check_finite ? RunChecked(kernels[i], step) : RunKernel(kernels[i], step);
      const int64_t end = Ticks();  // reading the clock takes longer than what lies between two kernels
      Count(static_cast<int>(i), start, end);
      start = end;
      if (!status.ok()) {
        FailStep(&kernels[i], status.message());
        ok = false;
      }
    }
    Announce(static_cast<int>(i), ok);
  }
  shard->now.End();
  return ok;
}

KernelContext Actor::ContextOf(const KernelCall& call, int64_t step) const {
  const RunState& run = *shard->run;
  return {.spec = call.spec,
          .in = call.in(),
          .out = call.out(),
          .scratch = call.scratch_base == nullptr ? nullptr : *call.scratch_base + call.scratch_offset,
          .step = step,
          .time = acts == run.times ? t_ : 0,
          .times = run.times,
          .seed = run.seed};
}

Status Actor::RunKernel(KernelCall& call, int64_t step) {
  if (kind == Kind::kFeed || kind == Kind::kFetch) return MoveHostTensor(call);
  try {
    return device_stream->Run(*call.kernel, ContextOf(call, step));
  } catch (const std::exception& error) {
    return Status(*error.what() == 0 ? "unknown failure" : error.what());
  } catch (...) {
    return Status("unknown failure");
  }
}

// A feed may hold infinities (a mask), and an operator that reads one, or nothing, may give them.
Status Actor::RunChecked(KernelCall& call, int64_t step) {
  const bool feed = kind == Kind::kFeed;
  bool finite = feed || !call.in().empty();
  for (const TensorArg& arg : call.in())  // before the kernel, which may write in its place
    finite = finite && arg.elements() > 0 && FirstNotFinite(arg.dtype, arg.data, arg.elements()) < 0;
  Status status = RunKernel(call, step);
  if (!finite || !status.ok()) return status;
  for (const TensorArg& arg : call.out()) {
    const int64_t at = FirstNotFinite(arg.dtype, arg.data, arg.elements());
    if (at < 0) continue;
    const float value = FloatAt(arg.dtype, arg.data, at);
    if (feed && !std::isnan(value)) continue;
    return Status(Cat("it gives ", value, feed ? "" : ", though all it reads is finite", " (rank ", rank,
                      ", micro-batch ", t_, ", step ", step, ", element ", at, " of a piece of ",
                      Name(arg.dtype), arg.extent.str(), ")"));
  }
  return status;
}

// Of the host's memory.
Status Actor::MoveHostTensor(KernelCall& call) {
  const TensorArg& arg = call.args[0];
  if (kind == Kind::kFetch) {
    Deliver(arg, arg.data);
    return Status();
  }
  Box box{arg.begin, arg.extent};
  if (!box.empty()) CopyBox(arg.dtype, box, Fed(), {arg.data, box});
  return Status();
}

Piece Actor::Fed() {
  const FeedPiece& piece = slot().feeds[host_tensor][fed[fed.size() > 1 ? t_ : 0]];
  return {piece.values.data.get(), piece.box};
}

void Actor::Deliver(const TensorArg& arg, void* data) {
  StepHandle::State& state = *slot().state;
  const HostTensor& tensor = state.results[host_tensor];
  Box box{arg.begin, arg.extent};
  if (box.empty()) return;
  CopyBox(arg.dtype, box, {data, box}, {tensor.data.get(), Box::Whole(tensor.shape)});
  if (PeerSteps* peers = shard->run->peers) {
    peers->Send(state.launch, host_tensor, box, data, box.elements() * SizeOf(arg.dtype));
  }
}

void Actor::Locate(KernelCall& call) {
  for (size_t i = 0; i < call.place.size(); ++i) {
    const OperandPlace& place = call.place[i];
    TensorArg& arg = call.args[i];
    int64_t turn = 0, turns = static_cast<int64_t>(place.offset.size());
    if (turns > 1) turn = ((place.period == 1 ? k_ : k_ / place.period) + place.skip) % turns;
    arg.data = *place.base + place.offset[turn];
    if (place.boxes.size() > 1) {
      arg.begin = place.boxes[t_].begin;
      arg.extent = place.boxes[t_].extent;
    }
  }
}

void Actor::Announce(int kernel, bool ok) {
  for (; announced_ < ports.size() && ports[announced_].kernel <= kernel; ++announced_) {
    Port& p = ports[announced_];
    // A slot filled by several acts is good when all of them were; an empty slot given back is always good.
    if (p.out) p.ok = (p.phase == 0 || p.ok) && ok;
    if (++p.phase < p.period) continue;
    p.phase = 0;
    shard->worker->Tell(this, p.peer, p.peer_port, !p.out || p.ok);
  }
}

void Actor::Count(int kernel, int64_t start, int64_t end) {
  if (step_ >= shard->run->warm_up_steps) {
    kernels[kernel].ticks += end - start;
    ++kernels[kernel].runs;
  }
  if (shard->trace.on()) shard->trace.Add({start, end, slot().state->step, rank, spec->id(), t_, kernel});
}

void Actor::Finish(bool ok) {
  // A collective that failed at another rank has failed here.
  if (!ok && kind == Kind::kCollective) FailStep(nullptr, shard->run->error());
  if (kind == Kind::kCollective && !launches.empty() && launches[0].event != nullptr) {
    device_stream->Record(launches[0].event.get());
  }
  Announce(std::numeric_limits<int>::max(), ok);
  CountReads();
  if (shard->run->recording.load(std::memory_order_relaxed)) {
    shard->Record({rank, spec->id(), spec->stream(), slot().state->step, t_, start_, shard->run->Now()});
  }
  if (shard->trace.on()) {
    shard->trace.Add({start_ticks_, Ticks(), slot().state->step, rank, spec->id(), t_, -1});
  }
  int ended = slot_;
  ++k_;
  if (++t_ == acts) {
    t_ = 0;
    ++step_;
    if (++slot_ == shard->run->steps_in_flight) slot_ = 0;
  }
  waiting_ = 0;
  for (const Port& p : ports) waiting_ += p.starved();
  busy_ = false;
  Wake();
  shard->ActEnded(ended);
}

void Actor::FailStep(const KernelCall* call, const std::string& message) {
  RunState* run = shard->run;
  std::string text = message;
  bool first = false;
  if (call != nullptr) {
    const std::string& node = call->spec.node.empty() ? spec->name() : call->spec.node;
    const auto& attrs = call->spec.attrs.map();
    const auto axis = attrs.find("axis");  // of an operator of the user's it may be of any type
    const int64_t* number = axis == attrs.end() ? nullptr : std::get_if<int64_t>(&axis->second);
    const std::string along = number == nullptr ? "" : Cat(", along axis ", *number);
    text = Cat(call->spec.line.Of(node), along, ": ", text);
    first = run->SetError(text);
  }
  if (text.empty()) text = run->error();
  if (text.empty()) {
    slot().unexplained.store(true, std::memory_order_relaxed);
  } else {
    slot().state->SetError(text);
  }
  if (first && run->peers != nullptr) run->peers->FailedHere(text);
}

void Actor::FailDevice(const std::string& message) { shard->run->FailDevice(&slot(), message); }

void Actor::CountWrites() {
  for (const Counted& c : writes) {
    int64_t written = c.period == 1 ? k_ + 1 : k_ / c.period + 1;
    if (written == c.buffer->written) continue;
    c.buffer->written = written;
    int64_t read = std::numeric_limits<int64_t>::max();
    for (int64_t r : c.buffer->read) read = std::min(read, r);
    int taken = static_cast<int>(c.buffer->full + written - read);
    if (taken > c.buffer->peak.load(std::memory_order_relaxed)) {
      c.buffer->peak.store(taken, std::memory_order_relaxed);
    }
  }
}

void Actor::TellWatch() {
  if (WriteWatch* watch = slot().watch.get())
    for (const std::string& variable : variables) {
      const DeviceEvent* read = synchronous ? nullptr : watch->WritesAfter(rank, variable);
      if (read != nullptr)
        device_stream->WaitFor(*read);
      else
        watch->BeforeWrite(rank, variable);
    }
}

void Actor::CountReads() {
  for (const Counted& c : reads) {
    c.buffer->read[c.reader] = c.period == 1 ? k_ + 1 : (k_ + 1) / c.period;
  }
}

std::string Actor::Describe() const {
  std::string text = Cat(spec->name(), " act ", t_, " of rank ", rank);
  if (busy_) return Cat(text, " has started and waits for the other ranks of its group");
  for (const Port& p : ports) {
    if (!p.starved()) continue;
    return Cat(text, " waits for ", p.out ? "an empty slot held by " : "a full slot from ",
               p.peer->spec->name());
  }
  return Cat(text, " waits for its turn");
}

bool Actor::under_way() const { return shard->open(step_); }
bool Stream::under_way() const { return shard->open(step_); }

bool Stream::ready() const {
  if (order.empty() || !shard->open(step_)) return false;
  if (started_ != nullptr && started_->busy()) return false;
  return order[next_]->ready();
}

void Stream::Loaded() {
  in_turn = !device->synchronous() && !order.empty();
  if (!in_turn) return;
  shard->acts_per_step += 1;
  done_ = std::vector<Done>(shard->run->steps_in_flight);
  for (size_t i = 0; i < done_.size(); ++i) {
    done_[i].stream = this;
    done_[i].slot = static_cast<int>(i);
  }
  settled_.stream = this;
}

void Stream::Ask(Done* done) {
  shard->DeviceStarted();
  device->NotifyWhenDone([this, done](Status status) {
    done->status = std::move(status);
    shard->worker->Post(done);
  });
}

void Stream::AskWhenSettled() {
  if (in_turn) Ask(&settled_);
}

void Stream::Done::Receive() {
  Shard* shard = stream->shard;
  if (slot >= 0) {
    if (!status.ok()) shard->run->FailDevice(shard->run->slots[slot].get(), status.message());
    shard->ActEnded(slot);
  }
  shard->DeviceEnded();
}

void Stream::Wake() {
  if (ending_ >= 0 && !started_->busy()) Ask(&done_[std::exchange(ending_, -1)]);
  // An arrival takes no time and other ranks wait for it.
  if (ready()) shard->worker->Ready(this, order[next_]->kind == Actor::Kind::kCollective);
}

void Stream::RunOne() {
  Actor* actor = order[next_];
  if (in_turn) started_ = actor;
  if (++next_ == order.size()) {
    if (in_turn) ending_ = static_cast<int>(step_ % shard->run->steps_in_flight);
    next_ = 0;
    ++step_;
  }
  actor->Act();
  Wake();
}

void Shard::Launch(int slot) {
  acts_left_[slot] = acts_per_step;
  ++launched_;
  if (under_way_++ == 0) BeginBusy();
  for (auto& stream : streams) stream->Wake();
  for (auto& actor : actors) {
    if (actor->stream == nullptr) actor->Wake();
  }
}

void Shard::ActEnded(int slot) {
  now.acts.store(now.acts.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (--acts_left_[slot] > 0) return;
  if (under_way_ > 0 && --under_way_ == 0) EndBusy();
  if (++ended_ == run->warm_up_steps) StartCounting();
  StepSlot& step = *run->slots[slot];
  if (step.shards_left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  if (run->peers != nullptr) {
    run->peers->ActsEnded(&step);
  } else {
    run->EndStep(&step);
  }
}

void Shard::BeginBusy() {
  busy_since_ = Ticks();
  idle_before_ = worker->idle_ticks();
}

void Shard::EndBusy() { busy_ticks_ += Ticks() - busy_since_ - (worker->idle_ticks() - idle_before_); }

void Shard::StartCounting() {
  busy_ticks_ = 0;
  for (const auto& actor : actors) {
    for (const KernelCall& call : actor->kernels) busy_ticks_ += call.ticks;
  }
  if (under_way_ > 0) BeginBusy();
}

void Shard::DeviceEnded() {
  --on_device_;
  if (abandoned_) AbandonIfIdle();
}

void Shard::Abandon() {
  abandoned_ = true;
  if (under_way_ > 0) EndBusy();
  under_way_ = 0;
  for (auto& stream : streams) worker->Forget(stream.get());
  for (auto& actor : actors) worker->Forget(actor.get());
  for (auto& stream : streams) stream->AskWhenSettled();
  AbandonIfIdle();
}

void Shard::AbandonIfIdle() {
  if (on_device_ > 0) return;
  std::atomic<int>* left = abandon_.left;
  Completion* all = abandon_.all;
  if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) all->Signal();
}

void Shard::Record(const ActRecord& record) {
  std::lock_guard<std::mutex> lock(records_mutex);
  records.push_back(record);
}

}  // namespace oneflow_like
