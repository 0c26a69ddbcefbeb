// Folders that others have published go through --load_hf, --save, --save_hf and `checkpoint convert` and
// come out with everything that they came with; texts end where the folder says; what is missing or broken is
// refused before anything begins.
#include "tests/examples/huggingface_folders.h"

// ctest: seconds=60 programs=gpt,llama,vit,generate,checkpoint
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/system/exit_codes.h"
#include "examples/saved_model.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/tools.h"
#include "oneflow_like/text/tokenizers.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/data/files_fixture.h"
#include "tests/oneflow_like/variable_sources.h"
#include "tests/processes.h"

namespace oneflow_like {

using namespace examples;
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Flags = std::vector<std::string>;

ModelFormat FormatOf(const PublishedFolder& published, const std::string& folder) {
  if (published.format() == "gpt2") return Gpt2Format();
  if (published.format() == "vit") return VitFormat(ReadVitConfig(folder));
  const auto [config, context] = ReadLlamaConfig(folder);
  return LlamaFormat(config, context);
}

// The folder is that of `published`, but for the type of its tensors.
void ExpectAllCame(const PublishedFolder& published, const std::string& from, const std::string& to,
                   const std::string& type) {
  json config = json::parse(TextOf(to + "/config.json")), wanted = published.config();
  for (const char* entry : {"dtype", "torch_dtype"})
    if (wanted.contains(entry)) wanted[entry] = type;
  EXPECT_EQ(config, wanted) << json::diff(wanted, config).dump();
  for (const auto& [name, bytes] : published.along()) EXPECT_EQ(TextOf(to + "/" + name), bytes) << name;
  std::set<std::string> there, known = {"config.json", "model.safetensors"};
  for (const auto& [name, bytes] : published.along()) known.insert(name);
  for (const auto& entry : fs::recursive_directory_iterator(to))
    if (entry.is_regular_file()) there.insert(fs::relative(entry.path(), to).string());
  EXPECT_EQ(there, known);
  const NameTable names = published.names();
  HuggingFaceReader before(from, names), after(to, names);
  ASSERT_EQ(before.variables().size(), after.variables().size());
  for (const auto& [name, variable] : before.variables()) {
    const HostTensor a = ReadAll(before).at(name), b = ReadAll(after).at(name);
    for (int64_t i = 0; i < a.elements(); ++i)
      ASSERT_NEAR(NumberAt(a.dtype, a.data.get(), i), NumberAt(b.dtype, b.data.get(), i), 1e-29) << name;
  }
}

const char* TypeIn(const std::string& folder) {
  FileSource file(folder);
  for (const auto& [name, variable] : file.variables())
    if (name.find("embed") != std::string::npos || name.find("wte") != std::string::npos)
      return variable.dtype == DType::kFloat32    ? "float32"
             : variable.dtype == DType::kBFloat16 ? "bfloat16"
                                                  : "float16";
  return "";
}

// Without a program: as `checkpoint convert` does it, and by a checkpoint that keeps the files.
TEST(PublishedFolders, GoThroughOursAndComeOutWhole) {
  TestFolder folder("huggingface_folders_test");
  for (const std::string& kind : PublishedFolder::Kinds())
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      SCOPED_TRACE(Cat(kind, ", seed ", seed));
      const std::string from = folder / Cat(kind, seed), to = folder / Cat(kind, seed, ".out");
      const PublishedFolder published(from, kind, seed);
      const ModelFormat format = FormatOf(published, from);
      format.write(format.read(from), ReadFolderFiles(from), to);
      ExpectAllCame(published, from, to, TypeIn(from));
      if (HasFatalFailure()) return;
      fs::remove_all(from);
      fs::remove_all(to);
    }
}

class PublishedFolderPrograms : public FilesTest {
 protected:
  int Run(const std::string& program, const Flags& flags) {
    Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/" + program,
                     .flags = flags,
                     .output = folder_ + "/printed"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 240)) << "it hangs";
    out_ = process.out();
    err_ = process.err();
    return process.code();
  }
  // One step that changes nothing but a 0, and that hardly.
  Flags Step(const std::string& program, const Flags& more) {
    Flags flags = {"--steps=1", "--batch=2", "--eval_batches=0", "--kernel_threads=1", "--lr=1e-30"};
    if (program != "vit")
      flags.insert(flags.end(), {"--text=", "--context=8", "--sample_tokens=0", "--weight_decay=0"});
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  void ExpectRefused(const std::string& program, const Flags& flags, const std::string& words) {
    EXPECT_EQ(Run(program, flags), kUsageError) << out_ << err_;
    EXPECT_EQ(LinesOf(err_).size(), 1u) << err_;
    EXPECT_NE(err_.find(words), std::string::npos) << words << "\n" << err_;
  }
  std::string Generated(const Flags& flags) {
    EXPECT_EQ(Run("generate", flags), 0) << out_ << err_;
    const size_t end = out_.find("\n--- ");
    return end == std::string::npos ? out_ : out_.substr(0, end);
  }
  std::string out_, err_;
};

