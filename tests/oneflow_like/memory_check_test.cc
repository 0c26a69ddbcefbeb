// Who shares a limit of memory, and whether all of them together find room in it.
#include "oneflow_like/job/memory_check.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <random>
#include <thread>

#include "tests/oneflow_like/thread_job.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

MemoryOfProcess Needs(int64_t needed, std::vector<std::pair<std::string, MemoryLimit>> limits,
                      const std::string& host = "a", int64_t held = 0) {
  return {.host = host, .needed = needed, .held = held, .limits = std::move(limits)};
}

std::pair<std::string, MemoryLimit> Shared(const std::string& key, int64_t bytes, int64_t left) {
  return {key, {.source = key, .shared = true, .bytes = bytes, .left = left}};
}

TEST(MemoryCheck, ProcessesOfOneContainerShareItsLimit) {
  EXPECT_TRUE(FindShortMemory({Needs(60, {Shared("c", 100, 100)})}).processes.empty());
  const ShortMemory both =
      FindShortMemory({Needs(60, {Shared("c", 100, 100)}), Needs(60, {Shared("c", 100, 100)})});
  EXPECT_EQ(both.processes, std::vector<int>({0, 1}));
  EXPECT_EQ(both.needed, 120);
  EXPECT_EQ(both.left, 100);
  // In containers of their own, or on two hosts, each has all of it.
  EXPECT_TRUE(FindShortMemory({Needs(60, {Shared("c", 100, 100)}), Needs(60, {Shared("d", 100, 100)})})
                  .processes.empty());
  EXPECT_TRUE(FindShortMemory({Needs(60, {Shared("c", 100, 100)}), Needs(60, {Shared("c", 100, 100)}, "b")})
                  .processes.empty());
}

TEST(MemoryCheck, WhatIsHeldAndNotYetTouchedCounts) {
  EXPECT_TRUE(FindShortMemory(
                  {Needs(30, {Shared("c", 100, 100)}, "a", 30), Needs(30, {Shared("c", 100, 100)}, "a", 10)})
                  .processes.empty());
  EXPECT_EQ(FindShortMemory(
                {Needs(30, {Shared("c", 100, 100)}, "a", 30), Needs(30, {Shared("c", 100, 100)}, "a", 11)})
                .left,
            59);
}

// A limit may be lowered when much is held already.
TEST(MemoryCheck, NothingIsLeftWhereMoreIsHeldThanALimitAllows) {
  for (int64_t held : {100, 101, 1000}) {
    const ShortMemory found = FindShortMemory({Needs(1, {Shared("c", 100, 50)}, "a", held)});
    EXPECT_EQ(found.processes, std::vector<int>({0}));
    EXPECT_EQ(found.left, 0);
    EXPECT_TRUE(FindShortMemory({Needs(0, {Shared("c", 100, 50)}, "a", held)}).processes.empty())
        << "what needs nothing fits";
  }
}

TEST(MemoryCheck, ALimitOfAProcessIsItsAlone) {
  auto own = [](int64_t left) {
    return std::pair<std::string, MemoryLimit>{
        "ulimit -v", {.source = "ulimit -v", .shared = false, .bytes = 100, .left = left}};
  };
  EXPECT_TRUE(FindShortMemory({Needs(60, {own(60)}), Needs(60, {own(60)})}).processes.empty());
  const ShortMemory second = FindShortMemory({Needs(60, {own(60)}), Needs(60, {own(59)})});
  EXPECT_EQ(second.processes, std::vector<int>({1}));
  EXPECT_EQ(second.needed, 60);
}

// Puts the calling thread into a container, as far as memory goes: `group` of `folder` is the only group of
// version 2 that it sees, and has the limits that are in folder/`container`.
bool EnterContainer(const TestFolder& folder, const std::string& container) {
  auto bind = [](const std::string& from, const std::string& to) {
    return mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) == 0;
  };
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         bind(folder / container, folder / "group") && bind(folder / "cgroup", "/proc/self/cgroup") &&
         bind(folder / "mountinfo", "/proc/self/mountinfo");
}

// Two processes of a host need more together than one container has left: refused where they are in one, and
// not where each is in its own, which has the same path inside.
TEST(MemoryCheck, ContainersOfAHostHaveEachItsOwnMemory) {
  constexpr int64_t kBytes = int64_t{32} << 20;  // of the weight, which each holds
  TestFolder folder("memory_check_test");
  folder.Write("cgroup", "0::/\n");
  folder.Write("mountinfo", "30 23 0:26 / " + (folder / "group") + " rw - cgroup2 cgroup2 rw\n");
  std::filesystem::create_directories(folder / "group");
  for (const std::string container : {"0", "1"}) {
    std::filesystem::create_directories(folder / container);
    folder.Write(container + "/memory.max", std::to_string(10 * kBytes));
    folder.Write(container + "/memory.current", std::to_string(8 * kBytes));
  }
  bool possible = false;
  std::thread([&] { possible = EnterContainer(folder, "0"); }).join();
  if (!possible) GTEST_SKIP() << "this user may mount nothing here";
  for (bool together : {true, false}) {
    const std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
      if (!EnterContainer(folder, together ? "0" : std::to_string(job->process()))) Fail("no container");
      ModelOptions options;
      options.job = job;
      options.threads = 1;
      Model model(Mesh::Parse("cpu:dp=2"), options);
      Tensor weight = model.scope().Weight("w", {kBytes / 4}, Zeros());
      Session session = Evaluate({{"y", sum(weight)}});
      EXPECT_EQ(session.Run({}).Scalar("y"), 0);
    });
    for (const std::string& error : errors) {
      EXPECT_EQ(error.find("bytes of memory for processes 0, 1 on host ") != std::string::npos, together)
          << error;
      EXPECT_EQ(error.empty(), !together) << error;
    }
  }
}

// Against the definition: a limit is short when those who have its key on its host need more than the least
// of what it has left and what it allows beside what they hold.
TEST(MemoryCheck, RandomJobsAreRefusedExactlyWhenALimitIsShort) {
  int refused = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<MemoryOfProcess> all;
    for (uint32_t p = 0; p < 1 + random() % 5; ++p) {
      MemoryOfProcess process = Needs(random() % 50, {}, std::string(1, 'a' + random() % 2), random() % 20);
      // Groups inside of one another have the same numbers for all who are in them.
      for (uint32_t l = 0; l < random() % 4; ++l)
        process.limits.push_back(Shared(std::to_string(l), 80 + 40 * l, 60 + 30 * l));
      all.push_back(process);
    }
    bool is_short = false;
    for (const std::string host : {"a", "b"})
      for (int l = 0; l < 4; ++l) {
        int64_t needed = 0, held = 0;
        bool any = false;
        for (const MemoryOfProcess& p : all) {
          if (p.host != host || static_cast<int>(p.limits.size()) <= l) continue;
          any = true;
          needed += p.needed;
          held += p.held;
        }
        is_short = is_short || (any && (needed > 60 + 30 * l || needed > 80 + 40 * l - held));
      }
    EXPECT_EQ(!FindShortMemory(all).processes.empty(), is_short);
    refused += is_short;
  }
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 1800);
}

}  // namespace
}  // namespace oneflow_like
