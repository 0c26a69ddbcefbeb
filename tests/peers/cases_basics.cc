// Elementwise functions, numbers beside tensors, products, shapes, neural networks.
#include <limits>

#include "tests/peers/values.h"

namespace oneflow_like::peers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// {name, f} of one operand in [low, high).
struct Function {
  const char* name;
  Tensor (*run)(Tensor x);
  double low = -3, high = 3;
};

// A table: a function a line.
ValueCases Functions() {
  const Function functions[] = {
      {"neg", [](Tensor x) { return neg(x); }},
      {"exp", [](Tensor x) { return exp(x); }},
      {"log", [](Tensor x) { return log(x); }, 0.1, 9},
      {"sqrt", [](Tensor x) { return sqrt(x); }, 0.1, 9},
      {"rsqrt", [](Tensor x) { return rsqrt(x); }, 0.1, 9},
      {"square", [](Tensor x) { return square(x); }},
      {"abs", [](Tensor x) { return abs(x); }},
      {"sign", [](Tensor x) { return sign(x); }},
      {"tanh", [](Tensor x) { return tanh(x); }},
      {"erf", [](Tensor x) { return erf(x); }},
      {"sigmoid", [](Tensor x) { return sigmoid(x); }, -9, 9},
      {"relu", [](Tensor x) { return relu(x); }},
      {"gelu", [](Tensor x) { return gelu(x); }},
      {"gelu_erf", [](Tensor x) { return gelu_erf(x); }},
      {"silu", [](Tensor x) { return silu(x); }, -9, 9},
      {"softplus", [](Tensor x) { return softplus(x); }, -15, 15},
      {"reciprocal", [](Tensor x) { return reciprocal(x); }, 0.2, 4},
      {"log1p", [](Tensor x) { return log1p(x); }, -0.9, 9},
      {"log1p/small", [](Tensor x) { return log1p(x); }, -1e-6, 1e-6},
      {"expm1", [](Tensor x) { return expm1(x); }, -9, 9},
      {"expm1/small", [](Tensor x) { return expm1(x); }, -1e-6, 1e-6},
      {"sin", [](Tensor x) { return sin(x); }, -9, 9},
      {"sin/far", [](Tensor x) { return sin(x); }, -1e5, 1e5},
      {"cos", [](Tensor x) { return cos(x); }, -9, 9},
      {"cos/far", [](Tensor x) { return cos(x); }, -1e5, 1e5},
      {"tan", [](Tensor x) { return tan(x); }, -1.4, 1.4},
      {"floor", [](Tensor x) { return floor(x); }, -9, 9},
      {"ceil", [](Tensor x) { return ceil(x); }, -9, 9},
      {"round", [](Tensor x) { return round(x); }, -9, 9},
      {"round/halves", [](Tensor x) { return round(scale(floor(x), 0.5)); }, -9, 9},
      {"log2", [](Tensor x) { return log2(x); }, 0.1, 9},
      {"log10", [](Tensor x) { return log10(x); }, 0.1, 9},
      {"erfinv", [](Tensor x) { return erfinv(x); }, -0.99, 0.99},
      {"lgamma", [](Tensor x) { return lgamma(x); }, 0.2, 9},
      {"digamma", [](Tensor x) { return digamma(x); }, 0.2, 9},
      {"asin", [](Tensor x) { return asin(x); }, -0.95, 0.95},
      {"acos", [](Tensor x) { return acos(x); }, -0.95, 0.95},
      {"atan", [](Tensor x) { return atan(x); }, -9, 9},
      {"sinh", [](Tensor x) { return sinh(x); }, -4, 4},
      {"cosh", [](Tensor x) { return cosh(x); }, -4, 4},
      {"atanh", [](Tensor x) { return atanh(x); }, -0.9, 0.9},
      {"exp2", [](Tensor x) { return exp2(x); }, -9, 9},
      {"erfc", [](Tensor x) { return erfc(x); }, -2, 6},
      {"asinh", [](Tensor x) { return asinh(x); }, -9, 9},
      {"acosh", [](Tensor x) { return acosh(x); }, 1.1, 9},
      {"logit", [](Tensor x) { return logit(x); }, 0.01, 0.99},
      {"trunc", [](Tensor x) { return trunc(x); }, -9, 9},
      {"frac", [](Tensor x) { return frac(x); }, -9, 9},
      {"nan_to_num", [](Tensor x) { return nan_to_num(log(x)); }},
      {"nan_to_num/given",
       [](Tensor x) {
         return nan_to_num(scale(reciprocal(floor(x)), 0.5), {.nan = 3, .infinity = 4, .minus_infinity = 5});
       }},
      {"where/numbers", [](Tensor x) { return mul(x, where(less(x, 0.5), 2, -1)); }},
      {"clamp", [](Tensor x) { return clamp(x, -0.7, 1.2); }},
      {"clamp/above", [](Tensor x) { return clamp(x, -0.7, kInfinity); }},
      {"leaky_relu", [](Tensor x) { return leaky_relu(x, 0.2); }},
      {"elu", [](Tensor x) { return elu(x, 0.8); }},
      {"hardsigmoid", [](Tensor x) { return hardsigmoid(x); }, -9, 9},
      {"hardswish", [](Tensor x) { return hardswish(x); }, -9, 9},
      {"mish", [](Tensor x) { return mish(x); }, -30, 30},
      {"isfinite", [](Tensor x) { return isfinite(log(x)); }},
      {"isnan", [](Tensor x) { return isnan(log(x)); }},
      {"scale", [](Tensor x) { return scale(x, 0.3); }},
      {"shift", [](Tensor x) { return shift(x, 0.3); }},
      {"cast/f16", [](Tensor x) { return cast(x, DType::kFloat16); }},
      {"numbers/after", [](Tensor x) { return (x * 3 - 1) / 7 + 2.5; }},
      {"numbers/before", [](Tensor x) { return 2.0 + 0.5 * (1 - -x) - 3 / (9 + x); }},
      {"maximum/number", [](Tensor x) { return maximum(x, 0.4); }},
      {"minimum/number", [](Tensor x) { return minimum(x, 0.4); }},
      {"remainder/number", [](Tensor x) { return remainder(x, 0.7); }},
      {"pow/number", [](Tensor x) { return pow(x, 2.5) + pow(x, 2) + pow(x, -1) + pow(x, 0.5); }, 0.3, 2},
      {"pow/whole", [](Tensor x) { return pow(x, 3); }, -2, 2},
      {"where/number", [](Tensor x) { return where(less(x, 0.5), x, 7) + where(greater(x, 1), 3, x); }},
      {"stop_gradient", [](Tensor x) { return mul(x, stop_gradient(square(x))); }},
      {"zeros_like", [](Tensor x) { return add(x, zeros_like(x)); }},
      {"ones_like", [](Tensor x) { return add(x, ones_like(x)); }},
      {"full_like", [](Tensor x) { return mul(x, full_like(x, 2.5)); }},
      {"arange_like", [](Tensor x) { return mul(x, arange_like(x, 0)); }},
  };
  ValueCases cases;
  for (const Function& f : functions)
    cases.push_back({f.name, {F({7, 33}, f.low, f.high)}, [f](ValueIn x) { return f.run(x[0]); }});
  return cases;
}

