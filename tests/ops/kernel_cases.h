// What tests of fast kernels share: operands that notice what is written behind them, the comparison with the
// reference kernel of the operator, and the cases, which are the same for every kind of device: the table's
// own samples, larger uneven shapes, pieces that begin inside the whole tensor, empty extents. Draws come
// from one seed per trial, which a failure prints.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/fused.h"
#include "ops/op.h"
#include "ops/reference.h"
#include "tests/ops/with_scratch.h"

namespace oneflow_like {

// A piece of a tensor with its memory.
struct Operand {
  TensorArg arg;
  std::vector<char> memory;

  Operand(DType dtype, const Dims& global) : Operand(dtype, global, Dims(global.rank(), 0), global) {}
  Operand(DType dtype, const Dims& global, const Dims& begin, const Dims& extent) {
    arg.dtype = dtype;
    arg.global = global;
    arg.begin = begin;
    arg.extent = extent;
    memory.assign(extent.elements() * SizeOf(dtype) + kBehind, '\x5a');
  }
  // Whether nobody has written behind its elements: libraries work with whole vectors.
  bool WrittenBehind() const {
    return std::any_of(memory.end() - kBehind, memory.end(), [](char c) { return c != '\x5a'; });
  }
  static constexpr int kBehind = 257;  // bytes
  TensorArg Arg() {
    arg.data = memory.data();
    return arg;
  }
  double At(int64_t i) { return LoadFloat(Arg(), i); }
  void Draw(std::mt19937_64* random, double low, double high, int64_t limit) {
    std::uniform_real_distribution<double> real(low, high);
    TensorArg to = Arg();
    for (int64_t i = 0; i < to.elements(); ++i) {
      if (IsFloating(to.dtype)) {
        StoreFloat(to, i, real(*random));
      } else {
        StoreFloat(to, i, static_cast<double>((*random)() % static_cast<uint64_t>(limit)));
      }
    }
  }
};
using Operands = std::vector<Operand>;

inline double Tolerance(DType dtype) {
  if (dtype == DType::kBFloat16) return 1.0 / 128;
  return dtype == DType::kFloat16 ? 1.0 / 512 : 1e-5;
}

// Element by element within the tolerance of the type, relative to the element and to the tensor's root mean
// square.
inline void ExpectClose(const std::string& what, Operand* got, Operand* want, double slack = 1) {
  int64_t n = want->arg.elements();
  ASSERT_EQ(n, got->arg.elements()) << what;
  double squares = 0, count = 0;
  for (int64_t i = 0; i < n; ++i) {
    double v = want->At(i);
    if (std::isfinite(v)) squares += v * v, ++count;
  }
  double rms = count > 0 ? std::sqrt(squares / count) : 0, tolerance = slack * Tolerance(want->arg.dtype);
  for (int64_t i = 0; i < n; ++i) {
    double g = got->At(i), w = want->At(i);
    if (g == w || (std::isnan(g) && std::isnan(w))) continue;
    ASSERT_TRUE(std::isfinite(w)) << what << ", element " << i << ": " << g << " but the reference has " << w;
    ASSERT_LE(std::abs(g - w), tolerance * (std::abs(w) + rms))
        << what << ", element " << i << " of " << n << ": " << g << " but the reference has " << w;
  }
  EXPECT_EQ(got->memory.back(), '\x5a') << what << " wrote past its end";
}

struct Case {
  std::string op;
  std::vector<Dims> in;
  Attrs attrs;
  std::vector<DType> dtypes;
  int64_t limit = 4;
  double low = -2, high = 2;
};

inline Operands OutputsOf(const Case& c) {
  const OpDef& def = BuiltinCatalog().Get(c.op);
  OpCall call{c.op, c.op, c.in, c.dtypes, &c.attrs};
  Inferred inferred = Infer(def, call);
  Operands out;
  for (size_t i = 0; i < inferred.rule.out.size(); ++i)
    out.emplace_back(inferred.dtypes[i], inferred.rule.out[i].shape);
  return out;
}

// Attention on pieces: `s` queries from `begin` on of `queries`, batch and head 1 of 3.
struct AttentionShape {
  int64_t queries, begin, s, keys, width;
  bool causal;
  double dropout;
};

// A use of attention with groups of heads or masks, and the shapes of the masks.
struct MaskedUse {
  int64_t batch, queries, keys, heads, key_heads, width, value_width;
  bool causal;
  int64_t window;
  std::vector<Dims> masks;
  std::string names;
  DType dtype = DType::kFloat32;
  double dropout = 0;
  bool gradient =
      true;  // of few queries in bf16, slopes near 0 are small beside what rounding leaves of them
};

// The kernels under test, which run on operands of the host.
struct FastKernels {
  std::function<bool(const std::string& name)> has;
  std::function<std::unique_ptr<Kernel>(const KernelSpec&)> make;
  // Runs `run` once more, under other circumstances where the same bits must come of it.
  std::function<void(const std::string& op, const std::function<void()>& run)> again =
      [](const std::string&, const std::function<void()>& run) { run(); };
  // Failures are told by the stream, which adds where the kernel is from.
  bool says_more = false;
};

class KernelCases {
 public:
  explicit KernelCases(FastKernels fast) : fast_(std::move(fast)) {
    AddReferenceKernels(BuiltinCatalog(), &reference_);
  }

  // Runs both kernels on the same inputs and compares every output. A second run must repeat the first bit
  // for bit. The fast kernel says of a failure what the reference kernel says.
  // `slack`: more tolerance, where rounding inside a kernel tells.
  void Check(const std::string& what, const std::string& op, const Attrs& attrs, Operands in,
             const Operands& out, double slack = 1);
  void CheckCase(Case c, uint64_t seed);

  // --- The cases
  void TableSamples();
  void Products();
  void LaterActsMayBeSmaller();
  void ElementwiseShapes();
  void ElementwiseFunctions();
  void ReductionsAndShapes();
  void RowsOperators();
  void NarrowRows();  // RowsOperators does them, too
  void CrossEntropyIgnoresNegativeTargetsAndCutClasses();
  void EmbeddingRowsAndColumns();
  void Within();
  void Attention(DType dtype = DType::kFloat32);
  void CausalAttentionAtTheEdgesOfTiles(DType dtype);
  void AttentionToGrowingKeys(DType dtype);
  void MaskedAttention();  // groups of heads, values of another width, masks
  void Rope();
  void UpdatesInPlaceAndApart();
  void DropoutByGlobalPosition();
  void FusedChains();
  void ManyLiveValues();

 private:
  void CheckMasked(const MaskedUse& c, uint64_t seed);
  Status RunReference(const std::string& op, const Attrs& attrs, Operands* in, Operands* out) {
    return Run([&](const KernelSpec& spec) { return MakeWithScratch(reference_, spec); }, op, attrs, in, out);
  }
  Status RunFast(const std::string& op, const Attrs& attrs, Operands* in, Operands* out) {
    return Run(fast_.make, op, attrs, in, out);
  }
  static Status Run(const std::function<std::unique_ptr<Kernel>(const KernelSpec&)>& make,
                    const std::string& op, const Attrs& attrs, Operands* in, Operands* out);

