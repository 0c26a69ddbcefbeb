// Trains a recommender on click logs or synthetic clicks, on any mesh of axes dp, tp and pp, and compares it
// with always guessing how often people click.
//   build/examples/dlrm --mesh=cpu:dp=2,tp=2 --cut=columns
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "examples/dlrm_model.h"
#include "oneflow_like/data/clicks.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/program/data.h"
#include "oneflow_like/program/program.h"
#include "oneflow_like/program/synthetic.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  int64_t dense = 13, tables = 26, rows = 1000, width = 16;
  std::string clicks, cut = "mixed", optimizer = "adagrad";
} flags;

FlagGroup ModelGroup() {
  return {"model",
          "Model",
          {{"clicks", &flags.clicks,
            "Learns from these click logs, which a pattern may name; empty means synthetic clicks.",
            kAnyValue, kCommon},
           {"dense", &flags.dense, "Sets how many numbers a sample has.", RangeOf(1, 1 << 16), kKept},
           {"tables", &flags.tables, "Sets how many words a sample has, each with a table of its own.",
            RangeOf(1, 1 << 12), kCommon | kKept},
           {"rows", &flags.rows, "Sets the number of rows of a table; words of files are hashed to them.",
            RangeOf(1, 1 << 30), kCommon | kKept},
           {"width", &flags.width, "Sets the number of columns of a table.", RangeOf(1, 1 << 16),
            kCommon | kKept},
           {"cut", &flags.cut, "Cuts tables over mesh axis tp by rows, by columns, or mixed.",
            ChoiceOf({"rows", "columns", "mixed"}), kCommon},
           {"optimizer", &flags.optimizer, "Updates the rows that a batch touches with adagrad or sgd.",
            ChoiceOf({"adagrad", "sgd"}), kKept}}};
}

struct ClickData {
  std::string name;  // for people
  std::shared_ptr<const SampleSource> train, held_out;
};

ClickData OpenClicks(uint64_t seed) {
  if (flags.clicks.empty()) {
    SyntheticClicks::Options options = {
        .dense = flags.dense, .categorical = flags.tables, .buckets = flags.rows, .seed = seed};
    const auto train = std::make_shared<SyntheticClicks>(options);
    options.first = options.samples;
    return {"synthetic clicks", train, std::make_shared<SyntheticClicks>(options)};
  }
  const auto log =
      std::make_shared<ClickLog>(flags.clicks, ClickLogOptions{.dense = static_cast<int>(flags.dense),
                                                               .categorical = static_cast<int>(flags.tables),
                                                               .buckets = flags.rows});
  const int64_t held = std::max<int64_t>(1, log->samples() / 20), learnt = log->samples() - held;
  if (learnt < 1) Fail("--clicks=", flags.clicks, ": one line is too few to hold any of them out");
  return {Cat(flags.clicks, ": ", learnt, " samples to learn from, ", held, " held out"),
          std::make_shared<SourcePart>(log, 0, learnt), std::make_shared<SourcePart>(log, learnt, held)};
}

// What is measured when all has been learnt is read once before that: a line that is wrong is no reason to
// lose a training.
void RequireHeldOut(const SampleSource& source) {
  std::vector<std::vector<char>> values;
  for (const SampleField& field : source.fields()) values.emplace_back(field.bytes());
  std::vector<void*> to;
  for (std::vector<char>& value : values) to.push_back(value.data());
  const int64_t measured = std::min(source.samples(), training_flags().eval_batches * training_flags().batch);
  for (int64_t i = 0; i < measured; ++i) source.Read({.index = i}, to);
}

struct Outputs {
  Tensor loss, labels;  // f32[batch]
};
// `filled`: rows behind the last sample are labelled -1.
template <typename Graph>
Outputs Build(Graph& graph, const DlrmConfig& config, bool filled) {
  const Annotation cut = CutBatch(graph.scope().mesh());
  Tensor labels = graph.Input("labels", {training_flags().batch}, DType::kFloat32, cut);
  Tensor dense = graph.Input("dense", {training_flags().batch, flags.dense}, DType::kFloat32, cut);
  Tensor ids = graph.Input("ids", {training_flags().batch, flags.tables}, DType::kInt32, cut);
  Tensor targets = filled ? maximum(labels, 0) : labels;
  return {bce_with_logits_loss(DlrmLogits(graph.scope(), dense, ids, config), targets), labels};
}

void MeasureHeldOut(const Launcher& launcher, Model& model, const DlrmConfig& config, const ClickData& data,
                    Metrics& metrics) {
  if (training_flags().eval_batches == 0) return;
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
  if (flags.optimizer == "sgd") return Sgd{.lr = training_flags().lr};
  return Adagrad{.lr = training_flags().lr, .by_rows = true};
}

int TrainDlrm(const Launcher& launcher) {
  CheckTrainingFlags();
  DlrmConfig config = {
      .dense = flags.dense, .tables = flags.tables, .rows = flags.rows, .width = flags.width};
  config.cut = flags.cut;
  config.micro_batches = training_flags().micro_batches;
  CheckDlrm(config);
  const Optimizer optimizer = OptimizerOfFlags();
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  std::vector<Launcher::FlagFile> logs;
  if (!flags.clicks.empty())
    for (const std::string& file : FilesOf(flags.clicks)) logs.push_back({"clicks", file});
  launcher.CheckFiles(logs, {{"log_json", training_flags().log_json}});
  RequireFolders(launcher);
  const ClickData data = OpenClicks(SeedOfFlags());
  if (!flags.clicks.empty() && !training_flags().simulate && !launcher.dry_run())
    RequireHeldOut(*data.held_out);
  return TrainProgram(
      launcher, mesh,
      {.about = Cat(data.name, ", ", flags.tables, " tables of ", flags.rows, " rows"),
       .samples = data.train,
       .loss = [&](Model& model) { return mean(Build(model, config, false).loss); },
       .optimizer = optimizer,
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model,
                  Metrics& metrics) { MeasureHeldOut(launcher, model, config, data, metrics); }});
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().batch = 256;
  training_flags().eval_batches = 64;
  training_flags().lr = 0.05;
  training_flags().clip = 0;
  training_flags().steps = 1000;
  return ProgramMain(argc, argv, "Trains a recommender on clicks, on any mesh of axes dp, tp and pp.",
                     {ModelGroup()}, [](const Launcher& launcher) { return TrainDlrm(launcher); });
}
