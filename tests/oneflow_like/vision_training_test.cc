// A small convolutional network trains to the same losses and running statistics on every mesh and for every
// number of micro-batches: the statistics of its batch norms are of the whole batch.
#include "ops/language/vision.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

struct Trained {
  std::vector<float> losses;
  HostTensor mean;
};

// conv, batch norm, relu, max pool, strided conv in groups, group norm, mean pool, classes. `cut` cuts the
// filters of the first convolution, and with them the channels of its batch norm.
Trained TrainNetwork(const std::string& mesh, const Annotation& batch, const Annotation& cut,
                     int micro_batches, DType dtype = DType::kFloat32) {
  Model model(FullMesh(mesh));
  Scope s = model.scope();
  Tensor x = model.Input("x", {8, 9, 8, 3}, DType::kFloat32, batch);
  Tensor labels = model.Input("labels", {8}, DType::kInt32, batch);
  Tensor h = conv2d(x, s.Weight("filter1", {8, 3, 3, 3}, Normal(0.3), cut), {.padding = {1}});
  BatchNorm norm = batch_norm(h, s.Weight("gamma", {8}, Ones()), s.Weight("beta", {8}, Zeros()));
  h = max_pool2d(relu(norm.y), {.kernel = {3}, .stride = {2}, .padding = {1}});
  h = conv2d(h, s.Weight("filter2", {8, 3, 3, 4}, Normal(0.3)), {.stride = {2}, .padding = {1}, .groups = 2});
  h = group_norm(h, 4, s.Weight("gamma2", {8}, Ones()), s.Weight("beta2", {8}, Zeros()));
  h = reshape(adaptive_avg_pool2d(relu(h), 1, 1), {8, 8});
  Tensor loss = mean(cross_entropy(matmul(h, s.Weight("classes", {8, 4}, XavierNormal())), labels));
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.dtype = dtype;
  options.outputs = {{"mean", norm.mean}};
  Session session = Train(loss, AdamW{.lr = 1e-2}, options);
  Trained result;
  for (int step = 0; step < 4; ++step) {
    StepResult r = session.Run(
        {{"x", Floats(5 + step, {8, 9, 8, 3})}, {"labels", ToHost<int32_t>({0, 1, 2, 3, 3, 1, 0, 2}, {8})}});
    result.losses.push_back(r.Scalar("loss"));
    result.mean = r.Get("mean");
  }
  return result;
}

TEST(VisionTraining, TheSameOnEveryMesh) {
  const Annotation none, over_dp = {{"dp", S(0)}}, over_tp = {{"tp", S(0)}};
  const Trained alone = TrainNetwork("cpu:dp=1", none, none, 1);
  EXPECT_LT(alone.losses.back(), alone.losses.front() + 1);
  auto check = [&](const char* mesh, const Annotation& batch, const Annotation& cut, int micro_batches) {
    const std::string what = Cat(mesh, ", ", micro_batches, " micro-batches");
    const Trained got = TrainNetwork(mesh, batch, cut, micro_batches);
    for (size_t i = 0; i < alone.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], alone.losses[i], 2e-4 * alone.losses[i]) << what << ", step " << i;
    EXPECT_LE(Difference(got.mean, alone.mean), 1e-3) << what;
  };
  check("cpu:dp=1", none, none, 2);
  check("cpu:dp=2", over_dp, none, 1);
  check("cpu:dp=2", over_dp, none, 2);
  check("cpu:tp=2", none, over_tp, 1);
  check("cpu:dp=2,tp=2", over_dp, over_tp, 2);
}

TEST(VisionTraining, InSixteenBits) {
  const Annotation none;
  const Trained wide = TrainNetwork("cpu:dp=1", none, none, 1),
                narrow = TrainNetwork("cpu:dp=1", none, none, 1, DType::kBFloat16);
  for (size_t i = 0; i < wide.losses.size(); ++i)
    EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.05 * wide.losses[i]) << "step " << i;
}

}  // namespace
}  // namespace oneflow_like
