// Goes on with texts: a GPT, a Llama or a Qwen 2, of this library's checkpoints or Hugging Face's folders, on
// any mesh of axes dp, tp and pp.
//   build/examples/generate --load=run --prompt="The hacker" --tokens=300 --mesh=cpu:tp=2
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/system/text_lines.h"
#include "examples/saved_model.h"
#include "oneflow_like/data/files.h"
#include "oneflow_like/job/agreement.h"
#include "oneflow_like/program/precision.h"
#include "oneflow_like/text/tokenizers.h"
#include "oneflow_like/text/utf8.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string load, load_hf, weights, prompt, prompts, tokenizer, stop;
  std::string dtype = "fp32";
  int64_t tokens = 100, top_k = 0, context = 0, chunk = 256;
  double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  bool profile = false;
} flags;

FlagGroup OwnGroup() {
  return {
      "generation",
      "Generation",
      {{"load", &flags.load, "Reads the model from a checkpoint of gpt or llama.", kAnyValue, kCommon},
       {"load_hf", &flags.load_hf, "Reads the model from a Hugging Face folder.", kAnyValue, kCommon},
       {"weights", &flags.weights, "Chooses 'average' for the averages that the training of --load kept."},
       {"prompt", &flags.prompt, "Continues this text; the flag may be repeated.", kAnyValue, kCommon},
       {"prompts", &flags.prompts, "Continues each line of this file.", kAnyValue, kCommon},
       {"tokens", &flags.tokens, "Writes up to this many tokens after each prompt.", RangeOf(1, 1 << 28),
        kCommon},
       {"tokenizer", &flags.tokenizer,
        "Names the tokenizer: a file or folder, bytes, or numbers; empty means that of the model."},
       {"temperature", &flags.temperature,
        "Sets the temperature of sampling; 0 takes the most likely token each time.", kAnyValue, kCommon},
       {"top_k", &flags.top_k, "Draws from this many of the most likely tokens; 0 draws from all."},
       {"top_p", &flags.top_p, "Draws from the most likely tokens that together have this probability."},
       {"min_p", &flags.min_p, "Discards tokens less likely than this fraction of the most likely one."},
       {"repetition_penalty", &flags.repetition_penalty,
        "Makes tokens that have occurred less likely when above 1."},
       {"stop", &flags.stop,
        "Lists tokens, by name or number with commas between them, that end a text; empty takes those of the "
        "model, none takes none."},
       {"context", &flags.context, "Limits how many tokens are looked at; 0 takes all that the model can.",
        RangeOf(0, 1e18)},
       {"chunk", &flags.chunk, "Reads prompts in pieces of this many tokens.", RangeOf(1, 1 << 20)},
       {"dtype", &flags.dtype, "Computes in fp32, bf16 or fp16.", ChoiceOf({"fp32", "bf16", "fp16"}),
        kCommon},
       {"profile", &flags.profile, "Prints where the time went."}}};
}

const char* const kMesh = "cpu:dp=1,tp=1,pp=1";

// Token numbers as text, for models whose tokenizer is not at hand: "17 4 99".
class NumberTokenizer final : public Tokenizer {
 public:
  explicit NumberTokenizer(int64_t vocabulary) : vocabulary_(vocabulary) {}
  int64_t vocabulary() const override { return vocabulary_; }
  std::vector<int32_t> Encode(const std::string& text) const override {
    std::vector<int32_t> tokens;
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      const int32_t token = Find(word);
      if (token < 0) Fail("prompt '", text, "': '", word, "' is no token number below ", vocabulary_);
      tokens.push_back(token);
    }
    return tokens;
  }
  std::string Decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    for (int32_t token : tokens) text += Cat(token, " ");
    return text;
  }
  int32_t Find(const std::string& name) const override {
    if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != std::string::npos)
      return -1;
    const int32_t token = std::stoi(name);
    return token < vocabulary_ ? token : -1;
  }

 private:
  const int64_t vocabulary_;
};

struct Prompts {
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
};

// Its path is empty where it is of no file.
TokenizerFile TokenizerFor(const Launcher& launcher, const SavedModel& model) {
  constexpr int64_t kBytes = 256;
  std::string which = flags.tokenizer;
  if (which.empty())
    which = !model.folder.empty() && HasTokenizer(model.folder) ? model.folder
            : model.vocabulary == kBytes                        ? "bytes"
                                                                : "numbers";
  if (which == "bytes") return {std::make_shared<ByteTokenizer>(), "", ""};
  if (which == "numbers") return {std::make_shared<NumberTokenizer>(model.vocabulary), "", ""};
  TokenizerFile found = FindTokenizer(which);
  if (!found.refused.empty() && launcher.main_process())
    std::fprintf(stderr, "note: %s; %s is read instead\n", found.refused.c_str(), found.path.c_str());
  return found;
}

