// attention: softmax(q k^T * scale) v per head, with causal mask and dropout on the probabilities, and the
// log-sum-exp of the scores, from which the gradient computes the probabilities again. This reference keeps
// one row of scores at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"
#include "ops/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

// One use of the kernel on local pieces: q[b s h d], k[b t h d]. Masks and draws go by global indices.
class Scores {
 public:
  Scores(const KernelContext& context, const TensorArg& q, const TensorArg& k)
      : q_(q), k_(k), step_(context.step), drop_(context.spec.attrs.Float("dropout", 0)) {
    const Attrs& attrs = context.spec.attrs;
    causal_ = attrs.Int("causal", 0) != 0;
    scale_ = attrs.Float("scale", 0);
    if (scale_ == 0) scale_ = q.global[3] == 0 ? 1 : 1 / std::sqrt(static_cast<double>(q.global[3]));
    key_ = RandomKey(context.seed, static_cast<uint64_t>(attrs.Int("key", 0)));
  }

  double scale() const { return scale_; }

  int64_t InQ(int64_t b, int64_t s, int64_t h) const {  // offset of q[b s h 0], of o and their gradients
    return ((b * q_.extent[1] + s) * q_.extent[2] + h) * q_.extent[3];
  }
  int64_t InK(int64_t b, int64_t t, int64_t h) const {  // of k, v and their gradients
    return ((b * k_.extent[1] + t) * k_.extent[2] + h) * k_.extent[3];
  }
  int64_t InLse(int64_t b, int64_t s, int64_t h) const { return (b * q_.extent[2] + h) * q_.extent[1] + s; }

  bool Masked(int64_t s, int64_t t) const {
    return causal_ && t + k_.begin[1] > s + q_.begin[1] + k_.global[1] - q_.global[1];
  }
  // -infinity where masked.
  double At(int64_t b, int64_t s, int64_t h, int64_t t) const {
    if (Masked(s, t)) return -std::numeric_limits<double>::infinity();
    double dot = 0;
    for (int64_t d = 0; d < q_.extent[3]; ++d) {
      dot += LoadFloat(q_, InQ(b, s, h) + d) * LoadFloat(k_, InK(b, t, h) + d);
    }
    return dot * scale_;
  }
  // What a probability is multiplied by: 1 without dropout, else 0 or 1 / (1 - p).
  double Keep(int64_t b, int64_t s, int64_t h, int64_t t) const {
    if (drop_ == 0) return 1;
    int64_t index = (b + q_.begin[0]) * q_.global[2] + h + q_.begin[2];
    index = (index * q_.global[1] + s + q_.begin[1]) * k_.global[1] + t + k_.begin[1];
    bool keep = ToUniform(RandomBits(key_, step_, index)) >= static_cast<float>(drop_);
    return keep ? 1 / (1 - drop_) : 0;
  }

 private:
  const TensorArg &q_, &k_;
  int64_t step_;
  double drop_;
  bool causal_;
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
  const TensorArg &q = context.in[0], &k = context.in[1], &v = context.in[2];
  Scores scores(context, q, k);
  int64_t keys = k.extent[1], width = q.extent[3];
  std::vector<double> row(keys);
  ForEachQuery(q, [&](int64_t b, int64_t s, int64_t h) {
    double greatest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t t = 0; t < keys; ++t) greatest = std::max(greatest, row[t] = scores.At(b, s, h, t));
    bool blind = std::isinf(greatest) && greatest < 0;
    for (int64_t t = 0; t < keys; ++t) total += row[t] = blind ? 0 : std::exp(row[t] - greatest);
    for (int64_t d = 0; d < width; ++d) {
      double o = 0;
      for (int64_t t = 0; t < keys && !blind; ++t) {
        o += row[t] / total * scores.Keep(b, s, h, t) * LoadFloat(v, scores.InK(b, t, h) + d);
      }
      StoreFloat(context.out[0], scores.InQ(b, s, h) + d, o);
    }
    StoreFloat(context.out[1], scores.InLse(b, s, h), blind ? greatest : std::log(total) + greatest);
  });
  return {};
}

// do, q, k, v, o, lse -> dq, dk, dv. With p the probabilities and m their dropout factors:
// dv = (p m)^T do; ds = p (m (do v^T) - rowsum(do o)); dq = scale ds k; dk = scale ds^T q.
Status AttentionGradReference(const KernelContext& context) {
  const TensorArg &dout = context.in[0], &q = context.in[1], &k = context.in[2], &v = context.in[3];
  const TensorArg &o = context.in[4], &lse = context.in[5];
  Scores scores(context, q, k);
  int64_t width = q.extent[3];
  std::vector<double> dq(q.elements()), dk(k.elements()), dv(v.elements());
  ForEachQuery(q, [&](int64_t b, int64_t s, int64_t h) {
    int64_t at_q = scores.InQ(b, s, h);
    double row = 0;
    for (int64_t d = 0; d < width; ++d) row += LoadFloat(dout, at_q + d) * LoadFloat(o, at_q + d);
    for (int64_t t = 0; t < k.extent[1]; ++t) {
      if (scores.Masked(s, t)) continue;
      int64_t at_k = scores.InK(b, t, h);
      double p = std::exp(scores.At(b, s, h, t) - LoadFloat(lse, scores.InLse(b, s, h)));
      double keep = scores.Keep(b, s, h, t), dp = 0;
      for (int64_t d = 0; d < width; ++d) dp += LoadFloat(dout, at_q + d) * LoadFloat(v, at_k + d);
      double ds = p * (keep * dp - row) * scores.scale();
      for (int64_t d = 0; d < width; ++d) {
        dv[at_k + d] += p * keep * LoadFloat(dout, at_q + d);
        dq[at_q + d] += ds * LoadFloat(k, at_k + d);
        dk[at_k + d] += ds * LoadFloat(q, at_q + d);
      }
    }
  });
  for (size_t i = 0; i < dq.size(); ++i) StoreFloat(context.out[0], i, dq[i]);
  for (size_t i = 0; i < dk.size(); ++i) StoreFloat(context.out[1], i, dk[i]);
  for (size_t i = 0; i < dv.size(); ++i) StoreFloat(context.out[2], i, dv[i]);
  return {};
}

