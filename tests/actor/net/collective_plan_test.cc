// The chunk ops of all processes are carried out by a slow interpreter, each process strictly in the order of
// its list (so what completes here completes with staging for one chunk alone), and compared with what
// RouteAll says.
#include "actor/net/collectives/collective_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "tests/sbp/random_boxing.h"

namespace oneflow_like {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned kPlans = 600;
#else
constexpr unsigned kPlans = 6000;
#endif

struct Case {
  BoxingProgram program;
  GroupShape shape;
  ChunkLimits limits;
  std::optional<CollectiveAlgorithm> algorithm;
  int64_t element_bytes = 4;
  std::vector<MemberRegion> regions;
  std::vector<std::vector<ChunkOp>> ops;  // by process

  int processes() const { return static_cast<int>(shape.node_of_process.size()); }
  int nodes() const {
    return static_cast<int>(std::set<int>(shape.node_of_process.begin(), shape.node_of_process.end()).size());
  }
  void Plan() {
    for (size_t m = 0; m < program.work.size(); ++m) {
      for (const Region& r : program.work[m]) regions.push_back({r, static_cast<int>(m)});
    }
    for (int p = 0; p < processes(); ++p) {
      int chunks = 0;
      AddChunkOps(regions, shape, p, element_bytes, limits, &chunks, &ops.emplace_back(), algorithm);
    }
  }
};

// Ranks in processes of equal size or anyhow, processes on hosts anyhow.
Case MakeCase(Random& random, const RandomBoxing& boxing, int world) {
  Case c;
  c.program = RouteAll(Box::Whole(boxing.shape), boxing.from, boxing.to);
  const int processes = 1 + Draw(random, world), hosts = 1 + Draw(random, processes);
  const bool in_order = Draw(random, 2) == 0;
  for (int device : c.program.members) {
    c.shape.process.push_back(in_order ? device * processes / world : Draw(random, processes));
  }
  std::vector<int> first(hosts, -1);
  for (int p = 0; p < processes; ++p) {
    int& node = first[Draw(random, hosts)];
    if (node < 0) node = p;
    c.shape.node_of_process.push_back(node);
  }
  c.element_bytes = 1 << Draw(random, 4);
  c.limits.chunk_bytes = c.element_bytes * (1 + Draw(random, 60));
  c.limits.latency_bound_bytes = Draw(random, 3) == 0 ? 0 : Draw(random, 400);
  const int algorithms = static_cast<int>(std::size(kCollectiveAlgorithms));
  if (const int drawn = Draw(random, algorithms + 1); drawn < algorithms)
    c.algorithm = kCollectiveAlgorithms[drawn];
  const int units = 1 + Draw(random, processes);
  for (int p = 0; p < processes && Draw(random, 4) > 0; ++p)
    c.shape.unit_of_process.push_back(in_order ? p * units / processes : Draw(random, units));
  c.shape.unit_of_process.resize(c.shape.unit_of_process.empty() ? 0 : processes);
  c.Plan();
  return c;
}

template <typename T>
struct Result {
  std::string wrong;
  std::vector<std::vector<T>> out;  // by member
  std::vector<std::vector<int>> writes;
  int64_t crossings = 0;  // messages
  int64_t elements_crossed = 0;
  std::map<std::pair<int, int>, int64_t> between;  // elements from node to node
};

template <typename T>
class Interpreter {
 public:
  Interpreter(const Case& c, const std::vector<std::vector<T>>& in) : c_(c), in_(in) {
    for (size_t m = 0; m < c.program.members.size(); ++m) {
      const int64_t elements = c.program.has_out[m] ? c.program.out[m].elements() : 0;
      result_.out.emplace_back(elements);
      result_.writes.emplace_back(elements);
    }
  }

  Result<T> Run() {
    std::vector<size_t> next(c_.processes());
    for (bool moved = true; moved && result_.wrong.empty();) {
      moved = false;
      for (int p = 0; p < c_.processes(); ++p) {
        while (next[p] < c_.ops[p].size() && RunOp(p, c_.ops[p][next[p]])) {
          ++next[p];
          moved = true;
        }
      }
    }
    for (int p = 0; p < c_.processes() && result_.wrong.empty(); ++p) {
      if (next[p] < c_.ops[p].size()) {
        Wrong("process ", p, " waits for ever in chunk ", c_.ops[p][next[p]].chunk);
      }
    }
    if (result_.wrong.empty() && !messages_.empty())
      Wrong(messages_.size(), " messages are awaited by nobody");
    return std::move(result_);
  }

