// Simulated sessions: the acts come in the order in which the runtime does them, every repetition gives the
// same numbers, and topology files say what is wrong with them.
// ctest: seconds=111
#include "oneflow_like/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <locale>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "compiler/cost/collective_costs.h"
#include "tests/error_of.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

Machine Host(int threads) {
  Machine machine;
  machine.threads = threads;
  return machine;
}

Machine Gpus(int per_node) {
  Machine machine;
  machine.topology.links = {{.devices = per_node, .latency = 5e-6, .bandwidth = 2e11},
                            {.devices = 0, .latency = 2e-5, .bandwidth = 2e10}};
  machine.topology.memory_bandwidth = 2e12;
  machine.flops = 2e13;
  machine.narrow_flops = 3e14;
  machine.overhead = 4e-6;
  return machine;
}

// A layout of a small GPT, any of many.
SmallGpt Draw(std::mt19937* random) {
  const auto pick = [&](std::vector<int> of) { return of[(*random)() % of.size()]; };
  SmallGpt given;
  const int dp = pick({1, 2}), tp = pick({1, 2}), pp = pick({1, 2, 3});
  given.mesh = Cat("cpu:dp=", dp, ",tp=", tp, ",pp=", pp);
  given.micro_batches = pick({1, 2, 4});
  given.layers = 6;
  given.width = 32;
  given.context = 8;
  given.schedule = std::vector<PipelineSchedule>{PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
                                                 PipelineSchedule::kZeroBubble}[(*random)() % 3];
  if (pp > 1 && pick({0, 1}) == 1) {
    given.schedule = PipelineSchedule::kInterleaved;
    given.model_options.pipeline.virtual_stages = 2;
    given.micro_batches = std::max(given.micro_batches, pp);
  }
  if (dp > 1 && pick({0, 1}) == 1) {
    given.zero_axis = "dp";
    given.zero_stage = pick({1, 2, 3});
  }
  if (pick({0, 1}) == 1) given.recompute = Recompute::kFull;
  if (tp > 1 && pick({0, 1}) == 1) {
    given.sequence = "tp";
    given.gather_again = pick({0, 1}) == 1;
  }
  return given;
}

// Kernels and work of collectives of a trace, in the order in which they were done: rank, operator,
// micro-batch.
std::vector<std::string> Order(const std::string& path) {
  std::ifstream in(path);
  const nlohmann::json events = nlohmann::json::parse(in);
  std::set<std::pair<int, int>> outside;  // rows of feeds and fetches
  for (const auto& e : events)
    if (e["name"] == "thread_name" && e["args"]["name"].get<std::string>().starts_with("feeds"))
      outside.insert({e["pid"].get<int>(), e["tid"].get<int>()});
  std::vector<std::pair<double, std::string>> all;
  for (const auto& e : events)
    if (e["ph"] == "X" && e["args"].contains("flops") &&
        outside.count({e["pid"].get<int>(), e["tid"].get<int>()}) == 0)
      all.push_back({e["ts"].get<double>(),
                     Cat("step ", e["args"]["step"].get<int>(), " rank ", e["pid"].get<int>(), " ",
                         e["name"].get<std::string>(), " ", e["args"]["micro_batch"].get<int>())});
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> order;
  for (const auto& [time, what] : all) order.push_back(what);
  return order;
}

TEST(Simulate, ThePredictedOrderIsTheExecutedOne) {
  constexpr int kSteps = 2;
  for (int trial = 0; trial < 12; ++trial) {
    std::mt19937 random(trial);
    SmallGpt given = Draw(&random);
    const std::string folder = testing::TempDir(), predicted = folder + "predicted.json",
                      executed = folder + "executed.json";
    given.model_options.threads = 1;  // of several, whoever is quicker goes first
    given.model_options.kernel_threads = 1;
    SCOPED_TRACE(Cat("seed ", trial, ": ", given.str()));
    {
      GptProgram program(given);
      Simulate(program.MakeTrain(), Host(1),
               {.steps = kSteps, .trace_file = predicted, .steps_in_flight = 1});
    }
    given.model_options.trace_file = executed;
    {
      GptProgram program(given);
      Session train = program.MakeTrain();
      for (int step = 0; step < kSteps; ++step) train.Run(program.MakeFeeds(step)).Wait();
      train.Close();
    }
    const std::vector<std::string> a = Order(predicted), b = Order(executed);
    ASSERT_FALSE(a.empty());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << "entry " << i << " of " << a.size();
  }
}