// What may be drawn: numbers of the model that the tokenizer knows, and those that end a text.
std::vector<bool> Known(const SavedModel& model, const Tokenizer& tokenizer,
                        const std::vector<int32_t>& stops) {
  std::vector<bool> known;
  for (int64_t t = 0; t < model.vocabulary; ++t) known.push_back(tokenizer.Has(static_cast<int32_t>(t)));
  for (int32_t stop : stops)
    if (stop < model.vocabulary) known[stop] = true;
  return known;
}

std::vector<int32_t> StopsOf(const SavedModel& model, const Tokenizer& tokenizer) {
  if (flags.stop.empty()) return model.ends;
  std::vector<int32_t> stops;
  std::istringstream names(flags.stop == "none" ? "" : flags.stop);
  for (std::string name; std::getline(names, name, ',');) {
    int32_t token = tokenizer.Find(name);
    if (token < 0) token = NumberTokenizer(model.vocabulary).Find(name);
    if (token < 0)
      Fail("--stop=", flags.stop, ": '", name, "' is neither a token of the tokenizer nor a number below ",
           model.vocabulary);
    stops.push_back(token);
  }
  return stops;
}

Prompts PromptsOf(const std::vector<std::string>& given, const Tokenizer& tokenizer,
                  const SavedModel& model) {
  Prompts prompts{given};
  if (!flags.prompts.empty()) {
    std::istringstream text(ReadFile(flags.prompts, 1 << 28));
    TextLines lines(text, "--prompts=" + flags.prompts);
    for (std::string line; lines.Next(&line);)
      if (!line.empty()) prompts.texts.push_back(line);
    if (prompts.texts.empty()) Fail("--prompts=", flags.prompts, ": there is no line in it");
  }
  if (prompts.texts.empty()) Fail("give a text's beginning by --prompt, or a file of such by --prompts");
  for (size_t i = 0; i < prompts.texts.size(); ++i) {
    prompts.tokens.push_back(tokenizer.EncodeWhole(prompts.texts[i]));
    const std::string who = Cat("prompt ", i + 1, " ('", ForTerminal(prompts.texts[i].substr(0, 40)), "')");
    if (prompts.tokens[i].empty()) Fail(who, " has no tokens, but a text must begin with one");
    for (int32_t token : prompts.tokens[i])
      if (token >= model.vocabulary)
        Fail(who, " has token ", token, " of the tokenizer, but the model knows ", model.vocabulary);
  }
  return prompts;
}

// How many tokens of a sequence the model is to look at.
int64_t LengthFor(const Prompts& prompts, const SavedModel& model) {
  if (flags.context > model.context)
    Fail("--context is ", flags.context, ", must be at most ", model.context);
  const int64_t most = flags.context > 0 ? flags.context : model.context;
  int64_t longest = 0;
  for (size_t i = 0; i < prompts.tokens.size(); ++i) {
    const int64_t size = std::ssize(prompts.tokens[i]);
    if (size > most)
      Fail("prompt ", i + 1, " has ", size, " tokens, but the ",
           flags.context > 0 ? Cat("--context is ", most) : Cat("model looks at ", most));
    longest = std::max(longest, size);
  }
  return std::min(most, longest + flags.tokens);
}

SamplingOptions SamplingOfFlags(uint64_t seed, std::vector<bool> known) {
  const SamplingOptions sampling = {.repetition_penalty = flags.repetition_penalty,
                                    .temperature = flags.temperature,
                                    .top_k = flags.top_k,
                                    .top_p = flags.top_p,
                                    .min_p = flags.min_p,
                                    .seed = seed,
                                    .known = std::move(known)};
  const Sampler checked(sampling);
  return sampling;
}

// Shows texts as they come: one text token by token, several each when it has ended.
class Writing {
 public:
  Writing(const Launcher& launcher, const Tokenizer& tokenizer, const Prompts& prompts)
      : launcher_(launcher), single_(prompts.texts.size() == 1) {
    for (size_t i = 0; i < prompts.texts.size(); ++i) {
      streams_.emplace_back(tokenizer, prompts.tokens[i]);
      texts_.push_back(ForTerminal(prompts.texts[i]));
      if (dynamic_cast<const NumberTokenizer*>(&tokenizer)) texts_[i] += " ";
    }
    if (single_) Show(texts_[0]);
  }
  void Add(int64_t i, int32_t token) { Append(i, streams_[i].Add(token)); }
  void End(int64_t i) {
    Append(i, streams_[i].End());
    if (single_) {
      Show("\n");
    } else {
      Show(Cat("--- ", i + 1, " ---\n", texts_[i], "\n"));
    }
  }

 private:
  void Append(int64_t i, const std::string& more) {
    const std::string shown = ForTerminal(more);
    single_ ? Show(shown) : void(texts_[i] += shown);
  }
  void Show(const std::string& text) {
    launcher_.Print("%s", text.c_str());
    if (launcher_.main_process()) std::fflush(stdout);
  }

