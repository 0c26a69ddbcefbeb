// The samples of the operator oracle: an operator's own, and what becomes of them with other types and
// extents.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/op.h"

namespace oneflow_like::oracle {

// Types of a sample's inputs, all f32 when it does not say.
inline std::vector<DType> InputTypes(const Sample& sample) {
  std::vector<DType> types = sample.dtypes;
  types.resize(sample.in.size(), DType::kFloat32);
  return types;
}

// Shapes and rule, or throws Error when the operator does not accept the sample.
inline Inferred InferSample(const OpDef& def, const Sample& sample) {
  return Infer(def, {def.name, def.name, sample.in, InputTypes(sample), &sample.attrs});
}

inline std::string SampleText(const OpDef& def, const Sample& sample) {
  std::string text = def.name;
  std::vector<DType> types = InputTypes(sample);
  for (size_t i = 0; i < sample.in.size(); ++i) text += Cat(" ", Name(types[i]), sample.in[i].str());
  return text + " " + sample.attrs.str();
}

// The product of the extents of an axis's labels.
inline int64_t AxisExtent(const BoundRule::Axis& axis, const std::map<std::string, int64_t>& extents) {
  int64_t n = 1;
  for (const std::string& label : axis.labels) n *= extents.at(label);
  return n;
}

// The sample with one label at another extent, its attributes that repeat a shape or an extent changed along.
inline Sample WithExtent(const Sample& sample, const BoundRule& rule, const std::string& label,
                         int64_t extent) {
  Sample changed = sample;
  std::map<std::string, int64_t> extents = rule.extents;
  extents[label] = extent;
  auto resize = [&](const BoundRule::Operand& operand) {
    Dims shape = operand.shape;
    for (size_t a = 0; a < operand.axes.size(); ++a) {
      if (shape[a] == AxisExtent(operand.axes[a], rule.extents))
        shape[a] = AxisExtent(operand.axes[a], extents);
    }
    return shape;
  };
  bool of_input = false, of_ids = false;
  std::vector<DType> types = InputTypes(sample);
  for (size_t i = 0; i < rule.in.size(); ++i) {
    changed.in[i] = resize(rule.in[i]);
    for (const BoundRule::Axis& axis : rule.in[i].axes) {
      if (std::find(axis.labels.begin(), axis.labels.end(), label) == axis.labels.end()) continue;
      of_input = true;
      of_ids |= !IsFloating(types[i]);
    }
  }
  for (const auto& [name, attr] : sample.attrs.map()) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&attr)) {
      for (const auto* side : {&rule.in, &rule.out}) {
        for (const BoundRule::Operand& operand : *side) {
          if (Dims(list->begin(), list->end()) != operand.shape) continue;
          Dims shape = resize(operand);
          changed.attrs.Set(name, std::vector<int64_t>(shape.begin(), shape.end()));
        }
      }
    } else if (const auto* number = std::get_if<int64_t>(&attr)) {
      if (!of_input && *number == rule.extents.at(label) && name != "key") changed.attrs.Set(name, extent);
    }
  }
  // Ids stay below a class axis that became smaller.
  if (!of_ids && rule.extents.at(label) >= sample.limit)
    changed.limit = std::clamp<int64_t>(extent, 1, sample.limit);
  return changed;
}

// The sample itself; then, as far as the operator accepts it: all f32 inputs as i32, bf16 and f16; the extent
// of each label in turn as 0, 1, 2, 5 and 6; each axis of each operand in turn as 0 and as 1 alone
// (broadcast).
inline std::vector<Sample> Vary(const OpDef& def, const Sample& sample) {
  std::vector<Sample> samples = {sample};
  std::set<std::string> seen = {SampleText(def, sample)};
  Inferred base = InferSample(def, sample);
  auto add = [&](const Sample& changed) {
    if (!seen.insert(SampleText(def, changed)).second) return;
    try {
      InferSample(def, changed);
    } catch (const Error&) {
      return;  // the operator does not take these shapes
    }
    samples.push_back(changed);
  };
  for (DType dtype : {DType::kInt32, DType::kBFloat16, DType::kFloat16}) {
    Sample changed = sample;
    changed.dtypes = InputTypes(sample);
    std::replace(changed.dtypes.begin(), changed.dtypes.end(), DType::kFloat32, dtype);
    add(changed);
  }
  for (const auto& [label, extent] : base.rule.extents) {
    for (int64_t other : {0, 1, 2, 5, 6}) add(WithExtent(sample, base.rule, label, other));
  }
  for (size_t i = 0; i < sample.in.size(); ++i) {
    for (int a = 0; a < sample.in[i].rank(); ++a) {
      for (int64_t other : {0, 1}) {
        Sample changed = sample;
        changed.in[i][a] = other;
        add(changed);
      }
    }
  }
  return samples;
}

}  // namespace oneflow_like::oracle