TEST(Simulate, EveryRepetitionGivesTheSame) {
  for (int trial = 0; trial < 4; ++trial) {
    std::mt19937 random(100 + trial);
    const SmallGpt given = Draw(&random);
    GptProgram first(given), second(given);
    const Session sessions[] = {first.MakeTrain(), second.MakeTrain()};
    for (const Machine& machine : {Host(2), Gpus(2), Gpus(8)}) {
      std::set<std::string> texts;
      std::set<double> seconds;
      for (int repetition = 0; repetition < 3; ++repetition) {
        const Simulated simulated = Simulate(sessions[repetition % 2], machine);
        texts.insert(simulated.Text(64, "tokens"));
        seconds.insert(simulated.seconds);
        EXPECT_GT(simulated.seconds, 0);
        for (const SimulatedStage& s : simulated.stages)
          EXPECT_NEAR(s.compute + s.communication + s.bubble, simulated.seconds, 1e-9 * simulated.seconds);
      }
      EXPECT_EQ(texts.size(), 1u) << given.str() << "\n" << *texts.begin() << *texts.rbegin();
      EXPECT_EQ(seconds.size(), 1u);
    }
  }
}

// Where ranks of a stage do the same, one of them tells the time of all; also where groups share a line.
TEST(Simulate, OneRankOfAStageActsForTheOthers) {
  for (int trial = 0; trial < 24; ++trial) {
    std::mt19937 random(200 + trial);
    const SmallGpt given = Draw(&random);
    Machine machine = Gpus(1 << (trial % 4));
    if (trial >= 12) machine.shared = {false, true};
    GptProgram program(given);
    const Session train = program.MakeTrain();
    const double whole = Simulate(train, machine).seconds;
    const double acted = Simulate(train, machine, {.most_ranks = 1}).seconds;
    EXPECT_NEAR(acted, whole, 1e-6 * whole) << "seed " << 200 + trial << ": " << given.str();
  }
}

// A trace has every kernel; without one, kernels that nothing comes between are simulated as one.
TEST(Simulate, ATraceChangesNoTime) {
  const std::string file = testing::TempDir() + "kernels.json";
  for (int trial = 0; trial < 12; ++trial) {
    std::mt19937 random(300 + trial);
    const SmallGpt given = Draw(&random);
    GptProgram program(given);
    const Session train = program.MakeTrain();
    for (const Machine& machine : {Host(2), Gpus(2)}) {
      const Simulated with = Simulate(train, machine, {.trace_file = file});
      const Simulated without = Simulate(train, machine);
      SCOPED_TRACE(Cat("seed ", 300 + trial, ": ", given.str()));
      EXPECT_EQ(with.seconds, without.seconds);
      EXPECT_EQ(with.first_seconds, without.first_seconds);
      EXPECT_EQ(with.Text(64, "tokens"), without.Text(64, "tokens"));
    }
  }
}

