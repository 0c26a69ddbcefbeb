// attention: softmax(q k^T scale + bias) v per head, with masks and dropout on the probabilities, and the
// log-sum-exp of the scores, from which the gradient computes the probabilities again. Several heads of
// queries may share one of keys. This reference keeps one row of scores at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/device/scratch.h"
#include "core/random.h"
#include "ops/attention_library.h"
#include "ops/attention_masks.h"
#include "ops/language/functional.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

// One use of the kernel on local pieces: q[b s (h g) d], k[b t h d], v[b t h e]. Masks and draws go by global
// indices.
class Scores {
 public:
  // `q`: the number of that operand; `first_mask`: of the first optional one.
  Scores(const KernelContext& context, size_t q, int first_mask)
      : q_(context.in[q]),
        k_(context.in[q + 1]),
        masks_(MasksOf(context.spec.attrs, first_mask)),
        rows_(MaskRowsOf(masks_, context.in, q_, k_)),
        step_(context.step),
        drop_(context.spec.attrs.Float("dropout", 0)),
        rule_(DropRuleOf(drop_)) {
    const Attrs& attrs = context.spec.attrs;
    scale_ = attrs.Float("scale", 0);
    if (scale_ == 0) scale_ = q_.global[3] == 0 ? 1 : 1 / std::sqrt(static_cast<double>(q_.global[3]));
    key_ = RandomKey(context.seed, static_cast<uint64_t>(attrs.Int("key", 0)));
    if (masks_.bias < 0) return;
    bias_ = &context.in[masks_.bias];
    bias_strides_ = StridesOf(*bias_);
  }

  const AttentionMasks& masks() const { return masks_; }
  const BiasStrides& bias_strides() const { return bias_strides_; }
  double scale() const { return scale_; }
  int64_t KeyHead(int64_t h) const { return h / (q_.extent[2] / k_.extent[2]); }
  int64_t InLse(int64_t b, int64_t s, int64_t h) const { return (b * q_.extent[2] + h) * q_.extent[1] + s; }

  // -infinity where masked.
  double At(int64_t b, int64_t s, int64_t h, int64_t t) const {
    bool seen = masks_.Sees(rows_.query_positions.At(b, s), rows_.key_positions.At(b, t),
                            rows_.query_documents.At(b, s), rows_.key_documents.At(b, t));
    if (!seen) return -std::numeric_limits<double>::infinity();
    int64_t at_q = RowOf(q_, b, s, h), at_k = RowOf(k_, b, t, KeyHead(h));
    double dot = 0;
    for (int64_t d = 0; d < q_.extent[3]; ++d) dot += LoadFloat(q_, at_q + d) * LoadFloat(k_, at_k + d);
    double bias = bias_ == nullptr ? 0 : LoadFloat(*bias_, bias_strides_.Offset(b, h, s, t));
    return dot * scale_ + bias;
  }
  // The factor of a probability: 1 without dropout, else 0 or DropRule::scale.
  double Keep(int64_t b, int64_t s, int64_t h, int64_t t) const {
    if (drop_ == 0) return 1;
    int64_t index = (b + q_.begin[0]) * q_.global[2] + h + q_.begin[2];
    index = (index * q_.global[1] + s + q_.begin[1]) * k_.global[1] + t + k_.begin[1];
    return DropBits(key_, step_, index) >= rule_.least ? rule_.scale : 0;
  }

  // Offset of element 0 of position i and head h of a piece [b i h d].
  static int64_t RowOf(const TensorArg& x, int64_t b, int64_t i, int64_t h) {
    return ((b * x.extent[1] + i) * x.extent[2] + h) * x.extent[3];
  }

 private:
  const TensorArg &q_, &k_;
  AttentionMasks masks_;
  MaskRows rows_;
  const TensorArg* bias_ = nullptr;
  BiasStrides bias_strides_;
  int64_t step_;
  double drop_;
  DropRule rule_;
  double scale_;
  uint64_t key_;
};

