// Simulated steps beside published measurements: rows of Narayanan et al. 2021 (table 1, A100) and of
// Megatron-Core's weak scaling (H100). Prints how far off each is; docs/simulation.md has the table.
//   build/tests/published_benchmark [rows whose name has this [file for a trace]]
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "compiler/explain.h"
#include "examples/gpt_model.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/session_impl.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {
namespace {

struct Row {
  std::string name, topology;
  int64_t layers, width, heads, context, vocabulary;
  int tp, pp, dp, virtual_stages;
  int64_t batch, micro_batch;
  Recompute recompute;
  bool sequence_parallel;  // and gradients of weights beside messages (Overlap)
  int zero;
  double teraflops;  // measured, of a device, as the paper counts
};

// Flops of a step as the papers count them: `passes` times the forward products, 4 with recomputation.
double PaperFlops(const Row& r, double passes) {
  const double b = r.batch, s = r.context, l = r.layers, h = r.width, v = r.vocabulary;
  return 24 * b * s * l * h * h * (passes * (1 + s / (6 * h)) + 3 * v / (12 * l * h));
}

void Compare(const Row& row, const std::string& trace_file) {
  const auto start = std::chrono::steady_clock::now();
  ModelOptions options;
  options.topology = Cat(OFL_SOURCE_DIR, "/examples/topologies/", row.topology, ".txt");
  options.pipeline.virtual_stages = row.virtual_stages;
  if (row.zero > 0) options.zero = {.axis = "dp", .stage = row.zero};
  Model model(Mesh("cuda", {{"pp", row.pp}, {"dp", row.dp}, {"tp", row.tp}}), options);
  GptConfig config{.layers = row.layers,
                   .width = row.width,
                   .heads = row.heads,
                   .context = row.context,
                   .vocabulary = row.vocabulary};
  if (row.sequence_parallel) config.sequence = "tp";
  const Annotation cut = {{"dp", S(0)}};
  Tensor tokens = model.Input("tokens", {row.batch, row.context}, DType::kInt32, cut);
  Tensor targets = model.Input("targets", {row.batch, row.context}, DType::kInt32, cut);
  TrainOptions train;
  train.micro_batches = static_cast<int>(row.batch / row.dp / row.micro_batch);
  train.schedule = row.virtual_stages > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B;
  train.dtype = DType::kBFloat16;
  train.recompute = row.recompute;
  train.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
  if (row.sequence_parallel) train.overlap.chunks = 2;
  train.clip_norm = 1;
  Session session = Train(GptLoss(model.scope(), tokens, targets, config), AdamW{.lr = 1e-4}, train);
  const Simulated simulated =
      Simulate(session, ReadTopology(options.topology), {.trace_file = trace_file, .most_ranks = 1});
  const double gpus = row.tp * row.pp * row.dp;
  const double flops = PaperFlops(row, row.recompute == Recompute::kFull ? 4 : 3);
  const double measured = flops / (row.teraflops * 1e12 * gpus);
  const SimulatedStage& last = simulated.stages.back();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf(
      "%-14s measured %7.2f s (%5.1f TF)  simulated %7.2f s (%5.1f TF)  off %+5.1f %%  stage 0: "
      "computes %4.1f %%, messages %4.1f %%, bubble %4.1f %%; last: %4.1f, %4.1f, %4.1f  [%.0f s]\n",
      row.name.c_str(), measured, row.teraflops, simulated.seconds, flops / simulated.seconds / gpus / 1e12,
      100 * (simulated.seconds / measured - 1), 100 * simulated.stages[0].compute / simulated.seconds,
      100 * simulated.stages[0].communication / simulated.seconds,
      100 * simulated.stages[0].bubble / simulated.seconds, 100 * last.compute / simulated.seconds,
      100 * last.communication / simulated.seconds, 100 * last.bubble / simulated.seconds, took.count());
  // What the compiler's own token game expects, with its own machine.
  for (const StageTime& stage : TimesOfStages(session.impl()->compiled))
    if (stage.stage == last.stage)
      std::printf("               planned %.2f s, bubble of %s %.1f %%\n",
                  session.impl()->compiled.logical.makespan, stage.stage.c_str(), 100 * stage.bubble);
  std::fflush(stdout);
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  using namespace oneflow_like;
  constexpr Recompute kFull = Recompute::kFull, kNone = Recompute::kNone;
  const std::vector<Row> rows = {
      {"sc21_1.7B", "a100", 24, 2304, 24, 2048, 51200, 1, 1, 32, 1, 512, 16, kFull, false, 0, 137},
      {"sc21_7.5B", "a100", 36, 4096, 32, 2048, 51200, 4, 1, 32, 1, 512, 16, kFull, false, 0, 142},
      {"sc21_39.1B", "a100", 48, 8192, 64, 2048, 51200, 8, 2, 32, 1, 1536, 4, kFull, false, 0, 138},
      {"sc21_145.6B", "a100", 80, 12288, 96, 2048, 51200, 8, 8, 24, 2, 2304, 2, kFull, false, 0, 148},
      {"v1_145.6B", "a100", 80, 12288, 96, 2048, 51200, 8, 8, 24, 1, 2304, 2, kFull, false, 0, 148},
      {"sc21_529.6B", "a100", 105, 20480, 128, 2048, 51200, 8, 35, 9, 3, 2520, 1, kFull, false, 0, 163},
      {"mcore_1.7B", "h100", 24, 2048, 16, 4096, 131072, 1, 1, 48, 1, 192, 1, kNone, false, 1, 408.8},
      {"mcore_16B", "h100", 32, 6144, 48, 4096, 131072, 4, 1, 48, 1, 192, 1, kNone, true, 1, 489.1},
      {"mcore_70B", "h100", 84, 8192, 64, 4096, 131072, 8, 2, 48, 7, 384, 1, kNone, true, 1, 419.7},
      {"mcore_177B", "h100", 96, 12288, 96, 4096, 131072, 8, 6, 48, 8, 1152, 1, kNone, true, 1, 432.8},
      {"mcore_462B", "h100", 112, 18432, 144, 4096, 131072, 8, 16, 48, 7, 3072, 1, kNone, true, 1, 459.9}};
  for (const Row& row : rows)
    if (argc < 2 || row.name.find(argv[1]) != std::string::npos) Compare(row, argc > 2 ? argv[2] : "");
}
