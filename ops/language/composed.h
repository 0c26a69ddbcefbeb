// Functions that NumPy, PyTorch and JAX have and that are made of others here: their gradients, signatures
// and kernels are those of their parts. As in ops/language/functional.h shapes are global, axes may be given
// negative, and every function throws Error naming itself, the axis, both numbers and the caller's line when
// operands do not fit.
#pragma once

#include <utility>
#include <vector>

#include "ops/language/functional.h"

namespace oneflow_like {

// --- Normalisation over any axes. Over the last one it is a single operator ---

Tensor softmax(Tensor x, int64_t axis, OFL_HERE);
Tensor log_softmax(Tensor x, int64_t axis, OFL_HERE);
// Without parameters, computed in fp32: (x - mean) / sqrt(variance + eps), and x / sqrt(mean(x^2) + eps). No
// axes: all of them.
Tensor layer_norm_over(Tensor x, std::vector<int64_t> axes, double eps = 1e-5, OFL_HERE);
Tensor rms_norm_over(Tensor x, std::vector<int64_t> axes, double eps = 1e-5, OFL_HERE);
// v g / |v| (Salimans and Kingma 2016): norms are over all axes but `axis`, whose extent g has.
Tensor weight_norm(Tensor v, Tensor g, int64_t axis = 0, OFL_HERE);

// --- Draws: functions of the seed, the operator, the step and the global position, as dropout's are, so they
// are the same on every mesh ---

Tensor bernoulli(Tensor p, OFL_HERE);                             // bool: true with probability p
Tensor gumbel(GraphBuilder* graph, const Dims& shape, OFL_HERE);  // -log(-log(u))
// logits[.. c] -> i64[..]: a class, drawn with the probabilities softmax(logits).
Tensor categorical(Tensor logits, OFL_HERE);
// Whole numbers in [low, high), which has at most 2^24 of them.
Tensor randint(GraphBuilder* graph, const Dims& shape, int64_t low, int64_t high, DType dtype = DType::kInt32,
               OFL_HERE);
Tensor randperm(GraphBuilder* graph, int64_t n, OFL_HERE);  // i64[n]: 0 to n - 1 in random order
// Drops whole samples of axis 0 with probability p, and divides the rest by 1 - p (Huang et al. 2016).
Tensor drop_path(Tensor x, double p, OFL_HERE);

// --- Elements by index ---

// The parts of x along the axis at these places; negative ones count from the end.
Tensor take(Tensor x, int64_t axis, const std::vector<int64_t>& places, OFL_HERE);
struct Extremes {
  Tensor values, indices;  // without the axis; indices: i64, the first of equals
};
Extremes max_with_indices(Tensor x, int64_t axis = -1, OFL_HERE);
Extremes min_with_indices(Tensor x, int64_t axis = -1, OFL_HERE);
// x[.., begin to begin + extent, ..]: begin[] is i32 or i64, computed in the graph. If the part is not inside
// the axis, the step fails naming the place.
Tensor dynamic_slice(Tensor x, int64_t axis, Tensor begin, int64_t extent, OFL_HERE);
// x with src in place of the part along the axis that begins there (torch.slice_scatter).
Tensor slice_scatter(Tensor x, int64_t axis, int64_t begin, Tensor src, OFL_HERE);
// x with every element of src[.. n ..] in the place along the axis that ids[.. n ..] names (torch.scatter).
// Where a place is named several times, it gets their sum.
Tensor scatter(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
// i64[classes]: how often each number in [0, classes) is in ids, which are i32 or i64 of any shape. Another
// number fails the step.
Tensor bincount(Tensor ids, int64_t classes, OFL_HERE);

// --- Results whose number depends on the data, with a bound: the first `size` of them, and how many there
// are
// ---

struct Found {
  Tensor indices;  // i64[size]: in ascending order, then -1
  Tensor count;    // i64[]: of all, which may be more than `size`
};
// The places in the flattened mask where it is true.
Found nonzero(Tensor mask, int64_t size, OFL_HERE);
struct Distinct {
  Tensor values;  // [size]: ascending, then 0
  Tensor counts;  // i64[size]: how often each occurs, then 0
  Tensor count;   // i64[]: of different values, which may be more than `size`
};
// The different numbers of x, of any shape.
Distinct unique(Tensor x, int64_t size, OFL_HERE);

// --- Order ---

// i64, of the shape of values: how many elements of sorted[n] are below each value (`right`: not above it).
// Compares every value with every element.
Tensor searchsorted(Tensor sorted, Tensor values, bool right = false, OFL_HERE);
// The value below which the share q of the elements along the axis lies, linear between neighbours.
Tensor quantile(Tensor x, double q, int64_t axis = -1, bool keep = false, OFL_HERE);

// --- Running results along an axis: log2(extent) operators, each over the whole of x ---

Tensor cumprod(Tensor x, int64_t axis, OFL_HERE);
Tensor cummax(Tensor x, int64_t axis, OFL_HERE);
Tensor cummin(Tensor x, int64_t axis, OFL_HERE);
Tensor logcumsumexp(Tensor x, int64_t axis, OFL_HERE);

// --- Shape ---

enum class PadMode {
  kConstant,
  kReflect,    // mirrored at the first and last element, which are not repeated: at most the extent - 1
  kReplicate,  // the first and last element
  kCircular,   // from the other end: at most the extent
};
struct PadOptions {
  PadMode mode = PadMode::kConstant;
  double value = 0;  // of kConstant
};
// Adds elements[i].first before and elements[i].second after x along axis i.
Tensor pad(Tensor x, const std::vector<std::pair<int64_t, int64_t>>& elements, const PadOptions& options = {},
           OFL_HERE);
// Windows of `size` along an axis, each `step` behind the one before: [.. n ..] -> [.. windows .. size]
// (torch.Tensor.unfold).
Tensor unfold(Tensor x, int64_t axis, int64_t size, int64_t step = 1, OFL_HERE);
// x[n h w (c r r)] -> [n (h r) (w r) c] (Shi et al. 2016), and back.
Tensor pixel_shuffle(Tensor x, int64_t r, OFL_HERE);
Tensor pixel_unshuffle(Tensor x, int64_t r, OFL_HERE);

// --- Biases of attention (AttentionOptions::bias) ---

// f32[heads queries keys]: the slope of each head times minus the distance between query and key, whose ends
// are aligned (Press et al. 2022). The number of heads need not be a power of two.
Tensor alibi(GraphBuilder* graph, int64_t heads, int64_t queries, int64_t keys, OFL_HERE);
struct RelativeBuckets {
  int64_t buckets = 32;
  int64_t max_distance = 128;  // from which on all distances share a bucket
  bool bidirectional = true;   // keys after the query have half of the buckets, else the first one
};
// i32[queries keys]: the bucket of the distance of each pair, linear for half of them, then logarithmic
// (Raffel et al. 2020). With table[buckets heads], transpose(gather(table, buckets), {2, 0, 1}) is the bias.
Tensor relative_buckets(GraphBuilder* graph, int64_t queries, int64_t keys,
                        const RelativeBuckets& options = {}, OFL_HERE);
// i32[n n] of the n = rows * columns elements of a window: the place of the offset of each pair in a table of
// (2 rows - 1) (2 columns - 1) (Liu et al. 2021, Swin). With table[places heads],
// transpose(gather(table, relative_places), {2, 0, 1}) is the bias.
Tensor relative_places(GraphBuilder* graph, int64_t rows, int64_t columns, OFL_HERE);

}  // namespace oneflow_like
