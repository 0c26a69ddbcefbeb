// Trains a GPT on any text, on any mesh of axes dp, tp and pp; then measures it on held-out text and lets it
// write.
//   build/examples/gpt --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=4 --steps=300
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/random.h"
#include "examples/data.h"
#include "examples/gpt_huggingface.h"
#include "examples/gpt_model.h"
#include "examples/precision.h"
#include "examples/step_log.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/limits.h"
#include "oneflow_like/oneflow_like.h"

DEFINE_int64(layers, 4, "Transformer blocks");
DEFINE_int64(width, 128, "channels of the residual stream");
DEFINE_int64(heads, 4, "attention heads; divide width");
DEFINE_int64(context, 128, "tokens of one sequence");
DEFINE_int64(batch, 8, "sequences of one step");
DEFINE_int64(micro_batches, 1, "parts the batch is cut into, whose gradients are added");
DEFINE_int64(steps, 200, "optimizer steps");
DEFINE_double(dropout, 0.1, "probability of dropping");
DEFINE_double(lr, 1e-3, "learning rate at its highest");
DEFINE_int64(warmup, 20, "steps of rise; then a cosine");
DEFINE_double(clip, 1.0, "largest gradient norm; 0: any");
DEFINE_double(weight_decay, 0.1, "weight decay of AdamW");
DEFINE_string(dtype, "fp32", "fp32, bf16, or fp16");
DEFINE_string(schedule, "1f1b", "of the pipeline: 1f1b or gpipe");
DEFINE_string(recompute, "none", "layers: none, selective, full");
DEFINE_int32(zero, 0, "stage of ZeRO, 1 to 3; 0: none");
DEFINE_int32(prefetch, 1, "layers ahead in stage 3");
DEFINE_int64(lora, 0, "rank of adapters; 0: none");
DEFINE_bool(sequence_parallel, false, "norms, dropouts and residuals are cut along the sequence over tp");
DEFINE_bool(context_parallel, false, "sequences are cut over axis cp, keys and values gathered");
DEFINE_bool(ulysses, false, "sequences cut over sp");
DEFINE_string(zero_axis, "dp", "mesh axis of --zero");
DEFINE_string(text, "/usr/share/doc/jargon-text/jargon.txt.gz",
              "what to learn: any text, plain or gzip, or a token file of llm.c (.bin)");
DEFINE_string(log_json, "", "gets one JSON object per step");
DEFINE_string(save, "", "folder that gets checkpoints: at the end, and as --save_every says");
DEFINE_int64(save_every, 0, "steps between saves; 0: no");
DEFINE_bool(local, false, "--save where hosts share none");
DEFINE_int64(keep, 3, "newest checkpoints kept; 0: all");
DEFINE_string(resume, "",
              "folder of checkpoints, whose newest is gone on from; with none yet, a fresh start");
DEFINE_string(load, "", "checkpoint, or folder of them, whose weights are begun with");
DEFINE_bool(load_partial, false, "--load what both have");
DEFINE_string(load_hf, "",
              "Hugging Face's folder of a GPT-2, whose size is taken and whose weights are begun with");
DEFINE_string(save_hf, "",
              "folder that gets the weights at the end, as Hugging Face's transformers reads them");
DEFINE_int64(eval_batches, 16, "of held-out text; 0: none");
DEFINE_int64(sample_tokens, 300, "to write at the end");
DEFINE_double(temperature, 0.8, "of sampling; 0: the likeliest");
DEFINE_string(prompt, "The hacker", "the sample's beginning");

