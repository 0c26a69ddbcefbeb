// Estimates the difference to a peer's clock from a sequence of exchanges.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace oneflow_like {

class PeerClock {
 public:
  struct Sample {
    int64_t offset_ns = 0, round_trip_ns = 0;
    int64_t at = 0;  // when, by this process's clock
  };

  // Adds an exchange: asked at `asked` and answered at `heard` (this process's clock); in between the peer's
  // clock was `theirs`.
  void Add(int64_t asked, int64_t theirs, int64_t heard) {
    ring_[count_++ % ring_.size()] = {theirs - (asked + (heard - asked) / 2), heard - asked, heard};
  }

  // The best sample: a short round trip leaves little room for error, but clocks drift apart as it ages.
  Sample Best(int64_t now) const {
    auto doubt = [now](const Sample& s) { return s.round_trip_ns / 2 + (now - s.at) / kDrift; };
    return *std::min_element(ring_.begin(), ring_.begin() + std::min(count_, ring_.size()),
                             [&](const Sample& a, const Sample& b) { return doubt(a) < doubt(b); });
  }
  // The shortest of the last four: the present time of a round trip.
  int64_t RoundTripLately() const {
    int64_t shortest = INT64_MAX;
    for (size_t i = 1; i <= std::min<size_t>(count_, 4); ++i) {
      shortest = std::min(shortest, ring_[(count_ - i) % ring_.size()].round_trip_ns);
    }
    return count_ == 0 ? 0 : shortest;
  }
  size_t count() const { return count_; }

 private:
  static constexpr int64_t kDrift = 50'000;  // 20 millionths: two ordinary quartzes
  std::array<Sample, 64> ring_;
  size_t count_ = 0;
};

}  // namespace oneflow_like