// Calls body(b, s, h) for every query held here.
template <typename F>
void ForEachQuery(const TensorArg& q, F&& body) {
  for (int64_t b = 0; b < q.extent[0]; ++b) {
    for (int64_t s = 0; s < q.extent[1]; ++s) {
      for (int64_t h = 0; h < q.extent[2]; ++h) body(b, s, h);
    }
  }
}

// Over no key at all it gives the identity of such sums: 0, with log-sum-exp -infinity.
Status AttentionReference(const KernelContext& context) {
  const TensorArg &q = context.in[0], &k = context.in[1], &v = context.in[2], &o = context.out[0];
  Scores scores(context, 0, 3);
  int64_t keys = k.extent[1];
  double* const row = Scratch(context.scratch).Take<double>(keys);
  ForEachQuery(q, [&](int64_t b, int64_t s, int64_t h) {
    double greatest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t t = 0; t < keys; ++t) greatest = std::max(greatest, row[t] = scores.At(b, s, h, t));
    bool blind = std::isinf(greatest) && greatest < 0;
    for (int64_t t = 0; t < keys; ++t) total += row[t] = blind ? 0 : std::exp(row[t] - greatest);
    for (int64_t e = 0; e < o.extent[3]; ++e) {
      double sum = 0;
      for (int64_t t = 0; t < keys && !blind; ++t) {
        double value = LoadFloat(v, Scores::RowOf(v, b, t, scores.KeyHead(h)) + e);
        sum += row[t] / total * scores.Keep(b, s, h, t) * value;
      }
      StoreFloat(o, Scores::RowOf(o, b, s, h) + e, sum);
    }
    StoreFloat(context.out[1], scores.InLse(b, s, h), blind ? greatest : std::log(total) + greatest);
  });
  return {};
}

// do, q, k, v, o, lse -> dq, dk, dv, dbias. With p the probabilities and m their dropout factors:
// dv = (p m)^T do; ds = p (m (do v^T) - rowsum(do o)); dq = scale ds k; dk = scale ds^T q; dbias = ds.
Status AttentionGradReference(const KernelContext& context) {
  const TensorArg &dout = context.in[0], &q = context.in[1], &k = context.in[2], &v = context.in[3];
  const TensorArg &o = context.in[4], &lse = context.in[5];
  Scores scores(context, 1, 6);
  Scratch scratch(context.scratch);
  double* sums[4] = {};
  for (size_t i = 0; i < context.out.size(); ++i) {
    sums[i] = scratch.Take<double>(context.out[i].elements());
    std::fill_n(sums[i], context.out[i].elements(), 0.0);
  }
  ForEachQuery(q, [&](int64_t b, int64_t s, int64_t h) {
    int64_t at_q = Scores::RowOf(q, b, s, h), at_o = Scores::RowOf(o, b, s, h);
    double row = 0, its_lse = LoadFloat(lse, scores.InLse(b, s, h));
    for (int64_t e = 0; e < o.extent[3]; ++e) row += LoadFloat(dout, at_o + e) * LoadFloat(o, at_o + e);
    for (int64_t t = 0; t < k.extent[1]; ++t) {
      double score = scores.At(b, s, h, t);
      if (std::isinf(score) && score < 0) continue;
      int64_t at_k = Scores::RowOf(k, b, t, scores.KeyHead(h)),
              at_v = Scores::RowOf(v, b, t, scores.KeyHead(h));
      double p = std::exp(score - its_lse), keep = scores.Keep(b, s, h, t), dp = 0;
      for (int64_t e = 0; e < v.extent[3]; ++e) dp += LoadFloat(dout, at_o + e) * LoadFloat(v, at_v + e);
      double ds = p * (keep * dp - row), slope = ds * scores.scale();
      for (int64_t e = 0; e < v.extent[3]; ++e) sums[2][at_v + e] += p * keep * LoadFloat(dout, at_o + e);
      for (int64_t d = 0; d < q.extent[3]; ++d) {
        sums[0][at_q + d] += slope * LoadFloat(k, at_k + d);
        sums[1][at_k + d] += slope * LoadFloat(q, at_q + d);
      }
      if (context.out.size() > 3) sums[3][scores.bias_strides().Offset(b, h, s, t)] += ds;
    }
  });
  for (size_t o = 0; o < context.out.size(); ++o) {
    for (int64_t i = 0; i < context.out[o].elements(); ++i) StoreFloat(context.out[o], i, sums[o][i]);
  }
  return {};
}

