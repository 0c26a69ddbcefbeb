// cuDNN's engines recognise one form of attention's operation graph for each direction, the one its own C++
// interface makes, so the nodes and their order are that form: scores, scale, mask (in terms of row and
// column numbers), softmax from reductions and pointwise nodes, product with the values. Causal masks are
// part of the graph, which the single SDPA descriptor of 9.19 cannot say.
//
// Backward leaves dQ to a product over stored dP instead of adding into it from several blocks: the
// deterministic variant, which needs 2 bytes of work space per score. Batches and heads are done in parts
// that fit the work space.
#if defined(OFL_HAVE_CUDNN)

#include "ops/cuda/flash_graph_cudnn.h"

#include <algorithm>
#include <numeric>

#include "ops/attention_library.h"

namespace oneflow_like::cuda {
namespace {

Extents SwapLast(const Extents& e) { return {e[0], e[1], e[3], e[2]}; }

class Builder {
 public:
  explicit Builder(const FlashPart& part)
      : part_(part), type_(part.shape.dtype == DType::kFloat16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16) {
    lowest_ = graph_.Number(kLowest, CUDNN_DATA_FLOAT);
    scale_ = graph_.Number(kScale, CUDNN_DATA_FLOAT);
  }

  CudnnPtr Forward(const CudnnTarget& target, std::string* why) {
    CudnnTensor q = QueryLike(kQ), k = Transposed(kK), v = KeyLike(kV), o = QueryLike(kO);
    CudnnTensor lse = Lse();
    CudnnTensor score = Masked(Scaled(q, k));
    CudnnTensor greatest = graph_.Reduce(CUDNN_REDUCE_TENSOR_MAX, score);
    CudnnTensor power =
        graph_.Pointwise(CUDNN_POINTWISE_EXP, graph_.Pointwise(CUDNN_POINTWISE_SUB, score, &greatest));
    CudnnTensor sum = graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, power);
    CudnnTensor log = graph_.Pointwise(CUDNN_POINTWISE_LOG, sum);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, greatest, &log, nullptr, lse);
    CudnnTensor p = graph_.Inside(type_, part_.Score());
    graph_.Pointwise(CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, power, &sum, nullptr, p);
    graph_.Matmul(p, v, o);
    return graph_.Plan(target, why);
  }

  CudnnPtr Backward(const CudnnTarget& target, std::string* why) {
    CudnnTensor q = QueryLike(kQ), k = Transposed(kK), v = Transposed(kV), o = QueryLike(kO),
                dout = QueryLike(kDout);
    CudnnTensor dq = QueryLike(kDq), dk = KeyLike(kDk), dv = KeyLike(kDv);
    CudnnTensor lse = Lse();
    CudnnTensor delta = graph_.Tensor(kDelta, CUDNN_DATA_FLOAT, part_.Row(), Packed(part_.Row()));
    CudnnTensor one = graph_.Number(kOne, CUDNN_DATA_FLOAT);

    CudnnTensor sum = graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, graph_.Pointwise(CUDNN_POINTWISE_MUL, dout, &o));
    graph_.Pointwise(CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, sum, &one, nullptr, delta);

    CudnnTensor power = Masked(graph_.Pointwise(CUDNN_POINTWISE_SUB, Scaled(q, k), &lse));
    CudnnTensor p = graph_.Pointwise(CUDNN_POINTWISE_EXP, power);
    KeyGradient(TransposedScore(p), dout, dv);

    CudnnTensor dp = graph_.Inside(CUDNN_DATA_FLOAT, part_.Score());
    graph_.Matmul(dout, v, dp);
    CudnnTensor less = graph_.Pointwise(CUDNN_POINTWISE_SUB, dp, &delta);
    CudnnTensor slope = graph_.Pointwise(CUDNN_POINTWISE_MUL, less, &p);
    CudnnTensor ds = graph_.Pointwise(CUDNN_POINTWISE_MUL, slope, &scale_);
    KeyGradient(TransposedScore(ds), q, dk);