void AddPairs(ValueCases* cases) {
  const ValueCases more = {
      {"add", {F({3, 4}), F({4})}, [](ValueIn x) { return x[0] + x[1]; }},
      {"sub", {F({3, 1}), F({2, 1, 4})}, [](ValueIn x) { return x[0] - x[1]; }},
      {"mul", {F({3, 4}), F({3, 1})}, [](ValueIn x) { return x[0] * x[1]; }},
      {"div", {F({3, 4}), F({4}, 0.5, 2)}, [](ValueIn x) { return x[0] / x[1]; }},
      {"maximum", {F({30, 4}), F({4})}, [](ValueIn x) { return maximum(x[0], x[1]); }},
      {"maximum/ties",
       {I({30}, 3), I({30}, 3)},
       [](ValueIn x) { return maximum(cast(x[0], DType::kFloat32), cast(x[1], DType::kFloat32)); }},
      {"minimum", {F({30, 4}), F({30, 1})}, [](ValueIn x) { return minimum(x[0], x[1]); }},
      {"pow", {F({30, 4}, 0.3, 2), F({4})}, [](ValueIn x) { return pow(x[0], x[1]); }},
      {"remainder", {F({30, 4}, -9, 9), F({4}, 1, 3)}, [](ValueIn x) { return remainder(x[0], x[1]); }},
      {"remainder/negative",
       {F({30, 4}, -9, 9), F({4}, -3, -1)},
       [](ValueIn x) { return remainder(x[0], x[1]); }},
      {"remainder/integers",
       {I({60}, 20, -20), I({60}, 9, 1)},
       [](ValueIn x) { return remainder(x[0], x[1]); }},
      {"atan2", {F({30, 4}), F({4})}, [](ValueIn x) { return atan2(x[0], x[1]); }},
      {"logaddexp", {F({30, 4}, -9, 9), F({4}, -9, 9)}, [](ValueIn x) { return logaddexp(x[0], x[1]); }},
      {"floor_divide", {F({30, 4}, -9, 9), F({4}, 1, 3)}, [](ValueIn x) { return floor_divide(x[0], x[1]); }},
      {"floor_divide/negative",
       {F({30, 4}, -9, 9), F({4}, -3, -1)},
       [](ValueIn x) { return floor_divide(x[0], x[1]); }},
      {"floor_divide/tenths", {F({400}, 0, 9)}, [](ValueIn x) { return floor_divide(floor(x[0]), 0.1); }},
      {"floor_divide/integers",
       {I({60}, 20, -20), I({60}, 9, 1)},
       [](ValueIn x) -> ValueResults {
         return std::vector<Tensor>{floor_divide(x[0], x[1]), x[0] / neg(x[1])};
       }},
      {"add_n",
       {F({3, 4}), F({3, 4}), F({3, 4})},
       [](ValueIn x) {
         return add_n({x[0], x[1], x[2]});
       }},
      {"equal", {I({40}, 4), I({40}, 4)}, [](ValueIn x) { return equal(x[0], x[1]); }},
      {"not_equal", {I({40}, 4), I({40}, 4)}, [](ValueIn x) { return not_equal(x[0], x[1]); }},
      {"less", {I({40}, 4), I({40}, 4)}, [](ValueIn x) { return less(x[0], x[1]); }},
      {"less_equal", {I({40}, 4), I({40}, 4)}, [](ValueIn x) { return less_equal(x[0], x[1]); }},
      {"greater", {I({40}, 4), I({40}, 4)}, [](ValueIn x) { return greater(x[0], x[1]); }},
      {"greater_equal", {I({40}, 4), I({40}, 4)}, [](ValueIn x) { return greater_equal(x[0], x[1]); }},
      {"equal/number",
       {I({40}, 4)},
       [](ValueIn x) -> ValueResults {
         return std::vector<Tensor>{equal(x[0], 2),      not_equal(x[0], 2), less(x[0], 2),
                                    less_equal(x[0], 2), greater(x[0], 2),   greater_equal(x[0], 2)};
       }},
      {"where", {Flags({5, 1}), F({5, 4}), F({4})}, [](ValueIn x) { return where(x[0], x[1], x[2]); }},
      {"logical_and", {Flags({40}), Flags({40})}, [](ValueIn x) { return logical_and(x[0], x[1]); }},
      {"logical_or", {Flags({40}), Flags({40})}, [](ValueIn x) { return logical_or(x[0], x[1]); }},
      {"logical_xor", {Flags({40}), Flags({40})}, [](ValueIn x) { return logical_xor(x[0], x[1]); }},
      {"logical_not", {Flags({40})}, [](ValueIn x) { return logical_not(x[0]); }},
      {"bitwise_and",
       {I({40}, 99, -99), I({40}, 99, -99)},
       [](ValueIn x) { return bitwise_and(x[0], x[1]); }},
      {"bitwise_or", {I({40}, 99, -99), I({40}, 99, -99)}, [](ValueIn x) { return bitwise_or(x[0], x[1]); }},
      {"bitwise_xor",
       {I({40}, 99, -99), I({40}, 99, -99)},
       [](ValueIn x) { return bitwise_xor(x[0], x[1]); }},
      {"bitwise_not", {I({40}, 99, -99)}, [](ValueIn x) { return bitwise_not(x[0]); }},
      {"left_shift", {I({40}, 99, -99), I({40}, 20)}, [](ValueIn x) { return left_shift(x[0], x[1]); }},
      {"right_shift", {I({40}, 9999, -9999), I({40}, 20)}, [](ValueIn x) { return right_shift(x[0], x[1]); }},
      {"prelu", {F({6, 5, 4}), F({4}, -0.5, 0.5)}, [](ValueIn x) { return prelu(x[0], x[1]); }},
      {"prelu/channels", {F({6, 5, 4}), F({5}, -0.5, 0.5)}, [](ValueIn x) { return prelu(x[0], x[1], 1); }},
      {"prelu/one", {F({6, 5}), F({1}, -0.5, 0.5)}, [](ValueIn x) { return prelu(x[0], x[1]); }},
      {"cast", {I({40}, 9)}, [](ValueIn x) { return cast(x[0], DType::kFloat32); }},
      {"numbers/integers", {I({40}, 9, -9)}, [](ValueIn x) { return 3 * x[0] - 7 + x[0] / 2; }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddProducts(ValueCases* cases) {
  const ValueCases more = {
      {"matmul", {F({3, 1, 5, 7}), F({2, 7, 4})}, [](ValueIn x) { return matmul(x[0], x[1]); }},
      {"einsum", {F({2, 3, 5}), F({5, 2, 4})}, [](ValueIn x) { return einsum("bsw,whd->bshd", x[0], x[1]); }},
      {"einsum/dots",
       {F({3, 1, 5, 7}), F({2, 7, 4})},
       [](ValueIn x) { return einsum("...ij,...jk->...ik", x[0], x[1]); }},
      {"einsum/one", {F({3, 4, 5})}, [](ValueIn x) { return einsum("abc->ca", {x[0]}); }},
      {"einsum/three",
       {F({3, 4}), F({4, 5}), F({5, 6})},
       [](ValueIn x) {
         return einsum("ab,bc,cd->ad", {x[0], x[1], x[2]});
       }},
      {"einsum/chain",
       {F({2, 9}), F({9, 3}), F({3, 8}), F({8, 2}), F({2, 5})},
       [](ValueIn x) { return einsum("ab,bc,cd,de,ef->af", x); }},
      {"einsum/seven",
       {F({2, 3}), F({3, 2}), F({2, 4}), F({4, 2}), F({2}), F({3}), F({2, 2})},
       [](ValueIn x) { return einsum("ab,bc,cd,de,e,b,ef->fa", x); }},
      {"einsum/lost",
       {F({2, 3, 4}), F({3, 5}), F({6})},
       [](ValueIn x) {
         return einsum("abc,bd,e->a", {x[0], x[1], x[2]});
       }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

HostTensor Numbers() {
  HostTensor numbers = HostTensor::Make(DType::kFloat32, {2, 3});
  for (int i = 0; i < 6; ++i) numbers.as<float>()[i] = 0.5f * static_cast<float>(i * i);
  return numbers;
}

void AddShapes(ValueCases* cases) {
  const ValueCases more = {
      {"sum_to",
       {F({3, 4, 5})},
       [](ValueIn x) {
         return sum_to(x[0], {4, 1});
       }},
      {"broadcast_to",
       {F({4, 1})},
       [](ValueIn x) {
         return broadcast_to(x[0], {3, 4, 5});
       }},
      {"reshape",
       {F({4, 6})},
       [](ValueIn x) {
         return reshape(x[0], {3, -1});
       }},
      {"transpose",
       {F({3, 4, 5})},
       [](ValueIn x) {
         return transpose(x[0], {2, 0, 1});
       }},
      {"slice", {F({3, 9})}, [](ValueIn x) { return slice(x[0], 1, 2, 7); }},
      {"slice/negative", {F({3, 9})}, [](ValueIn x) { return slice(x[0], -1, -7, -2); }},
      {"slice/open", {F({3, 9})}, [](ValueIn x) { return slice(x[0], 1, 4, kEnd); }},
      {"slice/step", {F({3, 9, 2})}, [](ValueIn x) { return slice(x[0], 1, 1, kEnd, 3); }},
      {"select", {F({3, 9, 2})}, [](ValueIn x) { return select(x[0], 1, -2); }},
      {"index", {F({3, 9})}, [](ValueIn x) { return x[0][0] + x[0][-1]; }},
      {"concat", {F({2, 3}), F({2, 1}), F({2, 4})}, [](ValueIn x) { return concat(x, 1); }},
      {"split", {F({2, 6})}, [](ValueIn x) -> ValueResults { return split(x[0], 1, 3); }},
      {"pad", {F({2, 6})}, [](ValueIn x) { return pad(x[0], 1, 2, 1); }},
      {"gather", {F({6, 3}), I({4, 2}, 6)}, [](ValueIn x) { return gather(x[0], x[1]); }},
      {"pick", {F({6, 3}), I({6}, 3)}, [](ValueIn x) { return pick(x[0], x[1]); }},
      {"one_hot", {I({6}, 3)}, [](ValueIn x) { return one_hot(x[0], 3); }},
      {"full", {F({3, 2})}, [](ValueIn x) { return x[0] * full(x[0], {2}, 1.5); }},
      {"zeros", {F({3, 2})}, [](ValueIn x) { return x[0] + zeros(x[0], {2}); }},
      {"constant", {F({2, 3})}, [](ValueIn x) { return x[0] * constant(x[0].graph(), Numbers()); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

void AddNetworks(ValueCases* cases) {
  const ValueCases more = {
      {"softmax", {F({5, 17}, -9, 9)}, [](ValueIn x) { return softmax(x[0]); }},
      {"log_softmax", {F({5, 17}, -9, 9)}, [](ValueIn x) { return log_softmax(x[0]); }},
      {"layer_norm", {F({5, 17}), F({17}), F({17})}, [](ValueIn x) { return layer_norm(x[0], x[1], x[2]); }},
      {"rms_norm", {F({5, 17}), F({17})}, [](ValueIn x) { return rms_norm(x[0], x[1]); }},
      {"embedding", {F({6, 3}), I({4, 2}, 6)}, [](ValueIn x) { return embedding(x[0], x[1]); }},
      {"attention",
       {F({2, 5, 3, 8}), F({2, 5, 3, 8}), F({2, 5, 3, 8})},
       [](ValueIn x) { return attention(x[0], x[1], x[2]); }},
      {"attention/all",
       {F({2, 5, 3, 8}), F({2, 7, 3, 8}), F({2, 7, 3, 8})},
       [](ValueIn x) { return attention(x[0], x[1], x[2], {.causal = false, .scale = 0.5}); }},
  };
  cases->insert(cases->end(), more.begin(), more.end());
}

}  // namespace

ValueCases BasicCases() {
  ValueCases cases = Functions();
  AddPairs(&cases);
  AddProducts(&cases);
  AddShapes(&cases);
  AddNetworks(&cases);
  return cases;
}

}  // namespace oneflow_like::peers