// --- The rule. `q`: the number of the query operand; keys, values and, last, the masks follow.

struct Operands {
  size_t q;
  int first_mask;
};
constexpr Operands kForward = {0, 3}, kBackward = {1, 6};

// Whether q, k and v have four axes; if not, the rule says so.
bool HaveAxes(const OpCall& call, size_t q) {
  for (size_t i = q; i < q + 3; ++i) {
    if (i >= call.shapes.size() || call.shapes[i].rank() != 4) return false;
  }
  return true;
}

std::string Heads(const OpCall& call, size_t q) {
  return HaveAxes(call, q) && call.shapes[q][2] != call.shapes[q + 1][2] ? "(h g)" : "h";
}
std::string ValueWidth(const OpCall& call, size_t q) {
  return HaveAxes(call, q) && call.shapes[q + 2][3] != call.shapes[q][3] ? "e" : "d";
}

// "[1 (h g) s t]": the last axes of [b (h g) s t], 1 where the bias is broadcast.
std::string BiasAxes(const OpCall& call, size_t q, const Dims& bias) {
  const std::string labels[] = {"b", Heads(call, q), "s", "t"};
  Dims full = {0, 0, 0, 0};
  if (HaveAxes(call, q))
    full = {call.shapes[q][0], call.shapes[q][2], call.shapes[q][1], call.shapes[q + 1][1]};
  std::string text;
  for (int i = std::max(0, 4 - bias.rank()); i < 4; ++i) {
    bool broadcast = bias[bias.rank() - 4 + i] == 1 && full[i] != 1;
    text += (text.empty() ? "" : " ") + (broadcast ? "1" : labels[i]);
  }
  return "[" + text + "]";
}

// ", bias[1 h s t], query_positions[b s]": the optional operands.
std::string MaskAxes(const OpCall& call, const Operands& at) {
  AttentionMasks masks = MasksOf(*call.attrs, at.first_mask);
  std::string text;
  auto add = [&](int number, const char* name, const char* label) {
    if (number < 0 || number >= static_cast<int>(call.shapes.size())) return;
    bool of_batch = call.shapes[number].rank() == 2;
    text += Cat(", ", name, "[", of_batch ? "b " : "", label, "]");
  };
  if (masks.bias >= 0 && masks.bias < static_cast<int>(call.shapes.size()))
    text += ", bias" + BiasAxes(call, at.q, call.shapes[masks.bias]);
  add(masks.query_positions, "query_positions", "s");
  add(masks.key_positions, "key_positions", "t");
  add(masks.query_documents, "query_documents", "s");
  add(masks.key_documents, "key_documents", "t");
  return text;
}

std::string ForwardAxes(const OpCall& call) {
  std::string h = Heads(call, 0), e = ValueWidth(call, 0);
  return Cat("q[b s ", h, " d], k[b t h d], v[b t h ", e, "]", MaskAxes(call, kForward), " -> o[b s ", h, " ",
             e, "], lse[b ", h, " s]");
}

std::string BackwardAxes(const OpCall& call) {
  std::string h = Heads(call, 1), e = ValueWidth(call, 1);
  std::string query = Cat("[b s ", h, " d]"), result = Cat("[b s ", h, " ", e, "]"),
              value = Cat("[b t h ", e, "]");
  std::string bias;
  int number = MasksOf(*call.attrs, kBackward.first_mask).bias;
  if (call.attrs->Int("bias_grad", 0) != 0 && number >= 0 && number < static_cast<int>(call.shapes.size()))
    bias = ", dbias" + BiasAxes(call, 1, call.shapes[number]);
  return Cat("do", result, ", q", query, ", k[b t h d], v", value, ", o", result, ", lse[b ", h, " s]",
             MaskAxes(call, kBackward), " -> dq", query, ", dk[b t h d], dv", value, bias);
}

