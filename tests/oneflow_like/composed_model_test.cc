// Functions that are made of others, and operators by index, in models: the same outputs and losses on every
// mesh and for every number of micro-batches, draws included.
// ctest: seconds=6
#include <cmath>
#include <set>

#include "ops/language/composed.h"
#include "ops/language/linear_algebra.h"
#include "ops/language/losses.h"
#include "ops/language/volumes.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 12, kWidth = 8;

// Two layers, and whatever the function makes of what is between them, [batch width] of x and of a weight.
using Between = Tensor (*)(Tensor x, Tensor w);

std::vector<float> Losses(const std::string& mesh, int micro_batches, Between between,
                          DType dtype = DType::kFloat32) {
  Model model(FullMesh(mesh));
  Scope s = model.scope();
  Tensor x = model.Input("x", {kBatch, kWidth}, DType::kFloat32, {{"dp", S(0)}});
  Tensor hidden = tanh(matmul(x, s.Weight("in", {kWidth, kWidth}, Normal(0.5), {{"tp", S(1)}})));
  Tensor y = between(hidden, s.Weight("w", {kWidth, kWidth}, Normal(0.5), {{"tp", S(0)}}));
  Dims rows = {kBatch, y.shape().elements() / kBatch};
  Tensor out = matmul(reshape(y, rows), s.Weight("out", {rows[1], 3}, Normal(0.3)));
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.dtype = dtype;
  Session train = Train(mean(square(out - 0.5)), Sgd{.lr = 0.05}, options);
  if (dtype == DType::kFloat16) {  // no step is skipped
    HostTensor scale = model.Read("train:loss_scale");
    scale.as<float>()[0] = 1024;
    model.Write("train:loss_scale", scale);
  }
  std::vector<float> losses;
  for (uint64_t step = 0; step < 3; ++step)
    losses.push_back(train.Run({{"x", Floats(step, {kBatch, kWidth})}}).Scalar("loss"));
  return losses;
}

