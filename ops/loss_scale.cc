// Dynamic loss scaling of fp16 (Micikevicius et al. 2018): unscale turns the norm of scaled gradients into
// the factor on them and says whether they are finite; update_loss_scale follows with the scale.
#include <algorithm>
#include <cmath>

#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// s, scale -> factor, norm, finite.
Status UnscaleReference(const KernelContext& context) {
  double scale = LoadFloat(context.in[1], 0), norm = std::sqrt(LoadFloat(context.in[0], 0)) / scale;
  double max_norm = context.spec.attrs.Float("max_norm");
  double clip = max_norm > 0 && max_norm < norm + 1e-6 ? max_norm / (norm + 1e-6) : 1;
  StoreFloat(context.out[0], 0, clip / scale);
  StoreFloat(context.out[1], 0, norm);
  *context.out[2].as<bool>() = std::isfinite(norm);
  return {};
}

// scale, finite_steps, finite, and whether to update at all -> the new scale and count.
Status UpdateReference(const KernelContext& context) {
  double scale = LoadFloat(context.in[0], 0), steps = LoadFloat(context.in[1], 0) + 1;
  const Attrs& attrs = context.spec.attrs;
  if (context.in.size() > 3 && !*context.in[3].as<bool>()) {
    steps -= 1;
  } else if (!*context.in[2].as<bool>()) {
    scale = std::max(scale / 2, attrs.Float("least", 1));
    steps = 0;
  } else if (steps >= static_cast<double>(attrs.Int("interval", 2000))) {
    scale = std::min(scale * 2, attrs.Float("most", 16777216));
    steps = 0;
  }
  StoreFloat(context.out[0], 0, scale);
  StoreFloat(context.out[1], 0, steps);
  return {};
}

}  // namespace

void AddLossScaling(Catalog* catalog) {
  using enum DType;
  catalog->Add({
      .name = "unscale",
      .doc = "From the sum of squares of gradients that were scaled: the factor that divides by the scale "
             "and clips to "
             "max_norm (0: does not clip), the norm without the scale, and whether it is finite.",
      .axes = "s[], scale[] -> factor[], norm[], finite[]",
      .dtypes = ResultTypes({kFloat32, kFloat32, kBool}),
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 2);
            RequireFloating(call);
            RequireAttr(call, "max_norm");
            double max_norm = call.attrs->Float("max_norm");
            if (!(max_norm >= 0)) Fail(call.who, ": max_norm is ", max_norm, " but must be 0 (none) or more");
          },
      .reference = UnscaleReference,
      .samples = {{.in = {Dims{}, Dims{}}, .attrs = {{"max_norm", 0.5}}, .low = 1, .high = 9},
                  {.in = {Dims{}, Dims{}}, .attrs = {{"max_norm", 0.0}}, .low = 1, .high = 9}},
  });
  catalog->Add({
      .name = "update_loss_scale",
      .doc = "Halves the scale after a step that was not finite, down to `least`; doubles it, up to `most`, "
             "after "
             "`interval` finite ones (2000). Where the optional `applies` is false both stay.",
      .axes_of =
          [](const OpCall& call) {
            return Cat("scale[], finite_steps[], finite[]", call.shapes.size() > 3 ? ", applies[]" : "",
                       " -> new_scale[], new_finite_steps[]");
          },
      .dtypes = ResultTypes({kFloat32, kFloat32}),
      .check =
          [](const OpCall& call) {
            if (call.shapes.size() != 4) RequireInputs(call, 3);
            for (int i : {0, 1}) {  // both are replaced in place
              if (call.dtypes[i] == kFloat32) continue;
              Fail(call.who, ": ", i == 0 ? "scale" : "finite_steps", " is ", Name(call.dtypes[i]),
                   " but must be f32");
            }
            for (size_t i = 2; i < call.dtypes.size(); ++i)
              if (call.dtypes[i] != kBool)
                Fail(call.who, i == 2 ? ": finite is " : ": applies is ", Name(call.dtypes[i]),
                     " but must be bool");
          },
      .reference = UpdateReference,
      .inplace = {{0, 0}, {1, 1}},
      .samples = {{.in = {Dims{}, Dims{}, Dims{}},
                   .attrs = {{"interval", int64_t{2}}},
                   .dtypes = {kFloat32, kFloat32, kBool},
                   .limit = 2,
                   .low = 1,
                   .high = 9},
                  {.in = {Dims{}, Dims{}, Dims{}, Dims{}},
                   .attrs = {{"interval", int64_t{2}}},
                   .dtypes = {kFloat32, kFloat32, kBool, kBool},
                   .limit = 2,
                   .low = 1,
                   .high = 9}},
  });
}

}  // namespace oneflow_like
