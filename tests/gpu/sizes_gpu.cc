// Products and attention of the sizes that models have, where libraries choose other kernels than for the
// catalog's small samples, and attention's 16-bit kernels are the library's at all: 16-bit operands against
// the same operator of fp32 operands of the same values, on the device, row by row.
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/oracle/check.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/device_kernels.h"

DECLARE_int32(device);

namespace oneflow_like::gpu {
namespace {

using oracle::Draws;
using oracle::Value;
using Values = std::vector<Value>;

// Half the distance of neighbours, relative.
double Rounding(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11; }

Value Drawn(DType dtype, const Dims& shape, Draws* draws) {
  Value value(dtype, shape);
  for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, draws->Uniform() * 2 - 1);
  return value;
}

Values Wide(const Values& narrow) {
  Values wide;
  for (const Value& value : narrow) {
    wide.emplace_back(DType::kFloat32, value.shape());
    for (int64_t i = 0; i < value.elements(); ++i) wide.back().Set(i, value.Get(i));
  }
  return wide;
}

Values OnDevice(const std::string& name, const Attrs& attrs, const Values& in) {
  static auto* kernels = new DeviceKernels(TestedBackend(), FLAGS_device, false);
  const OpDef& def = BuiltinCatalog().Get(name);
  OpCall call{name, name, {}, {}, &attrs};
  for (const Value& value : in) {
    call.shapes.push_back(value.shape());
    call.dtypes.push_back(value.dtype());
  }
  const Inferred inferred = Infer(def, call);
  Values out;
  for (size_t o = 0; o < inferred.rule.out.size(); ++o)
    out.emplace_back(inferred.dtypes[o], inferred.rule.out[o].shape);
  Status status =
      oracle::RunWhole(def, attrs, in, &out, [](const KernelSpec& spec) { return kernels->Make(spec); });
  EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  return out;
}

double& Worst() {
  static double worst = 0;
  return worst;
}

// Each row's difference is at most `bound` of the row, by their Euclidean norms; of a row that nearly cancels
// at most `bound` of a twentieth of an average one.
void ExpectRows(const std::string& what, const Value& got, const Value& want, double bound) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  const int64_t width = want.shape().rank() > 0 ? want.shape().back() : 1, n = want.elements();
  double squares = 0, worst = 0;
  int64_t worst_row = 0;
  for (int64_t i = 0; i < n; ++i) squares += want.Get(i) * want.Get(i);
  const double floor = std::sqrt(squares / static_cast<double>(n) * static_cast<double>(width)) / 20;
  for (int64_t row = 0; row < n / width; ++row) {
    double apart = 0, size = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      apart += (got.Get(i) - want.Get(i)) * (got.Get(i) - want.Get(i));
      size += want.Get(i) * want.Get(i);
    }
    const double difference = std::sqrt(apart) / (std::sqrt(size) + floor);
    if (!(difference <= worst)) worst = difference, worst_row = row;
  }
  EXPECT_LE(worst, bound) << what << " of " << want.shape().str() << ", row " << worst_row << " of "
                          << n / width;
  Worst() = std::max(Worst(), worst / bound);
  SetFigure(Cat("at worst ", Worst(), " of what roundings may do"));
}

class ModelSizes : public testing::TestWithParam<DType> {
 protected:
  DType narrow() const { return GetParam(); }
  // Of a product of 16-bit operands only the result is rounded (a gelu's tanh may be the hardware's, good to
  // 2^-11): one rounding. Of attention also the probabilities and the slopes of the scores, each on its own,
  // before they are summed: two. Twice as much is allowed, since the norm of a row is not every element.
  double Bound() const { return 4 * Rounding(narrow()); }

  // The operator on 16-bit operands, which a library must do: a right result that is slower is a failure
  // here.
  Values ByLibrary(const std::string& what, int64_t BackendCounts::*library, const std::string& name,
                   const Attrs& attrs, const Values& in) {
    const BackendCounts before = TestedBackend()->Counts();
    Values out = OnDevice(name, attrs, in);
    const BackendCounts after = TestedBackend()->Counts();
    EXPECT_GT(after.*library, before.*library) << what << " was not done by the library";
    EXPECT_EQ(after.Refused(), before.Refused()) << what << " was refused by the library, in part at least";
    return out;
  }

  void CheckProduct(const std::string& name, const Attrs& attrs, const Values& in) {
    const std::string label = Cat(name, " '", attrs.Str("equation", ""), "' of ", Name(narrow()));
    const Values got = ByLibrary(label, &BackendCounts::library_products, name, attrs, in),
                 want = OnDevice(name, attrs, Wide(in));
    for (size_t o = 0; o < got.size(); ++o) {
      // fp32 from 16 bits: tensor cores cut off instead of rounding, 2^-23 for every 16 terms of at most
      // 4096.
      const double bound = got[o].dtype() == DType::kFloat32 ? 4096 / 16 * 0x1p-23 * 4 : Bound();
      ExpectRows(Cat(label, ", output ", o), got[o], want[o], bound);
    }
  }