// Attributes, and that every query sees a key. `q` is the number of the query operand.
void CheckMasks(const OpCall& call, size_t q) {
  double p = call.attrs->Float("dropout", 0), scale = call.attrs->Float("scale", 0);
  if (!(p >= 0 && p < 1)) Fail(call.who, ": dropout is ", p, " but must be in [0, 1)");
  if (!std::isfinite(scale)) Fail(call.who, ": scale is ", scale, " but must be finite");
  if (call.shapes[q].rank() != 4 || call.shapes[q + 1].rank() != 4) return;  // the rule will say so
  int64_t queries = call.shapes[q][1], keys = call.shapes[q + 1][1];
  if (queries > 0 && keys == 0) Fail(call.who, ": axis t has 0 keys for the ", queries, " queries of axis s");
  if (call.attrs->Int("causal", 0) != 0 && queries > keys) {
    Fail(call.who, ": axis s has ", queries, " queries but axis t only ", keys,
         " keys, so under the causal mask the first query would see no key; give as many keys or set causal "
         "off");
  }
}

// With p the undropped probabilities and w = scale dlse per query: dq = w p k, dk = p^T (w q). The first is
// an attention over the keys themselves, the second what attention_grad gives to v.
void AddThroughLse(const GradCall& call, std::vector<Tensor>* din) {
  Tensor q = call.in[0], k = call.in[1];
  Attrs plain = call.attrs;
  plain.Set("dropout", 0.0);
  double factor = call.attrs.Float("scale", 0);
  if (factor == 0) factor = 1 / std::sqrt(static_cast<double>(q.shape()[3]));
  Tensor weight = InType(Column(transpose(scale(call.dout[1], factor), {0, 2, 1})), q.dtype());
  Tensor keys = Apply(q.graph(), "attention", {q, k, k}, plain)[0];
  (*din)[0] = Accumulate((*din)[0], mul(keys, weight), q);
  Tensor dk = Apply(q.graph(), "attention_grad", {mul(q, weight), q, k, call.in[2], call.out[0], call.out[1]},
                    plain)[2];
  (*din)[1] = Accumulate((*din)[1], dk, k);
}

std::vector<Tensor> AttentionGrad(const GradCall& call) {
  std::vector<Tensor> din(3);
  if (call.dout[0].defined()) {
    din = Apply(call.in[0].graph(), "attention_grad",
                {call.dout[0], call.in[0], call.in[1], call.in[2], call.out[0], call.out[1]}, call.attrs);
  }
  if (call.dout[1].defined()) AddThroughLse(call, &din);
  return din;
}

Sample AttentionSample(const Dims& q, const Dims& k, bool causal, double dropout, bool grad) {
  Sample sample{.in = {q, k, k},
                .attrs = {{"causal", int64_t{causal}}, {"dropout", dropout}, {"scale", 0.0}, {"key", 17}}};
  if (grad) sample.in = {q, q, k, k, q, {q[0], q[2], q[1]}};
  return sample;
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
  return samples;
}

}  // namespace

void AddAttention(Catalog* catalog) {
  catalog->Add({
      .name = "attention",
      .doc =
          "softmax(q k^T scale) v per head, and the log-sum-exp of the scores (fp32). causal: key t is "
          "masked for "
          "query s where t > s + keys - queries. scale 0 means 1 / sqrt(d). dropout is of the probabilities.",
      .axes = "q[b s h d], k[b t h d], v[b t h d] -> o[b s h d], lse[b h s]",
      .whole = {"t", "d"},
      .dtypes =
          [](const OpCall& call) {
            return std::vector<DType>{call.dtypes[0], DType::kFloat32};
          },
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 3);
            RequireFloating(call);
            RequireSameTypes(call);
            CheckMasks(call, 0);
          },
      .grad = AttentionGrad,
      .category = "attention",
      .flops = [](const BoundRule& rule) { return 4 * rule.Volume(); },
      .reference = AttentionReference,
      .random = true,
      .precision = Precision::kNarrow,
      .samples = Samples(false),
  });
  catalog->Add({
      .name = "attention_grad",
      .doc = "Gradients of attention with respect to q, k and v; computes the probabilities again.",
      .axes = "do[b s h d], q[b s h d], k[b t h d], v[b t h d], o[b s h d], lse[b h s] -> dq[b s h d], dk[b "
              "t h d], "
              "dv[b t h d]",
      .folds = {{"s", Reduce::kSum}},
      .linear = {{"do"}},
      .whole = {"t", "d"},
      .dtypes =
          [](const OpCall& call) {
            return std::vector<DType>{call.dtypes[1], call.dtypes[2], call.dtypes[3]};
          },
      .check =
          [](const OpCall& call) {
            RequireInputs(call, 6);
            RequireFloating(call);
            if (call.dtypes[5] != DType::kFloat32)
              Fail(call.who, ": lse is ", Name(call.dtypes[5]), " but must be f32, as attention has it");
            CheckMasks(call, 1);
          },
      .category = "attention",
      .flops = [](const BoundRule& rule) { return 10 * rule.Volume(); },
      .reference = AttentionGradReference,
      .random = true,
      .precision = Precision::kNarrow,
      .wide = {"lse"},
      .samples = Samples(true),
  });
}

}  // namespace oneflow_like
