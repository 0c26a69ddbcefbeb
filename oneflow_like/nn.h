// Layers: functions that request their weights from a Scope and compute with them there (Scope::Run), written
// with the public functions only. Weights have the names given here, below the scope's path: nn::Linear(s /
// "head", x, 10) makes head/weight and head/bias.
//
// The mesh axis `tp` of the options sets tensor parallelism: a column-parallel layer cuts its output, a
// row-parallel one its input, and its partial sums are added where an operator needs them whole (Shoeybi et
// al. 2019). On a mesh without that axis, or with an empty name, nothing is cut.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "oneflow_like/model.h"
#include "ops/language/scan.h"
#include "ops/language/sparse.h"
#include "ops/language/vision.h"

namespace oneflow_like::nn {

// --- Products and tables -------------------------------------------------------------------------

enum class Parallel : uint8_t { kNone, kColumns, kRows };

struct LinearOptions {
  bool bias = true;
  Initializer init = XavierUniform();
  Parallel parallel = Parallel::kNone;
  std::string tp = "tp";
};
// x[.. in] -> [.. out]: weight[in out], bias[out].
Tensor Linear(Scope s, Tensor x, int64_t out, const LinearOptions& options = {}, OFL_HERE);

struct EmbeddingOptions {
  Initializer init = Normal(1);
  std::string tp = "tp";  // cuts the rows
};
// table[rows width], weight "table"; for models that read it in several places.
Tensor EmbeddingTable(Scope s, int64_t rows, int64_t width, const EmbeddingOptions& options = {}, OFL_HERE);
// ids[..] -> [.. width].
Tensor Embedding(Scope s, Tensor ids, int64_t rows, int64_t width, const EmbeddingOptions& options = {},
                 OFL_HERE);

struct LookUpOptions {
  std::string tp = "tp", batch = "dp";  // mesh axes that cut the tables' rows, and the batch
  int64_t micro_batches = 1;            // of the training, each of whole parts of the batch
};
// The cut of a table of `rows` rows by rows, in whole parts of the ranks.
Annotation CutOfRows(const Scope& s, int64_t rows, const LookUpOptions& options = {});
// Tables t of one shape [v w], ids[b t] of rows -> [b t w]: `embedding` of column i in table i. On a mesh
// whose axis `tp` cuts the rows (CutOfRows), each of its ranks also has a part of the batch. Ids go to the
// rank that has the row, the row comes back, and in the backward pass its gradient goes there, so nothing is
// summed over ranks; only rows that are used are sent between processes. Room is for all ids of a part of the
// batch at one rank. Where ranks divide the rows, or the parts of all ranks and micro-batches the batch,
// unevenly, ranks sum what each has instead.
Tensor LookUp(Scope s, const std::vector<Tensor>& tables, Tensor ids, const LookUpOptions& options = {},
              OFL_HERE);

// --- Norms ---------------------------------------------------------------------------------------

// Over the last axis: gamma, beta; gamma alone.
Tensor LayerNorm(Scope s, Tensor x, double eps = 1e-5, OFL_HERE);
Tensor RmsNorm(Scope s, Tensor x, double eps = 1e-5, OFL_HERE);
// x[n .. c]: gamma, beta. groups = c is instance normalisation.
Tensor GroupNorm(Scope s, Tensor x, int64_t groups, double eps = 1e-5, OFL_HERE);

struct BatchNormOptions {
  // In training the statistics are those of the batch, and training keeps their running averages in the
  // states "mean" and "variance" (of n - 1, as PyTorch's). Otherwise these averages are used. A model has one
  // graph for each.
  bool training = true;
  double momentum = 0.1;  // weight of the new statistics in the running averages
  double eps = 1e-5;
  // The batch is divided, in its order, into this many equal parts with statistics of their own (Hoffer et
  // al. 2017); 1: statistics of the whole batch, on every mesh and for every number of micro-batches, which
  // then wait for one another. With as many parts as micro-batches (or a multiple) they do not wait, and the
  // result is still the same on every mesh.
  int64_t parts = 1;
};
// x[n .. c]: gamma, beta.
Tensor BatchNorm(Scope s, Tensor x, const BatchNormOptions& options = {}, OFL_HERE);

// --- Transformers --------------------------------------------------------------------------------

// A cache of keys and values, for sessions that read a sequence piece by piece (oneflow_like/generation/):
// each Attention keeps them in its states "<name>_k" and "<name>_v", [b slots kv_heads head_width], writes
// those of this step's tokens in place, and attends to all of them. Places in the cache are slots; only
// positions decide which keys a query sees, so sequences of different lengths can share a cache.
struct Cache {
  int64_t slots = 0;  // room of each sequence
  Tensor begin;       // i32, one number: the slot of this step's first token; the others follow
  Tensor positions;   // i32[b s], of this step's tokens; of one that is padding 0
  // i32[b slots], after this step; of slots without a token kEmptySlot, which no query sees.
  Tensor slot_positions;
  std::string name = "cache";
  std::string batch = "dp";       // mesh axis that cuts b, where there is one
  DType dtype = DType::kFloat32;  // of keys and values in the cache
};
inline constexpr int32_t kEmptySlot = INT32_MAX;

struct AttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;    // heads of keys and values; 0: as many as heads
  int64_t head_width = 0;  // 0: width / heads
  bool causal = true, bias = true;
  bool out_bias = true;             // if there is bias; false: only q, k and v have one, as in Qwen
  double dropout = 0;               // of probabilities
  std::optional<RopeOptions> rope;  // rotary positions of queries and keys
  Initializer init = XavierUniform({.in = {0}, .out = {1, 2}});
  Initializer out_init = XavierUniform({.in = {0, 1}, .out = {2}});
  std::string tp = "tp";  // cuts the heads
  // Rank of adapters beside the projections of queries and values (Hu et al. 2021): q_lora_down[w rank],
  // q_lora_up[rank heads d], which starts at 0, and v's. Freeze the rest by ModelOptions::weights. 0: none.
  int64_t lora = 0;
  // Mesh axis over which queries, keys and values are cut by heads, although x is cut along the sequence
  // (Ulysses, Jacobs et al. 2023), with an all-to-all before and after attention. Empty: none.
  std::string ulysses = "";
  // Masks, positions and windows, as the function attention() takes them.
  oneflow_like::AttentionOptions masks = {};
  std::optional<Cache> cache;  // causal; gives masks their positions
};
// x[b s w] -> [b s w]: q[w heads d], k and v[w kv_heads d], out[heads d w] and their biases q_bias, ...
// out_bias. If `memory`[b t w] is given, keys and values are computed from it instead of x (cross-attention).
Tensor Attention(Scope s, Tensor x, const AttentionOptions& options, Tensor memory = {}, OFL_HERE);

