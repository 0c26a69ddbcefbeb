// How processes agree on the ways that a library does work in: each works on a thread with a backend that
// knows some of it, and texts are gathered as between processes.
#include "actor/library_choices.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace oneflow_like {
namespace {

// What one process has to decide, by work; -1: not known. `timed`: what timing there gives.
class KnowingBackend : public Backend {
 public:
  std::map<std::string, int64_t> open, timed;
  std::set<std::string> asked;
  std::map<std::string, int64_t> decided, kept;

  std::vector<LibraryChoice> OpenChoices(Device*) override {
    std::vector<LibraryChoice> choices;
    for (const auto& [work, proposal] : open) choices.push_back({work, proposal});
    return choices;
  }
  int64_t TimeProposals(const std::string& work, DeviceStream*, void*, int64_t bytes,
                        std::map<int64_t, double>*) override {
    EXPECT_EQ(bytes, 200) << "of its places the one with most memory";
    EXPECT_TRUE(asked.insert(work).second) << work;
    return timed.at(work);
  }
  void Decide(const std::vector<LibraryChoice>& choices, bool keep) override {
    for (const LibraryChoice& choice : choices) {
      decided.try_emplace(choice.work, choice.proposal);
      if (keep) kept[choice.work] = choice.proposal;
    }
  }

  const std::string& kind() const override { return kind_; }
  int device_count() const override { return 1; }
  std::string Describe(int) const override { return ""; }
  std::unique_ptr<Device> MakeDevice(int, int, MemorySource*) override { return nullptr; }
  void AddKernels(KernelRegistry*) const override {}
  bool HasGroups() const override { return false; }
  std::string MakeGroupId() override { return ""; }
  std::vector<std::unique_ptr<GroupMember>> Connect(const std::string&, const GroupSpec&,
                                                    const std::vector<int>&,
                                                    const std::vector<Device*>&) override {
    return {};
  }

 private:
  const std::string kind_ = "known";
};

// All-gathers of threads.
class Gather {
 public:
  explicit Gather(size_t processes) : texts_(processes) {}
  ExchangeTexts Of(size_t process) {
    return [this, process](const std::string& what, const std::string& mine) {
      std::unique_lock lock(mutex_);
      if (arrived_ == 0) what_ = what;
      EXPECT_EQ(what, what_);
      texts_[process] = mine;
      const int round = round_;
      if (++arrived_ == texts_.size()) {
        arrived_ = 0;
        ++round_;
        result_ = texts_;
        changed_.notify_all();
      }
      changed_.wait(lock, [&] { return round_ != round; });
      return result_;
    };
  }
  int rounds() const { return round_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, result_;
  std::string what_;
  size_t arrived_ = 0;
  int round_ = 0;
};

// One process for each backend, and last one without any; returns the number of gathers.
int DecideTogether(std::vector<KnowingBackend>* backends, bool tune) {
  const size_t processes = backends->size() + 1;
  Gather gather(processes);
  std::vector<std::thread> threads;
  for (size_t p = 0; p < processes; ++p)
    threads.emplace_back([&, p] {
      const int rank = static_cast<int>(2 * p);
      const bool has = p < backends->size();
      std::vector<TimingPlace> places;
      if (has) places = {{rank, nullptr, nullptr, nullptr, 100}, {rank + 1, nullptr, nullptr, nullptr, 200}};
      DecideLibraryChoices(has ? &(*backends)[p] : nullptr, places, gather.Of(p), "train", tune);
    });
  for (std::thread& thread : threads) thread.join();
  return gather.rounds();
}

using Decided = std::map<std::string, int64_t>;

TEST(LibraryChoices, TheFirstProcessWithTheWorkTimesItForAll) {
  std::vector<KnowingBackend> backends(2);
  backends[0].open = {{"common work", -1}, {"work of 0", -1}, {"too large", -1}};
  backends[0].timed = {{"common work", 2}, {"work of 0", 0}, {"too large", -1}};
  backends[1].open = {{"common work", -1}, {"work of 1", -1}, {"too large", -1}};
  backends[1].timed = {{"work of 1", 7}};
  EXPECT_EQ(DecideTogether(&backends, true), 2);
  const Decided all = {{"common work", 2}, {"work of 0", 0}, {"work of 1", 7}, {"too large", 0}};
  for (const KnowingBackend& backend : backends) EXPECT_EQ(backend.decided, all);
  EXPECT_EQ(backends[0].asked, (std::set<std::string>{"common work", "too large", "work of 0"}));
  EXPECT_EQ(backends[1].asked, (std::set<std::string>{"work of 1"}));
  EXPECT_EQ(backends[0].kept, (Decided{{"common work", 2}, {"work of 0", 0}}));
  EXPECT_EQ(backends[1].kept, (Decided{{"common work", 2}, {"work of 1", 7}}));
}

TEST(LibraryChoices, WhatAnyProcessHasKeptStands) {
  std::vector<KnowingBackend> backends(3);
  backends[0].open = {{"a", -1}, {"b", 3}};
  backends[1].open = {{"a", 1}, {"b", 2}};
  backends[2].open = {{"a", 4}, {"b", -1}};
  EXPECT_EQ(DecideTogether(&backends, true), 1) << "nobody times anything";
  for (const KnowingBackend& backend : backends) {
    EXPECT_EQ(backend.decided, (Decided{{"a", 1}, {"b", 3}}));
    EXPECT_EQ(backend.kept, backend.decided);
    EXPECT_TRUE(backend.asked.empty());
  }
}

TEST(LibraryChoices, WithoutTimingTheFirstProposalsStandAndNothingIsKept) {
  std::vector<KnowingBackend> backends(2);
  backends[0].open = {{"a", -1}, {"b", 3}};
  backends[1].open = {{"a", -1}};
  EXPECT_EQ(DecideTogether(&backends, false), 0);
  EXPECT_EQ(backends[0].decided, (Decided{{"a", 0}, {"b", 0}}));
  EXPECT_EQ(backends[1].decided, (Decided{{"a", 0}}));
  for (const KnowingBackend& backend : backends) EXPECT_TRUE(backend.kept.empty() && backend.asked.empty());
}

TEST(LibraryChoices, AProcessAloneNeedsNoExchange) {
  KnowingBackend backend;
  backend.open = {{"a", -1}};
  backend.timed = {{"a", 5}};
  DecideLibraryChoices(&backend, {{0, nullptr, nullptr, nullptr, 200}}, {}, "train", true);
  EXPECT_EQ(backend.kept, (Decided{{"a", 5}}));
}

}  // namespace
}  // namespace oneflow_like
