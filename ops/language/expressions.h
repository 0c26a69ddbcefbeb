// Tensors in expressions: a + b, 2 * x, 1 - x, -x, x < 0.5 as less(x, 0.5), x[-1]; constants with the shape
// and type of a tensor, literals, and stop_gradient. Part of ops/language/functional.h.
#pragma once

#include <cmath>

#include "core/host_tensor.h"
#include "ops/language/functional.h"

namespace oneflow_like {

// An operand with its source line: a binary operator cannot have a default argument for it.
struct Located {
  Tensor tensor;
  Here at;
  Located(Tensor t, OFL_HERE) : tensor(t), at(at) {}  // NOLINT: implicit on purpose
};
inline Tensor operator+(Tensor a, Located b) { return add(a, b.tensor, b.at); }
inline Tensor operator-(Tensor a, Located b) { return sub(a, b.tensor, b.at); }
inline Tensor operator*(Tensor a, Located b) { return mul(a, b.tensor, b.at); }
inline Tensor operator/(Tensor a, Located b) { return div(a, b.tensor, b.at); }
inline Tensor operator-(Located x) { return neg(x.tensor, x.at); }

// --- With numbers. Beside an integer tensor the number must be whole, else it is an Error: nothing is cast
// ---

Tensor operator+(Located x, double number);
Tensor operator+(double number, Located x);
Tensor operator-(Located x, double number);
Tensor operator-(double number, Located x);
Tensor operator*(Located x, double number);
Tensor operator*(double number, Located x);
Tensor operator/(Located x, double number);  // floating: x * (1 / number); integers round down
Tensor operator/(double number, Located x);

Tensor maximum(Tensor x, double number, OFL_HERE);  // the gradient passes where x >= number
Tensor minimum(Tensor x, double number, OFL_HERE);
Tensor remainder(Tensor x, double number, OFL_HERE);
Tensor floor_divide(Tensor x, double number, OFL_HERE);
Tensor pow(Tensor x, double number, OFL_HERE);
Tensor where(Tensor condition, Tensor a, double b, OFL_HERE);
Tensor where(Tensor condition, double a, Tensor b, OFL_HERE);
// Of this type, which must hold both numbers.
Tensor where(Tensor condition, double a, double b, DType dtype = DType::kFloat32, OFL_HERE);
// x with other numbers in place of NaN and of both infinities: by default 0, and the largest and the least
// finite numbers of its type. Elements that were replaced get no gradient.
struct NanToNum {
  double nan = 0, infinity = INFINITY, minus_infinity = -INFINITY;
};
Tensor nan_to_num(Tensor x, const NanToNum& numbers = {}, OFL_HERE);
// Comparisons have no operators: a == b might be mistaken for a test whether two handles are the same.
Tensor equal(Tensor x, double number, OFL_HERE);
Tensor not_equal(Tensor x, double number, OFL_HERE);
Tensor less(Tensor x, double number, OFL_HERE);
Tensor less_equal(Tensor x, double number, OFL_HERE);
Tensor greater(Tensor x, double number, OFL_HERE);
Tensor greater_equal(Tensor x, double number, OFL_HERE);

// --- Parts: x[i], x[-1] (ops/language/tensor.h) is the slice at one index of axis 0, without that axis ---

// The same for any axis: [.. n ..] -> [.. ..].
Tensor select(Tensor x, int64_t axis, int64_t index, OFL_HERE);

// --- Constants ---

// With x's shape, type and graph.
Tensor zeros_like(Tensor x, OFL_HERE);
Tensor ones_like(Tensor x, OFL_HERE);
Tensor full_like(Tensor x, double value, OFL_HERE);
// 0, 1, 2, ... along `axis` of x, in its shape and type, the same along all other axes.
Tensor arange_like(Tensor x, int64_t axis = -1, OFL_HERE);
// In the graph of x, with its type.
Tensor full(Tensor x, const Dims& shape, double value, OFL_HERE);
Tensor zeros(Tensor x, const Dims& shape, OFL_HERE);

// A literal: a copy of the values is part of the graph and of its plans; of the tensor a rank holds the piece
// that its readers want. Texts of graphs show its type, shape and hash. At most 2^26 bytes (64 MiB); use a
// variable or an input for more.
Tensor constant(GraphBuilder* graph, const HostTensor& values, OFL_HERE);

// --- Gradients ---

// x without gradient flow. Nothing is copied.
Tensor stop_gradient(Tensor x, OFL_HERE);

}  // namespace oneflow_like
