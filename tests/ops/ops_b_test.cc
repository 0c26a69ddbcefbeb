// Products, softmax, losses, norms, embedding, attention, dropout and updates: gradients against finite
// differences, expansions against their operators, random masks against cuts, updates against a loop written
// by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/random.h"
#include "ops/language/functional.h"
#include "ops/language/schedule.h"
#include "ops/manifest.h"
#include "ops/oracle/gradient.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

using oracle::Tape;
using oracle::Value;

constexpr uint64_t kSeed = 7;

Value Make(const Dims& shape, const std::vector<double>& values, DType dtype = DType::kFloat32) {
  Value value(dtype, shape);
  EXPECT_EQ(static_cast<int64_t>(values.size()), value.elements());
  for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, values[i]);
  return value;
}

Value Draw(const Dims& shape, uint64_t seed, double low = -1, double high = 1) {
  oracle::Draws draws(seed);
  Value value(DType::kFloat32, shape);
  for (int64_t i = 0; i < value.elements(); ++i) value.Set(i, low + (high - low) * draws.Uniform());
  return value;
}

TensorArg Whole(const Value& v) { return oracle::WholeArg(v); }

Status RunOp(const std::string& op, const Attrs& attrs, const std::vector<TensorArg>& in,
             const std::vector<TensorArg>& out, int64_t step = 0) {
  KernelSpec spec{op, attrs, in, out, op, {}};
  const OpDef& def = BuiltinCatalog().Get(op);
  std::vector<double> scratch(def.scratch ? def.scratch(spec) / sizeof(double) + 1 : 0);
  return def.reference({spec, in, out, scratch.data(), step, 0, 1, kSeed});
}

void ExpectNear(const Value& got, const Value& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.shape().str(), want.shape().str()) << what;
  for (int64_t i = 0; i < want.elements(); ++i) {
    if (got.Get(i) == want.Get(i)) continue;  // infinities, too
    ASSERT_NEAR(got.Get(i), want.Get(i), tolerance) << what << " element " << i;
  }
}

std::vector<Tensor> Inputs(Tape* tape, const std::vector<Value>& values) {
  std::vector<Tensor> in;
  for (const Value& v : values) in.push_back(tape->Input(v));
  return in;
}

// --- Gradients and expansions, over all samples ---

const char* const kOps[] = {"matmul",        "einsum",           "softmax",    "log_softmax",
                            "softmax_grad",  "log_softmax_grad", "layer_norm", "rms_norm",
                            "cross_entropy", "embedding",        "attention",  "dropout"};

std::vector<oracle::Trial> Trials(const std::string& op) {
  const OpDef& def = BuiltinCatalog().Get(op);
  std::vector<oracle::Trial> trials;
  for (const Sample& sample : def.samples) {
    trials.push_back(oracle::MakeTrial(def, sample, MakeFunctionKernel(def.reference), false));
    EXPECT_TRUE(trials.back().status.ok()) << trials.back().text << ": " << trials.back().status.message();
  }
  return trials;
}

TEST(OpsB, GradientsAgreeWithFiniteDifferences) {
  for (const char* op : kOps) {
    if (!BuiltinCatalog().Get(op).grad) continue;
    oracle::Report report;
    for (const oracle::Trial& trial : Trials(op)) {
      for (size_t output = 0; output < trial.out.size(); ++output)
        oracle::CheckGradient(trial, output, BuiltinCatalog(), &report);
    }
    EXPECT_GT(report.cases, 0) << op;
    EXPECT_EQ(report.failed, 0) << op << "\n" << report.str();
  }
}

TEST(OpsB, ExpansionsGiveWhatTheirOperatorsGive) {
  int expanded = 0;
  for (const char* op : kOps) {
    const OpDef& def = BuiltinCatalog().Get(op);
    if (!def.expand) continue;
    for (const oracle::Trial& trial : Trials(op)) {
      Tape tape;
      std::vector<Tensor> out = def.expand(trial.sample.attrs, Inputs(&tape, trial.in));
      ASSERT_EQ(out.size(), trial.out.size()) << trial.text;
      for (size_t o = 0; o < out.size(); ++o) {
        EXPECT_EQ(out[o].dtype(), trial.out_dtypes[o]) << trial.text;
        ExpectNear(tape.At(out[o]), trial.out[o], 1e-5, trial.text);
        ++expanded;
      }
    }
  }
  EXPECT_GE(expanded, 15);
}

// --- Products ---

