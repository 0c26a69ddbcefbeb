// Trains BERT to guess masked tokens of synthetic rows or any text, on any mesh of axes dp, tp and pp.
//   build/examples/bert --size=tiny --mesh=cpu:dp=2,tp=2 --text=book.txt
#include <gflags/gflags.h>

#include <limits>
#include <memory>

#include "examples/bert_model.h"
#include "oneflow_like/data/token_files.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/program/data.h"
#include "oneflow_like/program/program.h"

DEFINE_int64(batch, 32, "sequences of one step");
DEFINE_int64(eval_batches, 16, "of held-out text; 0: none");
DEFINE_int64(context, 128, "tokens of one sequence");
DEFINE_string(text, "", "text, .bin, .idx, .npy; empty: synthetic");
DEFINE_string(size, "tiny", "tiny, mini, small or base");
DEFINE_int64(layers, 0, "blocks; 0: of the size");
DEFINE_double(dropout, 0, "probability of dropping");
DEFINE_double(weight_decay, 0.01, "weight decay of AdamW");

namespace oneflow_like {
namespace {

struct MaskedData {
  std::string name;                                     // for people
  std::shared_ptr<const SampleSource> train, held_out;  // nullptr: nothing is held out
  int64_t vocabulary = 0;
};

MaskedData OpenMasked() {
  auto mask = [](auto rows, int64_t tokens) { return std::make_shared<MaskedRows>(std::move(rows), tokens); };
  if (FLAGS_text.empty()) {
    constexpr int64_t kTokens = 256, kRows = 1 << 20;
    return {"synthetic tokens",
            mask(std::make_shared<LearnableRows>(FLAGS_context, kTokens, 0, kRows), kTokens),
            mask(std::make_shared<LearnableRows>(FLAGS_context, kTokens, kRows, kRows), kTokens),
            kTokens + MaskedRows::kMoreTokens};
  }
  const TextSplit split = OpenText(FLAGS_text, FLAGS_context);
  const int64_t vocabulary = RoundedVocabulary(split.vocabulary);
  auto rows = [&](const Tokens& part) {
    return mask(std::make_shared<TokenRows>(part, TokenRowsOptions{.context = FLAGS_context}), vocabulary);
  };
  return {Cat(FLAGS_text, ": ", split.train.size(), " tokens to learn from, ", split.held_out.size(),
              " held out"),
          rows(split.train), split.held_out.size() > 0 ? rows(split.held_out) : nullptr,
          vocabulary + MaskedRows::kMoreTokens};
}

struct Outputs {
  Tensor logits, targets;
};
template <typename Graph>
Outputs Build(Graph& graph, const BertConfig& config, bool training) {
  const Annotation cut = {{"dp", S(0)}};
  const Dims shape = {FLAGS_batch, FLAGS_context};
  Tensor tokens = graph.Input("tokens", shape, DType::kInt32, cut);
  Tensor targets = graph.Input("targets", shape, DType::kInt32, cut);
  Tensor padding = graph.Input("padding", shape, DType::kInt32, cut);
  return {BertLogits(graph.scope(), tokens, padding, config, training), targets};
}

void MeasureHeldOut(const Launcher& launcher, Model& model, const BertConfig& config, const MaskedData& data,
                    Metrics& metrics) {
  if (FLAGS_eval_batches == 0) return;
  if (!data.held_out) {
    launcher.Print("the text is too short to hold any of it out\n");
    return;
  }
  ModelGraph graph = model.NewGraph("eval");
  const Outputs of = Build(graph, config, false);
  Tensor asked = greater_equal(of.targets, 0);
  Tensor right = equal(argmax(of.logits), cast(of.targets, DType::kInt64));
  Session eval = Evaluate({{"loss", sum(cross_entropy(of.logits, of.targets))},
                           {"right", sum(cast(right, DType::kFloat32))},
                           {"asked", sum(cast(asked, DType::kFloat32))}},
                          EvaluateOptionsOfFlags("eval"));
  double loss = 0, correct = 0, count = 0;
  ForEachHeldOut(launcher, eval, data.held_out, {{"targets", -1}}, [&](const StepResult& result, int64_t) {
    loss += static_cast<double>(result.Scalar("loss"));
    correct += static_cast<double>(result.Scalar("right"));
    count += static_cast<double>(result.Scalar("asked"));
  });
  eval.Close();
  if (count == 0) return;
  metrics.Add(model.next_step(),
              {{"held_out_loss", loss / count}, {"held_out_accuracy", 100 * correct / count}});
  launcher.Print("held-out loss %.4f, %.1f %% of %.0f masked tokens guessed\n", loss / count,
                 100 * correct / count, count);
}

int TrainBert(const Launcher& launcher) {
  CheckTrainingFlags("sequences");
  CheckRange<int64_t>("--context", FLAGS_context, 1, 1 << 20);
  CheckRange<int64_t>("--layers", FLAGS_layers, 0, 10'000);
  CheckRange("--weight_decay", FLAGS_weight_decay, 0.0, 1e30);
  if (!(FLAGS_dropout >= 0 && FLAGS_dropout < 1))
    Fail("--dropout is ", FLAGS_dropout, ", must lie in [0, 1)");
  BertConfig config = BertOfSize(FLAGS_size);
  if (FLAGS_layers > 0) config.layers = FLAGS_layers;
  config.context = FLAGS_context;
  config.dropout = FLAGS_dropout;
  const Mesh mesh = launcher.mesh({"dp", "tp", "pp"}, kTrainingMesh);
  CheckBert(config, mesh);
  std::vector<Launcher::FlagFile> texts;
  if (!FLAGS_text.empty())
    for (const std::string& file : TokenFilesOf(FLAGS_text)) texts.push_back({"text", file});
  launcher.CheckFiles(texts, {{"log_json", FLAGS_log_json}});
  RequireFolders(launcher);
  const MaskedData data = OpenMasked();
  config.vocabulary = data.vocabulary;
  return TrainProgram(
      launcher, mesh,
      {.about = Cat(data.name, ", vocabulary ", config.vocabulary),
       .samples = data.train,
       .unit = "tokens",
       .per_sample = FLAGS_context,
       .loss =
           [&](Model& model) {
             const Outputs of = Build(model, config, true);
             return BertLoss(of.logits, of.targets);
           },
       .optimizer = AdamW{.lr = FLAGS_lr, .eps = 1e-6, .weight_decay = FLAGS_weight_decay},
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model,
                  Metrics& metrics) { MeasureHeldOut(launcher, model, config, data, metrics); }});
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::SetDefault("steps", "1000");
  oneflow_like::Launcher launcher(&argc, &argv,
                                  "Trains BERT to guess masked tokens, on any mesh of axes dp, tp and pp.",
                                  oneflow_like::kTrainingMesh, oneflow_like::TrainingProgram);
  return launcher.Main([&] { return oneflow_like::TrainBert(launcher); });
}
