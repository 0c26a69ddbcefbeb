// Every numeric flag of every program, at values that templates, typing errors and other programs give: it is
// accepted with a sensible meaning, or refused in one sentence with exit code 64 before anything is started.
// ctest: seconds=25 long=20 programs=examples
#include <gtest/gtest.h>

#include <cfloat>
#include <climits>
#include <cmath>

#include "core/system/exit_codes.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

struct Flag {
  const char* name;
  bool whole;          // a whole number; else a double
  double least, most;  // what is accepted
  bool run = false;    // what is accepted also runs a step, not a dry run only
};

const Flag kOfLauncher[] = {
    {"threads", true, 0, 1024, true},         {"kernel_threads", true, 0, 1024, true},
    {"memory_budget", true, 0, 9.3e18, true}, {"processes", true, 1, 256, true},
    {"seed", true, 0, 1.9e19, true},          {"start_timeout", false, 0.1, 1e6, true},
    {"peer_timeout", false, 0.1, 1e6, true},  {"calibrate_models", true, 1, 9}};
const Flag kOfGpt[] = {
    {"layers", true, 1, 10'000},     {"width", true, 1, 1 << 20},      {"heads", true, 1, 1 << 20},
    {"context", true, 1, 1 << 20},   {"batch", true, 1, 1 << 20},      {"micro_batches", true, 1, 1 << 16},
    {"steps", true, 1, 1e9},         {"warmup", true, 0, 1e9, true},   {"eval_batches", true, 0, 1e9},
    {"sample_tokens", true, 0, 1e9}, {"dropout", false, 0, 0.9999},    {"lr", false, 1e-320, 1e30},
    {"clip", false, 0, 1e30},        {"weight_decay", false, 0, 1e30}, {"temperature", false, 0, 1e30},
    {"overlap", true, 1, 64},        {"link", false, 0, 1e9},          {"average", false, 0, 0.999999}};
const Flag kOfGenerate[] = {{"tokens", true, 1, 1 << 28},    {"context", true, 0, 4},
                            {"chunk", true, 1, 1 << 20},     {"top_k", true, 0, INT32_MAX},
                            {"temperature", false, 0, 1e30}, {"top_p", false, 1e-320, 1},
                            {"min_p", false, 0, 1},          {"repetition_penalty", false, 1e-3, 1e3}};
const Flag kOfMlp[] = {{"epochs", true, 1, 1e6},
                       {"batch", true, 1, 1 << 20},
                       {"hidden", true, 1, 1 << 20},
                       {"lr", false, 1e-320, 1e30},
                       {"dropout", false, 0, 0.9999}};

const std::vector<std::string> kValues = {"0",
                                          "-1",
                                          "1",
                                          "2147483647",
                                          "-2147483648",
                                          "9223372036854775807",
                                          "-9223372036854775808",
                                          "18446744073709551615",
                                          "99999999999999999999",
                                          "1e300",
                                          "-1e300",
                                          "1.7976931348623157e308",
                                          "2.2250738585072014e-308",
                                          "nan",
                                          "-nan",
                                          "inf",
                                          "-inf",
                                          "0x10",
                                          "1,5",
                                          ""};

// One of each kind: a whole number or none, within any range or none, of either sign.
const std::vector<std::string> kFewValues = {
    "0", "-1", "1", "2147483647", "-9223372036854775808", "18446744073709551615", "1e300", "nan", "1,5"};

class NumericFlags : public ::testing::Test {
 protected:
  NumericFlags() { text_ = folder_.Write("text", SomeText()); }

  void Try(const std::string& program, std::vector<std::string> flags, const Flag& flag,
           const std::string& value) {
    SCOPED_TRACE(program + " --" + flag.name + "=" + value);
    flags.push_back(std::string("--") + flag.name + "=" + value);
    Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/" + program,
                     .flags = flags,
                     .output = folder_ / "output"});
    ASSERT_TRUE(process.WaitUntil(Seconds() + 60)) << "it does not end";
    const std::string err = process.err();
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const bool parsed = !value.empty() && *end == '\0';
    // gflags itself refuses what is no number of the type.
    const bool within = parsed && number >= flag.least && number <= flag.most;
    const bool fits = !flag.whole || value.find_first_not_of("0123456789-x") == std::string::npos;
    if (within && fits && process.code() == 0) return;
    // What is about the plan, such as a budget, is refused once it is made.
    EXPECT_TRUE(process.code() == kUsageError || process.code() == kRunError) << err;
    if (err.find("but the budget is") != std::string::npos) return;  // a table follows
    EXPECT_FALSE(within && fits && value.size() < 4) << "refused, but is within its range: " << err;
    const std::vector<std::string> lines = LinesOf(err);
    ASSERT_EQ(lines.size(), 1u) << err;
    EXPECT_NE(lines[0].find(flag.name), std::string::npos) << err;
    EXPECT_TRUE(lines[0].rfind("error: ", 0) == 0 || lines[0].rfind("ERROR: ", 0) == 0) << err;
  }

  virtual const std::vector<std::string>& values() const { return kFewValues; }

  void TryAll(const std::string& program, const std::vector<std::string>& flags, const Flag& flag) {
    std::vector<std::string> all = flags;
    if (!flag.run) all.push_back("--dry_run");
    for (const std::string& value : values()) Try(program, all, flag, value);
  }

  std::vector<std::string> Gpt() const {
    return {"--text=" + text_, "--layers=1", "--width=4",        "--heads=1",        "--context=4",
            "--batch=2",       "--steps=1",  "--eval_batches=0", "--sample_tokens=0"};
  }

  void TryLauncher();
  void TryRestarts();
  void TryGpt();
  void TryMlp();
  void TryGenerate();

  TestFolder folder_{"numeric_flags_test"};
  std::string text_;
};

