// Generation: tokens and logits of a cache are those of reading the whole text, for GPTs and Llamas, prompts
// of unequal lengths, on every mesh; and the program.
// ctest: programs=generate,gpt,llama
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/gpt_huggingface.h"
#include "examples/gpt_model.h"
#include "examples/saved_model.h"
#include "oneflow_like/generation/generator.h"
#include "tests/examples/llama_small.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/processes.h"

namespace oneflow_like {

using namespace examples;
namespace {

using TokenRowsOf = std::vector<std::vector<int32_t>>;

struct SmallLanguageModel {
  std::string name;
  int64_t vocabulary = 0, layers = 0;
  std::function<Tensor(Scope, Tensor)> logits;
  NextLogits next;
};

std::vector<SmallLanguageModel> SmallModels() {
  std::vector<SmallLanguageModel> models;
  for (SmallLlama llama : SmallLlamas()) {
    llama.config.experts.capacity = 0;  // as generation has it
    models.push_back({llama.name, llama.config.vocabulary, llama.config.layers,
                      [c = llama.config](Scope s, Tensor tokens) { return LlamaLogits(s, tokens, c); },
                      [c = llama.config](Scope s, Tensor tokens, const nn::Cache& cache) {
                        return LlamaNext(s, tokens, c, cache);
                      }});
  }
  const GptConfig gpt = {.layers = 4, .width = 36, .heads = 3, .context = 40, .vocabulary = 50};
  models.push_back(
      {"gpt", gpt.vocabulary, gpt.layers, [gpt](Scope s, Tensor tokens) { return GptLogits(s, tokens, gpt); },
       [gpt](Scope s, Tensor tokens, const nn::Cache& cache) { return GptNext(s, tokens, gpt, cache); }});
  return models;
}

// Weights that are far from the start: logits differ by whole numbers, as those of models that learnt.
void Strengthen(Model& model) {
  for (const std::string& name : model.Variables()) {
    if (name.find("gamma") != std::string::npos || name.find("cache") != std::string::npos) continue;
    HostTensor value = model.Read(name);
    for (int64_t i = 0; i < value.elements(); ++i)
      value.as<float>()[i] = 0.6f * (ToUniform(RandomBits(HashName(name), 5, i)) - 0.5f);
    model.Write(name, value);
  }
}

TokenRowsOf RandomPrompts(const std::vector<int64_t>& lengths, int64_t vocabulary) {
  TokenRowsOf prompts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    prompts.emplace_back();
    for (int64_t t = 0; t < lengths[i]; ++t)
      prompts[i].push_back(static_cast<int32_t>(RandomBits(11, i, t) % vocabulary));
  }
  return prompts;
}

// The logits at every place of texts, read whole and each by itself, on one device.
class WholeTexts {
 public:
  explicit WholeTexts(const SmallLanguageModel& small) : small_(small), model_(FullMesh("cpu:dp=1")) {
    small.logits(model_.scope(), model_.Input("tokens", {1, 1}, DType::kInt32));
    Strengthen(model_);
  }
  std::vector<std::vector<float>> Logits(const std::vector<int32_t>& text) {
    const int64_t length = std::ssize(text);
    ModelGraph graph = model_.NewGraph("whole");
    Tensor tokens = graph.Input("text", {1, length}, DType::kInt32);
    Session session = Evaluate({{"logits", small_.logits(graph.scope(), tokens)}});
    const HostTensor all = session.Run({{"text", ToHost(text, {1, length})}}).Get("logits");
    std::vector<std::vector<float>> rows;
    for (int64_t t = 0; t < length; ++t)
      rows.emplace_back(all.as<float>() + t * small_.vocabulary,
                        all.as<float>() + (t + 1) * small_.vocabulary);
    return rows;
  }