using Activation = std::function<Tensor(Tensor)>;

struct MlpOptions {
  int64_t inner = 0;  // 0: four times the width; gated ones eight thirds, rounded up to a multiple of 64
  bool bias = true;
  Activation activation = [](Tensor x) { return gelu(x); };
  Initializer init = XavierUniform(), out_init = XavierUniform();
  std::string tp = "tp";  // cuts the inner axis
};
// x[.. w] -> [.. w]: up[w inner], down[inner w] and their biases up_bias, down_bias.
Tensor Mlp(Scope s, Tensor x, const MlpOptions& options = {}, OFL_HERE);
// Shazeer 2020: down(activation(x gate) * (x up)), with biases gate_bias, up_bias, down_bias: GEGLU, ReGLU,
// ...
Tensor GatedMlp(Scope s, Tensor x, const MlpOptions& options = {}, OFL_HERE);
// The same with silu and without biases.
Tensor SwiGlu(Scope s, Tensor x, const MlpOptions& options = {}, OFL_HERE);

struct TransformerOptions {
  nn::AttentionOptions attention;
  MlpOptions mlp;
  double dropout = 0;  // of the terms added to x
  bool rms_norm = false, swiglu = false;
  double norm_eps = 1e-5;
  bool norm_first = true;  // false: x = norm(x + f(x)), as in the first Transformers
  // Instead of `mlp`, of the block's scope and the norm's result; for experts and what else has weights of
  // its own.
  std::function<Tensor(Scope s, Tensor x)> feed_forward = {};
  // Mesh axis over which x, norms and dropouts are cut along the sequence, s, or several as "cp*sp", which
  // nest as they lie in the mesh. Over the axis of the heads a norm's result is gathered for products, and
  // their sums are cut (Korthikanti et al. 2022). Over another axis products and attention's queries are cut
  // as well, and keys and values are gathered (context parallelism), unless attention.ulysses names it:
  // "cp*sp" with ulysses "sp" exchanges heads inside each part of cp. Empty: the cheapest.
  std::string sequence = "";
};
// y = x + attention(norm1(x)), then y + mlp(norm2(y)): scopes norm1, attention, norm2, mlp.
Tensor TransformerBlock(Scope s, Tensor x, const TransformerOptions& options, OFL_HERE);

// A causal query sees more earlier positions the later it is, so if mesh axis `axis` cuts the sequence into P
// parts, the last has nearly twice the mean work. This class divides it into 2 P blocks and gives each part a
// block from the front and its mirror image from the back (Dubey et al. 2024, section 3.3.2). Tokens and
// targets are reordered once, where they enter the model, and positions() has the position of each place, for
// embeddings, rope and masks:
//
//   DealtSequence dealt(scope, tokens.shape()[1], "cp");
//   options.sequence = "cp";   // TransformerOptions
//   options.attention.masks.query_positions = options.attention.masks.key_positions = dealt.positions();
//   Tensor logits = model(dealt.Deal(tokens), dealt.positions());
//   Tensor loss = mean(cross_entropy(logits, dealt.Deal(targets)));
//
// An operator that draws at random per position (dropout) draws by the place in the dealt order, which
// depends on P: the loss curve then differs from that of one device.
class DealtSequence {
 public:
  // If `axis` is empty, or the mesh has no such axis or one device along it, the order stays unchanged.
  DealtSequence(Scope s, int64_t length, const std::string& axis, OFL_HERE);