TEST_F(PublishedFolderPrograms, GoThroughTrainingAndComeOutWhole) {
  for (const std::string& kind : PublishedFolder::Kinds()) {
    const uint64_t seed = 1000 + HashName(kind) % 7;
    SCOPED_TRACE(Cat(kind, ", seed ", seed));
    const std::string from = folder_ + "/" + kind, run = from + ".run", to = from + ".hf";
    const PublishedFolder published(from, kind, seed);
    const std::string program = published.program(), model = "--model=" + published.format();
    ASSERT_EQ(Run(program, Step(program, {"--load_hf=" + from, "--save=" + run, "--save_hf=" + to})), 0)
        << err_;
    ExpectAllCame(published, from, to, "float32");
    // The checkpoint has all of it, too, and so has a run that goes on from it.
    ASSERT_EQ(Run("checkpoint", {"convert", run, to + ".converted", "--format=huggingface", model}), 0)
        << err_;
    ExpectAllCame(published, from, to + ".converted", "float32");
    ASSERT_EQ(
        Run("checkpoint", {"convert", from, to + ".bf16", "--format=huggingface", model, "--dtype=bf16"}), 0)
        << err_;
    ExpectAllCame(published, from, to + ".bf16", "bfloat16");
    EXPECT_EQ(Run("checkpoint", {"verify", run}), 0) << out_;
    EXPECT_EQ(out_.find("note"), std::string::npos) << out_;
    if (program == "llama") continue;  // no flag says so small a size
    Flags size = program == "gpt" ? Flags{"--layers=2", "--width=12", "--heads=3", "--context=24"}
                                  : Flags{"--layers=1", "--patch=4", "--image_size=8"};
    if (program == "vit") continue;
    size.insert(size.end(), {"--load=" + run, "--save_hf=" + to + ".loaded", "--dropout=0"});
    ASSERT_EQ(Run(program, Step(program, size)), 0) << err_;
    ExpectAllCame(published, from, to + ".loaded", "float32");
  }
}

// A damaged file of a checkpoint is found, and does not become one of a model.
TEST_F(PublishedFolderPrograms, ChecksTheFilesOfACheckpoint) {
  const std::string from = folder_ + "/from", run = folder_ + "/run";
  const PublishedFolder published(from, "gpt2", 3);
  ASSERT_EQ(Run("gpt", Step("gpt", {"--load_hf=" + from, "--save=" + run})), 0) << err_;
  const std::string file = run + "/step-00000001/tokenizer.json", bytes = TextOf(file);
  PutBytes(file, bytes.substr(1) + " ");
  EXPECT_EQ(Run("checkpoint", {"verify", run}), 1);
  EXPECT_NE(out_.find(file + ": it is damaged"), std::string::npos) << out_;
  EXPECT_EQ(Run("checkpoint", {"convert", run, folder_ + "/to", "--format=huggingface", "--model=gpt2"}), 1);
  EXPECT_NE(err_.find(file + ": it is damaged"), std::string::npos) << err_;
  EXPECT_FALSE(fs::exists(folder_ + "/to"));
  fs::remove(file);
  EXPECT_EQ(Run("checkpoint", {"verify", run}), 1);
  EXPECT_NE(out_.find(file), std::string::npos) << out_;
}

// --- Generation ---

