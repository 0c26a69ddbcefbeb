// Loops over an axis: a function of one's own for each step, and linear recurrences.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/language/functional.h"

namespace oneflow_like {

struct ScanOptions {
  int64_t axis = 0;      // of the steps, in the xs and the ys; negative: from the end
  bool reverse = false;  // from the last place to the first
  int64_t steps = 0;     // number of steps of a loop without xs; otherwise the extent of their axis
};
// What a step gives, and what the loop gives: the states after the step (the last one), and of each of the ys
// the value at this step (of all steps, stacked along the axis).
struct ScanResult {
  std::vector<Tensor> states, ys;
};
// The operators of a step: from the states before it and the places of the xs, without their axis. It is
// called once, when the loop is made, and may read tensors from outside, such as weights, by capturing them.
using ScanBody = std::function<ScanResult(const std::vector<Tensor>& states, const std::vector<Tensor>& xs)>;

// Runs a body for every place along an axis of the xs, each step with the states that the step before has
// left:
//
//   ScanResult run = scan(
//       [&](const std::vector<Tensor>& s, const std::vector<Tensor>& x) -> ScanResult {
//         Tensor h = tanh(add(x[0], matmul(s[0], w)));
//         return {{h}, {h}};
//       },
//       {h0}, {x}, {.axis = 1});   // h0[b n], x[b t n], w[n n] -> run.ys[0]: [b t n]
//
// It is one operator, so the size of the graph and the time to compile do not depend on the number of steps;
// the result is that of the same operators written out for every step. For its gradient the loop keeps its
// states before each step, and computes everything else of a step again: memory grows with steps times
// states. Axes that all operators of the body leave apart (the batch; where the body is elementwise, the
// features) can be cut over the mesh. States keep their shape and type. Throws Error for an operator that
// draws at random, writes a variable, gives a value for each micro-batch, or contains a literal: these belong
// outside.
ScanResult scan(const ScanBody& body, const std::vector<Tensor>& states, const std::vector<Tensor>& xs,
                const ScanOptions& options = {}, OFL_HERE);

// --- Recurrent networks, made of scan. x[b t w] with its batch first; gates, their order and biases as
// PyTorch's LSTM and GRU have them ---

struct RecurrentOptions {
  Tensor bias, recurrent_bias;  // [gates n]; undefined: none
  Tensor h, c;                  // first states [b n]; undefined: zeros. Only lstm has c
  bool reverse = false;         // from the last step to the first
};
struct LstmResult {
  Tensor y;     // [b t n]: h after each step
  Tensor h, c;  // [b n]: after the last one
};
// input[w (4 n)], recurrent[n (4 n)], gates i f g o (Hochreiter and Schmidhuber 1997, Gers et al. 2000), s
// the sigmoid:
//   i, f, o = s(x input + bias + h recurrent + recurrent_bias), g = tanh(of the same)
//   c = f c + i g,   h = o tanh(c)
LstmResult lstm(Tensor x, Tensor input, Tensor recurrent, const RecurrentOptions& options = {}, OFL_HERE);
struct GruResult {
  Tensor y, h;
};
// input[w (3 n)], recurrent[n (3 n)], gates r z n (Cho et al. 2014; the reset gate after the product):
//   r, z = s(x input + bias + h recurrent + recurrent_bias)
//   n = tanh(x input + bias + r (h recurrent + recurrent_bias)),   h = (1 - z) n + z h
GruResult gru(Tensor x, Tensor input, Tensor recurrent, const RecurrentOptions& options = {}, OFL_HERE);

struct LinearRecurrenceOptions {
  bool reverse = false;  // from the last place to the first
  // Number of equal parts that the axis is divided into; 1: none. All parts are computed beside each other,
  // then what each adds to those behind it (Blelloch 1990): three times the work, but a mesh axis can cut the
  // sequence into that many pieces, or fewer, and a GPU has more to do at a time.
  int64_t chunks = 1;
};
// h[i] = a[i] h[i - 1] + b[i] along an axis: all of them, of the shape of a and b, which is one. `initial`,
// without the axis, is h before the first place; undefined: zeros. Computed in fp32.
Tensor linear_recurrence(Tensor a, Tensor b, int64_t axis, Tensor initial = {},
                         const LinearRecurrenceOptions& options = {}, OFL_HERE);

}  // namespace oneflow_like