// Products of a pair of query and key: `d` of the width of keys, `e` of that of values.
double PairFlops(const BoundRule& rule, double d, double e) {
  auto extent = [&](const char* label, double otherwise) {
    auto found = rule.extents.find(label);
    return found == rule.extents.end() ? otherwise : static_cast<double>(found->second);
  };
  double width = extent("d", 0);
  double pairs = extent("b", 0) * extent("s", 0) * extent("t", 0) * extent("h", 0) * extent("g", 1);
  return pairs * (d * width + e * extent("e", width));
}

// --- Checks

void CheckMaskTypes(const OpCall& call, const AttentionMasks& masks) {
  if (masks.bias >= 0) {
    if (call.dtypes[masks.bias] != DType::kFloat32)
      Fail(call.who, ": bias is ", Name(call.dtypes[masks.bias]), " but must be f32; cast it");
    if (call.shapes[masks.bias].rank() > 4)
      Fail(call.who, ": bias has ", call.shapes[masks.bias].rank(), " axes but at most 4, [b h s t]");
  }
  const int numbers[] = {masks.query_positions, masks.key_positions, masks.query_documents,
                         masks.key_documents};
  for (int i = 0; i < 4; ++i) {
    if (numbers[i] < 0) continue;
    DType dtype = call.dtypes[numbers[i]];
    int rank = call.shapes[numbers[i]].rank();
    if (dtype != DType::kInt32 && dtype != DType::kInt64)
      Fail(call.who, ": ", kAttentionMasks[i + 1], " is ", Name(dtype), " but must be i32 or i64");
    if (rank != 1 && rank != 2) {
      Fail(call.who, ": ", kAttentionMasks[i + 1], " has ", rank, rank == 1 ? " axis" : " axes",
           " but must have 1 or 2, ", i % 2 == 0 ? "[s] or [b s]" : "[t] or [b t]");
    }
  }
}

void CheckMasks(const OpCall& call, const Operands& at) {
  AttentionMasks masks = MasksOf(*call.attrs, at.first_mask);
  if (masks.window < 0)
    Fail(call.who, ": window is ", masks.window, " but must be the number of keys, or 0 for all");
  if ((masks.query_documents < 0) != (masks.key_documents < 0)) {
    bool of_queries = masks.query_documents >= 0;
    Fail(call.who, ": ", of_queries ? "query_documents" : "key_documents", " are given without ",
         of_queries ? "key_documents" : "query_documents", ", but one is compared with the other");
  }
  if (masks.Positions() && !masks.causal && masks.window == 0)
    Fail(call.who, ": positions are given, but neither causal nor a window, which compare them");
  CheckMaskTypes(call, masks);
}

// Attributes and masks, and that every query sees a key where that follows from the shapes.
void CheckCall(const OpCall& call, const Operands& at) {
  size_t q = at.q;
  double p = call.attrs->Float("dropout", 0), scale = call.attrs->Float("scale", 0);
  NeedNumber(call.who, "dropout", p, Domain::kBelowOne);
  NeedNumber(call.who, "scale", scale, Domain::kFinite);
  CheckMasks(call, at);
  if (!HaveAxes(call, q)) return;  // the rule will say so
  int64_t queries = call.shapes[q][1], keys = call.shapes[q + 1][1], heads = call.shapes[q][2],
          key_heads = call.shapes[q + 1][2];
  if (heads != key_heads && (key_heads == 0 || heads % key_heads != 0)) {
    Fail(call.who, ": axis h has ", heads, " heads in q but ", key_heads,
         " in k; heads of queries share those of keys in equal groups");
  }
  if (queries > 0 && keys == 0) Fail(call.who, ": axis t has 0 keys for the ", queries, " queries of axis s");
  if (call.attrs->Int("causal", 0) != 0 && queries > keys &&
      !MasksOf(*call.attrs, at.first_mask).Positions()) {
    Fail(call.who, ": axis s has ", queries, " queries but axis t only ", keys,
         " keys, so under the causal mask the first query would see no key; give as many keys or set causal "
         "off");
  }
}

