// What algorithms of collectives take, against formulas, and where one becomes cheaper than another.
#include "sbp/collective_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/error_of.h"

namespace oneflow_like {
namespace {

using A = CollectiveAlgorithm;

constexpr double kAlpha = 7e-6, kBandwidth = 3e9, kFree = 1e30;

// Links of one level, and memory for nothing.
LinkLevels OneLevel(double memory = kFree) {
  return {{.links = {{.devices = 0, .latency = kAlpha, .bandwidth = kBandwidth}}, .memory_bandwidth = memory},
          {}};
}
std::vector<Participant> Devices(int n) {
  std::vector<Participant> group;
  for (int i = 0; i < n; ++i) group.push_back({i, 1});
  return group;
}
const AlgorithmCost* Find(const std::vector<AlgorithmCost>& costs, A algorithm) {
  for (const AlgorithmCost& c : costs)
    if (c.algorithm == algorithm) return &c;
  return nullptr;
}
double Seconds(const std::vector<AlgorithmCost>& costs, A algorithm, double bytes) {
  const AlgorithmCost* cost = Find(costs, algorithm);
  return cost == nullptr ? -1 : cost->seconds(bytes);
}
// Only these.
std::vector<AlgorithmCost> Among(const std::vector<AlgorithmCost>& costs, const std::vector<A>& algorithms) {
  std::vector<AlgorithmCost> few;
  for (const AlgorithmCost& c : costs)
    if (std::find(algorithms.begin(), algorithms.end(), c.algorithm) != algorithms.end()) few.push_back(c);
  return few;
}

TEST(CollectiveCost, IsThatOfTheFormulas) {
  for (int n = 2; n <= 17; ++n) {
    const auto rounds = [](double r) { return r * kAlpha; };
    const double levels = std::floor(std::log2(n)), S = 1e6, each = S / kBandwidth;
    const std::vector<AlgorithmCost> reduce =
        CostsOfCollective(Primitive::kAllReduce, Devices(n), OneLevel());
    EXPECT_NEAR(Seconds(reduce, A::kDirect, S), rounds(1) + (n - 1) * each, 1e-12);
    EXPECT_NEAR(Seconds(reduce, A::kStar, S), rounds(2) + 2 * (n - 1) * each, 1e-12);
    EXPECT_NEAR(Seconds(reduce, A::kTwoTrips, S), rounds(2) + 2 * (n - 1) * each / n, 1e-12);
    EXPECT_NEAR(Seconds(reduce, A::kRing, S), rounds(2 * (n - 1)) + 2 * (n - 1) * each / n, 1e-12);
    EXPECT_NEAR(Seconds(reduce, A::kTree, S), rounds(2 * levels) + 2 * (n - 1) * each / n, 1e-12);
    EXPECT_EQ(Find(reduce, A::kTwoLevel), nullptr);
    for (Primitive half : {Primitive::kReduceScatter, Primitive::kAllGather}) {
      const std::vector<AlgorithmCost> costs = CostsOfCollective(half, Devices(n), OneLevel());
      EXPECT_NEAR(Seconds(costs, A::kDirect, S), rounds(1) + (n - 1) * each / n, 1e-12);
      EXPECT_NEAR(Seconds(costs, A::kRing, S), rounds(n - 1) + (n - 1) * each / n, 1e-12);
      EXPECT_NEAR(Find(costs, A::kTree)->latency, rounds(levels), 1e-12);
      EXPECT_EQ(Find(costs, A::kTwoTrips), nullptr);
    }
    const std::vector<AlgorithmCost> out = CostsOfCollective(Primitive::kBroadcast, Devices(n), OneLevel());
    EXPECT_NEAR(Seconds(out, A::kDirect, S), rounds(1) + (n - 1) * each, 1e-12);
    EXPECT_NEAR(Seconds(out, A::kRing, S), rounds(n - 1) + each, 1e-12);
    EXPECT_NEAR(Seconds(out, A::kTree, S), rounds(levels) + std::min(2, n - 1) * each, 1e-12);
  }
}

// Of a star and a ring alone the star is taken up to S* = alpha B n (n - 2) / (n - 1)^2, where memory takes
// time with 1 / B + 1 / 2M in place of 1 / B.
TEST(CollectiveCost, StarAndRingChangePlacesWhereTheFormulaSays) {
  for (int n = 3; n <= 16; ++n) {
    for (double memory : {kFree, 1e10, 2e9}) {
      const double bandwidth = 1 / (1 / kBandwidth + 0.5 / memory);
      const double change = kAlpha * bandwidth * n * (n - 2) / ((n - 1.0) * (n - 1));
      const std::vector<AlgorithmCost> both =
          Among(CostsOfCollective(Primitive::kAllReduce, Devices(n), OneLevel(memory)), {A::kStar, A::kRing});
      ASSERT_EQ(both.size(), 2u);
      EXPECT_EQ(Choose(both, change * (1 - 1e-6)).algorithm, A::kStar) << n << " " << memory;
      EXPECT_EQ(Choose(both, change * (1 + 1e-6)).algorithm, A::kRing) << n << " " << memory;
      EXPECT_NEAR(both[0].seconds(change), both[1].seconds(change), 1e-12);
    }
  }
}

TEST(CollectiveCost, FewBytesGoStraightAndManyInTwoTrips) {
  for (int n = 3; n <= 16; ++n) {
    const std::vector<AlgorithmCost> costs = CostsOfCollective(Primitive::kAllReduce, Devices(n), OneLevel());
    const double change = kAlpha * kBandwidth * n / ((n - 1.0) * (n - 2));
    EXPECT_EQ(Choose(costs, change * 0.999).algorithm, A::kDirect) << n;
    EXPECT_EQ(Choose(costs, change * 1.001).algorithm, A::kTwoTrips) << n;
    for (A wanted : {A::kStar, A::kRing, A::kTree}) EXPECT_EQ(Choose(costs, 1, wanted).algorithm, wanted);
    EXPECT_EQ(Choose(costs, 1, A::kTwoLevel).algorithm, A::kDirect);  // which is not there
  }
}

// Hosts of k devices, racks of h hosts, m racks.
LinkLevels ThreeLevels(int k, int h, std::vector<bool> shared = {}) {
  return {{.links = {{.devices = k, .latency = 1e-6, .bandwidth = 1e11},
                     {.devices = k * h, .latency = 1e-5, .bandwidth = 1e10},
                     {.devices = 0, .latency = 5e-5, .bandwidth = 1e9}},
           .memory_bandwidth = kFree},
          std::move(shared)};
}

// Many bytes over slow links go inside units first: of each unit's members one sends for a share, so a
// device's own link between units carries 2 (m - 1) / m of its k-th part instead of all of it.
TEST(CollectiveCost, ManyBytesOverSlowLinksGoByTwoLevels) {
  const double S = 1e9;
  for (int k : {2, 4, 8})
    for (int m : {2, 3, 4}) {
      const LinkLevels levels = ThreeLevels(k, 100);
      const std::vector<AlgorithmCost> costs =
          CostsOfCollective(Primitive::kAllReduce, Devices(k * m), levels);
      const AlgorithmCost& best = Choose(costs, S);
      EXPECT_EQ(best.algorithm, A::kTwoLevel) << k << " " << m;
      EXPECT_EQ(best.unit, k);
      const double own = 2.0 * (m - 1) / m / 1e10;  // seconds for each byte that a unit has to send
      EXPECT_NEAR(best.links[1], own / k, 1e-9 * own);
      EXPECT_NEAR(best.links[0], 2.0 * (k - 1) / k / 1e11, 1e-20);
      EXPECT_NEAR(best.latency, 2 * (1e-6 + 1e-5), 1e-12);
      const double n = k * m;
      EXPECT_NEAR(Find(costs, A::kTwoTrips)->links[1], own, 1e-9 * own);
      EXPECT_NEAR(Find(costs, A::kRing)->links[1], 2 * (n - 1) / n / 1e10, 1e-20);
    }
  // Racks of hosts: units are racks, where the line between racks is what takes longest.
  const std::vector<AlgorithmCost> costs =
      CostsOfCollective(Primitive::kAllReduce, Devices(4 * 4 * 2), ThreeLevels(4, 4, {false, false, true}));
  const AlgorithmCost& best = Choose(costs, S);
  EXPECT_EQ(best.algorithm, A::kTwoLevel);
  EXPECT_EQ(best.unit, 16);
  EXPECT_NEAR(best.links[2], 1.0 / 1e9 * 2 / 2 * 1,
              1e-18);  // 2 (m - 1) / m for m = 2, once for all of a rack
}

// Where hosts and racks have one line each, alike in speed, only a ring crosses each of them once.
TEST(CollectiveCost, ManyBytesOverLevelsOfSharedLinksGoRound) {
  LinkLevels levels = ThreeLevels(4, 4, {false, true, true});
  levels.topology.links[1].bandwidth = levels.topology.links[2].bandwidth;
  const auto costs = CostsOfCollective(Primitive::kAllReduce, Devices(4 * 4 * 2), levels);
  EXPECT_EQ(Choose(costs, 1e10).algorithm, A::kRing);
  EXPECT_EQ(Choose(costs, 1e3).algorithm, A::kTwoLevel);
}

// On a link that the devices of a host share, all of them count, and the groups beside this one.
TEST(CollectiveCost, SharedLinksCarryWhatAllTheirDevicesSend) {
  const int k = 4, m = 3;
  LinkLevels own = ThreeLevels(k, 100), shared = ThreeLevels(k, 100, {false, true});
  for (Primitive p : {Primitive::kAllReduce, Primitive::kReduceScatter, Primitive::kAllGather}) {
    const auto alone = CostsOfCollective(p, Devices(k * m), own);
    const auto together = CostsOfCollective(p, Devices(k * m), shared);
    const auto crowded = CostsOfCollective(p, Devices(k * m), shared, {1, 2});
    ASSERT_EQ(alone.size(), together.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(alone[i].links[0], together[i].links[0]);
      EXPECT_LE(alone[i].links[1], together[i].links[1]) << Name(alone[i].algorithm);
      EXPECT_NEAR(crowded[i].links[1], 2 * together[i].links[1], 1e-20);
      EXPECT_EQ(alone[i].latency, together[i].latency);
      // All but the ring and the hub of a star send from every device.
      if (alone[i].algorithm == A::kDirect || alone[i].algorithm == A::kTwoTrips) {
        EXPECT_NEAR(together[i].links[1], k * alone[i].links[1], 1e-20) << Name(alone[i].algorithm);
      }
    }
  }
}

// What participants of several devices send goes over the links of all of them.
TEST(CollectiveCost, UnevenParticipants) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int n = 2 + static_cast<int>(random() % 8);
    std::vector<Participant> group;
    int64_t at = 0;
    for (int i = 0; i < n; ++i) {
      const int members = 1 + static_cast<int>(random() % 4);
      group.push_back({at, static_cast<double>(members)});
      at += members;
    }
    for (Primitive p :
         {Primitive::kAllReduce, Primitive::kReduceScatter, Primitive::kAllGather, Primitive::kBroadcast})
      for (const AlgorithmCost& cost : CostsOfCollective(p, group, ThreeLevels(4, 2))) {
        EXPECT_GT(cost.latency, 0);
        EXPECT_TRUE(std::isfinite(cost.seconds(1e6)));
        EXPECT_GT(cost.seconds(2e6), cost.seconds(1e6)) << Name(cost.algorithm);
        EXPECT_TRUE(HasAlgorithm(p, cost.algorithm));
        EXPECT_EQ(cost.unit > 0, cost.algorithm == A::kTwoLevel);
      }
  }
}

