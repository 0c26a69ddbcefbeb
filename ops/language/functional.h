// The operators as functions on Tensors, for models and for gradients. Shapes are global. If operands do not
// fit, a function throws Error, naming itself, the axis, both numbers and the caller's line. Negative axes
// count from the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/language/tensor.h"

namespace oneflow_like {

using Here = SourceLocation;
#define OFL_HERE Here at = Here::current()

// --- Products ---

// a[.. m k] b[.. k n] -> [.. m n]; leading axes broadcast.
Tensor matmul(Tensor a, Tensor b, OFL_HERE);
// Two operands, single-letter labels, e.g. "bsw,whd->bshd". Labels absent from the output are summed.
Tensor einsum(const std::string& equation, Tensor a, Tensor b, OFL_HERE);
// The same for any number of operands ("bij,bjk,kl->bil"), also one ("ij->ji", "ij->i"); products are
// computed in the order of least work. `...` stands for leading axes that all operands broadcast, and that
// the output keeps. A repeated label in one operand (a diagonal) is an Error.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands, OFL_HERE);

// --- Elementwise, operands broadcast against each other from the last axis ---

Tensor add(Tensor a, Tensor b, OFL_HERE);
Tensor sub(Tensor a, Tensor b, OFL_HERE);
Tensor mul(Tensor a, Tensor b, OFL_HERE);
Tensor div(Tensor a, Tensor b, OFL_HERE);  // of integers floor_divide(a, b)
Tensor maximum(Tensor a, Tensor b, OFL_HERE);
Tensor minimum(Tensor a, Tensor b, OFL_HERE);
Tensor pow(Tensor a, Tensor b, OFL_HERE);
// The sum of any number of tensors of one shape.
Tensor add_n(const std::vector<Tensor>& terms, OFL_HERE);
Tensor scale(Tensor x, double factor, OFL_HERE);  // x * factor; carries partial sums
Tensor shift(Tensor x, double offset, OFL_HERE);  // x + offset
Tensor neg(Tensor x, OFL_HERE);
// Comparisons give bool; no gradient passes.
Tensor equal(Tensor a, Tensor b, OFL_HERE);
Tensor not_equal(Tensor a, Tensor b, OFL_HERE);
Tensor less(Tensor a, Tensor b, OFL_HERE);
Tensor less_equal(Tensor a, Tensor b, OFL_HERE);
Tensor greater(Tensor a, Tensor b, OFL_HERE);
Tensor greater_equal(Tensor a, Tensor b, OFL_HERE);
// a - b floor(a / b), with b's sign, for numbers of any type; for integers 0 where b is 0. fp32 is exact
// while |a / b| < 2^23.
Tensor remainder(Tensor a, Tensor b, OFL_HERE);
// The quotient that belongs to it: a / b rounded down, for numbers of any type; for integers 0 where b is 0.
// No gradient passes.
Tensor floor_divide(Tensor a, Tensor b, OFL_HERE);
// For bool operands.
Tensor logical_and(Tensor a, Tensor b, OFL_HERE);
Tensor logical_or(Tensor a, Tensor b, OFL_HERE);
Tensor logical_xor(Tensor a, Tensor b, OFL_HERE);
Tensor logical_not(Tensor x, OFL_HERE);
// For integers of one type. A shift by less than 0 or more than 63 gives 0; a right shift of a negative a
// then gives -1.
Tensor bitwise_and(Tensor a, Tensor b, OFL_HERE);
Tensor bitwise_or(Tensor a, Tensor b, OFL_HERE);
Tensor bitwise_xor(Tensor a, Tensor b, OFL_HERE);
Tensor bitwise_not(Tensor x, OFL_HERE);
Tensor left_shift(Tensor a, Tensor b, OFL_HERE);
Tensor right_shift(Tensor a, Tensor b, OFL_HERE);  // rounds down
// Whether x is neither infinite nor NaN; whether it is NaN. Both give bool; no gradient passes.
Tensor isfinite(Tensor x, OFL_HERE);
Tensor isnan(Tensor x, OFL_HERE);
// log(e^a + e^b), without their overflow.
Tensor logaddexp(Tensor a, Tensor b, OFL_HERE);
// The angle of the point (x, y), in (-pi, pi] radians.
Tensor atan2(Tensor y, Tensor x, OFL_HERE);
// The inverse of erf: infinite at -1 and 1, NaN beyond. The logarithm of |gamma(x)|, and its derivative,
// which has a derivative once more.
Tensor erfinv(Tensor x, OFL_HERE);
Tensor erfc(Tensor x, OFL_HERE);  // 1 - erf(x), of full accuracy for large x
Tensor lgamma(Tensor x, OFL_HERE);
Tensor digamma(Tensor x, OFL_HERE);
// Most are composed of the others; angles are in radians.
Tensor log10(Tensor x, OFL_HERE);
Tensor asin(Tensor x, OFL_HERE);
Tensor acos(Tensor x, OFL_HERE);
Tensor atan(Tensor x, OFL_HERE);
Tensor sinh(Tensor x, OFL_HERE);
Tensor cosh(Tensor x, OFL_HERE);
Tensor atanh(Tensor x, OFL_HERE);
Tensor asinh(Tensor x, OFL_HERE);
Tensor acosh(Tensor x, OFL_HERE);
Tensor logit(Tensor x, OFL_HERE);  // log(x / (1 - x)), the inverse of sigmoid
Tensor trunc(Tensor x, OFL_HERE);  // towards 0; no gradient passes
Tensor frac(Tensor x, OFL_HERE);   // x - trunc(x)
// condition (bool) ? a : b, broadcasting all three.
Tensor where(Tensor condition, Tensor a, Tensor b, OFL_HERE);
Tensor exp(Tensor x, OFL_HERE);
Tensor log(Tensor x, OFL_HERE);
Tensor sqrt(Tensor x, OFL_HERE);
Tensor rsqrt(Tensor x, OFL_HERE);
Tensor square(Tensor x, OFL_HERE);
Tensor abs(Tensor x, OFL_HERE);
Tensor sign(Tensor x, OFL_HERE);        // -1, 0 or 1; no gradient passes
Tensor reciprocal(Tensor x, OFL_HERE);  // 1 / x
Tensor log1p(Tensor x, OFL_HERE);       // log(1 + x)
Tensor log2(Tensor x, OFL_HERE);        // exact for powers of 2
Tensor expm1(Tensor x, OFL_HERE);       // e^x - 1
Tensor exp2(Tensor x, OFL_HERE);        // 2^x, exact for whole numbers
// x is in radians. Accurate within 2 units in the last place (tan: 4) for |x| up to 10^6, within 2e-7 up to
// 10^9; NaN beyond.
Tensor sin(Tensor x, OFL_HERE);
Tensor cos(Tensor x, OFL_HERE);
Tensor tan(Tensor x, OFL_HERE);
// Rounding to whole numbers; no gradient passes.
Tensor floor(Tensor x, OFL_HERE);
Tensor ceil(Tensor x, OFL_HERE);
Tensor round(Tensor x, OFL_HERE);  // halves to the even one
// x limited to [low, high], which may be infinite; the gradient passes inside, bounds included.
Tensor clamp(Tensor x, double low, double high, OFL_HERE);
Tensor tanh(Tensor x, OFL_HERE);
Tensor erf(Tensor x, OFL_HERE);
Tensor sigmoid(Tensor x, OFL_HERE);
Tensor relu(Tensor x, OFL_HERE);
Tensor gelu(Tensor x, OFL_HERE);      // tanh approximation (Hendrycks and Gimpel 2016)
Tensor gelu_erf(Tensor x, OFL_HERE);  // exact
Tensor silu(Tensor x, OFL_HERE);
Tensor softplus(Tensor x, OFL_HERE);                         // log(1 + e^x)
Tensor leaky_relu(Tensor x, double slope = 0.01, OFL_HERE);  // x where positive, else slope * x
// x where positive, else alpha (e^x - 1) (Clevert et al. 2015).
Tensor elu(Tensor x, double alpha = 1, OFL_HERE);
// x where positive, else slope * x (He et al. 2015). slope[c] has the extent of `axis` of x, or one element.
Tensor prelu(Tensor x, Tensor slope, int64_t axis = -1, OFL_HERE);
Tensor hardsigmoid(Tensor x, OFL_HERE);  // clamp(x / 6 + 1/2, 0, 1)
Tensor hardswish(Tensor x, OFL_HERE);    // x hardsigmoid(x) (Howard et al. 2019)
Tensor mish(Tensor x, OFL_HERE);         // x tanh(softplus(x)) (Misra 2019)
Tensor cast(Tensor x, DType dtype, OFL_HERE);

// --- Reductions. `axes` empty: all of them. keep: reduced axes stay with extent 1 ---

Tensor sum(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
Tensor mean(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);  // by global extents
Tensor max(Tensor x, std::vector<int64_t> axes = {}, bool keep = false,
           OFL_HERE);  // gradient shared among ties
Tensor min(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
Tensor prod(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
// The sum of squared distances to the mean, divided by n - correction: 1 estimates the variance of the
// distribution that x was drawn from, 0 gives that of x itself. Throws Error if n does not exceed the
// correction.
Tensor var(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, int64_t correction = 1, OFL_HERE);
Tensor stddev(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, int64_t correction = 1, OFL_HERE);
// log(sum(exp(x))), without overflow.
Tensor logsumexp(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
// The sum of absolute values (p = 1), the root of the sum of squares (2; its gradient at zeros is 0) or the
// greatest absolute value (infinity); another p is an Error.
Tensor norm(Tensor x, double p = 2, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
// For bool x: whether any element is true; whether all are. Over nothing: false, true.
Tensor any(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
Tensor all(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
// The mean over the elements of x where mask (bool, broadcast to x) is true; 0 where there are none.
Tensor masked_mean(Tensor x, Tensor mask, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
Tensor argmax(Tensor x, int64_t axis = -1, OFL_HERE);  // i64; the first of equals
// Inverse of broadcasting: sums x down to `shape` (axes of extent 1 and missing leading axes are summed).
Tensor sum_to(Tensor x, const Dims& shape, OFL_HERE);
Tensor broadcast_to(Tensor x, const Dims& shape, OFL_HERE);

// --- Shape ---

// One extent may be -1.
Tensor reshape(Tensor x, const Dims& shape, OFL_HERE);
Tensor transpose(Tensor x, std::vector<int64_t> order, OFL_HERE);
// The part [begin, end) of one axis, every step-th index of it. Negative numbers count from the end; kEnd is
// the end. Throws Error for a part that is not inside the axis, and for a step below 1.
constexpr int64_t kEnd = INT64_MAX;
Tensor slice(Tensor x, int64_t axis, int64_t begin, int64_t end, OFL_HERE);
Tensor slice(Tensor x, int64_t axis, int64_t begin, int64_t end, int64_t step, OFL_HERE);
Tensor concat(const std::vector<Tensor>& parts, int64_t axis, OFL_HERE);
std::vector<Tensor> split(Tensor x, int64_t axis, int64_t parts, OFL_HERE);  // equal, up to 2^16
// Zeros before and after along one axis.
Tensor pad(Tensor x, int64_t axis, int64_t before, int64_t after, OFL_HERE);
// table[v ..], ids[any] -> [any ..]: rows of the first axis of table.
Tensor gather(Tensor table, Tensor ids, OFL_HERE);
// x[n.. c], ids[n..] -> [n..]: the element of each row that ids names; the class axis may be cut.
Tensor pick(Tensor x, Tensor ids, OFL_HERE);
Tensor one_hot(Tensor ids, int64_t classes, OFL_HERE);  // f32, a new last axis

// --- Constants and random tensors ---

Tensor full(GraphBuilder* graph, const Dims& shape, double value, DType dtype = DType::kFloat32, OFL_HERE);
Tensor uniform(GraphBuilder* graph, const Dims& shape, double low, double high, OFL_HERE);
Tensor normal(GraphBuilder* graph, const Dims& shape, double mean, double stddev, OFL_HERE);
// Redrawn, by inverse CDF, inside two standard deviations.
Tensor truncated_normal(GraphBuilder* graph, const Dims& shape, double mean, double stddev, OFL_HERE);

// --- Neural networks ---

Tensor softmax(Tensor x, OFL_HERE);  // over the last axis
Tensor log_softmax(Tensor x, OFL_HERE);
// logits[.. c], target[..] (i32 or i64 class, negative: ignored, loss 0) -> loss[..]. The class axis may be
// cut.
Tensor cross_entropy(Tensor logits, Tensor target, OFL_HERE);  // with options: ops/language/losses.h
// Over the last axis; gamma and beta have its extent.
Tensor layer_norm(Tensor x, Tensor gamma, Tensor beta, double eps = 1e-5, OFL_HERE);
Tensor rms_norm(Tensor x, Tensor gamma, double eps = 1e-5, OFL_HERE);
// table[v d], ids[..] -> [.. d]; ids i32 or i64 in [0, v), else the step fails naming the id. Cut by rows or
// columns.
Tensor embedding(Tensor table, Tensor ids, OFL_HERE);
// q[b s (h g) d], k[b t h d], v[b t h e] -> [b s (h g) e]: softmax(q k^T / sqrt(d) + bias) v per head of q,
// of which g neighbours share a head of k and v (1: multi-head; all: multi-query; Ainslie et al. 2023). Never
// stores the scores. A query that sees no key gets 0, and passes no gradient.
struct AttentionOptions {
  // Keys at positions after the query's are masked. Positions are global indices, queries and keys aligned at
  // their ends, unless operands below say otherwise.
  bool causal = true;
  double dropout = 0;  // probability of dropping a probability
  double scale = 0;    // 0: 1 / sqrt(d)
  std::string draws;   // names the random draws, as in dropout() below
  // A query sees keys at positions greater than its own minus this (Beltagy et al. 2020); 0: all. With causal
  // these are `window` keys, including the key at its own position.
  int64_t window = 0;
  // Added to the scaled scores; f32, broadcast from the last axis to [b (h g) s t]. -infinity masks. It has a
  // gradient.
  Tensor bias = {};
  // bool, broadcast as the bias is: a query sees the keys where it is true.
  Tensor mask = {};
  // i32 or i64 [b]: the keys of each sequence; those after them are masked.
  Tensor key_lengths = {};
  // Positions for causal and window: i32 or i64, [b s] or [s], and [b t] or [t]; any numbers.
  Tensor query_positions = {}, key_positions = {};
  // The same shapes; a query sees only keys of its own document. Both or none.
  Tensor query_documents = {}, key_documents = {};
};
Tensor attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& options = {}, OFL_HERE);
// Rotary position embedding (Su et al. 2021): x[b s h d], positions[s] or [b s] (i32 or i64) -> [b s h d].
// Pair i of the elements of a head is rotated by position * base^(-2i / dims) radians, computed in double.
struct RopeOptions {
  double base = 10000;
  bool interleaved =
      false;         // pairs are elements 2i, 2i + 1; else i, i + dims / 2, as of Llama in Hugging Face
  int64_t dims = 0;  // how many elements are rotated, from the first on; the rest is unchanged; 0: all
  double scale = 1;  // positions are divided by it (Chen et al. 2023)
  // Llama 3.1's stretching of contexts longer than `trained_length` tokens, 0: none. A pair that turns fewer
  // than `low_turns` times over that length turns `factor` times slower, one that turns more than
  // `high_turns` times as before, and those between by a mean of both, linear in the number of turns.
  int64_t trained_length = 0;
  double factor = 8, low_turns = 1, high_turns = 4;
};
Tensor rope(Tensor x, Tensor positions, const RopeOptions& options = {}, OFL_HERE);
// Zeroes with probability p and divides the rest by 1 - p. The mask is a function of the seed, the operator,
// the step and the global position: the same on every mesh and for every number of micro-batches. The
// operator is identified by its scope and its ordinal there among operators of its kind that a session runs,
// or by the name `draws`. p = 0 is the identity.
Tensor dropout(Tensor x, double p, OFL_HERE);
Tensor dropout(Tensor x, double p, const std::string& draws, OFL_HERE);
// Attribute "key" of a random operator, from a name: Apply(graph, "uniform", {}, {..., {"key",
// DrawKey("late")}}). Operators of one key draw the same numbers.
int64_t DrawKey(const std::string& name);

// --- Variables ---

// Gives the variable (a result of Scope::Weight or State) the `value`, of its shape and type, at the end of
// the step; all of the step's operators read the old value. Returns the new value. The assignment runs in
// sessions that compute this result: as an output, as one of SessionOptions::also, or because an output
// depends on it. A value that differs between micro-batches must be reduced over the batch first, or gathered
// (whole_batch). Two assigns to a variable are an Error.
//
// With `each_micro_batch` the variable is written once for each micro-batch, in their order: operators that
// read it see the value from the previous micro-batch, and assign returns the value from this one. So a step
// of m micro-batches equals m steps of one. An output that is not a part of the batch then has the last
// micro-batch's value. Values computed between reading the variable and writing it must not need the whole
// batch.
struct AssignOptions {
  bool each_micro_batch = false;
};
Tensor assign(Tensor variable, Tensor value, OFL_HERE);
Tensor assign(Tensor variable, Tensor value, const AssignOptions& options, OFL_HERE);
// The same for the part [begin, begin + extent of value) of one axis; begin[] is i32 or i64. The rest is
// unchanged, and costs nothing. If the part is not inside the axis, the step fails. With `each_micro_batch`
// micro-batches may cut the value along that axis: each writes its own part at its begin.
Tensor assign_slice(Tensor variable, int64_t axis, Tensor begin, Tensor value, OFL_HERE);
Tensor assign_slice(Tensor variable, int64_t axis, Tensor begin, Tensor value, const AssignOptions& options,
                    OFL_HERE);
// As sum() and mean(), but over the elements of the micro-batch only. No gradient flows through them: a loss
// that depends on a weight through one is an Error.
Tensor micro_batch_sum(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);
Tensor micro_batch_mean(Tensor x, std::vector<int64_t> axes = {}, bool keep = false, OFL_HERE);

// A node by name, for operators without a function of their own (gradients, operators of the user's).
std::vector<Tensor> Apply(GraphBuilder* graph, const std::string& op, const std::vector<Tensor>& in,
                          const Attrs& attrs = {}, OFL_HERE);

}  // namespace oneflow_like

#include "ops/language/expressions.h"  // operators: a + b, 2 * x, x[0]