    CudnnTensor keys = graph_.Inside(CUDNN_DATA_FLOAT, part_.Key(), part_.KeyStrides());
    graph_.Reshape(k, keys);
    graph_.Matmul(ds, keys, dq);
    return graph_.Plan(target, why);
  }

 private:
  CudnnTensor QueryLike(int64_t id) { return graph_.Tensor(id, type_, part_.Query(), part_.QueryStrides()); }
  CudnnTensor KeyLike(int64_t id) { return graph_.Tensor(id, type_, part_.Key(), part_.KeyStrides()); }
  CudnnTensor Lse() {
    return graph_.Tensor(kLse, CUDNN_DATA_FLOAT, part_.Row(), Packed(part_.Row()), part_.lse_alignment);
  }
  CudnnTensor Transposed(int64_t id) {
    return graph_.Tensor(id, type_, SwapLast(part_.Key()), SwapLast(part_.KeyStrides()));
  }
  CudnnTensor TransposedScore(const CudnnTensor& x) {
    CudnnTensor y = graph_.Inside(type_, SwapLast(part_.Score()), SwapLast(Packed(part_.Score())));
    graph_.Reshape(x, y);
    return y;
  }

  // y = a b, over the heads that share keys.
  void KeyGradient(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& y) {
    if (part_.shape.group() == 1) return graph_.Matmul(a, b, y);
    CudnnTensor of_each = graph_.Inside(type_, part_.KeyOfEach());
    graph_.Matmul(a, b, of_each);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, of_each, y);
  }

  CudnnTensor Scaled(const CudnnTensor& q, const CudnnTensor& k) {
    CudnnTensor score = graph_.Inside(CUDNN_DATA_FLOAT, part_.Score());
    graph_.Matmul(q, k, score);
    CudnnTensor scaled = graph_.Pointwise(CUDNN_POINTWISE_MUL, score, &scale_);
    if (part_.shape.masks == 0) return scaled;
    CudnnTensor mask = graph_.Tensor(kMask, type_, part_.Mask(), Packed(part_.Mask()));
    return graph_.Pointwise(CUDNN_POINTWISE_ADD, scaled, &mask);
  }

  // A key is seen where row + keys - queries >= column; without the shift where row >= column. And within a
  // window where column + window - shift > row.
  CudnnTensor Masked(const CudnnTensor& score) {
    if (!part_.shape.causal) return score;
    CudnnTensor causal = MaskedCausally(score);
    if (part_.shape.window == 0) return causal;
    auto inside = [&](cudnnDataType_t type) { return graph_.Inside(type, part_.Score()); };
    CudnnTensor row = inside(CUDNN_DATA_INT32), column = inside(CUDNN_DATA_INT32),
                later = inside(CUDNN_DATA_FLOAT), seen = inside(CUDNN_DATA_BOOLEAN),
                window = graph_.Number(kWindow, CUDNN_DATA_FLOAT);
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, causal, nullptr, nullptr, row, 2);
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, causal, nullptr, nullptr, column, 3);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, column, &window, nullptr, later);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_GT, CUDNN_DATA_BOOLEAN, later, &row, nullptr, seen);
    return graph_.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, causal, &lowest_, &seen);
  }

  CudnnTensor MaskedCausally(const CudnnTensor& score) {
    auto integers = [&] { return graph_.Inside(CUDNN_DATA_INT32, part_.Score()); };
    CudnnTensor row = integers(), column = integers(),
                seen = graph_.Inside(CUDNN_DATA_BOOLEAN, part_.Score());
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, score, nullptr, nullptr, row, 2);
    if (part_.shape.shift != 0) {
      CudnnTensor keys = graph_.Number(kKeys, CUDNN_DATA_INT32),
                  queries = graph_.Number(kQueries, CUDNN_DATA_INT32);
      CudnnTensor later = integers(), shifted = integers();
      graph_.Pointwise(CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, row, &keys, nullptr, later);
      graph_.Pointwise(CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, later, &queries, nullptr, shifted);
      row = shifted;
    }
    graph_.Pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, score, nullptr, nullptr, column, 3);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, &column, nullptr, seen);
    return graph_.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, score, &lowest_, &seen);
  }

  FlashPart part_;
  cudnnDataType_t type_;
  CudnnGraph graph_;
  CudnnTensor lowest_, scale_;
};

