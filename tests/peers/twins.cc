// The models of PyTorch's that steps of our programs on a GPU are timed beside (steps_cuda.py): as many
// numbers to learn as the program has with the flags that stand there, and a step of a small one runs on the
// CPU. Skipped where python3 (or the program that OFL_PYTHON names) lacks torch.
// ctest: seconds=20 programs=examples
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/peers/tensor_file.h"
#include "tests/python.h"

namespace oneflow_like::peers {
namespace {

// What a command prints; empty where it fails.
std::string OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (char part[4096]; size_t n = fread(part, 1, sizeof part, pipe);) text.append(part, n);
  return pclose(pipe) == 0 ? text : "";
}

// Bytes in a line "weights 3.69 GB" of the table of a dry run; NaN where there is none.
double WeightBytes(const std::string& table) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, unit;
    double number = 0;
    if (words >> what >> number >> unit && what == "weights")
      return number * (unit == "GB" ? 1e9 : unit == "MB" ? 1e6 : unit == "KB" ? 1e3 : NAN);
  }
  return NAN;
}

TEST(Peers, TwinsOfStepsAreOfTheProgramsSizeAndRun) {
  const std::string python = PythonWithTorch();
  if (python.empty()) GTEST_SKIP() << "python3, or what OFL_PYTHON names, lacks torch";
  std::istringstream lines(OutputOf(
      Cat("OMP_NUM_THREADS=2 ", python, " -B ", OFL_SOURCE_DIR, "/tests/peers/steps_cuda.py --check")));
  int models = 0;
  for (std::string line; std::getline(lines, line); ++models) {
    std::istringstream words(line);
    std::string name, program, flags;
    double parameters = 0, loss = 0;
    ASSERT_TRUE(words >> name >> parameters >> loss >> program && std::getline(words, flags)) << line;
    EXPECT_TRUE(std::isfinite(loss)) << line;
    const double bytes = WeightBytes(
        OutputOf(Cat(OFL_BINARY_DIR, "/examples/", program, flags, " --mesh=cuda:dp=1 --dry_run 2>&1")));
    // The statistics of batch norms, which ours counts among the weights, are at most 0.3 % of these
    // networks.
    EXPECT_NEAR(bytes / (4 * parameters), 1, 0.005) << line;
  }
  EXPECT_GE(models, 10);
}

}  // namespace
}  // namespace oneflow_like::peers