TEST(CollectiveCost, NothingToChoose) {
  EXPECT_TRUE(CostsOfCollective(Primitive::kAllReduce, Devices(1), OneLevel()).empty());
  EXPECT_TRUE(CostsOfCollective(Primitive::kAllToAll, Devices(4), OneLevel()).empty());
  EXPECT_TRUE(CostsOfCollective(Primitive::kSend, Devices(2), OneLevel()).empty());
}

TEST(WantedAlgorithms, AreParsed) {
  EXPECT_TRUE(ParseWantedAlgorithms("", "--c").empty());
  const WantedAlgorithms all = ParseWantedAlgorithms("ring", "--c");
  EXPECT_EQ(all.size(), 4u);
  EXPECT_EQ(ParseWantedAlgorithms("two_trips", "--c"),
            (WantedAlgorithms{{Primitive::kAllReduce, A::kTwoTrips}}));
  EXPECT_EQ(ParseWantedAlgorithms("all_reduce:tree,all_gather:direct", "--c"),
            (WantedAlgorithms{{Primitive::kAllReduce, A::kTree}, {Primitive::kAllGather, A::kDirect}}));
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"rung", "--c: 'rung' is no algorithm of collectives; there are direct, two_trips, ring, tree"},
      {"all_gather:two_trips", "--c: all_gather cannot be done by two_trips"},
      {"gossip:ring", "'gossip' is no collective with algorithms of its own; there are all_reduce, "},
      {"ring,tree", "all_reduce is given two algorithms, ring and tree"},
      {"all_reduce:", "'' is no algorithm"},
      {"ring,", "a name is missing"},
      {",", "'' is no algorithm"}};
  for (const auto& [text, expected] : wrong) {
    const std::string error = ErrorOf([&, &text = text] { ParseWantedAlgorithms(text, "--c"); });
    EXPECT_NE(error.find(expected), std::string::npos) << text << ": '" << error << "'";
  }
}

}  // namespace
}  // namespace oneflow_like