// Where the second step takes as long as the first, the third is taken to do so, too; else it is simulated.
TEST(Simulate, TwoStepsOfManyActsTellOfAll) {
  Machine machine = Gpus(2);
  machine.topology.links = {{.devices = 2, .latency = 1e-5, .bandwidth = 1e9},
                            {.devices = 0, .latency = 1e-4, .bandwidth = 1e7}};
  machine.topology.memory_bandwidth = 1e10;
  machine.flops = 1e10;
  int alike = 0;
  for (int seed = 700; seed < 720; ++seed) {  // 714: the third step is a little shorter than the second
    std::mt19937 random(seed);
    const SmallGpt given = Draw(&random);
    GptProgram program(given);
    const Session train = program.MakeTrain();
    const Simulated few = Simulate(train, machine, {.many_acts = 0});
    const Simulated all = Simulate(train, machine);
    SCOPED_TRACE(Cat("seed ", seed, ": ", given.str()));
    if (few.seconds == few.first_seconds) {
      ++alike;
      EXPECT_NEAR(few.seconds, all.seconds, 1e-3 * all.seconds);
    } else {
      EXPECT_EQ(few.seconds, all.seconds);
    }
    for (const SimulatedStage& stage : few.stages)
      EXPECT_NEAR(stage.compute + stage.communication + stage.bubble, few.seconds, 1e-9 * few.seconds);
  }
  EXPECT_GT(alike, 0);
}

// The same where groups beside one another share a link: of a node, or of two. Ranks of one stage are then in
// like company, which three stages in nodes of two are not. Of two nodes the company comes and goes at other
// moments: one rank alone is off by up to 0.8 %.
TEST(Simulate, OneRankActsForTheOthersOnSharedLinks) {
  int shared = 0;
  for (int trial = 0; trial < 36; ++trial) {
    std::mt19937 random(300 + trial);
    const SmallGpt given = Draw(&random);
    if (given.mesh.find("pp=3") != std::string::npos) continue;
    Machine machine = Gpus(1 << (trial % 3));
    machine.topology.links.insert(machine.topology.links.begin(), machine.topology.links[0]);
    machine.topology.links[1].devices *= 2;
    for (size_t level : {1, 2}) machine.topology.links[level].bandwidth = 4e8 / static_cast<double>(level);
    GptProgram program(given);
    const Session train = program.MakeTrain();
    const auto whole = [&] { return Simulate(train, machine).seconds; };
    const double apart = whole();
    for (int level : {1, 2}) {
      machine.shared = {false, level == 1, level == 2};
      const double acted = Simulate(train, machine, {.most_ranks = 1}).seconds, all = whole();
      EXPECT_NEAR(acted, all, (level == 1 ? 1e-6 : 1e-2) * all)
          << "seed " << 300 + trial << ", level " << level << ": " << given.str();
      shared += all > 1.001 * apart;
    }
  }
  EXPECT_GT(shared, 5);  // cases in which it matters
}

// --- Topology files ---

std::string WithTopology(const std::string& text) {
  const std::string path = testing::TempDir() + "topology.txt";
  std::ofstream(path) << text;
  return path;
}

const char* const kGood =
    "device X  # a comment\n"
    "memory_bytes 8e9\n"
    "\n"
    "memory_bandwidth 1e12\n"
    "flops_fp32 1e13\n"
    "flops_16bit 1e14\n"
    "level node devices 4 latency 1e-6 bandwidth 1e11\n"
    "level rack devices 8 latency 1e-5 bandwidth 1e10 shared\n";