class LongNumericFlags : public NumericFlags {
 protected:
  const std::vector<std::string>& values() const override { return kValues; }
};

void NumericFlags::TryLauncher() {
  for (const Flag& flag : kOfLauncher) TryAll("gpt", Gpt(), flag);
  for (const char* value : {"-1", "2147483647"}) Try("hello_sbp", {}, kOfLauncher[0], value);
  for (const char* value : {"nan", "inf", "1e300"}) Try("mlp", {}, kOfLauncher[6], value);
}
TEST_F(NumericFlags, OfLauncherAreAcceptedOrRefused) { TryLauncher(); }
TEST_F(LongNumericFlags, OfLauncherAreAcceptedOrRefused) { TryLauncher(); }

// Where they mean something: with processes to wait for.
TEST_F(NumericFlags, OfProcessesAreAcceptedOrRefused) {
  std::vector<std::string> flags = Gpt();
  flags.insert(flags.end(), {"--processes=2", "--mesh=cpu:dp=2"});
  for (const char* value : {"1e6", "1e300", "inf", "nan", "1e-9"}) {
    Try("gpt", flags, kOfLauncher[5], value);
    Try("gpt", flags, kOfLauncher[6], value);
  }
}

// Which means nothing without --save.
void NumericFlags::TryRestarts() {
  std::vector<std::string> flags = Gpt();
  flags.push_back("--save=" + (folder_ / "saved"));
  TryAll("gpt", flags, {"restarts", true, 0, 1e6});
}
TEST_F(NumericFlags, RestartsAreAcceptedOrRefused) { TryRestarts(); }
TEST_F(LongNumericFlags, RestartsAreAcceptedOrRefused) { TryRestarts(); }

void NumericFlags::TryGpt() {
  for (const Flag& flag : kOfGpt) TryAll("gpt", Gpt(), flag);
}
TEST_F(NumericFlags, OfGptAreAcceptedOrRefused) { TryGpt(); }
TEST_F(LongNumericFlags, OfGptAreAcceptedOrRefused) { TryGpt(); }