 private:
  using Values = std::vector<T>;

  template <typename... Args>
  void Wrong(const Args&... args) {
    if (result_.wrong.empty()) result_.wrong = Cat(args...);
  }

  Values Sum(const Box& box, const std::vector<int>& sources) {
    Values sum;
    for (int m : sources) AddTo(Read(box, m), &sum);
    return sum;
  }
  static void AddTo(const Values& term, Values* sum) {
    if (sum->empty()) {
      *sum = term;
    } else {
      for (size_t i = 0; i < term.size(); ++i) (*sum)[i] += term[i];
    }
  }
  Values Read(const Box& box, int member) {
    Values values;
    ForEach(box, [&](const Dims& at) { values.push_back(in_[member][IndexIn(c_.program.in[member], at)]); });
    return values;
  }

  bool RunOp(int p, const ChunkOp& op) {
    for (const ChunkOp::Term& term : op.terms) {
      if (term.process >= 0 && messages_.count({op.chunk, term.process, p}) == 0) return false;
    }
    Values sum;
    for (const ChunkOp::Term& term : op.terms) {
      if (term.process >= 0) {
        auto message = messages_.find({op.chunk, term.process, p});
        AddTo(message->second, &sum);
        messages_.erase(message);
        continue;
      }
      for (int m : term.sources) {
        if (c_.shape.node(m) != c_.shape.node_of_process[p]) Wrong("process ", p, " reads far member ", m);
      }
      if (term.apart) {
        AddTo(Sum(op.box, term.sources), &sum);
      } else {
        for (int m : term.sources) AddTo(Read(op.box, m), &sum);
      }
    }
    if (op.terms.empty()) sum.assign(op.box.elements(), 0);
    for (int m : op.outs) {
      if (c_.shape.node(m) != c_.shape.node_of_process[p]) Wrong("process ", p, " writes far member ", m);
      size_t i = 0;
      ForEach(op.box, [&](const Dims& at) {
        const int64_t index = IndexIn(c_.program.out[m], at);
        result_.out[m][index] = sum[i++];
        ++result_.writes[m][index];
      });
    }
    for (int to : op.sends) Send(op, p, to, sum);
    return true;
  }

  void Send(const ChunkOp& op, int from, int to, const Values& sum) {
    const int from_node = c_.shape.node_of_process[from], to_node = c_.shape.node_of_process[to];
    if (from_node == to_node) Wrong("a message from process ", from, " to ", to, " inside a node");
    if (!crossed_.insert({op.chunk, from_node, to_node}).second) {
      Wrong("chunk ", op.chunk, " goes from node ", from_node, " to ", to_node, " twice");
    }
    if (op.box.elements() * c_.element_bytes > c_.limits.chunk_bytes) Wrong("a message of ", op.box.str());
    if (!messages_.insert({{op.chunk, from, to}, sum}).second) Wrong("two messages of chunk ", op.chunk);
    ++result_.crossings;
    result_.elements_crossed += op.box.elements();
    result_.between[{from_node, to_node}] += op.box.elements();
  }