// Each fact of a machine, a hundred thousand times worse again and again: a step takes longer, until it is
// longer than what can be simulated.
TEST(Simulate, ASlowerMachineTakesLongerOrIsRefused) {
  for (int trial = 0; trial < 3; ++trial) {
    std::mt19937 random(trial);
    GptProgram program(Draw(&random));
    const Session train = program.MakeTrain();
    Machine machine = Gpus(1 + trial % 3);
    machine.threads = trial % 2;
    const std::vector<std::pair<std::string, std::function<void(Machine*, double)>>> facts = {
        {"flops", [](Machine* m, double worse) { m->flops = m->narrow_flops = 1e12 / worse; }},
        {"memory", [](Machine* m, double worse) { m->topology.memory_bandwidth = 1e11 / worse; }},
        {"overhead", [](Machine* m, double worse) { m->overhead = 1e-6 * worse; }},
        {"extent", [](Machine* m, double worse) { m->efficiency.half_extent = worse; }},
        {"bandwidth",
         [](Machine* m, double worse) {
           for (Topology::Link& link : m->topology.links) link.bandwidth = 1e10 / worse;
         }},
        {"latency", [](Machine* m, double worse) {
           for (Topology::Link& link : m->topology.links) link.latency = 1e-6 * worse;
         }}};
    for (const auto& [fact, make_worse] : facts) {
      double before = 0;
      bool refused = false;
      for (int zeros = 0; zeros <= 30; zeros += 5) {
        Machine worse = machine;
        make_worse(&worse, std::pow(10, zeros));
        double seconds = 0;
        const std::string error = ErrorOf([&] { seconds = Simulate(train, worse).seconds; });
        EXPECT_TRUE(error.empty() || error.find("more than the 26 days") != error.npos) << error;
        EXPECT_FALSE(refused && error.empty()) << "seed " << trial << ", " << fact << " 1e" << zeros;
        refused = !error.empty();
        if (refused) continue;
        EXPECT_GE(seconds, before * (1 - 1e-6)) << "seed " << trial << ", " << fact << " 1e" << zeros;
        before = seconds;
      }
      EXPECT_TRUE(refused || fact == "bandwidth" || fact == "latency") << fact;  // of several devices alone
    }
  }
}

TEST(Topology, IsRead) {
  const Machine machine = ReadTopology(WithTopology(kGood));
  EXPECT_EQ(machine.name, "X");
  EXPECT_EQ(machine.memory_bytes, 8e9);
  EXPECT_EQ(machine.narrow_flops, 1e14);
  EXPECT_EQ(machine.overhead, 0);
  ASSERT_EQ(machine.topology.links.size(), 2u);
  EXPECT_EQ(machine.topology.links[1].devices, 8);
  EXPECT_EQ(machine.topology.links[1].bandwidth, 1e10);
  EXPECT_FALSE(machine.shared[0]);
  EXPECT_TRUE(machine.shared[1]);
}

// A program may have a locale with decimal commas and grouped thousands.
TEST(Topology, IsReadAndWrittenInAnyLocale) {
  struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string text = Cat(kGood, "overhead 1.5e-6\nproduct_efficiency 0.75\nthreads 1024\n");
  const Machine before = ReadTopology(WithTopology(text));
  const std::locale usual = std::locale::global(std::locale(std::locale::classic(), new Commas));
  std::string written;
  const std::string error = ErrorOf([&] { written = TopologyText(ReadTopology(WithTopology(text))); });
  std::locale::global(usual);
  EXPECT_EQ(error, "");
  EXPECT_EQ(written, TopologyText(before));
  EXPECT_EQ(before.overhead, 1.5e-6);
  EXPECT_EQ(before.threads, 1024);
}

// As other systems write a text: a mark at its beginning, other ends of lines, none behind the last.
TEST(Topology, IsReadAsOtherSystemsWriteIt) {
  std::string lines, given = kGood;
  for (char c : given) lines += c == '\n' ? "\r\n" : std::string(1, c);
  for (const std::string& text :
       {"\xEF\xBB\xBF" + given, lines, "\xEF\xBB\xBF" + lines, given.substr(0, given.size() - 1)})
    EXPECT_EQ(TopologyText(ReadTopology(WithTopology(text))),
              TopologyText(ReadTopology(WithTopology(kGood))));
  EXPECT_NE(
      ErrorOf([] { ReadTopology(WithTopology(std::string("\xFE\xFF\0d", 4))); }).find("it is in UTF-16"),
      std::string::npos);
}

TEST(Topology, TheProjectsOwnAreRead) {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(OFL_SOURCE_DIR "/examples/topologies")) {
    if (file.path().extension() != ".txt") continue;
    const Machine machine = ReadTopology(file.path());
    EXPECT_EQ(machine.topology.links[0].devices, file.path().stem() == "v100_pcie" ? 4 : 8) << file.path();
    EXPECT_EQ(machine.topology.links.back().devices, 0) << file.path();
    for (const MeasuredCollective& c : machine.collectives) {
      EXPECT_EQ(c.per_unit, std::min(c.per_unit, machine.topology.links[0].devices)) << file.path();
      for (size_t i = 0; i < c.points.size(); ++i) EXPECT_GT(c.points[i].second, 1e-6) << file.path();
    }
    ++files;
  }
  EXPECT_EQ(files, 6);
}