// Those of its own; the others are gpt's.
TEST_F(NumericFlags, OfLlamaAreAcceptedOrRefused) {
  TryAll("llama", {"--context=4", "--batch=2"}, {"layers", true, 0, 10'000});
  TryAll("llama", {"--size=mixtral_tiny", "--layers=1", "--context=4", "--batch=2"},
         {"capacity", false, 0, 1e6});
  TryAll("llama", {"--size=mixtral_tiny", "--layers=1", "--context=4", "--batch=2"}, {"room", false, 0, 1e6});
}

void NumericFlags::TryMlp() {
  for (const Flag& flag : kOfMlp) TryAll("mlp", {}, flag);
}
TEST_F(NumericFlags, OfMlpAreAcceptedOrRefused) { TryMlp(); }
TEST_F(LongNumericFlags, OfMlpAreAcceptedOrRefused) { TryMlp(); }

// Those of their own; the others are gpt's.
TEST_F(NumericFlags, OfOtherProgramsAreAcceptedOrRefused) {
  const std::tuple<const char*, std::vector<std::string>, std::vector<Flag>> programs[] = {
      {"resnet", {}, {{"image_size", true, 0, 64}, {"momentum", false, 0, 0.9999}}},
      {"vit",
       {"--image_size=4"},
       {{"layers", true, 0, 10'000}, {"patch", true, 0, 4}, {"dropout", false, 0, 0.9999}}},
      {"dlrm", {"--tables=1"}, {{"rows", true, 1, 1 << 30}, {"width", true, 1, 1 << 16}}},
      {"moe",
       {"--layers=1", "--width=4", "--heads=1", "--context=4"},
       {{"experts", true, 2, 1 << 16},
        {"capacity", false, 1e-300, 1e6},
        {"room", false, 0, 1e6},
        {"shared", true, 0, 1 << 16}}},
      {"bert", {}, {{"context", true, 1, 1 << 20}, {"layers", true, 0, 10'000}}},
      {"caption",
       {"--layers=1", "--eye_layers=1"},
       {{"image_size", true, 4, 1 << 14}, {"layers", true, 1, 10'000}, {"eye_layers", true, 1, 10'000}}},
      {"insightface",
       {"--image_size=4"},
       {{"identities", true, 2, 1 << 28}, {"sampled", true, 0, 64}, {"margin", false, 0, 1.5}}}};
  for (const auto& [program, small, flags] : programs)
    for (const Flag& flag : flags)
      for (const char* value : {"0", "-1", "1", "9223372036854775807", "1e300", "nan", ""}) {
        std::vector<std::string> all = small;
        all.insert(all.end(), {"--batch=1", "--dry_run"});
        Try(program, all, flag, value);
      }
}

void NumericFlags::TryGenerate() {
  std::vector<std::string> flags = Gpt();
  flags.push_back("--save=" + (folder_ / "saved"));
  Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                   .flags = flags,
                   .output = folder_ / "output"});
  ASSERT_TRUE(process.WaitUntil(Seconds() + 60));
  ASSERT_EQ(process.code(), 0) << process.err();
  for (const Flag& flag : kOfGenerate)
    TryAll("generate", {"--load=" + (folder_ / "saved"), "--prompt=a"}, flag);
}
TEST_F(NumericFlags, OfGenerateAreAcceptedOrRefused) { TryGenerate(); }
TEST_F(LongNumericFlags, OfGenerateAreAcceptedOrRefused) { TryGenerate(); }

// Each is within its range, together they are too many.
TEST_F(NumericFlags, ThreadsOfAllKernelsAreBounded) {
  std::vector<std::string> flags = Gpt();
  flags.insert(flags.end(), {"--mesh=cpu:dp=2", "--threads=1000", "--kernel_threads=1000"});
  Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                   .flags = flags,
                   .output = folder_ / "output"});
  ASSERT_TRUE(process.WaitUntil(Seconds() + 60));
  EXPECT_EQ(process.code(), kUsageError);
  EXPECT_NE(process.err().find("2 runtime threads with 1000 kernel threads each are 2000 threads"),
            std::string::npos)
      << process.err();
}

TEST_F(NumericFlags, ProcessesThatCannotShareTheMeshAreNotStarted) {
  for (const char* mesh : {"--mesh=cpu:dp=2", "--mesh="}) {
    for (const char* processes : {"--processes=200", "--processes=3"}) {
      std::vector<std::string> flags = Gpt();
      flags.insert(flags.end(), {mesh, processes, "--log_dir=" + (folder_ / "logs")});
      Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                       .flags = flags,
                       .output = folder_ / "output"});
      ASSERT_TRUE(process.WaitUntil(Seconds() + 60));
      EXPECT_EQ(process.code(), kUsageError);
      EXPECT_EQ(LinesOf(process.err()).size(), 1u) << process.err();
      EXPECT_NE(process.err().find("processes cannot share equally"), std::string::npos) << process.err();
      // A process that is started has a log.
      EXPECT_FALSE(std::filesystem::exists(folder_ / "logs")) << mesh << " " << processes;
    }
  }
}

// What a model needs is compared with a budget by every process, and refused once.
TEST_F(NumericFlags, AMemoryBudgetIsRefusedOnce) {
  for (const char* mesh : {"--mesh=cpu:dp=4", "--mesh=cpu:dp=2,tp=2"}) {
    std::vector<std::string> flags = Gpt();
    flags.insert(flags.end(), {mesh, "--batch=4", "--processes=4", "--memory_budget=1000"});
    Process process({.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                     .flags = flags,
                     .output = folder_ / "output"});
    ASSERT_TRUE(process.WaitUntil(Seconds() + 60));
    EXPECT_EQ(process.code(), 1);
    const std::string err = process.err();
    const size_t first = err.find("but the budget is 1000");
    ASSERT_NE(first, std::string::npos) << err;
    EXPECT_EQ(err.find("but the budget is 1000", first + 1), std::string::npos) << err;
    EXPECT_NE(err.find("largest consumers"), std::string::npos) << err;
  }
}

}  // namespace
}  // namespace oneflow_like