 private:
  const SmallLanguageModel& small_;
  Model model_;
};

struct CachedRun {
  std::string mesh = "cpu:dp=1";
  std::vector<int64_t> lengths = {5, 1, 9};
  int64_t chunk = 4;
  int64_t tokens = 6;
};

std::unique_ptr<Model> StrongModel(const SmallLanguageModel& small, const std::string& mesh) {
  auto model = std::make_unique<Model>(FullMesh(mesh));
  small.logits(model->scope(), model->Input("tokens", {1, 1}, DType::kInt32));
  Strengthen(*model);
  return model;
}

Generator MakeGenerator(Model& model, const SmallLanguageModel& small, const CachedRun& run, int64_t length) {
  return Generator(model, small.next,
                   {.sequences = std::ssize(run.lengths),
                    .length = length,
                    .chunk = run.chunk,
                    .session = {.parallel = {.batch = "dp", .tensor = "tp"}}});
}

TEST(Generate, GivesTheLogitsOfReadingTheWholeText) {
  const std::vector<CachedRun> runs = {{},
                                       {.chunk = 100},
                                       {.chunk = 1},
                                       {.lengths = {7}},
                                       {"cpu:dp=2"},
                                       {"cpu:dp=3", {3, 8, 2, 8, 1}},
                                       {"cpu:dp=3", {6, 2}},
                                       {"cpu:tp=2"},
                                       {"cpu:tp=3"},
                                       {"cpu:pp=2"},
                                       {"cpu:pp=4"},
                                       {"cpu:dp=2,tp=2,pp=2"},
                                       {"cpu:dp=2,cp=2"},  // cp: an axis without a role
                                       {"cpu:cp=3", {2, 6, 3}},
                                       {"cpu:dp=2,tp=2", {4, 9, 1, 2}, 3}};
  for (const SmallLanguageModel& small : SmallModels()) {
    WholeTexts whole(small);
    for (const CachedRun& run : runs) {
      SCOPED_TRACE(
          Cat(small.name, " on ", run.mesh, ", ", run.lengths.size(), " prompts, chunk ", run.chunk));
      const TokenRowsOf prompts = RandomPrompts(run.lengths, small.vocabulary),
                        more = RandomPrompts(std::vector<int64_t>(run.lengths.size(), run.tokens),
                                             small.vocabulary);
      std::unique_ptr<Model> model = StrongModel(small, run.mesh);
      Generator generator = MakeGenerator(*model, small, run, 16);
      std::vector<HostTensor> got = {generator.Prefill(prompts)};
      for (int64_t t = 0; t < run.tokens; ++t) {
        std::vector<int32_t> next;
        for (const auto& row : more) next.push_back(row[t]);
        got.push_back(generator.Decode(next));
      }
      for (size_t i = 0; i < prompts.size(); ++i) {
        std::vector<int32_t> text = prompts[i];
        text.insert(text.end(), more[i].begin(), more[i].end());
        const auto want = whole.Logits(text);
        for (int64_t t = 0; t <= run.tokens; ++t)
          for (int64_t v = 0; v < small.vocabulary; ++v)
            ASSERT_NEAR(got[t].as<float>()[i * small.vocabulary + v], want[prompts[i].size() - 1 + t][v],
                        2e-5)
                << "sequence " << i << ", token " << t << ", class " << v;
      }
    }
  }
}

// The texts of one device; that they are greedy is seen from the whole text.
TEST(Generate, WritesTheSameOnEveryMesh) {
  for (const SmallLanguageModel& small : SmallModels()) {
    WholeTexts whole(small);
    CachedRun run = {.lengths = {5, 1, 9, 2}, .tokens = 20};
    const TokenRowsOf prompts = RandomPrompts(run.lengths, small.vocabulary);
    std::map<bool, TokenRowsOf> wanted;
    for (const char* mesh :
         {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:pp=2", "cpu:dp=2,tp=2,pp=2", "cpu:tp=3,pp=2"}) {
      run.mesh = mesh;
      std::unique_ptr<Model> model = StrongModel(small, mesh);
      Generator generator = MakeGenerator(*model, small, run, 32);
      for (bool greedy : {true, false}) {
        const TokenRowsOf got = Generate(
            generator, prompts,
            {.tokens = run.tokens,
             .sampling = {
                 .repetition_penalty = 1.1, .temperature = greedy ? 0.0 : 0.9, .top_k = 20, .top_p = 0.95}});
        if (!wanted.count(greedy)) wanted[greedy] = got;
        EXPECT_EQ(got, wanted[greedy]) << small.name << " on " << mesh << ", greedy " << greedy;
      }
    }
    EXPECT_NE(wanted[true], wanted[false]);
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> text = prompts[i];
      for (int32_t token : wanted[true][i]) {
        const std::vector<float> logits = whole.Logits(text).back();
        const Sampler greedy({.repetition_penalty = 1.1, .temperature = 0});
        ASSERT_EQ(token, greedy.Draw(logits, text, 0)) << small.name << ", sequence " << i;
        text.push_back(token);
      }
    }
  }
}

TEST(Generate, StopsAndTellsInOrder) {
  const SmallLanguageModel small = SmallModels()[0];
  const CachedRun run = {.lengths = {3, 6}, .tokens = 12};
  const TokenRowsOf prompts = RandomPrompts(run.lengths, small.vocabulary);
  std::unique_ptr<Model> model = StrongModel(small, run.mesh);
  Generator generator = MakeGenerator(*model, small, run, 24);
  GenerateOptions options = {.tokens = 12, .sampling = {.temperature = 0}};
  const TokenRowsOf all = Generate(generator, prompts, options);
  ASSERT_EQ(all[0].size(), 12u);
  options.stop = {all[0][4], 999};
  TokenRowsOf told(2);
  std::vector<int64_t> ended;
  options.on_token = [&](int64_t i, int32_t token) { told[i].push_back(token); };
  options.on_end = [&](int64_t i) { ended.push_back(i); };
  const TokenRowsOf stopped = Generate(generator, prompts, options);
  for (int i : {0, 1}) {
    const auto end = std::find(all[i].begin(), all[i].end(), all[0][4]);
    EXPECT_EQ(stopped[i], std::vector<int32_t>(all[i].begin(), end)) << i;
  }
  EXPECT_EQ(told, stopped);
  EXPECT_EQ(ended.size(), 2u);
}

// Past the generator's length a sequence goes on from its last half, whatever its neighbours do.
TEST(Generate, GoesOnPastItsLength) {
  for (const SmallLanguageModel& small : SmallModels()) {
    WholeTexts whole(small);
    const TokenRowsOf prompts = RandomPrompts({3, 7}, small.vocabulary);
    std::unique_ptr<Model> model = StrongModel(small, "cpu:tp=2");
    Generator generator = MakeGenerator(*model, small, {.lengths = {3, 7}, .chunk = 3}, 10);
    const TokenRowsOf got = Generate(generator, prompts, {.tokens = 25, .sampling = {.temperature = 0}});
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> window = prompts[i];
      for (int32_t token : got[i]) {
        const std::vector<float> logits = whole.Logits(window).back();
        ASSERT_EQ(token, Sampler({.temperature = 0}).Draw(logits, window, 0))
            << small.name << ", sequence " << i;
        const bool full = window.size() == 10;
        window.push_back(token);
        if (full) window.erase(window.begin(), window.end() - 5);
      }
    }
  }
}