// Given back where it was measured, between two measurements where it was not, at their rate beyond.
TEST(Topology, CollectivesTakeWhatWasMeasured) {
  const Machine machine = ReadTopology(
      WithTopology(Cat(kGood, "collective all_reduce members 4 per_unit 2 8:3e-6 1e3:5e-6 3e3:9e-6\n")));
  ASSERT_EQ(machine.collectives.size(), 1u);
  const MeasuredCollective& c = machine.collectives[0];
  EXPECT_EQ(c.primitive, Primitive::kAllReduce);
  EXPECT_EQ(c.members, 4);
  EXPECT_EQ(c.per_unit, 2);
  EXPECT_DOUBLE_EQ(c.SecondsOf(0), 3e-6);
  EXPECT_DOUBLE_EQ(c.SecondsOf(8), 3e-6);
  EXPECT_DOUBLE_EQ(c.SecondsOf(1e3), 5e-6);
  EXPECT_GT(c.SecondsOf(2e3), 6e-6);
  EXPECT_LT(c.SecondsOf(2e3), 8e-6);
  EXPECT_DOUBLE_EQ(c.SecondsOf(3e3), 9e-6);
  EXPECT_DOUBLE_EQ(c.SecondsOf(5e3), 13e-6);
  // From no bytes at all there is no logarithm.
  EXPECT_DOUBLE_EQ((MeasuredCollective{.points = {{0, 2e-6}, {1e3, 4e-6}, {2e3, 8e-6}}}.SecondsOf(500)),
                   3e-6);
}

// For any measurements the points are met, between two of them time goes one way only, and curves of one
// power of the bytes are found exactly.
TEST(Topology, CollectivesBendBetweenMeasurements) {
  for (int trial = 0; trial < 200; ++trial) {
    std::mt19937 random(trial);
    const auto uniform = [&] { return static_cast<double>(random() % 1000) / 1000; };
    MeasuredCollective measured, power;
    const double exponent = 2 * uniform() - 0.5;
    double bytes = 1 + 1e4 * uniform();
    for (int i = 2 + static_cast<int>(random() % 8); i > 0; --i) {
      measured.points.push_back({bytes, 1e-5 * (1 + 100 * uniform())});
      power.points.push_back({bytes, 1e-2 * std::pow(bytes / 1e4, exponent)});
      bytes *= 1.1 + 8 * uniform();
    }
    for (size_t i = 0; i + 1 < measured.points.size(); ++i) {
      const auto [low, before] = measured.points[i];
      const auto [high, after] = measured.points[i + 1];
      EXPECT_DOUBLE_EQ(measured.SecondsOf(low), before);
      EXPECT_DOUBLE_EQ(measured.SecondsOf(high), after);
      double last = before;
      for (int part = 1; part < 40; ++part) {
        const double at = low * std::pow(high / low, part / 40.0), seconds = measured.SecondsOf(at);
        EXPECT_GE((seconds - last) * (after - before), 0) << "seed " << trial << ", " << at << " bytes";
        EXPECT_LE((seconds - after) * (after - before), 0) << "seed " << trial << ", " << at << " bytes";
        last = seconds;
        const double exact = 1e-2 * std::pow(at / 1e4, exponent);
        EXPECT_NEAR(power.SecondsOf(at), exact, 1e-9 * exact + 1e-12);
      }
    }
  }
}