// What compiler/passes/fuse_epilogue.cc makes of several nodes gives what those give.
TEST(OpsB, ProductsWithWhatFollowsGiveWhatThePartsGive) {
  int pre = 0;
  for (const oracle::Trial& trial : Trials("linear")) {
    Tape tape;
    const Attrs& attrs = trial.sample.attrs;
    std::vector<Tensor> in = Inputs(&tape, trial.in);
    Tensor y = einsum(attrs.Str("equation"), in[0], in[1]);
    if (attrs.Int("bias", 0)) y = add(y, in[2]);
    if (attrs.Int("residual", 0)) y = add(y, in.back());
    if (attrs.Int("pre", 0)) {
      ExpectNear(tape.At(y), trial.out[1], 1e-5, trial.text);
      ++pre;
    }
    ExpectNear(tape.At(attrs.Int("gelu", 0) ? gelu(y) : y), trial.out[0], 1e-5, trial.text);
  }
  EXPECT_GT(pre, 0);
  for (const oracle::Trial& trial : Trials("linear_grad_gelu")) {
    Tape tape;
    std::vector<Tensor> in = Inputs(&tape, trial.in);
    Tensor dy = einsum(trial.sample.attrs.Str("equation"), in[0], in[1]);
    ExpectNear(tape.At(Apply(&tape, "gelu_grad", {dy, in[2]})[0]), trial.out[0], 1e-5, trial.text);
  }
  for (const oracle::Trial& trial : Trials("linear_grad_weight")) {
    Tape tape;
    std::vector<Tensor> in = Inputs(&tape, trial.in);
    for (Tensor& t : in) t = cast(t, trial.out[0].dtype());
    Tensor dw = einsum(trial.sample.attrs.Str("equation"), in[0], in[1]);
    ExpectNear(tape.At(dw), trial.out[0], 1e-5, trial.text);
    // The bias's axes are the last ones of dy.
    const int kept = trial.out[1].shape().rank(), lead = in[1].shape().rank() - kept;
    std::vector<int64_t> axes;
    for (int axis = 0; axis < lead; ++axis) axes.push_back(axis);
    ExpectNear(tape.At(sum(in[1], axes)), trial.out[1], 1e-5, trial.text);
  }
}

TEST(OpsB, MatmulMultiplies) {
  Tape tape;
  Tensor a = tape.Input(Make({2, 3}, {1, 2, 3, 4, 5, 6})), b = tape.Input(Make({3, 2}, {1, 0, 0, 1, 2, -1}));
  ExpectNear(tape.At(matmul(a, b)), Make({2, 2}, {7, -1, 16, -1}), 0, "matmul");
  // b broadcasts along the leading axis of a, and a row of a tensor of rank 3 is the product of its matrices.
  Tensor c = reshape(a, {2, 1, 3});
  ExpectNear(tape.At(matmul(c, b)), Make({2, 1, 2}, {7, -1, 16, -1}), 0, "matmul with leading axes");
}

TEST(OpsB, ProductsRefuseWhatDoesNotFit) {
  Tape tape;
  Tensor a = tape.Input(Draw({2, 3}, 1)), b = tape.Input(Draw({4, 5}, 2));
  std::string error = ErrorOf([&] { matmul(a, b); });
  EXPECT_NE(error.find("axis k"), std::string::npos) << error;
  EXPECT_NE(error.find("3"), std::string::npos) << error;
  EXPECT_NE(error.find("4"), std::string::npos) << error;
  error = ErrorOf([&] { einsum("ab,cd->ae", a, b); });
  EXPECT_NE(error.find("output label e"), std::string::npos) << error;
  error = ErrorOf([&] { einsum("aa,cd->ad", a, b); });
  EXPECT_NE(error.find("label a stands twice"), std::string::npos) << error;
  error = ErrorOf([&] { einsum("abcd->ad", a, b); });
  EXPECT_NE(error.find("not of the form"), std::string::npos) << error;
  error = ErrorOf([&] { einsum("a1,cd->ad", a, b); });
  EXPECT_NE(error.find("not a letter"), std::string::npos) << error;
}

// The weight gradient of a product with leading axes is one einsum, not a batch of products and their sum.
TEST(OpsB, MatmulWeightGradientIsOneEinsum) {
  Tape tape;
  Tensor x = tape.Input(Draw({2, 3, 5}, 1)), w = tape.Input(Draw({5, 4}, 2)),
         dy = tape.Input(Draw({2, 3, 4}, 3));
  size_t before = tape.nodes().size();
  std::vector<Tensor> din = BuiltinCatalog().Get("matmul").grad({{}, {x, w}, {}, {dy}, {false, true}});
  ASSERT_EQ(tape.nodes().size(), before + 1);
  EXPECT_EQ(tape.nodes().back().op, "einsum");
  EXPECT_FALSE(din[0].defined());
  ExpectNear(tape.At(din[1]), tape.At(einsum("abk,abn->kn", x, dy)), 1e-6, "weight gradient");
}

// --- Losses ---

