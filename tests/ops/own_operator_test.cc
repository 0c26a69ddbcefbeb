// OracleTest on operators of users': a right one passes, and each mistake that one makes is told.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "ops/language/functional.h"
#include "ops/oracle.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// y[n k] = the squared distance of x[n d] and c[k d].
Status Distances(const KernelContext& context) {
  const TensorArg &x = context.in[0], &c = context.in[1], &y = context.out[0];
  const int64_t rows = c.extent[0], width = c.extent[1];
  for (int64_t i = 0; i < x.extent[0]; ++i)
    for (int64_t j = 0; j < rows; ++j) {
      float sum = 0;
      for (int64_t d = 0; d < width; ++d) {
        const float apart = x.as<float>()[i * width + d] - c.as<float>()[j * width + d];
        sum += apart * apart;
      }
      y.as<float>()[i * rows + j] = sum;
    }
  return {};
}

OpDef Distance() {
  OpDef def;
  def.name = "distance";
  def.axes = "x[n d], c[k d] -> y[n k]";
  def.folds = {{"d", Reduce::kSum}};
  def.reference = Distances;
  def.check = [](const OpCall& call) {
    for (DType dtype : call.dtypes)
      if (dtype != DType::kFloat32) Fail(call.who, ": x and c must be f32");
  };
  def.grad = [](const GradCall& call) -> std::vector<Tensor> {
    Tensor x = call.in[0], c = call.in[1], dy = call.dout[0], turned = transpose(dy, {1, 0});
    return {2 * (x * sum(dy, {1}, true) - matmul(dy, c)),
            2 * (c * sum(turned, {1}, true) - matmul(turned, x))};
  };
  def.samples = {{.in = {{4, 3}, {5, 3}}}};
  return def;
}

TEST(OwnOperator, ARightOnePasses) { EXPECT_EQ(OracleTest(Distance()), ""); }

// A program of steps needs no kernel: y = x^2 scaled, and zero at once where b says so.
OpDef Program() {
  OpDef def;
  def.name = "gated_square";
  def.axes = "x[..], gate[..] -> y[..]";
  def.scalar = "square 0;scale 2 factor=0.5;mul 3 1";
  def.check = [](const OpCall& call) {
    for (DType dtype : call.dtypes)
      if (!IsFloating(dtype)) Fail(call.who, ": x and gate must be of a floating type");
    if (call.dtypes[0] != call.dtypes[1]) Fail(call.who, ": x and gate must be of one type");
  };
  def.grad = [](const GradCall& call) -> std::vector<Tensor> {
    Tensor x = call.in[0], gate = call.in[1], dy = call.dout[0];
    const Dims of_x = x.shape(), of_gate = gate.shape();
    return {sum_to(dy * x * gate, of_x), sum_to(0.5 * dy * square(x), of_gate)};
  };
  def.samples = {{.in = {{4, 3}, {4, 3}}}, {.in = {{2, 4, 3}, {4, 1}}}, {.in = {{}, {}}}};
  return def;
}

TEST(OwnOperator, AProgramNeedsNoKernel) {
  EXPECT_EQ(OracleTest(Program()), "");
  OpDef question = Program();  // the type of its result is that of its last step
  question.scalar += ";greater 4 1";
  question.grad = nullptr;
  EXPECT_EQ(OracleTest(question), "");
  OpDef wrong = Program();
  wrong.grad = [](const GradCall& call) -> std::vector<Tensor> {
    const Dims of_x = call.in[0].shape();
    return {sum_to(call.dout[0] * call.in[1], of_x), Tensor()};
  };
  EXPECT_NE(OracleTest(wrong).find("gradient"), std::string::npos);
  wrong = Program();
  wrong.scalar = "square 0;matmul 2 1";
  EXPECT_NE(OracleTest(wrong).find("\"matmul 2 1\" does not name an elementwise operator"),
            std::string::npos);
}

TEST(OwnOperator, MistakesAreTold) {
  const struct {
    const char* words;
    std::function<void(OpDef*)> make;
  } mistakes[] = {
      {"OpDef::samples", [](OpDef* d) { d->samples.clear(); }},
      {"built-in", [](OpDef* d) { d->name = "matmul"; }},
      {"lacks a kernel (OpDef::reference)", [](OpDef* d) { d->reference = nullptr; }},
      {"lacks a name (OpDef::name)", [](OpDef* d) { d->name = ""; }},
      {"lacks a line of labelled axes (OpDef::axes)", [](OpDef* d) { d->axes = ""; }},
      {"whole of its rule names the label q, which none of its axes has", [](OpDef* d) { d->whole = {"q"}; }},
      {"folds of its rule names the label q",
       [](OpDef* d) {
         d->folds = {{"q", Reduce::kSum}};
       }},
      // A cut of d gives sums over parts, which the entry takes for the largest.
      {"distance",
       [](OpDef* d) {
         d->folds = {{"d", Reduce::kMax}};
       }},
      // The rows of c are no rows of x.
      {"distance", [](OpDef* d) { d->axes = "x[n d], c[k d] -> y[k n]"; }},
      // A kernel that takes all that it reads for floats.
      {"add an OpDef::check that refuses them, or handle them", [](OpDef* d) { d->check = nullptr; }},
      {"right in the types of its samples, but not in bf16", [](OpDef* d) { d->check = nullptr; }},
      {"gradient",
       [](OpDef* d) {
         d->grad = [](const GradCall& call) -> std::vector<Tensor> {
           return {call.in[0] * sum(call.dout[0], {1}, true), Tensor()};
         };
       }},
      {"gives 1 gradients for 2 inputs",
       [](OpDef* d) { d->grad = [](const GradCall& call) -> std::vector<Tensor> { return {call.in[0]}; }; }},
      {"element",
       [](OpDef* d) {  // writes a row less
         d->reference = [](const KernelContext& context) {
           KernelContext less = context;
           std::vector<TensorArg> in(context.in.begin(), context.in.end());
           if (in[0].extent[0] > 1) --in[0].extent[0];
           less.in = in;
           return Distances(less);
         };
       }},
  };
  for (const auto& [words, make] : mistakes) {
    OpDef def = Distance();
    make(&def);
    const std::string faults = OracleTest(def);
    EXPECT_NE(faults.find(words), std::string::npos) << words << " not in:\n" << faults;
  }
}

// A gradient may be made of another operator of the user's.
TEST(OwnOperator, OthersMayBeNeeded) {
  OpDef twice = Distance();
  twice.name = "distance_twice";
  twice.grad = [](const GradCall& call) -> std::vector<Tensor> {
    Tensor x = call.in[0], c = call.in[1], dy = call.dout[0];
    Tensor unused = Apply(x.graph(), "distance", {x, c}, {})[0];
    Tensor turned = transpose(dy, {1, 0});
    return {2 * (x * sum(dy, {1}, true) - matmul(dy, c)) + 0 * sum(unused),
            2 * (c * sum(turned, {1}, true) - matmul(turned, x))};
  };
  EXPECT_EQ(OracleTest(twice, {Distance()}), "");
  EXPECT_NE(OracleTest(twice).find("distance"), std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