namespace oneflow_like {
namespace {

const int kStepsInFlight = 2;
const char* const kMesh = "cpu:dp=1,tp=1,pp=1";

Recompute RecomputeOf(const std::string& name) {
  for (Recompute r : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
    if (name == Name(r)) return r;
  Fail("--recompute=", name, ": must be none, selective or full");
}

void CheckFlags() {
  constexpr int64_t kMany = 1'000'000'000;
  CheckRange<int64_t>("--layers", FLAGS_layers, 1, 10'000);
  CheckRange<int64_t>("--width", FLAGS_width, 1, 1 << 20);
  CheckRange<int64_t>("--heads", FLAGS_heads, 1, 1 << 20);
  CheckRange<int64_t>("--context", FLAGS_context, 1, 1 << 20);
  CheckRange<int64_t>("--batch", FLAGS_batch, 1, 1 << 20);
  CheckRange<int64_t>("--micro_batches", FLAGS_micro_batches, 1, kMostMicroBatches);
  CheckRange<int64_t>("--steps", FLAGS_steps, 1, kMany);
  CheckRange<int64_t>("--warmup", FLAGS_warmup, 0, kMany);
  CheckRange<int64_t>("--save_every", FLAGS_save_every, 0, kMany);
  CheckRange<int64_t>("--keep", FLAGS_keep, 0, kMany);
  for (std::string* path : {&FLAGS_save, &FLAGS_resume, &FLAGS_load, &FLAGS_load_hf, &FLAGS_save_hf})
    while (path->size() > 1 && path->back() == '/') path->pop_back();
  if (FLAGS_save.empty() && FLAGS_save_every > 0) Fail("--save_every needs --save, the folder to save in");
  if (!FLAGS_resume.empty() && !FLAGS_load.empty())
    Fail("--resume goes on with a run and --load begins one: give one of the two");
  if (!FLAGS_load_hf.empty() && !FLAGS_load.empty())
    Fail("--load and --load_hf both give the weights to begin with: give one of the two");
  if (FLAGS_local && FLAGS_save.empty()) Fail("--local says how to --save, which is not given");
  if (FLAGS_local && !FLAGS_save_hf.empty())
    Fail("--save_hf needs a checkpoint that one process can read whole, which --local does not leave");
  if (FLAGS_load_partial && FLAGS_load.empty()) Fail("--load_partial says how to --load, which is not given");
  CheckRange<int64_t>("--eval_batches", FLAGS_eval_batches, 0, kMany);
  CheckRange<int64_t>("--sample_tokens", FLAGS_sample_tokens, 0, kMany);
  if (FLAGS_micro_batches > FLAGS_batch) {
    Fail("--micro_batches=", FLAGS_micro_batches, ": more than --batch=", FLAGS_batch, " sequences");
  }
  if (!(FLAGS_dropout >= 0 && FLAGS_dropout < 1))
    Fail("--dropout is ", FLAGS_dropout, ", must lie in [0, 1)");
  if (!(FLAGS_lr > 0 && FLAGS_lr <= 1e30)) Fail("--lr is ", FLAGS_lr, ", must be more than 0, at most 1e30");
  CheckRange("--clip", FLAGS_clip, 0.0, 1e30);
  CheckRange("--weight_decay", FLAGS_weight_decay, 0.0, 1e30);
  CheckRange("--temperature", FLAGS_temperature, 0.0, 1e30);
  PrecisionOf(FLAGS_dtype);
  RecomputeOf(FLAGS_recompute);
  CheckRange<int64_t>("--lora", FLAGS_lora, 0, 1 << 20);
  if (FLAGS_lora > 0 && !FLAGS_save_hf.empty())
    Fail("--save_hf has no place for the adapters of --lora=", FLAGS_lora, "; leave one of them out");
  CheckRange("--zero", FLAGS_zero, 0, 3);
  CheckRange("--prefetch", FLAGS_prefetch, 0, 1000);
  if (FLAGS_schedule != "1f1b" && FLAGS_schedule != "gpipe") {
    Fail("--schedule=", FLAGS_schedule, ": must be 1f1b or gpipe");
  }
}

// The mesh axis that cuts sequences; empty: none.
std::string SequenceAxis() {
  if (FLAGS_sequence_parallel + FLAGS_context_parallel + FLAGS_ulysses > 1)
    Fail("--sequence_parallel, --context_parallel and --ulysses each cut sequences: give one of them");
  return FLAGS_sequence_parallel ? "tp" : FLAGS_context_parallel ? "cp" : FLAGS_ulysses ? "sp" : "";
}

// How tokens come: their batch over dp, and sequences that another axis than that of products cuts.
Annotation TokensCut(const GptConfig& config) {
  Annotation cut = {{"dp", S(0)}};
  if (!config.sequence.empty() && config.sequence != "tp") cut.push_back({config.sequence, S(1)});
  return cut;
}

// The model's size: by the flags, or what --load_hf says, which a flag may repeat.
GptConfig ConfigOf(int64_t vocabulary) {
  if (!FLAGS_load_hf.empty()) {
    GptConfig config = ReadGpt2Config(FLAGS_load_hf);
    const std::tuple<const char*, int64_t, int64_t> sizes[] = {{"layers", FLAGS_layers, config.layers},
                                                               {"width", FLAGS_width, config.width},
                                                               {"heads", FLAGS_heads, config.heads}};
    for (const auto& [flag, asked, has] : sizes)
      if (!gflags::GetCommandLineFlagInfoOrDie(flag).is_default && asked != has)
        Fail("--", flag, "=", asked, ": the model of --load_hf=", FLAGS_load_hf, " has ", has);
    if (gflags::GetCommandLineFlagInfoOrDie("context").is_default)
      FLAGS_context = std::min(FLAGS_context, config.context);
    if (FLAGS_context > config.context)
      Fail("--context=", FLAGS_context, ": the model of --load_hf=", FLAGS_load_hf, " has ", config.context,
           " positions");
    if (vocabulary > config.vocabulary)
      Fail("--text=", FLAGS_text, " has a vocabulary of ", vocabulary,
           ", but the model of --load_hf=", FLAGS_load_hf, " has ", config.vocabulary);
    config.lora = FLAGS_lora;
    config.sequence = SequenceAxis();
    config.ulysses = FLAGS_ulysses;
    config.dropout = FLAGS_dropout;
    return config;
  }
  return {.layers = FLAGS_layers,
          .width = FLAGS_width,
          .heads = FLAGS_heads,
          .context = FLAGS_context,
          .vocabulary = vocabulary,
          .lora = FLAGS_lora,
          .sequence = SequenceAxis(),
          .ulysses = FLAGS_ulysses,
          .dropout = FLAGS_dropout};
}

Session MakeTraining(Model& model, const GptConfig& config) {
  const Dims shape = {FLAGS_batch, FLAGS_context};
  Tensor tokens = model.Input("tokens", shape, DType::kInt32, TokensCut(config));
  Tensor targets = model.Input("targets", shape, DType::kInt32, TokensCut(config));
  Tensor loss = GptLoss(model.scope(), tokens, targets, config);
  TrainOptions options;
  options.micro_batches = static_cast<int>(FLAGS_micro_batches);
  options.steps_in_flight = kStepsInFlight;
  options.schedule = FLAGS_schedule == "gpipe" ? PipelineSchedule::kGPipe : PipelineSchedule::k1F1B;
  options.dtype = PrecisionOf(FLAGS_dtype);
  options.recompute = RecomputeOf(FLAGS_recompute);
  options.clip_norm = FLAGS_clip;
  options.lr_schedule = {.kind = Schedule::Kind::kCosine,
                         .warmup = std::min(FLAGS_warmup, FLAGS_steps / 2),
                         .total = FLAGS_steps,
                         .final = 0.1};
  AdamW adamw{.lr = FLAGS_lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = FLAGS_weight_decay};
  return Train(loss, adamw, options);
}

Feeds FeedsOf(const TokenBatch& batch) {
  const Dims shape = {FLAGS_batch, FLAGS_context};
  return {{"tokens", ToHost(batch.tokens, shape)}, {"targets", ToHost(batch.targets, shape)}};
}

// What --resume, --load and --load_hf ask for. With --restarts what is in --save already overrides them.
void Begin(const Launcher& launcher, Model& model) {
  const bool again = launcher.restarted() && !Checkpoints(FLAGS_save).empty();
  const std::string resume = again ? FLAGS_save : FLAGS_resume;
  const std::string newest = resume.empty() ? "" : NewestCheckpoint(resume);
  if (!FLAGS_save.empty() && !Checkpoints(FLAGS_save).empty() &&
      (newest.empty() ||
       !std::filesystem::equivalent(std::filesystem::weakly_canonical(newest).parent_path(), FLAGS_save)))
    Fail("--save=", FLAGS_save, ": there are checkpoints already; go on from them with --resume=", FLAGS_save,
         ", or save in another folder");
  if (const std::vector<std::string> all = Checkpoints(FLAGS_save);
      !all.empty() && !std::filesystem::equivalent(newest, all.back()))
    Fail("--resume=", resume, ": --save=", FLAGS_save, " has later checkpoints, up to ", all.back(),
         "; remove them, or save in another folder");
  if (!newest.empty()) {
    const Loaded loaded = Load(model, resume);
    launcher.Print("going on from %s\n", loaded.path.c_str());
    return;
  }
  if (!resume.empty()) launcher.Print("%s: no checkpoint yet, a fresh start\n", resume.c_str());
  if (FLAGS_load.ends_with(".safetensors")) {
    ConvertedSource weights(std::make_shared<FileSource>(FLAGS_load), {DType::kFloat32, true});
    LoadWeights(model, weights, {.partial = FLAGS_load_partial});
    launcher.Print("weights of %s\n", FLAGS_load.c_str());
  } else if (!FLAGS_load.empty()) {
    const Loaded loaded = Load(model, FLAGS_load, {.weights_only = true, .partial = FLAGS_load_partial});
    launcher.Print("weights of %s%s\n", loaded.path.c_str(),
                   loaded.left_alone.empty()
                       ? ""
                       : Cat(", without ", loaded.left_alone.size(), " of the model's").c_str());
  }
  if (!FLAGS_load_hf.empty()) {
    ConvertedSource weights(Gpt2Format().read(FLAGS_load_hf), {.dtype = DType::kFloat32});
    LoadWeights(model, weights);
    launcher.Print("weights of %s\n", FLAGS_load_hf.c_str());
  }
}

// Folders that get something later are made and tried now.
void CheckFolders(const Launcher& launcher) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::path(FLAGS_save).lexically_normal() == fs::path(FLAGS_save_hf).lexically_normal() &&
      !FLAGS_save.empty())
    Fail("--save and --save_hf are both ", FLAGS_save, ": give each a folder of its own");
  if (!FLAGS_save_hf.empty() && !launcher.restarted() && fs::exists(fs::symlink_status(FLAGS_save_hf, error)))
    Fail("--save_hf=", FLAGS_save_hf, ": there is something of that name already");
  if (!launcher.main_process() || launcher.dry_run()) return;
  auto require = [&](const char* flag, const std::string& value, const fs::path& folder) {
    fs::create_directories(folder, error);
    if (error)
      Fail("--", flag, "=", value, ": folder ", folder.string(), " cannot be made: ", error.message());
    if (access(folder.c_str(), W_OK) != 0)
      Fail("--", flag, "=", value, ": nothing can be written there: ", std::strerror(errno));
  };
  if (!FLAGS_save.empty()) require("save", FLAGS_save, FLAGS_save);
  if (!FLAGS_save_hf.empty()) require("save_hf", FLAGS_save_hf, fs::absolute(FLAGS_save_hf).parent_path());
}

// Returns where the training was saved when it was interrupted; empty: it has made all its steps.
std::string RunTraining(const Launcher& launcher, Model& model, Session& train, TokenSpan text, uint64_t seed,
                        StepLog& log, Interruptions* interruptions) {
  const double tokens_per_step = static_cast<double>(FLAGS_batch * FLAGS_context);
  ProgressLine progress(launcher);
  std::deque<StepResult> in_flight;
  std::optional<SaveHandle> saved;
  Stopwatch watch;
  float loss = 0;
  const int64_t first = model.next_step();
  // Seconds; the first step also loads the plan and is left out of the rate.
  double first_end = 0, last_end = 0;
  auto finish_one = [&] {
    loss = in_flight.front().Scalar("loss");  // throws, naming the step, when it is NaN
    const int64_t step = in_flight.front().step();
    in_flight.pop_front();
    const double now = watch.Seconds(), seconds = now - last_end;
    last_end = now;
    if (step == first) first_end = now;
    log.Write(step, loss, "tokens_per_s", tokens_per_step / seconds, 1e3 * seconds);
    const double mean_seconds = step == first ? seconds : (now - first_end) / (step - first);
    char line[120];
    std::snprintf(line, sizeof line, "step %lld/%lld  loss %.4f  %.0f tokens/s  %s left",
                  static_cast<long long>(step + 1), static_cast<long long>(FLAGS_steps),
                  static_cast<double>(loss), tokens_per_step / mean_seconds,
                  MinutesAndSeconds(mean_seconds * (FLAGS_steps - step - 1)).c_str());
    progress.Update(line);
  };
  bool stop = false;
  for (int64_t step = first; step < FLAGS_steps && !stop; ++step) {
    in_flight.push_back(train.Run(FeedsOf(RandomBatch(text, FLAGS_batch, FLAGS_context, seed, step))));
    stop = interruptions && interruptions->Agreed();
    const bool save = !FLAGS_save.empty() && (stop || step + 1 == FLAGS_steps ||
                                              (FLAGS_save_every > 0 && (step + 1) % FLAGS_save_every == 0));
    // Steps are in the log before they are saved, so that a kill leaves no gap.
    while (!in_flight.empty() && (save || in_flight.size() >= static_cast<size_t>(kStepsInFlight)))
      finish_one();
    if (save) saved = Save(model, FLAGS_save, {.keep = static_cast<int>(FLAGS_keep), .local = FLAGS_local});
  }
  while (!in_flight.empty()) finish_one();
  if (saved) saved->Wait();
  progress.End();
  if (!stop && interruptions && first < FLAGS_steps)
    stop = interruptions->Agreed();  // while the last was saved
  if (stop) return saved->path();
  const int64_t steps = std::max<int64_t>(0, FLAGS_steps - first);
  if (steps == 0) {
    launcher.Print("all of the %lld steps had been made before\n", static_cast<long long>(FLAGS_steps));
    return "";
  }
  launcher.Print("%lld steps in %s, last loss %.4f, %.0f tokens/s\n", static_cast<long long>(steps),
                 MinutesAndSeconds(last_end).c_str(), static_cast<double>(loss),
                 tokens_per_step * static_cast<double>(steps) / last_end);
  return "";
}

// The weights are those of training, by their names; only the graph is another: no dropout, no gradient.
void MeasureHeldOut(const Launcher& launcher, Model& model, GptConfig config, TokenSpan text) {
  config.dropout = 0;
  const Dims shape = {FLAGS_batch, FLAGS_context};
  ModelGraph graph = model.NewGraph("eval");
  Tensor tokens = graph.Input("tokens", shape, DType::kInt32, TokensCut(config));
  Tensor targets = graph.Input("targets", shape, DType::kInt32, TokensCut(config));
  Session eval = Evaluate({{"loss", GptLoss(graph.scope(), tokens, targets, config)}},
                          {.name = "eval", .dtype = PrecisionOf(FLAGS_dtype)});
  double total = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < FLAGS_eval_batches; ++i) {
    TokenBatch batch = ConsecutiveBatch(text, FLAGS_batch, FLAGS_context, i);
    if (batch.counted == 0) break;
    // The mean is over all positions, also over those past the end of the text, whose loss is 0.
    total += static_cast<double>(eval.Run(FeedsOf(batch)).Scalar("loss")) * batch.tokens.size();
    counted += batch.counted;
  }
  eval.Close();
  launcher.Print("held-out loss %.4f over %lld tokens (perplexity %.2f)\n", total / counted,
                 static_cast<long long>(counted), std::exp(total / counted));
}

int32_t Draw(const float* logits, int64_t classes, double temperature, float uniform) {
  const int64_t best = std::max_element(logits, logits + classes) - logits;
  if (temperature == 0) return static_cast<int32_t>(best);
  std::vector<double> weights(classes);
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) {
    sum += weights[c] = std::exp((static_cast<double>(logits[c]) - logits[best]) / temperature);
  }
  double left = uniform * sum;
  for (int64_t c = 0; c < classes; ++c) {
    if ((left -= weights[c]) < 0) return static_cast<int32_t>(c);
  }
  return static_cast<int32_t>(best);
}

