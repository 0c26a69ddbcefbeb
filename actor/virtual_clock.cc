#include "actor/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oneflow_like {

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

void VirtualCores::Start(int64_t alone, int64_t crowded, std::function<void()> done) {
  if (alone <= 0) return done();
  Progress();
  works_.push_back({alone, crowded, std::move(done)});
  Reckon();
}

double VirtualCores::TimeOf(const Work& work) const {
  const auto alone = static_cast<double>(work.alone), crowded = static_cast<double>(work.crowded);
  if (cores_ == 0) return alone;
  const double busy = static_cast<double>(works_.size()) * each_, cores = std::max(cores_, each_);
  const double beside = cores > each_ ? std::min(1.0, (busy - each_) / (cores - each_)) : works_.size() > 1;
  return (alone + beside * (crowded - alone)) * std::max(1.0, busy / cores);
}

void VirtualCores::Progress() {
  const int64_t passed = clock_->now() - since_;
  since_ = clock_->now();
  if (passed == 0) return;
  for (Work& work : works_) work.left -= static_cast<double>(passed) / work.time;
}

void VirtualCores::Reckon() {
  double next = std::numeric_limits<double>::infinity();
  for (Work& work : works_) {
    work.time = TimeOf(work);
    next = std::min(next, std::max(0.0, work.left) * work.time);
  }
  const uint64_t version = ++version_;
  if (works_.empty()) return;
  clock_->After(next, [this, version] {
    if (version == version_) End();
  });
}

void VirtualCores::End() {
  Progress();
  std::vector<std::function<void()>> ended;
  for (auto work = works_.begin(); work != works_.end();) {
    if (!clock_->stopped() && work->left * work->time >= 0.5) {
      ++work;
      continue;
    }
    ended.push_back(std::move(work->done));
    work = works_.erase(work);
  }
  Reckon();
  for (const auto& done : ended) done();
}

}  // namespace oneflow_like