const std::vector<std::pair<const char*, Between>> kFunctions = {
    {"softmax", [](Tensor x, Tensor w) { return softmax(matmul(x, w), 1) + softmax(x, -1); }},
    {"layer_norm", [](Tensor x, Tensor w) { return layer_norm_over(matmul(x, w), {-1}); }},
    {"norms over two axes",
     [](Tensor x, Tensor w) {
       Tensor y = reshape(matmul(x, w), {kBatch, 2, 4});
       return layer_norm_over(y, {1, 2}) + rms_norm_over(y, {1});
     }},
    {"weight_norm", [](Tensor x, Tensor w) { return matmul(x, weight_norm(w, sum(abs(w), {0}), 1)); }},
    {"bernoulli", [](Tensor x, Tensor w) { return where(bernoulli(sigmoid(x)), matmul(x, w), 0); }},
    {"gumbel",
     [](Tensor x, Tensor w) {
       return matmul(x, w) + gumbel(x.graph(), {kBatch, kWidth});
     }},
    {"categorical",
     [](Tensor x, Tensor w) { return matmul(x, w) * unsqueeze(cast(categorical(x), DType::kFloat32), 1); }},
    {"randint",
     [](Tensor x, Tensor w) {
       return matmul(x, w) * cast(randint(x.graph(), {kBatch, 1}, -3, 4), DType::kFloat32);
     }},
    {"randperm", [](Tensor x, Tensor w) { return take(matmul(x, w), 1, randperm(x.graph(), kWidth)); }},
    {"drop_path", [](Tensor x, Tensor w) { return x + drop_path(matmul(x, w), 0.4); }},
    {"take",
     [](Tensor x, Tensor w) {
       return take(matmul(x, w), 1, {5, 5, 0, -1});
     }},
    {"max_with_indices",
     [](Tensor x, Tensor w) {
       Extremes most = max_with_indices(matmul(x, w)), least = min_with_indices(x);
       return (most.values + least.values) * cast(most.indices - least.indices, DType::kFloat32);
     }},
    {"dynamic_slice",
     [](Tensor x, Tensor w) { return dynamic_slice(matmul(x, w), 1, randint(x.graph(), {}, 0, 5), 4); }},
    {"slice_scatter",
     [](Tensor x, Tensor w) { return slice_scatter(matmul(x, w), 1, 3, slice(x, 1, 0, 4)); }},
    {"scatter",
     [](Tensor x, Tensor w) {
       return scatter(matmul(x, w), 1, slice(argsort(x), 1, 0, 3), slice(x, 1, 0, 3));
     }},
    {"bincount of the batch",
     [](Tensor x, Tensor w) {
       Tensor counts = cast(bincount(argmax(x), kWidth), DType::kFloat32);
       return matmul(x, w) * stop_gradient(counts);
     }},
    {"nonzero and unique of rows",
     [](Tensor x, Tensor w) {
       Found found = nonzero(greater(sum(w, {1}), 0), 5);
       Distinct distinct = unique(round(w * 2), 6);
       return matmul(x, w) *
              (cast(found.count, DType::kFloat32) + sum(distinct.values) +
               sum(cast(distinct.counts, DType::kFloat32))) *
              0.02;
     }},
    {"searchsorted",
     [](Tensor x, Tensor w) {
       return matmul(x, w) * cast(searchsorted(sort(sum(w, {0})).values, x), DType::kFloat32);
     }},
    {"quantile", [](Tensor x, Tensor w) { return matmul(x, w) - quantile(x, 0.4, 1, true); }},
    {"running results",
     [](Tensor x, Tensor w) {
       Tensor y = matmul(x, w);
       return cumprod(y, 1) + cummax(y, 1) + cummin(x, -1) + logcumsumexp(y, 1);
     }},
    {"pad",
     [](Tensor x, Tensor w) {
       Tensor y = pad(matmul(x, w), {{0, 0}, {2, 3}}, {.mode = PadMode::kReflect});
       y = pad(y, {{0, 0}, {1, 0}}, {.mode = PadMode::kCircular});
       y = pad(y, {{0, 0}, {0, 2}}, {.mode = PadMode::kReplicate});
       return pad(y, {{0, 0}, {0, 1}}, {.value = 2});
     }},
    {"unfold", [](Tensor x, Tensor w) { return unfold(matmul(x, w), 1, 3, 2); }},
    {"pixel_shuffle",
     [](Tensor x, Tensor w) {
       return pixel_unshuffle(relu(pixel_shuffle(reshape(matmul(x, w), {kBatch, 1, 1, 8}), 2)), 2);
     }},
    {"maxima by index",
     [](Tensor x, Tensor w) {
       Tensor y = matmul(x, w), ids = argmax(reshape(x, {kBatch, kWidth / 2, 2}));
       Tensor most = scatter_max(slice(y, 1, 0, 4), 1, ids, slice(y, 1, 4, 8));
       return most + scatter_min(slice(x, 1, 0, 4), 1, ids, slice(y, 1, 2, 6));
     }},
    {"maxima of the batch by index",
     [](Tensor x, Tensor w) {
       Tensor y = matmul(x, w), ids = argmax(slice(x, 1, 0, 5));
       Tensor most = index_max(full(y, {5, kWidth}, -3), 0, ids, y);
       return y + take(index_min(most, 0, ids, x), 0, ids);
     }},
    {"batched_take",
     [](Tensor x, Tensor w) {
       Tensor ids = argsort(slice(x, 1, 0, 4));
       return batched_take(reshape(matmul(x, w), {kBatch, 4, 2}), ids, 1);
     }},
    {"segment_softmax",
     [](Tensor x, Tensor w) { return segment_softmax(matmul(x, w), argmax(slice(x, 1, 0, 4)), 4); }},
    {"segment_softmax of columns",
     [](Tensor x, Tensor w) {
       Tensor ids = cast(arange(x.graph(), 0, kWidth / 2., 0.5), DType::kInt32);
       return segment_softmax(matmul(x, w), ids, 4, 1);
     }},
    {"losses",
     [](Tensor x, Tensor w) {
       Tensor y = matmul(x, w), target = argmax(x);
       Tensor rows = focal_loss(y, target, {.gamma = 1.5}) + triplet_margin_loss(x, y, flip(y, {1}));
       return unsqueeze(rows, 1) + sigmoid_focal_loss(y, sigmoid(x));
     }},
    {"linear_cross_entropy",
     [](Tensor x, Tensor w) {
       CrossEntropyOptions options{.label_smoothing = 0.1, .z_loss = 0.01, .ignore_index = 2};
       options.class_weights = sum(square(w), {1}) + 0.5;
       return x * unsqueeze(linear_cross_entropy(x, w, argmax(x), options, 8), 1);
     }},
    {"ctc_loss",
     [](Tensor x, Tensor w) {
       Tensor log_probs = log_softmax(reshape(concat({x, matmul(x, w), -x}, 1), {kBatch, 6, 4}));
       Tensor targets = argmax(reshape(slice(x, 1, 0, 6), {kBatch, 2, 3})) + 1;
       return unsqueeze(
           ctc_loss(log_probs, targets, 4 + argmax(slice(x, 1, 0, 3)), argmax(slice(x, 1, 3, 6))), 1);
     }},
    {"volumes",
     [](Tensor x, Tensor w) {
       Tensor y = reshape(concat({x, matmul(x, w)}, 1), {kBatch, 2, 2, 2, 2});
       Tensor filter = reshape(slice(w, 0, 0, 4), {2, 2, 2, 2, 2});
       y = conv3d(y, filter, {.padding = {1}}) + conv3d_transpose(y, filter);
       return max_pool3d(y, {.kernel = {2}, .stride = {1}}) + avg_pool3d(y, {.kernel = {2}, .stride = {1}});
     }},
    {"windows",
     [](Tensor x, Tensor w) {
       Tensor y = reshape(concat({x, matmul(x, w)}, 1), {kBatch, 2, 4, 2});
       const WindowOptions windows = {.kernel = {2, 3}, .padding = {1}};
       return fold(tanh(unfold(y, windows)), 2, 4, windows);
     }},
    {"grid_sample",
     [](Tensor x, Tensor w) {
       Tensor grid = tanh(reshape(x, {kBatch, 2, 2, 2})) * 1.2;
       return grid_sample(reshape(matmul(x, w), {kBatch, 2, 2, 2}), grid);
     }},
    {"Fourier transforms",
     [](Tensor x, Tensor w) {
       Tensor y = matmul(x, w), spectrum = rfft(y);
       Tensor whole = fft(reshape(y, {kBatch, 2, 2, 2}), 1);
       return irfft(spectrum * 0.7) + reshape(ifft(tanh(whole), 0), {kBatch, kWidth});
     }},
    {"matrices of the batch",
     [](Tensor x, Tensor w) {
       Tensor y = reshape(concat({x, matmul(x, w)}, 1), {kBatch, 4, 4}), l = cholesky(y, 9);
       Tensor z = solve(y, triangular_solve(l, y), 9);
       Qr factors = qr(slice(y, 2, 0, 2));
       return reshape(z, {kBatch, 16}) +
              concat({reshape(factors.q, {kBatch, 8}), reshape(matmul(factors.q, factors.r), {kBatch, 8})},
                     1);
     }},
    {"a matrix for all",
     [](Tensor x, Tensor w) {
       Tensor columns = solve(w, transpose(x, {1, 0}), 9);
       return transpose(triangular_solve(cholesky(w, 9), columns), {1, 0});
     }},
    {"attention with lengths",
     [](Tensor x, Tensor w) {
       Tensor y = reshape(matmul(x, w), {kBatch, 4, 2, 1});
       Tensor lengths = 1 + argmax(slice(x, 1, 0, 4));
       return attention(y, y, y,
                        {.causal = false, .bias = alibi(x.graph(), 2, 4, 4), .key_lengths = lengths});
     }},
};