  FastKernels fast_;
  KernelRegistry reference_;
};

// --- Definitions

inline std::string WithoutNumbers(const std::string& text) {
  std::string without;
  for (char c : text) {
    bool digit = c >= '0' && c <= '9';
    if (!digit) without += c;
    if (digit && (without.empty() || without.back() != '#')) without += '#';
  }
  return without;
}

inline Status KernelCases::Run(const std::function<std::unique_ptr<Kernel>(const KernelSpec&)>& make,
                               const std::string& op, const Attrs& attrs, Operands* in, Operands* out) {
  KernelSpec spec;
  spec.name = op;
  spec.attrs = attrs;
  for (Operand& o : *in) spec.in.push_back(o.Arg());
  for (Operand& o : *out) spec.out.push_back(o.Arg());
  KernelSpec without_data = spec;
  for (TensorArg& arg : without_data.in) arg.data = nullptr;
  for (TensorArg& arg : without_data.out) arg.data = nullptr;
  std::unique_ptr<Kernel> kernel = make(without_data);
  return kernel->Run({spec, spec.in, spec.out, nullptr, 3, 0, 1, 77});
}

inline void KernelCases::Check(const std::string& what, const std::string& op, const Attrs& attrs,
                               Operands in, const Operands& out, double slack) {
  // Probabilities and slopes are rounded, too, where a kernel multiplies in bf16.
  if (op == "attention_grad" && in[0].arg.dtype == DType::kBFloat16) slack *= 2;
  Operands want = out, got = out;
  Status reference = RunReference(op, attrs, &in, &want);
  Status fast = RunFast(op, attrs, &in, &got);
  ASSERT_EQ(reference.ok(), fast.ok()) << what << ": the reference says \"" << reference.message()
                                       << "\", the kernel \"" << fast.message() << "\"";
  if (fast_.says_more) {
    // Of several ids out of range a device finds any first.
    ASSERT_NE(WithoutNumbers(fast.message()).find(WithoutNumbers(reference.message())), std::string::npos)
        << what << ": \"" << fast.message() << "\" lacks \"" << reference.message() << "\"";
  } else {
    ASSERT_EQ(reference.message(), fast.message()) << what;
  }
  if (!reference.ok()) return;
  for (const Operands* operands : {&in, &got})
    for (const Operand& o : *operands) ASSERT_FALSE(o.WrittenBehind()) << what;
  for (size_t i = 0; i < out.size(); ++i) ExpectClose(Cat(what, " output ", i), &got[i], &want[i], slack);
  Operands again = out;
  fast_.again(op, [&] { ASSERT_TRUE(RunFast(op, attrs, &in, &again).ok()) << what; });
  for (size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(got[i].memory, again[i].memory) << what << " is not repeatable";
}

inline void KernelCases::CheckCase(Case c, uint64_t seed) {
  if (c.dtypes.empty()) c.dtypes.assign(c.in.size(), DType::kFloat32);
  std::string what = Cat(c.op, " ", c.attrs.str(), " seed ", seed);
  for (const Dims& shape : c.in) what += " " + shape.str();
  std::mt19937_64 random(seed);
  Operands in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    in.emplace_back(c.dtypes[i], c.in[i]);
    in.back().Draw(&random, c.low, c.high, c.limit);
  }
  Check(what, c.op, c.attrs, std::move(in), OutputsOf(c));
}

inline void KernelCases::TableSamples() {
  int checked = 0;
  for (const std::string& name : BuiltinCatalog().names()) {
    if (!fast_.has(name)) continue;
    const OpDef& def = BuiltinCatalog().Get(name);
    for (const Sample& s : def.samples) {
      if (def.reference == nullptr) continue;
      CheckCase({name, s.in, s.attrs, s.dtypes, s.limit, s.low, s.high}, 1 + checked);
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
}

inline void KernelCases::Products() {
  std::vector<Case> cases = {{"matmul", {{67, 129}, {129, 33}}},    {"matmul", {{3, 17, 31}, {31, 45}}},
                             {"matmul", {{5, 1, 8, 9}, {3, 9, 7}}}, {"matmul", {{1, 1}, {1, 1}}},
                             {"matmul", {{4, 0}, {0, 5}}},          {"matmul", {{0, 4}, {4, 5}}},
                             {"matmul", {{1, 300}, {300, 1}}},      {"matmul", {{2, 3, 4, 5}, {2, 3, 5, 6}}},
                             {"matmul", {{8, 9}, {3, 9, 7}}},       {"matmul", {{2, 1, 4, 5}, {1, 3, 5, 6}}}};
  auto einsum = [&](const std::string& equation, Dims a, Dims b) {
    cases.push_back({"einsum", {a, b}, {{"equation", equation}}});
  };
  // Few rows, and matrices large enough to be read as they lie; odd ends.
  for (int64_t rows : {1, 2, 3, 4, 5}) {
    cases.push_back({"matmul", {{rows, 300}, {300, 75}}});
    cases.push_back({"matmul", {{1, rows, 37}, {37, 1100}}});
    einsum("bsw,vw->bsv", {1, rows, 203}, {150, 203});
    einsum("bsw,whd->bshd", {rows, 1, 96}, {96, 8, 24});
    einsum("bshd,hdw->bsw", {1, rows, 6, 32}, {6, 32, 90});
    einsum("wm,wn->nm", {200, rows}, {200, 130});
  }
  einsum("bsw,whd->bshd", {3, 7, 20}, {20, 4, 5});
  einsum("bshd,hdw->bsw", {3, 7, 4, 5}, {4, 5, 20});
  einsum("bsw,bshd->whd", {3, 7, 20}, {3, 7, 4, 5});
  einsum("bsw,kw->bsk", {3, 7, 20}, {33, 20});
  einsum("mk,kn->nm", {9, 20}, {20, 13});
  einsum("km,kn->mn", {40, 9}, {40, 13});
  einsum("bshd,bthd->bhst", {2, 9, 3, 4}, {2, 11, 3, 4});
  einsum("bhst,bthd->bshd", {2, 3, 9, 11}, {2, 11, 3, 4});
  einsum("sdb,tdb->stb", {9, 16, 12}, {8, 16, 12});  // a batch label innermost: permuted
  einsum("kab,kba->ab", {30, 5, 6}, {30, 6, 5});
  einsum("amk,akn->man", {3, 8, 9}, {3, 9, 10});
  einsum("mkl,kln->mn", {8, 3, 9}, {3, 9, 10});
  einsum("mkl,lkn->mn", {8, 3, 9}, {9, 3, 10});  // the sum does not merge
  einsum("jik,kn->ijn", {5, 6, 7}, {7, 9});      // neighbours in y that are none in a, or in b
  einsum("mk,kji->mij", {8, 7}, {7, 5, 6});
  einsum("i,j->ij", {7}, {9});
  einsum("i,i->", {70}, {70});
  einsum("bsw,whd->bshd", {0, 7, 20}, {20, 4, 5});
  einsum("mk,kn->mn", {4, 0}, {0, 3});
  uint64_t seed = 100;
  for (const Case& c : cases) {
    CheckCase(c, ++seed);
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      Case narrow = c;
      narrow.dtypes = {dtype, dtype};
      CheckCase(narrow, ++seed);
    }
  }
}

inline void KernelCases::LaterActsMayBeSmaller() {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (Dims shape : {Dims{8, 6, 10}, Dims{8, 1, 130}}) {  // of the second few rows at times
      const int64_t n = 7 * shape[2] - 3;
      std::mt19937_64 random(5);
      KernelSpec spec;
      spec.name = "matmul";
      Operand a(dtype, shape), b(dtype, {shape[2], n}), y(dtype, {8, shape[1], n});
      spec.in = {a.Arg(), b.Arg()};
      spec.out = {y.Arg()};
      std::unique_ptr<Kernel> kernel = fast_.make(spec);
      for (int64_t rows : {3, 0, 2, 6, 3}) {
        Operands in = {Operand(dtype, shape, {2, 0, 0}, {rows, shape[1], shape[2]}), b};
        Operands got = {Operand(dtype, {8, shape[1], n}, {2, 0, 0}, {rows, shape[1], n})}, want = got;
        for (Operand& o : in) o.Draw(&random, -1, 1, 4);
        KernelSpec act = spec;
        act.in = {in[0].Arg(), in[1].Arg()};
        act.out = {got[0].Arg()};
        ASSERT_TRUE(kernel->Run({act, act.in, act.out}).ok());
        ASSERT_TRUE(RunReference("matmul", {}, &in, &want).ok());
        ExpectClose(Cat("matmul ", Name(dtype), " of ", rows, " rows, seed 5"), &got[0], &want[0]);
      }
    }
}

inline void KernelCases::ElementwiseShapes() {
  const std::vector<std::vector<Dims>> pairs = {{{1000}, {1000}},
                                                {{33, 700}, {700}},
                                                {{33, 700}, {33, 1}},
                                                {{5, 1, 7}, {6, 1}},
                                                {{64, 384}, {384}},
                                                {{2, 3, 4}, {}},
                                                {{}, {}},
                                                {{0, 5}, {5}},
                                                {{1, 700}, {33, 1}},
                                                {{9, 8, 7}, {9, 1, 7}},
                                                {{3, 40000}, {3, 40000}},
                                                {{1, 1, 3}, {2, 5, 1}}};
  uint64_t seed = 1000;
  for (const char* op :
       {"add", "sub", "mul", "div", "maximum", "minimum", "less", "greater_equal", "equal"}) {
    for (const auto& shapes : pairs) CheckCase({op, shapes, {}, {}, 4, 0.5, 3}, ++seed);
  }
  for (const char* op : {"add", "gelu_grad", "mul"}) {
    CheckCase({op, {{33, 70}, {33, 70}}, {}, {DType::kBFloat16, DType::kBFloat16}}, ++seed);
  }
  for (const char* op : {"gelu", "gelu_erf", "silu", "softplus", "tanh", "sigmoid", "relu", "exp", "erf",
                         "abs", "sign", "neg"}) {
    for (Dims shape : {Dims{5, 4001}, Dims{1}, Dims{0}, Dims{513}})
      CheckCase({op, {shape}, {}, {}, 4, -6, 6}, ++seed);
  }
  for (const char* op :
       {"gelu_grad", "gelu_erf_grad", "silu_grad", "tanh_grad", "sigmoid_grad", "relu_grad"}) {
    CheckCase({op, {{7, 999}, {7, 999}}, {}, {}, 4, -4, 4}, ++seed);
  }
  using enum DType;
  CheckCase({"where", {{40, 1}, {40, 33}, {33}}, {}, {kBool, kFloat32, kFloat32}, 2}, ++seed);
  CheckCase({"where", {{40}, {40}, {40}}, {}, {kBool, kBool, kBool}, 2}, ++seed);
  CheckCase({"add", {{40, 3}, {3}}, {}, {kInt64, kInt64}, 100}, ++seed);
  CheckCase({"scale", {{40, 3}}, {{"factor", 0.3}}, {}}, ++seed);
  CheckCase({"add_n", {{70, 99}, {70, 99}, {70, 99}}, {}, {}}, ++seed);
  for (DType from : {kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kBool}) {
    for (DType to : {kFloat32, kBFloat16, kFloat16, kInt32, kInt64, kBool}) {
      CheckCase({"cast", {{9, 31}}, {{"dtype", std::string(Name(to))}}, {from}, from == kBool ? 2 : 9},
                ++seed);
    }
  }
}

// Functions of ops/functions.cc and logic.cc, away from their kinks.
inline void KernelCases::ElementwiseFunctions() {
  uint64_t seed = 1500;
  for (const char* op : {"sin", "cos", "tan", "expm1", "floor", "ceil", "round", "hardsigmoid", "hardswish",
                         "mish", "isfinite", "isnan", "reciprocal"}) {
    for (Dims shape : {Dims{5, 4001}, Dims{1}, Dims{0}, Dims{513}})
      CheckCase({op, {shape}, {}, {}, 4, -1.5, 1.4}, ++seed);
  }
  CheckCase({"log1p", {{5, 4001}}, {}, {}, 4, -0.9, 9}, ++seed);
  for (const char* op : {"hardsigmoid_grad", "hardswish_grad", "mish_grad", "prelu_slope_grad"})
    CheckCase({op, {{7, 999}, {7, 999}}, {}, {}, 4, -8, 8}, ++seed);
  for (const char* op : {"at_least", "at_most"}) {
    CheckCase({op, {{40, 33}}, {{"bound", 0.5}}}, ++seed);
    CheckCase({op, {{40, 33}}, {{"bound", 3.0}}, {DType::kInt64}, 9}, ++seed);
    CheckCase({Cat(op, "_grad"), {{7, 999}, {7, 999}}, {{"bound", 0.5}}}, ++seed);
  }
  CheckCase({"leaky_relu", {{5, 4001}}, {{"slope", 0.1}}}, ++seed);
  CheckCase({"leaky_relu_grad", {{7, 999}, {7, 999}}, {{"slope", 0.1}}}, ++seed);
  CheckCase({"elu", {{5, 4001}}, {{"alpha", 0.7}}, {}, 4, -30, 5}, ++seed);
  CheckCase({"elu_grad", {{7, 999}, {7, 999}}, {{"alpha", 0.7}}, {}, 4, -30, 5}, ++seed);
  CheckCase({"prelu", {{33, 70, 9}, {70, 1}}}, ++seed);
  CheckCase({"prelu_grad", {{33, 70, 9}, {33, 70, 9}, {70, 1}}}, ++seed);
  CheckCase({"remainder", {{33, 700}, {700}}, {}, {}, 4, 1, 50}, ++seed);
  using enum DType;
  for (const char* op : {"logical_and", "logical_or", "logical_xor"})
    CheckCase({op, {{40, 33}, {33}}, {}, {kBool, kBool}, 2}, ++seed);
  CheckCase({"logical_not", {{5, 4001}}, {}, {kBool}, 2}, ++seed);
  for (const char* op :
       {"bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "remainder"}) {
    for (DType dtype : {kInt32, kInt64}) CheckCase({op, {{40, 33}, {33}}, {}, {dtype, dtype}, 70}, ++seed);
  }
  CheckCase({"bitwise_not", {{40, 33}}, {}, {kInt32}, 100}, ++seed);
  for (const char* op : {"log2", "lgamma", "digamma", "trigamma"})
    CheckCase({op, {{5, 4001}}, {}, {}, 4, 0.1, 20}, ++seed);
  CheckCase({"digamma", {{5, 401}}, {}, {}, 4, -1.9, -1.1}, ++seed);
  for (const char* op : {"exp2", "erfc", "asinh"}) CheckCase({op, {{5, 4001}}, {}, {}, 4, -3, 3}, ++seed);
  CheckCase({"acosh", {{5, 4001}}, {}, {}, 4, 1, 30}, ++seed);
  CheckCase({"erfinv", {{5, 4001}}, {}, {}, 4, -0.999, 0.999}, ++seed);
  for (const char* op : {"atan2", "logaddexp"}) {
    CheckCase({op, {{33, 700}, {700}}, {}, {}, 4, -5, 5}, ++seed);
    CheckCase({op, {{9, 70}, {9, 1}}, {}, {DType::kBFloat16, DType::kBFloat16}, 4, -5, 5}, ++seed);
  }
  CheckCase({"floor_divide", {{33, 700}, {700}}, {}, {}, 4, 1, 50}, ++seed);
  CheckCase({"floor_divide", {{33, 700}, {700}}, {}, {}, 4, -50, -1}, ++seed);
  // Both signs, and zero.
  for (const char* op : {"div", "floor_divide", "remainder"}) {
    for (DType dtype : {kInt32, kInt64}) {
      Operands in = {Operand(dtype, {30, 33}), Operand(dtype, {33})};
      for (Operand& operand : in)
        for (int64_t i = 0; i < operand.arg.elements(); ++i)
          StoreFloat(operand.Arg(), i, static_cast<double>((i * 7 + i / 33) % 21 - 10));
      Check(Cat(op, " of signs ", Name(dtype)), op, {}, in,
            OutputsOf({op, {{30, 33}, {33}}, {}, {dtype, dtype}}));
    }
  }
}

inline void KernelCases::ReductionsAndShapes() {
  uint64_t seed = 2000;
  for (const char* op : {"sum", "mean", "max", "min"}) {
    for (std::vector<int64_t> axes : {std::vector<int64_t>{0}, {1}, {2}, {0, 2}, {0, 1}, {1, 2}, {0, 1, 2}}) {
      for (Dims shape :
           {Dims{7, 5, 300}, Dims{130, 3, 1}, Dims{1, 200, 65}, Dims{3, 0, 4}, Dims{300, 7, 70}}) {
        ++seed;
        CheckCase({op, {shape}, {{"axes", axes}, {"keep", seed % 2 ? 1 : 0}}}, seed);
      }
    }
  }
  for (Dims shape : {Dims{70000}, Dims{3, 5}, Dims{0}, Dims{300, 1001}})
    CheckCase({"square_sum", {shape}}, ++seed);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32}) {
    for (int64_t axis : {0, 1}) CheckCase({"argmax", {{70, 300}}, {{"axis", axis}}, {dtype}, 100}, ++seed);
  }
  auto to = [](std::vector<int64_t> shape) { return Attrs{{"shape", std::move(shape)}}; };
  CheckCase({"sum_to", {{20, 30, 70}}, to({70})}, ++seed);
  CheckCase({"sum_to", {{20, 30, 70}}, to({30, 1})}, ++seed);
  CheckCase({"sum_to", {{20, 30, 70}}, to({20, 1, 70})}, ++seed);
  CheckCase({"broadcast_to", {{30, 1}}, to({20, 30, 70})}, ++seed);
  CheckCase({"broadcast_to", {{20, 1, 70}}, to({20, 30, 70})}, ++seed);
  for (std::vector<int64_t> order :
       {std::vector<int64_t>{0, 2, 1, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {0, 1, 3, 2}}) {
    for (DType dtype : {DType::kFloat32, DType::kBool, DType::kInt64, DType::kBFloat16}) {
      CheckCase({"transpose", {{5, 17, 3, 33}}, {{"order", order}}, {dtype}, 2}, ++seed);
    }
  }
  Attrs part = {{"axis", int64_t{1}}, {"begin", int64_t{3}}, {"end", int64_t{20}}};
  CheckCase({"slice", {{7, 33, 5}}, part}, ++seed);
  CheckCase({"pad", {{7, 33, 5}}, {{"axis", int64_t{1}}, {"before", int64_t{2}}, {"after", int64_t{0}}}},
            ++seed);
  for (int64_t step : {2, 5, 40}) {
    for (int64_t axis : {0, 1, 2}) {
      CheckCase({"slice",
                 {{21, 33, 25}},
                 {{"axis", axis}, {"begin", int64_t{1}}, {"end", int64_t{20}}, {"step", step}}},
                ++seed);
      CheckCase({"pad",
                 {{7, 3, 5}},
                 {{"axis", axis}, {"before", int64_t{2}}, {"after", int64_t{1}}, {"step", step}}},
                ++seed);
    }
  }
  CheckCase({"concat", {{7, 3, 5}, {7, 0, 5}, {7, 9, 5}}, {{"axis", int64_t{1}}}}, ++seed);
}

inline void KernelCases::RowsOperators() {
  uint64_t seed = 3000;
  for (Dims shape : {Dims{33, 700}, Dims{3, 5, 17}, Dims{1, 1}, Dims{0, 5}, Dims{2, 5003}}) {
    for (const char* op : {"softmax", "log_softmax"}) CheckCase({op, {shape}, {}, {}, 4, -20, 20}, ++seed);
    for (const char* op : {"softmax_grad", "log_softmax_grad"}) CheckCase({op, {shape, shape}}, ++seed);
    Dims rows(shape.begin(), shape.end() - 1), width = {shape.back()};
    const Attrs eps = {{"eps", 1e-5}};
    CheckCase({"layer_norm", {shape, width, width}, eps, {}, 4, 3, 5}, ++seed);
    CheckCase({"rms_norm", {shape, width}, eps}, ++seed);
    CheckCase({"layer_norm_grad", {shape, shape, width, rows, rows}}, ++seed);
    CheckCase({"rms_norm_grad", {shape, shape, width, rows}}, ++seed);
    const Attrs residual = {{"residual", int64_t{1}}};
    CheckCase({"layer_norm_grad", {shape, shape, width, rows, rows, shape}, residual}, ++seed);
    CheckCase({"rms_norm_grad", {shape, shape, width, rows, shape}, residual}, ++seed);
    using enum DType;
    CheckCase({"cross_entropy", {shape, rows}, {}, {kFloat32, kInt64}, shape.back(), -30, 30}, ++seed);
    CheckCase({"cross_entropy", {shape, rows}, {}, {kFloat32, kInt32}, shape.back(), -1, 1}, ++seed);
    CheckCase({"cross_entropy_grad",
               {shape, rows, rows, rows},
               {},
               {kFloat32, kInt64, kFloat32, kFloat32},
               shape.back()},
              ++seed);
    CheckCase({"cross_entropy_grad",
               {shape, rows, rows, rows, rows},
               {},
               {kFloat32, kInt64, kFloat32, kFloat32, kFloat32},
               shape.back()},
              ++seed);
    CheckCase({"class_statistics", {shape, rows}, {}, {kFloat32, kInt64}, shape.back(), -30, 30}, ++seed);
    CheckCase({"cross_entropy", {shape, rows}, {}, {kFloat32, kInt64}, 3 * shape.back()},
              ++seed);  // may fail alike
  }
  // The second in more parts than a GPU's last sums of gamma have on their way at once.
  for (Dims shape : {Dims{1000, 40}, Dims{9000, 3}})
    CheckCase({"layer_norm_grad", {shape, shape, {shape[1]}, {shape[0]}, {shape[0]}}}, ++seed);
  // Rows of one to four packs for each lane of a warp, the last ones not of every lane, and of two and three
  // for each thread of several warps; vectors in the rows' type and another one.
  using enum DType;
  for (DType t : {kBFloat16, kFloat16, kFloat32}) {
    for (int64_t width : {160, 488, 728, 1000, 2056, 8200}) {
      const Dims shape{width < 2000 ? 141 : 37, t == kFloat32 ? width / 2 : width};
      const Dims rows = {shape[0]}, columns = {shape[1]};
      CheckCase({"layer_norm", {shape, columns, columns}, {{"eps", 1e-5}}, {t, t, t}, 4, 3, 5}, ++seed);
      const DType other = t == kBFloat16 ? kFloat32 : kBFloat16;
      CheckCase({"layer_norm", {shape, columns, columns}, {{"eps", 1e-5}}, {t, other, t}, 4, 9, 10}, ++seed);
      CheckCase({"rms_norm", {shape, columns}, {{"eps", 1e-5}}, {t, t}}, ++seed);
      CheckCase({"layer_norm_grad", {shape, shape, columns, rows, rows}, {}, {t, t, t, kFloat32, kFloat32}},
                ++seed);
      CheckCase({"rms_norm_grad",
                 {shape, shape, columns, rows, shape},
                 {{"residual", int64_t{1}}},
                 {t, t, t, kFloat32, t}},
                ++seed);
    }
  }
  NarrowRows();
}

// Of 16 bits: as models have them, longer ones, and rows that begin anywhere; with more rows than there are
// teams of threads, a warp's and a block's.
inline void KernelCases::NarrowRows() {
  using enum DType;
  uint64_t seed = 3500;
  for (Dims shape :
       {Dims{70, 768}, Dims{3, 4608}, Dims{2, 8208}, Dims{5, 2571}, Dims{1100, 37}, Dims{140, 2571}}) {
    DType t = ++seed % 2 == 0 ? kBFloat16 : kFloat16;
    Dims rows = {shape[0]}, width = {shape[1]};
    for (const char* op : {"softmax", "log_softmax"}) CheckCase({op, {shape}, {}, {t}, 4, -20, 20}, ++seed);
    CheckCase({"softmax_grad", {shape, shape}, {}, {t, t}}, ++seed);
    CheckCase({"layer_norm", {shape, width, width}, {{"eps", 1e-5}}, {t, t, t}, 4, 3, 5}, ++seed);
    CheckCase({"rms_norm", {shape, width}, {{"eps", 1e-5}}, {t, t}}, ++seed);
    CheckCase({"layer_norm_grad", {shape, shape, width, rows, rows}, {}, {t, t, t, kFloat32, kFloat32}},
              ++seed);
    CheckCase({"rms_norm_grad", {shape, shape, width, rows}, {}, {t, t, t, kFloat32}}, ++seed);
    const Attrs residual = {{"residual", int64_t{1}}};
    CheckCase({"layer_norm_grad",
               {shape, shape, width, rows, rows, shape},
               residual,
               {t, t, t, kFloat32, kFloat32, t}},
              ++seed);
    CheckCase({"rms_norm_grad", {shape, shape, width, rows, shape}, residual, {t, t, t, kFloat32, t}},
              ++seed);
    CheckCase({"cross_entropy", {shape, rows}, {}, {t, kInt32}, shape[1], -30, 30}, ++seed);
    CheckCase({"class_statistics", {shape, rows}, {}, {t, kInt32}, shape[1], -30, 30}, ++seed);
    CheckCase(
        {"cross_entropy_grad", {shape, rows, rows, rows}, {}, {t, kInt64, kFloat32, kFloat32}, shape[1]},
        ++seed);
  }
}

inline void KernelCases::CrossEntropyIgnoresNegativeTargetsAndCutClasses() {
  using enum DType;
  std::mt19937_64 random(9);
  Operand logits(kFloat32, {6, 20}, {0, 8}, {6, 7}), target(kInt64, {6}), lse(kFloat32, {6}),
      dloss(kFloat32, {6});
  for (Operand* o : {&logits, &target, &lse, &dloss}) o->Draw(&random, 1, 2, 20);
  int64_t targets[] = {-1, 8, 14, 15, 0, 11};
  std::memcpy(target.memory.data(), targets, sizeof(targets));
  Check("cross_entropy_grad of classes 8 to 15", "cross_entropy_grad", {}, {logits, target, lse, dloss},
        {Operand(kFloat32, {6, 20}, {0, 8}, {6, 7})});
  Operand dlse(kFloat32, {6});
  dlse.Draw(&random, 1, 2, 20);
  Check("cross_entropy_grad of classes 8 to 15, with a gradient of lse", "cross_entropy_grad", {},
        {logits, target, lse, dloss, dlse}, {Operand(kFloat32, {6, 20}, {0, 8}, {6, 7})});
  Check("class_statistics of classes 8 to 15 in blocks 3 to 6", "class_statistics", {}, {logits, target},
        {Operand(kFloat32, {6, 10}, {0, 3}, {6, 3}), Operand(kFloat32, {6, 10}, {0, 3}, {6, 3}),
         Operand(kFloat32, {6})});
  Operand whole(kFloat32, {6, 20});
  whole.Draw(&random, -1, 1, 4);
  Check("cross_entropy with an ignored target", "cross_entropy", {}, {whole, target},
        {Operand(kFloat32, {6}), Operand(kFloat32, {6})});
}

inline void KernelCases::EmbeddingRowsAndColumns() {
  using enum DType;
  for (DType type : {kInt32, kInt64}) {
    for (int64_t limit : {23, 40}) {  // 40: some id is outside the table, and both kernels say so
      std::mt19937_64 random(11);
      Operand table(kFloat32, {23, 36}, {5, 16}, {9, 20}), ids(type, {7, 6});
      table.Draw(&random, -1, 1, 4);
      ids.Draw(&random, 0, 0, limit);
      Operand y(kFloat32, {7, 6, 36}, {0, 0, 16}, {7, 6, 20});
      Check("embedding", "embedding", {}, {table, ids}, {y});
      y.Draw(&random, -1, 1, 4);
      Check("embedding_grad", "embedding_grad", {{"rows", int64_t{23}}}, {ids, y}, {table});
    }
  }
}

// Elements at the ends of the interval, and outside it: both kernels name the first.
inline void KernelCases::Within() {
  using enum DType;
  uint64_t seed = 0;
  for (DType type : {kFloat32, kBFloat16, kFloat16})
    for (const Dims& shape : {Dims{1}, Dims{70, 33}, Dims{40000}})
      for (float low : {-1.0f, -0.5f, 0.0f}) {
        std::mt19937_64 random(++seed);
        Operand x(type, shape);
        x.Draw(&random, -1, 1, 4);
        const Attrs attrs = {{"low", low}, {"high", 1.0}, {"operand", std::string("target")}};
        Check(Cat("within from ", low, ", seed ", seed), "within", attrs, {x}, {Operand(type, shape)});
      }
  for (float odd : {NAN, INFINITY, -INFINITY, 1.0000001f, 1.0f, -0.0f}) {
    std::mt19937_64 random(++seed);
    Operand x(kFloat32, {9000});
    x.Draw(&random, 0, 1, 4);
    reinterpret_cast<float*>(x.memory.data())[8500] = odd;
    Check(Cat("within of ", odd), "within", {{"low", 0.0}, {"high", 1.0}}, {x}, {Operand(kFloat32, {9000})});
  }
}

inline void KernelCases::Attention(DType dtype) {
  const AttentionShape shapes[] = {
      {70, 0, 70, 70, 64, true, 0},      {70, 0, 70, 70, 64, true, 0.2}, {130, 0, 130, 130, 16, false, 0},
      {5, 0, 5, 200, 20, true, 0},       {200, 0, 200, 5, 8, true, 0},   {1, 0, 1, 1, 3, true, 0},
      {100, 30, 45, 100, 32, true, 0.3}, {64, 0, 64, 128, 80, true, 0},  {64, 0, 64, 0, 8, false, 0},
      {300, 64, 190, 300, 40, true, 0},  {10, 0, 0, 10, 8, true, 0},     {65, 0, 65, 66, 256, false, 0.5}};
  uint64_t seed = 4000;
  for (const AttentionShape& a : shapes) {
    std::mt19937_64 random(++seed);
    std::string what =
        Cat("attention ", Name(dtype), " of ", a.s, " queries from ", a.begin, " and ", a.keys,
            " keys, width ", a.width, ", causal ", a.causal, ", dropout ", a.dropout, ", seed ", seed);
    auto piece = [&](int64_t whole, int64_t begin, int64_t extent) {
      return Operand(dtype, {3, whole, 5, a.width}, {1, begin, 1, 0}, {2, extent, 3, a.width});
    };
    Operand q = piece(a.queries, a.begin, a.s), k = piece(a.keys, 0, a.keys), v = k, dy = q, o = q, dq = q,
            dk = k;
    Operand lse(DType::kFloat32, {3, 5, a.queries}, {1, 1, a.begin}, {2, 3, a.s});
    // In bf16 the first queries, which see few keys, are as uncertain as rounding their probabilities makes
    // them, and the root mean square is that of all, whose values are smaller.
    const double most = dtype == DType::kFloat32 ? 2 : 1, slack = dtype == DType::kFloat32 ? 1 : 2;
    for (Operand* x : {&q, &k, &v, &dy}) x->Draw(&random, -most, most, 4);
    Attrs attrs = {
        {"causal", int64_t{a.causal}}, {"dropout", a.dropout}, {"scale", 0.0}, {"key", int64_t{17}}};
    Check(what, "attention", attrs, {q, k, v}, {o, lse}, slack);
    Operands in = {q, k, v}, out = {o, lse};
    ASSERT_TRUE(RunReference("attention", attrs, &in, &out).ok());
    Check("gradient of " + what, "attention_grad", attrs, {dy, q, k, v, out[0], out[1]}, {dq, dk, dk}, slack);
  }
}

// Tiles are of 64 queries and keys: last ones of every size, and masks that begin anywhere in a tile.
inline void KernelCases::CausalAttentionAtTheEdgesOfTiles(DType dtype) {
  const Attrs attrs = {{"causal", int64_t{1}}, {"dropout", 0.0}, {"scale", 0.0}, {"key", int64_t{17}}};
  uint64_t seed = 9000;
  for (int64_t queries : {1, 2, 3, 63, 64, 65, 66, 67})
    for (int64_t more : {0, 1, 2, 61, 62, 63, 64}) {
      std::mt19937_64 random(++seed);
      const std::string what = Cat("attention ", Name(dtype), " of ", queries, " queries and ",
                                   queries + more, " keys, seed ", seed);
      Operand q(dtype, {1, queries, 2, 8}), k(dtype, {1, queries + more, 2, 8}),
          v = k, d = q, o = q, lse(DType::kFloat32, {1, 2, queries});
      for (Operand* x : {&q, &k, &v, &d}) x->Draw(&random, -2, 2, 4);
      Check(what, "attention", attrs, {q, k, v}, {o, lse});
      Operands in = {q, k, v}, out = {o, lse};
      ASSERT_TRUE(RunReference("attention", attrs, &in, &out).ok()) << what;
      Check("gradient of " + what, "attention_grad", attrs, {d, q, k, v, out[0], out[1]}, {q, k, k});
    }
}

// Each tile of keys has greater scores than the one before, with a factor of either sign and with none.
// Forward alone: the rounding of scores so large tells in slopes.
inline void KernelCases::AttentionToGrowingKeys(DType dtype) {
  uint64_t seed = 9500;
  for (double scale : {0.4, -0.4, 0.02, 0.0})
    for (int64_t causal : {0, 1}) {
      std::mt19937_64 random(++seed);
      const std::string what = Cat("attention ", Name(dtype), " to growing keys, scale ", scale, ", causal ",
                                   causal, ", seed ", seed);
      Operand q(dtype, {1, 70, 2, 16}), k(dtype, {1, 330, 2, 16}), v = k, o = q,
                                                                   lse(DType::kFloat32, {1, 2, 70});
      for (Operand* x : {&q, &k, &v}) x->Draw(&random, -0.5, 0.5, 4);
      for (int64_t i = 0; i < q.arg.elements(); ++i) StoreFloat(q.Arg(), i, 1 + q.At(i));
      for (int64_t i = 0; i < k.arg.elements(); ++i)
        StoreFloat(k.Arg(), i, (scale < 0 ? -1.0 : 1.0) * static_cast<double>(i / 32 / 64) + k.At(i));
      const Attrs attrs = {{"causal", causal}, {"dropout", 0.0}, {"scale", scale}, {"key", int64_t{17}}};
      Check(what, "attention", attrs, {q, k, v}, {o, lse}, dtype == DType::kFloat32 ? 1 : 2);
    }
}

// The masks of a use. Positions and documents run with the index, so that tiles are skipped; some documents
// have queries and no keys.
inline Operands DrawMasks(const MaskedUse& c, std::mt19937_64* random) {
  using enum DType;
  bool bias = c.names.starts_with("bias");
  Operands masks;
  for (size_t i = 0; i < c.masks.size(); ++i) {
    bool wide = i % 2 == 1;
    masks.emplace_back(bias && i == 0 ? kFloat32 : wide ? kInt64 : kInt32, c.masks[i]);
    masks.back().Draw(random, -1, 1, 4);
    if (bias && i == 0) continue;
    bool documents = c.names.find("positions") == std::string::npos || i > 2;
    int64_t length = c.masks[i].back();
    for (int64_t j = 0; j < c.masks[i].elements(); ++j) {
      int64_t position = j % length - (j % 23 == 0 ? 30 : 0);
      int64_t document = j % length / 37 + (!wide && j % 19 == 0 ? 9 : 0);
      StoreFloat(masks.back().Arg(), j, static_cast<double>(documents ? document : position));
    }
  }
  return masks;
}

// The gradient goes by what the reference gives forward.
inline void KernelCases::CheckMasked(const MaskedUse& c, uint64_t seed) {
  using enum DType;
  std::mt19937_64 random(seed);
  std::string what =
      Cat("attention ", Name(c.dtype), " of ", c.heads, "/", c.key_heads, " heads, ", c.queries, " queries, ",
          c.keys, " keys, window ", c.window, ", masks ", c.names, ", seed ", seed);
  Operand q(c.dtype, {c.batch, c.queries, c.heads, c.width}),
      k(c.dtype, {c.batch, c.keys, c.key_heads, c.width});
  Operand v(c.dtype, {c.batch, c.keys, c.key_heads, c.value_width}),
      o(c.dtype, {c.batch, c.queries, c.heads, c.value_width}), dout = o;
  Operand lse(kFloat32, {c.batch, c.heads, c.queries});
  for (Operand* x : {&q, &k, &v, &dout}) x->Draw(&random, -1, 1, 4);
  Attrs attrs = {{"causal", int64_t{c.causal}}, {"dropout", c.dropout}, {"scale", 0.0}, {"key", int64_t{17}}};
  if (c.window > 0) attrs.Set("window", c.window);
  if (!c.masks.empty()) attrs.Set("masks", c.names);
  Operands masks = DrawMasks(c, &random);
  Operands in = {q, k, v}, out = {o, lse};
  in.insert(in.end(), masks.begin(), masks.end());
  Check(what, "attention", attrs, in, out);
  if (!c.gradient) return;
  ASSERT_TRUE(RunReference("attention", attrs, &in, &out).ok());
  Operands back = {dout, q, k, v, out[0], out[1]}, slopes = {q, k, v};
  back.insert(back.end(), masks.begin(), masks.end());
  if (c.names.starts_with("bias")) {
    attrs.Set("bias_grad", int64_t{1});
    slopes.push_back(masks[0]);
  }
  Check("gradient of " + what, "attention_grad", attrs, back, slopes);
}

// Operands with several blocks and tiles, odd ends, and rows that see nothing.
inline void KernelCases::MaskedAttention() {
  using enum DType;
  const MaskedUse uses[] = {
      {2, 70, 70, 6, 2, 16, 16, true, 0, {}, ""},
      {1, 67, 130, 4, 1, 8, 24, true, 0, {}, "", kBFloat16},
      {1, 130, 130, 4, 2, 64, 36, true, 40, {}, "", kBFloat16},
      {1, 150, 150, 2, 2, 12, 12, true, 30, {}, ""},
      {1, 100, 90, 2, 2, 6, 6, false, 20, {}, "", kFloat16},
      // Few queries, as a cache has them; masked keys at the end, in whole blocks, before and in between.
      {2, 1, 200, 6, 2, 64, 64, true, 0, {{2, 1}, {2, 200}}, "query_positions key_positions"},
      {3,
       4,
       300,
       8,
       8,
       32,
       16,
       true,
       0,
       {{3, 4}, {3, 300}},
       "query_positions key_positions",
       kBFloat16,
       0,
       false},
      {1, 2, 131, 4, 1, 16, 48, true, 40, {{2}, {131}}, "query_positions key_positions", kFloat16},
      {2, 3, 100, 4, 4, 16, 16, true, 0, {}, ""},
      {1, 1, 67, 16, 1, 128, 128, false, 0, {{1}, {67}}, "query_documents key_documents"},
      {2, 4, 90, 4, 2, 32, 32, true, 0, {{2, 4}}, "query_positions", kBFloat16, 0, false},
      {2, 66, 70, 4, 2, 8, 8, true, 0, {{2, 4, 66, 70}}, "bias"},
      {2, 70, 66, 4, 2, 8, 6, false, 0, {{4, 1, 66}}, "bias", kBFloat16},
      {2, 70, 66, 2, 2, 8, 8, false, 0, {{2, 1, 1, 66}}, "bias"},
      {2, 40, 33, 2, 1, 8, 8, false, 0, {{33}}, "bias", kBFloat16, 0.3},
      {2, 70, 140, 2, 1, 10, 10, true, 9, {{2, 70}, {140}}, "query_positions key_positions"},
      {1, 140, 70, 2, 1, 10, 10, true, 0, {{140}}, "query_positions", kBFloat16},
      {2, 70, 140, 2, 2, 7, 5, true, 0, {{2, 70}, {2, 140}}, "query_documents key_documents", kBFloat16},
      {1, 200, 200, 3, 3, 8, 8, true, 0, {{200}, {200}}, "query_documents key_documents", kBFloat16},
      {1,
       90,
       90,
       2,
       2,
       8,
       8,
       true,
       25,
       {{2, 1, 90}, {90}, {90}, {90}, {1, 90}},
       "bias query_positions key_positions query_documents key_documents",
       kFloat32,
       0.2}};
  uint64_t seed = 4500;
  for (const MaskedUse& use : uses) CheckMasked(use, ++seed);
}

inline void KernelCases::Rope() {
  using enum DType;
  uint64_t seed = 4800;
  for (DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    for (Dims x :
         {Dims{2, 33, 3, 64}, Dims{3, 5, 1, 34}, Dims{1, 7, 2, 128}, Dims{0, 4, 2, 8}, Dims{2, 3, 2, 2}}) {
      Attrs llama = {{"base", 500000.0}, {"trained_length", 8192}};
      CheckCase({"rope", {x, {x[1]}}, {}, {dtype, kInt32}, 1000000}, ++seed);
      CheckCase({"rope", {x, {x[0], x[1]}}, llama, {dtype, kInt64}, 131072}, ++seed);
      Attrs part = {{"dims", 2}, {"interleaved", 1}, {"inverse", 1}};
      CheckCase({"rope", {x, {x[0], x[1]}}, part, {dtype, kInt32}, 3000}, ++seed);
    }
  }
}

inline void KernelCases::UpdatesInPlaceAndApart() {
  const Attrs attrs = {{"lr", 0.01},  {"beta1", 0.9},        {"beta2", 0.99},
                       {"eps", 1e-8}, {"weight_decay", 0.1}, {"momentum", 0.9}};
  uint64_t seed = 5000;
  for (const auto& [op, state] : {std::pair{"adam", 2u}, {"adamw", 2u}, {"sgd", 1u}, {"sgd_plain", 0u}}) {
    for (bool factor : {false, true}) {
      Case c{op, std::vector<Dims>(2 + state, Dims{7, 3001}), attrs, {}, 4, 0.1, 2};
      if (state == 2) c.in.push_back({});  // how many updates were made before
      if (factor) c.in.push_back({});
      CheckCase(c, ++seed);
      std::mt19937_64 random(++seed);
      Operands in, apart;
      for (const Dims& shape : c.in) {
        in.emplace_back(DType::kFloat32, shape);
        in.back().Draw(&random, 0.1, 2, 4);
      }
      for (size_t i = 0; i <= state; ++i) apart.emplace_back(DType::kFloat32, c.in[0]);
      ASSERT_TRUE(RunFast(op, attrs, &in, &apart).ok());
      KernelSpec spec;
      spec.name = op;
      spec.attrs = attrs;
      for (Operand& o : in) spec.in.push_back(o.Arg());
      spec.out = {spec.in[0]};
      for (size_t i = 0; i < state; ++i) spec.out.push_back(spec.in[2 + i]);
      ASSERT_TRUE(fast_.make(spec)->Run({spec, spec.in, spec.out, nullptr, 3, 0, 1, 77}).ok());
      EXPECT_EQ(in[0].memory, apart[0].memory) << op << " in place, seed " << seed;
      if (state > 0) {
        EXPECT_EQ(in[2].memory, apart[1].memory) << op << " in place, seed " << seed;
      }
    }
  }
}

inline void KernelCases::DropoutByGlobalPosition() {
  std::mt19937_64 random(21);
  const Attrs attrs = {{"p", 0.3}, {"key", int64_t{5}}};
  for (Dims extent : {Dims{3, 4, 10}, Dims{2, 7, 10}, Dims{3, 5, 6}, Dims{1, 1, 1}}) {
    Operand x(DType::kFloat32, {5, 11, 13}, {2, 3, 3}, extent);
    x.Draw(&random, 1, 2, 4);
    Check("dropout of " + extent.str() + ", seed 21", "dropout", attrs, {x}, {x});
  }
  Operand flat(DType::kFloat32, {5, 11, 13}, {2, 0, 0}, {3, 11, 13});  // whole rows: long runs
  flat.Draw(&random, 1, 2, 4);
  Check("dropout of whole rows, seed 21", "dropout", attrs, {flat}, {flat});
}

inline void KernelCases::FusedChains() {
  using enum DType;
  const std::string programs[] = {
      "add 0 1;gelu 3;mul 4 0", "exp 0;tanh 3;mul 4 4;neg 1;sub 5 6;add 7 1",
      "add 0 1;dropout 3 key=7 p=0.25;add 4 2", "less 0 2;where 3 1 2;square 4",
      "sin 0;at_least 3 bound=-0.25;at_most 4 bound=0.5;elu_grad 5 1 alpha=0.5;add 6 0",
      "less 0 2;isfinite 1;logical_and 3 4;logical_not 5;where 6 1 0;prelu 7 2",
      "scale 0 factor=0.5;shift 3 offset=-1.5;add_n 3 4 1 2;cast 5 dtype=\"bool\";where 6 0 1",
      "gelu_grad 0 1;sub 3 0;exp 4;greater_equal 4 1;cast 6 dtype=\"f32\";mul 7 5",
      // Sums of products, with operands in any order and read by one or several.
      "neg 0;mul 0 1;sub 0 2;mul 5 1;add 6 2;add 4 7",
      "neg 0;mul 3 1;sub 3 2;mul 1 5;add 2 6;cast 7 dtype=\"f32\";add_n 8 4 0",
      "neg 0;sub 0 1;mul 2 4;add 1 5;mul 6 6;add 6 7",
      "neg 0;mul 0 1;mul 2 0;add 4 5;add_n 6 3 1;cast 7 dtype=\"f32\""};
  uint64_t seed = 6000;
  for (const std::string& program : programs) {
    for (int64_t rows : {0, 1, 7, 40}) {
      std::mt19937_64 random(++seed);
      Operand x(kFloat32, {50, 6, 33}, {3, 2, 0}, {rows, 3, 33}), row(kFloat32, {33}),
          column(kFloat32, {6, 1}, {2, 0}, {3, 1});
      for (Operand* o : {&x, &row, &column}) o->Draw(&random, -1, 1, 4);
      int64_t last = 3 + static_cast<int64_t>(std::count(program.begin(), program.end(), ';'));
      std::vector<FusedStep> steps = ParseFused(program, 3);
      std::vector<DType> types = FusedTypes(steps, {kFloat32, kFloat32, kFloat32});
      Attrs attrs = {{"program", program}, {"outputs", std::vector<int64_t>{last, 3, 3}}};
      Operands out;
      for (int64_t id : {last, int64_t{3}, int64_t{3}})
        out.emplace_back(types[id], x.arg.global, x.arg.begin, x.arg.extent);
      Check(Cat("fused \"", program, "\" on ", rows, " rows, seed ", seed), "fused", attrs, {x, row, column},
            out);
    }
  }
}

inline void KernelCases::ManyLiveValues() {
  std::vector<FusedStep> steps;
  FusedStep sum{"add_n", {}, {}};
  for (int i = 0; i < 70; ++i) {
    steps.push_back({"shift", {i}, {{"offset", 0.25}}});
    sum.args.push_back(i + 1);
  }
  steps.push_back(sum);
  std::mt19937_64 random(31);
  Operand x(DType::kFloat32, {3000});
  x.Draw(&random, -1, 1, 4);
  Attrs attrs = {{"program", FusedProgram(steps)}, {"outputs", std::vector<int64_t>{71}}};
  Check("fused chain of 71 steps, seed 31", "fused", attrs, {x}, {x});
}

}  // namespace oneflow_like
