// For each batch and a few heads of keys, the queries that share a head are rows: keys go by in blocks, of
// which each is multiplied with all rows, with a running maximum and sum per row (the online softmax of
// Milakov and Gimelshein 2018). Keys that no row sees are not read.
//
// A block of heads that lie side by side is one run of memory; its masks are looked at once. While scores are
// made the values are asked for, while values are mixed the next block's keys. Lanes of 16 scores are added
// up together, and sums of values stay in registers for a block.
#include "ops/cpu/attention_few.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cpu/attention_tile.h"
#include "ops/cpu/vectors.h"
#include "ops/reference.h"

namespace oneflow_like::cpu {
namespace {

constexpr int64_t kMostQueries = 4;  // of a sequence
constexpr int64_t kMostRows = 32;    // of queries and the heads that share one of keys
constexpr int64_t kKeyBlock = 64;

// Of one thread.
struct FewRowsState {
  alignas(64) float q[kMostRows][kMaxWidth];
  alignas(64) float o[kMostRows][kMaxWidth];
  alignas(64) float scores[kMostRows][kKeyBlock];
  alignas(64) Vector products[4][16];  // of the rows at hand and 16 keys, before their lanes are added up
  float greatest[kMostRows], total[kMostRows], rescale[kMostRows];
};
static_assert(sizeof(FewRowsState) % 64 == 0);

// Calls body(first row, number of rows as a constant) for up to four rows at a time.
template <typename F>
void ForRowGroups(int64_t rows, F&& body) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) body(r, std::integral_constant<int, 4>());
  if (rows - r == 3) body(r, std::integral_constant<int, 3>());
  if (rows - r == 2) body(r, std::integral_constant<int, 2>());
  if (rows - r == 1) body(r, std::integral_constant<int, 1>());
}

#if defined(__AVX512F__)
// Halves of each run of 2 W lanes of x added up, in the even runs of W lanes; those of y in the odd ones.
template <int W>
Vector AddHalves(Vector x, Vector y) {
  Words low, high;
  for (uint32_t i = 0; i < 16; ++i) {
    low[i] = i / (2 * W) * (2 * W) + i % W + (i / W % 2 ? 16 : 0);
    high[i] = low[i] + W;
  }
  // Casts of vectors keep the bits. std::bit_cast would take a Vector for one that is aligned to 64 bytes.
  return (Vector)_mm512_permutex2var_ps((__m512)x, (__m512i)low, (__m512)y) +
         (Vector)_mm512_permutex2var_ps((__m512)x, (__m512i)high, (__m512)y);
}
// Lane j is the sum of x[j]'s lanes, in the order of SumOfHalves.
inline Vector SumsOf16(const Vector* x) {
  Vector eights[8], fours[4], twos[2];
  for (int j = 0; j < 8; ++j) eights[j] = AddHalves<8>(x[j], x[j + 8]);
  for (int j = 0; j < 4; ++j) fours[j] = AddHalves<4>(eights[j], eights[j + 4]);
  for (int j = 0; j < 2; ++j) twos[j] = AddHalves<2>(fours[j], fours[j + 2]);
  return AddHalves<1>(twos[0], twos[1]);
}
#else
inline Vector SumsOf16(const Vector* x) {
  Vector sums;
  for (int j = 0; j < 16; ++j) sums[j] = SumOfHalves(x[j]);
  return sums;
}
#endif

// One batch and heads [first, first + count) of keys.
template <typename T>
class FewQueries {
 public:
  FewQueries(const KernelContext& context, const AttentionCall& call, int64_t b, int64_t first, int64_t count)
      : context_(context),
        call_(call),
        b_(b),
        first_(first),
        count_(count),
        rows_(call.queries * call.group) {}

  // Heads whose rows fit.
  static int64_t MostHeads(const AttentionCall& call) {
    return std::max<int64_t>(1, kMostRows / std::max<int64_t>(1, call.queries * call.group));
  }

