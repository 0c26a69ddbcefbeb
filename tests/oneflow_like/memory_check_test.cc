// Who shares a limit of memory, and whether all of them together find room in it.
#include "oneflow_like/memory_check.h"

#include <gtest/gtest.h>

#include <random>

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
