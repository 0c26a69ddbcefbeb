// Recurrent networks as loops, and linear recurrences.
#include "ops/language/calls.h"
#include "ops/language/expressions.h"
#include "ops/language/scan.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

// Operands of a network with this many gates that agree with each other; gives the width of its state.
int64_t CheckNetwork(const char* op, int64_t gates, Tensor x, Tensor input, Tensor recurrent,
                     const RecurrentOptions& o, const Here& at) {
  NeedFloating(op, "x", x, at);
  NeedFloating(op, "input", input, at);
  NeedFloating(op, "recurrent", recurrent, at);
  const std::string who = Who(op, at);
  if (x.shape().rank() != 3) Fail(who, ": x is ", x.shape().str(), " but must have 3 axes, [b t w]");
  if (recurrent.shape().rank() != 2 || recurrent.shape()[1] != gates * recurrent.shape()[0])
    Fail(who, ": recurrent is ", recurrent.shape().str(), " but must be [n, ", gates, " n]");
  const int64_t n = recurrent.shape()[0];
  const auto need = [&](const char* name, const Tensor& t, const Dims& shape) {
    if (t.defined() && t.shape() != shape)
      Fail(who, ": ", name, " is ", t.shape().str(), " but must be ", shape.str());
  };
  need("input", input, {x.shape()[2], gates * n});
  need("bias", o.bias, {gates * n});
  need("recurrent_bias", o.recurrent_bias, {gates * n});
  need("h", o.h, {x.shape()[0], n});
  need("c", o.c, {x.shape()[0], n});
  return n;
}

Tensor Plus(Tensor x, const Tensor& bias, const Here& at) { return bias.defined() ? add(x, bias, at) : x; }

Tensor OrZeros(const Tensor& state, Tensor like, int64_t n, const Here& at) {
  return state.defined() ? state : full(like, {like.shape()[0], n}, 0, at);
}

}  // namespace

LstmResult lstm(Tensor x, Tensor input, Tensor recurrent, const RecurrentOptions& o, Here at) {
  at = at.In("lstm");
  const int64_t n = CheckNetwork("lstm", 4, x, input, recurrent, o, at);
  // What does not depend on h is one product for all steps.
  Tensor of_x = Plus(Plus(matmul(x, input, at), o.bias, at), o.recurrent_bias, at);
  const auto step = [&](const std::vector<Tensor>& s, const std::vector<Tensor>& z) -> ScanResult {
    const std::vector<Tensor> gates = split(add(z[0], matmul(s[0], recurrent, at), at), 1, 4, at);
    Tensor c =
        add(mul(sigmoid(gates[1], at), s[1], at), mul(sigmoid(gates[0], at), tanh(gates[2], at), at), at);
    Tensor h = mul(sigmoid(gates[3], at), tanh(c, at), at);
    return {{h, c}, {h}};
  };
  const ScanResult run = scan(step, {OrZeros(o.h, of_x, n, at), OrZeros(o.c, of_x, n, at)}, {of_x},
                              {.axis = 1, .reverse = o.reverse}, at);
  return {run.ys[0], run.states[0], run.states[1]};
}

GruResult gru(Tensor x, Tensor input, Tensor recurrent, const RecurrentOptions& o, Here at) {
  at = at.In("gru");
  const int64_t n = CheckNetwork("gru", 3, x, input, recurrent, o, at);
  if (o.c.defined()) Fail(Who("gru", at), ": c was given, but only lstm has such a state");
  Tensor of_x = Plus(matmul(x, input, at), o.bias, at);
  const auto step = [&](const std::vector<Tensor>& s, const std::vector<Tensor>& z) -> ScanResult {
    const std::vector<Tensor> x_gates = split(z[0], 1, 3, at),
                              h_gates =
                                  split(Plus(matmul(s[0], recurrent, at), o.recurrent_bias, at), 1, 3, at);
    Tensor reset = sigmoid(add(x_gates[0], h_gates[0], at), at),
           update = sigmoid(add(x_gates[1], h_gates[1], at), at);
    Tensor candidate = tanh(add(x_gates[2], mul(reset, h_gates[2], at), at), at);
    Tensor h = add(candidate, mul(update, sub(s[0], candidate, at), at), at);
    return {{h}, {h}};
  };
  const ScanResult run =
      scan(step, {OrZeros(o.h, of_x, n, at)}, {of_x}, {.axis = 1, .reverse = o.reverse}, at);
  return {run.ys[0], run.states[0]};
}