TEST(OpsB, CrossEntropyIgnoresNegativeTargets) {
  Value logits = Draw({3, 4}, 5, -3, 3), target = Make({3}, {2, -1, 0}, DType::kInt64);
  for (bool expanded : {false, true}) {
    Tape tape;
    std::vector<Tensor> in = Inputs(&tape, {logits, target});
    const OpDef& def = BuiltinCatalog().Get("cross_entropy");
    std::vector<Tensor> out = expanded ? def.expand({}, in) : Apply(&tape, "cross_entropy", in);
    for (int64_t row = 0; row < 3; ++row) {
      double total = 0;
      for (int64_t c = 0; c < 4; ++c) total += std::exp(logits.Get(row * 4 + c));
      int64_t wanted = static_cast<int64_t>(target.Get(row));
      double loss = wanted < 0 ? 0 : std::log(total) - logits.Get(row * 4 + wanted);
      EXPECT_NEAR(tape.At(out[0]).Get(row), loss, 1e-5) << expanded;
      EXPECT_NEAR(tape.At(out[1]).Get(row), std::log(total), 1e-5) << expanded;
    }
    Tensor dloss = tape.Input(Make({3}, {1, 1, 2}));
    Tensor dlogits = def.grad({{}, in, out, {dloss, Tensor()}, {true, false}})[0];
    for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(tape.At(dlogits).Get(4 + c), 0) << "class " << c;
    double sum = 0, size = 0;  // a row's gradients add to 0
    for (int64_t c = 0; c < 4; ++c)
      sum += tape.At(dlogits).Get(8 + c), size += std::fabs(tape.At(dlogits).Get(8 + c));
    EXPECT_NEAR(sum, 0, 1e-5);
    EXPECT_GT(size, 0.1);
  }
}

TEST(OpsB, CrossEntropyNamesATargetOutOfRange) {
  Value logits = Draw({2, 4}, 5), target = Make({2}, {1, 4}, DType::kInt64), loss = Draw({2}, 1),
        lse = Draw({2}, 1);
  Status status = RunOp("cross_entropy", {}, {Whole(logits), Whole(target)}, {Whole(loss), Whole(lse)});
  EXPECT_EQ(status.message(), "target 4 is outside the 4 classes");
  Tape tape;
  std::vector<Tensor> in = Inputs(&tape, {logits, target});
  std::string error = ErrorOf([&] { BuiltinCatalog().Get("cross_entropy").expand({}, in); });
  EXPECT_NE(error.find("4"), std::string::npos) << error;
  error = ErrorOf([&] { Apply(&tape, "cross_entropy", {in[0], tape.Input(Make({1}, {0}, DType::kInt64))}); });
  EXPECT_NE(error.find("target is [1]"), std::string::npos) << error;
}

// Large scores neither overflow nor lose the small differences between them.
TEST(OpsB, SoftmaxAndLossStandLargeScores) {
  Tape tape;
  Tensor x = tape.Input(Make({1, 3}, {1000, 1001, -1000}));
  double p = 1 / (1 + std::exp(1.0));
  ExpectNear(tape.At(softmax(x)), Make({1, 3}, {p, 1 - p, 0}), 1e-6, "softmax");
  ExpectNear(tape.At(log_softmax(x)), Make({1, 3}, {std::log(p), std::log(1 - p), std::log(p) - 2000}), 1e-3,
             "log");
  Tensor loss = cross_entropy(x, tape.Input(Make({1}, {0}, DType::kInt32)));
  EXPECT_NEAR(tape.At(loss).Get(0), -std::log(p), 1e-4);
}

// --- Norms ---

TEST(OpsB, NormsNormalise) {
  Tape tape;
  Value x = Draw({3, 8}, 9, 4, 6);  // far from 0, as activations are
  Tensor in = tape.Input(x), ones = tape.Input(Make({8}, std::vector<double>(8, 1)));
  Tensor zeros = tape.Input(Make({8}, std::vector<double>(8, 0)));
  const Value& y = tape.At(layer_norm(in, ones, zeros, 1e-12));
  const Value& r = tape.At(rms_norm(in, ones, 1e-12));
  for (int64_t row = 0; row < 3; ++row) {
    double sum = 0, square = 0, rms = 0;
    for (int64_t c = 0; c < 8; ++c) {
      sum += y.Get(row * 8 + c);
      square += y.Get(row * 8 + c) * y.Get(row * 8 + c);
      rms += r.Get(row * 8 + c) * r.Get(row * 8 + c);
    }
    EXPECT_NEAR(sum, 0, 1e-4);
    EXPECT_NEAR(square, 8, 1e-4);
    EXPECT_NEAR(rms, 8, 1e-4);
  }
  std::string error = ErrorOf([&] { layer_norm(in, tape.Input(Draw({7}, 1)), zeros); });
  EXPECT_NE(error.find("7"), std::string::npos) << error;
  error = ErrorOf([&] { layer_norm(in, ones, zeros, 0); });
  EXPECT_NE(error.find("eps is 0"), std::string::npos) << error;
}

