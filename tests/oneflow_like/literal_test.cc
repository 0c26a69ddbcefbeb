// Literals, and tensors through which no gradient flows, in sessions: on several meshes, in texts, of 64 MiB.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "ops/language/losses.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

// The texts below a folder, one after the other.
std::string TextsBelow(const std::string& folder) {
  std::ostringstream all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all << std::ifstream(entry.path()).rdbuf();
  return all.str();
}

TEST(Literals, AreTheSameOnEveryMesh) {
  const HostTensor table = Floats(3, {6, 4}), x = Floats(4, {8, 6});
  HostTensor want = HostTensor::Make(DType::kFloat32, {8, 4});
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 4; ++j)
      for (int k = 0; k < 6; ++k)
        want.as<float>()[i * 4 + j] += x.as<float>()[i * 6 + k] * table.as<float>()[k * 4 + j];
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,tp=2", "cpu:pp=2", "cpu:tp=3"}) {
    Model model(FullMesh(mesh));
    Tensor in = model.Input("x", {8, 6}, DType::kFloat32, {{"dp", S(0)}});
    Tensor cut = annotate(constant(model.builder(), table), {{"tp", S(1)}});
    Session session = Evaluate({{"y", to_stage(matmul(in, cut), "pp", model.mesh().axis_size(2) - 1)}});
    EXPECT_LE(Difference(session.Run({{"x", x}}).Get("y"), want), 1e-6) << mesh;
  }
}

// A rank holds the piece that its readers want: of rows, of columns, of a micro-batch; uneven ones, too.
TEST(Literals, AreCutAsTheirReadersWant) {
  constexpr int64_t kRows = 9, kColumns = 1001;
  const HostTensor values = Floats(3, {kRows, kColumns}), x = Floats(4, {kRows, kColumns});
  HostTensor want = HostTensor::Make(DType::kFloat32, {kRows, kColumns});
  for (int64_t i = 0; i < want.elements(); ++i)
    want.as<float>()[i] = values.as<float>()[i] * x.as<float>()[i];
  struct Case {
    const char* mesh;
    Annotation cut;
    int micro_batches, parts;
  };
  for (const Case& c : {Case{"cpu:dp=2", "dp:S0", 1, 2}, Case{"cpu:tp=3", "tp:S1", 1, 3},
                        Case{"cpu:dp=2,tp=2", {{"dp", S(0)}, {"tp", S(1)}}, 1, 4},
                        Case{"cpu:dp=2", "dp:S0", 4, 8}, Case{"cpu:dp=1", {}, 5, 5}}) {
    Model model(FullMesh(c.mesh));
    Tensor in = model.Input("x", {kRows, kColumns}, DType::kFloat32, c.cut);
    SessionOptions options;
    options.micro_batches = c.micro_batches;
    Session session = Evaluate({{"y", in * constant(model.builder(), values)}}, options);
    EXPECT_LE(Difference(session.Run({{"x", x}}).Get("y"), want), 0) << c.mesh << " " << c.micro_batches;
    const RankSummary rank = session.Summaries()[0];
    bool found = false;
    for (const auto& [what, bytes] : rank.consumers)
      if (what.find("buffer constant") != std::string::npos) {
        found = true;
        EXPECT_LT(bytes, 2 * kRows * kColumns * 4 / c.parts + 128) << c.mesh << ": " << what;
      }
    EXPECT_TRUE(found) << c.mesh;
  }
}

TEST(Literals, Of64MiBLeaveTextsShort) {
  TestFolder folder{"literal_test"};
  const HostTensor ones = HostTensor::Make(DType::kFloat32, {4096, 4096});
  for (int64_t i = 0; i < ones.elements(); ++i) ones.as<float>()[i] = static_cast<float>(i % 2);
  {
    ModelOptions options;
    options.dump_dir = folder / "dump";
    Model model(FullMesh("cpu:dp=2"), options);
    Tensor scale = model.Input("scale", {1}, DType::kFloat32);
    Session session = Evaluate({{"y", sum(constant(model.builder(), ones), {1}) * scale}});
    HostTensor two = HostTensor::Make(DType::kFloat32, {1});
    two.as<float>()[0] = 2;
    const HostTensor y = session.Run({{"scale", two}}).Get("y");
    for (int64_t i = 0; i < y.elements(); ++i) ASSERT_EQ(y.as<float>()[i], 4096) << i;
  }
  const std::string texts = TextsBelow(folder / "dump");
  EXPECT_NE(texts.find("values=%67108864/"), std::string::npos) << "no graph shows the literal's size";
  EXPECT_NE(texts.find("\"%67108864/"), std::string::npos) << "no plan shows the literal's size";
  EXPECT_LT(texts.size(), size_t{1} << 20);
}

// w trains towards what it was told, and what stands behind stop_gradient does not.
TEST(StopGradient, HoldsAWeight) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"}) {
    Model model(FullMesh(mesh));
    Tensor in = model.Input("x", {8, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor moving = model.scope().Weight("moving", {3, 2}, Full(0.5));
    Tensor held = model.scope().Weight("held", {3, 2}, Full(0.25));
    Tensor loss = mean(mse_loss(matmul(in, moving), stop_gradient(matmul(in, held))));
    Session train = Train(loss, Sgd{.lr = 0.1});
    double last = 1e9;
    for (int step = 0; step < 5; ++step) {
      const double now = train.Run({{"x", Floats(7, {8, 3})}}).Scalar("loss");
      EXPECT_LT(now, last) << mesh << " step " << step;
      last = now;
    }
    const HostTensor after = model.Read("held");
    for (int64_t i = 0; i < after.elements(); ++i) EXPECT_EQ(after.as<float>()[i], 0.25f);
  }
}

// Options of cross_entropy, with the classes whole and cut.
TEST(CrossEntropyOptions, GiveTheSameWhenClassesAreCut) {
  const HostTensor x = Floats(5, {12, 4}), target = Ids(6, {12}, 6), table = Floats(8, {4, 6});
  Outputs want;
  for (const char* mesh : {"cpu:dp=1", "cpu:tp=2", "cpu:dp=2,tp=3"}) {
    Model model(FullMesh(mesh));
    Tensor in = model.Input("x", {12, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor ids = model.Input("target", {12}, DType::kInt32, {{"dp", S(0)}});
    Tensor weight = model.scope().Weight("w", {4, 6}, Full(0), {{"tp", S(1)}});
    model.Write("w", table);
    HostTensor classes = HostTensor::Make(DType::kFloat32, {6});
    for (int i = 0; i < 6; ++i) classes.as<float>()[i] = 0.5f + static_cast<float>(i);
    CrossEntropyOptions options{.label_smoothing = 0.1, .z_loss = 0.01, .ignore_index = 2};
    options.class_weights = constant(model.builder(), classes);
    Tensor loss = mean(cross_entropy(matmul(in, weight), ids, options));
    Session train = Train(loss, Sgd{.lr = 0.1});
    Outputs got;
    for (int step = 0; step < 3; ++step) got["loss"] = train.Run({{"x", x}, {"target", target}}).Get("loss");
    got["w"] = model.Read("w");
    if (want.empty()) want = got;
    ExpectNear(got, want, 1e-5, mesh);
  }
}

}  // namespace
}  // namespace oneflow_like
