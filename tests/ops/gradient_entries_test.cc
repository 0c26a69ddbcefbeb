// Every entry of the catalog says truly whether a gradient flows: without `grad` it either is one that none
// flows through (its outputs do not move with its inputs), and says `stops_gradient`, or Train refuses it.
#include <gtest/gtest.h>

#include "ops/oracle/gradient.h"

namespace oneflow_like::oracle {
namespace {

bool HasFloating(const std::vector<Value>& values) {
  for (const Value& v : values)
    if (IsFloating(v.dtype())) return true;
  return false;
}

// Whether some floating output of the trial moves when one floating input moves a little.
bool Moves(const Trial& trial) {
  for (size_t i = 0; i < trial.in.size(); ++i) {
    if (!IsFloating(trial.in[i].dtype())) continue;
    for (int64_t at = 0; at < trial.in[i].elements(); ++at) {
      std::vector<Value> in = trial.in, out = trial.out;
      in[i].Set(at, in[i].Get(at) + 0x1p-10);
      Status status = RunWhole(*trial.def, trial.sample.attrs, in, &out, ReferenceOf(*trial.def));
      if (!status.ok()) return true;
      for (size_t o = 0; o < out.size(); ++o)
        for (int64_t k = 0; IsFloating(out[o].dtype()) && k < out[o].elements(); ++k)
          if (out[o].Get(k) != trial.out[o].Get(k)) return true;
    }
  }
  return false;
}

TEST(GradientEntries, StopOneOnlyWhereNoneFlows) {
  int stopping = 0, flowing = 0;
  for (const std::string& name : BuiltinCatalog().names()) {
    const OpDef& def = BuiltinCatalog().Get(name);
    bool moves = false, floating = false;
    for (const Sample& sample : def.samples) {
      Trial trial = MakeTrial(def, sample, ReferenceOf(def), false);
      floating = floating || HasFloating(trial.in);
      moves = moves || Moves(trial);
    }
    if (!floating || name == "stop_gradient") continue;  // which moves, and is there to stop it
    if (moves) {
      EXPECT_FALSE(def.stops_gradient) << name << " moves with its inputs";
      ++flowing;
    } else {
      EXPECT_TRUE(def.stops_gradient) << name << " does not move with its inputs, and does not say so";
      EXPECT_FALSE(def.grad) << name;
      ++stopping;
    }
  }
  EXPECT_GE(stopping, 8);
  EXPECT_GE(flowing, 40);
}

}  // namespace
}  // namespace oneflow_like::oracle