void CheckForward(const OpCall& call) {
  RequireInputs(call, 3 + MasksOf(*call.attrs, 3).count);
  for (size_t i = 0; i < 3; ++i) RequireFloating(call, i);
  RequireSameTypes({call.op, call.who, {}, {call.dtypes.begin(), call.dtypes.begin() + 3}, call.attrs});
  CheckCall(call, kForward);
}

void CheckBackward(const OpCall& call) {
  AttentionMasks masks = MasksOf(*call.attrs, 6);
  RequireInputs(call, 6 + masks.count);
  for (size_t i = 0; i < 6; ++i) RequireFloating(call, i);
  if (call.dtypes[5] != DType::kFloat32)
    Fail(call.who, ": lse is ", Name(call.dtypes[5]), " but must be f32, as attention has it");
  if (call.attrs->Int("bias_grad", 0) != 0 && masks.bias < 0)
    Fail(call.who, ": the gradient of a bias is asked for, but there is no bias");
  CheckCall(call, kBackward);
}

// --- The gradient

// Adds the results of attention_grad for gradients `dout` of the results `o`, added to `din`.
void AddGradient(const GradCall& call, const AttentionMasks& masks, const Attrs& attrs,
                 const std::vector<Tensor>& operands, bool of_values, std::vector<Tensor>* din) {
  std::vector<Tensor> in = operands;
  in.insert(in.end(), call.in.begin() + 3, call.in.end());
  std::vector<Tensor> slopes = Apply(call.in[0].graph(), "attention_grad", in, attrs);
  auto add = [&](size_t to, Tensor x) { (*din)[to] = Accumulate((*din)[to], x, call.in[to]); };
  add(0, slopes[0]);
  add(1, slopes[1]);
  if (of_values) add(2, slopes[2]);
  if (slopes.size() > 3) add(masks.bias, slopes[3]);
}

// lse moves with a score by its undropped probability p: the slope that attention_grad gives to scores for
// values of ones of width 1, when the result's gradient is that of lse and the result itself is 0.
std::vector<Tensor> ThroughLse(const GradCall& call) {
  Tensor q = call.in[0], k = call.in[1];
  Tensor weight = InType(Column(transpose(call.dout[1], {0, 2, 1})), q.dtype());
  Dims result = weight.shape(), ones = k.shape();
  ones[3] = 1;
  return {weight,     q, k, full(q.graph(), ones, 1.0, q.dtype()), full(q.graph(), result, 0.0, q.dtype()),
          call.out[1]};
}

std::vector<Tensor> AttentionGrad(const GradCall& call) {
  AttentionMasks masks = MasksOf(call.attrs, 3);
  std::vector<Tensor> din(call.in.size());
  Attrs attrs = call.attrs;
  if (masks.bias >= 0 && call.wanted[masks.bias]) attrs.Set("bias_grad", int64_t{1});
  if (call.dout[0].defined()) {
    AddGradient(call, masks, attrs,
                {call.dout[0], call.in[0], call.in[1], call.in[2], call.out[0], call.out[1]}, true, &din);
  }
  if (call.dout[1].defined()) {
    attrs.Set("dropout", 0.0);
    AddGradient(call, masks, attrs, ThroughLse(call), false, &din);
  }
  return din;
}

// --- Samples

Sample AttentionSample(const Dims& q, const Dims& k, bool causal, double dropout, bool grad) {
  Sample sample{.in = {q, k, k},
                .attrs = {{"causal", int64_t{causal}}, {"dropout", dropout}, {"scale", 0.0}, {"key", 17}}};
  if (grad) sample.in = {q, q, k, k, q, {q[0], q[2], q[1]}};
  return sample;
}

// Adds the optional operands, named as the attribute has them; integers are drawn from [0, limit).
Sample WithMasks(Sample sample, const std::string& names, const std::vector<Dims>& masks, int64_t limit) {
  sample.dtypes.resize(sample.in.size(), DType::kFloat32);
  sample.attrs.Set("masks", names);
  bool bias = names.starts_with("bias");
  for (size_t i = 0; i < masks.size(); ++i) {
    sample.in.push_back(masks[i]);
    sample.dtypes.push_back(bias && i == 0 ? DType::kFloat32 : DType::kInt32);
  }
  sample.limit = limit;
  return sample;
}

