// A step of a layer of experts: 4,096 tokens of width 512, two of 8 experts of inner width 1,024 for each,
// forward alone and training with plain SGD, in fp32 and bf16. The tokens are one pool, with room for 1.1
// times the even share, which drops none of these. tests/peers/experts_torch.py prints the same rows of
// PyTorch. Run: build/tests/experts_benchmark
#include <benchmark/benchmark.h>

#include "core/random.h"
#include "oneflow_like/oneflow_like.h"

namespace oneflow_like {
namespace {

void ExpertsStep(benchmark::State& state, DType dtype, bool training) {
  ModelOptions options;
  options.kernel_threads = 2;
  Model model(Mesh::Parse("cpu:dp=1"), options);
  const Dims shape = {1, 4096, 512};
  Tensor x = model.Input("x", shape, DType::kFloat32);
  nn::ExpertsOptions o;
  o.inner = 1024;
  o.capacity = 1.1;
  const nn::ExpertsResult result = nn::Experts(model.scope(), x, o);
  Tensor loss = mean(square(result.y));
  TrainOptions train;
  train.dtype = dtype;
  train.outputs = {{"lost", result.dropped}};
  EvaluateOptions evaluate;
  evaluate.dtype = dtype;
  Session session = training ? Train(loss, Sgd{.lr = .1}, train)
                             : Evaluate({{"loss", loss}, {"lost", result.dropped}}, evaluate);
  HostTensor fed = HostTensor::Make(DType::kFloat32, shape);
  for (int64_t i = 0; i < fed.elements(); ++i) fed.as<float>()[i] = 2 * ToUniform(RandomBits(1, 0, i)) - 1;
  const Feeds feeds = {{"x", fed}};
  for (int warm = 0; warm < 3; ++warm) session.Run(feeds).Wait();
  float lost = 0;
  for (auto _ : state) lost += session.Run(feeds).Scalar("lost");
  if (lost > 0) state.SkipWithError("tokens were dropped");
}

#define OFL_ROW(name, dtype, training) \
  BENCHMARK_CAPTURE(ExpertsStep, name, dtype, training)->Unit(benchmark::kMillisecond)->UseRealTime()
OFL_ROW(fp32_forward, DType::kFloat32, false);
OFL_ROW(fp32_training, DType::kFloat32, true);
OFL_ROW(bf16_forward, DType::kBFloat16, false);
OFL_ROW(bf16_training, DType::kBFloat16, true);
#undef OFL_ROW

}  // namespace
}  // namespace oneflow_like

BENCHMARK_MAIN();
