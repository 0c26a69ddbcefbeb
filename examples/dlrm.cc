// Trains a recommender on click logs or synthetic clicks, on any mesh of axes dp, tp and pp, and compares it
// with always guessing how often people click.
//   build/examples/dlrm --mesh=cpu:dp=2,tp=2 --cut=columns
#include <gflags/gflags.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "examples/dlrm_model.h"
#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/data.h"
#include "oneflow_like/program/program.h"
#include "oneflow_like/program/synthetic.h"

DEFINE_int64(batch, 256, "samples of one step");
DEFINE_int64(eval_batches, 64, "of held-out samples; 0: none");
DEFINE_string(clicks, "", "files of click logs; empty: synthetic");
DEFINE_int64(dense, 13, "numbers of a sample");
DEFINE_int64(tables, 26, "words of a sample, each with a table");
DEFINE_int64(rows, 1000, "of a table; words of files are hashed");
DEFINE_int64(width, 16, "of a table");
DEFINE_string(cut, "mixed", "of tables over tp: rows, columns");
DEFINE_string(optimizer, "adagrad", "adagrad or sgd, of touched rows");

namespace oneflow_like {
namespace {

struct ClickData {
  std::string name;  // for people
  std::shared_ptr<const SampleSource> train, held_out;
};

ClickData OpenClicks(uint64_t seed) {
  if (FLAGS_clicks.empty()) {
    SyntheticClicks::Options options = {
        .dense = FLAGS_dense, .categorical = FLAGS_tables, .buckets = FLAGS_rows, .seed = seed};
    const auto train = std::make_shared<SyntheticClicks>(options);
    options.first = options.samples;
    return {"synthetic clicks", train, std::make_shared<SyntheticClicks>(options)};
  }
  const auto log =
      std::make_shared<ClickLog>(FLAGS_clicks, ClickLogOptions{.dense = static_cast<int>(FLAGS_dense),
                                                               .categorical = static_cast<int>(FLAGS_tables),
                                                               .buckets = FLAGS_rows});
  const int64_t held = std::max<int64_t>(1, log->samples() / 20), learnt = log->samples() - held;
  if (learnt < 1) Fail("--clicks=", FLAGS_clicks, ": one line is too few to hold any of them out");
  return {Cat(FLAGS_clicks, ": ", learnt, " samples to learn from, ", held, " held out"),
          std::make_shared<SourcePart>(log, 0, learnt), std::make_shared<SourcePart>(log, learnt, held)};
}

// What is measured when all has been learnt is read once before that: a line that is wrong is no reason to
// lose a training.
void RequireHeldOut(const SampleSource& source) {
  std::vector<std::vector<char>> values;
  for (const SampleField& field : source.fields()) values.emplace_back(field.bytes());
  std::vector<void*> to;
  for (std::vector<char>& value : values) to.push_back(value.data());
  const int64_t measured = std::min(source.samples(), FLAGS_eval_batches * FLAGS_batch);
  for (int64_t i = 0; i < measured; ++i) source.Read({.index = i}, to);
}

struct Outputs {
  Tensor loss, labels;  // f32[batch]
};
// `filled`: rows behind the last sample are labelled -1.
template <typename Graph>
Outputs Build(Graph& graph, const DlrmConfig& config, bool filled) {
  const Annotation cut = {{"dp", S(0)}};
  Tensor labels = graph.Input("labels", {FLAGS_batch}, DType::kFloat32, cut);
  Tensor dense = graph.Input("dense", {FLAGS_batch, FLAGS_dense}, DType::kFloat32, cut);
  Tensor ids = graph.Input("ids", {FLAGS_batch, FLAGS_tables}, DType::kInt32, cut);
  Tensor targets = filled ? maximum(labels, 0) : labels;
  return {bce_with_logits_loss(DlrmLogits(graph.scope(), dense, ids, config), targets), labels};
}

void MeasureHeldOut(const Launcher& launcher, Model& model, const DlrmConfig& config, const ClickData& data,
                    Metrics& metrics) {
  if (FLAGS_eval_batches == 0) return;
  ModelGraph graph = model.NewGraph("eval");
  const Outputs of = Build(graph, config, true);
  Tensor counts = greater_equal(of.labels, 0);
  Session eval = Evaluate({{"loss", sum(where(counts, of.loss, 0))}, {"clicks", sum(maximum(of.labels, 0))}},
                          EvaluateOptionsOfFlags("eval"));
  double loss = 0, clicks = 0, samples = 0;
  ForEachHeldOut(launcher, eval, data.held_out, {{"labels", -1}},
                 [&](const StepResult& result, int64_t rows) {
                   loss += static_cast<double>(result.Scalar("loss"));
                   clicks += static_cast<double>(result.Scalar("clicks"));
                   samples += static_cast<double>(rows);
                 });
  eval.Close();
  const double rate = clicks / samples;
  auto term = [](double p) { return p > 0 ? -p * std::log(p) : 0; };
  const double of_rate = term(rate) + term(1 - rate);
  metrics.Add(model.next_step(), {{"held_out_loss", loss / samples}, {"base_rate_loss", of_rate}});
  launcher.Print("held-out loss %.4f over %.0f samples, %.1f %% of them clicks; always guessing that: %.4f\n",
                 loss / samples, samples, 100 * rate, of_rate);
}

Optimizer OptimizerOfFlags() {
  if (FLAGS_optimizer == "adagrad") return Adagrad{.lr = FLAGS_lr, .by_rows = true};
  if (FLAGS_optimizer == "sgd") return Sgd{.lr = FLAGS_lr};
  Fail("--optimizer=", FLAGS_optimizer, ": must be adagrad or sgd");
}

int TrainDlrm(const Launcher& launcher) {
  CheckTrainingFlags("samples");
  CheckRange<int64_t>("--dense", FLAGS_dense, 1, 1 << 16);
  CheckRange<int64_t>("--tables", FLAGS_tables, 1, 1 << 12);
  CheckRange<int64_t>("--rows", FLAGS_rows, 1, 1 << 30);
  CheckRange<int64_t>("--width", FLAGS_width, 1, 1 << 16);
  DlrmConfig config = {
      .dense = FLAGS_dense, .tables = FLAGS_tables, .rows = FLAGS_rows, .width = FLAGS_width};
  config.cut = FLAGS_cut;
  CheckDlrm(config);
  const Optimizer optimizer = OptimizerOfFlags();
  const Mesh mesh = launcher.mesh({"dp", "tp", "pp"}, kTrainingMesh);
  std::vector<Launcher::FlagFile> logs;
  if (!FLAGS_clicks.empty())
    for (const std::string& file : FilesOf(FLAGS_clicks)) logs.push_back({"clicks", file});
  launcher.CheckFiles(logs, {{"log_json", FLAGS_log_json}});
  RequireFolders(launcher);
  const ClickData data = OpenClicks(SeedOfFlags());
  if (!FLAGS_clicks.empty() && !FLAGS_simulate && !launcher.dry_run()) RequireHeldOut(*data.held_out);
  return TrainProgram(
      launcher, mesh,
      {.about = Cat(data.name, ", ", FLAGS_tables, " tables of ", FLAGS_rows, " rows"),
       .samples = data.train,
       .loss = [&](Model& model) { return mean(Build(model, config, false).loss); },
       .optimizer = optimizer,
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model,
                  Metrics& metrics) { MeasureHeldOut(launcher, model, config, data, metrics); }});
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("lr", "0.05");
  oneflow_like::SetDefault("clip", "0");
  oneflow_like::SetDefault("steps", "1000");
  oneflow_like::Launcher launcher(&argc, &argv,
                                  "Trains a recommender on clicks, on any mesh of axes dp, tp and pp.",
                                  oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainDlrm(launcher); });
}