  const Case& c_;
  const std::vector<Values>& in_;
  Result<T> result_;
  std::map<std::tuple<int, int, int>, Values> messages_;  // chunk, from, to
  std::set<std::tuple<int, int, int>> crossed_;           // chunk, node, node
};

template <typename T>
std::vector<std::vector<T>> Inputs(const Case& c, Random& random) {
  std::vector<std::vector<T>> in;
  for (size_t m = 0; m < c.program.members.size(); ++m) {
    in.emplace_back(c.program.has_in[m] ? c.program.in[m].elements() : 0);
    for (T& x : in.back()) {
      if constexpr (std::is_floating_point_v<T>) {
        x = std::ldexp(static_cast<T>(Draw(random, 1 << 20) - (1 << 19)), -Draw(random, 24));
      } else {
        x = Draw(random, 2000) - 1000;
      }
    }
  }
  return in;
}

// What is awaited is what is sent, message by message, and the lists are in order.
std::string CheckOps(const Case& c) {
  std::map<std::tuple<int, int, int>, int> sent, awaited;
  std::map<int, Box> boxes;
  for (int p = 0; p < c.processes(); ++p) {
    int last = -1;
    for (const ChunkOp& op : c.ops[p]) {
      if (op.chunk < last) return Cat("process ", p, " does chunk ", op.chunk, " after ", last);
      last = op.chunk;
      if (!(boxes.emplace(op.chunk, op.box).first->second == op.box))
        return Cat("chunk ", op.chunk, " differs");
      if (op.outs.empty() && op.sends.empty()) return Cat("chunk ", op.chunk, " is for nobody");
      if (op.box.empty()) return Cat("chunk ", op.chunk, " is empty");
      for (const ChunkOp::Term& term : op.terms) {
        if (term.process >= 0) ++awaited[{op.chunk, term.process, p}];
      }
      for (int to : op.sends) ++sent[{op.chunk, p, to}];
    }
  }
  if (sent != awaited)
    return Cat(sent.size(), " messages are sent and ", awaited.size(), " awaited, or by others");
  for (const auto& [message, times] : sent) {
    if (times != 1) return Cat("chunk ", std::get<0>(message), " is sent ", times, " times");
  }
  return "";
}

std::string CheckExact(const Case& c, Random& random) {
  const std::vector<std::vector<int64_t>> in = Inputs<int64_t>(c, random);
  const Result<int64_t> result = Interpreter<int64_t>(c, in).Run();
  if (!result.wrong.empty()) return result.wrong;
  std::string wrong;
  for (const MemberRegion& r : c.regions) {
    ForEach(r.box, [&](const Dims& at) {
      int64_t sum = 0;
      for (int s : r.sources) sum += in[s][IndexIn(c.program.in[s], at)];
      for (int d : r.dests) {
        const int64_t value = result.out[d][IndexIn(c.program.out[d], at)];
        if (value != sum) wrong = Cat("member ", d, " has ", value, " at ", at.str(), " and not ", sum);
      }
    });
  }
  for (size_t m = 0; m < result.writes.size(); ++m) {
    for (int writes : result.writes[m]) {
      if (writes != 1) wrong = Cat("an element of member ", m, " is written ", writes, " times");
    }
  }
  return wrong;
}

// All destinations of one sum have the same bits.
std::string CheckReplicas(const Case& c, Random& random) {
  const std::vector<std::vector<float>> in = Inputs<float>(c, random);
  const Result<float> result = Interpreter<float>(c, in).Run();
  std::string wrong = result.wrong;
  std::map<std::pair<std::vector<int64_t>, std::vector<int>>, std::pair<float, int>> values;
  for (const MemberRegion& r : c.regions) {
    ForEach(r.box, [&](const Dims& at) {
      for (int d : r.dests) {
        const float value = result.out[d][IndexIn(c.program.out[d], at)];
        const auto& [first, member] =
            values
                .emplace(std::pair(std::vector<int64_t>(at.begin(), at.end()), r.sources),
                         std::pair(value, d))
                .first->second;
        if (memcmp(&first, &value, sizeof value) != 0) {
          wrong = Cat("at ", at.str(), " member ", member, " has ", first, " and member ", d, " has ", value);
        }
      }
    });
  }
  return wrong;
}

TEST(CollectivePlan, RandomPlansDoWhatRouteAllSays) {
  int64_t crossings = 0, apart = 0, two_in_one = 0;
  for (unsigned seed = 1; seed <= kPlans; ++seed) {
    Random random(seed);
    const int world = 2 + Draw(random, 7);
    const RandomBoxing boxing = MakeRandomBoxing(random, world);
    const Case c = MakeCase(random, boxing, world);
    const std::string where =
        Cat("seed ", seed, ": ", c.algorithm ? Name(*c.algorithm) : "", " ", boxing.str());
    ASSERT_EQ(CheckOps(c), "") << where;
    ASSERT_EQ(CheckExact(c, random), "") << where;
    ASSERT_EQ(CheckReplicas(c, random), "") << where;
    for (const auto& ops : c.ops) {
      for (size_t i = 0; i < ops.size(); ++i) {
        crossings += static_cast<int64_t>(ops[i].sends.size());
        two_in_one += i > 0 && ops[i - 1].chunk == ops[i].chunk;
        for (const ChunkOp::Term& term : ops[i].terms) apart += term.apart;
      }
    }
  }
  // The plans reach what is rare.
  EXPECT_GT(crossings, kPlans);
  EXPECT_GT(apart, 0);
  EXPECT_GT(two_in_one, 0);
}

Case OverNodes(const NdSbp& from, const NdSbp& to, const Dims& shape, int nodes, int per_node, int ranks_each,
               ChunkLimits limits, std::optional<CollectiveAlgorithm> algorithm = {}, int units = 0) {
  Case c;
  c.algorithm = algorithm;
  const int world = nodes * per_node * ranks_each;
  BoxingEnd f, t;
  f.sizes = t.sizes = {world};
  f.sbp = from;
  t.sbp = to;
  for (int r = 0; r < world; ++r) {
    f.devices.push_back(r);
    t.devices.push_back(r);
    c.shape.process.push_back(r / ranks_each);
  }
  for (int p = 0; p < nodes * per_node; ++p) {
    c.shape.node_of_process.push_back(p / per_node * per_node);
    if (units > 0) c.shape.unit_of_process.push_back(p / per_node * units / nodes);
  }
  c.program = RouteAll(Box::Whole(shape), f, t);
  c.limits = limits;
  c.Plan();
  return c;
}

TEST(CollectivePlan, WhatCrossesIsWhatMust) {
  const Dims shape = {48, 10};
  const int64_t T = shape.elements();
  Random random(1);
  for (int nodes = 1; nodes <= 4; ++nodes) {
    for (int per_node : {1, 3}) {
      for (int ranks : {1, 2}) {
        const auto crossed = [&](const NdSbp& from, const NdSbp& to, ChunkLimits limits) {
          const Case c = OverNodes(from, to, shape, nodes, per_node, ranks, limits);
          const Result<int64_t> result = Interpreter<int64_t>(c, Inputs<int64_t>(c, random)).Run();
          EXPECT_EQ(result.wrong, "");
          return result;
        };
        const ChunkLimits large = {64, 0}, small = {1 << 20, 1 << 20};
        EXPECT_EQ(crossed({P()}, {B()}, large).elements_crossed, 2 * (nodes - 1) * T);
        EXPECT_EQ(crossed({P()}, {S(0)}, large).elements_crossed, (nodes - 1) * T);
        EXPECT_EQ(crossed({S(0)}, {B()}, large).elements_crossed, (nodes - 1) * T);
        EXPECT_EQ(crossed({S(0)}, {S(0)}, large).elements_crossed, 0);
        // Small: one trip, one message for each pair of nodes.
        const Result<int64_t> all_reduce = crossed({P()}, {B()}, small);
        EXPECT_EQ(all_reduce.crossings, nodes * (nodes - 1));
        EXPECT_EQ(all_reduce.elements_crossed, nodes * (nodes - 1) * T);
        // Not small as a whole, though every member's part is: two trips.
        const ChunkLimits between = {1 << 20, 4 * T - 1};
        EXPECT_EQ(crossed({P()}, {B()}, between).elements_crossed, 2 * (nodes - 1) * T);
      }
    }
  }
}

// Who sends how much to whom is what the algorithm's name says, in all-reduce, reduce-scatter and all-gather.
TEST(CollectivePlan, EachAlgorithmSendsWhatItsNameSays) {
  using A = CollectiveAlgorithm;
  const Dims shape = {120, 6};
  const int64_t T = shape.elements();
  Random random(1);
  for (int nodes = 2; nodes <= 9; ++nodes) {
    for (int per_node : {1, 2}) {
      const auto crossed = [&](A algorithm, const Sbp& from, const Sbp& to, int units = 0) {
        const Case c = OverNodes({from}, {to}, shape, nodes, per_node, 1, {4 * T, 32}, algorithm, units);
        EXPECT_EQ(CheckOps(c), "") << Name(algorithm) << nodes;
        const Result<int64_t> result = Interpreter<int64_t>(c, Inputs<int64_t>(c, random)).Run();
        EXPECT_EQ(result.wrong, "") << Name(algorithm) << nodes;
        return result;
      };
      const auto neighbours = [&](int a, int b) {
        const int gap = std::abs(a - b) / per_node;
        return gap == 1 || gap == nodes - 1;
      };
      const int64_t once = (nodes - 1) * T;
      const Result<int64_t> direct = crossed(A::kDirect, P(), B());
      EXPECT_EQ(direct.crossings, nodes * (nodes - 1));
      EXPECT_EQ(direct.elements_crossed, nodes * once);
      for (const auto& [from, to, trips] : {std::tuple(P(), B(), 2), {P(), S(0), 1}, {S(0), B(), 1}}) {
        for (A a : {A::kTwoTrips, A::kRing, A::kTree, A::kTwoLevel})
          EXPECT_EQ(crossed(a, from, to, nodes / 2).elements_crossed, trips * once) << Name(a) << nodes;
        for (const auto& [pair, elements] : crossed(A::kRing, from, to).between)
          EXPECT_TRUE(neighbours(pair.first, pair.second)) << pair.first << " to " << pair.second;
        for (const auto& [pair, elements] : crossed(A::kStar, from, to).between)
          EXPECT_TRUE(pair.first == 0 || pair.second == 0) << pair.first << " to " << pair.second;
      }
      // A ring of many parts loads all links alike, both ways, and a star has all it sends at its middle.
      if (per_node == 1 && shape[0] % nodes == 0) {
        const Result<int64_t> ring = crossed(A::kRing, P(), B());
        for (const auto& [pair, elements] : ring.between)
          EXPECT_EQ(elements, (nodes == 2 ? 2 : 1) * once / nodes) << nodes;
      }
      EXPECT_EQ(crossed(A::kStar, P(), B()).elements_crossed, 2 * once);
      // What leaves a unit leaves it once, however many are in it.
      if (nodes % 2 != 0) continue;
      int64_t between_units = 0;
      for (const auto& [pair, elements] : crossed(A::kTwoLevel, P(), B(), 2).between)
        if (pair.first / per_node * 2 / nodes != pair.second / per_node * 2 / nodes)
          between_units += elements;
      EXPECT_EQ(between_units, 2 * T) << nodes;
    }
  }
}

TEST(CollectivePlan, ProcessesOfANodeShareTheWork) {
  const ChunkLimits limits = {64, 0};
  for (const auto& [from, to] : {std::pair(P(), B()), {S(0), B()}, {P(), S(0)}}) {
    const Case c = OverNodes({from}, {to}, {64, 16}, 2, 4, 1, limits);
    std::vector<int64_t> elements(c.processes());
    int64_t all = 0, most = 0;
    for (int p = 0; p < c.processes(); ++p) {
      for (const ChunkOp& op : c.ops[p]) elements[p] += op.box.elements();
      all += elements[p];
      most = std::max(most, elements[p]);
    }
    EXPECT_LE(most * c.processes(), all * 3 / 2) << from.str() << " to " << to.str();
  }
}

TEST(Interpreter, NoticesAMissingTermAndAMissingSend) {
  Case c = OverNodes({P()}, {B()}, {6, 4}, 2, 2, 1, {64, 0});
  Random random(1);
  ASSERT_EQ(CheckExact(c, random), "");
  for (auto& ops : c.ops) {
    for (size_t i = 0; i < ops.size(); ++i) {
      const ChunkOp kept = ops[i];
      if (!kept.outs.empty()) {
        ops[i].outs.pop_back();
        EXPECT_NE(CheckExact(c, random), "");
      }
      if (!kept.sends.empty()) {
        ops[i] = kept;
        ops[i].sends.pop_back();
        EXPECT_NE(CheckExact(c, random), "");
        EXPECT_NE(CheckOps(c), "");
      }
      if (!kept.terms.empty() && kept.terms[0].sources.size() > 1) {
        ops[i] = kept;
        ops[i].terms[0].sources.pop_back();
        EXPECT_NE(CheckExact(c, random), "");
      }
      ops[i] = kept;
    }
  }
  ASSERT_EQ(CheckExact(c, random), "");
}

}  // namespace
}  // namespace oneflow_like