  void Run(FewRowsState* own) {
    FewRowsState& state = *own;
    state_ = own;
    for (int64_t s = 0; s < call_.queries; ++s) {
      position_[s] = call_.mask_rows.query_positions.At(b_, s);
      document_[s] = call_.mask_rows.query_documents.At(b_, s);
    }
    for (int64_t r = 0; r < count_ * rows_; ++r) {
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
  // Rows of one head of keys stand together, of these the rows of one query.
  int64_t QueryOf(int64_t row) const { return row % rows_ / call_.group; }
  int64_t HeadOf(int64_t row) const { return (first_ + row / rows_) * call_.group + row % call_.group; }

  void Block(int64_t first, int64_t count) {
    const MaskRows& masks = call_.mask_rows;
    used_ = 0;
    for (int64_t t = first; t < first + count; ++t) {
      const int64_t position = masks.key_positions.At(b_, t), document = masks.key_documents.At(b_, t);
      bool any = false;
      for (int64_t s = 0; s < call_.queries; ++s)
        any |= sees_[s][used_] = call_.masks.Sees(position_[s], position, document_[s], document);
      key_[used_] = t;
      used_ += any;
    }
    if (used_ == 0) return;
    for (int64_t g = 0; g < count_; ++g) {
      ForRowGroups(rows_, [&](int64_t r, auto rows) { Score<decltype(rows)::value>(g, g * rows_ + r); });
      for (int64_t r = 0; r < rows_; ++r) Soften(g * rows_ + r);
      ForRowGroups(rows_, [&](int64_t r, auto rows) { Mix<decltype(rows)::value>(g, g * rows_ + r); });
    }
  }

  // Lines of other heads lie between those of one key and the next.
  static void Prefetch(const T* row, int64_t width) {
    for (int64_t d = 0; d < width; d += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(row + d);
  }

  template <int R>
  void Score(int64_t g, int64_t row) {
    const T* k = context_.in[1].as<T>() + call_.InK(b_, 0, first_ + g);
    const T* v = context_.in[2].as<T>() + call_.InV(b_, 0, first_ + g);
    for (int64_t begin = 0; begin < used_; begin += 16) {
      const int64_t count = std::min<int64_t>(16, used_ - begin);
      for (int64_t j = 0; j < count; ++j) {
        const T* key = k + key_[begin + j] * call_.k_row;
        Prefetch(v + key_[begin + j] * call_.v_row, call_.value_width);
        Vector sum[R] = {};
        for (int64_t d = 0; d < call_.width; d += 16) {
          const Vector part = LoadVector(key + d, FullVector());
          for (int r = 0; r < R; ++r) sum[r] += part * LoadVector(state_->q[row + r] + d, FullVector());
        }
        for (int r = 0; r < R; ++r) state_->products[r][j] = sum[r];
      }
      for (int r = 0; r < R; ++r) {
        float* scores = state_->scores[row + r] + begin;
        StoreVector(SumsOf16(state_->products[r]), FullVector(), scores);
        const bool* sees = sees_[QueryOf(row + r)] + begin;
        for (int64_t j = 0; j < 16; ++j) scores[j] = j < count && sees[j] ? scores[j] : -scalar::kInfinity;
      }
    }
  }

  // Scores of a row become exp(score - greatest), and 0 behind the last.
  void Soften(int64_t r) {
    float* scores = state_->scores[r];
    const int64_t padded = (used_ + 15) / 16 * 16;
    Vector tops = LoadVector(scores, FullVector()), sums = {};
    for (int64_t j = 16; j < padded; j += 16) {
      const Vector some = LoadVector(scores + j, FullVector());
      tops = some > tops ? some : tops;
    }
    float top = state_->greatest[r];
    for (int i = 0; i < 16; ++i) top = std::max(top, static_cast<float>(tops[i]));
    const float safe = top == -scalar::kInfinity ? 0.0f : top;  // a row that has seen no key yet
    const float rescale = scalar::ExpOf(state_->greatest[r] - safe);
    for (int64_t j = 0; j < padded; ++j) scores[j] = scalar::ExpOf(scores[j] - safe);
    for (int64_t j = 0; j < padded; j += 16) sums += LoadVector(scores + j, FullVector());
    state_->greatest[r] = top;
    state_->total[r] = state_->total[r] * rescale + SumOfHalves(sums);
    state_->rescale[r] = rescale;
  }

  template <int R>
  void Mix(int64_t g, int64_t row) {
    const T* k = context_.in[1].as<T>() + call_.InK(b_, 0, first_ + g);
    for (int64_t j = 0; j < used_; ++j)
      if (key_[j] + kKeyBlock < call_.keys) Prefetch(k + (key_[j] + kKeyBlock) * call_.k_row, call_.width);
    int64_t d = 0;
    for (; d + 64 <= call_.value_width; d += 64) MixColumns<R, 4>(g, row, d);
    for (; d < call_.value_width; d += 16) MixColumns<R, 1>(g, row, d);
  }
  template <int R, int W>
  void MixColumns(int64_t g, int64_t row, int64_t d) {
    const T* v = context_.in[2].as<T>() + call_.InV(b_, 0, first_ + g) + d;
    Vector sum[R][W];
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w)
        sum[r][w] = state_->rescale[row + r] * LoadVector(state_->o[row + r] + d + 16 * w, FullVector());
    for (int64_t j = 0; j < used_; ++j) {
      Vector value[W];
      for (int w = 0; w < W; ++w) value[w] = LoadVector(v + key_[j] * call_.v_row + 16 * w, FullVector());
      for (int r = 0; r < R; ++r)
        for (int w = 0; w < W; ++w) sum[r][w] += state_->scores[row + r][j] * value[w];
    }
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) StoreVector(sum[r][w], FullVector(), state_->o[row + r] + d + 16 * w);
  }

  void Store() {
    float* lse = context_.out[1].as<float>();
    for (int64_t r = 0; r < count_ * rows_; ++r) {
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
  const int64_t b_, first_, count_, rows_;  // rows of one head
  FewRowsState* state_ = nullptr;
  int64_t position_[kMostQueries], document_[kMostQueries];
  int64_t used_ = 0, key_[kKeyBlock];        // the block's keys that a row sees
  bool sees_[kMostQueries][kKeyBlock] = {};  // of these
};

}  // namespace

bool FewQueriesFit(const KernelSpec& spec) {
  const Dims &q = spec.in[0].extent, &k = spec.in[1].extent, &v = spec.in[2].extent;
  const bool heads = k[2] > 0 && q[1] * (q[2] / k[2]) <= kMostRows;
  return q[1] <= kMostQueries && heads && q[3] % 16 == 0 && v[3] % 16 == 0 &&
         spec.attrs.Float("dropout", 0) == 0 && MasksOf(spec.attrs, 3).bias < 0;
}

int64_t FewQueriesBytes(const KernelSpec&) { return sizeof(FewRowsState); }

Status FewQueriesAttention(const KernelContext& context) {
  const AttentionCall call(context, 0, 3);
  DispatchFloating(context.in[0].dtype, [&](auto t) {
    ParallelForParts(call.batch * call.key_heads, 1, context.spec.threads,
                     [&](int64_t begin, int64_t end, int part) {
                       using Few = FewQueries<decltype(t)>;
                       FewRowsState* const state = static_cast<FewRowsState*>(context.scratch) + part;
                       for (int64_t i = begin, count; i < end; i += count) {
                         const int64_t b = i / call.key_heads, g = i % call.key_heads;
                         count = std::min({end - i, call.key_heads - g, Few::MostHeads(call)});
                         Few(context, call, b, g, count).Run(state);
                       }
                     });
  });
  return {};
}

}  // namespace oneflow_like::cpu
