// A graph attention network (Velickovic et al. 2018), WGAN-GP (Gulrajani et al. 2017), Sophia (Liu et al.
// 2023), distillation (Hinton et al. 2015), and a router that sorts its rows.
#include <cmath>

#include "tests/peers/own_models.h"

namespace oneflow_like::peers {
namespace {

constexpr int64_t kWidth = 8;

// ids[b n] for each of `width` columns: [b n width].
Tensor ForColumns(Tensor ids, int64_t width) {
  const Dims shape = ids.shape();
  return broadcast_to(unsqueeze(ids, 2), {shape[0], shape[1], width});
}

// --- Graph attention: each sample is a graph, whose edges are pairs of its nodes ---

std::vector<OwnTraining> GraphAttention(Model& model, OwnInputs& in, int64_t layers) {
  constexpr int64_t kHeads = 2, kEach = kWidth / kHeads;
  const Scope s = model.scope();
  Tensor from = in["from"], to = in["to"];
  const int64_t batch = from.shape()[0], nodes = in["x"].shape()[1], edges = from.shape()[1];
  Tensor x = nn::layers(s, nn::Linear(s / "in", in["x"], kWidth), layers, [&](Scope b, Tensor h, int64_t) {
    Tensor y = matmul(h, b.Weight("weight", {kWidth, kWidth}, XavierNormal(), {{"tp", S(1)}}));
    auto score = [&](const char* name, Tensor ends) {
      Tensor of_node =
          reshape(y, {batch, nodes, kHeads, kEach}) * b.Weight(name, {kHeads, kEach}, Normal(0.5));
      return take_along_axis(sum(of_node, {3}), ForColumns(ends, kHeads), 1);
    };
    Tensor weight = exp(leaky_relu(score("of_source", from) + score("of_target", to), 0.2));
    Tensor all = scatter_add(zeros(h, {batch, nodes, kHeads}), 1, ForColumns(to, kHeads), weight);
    weight = weight / take_along_axis(all, ForColumns(to, kHeads), 1);
    Tensor sent = reshape(take_along_axis(y, ForColumns(from, kWidth), 1), {batch, edges, kHeads, kEach});
    sent = reshape(sent * unsqueeze(weight, 3), {batch, edges, kWidth});
    return h + elu(scatter_add(zeros_like(h), 1, ForColumns(to, kWidth), sent));
  });
  Tensor logits = nn::Linear(s / "classes", x, 3);
  return {{mean(cross_entropy(logits, in["labels"])), AdamW{.lr = 1e-2, .weight_decay = 0}}};
}

// --- WGAN-GP: two trainings, one of which has a gradient in its loss ---

std::vector<OwnTraining> Wgan(Model& model, OwnInputs& in, int64_t layers) {
  auto network = [&](const char* name, Tensor x, int64_t out) {
    const Scope s = model.scope() / name;
    x = nn::layers(s, nn::Linear(s / "in", to_stage(x, "pp", 0), kWidth), layers,
                   [](Scope b, Tensor h, int64_t) { return h + tanh(nn::Linear(b / "linear", h, kWidth)); });
    return nn::Linear(s / "out", x, out);
  };
  auto critic = [&](Tensor x) { return network("critic", x, 1); };
  Tensor real = in["real"], made = network("generator", in["z"], real.shape()[1]),
         share = (in["mix"] + 1) / 2;
  Tensor there = to_stage_of(real, made), between = share * there + (1 - share) * made;
  Tensor slope = gradients(sum(critic(between)), {between})[0];
  Tensor of_made = mean(critic(made));
  Tensor of_critic =
      of_made - mean(critic(real)) + 10 * to_stage_of(mean(square(norm(slope, 2, {1}) - 1)), of_made);
  const Optimizer adam = AdamW{.lr = 5e-3, .beta1 = 0.5, .weight_decay = 0};
  return {{of_critic, adam, "critic", {"critic/*"}}, {-of_made, adam, "generator", {"generator/*"}}};
}

// --- An optimizer of one's own: Sophia, with the Hessian's diagonal by labels that the model would give ---

std::vector<OwnTraining> Sophia(Model& model, OwnInputs& in, int64_t layers) {
  const Scope s = model.scope();
  Tensor x = nn::layers(s, nn::Linear(s / "in", in["x"], kWidth), layers,
                        [](Scope b, Tensor h, int64_t) { return h + nn::Mlp(b / "mlp", h, {.inner = 12}); });
  Tensor logits = nn::Linear(s / "classes", x, 4);
  Tensor drawn = argmax(stop_gradient(logits) + 2 * in["noise"], 1);
  std::vector<Tensor> weights;
  for (const std::string& name : model.Variables()) weights.push_back(model.Find(name));
  std::vector<Tensor> g = gradients(mean(cross_entropy(logits, drawn)), weights);
  std::map<std::string, Tensor> curvature;
  for (size_t i = 0; i < weights.size(); ++i) curvature[weights[i].name()] = kOwnBatch * square(g[i]);
  Optimizer sophia("sophia", [=](WeightUpdate& u) {
    Tensor m = u.State("m"), h = u.State("h");
    Tensor mean = 0.9 * m + 0.1 * u.gradient(), diagonal = 0.9 * h + 0.1 * u.Read(curvature.at(u.path()));
    u.Assign(m, mean), u.Assign(h, diagonal);
    u.Assign(u.weight(), u.weight() - u.Rate(0.05) * clamp(mean / maximum(0.5 * diagonal, 1e-4), -1, 1));
  });
  for (const auto& [name, tensor] : curvature) sophia.reads.push_back(tensor);
  return {{mean(cross_entropy(logits, in["labels"])), sophia}};
}

// --- Distillation from a frozen teacher: its distribution, its features, and labels ---

std::vector<OwnTraining> Distil(Model& model, OwnInputs& in, int64_t layers) {
  nn::TransformerOptions block;
  block.attention.heads = 2;
  block.attention.causal = false;
  auto network = [&](const char* name, int64_t width, int64_t blocks) {
    const Scope s = model.scope() / name;
    Tensor x = nn::Linear(s / "in", in["x"], width);
    x = nn::layers(s, x, blocks,
                   [&](Scope b, Tensor h, int64_t) { return nn::TransformerBlock(b, h, block); });
    x = mean(x, {1});
    return std::pair(x, nn::Linear(s / "classes", x, 5));
  };
  const auto [known, taught] = network("teacher", 12, 2);
  const auto [found, said] = network("student", kWidth, layers);
  Tensor soft = kl_div_loss(log_softmax(said / 2), log_softmax(taught / 2), true);
  Tensor hint = square(nn::Linear(model.scope() / "hint", found, 12) - known);
  Tensor loss = 4 * mean(sum(soft, {1})) + mean(cross_entropy(said, in["labels"])) + 0.1 * mean(hint);
  return {{loss, AdamW{.lr = 1e-2, .weight_decay = 0}}};
}

// --- A router of one's own: rows of a part are sorted by expert, and each expert computes its own ---

std::vector<OwnTraining> Router(Model& model, OwnInputs& in, int64_t layers) {
  constexpr int64_t kExperts = 3, kInner = 6, kParts = 6;
  const Scope s = model.scope();
  std::vector<Tensor> uneven;
  Tensor x = nn::layers(s, nn::Linear(s / "in", in["x"], kWidth), layers, [&](Scope b, Tensor h, int64_t) {
    Tensor rows = per_micro_batch(h, kParts);
    Tensor gates = softmax(nn::Linear(b / "gate", rows, kExperts, {.bias = false}));
    const Extremes best = max_with_indices(gates);
    Tensor chosen = one_hot(best.indices, kExperts), order = argsort(best.indices, 1);
    Tensor counts = cast(sum(chosen, {1}), DType::kInt32);
    Tensor up = b.Weight("up", {kExperts, kWidth, kInner}, Normal(0.4), {{"tp", S(2)}});
    Tensor down = b.Weight("down", {kExperts, kInner, kWidth}, Normal(0.4), {{"tp", S(1)}});
    Tensor y = take_along_axis(rows, ForColumns(order, kWidth), 1);
    y = grouped_matmul(gelu(grouped_matmul(y, up, counts)), down, counts);
    y = take_along_axis(y, ForColumns(argsort(order, 1), kWidth), 1) * unsqueeze(best.values, 2);
    uneven.push_back(mean(sum(mean(chosen, {1}) * mean(gates, {1}), {1})));
    return h + reshape(y, {-1, kWidth});
  });
  Tensor loss = mean(square(nn::Linear(s / "out", x, 4) - in["y"]));
  for (Tensor one : uneven) loss = loss + 0.1 * kExperts * to_stage_of(one, loss);
  return {{loss, AdamW{.lr = 1e-2, .weight_decay = 0}}};
}

constexpr int64_t kRow = kOwnBatch * 4;  // bytes of one number of each sample

}  // namespace

std::vector<OwnModel> OwnNetworks() {
  return {
      {"graph_attention",
       {{"x", {6, 5}}, {"from", {10}, 6}, {"to", {10}, 6}, {"labels", {6}, 3}},
       GraphAttention,
       kRow * 6 * kWidth},
      {"wgan", {{"z", {3}}, {"real", {5}}, {"mix", {1}}}, Wgan},
      {"sophia", {{"x", {5}}, {"noise", {4}}, {"labels", {}, 4}}, Sophia},
      {"distillation",
       {{"x", {4, 6}}, {"labels", {}, 5}},
       Distil,
       kRow * 4 * kWidth,
       {},
       {{"teacher/*", {.trainable = false}}}},
      {"router", {{"x", {5}}, {"y", {4}}}, Router, kRow * kWidth},
  };
}

}  // namespace oneflow_like::peers
