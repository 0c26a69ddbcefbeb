// Random plans under random executions: whatever order of events a seed picks, a plan that the token game
// completes gives the same results, and one that the game calls dead stalls.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "actor/runtime.h"
#include "core/plan/token_game.h"
#include "tests/actor/actor_test_plans.h"
#include "tests/actor/seeded_executor.h"

namespace oneflow_like {
namespace {

constexpr int kElements = 3;

struct Node {
  std::string name;
  int rank = 0, acts = 1;
  int group = -1;  // nodes of one collective share it
  int member = 0;
  bool fetch = false;
};
struct Link {
  int writer = 0, reader = 0, slots = 1, write_period = 1, read_period = 1, full = 0;
};
struct Sketch {
  int ranks = 1, groups = 0;
  std::vector<Node> nodes;  // in the order of a graph without cycles, but for full links
  std::vector<Link> links;
};

class Sketcher {
 public:
  explicit Sketcher(uint64_t seed) : random_(seed) {}

  Sketch Make() {
    s_.ranks = Pick(1, 3);
    for (int i = Pick(3, 9); i > 0; --i) {
      if (s_.ranks > 1 && Pick(0, 3) == 0) {
        AddCollective();
      } else {
        AddNode(Pick(0, s_.ranks - 1), 1 << Pick(0, 2));
      }
    }
    int plain = static_cast<int>(s_.nodes.size());
    for (int i = Pick(0, 2); i > 0; --i) AddLoop(plain);
    for (int i = 0; i < plain; ++i) AddFetch(i);
    return std::move(s_);
  }

 private:
  int Pick(int from, int to) { return from + static_cast<int>(random_() % (to - from + 1)); }

  int Add(const Node& node) {
    s_.nodes.push_back(node);
    s_.nodes.back().name = Cat(node.fetch ? "fetch" : node.group >= 0 ? "c" : "n", s_.nodes.size() - 1);
    return static_cast<int>(s_.nodes.size()) - 1;
  }

  void Connect(int writer, int reader, int full) {
    Link link{writer, reader};
    int w = s_.nodes[writer].acts, r = s_.nodes[reader].acts;
    int shared = std::min(w, r);  // slots of a step, or half as many
    if (shared % 2 == 0 && Pick(0, 3) == 0) shared /= 2;
    link.write_period = w / shared;
    link.read_period = r / shared;
    link.slots = Pick(1, 3);
    if (full) link.full = Pick(1, link.slots);
    s_.links.push_back(link);
  }

  int AddNode(int rank, int acts) {
    int node = Add({"", rank, acts});
    for (int i = Pick(0, 3); i > 0; --i) {
      int from = Pick(0, node);
      if (from < node && s_.nodes[from].rank == rank && s_.nodes[from].group < 0) Connect(from, node, false);
    }
    return node;
  }

  // On each member's rank a node before and a node after.
  void AddCollective() {
    int acts = 1 << Pick(0, 2), group = s_.groups++, members = Pick(2, s_.ranks);
    std::vector<int> before, at;
    for (int m = 0; m < members; ++m) before.push_back(AddNode(m, acts));
    for (int m = 0; m < members; ++m) at.push_back(Add({"", m, acts, group, m}));
    for (int m = 0; m < members; ++m) Connect(before[m], at[m], false);
    for (int m = 0; m < members; ++m) Connect(at[m], AddNode(m, acts), false);
  }

  // From a later node to an earlier one, with slots that are full at start.
  void AddLoop(int nodes) {
    int a = Pick(0, nodes - 1), b = Pick(0, nodes - 1);
    if (s_.nodes[a].rank != s_.nodes[b].rank || s_.nodes[a].group >= 0 || s_.nodes[b].group >= 0) return;
    Connect(std::max(a, b), std::min(a, b), true);
  }

  void AddFetch(int node) {
    if (s_.nodes[node].group >= 0) return;
    Node fetch{"", s_.nodes[node].rank, s_.nodes[node].acts, -1, 0, true};
    s_.links.push_back({node, Add(fetch), Pick(1, 2)});
  }

