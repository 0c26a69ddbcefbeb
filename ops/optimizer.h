// Optimizers: what is assigned to a weight and to the state kept beside it, given its gradient. Each is a
// value; Train calls it once for every weight that it trains, and what it adds to the graph is the update.
//
// One of your own, here Lion (Chen et al. 2023):
//
//   Optimizer Lion(double lr, double beta1, double beta2, double decay) {
//     return Optimizer("lion", [=](WeightUpdate& u) {
//       Tensor w = u.weight(), g = u.gradient(), m = u.State("lion_m");
//       Tensor direction = sign(scale(m, beta1) + scale(g, 1 - beta1));
//       u.Assign(w, w - u.Rate(lr) * (direction + scale(w, decay)));
//       u.Assign(m, scale(m, beta2) + scale(g, 1 - beta2));
//     });
//   }
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/functional.h"
#include "ops/schedule.h"
#include "ops/sparse.h"

namespace oneflow_like {

// One weight's update under construction. All tensors are fp32; what is read of variables is what they held
// before the step.
class WeightUpdate {
 public:
  virtual ~WeightUpdate() = default;
  virtual Tensor weight() = 0;
  // Of the whole batch and of all ranks; clipped, and without the loss scale.
  virtual Tensor gradient() = 0;
  // A variable like the weight: its shape, its cut, its stage. `first` fills it before the first step. It is
  // kept in the model as <training>:<name>/<weight>.
  virtual Tensor State(const std::string& name, double first = 0) = 0;
  // [rows] : one number for each index of the weight's first axis, cut as that is. REQUIRES: the weight has
  // an axis.
  virtual Tensor RowState(const std::string& name, double first = 0) = 0;
  // The weight's path in the model.
  virtual const std::string& path() = 0;
  // How much of an optimizer's weight decay this weight takes: WeightOptions::decay; without it, 0 for biases
  // and parameters of norms, else 1.
  virtual double Decay() = 0;
  // [] : lr times what the learning-rate schedule says of the step, times WeightOptions::rate.
  virtual Tensor Rate(double lr) = 0;
  // [] : how many updates this training has made before; steps skipped for an overflow in fp16 do not count.
  virtual Tensor Updates() = 0;
  // After the step the variable (the weight, or a State) holds the value; a skipped step leaves it. At most
  // once for each.
  virtual void Assign(Tensor variable, Tensor value) = 0;
  // The same of weight and states by one operator of the catalog with a kernel of its own: its operands are
  // weight, gradient, `state`, with `counts` the number of updates, then what clipping and loss scaling tell,
  // and the rate where TrainOptions::lr_function gives it. Its attribute "lr" is made this weight's.
  virtual void Fused(const std::string& op, const std::vector<Tensor>& state, bool counts, Attrs numbers) = 0;
  // The same gradient as the rows that the batch touched, for an optimizer with `by_rows`, where the weight is
  // a table of many more rows that is only looked up in. Else its `rows` are undefined.
  virtual TouchedRows Rows() = 0;
  // An update of those rows alone of a variable, the weight or a state, by an operator of operands variable,
  // rows, `values`, and whether the step is skipped.
  virtual void FusedRows(const std::string& op, Tensor variable, Tensor values, Attrs numbers) = 0;
};

struct Optimizer {
  Optimizer(std::string name, std::function<void(WeightUpdate&)> update)
      : name(std::move(name)), update(std::move(update)) {}

  std::string name;
  std::function<void(WeightUpdate&)> update;
  // Of an optimizer that is one operator of that name: its attributes, checked before the graph is built.
  Attrs numbers;
  bool by_rows = false;  // it asks WeightUpdate::Rows
};
// Steps that change nothing because their gradient is an outlier: its norm, before clipping, is above
// `above`, or above `times` the running average of the norms of earlier steps that counted (decay 0.98; from
// the 11th on). 0: not looked at. A norm that is no number is skipped too.
struct SkipSteps {
  double above = 0, times = 0;
};

// Throws Error, opening with `who`, when the optimizer's numbers or the schedule's make no sense.
void CheckOptimizer(const std::string& who, const Optimizer& optimizer, const Schedule& schedule);

// v = momentum v + g, w -= lr v (Sutskever et al. 2013, PyTorch's form); nesterov: w -= lr (g + momentum v).
// No v is kept without momentum. Weight decay adds to g. Without either a table costs what the batch touches.
struct Sgd {
  double lr = 0.1, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  operator Optimizer() const;  // NOLINT: implicit on purpose
};
// Kingma and Ba 2015; weight decay adds to the gradient.
struct Adam {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  operator Optimizer() const;  // NOLINT
};
// Loshchilov and Hutter 2019: decay apart from the gradient.
struct AdamW {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  operator Optimizer() const;  // NOLINT
};

}  // namespace oneflow_like
