// Optimizers: functions that assign new values to a weight and its state, given its gradient. Each is a
// value; Train calls it once for every weight that it trains, and the nodes that it adds to the graph are the
// update.
//
// An optimizer of your own, here Lion (Chen et al. 2023):
//
//   Optimizer Lion(double lr, double beta1, double beta2, double decay) {
//     return Optimizer("lion", [=](WeightUpdate& u) {
//       Tensor w = u.weight(), g = u.gradient(), m = u.State("lion_m");
//       Tensor direction = sign(scale(m, beta1) + scale(g, 1 - beta1));
//       u.Assign(w, w - u.Rate(lr) * (direction + scale(w, decay)));
//       u.Assign(m, scale(m, beta2) + scale(g, 1 - beta2));
//     });
//   }
//
// An optimizer computes with what WeightUpdate gives it. Tensors of the graph that it is used in, such as a
// second loss or its gradients, it reads by WeightUpdate::Read.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ops/language/functional.h"
#include "ops/language/schedule.h"
#include "ops/language/sparse.h"

namespace oneflow_like {

// One weight's update under construction. All tensors are fp32; reading a variable gives its value before the
// step.
class WeightUpdate {
 public:
  virtual ~WeightUpdate() = default;
  virtual Tensor weight() = 0;
  // The gradient over the whole batch and all ranks; clipped, and without the loss scale.
  virtual Tensor gradient() = 0;
  // A variable with the weight's shape, cut and stage. `first` fills it before the first step. Its name in
  // the model is <training>:<name>/<weight>.
  virtual Tensor State(const std::string& name, double first = 0) = 0;
  // A variable of any shape. axes[i] is the axis of the weight that axis i of the state goes with: it has
  // that extent, and is cut as the weight is there; -1: none. Without `axes` no axis goes with one of the
  // weight's. One number for each column: ShapedState("s", {w.shape()[1]}, {1}). Throws Error where they do
  // not fit.
  virtual Tensor ShapedState(const std::string& name, const Dims& shape, const std::vector<int>& axes = {},
                             double first = 0) = 0;
  // [rows] : one number for each index of the weight's first axis. REQUIRES: the weight has an axis.
  Tensor RowState(const std::string& name, double first = 0) {
    return ShapedState(name, {weight().shape()[0]}, {0}, first);
  }
  // A tensor of the graph that the loss belongs to, for this update: its value in this step, before updates,
  // of the whole batch. The session must compute it: for its loss and outputs, as one of
  // SessionOptions::also, or as one of Optimizer::reads. Throws Error otherwise.
  virtual Tensor Read(Tensor of_graph) = 0;
  // The weight's path in the model.
  virtual const std::string& path() = 0;
  // The factor on the optimizer's weight decay for this weight: WeightOptions::decay; without it, 0 for
  // biases and parameters of norms, else 1.
  virtual double Decay() = 0;
  // [] : lr times the learning-rate schedule's factor for the step, times WeightOptions::rate.
  virtual Tensor Rate(double lr) = 0;
  // [] : the number of earlier updates of this training; steps skipped for an overflow in fp16 do not count.
  virtual Tensor Updates() = 0;
  // Gives the variable (the weight, or a State) the value after the step; a skipped step leaves it unchanged.
  // At most once for each variable.
  virtual void Assign(Tensor variable, Tensor value) = 0;
  // Updates weight and states by one operator of the catalog with a kernel of its own. Its operands are
  // weight, gradient, `state`, with `counts` the number of updates, then the results of clipping and loss
  // scaling, and the rate if TrainOptions::lr_function gives it. Its attribute "lr" is set for this weight.
  virtual void Fused(const std::string& op, const std::vector<Tensor>& state, bool counts, Attrs numbers) = 0;
  // The gradient as the rows that the batch touched, for an optimizer with `by_rows`, if the weight is a
  // table of many more rows that is used only for lookups. Otherwise the result's `rows` are undefined.
  virtual TouchedRows Rows() = 0;
  // Updates only these rows of a variable, the weight or a state, by an operator with the operands variable,
  // rows, `values`, and a flag whether the step is skipped.
  virtual void FusedRows(const std::string& op, Tensor variable, Tensor values, Attrs numbers) = 0;
};

struct Optimizer {
  Optimizer(std::string name, std::function<void(WeightUpdate&)> update)
      : name(std::move(name)), update(std::move(update)) {}

  std::string name;
  std::function<void(WeightUpdate&)> update;
  // For an optimizer that is one operator of that name: its attributes, checked before the graph is built.
  Attrs numbers;
  bool by_rows = false;       // it calls WeightUpdate::Rows
  std::vector<Tensor> reads;  // of the graph, for WeightUpdate::Read: sessions that train by it compute them
  std::vector<Optimizer> others;      // that update some weights; checked, too, and their `reads` computed
  std::vector<std::string> patterns;  // of Groups: weights that match patterns[i] are updated by others[i]
};
// Groups of weights with numbers or optimizers of their own, as PyTorch's parameter groups: a weight is
// updated by the optimizer of the first pattern that matches its path ('*': any characters, '?': one).
//   Groups({{"*embedding*", Adagrad{}}, {"head/*", AdamW{.beta2 = 0.95}}, {"*", AdamW{}}})
// Train throws Error for a weight that no pattern matches, and for a pattern that no weight is left for.
Optimizer Groups(const std::vector<std::pair<std::string, Optimizer>>& groups);

// Skips steps whose gradient is an outlier: its norm, before clipping, is above `above`, or above `times` the
// running average of the norms of earlier steps that counted (decay 0.98; from the 11th on). 0: no check. A
// step whose norm is not a number is skipped, too.
struct SkipSteps {
  double above = 0, times = 0;
};

// A running average of each trained weight, in fp32, updated after each step that updates the weights:
// average = d average + (1 - d) weight, with d = 0 in the first, which copies the weight.
struct Average {
  // d; 0: no averages. 1, with a warm-up: without an upper bound.
  double decay = 0;
  // 0: none. Else d is at most 1 - (1 + t)^-warmup, t the number of averaged updates before this one: early
  // weights then count little however large `decay` is. 2/3 is the warm-up of timm and of diffusers; 1 with
  // decay = 1 is the plain mean of all weights (Izmailov et al. 2018).
  double warmup = 0;
  int64_t from = 0;  // number of first updates that only copy the weights
};

// Throws Error, beginning with `who`, when the numbers of the optimizer or the schedule are invalid.
void CheckOptimizer(const std::string& who, const Optimizer& optimizer, const Schedule& schedule);

// v = momentum v + g, w -= lr v (Sutskever et al. 2013, PyTorch's form); nesterov: w -= lr (g + momentum v).
// No v is kept without momentum. Weight decay adds to g. Without momentum and decay a table costs only the
// rows that the batch touches.
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
// Loshchilov and Hutter 2019: decay decoupled from the gradient.
struct AdamW {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  operator Optimizer() const;  // NOLINT
};

}  // namespace oneflow_like