TEST(Generate, KeepsCachesInBf16) {
  const SmallLanguageModel small = SmallModels()[0];
  WholeTexts whole(small);
  const TokenRowsOf prompts = RandomPrompts({5, 8}, small.vocabulary);
  std::unique_ptr<Model> model = StrongModel(small, "cpu:tp=2");
  Generator generator(*model, small.next,
                      {.sequences = 2,
                       .length = 12,
                       .session = {.dtype = DType::kBFloat16},
                       .cache_dtype = DType::kBFloat16});
  generator.Prefill(prompts);
  const HostTensor got = generator.Decode({3, 4});
  EXPECT_EQ(model->Read("block0/attention/generate_k").dtype, DType::kBFloat16);
  for (int i : {0, 1}) {
    std::vector<int32_t> text = prompts[i];
    text.push_back(3 + i);
    const std::vector<float> want = whole.Logits(text).back();
    for (int64_t v = 0; v < small.vocabulary; ++v)
      EXPECT_NEAR(got.as<float>()[i * small.vocabulary + v], want[v], 0.15) << i << " " << v;
  }
}

TEST(Generate, RefusesWhatDoesNotFit) {
  const SmallLanguageModel small = SmallModels()[0];
  std::unique_ptr<Model> model = StrongModel(small, "cpu:dp=1");
  Generator generator = MakeGenerator(*model, small, {.lengths = {2, 2}}, 6);
  EXPECT_EQ(ErrorOf([&] {
              generator.Decode({1, 2});
            }),
            "generator: Decode before Prefill: there is no sequence to go on with");
  EXPECT_EQ(ErrorOf([&] { generator.Prefill({{1}}); }),
            "generator: 1 prompts are given, but it was made for 2");
  EXPECT_EQ(ErrorOf([&] {
              generator.Prefill({{1}, {}});
            }),
            "generator: prompt 1 is empty, but must have a token to begin with");
  EXPECT_EQ(ErrorOf([&] {
              generator.Prefill({{1}, {1, 2, 3, 4, 5, 6, 7}});
            }),
            "generator: a prompt has 7 tokens, but sequences have room for 6");
  generator.Prefill({{1}, {1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(ErrorOf([&] {
              generator.Decode({1, 2});
            }),
            "generator: a sequence has 6 tokens, and there is no room for more");
  EXPECT_NE(ErrorOf([&] { generator.Prefill({{1}, {64}}); }).find("64"), std::string::npos);
}

// --- The program ---

class GenerateProgram : public testing::Test {
 protected:
  struct Outcome {
    int code;
    std::string out, err;
  };
  Outcome Run(const std::string& program, const std::vector<std::string>& flags) {
    Process run({.program = std::string(OFL_BINARY_DIR) + "/examples/" + program,
                 .flags = flags,
                 .output = folder_ / "printed"});
    EXPECT_TRUE(run.WaitUntil(Seconds() + 240)) << "it hangs\n" << run.out() << run.err();
    return {run.code(), run.out(), run.err()};
  }
  // Without the line about time.
  std::string Texts(std::vector<std::string> flags) {
    const Outcome o = Run("generate", flags);
    EXPECT_EQ(o.code, 0) << o.out << o.err;
    std::string texts;
    for (const std::string& line : LinesOf(o.out))
      if (line.find(" tokens/s") == std::string::npos) texts += line + "\n";
    return texts;
  }
  void ExpectRefused(const std::vector<std::string>& flags, const std::string& words) {
    const Outcome o = Run("generate", flags);
    EXPECT_EQ(o.code, 64) << o.out << o.err;
    EXPECT_EQ(o.err.rfind("error: ", 0), 0u) << o.err;
    EXPECT_EQ(LinesOf(o.err).size(), 1u) << o.err;
    EXPECT_NE(o.err.find(words), std::string::npos) << words << "\n" << o.err;
  }
  // A trained model of the program, saved in the folder of its name.
  std::string Trained(const std::string& program, const std::vector<std::string>& more = {}) {
    const std::string save = folder_ / program, text = folder_.Write("text.txt", SomeText());
    std::vector<std::string> flags = {"--text=" + text,    "--steps=60",
                                      "--context=48",      "--batch=4",
                                      "--layers=2",        "--lr=1e-2",
                                      "--save=" + save,    "--eval_batches=0",
                                      "--sample_tokens=0", "--save_hf=" + save + ".hf"};
    if (program == "gpt") flags.insert(flags.end(), {"--width=32", "--heads=2"});
    flags.insert(flags.end(), more.begin(), more.end());
    const Outcome o = Run(program, flags);
    EXPECT_EQ(o.code, 0) << o.out << o.err;
    return save;
  }
  TestFolder folder_{"generate_test"};
};

TEST_F(GenerateProgram, WritesTheSameInEveryWay) {
  for (const char* program : {"gpt", "llama"}) {
    const std::string save = Trained(program);
    const std::vector<std::string> flags = {"--prompt=the quick", "--prompt=a",  "--prompt",
                                            "brown fox is",       "--tokens=60", "--top_k=30",
                                            "--kernel_threads=1"};
    auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), flags.begin(), flags.end());
      return more;
    };
    const std::string wanted = Texts(with({"--load=" + save}));
    EXPECT_NE(wanted.find("--- 1 ---\nthe quick"), std::string::npos) << wanted;
    EXPECT_NE(wanted.find("--- 3 ---\nbrown fox is"), std::string::npos) << wanted;
    EXPECT_EQ(Texts(with({"--load_hf=" + save + ".hf"})), wanted);
    EXPECT_EQ(Texts(with({"--load=" + save, "--mesh=cpu:dp=2,tp=2", "--processes=2"})), wanted);
    EXPECT_EQ(Texts(with({"--load=" + save, "--mesh=cpu:tp=2,pp=2", "--processes=2", "--chunk=2"})), wanted);
    EXPECT_EQ(Texts(with({"--load=" + save, "--mesh=cpu:dp=3"})), wanted);
    const std::string drawn = Texts(with({"--load=" + save, "--temperature=1", "--seed=3"}));
    EXPECT_NE(drawn, wanted);
    EXPECT_EQ(Texts(with({"--load=" + save, "--temperature=1", "--seed=3", "--mesh=cpu:tp=2"})), drawn);
    // One prompt is streamed, and is written as among others.
    const std::string alone = Texts({"--load=" + save, "--prompt=the quick", "--tokens=60", "--top_k=30"});
    EXPECT_EQ(wanted.rfind("--- 1 ---\n" + alone, 0), 0u) << alone;
    const std::string file = folder_.Write("prompts.txt", "the quick\na\n\nbrown fox is\n");
    EXPECT_EQ(Texts({"--load=" + save, "--prompts=" + file, "--tokens=60"}), wanted);
  }
}

