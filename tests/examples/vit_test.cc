// The Vision Transformer of the examples under Hugging Face's names: there and back, what a config.json may
// say, and the programs' flags for it.
// ctest: programs=vit,checkpoint
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/system/exit_codes.h"
#include "examples/vit_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/processes.h"

namespace oneflow_like {

using namespace examples;
namespace {

using nlohmann::json;
using Flags = std::vector<std::string>;

// Square and other patches of pictures with one channel and more; wide and narrow feed-forward layers.
std::vector<VitFolder> SmallVits() {
  std::vector<VitFolder> all;
  all.push_back({{.layers = 2, .width = 12, .heads = 3, .patch = 4, .classes = 5}, 8, 3});
  all.push_back({{.layers = 1, .width = 8, .heads = 1, .patch = 3, .classes = 1, .inner = 7}, 9, 1});
  all.push_back({{.layers = 3, .width = 20, .heads = 2, .patch = 5, .classes = 2, .norm_eps = 1e-12}, 5, 4});
  return all;
}

Tensor Logits(Model& model, const VitFolder& vit) {
  Tensor images =
      model.Input("images", {2, vit.side, vit.side, vit.channels}, DType::kFloat32, {{"dp", S(0)}});
  return VitLogits(model.scope(), images, vit.config, true);
}

TEST(Vit, GoesOutAndComesBackBitForBit) {
  TestFolder folder("vit_test");
  int made = 0;
  for (const VitFolder& vit : SmallVits())
    for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2"}) {
      const std::string out = folder / Cat(++made, ".hf");
      Model model(FullMesh(mesh));
      Session train = Train(mean(square(Logits(model, vit))), AdamW{.lr = 1e-2});
      HostTensor images = HostTensor::Make(DType::kFloat32, {2, vit.side, vit.side, vit.channels});
      for (int64_t i = 0; i < images.elements(); ++i) images.as<float>()[i] = static_cast<float>(i % 7) - 3;
      train.Run({{"images", images}}).Wait();
      const std::string saved = Save(model, folder / Cat(made)).Wait();
      VitFormat(vit).write(std::make_shared<CheckpointReader>(saved), {}, out);

      const VitFolder read = ReadVitConfig(out);
      EXPECT_EQ(VitConfigText(read), VitConfigText(vit));
      Model other(FullMesh("cpu:dp=2,tp=2"));
      Session again = Train(mean(square(Logits(other, read))), AdamW{});
      ConvertedSource weights(VitFormat({}).read(out), {.dtype = DType::kFloat32});
      LoadWeights(other, weights);
      for (const std::string& name : model.Variables())
        if (name.find(':') == std::string::npos) {
          EXPECT_TRUE(SameBytes(model.Read(name), other.Read(name))) << mesh << " " << name;
        }
    }
}

// transformers keeps a filter as [filters, channels, rows, columns], ours has the channels last.
TEST(Vit, FiltersAreTurned) {
  TestFolder folder("vit_test");
  const VitFolder vit = SmallVits()[0];
  Model model(FullMesh("cpu:dp=1"));
  Session session = Evaluate({{"logits", Logits(model, vit)}});
  const std::string saved = Save(model, folder / "saved").Wait(), out = folder / "hf";
  VitFormat(vit).write(std::make_shared<CheckpointReader>(saved), {}, out);
  FileSource file(out);
  const std::string name = "vit.embeddings.patch_embeddings.projection.weight";
  const Dims shape = file.variables().at(name).shape;
  ASSERT_EQ(shape, (Dims{12, 3, 4, 4}));
  std::vector<float> theirs(shape.elements());
  file.Read(name, Box::Whole(shape), theirs.data());
  const HostTensor ours = model.Read("patches/weight");
  for (int64_t f = 0; f < 12; ++f)
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t y = 0; y < 4; ++y)
        for (int64_t x = 0; x < 4; ++x)
          EXPECT_EQ(theirs[((f * 3 + c) * 4 + y) * 4 + x], ours.as<float>()[((f * 4 + y) * 4 + x) * 3 + c]);
}