  std::mt19937_64 random_;
  Sketch s_;
};

struct Model {
  TokenGame game;
  std::vector<int> transition;  // of each node; a collective's members share one
};

Model MakeGame(const Sketch& s) {
  Model model;
  std::map<int, int> groups;
  for (const Node& node : s.nodes) {
    if (node.group >= 0 && groups.count(node.group)) {
      model.transition.push_back(groups[node.group]);
      continue;
    }
    model.transition.push_back(static_cast<int>(model.game.transitions.size()));
    if (node.group >= 0) groups[node.group] = model.transition.back();
    model.game.transitions.push_back({node.name, node.acts, 1, {}});
  }
  for (const Link& l : s.links) {
    model.game.places.push_back({model.transition[l.writer], model.transition[l.reader], l.slots,
                                 l.write_period, l.read_period, l.full});
  }
  return model;
}

// Mixes its inputs with the number of the act; an output that several acts share is added up.
class MixKernel : public Kernel {
 public:
  explicit MixKernel(const KernelSpec& spec) {
    for (size_t j = 0; j < spec.out.size(); ++j) periods_.push_back(spec.attrs.Int(Cat("period", j)));
    salt_ = spec.attrs.Int("salt");
  }
  Status Run(const KernelContext& c) override {
    for (int i = 0; i < kElements; ++i) {
      uint64_t value = salt_ * 1000003 + act_ * 31 + i;
      for (const TensorArg& in : c.in) value = (value ^ in.as<uint64_t>()[i]) * 0x9E3779B97F4A7C15ull;
      for (size_t j = 0; j < c.out.size(); ++j) {
        uint64_t& out = c.out[j].as<uint64_t>()[i];
        out = act_ % periods_[j] == 0 ? value + j : out + value;
      }
    }
    ++act_;
    return Status();
  }

 private:
  int64_t act_ = 0;
  uint64_t salt_ = 0;
  std::vector<int64_t> periods_;
};

// Plans of all ranks. With a play, actors stand in streams of its order; without, all act when they can.
std::vector<plan::Plan> MakePlans(const Sketch& s, const Model& model, const Play* play) {
  Dims shape{kElements};
  Box whole = Box::Whole(shape);
  std::vector<PlanBuilder> builders;
  for (int r = 0; r < s.ranks; ++r) builders.emplace_back("random", r, s.ranks, 4);
  std::vector<plan::Actor*> actors;
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    actors.push_back(builders[s.nodes[i].rank].Actor(static_cast<int>(i), s.nodes[i].name, s.nodes[i].acts));
  }
  std::vector<std::vector<plan::Operand>> in(s.nodes.size()), out(s.nodes.size());
  for (const Link& l : s.links) {
    PlanBuilder& b = builders[s.nodes[l.writer].rank];
    int buffer =
        b.Buffer(Cat(s.nodes[l.writer].name, "-", s.nodes[l.reader].name), kElements, l.slots, l.full);
    out[l.writer].push_back(b.Operand(buffer, shape, {whole}, l.write_period, l.full));
    in[l.reader].push_back(b.Operand(buffer, shape, {whole}, l.read_period));
    b.Edge(actors[l.writer], actors[l.reader], l.slots, l.write_period, l.read_period, l.full);
  }
  std::map<int, int> members;
  for (const Node& node : s.nodes) members[node.group]++;
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    const Node& node = s.nodes[i];
    PlanBuilder& b = builders[node.rank];
    plan::Kernel* k = b.Kernel(actors[i],
                               node.fetch        ? "fetch"
                               : node.group >= 0 ? "all_reduce"
                                                 : "mix",
                               in[i], out[i]);
    b.SetAttr(k, "salt", static_cast<int64_t>(i));
    for (size_t j = 0; j < out[i].size(); ++j) b.SetAttr(k, Cat("period", j), out[i][j].period());
    if (node.fetch) {
      actors[i]->set_fetch(node.name);
      b.Output(node.name, shape);
    }
    if (node.group < 0) continue;
    int n = members[node.group];
    std::vector<int> ranks;
    for (int m = 0; m < n; ++m) ranks.push_back(m);
    std::vector<std::vector<Box>> pieces(n, {whole});
    plan::Collective* c = b.Collective(actors[i], node.group, ranks, node.member, "sum", pieces, pieces);
    for (int e = 0; e < kElements; ++e) {
      if ((e + node.group) % n == node.member) b.Region(c, {{e}, {1}}, ranks, ranks);
    }
  }
  std::vector<plan::Plan> plans;
  for (int r = 0; r < s.ranks; ++r) {
    if (play != nullptr) {
      std::vector<int> compute, link;
      for (const Firing& f : play->firings) {
        for (size_t i = 0; i < s.nodes.size(); ++i) {
          if (model.transition[i] != f.transition || s.nodes[i].rank != r || s.nodes[i].fetch) continue;
          (s.nodes[i].group >= 0 ? link : compute).push_back(static_cast<int>(i));
        }
      }
      builders[r].Stream("compute", compute);
      builders[r].Stream("link", link);
    }
    plans.push_back(builders[r].plan());
  }
  return plans;
}

