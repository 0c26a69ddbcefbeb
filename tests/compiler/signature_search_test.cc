// The search for cuts of variables and signatures of nodes: as good as trying all there are, on random graphs
// of products, sums and elementwise operators, with and without updates of weights, over one or two axes.
// ctest: seconds=40 long=30
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "compiler/compile.h"
#include "compiler/search/choice_network.h"
#include "compiler/search/choose_weights.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/oneflow_like.h"

namespace oneflow_like {
namespace {

// --- Networks of numbers ---

ChoiceNetwork RandomNetwork(std::mt19937* random, int members, double density) {
  std::uniform_real_distribution<double> cost(0, 1);
  ChoiceNetwork network;
  std::vector<int> extents;
  for (int m = 0; m < members; ++m) {
    extents.push_back(1 + static_cast<int>((*random)() % 4));
    std::vector<double> costs(extents.back());
    for (double& c : costs) c = cost(*random);
    network.AddMember(costs);
  }
  for (int a = 0; a < members; ++a)
    for (int b = a + 1; b < members; ++b) {
      if (cost(*random) > density) continue;
      std::vector<double> costs(extents[a] * extents[b]);
      for (double& c : costs) c = cost(*random);
      const bool turned = (*random)() % 2 == 0;
      network.AddPair(turned ? b : a, turned ? a : b, costs);
    }
  return network;
}

// The least of all.
double LeastOf(const ChoiceNetwork& network, const std::vector<int>& extents) {
  std::vector<int> picks(extents.size(), 0);
  double least = network.CostOf(picks);
  for (;;) {
    size_t m = 0;
    while (m < picks.size() && ++picks[m] == extents[m]) picks[m++] = 0;
    if (m == picks.size()) return least;
    least = std::min(least, network.CostOf(picks));
  }
}

std::vector<int> ExtentsOf(uint32_t seed, int members) {
  std::mt19937 random(seed);
  std::vector<int> extents;
  for (int m = 0; m < members; ++m) {
    extents.push_back(1 + static_cast<int>(random() % 4));
    for (int c = 0; c < extents.back(); ++c) std::uniform_real_distribution<double>(0, 1)(random);
  }
  return extents;
}

TEST(ChoiceNetwork, IsExactWhereTablesAreSmall) {
  constexpr int kMembers = 8;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const ChoiceNetwork network = RandomNetwork(&random, kMembers, seed % 3 == 0 ? 1.0 : 0.4);
    EXPECT_NEAR(network.CostOf(network.Solve()), LeastOf(network, ExtentsOf(seed, kMembers)), 1e-9)
        << "seed " << seed;
  }
}

// Of small tables alone, so that members are held in each round.
TEST(ChoiceNetwork, IsNearTheLeastWhereMembersAreHeld) {
  constexpr int kMembers = 9;
  int equal = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const ChoiceNetwork network = RandomNetwork(&random, kMembers, 0.6);
    const double found = network.CostOf(network.Solve(/*most_entries=*/64)),
                 least = LeastOf(network, ExtentsOf(seed, kMembers));
    EXPECT_LE(found, least * 1.05) << "seed " << seed;
    equal += found <= least * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GE(equal, 50);
}

// --- Graphs ---

struct RandomGraph {
  std::unique_ptr<Model> model;
  CompileOptions options;
  std::optional<Graph> graph;  // as it comes to the choice of signatures
};

class GraphDrawer {
 public:
  explicit GraphDrawer(uint32_t seed) : random_(seed) {}

