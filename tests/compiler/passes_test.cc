// Every pass by text: tests/compiler/passes/<pass>/<example>.txt holds a graph, `----`, and what the pass
// leaves of it (tests/compiler/pass_example.h). Run with --update to write what the passes leave now; then
// read the difference.
#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/compiler/pass_example.h"
#include "tests/oneflow_like/small_gpt.h"

DEFINE_bool(update, false, "write what the passes leave into the examples, in place of what is expected");

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> Examples(const std::string& pass) {
  std::vector<fs::path> files;
  fs::path folder = fs::path(OFL_SOURCE_DIR) / "tests" / "compiler" / "passes" / pass;
  if (fs::is_directory(folder))
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string ReadText(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Without comments, and with one blank where there are several.
std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    size_t hash = line.find('#');
    if (hash != std::string::npos) line.resize(hash);
    std::string squeezed;
    for (char c : line)
      if (c != ' ' || (!squeezed.empty() && squeezed.back() != ' ')) squeezed += c;
    while (!squeezed.empty() && squeezed.back() == ' ') squeezed.pop_back();
    if (!squeezed.empty()) lines.push_back(squeezed);
  }
  return lines;
}

// The longest common subsequence kept, the others marked - (expected only) and + (made only).
std::string Difference(const std::vector<std::string>& expected, const std::vector<std::string>& made) {
  size_t n = expected.size(), m = made.size();
  std::vector<std::vector<int>> common(n + 1, std::vector<int>(m + 1, 0));
  for (size_t i = n; i-- > 0;)
    for (size_t j = m; j-- > 0;)
      common[i][j] =
          expected[i] == made[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
  std::string text;
  for (size_t i = 0, j = 0; i < n || j < m;) {
    if (i < n && j < m && expected[i] == made[j])
      text += "  " + expected[i++] + "\n", ++j;
    else if (i < n && (j == m || common[i + 1][j] >= common[i][j + 1]))
      text += "- " + expected[i++] + "\n";
    else
      text += "+ " + made[j++] + "\n";
  }
  return text;
}

class PassText : public testing::TestWithParam<fs::path> {};

TEST_P(PassText, LeavesWhatTheExampleSays) {
  const fs::path& file = GetParam();
  std::string pass = file.parent_path().filename();
  PassExample example = ParsePassExample(ReadText(file));
  ASSERT_FALSE(example.comment.empty()) << file << " does not say what it shows";
  std::string made;
  try {
    made = PassRun(example).Upto(pass);
  } catch (const Error& e) {  // a refusal is an example too
    made = Cat("error: ", e.what(), "\n");
  }
  if (FLAGS_update) {
    std::ofstream(file) << example.comment << example.head << example.graph << "----\n" << made;
    return;
  }
  std::vector<std::string> expected = Lines(example.expected), got = Lines(made);
  EXPECT_EQ(expected, got) << file << " (- expected, + made):\n" << Difference(expected, got);
}

std::vector<fs::path> AllExamples() {
  std::vector<fs::path> all;
  for (const std::string& pass : PassNames())
    for (const fs::path& file : Examples(pass)) all.push_back(file);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Examples, PassText, testing::ValuesIn(AllExamples()), [](const auto& info) {
  return info.param.parent_path().filename().string() + "__" + info.param.stem().string();
});

TEST(PassExamples, EveryPassHasTwo) {
  for (const std::string& pass : PassNames()) EXPECT_GE(Examples(pass).size(), 2u) << pass;
}

TEST(PassExamples, EveryFolderIsAPass) {
  for (const fs::directory_entry& folder :
       fs::directory_iterator(fs::path(OFL_SOURCE_DIR) / "tests" / "compiler" / "passes")) {
    std::string name = folder.path().filename();
    EXPECT_NE(std::find(PassNames().begin(), PassNames().end(), name), PassNames().end()) << name;
  }
}

// The test of the test: a wrong expectation is seen, and shown by its line.
TEST(PassExamples, AWrongLineIsSeen) {
  std::vector<std::string> made = Lines("a = relu(x)  : f32[2]\nb = gelu(a) : f32[2]\n");
  std::vector<std::string> expected = Lines("a = relu(x) : f32[2]  # aligned\nb = gelu(x) : f32[2]\n");
  EXPECT_NE(expected, made);
  EXPECT_EQ(Difference(expected, made),
            "  a = relu(x) : f32[2]\n- b = gelu(x) : f32[2]\n+ b = gelu(a) : f32[2]\n");
}

// In a GPT each block has two norms with a branch beside them; the last norm has none.
TEST(WholeModels, GradientsOfNormsAddWhatComesPastThem) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const char* mesh : {"cpu:dp=1", "cpu:dp=2", "cpu:pp=2"})
      for (int micro_batches : {1, 4}) {
        SmallGpt given{.mesh = mesh,
                       .micro_batches = micro_batches,
                       .batch = 64,
                       .context = 32,
                       .dtype = dtype,
                       .dropout = 0};
        GptProgram program(given);
        Session session = program.MakeTrain();
        const Graph& graph = session.impl()->compiled.graph;
        int gradients = 0, with_residual = 0;
        for (int n : graph.Order()) {
          if (graph.node(n).op != "layer_norm_grad") continue;
          ++gradients;
          with_residual += graph.node(n).attrs.Has("residual");
        }
        EXPECT_EQ(gradients, 2 * given.layers + 1) << given.str() << " " << Name(dtype);
        EXPECT_EQ(with_residual, 2 * given.layers) << given.str() << " " << Name(dtype);
      }
}

}  // namespace
}  // namespace oneflow_like
