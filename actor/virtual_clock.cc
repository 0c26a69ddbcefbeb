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
  clock_->At(clock_->now() + std::llround(next), [this, version] {
    if (version == version_) End();
  });
}

void VirtualSharing::End() {
  Progress();
  std::vector<std::function<void()>> ended;
  for (size_t i = 0; i < flows_.size();) {
    if (std::llround(flows_[i].left * flows_[i].time) > 0) {
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

void VirtualLinks::Start(std::vector<VirtualLoad::Busy> links, std::function<void()> done) {
  std::erase_if(links, [](const VirtualLoad::Busy& busy) { return busy.time <= 0; });
  if (links.empty()) return done();
  for (const VirtualLoad::Busy& busy : links) {
    ++users_[busy.link].flows;
    users_[busy.link].share += busy.share;
  }
  flows_.Start({.needs =
                    [this, links] {
                      double needs = 0;
                      for (const VirtualLoad::Busy& busy : links)
                        needs = std::max(needs, static_cast<double>(busy.time) * users_[busy.link].share);
                      return needs;
                    },
                .leave =
                    [this, links] {
                      for (const VirtualLoad::Busy& busy : links) {
                        Users& users = users_[busy.link];
                        users.share -= busy.share;
                        if (--users.flows == 0) users.share = 0;  // whatever rounding has left
                      }
                    },
                .done = std::move(done)});
}

// --- VirtualCores ---

double VirtualCores::Needs(int64_t alone, int64_t crowded) const {
  if (cores_ == 0) return static_cast<double>(alone);
  const double busy = running_ * each_, cores = std::max(cores_, each_);
  const double beside = cores > each_ ? std::min(1.0, (busy - each_) / (cores - each_)) : running_ > 1;
  const double time = static_cast<double>(alone) + beside * static_cast<double>(crowded - alone);
  return time * std::max(1.0, busy / cores);
}

void VirtualCores::Start(int64_t alone, int64_t crowded, std::function<void()> done) {
  if (alone <= 0) return done();
  ++running_;
  work_.Start({.needs = [this, alone, crowded] { return Needs(alone, crowded); },
               .leave = [this] { --running_; },
               .done = std::move(done)});
}

}  // namespace oneflow_like
