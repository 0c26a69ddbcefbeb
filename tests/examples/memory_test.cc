// A model that does not fit is refused before anything of it is allocated, whatever the limit is: the
// machine's memory, a control group around, address space. It is told once, with what needs the memory. What
// fits takes what its plan says.
// ctest: programs=examples
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

#include "tests/processes.h"

namespace oneflow_like {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() { text_ = folder_.Write("text", SomeText()); }

  // A shell runs `before`, then gpt with the flags. Gives the exit code.
  int Run(const std::string& before, const std::string& flags) {
    Process process(
        {.program = "/bin/sh",
         .flags = {"-c", before + "exec " + OFL_BINARY_DIR + "/examples/gpt --text=" + text_ +
                             " --layers=1 --heads=1 --context=8 --batch=4 --steps=1 --eval_batches=0"
                             " --sample_tokens=0 " +
                             flags},
         .output = folder_ / "output"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 100)) << "it does not end";
    err_ = process.err();
    return process.code();
  }
  int Times(const std::string& word) const {
    int times = 0;
    for (size_t at = err_.find(word); at != std::string::npos; at = err_.find(word, at + 1)) ++times;
    return times;
  }
  void ExpectRefused(int code, const std::string& limit) {
    EXPECT_EQ(code, 1) << err_;
    EXPECT_EQ(Times("error: session train needs"), 1) << err_;
    EXPECT_EQ(Times(limit), 1) << err_;
    EXPECT_EQ(Times("largest consumers"), 1) << err_;
    EXPECT_EQ(Times("variable block0/mlp/up"), 1) << err_;
  }

  TestFolder folder_{"memory_test"};
  std::string text_, err_;
};

TEST_F(MemoryTest, WhatTheMachineDoesNotHaveIsRefused) {
  ExpectRefused(Run("", "--width=1000000"), "the machine");
  ExpectRefused(Run("", "--width=1000000 --mesh=cpu:dp=2 --processes=2"), "the machine");
  EXPECT_NE(err_.find("for processes 0, 1"), std::string::npos) << err_;
}

TEST_F(MemoryTest, AddressSpaceThatIsShortIsRefused) {
  ExpectRefused(Run("ulimit -v 1000000; ", "--width=3000"), "ulimit -v");
  EXPECT_EQ(Run("ulimit -v 1000000; ", "--width=32"), 0) << err_;
}

// Real groups, where this user may make some.
TEST_F(MemoryTest, AGroupThatIsShortIsRefused) {
  const bool version2 = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
  const std::string outer = std::string("/sys/fs/cgroup/") + (version2 ? "" : "memory/") + "memory_test." +
                            std::to_string(getpid());
  const std::string inner = outer + "/inner",
                    limit = outer + (version2 ? "/memory.max" : "/memory.limit_in_bytes");
  std::error_code error;
  std::filesystem::create_directories(inner, error);
  if (!std::filesystem::exists(limit)) {
    std::filesystem::remove(inner, error);
    std::filesystem::remove(outer, error);
    GTEST_SKIP() << "no memory groups can be made here";
  }
  std::ofstream(limit) << (400 << 20);
  const std::string enter = "echo $$ > " + inner + "/cgroup.procs; ";
  ExpectRefused(Run(enter, "--width=2000"), limit);
  // Each needs less than the limit, both together more.
  const std::string two = "--mesh=cpu:dp=2 --width=";
  EXPECT_EQ(Run(enter, "--width=1024"), 0) << err_;
  ExpectRefused(Run(enter, two + "1024 --processes=2"), limit);
  EXPECT_EQ(Run(enter, two + "64 --processes=2"), 0) << err_;
  std::filesystem::remove(inner, error);
  std::filesystem::remove(outer, error);
}

// --- The plan names the memory that there is.

struct PlannedProgram {
  std::string name;
  std::vector<std::string> flags;
  int ranks = 1;
};

std::ostream& operator<<(std::ostream& out, const PlannedProgram& program) {
  out << program.name;
  for (const std::string& flag : program.flags) out << " " << flag;
  return out;
}

class PlannedMemory : public ::testing::TestWithParam<PlannedProgram> {
 protected:
  // What it prints.
  std::string Run(const std::string& more, int64_t* peak = nullptr) {
    std::vector<std::string> flags = GetParam().flags;
    for (const char* flag : {"--steps=2", "--eval_batches=0"}) flags.push_back(flag);
    if (!more.empty()) flags.push_back(more);
    Process process({.program = OFL_BINARY_DIR "/examples/" + GetParam().name,
                     .flags = flags,
                     .output = folder_ / "printed"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 200)) << "it does not end";
    EXPECT_EQ(process.code(), 0) << process.err();
    if (peak != nullptr) *peak = process.peak_bytes();
    return process.out();
  }

  // "  peak memory   152.39 MB = ...": what follows the word, of the first rank; 0 without it.
  static double BytesAfter(const std::string& word, const std::string& text) {
    const size_t at = text.find("  " + word + " ");
    if (at == std::string::npos) return 0;
    std::istringstream words(text.substr(at + 2 + word.size()));
    double number = 0;
    std::string unit;
    words >> number >> unit;
    return number * (unit == "GB" ? 1e9 : unit == "MB" ? 1e6 : 1e3);
  }

  TestFolder folder_{"memory_test"};
};

