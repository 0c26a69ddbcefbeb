// Trains BERT to guess masked tokens of synthetic rows or any text, on any mesh of axes dp, tp and pp.
//   build/examples/bert --size=tiny --mesh=cpu:dp=2,tp=2 --text=book.txt
#include <limits>
#include <memory>

#include "examples/bert_model.h"
#include "oneflow_like/data/token_files.h"
#include "oneflow_like/program/data.h"
#include "oneflow_like/program/program.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  int64_t context = 128, layers = 0;
  std::string text, size = "tiny";
  double dropout = 0, weight_decay = 0.01;
} flags;

FlagGroup ModelGroup() {
  return {
      "model",
      "Model",
      {{"size", &flags.size, "Chooses the model: tiny, mini, small or base.", kAnyValue, kCommon | kKept},
       {"layers", &flags.layers, "Sets the number of blocks; 0 takes that of --size.", RangeOf(0, 10'000),
        kCommon | kKept},
       {"context", &flags.context, "Sets how many tokens a sequence has.", RangeOf(1, 1 << 20),
        kCommon | kKept},
       {"text", &flags.text,
        "Learns from this text, or from files of tokens (.bin, .idx, .npy); empty means synthetic tokens.",
        kAnyValue, kCommon},
       {"dropout", &flags.dropout, "Drops values with this probability in training.", RangeBelow(0, 1),
        kKept},
       {"weight_decay", &flags.weight_decay, "Sets the weight decay of AdamW.", RangeOf(0, 1e30), kKept}}};
}

struct MaskedData {
  std::string name;                                     // for people
  std::shared_ptr<const SampleSource> train, held_out;  // nullptr: nothing is held out
  int64_t vocabulary = 0;
};

MaskedData OpenMasked() {
  auto mask = [](auto rows, int64_t tokens) { return std::make_shared<MaskedRows>(std::move(rows), tokens); };
  if (flags.text.empty()) {
    constexpr int64_t kTokens = 256, kRows = 1 << 20;
    return {"synthetic tokens",
            mask(std::make_shared<LearnableRows>(flags.context, kTokens, 0, kRows), kTokens),
            mask(std::make_shared<LearnableRows>(flags.context, kTokens, kRows, kRows), kTokens),
            kTokens + MaskedRows::kMoreTokens};
  }
  const TextSplit split = OpenText(flags.text, flags.context);
  const int64_t vocabulary = RoundedVocabulary(split.vocabulary);
  auto rows = [&](const Tokens& part) {
    return mask(std::make_shared<TokenRows>(part, TokenRowsOptions{.context = flags.context}), vocabulary);
  };
  return {Cat(flags.text, ": ", split.train.size(), " tokens to learn from, ", split.held_out.size(),
              " held out"),
          rows(split.train), split.held_out.size() > 0 ? rows(split.held_out) : nullptr,
          vocabulary + MaskedRows::kMoreTokens};
}

struct Outputs {
  Tensor logits, targets;
};
template <typename Graph>
Outputs Build(Graph& graph, const BertConfig& config, bool training) {
  const Annotation cut = CutBatch(graph.scope().mesh());
  const Dims shape = {training_flags().batch, flags.context};
  Tensor tokens = graph.Input("tokens", shape, DType::kInt32, cut);
  Tensor targets = graph.Input("targets", shape, DType::kInt32, cut);
  Tensor padding = graph.Input("padding", shape, DType::kInt32, cut);
  return {BertLogits(graph.scope(), tokens, padding, config, training), targets};
}

void MeasureHeldOut(const Launcher& launcher, Model& model, const BertConfig& config, const MaskedData& data,
                    Metrics& metrics) {
  if (training_flags().eval_batches == 0) return;
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
  CheckTrainingFlags();
  BertConfig config = BertOfSize(flags.size);
  if (flags.layers > 0) config.layers = flags.layers;
  config.context = flags.context;
  config.dropout = flags.dropout;
  const Mesh mesh = launcher.mesh(kAxes, kTrainingMesh, kMoreAxes);
  CheckBert(config, mesh);
  std::vector<Launcher::FlagFile> texts;
  if (!flags.text.empty())
    for (const std::string& file : TokenFilesOf(flags.text)) texts.push_back({"text", file});
  launcher.CheckFiles(texts, {{"log_json", training_flags().log_json}});
  RequireFolders(launcher);
  const MaskedData data = OpenMasked();
  config.vocabulary = data.vocabulary;
  return TrainProgram(
      launcher, mesh,
      {.about = Cat(data.name, ", vocabulary ", config.vocabulary),
       .samples = data.train,
       .unit = "tokens",
       .per_sample = flags.context,
       .loss =
           [&](Model& model) {
             const Outputs of = Build(model, config, true);
             return BertLoss(of.logits, of.targets);
           },
       .optimizer = AdamW{.lr = training_flags().lr, .eps = 1e-6, .weight_decay = flags.weight_decay},
       .model = ModelOptionsOfFlags(launcher),
       .train = TrainOptionsOfFlags(),
       .end = [&](Model& model,
                  Metrics& metrics) { MeasureHeldOut(launcher, model, config, data, metrics); }});
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  training_flags().unit = "sequences";
  training_flags().batch = 32;
  training_flags().steps = 1000;
  return ProgramMain(argc, argv, "Trains BERT to guess masked tokens, on any mesh of axes dp, tp and pp.",
                     {ModelGroup()}, [](const Launcher& launcher) { return TrainBert(launcher); });
}