TEST(ComposedModel, IsTheSameOnEveryMesh) {
  for (const auto& [name, between] : kFunctions) {
    SCOPED_TRACE(name);
    const std::vector<float> wanted = Losses("cpu:dp=1", 1, between);
    for (float loss : wanted) ASSERT_TRUE(std::isfinite(loss)) << name;
    for (auto [mesh, micro_batches] : {std::pair{"cpu:dp=2", 1},
                                       {"cpu:dp=3", 2},
                                       {"cpu:tp=2", 3},
                                       {"cpu:dp=2,tp=2", 1},
                                       {"cpu:dp=1", 4}}) {
      const std::vector<float> got = Losses(mesh, micro_batches, between);
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(got[i], wanted[i], 1e-5 * (1 + std::abs(wanted[i])))
            << name << " on " << mesh << " in " << micro_batches << " micro-batches, step " << i;
    }
  }
}

// Those that choose nothing, which rounding might change. Transforms and factorisations are in fp32 then.
TEST(ComposedModel, StaysNearInSixteenBits) {
  const std::set<std::string> smooth = {
      "softmax", "layer_norm",  "norms over two axes", "weight_norm",           "volumes",
      "windows", "grid_sample", "Fourier transforms",  "matrices of the batch", "a matrix for all"};
  size_t found = 0;
  for (const auto& [name, between] : kFunctions) {
    if (smooth.count(name) == 0) continue;
    ++found;
    const std::vector<float> wanted = Losses("cpu:dp=1", 1, between);
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const std::vector<float> got = Losses("cpu:dp=2", 2, between, dtype);
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(got[i], wanted[i], (dtype == DType::kFloat16 ? 4e-3 : 3e-2) * (0.1 + std::abs(wanted[i])))
            << name << " in " << Name(dtype) << ", step " << i;
    }
  }
  EXPECT_EQ(found, smooth.size());
}

