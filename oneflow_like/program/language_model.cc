#include "oneflow_like/program/language_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "oneflow_like/checkpoint/tools.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/data/token_files.h"
#include "oneflow_like/program/data.h"
#include "oneflow_like/program/huggingface_run.h"
#include "oneflow_like/program/language_flags.h"
#include "oneflow_like/program/plan_file.h"
#include "oneflow_like/program/precision.h"
#include "oneflow_like/program/program.h"

namespace oneflow_like {
namespace {

// What is learnt and measured.
struct LanguageData {
  std::string name;                                     // for people
  std::shared_ptr<const SampleSource> train, held_out;  // nullptr: nothing is held out
  int64_t held_out_targets = 0;
  int64_t tokens = 0;      // how many different ones there are; a model may have room for more
  int64_t vocabulary = 0;  // that a model needs at least; 0: any
  bool text = false;       // tokens are bytes
  int32_t first = 0;       // a token to begin a sample with
};

// For a model that has room for so many different tokens.
LanguageData SyntheticData(int64_t vocabulary) {
  constexpr int64_t kMostTokens = 256, kRows = 1 << 20;
  const int64_t tokens = std::min(kMostTokens, vocabulary);
  LanguageData data{.name = "synthetic tokens, each but for noise a function of the one before"};
  data.train = std::make_shared<LearnableRows>(language_flags().context, tokens, 0, kRows);
  data.held_out = std::make_shared<LearnableRows>(language_flags().context, tokens, kRows, kRows);
  data.held_out_targets = std::numeric_limits<int64_t>::max();
  data.tokens = tokens;
  return data;
}

LanguageData OpenData(int64_t vocabulary) {
  // What is simulated needs no text, and any byte may come.
  if (language_flags().text.empty() || (training_flags().simulate && !IsGiven("text")))
    return SyntheticData(vocabulary);
  const TextSplit split = OpenText(language_flags().text, language_flags().context);
  LanguageData data{.name = Cat(language_flags().text, ": ", split.train.size(), " tokens to learn from, ",
                                split.held_out.size(), " held out")};
  data.train =
      std::make_shared<TokenRows>(split.train, TokenRowsOptions{.context = language_flags().context});
  if (split.held_out.size() > 0)
    data.held_out = std::make_shared<TokenRows>(
        split.held_out, TokenRowsOptions{.context = language_flags().context, .tail = true});
  data.held_out_targets = split.held_out.size() - 1;
  data.tokens = data.vocabulary = split.vocabulary;
  data.text = split.all.text();
  split.all.Read(0, 1, &data.first);
  return data;
}

// The tokens of a model for these data: as many as there are where --load_hf says what it has, or as those
// that the run begins with have rows. Bytes are no other tokenizer's numbers.
int64_t VocabularyFor(const Launcher& launcher, const LanguageData& data) {
  if (!hugging_face_flags().load_hf.empty()) return data.vocabulary;
  if (const std::string path = BeginningOf(launcher); !path.empty() && !data.text) {
    RequireBeginning(launcher);
    const std::shared_ptr<VariableSource> begin = OpenSource(path, nullptr);
    const auto table = begin->variables().find("embedding");
    if (table != begin->variables().end() && table->second.shape.rank() == 2 &&
        table->second.shape[0] >= data.vocabulary)
      return table->second.shape[0];
  }
  return RoundedVocabulary(data.vocabulary);
}

Tensor Loss(Scope scope, Tensor tokens, Tensor targets, const LanguageModel& language, bool training) {
  const nn::DealtSequence dealt(scope, language_flags().context, DealtAxis(scope.mesh(), language.drops));
  Tensor dealt_tokens = dealt.Deal(tokens), dealt_targets = dealt.Deal(targets);
  return mean(language.losses(scope, dealt_tokens, dealt_targets, dealt.positions(), training));
}

Tensor TrainingLoss(Model& model, const LanguageModel& language) {
  const Dims shape = {training_flags().batch, language_flags().context};
  Tensor tokens = model.Input("tokens", shape, DType::kInt32, TokensCut(model.mesh()));
  Tensor targets = model.Input("targets", shape, DType::kInt32, TokensCut(model.mesh()));
  if (language.loss) return language.loss(model.scope(), tokens, targets);
  return Loss(model.scope(), tokens, targets, language, true);
}

// The weights are those of training, by their names; only the graph is another: no dropout, no gradient.
void MeasureHeldOut(const Launcher& launcher, Model& model, const LanguageModel& language,
                    const LanguageData& from, Metrics& metrics) {
  const Dims shape = {training_flags().batch, language_flags().context};
  ModelGraph graph = model.NewGraph("eval");
  Tensor tokens = graph.Input("tokens", shape, DType::kInt32, TokensCut(model.mesh()));
  Tensor targets = graph.Input("targets", shape, DType::kInt32, TokensCut(model.mesh()));
  EvaluateOptions options = EvaluateOptionsOfFlags("eval");
  options.logits_tile = language.logits_tile;
  Session eval = Evaluate({{"loss", Loss(graph.scope(), tokens, targets, language, false)}}, options);
  const int64_t positions = training_flags().batch * language_flags().context;  // of a batch
  double total = 0;
  int64_t batches = 0;
  // The mean is over all positions, also over those past the end of the text, whose loss is 0.
  ForEachHeldOut(launcher, eval, from.held_out, {{"targets", -1}}, [&](const StepResult& result, int64_t) {
    total += static_cast<double>(result.Scalar("loss")) * positions;
    ++batches;
  });
  const int64_t counted = std::min(from.held_out_targets, batches * positions);
  eval.Close();
  metrics.Add(model.next_step(), {{"held_out_loss", total / counted}});
  launcher.Print("held-out loss %.4f over %lld tokens (perplexity %.2f)\n", total / counted,
                 static_cast<long long>(counted), std::exp(total / counted));
}

void WriteSample(const Launcher& launcher, Model& model, const LanguageModel& language,
                 const LanguageData& data, uint64_t seed) {
  std::vector<int32_t> prompt;
  if (data.text) prompt = ByteTokenizer().Encode(language_flags().prompt);
  if (prompt.empty()) prompt.push_back(data.first);
  // Of a prompt that does not fit, the end.
  const int64_t read = std::min<int64_t>(std::ssize(prompt), language_flags().context);
  Generator generator(model, language.next,
                      {.length = language_flags().context,
                       .batch = BatchAxis(model.mesh()),
                       .session = {.name = "sample",
                                   .parallel = {.batch = BatchAxis(model.mesh()), .tensor = "tp"},
                                   .dtype = PrecisionOf(training_flags().dtype)},
                       .weights = WeightsOfFlags()});
  const std::vector<std::vector<int32_t>> more =
      Generate(generator, {{prompt.end() - read, prompt.end()}},
               {.tokens = language_flags().sample_tokens,
                .sampling = {.temperature = language_flags().temperature,
                             .seed = seed,
                             .known = std::vector<bool>(data.tokens, true)}});
  prompt.insert(prompt.end(), more[0].begin(), more[0].end());
  std::string text;
  if (data.text) text = ByteTokenizer().Decode(prompt);
  for (size_t i = 0; !data.text && i < prompt.size(); ++i) text += Cat(prompt[i], " ");
  launcher.Print("--- a sample%s ---\n%s\n", data.text ? "" : ", as token numbers", Escaped(text).c_str());
}

// What follows a training that has made all its steps.
void UseWhatWasLearnt(const Launcher& launcher, Model& model, const LanguageModel& language,
                      const LanguageData& data, const FolderFiles& files, uint64_t seed, Metrics& metrics) {
  SaveHuggingFace(launcher, model, language.huggingface, language.config, files);
  if (training_flags().eval_batches > 0 && !data.held_out) {
    launcher.Print("the text is too short to hold any of it out\n");
  } else if (training_flags().eval_batches > 0) {
    MeasureHeldOut(launcher, model, language, data, metrics);
  }
  if (language_flags().sample_tokens > 0) WriteSample(launcher, model, language, data, seed);
}

}  // namespace

int TrainLanguageModel(const Launcher& launcher, const MakeLanguageModel& make,
                       const std::vector<std::string>& more_axes) {
  CheckLanguageFlags();
  std::vector<std::string> optional = more_axes;
  optional.insert(optional.end(), kMoreAxes.begin(), kMoreAxes.end());
  const std::optional<SavedPlan> plan = PlanOfFile();
  const Mesh mesh = launcher.mesh(kAxes, plan ? plan->decisions.mesh.str() : kTrainingMesh, optional);
  RequireSequenceAxes(mesh);
  const ModelFiles files = FilesOfBeginning(launcher);
  const HuggingFaceConfig* theirs = files.config ? &*files.config : nullptr;
  // Refuses what it does before the text is read.
  const int64_t least = make(0, mesh, SequenceAxes(), theirs).vocabulary;
  std::vector<Launcher::FlagFile> texts;
  if (!language_flags().text.empty() && !(training_flags().simulate && !IsGiven("text")))
    for (const std::string& file : TokenFilesOf(language_flags().text)) texts.push_back({"text", file});
  launcher.CheckFiles(texts, {{"log_json", training_flags().log_json}});
  RequireHuggingFaceFolder(launcher);
  RequireFolders(launcher);
  const LanguageData data = OpenData(least);
  const int64_t vocabulary = VocabularyFor(launcher, data);
  LanguageModel language = make(vocabulary, mesh, SequenceAxes(), theirs);
  if (!language.next && language_flags().sample_tokens > 0)
    Fail("--sample_tokens=", language_flags().sample_tokens,
         ": this program writes no samples; leave it out");
  ModelOptions options = ModelOptionsOfFlags(launcher);
  options.weights = language.weights;
  TrainOptions train = LanguageTrainOptions();
  train.logits_tile = language.logits_tile;
  std::string config = language.config;
  std::erase(config, '\n');
  std::shared_ptr<VariableSource> weights = OpenHuggingFace(launcher, language.huggingface);
  // Other axes that cut sequences stay.
  const bool may_cut = language.cuts_sequences && SequenceAxes(false).empty();
  std::mutex making;  // flags are read, and may be fitted to a model that is loaded
  std::function<Tensor(Model&, bool)> cut_loss;
  if (may_cut)
    cut_loss = [&](Model& model, bool sequence_parallel) {
      std::unique_lock lock(making);
      const LanguageModel here = make(vocabulary, model.mesh(), SequenceAxes(sequence_parallel), theirs);
      lock.unlock();
      return TrainingLoss(model, here);
    };
  return TrainProgram(
      launcher, mesh,
      {.about = Cat(data.name, ", vocabulary ", language.vocabulary),
       .samples = data.train,
       .unit = "tokens",
       .per_sample = language_flags().context,
       .loss = [&](Model& model) { return TrainingLoss(model, language); },
       .optimizer = LanguageOptimizer(),
       .model = options,
       .train = train,
       .state = config.empty() ? std::map<std::string, std::string>()
                               : std::map<std::string, std::string>{{kConfigFile, config}},
       .files = files.others,
       .cut_loss = cut_loss,
       .chosen =
           [&](const Mesh& chosen, bool sequence_parallel) {
             language = make(vocabulary, chosen, SequenceAxes(sequence_parallel), theirs);
           },
       .begin = [&](Model& model) { LoadHuggingFace(launcher, model, std::exchange(weights, nullptr)); },
       .end =
           [&](Model& model, Metrics& metrics) {
             UseWhatWasLearnt(launcher, model, language, data, files.others, options.seed, metrics);
           }});
}

int LanguageMain(int argc, char** argv, const std::string& usage, std::vector<FlagGroup> groups,
                 const MakeLanguageModel& make, const std::vector<std::string>& more_axes) {
  training_flags().unit = "sequences";
  groups.push_back(LanguageGroup());
  groups.push_back(HuggingFaceGroup());
  return ProgramMain(argc, argv, usage, groups,
                     [&](const Launcher& launcher) { return TrainLanguageModel(launcher, make, more_axes); });
}

}  // namespace oneflow_like
