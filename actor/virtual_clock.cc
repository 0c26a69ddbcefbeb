#include "actor/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oneflow_like {

void VirtualLinks::Start(std::vector<VirtualLoad::Busy> links, std::function<void()> done) {
  std::erase_if(links, [](const VirtualLoad::Busy& busy) { return busy.time <= 0; });
  if (links.empty()) return done();
  Progress();
  for (const VirtualLoad::Busy& busy : links) ++users_[busy.link];
  flows_.push_back({std::move(links), std::move(done)});
  Reckon();
}

void VirtualLinks::Progress() {
  const int64_t passed = clock_->now() - since_;
  since_ = clock_->now();
  if (passed == 0) return;
  for (Flow& flow : flows_) flow.left -= static_cast<double>(passed) / flow.needs;
}

void VirtualLinks::Reckon() {
  double next = std::numeric_limits<double>::infinity();
  for (Flow& flow : flows_) {
    flow.needs = 0;
    for (const VirtualLoad::Busy& busy : flow.links)
      flow.needs = std::max(flow.needs, static_cast<double>(busy.time) * users_[busy.link]);
    next = std::min(next, std::max(0.0, flow.left) * flow.needs);
  }
  const uint64_t version = ++version_;
  if (flows_.empty()) return;
  clock_->At(clock_->now() + std::llround(next), [this, version] {
    if (version == version_) End();
  });
}

void VirtualLinks::End() {
  Progress();
  std::vector<std::function<void()>> ended;
  for (size_t i = 0; i < flows_.size();) {
    if (std::llround(flows_[i].left * flows_[i].needs) > 0) {
      ++i;
      continue;
    }
    for (const VirtualLoad::Busy& busy : flows_[i].links) --users_[busy.link];
    ended.push_back(std::move(flows_[i].done));
    flows_.erase(flows_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  Reckon();
  for (const auto& done : ended) done();
}

}  // namespace oneflow_like