// Where kernels take no time and each collective one that was measured, a step takes a whole number of these.
TEST(Simulate, TakesTheTimeOfMeasuredCollectives) {
  for (const char* mesh : {"cpu:tp=2", "cpu:dp=2", "cpu:tp=4", "cpu:dp=2,tp=2"}) {
    SmallGpt given;
    given.mesh = mesh;
    GptProgram program(given);
    Session session = program.MakeTrain();
    std::vector<double> seconds;
    for (double each : {1e3, 2e3}) {
      Machine machine = Gpus(8);
      for (Primitive p : {Primitive::kAllReduce, Primitive::kReduceScatter, Primitive::kAllGather})
        for (int members : {2, 4})
          machine.collectives.push_back({p, members, members, {{0, each}, {1, each}}});
      seconds.push_back(Simulate(session, machine).seconds);
      EXPECT_GT(seconds.back(), 0.9 * each) << mesh;
      EXPECT_NEAR(seconds.back() / each, std::round(seconds.back() / each), 1e-3) << mesh;
    }
    EXPECT_NEAR(seconds[1], 2 * seconds[0], 1) << mesh;
  }
}

// Hosts of two devices, racks of two hosts, two racks; kernels and memory take next to nothing.
const char* const kThreeLevels =
    "memory_bandwidth 1e25\n"
    "flops_fp32 1e28\n"
    "flops_16bit 1e28\n"
    "level host devices 2 latency 1e-8 bandwidth 1e11\n"
    "level rack devices 4 latency 2e-8 bandwidth 1e10\n"
    "level hall devices 0 latency 3e-8 bandwidth 2e8";

// A step's collectives alone, on one stream: what each algorithm takes there is what its cost says, and what
// the plan names is what costs say is cheapest.
TEST(Simulate, CollectivesTakeWhatTheirAlgorithmCosts) {
  for (const char* shared : {"\n", " shared\n"}) {
    std::map<std::string, double> seconds;
    for (const std::string wanted : {"", "direct", "two_trips", "ring", "tree", "two_level", "star"}) {
      SmallGpt given;
      given.mesh = "cpu:dp=8";
      given.width = 128;
      given.parallel.batch = "dp";
      given.model_options.topology = WithTopology(Cat(kThreeLevels, shared));
      given.model_options.collectives = wanted;
      GptProgram program(given);
      const Session session = program.MakeTrain();
      const Machine machine = ReadTopology(given.model_options.topology);
      const Compiled& compiled = session.impl()->compiled;
      CollectiveCosts costs(compiled.graph, compiled.options.machine.nodes,
                            {machine.topology, machine.shared});
      double expected = 0;
      int large = 0;
      for (int n : compiled.graph.Order()) {
        if (!IsCollective(compiled.graph.node(n))) continue;
        const AlgorithmCost* named = costs.Named(n);
        ASSERT_NE(named, nullptr) << compiled.graph.Describe(n);
        const double bytes = costs.BytesOf(n);
        expected += named->seconds(bytes);
        if (wanted.empty()) {
          for (const AlgorithmCost& other : costs.Of(n))
            EXPECT_LE(named->seconds(bytes), other.seconds(bytes) * (1 + 1e-9));
          if (bytes < 1e5 || compiled.graph.node(n).primitive != Primitive::kAllReduce) continue;
          // Between racks, which are slowest, goes what is summed in a rack.
          EXPECT_EQ(named->algorithm, CollectiveAlgorithm::kTwoLevel) << compiled.graph.Describe(n);
          EXPECT_EQ(named->unit, 4);
          ++large;
        } else if (const auto at =
                       compiled.options.decided.algorithms->find(compiled.graph.node(n).primitive);
                   at != compiled.options.decided.algorithms->end()) {
          EXPECT_EQ(Name(named->algorithm), wanted);
        }
      }
      if (wanted.empty()) {
        EXPECT_GT(large, 5);
      }
      seconds[wanted] = Simulate(session, machine).seconds;
      EXPECT_NEAR(seconds[wanted], expected, 1e-3 * expected) << wanted << shared;
      EXPECT_LE(seconds[""], seconds[wanted] * 1.001) << wanted << shared;
    }
    // n = 8 devices, m = 2 racks of k = 4: by two levels a rack sends 2 (m - 1) / m of the tensor, over the
    // links of all its devices if each has one; in two trips each device sends half of it or, on one line,
    // all of them do; round about 2 (n - 1) / n of it leave a rack, over one device's link.
    const double devices = shared[0] == '\n' ? 4 : 1, rest = 0.02;
    EXPECT_NEAR(seconds["two_trips"] / seconds["two_level"], 4, 4 * rest) << shared;
    EXPECT_NEAR(seconds["ring"] / seconds["two_level"], 2 * 7.0 / 8 * devices, 2 * rest * devices) << shared;
  }
}