// Groups, values of another width, and masks; what tests make of them broadcasts the bias in other ways.
void AddMaskedSamples(bool grad, std::vector<Sample>* samples) {
  auto add = [&](Sample sample, int64_t window) {
    if (window > 0) sample.attrs.Set("window", window);
    if (grad && sample.attrs.Str("masks", "").starts_with("bias")) sample.attrs.Set("bias_grad", int64_t{1});
    samples->push_back(std::move(sample));
  };
  Sample groups = AttentionSample({2, 3, 4, 2}, {2, 4, 2, 2}, true, 0, grad);
  if (grad) groups.in[0][3] = groups.in[3][3] = groups.in[4][3] = 3;
  if (!grad) groups.in[2][3] = 3;
  add(groups, 2);
  Sample shared = AttentionSample({2, 3, 3, 2}, {2, 4, 1, 2}, true, 0.25, grad);
  add(WithMasks(shared, "bias", {{3, 1, 4}}, 4), 0);
  Sample placed = AttentionSample({2, 3, 2, 2}, {2, 2, 2, 2}, true, 0, grad);
  add(WithMasks(placed, "query_positions key_positions", {{2, 3}, {2}}, 5), 3);
  Sample plain = AttentionSample({2, 3, 2, 2}, {2, 4, 2, 2}, false, 0, grad);
  add(WithMasks(plain, "bias query_documents key_documents", {{2, 2, 3, 4}, {3}, {2, 4}}, 2), 0);
}

std::vector<Sample> Samples(bool grad) {
  std::vector<Sample> samples = {AttentionSample({2, 5, 3, 4}, {2, 5, 3, 4}, true, 0, grad),
                                 AttentionSample({3, 5, 2, 3}, {3, 7, 2, 3}, false, 0, grad),
                                 AttentionSample({1, 3, 1, 2}, {1, 7, 1, 2}, true, 0.25, grad),
                                 AttentionSample({0, 3, 2, 4}, {0, 3, 2, 4}, true, 0, grad)};
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    if (!grad) break;  // all of one type: tests try the others
    samples.push_back(AttentionSample({2, 5, 3, 4}, {2, 5, 3, 4}, true, 0, grad));
    samples.back().dtypes = {dtype, dtype, dtype, dtype, dtype, DType::kFloat32};
  }
  AddMaskedSamples(grad, &samples);
  return samples;
}

ComputeUnit UnitOfAttention(const KernelSpec& spec, bool gradient) {
  if (spec.in[gradient ? 1 : 0].dtype == DType::kFloat32)
    return {ComputeUnit::Kind::kPlain, "its operands are f32"};
  const bool library = CudaAttentionScratchOf(spec, gradient).refused.empty();
  return {library ? ComputeUnit::Kind::kLibrary : ComputeUnit::Kind::kTile};
}

}  // namespace

CudaAttentionScratch CudaAttentionScratchOf(const KernelSpec& spec, bool gradient) {
  const int first = gradient ? 1 : 0, first_mask = gradient ? 6 : 3;
  const TensorArg &q = spec.in[first], &k = spec.in[first + 1], &v = spec.in[first + 2];
  const AttentionMasks masks = MasksOf(spec.attrs, first_mask);
  const int64_t batch = q.extent[0], queries = q.extent[1], keys = k.extent[1], width = q.extent[3];
  CudaAttentionScratch scratch;
  if (q.dtype == DType::kFloat32) return {.refused = "its operands are f32"};
  const bool dropout = spec.attrs.Float("dropout", 0) != 0;
  const int64_t own = TensorAttentionBytes(gradient, masks.bias >= 0, dropout, batch, q.extent[2],
                                           k.extent[2], queries, keys);
  if (own > kStreamWorkspaceBytes) scratch.work = own;
  const auto refused = [&](const auto&... why) {
    return CudaAttentionScratch{.work = scratch.work, .refused = Cat(why...)};
  };
  if (dropout) return refused("a library's dropout draws other numbers");
  if (masks.bias >= 0) return refused("it has a bias");
  if (width % 8 != 0 || width > kMostLibraryAttentionWidth || width != v.extent[3])
    return refused("its heads are ", width, " wide, and those of values ", v.extent[3]);
  if (masks.Positions() || masks.Documents()) {
    bool of_batch = false;
    for (size_t i = first_mask; i < spec.in.size(); ++i) of_batch |= spec.in[i].extent.rank() == 2;
    const int64_t bytes = ((of_batch ? batch : 1) * queries * keys * 2 + 255) / 256 * 256;
    if (queries != keys) return refused("its masks are of ", queries, " queries and ", keys, " keys");
    if (bytes > kMostLibraryAttentionBytes) return refused("its mask would take ", bytes, " bytes");
    scratch.mask = bytes;
  }
  if (!gradient) return scratch;
  const int64_t bytes = LibraryAttentionGradScratch(batch, q.extent[2], k.extent[2], queries, keys, width);
  if (bytes > kStreamWorkspaceBytes) scratch.work = std::max(scratch.work, bytes);
  return scratch;
}

