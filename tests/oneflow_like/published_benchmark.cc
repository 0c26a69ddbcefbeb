// Simulated steps beside published measurements: rows of Narayanan et al. 2021 (table 1, A100), of
// Megatron-Core's weak scaling (H100), of DLPerf (V100) and of torchtitan (H100). Prints how far off each is;
// docs/simulation.md has the tables.
//   build/tests/published_benchmark [rows whose name has this [file for a trace]]
// Rows named line_... are sizes between them on the same lines of weak scaling, whose measurements we do not
// have: what is simulated should not jump between neighbours.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "compiler/explain.h"
#include "examples/gpt_model.h"
#include "examples/llama_model.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/simulate.h"

namespace oneflow_like {

using namespace examples;
namespace {

enum class Architecture { kGpt, kLlama };

struct Row {
  std::string name, topology;
  int64_t layers, width, heads, context, vocabulary;
  int tp, pp, dp, virtual_stages;
  int64_t batch, micro_batch;
  Recompute recompute;
  bool sequence_parallel;  // and gradients of weights beside messages (Overlap)
  int zero;
  double seconds;  // measured; 0: not known
  Architecture architecture = Architecture::kGpt;
  DType dtype = DType::kBFloat16;
  DType reduce_dtype = DType::kFloat32;

  double gpus() const { return tp * pp * dp; }
};

// Flops of a step as the papers count them: `passes` times the forward products, 4 with recomputation.
double PaperFlops(const Row& r) {
  const double b = r.batch, s = r.context, l = r.layers, h = r.width, v = r.vocabulary;
  const double passes = r.recompute == Recompute::kFull ? 4 : 3;
  return 24 * b * s * l * h * h * (passes * (1 + s / (6 * h)) + 3 * v / (12 * l * h));
}

// A row whose table has TFLOP/s of a device.
Row At(double teraflops, Row row) {
  row.seconds = PaperFlops(row) / (teraflops * 1e12 * row.gpus());
  return row;
}
// Of Narayanan et al. 2021, table 1.
Row Sc21(const char* name, int64_t layers, int64_t width, int64_t heads, int tp, int pp, int dp, int v,
         int64_t batch, int64_t micro_batch, double teraflops) {
  const Row row = {name,  "a100",      layers,           width, heads, 2048, 51200, tp, pp, dp, v,
                   batch, micro_batch, Recompute::kFull, false, 0,     0};
  return teraflops > 0 ? At(teraflops, row) : row;
}
// Of Megatron-Core's weak scaling.
Row Mcore(const char* name, int64_t layers, int64_t width, int64_t heads, int tp, int pp, int v,
          int64_t batch, double teraflops) {
  const Row row = {name, "h100_cluster",   layers, width, heads, 4096, 131072, tp, pp, 48, v, batch,
                   1,    Recompute::kNone, true,   1,     0};
  return teraflops > 0 ? At(teraflops, row) : row;
}
// The row with gradients summed over dp in bf16.
Row Bf16Sums(const char* name, Row row) {
  row.name = name;
  row.reduce_dtype = DType::kBFloat16;
  return row;
}
// Of DLPerf: OneFlow's GPT, fp16, everything recomputed.
Row Dlperf(const char* name, int64_t layers, int64_t width, int64_t heads, int dp, int tp, int pp,
           int64_t batch, int64_t micro_batch, double milliseconds) {
  return {name,
          "v100",
          layers,
          width,
          heads,
          2048,
          51200,
          tp,
          pp,
          dp,
          1,
          batch,
          micro_batch,
          Recompute::kFull,
          false,
          0,
          milliseconds / 1e3,
          Architecture::kGpt,
          DType::kFloat16};
}
// Of torchtitan: Llama 3 in bf16, sequences of 8192, ZeRO 3, one micro-batch of the local batch.
Row Titan(const char* name, int64_t layers, int64_t width, int64_t heads, int dp, int tp, int64_t local_batch,
          Recompute recompute, double tokens_per_second) {
  return {name,
          "h100_cluster",
          layers,
          width,
          heads,
          8192,
          128256,
          tp,
          1,
          dp,
          1,
          local_batch * dp,
          local_batch,
          recompute,
          tp > 1,
          3,
          8192 * static_cast<double>(local_batch) / tp / tokens_per_second,
          Architecture::kLlama};
}

Tensor LossOf(const Row& row, Model* model, Tensor tokens, Tensor targets) {
  const std::string sequence = row.sequence_parallel ? "tp" : "";
  if (row.architecture == Architecture::kGpt)
    return GptLoss(model->scope(), tokens, targets,
                   {.layers = row.layers,
                    .width = row.width,
                    .heads = row.heads,
                    .context = row.context,
                    .vocabulary = row.vocabulary,
                    .sequence = sequence});
  return LlamaLoss(model->scope(), tokens, targets,
                   {.layers = row.layers,
                    .width = row.width,
                    .heads = row.heads,
                    .kv_heads = 8,
                    .head_width = row.width / row.heads,
                    .inner = row.width * 7 / 2,
                    .vocabulary = row.vocabulary,
                    .sequence = sequence});
}

void Compare(const Row& row, const std::string& trace_file) {
  const auto start = std::chrono::steady_clock::now();
  ModelOptions options;
  options.topology = Cat(OFL_SOURCE_DIR, "/examples/topologies/", row.topology, ".txt");
  options.pipeline.virtual_stages = row.virtual_stages;
  if (row.zero > 0) options.zero = {.axis = "dp", .stage = row.zero};
  Model model(Mesh("cuda", {{"pp", row.pp}, {"dp", row.dp}, {"tp", row.tp}}), options);
  const Annotation cut = {{"dp", S(0)}};
  Tensor tokens = model.Input("tokens", {row.batch, row.context}, DType::kInt32, cut);
  Tensor targets = model.Input("targets", {row.batch, row.context}, DType::kInt32, cut);
  TrainOptions train;
  train.micro_batches = static_cast<int>(row.batch / row.dp / row.micro_batch);
  train.schedule = row.virtual_stages > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B;
  train.dtype = row.dtype;
  train.reduce_dtype = row.reduce_dtype;
  train.recompute = row.recompute;
  train.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
  if (row.sequence_parallel) train.overlap.chunks = 2;
  train.clip_norm = 1;
  Session session = Train(LossOf(row, &model, tokens, targets), AdamW{.lr = 1e-4}, train);
  const Simulated simulated =
      Simulate(session, ReadTopology(options.topology), {.trace_file = trace_file, .most_ranks = 1});
  const double flops = row.architecture == Architecture::kGpt ? PaperFlops(row) : simulated.model_flops;
  const auto rate = [&](double seconds) { return flops / seconds / row.gpus() / 1e12; };
  const SimulatedStage& last = simulated.stages.back();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%-14s ", row.name.c_str());
  if (row.seconds > 0)
    std::printf("measured %7.2f s (%5.1f TF)  off %+5.1f %%  ", row.seconds, rate(row.seconds),
                100 * (simulated.seconds / row.seconds - 1));
  int64_t most = 0;
  for (const SimulatedStage& stage : simulated.stages) most = std::max(most, stage.memory.peak_bytes);
  std::printf(
      "simulated %7.2f s (%5.1f TF)  stage 0: computes %4.1f %%, messages %4.1f %%, bubble %4.1f %%; last: "
      "%4.1f, %4.1f, %4.1f; %.1f GB  [%.0f s]\n",
      simulated.seconds, rate(simulated.seconds), 100 * simulated.stages[0].compute / simulated.seconds,
      100 * simulated.stages[0].communication / simulated.seconds,
      100 * simulated.stages[0].bubble / simulated.seconds, 100 * last.compute / simulated.seconds,
      100 * last.communication / simulated.seconds, 100 * last.bubble / simulated.seconds,
      static_cast<double>(most) / 1e9, took.count());
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
  const Row mcore_16B = Mcore("mcore_16B", 32, 6144, 48, 4, 1, 1, 192, 489.1),
            mcore_70B = Mcore("mcore_70B", 84, 8192, 64, 8, 2, 7, 384, 419.7);
  const std::vector<Row> rows = {Sc21("sc21_1.7B", 24, 2304, 24, 1, 1, 32, 1, 512, 16, 137),
                                 Sc21("sc21_7.5B", 36, 4096, 32, 4, 1, 32, 1, 512, 16, 142),
                                 Sc21("sc21_39.1B", 48, 8192, 64, 8, 2, 32, 1, 1536, 4, 138),
                                 Sc21("sc21_145.6B", 80, 12288, 96, 8, 8, 24, 2, 2304, 2, 148),
                                 Sc21("v1_145.6B", 80, 12288, 96, 8, 8, 24, 1, 2304, 2, 148),
                                 Sc21("sc21_529.6B", 105, 20480, 128, 8, 35, 9, 3, 2520, 1, 163),
                                 Mcore("mcore_1.7B", 24, 2048, 16, 1, 1, 1, 192, 408.8),
                                 mcore_16B,
                                 Bf16Sums("mcore_16B_sums", mcore_16B),
                                 mcore_70B,
                                 Bf16Sums("mcore_70B_sums", mcore_70B),
                                 Mcore("mcore_177B", 96, 12288, 96, 8, 6, 8, 1152, 432.8),
                                 Mcore("mcore_462B", 112, 18432, 144, 8, 16, 7, 3072, 459.9),
                                 Dlperf("dlperf_1x1x1", 16, 1536, 16, 1, 1, 1, 2, 2, 406.16),
                                 Dlperf("dlperf_16x1x1", 16, 1536, 16, 16, 1, 1, 32, 2, 489.67),
                                 Dlperf("dlperf_1x16x1", 16, 3072, 32, 1, 16, 1, 16, 16, 4819.29),
                                 Dlperf("dlperf_2x4x1", 16, 1536, 16, 2, 4, 1, 16, 8, 539.69),
                                 Dlperf("dlperf_2x8x1", 24, 2304, 24, 2, 8, 1, 16, 8, 1268.53),
                                 Dlperf("dlperf_8x1x4", 16, 1536, 16, 8, 1, 4, 512, 2, 4006.31),
                                 Dlperf("dlperf_2x4x4", 24, 2304, 24, 2, 4, 4, 512, 8, 13117.18),
                                 Titan("titan_8B_8", 32, 4096, 32, 8, 1, 2, Recompute::kSelective, 5762),
                                 Titan("titan_8B_128", 32, 4096, 32, 128, 1, 2, Recompute::kSelective, 6514),
                                 Titan("titan_8B_64", 32, 4096, 32, 8, 8, 12, Recompute::kSelective, 4378),
                                 Titan("titan_70B_256", 80, 8192, 64, 32, 8, 16, Recompute::kFull, 597.3)};
  const std::vector<Row> lines = {Sc21("line_sc21_3.6B", 30, 3072, 32, 2, 1, 32, 1, 512, 16, 0),
                                  Sc21("line_sc21_18B", 40, 6144, 48, 8, 1, 32, 1, 1024, 8, 0),
                                  Sc21("line_sc21_76B", 60, 10240, 80, 8, 4, 32, 1, 1792, 4, 0),
                                  Sc21("line_sc21_310B", 96, 16384, 128, 8, 16, 15, 3, 2160, 1, 0),
                                  Sc21("line_sc21_1008B", 128, 25600, 160, 8, 64, 6, 2, 3072, 1, 0),
                                  Mcore("line_mcore_3.6B", 30, 3072, 24, 1, 1, 1, 192, 0),
                                  Mcore("line_mcore_7.5B", 36, 4096, 32, 2, 1, 1, 192, 0),
                                  Mcore("line_mcore_33B", 40, 8192, 64, 8, 1, 1, 192, 0),
                                  Mcore("line_mcore_114B", 80, 10752, 84, 8, 4, 5, 768, 0),
                                  Mcore("line_mcore_310B", 96, 16384, 128, 8, 8, 6, 1536, 0)};
  const std::string wanted = argc > 1 ? argv[1] : "";
  for (const Row& row : rows)
    if (row.name.find(wanted) != std::string::npos) Compare(row, argc > 2 ? argv[2] : "");
  for (const Row& row : lines)
    if (argc > 1 && row.name.find(wanted) != std::string::npos) Compare(row, argc > 2 ? argv[2] : "");
}