TEST(Topology, SaysWhatIsWrong) {
  const auto replaced = [](const std::string& what, const std::string& with) {
    std::string text = kGood;
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), with);
  };
  const auto with = [](const std::string& line) { return Cat(kGood, line, "\n"); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {replaced("memory_bytes", "memory_size"), ":2: 'memory_size' is not known here"},
      {replaced("1e10 shared", "0 shared"), ":8: bandwidth of level rack is 0, must be at least 1e-12"},
      {replaced("memory_bandwidth 1e12", "memory_bandwidth 0"), ":4: memory_bandwidth is 0"},
      {replaced("memory_bandwidth 1e12", "memory_bandwidth fast"), "is 'fast', which is no number"},
      {replaced("memory_bandwidth 1e12", "memory_bandwidth"), ":4: memory_bandwidth has no number"},
      {replaced("memory_bandwidth 1e12\n", ""), "does not say memory_bandwidth"},
      {replaced("devices 8", "devices 6"),
       ":8: level rack joins 6 devices, which must be several times the 4"},
      {replaced("devices 4", "devices 0"), ":8: level rack stands outside of one that joins all devices"},
      {replaced("devices 4", "devices 4.5"), "which is no whole number"},
      {replaced("shared", "slow"), ":8: 'slow' is not known of a level"},
      {replaced("latency 1e-6 ", ""), ":7: level node needs devices, latency and bandwidth"},
      {replaced("latency 1e-6", "latency -1"), "latency of level node is -1, must be at least 0"},
      {replaced("flops_fp32", "flops_16bit"), ":6: flops_16bit is given a second time"},
      {replaced("8e9", "8e9 bytes"), ":2: 'bytes' stands behind memory_bytes"},
      {"device X\nmemory_bandwidth 1\nflops_fp32 1\nflops_16bit 1\n", "has no level"},
      {"", "does not say memory_bandwidth"},
      {with("flops_tf32 0"), ":9: flops_tf32 is 0, must be at least 1e-12"},
      {with("flops_tf32 1e14\nthreads 4"),
       "describes a host of 4 cores, which do not round to TF32; leave out flops_tf32"},
      {replaced("8e9", "0.5"), ":2: memory_bytes is 0.5, must be at least 1 and at most 1e+18"},
      {replaced("8e9", "1e19"), ":2: memory_bytes is 1e19, must be at least 1 and at most 1e+18"},
      {replaced("flops_fp32 1", "flops_fp32 1e-30 # 1"),
       "is 1e-30, must be at least 1e-12 and at most 1e+30"},
      {with("collective gossip members 2 per_unit 2 1:1 2:2"),
       ":9: collective 'gossip' is not known; there are"},
      {with("collective"), ":9: collective '' is not known"},
      {with("collective send per_unit 2"), ":9: collective send lacks members"},
      {with("collective send members 2 1:1 2:2"), ":9: collective send lacks per_unit"},
      {with("collective send members 3 per_unit 2 1:1 2:2"), "has 3 members, which must be at least 2 and"},
      {with("collective send members 1 per_unit 1 1:1 2:2"), "has 1 members"},
      {with("collective send members 2 per_unit 2 1:1"), "needs at least two BYTES:SECONDS"},
      {with("collective send members 2 per_unit 2 1:1 1:2"), "has 1 bytes behind 1; they must rise"},
      {with("collective send members 2 per_unit 2 1:1 2=2"), "'2=2' of collective send is not BYTES:SECONDS"},
      {with("collective send members 2 per_unit 2 1:1 2:"), "seconds of collective send has no number"},
      {with("collective send members 2 per_unit 2 1:1 2:0"),
       "seconds of collective send is 0, must be at least 1e-12"},
      {with("collective send members 2 per_unit 2 1:1 -2:1"), "bytes of collective send is -2"},
      {with("collective send members 2 per_unit 2 1:1 2:2\ncollective send members 2 per_unit 2 1:1 2:2"),
       ":10: collective send of 2 members, 2 in a unit, is given a second time"}};
  for (const auto& [text, expected] : cases) {
    const std::string error = ErrorOf([&, &text = text] { ReadTopology(WithTopology(text)); });
    EXPECT_NE(error.find(expected), std::string::npos) << "'" << error << "' lacks '" << expected << "'";
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
  EXPECT_NE(ErrorOf([] { ReadTopology("/nowhere/topology.txt"); }).find("/nowhere/topology.txt"),
            std::string::npos);
}