// --- Embedding ---

TEST(OpsB, EmbeddingAnswersForItsOwnRowsOnly) {
  Value table = Draw({5, 2}, 3), ids = Make({3}, {4, 0, 3}, DType::kInt32), y = Draw({3, 2}, 1);
  TensorArg part = Whole(table);  // rows 3 and 4
  part.data = table.data() + 3 * 2 * sizeof(float);
  part.begin[0] = 3;
  part.extent[0] = 2;
  ASSERT_TRUE(RunOp("embedding", {}, {part, Whole(ids)}, {Whole(y)}).ok());
  ExpectNear(y, Make({3, 2}, {table.Get(8), table.Get(9), 0, 0, table.Get(6), table.Get(7)}), 0, "embedding");
}

TEST(OpsB, EmbeddingNamesAnIdOutsideTheWholeTable) {
  Value table = Draw({3, 2}, 3), y = Draw({1, 2}, 1), dtable = Draw({3, 2}, 1);
  TensorArg part = Whole(table), part_of_gradient = Whole(dtable);
  part.global[0] = part_of_gradient.global[0] = 50304;
  Value here = Make({1}, {50303}, DType::kInt64);
  EXPECT_TRUE(RunOp("embedding", {}, {part, Whole(here)}, {Whole(y)}).ok());
  for (int64_t id : {70000, 50304, -1}) {
    Value ids = Make({1}, {static_cast<double>(id)}, DType::kInt64);
    std::string want = Cat("id ", id, " is outside the table of 50304 rows");
    EXPECT_EQ(RunOp("embedding", {}, {part, Whole(ids)}, {Whole(y)}).message(), want);
    EXPECT_EQ(
        RunOp("embedding_grad", {{"rows", 50304}}, {Whole(ids), Whole(y)}, {part_of_gradient}).message(),
        want);
  }
}

// --- Attention ---

// The same from single operators, over scores that are written out.
struct Plain {
  Tensor o, lse;
};
Plain PlainAttention(Tape* tape, Tensor q, Tensor k, Tensor v, bool causal) {
  int64_t queries = q.shape()[1], keys = k.shape()[1];
  Value mask(DType::kFloat32, {queries, keys});
  for (int64_t s = 0; s < queries; ++s) {
    for (int64_t t = 0; t < keys; ++t) mask.Set(s * keys + t, causal && t > s + keys - queries ? -1e9 : 0);
  }
  Tensor scores = scale(einsum("bshd,bthd->bhst", q, k), 1 / std::sqrt(static_cast<double>(q.shape()[3])));
  scores = add(scores, tape->Input(mask));
  Tensor lse = log(sum(exp(scores), {-1}));
  return {einsum("bhst,bthd->bshd", softmax(scores), v), lse};
}

TEST(OpsB, AttentionIsSoftmaxOfScores) {
  for (bool causal : {false, true}) {
    for (int64_t keys : {5, 7}) {
      Tape tape;
      Tensor q = tape.Input(Draw({2, 5, 3, 4}, 1)), k = tape.Input(Draw({2, keys, 3, 4}, 2));
      Tensor v = tape.Input(Draw({2, keys, 3, 4}, 3));
      std::vector<Tensor> got = Apply(&tape, "attention", {q, k, v}, {{"causal", int64_t{causal}}});
      Plain want = PlainAttention(&tape, q, k, v, causal);
      ExpectNear(tape.At(got[0]), tape.At(want.o), 1e-5, Cat("o, ", keys, " keys"));
      ExpectNear(tape.At(got[1]), tape.At(want.lse), 1e-5, Cat("lse, ", keys, " keys"));
    }
  }
}

TEST(OpsB, AttentionRefusesAQueryWithoutKeys) {
  Tape tape;
  Tensor q = tape.Input(Draw({1, 6, 1, 2}, 1)), k = tape.Input(Draw({1, 5, 1, 2}, 2)),
         none = tape.Input(Draw({1, 0, 1, 2}, 3));
  std::string error = ErrorOf([&] { attention(q, k, k); });
  EXPECT_NE(error.find("6 queries"), std::string::npos) << error;
  EXPECT_NE(error.find("5 keys"), std::string::npos) << error;
  error = ErrorOf([&] { attention(q, none, none, {.causal = false}); });
  EXPECT_NE(error.find("0 keys"), std::string::npos) << error;
  EXPECT_EQ(ErrorOf([&] { attention(q, k, k, {.causal = false}); }), "");
}

