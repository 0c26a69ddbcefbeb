#include "compiler/cost/measured.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>

namespace oneflow_like {
namespace {

using Points = std::vector<std::pair<double, double>>;

double LogSlope(const Points& points, size_t next) {  // of the chord that ends there
  return std::log(points[next].second / points[next - 1].second) /
         std::log(points[next].first / points[next - 1].first);
}

// Of a curve through point `i` and both of its neighbours, the slope there as a parabola has it, within what
// keeps the curve monotone (Fritsch and Carlson): 0 at a peak, else at most three times that of the flatter
// chord. At either end the curve does not bend.
double LogSlopeAt(const Points& points, size_t i) {
  const auto usable = [&](size_t at) { return points[at].first > 0 && points[at].second > 0; };
  const bool left = i > 0 && usable(i - 1), right = i + 1 < points.size() && usable(i + 1);
  const auto limited = [](double slope, double chord) {
    return slope * chord <= 0 ? 0 : std::copysign(std::min(std::abs(slope), 3 * std::abs(chord)), chord);
  };
  if (left && right) {
    const double from = LogSlope(points, i), to = LogSlope(points, i + 1);
    if (from * to <= 0) return 0;
    const double before = std::log(points[i].first / points[i - 1].first);
    const double after = std::log(points[i + 1].first / points[i].first);
    return limited(limited((from * after + to * before) / (before + after), from), to);
  }
  const double chord = LogSlope(points, left ? i : i + 1);
  const size_t beside = left ? i - 1 : i + 1;
  const bool bends = beside > 0 && beside + 1 < points.size() && usable(beside - 1) && usable(beside + 1);
  return bends ? limited(1.5 * chord - 0.5 * LogSlopeAt(points, beside), chord) : chord;
}

// REQUIRES: `bytes` lies between the points `next` - 1 and `next`, all of which are above 0.
double BetweenPoints(const Points& points, size_t next, double bytes) {
  const double width = std::log(points[next].first / points[next - 1].first);
  const double chord = LogSlope(points, next) * width;
  const double from = LogSlopeAt(points, next - 1) * width, to = LogSlopeAt(points, next) * width;
  const double t = std::log(bytes / points[next - 1].first) / width, u = 1 - t;
  const double rise = chord * t * t * (3 - 2 * t) + from * t * u * u - to * t * t * u;
  // Whole picoseconds: libraries differ in the last bits of logarithms.
  return std::round(points[next - 1].second * std::exp(rise) * 1e12) / 1e12;
}

}  // namespace

double MeasuredKernel::SecondsOf(const Work& work) const {
  const double calls = each.calls * work.calls, flops = each.flops * work.flops;
  double all = 0;
  for (const NamedAmount& amount : kAmounts) all += each.*amount.value * work.*amount.value;
  if (!overlap) return all;
  const double memory = std::max(0.0, all - calls - flops);
  return calls + std::sqrt(flops * flops + memory * memory);
}

double MeasuredCollective::SecondsOf(double bytes) const {
  CHECK_GE(points.size(), 2u);
  if (bytes <= points[0].first) return points[0].second;
  size_t next = 1;
  while (next + 1 < points.size() && points[next].first < bytes) ++next;
  const auto& [low, before] = points[next - 1];
  const auto& [high, after] = points[next];
  if (bytes > high) return after + std::max(0.0, after - before) * (bytes - high) / (high - low);
  if (bytes == high) return after;
  if (low <= 0 || before <= 0 || after <= 0) return before + (after - before) * (bytes - low) / (high - low);
  return BetweenPoints(points, next, bytes);
}

}  // namespace oneflow_like