// Where a text ends is said by config.json or generation_config.json, by a number or a list; it ends there in
// whatever the folder has become.
TEST_F(PublishedFolderPrograms, TextsEndWhereTheFolderSays) {
  for (const std::string kind : {"llama3", "qwen2", "gpt2", "tinyllama"}) {
    SCOPED_TRACE(kind);
    const std::string from = folder_ + "/" + kind, run = from + ".run", to = from + ".hf";
    const PublishedFolder published(from, kind, 12);
    json config = published.config();
    config["eos_token_id"] = nullptr;
    PutBytes(from + "/config.json", config.dump());
    fs::remove(from + "/generation_config.json");
    const Flags draw = {"--prompt=ab", "--tokens=60", "--temperature=1", "--seed=4", "--kernel_threads=1"};
    const auto with = [&](const std::string& model, const Flags& more = {}) {
      Flags flags = draw;
      flags.push_back(model);
      flags.insert(flags.end(), more.begin(), more.end());
      return flags;
    };
    // A letter that is no part of an escape or of a token's name, and the text before its first.
    const std::shared_ptr<const Tokenizer> tokenizer = OpenTokenizer(from);
    const std::string whole = Generated(with("--load_hf=" + from, {"--stop=none"}));
    const size_t at = whole.find_first_of("GHIJKLMNOPQRSTUVWYZ", 2);
    ASSERT_NE(at, std::string::npos) << whole;
    const std::string wanted = whole.substr(0, at);
    const int32_t end = tokenizer->Encode(whole.substr(at, 1)).back();
    for (const json& ends : {json(end), json::array({100000, end}), json::array({end})})
      for (const bool in_generation : {true, false}) {
        config["eos_token_id"] = in_generation ? json(nullptr) : ends;
        PutBytes(from + "/config.json", config.dump());
        PutBytes(from + "/generation_config.json",
                 json({{"eos_token_id", in_generation ? ends : json(-1)}}).dump());
        EXPECT_EQ(Generated(with("--load_hf=" + from)), wanted) << ends << in_generation;
        if (!ends.is_array() || ends.size() == 1) continue;
        const std::string program = published.program();
        for (const std::string& old : {run, to}) fs::remove_all(old);
        ASSERT_EQ(Run(program, Step(program, {"--load_hf=" + from, "--save=" + run, "--save_hf=" + to})), 0)
            << err_;
        EXPECT_EQ(Generated(with("--load_hf=" + to)), wanted);
        EXPECT_EQ(Generated(with("--load=" + run)), wanted);
      }
    PutBytes(from + "/generation_config.json", "{\"eos_token_id\": \"x\"}");
    ExpectRefused("generate", with("--load_hf=" + from), "generation_config.json: eos_token_id is \"x\"");
    PutBytes(from + "/generation_config.json", "[");
    ExpectRefused("generate", with("--load_hf=" + from), "generation_config.json: it is no JSON object");
  }
}

// Whatever is drawn is written: numbers in gaps of the tokenizer's, or behind its last, are not drawn.
TEST_F(PublishedFolderPrograms, DrawsWhatTheTokenizerKnows) {
  for (const std::string kind : {"llama3", "llama2"}) {
    const std::string from = folder_ + "/" + kind;
    const PublishedFolder published(from, kind, 5);
    PutBytes(from + "/added_tokens.json", "{\"<|tool|>\": 270}");
    std::string all;
    for (int seed = 1; seed <= 2; ++seed) {
      EXPECT_EQ(Run("generate",
                    {"--load_hf=" + from, "--prompt=ab", "--prompt=c", "--tokens=700", "--temperature=50",
                     Cat("--seed=", seed), "--stop=none", "--context=16", "--kernel_threads=1"}),
                0)
          << err_;
      all += out_;
    }
    EXPECT_NE(all.find("<|eot_id|>"), std::string::npos) << all;
    EXPECT_NE(all.find("<|tool|>"), std::string::npos) << all;
  }
}