// A kernel given a piece that shows a query no key writes the identity of its sums.
TEST(OpsB, AttentionOverNoKeyIsTheIdentity) {
  Value q = Draw({1, 3, 1, 2}, 1), k = Draw({1, 2, 1, 2}, 2), o = q, lse(DType::kFloat32, {1, 1, 3});
  Attrs causal = {{"causal", 1}};
  ASSERT_TRUE(RunOp("attention", causal, {Whole(q), Whole(k), Whole(k)}, {Whole(o), Whole(lse)}).ok());
  EXPECT_EQ(o.Get(0), 0);
  EXPECT_EQ(o.Get(1), 0);
  EXPECT_EQ(lse.Get(0), -std::numeric_limits<double>::infinity());
  EXPECT_NEAR(o.Get(2), k.Get(0), 1e-6);  // the second sees the first key alone
  Value d = Draw({1, 3, 1, 2}, 3), dq = q, dk = k, dv = k;
  ASSERT_TRUE(RunOp("attention_grad", causal, {Whole(d), Whole(q), Whole(k), Whole(k), Whole(o), Whole(lse)},
                    {Whole(dq), Whole(dk), Whole(dv)})
                  .ok());
  EXPECT_EQ(dq.Get(0), 0);
  for (int64_t i = 0; i < dk.elements(); ++i)
    EXPECT_TRUE(std::isfinite(dk.Get(i)) && std::isfinite(dv.Get(i)));
}

// --- Random masks ---

// The piece [begin, end) of axis `axis` of a tensor.
struct Part {
  Value value;
  TensorArg arg;
};
Part Take(const Value& whole, int axis, int64_t begin, int64_t end) {
  Box box = Box::Whole(whole.shape());
  box.begin[axis] = begin;
  box.extent[axis] = end - begin;
  Value piece = oracle::Crop(whole, box);
  TensorArg arg = oracle::ArgOf(piece, whole.shape(), box);
  return {std::move(piece), arg};
}

TEST(OpsB, DropoutDrawsTheSameMaskForEveryCut) {
  Value x = Draw({5, 3, 7}, 4, 1, 2), whole = x;
  Attrs attrs = {{"p", 0.4}, {"key", 99}};
  ASSERT_TRUE(RunOp("dropout", attrs, {Whole(x)}, {Whole(whole)}, 6).ok());
  for (int axis = 0; axis < 3; ++axis) {
    for (int64_t cut = 0; cut <= x.shape()[axis]; ++cut) {
      for (auto [begin, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, x.shape()[axis]}}) {
        Part in = Take(x, axis, begin, end), out = Take(x, axis, begin, end),
             want = Take(whole, axis, begin, end);
        ASSERT_TRUE(RunOp("dropout", attrs, {in.arg}, {out.arg}, 6).ok());
        ExpectNear(out.value, want.value, 0, Cat("axis ", axis, " cut at ", cut));
      }
    }
  }
}

TEST(OpsB, DropoutKeepsItsShareAndScales) {
  Value x = Make({10000}, std::vector<double>(10000, 1)), y = x, other = x;
  const double scale = DropRuleOf(0.3).scale;
  auto kept = [&](const Value& v) {
    int64_t n = 0;
    for (int64_t i = 0; i < v.elements(); ++i) {
      EXPECT_TRUE(v.Get(i) == 0 || std::fabs(v.Get(i) - scale) < 1e-6) << v.Get(i);
      n += v.Get(i) != 0;
    }
    return n;
  };
  auto differ = [&] {
    int64_t n = 0;
    for (int64_t i = 0; i < y.elements(); ++i) n += y.Get(i) != other.Get(i);
    return n;
  };
  ASSERT_TRUE(RunOp("dropout", {{"p", 0.3}, {"key", 5}}, {Whole(x)}, {Whole(y)}, 0).ok());
  EXPECT_NEAR(kept(y), 7000, 250);  // five standard deviations
  ASSERT_TRUE(RunOp("dropout", {{"p", 0.3}, {"key", 5}}, {Whole(x)}, {Whole(other)}, 1).ok());
  EXPECT_NEAR(differ(), 4200, 250) << "another step";
  ASSERT_TRUE(RunOp("dropout", {{"p", 0.3}, {"key", 6}}, {Whole(x)}, {Whole(other)}, 0).ok());
  EXPECT_NEAR(differ(), 4200, 250) << "another key";
}