constexpr int kSteps = 3;

struct Outcome {
  std::string error;
  std::vector<int64_t> values;
};

Outcome Execute(const Sketch& s, const std::vector<plan::Plan>& plans, std::unique_ptr<Executor> executor) {
  KernelRegistry registry;
  registry.Add("mix", "cpu", [](const KernelSpec& spec) -> std::unique_ptr<Kernel> {
    return std::make_unique<MixKernel>(spec);
  });
  auto store = MakeStore(s.ranks);
  Runtime runtime(plans, registry, store.get(), executor.get(), {.steps_in_flight = kSteps});
  std::vector<StepHandle> handles;
  for (int i = 0; i < kSteps; ++i) handles.push_back(runtime.Launch({}));
  Outcome outcome;
  for (StepHandle& handle : handles) {
    Status status = handle.Wait();
    if (!status.ok()) {
      outcome.error = status.message();
      break;
    }
    for (const Node& node : s.nodes) {
      if (!node.fetch) continue;
      for (int64_t v : Values(handle.Get(node.name))) outcome.values.push_back(v);
    }
  }
  if (outcome.error.empty()) {
    for (const plan::Plan& plan : plans) {
      for (const plan::Buffer& b : plan.buffer()) {
        EXPECT_LE((runtime.PeakSlots()[{plan.rank(), b.id()}]), b.slots()) << b.name();
      }
    }
  }
  return outcome;
}

TEST(RandomPlans, TheGameKnows) {
  int alive = 0, dead = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(Cat("plan seed ", seed));
    Sketch sketch = Sketcher(seed).Make();
    Model model = MakeGame(sketch);
    std::mt19937_64 random(seed);
    Play play;
    std::string verdict;
    try {
      play = PlayStep(model.game, [&](int, int) { return static_cast<double>(random() % 8); });
      Status order = CheckOrder(model.game, play.firings);
      EXPECT_TRUE(order.ok()) << order.message();
    } catch (const Error& error) {
      verdict = error.what();
    }
    ++(verdict.empty() ? alive : dead);
    if (!verdict.empty()) {
      EXPECT_EQ(verdict.find("the plan cannot complete: "), 0u) << verdict;
      EXPECT_NE(verdict.find(" waits for "), std::string::npos) << verdict;
    }
    // With slots for everything the results are the same: slots bound memory, not values.
    Outcome wanted;
    if (verdict.empty()) {
      Sketch ample = sketch;
      for (Link& link : ample.links) link.slots = link.full + 8;
      wanted = Execute(ample, MakePlans(ample, model, nullptr), MakeSeededExecutor(seed));
      ASSERT_EQ(wanted.error, "");
    }
    for (uint64_t run = 0; run < 10; ++run) {
      bool ordered = verdict.empty() && run % 2 == 0;
      std::vector<plan::Plan> plans = MakePlans(sketch, model, ordered ? &play : nullptr);
      Outcome got = Execute(sketch, plans, MakeSeededExecutor(1000 * seed + run));
      if (verdict.empty()) {
        ASSERT_EQ(got.error, "") << "run " << run;
        ASSERT_EQ(got.values, wanted.values) << "run " << run;
      } else {
        ASSERT_EQ(got.error.find("the step has stalled: "), 0u) << got.error << "; the game: " << verdict;
      }
    }
    if (verdict.empty() && seed % 20 == 0) {
      Outcome got = Execute(sketch, MakePlans(sketch, model, &play), MakeThreadExecutor(2, 1));
      ASSERT_EQ(got.error, "");
      ASSERT_EQ(got.values, wanted.values);
    }
  }
  std::printf("%d plans complete, %d are dead\n", alive, dead);
  EXPECT_GT(alive, 200);
  EXPECT_GT(dead, 100);
}

}  // namespace
}  // namespace oneflow_like