// Of two files the first that can be read; both kinds of lines are lines.
TEST_F(PublishedFolderPrograms, SaysWhichTokenizerItReads) {
  const std::string from = folder_ + "/from";
  const PublishedFolder published(from, "llama2", 5);
  const Flags flags = {"--load_hf=" + from, "--prompt=ab", "--tokens=2"};
  Generated(flags);
  EXPECT_NE(out_.find(", " + from + "/tokenizer.json: prompts read"), std::string::npos) << out_;
  EXPECT_EQ(err_, "");
  PutBytes(from + "/tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
  fs::copy_file(OFL_SOURCE_DIR "/tests/fuzz/corpus/pieces/valid_bpe", from + "/tokenizer.model",
                fs::copy_options::overwrite_existing);
  if (Run("generate", flags) != 0 && err_.find("built without") != std::string::npos) GTEST_SKIP() << err_;
  EXPECT_NE(out_.find(", " + from + "/tokenizer.model: prompts read"), std::string::npos) << out_;
  EXPECT_EQ(err_.rfind("note: " + from + "/tokenizer.json: model.type is \"Unigram\"", 0), 0u) << err_;
  EXPECT_NE(err_.find(from + "/tokenizer.model is read instead\n"), std::string::npos) << err_;
}

TEST_F(PublishedFolderPrograms, PromptsHaveLinesOfAnyEditor) {
  const std::string from = folder_ + "/from";
  const PublishedFolder published(from, "llama3", 5);
  const auto texts = [&](const std::string& bytes) {
    return Generated(
        {"--load_hf=" + from, "--tokens=3", "--stop=none", "--prompts=" + Write("prompts", bytes)});
  };
  const std::string wanted = texts("ab\n\nc d\n");
  EXPECT_EQ(texts("ab\r\n\r\nc d\r\n"), wanted);
  EXPECT_EQ(texts("\xEF\xBB\xBF"
                  "ab\n\nc d"),
            wanted);
  EXPECT_EQ(texts("\xEF\xBB\xBF"
                  "ab\r\nc d"),
            wanted);
  ExpectRefused("generate",
                {"--load_hf=" + from, "--prompts=" + Write("wide", std::string("\xFF\xFE"
                                                                               "a\0\n\0",
                                                                               6))},
                "wide: it is in UTF-16; save it in UTF-8");
}

// --- Training ---

// The largest token of a text may be the model's last, also where the model was saved in between.
TEST_F(PublishedFolderPrograms, Gpt2LearnsItsLastToken) {
  const std::string from = folder_ + "/gpt2", run = folder_ + "/run";
  const PublishedFolder published(from, "gpt2", 2);  // of 257 tokens
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back(static_cast<uint16_t>(i % 9 == 0 ? 256 : i));
  const std::string text =
      Write("text.bin", LlmcFile<uint16_t>(20240520, 1, static_cast<int32_t>(tokens.size()), tokens));
  const Flags train = {"--steps=1",          "--batch=2",        "--context=8",      "--text=" + text,
                       "--kernel_threads=1", "--eval_batches=1", "--sample_tokens=5"};
  const auto with = [&](const Flags& more) {
    Flags flags = train;
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  EXPECT_EQ(Run("gpt", with({"--load_hf=" + from, "--save=" + run})), 0) << err_;
  const Flags size = {"--layers=2", "--width=12", "--heads=3", "--context=24"};
  Flags loaded = with(size), resumed = with(size);
  loaded.push_back("--load=" + run);
  EXPECT_EQ(Run("gpt", loaded), 0) << err_;
  resumed.insert(resumed.end(), {"--resume=" + run, "--save=" + run, "--steps=2"});
  EXPECT_EQ(Run("gpt", resumed), 0) << err_;
  tokens[5] = 257;
  Write("text.bin", LlmcFile<uint16_t>(20240520, 1, static_cast<int32_t>(tokens.size()), tokens));
  ExpectRefused("gpt", with({"--load_hf=" + from}), "has a vocabulary of 258, but the model of");
}

// Positions and norms are those of the model that a run begins with, which no flag says.
TEST_F(PublishedFolderPrograms, LlamaKeepsWhatNoFlagSays) {
  const std::string one = folder_ + "/one", from = folder_ + "/from", log = folder_ + "/log";
  ASSERT_EQ(Run("llama", Step("llama", {"--layers=1", "--save_hf=" + one})), 0) << err_;
  json config = json::parse(TextOf(one + "/config.json"));
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  config["rms_norm_eps"] = 0.5;
  config["max_position_embeddings"] = 4096;
  PutBytes(one + "/config.json", config.dump());
  const std::string run = folder_ + "/run", again = folder_ + "/again";
  const auto loss = [&](const Flags& more) {
    EXPECT_EQ(Run("llama", Step("llama", more)), 0) << err_;
    const std::vector<double> losses = LossesOf(log);
    fs::remove(log);
    return losses.empty() ? NAN : losses[0];
  };
  const double wanted = loss({"--load_hf=" + one, "--log_json=" + log, "--save=" + run});
  EXPECT_EQ(loss({"--layers=1", "--load=" + run, "--log_json=" + log, "--save_hf=" + again}), wanted);
  EXPECT_EQ(json::parse(TextOf(again + "/config.json")), config);
}

// Classes are called as the folder calls them, or as the data do where these are others or in another order.
TEST_F(PublishedFolderPrograms, VitNamesClasses) {
  const std::string png = TextOf(OFL_SOURCE_DIR "/tests/fuzz/corpus/png/valid_png");
  for (const char* set : {"train", "val"})
    for (const char* name : {"cat", "dog"})
      for (int i = 0; i < 3; ++i) Write(Cat("pictures/", set, "/", name, "/", i, ".png"), png);
  const std::string images = "--images=" + folder_ + "/pictures", log = folder_ + "/log";
  int made = 0;
  const auto labels = [&](const json& id2label, const std::string& said) {
    const std::string from = folder_ + "/" + Cat("vit", ++made), to = from + ".hf";
    VitFolder vit = {{.layers = 1, .width = 12, .heads = 3, .patch = 4, .classes = 2}, 8, 3};
    if (!id2label.is_null()) vit.config.classes = std::ssize(id2label);
    Tensors tensors;
    for (const NameRow& row : VitNames(vit).rows)
      for (const NameRow::Variable& variable : row.ours)
        tensors.emplace(variable.name,
                        RandomTensor(HashName(variable.name), DType::kFloat32, variable.shape));
    json config = json::parse(VitConfigText(vit));
    config.erase("label2id");
    if (!id2label.is_null()) config["id2label"] = id2label;
    VitFormat(vit).write(std::make_shared<TensorSource>(tensors), {{kConfigFile, config.dump()}}, from);
    EXPECT_EQ(Run("vit", Step("vit", {"--load_hf=" + from, images, "--save_hf=" + to})), 0) << err_;
    EXPECT_EQ(out_.find("begins anew") != std::string::npos, !said.empty()) << out_;
    EXPECT_NE(out_.find(said), std::string::npos) << out_;
    return json::parse(TextOf(to + "/config.json"))["id2label"];
  };
  if (Run("vit", Step("vit", {images, "--image_size=8"})) != 0 &&
      err_.find("made without") != std::string::npos)
    GTEST_SKIP() << err_;
  const json ours = {{"0", "cat"}, {"1", "dog"}}, theirs = {{"0", "tabby"}, {"1", "husky"}};
  EXPECT_EQ(labels({{"0", "LABEL_0"}, {"1", "LABEL_1"}}, ""), ours);
  EXPECT_EQ(labels(ours, ""), ours);
  EXPECT_EQ(labels(theirs, ""), theirs);
  EXPECT_EQ(labels({{"0", "dog"}, {"1", "cat"}}, "names the classes in another order, and begins anew"),
            ours);
  EXPECT_EQ(labels({{"0", "a"}, {"1", "b"}, {"2", "c"}}, "names 3 classes, and begins anew for 2"), ours);
}

// Pictures are scaled as the folder's reader of pictures says.
TEST_F(PublishedFolderPrograms, VitSeesPicturesAsTheFolderSays) {
  const std::string png = TextOf(OFL_SOURCE_DIR "/tests/fuzz/corpus/png/valid_png");
  for (const char* set : {"train", "val"})
    for (int i = 0; i < 10; ++i) Write(Cat("pictures/", set, "/", i, "/0.png"), png);
  const std::string from = folder_ + "/from", log = folder_ + "/log";
  const PublishedFolder published(from, "vit", 3);
  const auto loss = [&](const json& reader) {
    reader.is_null() ? (void)fs::remove(from + "/preprocessor_config.json")
                     : PutBytes(from + "/preprocessor_config.json", reader.dump());
    fs::remove(log);
    EXPECT_EQ(Run("vit", Step("vit", {"--load_hf=" + from, "--images=" + folder_ + "/pictures",
                                      "--log_json=" + log})),
              0)
        << err_;
    return LossesOf(log).empty() ? NAN : LossesOf(log)[0];
  };
  const double plain = loss(nullptr);
  if (err_.find("made without") != std::string::npos) GTEST_SKIP() << err_;
  const json same = {{"image_mean", {0.485, 0.456, 0.406}}, {"image_std", {0.229, 0.224, 0.225}}};
  EXPECT_NEAR(loss(same), plain, 1e-6);
  json half = {{"image_mean", {0.5, 0.5, 0.5}}, {"image_std", {0.5, 0.5, 0.5}}};
  const double halved = loss(half);
  EXPECT_GT(std::abs(halved - plain), 1e-4);
  EXPECT_NEAR(loss(json::object()), halved, 1e-6);  // as transformers has it where nothing is said
  half["rescale_factor"] = 2.0 / 255;
  half["image_mean"] = {1.0, 1.0, 1.0};
  half["image_std"] = {1.0, 1.0, 1.0};
  EXPECT_NEAR(loss(half), halved, 1e-6);
  PutBytes(from + "/preprocessor_config.json", R"({"image_std": [0, 1, 1]})");
  ExpectRefused("vit", Step("vit", {"--load_hf=" + from, "--images=" + folder_ + "/pictures"}),
                "preprocessor_config.json: image_std is 0");
}

// --- What is missing or broken ---

TEST_F(PublishedFolderPrograms, RefusesMissingAndBrokenWeightsBeforeItBegins) {
  for (const std::string kind : {"llama3", "gpt2", "vit"}) {
    SCOPED_TRACE(kind);
    const std::string from = folder_ + "/" + kind, one = from + "/model.safetensors",
                      index = from + "/model.safetensors.index.json";
    uint64_t seed = 1;  // of one file, and of several
    for (bool shards : {false, true}) {
      for (;; ++seed) {
        fs::remove_all(from);
        PublishedFolder published(from, kind, seed);
        if (fs::exists(index) == shards) break;
      }
      const std::string file = shards ? from + "/model-00002-of-00002.safetensors" : one, good = TextOf(file);
      const std::string program = kind == "llama3" ? "llama" : kind == "gpt2" ? "gpt" : "vit";
      const Flags flags = Step(program, {"--load_hf=" + from});
      ASSERT_EQ(Run(program, flags), 0) << err_;
      fs::remove(file);
      ExpectRefused(program, flags, shards ? file : from + ": there is neither model.safetensors");
      Flags dry = flags;
      dry.push_back("--dry_run");
      EXPECT_EQ(Run(program, dry), 0) << "a plan needs no weights\n" << err_;
      for (const std::string& bad :
           {good.substr(0, 5), good.substr(0, good.size() / 2), good.substr(0, good.size() - 1),
            std::string("{}"), std::string(100, '\xff')}) {
        PutBytes(file, bad);
        ExpectRefused(program, flags, file + ": ");
      }
      PutBytes(file, good);
      if (shards) {
        json map = json::parse(TextOf(index));
        map["weight_map"].erase(map["weight_map"].begin());
        PutBytes(index, map.dump());
        // What it lacks may be a tensor that nobody needs.
        if (Run(program, flags) != 0) ExpectRefused(program, flags, from + " does not fit ");
        PutBytes(index, "{");
        ExpectRefused(program, flags, index + ": ");
      }
    }
  }
}

TEST_F(PublishedFolderPrograms, RefusesMissingAndBrokenCheckpointsBeforeItBegins) {
  const std::string run = folder_ + "/run", step = run + "/step-00000001", save = "--save=" + run;
  const Flags small = {"--layers=1", "--width=8", "--heads=1"};
  const auto flags = [&](const Flags& more) {
    Flags all = small;
    all.insert(all.end(), more.begin(), more.end());
    return Step("gpt", all);
  };
  ASSERT_EQ(Run("gpt", flags({save, "--steps=2", "--save_every=1"})), 0) << err_;
  fs::copy(step, folder_ + "/one", fs::copy_options::recursive);
  const std::string index = run + "/step-00000002/model.safetensors.index.json",
                    file = run + "/step-00000002/model-00001-of-00001.safetensors", good = TextOf(file),
                    good_index = TextOf(index);
  const Flags resume = flags({save, "--resume=" + run, "--steps=3"}), load = flags({"--load=" + run});
  for (const Flags& how : {resume, load}) {
    PutBytes(index, good_index.substr(0, 100));
    ExpectRefused("gpt", how, index + ": ");
    EXPECT_NE(err_.find("the one before it is " + step), std::string::npos) << err_;
    PutBytes(index, good_index);
    PutBytes(file, good.substr(0, good.size() / 2));
    ExpectRefused("gpt", how, file + ": ");
    EXPECT_NE(err_.find("the one before it is " + step), std::string::npos) << err_;
    fs::remove(file);
    ExpectRefused("gpt", how, file + ": ");
    PutBytes(file, good);
  }
  ExpectRefused("gpt", flags({"--load=" + folder_ + "/nothing"}), "nothing");
  fs::create_directories(folder_ + "/empty");
  ExpectRefused("gpt", flags({"--load=" + folder_ + "/empty"}), "empty");
  ExpectRefused("gpt", flags({"--load=" + Write("cut.safetensors", good.substr(0, 50))}),
                "cut.safetensors: ");
  ExpectRefused("gpt", flags({"--load=" + folder_ + "/none.safetensors"}), "none.safetensors");
  EXPECT_EQ(Run("gpt", resume), 0) << err_;
}

}  // namespace
}  // namespace oneflow_like
