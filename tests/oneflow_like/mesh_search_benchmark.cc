// The search for a plan beside the clock: on eight devices of two emulated hosts, joined by a slow line, the
// runtime executes every factorisation of the mesh on every order of its axes, with all numbers of
// micro-batches, and the plan that SearchPlans chooses without executing any is compared with the fastest.
// Kernels are replaced by waits of table time, so that any machine is fast enough for eight devices; messages
// are the real ones, over the hosts' line (tests/hosts.h, needs what that needs).
//   build/tests/mesh_search_benchmark [--first=0] [--machines=2]
#include <gflags/gflags.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <set>

#include "actor/net/talk/job.h"
#include "compiler/cost/kernel_cost.h"
#include "examples/gpt_model.h"
#include "oneflow_like/launcher.h"
#include "oneflow_like/planner/trial_pool.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/simulate.h"
#include "tests/processes.h"

DEFINE_int32(first, 0, "The first machine that is drawn");
DEFINE_int32(machines, 2, "How many are drawn");
DEFINE_bool(all, false, "Print every plan");
DEFINE_string(plans, "", "For the processes of a job: the file of plans");
DEFINE_string(machine, "", "Likewise: the topology file");
DEFINE_string(times, "", "Likewise: the file for seconds of a step, a plan a line");

namespace oneflow_like {

using namespace examples;
namespace {

constexpr int kDevices = 8, kHosts = 2;
constexpr int64_t kBatch = 8;
constexpr int kSteps = 7, kStepsOfSlow = 3;
constexpr double kSlow = 2;  // times the fastest simulated: too slow to be the best, whatever the clock says

const GptConfig kModel = {.layers = 8, .width = 64, .heads = 8, .context = 32, .vocabulary = 64};

// The line and the devices of drawn machine number `seed`.
struct Drawn {
  explicit Drawn(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto between = [&](double low, double high) {
      return low * std::pow(high / low, std::uniform_real_distribution<double>()(random));
    };
    line.mbit = between(20, 120);
    line.delay_ms = between(0.5, 3);
    zero = static_cast<int>(random() % 2);
    machine.name = "waiting";
    machine.threads = kDevices;
    machine.flops = machine.narrow_flops = between(3e8, 2e9);
    machine.topology.memory_bandwidth = machine.flops * 2;
    machine.overhead = between(1e-5, 1e-4);
    machine.message = 1e-4;
    // Of a frame of 1,500 bytes 1,448 are the program's.
    machine.topology.links = {
        {.devices = kDevices / kHosts, .latency = 1e-4, .bandwidth = 1e9},
        {.devices = 0, .latency = (line.delay_ms + 0.2) / 1e3, .bandwidth = line.mbit / 8 * 1e6 * 0.95}};
    machine.shared = {false, true};
  }

  Line line;
  int zero = 0;
  Machine machine;
};

Session Build(const PlanCandidate& candidate, ModelOptions options) {
  TrainOptions train;
  candidate.Set(&options, &train);
  options.zero.small = 0;
  train.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
  Model model(candidate.mesh, options);
  const Annotation cut = {{"dp", S(0)}};
  Tensor tokens = model.Input("tokens", {kBatch, kModel.context}, DType::kInt32, cut);
  Tensor targets = model.Input("targets", {kBatch, kModel.context}, DType::kInt32, cut);
  return Train(GptLoss(model.scope(), tokens, targets, kModel), AdamW{.lr = 1e-3}, train);
}

// --- The processes of a job ---

// Takes its time and touches nothing. A sleep that takes too long shortens those after it.
class Wait final : public Kernel {
 public:
  explicit Wait(double seconds) : seconds_(seconds) {}
  Status Run(const KernelContext&) override {
    constexpr double kShortest = 1e-4;
    thread_local double owed = 0;
    owed += seconds_;
    if (owed < kShortest) return Status();
    const double start = Seconds();
    Sleep(owed);
    owed -= Seconds() - start;
    return Status();
  }