void WriteSample(const Launcher& launcher, Model& model, GptConfig config, const TokenData& data,
                 uint64_t seed) {
  config.dropout = 0;
  const int64_t context = FLAGS_context, classes = data.vocabulary;  // of a larger one, what text has
  // One sequence: every replica of dp computes it whole.
  ModelGraph graph = model.NewGraph("generate");
  Tensor tokens = graph.Input("prompt", {1, context}, DType::kInt32, {{"dp", B()}});
  Session generate = Evaluate({{"logits", GptLogits(graph.scope(), tokens, config)}},
                              {.name = "generate", .dtype = PrecisionOf(FLAGS_dtype)});
  std::vector<int32_t> written;
  if (data.bytes) {
    for (unsigned char c : FLAGS_prompt) written.push_back(c);
  }
  if (written.empty()) written.push_back(data.tokens[0]);
  const uint64_t key = RandomKey(seed, HashName("sample"));
  for (int64_t i = 0; i < FLAGS_sample_tokens; ++i) {
    // The last tokens that fit; what stands after them is not seen by causal attention.
    const int64_t length = std::min<int64_t>(written.size(), context);
    std::vector<int32_t> window(written.end() - length, written.end());
    window.resize(context, 0);
    StepResult result = generate.Run({{"prompt", ToHost(window, {1, context})}});
    const float* logits = result.Get("logits").as<float>() + (length - 1) * config.vocabulary;
    written.push_back(Draw(logits, classes, FLAGS_temperature, ToUniform(RandomBits(key, 0, i))));
  }
  generate.Close();
  std::string text;
  for (int32_t token : written) {
    if (data.bytes)
      text += static_cast<char>(token);
    else
      text += Cat(token, " ");
  }
  launcher.Print("--- a sample%s ---\n%s\n", data.bytes ? "" : ", as token numbers", Escaped(text).c_str());
}