TEST_P(PlannedMemory, IsAllThatAProgramTakes) {
  const std::string plan = Run("--dry_run");
  const double planned = BytesAfter("peak memory", plan), inputs = BytesAfter("inputs", plan);
  ASSERT_GT(planned, 40e6);
  ASSERT_GT(inputs, 0);
  int64_t peak = 0;
  Run("", &peak);
  constexpr double kProgram = 60e6;  // code, threads, data that is read
  EXPECT_LE(static_cast<double>(peak), GetParam().ranks * (planned + inputs) + kProgram);
}

// As large as shows what a kernel takes beside its plan: 60 MB and more if it widens its operands.
const std::vector<PlannedProgram> kPlanned = {
    {"gpt",
     {"--text=", "--sample_tokens=0", "--layers=3", "--width=256", "--heads=4", "--context=256", "--batch=16",
      "--dtype=fp16"}},
    {"gpt",
     {"--text=", "--sample_tokens=0", "--layers=3", "--width=256", "--heads=4", "--context=256", "--batch=16",
      "--dtype=fp16", "--recompute=full"}},
    {"gpt",
     {"--text=", "--sample_tokens=0", "--layers=2", "--width=256", "--heads=4", "--context=256", "--batch=8",
      "--dtype=bf16"}},
    {"gpt",
     {"--text=", "--sample_tokens=0", "--layers=2", "--width=256", "--heads=4", "--context=256", "--batch=16",
      "--mesh=cpu:dp=2"},
     2},
    {"llama", {"--sample_tokens=0", "--batch=16", "--dtype=fp16", "--text="}},
    {"resnet", {"--size=18", "--batch=8", "--image_size=64"}},
    {"resnet", {"--size=18", "--batch=24", "--image_size=160"}},  // large inputs
    {"resnet", {"--size=18", "--batch=8", "--image_size=64", "--dtype=bf16"}},
    {"resnet", {"--size=18", "--batch=8", "--image_size=64", "--dtype=fp16"}},
    {"vit", {"--batch=48", "--layers=2", "--dtype=fp16"}},
    {"dlrm", {"--batch=8192"}},
    {"moe", {"--batch=8", "--dtype=fp16", "--text="}},
    {"moe", {"--experts=64", "--layers=2", "--width=256", "--context=256", "--batch=4", "--text="}},
    {"moe",
     {"--experts=64", "--layers=2", "--width=256", "--context=256", "--batch=4", "--text=", "--room=1.5"}},
    {"moe",
     {"--experts=64", "--layers=2", "--width=256", "--context=256", "--batch=8", "--text=", "--room=1.5",
      "--mesh=cpu:dp=2"},
     2},
    {"llama", {"--size=mixtral_tiny", "--batch=8", "--context=128", "--text=", "--sample_tokens=0"}},
    {"bert", {"--batch=32", "--layers=2", "--dtype=fp16", "--text="}},
    {"insightface", {"--batch=64", "--dtype=fp16"}},
    {"unet", {"--batch=32", "--dtype=fp16"}},
};
INSTANTIATE_TEST_SUITE_P(Programs, PlannedMemory, ::testing::ValuesIn(kPlanned));

// As on a processor that multiplies no bf16.
TEST(PlannedMemoryOfLevels, Bf16IsNotWidenedAsAWhole) {
  TestFolder folder("memory_test");
  const std::vector<std::string> flags = {"--layers=3", "--width=256",     "--heads=4", "--context=256",
                                          "--batch=16", "--dtype=bf16",    "--text=",   "--sample_tokens=0",
                                          "--steps=2",  "--eval_batches=0"};
  int64_t peaks[2];
  for (bool avx2 : {false, true}) {
    Process process({.program = OFL_BINARY_DIR "/examples/gpt",
                     .flags = flags,
                     .variables = {{"DNNL_MAX_CPU_ISA", avx2 ? "AVX2" : "ALL"}},
                     .output = folder / "printed"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 200)) << "it does not end";
    EXPECT_EQ(process.code(), 0) << process.err();
    peaks[avx2] = process.peak_bytes();
  }
  EXPECT_LE(static_cast<double>(peaks[1]), static_cast<double>(peaks[0]) + 20e6);
}

// Whatever the limit is, a session runs or is refused in the sentence of a plan that does not fit.
TEST(ShortAddresses, AreRefusedInOneSentence) {
  TestFolder folder("memory_test");
  int refused = 0, ran = 0;
  for (int64_t kilobytes = 400'000; kilobytes <= 900'000; kilobytes += 50'000) {
    const std::string command =
        "ulimit -v " + std::to_string(kilobytes) + "; exec " + OFL_BINARY_DIR +
        "/examples/resnet --size=18 --batch=8 --image_size=64 --eval_batches=0 --steps=1";
    Process process({.program = "/bin/sh", .flags = {"-c", command}, .output = folder / "printed"});
    EXPECT_TRUE(process.WaitUntil(Seconds() + 100)) << "it does not end below " << kilobytes;
    const std::string err = process.err();
    ran += process.code() == 0;
    if (process.code() == 0) continue;
    ++refused;
    EXPECT_EQ(process.code(), 1) << kilobytes << ": " << err;
    EXPECT_EQ(err.find("error: session train"), 0u) << kilobytes << ": " << err;
    EXPECT_NE(err.find("largest consumers"), std::string::npos) << kilobytes << ": " << err;
    EXPECT_NE(err.find("ulimit -v"), std::string::npos) << kilobytes << ": " << err;
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(ran, 0);
}

}  // namespace
}  // namespace oneflow_like