// The mean in one pass, with classes whole and cut, beside the two operators; with a weight that only it
// reads.
TEST(ComposedModel, HeadInOnePass) {
  const auto losses = [](const std::string& mesh, int micro_batches, DType dtype, bool in_tiles) {
    Model model(FullMesh(mesh));
    Scope s = model.scope();
    Tensor x = model.Input("x", {kBatch, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    Tensor hidden = tanh(matmul(x, s.Weight("in", {kWidth, kWidth}, Normal(0.5), {{"tp", S(1)}})));
    Tensor w = s.Weight("out", {5, kWidth}, Normal(0.5), {{"tp", S(0)}});
    Tensor target = argmax(slice(x, 1, 0, 5)) - 1;  // some are -1
    CrossEntropyOptions options{.ignore_index = 3};
    options.class_weights = s.Weight("class_weights", {5}, Uniform(0.5, 2));
    Tensor loss = in_tiles ? mean_linear_cross_entropy(hidden, w, target, options, 8)
                           : mean(cross_entropy(matmul(hidden, transpose(w, {1, 0})), target, options));
    TrainOptions train;
    train.micro_batches = micro_batches;
    train.dtype = dtype;
    Session session = Train(loss, Sgd{.lr = 0.5}, train);
    std::vector<float> all;
    for (uint64_t step = 0; step < 5; ++step)
      all.push_back(session.Run({{"x", Floats(step, {kBatch, kWidth})}}).Scalar("loss"));
    return all;
  };
  const std::vector<float> wanted = losses("cpu:dp=1", 1, DType::kFloat32, false);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (auto [mesh, micro_batches] : {std::pair{"cpu:dp=1", 1},
                                       {"cpu:dp=1", 3},
                                       {"cpu:dp=3", 2},
                                       {"cpu:tp=2", 1},
                                       {"cpu:tp=3", 2},
                                       {"cpu:dp=2,tp=2", 1},
                                       {"cpu:dp=2,tp=2", 3}}) {
      const std::vector<float> got = losses(mesh, micro_batches, dtype, true);
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(got[i], wanted[i], (dtype == DType::kFloat32 ? 1e-5 : 3e-2) * (0.1 + std::abs(wanted[i])))
            << mesh << " in " << micro_batches << " micro-batches, " << Name(dtype) << ", step " << i;
    }
}

}  // namespace
}  // namespace oneflow_like
