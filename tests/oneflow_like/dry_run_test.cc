// What --dry_run and --explain say of ranks that are alike, and of devices beside the host.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

// Alike ranks are told of once, and count as many times.
TEST(ExplainText, TheMeanIsThatOfAllRanks) {
  for (const SmallGpt& given : {SmallGpt{.mesh = "cpu:dp=1"}, SmallGpt{.mesh = "cpu:dp=2,tp=2"},
                                SmallGpt{.mesh = "cpu:dp=3", .batch = 7},
                                SmallGpt{.mesh = "cpu:dp=2,tp=2,pp=2", .micro_batches = 2}}) {
    SCOPED_TRACE(given.str());
    Session session = GptProgram(given).MakeTrain();
    const std::vector<RankSummary> summaries = session.Summaries();
    const std::string text = session.ExplainText(), number = "([-+.e0-9]+)";
    std::smatch mean;
    ASSERT_TRUE(std::regex_search(text, mean, std::regex(number + " GFLOP a rank in the mean"))) << text;
    const std::regex of_ranks(number + " GFLOP, " + number + " of the mean");
    double ranks = 0, work = 0, shares = 0;
    size_t line = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), of_ranks), end; at != end; ++at, ++line) {
      ASSERT_LT(line, summaries.size()) << text;
      const double alike = static_cast<double>(summaries[line].ranks.size());
      ranks += alike;
      work += alike * std::stod((*at)[1]);
      shares += alike * std::stod((*at)[2]);
    }
    EXPECT_EQ(line, summaries.size()) << text;
    EXPECT_EQ(ranks, session.impl()->compiled.graph.mesh().size());
    EXPECT_GT(work, 0);
    EXPECT_NEAR(work / ranks, std::stod(mean[1]), 1e-4 * work / ranks) << text;
    EXPECT_NEAR(shares, ranks, 1e-4 * ranks) << text;
  }
}

// With what libraries take there, and groups pack in.
TEST(DryRun, PurposesOfADeviceAddUpToItsPeak) {
  for (const SmallGpt& given :
       {SmallGpt{.mesh = "cuda:dp=1"}, SmallGpt{.mesh = "cuda:dp=2,tp=2", .micro_batches = 2},
        SmallGpt{.mesh = "cuda:dp=4", .zero_axis = "dp"},
        SmallGpt{.mesh = "cpu+cuda:dp=2,pp=2", .micro_batches = 4}}) {
    SCOPED_TRACE(given.str());
    GptProgram program(given);
    Session session = program.MakeTrain();
    for (const RankSummary& s : session.Summaries()) {
      int64_t sum = 0;
      for (const auto& [purpose, bytes] : s.purposes) sum += bytes;
      EXPECT_EQ(sum, s.peak_bytes) << "rank " << s.rank;
      EXPECT_EQ(s.library_bytes > 0, program.model().mesh().KindOf(s.rank) == "cuda") << "rank " << s.rank;
    }
  }
}

}  // namespace
}  // namespace oneflow_like
