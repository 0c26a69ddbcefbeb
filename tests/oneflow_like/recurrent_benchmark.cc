// A step of an LSTM and of a GRU: the forward pass, and training with plain SGD.
// tests/peers/recurrent_torch.py prints the same rows of PyTorch. Batch 32, width 128, so many steps, so many
// threads. Run: build/tests/recurrent_benchmark
#include <benchmark/benchmark.h>

#include <cmath>

#include "oneflow_like/oneflow_like.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 32, kWidth = 128;

HostTensor Waves(const Dims& shape) {
  HostTensor t = HostTensor::Make(DType::kFloat32, shape);
  for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = std::sin(0.37f * static_cast<float>(i));
  return t;
}

void Recurrent(benchmark::State& state, bool of_lstm, bool training) {
  ModelOptions options;
  options.kernel_threads = static_cast<int>(state.range(1));
  Model model(Mesh::Parse("cpu:dp=1"), options);
  const Dims shape = {kBatch, state.range(0), kWidth};
  Tensor x = model.Input("x", shape, DType::kFloat32);
  Tensor y = of_lstm ? nn::LSTM(model.scope(), x, kWidth).y : nn::GRU(model.scope(), x, kWidth).y;
  Tensor loss = mean(square(y));
  Session session = training ? Train(loss, Sgd{.lr = .1}) : Evaluate({{"loss", loss}});
  const Feeds feeds = {{"x", Waves(shape)}};
  for (int warm = 0; warm < 3; ++warm) session.Run(feeds).Wait();
  for (auto _ : state) session.Run(feeds).Wait();
}

#define OFL_ROW(name, of_lstm, training)                \
  BENCHMARK_CAPTURE(Recurrent, name, of_lstm, training) \
      ->ArgNames({"steps", "threads"})                  \
      ->Args({32, 1})                                   \
      ->Args({32, 2})                                   \
      ->Unit(benchmark::kMillisecond)                   \
      ->UseRealTime()
OFL_ROW(lstm_forward, true, false);
OFL_ROW(lstm_training, true, true);
OFL_ROW(gru_forward, false, false);
OFL_ROW(gru_training, false, true);
#undef OFL_ROW

}  // namespace
}  // namespace oneflow_like

BENCHMARK_MAIN();