// --- Linear recurrences ----------------------------------------------------------------------------

namespace {

const char* const kRecurrence = "linear_recurrence";

Tensor Recurrence(Tensor a, Tensor b, int64_t axis, Tensor first, bool reverse, const Here& at) {
  return One(kRecurrence, {a, b, first}, {{"axis", axis}, {"reverse", int64_t{reverse}}}, at);
}

Tensor WithoutAxis(Tensor x, int64_t axis, double value, const Here& at) {
  Dims shape;
  for (int i = 0; i < x.shape().rank(); ++i)
    if (i != axis) shape.push_back(x.shape()[i]);
  return full(x, shape, value, at);
}

// The axis divided into chunks: within each, from zeros, and the products of a up to each place; from the
// last of both the state in front of each chunk, and what that adds to its places.
Tensor InChunks(Tensor a, Tensor b, int64_t axis, Tensor initial, int64_t chunks, bool reverse,
                const Here& at) {
  const Dims whole = a.shape();
  Dims divided;
  for (int i = 0; i < whole.rank(); ++i) {
    if (i == axis) divided.push_back(chunks);
    divided.push_back(i == axis ? whole[i] / chunks : whole[i]);
  }
  a = reshape(a, divided, at);
  b = reshape(b, divided, at);
  const int64_t inner = axis + 1, length = divided[static_cast<int>(inner)];
  Tensor within = Recurrence(a, b, inner, WithoutAxis(a, inner, 0, at), reverse, at);
  Tensor product = Recurrence(a, full(a, divided, 0, at), inner, WithoutAxis(a, inner, 1, at), reverse, at);
  const int64_t last = reverse ? 0 : length - 1;
  const auto end_of = [&](Tensor x) { return squeeze(slice(x, inner, last, last + 1, at), inner, at); };
  // States behind the chunks; in front of each is that behind the one before it.
  Tensor behind = Recurrence(end_of(product), end_of(within), axis, initial, reverse, at);
  Tensor first = unsqueeze(initial, axis, at);
  Tensor before = reverse ? concat({slice(behind, axis, 1, chunks, at), first}, axis, at)
                          : concat({first, slice(behind, axis, 0, chunks - 1, at)}, axis, at);
  return reshape(add(within, mul(product, unsqueeze(before, inner, at), at), at), whole, at);
}

}  // namespace

Tensor linear_recurrence(Tensor a, Tensor b, int64_t axis, Tensor initial, const LinearRecurrenceOptions& o,
                         Here at) {
  at = at.In(kRecurrence);
  NeedFloating(kRecurrence, "a", a, at);
  NeedFloating(kRecurrence, "b", b, at);
  axis = NormalAxis(kRecurrence, axis, a, at);
  if (a.shape() != b.shape())
    Fail(Who(kRecurrence, at), ": a is ", a.shape().str(), " but b is ", b.shape().str(),
         "; they must have one shape");
  const int64_t extent = a.shape()[static_cast<int>(axis)];
  if (o.chunks < 1 || extent % o.chunks != 0)
    Fail(Who(kRecurrence, at), ": chunks is ", o.chunks, " but must be at least 1 and divide axis ", axis,
         ", which is ", extent);
  if (o.chunks > 1 && a.shape().rank() == Dims::kMaxRank)
    Fail(Who(kRecurrence, at), ": a has ", Dims::kMaxRank, " axes, so there is none left for chunks");
  if (!initial.defined()) initial = WithoutAxis(a, axis, 0, at);
  if (o.chunks == 1) return Recurrence(a, b, axis, initial, o.reverse, at);
  return InChunks(a, b, axis, initial, o.chunks, o.reverse, at);
}

}  // namespace oneflow_like
