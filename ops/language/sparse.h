// Functions that choose, order and scatter elements: sorting, running sums, indexing along any axis, bags of
// embeddings, updates of the rows a batch touches, products by expert, rows that go to experts and back; and
// small changes of shape. As in
// ops/language/functional.h shapes are global, axes may be given negative, and every function throws Error
// naming itself, the axis, both numbers and the caller's line when operands do not fit.
#pragma once

#include <vector>

#include "ops/language/functional.h"

namespace oneflow_like {

// --- Order. A NaN is greater than every number; elements that are equal keep their order, in both
// directions; the axis is whole on every rank ---

struct Sorted {
  Tensor values, indices;  // indices: i64, along the axis
};
// Sorts x in ascending (or `descending`) order along one axis. The gradient of values flows back to the
// elements they came from.
Sorted sort(Tensor x, int64_t axis = -1, bool descending = false, OFL_HERE);
// The indices only: the result's element i is the index in x of the i-th element in this order.
Tensor argsort(Tensor x, int64_t axis = -1, bool descending = false, OFL_HERE);
// The k greatest (or, if not `largest`, least), in order. 0 <= k <= the extent of the axis.
Sorted top_k(Tensor x, int64_t k, int64_t axis = -1, bool largest = true, OFL_HERE);
Tensor argmin(Tensor x, int64_t axis = -1, OFL_HERE);  // i64; the first of equals

// Sums of the elements up to each one along an axis, itself included. reverse: from the last towards the
// first; exclusive: without the element itself, so that the first sum is 0.
struct CumsumOptions {
  bool reverse = false;
  bool exclusive = false;
};
Tensor cumsum(Tensor x, int64_t axis, const CumsumOptions& options = {}, OFL_HERE);

// --- Elements by index. ids are i32 or i64 in [0, extent of the axis), else the step fails naming the id.
// The axis that is indexed may be cut; the axes of ids too ---

// x[.. v ..], ids[any] -> [.. any ..]: the parts of x along the axis that ids names; the axes of ids replace
// the axis (numpy.take).
Tensor take(Tensor x, int64_t axis, Tensor ids, OFL_HERE);
// x[.. v ..], ids[.. n ..] -> [.. n ..]: element by element; all other extents agree (numpy.take_along_axis,
// torch.gather).
Tensor take_along_axis(Tensor x, Tensor ids, int64_t axis, OFL_HERE);
// x[a.. v b..], ids[a.. n] -> [a.. n b..]: the parts of x along the axis by ids of their own for each index
// of the axes before it (torch.gather with ids expanded over the axes behind).
Tensor batched_take(Tensor x, Tensor ids, int64_t axis, OFL_HERE);
// Adds every element of src[.. n ..] to x at the place along the axis that ids[.. n ..] names
// (torch.scatter_add), in an order that the graph, the mesh and the kind of device settle: the same bits in
// every run.
Tensor scatter_add(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
// The same for whole parts: src[.. n ..] along the axis, ids[n] (torch.index_add); ids with several axes
// stand for as many axes of src.
Tensor index_add(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
// The greatest, or least, of x and of what src has for each place, instead of a sum (torch.scatter_reduce and
// index_reduce with amax and amin). A NaN wins. The gradient is shared equally among equals, x's element
// among them.
Tensor scatter_max(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
Tensor scatter_min(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
Tensor index_max(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
Tensor index_min(Tensor x, int64_t axis, Tensor ids, Tensor src, OFL_HERE);
// x[.. n ..], ids[n] in [0, segments): a softmax over the parts of x along the axis that have the same id, as
// attention over the edges of a graph needs it. A segment that is -infinity throughout gives 0.
Tensor segment_softmax(Tensor x, Tensor ids, int64_t segments, int64_t axis = 0, OFL_HERE);

// --- Embeddings ---

enum class Bag { kSum, kMean, kMax };
// table[v d], ids[b l], lengths[b] -> [b d]: for each bag the sum, mean or maximum of the rows that its first
// lengths[b] ids name. The ids past the length are padding and may be anything; an empty bag gives 0. lengths
// are i32 or i64 in [0, l], ids in [0, v), else the step fails naming both numbers. Bags that are
// concatenated in one list must be padded to [b l], so that b is an ordinary axis, which data parallelism
// cuts. The table may be cut by rows or columns. The gradient of kMax goes to the first of equals.
Tensor embedding_bag(Tensor table, Tensor ids, Tensor lengths, Bag mode = Bag::kSum, OFL_HERE);
// table[v d], ids[r m] -> [r m d]: `embedding` of a table in r equal parts by rows, where the ids of part r
// name rows of that part of the table, numbered as in the whole; other ids give 0, and their gradient is
// none. So ids, rows, gradients and what an optimizer updates may all be cut by r: each rank looks up only
// what it has, and nothing is summed over ranks.
Tensor embedding_in_parts(Tensor table, Tensor ids, OFL_HERE);
// The sum of the rows times weights[b l].
Tensor embedding_bag(Tensor table, Tensor ids, Tensor lengths, Tensor weights, OFL_HERE);

// The gradient of a table by the rows that a batch touched.
struct TouchedRows {
  Tensor rows;    // [n], of the type of the ids: ascending, then -1 for unused places
  Tensor values;  // [n d] f32: the sums of their gradients, then 0
  // Of a table in equal parts by rows (embedding_in_parts): the list is as many parts, each so. 0: it is one.
  int64_t parts = 0;
};
// ids[n], grad[n d] -> the rows that ids names, each once, with the sums of their gradients, added in the
// order of ids. A negative id names no row. The list is whole on every rank; columns may be cut.
// In `parts`, each part of the list by itself.
TouchedRows unique_rows(Tensor ids, Tensor grad, int64_t parts = 0, OFL_HERE);
// Updates of only the touched rows of variables; all other rows are unchanged, and cost nothing. `touched` is
// a result of unique_rows: the step fails if its rows are not ascending or lie outside the table. The updates
// run when `assign` would (ops/language/functional.h), and return the variables' new values. The table may be
// cut by rows or columns.
//
// table[v d] -= lr (values + weight_decay table), for the touched rows.
struct SgdRows {
  double lr = 0.1;
  double weight_decay = 0;
};
Tensor sgd_rows(Tensor table, const TouchedRows& touched, const SgdRows& options = {}, OFL_HERE);
// AdaGrad (Duchi, Hazan and Singer 2011) with one state for a row: state[v] += mean(values^2 over d);
// table[v d] -= lr values / (sqrt(state) + eps).
struct AdagradRows {
  double lr = 0.01;
  double eps = 1e-8;
};
struct AdagradState {
  Tensor table, state;
};
AdagradState adagrad_rows(Tensor table, Tensor state, const TouchedRows& touched,
                          const AdagradRows& options = {}, OFL_HERE);

// --- Products by expert ---

// x[n k], w[e k m], counts[e] -> [n m]: the first counts[0] rows of x times w[0], the next counts[1] rows
// times w[1], and so on; rows past the sum of counts give 0. counts are i32 or i64; if one is negative, or
// their sum exceeds n, the step fails naming both numbers. Every axis of x and w may be cut (e: expert
// parallelism, each rank computes the rows of its experts), counts may not. x[p n k] and counts[p e] are rows
// of parts, as per_micro_batch makes them: -> [p n m]; w may then be [p e k m]. x[r p n k], w[r e k m] and
// counts[r p e] are those of ranks with experts of their own, as sort_choices makes them: -> [r p n m].
// `share`: the part of all rows that is expected to be in a run, in (0, 1], by which work is estimated.
Tensor grouped_matmul(Tensor x, Tensor w, Tensor counts, OFL_HERE);
Tensor grouped_matmul(Tensor x, Tensor w, Tensor counts, double share, OFL_HERE);

// --- Rows to experts and back, with room that is fixed before the step. Tokens that share an expert's room
// are a pool, p; each of its n tokens chooses k of e experts, and each expert has c places in a pool ---

struct Routes {
  Tensor slots;   // i32[p e c]: the choice that fills a place, as token * k + j; -1: none
  Tensor places;  // i32[p n k]: the place where a choice went, as expert * c + slot; -1: it was dropped
  Tensor counts;  // i32[p e]: how often each expert was chosen, whether there was room or not
};
struct RouteOptions {
  // f32[p n k]: where an expert is chosen more often than it has room, the choices of the greatest weights
  // stay. Undefined, and among equal weights: first choices of all tokens stay before second ones, each in
  // the order of tokens.
  Tensor weights;
  bool may_drop = true;  // false: the step fails where there is no room, naming the expert, pool and numbers
};
// chosen[p n k], i32 or i64, are experts in [0, experts), else the step fails naming the number. Places of an
// expert are filled from the first on, in the order of first choices, second ones, and so on. The result
// depends on each pool alone, so it is the same on every mesh, and no gradient passes it.
Routes route(Tensor chosen, int64_t experts, int64_t room, const RouteOptions& options = {}, OFL_HERE);
// x[p n w] -> [e p c w]: each token's row at its places, times weights[p n k] where they are given; 0 at
// places that none fills. Every axis may be cut but k.
Tensor take_rows(Tensor x, const Routes& routes, Tensor weights = {}, OFL_HERE);
// y[e p c w] -> [p n w]: for each token the sum of the rows at its places, times weights[p n k] where they
// are given; 0 where all its choices were dropped.
Tensor return_rows(Tensor y, const Routes& routes, Tensor weights = {}, OFL_HERE);

// --- The same where the room is not an expert's but that of a rank, which has several experts: a token goes
// to a rank once, however many of its experts live there, and rows that nobody uses are neither sent nor
// multiplied. Experts [r each, (r + 1) each) are of rank r ---

struct RankRoutes {
  Routes routes;  // of ranks: slots[p r c], places[p n k] of the first kept choice of a token at each rank,
                  // and counts[p r]: how many places are filled, from the first on
  Tensor kept;    // f32[p n k]: the chosen expert, from 1 on; 0: it was dropped
  Tensor chosen;  // i32[p e]: how often each expert was chosen, whether there was room or not
};
// chosen[p n k] as in `route`. A rank has room for so many choices of a pool, and a place for each, or for
// each token of the pool where these are fewer. Tokens are at a rank's places in their order.
RankRoutes route_ranks(Tensor chosen, int64_t experts, int64_t ranks, int64_t room,
                       const RouteOptions& options = {}, OFL_HERE);
// The rows y[r p c ..], of which for each r and p only the first counts[p r] along c are not 0, for a reader
// that wants them cut otherwise: between ranks only these rows go. `share`: the part of all rows that is
// expected, in (0, 1], by which the time is estimated.
Tensor exchange(Tensor y, Tensor counts, double share = 1, OFL_HERE);
// At the ranks: kept[r p c k], which came with the rows, says which of the rank's `experts` / r experts use a
// row. Routes to one run of `room` rows for each r and p, in which those of an expert follow one another:
// slots[r p n], places[r p c k], counts[r p e]: the length of each expert's run. What has no room is left
// out. take_rows(x[r p c w], routes) -> [r p n w] and return_rows(y[r p n w], routes, weights[r p c k]) -> [r
// p c w] go there and back.
Routes sort_choices(Tensor kept, int64_t experts, int64_t room, OFL_HERE);

// --- Shape and position ---

// The elements of x[.. m n] on and below (tril), or on and above (triu) a diagonal, 0 elsewhere. `diagonal`
// is the column in row 0 where it begins; negative ones begin below.
Tensor tril(Tensor x, int64_t diagonal = 0, OFL_HERE);
Tensor triu(Tensor x, int64_t diagonal = 0, OFL_HERE);
Tensor flip(Tensor x, std::vector<int64_t> axes, OFL_HERE);  // the axes in reverse order
// Moves every element `by` places on along the axis, those past the end to the front.
Tensor roll(Tensor x, int64_t by, int64_t axis, OFL_HERE);
// Repeats the whole of x `times[i]` times along axis i (numpy.tile, torch.repeat); if there are more times
// than axes, leading axes are added.
Tensor repeat(Tensor x, std::vector<int64_t> times, OFL_HERE);
// Repeats each part of x along the axis `times` times in a row.
Tensor repeat_interleave(Tensor x, int64_t times, int64_t axis, OFL_HERE);
Tensor stack(const std::vector<Tensor>& parts, int64_t axis = 0, OFL_HERE);  // along a new axis
Tensor squeeze(Tensor x, int64_t axis, OFL_HERE);                            // without an axis of extent 1
Tensor unsqueeze(Tensor x, int64_t axis, OFL_HERE);  // with a new axis of extent 1 at `axis`
// begin, begin + step, ... up to but without `end`: ceil((end - begin) / step) numbers.
Tensor arange(GraphBuilder* graph, double begin, double end, double step = 1, DType dtype = DType::kFloat32,
              OFL_HERE);

}  // namespace oneflow_like