void AddAttention(Catalog* catalog) {
  catalog->Add({
      .name = "attention",
      .doc =
          "softmax(q k^T scale + bias) v per head, and the log-sum-exp of the scores (fp32). Heads of q "
          "share "
          "those of k and v in equal groups. causal: key t is masked for query s where t > s + keys - "
          "queries. window: keys at most that many positions back are seen. masks: optional operands (bias, "
          "positions, documents). scale 0 means 1 / sqrt(d). dropout is of the probabilities. A query that "
          "sees no key gets 0.",
      .axes_of = ForwardAxes,
      .whole = {"t", "d", "e"},
      .dtypes = ResultTypes({0, DType::kFloat32}),
      .check = CheckForward,
      .grad = AttentionGrad,
      .category = "attention",
      .flops = [](const BoundRule& rule) { return PairFlops(rule, 2, 2); },
      .reference = AttentionReference,
      .scratch = [](const KernelSpec& spec) { return 8 * spec.in[1].extent[1]; },
      .cuda_scratch = [](const KernelSpec& spec) { return CudaAttentionScratchOf(spec, false).bytes(); },
      .cuda_unit = [](const KernelSpec& spec) { return UnitOfAttention(spec, false); },
      .random = true,
      .precision = Precision::kNarrow,
      .wide = {"bias"},
      .samples = Samples(false),
  });
  // Keys can be cut: probabilities follow from the log-sum-exp over all of them, and the row sums from o.
  catalog->Add({
      .name = "attention_grad",
      .doc =
          "Gradients of attention with respect to q, k and v, and with bias_grad of the bias; computes the "
          "probabilities again.",
      .axes_of = BackwardAxes,
      .folds = {{"b", Reduce::kSum},
                {"s", Reduce::kSum},
                {"t", Reduce::kSum},
                {"h", Reduce::kSum},
                {"g", Reduce::kSum}},
      .linear = {{"do"}},
      .whole = {"d", "e"},
      .dtypes =
          [](const OpCall& call) {
            std::vector<DType> types = {call.dtypes[1], call.dtypes[2], call.dtypes[3]};
            if (call.attrs->Int("bias_grad", 0) != 0) types.push_back(DType::kFloat32);
            return types;
          },
      .check = CheckBackward,
      .grad = GradientOfAttentionGrad,
      .category = "attention",
      .flops = [](const BoundRule& rule) { return PairFlops(rule, 6, 4); },
      .reference = AttentionGradReference,
      .scratch =
          [](const KernelSpec& spec) {
            Scratch scratch;
            for (const TensorArg& out : spec.out) scratch.Take<double>(out.elements());
            return scratch.bytes();
          },
      .cuda_scratch = [](const KernelSpec& spec) { return CudaAttentionScratchOf(spec, true).bytes(); },
      .cuda_unit = [](const KernelSpec& spec) { return UnitOfAttention(spec, true); },
      .random = true,
      .precision = Precision::kNarrow,
      .wide = {"lse", "bias"},
      .samples = Samples(true),
  });
}

}  // namespace oneflow_like
