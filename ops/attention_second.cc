// The gradient of attention_grad, of operators whose gradients there are: so losses may contain derivatives
// of attention of any order.
#include <cmath>

#include "ops/attention_masks.h"
#include "ops/language/functional.h"
#include "ops/language/sparse.h"
#include "ops/op.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

constexpr int kFirstMask = 6;  // of attention_grad's operands: do, q, k, v, o, lse, masks

// attention_grad written out, to be differentiated: with g heads of queries for each head of keys, scores and
// what they are made of are [b h g s t], in fp32. Unlike the operators themselves this stores them.
class WrittenOut {
 public:
  explicit WrittenOut(const GradCall& call)
      : call_(call), masks_(MasksOf(call.attrs, kFirstMask)), graph_(call.in[0].graph()) {
    const Dims q = call.in[1].shape(), k = call.in[2].shape();
    batch_ = q[0], queries_ = q[1], keys_ = k[1], heads_ = k[2];
    group_ = heads_ == 0 ? 1 : q[2] / heads_;
    scale_ = call.attrs.Float("scale", 0);
    if (scale_ == 0) scale_ = q[3] == 0 ? 1 : 1 / std::sqrt(static_cast<double>(q[3]));
    dout_ = Grouped(call.in[0]), q_ = Grouped(call.in[1]), k_ = Wide(call.in[2]), v_ = Wide(call.in[3]);
    o_ = Grouped(call.in[4]);
    p_ = Probabilities();
    Tensor row = Column(einsum("bshge,bshge->bhgs", dout_, o_));
    slope_ = sub(Kept(einsum("bshge,bthe->bhgst", dout_, v_)), row);
  }

  // With ds = p slope and slope = m (do v^T) - row: what comes to each operand from what comes to dq, dk, dv
  // and dbias.
  std::vector<Tensor> Gradients() {
    const std::vector<Tensor>& g = call_.dout;
    Tensor dq = g[0].defined() ? Grouped(g[0]) : Tensor(), dk = g[1].defined() ? Wide(g[1]) : Tensor(),
           dv = g[2].defined() ? Wide(g[2]) : Tensor();
    Tensor to_ds;
    if (dq.defined()) to_ds = Plus(to_ds, scale(einsum("bshgd,bthd->bhgst", dq, k_), scale_));
    if (dk.defined()) to_ds = Plus(to_ds, scale(einsum("bshgd,bthd->bhgst", q_, dk), scale_));
    if (g.size() > 3 && g[3].defined()) to_ds = Plus(to_ds, AsScores(g[3]));
    Tensor to_p;
    if (to_ds.defined()) {
      to_p = mul(to_ds, slope_);
      FromSlope(mul(p_, to_ds));
    }
    if (dv.defined()) {
      to_p = Plus(to_p, Kept(einsum("bshge,bthe->bhgst", dout_, dv)));
      Add(0, Whole(einsum("bhgst,bthe->bshge", Kept(p_), dv), 0));
    }
    if (!to_p.defined()) return din_;
    Tensor to_scores = mul(p_, to_p), ds = mul(p_, slope_);
    FromScores(to_scores);
    if (dk.defined()) Add(1, Whole(scale(einsum("bhgst,bthd->bshgd", ds, dk), scale_), 1));
    if (dq.defined()) Add(2, scale(einsum("bhgst,bshgd->bthd", ds, dq), scale_));
    return din_;
  }

 private:
  // `weights` come to m (do v^T) - row, but for m.
  void FromSlope(Tensor weights) {
    Tensor kept = Kept(weights);
    Tensor row = neg(Column(transpose(sum(weights, {4}), {0, 3, 1, 2})));
    Add(0, Whole(add(einsum("bhgst,bthe->bshge", kept, v_), mul(row, o_)), 0));
    Add(3, einsum("bhgst,bshge->bthe", kept, dout_));
    Add(4, Whole(mul(row, dout_), 4));
  }
  void FromScores(Tensor to_scores) {
    Add(1, Whole(scale(einsum("bhgst,bthd->bshgd", to_scores, k_), scale_), 1));
    Add(2, scale(einsum("bhgst,bshgd->bthd", to_scores, q_), scale_));
    Add(5, Whole(neg(sum(to_scores, {4})), 5));
    if (masks_.bias < 0) return;
    const Dims bias = BiasShape(call_.in[masks_.bias].shape());
    Add(masks_.bias, Whole(sum_to(to_scores, bias), masks_.bias));
  }