  // i32[length]: the position of each place. Undefined if the order is unchanged.
  const Tensor& positions() const { return positions_; }
  // Reorders axis `dim` of x, the sequence in its original order, and cuts it over the mesh axis.
  Tensor Deal(Tensor x, int64_t dim = 1, OFL_HERE) const;
  // Puts a result back into the sequence's original order.
  Tensor Restore(Tensor y, int64_t dim = 1, OFL_HERE) const;

 private:
  void CheckAxis(const char* operand, Tensor x, int64_t dim, const Here& at) const;

  std::string axis_;
  int64_t length_ = 0;
  Tensor positions_, places_;
};
// The position of each place in the dealt order of `length` places on a mesh axis of `parts` devices. Each
// device has half of its places from the front, in order, and half from the back, in the opposite order of
// devices.
std::vector<int32_t> DealtPositions(int64_t length, int64_t parts);

// The cross entropy of logits x[.. w] table[v w]^T with targets[..] -> [..]. tile: number of rows of logits
// that exist at a time (linear_cross_entropy: less memory, one more product); 0: all of them.
Tensor HeadLoss(Tensor x, Tensor table, Tensor targets, int64_t tile = 0, OFL_HERE);

// --- Convolutions --------------------------------------------------------------------------------

struct ConvLayerOptions : ConvOptions {
  bool bias = false;
  std::optional<Initializer> init;  // default: He's, of fan out (He et al. 2015)
};
// x[n h w c] -> [n p q filters]: weight[filters kernel kernel c/groups], bias[filters].
Tensor Conv(Scope s, Tensor x, int64_t filters, int64_t kernel, const ConvLayerOptions& options = {},
            OFL_HERE);
// Convolution, batch norm, and an activation (none where it is empty): scopes conv and norm. Padding that is
// left out keeps the extents at stride 1.
struct ConvBlockOptions {
  int64_t stride = 1, groups = 1;
  std::optional<int64_t> padding;
  Activation activation = [](Tensor x) { return relu(x); };
  BatchNormOptions norm;
};
Tensor ConvBlock(Scope s, Tensor x, int64_t filters, int64_t kernel, const ConvBlockOptions& options = {},
                 OFL_HERE);

// --- Recurrent networks --------------------------------------------------------------------------

struct RecurrentLayerOptions {
  bool bias = true;
  std::optional<Initializer> init;  // of all weights; default: uniform in +-1 / sqrt(n)
  bool reverse = false;             // from the last step to the first
  Tensor h, c;                      // first states [b n]; undefined: zeros. Only LSTM has c
};
// x[b t w] -> y[b t n] and the states after the last step, as the functions lstm and gru define them:
// input[w 4n], recurrent[n 4n], bias[4n], recurrent_bias[4n], or 3n. They are the transposes of PyTorch's
// weight_ih_l0 and weight_hh_l0, and its bias_ih_l0 and bias_hh_l0.
LstmResult LSTM(Scope s, Tensor x, int64_t n, const RecurrentLayerOptions& options = {}, OFL_HERE);
GruResult GRU(Scope s, Tensor x, int64_t n, const RecurrentLayerOptions& options = {}, OFL_HERE);

// --- Repetition ----------------------------------------------------------------------------------

struct LayersOptions {
  std::string name = "block";   // the scopes are block0, block1, ...
  std::string pipeline = "pp";  // mesh axis that the blocks are dealt over, in order; where there is one
  // Blocks of each stage, 0 for none: {n, 0} and {0, n} put an encoder on the first stage and a decoder on
  // the second. Empty: as Pipeline::layers says.
  std::vector<int64_t> per_stage = {};
  std::optional<Recompute> recompute = {};  // of these blocks; empty: as TrainOptions says
};
// Applies n blocks to x, each a region (Scope::Region): block(scope of block i, x, i) -> x. What `block`
// makes belongs to block i, its region and its stage, whatever it reads (Scope::Run). This function alone
// assigns stages: weights requested before or after it are on the stage of their first reader, and readers of
// the result are on the last block's stage.
Tensor layers(Scope s, Tensor x, int64_t n, const std::function<Tensor(Scope, Tensor, int64_t)>& block,
              const LayersOptions& options = {}, OFL_HERE);

}  // namespace oneflow_like::nn
