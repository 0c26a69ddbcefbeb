// The program of oneflow_like/README.md, compiled and run; the README must hold these very lines.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#define main ReadmeMain
// README
#include "core/random.h"
#include "oneflow_like/oneflow_like.h"

using namespace oneflow_like;

// The hidden axis is cut over tp: the first matmul needs no communication, the second gives partial sums, which are
// combined where somebody needs them whole.
Tensor Mlp(Scope s, Tensor x, int64_t hidden) {
  Tensor up = s.Weight("up", {x.shape().back(), hidden}, KaimingNormal(), {{"tp", S(1)}});
  Tensor bias = s.Weight("bias", {hidden}, Uniform(-1, 1), {{"tp", S(0)}});
  Tensor down = s.Weight("down", {hidden, 1}, XavierNormal(), {{"tp", S(0)}});
  return matmul(relu(matmul(x, up) + bias), down);
}

Feeds Batch(int64_t step) {
  std::vector<float> x(64 * 2), y(64);
  for (int i = 0; i < 128; ++i) x[i] = 2 * ToUniform(RandomBits(1, step, i)) - 1;
  for (int i = 0; i < 64; ++i) y[i] = x[2 * i] * x[2 * i + 1];
  return {{"x", ToHost(x, {64, 2})}, {"y", ToHost(y, {64, 1})}};
}

int main(int argc, char** argv) {
  Launcher launcher(&argc, &argv, "fits y = x0 * x1");
  return launcher.Main([&] {
    Model model(launcher.mesh({"dp", "tp"}, "cpu:dp=2,tp=2"), launcher.model_options());
    Tensor x = model.Input("x", {64, 2}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = model.Input("y", {64, 1}, DType::kFloat32, {{"dp", S(0)}});
    Tensor guess = Mlp(model.scope() / "mlp", x, 32), loss = mean(square(guess - y));

    TrainOptions options;
    options.micro_batches = 2;
    options.clip_norm = 1;
    options.lr_schedule = {.kind = Schedule::Kind::kCosine, .warmup = 10, .total = 300};
    Session train = Train(loss, AdamW{.lr = 2e-2}, options);
    if (launcher.dry_run()) {
      launcher.Print("%s", train.SummaryText().c_str());
      return 0;
    }
    for (int64_t step = 0; step < 300; ++step) {
      StepResult result = train.Run(Batch(step));  // returns at once; reading the loss waits for the step
      if (step % 50 == 49) launcher.Print("step %3ld  loss %.5f\n", long(step), result.Scalar("loss"));
    }
    Session evaluate = Evaluate({{"guess", guess}, {"loss", loss}});  // reads the weights just trained
    float final_loss = evaluate.Run(Batch(1000)).Scalar("loss");
    launcher.Print("loss on a new batch %.5f\n", final_loss);
    return final_loss < 0.01 ? 0 : 1;
  });
}
// README ends
#undef main

namespace {

std::string Between(const std::string& text, const std::string& begin, const std::string& end) {
  size_t from = text.find(begin);
  if (from == std::string::npos) return "";
  from += begin.size();
  return text.substr(from, text.find(end, from) - from);
}

std::string File(const std::string& name) {
  std::ifstream in(OFL_SOURCE_DIR "/" + name);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Readme, HoldsTheProgramBelow) {
  std::string printed = Between(File("oneflow_like/README.md"), "```cpp\n", "```");
  EXPECT_EQ(printed, Between(File("tests/examples/readme_test.cc"), "\n// README\n", "// README ends\n"));
}

TEST(Readme, ProgramLearns) {
  for (std::string mesh : {"", "--mesh=cpu:dp=3", "--mesh=cpu:tp=2", "--mesh=cpu:dp=4,tp=4"}) {
    std::string name = "readme";
    char* arguments[] = {name.data(), mesh.data(), nullptr};
    char** argv = arguments;
    EXPECT_EQ(ReadmeMain(mesh.empty() ? 1 : 2, argv), 0) << mesh;
  }
}

}  // namespace