// As transformers reads it, from a checkpoint: the last one, or one that is made for this and goes again.
void SaveHuggingFace(const Launcher& launcher, Model& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path at = fs::absolute(FLAGS_save_hf);
  const std::string beside = at.parent_path() / Cat(".", at.filename().string(), ".checkpoint");
  const std::string folder = FLAGS_save.empty() ? beside : FLAGS_save;
  if (launcher.main_process()) fs::remove_all(beside, error);
  const std::string last = FLAGS_save.empty() ? Save(model, folder).Wait() : Checkpoints(folder).back();
  if (launcher.main_process()) {  // unless an earlier attempt of --restarts has
    if (!fs::exists(at, error)) Gpt2Format().write(std::make_shared<CheckpointReader>(last), FLAGS_save_hf);
    fs::remove_all(beside, error);
  }
  launcher.Print("weights for transformers in %s\n", FLAGS_save_hf.c_str());
}

int Run(const Launcher& launcher) {
  CheckFlags();
  const Mesh mesh = launcher.mesh({"dp", "tp", "pp"}, kMesh, {"cp", "sp"});
  CheckGpt(ConfigOf(1), mesh);
  launcher.CheckFiles({{"text", FLAGS_text}}, {{"log_json", FLAGS_log_json}});
  CheckFolders(launcher);
  StepLog log(launcher.main_process() ? FLAGS_log_json : "");
  const TokenData data = LoadTokens(FLAGS_text);
  const TextSplit split = SplitText(data.tokens, FLAGS_context, FLAGS_text);
  const GptConfig config = ConfigOf(data.vocabulary);

  ModelOptions options = launcher.model_options();
  if (FLAGS_zero > 0)
    options.zero = {.axis = FLAGS_zero_axis, .stage = FLAGS_zero, .prefetch = FLAGS_prefetch};
  if (FLAGS_lora > 0) options.weights = {{"*", {.trainable = false}}, {"*_lora_*", {.trainable = true}}};
  Model model(mesh, options);
  Session train = MakeTraining(model, config);
  if (launcher.explain()) launcher.Print("%s", train.ExplainText().c_str());
  if (launcher.dry_run()) {
    launcher.Print("%s", train.SummaryText().c_str());
    return 0;
  }
  launcher.Print("%s: %lld tokens to learn from, %lld held out, vocabulary %lld, on %s\n", FLAGS_text.c_str(),
                 static_cast<long long>(split.train.size()), static_cast<long long>(split.held_out.size()),
                 static_cast<long long>(config.vocabulary), mesh.str().c_str());
  std::optional<Interruptions> interruptions;
  if (!FLAGS_save.empty()) interruptions.emplace(launcher);
  Begin(launcher, model);
  const std::string saved = RunTraining(launcher, model, train, split.train, options.seed, log,
                                        interruptions ? &*interruptions : nullptr);
  if (!saved.empty()) {
    launcher.Print("interrupted: the run is saved in %s, --resume=%s goes on from there; exit code %d\n",
                   saved.c_str(), FLAGS_save.c_str(), kInterrupted);
    train.Close();
    return kInterrupted;
  }
  interruptions.reset();  // what follows can be done again
  if (!FLAGS_save_hf.empty()) SaveHuggingFace(launcher, model);
  if (FLAGS_eval_batches > 0 && split.held_out.empty()) {
    launcher.Print("the text is too short to hold any of it out\n");
  } else if (FLAGS_eval_batches > 0) {
    MeasureHeldOut(launcher, model, config, split.held_out);
  }
  if (FLAGS_sample_tokens > 0) WriteSample(launcher, model, config, data, options.seed);
  launcher.Print("%s", train.ProfileText().c_str());
  train.Close();  // a trace that cannot be written is an error here
  return 0;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::Launcher launcher(&argc, &argv, "Trains a GPT on text, on any mesh of axes dp, tp and pp.",
                                  oneflow_like::kMesh);
  return launcher.Main([&] { return oneflow_like::Run(launcher); });
}
