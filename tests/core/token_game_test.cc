// The token game against schedules known on paper: GPipe and 1F1B, their stashes and their makespan; and the
// words it finds for plans that cannot complete.
// ctest: asan=10
#include "core/plan/token_game.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace oneflow_like {
namespace {

// Stage i has F_i and B_i on resource i; F_i keeps a stash for B_i. `limit(i)` bounds the micro-batches a
// stage has begun and not ended; 0 is no bound.
TokenGame Pipeline(int p, int m, const std::function<int(int)>& limit) {
  TokenGame game;
  game.resources = p;
  for (int i = 0; i < p; ++i) game.transitions.push_back({Cat("F", i), m, 1, {i}});
  for (int i = 0; i < p; ++i) game.transitions.push_back({Cat("B", i), m, 1, {i}});
  for (int i = 0; i < p; ++i) {
    game.places.push_back({i, p + i, 0, 1, 1, 0, "stash"});
    game.places.push_back({i, p + i, limit(i), 1, 1, 0, "admission"});
  }
  for (int i = 0; i + 1 < p; ++i) game.places.push_back({i, i + 1, 0, 1, 1, 0, "act"});
  for (int i = 0; i + 1 < p; ++i) game.places.push_back({p + i + 1, p + i, 0, 1, 1, 0, "grad"});
  return game;
}

std::string Order(const Play& play, int p, int stage) {
  std::string text;
  for (const Firing& f : play.firings) {
    if (f.transition % p == stage) text += Cat(text.empty() ? "" : " ", f.transition < p ? "F" : "B", f.act);
  }
  return text;
}

// Backward first, as 1F1B wants; the admission edge holds the forwards back.
double BackwardFirst(int p, int t) { return t >= p ? 0 : 1; }

TEST(Pipeline, OneForwardOneBackward) {
  for (int p = 2; p <= 4; ++p) {
    for (int m = 4; m <= 16; ++m) {
      TokenGame game = Pipeline(p, m, [&](int i) { return p - i; });
      Play play = PlayStep(game, [&](int t, int) { return BackwardFirst(p, t); });
      double ideal = 2 * m * (1 + (p - 1.0) / m);
      EXPECT_NEAR(play.makespan, ideal, 0.05 * ideal) << p << " stages, " << m << " micro-batches";
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(play.peak[2 * i], std::min(p - i, m))
            << "stash of stage " << i << " of " << p << ", m=" << m;
        std::string paper;  // p - i forwards, then one backward and one forward in turn
        int forward = 0, backward = 0;
        while (backward < m) {
          bool f = forward < m && forward - backward < p - i;
          paper += Cat(paper.empty() ? "" : " ", f ? "F" : "B", f ? forward++ : backward++);
        }
        EXPECT_EQ(Order(play, p, i), paper);
      }
      EXPECT_TRUE(CheckOrder(game, play.firings).ok());
    }
  }
}