// Times of an operator that nobody has are a mistake in the file; those of the user's own are none.
TEST(Topology, KernelsAreOfOperators) {
  const auto model = [](const std::string& kernel) {
    const std::string file = WithTopology(Cat(kGood, "kernel ", kernel, " f32 call 0 flop 1e-15 byte 0\n"));
    return ErrorOf([&] { Model(Mesh::Parse("cpu:dp=1"), {.topology = file}); });
  };
  for (const char* known :
       {"product", "attention_grad", "adamw", "collective", "linear_grad_gelu", "cast", "accumulate",
        "local_slice", "time_slice", "time_gather", "keep", "fused", "to_host"})
    EXPECT_EQ(model(known), "");
  const std::string error = model("produkt");
  EXPECT_NE(error.find("kernel produkt is not known: there is no operator of that name"), std::string::npos)
      << error;
}

// Without a simulation, too: what is estimated, and which machine is refused.
TEST(Topology, PlansAreMadeForItsMachines) {
  const auto estimated = [](const std::string& bandwidth) {
    SmallGpt given;
    given.mesh = "cpu:tp=2,dp=2";
    std::string text = kGood;
    text.replace(text.find("bandwidth 1e11"), 14, "bandwidth " + bandwidth);
    given.model_options.topology = WithTopology(text);
    GptProgram program(given);
    const Session session = program.MakeTrain();
    return session.impl()->compiled.logical.makespan;
  };
  EXPECT_GT(estimated("1e5"), 10 * estimated("1e11"));
  ModelOptions options;
  options.topology = WithTopology(kGood);
  EXPECT_NE(
      ErrorOf([&] { Model(Mesh::Parse("cpu:dp=16"), options); }).find("joins 8 devices but the mesh has 16"),
      std::string::npos);
  options.collectives = "all_gather:two_trips";
  EXPECT_EQ(ErrorOf([&] { Model(Mesh::Parse("cpu:dp=8"), options); }),
            "ModelOptions::collectives: all_gather cannot be done by two_trips");
  options.collectives = "ring";
  EXPECT_EQ(ErrorOf([&] { Model(Mesh::Parse("cuda:dp=8"), options); }),
            "ModelOptions::collectives is ring, but on mesh cuda:dp=8 NCCL chooses how collectives are done");
}

TEST(Simulate, RefusesAMeshWithMoreDevicesThanTheTopology) {
  SmallGpt given;
  given.mesh = "cpu:dp=4,tp=4";
  GptProgram program(given);
  const std::string error =
      ErrorOf([&] { Simulate(program.MakeTrain(), ReadTopology(WithTopology(kGood))); });
  EXPECT_NE(error.find("joins 8 devices but the mesh has 16"), std::string::npos) << error;
}

}  // namespace
}  // namespace oneflow_like