 private:
  const double seconds_;
};

// Kernels of the ranks of `process`, but for those that initialise variables, become waits of table time.
void LetKernelsWait(const Machine& machine, int process, Session::Impl* session) {
  std::vector<int> ranks;
  for (int r = 0; r < kDevices / kHosts; ++r) ranks.push_back(process * kDevices / kHosts + r);
  auto seconds =
      std::make_shared<std::map<std::string, double>>();  // by node; of the rank that works longest
  std::set<std::string> names;
  for (const RankPlan& made : PlansOf(session->compiled, ranks)) {
    for (const plan::Actor& actor : made.plan.actor())
      for (const plan::Kernel& kernel : actor.kernel()) {
        if (actor.has_collective() || !actor.feed().empty() || !actor.fetch().empty()) continue;
        names.insert(kernel.name());
        double& of_node = (*seconds)[kernel.node()];
        of_node = std::max(of_node, SecondsOf(machine, kernel));
      }
    for (const plan::Variable& variable : made.plan.variable()) names.insert(variable.init().name());
  }
  auto real = std::make_shared<KernelRegistry>(std::exchange(session->model->registry, {}));
  for (const std::string& name : names)
    session->model->registry.Add(name, "cpu",
                                 [real, seconds](const KernelSpec& spec) -> std::unique_ptr<Kernel> {
                                   const auto at = seconds->find(spec.node);
                                   if (at == seconds->end()) return real->Make(spec, "cpu");
                                   return std::make_unique<Wait>(at->second);
                                 });
}

// The median of steps behind the first.
double StepSeconds(Session* train, int steps) {
  const HostTensor zeros = HostTensor::Make(DType::kInt32, {kBatch, kModel.context});
  std::vector<StepResult> results;
  std::vector<double> ends, took;
  for (int step = 0; step < steps; ++step) {
    results.push_back(train->Run({{"tokens", zeros}, {"targets", zeros}}));
    if (step == 0) continue;
    results[step - 1].Wait();  // two are in flight
    ends.push_back(Seconds());
  }
  results.back().Wait();
  ends.push_back(Seconds());
  for (size_t i = 1; i < ends.size(); ++i) took.push_back(ends[i] - ends[i - 1]);
  std::sort(took.begin(), took.end());
  return took[took.size() / 2];
}

int ExecutePlans(const Launcher& launcher) {
  prctl(PR_SET_TIMERSLACK, 1);  // of the threads that sleep, which begin later
  const Machine machine = ReadTopology(FLAGS_machine);
  const PlanSearchResult plans = PlanSearchResultFromText(TextOf(FLAGS_plans));
  double fastest = plans.best.front().seconds;
  for (const PlanTrial& trial : plans.best) fastest = std::min(fastest, trial.seconds);
  ModelOptions options = launcher.model_options();
  options.topology = FLAGS_machine;
  options.threads = kDevices / kHosts;
  options.kernel_threads = 1;
  std::ofstream times;
  if (launcher.main_process()) times.open(FLAGS_times);
  for (const PlanTrial& trial : plans.best) {
    Session train = Build(trial.plan, options);
    LetKernelsWait(machine, options.job->process(), train.impl());
    times << StepSeconds(&train, trial.seconds > kSlow * fastest ? kStepsOfSlow : kSteps) << std::endl;
  }
  return 0;
}

// --- The search, and what it is compared with ---

// Axes of one device stand anywhere: plans with one key are one plan.
std::string KeyOf(const PlanCandidate& c) {
  std::string key;
  for (int a = 0; a < c.mesh.rank(); ++a)
    if (c.mesh.axis_size(a) > 1) key += Cat(c.mesh.axis_name(a), "=", c.mesh.axis_size(a), " ");
  return Cat(key, "micro_batches=", c.micro_batches);
}

std::vector<PlanTrial> AllPlans(const PlanSpace& space, const Machine& machine, const BuildPlan& build) {
  std::vector<PlanTrial> all;
  std::set<std::string> seen;
  for (const PlanCandidate& candidate : CandidatesOf(space, kModel.layers)) {
    std::vector<std::string> axes = {"dp", "pp", "tp"};  // sorted
    do {
      std::vector<std::pair<std::string, int>> extents;
      for (const std::string& axis : axes) extents.push_back({axis, candidate.extent(axis)});
      PlanTrial trial;
      trial.plan = candidate;
      trial.plan.mesh = Mesh(space.kind, extents);
      if (!seen.insert(KeyOf(trial.plan)).second) continue;
      trial.seconds = Simulate(build(trial.plan), machine).seconds;
      all.push_back(std::move(trial));
    } while (std::next_permutation(axes.begin(), axes.end()));
  }
  return all;
}

std::vector<double> Execute(const Drawn& drawn, const TestFolder& folder, const std::string& topology,
                            const std::vector<PlanTrial>& all) {
  Hosts hosts(kHosts, 1);
  hosts.SetAllLines(drawn.line);
  PlanSearchResult plans;
  plans.best = all;
  const std::string times = folder / "times";
  ProcessJob job({.program = std::string(OFL_BINARY_DIR) + "/tests/mesh_search_benchmark",
                  .flags = {"--plans=" + folder.Write("plans", ToText(plans)), "--machine=" + topology,
                            "--times=" + times, "--start_timeout=60"},
                  .processes = kHosts,
                  .output = folder / "out",
                  .hosts = &hosts});
  job.WaitUntil(Seconds() + 1200);
  std::vector<double> seconds;
  for (const std::string& line : LinesOf(TextOf(times))) seconds.push_back(std::stod(line));
  if (seconds.size() != all.size())
    Fail("only ", seconds.size(), " of ", all.size(), " plans ran\n", job.Said());
  return seconds;
}

void PrintOrder(const std::vector<PlanTrial>& all, const std::vector<double>& measured) {
  int pairs = 0, wrong = 0;
  std::vector<double> off;
  for (size_t i = 0; i < all.size(); ++i) {
    off.push_back(std::abs(all[i].seconds / measured[i] - 1));
    for (size_t j = 0; j < all.size(); ++j) {
      if (measured[i] * 1.1 >= measured[j]) continue;
      ++pairs;
      wrong += all[i].seconds >= all[j].seconds;
    }
  }
  std::sort(off.begin(), off.end());
  std::printf(
      "  simulated steps are off by %.1f %% in the median, %.1f %% at most; of %d pairs more than 10 %% "
      "apart "
      "%d are in the wrong order\n",
      100 * off[off.size() / 2], 100 * off.back(), pairs, wrong);
}

void CompareOn(int seed, const TestFolder& folder) {
  const Drawn drawn(seed);
  const std::string topology = folder.Write(Cat("machine", seed), TopologyText(drawn.machine));
  ModelOptions options;
  options.topology = topology;
  const BuildPlan build = [&](const PlanCandidate& candidate) { return Build(candidate, options); };
  PlanSpace space{.devices = kDevices, .batch = kBatch};
  space.virtual_stages = 1;
  space.schedule = PipelineSchedule::k1F1B;
  space.zero = drawn.zero;
  space.recompute = Recompute::kNone;
  space.sequence_parallel = false;
  const PlanSearchResult found = SearchPlans(space, drawn.machine, build);
  const std::vector<PlanTrial> all = AllPlans(space, drawn.machine, build);
  const std::vector<double> measured = Execute(drawn, folder, topology, all);
  size_t best = 0, chosen = all.size();
  for (size_t i = 0; i < all.size(); ++i) {
    if (measured[i] < measured[best]) best = i;
    if (KeyOf(all[i].plan) == KeyOf(found.chosen())) chosen = i;
    if (FLAGS_all)
      std::printf("    %-40s simulated %7.1f ms, measured %7.1f ms\n", KeyOf(all[i].plan).c_str(),
                  1e3 * all[i].seconds, 1e3 * measured[i]);
  }
  if (chosen == all.size()) Fail(found.chosen().str(), " was chosen, which is none of all plans");
  std::printf(
      "machine %d: a line of %.0f Mbit/s and %.1f ms, devices of %.2f GFLOP/s, --zero=%d: %zu plans, %d "
      "compiled\n",
      seed, drawn.line.mbit, drawn.line.delay_ms, drawn.machine.flops / 1e9, drawn.zero, all.size(),
      found.compiled);
  for (const auto& [what, i] : {std::pair("chosen", chosen), {"fastest", best}})
    std::printf("  %-8s %-40s simulated %7.1f ms, measured %7.1f ms\n", what, KeyOf(all[i].plan).c_str(),
                1e3 * all[i].seconds, 1e3 * measured[i]);
  std::printf("  the choice takes %.1f %% more than the fastest\n",
              100 * (measured[chosen] / measured[best] - 1));
  PrintOrder(all, measured);
  std::fflush(stdout);
}

int Main(const Launcher& launcher) {
  if (!FLAGS_plans.empty()) return ExecutePlans(launcher);
  const TestFolder folder("mesh_search_benchmark");
  for (int seed = FLAGS_first; seed < FLAGS_first + FLAGS_machines; ++seed) CompareOn(seed, folder);
  return 0;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::Launcher launcher(&argc, &argv, "Compares the plan that a search chooses with all others.");
  return launcher.Main([&] { return oneflow_like::Main(launcher); });
}
