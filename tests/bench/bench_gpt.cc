// Whole training steps of two GPTs, and how far they are from what the machine's ceilings allow.
#include "core/random.h"
#include "tests/bench/bench.h"

namespace oneflow_like::bench {
namespace {

// The least a step must compute and move. Flops: three products for each weight matrix (forward, and the
// gradients of both operands), and causal attention's six products of which half the positions count. Bytes:
// every weight read in forward and backward, its gradient written and read, weight and both moments read and
// written by the optimizer; every activation that backward needs written once and read once, in the type the
// step computes in.
struct Floor {
  double flops = 0, bytes = 0;
  double Seconds(const Ceiling& ceiling, DType dtype) const {
    return flops / (dtype == DType::kFloat32 ? ceiling.sgemm : ceiling.bf16) + bytes / ceiling.triad;
  }
};

Floor FloorOf(const MeasuredModel& m, DType dtype) {
  const GptConfig& c = m.config;
  double layers = static_cast<double>(c.layers), width = static_cast<double>(c.width);
  double tokens = static_cast<double>(m.tokens()), context = static_cast<double>(c.context);
  double vocabulary = static_cast<double>(c.vocabulary);
  double matrices = layers * 12 * width * width + vocabulary * width;
  double weights = matrices + context * width;
  Floor floor;
  floor.flops = 6 * tokens * matrices + 6 * tokens * context * width * layers;
  // Of one block: input and output of two norms, q, k, v, what attention gives, the hidden layer before and
  // after gelu.
  double activations = layers * tokens * width * (4 + 3 + 1 + 8) + tokens * (2 * width + vocabulary);
  floor.bytes = 4 * 10 * weights + static_cast<double>(SizeOf(dtype)) * 2 * activations;
  return floor;
}

Session Compiled(Model& model, const MeasuredModel& m, DType dtype) {
  const Dims shape{m.batch, m.config.context};
  Tensor tokens = model.Input("tokens", shape, DType::kInt32, {{"dp", S(0)}});
  Tensor targets = model.Input("targets", shape, DType::kInt32, {{"dp", S(0)}});
  TrainOptions options;
  options.dtype = dtype;
  return Train(GptLoss(model.scope(), tokens, targets, m.config), AdamW{.lr = 3e-4}, options);
}

ModelOptions OptionsOf(int threads, int kernel_threads) {
  ModelOptions options;
  options.threads = threads;
  options.kernel_threads = kernel_threads;
  return options;
}

void RunGptStep(benchmark::State& state, const MeasuredModel& m, int dp, int kernel_threads, DType dtype) {
  Training training(m, dp, dp, kernel_threads, dtype);
  for (int i = 0; i < 2; ++i) training.Step();
  (void)training.session().TakeProfile();
  std::vector<double> seconds;
  for (auto _ : state) {
    double start = Now();
    training.Step();
    seconds.push_back(Now() - start);
  }
  const Ceiling& ceiling = CeilingOf(dp * kernel_threads);
  Floor floor = FloorOf(m, dtype);
  StepProfile profile = training.session().TakeProfile();
  auto share = [&](const std::string& kind, double spent) {
    state.counters["share_" + kind] = spent / (profile.wall * profile.threads);
  };
  for (const auto& [kind, spent] : profile.kernels) share(kind, spent);
  share("waiting", profile.waiting);
  share("runtime", profile.runtime);
  double median = Median(seconds);
  state.counters["tokens/s"] = static_cast<double>(m.tokens()) / median;
  state.counters["step_ms"] = median * 1e3;
  state.counters["floor_ms"] = floor.Seconds(ceiling, dtype) * 1e3;
  state.counters["of_floor_speed"] = floor.Seconds(ceiling, dtype) / median;
  state.counters["floor_GFLOP"] = floor.flops / 1e9;
  state.counters["floor_GB"] = floor.bytes / 1e9;
  state.counters["peak_GFLOP/s"] = (dtype == DType::kFloat32 ? ceiling.sgemm : ceiling.bf16) / 1e9;
  state.counters["triad_GB/s"] = ceiling.triad / 1e9;
}

}  // namespace

const std::vector<MeasuredModel>& MeasuredModels() {
  static const std::vector<MeasuredModel> models = {
      {"10.8M", {.layers = 6, .width = 384, .heads = 6, .context = 256, .vocabulary = 256}, 8, 5},
      {"124M", {.layers = 12, .width = 768, .heads = 12, .context = 256, .vocabulary = 50304}, 4, 3},
  };
  return models;
}

Training::Training(const MeasuredModel& measured, int dp, int threads, int kernel_threads, DType dtype)
    : measured_(measured),
      model_(Mesh("cpu", {{"dp", dp}, {"tp", 1}, {"pp", 1}}), OptionsOf(threads, kernel_threads)),
      session_(Compiled(model_, measured_, dtype)) {}

double Training::Step() {
  std::vector<int32_t> ids(measured_.tokens() + 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] =
        static_cast<int32_t>(RandomBits(7, steps_, i) % static_cast<uint64_t>(measured_.config.vocabulary));
  }
  ++steps_;
  const Dims shape{measured_.batch, measured_.config.context};
  HostTensor tokens = ToHost(std::vector<int32_t>(ids.begin(), ids.end() - 1), shape);
  HostTensor targets = ToHost(std::vector<int32_t>(ids.begin() + 1, ids.end()), shape);
  return session_.Run({{"tokens", tokens}, {"targets", targets}}).Scalar("loss");
}

void RegisterGptSteps() {
  struct Way {
    int dp, kernel_threads;
  };
  for (const MeasuredModel& m : MeasuredModels()) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (Way way : {Way{1, 1}, Way{1, 2}, Way{2, 1}}) {
        const std::string end = dtype == DType::kFloat32 ? "" : Cat("/dtype:", Name(dtype));
        benchmark::RegisterBenchmark(
            Cat("GptStep/", m.name, "/dp:", way.dp, "/kernel_threads:", way.kernel_threads, end).c_str(),
            RunGptStep, m, way.dp, way.kernel_threads, dtype)
            ->Iterations(m.steps)
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace oneflow_like::bench
