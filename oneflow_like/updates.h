// Whole optimizers written as assigns: what a graph that updates its own weights needs besides gradients()
// and assign(): the schedule, the norm, and loss scaling. Train does all of it for an Optimizer
// (ops/language/optimizer.h); write a graph where one step does something else, such as two gradients in
// turn.
//
//   std::vector<Tensor> g = gradients(loss, weights);
//   Clipped clipped = clip_by_norm(g, 1);
//   Tensor lr = learning_rate(loss.graph(), 0.1, {.kind = Schedule::Kind::kCosine, .total = 1000});
//   SessionOptions options;
//   for (size_t i = 0; i < weights.size(); ++i)
//     options.also.push_back(assign(weights[i], weights[i] - lr * clipped.gradients[i]));
//   Session step = Evaluate({{"loss", loss}, {"norm", clipped.norm}}, options);
#pragma once

#include <vector>

#include "oneflow_like/model.h"
#include "ops/language/schedule.h"

namespace oneflow_like {

// [] : lr times what the schedule says of the session's step. Throws Error for an invalid schedule.
Tensor learning_rate(GraphBuilder* graph, double lr, const Schedule& schedule = {}, OFL_HERE);

struct Clipped {
  std::vector<Tensor> gradients;
  Tensor norm;  // [] : of all of them together, before clipping
};
// The gradients, times min(1, most / (norm + 1e-6)). Throws Error for an empty list.
Clipped clip_by_norm(const std::vector<Tensor>& gradients, double most, OFL_HERE);

// Dynamic loss scaling for sessions in fp16: variables "<path>/loss_scale", 65536 at first, and
// "<path>/finite_steps".
//
//   LossScale scale(model.scope() / "scale");
//   Clipped found = scale.Unscale(gradients(loss * scale.factor(), weights), 1);
//   ... assign(w, scale.Choose(updated, w)) ...; options.also.push_back(scale.Update());
class LossScale {
 public:
  explicit LossScale(Scope scope, OFL_HERE);
  Tensor factor() const { return scale_; }  // []
  // The gradients without the scale, clipped to `most` (0: not clipped), and their norm. Call it once.
  Clipped Unscale(const std::vector<Tensor>& gradients, double most = 0, OFL_HERE);
  // `after` in steps whose gradients are finite, else `before`. REQUIRES: Unscale was called.
  Tensor Choose(Tensor after, Tensor before, OFL_HERE) const;
  // Halves the scale after a step that was not finite, doubles it after 2000 that were. For
  // SessionOptions::also. REQUIRES: Unscale was called.
  Tensor Update(OFL_HERE) const;

 private:
  Tensor scale_, steps_, finite_;
};

}  // namespace oneflow_like