// Those that a training kept: of its checkpoint, and of the folder that it leaves.
TEST_F(GenerateProgram, ReadsAveragesOfWeights) {
  const std::string save = Trained("gpt", {"--average=0.98"}), load = "--load=" + save;
  const std::string how = "--prompt=the quick", long_enough = "--tokens=60";
  const std::string wanted = Texts({load, "--weights=average", how, long_enough});
  EXPECT_EQ(Texts({"--load_hf=" + save + ".hf", how, long_enough}), wanted);
  EXPECT_NE(Texts({load, how, long_enough}), wanted);
  ExpectRefused({load, "--weights=mean", how}, "--weights is \"mean\" but must be");
  ExpectRefused({"--load_hf=" + save + ".hf", "--weights=average", how},
                "--weights=average says what to --load");
  const std::string plain = Trained("llama");
  ExpectRefused({"--load=" + plain, "--weights=average", how}, "has no averages");
}

TEST_F(GenerateProgram, StopsAtTokensAndTakesNumbers) {
  const std::string save = Trained("gpt");
  const std::string text = Texts({"--load=" + save, "--prompt=the quick", "--tokens=40", "--stop=110"});  // n
  EXPECT_EQ(text.find('n'), std::string::npos) << text;
  EXPECT_EQ(text.rfind("the quick", 0), 0u);
  const std::string numbers =
      Texts({"--load=" + save, "--prompt=116 104 101", "--tokens=3", "--tokenizer=numbers"});
  EXPECT_EQ(numbers.rfind("116 104 101 ", 0), 0u) << numbers;
}