  static Tensor Wide(Tensor x) { return InType(x, DType::kFloat32); }
  static Tensor Plus(Tensor a, Tensor b) { return a.defined() ? add(a, b) : b; }
  // [b s (h g) d] -> [b s h g d].
  Tensor Grouped(Tensor x) const {
    const Dims shape = x.shape();
    return reshape(Wide(x), {shape[0], shape[1], heads_, group_, shape[3]});
  }
  // In the shape of an operand.
  Tensor Whole(Tensor x, size_t operand) const { return reshape(x, Dims(call_.in[operand].shape())); }
  void Add(size_t operand, Tensor x) {
    if (call_.wanted[operand]) din_[operand] = Accumulate(din_[operand], x, call_.in[operand]);
  }

  Dims BiasShape(const Dims& bias) const {
    Dims full(4 - bias.rank(), int64_t{1});
    for (int64_t extent : bias) full.push_back(extent);
    const bool all = full[1] == 1;  // heads
    return {full[0], all ? 1 : heads_, all ? 1 : group_, full[2], full[3]};
  }
  Tensor AsScores(Tensor bias) const { return reshape(Wide(bias), BiasShape(bias.shape())); }

  // x with dropped elements at 0: the positions of [b h g s t] are those that attention draws by.
  Tensor Kept(Tensor x) const {
    const double p = call_.attrs.Float("dropout", 0);
    if (p == 0) return x;
    Attrs attrs = {{"p", p}};
    for (const char* draws : {"key", "draws_of"})
      if (call_.attrs.Has(draws)) attrs.Set(draws, call_.attrs.map().at(draws));
    return Apply(graph_, "dropout", {x}, attrs)[0];
  }

  // An operand [i] or [b i] of integers as a row or a column of scores, or first, first + 1, ...
  Tensor OfQueries(int operand, int64_t first) const {
    if (operand < 0) return Numbers(first, {queries_, 1});
    Tensor x = cast(call_.in[operand], DType::kInt64);
    return x.shape().rank() == 2 ? reshape(x, {batch_, 1, 1, queries_, 1}) : reshape(x, {queries_, 1});
  }
  Tensor OfKeys(int operand) const {
    if (operand < 0) return Numbers(0, {1, keys_});
    Tensor x = cast(call_.in[operand], DType::kInt64);
    return x.shape().rank() == 2 ? reshape(x, {batch_, 1, 1, 1, keys_}) : reshape(x, {1, keys_});
  }
  Tensor Numbers(int64_t first, const Dims& shape) const {
    const auto begin = static_cast<double>(first), end = static_cast<double>(first + shape.elements());
    return reshape(arange(graph_, begin, end, 1, DType::kInt64), shape);
  }

  // Which keys a query sees (AttentionMasks::Sees); undefined: all.
  Tensor Seen() const {
    Tensor seen;
    auto require = [&](Tensor more) { seen = seen.defined() ? logical_and(seen, more) : more; };
    if (masks_.causal || masks_.window > 0) {
      Tensor query = OfQueries(masks_.query_positions, keys_ - queries_), key = OfKeys(masks_.key_positions);
      if (masks_.causal) require(less_equal(key, query));
      if (masks_.window > 0) require(greater(key, query - static_cast<double>(masks_.window)));
    }
    if (masks_.Documents())
      require(equal(OfQueries(masks_.query_documents, 0), OfKeys(masks_.key_documents)));
    return seen;
  }

  // exp(score - lse), 0 where a key is not seen; where none is, lse is -infinity.
  Tensor Probabilities() const {
    constexpr double kLow = -1e30;
    Tensor lse = reshape(call_.in[5], {batch_, heads_, group_, queries_, 1});
    Tensor below = sub(scale(einsum("bshgd,bthd->bhgst", q_, k_), scale_), where(less(lse, kLow), 0, lse));
    if (masks_.bias >= 0) below = add(below, AsScores(call_.in[masks_.bias]));
    Tensor seen = Seen();
    return exp(seen.defined() ? where(seen, below, kLow) : below);
  }

  const GradCall& call_;
  const AttentionMasks masks_;
  GraphBuilder* const graph_;
  int64_t batch_, queries_, keys_, heads_, group_;
  double scale_;
  Tensor dout_, q_, k_, v_, o_, p_, slope_;
  std::vector<Tensor> din_ = std::vector<Tensor>(call_.in.size());
};

}  // namespace

std::vector<Tensor> GradientOfAttentionGrad(const GradCall& call) { return WrittenOut(call).Gradients(); }

}  // namespace oneflow_like
