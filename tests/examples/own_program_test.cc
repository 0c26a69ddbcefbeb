// The program of docs/your_own_program.md: the page shows the files that are compiled here, in at most 150
// lines; its commands run, and what it refuses gets the page's messages.
// ctest: seconds=10 programs=spirals
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "core/system/exit_codes.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

const std::string kPage = TextOf(OFL_SOURCE_DIR "/docs/your_own_program.md");

// The command in a folder of its own, with `spirals` of this build.
ShellOutcome RunIn(const TestFolder& folder, const std::string& command) {
  return Shell("cd " + (folder / "") + " && " + OFL_BINARY_DIR "/tests/" + command);
}

// First and second cells of the rows of the table behind a title.
std::vector<std::pair<std::string, std::string>> RowsBehind(const std::string& title) {
  std::vector<std::pair<std::string, std::string>> rows;
  const size_t begin = kPage.find("\n## " + title), end = kPage.find("\n## ", begin + 1);
  const std::regex row("^\\| `([^`]+)`.* \\| `?([^|`]*)`?.* \\|$");
  for (const std::string& line : LinesOf(kPage.substr(begin, end - begin)))
    if (std::smatch cells; std::regex_match(line, cells, row)) rows.push_back({cells[1], cells[2]});
  return rows;
}

TEST(OwnProgram, ThePageShowsItsTwoFiles) {
  size_t lines = 0;
  for (const auto& [file, language] : {std::pair{"spirals.cc", "cpp"}, {"CMakeLists.txt", "cmake"}}) {
    const std::string text = TextOf(std::string(OFL_SOURCE_DIR "/tests/own_program/") + file);
    lines += std::count(text.begin(), text.end(), '\n');
    EXPECT_NE(kPage.find(std::string("```") + language + "\n" + text + "```\n"), std::string::npos) << file;
  }
  EXPECT_GT(lines, 100u);
  EXPECT_LE(lines, 150u);
}

TEST(OwnProgram, ItsCommandsRun) {
  const TestFolder folder("own_program_test");
  const auto rows = RowsBehind("What it can do");
  EXPECT_GE(rows.size(), 9u);
  for (const auto& [command, what] : rows) {
    const bool resumes = command.find("--resume") != std::string::npos;
    const ShellOutcome o = RunIn(folder, command + (resumes ? " --steps=12" : " --steps=6"));
    EXPECT_EQ(o.code, 0) << command << o.output;
  }
}

TEST(OwnProgram, WhatItRefusesIsOnThePage) {
  const TestFolder folder("own_program_test");
  ASSERT_EQ(RunIn(folder, "spirals --steps=2 --save=run").code, 0);
  const auto rows = RowsBehind("What it refuses");
  EXPECT_GE(rows.size(), 6u);
  for (const auto& [command, message] : rows) {
    const ShellOutcome o = RunIn(folder, command);
    EXPECT_EQ(o.code, kUsageError) << command << o.output;
    EXPECT_NE(o.output.find(message), std::string::npos) << command << "\n" << message << "\n" << o.output;
  }
}

// The curve of the page: learnt, resumed on another mesh and by two processes as without a stop.
TEST(OwnProgram, ResumesOnAnotherMesh) {
  const TestFolder folder("own_program_test");
  const std::string rate = " --schedule_steps=30";
  ASSERT_EQ(RunIn(folder, "spirals --steps=30 --log_json=whole" + rate).code, 0);
  ASSERT_EQ(RunIn(folder, "spirals --steps=15 --save=run --log_json=first" + rate).code, 0);
  const ShellOutcome o = RunIn(folder,
                               "spirals --mesh=cpu:dp=2,tp=2,pp=2 --micro_batches=2 --processes=2 --steps=30 "
                               "--resume=run --noise=0.1 --log_json=second" +
                                   rate);
  ASSERT_EQ(o.code, 0) << o.output;
  EXPECT_EQ(o.output.find("differs"), std::string::npos) << o.output;
  const std::vector<double> whole = LossesOf(folder / "whole"), second = LossesOf(folder / "second");
  ASSERT_EQ(whole.size(), 30u);
  ASSERT_EQ(second.size(), 15u);
  for (size_t i = 0; i < second.size(); ++i) EXPECT_NEAR(second[i], whole[15 + i], 1e-4) << "step " << 15 + i;
  EXPECT_LT(whole.back(), 0.5 * whole.front());
  const ShellOutcome noisier = RunIn(folder, "spirals --steps=16 --resume=run --noise=0.5" + rate);
  EXPECT_EQ(noisier.code, 0) << noisier.output;
  EXPECT_NE(noisier.output.find("--noise=0.5 differs from --noise=0.1"), std::string::npos) << noisier.output;
}

}  // namespace
}  // namespace oneflow_like
