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

// In rounds: all that have room on each of their links take an equal part of what is left of them, until none
// has. Where flows hold each other up in circles parts only become smaller.
void VirtualLinks::Fill() {
  constexpr int kRounds = 20;
  constexpr double kFull = 1e-9;  // left of a link
  struct Room {
    double left = 1, share = 0;
  };
  std::map<int, Room> rooms;
  for (auto& [id, user] : users_) user.rate = 0, user.open = true;
  for (int round = 0; round < kRounds; ++round) {
    for (auto& [link, room] : rooms) room.share = 0;
    for (const auto& [id, user] : users_)
      for (const VirtualLoad::Busy& on : user.links) rooms[on.link].share += user.open ? on.share : 0;
    std::map<int64_t, double> gains;
    for (auto& [id, user] : users_) {
      if (!user.open) continue;
      double gain = std::numeric_limits<double>::infinity();
      for (const VirtualLoad::Busy& on : user.links)
        gain = std::min(gain, rooms[on.link].left / (rooms[on.link].share * static_cast<double>(on.time)));
      user.rate += gains[id] = gain;
    }
    for (const auto& [id, gain] : gains)
      for (const VirtualLoad::Busy& on : users_[id].links)
        rooms[on.link].left -= gain * on.share * static_cast<double>(on.time);
    bool any = false;
    for (auto& [id, user] : users_) {
      for (const VirtualLoad::Busy& on : user.links) user.open = user.open && rooms[on.link].left > kFull;
      any = any || user.open;
    }
    if (!any) break;
  }
  changed_ = false;
}

void VirtualLinks::Start(std::vector<VirtualLoad::Busy> links, std::function<void()> done) {
  std::erase_if(links, [](const VirtualLoad::Busy& busy) { return busy.time <= 0; });
  if (links.empty()) return done();
  const int64_t id = next_++;
  users_[id].links = std::move(links);
  changed_ = true;
  flows_.Start({.needs =
                    [this, id] {
                      if (changed_) Fill();
                      return 1 / users_[id].rate;
                    },
                .leave =
                    [this, id] {
                      users_.erase(id);
                      changed_ = true;
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
