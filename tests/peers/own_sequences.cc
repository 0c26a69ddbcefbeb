// Models of sequences: T5 (Raffel et al. 2020), CLIP (Radford et al. 2021), DiT (Peebles and Xie 2023), an
// LSTM written out, and attention without a softmax that forgets by gates (Yang et al. 2024).
#include <cmath>

#include "tests/peers/own_models.h"

namespace oneflow_like::peers {

int Stages(const Model& model) { return model.mesh().axis_size(model.mesh().FindAxis("pp")); }

std::vector<int64_t> OnStage(const Model& model, int64_t layers, bool last) {
  std::vector<int64_t> blocks(Stages(model), 0);
  (last ? blocks.back() : blocks.front()) = layers;
  return blocks;
}

namespace {

constexpr int64_t kWidth = 8, kHeads = 2;

// --- T5: an encoder and a decoder, each with one table of relative positions for all of its blocks ---

std::vector<OwnTraining> T5(Model& model, OwnInputs& in, int64_t layers) {
  const Scope s = model.scope();
  const int64_t read = in["source"].shape()[1], written = in["target"].shape()[1];
  auto bias = [&](const std::string& name, int64_t length, bool bidirectional) {
    const RelativeBuckets buckets = {.buckets = 8, .max_distance = 6, .bidirectional = bidirectional};
    Tensor table = s.Weight(name, {8, kHeads}, Normal(0.5));
    return transpose(gather(table, relative_buckets(model.builder(), length, length, buckets)), {2, 0, 1});
  };
  auto attend = [&](Scope at, Tensor x, Tensor with, bool causal, Tensor memory = {}) {
    nn::AttentionOptions options = {.heads = kHeads, .causal = causal, .bias = false};
    options.masks.scale = 1;
    options.masks.bias = with;
    return nn::Attention(at, x, options, memory);
  };
  const nn::MlpOptions mlp = {.inner = 12, .bias = false, .activation = [](Tensor x) { return relu(x); }};
  Tensor table = s.Stage("pp", 0).Weight("shared", {11, kWidth}, Normal(1));
  Tensor from_left = bias("encoder_bias", read, true), to_left = bias("decoder_bias", written, false);
  Tensor memory = nn::layers(s / "encoder", embedding(table, in["source"]), layers,
                             [&](Scope b, Tensor x, int64_t) {
                               x = x + attend(b / "self", nn::RmsNorm(b / "norm1", x), from_left, false);
                               return x + nn::Mlp(b / "mlp", nn::RmsNorm(b / "norm2", x), mlp);
                             },
                             {.per_stage = OnStage(model, layers, false)});
  memory = nn::RmsNorm(s / "encoder_norm", memory);
  Tensor there = to_stage(table, "pp", Stages(model) - 1);
  Tensor x = nn::layers(s / "decoder", embedding(there, in["target"]), layers,
                        [&](Scope b, Tensor x, int64_t) {
                          x = x + attend(b / "self", nn::RmsNorm(b / "norm1", x), to_left, true);
                          x = x + attend(b / "cross", nn::RmsNorm(b / "norm2", x), {}, false, memory);
                          return x + nn::Mlp(b / "mlp", nn::RmsNorm(b / "norm3", x), mlp);
                        },
                        {.per_stage = OnStage(model, layers, true)});
  Tensor logits =
      einsum("btw,vw->btv", nn::RmsNorm(s / "decoder_norm", x), there) / std::sqrt(double{kWidth});
  return {{mean(cross_entropy(logits, in["labels"])), AdamW{.lr = 1e-2, .weight_decay = 0}}};
}

// --- CLIP: a softmax over the pairs of the whole batch ---

std::vector<OwnTraining> Clip(Model& model, OwnInputs& in, int64_t layers) {
  const Scope s = model.scope();
  auto tower = [&](const std::string& name, Tensor x, bool causal) {
    nn::TransformerOptions block;
    block.attention.heads = kHeads;
    block.attention.causal = causal;
    return nn::layers(s / name, x, layers,
                      [&](Scope b, Tensor h, int64_t) { return nn::TransformerBlock(b, h, block); },
                      {.per_stage = OnStage(model, layers, causal)});
  };
  auto vector = [&](const std::string& name, Tensor x) {
    Tensor y = nn::Linear(s / name, x, 4, {.bias = false});
    return y / norm(y, 2, {1}, true);
  };
  Tensor pictures = mean(tower("image", nn::Linear(s / "patches", in["pictures"], kWidth), false), {1});
  const Scope last = s.Stage("pp", Stages(model) - 1);
  Tensor words = last.Weight("words", {9, kWidth}, Normal(1));
  Tensor captions = select(tower("text", embedding(words, in["captions"]), true), 1, -1);
  Tensor u = to_stage(vector("of_picture", pictures), "pp", Stages(model) - 1),
         v = vector("of_caption", captions);
  Tensor hot = exp(last.Weight("temperature", {}, Full(0.7)));
  Tensor place = arange(model.builder(), 0, kOwnBatch, 1, DType::kInt32);
  auto tell = [&](Tensor one, Tensor all) {
    return mean(cross_entropy(matmul(one, transpose(whole_batch(all), {1, 0})) * hot, place));
  };
  return {{(tell(u, v) + tell(v, u)) / 2, AdamW{.lr = 5e-3, .weight_decay = 0}}};
}

// --- DiT: blocks that time and class scale and move, evaluated by averages of weights ---

std::vector<OwnTraining> Dit(Model& model, OwnInputs& in, int64_t layers) {
  const Scope s = model.scope();
  Tensor angle = unsqueeze((in["time"] + 1) * (M_PI / 4), 1);  // [b 1], to a right angle
  Tensor noisy = in["picture"] * unsqueeze(cos(angle), 2) + in["noise"] * unsqueeze(sin(angle), 2);
  Tensor waves = angle * arange(model.builder(), 1, 5);
  Tensor c = nn::Linear(s / "time", concat({cos(waves), sin(waves)}, 1), kWidth) +
             nn::Embedding(s / "class", in["class"], 5, kWidth);
  c = silu(c);
  Tensor x =
      nn::Linear(s / "in", noisy, kWidth) + s.Weight("positions", {noisy.shape()[1], kWidth}, Normal(0.5));
  x = nn::layers(s, x, layers, [&](Scope b, Tensor h, int64_t) {
    Tensor six = nn::Linear(b / "modulation", c, 6 * kWidth, {.init = Normal(0.3)});
    const std::vector<Tensor> m = split(unsqueeze(six, 1), 2, 6);
    auto normed = [&](int at) { return layer_norm_over(h, {2}) * (1 + m[at]) + m[at + 1]; };
    h = h + m[2] * nn::Attention(b / "attention", normed(0), {.heads = kHeads, .causal = false});
    return h + m[5] * nn::Mlp(b / "mlp", normed(3), {.inner = 12});
  });
  Tensor guess = nn::Linear(s / "out", layer_norm_over(x, {2}), noisy.shape()[2]);
  return {{mean(square(guess - in["noise"])), AdamW{.lr = 5e-3, .weight_decay = 0}}};
}

// --- LSTM: a block is a layer, whose steps are written out ---

std::vector<OwnTraining> Lstm(Model& model, OwnInputs& in, int64_t layers) {
  const Scope s = model.scope();
  constexpr int64_t kHidden = 6;
  Tensor x = nn::layers(s, nn::Linear(s / "in", in["x"], kHidden), layers, [&](Scope b, Tensor h, int64_t) {
    Tensor from_x = b.Weight("from_x", {kHidden, 4 * kHidden}, XavierNormal(), {{"tp", S(1)}});
    Tensor from_h = b.Weight("from_h", {kHidden, 4 * kHidden}, XavierNormal());
    Tensor given = matmul(h, from_x) + b.Weight("bias", {4 * kHidden}, Normal(0.3));
    Tensor state = zeros(h, {kOwnBatch, kHidden}), cell = state;
    std::vector<Tensor> states;
    for (int64_t t = 0; t < h.shape()[1]; ++t) {
      const std::vector<Tensor> gates = split(select(given, 1, t) + matmul(state, from_h), 1, 4);
      cell = sigmoid(gates[1]) * cell + sigmoid(gates[0]) * tanh(gates[2]);
      state = sigmoid(gates[3]) * tanh(cell);
      states.push_back(state);
    }
    return h + stack(states, 1);
  });
  Tensor y = nn::Linear(s / "out", select(x, 1, -1), 3);
  return {{mean(square(y - in["y"])), Sgd{.lr = 0.2, .momentum = 0.9}}};
}

// --- Attention without a softmax: what is kept of a key decays by the gates between it and the query ---

std::vector<OwnTraining> LinearAttention(Model& model, OwnInputs& in, int64_t layers) {
  const Scope s = model.scope();
  Tensor table = s.Weight("table", {9, kWidth}, Normal(1));
  Tensor x = nn::layers(s, embedding(table, in["tokens"]), layers, [&](Scope b, Tensor h, int64_t) {
    Tensor y = layer_norm_over(h, {2});
    auto project = [&](const char* name, int64_t width) {
      return nn::Linear(b / name, y, width, {.bias = false});
    };
    Tensor decay = cumsum(-softplus(-project("gate", 1)), 1);  // [b t 1], logarithms
    Tensor kept = tril(exp(minimum(decay - transpose(decay, {0, 2, 1}), 0.0)));
    Tensor scores = matmul(project("q", kWidth), transpose(project("k", kWidth), {0, 2, 1})) * kept;
    y = rms_norm_over(matmul(scores, project("v", kWidth)), {2});
    return h + nn::Linear(b / "out", y, kWidth);
  });
  Tensor logits = nn::Linear(s / "classes", x, 9);
  return {{mean(cross_entropy(logits, in["labels"])), AdamW{.lr = 1e-2, .weight_decay = 0}}};
}

constexpr int64_t kRow = kOwnBatch * 4;  // bytes of one number of each sample

}  // namespace

std::vector<OwnModel> OwnSequences() {
  return {
      {"t5", {{"source", {6}, 11}, {"target", {5}, 11}, {"labels", {5}, 11}}, T5, kRow * (6 + 5) * kWidth},
      {"clip", {{"pictures", {4, 6}}, {"captions", {5}, 9}}, Clip, kRow * (4 + 5) * kWidth},
      {"dit",
       {{"picture", {4, 6}}, {"noise", {4, 6}}, {"time", {}}, {"class", {}, 5}},
       Dit,
       kRow * 4 * kWidth,
       {.decay = 0.8}},
      {"lstm", {{"x", {7, 4}}, {"y", {3}}}, Lstm, kRow * 7 * 6},
      {"linear_attention", {{"tokens", {8}, 9}, {"labels", {8}, 9}}, LinearAttention, kRow * 8 * kWidth},
  };
}

}  // namespace oneflow_like::peers
