#include "actor/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oneflow_like {

// --- VirtualSharing ---

void VirtualSharing::Start(Flow flow) {
  Progress();
  flows_.push_back(std::move(flow));
  Reckon();
}

void VirtualSharing::Progress() {
  const int64_t passed = clock_->now() - since_;
  since_ = clock_->now();
  if (passed == 0) return;
  for (Flow& flow : flows_) flow.left -= static_cast<double>(passed) / flow.time;
}

void VirtualSharing::Reckon() {
  double next = std::numeric_limits<double>::infinity();
  for (Flow& flow : flows_) {
    flow.time = flow.needs();
    next = std::min(next, std::max(0.0, flow.left) * flow.time);
  }
  const uint64_t version = ++version_;
  if (flows_.empty()) return;
  clock_->After(next, [this, version] {
    if (version == version_) End();
  });
}

void VirtualSharing::End() {
  Progress();
  std::vector<std::function<void()>> ended;
  for (size_t i = 0; i < flows_.size();) {
    if (!clock_->stopped() && flows_[i].left * flows_[i].time >= 0.5) {
      ++i;
      continue;
    }
    flows_[i].leave();
    ended.push_back(std::move(flows_[i].done));
    flows_.erase(flows_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  Reckon();
  for (const auto& done : ended) done();
}

// --- VirtualLinks ---

void VirtualLinks::Start(const Load* links, std::function<void()> done) {
  if (links->empty()) return done();
  if (unused_.empty()) {
    unused_.push_back(static_cast<uint32_t>(flows_.size()));
    flows_.emplace_back();
  }
  const uint32_t number = unused_.back();
  unused_.pop_back();
  Flow& flow = flows_[number];
  flow.links = links;
  flow.done = std::move(done);
  flow.left = 1;
  flow.since = clock_->now();
  for (const VirtualLoad::Busy& busy : *links) users_[busy.link].push_back(number);
  ReckonUsers(*links);
}

void VirtualLinks::ReckonUsers(const Load& links) {
  std::vector<uint32_t> reckoned;
  for (const VirtualLoad::Busy& busy : links)
    for (uint32_t user : users_[busy.link])
      if (std::find(reckoned.begin(), reckoned.end(), user) == reckoned.end()) {
        reckoned.push_back(user);
        Reckon(user);
      }
}

void VirtualLinks::Reckon(uint32_t number) {
  Flow& flow = flows_[number];
  const int64_t passed = clock_->now() - flow.since;
  if (passed > 0) flow.left -= static_cast<double>(passed) / flow.time;
  flow.since = clock_->now();
  flow.time = 0;
  for (const VirtualLoad::Busy& busy : *flow.links)
    flow.time =
        std::max(flow.time, static_cast<double>(busy.time) * static_cast<double>(users_[busy.link].size()));
  const uint32_t version = ++flow.version;
  clock_->After(std::max(0.0, flow.left) * flow.time, [this, number, version] {
    if (flows_[number].version == version) End(number);
  });
}

void VirtualLinks::End(uint32_t number) {
  Flow& flow = flows_[number];
  const std::function<void()> done = std::move(flow.done);
  const Load& links = *flow.links;
  ++flow.version;
  unused_.push_back(number);
  for (const VirtualLoad::Busy& busy : links) std::erase(users_[busy.link], number);
  ReckonUsers(links);
  done();
}

// --- VirtualCores ---

double VirtualCores::Needs(int64_t alone, int64_t crowded) const {
  if (cores_ == 0) return static_cast<double>(alone);
  const double busy = running_ * each_, cores = std::max(cores_, each_);
  const double beside = cores > each_ ? std::min(1.0, (busy - each_) / (cores - each_)) : running_ > 1;
  const double time = static_cast<double>(alone) + beside * static_cast<double>(crowded - alone);
  return busy > cores ? time * turns_ * busy / cores : time;
}

void VirtualCores::Start(int thread, int64_t alone, int64_t crowded, std::function<void()> done) {
  if (alone <= 0) return done();
  if (cores_ > 0 && balance_ > 0) {
    // Threads that go on at this moment keep their cores, so others must wait until these have said so.
    if (wanted_.empty()) clock_->At(clock_->now(), [this] { Place(); });
    return wanted_.push_back({thread, alone, crowded, std::move(done)});
  }
  ++running_;
  work_.Start({.needs = [this, alone, crowded] { return Needs(alone, crowded); },
               .leave = [this] { --running_; },
               .done = std::move(done)});
}

double VirtualCores::NeedsOn(int thread, int64_t alone, int64_t crowded) const {
  const Queue& core = queues_[threads_.at(thread).core];
  if (core.threads.front() != thread) return std::numeric_limits<double>::infinity();
  const auto busy = static_cast<double>(
      std::count_if(queues_.begin(), queues_.end(), [](const Queue& c) { return !c.threads.empty(); }));
  const bool shared = core.threads.size() > 1;
  const double beside = cores_ > 1 ? (busy - 1) / (cores_ - 1) : shared;
  const double time = static_cast<double>(alone) + beside * static_cast<double>(crowded - alone);
  return shared ? time * turns_ : time;
}

void VirtualCores::Place() {
  std::vector<Wanted> wanted = std::exchange(wanted_, {});
  const auto waiting = std::stable_partition(wanted.begin(), wanted.end(), [this](const Wanted& w) {
    const auto thread = threads_.find(w.thread);
    return thread != threads_.end() && thread->second.ended == clock_->now();
  });
  for (auto w = wanted.begin(); w != waiting; ++w) Return(w->thread);
  for (auto w = waiting; w != wanted.end(); ++w) Enter(w->thread);
  for (Wanted& w : wanted) Run(std::move(w));
  AwaitBalance();
}

// A core whose thread stops at this moment is not idle: it was busy when this thread was woken.
int VirtualCores::CoreFor(const Thread& thread) const {
  if (thread.core >= 0 && queues_[thread.core].threads.empty()) return thread.core;
  const auto idle =
      std::find_if(queues_.begin(), queues_.end(), [this](const Queue& core) { return IsIdle(core); });
  if (idle != queues_.end()) return static_cast<int>(idle - queues_.begin());
  if (thread.core >= 0) return thread.core;
  return static_cast<int>(std::min_element(queues_.begin(), queues_.end(), FewerThreads) - queues_.begin());
}

// It goes on with other work, at the moment at which its last work has ended: in its turn, if that is not
// over.
void VirtualCores::Return(int number) {
  const Thread& thread = threads_[number];
  Queue* core = &queues_[thread.core];
  const int64_t passed = clock_->now() - thread.since;
  if (!core->threads.empty() && passed > 0 && passed % balance_ == 0) {
    core->threads.push_back(number);
  } else {
    core->threads.push_front(number);
    core->since = thread.since;
  }
  AwaitTurn(core);
}

void VirtualCores::Enter(int number) {
  Thread& thread = threads_[number];
  thread.core = CoreFor(thread);
  Queue* core = &queues_[thread.core];
  core->threads.push_back(number);
  if (core->threads.size() == 1) core->since = clock_->now();
  AwaitTurn(core);
}

void VirtualCores::Run(Wanted wanted) {
  const int number = wanted.thread;
  work_.Start({.needs = [this, number, alone = wanted.alone,
                         crowded = wanted.crowded] { return NeedsOn(number, alone, crowded); },
               .leave = [this, number] { Leave(number); },
               .done = std::move(wanted.done)});
}

void VirtualCores::Leave(int number) {
  Thread& thread = threads_[number];
  Queue* core = &queues_[thread.core];
  thread.ended = clock_->now();
  thread.since = core->since;
  std::erase(core->threads, number);
  core->since = clock_->now();
  AwaitTurn(core);
  AwaitBalance();
}

void VirtualCores::AwaitTurn(Queue* core) {
  const uint64_t version = ++core->version;
  if (core->threads.size() < 2) return;
  const int64_t turns = (clock_->now() - core->since) / balance_ + 1;
  clock_->At(core->since + turns * balance_, [this, core, version] { EndTurn(core, version); });
}

void VirtualCores::EndTurn(Queue* core, uint64_t version) {
  if (version != core->version) return;
  work_.EndDue();
  if (version != core->version) return;  // its thread has ended
  core->threads.push_back(core->threads.front());
  core->threads.pop_front();
  core->since = clock_->now();
  AwaitTurn(core);
  work_.Update();
}

void VirtualCores::AwaitBalance() {
  if (awaits_balance_ || std::max_element(queues_.begin(), queues_.end(), FewerThreads)->threads.size() < 2)
    return;
  awaits_balance_ = true;
  clock_->At((clock_->now() / balance_ + 1) * balance_, [this] { Balance(); });
}

void VirtualCores::Balance() {
  awaits_balance_ = false;
  const auto idle =
      std::find_if(queues_.begin(), queues_.end(), [this](const Queue& core) { return IsIdle(core); });
  const auto shared = std::max_element(queues_.begin(), queues_.end(), FewerThreads);
  if (idle != queues_.end() && shared->threads.size() > 1) {
    const int moved = shared->threads[1];  // waits for its turn
    shared->threads.erase(shared->threads.begin() + 1);
    AwaitTurn(&*shared);
    idle->threads.push_back(moved);
    idle->since = clock_->now();
    threads_[moved].core = static_cast<int>(idle - queues_.begin());
    work_.Update();
  }
  AwaitBalance();
}

}  // namespace oneflow_like
