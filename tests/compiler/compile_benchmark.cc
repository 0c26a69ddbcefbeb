// Compile time of a 96-layer GPT for one rank of 8, 256 and 4096: everything from building the graph to that
// rank's plan with its memory placed. And the plans of 8 ranks of a 48-layer GPT, made by so many threads;
// and an LSTM of so many steps: as one loop, and written out, whose time and memory should grow with them
// alone. Run: build/tests/compile_benchmark
#include <benchmark/benchmark.h>

#include <numeric>

#include "core/plan/plan_values.h"
#include "examples/gpt_model.h"
#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

using namespace examples;
namespace {

Session TrainGpt(Model* model, int dp, int layers) {
  GptConfig config;
  config.layers = layers;
  config.width = 12288;
  config.heads = 96;
  config.context = 2048;
  config.vocabulary = 50304;
  Dims batch{8 * dp, 2048};
  Tensor tokens = model->Input("tokens", batch, DType::kInt32, {{"dp", S(0)}});
  Tensor targets = model->Input("targets", batch, DType::kInt32, {{"dp", S(0)}});
  TrainOptions options;
  options.micro_batches = 8;
  options.clip_norm = 1;
  return Train(GptLoss(model->scope(), tokens, targets, config), AdamW{}, options);
}

void CompileGpt(benchmark::State& state, int dp, int tp, int pp) {
  for (auto _ : state) {
    Model model(Mesh("cpu", {{"dp", dp}, {"tp", tp}, {"pp", pp}}));
    Session session = TrainGpt(&model, dp, 96);
    RankPlan plan = PlanOf(session.impl()->compiled, 0);
    state.counters["actors"] = plan.plan.actor_size();
    state.counters["plan_MB"] = plan.plan.ByteSizeLong() / 1e6;
    state.counters["peak_GB"] = ArenaBytes(plan.plan) / 1e9;
    state.counters["bound_GB"] = plan.lower_bound / 1e9;
    for (const auto& [pass, seconds] : session.impl()->compiled.pass_seconds) state.counters[pass] = seconds;
  }
}

BENCHMARK_CAPTURE(CompileGpt, ranks_8, 1, 8, 1)->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK_CAPTURE(CompileGpt, ranks_256, 4, 8, 8)->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK_CAPTURE(CompileGpt, ranks_4096, 64, 8, 8)->Unit(benchmark::kSecond)->Iterations(1);

void PlansOfEight(benchmark::State& state) {
  Model model(Mesh("cpu", {{"dp", 2}, {"tp", 4}, {"pp", 1}}));
  Session session = TrainGpt(&model, 2, 48);
  std::vector<int> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (auto _ : state)
    benchmark::DoNotOptimize(PlansOf(session.impl()->compiled, ranks, static_cast<int>(state.range(0))));
}

BENCHMARK(PlansOfEight)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Arg(8)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void CompileLstm(benchmark::State& state) {
  for (auto _ : state) {
    Model model(Mesh::Parse("cpu:dp=1"));
    Tensor x = model.Input("x", {32, state.range(0), 128}, DType::kFloat32);
    Session session = Train(mean(square(nn::LSTM(model.scope(), x, 128).y)), Sgd{.lr = .1});
    RankPlan plan = PlanOf(session.impl()->compiled, 0);
    state.counters["peak_MB"] = static_cast<double>(ArenaBytes(plan.plan)) / 1e6;
  }
}

BENCHMARK(CompileLstm)->ArgName("steps")->Arg(64)->Arg(256)->Unit(benchmark::kSecond)->Iterations(1);

void CompileLstmWrittenOut(benchmark::State& state) {
  constexpr int64_t kWidth = 128, kBatch = 32;
  for (auto _ : state) {
    Model model(Mesh::Parse("cpu:dp=1"));
    Scope s = model.scope();
    Tensor x = model.Input("x", {kBatch, state.range(0), kWidth}, DType::kFloat32);
    Tensor all = matmul(x, s.Weight("in", {kWidth, 4 * kWidth}, Normal(.1)));
    Tensor own = s.Weight("own", {kWidth, 4 * kWidth}, Normal(.1)), h, c;
    std::vector<Tensor> outputs;
    for (int64_t t = 0; t < state.range(0); ++t) {
      Tensor gates = select(all, 1, t);
      if (h.defined()) gates = gates + matmul(h, own);
      const std::vector<Tensor> g = split(gates, 1, 4);
      Tensor in = sigmoid(g[0]) * tanh(g[1]);
      c = c.defined() ? sigmoid(g[2]) * c + in : in;
      h = sigmoid(g[3]) * tanh(c);
      outputs.push_back(h);
    }
    Session session = Train(mean(square(stack(outputs, 1))), Sgd{.lr = .1});
    RankPlan plan = PlanOf(session.impl()->compiled, 0);
    state.counters["peak_MB"] = static_cast<double>(ArenaBytes(plan.plan)) / 1e6;
    for (const auto& [pass, seconds] : session.impl()->compiled.pass_seconds) state.counters[pass] = seconds;
  }
}

BENCHMARK(CompileLstmWrittenOut)
    ->ArgName("steps")
    ->Arg(64)
    ->Arg(256)
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

}  // namespace
}  // namespace oneflow_like

BENCHMARK_MAIN();
