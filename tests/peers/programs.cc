// The small models of the example programs beside PyTorch: twenty steps from equal weights on equal batches.
// Weights, batches and losses go to a file, from which programs.py trains the same models in double. Skipped
// where python3 (or the program that OFL_PYTHON names) lacks torch.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/examples/small_models.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/peers/tensor_file.h"

namespace oneflow_like::peers {
namespace {

constexpr int kProgramSteps = 20;

void Keep(const std::string& name, const HostTensor& t, TensorFile* file) {
  file->Add(name, t.dtype, t.shape, t.data.get());
}

TEST(Peers, ProgramsLearnAsInPyTorch) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  TensorFile file;
  for (const SmallModel& small : SmallModels()) {
    if (small.draws) continue;
    Model model(FullMesh("cpu:dp=2,tp=2"));
    TrainOptions options;
    options.parallel = {.batch = "dp", .tensor = "tp"};
    Session train = TrainSmall(model, small, options);
    for (const std::string& weight : model.Variables())
      if (weight.find(':') == std::string::npos)
        Keep(Cat(small.name, ":weight:", weight), model.Read(weight), &file);
    std::vector<double> losses;
    for (int step = 0; step < kProgramSteps; ++step) {
      const Feeds feeds = SmallFeeds(small, step);
      for (const auto& [input, tensor] : feeds) Keep(Cat(small.name, ":", input, ":", step), tensor, &file);
      losses.push_back(train.Run(feeds).Scalar("loss"));
    }
    file.Add(Cat(small.name, ":losses"), losses);
  }
  const std::string path = Cat(OFL_BINARY_DIR, "/programs_peer_test.safetensors");
  file.Write(path);
  EXPECT_EQ(std::system(Cat(python, " -B ", OFL_SOURCE_DIR, "/tests/peers/programs.py ", path).c_str()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace oneflow_like::peers
