// Collectives of one process (actor/collective.cc) by themselves: regions larger than the blocks they are
// moved in, and rows that are counted.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "actor/collective.h"
#include "actor/runtime.h"
#include "tests/actor/plan_builder.h"
#include "tests/actor/seeded_executor.h"
#include "tests/sbp/random_boxing.h"

namespace oneflow_like {
namespace {

// One member of a collective of the test's own.
struct OneMember : CollectiveListener, Message {
  void Receive() override {
    void *from = in.data(), *to = out.data();
    member->Arrive({&from, 1}, {&to, 1}, 0, true);
  }
  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override {
    EXPECT_TRUE(ok);
    done.Signal();
  }
  std::vector<int32_t> in, out;
  plan::Collective collective;
  std::unique_ptr<CollectiveMember> member;
  Completion done;
};

// A member of the exchange of rows [r p c w] from "cut by p" to "cut by r", or back.
struct RowsMember : CollectiveListener, Message {
  void Receive() override {
    void *from[] = {in.data(), counts.data()}, *to = out.data();
    member->Arrive(from, {&to, 1}, 0, true);
  }
  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override { ended += ok; }
  std::vector<float> in, out;
  std::vector<int32_t> counts;
  plan::Collective collective;
  std::unique_ptr<CollectiveMember> member;
  int ended = 0;
};

// 10^4 tables of 8 ranks, drawn anew for each act, in every order of events: the counted rows come, the
// others are 0, whatever stood there and whatever lies behind the counts at the sender.
TEST(LocalCollective, CountedRowsComeAlone) {
  constexpr int kRanks = 8, kActs = 500, kRows = 5, kWidth = 3;
  for (int seed = 0; seed < 20; ++seed) {
    const bool back = seed % 2 == 1;
    const int pools = seed % 4 < 2 ? 8 : 24, each = pools / kRanks;
    const Dims shape = {kRanks, pools, kRows, kWidth};
    auto by = [&](bool p, int m) {
      Box box = Box::Whole(shape);
      box.begin[p ? 1 : 0] = p ? m * each : m;
      box.extent[p ? 1 : 0] = p ? each : 1;
      return box;
    };
    RowsMember members[kRanks];
    auto executor = MakeSeededExecutor(static_cast<uint64_t>(seed));
    std::unique_ptr<Collectives> collectives = MakeLocalCollectives();
    for (int m = 0; m < kRanks; ++m) {
      RowsMember& one = members[m];
      one.in.resize(by(!back, m).elements());
      one.out.resize(by(back, m).elements());
      one.counts.resize(pools * kRanks);
      one.collective.set_id(1);
      one.collective.set_me(m);
      one.collective.set_counts(pools * kRanks);
      one.collective.set_rows(2);
      one.collective.add_work();
      for (int k = 0; k < kRanks; ++k) {
        one.collective.add_rank(k);
        plan::Piece* piece = one.collective.add_piece();
        SetBox(piece->add_in(), by(!back, k));
        SetBox(piece->add_out(), by(back, k));
      }
      for (int r = 0; r < kRanks; ++r)
        for (int p = 0; p < pools; ++p) {
          const int from = back ? r : p / each, to = back ? p / each : r;
          if (to != m) continue;
          PlanBuilder::Region(&one.collective, {{r, p, 0, 0}, {1, 1, kRows, kWidth}}, {from}, {to});
          auto* work = one.collective.mutable_work(0);
          work->mutable_region(work->region_size() - 1)->set_count(1 + p * kRanks + r);
        }
      CollectiveSpec spec;
      spec.worker = executor->worker(0);
      spec.listener = &one;
      one.member = collectives->Join(spec, one.collective);
    }
    collectives->CheckComplete();
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    int64_t wrong = 0;
    for (int act = 0; act < kActs; ++act) {
      std::vector<int32_t> counts(pools * kRanks);
      for (int32_t& count : counts)
        count = random() % 3 == 0 ? 0 : static_cast<int32_t>(random() % (kRows + 1));
      if (act == 0) std::fill(counts.begin(), counts.end(), 0);
      for (RowsMember& one : members) {
        one.counts = counts;
        std::fill(one.out.begin(), one.out.end(), NAN);
        for (float& x : one.in) x = static_cast<float>(random() % 1000 + 1);
        executor->worker(0)->Post(&one);
      }
      executor->Fence();
      for (int m = 0; m < kRanks; ++m) {
        const Box held = by(back, m);
        EXPECT_EQ(members[m].ended, act + 1);
        ForEach(held, [&](const Dims& at) {
          const int source = static_cast<int>(back ? at[0] : at[1] / each);
          const float sent = members[source].in[IndexIn(by(!back, source), at)],
                      wanted = at[2] < counts[at[1] * kRanks + at[0]] ? sent : 0;
          wrong += members[m].out[IndexIn(held, at)] != wanted;
        });
      }
    }
    EXPECT_EQ(wrong, 0) << "seed " << seed;
  }
}

// Regions of several blocks, cut along each axis, to all members: all of them and nothing else is written.
TEST(LocalCollective, LargeRegionsComeWhole) {
  const Box boxes[] = {{{1, 1, 2}, {3, 3, 70000}},
                       {{0, 1, 0}, {4, 130, 801}},
                       {{2, 0, 0}, {1, 1, 900000}},
                       {{3, 2, 1}, {1700, 2, 97}},
                       {{1, 0, 0}, {600, 3, 1000}}};
  for (const Box& box : boxes) {
    Dims shape;
    for (int a = 0; a < 3; ++a) shape.push_back(box.begin[a] + box.extent[a] + 1);
    if (box.extent[0] == 600) shape = {602, 3, 1000};  // blocks of several whole rows
    constexpr int kMembers = 3;
    OneMember members[kMembers];
    auto executor = MakeThreadExecutor(2, 1);
    std::unique_ptr<Collectives> collectives = MakeLocalCollectives();
    for (int m = 0; m < kMembers; ++m) {
      OneMember& one = members[m];
      one.in.resize(shape.elements());
      one.out.assign(shape.elements(), -1);
      for (size_t i = 0; i < one.in.size(); ++i) one.in[i] = static_cast<int32_t>(i * kMembers + m);
      one.collective.set_id(1);
      one.collective.set_me(m);
      one.collective.add_work();
      for (int k = 0; k < kMembers; ++k) {
        one.collective.add_rank(k);
        plan::Piece* piece = one.collective.add_piece();
        SetBox(piece->add_in(), Box::Whole(shape));
        SetBox(piece->add_out(), Box::Whole(shape));
      }
      if (m == 1) PlanBuilder::Region(&one.collective, box, {2}, {0, 1, 2});
      CollectiveSpec spec;
      spec.dtype = DType::kInt32;
      spec.worker = executor->worker(m % 2);
      spec.listener = &one;
      one.member = collectives->Join(spec, one.collective);
    }
    collectives->CheckComplete();
    for (int m = 0; m < kMembers; ++m) executor->worker(m % 2)->Post(&members[m]);
    for (OneMember& one : members) one.done.Wait();
    executor->Fence();
    int64_t wrong = 0, i = 0;
    for (int64_t a = 0; a < shape[0]; ++a)
      for (int64_t b = 0; b < shape[1]; ++b)
        for (int64_t c = 0; c < shape[2]; ++c, ++i) {
          const Box at{{a, b, c}, {1, 1, 1}};
          const int32_t wanted = at == box.Intersect(at) ? static_cast<int32_t>(i * kMembers + 2) : -1;
          for (OneMember& one : members) wrong += one.out[i] != wanted;
        }
    EXPECT_EQ(wrong, 0) << box.str() << " of " << shape.str();
  }
}

}  // namespace
}  // namespace oneflow_like