TEST(OpsB, AttentionDropsTheSameProbabilitiesForEveryCut) {
  Value q = Draw({3, 4, 2, 3}, 1), k = Draw({3, 5, 2, 3}, 2), v = Draw({3, 5, 2, 3}, 3), o = q;
  Value lse(DType::kFloat32, {3, 2, 4});
  Attrs attrs = {{"causal", 1}, {"dropout", 0.5}, {"key", 3}}, undropped = {{"causal", 1}};
  ASSERT_TRUE(RunOp("attention", undropped, {Whole(q), Whole(k), Whole(v)}, {Whole(o), Whole(lse)}).ok());
  Value plain_o = o, plain_lse = lse;
  ASSERT_TRUE(RunOp("attention", attrs, {Whole(q), Whole(k), Whole(v)}, {Whole(o), Whole(lse)}).ok());
  ExpectNear(lse, plain_lse, 0, "the log-sum-exp is of the undropped scores");
  double changed = 0;
  for (int64_t i = 0; i < o.elements(); ++i) changed += std::fabs(o.Get(i) - plain_o.Get(i));
  EXPECT_GT(changed, 1);
  for (int axis = 0; axis < 3; ++axis) {  // batch, queries, heads
    int lse_axis = axis == 0 ? 0 : 3 - axis;
    for (int64_t part = 0; part < 2; ++part) {
      int64_t begin = part, end = part == 0 ? 1 : q.shape()[axis];
      bool cuts_keys = axis != 1;
      Part pq = Take(q, axis, begin, end), po = Take(q, axis, begin, end), want = Take(o, axis, begin, end);
      Part pk = Take(k, axis, cuts_keys ? begin : 0, cuts_keys ? end : 5);
      Part pv = Take(v, axis, cuts_keys ? begin : 0, cuts_keys ? end : 5);
      Part pl = Take(lse, lse_axis, begin, end), want_lse = Take(lse, lse_axis, begin, end);
      ASSERT_TRUE(RunOp("attention", attrs, {pq.arg, pk.arg, pv.arg}, {po.arg, pl.arg}).ok());
      ExpectNear(po.value, want.value, 1e-6, Cat("o, axis ", axis, " part ", part));
      ExpectNear(pl.value, want_lse.value, 1e-6, Cat("lse, axis ", axis, " part ", part));
    }
  }
}

// --- Updates ---

TEST(OpsB, SchedulesFollowTheStep) {
  EXPECT_EQ(ScheduleFactor({}, 123), 1);
  EXPECT_EQ(ScheduleFactor({{"schedule", "constant"}, {"warmup", 10}}, 0), 1);
  Attrs warmup = {{"schedule", "linear_warmup"}, {"warmup", 4}};
  EXPECT_EQ(ScheduleFactor(warmup, 0), 0.25);
  EXPECT_EQ(ScheduleFactor(warmup, 3), 1);
  EXPECT_EQ(ScheduleFactor(warmup, 400), 1);
  Attrs cosine = {{"schedule", "cosine"}, {"warmup", 2}, {"total", 12}, {"final", 0.1}};
  EXPECT_EQ(ScheduleFactor(cosine, 0), 0.5);
  EXPECT_EQ(ScheduleFactor(cosine, 1), 1);
  EXPECT_EQ(ScheduleFactor(cosine, 2), 1);
  EXPECT_NEAR(ScheduleFactor(cosine, 7), 0.55, 1e-12);
  EXPECT_NEAR(ScheduleFactor(cosine, 12), 0.1, 1e-12);
  EXPECT_NEAR(ScheduleFactor(cosine, 500), 0.1, 1e-12);
  Attrs steps = {{"schedule", "step"}, {"every", 3}, {"gamma", 0.5}};
  EXPECT_EQ(ScheduleFactor(steps, 2), 1);
  EXPECT_EQ(ScheduleFactor(steps, 3), 0.5);
  EXPECT_EQ(ScheduleFactor(steps, 6), 0.25);
}

TEST(OpsB, SchedulesThatMakeNoSenseAreRefused) {
  std::string error = ErrorOf([] { CheckSchedule("adamw", {{"schedule", "linearly"}}); });
  EXPECT_NE(error.find("adamw: there is no schedule \"linearly\""), std::string::npos) << error;
  error = ErrorOf([] { CheckSchedule("adamw", {{"schedule", "cosine"}, {"warmup", 5}, {"total", 5}}); });
  EXPECT_NE(error.find("warmup of 5"), std::string::npos) << error;
  error = ErrorOf([] { CheckSchedule("adamw", {{"schedule", "step"}}); });
  EXPECT_NE(error.find("every 0 steps"), std::string::npos) << error;
}

// One weight's update, by hand, in double.
struct ByHand {
  double w, m = 0, v = 0;
  void Step(const std::string& op, double g, double lr, double decay, int64_t step) {
    const double beta1 = 0.8, beta2 = 0.95, eps = 1e-6, momentum = 0.7;
    if (op == "sgd") {
      v = momentum * v + g + decay * w;
      w = w - lr * v;
      return;
    }
    if (op == "adamw") w = w * (1 - lr * decay);
    if (op == "adam") g = g + decay * w;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    double m_hat = m / (1 - std::pow(beta1, step + 1)), v_hat = v / (1 - std::pow(beta2, step + 1));
    w = w - lr * m_hat / (std::sqrt(v_hat) + eps);
  }
};