  // With dropout it is our tile's, and in fp32 the same draws are dropped.
  void CheckAttention(const Dims& q_shape, const Dims& k_shape, bool causal, double dropout = 0) {
    Draws draws(5);
    const Attrs attrs = {
        {"causal", int64_t{causal}}, {"dropout", dropout}, {"scale", 0.0}, {"key", int64_t{17}}};
    Values in;
    for (const Dims& shape : {q_shape, k_shape, k_shape}) in.push_back(Drawn(narrow(), shape, &draws));
    const std::string what = Cat("attention of ", Name(narrow()), q_shape.str(), causal ? " causal" : "",
                                 dropout > 0 ? " with dropout" : "");
    const auto narrow_by = [&](const std::string& of, const std::string& name, const Values& operands) {
      return dropout > 0 ? OnDevice(name, attrs, operands)
                         : ByLibrary(of, &BackendCounts::library_attention, name, attrs, operands);
    };
    const Values got = narrow_by(what, "attention", in), want = OnDevice("attention", attrs, Wide(in));
    ExpectRows(what, got[0], want[0], Bound());
    // The logarithm of a sum, of rounded terms at worst, is off by a rounding.
    for (int64_t i = 0; i < want[1].elements(); ++i)
      ASSERT_LE(std::abs(got[1].Get(i) - want[1].Get(i)), Rounding(narrow())) << what << ", lse " << i;
    Values back;
    back.push_back(Drawn(narrow(), q_shape, &draws));
    for (const Value& value : in) back.push_back(value);
    back.push_back(got[0]);
    back.push_back(got[1]);
    const Values slopes = narrow_by("the gradient of " + what, "attention_grad", back);
    const Values wanted = OnDevice("attention_grad", attrs, Wide(back));
    const char* names[] = {"queries", "keys", "values"};
    for (size_t o = 0; o < slopes.size(); ++o)
      ExpectRows(Cat("gradient of the ", names[o], " of ", what), slopes[o], wanted[o], Bound());
    const Values again = OnDevice("attention_grad", attrs, back);
    for (size_t o = 0; o < slopes.size(); ++o)
      EXPECT_EQ(std::memcmp(slopes[o].data(), again[o].data(), slopes[o].bytes()), 0)
          << "gradient of the " << names[o] << " of " << what << " is not repeatable";
  }
};

TEST_P(ModelSizes, Products) {
  Draws draws(3);
  const int64_t rows = Emulated() ? 24 : 4096, width = Emulated() ? 16 : 768, inner = 4 * width,
                heads = width / 8, classes = Emulated() ? 40 : 50304;
  const Value x = Drawn(narrow(), {rows, width}, &draws), up = Drawn(narrow(), {width, inner}, &draws),
              down = Drawn(narrow(), {inner, width}, &draws), bias = Drawn(narrow(), {inner}, &draws),
              hidden = Drawn(narrow(), {rows, inner}, &draws),
              table = Drawn(narrow(), {classes, width}, &draws);
  auto linear = [](const char* equation, int64_t has_bias, int64_t residual, int64_t gelu) {
    return Attrs{{"equation", std::string(equation)},
                 {"bias", has_bias},
                 {"residual", residual},
                 {"gelu", gelu},
                 {"pre", gelu}};
  };
  CheckProduct("linear", linear("mk,kn->mn", 1, 0, 0), {x, up, bias});
  CheckProduct("linear", linear("mk,kn->mn", 1, 0, 1), {x, up, bias});
  CheckProduct("linear", linear("mk,kn->mn", 0, 1, 0), {hidden, down, x});
  CheckProduct("linear_grad_gelu", {{"equation", std::string("mn,kn->mk")}}, {x, down, hidden});
  for (const char* dtype : {"", "f32"}) {
    Attrs attrs = {{"equation", std::string("mk,mn->kn")}, {"bias_rank", int64_t{1}}};
    if (*dtype) attrs.Set("dtype", std::string(dtype));
    CheckProduct("linear_grad_weight", attrs, {x, hidden});
  }
  const Value some = Drawn(narrow(), {rows / 8, width}, &draws),
              heads_of_rows = Drawn(narrow(), {2, rows / 2, heads, 8}, &draws);
  CheckProduct("einsum", {{"equation", std::string("mk,vk->mv")}}, {some, table});
  CheckProduct("einsum", {{"equation", std::string("bshd,bshe->hde")}}, {heads_of_rows, heads_of_rows});
}

TEST_P(ModelSizes, Attention) {
  if (Emulated()) {
    CheckAttention({2, 40, 2, 16}, {2, 40, 2, 16}, true);
    CheckAttention({1, 24, 2, 8}, {1, 40, 2, 8}, false);
    CheckAttention({1, 40, 2, 16}, {1, 40, 2, 16}, true, 0.1);
    return;
  }
  CheckAttention({2, 1024, 12, 64}, {2, 1024, 12, 64}, true);
  CheckAttention({1, 1024, 16, 128}, {1, 1024, 16, 128}, true);
  CheckAttention({1, 256, 6, 64}, {1, 1024, 6, 64}, true);     // a shifted mask
  CheckAttention({2, 200, 4, 64}, {2, 1000, 4, 64}, false);    // no multiples of a tile
  CheckAttention({24, 512, 12, 64}, {24, 512, 12, 64}, true);  // backward in equal parts
  for (int64_t width : {64, 128, 192}) CheckAttention({2, 1024, 12, width}, {2, 1024, 4, width}, true, 0.1);
  // In parts of two sequences and one that is left, whose log-sum-exps lie at multiples of 8 and 4 bytes.
  CheckAttention({7, 1023, 25, 64}, {7, 1023, 25, 64}, true);
}

INSTANTIATE_TEST_SUITE_P(Types, ModelSizes, testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace oneflow_like::gpu
