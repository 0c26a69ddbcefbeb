// Attention, grouped products and norms by what they are asked for, in bf16 (bench_gpu --what=attention,
// grouped, norms): each case's kernels alone; how long both passes of attention take beside the plain case of
// the same size, and of grouped products each of their two ways; the bytes a second of norms beside a copy's.
#include "tests/gpu/bench_cases.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/op.h"

namespace oneflow_like::gpu {
namespace {

constexpr DType kNarrow = DType::kBFloat16;

struct Operand {
  Dims shape;
  DType dtype = kNarrow;
};

// Microseconds of an operator on whole operands.
double Microseconds(MeasuredDevice* on, const std::string& name, const Attrs& attrs,
                    const std::vector<Operand>& in, const std::map<int, std::vector<int32_t>>& integers) {
  const OpDef& def = BuiltinCatalog().Get(name);
  OpCall call{name, name, {}, {}, &attrs};
  KernelSpec spec;
  spec.name = spec.node = name;
  spec.attrs = attrs;
  const auto whole = [](DType dtype, const Dims& shape) {
    return TensorArg{nullptr, dtype, shape, Dims(shape.rank(), 0), shape};
  };
  for (const Operand& operand : in) {
    call.shapes.push_back(operand.shape);
    call.dtypes.push_back(operand.dtype);
    spec.in.push_back(whole(operand.dtype, operand.shape));
  }
  const Inferred inferred = Infer(def, call);
  for (size_t o = 0; o < inferred.rule.out.size(); ++o)
    spec.out.push_back(whole(inferred.dtypes[o], inferred.rule.out[o].shape));
  const auto& scratch = def.cuda_scratch ? def.cuda_scratch : def.scratch;
  const int64_t bytes = scratch ? static_cast<int64_t>(scratch(spec)) : 0;
  TimingOptions options;
  options.batches = 3;
  options.integers = integers;
  return TimeKernel(on, spec, bytes, options).seconds * 1e6;
}

struct Size {
  int64_t batch, heads, groups, length, width;
};

struct AttentionCase {
  std::string what;
  double dropout = 0;
  int64_t window = 0;
  bool bias = false, bias_grad = false;
  int64_t documents = 0;  // in a row; 0: none are asked for
};

std::pair<double, double> TimeAttention(MeasuredDevice* on, const Size& s, const AttentionCase& c) {
  const Dims q{s.batch, s.length, s.heads, s.width}, k{s.batch, s.length, s.groups, s.width};
  Attrs attrs = {{"causal", int64_t{1}}, {"dropout", c.dropout}, {"scale", 0.0}, {"key", int64_t{17}}};
  if (c.window > 0) attrs.Set("window", c.window);
  std::vector<Operand> masks;
  std::vector<std::vector<int32_t>> contents;
  std::string names;
  if (c.bias) {
    names = "bias";
    masks.push_back({{s.heads, s.length, s.length}, DType::kFloat32});
    contents.emplace_back();
  }
  if (c.documents > 0) {
    names += "query_documents key_documents";
    std::vector<int32_t> runs(s.batch * s.length);
    for (size_t i = 0; i < runs.size(); ++i)
      runs[i] = static_cast<int32_t>(static_cast<int64_t>(i) % s.length * c.documents / s.length);
    for (int side = 0; side < 2; ++side) {
      masks.push_back({{s.batch, s.length}, DType::kInt32});
      contents.push_back(runs);
    }
  }
  if (!names.empty()) attrs.Set("masks", names);
  const auto time = [&](const std::string& name, const Attrs& how, std::vector<Operand> in) {
    std::map<int, std::vector<int32_t>> integers;
    for (size_t m = 0; m < masks.size(); ++m) {
      if (!contents[m].empty()) integers[static_cast<int>(in.size())] = contents[m];
      in.push_back(masks[m]);
    }
    return Microseconds(on, name, how, in, integers);
  };
  const double forward = time("attention", attrs, {{q}, {k}, {k}});
  if (c.bias_grad) attrs.Set("bias_grad", int64_t{1});
  const double backward = time("attention_grad", attrs,
                               {{q}, {q}, {k}, {k}, {q}, {{s.batch, s.heads, s.length}, DType::kFloat32}});
  return {forward, backward};
}

}  // namespace

void PrintAttention(MeasuredDevice* on, bool small) {
  std::vector<Size> sizes = {{32, 12, 12, 1024, 64}, {4, 32, 8, 1024, 64}, {1, 32, 8, 4096, 128}};
  if (small) sizes = {{1, 2, 1, 32, 16}};
  double dropped = 0, biased = 0, packed = 0;
  std::printf(
      "| attention, causal, bf16 | case | forward us | backward us | both, of the plain one's |\n"
      "|---|---|--:|--:|--:|\n");
  for (const Size& s : sizes) {
    std::vector<AttentionCase> cases = {{"plain"},
                                        {"dropout 0.1", 0.1},
                                        {"bias", 0, 0, true},
                                        {"8 documents a row", 0, 0, false, false, 8},
                                        {"8 documents a row, dropout 0.1", 0.1, 0, false, false, 8},
                                        {"window of a quarter", 0, s.length / 4},
                                        {"bias with its gradient", 0, 0, true, true}};
    if (&s != &sizes[0]) cases.resize(2);  // each takes two seconds
    double plain = 0;
    for (const AttentionCase& c : cases) {
      const auto [forward, backward] = TimeAttention(on, s, c);
      if (plain == 0) plain = forward + backward;
      const double ratio = (forward + backward) / plain;
      if (&s == &sizes[0] && c.what == "dropout 0.1") dropped = ratio;
      if (&s == &sizes[0] && c.what == "bias") biased = ratio;
      if (&s == &sizes[0] && c.what == "8 documents a row") packed = ratio;
      std::printf("| %d x %d heads of %d keys', %d x %d | %s | %.1f | %.1f | %.2f |\n",
                  static_cast<int>(s.batch), static_cast<int>(s.heads), static_cast<int>(s.groups),
                  static_cast<int>(s.length), static_cast<int>(s.width), c.what.c_str(), forward, backward,
                  ratio);
    }
  }
  std::printf(
      "figure: attention takes with dropout %.2f, with a bias %.2f, of packed documents %.2f times as "
      "long as without\n",
      dropped, biased, packed);
}

void PrintGroupedProducts(MeasuredDevice* on, bool small) {
  const int64_t rows = small ? 64 : 16384, k = small ? 16 : 768, m = small ? 32 : 3072;
  const auto one = [&](int64_t a, int64_t b) {
    return Microseconds(on, "matmul", {}, {{{rows, a}}, {{a, b}}}, {});
  };
  const double plain = one(k, m);
  std::printf(
      "| grouped product, bf16, %d x %d x %d | forward us | gradient of rows us | of weights us | forward, "
      "of one product's %.1f us |\n"
      "|---|--:|--:|--:|--:|\n",
      static_cast<int>(rows), static_cast<int>(k), static_cast<int>(m), plain);
  double even[2] = {};
  for (const int64_t experts : small ? std::vector<int64_t>{4} : std::vector<int64_t>{8, 64}) {
    for (const bool skewed : {false, true}) {
      std::vector<int32_t> counts(experts, static_cast<int32_t>(rows / experts));
      if (skewed)  // half of all to the first, the others as they come
        for (int64_t e = 0; e < experts; ++e)
          counts[e] = static_cast<int32_t>(e == 0 ? rows / 2 : rows / 2 / (experts - 1));
      const Operand x{{rows, k}}, w{{experts, k, m}}, y{{rows, m}}, c{{experts}, DType::kInt32};
      const std::map<int, std::vector<int32_t>> runs = {{2, counts}};
      for (const int64_t way : {0, 1}) {  // by warps, by warpgroups
        const auto time = [&](const std::string& name, Attrs attrs, const Operand& left,
                              const Operand& right) {
          attrs.Set("gemm_choice", way);
          return Microseconds(on, name, attrs, {left, right, c}, runs);
        };
        const double forward = time("grouped_matmul", {{"transposed", int64_t{0}}}, x, w),
                     back = time("grouped_matmul", {{"transposed", int64_t{1}}}, y, w),
                     weights = time("grouped_matmul_grad_weight", {{"experts", experts}}, x, y);
        if (!skewed) even[way] = forward / plain;
        std::printf("| %d experts, %s, by %s | %.1f | %.1f | %.1f | %.2f |\n", static_cast<int>(experts),
                    skewed ? "half of the rows to one" : "rows evenly", way == 0 ? "warps" : "warpgroups",
                    forward, back, weights, forward / plain);
      }
    }
  }
  std::printf(
      "figure: a product of 64 experts' rows takes %.2f (by warps) and %.2f (by warpgroups) times as long as "
      "one "
      "product of all rows\n",
      even[0], even[1]);
}

void PrintNorms(MeasuredDevice* on, bool small, double copy) {
  std::vector<std::pair<int64_t, int64_t>> sizes = {
      {16384, 768}, {32768, 768}, {32768, 1024}, {8192, 2048}, {4096, 4096}};
  if (small) sizes = {{8, 64}};
  std::printf(
      "| norm, bf16 | forward us | of a copy | gradient us | of a copy | with a residual us | of a copy |\n"
      "|---|--:|--:|--:|--:|--:|--:|\n");
  double least = 1;
  for (const auto& [rows, width] : sizes) {
    for (const bool centred : {true, false}) {
      const std::string name = centred ? "layer_norm" : "rms_norm";
      const Operand x{{rows, width}}, gamma{{width}}, of_row{{rows}, DType::kFloat32};
      std::vector<Operand> forward = {x, gamma}, backward = {x, x, gamma, of_row};
      if (centred) forward.push_back(gamma), backward.push_back(of_row);
      const double pass = static_cast<double>(rows * width * 2) / copy * 1e6;  // of one tensor
      const double there = Microseconds(on, name, {{"eps", 1e-5}}, forward, {}),
                   back = Microseconds(on, name + "_grad", {}, backward, {});
      backward.push_back(x);
      const double added = Microseconds(on, name + "_grad", {{"residual", int64_t{1}}}, backward, {});
      std::printf("| %s %d x %d | %.1f | %.2f | %.1f | %.2f | %.1f | %.2f |\n", name.c_str(),
                  static_cast<int>(rows), static_cast<int>(width), there, 2 * pass / there, back,
                  3 * pass / back, added, 4 * pass / added);
      least = std::min({least, 3 * pass / back, 4 * pass / added});
    }
  }
  std::printf("figure: gradients of norms run at %.0f %% of a copy or more\n", least * 100);
}

}  // namespace oneflow_like::gpu