// Every other step skips nothing but time: the schedule follows the step, bias corrections the updates made.
void CheckUpdateOverSteps(const std::string& op, const Attrs& schedule, bool clipped) {
  Attrs attrs = schedule;
  for (auto [name, value] :
       {std::pair{"lr", 0.1}, std::pair{"weight_decay", 0.05}, std::pair{"momentum", 0.7},
        std::pair{"beta1", 0.8}, std::pair{"beta2", 0.95}, std::pair{"eps", 1e-6}}) {
    attrs.Set(name, value);
  }
  Value w = Draw({3, 5}, 1), first = Make({3, 5}, std::vector<double>(15, 0)), second = first;
  Value factor = Make({}, {0.25});
  std::vector<ByHand> hand;
  for (int64_t i = 0; i < 15; ++i) hand.push_back({w.Get(i)});
  for (int64_t made = 0; made < 9; ++made) {
    const int64_t step = made + made / 2;
    Value g = Draw({3, 5}, 100 + step), updates = Make({}, {static_cast<double>(made)});
    std::vector<TensorArg> in = {Whole(w), Whole(g), Whole(first)}, out = {Whole(w), Whole(first)};
    if (op != "sgd") in.push_back(Whole(second)), out.push_back(Whole(second));
    if (op != "sgd") in.push_back(Whole(updates));
    if (clipped) in.push_back(Whole(factor));
    ASSERT_TRUE(RunOp(op, attrs, in, out, step).ok());  // in place
    double lr = 0.1 * ScheduleFactor(schedule, step);
    for (int64_t i = 0; i < 15; ++i) {
      hand[i].Step(op, g.Get(i) * (clipped ? 0.25 : 1), lr, 0.05, made);
      ASSERT_NEAR(w.Get(i), hand[i].w, 3e-6) << op << " step " << step << " element " << i;
    }
  }
}

TEST(OpsB, UpdatesFollowTheirFormulas) {
  for (const char* op : {"sgd", "adam", "adamw"}) {
    for (bool clipped : {false, true}) {
      CheckUpdateOverSteps(op, {}, clipped);
      CheckUpdateOverSteps(op, {{"schedule", "linear_warmup"}, {"warmup", 4}}, clipped);
      CheckUpdateOverSteps(op, {{"schedule", "cosine"}, {"warmup", 2}, {"total", 7}, {"final", 0.1}},
                           clipped);
      CheckUpdateOverSteps(op, {{"schedule", "step"}, {"every", 2}, {"gamma", 0.5}}, clipped);
    }
  }
}

TEST(OpsB, UpdatesLieLikeTheirWeights) {
  const OpDef& def = BuiltinCatalog().Get("adamw");
  Attrs attrs = {{"lr", 0.1}};
  std::vector<Dims> shapes(4, Dims{6, 4});
  shapes.insert(shapes.end(), 2, Dims{});
  Inferred inferred = Infer(def, {"adamw", "adamw", shapes, std::vector<DType>(6, DType::kFloat32), &attrs});
  std::vector<std::string> texts;
  for (const Signature& s : Signatures(inferred.rule, {}, 2)) texts.push_back(s.str());
  EXPECT_EQ(texts, (std::vector<std::string>{"B B B B B B->B B B", "S0 S0 S0 S0 B B->S0 S0 S0",
                                             "S1 S1 S1 S1 B B->S1 S1 S1"}));
  shapes[1] = {4, 6};
  std::string error = ErrorOf([&] {
    Infer(def, {"adamw", "adamw", shapes, std::vector<DType>(6, DType::kFloat32), &attrs});
  });
  EXPECT_NE(error.find("6"), std::string::npos) << error;
  EXPECT_NE(error.find("4"), std::string::npos) << error;
}

TEST(OpsB, ClipFactorShrinksToTheNorm) {
  for (auto [square, want] : {std::pair{25.0, 0.4}, std::pair{1.0, 1.0}, std::pair{0.0, 1.0}}) {
    Value s = Make({}, {square}), factor = Make({}, {0}), norm = Make({}, {0});
    ASSERT_TRUE(RunOp("clip_factor", {{"max_norm", 2.0}}, {Whole(s)}, {Whole(factor), Whole(norm)}).ok());
    EXPECT_NEAR(factor.Get(0), want, 1e-6);
    EXPECT_NEAR(norm.Get(0), std::sqrt(square), 1e-6);
  }
  Value s = Make({}, {NAN}), factor = Make({}, {0}), norm = Make({}, {0});
  ASSERT_TRUE(RunOp("clip_factor", {{"max_norm", 2.0}}, {Whole(s)}, {Whole(factor), Whole(norm)}).ok());
  EXPECT_TRUE(std::isnan(factor.Get(0))) << "a NaN must not be clipped away";
}

