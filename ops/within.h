// The range of the operator within, for its kernels on all devices.
#pragma once

#include <string>

#include "core/attrs.h"
#include "core/error.h"

namespace oneflow_like {

struct NumberRange {
  explicit NumberRange(const Attrs& attrs)
      : low(attrs.Float("low")), high(attrs.Float("high")), operand(attrs.Str("operand", "x")) {}
  bool Has(double value) const { return value >= low && value <= high; }  // NaN is nowhere
  // The sentence for an element that lies elsewhere.
  std::string Outside(double value) const {
    return Cat(operand, " ", static_cast<float>(value), " is outside [", low, ", ", high, "]");
  }

  double low, high;
  std::string operand;  // what messages call x
};

}  // namespace oneflow_like