  RandomGraph Draw() {
    RandomGraph drawn;
    const char* meshes[] = {"cpu:a=2", "cpu:a=3", "cpu:a=4", "cpu:a=2,b=2", "cpu:a=3,b=2"};
    const Mesh mesh = Mesh::Parse(meshes[Below(5)]);
    drawn.model = std::make_unique<Model>(mesh);
    drawn.options.decided.micro_batches = Below(4) == 0 ? 2 : 1;
    SetMachine(&drawn.options.machine);
    if (Below(4) == 0) drawn.options.asked.roles.tensor = {0};
    scope_ = drawn.model->scope();
    pool_.push_back(drawn.model->Input("x", {Extent(), Extent()}, DType::kFloat32, {}, 0));
    const bool trains = Below(2) == 0;
    const int operators = mesh.rank() > 1 || trains ? 2 + Below(2) : 3 + Below(4);
    for (int i = 0; i < operators; ++i) pool_.push_back(Next(Pick()));
    Graph graph = drawn.model->impl()->graph;
    std::vector<int> roots;
    if (trains) {
      const Tensor last = matmul(pool_.back(), Weight({pool_.back().shape()[1], Extent()}));
      const Tensor loss = mean(mul(last, last));
      graph = drawn.model->impl()->graph;
      roots.push_back(graph.AddTrain(loss.id(), {}));
      roots.push_back(graph.AddFetch("loss", loss.id()));
      drawn.options.asked.training =
          Training{.optimizer = Below(2) == 0 ? Optimizer(Sgd{.lr = 0.1}) : Optimizer(AdamW{.lr = 0.1})};
    } else {
      roots.push_back(graph.AddFetch("y", pool_.back().id()));
    }
    graph.KeepOnly(roots);
    graph.set_times(drawn.options.decided.micro_batches);
    for (const Pass& pass : Passes()) {
      pass.run(&graph, drawn.options);
      if (pass.leaves == Level::kPlaced) break;
    }
    drawn.graph.emplace(std::move(graph));
    return drawn;
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % n); }
  int64_t Extent() {
    const int64_t extents[] = {2, 3, 4, 8, 12, 32, 64, 96};
    return extents[Below(8)];
  }
  double Between(double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>()(random_));
  }
  // Work and messages of these small tensors are of one order.
  void SetMachine(Machine* machine) {
    machine->flops = machine->narrow_flops = Between(1e8, 1e11);
    machine->topology.memory_bandwidth = Between(1e8, 1e10);
    machine->topology.links[0].bandwidth = Between(1e7, 1e10);
    machine->topology.links[0].latency = Between(1e-8, 1e-5);
  }
  Tensor Pick() {
    return pool_[pool_.size() - 1 - Below(static_cast<int>(std::min<size_t>(2, pool_.size())))];
  }
  Tensor Weight(const Dims& shape) {
    ++weights_;
    return scope_.Weight(Cat("w", std::string(weights_, 'i')), shape, Normal(0.1));
  }
  Tensor Next(Tensor t) {
    const int64_t rows = t.shape()[0], columns = t.shape()[1];
    switch (Below(9)) {
      case 0:
      case 1:
        return matmul(t, Weight({columns, Extent()}));
      case 2:
        return gelu(t);
      case 3:
        return add(t, Weight({columns}));
      case 4:
        for (const Tensor& other : pool_)
          if (other.id() != t.id() && other.shape() == t.shape()) return mul(t, other);
        return mul(t, exp(t));
      case 5:
        return softmax(t);
      case 6:
        return transpose(t, {1, 0});
      case 7:
        return add(t, sum(t, {Below(2)}, true));
      default:
        return einsum("ab,cb->ac", t, Weight({rows + 1, columns}));
    }
  }

  std::mt19937 random_;
  Scope scope_;
  std::vector<Tensor> pool_;
  int weights_ = 0;
};

// Tries all picks of all nodes, but those that begin with what already costs more than what was found.
class AllPicks {
 public:
  explicit AllPicks(const SignatureProblem& problem)
      : problem_(problem), rest_(problem.order().size() + 1, 0) {
    for (size_t at = problem.order().size(); at-- > 0;)
      rest_[at] = rest_[at + 1] + problem.LeastWork(problem.order()[at]);
  }

  // The least cost below `bound`, or `bound`; nothing if that takes too many tries.
  std::optional<double> LeastBelow(double bound) {
    least_ = bound;
    picks_.assign(problem_.graph().num_nodes(), 0);
    Try(0, 0);
    if (tries_ > kMost) return {};
    return least_;
  }

 private:
  static constexpr int64_t kMost = 3'000'000;

  void Try(size_t at, double cost) {
    if (++tries_ > kMost || cost + rest_[at] >= least_ * (1 - 1e-12)) return;
    if (at == problem_.order().size()) {
      least_ = cost;
      return;
    }
    const int n = problem_.order()[at];
    for (int c = 0; c < problem_.choices(n); ++c) {
      picks_[n] = c;
      Try(at + 1, cost + problem_.Adds(n, picks_));
    }
  }

  const SignatureProblem& problem_;
  std::vector<double> rest_;  // what nodes from there on take at least
  std::vector<int> picks_;
  double least_ = 0;
  int64_t tries_ = 0;
};