FlashPlan PlanOf(const FlashPart& part, const CudnnTarget& target, std::string* why) {
  Builder builder(part);
  return {part, part.shape.backward ? builder.Backward(target, why) : builder.Forward(target, why)};
}

// The greatest power of two, at most 16, that divides an offset of so many floats.
int64_t AlignmentAt(int64_t floats) { return std::gcd(int64_t{16}, floats * int64_t{sizeof(float)}); }

// Parts begin at multiples of what they hold: of some sequences, or within a sequence of some heads.
int64_t LseAlignment(const FlashShape& whole, const FlashShape& part) {
  const int64_t of_sequence = whole.heads * whole.queries;
  if (part.batch == whole.batch && part.heads == whole.heads) return 16;
  if (part.heads == whole.heads) return AlignmentAt(part.batch * of_sequence);
  return std::gcd(AlignmentAt(of_sequence), AlignmentAt(part.heads * whole.queries));
}

// Fewer sequences, or fewer heads of one sequence, that need `share` of what these need. False: there is
// nothing left to cut.
bool Shrink(double share, const FlashShape& whole, FlashShape* part) {
  auto shrunk = [share](int64_t n, int64_t all) {
    int64_t fits = static_cast<int64_t>(static_cast<double>(n) * share);
    return EqualParts(all, std::clamp<int64_t>(fits, 1, n - 1));
  };
  if (part->batch > 1) {
    part->batch = shrunk(part->batch, whole.batch);
  } else if (part->key_heads > 1) {  // whole groups of heads that share keys
    part->key_heads = shrunk(part->key_heads, whole.key_heads);
    part->heads = part->key_heads * whole.group();
  } else {
    return false;
  }
  return true;
}

// The same size again and again, and what then remains with a plan of its own.
void AddLaunches(const FlashShape& whole, const FlashPart& part, FlashPlans* plans) {
  for (int64_t b = 0; b < whole.batch; b += part.shape.batch) {
    for (int64_t h = 0; h < whole.heads; h += part.shape.heads) {
      const bool rest = b + part.shape.batch > whole.batch || h + part.shape.heads > whole.heads;
      plans->launches.push_back({rest ? 1 : 0, b, h});
    }
  }
}

}  // namespace

FlashPlans MakeFlashPlans(const FlashShape& shape, size_t room, const CudnnTarget& target) {
  FlashPart part{shape, shape.heads, shape.key_heads, 16};
  for (;;) {
    FlashPlans made;
    made.plans.push_back(PlanOf(part, target, &made.refused));
    if (!made.plans[0].plan) return {{}, {}, made.refused};
    const double needed = static_cast<double>(WorkspaceOf(*made.plans[0].plan)) + part.DeltaBytes();
    if (needed > static_cast<double>(room)) {
      if (!Shrink(static_cast<double>(room) / needed, shape, &part.shape)) {
        return {
            {}, {}, Cat("it needs ", static_cast<int64_t>(needed), " bytes of the ", room, " of work space")};
      }
      part.lse_alignment = LseAlignment(shape, part.shape);
      continue;
    }
    FlashPart rest = part;
    if (shape.batch % part.shape.batch != 0) rest.shape.batch = shape.batch % part.shape.batch;
    if (shape.heads % part.shape.heads != 0) {
      rest.shape.heads = shape.heads % part.shape.heads;
      rest.shape.key_heads = rest.shape.heads / shape.group();
    }
    if (!(rest.shape == part.shape)) {
      made.plans.push_back(PlanOf(rest, target, &made.refused));
      if (!made.plans[1].plan) return {{}, {}, made.refused};
    }
    AddLaunches(shape, part, &made);
    return made;
  }
}

}  // namespace oneflow_like::cuda

#endif
