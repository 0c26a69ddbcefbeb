// What bounds the memory of a process, read from trees as machines, containers and schedulers have them.
#include "core/system/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "core/system/host_memory.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

constexpr int64_t kMega = 1 << 20;

// A root folder with what a machine shows.
class Root {
 public:
  Root() {
    Put("/proc/meminfo", "MemTotal:       2048000 kB\nMemFree:  1 kB\nMemAvailable:   1024000 kB\n");
    Put("/proc/self/status", "Name:\tprogram\nVmSize:\t  102400 kB\nVmData:\t   51200 kB\n");
    Limits("unlimited", "unlimited");
  }
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  void Limits(const std::string& address_space, const std::string& data) {
    Put("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              1                    unlimited            seconds   \n"
        "Max data size             " +
            data + "            unlimited            bytes     \n" + "Max address space         " +
            address_space + "            unlimited            bytes     \n");
  }
  // Version 2, mounted with `top` of the hierarchy at /sys/fs/cgroup.
  void Version2(const std::string& group, const std::string& top = "/") {
    Put("/proc/self/cgroup", "0::" + group + "\n");
    Put("/proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n30 23 0:26 " + top +
                                    " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void Version1(const std::string& group, const std::string& top = "/",
                const std::string& controllers = "memory") {
    Put("/proc/self/cgroup", "5:cpu,cpuacct:/elsewhere\n4:" + controllers + ":" + group + "\n0::/\n");
    Put("/proc/self/mountinfo",
        "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n35 31 0:32 " + top +
            " /sys/fs/cgroup/" + controllers + " rw,relatime - cgroup cgroup rw," + controllers + "\n");
  }
  std::vector<MemoryLimit> All() const { return ReadMemoryLimits(folder_ / ""); }
  // As "source bytes left", in MiB.
  std::map<std::string, std::string> Read() const {
    std::map<std::string, std::string> all;
    for (const MemoryLimit& l : All())
      all[l.source] = std::to_string(l.bytes / kMega) + " " + std::to_string(l.left / kMega);
    return all;
  }

 private:
  static inline int number_ = 0;
  TestFolder folder_{"memory_limits_test." + std::to_string(number_++)};
};

using Map = std::map<std::string, std::string>;
const std::pair<const std::string, std::string> kMachine = {"the machine", "2000 1000"};

std::string Bytes(int64_t mega) { return std::to_string(mega * kMega) + "\n"; }

TEST(MemoryLimits, WithoutAnyTheMachineIsOne) {
  Root root;
  EXPECT_EQ(root.Read(), Map({kMachine}));
  root.Version2("/");
  EXPECT_EQ(root.Read(), Map({kMachine}));
}

TEST(MemoryLimits, OfVersion2AreThoseOfAllGroupsAround) {
  Root root;
  root.Version2("/system.slice/slurm/job_7/step_0");
  root.Put("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  root.Put("/sys/fs/cgroup/system.slice/slurm/memory.max", Bytes(900));
  root.Put("/sys/fs/cgroup/system.slice/slurm/memory.current", Bytes(500));
  root.Put("/sys/fs/cgroup/system.slice/slurm/memory.stat",
           "anon 1\nfile " + Bytes(300) + "inactive_file " + Bytes(90) + "active_file " + Bytes(10));
  root.Put("/sys/fs/cgroup/system.slice/slurm/job_7/memory.high", Bytes(800));
  root.Put("/sys/fs/cgroup/system.slice/slurm/job_7/memory.current", Bytes(900));
  root.Put("/sys/fs/cgroup/system.slice/slurm/job_7/step_0/memory.max", Bytes(700));
  root.Put("/sys/fs/cgroup/system.slice/slurm/job_8/memory.max", Bytes(1));  // another job's
  EXPECT_EQ(root.Read(), Map({kMachine,
                              {"/sys/fs/cgroup/system.slice/slurm/memory.max", "900 500"},
                              {"/sys/fs/cgroup/system.slice/slurm/job_7/memory.high", "800 0"},
                              {"/sys/fs/cgroup/system.slice/slurm/job_7/step_0/memory.max", "700 700"}}));
}

TEST(MemoryLimits, OfVersion1AreThoseOfAllGroupsAround) {
  Root root;
  root.Version1("/slurm/uid_1/job_7");
  const std::string top = "/sys/fs/cgroup/memory";
  root.Put(top + "/memory.limit_in_bytes", "9223372036854771712\n");
  root.Put(top + "/slurm/memory.limit_in_bytes", Bytes(600));
  root.Put(top + "/slurm/uid_1/memory.limit_in_bytes", Bytes(400));
  root.Put(top + "/slurm/uid_1/memory.usage_in_bytes", Bytes(300));
  root.Put(top + "/slurm/uid_1/memory.stat", "inactive_file 1\ntotal_inactive_file " + Bytes(50));
  root.Put(top + "/slurm/uid_1/job_7/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(root.Read(), Map({kMachine,
                              {top + "/slurm/memory.limit_in_bytes", "600 600"},
                              {top + "/slurm/uid_1/memory.limit_in_bytes", "400 150"}}));
}

