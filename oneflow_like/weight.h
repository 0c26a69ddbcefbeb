// Options of a model's variable: its initial value, its cut over the mesh, and its training.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/host_tensor.h"
#include "sbp/sbp.h"

namespace oneflow_like {

// Signatures by mesh axis; axes not named are chosen by the compiler (weights: B). A mesh axis may be named
// once:
// {{"dp", S(0)}, {"tp", S(1)}}, or as text "dp:S0 tp:S1". A name may stand for several axes (a group of the
// mesh, or a product as "replica*dp"); cuts of one tensor axis by several mesh axes nest, outer mesh axis
// first.
struct Annotation : std::vector<std::pair<std::string, Sbp>> {
  Annotation() = default;
  Annotation(std::initializer_list<value_type> list) : vector(list) {}
  template <size_t N>
  Annotation(const char (&text)[N]) : Annotation(Parse(text)) {}  // NOLINT: implicit on purpose
  static Annotation Parse(const std::string& text);               // throws Error
};

// The axes of a weight that its fans multiply: for "bsw,whd->bshd", in = {0}, out = {1, 2}.
struct Fans {
  std::vector<int> in, out;
};

// The initial value of a weight: an initialiser operator and its numbers. Without Fans, fan_in is the product
// of all axes but the last, and fan_out is the last.
struct Initializer {
  enum class Kind {
    kFull,
    kUniform,
    kNormal,
    kTruncatedNormal,
    kXavierUniform,
    kXavierNormal,
    kKaimingUniform,
    kKaimingNormal,
    kOrthogonal,
    kTensor
  } kind;
  double a = 0, b = 0;
  Fans fans = {};
  std::shared_ptr<const HostTensor> tensor = nullptr;
};
inline Initializer Zeros() { return {Initializer::Kind::kFull, 0, 0}; }
inline Initializer Ones() { return {Initializer::Kind::kFull, 1, 0}; }
inline Initializer Full(double value) { return {Initializer::Kind::kFull, value, 0}; }
inline Initializer Uniform(double low, double high) { return {Initializer::Kind::kUniform, low, high}; }
inline Initializer Normal(double stddev, double mean = 0) {
  return {Initializer::Kind::kNormal, mean, stddev};
}
inline Initializer TruncatedNormal(double stddev, double mean = 0) {
  return {Initializer::Kind::kTruncatedNormal, mean, stddev};
}
// Glorot and Bengio 2010: variance 2 / (fan_in + fan_out).
inline Initializer XavierUniform(Fans fans = {}) { return {Initializer::Kind::kXavierUniform, 0, 0, fans}; }
inline Initializer XavierNormal(Fans fans = {}) { return {Initializer::Kind::kXavierNormal, 0, 0, fans}; }
// He et al. 2015: variance 2 / fan_in.
inline Initializer KaimingUniform(Fans fans = {}) { return {Initializer::Kind::kKaimingUniform, 0, 0, fans}; }
inline Initializer KaimingNormal(Fans fans = {}) { return {Initializer::Kind::kKaimingNormal, 0, 0, fans}; }
// Saxe et al. 2014: rows (all axes but the last, merged) or columns, whichever are fewer, are orthogonal and
// of length `gain`. Computed on the host when the weight is created.
inline Initializer Orthogonal(double gain = 1) { return {Initializer::Kind::kOrthogonal, gain, 0}; }
// The given numbers, which must have the weight's shape and type. The model keeps them for its lifetime.
inline Initializer FromTensor(HostTensor value) {
  return {Initializer::Kind::kTensor, 0, 0, {}, std::make_shared<const HostTensor>(std::move(value))};
}

// Options of a weight besides its name, shape and initialiser. An option that is left out has its default, or
// the value from a pattern of ModelOptions::weights.
struct WeightOptions {
  Annotation sbp;     // cut as computed
  Annotation stored;  // further cuts of the stored weight (and of its optimizer state), which is gathered
                      // for use
  // false: frozen, without gradient, optimizer state, or messages in training. Default: true.
  std::optional<bool> trainable;
  // Factors on the optimizer's weight decay and learning rate. Default of `rate`: 1; of `decay`: 1 for
  // weights of two and more axes that an operator other than an elementwise one reads (products,
  // convolutions, tables), 0 for biases and the parameters of norms.
  std::optional<double> decay, rate;
  // Type in memory of a frozen weight, f32, bf16 or f16; Weight returns an f32 tensor in any case. Default:
  // f32.
  std::optional<DType> dtype;
};

// `{}` in place of options.
enum class NoOptions : uint8_t {};

struct StateOptions {
  Annotation sbp, stored;  // as of weights
  DType dtype = DType::kFloat32;
};

// Options by path, for weights that are requested by code elsewhere: '*' stands for any characters, '?' for
// one. If several matching patterns give an option, the last one counts, and it overrides the request; `sbp`
// and `stored` also where the other named their mesh axis before. A pattern without a match is an Error when
// a session is created.
struct WeightPattern {
  std::string pattern;
  WeightOptions options;
};

}  // namespace oneflow_like