void ExpectTheBestOfAll(int most_graphs) {
  int equal = 0, graphs = 0, skipped = 0;
  int two_axes = 0, trained = 0;
  for (uint32_t seed = 1; graphs < most_graphs && seed < 1000; ++seed) {
    RandomGraph drawn = GraphDrawer(seed).Draw();
    try {
      Graph whole = *drawn.graph;
      ChooseSignatures(&whole, drawn.options);
    } catch (const Error&) {  // something needs the batch that micro-batches cut
      drawn.graph->set_times(drawn.options.decided.micro_batches = 1);
    }
    const SignatureProblem problem(*drawn.graph, drawn.options);
    const std::vector<int> picks = problem.Solve();
    const double found = problem.Cost(picks);
    ASSERT_LT(found, kImpossibleCost) << "seed " << seed;
    const std::optional<double> least = AllPicks(problem).LeastBelow(found);
    if (!least) {
      ++skipped;
      continue;
    }
    ++graphs;
    two_axes += problem.graph().mesh().rank() > 1 ? 1 : 0;
    trained += drawn.options.asked.training ? 1 : 0;
    EXPECT_LE(found, *least * 1.01) << "seed " << seed;
    equal += found <= *least * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_EQ(graphs, most_graphs);
  EXPECT_GE(equal, most_graphs * 95 / 100);
  EXPECT_GE(two_axes, most_graphs / 10);
  EXPECT_GE(trained, most_graphs / 10);
  std::printf("%d graphs, %d equal, %d of two axes, %d with updates; %d drawn again\n", graphs, equal,
              two_axes, trained, skipped);
}
TEST(SignatureSearch, FindsTheBestOfAllOnRandomGraphs) { ExpectTheBestOfAll(60); }
TEST(LongSignatureSearch, FindsTheBestOfAllOnRandomGraphs) { ExpectTheBestOfAll(200); }

// A step that does nothing but sum a gradient takes half as long where bf16 is sent.
TEST(SignatureSearch, NarrowSumsCostWhatTheySend) {
  const auto seconds = [](DType to, MeshAxes along) {
    Model model(Mesh::Parse("cpu:a=4"));
    Tensor x = model.Input("x", {4096, 64}, DType::kFloat32, {{"a", S(0)}});
    const Tensor loss = mean(matmul(x, model.scope().Weight("w", {64, 64}, Normal(0.1), {{"a", B()}})));
    Graph graph = model.impl()->graph;
    graph.KeepOnly({graph.AddTrain(loss.id(), {})});
    CompileOptions options;
    options.asked.training = Training{.optimizer = Sgd{.lr = 0.1}};
    options.decided.mesh = graph.mesh();
    options.decided.reduce_dtype = to;
    options.decided.reduce_axis = graph.mesh().NameOf(along);
    Machine& machine = options.machine;
    machine.flops = machine.narrow_flops = machine.topology.memory_bandwidth = 1e18;
    machine.topology.links[0] = {.bandwidth = 1e6};
    for (const Pass& pass : Passes()) {
      pass.run(&graph, options);
      if (pass.leaves == Level::kPlaced) break;
    }
    const SignatureProblem problem(graph, options);
    const double least = problem.Cost(problem.Solve());
    ChooseSignatures(&graph, options);
    const double chosen = SecondsOfSignatures(graph, options);
    EXPECT_NEAR(least, chosen, 1e-3 * chosen);
    return chosen;
  };
  const double wide = seconds(DType::kFloat32, {}), sum = 2 * 0.75 * (64 * 64 * 4) / 1e6;
  EXPECT_NEAR(wide, sum, 1e-3 * sum);
  EXPECT_NEAR(seconds(DType::kBFloat16, {}), wide / 2, 1e-3 * wide);
  EXPECT_NEAR(seconds(DType::kBFloat16, {0}), wide / 2, 1e-3 * wide);
}

// The cost of picks rises linearly with the price of a byte, whatever prices were asked for before.
TEST(SignatureSearch, BytesCostTheirPrice) {
  int priced = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    RandomGraph drawn = GraphDrawer(seed).Draw();
    drawn.graph->set_times(drawn.options.decided.micro_batches = 1);
    const SignatureProblem problem(*drawn.graph, drawn.options), other(*drawn.graph, drawn.options);
    const std::vector<int> picks = problem.Solve();
    const double seconds = problem.Cost(picks);
    for (double share : {0.5, 2.0, 8.0}) {
      const double price = share * seconds / 1e4;  // of a few thousand bytes
      const double asked_first = other.Cost(picks, price), more = problem.Cost(picks, price) - seconds;
      EXPECT_NEAR(asked_first, seconds + more, 1e-9 * asked_first) << "seed " << seed;
      EXPECT_NEAR(other.Cost(picks), seconds, 1e-9 * seconds) << "seed " << seed;
      EXPECT_NEAR(problem.Cost(picks, 2 * price) - seconds, 2 * more, 1e-6 * more) << "seed " << seed;
      priced += more > 0 ? 1 : 0;
    }
  }
  EXPECT_GE(priced, 100);
}

}  // namespace
}  // namespace oneflow_like