// --- Signatures ---

std::vector<std::string> SignatureTexts(const std::string& op, const std::vector<Dims>& shapes,
                                        const Attrs& attrs, const std::vector<DType>& dtypes = {}) {
  std::vector<DType> types = dtypes;
  types.resize(shapes.size(), DType::kFloat32);
  std::vector<std::string> texts;
  for (const Signature& s :
       Signatures(Infer(BuiltinCatalog().Get(op), {op, op, shapes, types, &attrs}).rule, {}, 2)) {
    texts.push_back(s.str() + (s.expanded ? " expanded" : ""));
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

TEST(OpsB, SignaturesAreExactlyTheLegalOnes) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(SignatureTexts("matmul", {{4, 6}, {6, 8}}, {}),
            (Texts{"B B->B", "B P->P", "B S1->S1", "P B->P", "S0 B->S0", "S1 S0->P"}));
  EXPECT_EQ(SignatureTexts("softmax", {{4, 6}}, {}), (Texts{"B->B", "S0->S0", "S1->S1 expanded"}));
  EXPECT_EQ(SignatureTexts("cross_entropy", {{4, 6}, {4}}, {}, {DType::kFloat32, DType::kInt64}),
            (Texts{"B B->B B", "S0 S0->S0 S0", "S1 B->B B expanded"}));
  EXPECT_EQ(
      SignatureTexts("cross_entropy_grad", {{4, 6}, {4}, {4}, {4}}, {}, {DType::kFloat32, DType::kInt64}),
      (Texts{"B B B B->B", "B B B P->P", "S0 S0 S0 S0->S0", "S1 B B B->S1"}));
  EXPECT_EQ(SignatureTexts("layer_norm", {{4, 6}, {6}, {6}}, {{"eps", 1e-5}}),
            (Texts{"B B B->B B B", "S0 B B->S0 S0 S0"}));
  EXPECT_EQ(SignatureTexts("layer_norm_grad", {{4, 6}, {4, 6}, {6}, {4}, {4}}, {}),
            (Texts{"B B B B B->B B B", "P B B B B->P P P", "S0 S0 B S0 S0->S0 P P"}));
  // The residual is cut as dx is, and of partial sums where dx is.
  EXPECT_EQ(SignatureTexts("layer_norm_grad", {{4, 6}, {4, 6}, {6}, {4}, {4}, {4, 6}}, {{"residual", 1}}),
            (Texts{"B B B B B B->B B B", "P B B B B P->P P P", "S0 S0 B S0 S0 S0->S0 P P"}));
  EXPECT_EQ(SignatureTexts("rms_norm_grad", {{4, 6}, {4, 6}, {6}, {4}, {4, 6}}, {{"residual", 1}}),
            (Texts{"B B B B B->B B", "P B B B P->P P", "S0 S0 B S0 S0->S0 P"}));
  EXPECT_EQ(SignatureTexts("embedding", {{8, 6}, {4}}, {}, {DType::kFloat32, DType::kInt64}),
            (Texts{"B B->B", "B S0->S0", "P B->P", "S0 B->P", "S1 B->S1"}));
  EXPECT_EQ(SignatureTexts("embedding_grad", {{4}, {4, 6}}, {{"rows", 8}}, {DType::kInt64}),
            (Texts{"B B->B", "B B->S0", "B P->P", "B S1->S1", "S0 S0->P"}));
  EXPECT_EQ(SignatureTexts("attention", {{2, 4, 2, 6}, {2, 4, 2, 6}, {2, 4, 2, 6}}, {}),
            (Texts{"B B B->B B", "S0 S0 S0->S0 S0", "S1 B B->S1 S2", "S2 S2 S2->S2 S1"}));
  std::vector<Dims> grad(6, Dims{2, 4, 2, 6});
  grad[5] = {2, 2, 4};
  EXPECT_EQ(SignatureTexts("attention_grad", grad, {}),
            (Texts{"B B B B B B->B B B", "B B S1 S1 B B->P S1 S1", "P B B B B B->P P P",
                   "S0 S0 S0 S0 S0 S0->S0 S0 S0", "S1 S1 B B S1 S2->S1 P P", "S2 S2 S2 S2 S2 S1->S2 S2 S2"}));
  EXPECT_EQ(SignatureTexts("dropout", {{4, 6}}, {{"p", 0.1}}), (Texts{"B->B", "P->P", "S0->S0", "S1->S1"}));
}

}  // namespace
}  // namespace oneflow_like
