// The flags of every program reach the options that they stand for.
#include "oneflow_like/launcher.h"

#include <gtest/gtest.h>

namespace oneflow_like {
namespace {

TEST(Launcher, EveryFlagReachesItsOption) {
  const std::string trace = testing::TempDir() + "/launcher_test.trace", dump = testing::TempDir() + "/dump";
  std::vector<std::string> flags = {"launcher_test",      "--mesh=cpu:tp=2",       "--devices=2,5",
                                    "--seed=7",           "--threads=3",           "--kernel_threads=2",
                                    "--explain",          "--memory_budget=12345", "--check_feeds",
                                    "--dump_dir=" + dump, "--trace=" + trace};
  std::vector<char*> pointers;
  for (std::string& flag : flags) pointers.push_back(flag.data());
  int argc = static_cast<int>(pointers.size());
  char** argv = pointers.data();
  Launcher launcher(&argc, &argv, "tests flags");
  const ModelOptions options = launcher.model_options();
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.dump_dir, dump);
  EXPECT_EQ(options.memory_budget, 12345);
  EXPECT_EQ(options.trace_file, trace);
  EXPECT_TRUE(options.check_feeds);
  EXPECT_EQ(options.devices, (std::vector<int>{2, 5}));
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.kernel_threads, 2);
  EXPECT_EQ(options.job, nullptr);
  EXPECT_TRUE(launcher.explain());
  EXPECT_FALSE(launcher.dry_run());
  EXPECT_TRUE(launcher.main_process());
  EXPECT_EQ(launcher.mesh({"dp", "tp"}, "cpu:dp=4").str(), Mesh::Parse("cpu:dp=1,tp=2").str());
}

}  // namespace
}  // namespace oneflow_like