TEST(Vit, NamesEveryMistakeInAConfig) {
  TestFolder folder("vit_config_test");
  const json good = json::parse(VitConfigText(SmallVits()[0]));
  auto refuse = [&](const json& config, const std::string& wanted) {
    folder.Write("config.json", config.dump());
    const std::string error = ErrorOf([&] { ReadVitConfig(folder / ""); });
    EXPECT_EQ(error.rfind(folder / "/config.json: ", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << wanted << "\n" << error;
  };
  const std::pair<const char*, json> wrong[] = {
      {"model_type", "llama"},    {"num_hidden_layers", 0},    {"hidden_size", "128"},
      {"num_attention_heads", 5}, {"patch_size", 3},           {"image_size", -8},
      {"num_channels", 1.5},      {"layer_norm_eps", 0},       {"hidden_act", "relu"},
      {"qkv_bias", false},        {"id2label", json(3)},       {"intermediate_size", "x"},
      {"patch_size", "16"},       {"id2label", json::object()}};
  for (const auto& [name, value] : wrong) {
    json bad = good;
    bad[name] = value;
    refuse(bad, Cat(name, " is ", value.dump()));
  }
  json counted = good;
  counted.erase("id2label");
  counted["num_labels"] = 7;
  folder.Write("config.json", counted.dump());
  EXPECT_EQ(ReadVitConfig(folder / "").config.classes, 7);
  const HuggingFaceConfig file(folder / "");
  VitFolder more = ReadVitConfig(file);
  EXPECT_EQ(json::parse(VitConfigText(more, &file)), counted);
  more.config.classes = 2;
  more.labels = {"cat", "d\xff"};
  const json written = json::parse(VitConfigText(more, &file));
  EXPECT_EQ(written["num_labels"], 2);
  EXPECT_EQ(written["id2label"], (json{{"0", "cat"}, {"1", "d\uFFFD"}}));
  json bad = good;
  bad.erase("model_type");
  refuse(bad, "it lacks model_type");
}

class VitProgram : public testing::Test {
 protected:
  // The exit code; the program's words stay in out_ and err_.
  int Run(const std::string& program, const Flags& flags) {
    Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/" + program,
                     .flags = flags,
                     .output = folder_ / "printed"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 240)) << "it hangs";
    out_ = process.out();
    err_ = process.err();
    return process.code();
  }
  int Vit(const Flags& more) {
    Flags flags = {"--steps=1", "--batch=4", "--eval_batches=0", "--kernel_threads=1"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Run("vit", flags);
  }
  void ExpectRefused(const Flags& flags, const Flags& words) {
    const int code = Vit(flags);
    EXPECT_TRUE(code == kUsageError || code == kRunError) << code << " " << err_;
    EXPECT_EQ(LinesOf(err_).size(), 1u) << err_;
    for (const std::string& word : words)
      EXPECT_NE(err_.find(word), std::string::npos) << word << "\n" << err_;
  }
  TestFolder folder_{"vit_program_test"};
  std::string out_, err_;
};

TEST_F(VitProgram, TakesAndLeavesFolders) {
  const std::string one = folder_ / "one", two = folder_ / "two", run = folder_ / "run";
  ASSERT_EQ(Vit({"--layers=1", "--image_size=8", "--save_hf=" + one, "--save=" + run}), 0) << err_;
  // The checkpoint keeps what a folder of theirs needs, and gives the same.
  EXPECT_EQ(Run("checkpoint", {"convert", run, two, "--format=huggingface", "--model=vit"}), 0) << err_;
  EXPECT_EQ(Run("checkpoint", {"diff", one, two}), 0) << out_;
  EXPECT_EQ(Run("checkpoint", {"diff", run, two, "--model=vit", "--weights_only"}), 0) << out_;
  // Size and pictures come from the folder; so small a rate trains nothing.
  const std::string three = folder_ / "three";
  EXPECT_EQ(Vit({"--load_hf=" + one + "/", "--save_hf=" + three, "--lr=1e-30", "--mesh=cpu:tp=2"}), 0)
      << err_;
  EXPECT_EQ(Run("checkpoint", {"diff", one, three}), 0) << out_;
  ExpectRefused({"--load_hf=" + one, "--layers=2"}, {"--layers", one, "says how large"});
  ExpectRefused({"--load_hf=" + one, "--image_size=12"}, {"12 x 12 x 3", "8 x 8 x 3"});
  ExpectRefused({"--load_hf=" + one, "--load=" + run}, {"one of the two"});
  ExpectRefused({"--save_hf=" + one}, {one, "already"});
  ExpectRefused({"--load_hf=" + (folder_ / "none")}, {"none/config.json"});
  for (const char* model : {"llama", "bart"}) {
    EXPECT_EQ(
        Run("checkpoint", {"convert", run, folder_ / "four", "--format=huggingface", Cat("--model=", model)}),
        kRunError);
    EXPECT_NE(err_.find(model), std::string::npos) << err_;
  }
}

// The output of a model for other classes begins anew; all else is read.
TEST_F(VitProgram, LearnsOtherClasses) {
  const VitFolder vit = {{.layers = 1, .width = 192, .heads = 3, .patch = 4, .classes = 3}, 8, 3};
  Model model(FullMesh("cpu:dp=1"));
  Session session = Evaluate({{"logits", Logits(model, vit)}});
  const std::string saved = Save(model, folder_ / "saved").Wait(), theirs = folder_ / "theirs";
  VitFormat(vit).write(std::make_shared<CheckpointReader>(saved), {}, theirs);
  const std::string more = folder_ / "more";
  EXPECT_EQ(Vit({"--load_hf=" + theirs, "--save_hf=" + more, "--lr=1e-30"}), 0) << err_;
  EXPECT_NE(out_.find("names 3 classes, and begins anew for 10"), std::string::npos) << out_;
  VitFolder there = ReadVitConfig(more);
  EXPECT_EQ(there.config.classes, 10);
  FileSource before(theirs), after(more);
  for (const auto& [name, variable] : before.variables()) {
    if (name.rfind("classifier", 0) == 0) continue;
    std::vector<float> old(variable.shape.elements()), now = old;
    before.Read(name, Box::Whole(variable.shape), old.data());
    after.Read(name, Box::Whole(variable.shape), now.data());
    for (size_t i = 0; i < old.size(); ++i) ASSERT_NEAR(old[i], now[i], 1e-20) << name;
  }
}

}  // namespace
}  // namespace oneflow_like
