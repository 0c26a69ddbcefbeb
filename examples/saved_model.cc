#include "examples/saved_model.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "examples/gpt_huggingface.h"
#include "examples/llama_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/tools.h"
#include "oneflow_like/program/huggingface_config.h"

namespace examples {
namespace {

// Everything but the weights' place.
SavedModel OfGpt(const GptConfig& config) {
  SavedModel model;
  model.name = Gpt2Names(config).model;
  model.vocabulary = config.vocabulary;
  model.context = config.context;
  model.next = [config](Scope scope, Tensor tokens, const nn::Cache& cache) {
    return GptNext(std::move(scope), tokens, config, cache);
  };
  model.logits = [config](Scope scope, Tensor tokens) { return GptLogits(std::move(scope), tokens, config); };
  model.check = [config](const Mesh& mesh) { CheckGpt(config, mesh); };
  return model;
}

SavedModel OfLlama(const LlamaFolder& folder) {
  SavedModel model;
  const LlamaConfig& config = folder.config;
  model.name = LlamaNames(config).model;
  model.vocabulary = config.vocabulary;
  model.context = folder.context;
  model.next = [config](Scope scope, Tensor tokens, const nn::Cache& cache) {
    return LlamaNext(std::move(scope), tokens, config, cache);
  };
  model.logits = [config](Scope scope, Tensor tokens) {
    return LlamaLogits(std::move(scope), tokens, config);
  };
  model.check = [config](const Mesh& mesh) { CheckLlama(config, mesh); };
  return model;
}

using OpenWeights = std::function<std::shared_ptr<VariableSource>()>;

void SetLoad(const OpenWeights& open, const std::string& averages, SavedModel* saved) {
  saved->load = [open, averages, logits = saved->logits](Model& model, DType dtype) {
    // The graph tells the model its weights; no session is made of it.
    logits(model.scope(), model.Input("tokens", {1, 1}, DType::kInt32));
    ConvertedSource weights(open(), {.dtype = dtype, .weights_only = true, .weights = averages});
    LoadWeights(model, weights);
  };
}

}  // namespace

SavedModel OpenSavedModel(const std::string& path, const std::string& weights) {
  auto open = [path] { return OpenSource(path, nullptr); };
  const std::shared_ptr<VariableSource> source = open();
  (void)AveragesIn("--weights", *source, weights);  // refused before anything is loaded
  const auto* checkpoint = dynamic_cast<const CheckpointReader*>(source.get());
  std::optional<HuggingFaceConfig> config;
  if (checkpoint)
    if (const auto& state = checkpoint->index().state; state.count(kConfigFile))
      config = ConfigIn({{kConfigFile, state.at(kConfigFile)}}, source->where());
  SavedModel saved;
  if (source->variables().count("positions")) {
    saved = OfGpt(GptConfigOf(*source));
  } else if (source->variables().count("block0/mlp/gate") ||
             source->variables().count("block0/experts/up_gate")) {
    if (!config)
      Fail(source->where(), ": its weights are those of a Llama, but it lacks the ", kConfigFile,
           " that llama saves, which says how positions turn");
    saved = OfLlama(ReadLlamaConfig(*config));
  } else {
    Fail(source->where(),
         ": it has neither a GPT's weights nor a Llama's; for a folder of Hugging Face's use --load_hf");
  }
  if (checkpoint) saved.folder = source->where();
  if (config) saved.ends = EndsOfText(*config, saved.folder);
  SetLoad(open, weights, &saved);
  return saved;
}

SavedModel OpenHuggingFaceModel(const std::string& folder) {
  const HuggingFaceConfig config(folder);
  SavedModel saved;
  OpenWeights open;
  if (config.Is("model_type", "gpt2")) {
    saved = OfGpt(ReadGpt2Config(config));
    open = [folder] { return Gpt2Format().read(folder); };
  } else {
    const LlamaFolder llama = ReadLlamaConfig(config);
    saved = OfLlama(llama);
    open = [folder, llama] { return LlamaFormat(llama.config, llama.context).read(folder); };
  }
  saved.folder = folder;
  saved.ends = EndsOfText(config, folder);
  SetLoad(open, "", &saved);
  return saved;
}

}  // namespace examples