  const Launcher& launcher_;
  const bool single_;
  std::vector<TokenStream> streams_;
  std::vector<std::string> texts_;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void CheckGenerateFlags() {
  if (flags.load.empty() == flags.load_hf.empty())
    Fail(
        "give the model by --load, a checkpoint of gpt or llama, or by --load_hf, a folder of Hugging "
        "Face's, one of the two");
  if (!flags.weights.empty() && flags.load.empty())
    Fail("--weights=", flags.weights, " says what to --load of a checkpoint, which is not given");
  SamplingOfFlags(0, {});
}

// Hosts may have other files of prompts, and tokenizers, under one name.
void RequireSamePrompts(Job* job, const Prompts& prompts, const std::vector<int32_t>& stops) {
  if (!job) return;
  std::string text;
  auto add = [&](const std::string& what, const std::vector<int32_t>& tokens) {
    text += what;
    for (int32_t token : tokens) text += Cat(" ", token);
    text += '\n';
  };
  for (size_t i = 0; i < prompts.tokens.size(); ++i) add(Cat("prompt ", i + 1, ":"), prompts.tokens[i]);
  add("stop:", stops);
  RequireAgreement(job, "what is read of prompts, as tokens,", text);
}

int RunGenerate(const Launcher& launcher, const std::vector<std::string>& given) {
  CheckGenerateFlags();
  const Mesh mesh = launcher.mesh({"dp", "tp", "pp"}, kMesh);
  const SavedModel saved =
      flags.load.empty() ? OpenHuggingFaceModel(flags.load_hf) : OpenSavedModel(flags.load, flags.weights);
  saved.check(mesh);
  const auto [tokenizer, file, refused] = TokenizerFor(launcher, saved);
  const std::vector<int32_t> stops = StopsOf(saved, *tokenizer);
  const Prompts prompts = PromptsOf(given, *tokenizer, saved);
  const int64_t length = LengthFor(prompts, saved);

  const DType dtype = PrecisionOf(flags.dtype);
  launcher.RequireSameFlags();
  ModelOptions options = launcher.model_options();
  RequireSamePrompts(options.job.get(), prompts, stops);
  // Nothing is trained, so weights may have the type that products read.
  options.weights = {{"*", {.trainable = false, .dtype = dtype}}};
  Model model(mesh, options);
  if (!launcher.dry_run()) saved.load(model, dtype);
  GeneratorOptions how = {.sequences = std::ssize(prompts.tokens),
                          .length = length,
                          .chunk = std::min(flags.chunk, length),
                          .session = {.parallel = {.batch = "dp", .tensor = "tp"}, .dtype = dtype},
                          .cache_dtype = dtype};
  Generator generator(model, saved.next, how);
  if (launcher.explain())
    launcher.Print("prefill:\n%sdecode:\n%s", generator.prefill().ExplainText().c_str(),
                   generator.decode().ExplainText().c_str());
  if (launcher.dry_run()) {
    launcher.Print("prefill:\n%sdecode:\n%s", generator.prefill().SummaryText().c_str(),
                   generator.decode().SummaryText().c_str());
    return 0;
  }
  Writing writing(launcher, *tokenizer, prompts);
  int64_t written = 0, in_first = 0;
  const double start = Now();
  double first = 0;
  GenerateOptions generate = {.tokens = flags.tokens,
                              .sampling = SamplingOfFlags(options.seed, Known(saved, *tokenizer, stops)),
                              .stop = {stops.begin(), stops.end()}};
  generate.on_token = [&](int64_t i, int32_t token) {
    if (written++ == 0) first = Now();
    writing.Add(i, token);
  };
  generate.on_end = [&](int64_t i) { writing.End(i); };
  Generate(generator, prompts.tokens, generate);
  const double end = Now();
  in_first = std::min<int64_t>(written, std::ssize(prompts.tokens));
  launcher.Print("--- %s%s: prompts read in %.2f s, then %.1f tokens/s\n", saved.name.c_str(),
                 file.empty() ? "" : Cat(", ", file).c_str(), first - start,
                 written > in_first ? static_cast<double>(written - in_first) / (end - first) : 0.0);
  if (flags.profile)
    launcher.Print("prefill: %sdecode: %s", generator.prefill().ProfileText().c_str(),
                   generator.decode().ProfileText().c_str());
  return 0;
}

// The values of all --prompt, of which gflags keeps the last alone.
std::vector<std::string> AllPrompts(int argc, char** argv) {
  std::vector<std::string> all;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    word.erase(0, std::min(word.find_first_not_of('-'), size_t{2}));
    if (word.starts_with("prompt=")) all.push_back(word.substr(7));
    if (word == "prompt" && i + 1 < argc) all.emplace_back(argv[++i]);
  }
  return all;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) {
  using namespace examples;
  const std::vector<std::string> prompts = AllPrompts(argc, argv);
  Launcher launcher(&argc, &argv,
                    "Continues texts by a GPT, a Llama or a Qwen 2, on any mesh of axes dp, tp and pp.",
                    kMesh,
                    [] {
                      return ProgramFlags{.inputs = {{"load", flags.load},
                                                     {"load_hf", flags.load_hf},
                                                     {"prompts", flags.prompts},
                                                     {"tokenizer", flags.tokenizer}}};
                    },
                    {OwnGroup()});
  return launcher.Main([&] { return RunGenerate(launcher, prompts); });
}