// Memory may be controlled together with other things.
TEST(MemoryLimits, OfVersion1AreThoseOfAnyHierarchyWithMemory) {
  for (const std::string controllers : {"cpu,memory", "memory,cpu", "cpuset,memory,pids"}) {
    Root root;
    root.Version1("/job", "/", controllers);
    const std::string file = "/sys/fs/cgroup/" + controllers + "/job/memory.limit_in_bytes";
    root.Put(file, Bytes(400));
    EXPECT_EQ(root.Read(), Map({kMachine, {file, "400 400"}}));
  }
}

// A container sees its own group as the top: with a namespace of groups as "/", without one by the mount.
TEST(MemoryLimits, OfAContainerAreThoseItSees) {
  for (const auto& [group, top] :
       std::vector<std::pair<std::string, std::string>>{{"/", "/"},
                                                        {"/kubepods/pod1/c1", "/kubepods/pod1/c1"},
                                                        {"/other", "/kubepods/pod1/c1"},
                                                        {"/kubepods/pod1/c12", "/kubepods/pod1/c1"},
                                                        {"/../c2", "/"}}) {
    SCOPED_TRACE(group + " of " + top);
    Root root;
    root.Version2(group, top);
    root.Put("/sys/fs/cgroup/memory.max", Bytes(400));
    EXPECT_EQ(root.Read(), Map({kMachine, {"/sys/fs/cgroup/memory.max", "400 400"}}));
    Root older;
    older.Version1(group, top);
    older.Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", Bytes(400));
    EXPECT_EQ(older.Read(), Map({kMachine, {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "400 400"}}));
  }
}

TEST(MemoryLimits, OfAProcessAreItsAddressSpaceAndData) {
  Root root;
  root.Limits(std::to_string(400 * kMega), "unlimited");
  EXPECT_EQ(root.Read(), Map({kMachine, {"ulimit -v", "400 300"}}));
  root.Limits("unlimited", std::to_string(200 * kMega));
  EXPECT_EQ(root.Read(), Map({kMachine, {"ulimit -d", "200 150"}}));
}

// Limits that ulimit sets bound every process by itself.
TEST(MemoryLimits, AreSharedButThoseOfAProcess) {
  Root root;
  root.Version2("/job");
  root.Put("/sys/fs/cgroup/job/memory.max", Bytes(400));
  root.Limits(std::to_string(400 * kMega), std::to_string(200 * kMega));
  const std::vector<MemoryLimit> limits = root.All();
  EXPECT_EQ(limits.size(), 4u);
  for (const MemoryLimit& limit : limits)
    EXPECT_EQ(limit.shared, limit.source.rfind("ulimit", 0) != 0) << limit.source;
}

// Whatever stands in the files, nothing is thrown and no limit is negative.
TEST(MemoryLimits, NonsenseIsNoLimit) {
  const std::vector<std::string> words = {"",
                                          "max",
                                          "-1",
                                          "x",
                                          "99999999999999999999",
                                          ":",
                                          "4:memory",
                                          "4:memory:",
                                          "0::",
                                          "/",
                                          "- cgroup2",
                                          "12 12 12 12 12 - cgroup cgroup memory",
                                          "\n",
                                          "7"};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Root root;
    root.Version2("/a");
    for (const char* path : {"/proc/meminfo", "/proc/self/cgroup", "/proc/self/mountinfo",
                             "/proc/self/limits", "/proc/self/status", "/sys/fs/cgroup/a/memory.max",
                             "/sys/fs/cgroup/a/memory.current", "/sys/fs/cgroup/a/memory.stat"}) {
      if (random() % 3 == 0) continue;
      std::string text;
      for (uint32_t i = random() % 6; i > 0; --i)
        text += words[random() % words.size()] + (random() % 2 ? " " : "\n");
      root.Put(path, text);
    }
    for (const auto& [source, numbers] : root.Read())
      EXPECT_EQ(numbers.find('-'), std::string::npos) << source;
  }
}

TEST(MemoryLimits, OfThisMachineAreThere) {
  const std::vector<MemoryLimit> limits = ReadMemoryLimits();
  ASSERT_FALSE(limits.empty());
  EXPECT_EQ(limits[0].source, "the machine");
  EXPECT_GT(limits[0].left, 0);
}

}  // namespace
}  // namespace oneflow_like
