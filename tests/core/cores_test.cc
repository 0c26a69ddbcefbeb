// The cores of a process, read from trees as machines, containers and schedulers have them, and their
// division between the processes that share them.
#include "core/system/cores.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "core/system/control_groups.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

// A root folder with what a machine of 64 cores shows.
class MachineFiles {
 public:
  MachineFiles() {
    Put("/sys/devices/system/cpu/online", "0-63\n");
    Put("/proc/self/status",
        "Name:\tprogram\nCpus_allowed:\tff\nCpus_allowed_list:\t0-63\nMems_allowed:\t1\n");
  }
  void Put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  void Version2(const std::string& group, const std::string& top = "/") const {
    Put("/proc/self/cgroup", "0::" + group + "\n");
    Put("/proc/self/mountinfo",
        "30 23 0:26 " + top + " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void Version1(const std::string& group, const std::string& top = "/",
                const std::string& controllers = "cpu,cpuacct") const {
    Put("/proc/self/cgroup",
        "7:cpuset:/sets\n5:" + controllers + ":" + group + "\n4:memory:/elsewhere\n0::/\n");
    Put("/proc/self/mountinfo",
        "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n34 31 0:31 " + top +
            " /sys/fs/cgroup/" + controllers + " rw - cgroup cgroup rw," + controllers +
            "\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }
  std::map<std::string, double> Read() const {
    std::map<std::string, double> all;
    for (const CoreLimit& limit : ReadCoreLimits(folder_ / "")) {
      const size_t at = limit.source.find("/sys/");
      all[at == std::string::npos ? limit.source : limit.source.substr(at)] = limit.cores;
    }
    return all;
  }

 private:
  static inline int number_ = 0;
  TestFolder folder_{"cores_test." + std::to_string(number_++)};
};

using Map = std::map<std::string, double>;
const std::pair<const std::string, double> kMachine = {"the machine", 64};

TEST(Cores, WithoutAQuotaAreTheMachines) {
  const MachineFiles files;
  EXPECT_EQ(files.Read(), Map({kMachine}));
  files.Version2("/job");
  EXPECT_EQ(files.Read(), Map({kMachine}));
  files.Put("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(files.Read(), Map({kMachine}));
  files.Version1("/job");
  files.Put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  files.Put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(files.Read(), Map({kMachine}));
}

TEST(Cores, OfVersion2AreBoundedByAllGroupsAround) {
  const MachineFiles files;
  files.Version2("/kubepods.slice/pod7.slice/container");
  const std::string top = "/sys/fs/cgroup/kubepods.slice";
  files.Put(top + "/cpu.max", "6000000 100000\n");
  files.Put(top + "/pod7.slice/cpu.max", "400000 100000\n");
  files.Put(top + "/pod7.slice/container/cpu.max", "75000 50000\n");
  files.Put(top + "/pod8.slice/cpu.max", "1000 100000\n");  // another pod's
  EXPECT_EQ(files.Read(), Map({kMachine,
                               {top + "/cpu.max", 60},
                               {top + "/pod7.slice/cpu.max", 4},
                               {top + "/pod7.slice/container/cpu.max", 1.5}}));
}

TEST(Cores, OfVersion1AreBoundedByAllGroupsAround) {
  for (const std::string controllers : {"cpu,cpuacct", "cpu", "cpuacct,cpu"}) {
    const MachineFiles files;
    files.Version1("/docker/c7", "/", controllers);
    const std::string top = "/sys/fs/cgroup/" + controllers;
    files.Put(top + "/docker/cpu.cfs_quota_us", "800000\n");
    files.Put(top + "/docker/cpu.cfs_period_us", "100000\n");
    files.Put(top + "/docker/c7/cpu.cfs_quota_us", "20000\n");
    files.Put(top + "/docker/c7/cpu.cfs_period_us", "10000\n");
    EXPECT_EQ(
        files.Read(),
        Map({kMachine, {top + "/docker/cpu.cfs_quota_us", 8}, {top + "/docker/c7/cpu.cfs_quota_us", 2}}));
  }
}

// A container sees its own group as the top.
TEST(Cores, OfAContainerAreThoseItSees) {
  for (const auto& [group, top] : std::vector<std::pair<std::string, std::string>>{
           {"/", "/"}, {"/kubepods/pod1/c1", "/kubepods/pod1/c1"}, {"/other", "/kubepods/pod1/c1"}}) {
    const MachineFiles files;
    files.Version2(group, top);
    files.Put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    EXPECT_EQ(files.Read(), Map({kMachine, {"/sys/fs/cgroup/cpu.max", 3}})) << group << " of " << top;
  }
}

TEST(Cores, OfTheAffinityAreCounted) {
  for (const auto& [list, cores] : std::map<std::string, double>{{"3", 1}, {"0-3", 4}, {"0,8-9,60-62", 6}}) {
    const MachineFiles files;
    files.Put("/proc/self/status", "Cpus_allowed_list:\t" + list + "\n");
    EXPECT_EQ(files.Read(), Map({kMachine, {"the affinity", cores}})) << list;
  }
}

// Whatever stands in the files, nothing is thrown, and there is always a number of cores.
TEST(Cores, NonsenseIsNoLimit) {
  const std::vector<std::string> words = {"",    "max",   "-1",     "x",  "99999999999999999999",
                                          "0",   "0-",    "7",      "-",  ",",
                                          "nan", "1e300", "100000", "\n", "9-1"};
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const MachineFiles files;
    files.Version2("/a");
    for (const char* path :
         {"/sys/devices/system/cpu/online", "/proc/self/status", "/sys/fs/cgroup/a/cpu.max",
          "/sys/fs/cgroup/cpu.max", "/proc/self/cgroup", "/proc/self/mountinfo"}) {
      if (random() % 3 == 0) continue;
      std::string text = random() % 2 ? "Cpus_allowed_list: " : "";
      for (uint32_t i = random() % 4; i > 0; --i)
        text += words[random() % words.size()] + (random() % 2 ? " " : "");
      files.Put(path, text);
    }
    const Map limits = files.Read();
    EXPECT_EQ(limits.count("the machine"), 1u);
    for (const auto& [source, cores] : limits) EXPECT_GT(cores, 0) << source;
  }
}

std::string TextWith(const std::vector<std::pair<std::string, double>>& limits) {
  std::vector<CoreLimit> all;
  for (const auto& [key, cores] : limits) all.push_back({"", key, cores});
  return ToText(all);
}

// Of a machine's cores each process of a host has its share; of a quota only those that are in that group.
TEST(Cores, AreDividedBetweenThoseThatShareThem) {
  const std::string free = TextWith({{"machine", 16}});
  EXPECT_EQ(ShareOfCores({free}, 0), 16);
  EXPECT_EQ(ShareOfCores({free, free, free}, 1), 5);
  const std::string two = TextWith({{"machine", 16}, {"a", 2}}),
                    three = TextWith({{"machine", 16}, {"b", 3.9}});
  EXPECT_EQ(ShareOfCores({two, three}, 0), 2) << "each container has its own";
  EXPECT_EQ(ShareOfCores({two, three}, 1), 3);
  EXPECT_EQ(ShareOfCores({two, two, three}, 0), 1) << "two processes of one container";
  const std::string inner = TextWith({{"machine", 16}, {"pod", 5}, {"c", 4}}),
                    other = TextWith({{"machine", 16}, {"pod", 5}, {"d", 4}});
  EXPECT_EQ(ShareOfCores({inner, other}, 0), 2) << "the pod around both";
  EXPECT_EQ(ShareOfCores({TextWith({{"machine", 16}, {"a", 0.25}})}, 0), 1) << "at least one";
  EXPECT_EQ(ShareOfCores({std::vector<std::string>(40, two)}, 0), 1);
  EXPECT_EQ(ShareOfCores({"", two}, 0), 0) << "nothing is known";
}

// A group with a quota, as a container has it, where this machine lets us make one.
TEST(Cores, OfARealGroupAreSeenInIt) {
  const std::vector<ControlGroup> groups = GroupsAround("", "cpu");
  if (groups.empty()) GTEST_SKIP() << "no control groups here";
  const std::string folder = groups[0].folder + "/cores_test." + std::to_string(getpid());
  auto put = [&](const std::string& file, const std::string& text) {
    std::ofstream out(folder + "/" + file);
    return static_cast<bool>(out << text << std::flush);
  };
  const bool made =
      mkdir(folder.c_str(), 0700) == 0 &&
      (groups[0].version2 ? put("cpu.max", "50000 100000")
                          : put("cpu.cfs_period_us", "100000") && put("cpu.cfs_quota_us", "50000"));
  int status = -1;
  const pid_t child = made ? fork() : -1;
  if (child == 0) {
    double least = 1e9;
    if (!put("cgroup.procs", std::to_string(getpid()))) _exit(100);
    for (const CoreLimit& limit : ReadCoreLimits()) least = std::min(least, limit.cores);
    _exit(least == 0.5 ? 0 : 1);
  }
  if (child > 0) waitpid(child, &status, 0);
  for (int tries = 0; tries < 100 && rmdir(folder.c_str()) != 0 && errno == EBUSY; ++tries) Sleep(0.01);
  if (!made || (WIFEXITED(status) && WEXITSTATUS(status) == 100)) GTEST_SKIP() << "no right to make a group";
  EXPECT_EQ(status, 0);
}

TEST(Cores, OfThisMachineAreThere) {
  const std::vector<CoreLimit> limits = ReadCoreLimits();
  ASSERT_FALSE(limits.empty());
  EXPECT_EQ(limits[0].source, "the machine");
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), limits[0].cores);
  EXPECT_EQ(ShareOfCores({ToText(limits)}, 0), UsableCores());
  EXPECT_LE(UsableCores(), std::max(1, omp_get_num_procs()));
}

}  // namespace
}  // namespace oneflow_like