TEST_F(GenerateProgram, RefusesWhatIsWrong) {
  const std::string save = Trained("gpt"), load = "--load=" + save;
  ExpectRefused({"--prompt=a"}, "--load");
  ExpectRefused({load, "--load_hf=" + save + ".hf", "--prompt=a"}, "one of the two");
  ExpectRefused({load}, "give a text's beginning by --prompt");
  ExpectRefused({load, "--prompt="}, "has no tokens");
  ExpectRefused({load, "--prompt=a", "--tokens=0"}, "--tokens is 0");
  ExpectRefused({load, "--prompt=a", "--temperature=-1"}, "temperature is -1");
  ExpectRefused({load, "--prompt=a", "--top_p=2"}, "top_p is 2");
  ExpectRefused({load, "--prompt=a", "--dtype=int8"}, "--dtype=int8");
  ExpectRefused({load, "--prompt=a", "--context=49"}, "--context is 49, must be at most 48");
  ExpectRefused({load, "--prompt=" + std::string(49, 'a')}, "has 49 tokens");
  ExpectRefused({load, "--prompt=a", "--stop=300"}, "'300' is neither a token");
  ExpectRefused({load, "--prompt=a", "--tokenizer=numbers"}, "'a' is no token number below 256");
  ExpectRefused({load, "--prompt=a", "--tokenizer=" + save}, "neither tokenizer.json nor tokenizer.model");
  ExpectRefused({load, "--prompt=a", "--tokenizer=nowhere"}, "no such file");
  ExpectRefused({load, "--prompt=a", "--mesh=cpu:pp=3"}, "only 2 layers");
  ExpectRefused({load, "--prompts=" + folder_.Write("empty.txt", "\n")}, "no line");
  ExpectRefused({"--load=" + (folder_ / "none"), "--prompt=a"}, "none");
  ExpectRefused({"--load=" + save + ".hf", "--prompt=a"}, "--load_hf");
  ExpectRefused({"--load_hf=" + save, "--prompt=a"}, "config.json");
}

}  // namespace
}  // namespace oneflow_like
