// The rotation speed of each pair of elements in rotary position embedding, for the reference kernel and all
// devices.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/attrs.h"
#include "core/host_device.h"

namespace oneflow_like {

// One use of rope, from its attributes.
struct RopeTurns {
  int64_t dims = 0;  // elements rotated; pairs are half of them
  bool interleaved = false;
  double direction = 1;  // -1: the gradient
  double log_base = 0, scale = 1;
  double trained_length = 0;  // 0: frequencies are not stretched
  double factor = 1, low_turns = 0, high_turns = 0;

  // Radians from one position to the next.
  OFL_HOST_DEVICE double Frequency(int64_t pair) const {
    double frequency = ::exp(-2.0 * static_cast<double>(pair) / static_cast<double>(dims) * log_base);
    if (trained_length > 0) {
      double turns = frequency * trained_length / 6.283185307179586;
      double share = (turns - low_turns) / (high_turns - low_turns);  // of the frequency as it is
      share = share < 0 ? 0 : share > 1 ? 1 : share;
      frequency *= share + (1 - share) / factor;
    }
    return direction * frequency / scale;
  }
  // The elements of a pair.
  OFL_HOST_DEVICE int64_t First(int64_t pair) const { return interleaved ? 2 * pair : pair; }
  OFL_HOST_DEVICE int64_t Second(int64_t pair) const { return interleaved ? 2 * pair + 1 : pair + dims / 2; }
};

// `width`: of a head.
inline RopeTurns TurnsOf(const Attrs& attrs, int64_t width) {
  RopeTurns turns;
  turns.dims = attrs.Int("dims", 0) == 0 ? width : attrs.Int("dims");
  turns.interleaved = attrs.Int("interleaved", 0) != 0;
  turns.direction = attrs.Int("inverse", 0) != 0 ? -1 : 1;
  turns.log_base = std::log(attrs.Float("base", 10000));
  turns.scale = attrs.Float("scale", 1);
  turns.trained_length = static_cast<double>(attrs.Int("trained_length", 0));
  turns.factor = attrs.Float("factor", 8);
  turns.low_turns = attrs.Float("low_turns", 1);
  turns.high_turns = attrs.Float("high_turns", 4);
  return turns;
}

}  // namespace oneflow_like
