// For each batch and head of keys, the queries that share it are rows: keys go by in blocks, of which each is
// multiplied with all rows, with a running maximum and sum per row (the online softmax of Milakov and
// Gimelshein 2018). Keys that no row sees are not read.
#include "ops/cpu/attention_few.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/attention_tile.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kMostQueries = 4;  // of a sequence
constexpr int64_t kMostRows = 32;    // of queries and the heads that share one of keys
constexpr int64_t kKeyBlock = 64;
constexpr int64_t kKeysAhead = 8;  // keys asked for before they are needed

struct FewRowsState {
  alignas(64) float q[kMostRows][kMaxWidth];
  alignas(64) float o[kMostRows][kMaxWidth];
  alignas(64) float scores[kMostRows][kKeyBlock];
  float greatest[kMostRows], total[kMostRows];
};

// One batch and one head of keys.
template <typename T>
class FewQueries {
 public:
  FewQueries(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t g)
      : context_(context), call_(call), b_(b), g_(g), rows_(call.queries * call.group) {}

  void Run() {
    FewRowsState& state = *OfThread<FewRowsState>();
    state_ = &state;
    for (int64_t s = 0; s < call_.queries; ++s) {
      position_[s] = call_.mask_rows.query_positions.At(b_, s);
      document_[s] = call_.mask_rows.query_documents.At(b_, s);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      Widen(context_.in[0].as<T>() + call_.InQ(b_, QueryOf(r), HeadOf(r)), call_.width, state.q[r]);
      for (int64_t d = 0; d < call_.width; ++d) state.q[r][d] *= call_.scale;
      std::fill_n(state.o[r], call_.value_width, 0.0f);
      state.greatest[r] = -scalar::kInfinity;
      state.total[r] = 0;
    }
    for (int64_t t = 0; t < call_.keys; t += kKeyBlock) Block(t, std::min(kKeyBlock, call_.keys - t));
    Store();
  }

 private:
  // Rows of one query stand together.
  int64_t QueryOf(int64_t row) const { return row / call_.group; }
  int64_t HeadOf(int64_t row) const { return g_ * call_.group + row % call_.group; }

  void Block(int64_t first, int64_t count) {
    const MaskRows& masks = call_.mask_rows;
    bool any = false, used[kKeyBlock];
    for (int64_t j = 0; j < count; ++j) {
      const int64_t position = masks.key_positions.At(b_, first + j),
                    document = masks.key_documents.At(b_, first + j);
      used[j] = false;
      for (int64_t s = 0; s < call_.queries; ++s)
        used[j] |= sees_[s][j] = call_.masks.Sees(position_[s], position, document_[s], document);
      any |= used[j];
    }
    if (!any) return;
    const T *k = context_.in[1].as<T>(), *v = context_.in[2].as<T>();
    for (int64_t j = 0; j < count; ++j) {
      if (first + j + kKeysAhead < call_.keys)
        Prefetch(k + call_.InK(b_, first + j + kKeysAhead, g_), call_.width);
      if (!used[j]) continue;
      Prefetch(v + call_.InV(b_, first + j, g_), call_.value_width);
      Score(k + call_.InK(b_, first + j, g_), j);
    }
    for (int64_t r = 0; r < rows_; ++r) Soften(r, count, used);
    for (int64_t j = 0; j < count; ++j)
      if (used[j]) Mix(v + call_.InV(b_, first + j, g_), j);
  }

  // Lines of other heads lie between those of one key and the next.
  static void Prefetch(const T* row, int64_t width) {
    for (int64_t d = 0; d < width; d += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(row + d);
  }

  void Score(const T* key, int64_t j) {
    for (int64_t r = 0; r < rows_; ++r) {
      Vector sum{};
      for (int64_t d = 0; d < call_.width; d += 16)
        sum += LoadVector(key + d, FullVector()) * LoadVector(state_->q[r] + d, FullVector());
      state_->scores[r][j] = sees_[QueryOf(r)][j] ? SumOfHalves(sum) : -scalar::kInfinity;
    }
  }

  // Scores of a row become exp(score - greatest).
  void Soften(int64_t r, int64_t count, const bool* used) {
    float* scores = state_->scores[r];
    float top = state_->greatest[r];
    for (int64_t j = 0; j < count; ++j) {
      if (!used[j]) scores[j] = -scalar::kInfinity;
      top = std::max(top, scores[j]);
    }
    const float safe = top == -scalar::kInfinity ? 0.0f : top;  // a row that has seen no key yet
    const float rescale = scalar::ExpOf(state_->greatest[r] - safe);
    for (int64_t j = 0; j < count; ++j) scores[j] = scalar::ExpOf(scores[j] - safe);
    float sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += scores[j];
    state_->greatest[r] = top;
    state_->total[r] = state_->total[r] * rescale + sum;
    if (rescale == 1) return;
    for (int64_t d = 0; d < call_.value_width; ++d) state_->o[r][d] *= rescale;
  }

  void Mix(const T* value, int64_t j) {
    for (int64_t d = 0; d < call_.value_width; d += 16) {
      const Vector part = LoadVector(value + d, FullVector());
      for (int64_t r = 0; r < rows_; ++r)
        *reinterpret_cast<Vector*>(state_->o[r] + d) += state_->scores[r][j] * part;
    }
  }

  void Store() {
    float* lse = context_.out[1].as<float>();
    for (int64_t r = 0; r < rows_; ++r) {
      const bool blind = state_->total[r] == 0;
      const float factor = blind ? 0.0f : 1.0f / state_->total[r];
      for (int64_t d = 0; d < call_.value_width; ++d) state_->o[r][d] *= factor;
      Narrow(state_->o[r], call_.value_width, context_.out[0].as<T>() + call_.InO(b_, QueryOf(r), HeadOf(r)));
      lse[call_.InLse(b_, QueryOf(r), HeadOf(r))] =
          blind ? -scalar::kInfinity : state_->greatest[r] + std::log(state_->total[r]);
    }
  }

  const KernelContext& context_;
  const AttentionCall& call_;
  const int64_t b_, g_, rows_;
  FewRowsState* state_ = nullptr;
  int64_t position_[kMostQueries], document_[kMostQueries];
  bool sees_[kMostQueries][kKeyBlock];  // of the block's keys
};

}  // namespace

bool FewQueriesFit(const KernelSpec& spec) {
  const Dims &q = spec.in[0].extent, &k = spec.in[1].extent, &v = spec.in[2].extent;
  const bool heads = k[2] > 0 && q[1] * (q[2] / k[2]) <= kMostRows;
  return q[1] <= kMostQueries && heads && q[3] % 16 == 0 && v[3] % 16 == 0 &&
         spec.attrs.Float("dropout", 0) == 0 && MasksOf(spec.attrs, 3).bias < 0;
}

Status FewQueriesAttention(const KernelContext& context) {
  const AttentionCall call(context, 0, 3);
  DispatchFloating(context.in[0].dtype, [&](auto t) {
    ParallelFor(call.batch * call.key_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        FewQueries<decltype(t)>(context, call, i / call.key_heads, i % call.key_heads).Run();
    });
  });
  return {};
}

}  // namespace oneflow_like::cpu