TEST(Pipeline, TwoStagesFourMicroBatches) {
  Play play =
      PlayStep(Pipeline(2, 4, [](int i) { return 2 - i; }), [](int t, int) { return BackwardFirst(2, t); });
  EXPECT_EQ(Order(play, 2, 0), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Order(play, 2, 1), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(Pipeline, GPipe) {
  for (int p = 2; p <= 4; ++p) {
    for (int m = 4; m <= 16; ++m) {
      TokenGame game = Pipeline(p, m, [](int) { return 0; });
      Play play = PlayStep(game, [&](int t, int) { return t < p ? 0 : 1; });  // forwards first
      double ideal = 2 * m * (1 + (p - 1.0) / m);
      EXPECT_NEAR(play.makespan, ideal, 0.05 * ideal);
      for (int i = 0; i < p; ++i)
        EXPECT_EQ(play.peak[2 * i], m) << "stage " << i << " of " << p << ", m=" << m;
    }
  }
}

TEST(PlayStep, PeriodsAccumulateAndRepeat) {
  TokenGame game;
  game.resources = 1;
  game.transitions = {{"grad", 4, 1, {0}}, {"update", 1, 1, {0}}};
  game.places = {{0, 1, 1, 4, 1, 0, "sum"}, {1, 0, 1, 1, 4, 1, "weight"}};
  Play play = PlayStep(game, [](int, int) { return 0; });
  ASSERT_EQ(play.firings.size(), 5u);
  EXPECT_EQ(play.firings.back().transition, 1);
  EXPECT_DOUBLE_EQ(play.makespan, 5);
}

TEST(PlayStep, ZeroTimeActsAndSeveralResources) {
  TokenGame game;
  game.resources = 2;
  game.transitions = {{"feed", 3, 0, {}}, {"a", 3, 1, {0}}, {"both", 1, 2, {0, 1}}, {"b", 3, 1, {1}}};
  game.places = {{0, 1, 3}, {0, 3, 3}};
  Play play = PlayStep(game, [](int t, int) { return t == 2 ? -1 : 0; });
  // "both" is ready at once and first by priority; nothing else runs beside it.
  for (const Firing& f : play.firings) {
    if (f.transition == 1 || f.transition == 3) {
      EXPECT_GE(f.start, 2);
    }
  }
  EXPECT_DOUBLE_EQ(play.makespan, 5);
}

std::string Failure(const TokenGame& game) {
  try {
    PlayStep(game, [](int, int) { return 0; });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Chains of acts on random sets of resources: every act fires, none beside another of its resources, and at
// no moment does an act wait for which everything is there and all its resources are free.
TEST(PlayStep, NobodyWaitsForNothing) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    TokenGame game;
    game.resources = 1 + draw(4);
    const int count = 3 + draw(8), acts = 1 + draw(3);
    for (int t = 0; t < count; ++t) {
      std::set<int> resources;
      for (int k = draw(4); k > 0; --k) resources.insert(draw(game.resources));
      game.transitions.push_back({Cat("t", t), acts, 1.0 + draw(3), {resources.begin(), resources.end()}});
      if (t > 0 && draw(3)) game.places.push_back({draw(t), t, 1 + draw(2)});
    }
    const Play play = PlayStep(game, [&](int t, int act) { return (t * 7 + act * 3) % 5; });
    ASSERT_EQ(play.firings.size(), static_cast<size_t>(count * acts));
    std::vector<std::vector<const Firing*>> of(count, std::vector<const Firing*>(acts));
    for (const Firing& f : play.firings) of[f.transition][f.act] = &f;
    for (const Firing& f : play.firings) {
      // When it could have begun, but for its resources.
      double ready = f.act > 0 ? of[f.transition][f.act - 1]->end : 0;
      for (const Place& p : game.places) {
        if (p.reader == f.transition) ready = std::max(ready, of[p.writer][f.act]->end);
        if (p.writer == f.transition && f.act >= p.slots)
          ready = std::max(ready, of[p.reader][f.act - p.slots]->end);
      }
      ASSERT_GE(f.start, ready) << "round " << round;
      // From then on some resource of it is always taken.
      const auto& mine = game.transitions[f.transition].resources;
      for (double at = ready; at < f.start; at += 1) {
        bool taken = false;
        for (const Firing& other : play.firings) {
          const auto& theirs = game.transitions[other.transition].resources;
          if (&other == &f || other.start > at || other.end <= at) continue;
          for (int r : mine) taken = taken || std::count(theirs.begin(), theirs.end(), r) > 0;
        }
        ASSERT_TRUE(taken) << "round " << round << ": t" << f.transition << " act " << f.act << " waits at "
                           << at;
      }
    }
  }
}

TEST(Dead, NamesTheCycle) {
  // B needs all of A through the sum, C needs B for each of its acts, and A may run ahead of C by two only.
  TokenGame game;
  game.transitions = {{"A", 4}, {"B", 1}, {"C", 4}, {"outside", 1}};
  game.places = {
      {0, 1, 1, 4, 1, 0, "sum"}, {0, 2, 2, 1, 1, 0, "stash"}, {1, 2, 1, 1, 4, 0, "total"}, {2, 3, 1, 4, 1}};
  EXPECT_EQ(Failure(game),
            "the plan cannot complete: A act 2 waits for a slot of 'stash' held by C; C act 0 waits for a "
            "full slot of "
            "'total' from B; B act 0 waits for a full slot of 'sum' from A");
  game.places[1].slots = 4;
  EXPECT_EQ(Failure(game), "");
}

TEST(Dead, TwoThatWaitForEachOther) {
  TokenGame game;
  game.transitions = {{"F0", 4}, {"B0", 4}};
  game.places = {{0, 1, 2, 1, 1, 0, "stash"}, {0, 1, 4, 4, 4, 0, "act"}};
  EXPECT_EQ(Failure(game),
            "the plan cannot complete: F0 act 2 waits for a slot of 'stash' held by B0; B0 act 0 waits for a "
            "full slot "
            "of 'act' from F0");
}

TEST(Dead, Unbalanced) {
  TokenGame game;
  game.transitions = {{"A", 4}, {"B", 2}};
  game.places = {{0, 1, 8, 1, 1, 0, "x"}};
  EXPECT_NE(Failure(game).find(
                "cannot repeat: A fills a slot of 'x' every 1 of 4 acts but B empties one every 1 of 2"),
            std::string::npos)
      << Failure(game);
  game.places[0].slots = 1;
  EXPECT_NE(Failure(game).find("held by B, which has done all its 2 acts"), std::string::npos)
      << Failure(game);
}

TEST(CheckOrder, NamesTheFirstThatDoesNotFire) {
  TokenGame game = Pipeline(2, 4, [](int i) { return 2 - i; });
  std::vector<Firing> order = PlayStep(game, [](int t, int) { return BackwardFirst(2, t); }).firings;
  EXPECT_TRUE(CheckOrder(game, order).ok());
  std::vector<Firing> wrong = order;
  wrong.erase(wrong.begin());
  EXPECT_NE(CheckOrder(game, wrong).message().find("entry 0 of the order"), std::string::npos);
  wrong = order;
  wrong.pop_back();
  EXPECT_NE(CheckOrder(game, wrong).message().find("ends before"), std::string::npos);
  wrong = order;
  std::swap(wrong.front(), wrong.back());
  EXPECT_FALSE(CheckOrder(game, wrong).ok());
}

TEST(PlayStep, ManyFirings) {
  int p = 16, m = 3200;
  TokenGame game = Pipeline(p, m, [&](int i) { return p - i; });
  Play play = PlayStep(game, [&](int t, int) { return BackwardFirst(p, t); });
  EXPECT_EQ(play.firings.size(), 2u * p * m);
  EXPECT_DOUBLE_EQ(play.makespan, 2.0 * (m + p - 1));
}

}  // namespace
}  // namespace oneflow_like
