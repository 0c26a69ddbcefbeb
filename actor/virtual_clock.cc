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

double VirtualCores::NeedsOn(int core, int64_t alone, int64_t crowded) const {
  const auto busy =
      static_cast<double>(load_.size()) - static_cast<double>(std::count(load_.begin(), load_.end(), 0));
  const double beside = cores_ > 1 ? (busy - 1) / (cores_ - 1) : load_[core] > 1;
  const double time = static_cast<double>(alone) + beside * static_cast<double>(crowded - alone);
  return load_[core] > 1 ? time * turns_ * load_[core] : time;
}

void VirtualCores::Place() {
  std::vector<Wanted> wanted = std::exchange(wanted_, {});
  const auto waiting = std::stable_partition(wanted.begin(), wanted.end(), [this](const Wanted& w) {
    const auto thread = threads_.find(w.thread);
    return thread != threads_.end() && thread->second.ended == clock_->now();
  });
  for (auto w = wanted.begin(); w != waiting; ++w) Run(std::move(*w));
  for (auto w = waiting; w != wanted.end(); ++w) {
    Thread& thread = threads_[w->thread];
    thread.core = CoreFor(thread);
    Run(std::move(*w));
  }
  AwaitBalance();
}

int VirtualCores::CoreFor(const Thread& thread) const {
  if (thread.core >= 0 && load_[thread.core] == 0) return thread.core;
  const auto least = std::min_element(load_.begin(), load_.end());
  return *least == 0 || thread.core < 0 ? static_cast<int>(least - load_.begin()) : thread.core;
}

void VirtualCores::Run(Wanted wanted) {
  Thread* thread = &threads_[wanted.thread];
  ++load_[thread->core];
  at_work_.push_back(wanted.thread);
  work_.Start({.needs = [this, thread, alone = wanted.alone,
                         crowded = wanted.crowded] { return NeedsOn(thread->core, alone, crowded); },
               .leave =
                   [this, thread, number = wanted.thread] {
                     --load_[thread->core];
                     thread->ended = clock_->now();
                     std::erase(at_work_, number);
                     AwaitBalance();
                   },
               .done = std::move(wanted.done)});
}

void VirtualCores::AwaitBalance() {
  if (awaits_balance_ || *std::max_element(load_.begin(), load_.end()) < 2) return;
  awaits_balance_ = true;
  clock_->At((clock_->now() / balance_ + 1) * balance_, [this] { Balance(); });
}

void VirtualCores::Balance() {
  awaits_balance_ = false;
  const auto idle = std::find(load_.begin(), load_.end(), 0);
  const auto shared = std::max_element(load_.begin(), load_.end());
  if (idle != load_.end() && *shared > 1) {
    // The last that came has waited longest for its turn.
    const auto moved = std::find_if(at_work_.rbegin(), at_work_.rend(), [&](int thread) {
      return threads_[thread].core == shared - load_.begin();
    });
    --*shared;
    ++*idle;
    threads_[*moved].core = static_cast<int>(idle - load_.begin());
    work_.Update();
  }
  AwaitBalance();
}

}  // namespace oneflow_like
