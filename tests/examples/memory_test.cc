// A model that does not fit is refused before anything of it is allocated, whatever the limit is: the
// machine's memory, a control group around, address space. It is told once, with what needs the memory.
// ctest: programs=gpt
#include <gtest/gtest.h>
#include <unistd.h>

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

}  // namespace
}  // namespace oneflow_like
