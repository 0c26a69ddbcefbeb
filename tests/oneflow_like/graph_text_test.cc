// A model's graph as text and back: a model made of the text alone trains as the first did, and texts that
// are wrong are refused with what is wrong.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

std::vector<float> Losses(Tensor loss, const SmallGpt& given) {
  TrainOptions options;
  options.micro_batches = given.micro_batches;
  options.clip_norm = 1;
  Session train = Train(loss, AdamW{.lr = 1e-3}, options);
  std::vector<float> losses;
  for (int step = 0; step < 3; ++step)
    losses.push_back(train.Run(GptProgram(given).MakeFeeds(step)).Scalar("loss"));
  return losses;
}

// Written on one mesh, read on it; dropout's draws, initialisers, annotations and stages are in the text.
TEST(GraphText, TrainsAsTheModelItIsOf) {
  for (const char* mesh : {"cpu:dp=1,tp=1,pp=1", "cpu:dp=2,tp=2,pp=2", "cpu:dp=3,tp=1,pp=1"}) {
    SmallGpt given{.mesh = mesh, .micro_batches = 2, .batch = 12};
    GptProgram program(given);
    program.MakeTrain();  // adds the loss, "loss" below
    const std::string text = program.model().Text();
    const std::string last = text.substr(0, text.rfind(" = "));
    const std::string loss = last.substr(last.rfind('\n') + 1);
    const std::vector<float> expected = Losses(program.model().Find(loss), given);
    Model other(Mesh::Parse(mesh));
    ModelGraph graph = other.NewGraph("read", text);
    EXPECT_EQ(graph.Text(), text) << mesh;
    EXPECT_EQ(Losses(graph.Find(loss), given), expected) << mesh;
  }
}

// Weights of a model that has them are those; the graph joins the model's others.
TEST(GraphText, SharesWeights) {
  Model model(Mesh::Parse("cpu:dp=2"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32), w = model.scope().Weight("w", {3, 2}, Normal(1));
  Tensor y = relu(matmul(x, w));
  ModelGraph again = model.NewGraph("again", model.Text());
  HostTensor feed = HostTensor::Make(DType::kFloat32, {4, 3});
  for (int i = 0; i < 12; ++i) feed.as<float>()[i] = static_cast<float>(i) - 5;
  const HostTensor one = Evaluate({{"y", y}}).Run({{"x", feed}}).Get("y"),
                   two = Evaluate({{"y", again.Find(y.name())}}, {.name = "two"}).Run({{"x", feed}}).Get("y");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(one.as<float>()[i], two.as<float>()[i]);
  EXPECT_EQ(model.Variables(), (std::vector<std::string>{"w"}));
}

TEST(GraphText, WrongTextsAreRefused) {
  const struct {
    const char *text, *words;
  } wrong[] = {
      {"x = input : f32[4,3]\ny = relu(z) : f32[4,3]\n", "line 3: no value 'z'"},
      {"x = input : f32[4,3]\ny = relu(x) : f32[4,4]\n", "result 0 is f32[4,4] but relu gives f32[4,3]"},
      {"x = input : f32[4,3]\ny = relu(x) : bf16[4,3]\n", "result 0 is bf16[4,3] but relu gives f32[4,3]"},
      {"x = input : f32[4,3]\ny = lu(x) : f32[4,3]\n", "no operator named \"lu\""},
      {"x = input : f32[4,3]\ny = matmul(x, x) : f32[4,3]\n", "axis k"},
      {"x = input : f32[4,3]\nx = input : f32[4,3]\n", "x"},
      {"x = input : f32[4,3\n", "']'"},
      {"x = input : g32[4,3]\n", "no element type 'g32'"},
      {"x = input : f32[4,3] fixed {mp:S0}\n", "mp"},
      {"w = variable init=full key=1 literal=7 value=0 : f32[4,3]\n", "'w' starts as numbers"},
      {"w = variable : f32[4,3]\n", "lacks the attributes init and key"},
      {"x = input : f32[4,3]\nfetch y(x)\n", "compiled graphs"},
      {"x = input : f32[4,9999999999999999999]\n", "line 2: '9999999999999999999' is no number"},
      {"x = input : f32[4,-1]\n", "-1"},
      {"x = input : f32[4] @pp=1\n", "pp"},
      {"x = input : f32[4] @dp=a\n", "'a' is no number"},
      {"what is this", "no operator named \"what\""},
      {"y = relu\n", "line 2"},
  };
  for (const auto& [text, words] : wrong) {
    Model model(Mesh::Parse("cpu:dp=2"));
    const std::string error = ErrorOf([&, text = text] { model.NewGraph("bad", text); });
    EXPECT_NE(error.find(words), std::string::npos) << text << "gives: " << error;
    EXPECT_NE(error.find("NewGraph 'bad' at graph_text_test.cc:"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace oneflow_like
