#include "oneflow_like/calibrate.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "actor/net/talk/job.h"
#include "actor/profile.h"
#include "core/device/backend.h"
#include "core/random.h"
#include "core/system/cores.h"
#include "core/system/file_check.h"
#include "core/system/spinning.h"
#include "oneflow_like/model/limits.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/simulate.h"
#include "oneflow_like/simulate/busy_others.h"
#include "oneflow_like/simulate/calibrate_devices.h"
#include "oneflow_like/simulate/kernel_fit.h"
#include "oneflow_like/simulate/probe_model.h"

namespace oneflow_like {
namespace {

// Of waits, of which one that is disturbed is many times as long; and those that are not are of two kinds or
// more, as a core that has been idle for a while sleeps more deeply.
double MeanOfLowerThreeQuarters(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  values.resize((3 * values.size() + 3) / 4);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// --- Kernels ---

// Of the largest cache that no other core uses; 0 where the system does not tell.
double CacheBytes() { return static_cast<double>(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE))); }

// Of the models that are trained to be watched: tensors that a core's own cache holds beside others, and
// larger ones.
constexpr ProbeShape kShapes[] = {
    {4, 128, 256, 8, false}, {4, 64, 256, 4, false, 2}, {2, 32, 512, 8, false, 2},
    {16, 32, 96, 3, false},  {3, 256, 384, 6, false},   {4, 128, 128, 4, true},
    {10, 96, 320, 5, true},  {3, 64, 192, 4, true, 2},  {6, 64, 160, 5, true}};
static_assert(std::size(kShapes) == kMostModels);
// Others that use more of the cores than this make times longer than they are.
constexpr double kDisturbed = 0.1;
// Of a model in a round: steps that find the caches more or less as another model left them, and more, which
// are noted. Of small models the first step takes up to a tenth longer than the third, and the second up to a
// twentieth.
constexpr int kWarmUp = 2, kNoted = 2;
constexpr int kChained = 5;      // the same of a chain of messages
constexpr int kChainRounds = 3;  // of it in each round
// Two looks of core/system/spinning.h, which show whether a compilation made threads sleep between loops; and
// how long it may take until they spin again.
constexpr std::chrono::milliseconds kSettle{500}, kLongestSettle{4000};

// How its kernels run.
struct ProbeSetting {
  int workers = 1;         // ranks, of all processes together
  int kernel_threads = 1;  // of each
  bool tensor = false;     // tensor parallelism in place of data parallelism
};

// A rank for each core, or process: every other model by tensor parallelism, where its heads allow that.
ProbeSetting CrowdedSetting(int model, int ranks) {
  return {.workers = ranks, .tensor = model % 2 == 1 && kShapes[model].heads % ranks == 0};
}

class Probe {
 public:
  // With a job its processes share the workers.
  Probe(const ProbeShape& shape, const ProbeSetting& setting, DType dtype, bool crowded,
        const std::shared_ptr<Job>& job = nullptr)
      : setting_(setting), crowded_(crowded) {
    ModelOptions options;
    options.job = job;
    options.threads = setting.workers / (job ? job->processes() : 1);
    options.kernel_threads = setting.kernel_threads;
    model_.emplace(Mesh("cpu", {{setting.tensor ? "tp" : "dp", setting.workers}}), options);
    const Dims tokens = {shape.batch * setting.workers * shape.micro_batches, shape.context};
    const Annotation cut = setting.tensor ? Annotation{{"tp", B()}} : Annotation{{"dp", S(0)}};
    Tensor in = model_->Input("tokens", tokens, DType::kInt32, cut);
    Tensor targets = model_->Input("targets", tokens, DType::kInt32, cut);
    session_.emplace(
        Train(ProbeLoss(&*model_, in, targets, shape), AdamW{.lr = 1e-3},
              ProbeTraining(shape, dtype, setting.tensor ? "" : "dp", setting.tensor ? "tp" : "")));
    std::vector<int32_t> ids(static_cast<size_t>(tokens.elements()));
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(RandomBits(1, 0, i) % static_cast<uint64_t>(shape.vocabulary));
    HostTensor batch = HostTensor::Make(DType::kInt32, tokens);
    std::copy(ids.begin(), ids.end(), reinterpret_cast<int32_t*>(batch.data.get()));
    feeds_ = {{"tokens", batch}, {"targets", batch}};
    KnowKernels(dtype);
  }

  // Steps that are not noted (a session's first one never is), and more whose kernels are.
  void Round() {
    for (int step = 0; step < kWarmUp; ++step) WarmUp();
    for (int step = 0; step < kNoted; ++step) Step();
  }

  void WarmUp() {
    session_->Run(feeds_).Wait();
    session_->TakeProfile();
  }

  // Ends its threads and keeps what was noted.
  void Unload() {
    session_.reset();
    model_.reset();
  }

  // Of all kernels that compute, in a step.
  double seconds() const {
    double sum = 0;
    for (const auto& [label, known] : kernels_) {
      if (known.sample.name == kCollectiveWork || known.seconds.empty()) continue;
      std::vector<double> seconds;
      for (const auto& [step, each] : known.seconds) seconds.push_back(each);
      sum += Median(std::move(seconds));
    }
    return sum;
  }

  // Medians over the faster half of the steps: the same work takes longer when others disturb it, on this
  // host or beside it.
  void AddSamples(std::vector<KernelSample>* samples) const {
    std::vector<size_t> steps(walls_.size());
    std::iota(steps.begin(), steps.end(), size_t{0});
    std::sort(steps.begin(), steps.end(), [this](size_t a, size_t b) { return walls_[a] < walls_[b]; });
    steps.resize((steps.size() + 1) / 2);
    for (const auto& [label, known] : kernels_) {
      std::vector<double> seconds;
      for (size_t step : steps)
        if (const auto at = known.seconds.find(step); at != known.seconds.end())
          seconds.push_back(at->second);
      if (seconds.empty()) continue;
      samples->push_back(known.sample);
      samples->back().seconds = Median(std::move(seconds));
    }
  }

 private:
  void Step() {
    session_->Run(feeds_).Wait();
    const StepProfile profile = session_->TakeProfile();
    for (const KernelProfile& kernel : profile.hottest)
      if (const auto at = kernels_.find(kernel.label); at != kernels_.end() && kernel.runs > 0)
        at->second.seconds[walls_.size()] = kernel.seconds / static_cast<double>(kernel.runs);
    walls_.push_back(profile.wall);
  }

  struct Known {
    KernelSample sample;
    std::map<size_t, double> seconds;  // of an act, by noted step
  };

  // What each kernel of the plan computes and touches, by the label that profiles give it.
  void KnowKernels(DType dtype) {
    Machine here;
    here.cache_bytes = CacheBytes();
    const double near_bytes = here.NearBytes(setting_.kernel_threads);
    std::vector<int> ranks;
    for (int r = 0; r < setting_.workers; ++r) ranks.push_back(r);
    for (const RankPlan& made : PlansOf(session_->impl()->compiled, ranks, 1))
      for (const plan::Actor& actor : made.plan.actor())
        for (const plan::Kernel& kernel : actor.kernel()) {
          if (!actor.feed().empty() || !actor.fetch().empty()) continue;
          HostWork of;
          if (actor.has_collective()) {
            if (dtype != DType::kFloat32 || kernel.in_size() + kernel.out_size() == 0) continue;
            const plan::Operand& operand = kernel.in_size() > 0 ? kernel.in(0) : kernel.out(0);
            of = HostWorkOf(actor.collective(), SizeOf(static_cast<DType>(operand.dtype())));
            if (of.work.bytes == 0) continue;
          } else {
            of = HostWorkOf(kernel, model_->impl()->registry, near_bytes);
          }
          kernels_.try_emplace(KernelLabel(actor, kernel),
                               Known{{of, setting_.kernel_threads, crowded_}, {}});
        }
  }

  const ProbeSetting setting_;
  const bool crowded_;
  std::optional<Model> model_;
  std::optional<Session> session_;
  Feeds feeds_;
  std::map<std::string, Known> kernels_;
  std::vector<double> walls_;  // by noted step
};

// --- Messages ---

// A row of products whose sums need all ranks of a mesh axis, one after the other.
class Chain {
 public:
  static constexpr int kLinks = 32, kMessagesOfLink = 2;  // one after the other
  static constexpr int64_t kRows = 512, kWidth = 256;

  // On so many threads, or one of each process of a job.
  Chain(int ranks, int threads, const std::shared_ptr<Job>& job) {
    ModelOptions options;
    options.threads = job ? 1 : threads;
    options.kernel_threads = 1;
    options.job = job;
    model_.emplace(Mesh("cpu", {{"tp", ranks}}), options);
    Tensor x = model_->Input("x", {kRows, kWidth}, DType::kFloat32, {{"tp", B()}});
    Tensor weight = model_->scope().Weight("weight", {kWidth, kWidth}, Normal(0.01), {{"tp", S(0)}});
    for (int i = 0; i < kLinks; ++i)
      x = annotate(annotate(matmul(annotate(x, {{"tp", S(1)}}), weight), {{"tp", P()}}), {{"tp", B()}});
    session_.emplace(Evaluate({{"y", mean(x)}}));
    feeds_ = {{"x", HostTensor::Make(DType::kFloat32, {kRows, kWidth})}};
  }

  void Round() {
    for (int step = 0; step < kChained; ++step) Step();
  }
  // Seconds of a message: of a link's, the part in which nobody computed or moved anything.
  double message() const {
    return Rounded(std::max(0.0, MeanOfLowerThreeQuarters(idle_)) / kLinks / kMessagesOfLink);
  }

 private:
  void Step() {
    session_->Run(feeds_).Wait();
    const StepProfile profile = session_->TakeProfile();
    double work = 0;
    for (const auto& [kind, seconds] : profile.kernels) work += seconds;
    if (profile.steps == 0) return;
    idle_.push_back(profile.wall - work / profile.threads);
  }

  std::optional<Model> model_;
  std::optional<Session> session_;
  Feeds feeds_;
  std::vector<double> idle_;
};

double MemoryBytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
}

// The highest rate that a product reached on one thread.
double PeakOf(const std::vector<KernelSample>& samples, DType dtype) {
  double fastest = 0;
  for (const KernelSample& s : samples)
    if (s.name == "product" && s.dtype == dtype && s.threads == 1 && !s.crowded)
      fastest = std::max(fastest, s.work.flops / s.seconds);
  return fastest;
}

// What a kernel that reuses nothing reached on one thread, on average.
double BandwidthOf(const std::vector<KernelSample>& samples) {
  std::vector<double> rates;
  for (const KernelSample& s : samples)
    if ((s.name == "add_n" || s.name == "adamw") && s.work.bytes > 1e5 && s.threads == 1 && !s.crowded)
      rates.push_back(s.work.bytes / s.seconds);
  return Median(std::move(rates));
}

// What a device sends in a second where threads move what there is: of each byte of a sum of two that leaves
// a device, its thread reads and writes two.
double LinkBandwidth(const Machine& machine) {
  for (const MeasuredKernel& k : machine.kernels)
    if (k.name == kCollectiveWork && k.each.bytes > 0) return Rounded(0.5 / k.each.bytes);
  return machine.topology.memory_bandwidth;
}

void Tell(const CalibrateOptions& options, const std::string& what) {
  if (options.progress) options.progress(what);
}

// Messages between processes, and how much longer kernels take there. Process 0 measures threads, while the
// others wait, asleep.
void MeasureProcesses(const CalibrateOptions& options, Machine* machine) {
  const int processes = options.job->processes();
  const bool first = options.job->process() == 0;
  std::vector<std::unique_ptr<Probe>> threads, apart;
  for (int model = 0; model < std::min(options.models, 2); ++model) {
    const ProbeSetting setting = CrowdedSetting(model, processes);
    if (first) threads.push_back(std::make_unique<Probe>(kShapes[model], setting, DType::kFloat32, true));
    apart.push_back(std::make_unique<Probe>(kShapes[model], setting, DType::kFloat32, true, options.job));
  }
  Chain chain(processes, 1, options.job);
  for (int round = 0; round < options.rounds; ++round) {
    for (const auto& probe : threads) probe->Round();
    options.job->AllGather("calibration", "");
    for (const auto& probe : apart) probe->Round();
    for (int k = 0; k < kChainRounds; ++k) chain.Round();
  }
  machine->process_message = chain.message();
  double here = 0, there = 0;
  for (const auto& probe : threads) here += probe->seconds();
  for (const auto& probe : apart) there += probe->seconds();
  if (here > 0) machine->process_work = Rounded(std::max(1.0, there / here));
}

// Warns if others used much of the cores even in the quieter half of the time.
class Neighbours {
 public:
  void EndRound() { shares_.push_back(others_.Take()); }
  ~Neighbours() {
    if (shares_.empty()) return;
    std::sort(shares_.begin(), shares_.end());
    if (const double share = shares_[(shares_.size() + 1) / 2 - 1]; share > kDisturbed)
      LOG(WARNING) << "calibration: others used " << std::lround(100 * share)
                   << " % of the processor even in its quieter half; calibrate again when it is idle";
  }

 private:
  BusyOthers others_;
  std::vector<double> shares_;
};

// One rank whose kernels use 2, 4, ... or all cores. One model at a time is loaded, as in a training: while a
// process has more threads for kernels than cores, or found cores busy lately, such threads sleep between
// kernels, and each kernel has to wake them (core/system/spinning.h). All are compiled before, and each first
// runs until what made it no longer counts as sharing.
void MeasureTeams(const CalibrateOptions& options, int cores, std::vector<KernelSample>* samples) {
  std::vector<int> teams;
  for (int threads = 2; threads < cores; threads *= 2) teams.push_back(threads);
  if (cores > 1) teams.push_back(cores);
  Neighbours neighbours;
  for (int threads : teams) {
    std::vector<std::unique_ptr<Probe>> probes;
    for (const ProbeShape& shape : std::span(kShapes).first(options.models))
      for (DType dtype : {DType::kFloat32, DType::kBFloat16})
        probes.push_back(std::make_unique<Probe>(shape, ProbeSetting{1, threads}, dtype, false));
    for (size_t i = 0; i < probes.size(); ++i) {
      Tell(options, Cat("kernels on ", threads, " threads: model ", i + 1, " of ", probes.size()));
      const auto begin = std::chrono::steady_clock::now();
      for (auto passed = begin - begin; passed < (SpinsBriefly() ? kLongestSettle : kSettle);
           passed = std::chrono::steady_clock::now() - begin)
        probes[i]->WarmUp();
      for (int round = 0; round < options.rounds; ++round) probes[i]->Round();
      neighbours.EndRound();
      probes[i]->Unload();
      probes[i]->AddSamples(samples);
    }
  }
}

// And messages between two threads.
std::vector<KernelSample> MeasureKernels(const CalibrateOptions& options, int cores, double* message) {
  std::vector<KernelSample> samples;
  MeasureTeams(options, cores, &samples);
  Tell(options, "compiling the models that are watched");
  std::vector<std::unique_ptr<Probe>> probes;
  for (int model = 0; model < options.models; ++model)
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      probes.push_back(std::make_unique<Probe>(kShapes[model], ProbeSetting(), dtype, false));
      if (cores > 1)
        probes.push_back(std::make_unique<Probe>(kShapes[model], CrowdedSetting(model, cores), dtype, true));
    }
  for (const auto& probe : probes) probe->WarmUp();
  Chain chain(2, 2, nullptr);
  Neighbours neighbours;
  for (int round = 0; round < options.rounds; ++round) {
    Tell(options, Cat("kernels: round ", round + 1, " of ", options.rounds));
    for (const auto& probe : probes) probe->Round();
    for (int k = 0; k < kChainRounds; ++k) chain.Round();
    neighbours.EndRound();
  }
  for (const auto& probe : probes) probe->AddSamples(&samples);
  *message = chain.message();
  return samples;
}

}  // namespace

Machine Calibrate(const CalibrateOptions& options) {
  CheckRange("CalibrateOptions::models", options.models, 1, kMostModels);
  if (options.kind != "cpu") return CalibrateDevices(options);
  CheckRange("CalibrateOptions::rounds", options.rounds, 3, 10'000);
  const int here = UsableCores();
  CheckRange("CalibrateOptions::cores", options.cores, 0, here);
  const int cores = options.cores > 0 ? options.cores : here;
  Machine machine;
  const bool first = !options.job || options.job->process() == 0;
  if (first) {
    const std::vector<KernelSample> samples = MeasureKernels(options, cores, &machine.message);
    machine.process_message = machine.message;
    machine.kernels = FitKernels(samples);
    machine.flops = Rounded(PeakOf(samples, DType::kFloat32));
    machine.narrow_flops = Rounded(PeakOf(samples, DType::kBFloat16));
    machine.topology.memory_bandwidth = Rounded(BandwidthOf(samples));
  }
  machine.name = "processor";
  machine.threads = cores;
  machine.memory_bytes = MemoryBytes();
  machine.cache_bytes = CacheBytes();
  machine.overhead = 0;
  if (options.job) {
    Tell(options, "processes");
    MeasureProcesses(options, &machine);
  }
  machine.topology.links = {
      {.devices = 0, .latency = 2 * machine.message, .bandwidth = LinkBandwidth(machine)}};
  machine.shared = {false};
  return machine;
}

std::string CheckCalibration(const std::string& mesh) {
  const std::vector<std::string> kinds = Mesh::Parse(mesh).kinds();
  if (kinds.size() > 1)
    Fail("--calibrate measures devices of one kind, and --mesh=", mesh, " has ", kinds[0], " and ", kinds[1]);
  if (kinds[0] != "cpu") {
    try {
      OpenBackend(kinds[0]);
    } catch (const Error& error) {
      Fail("--calibrate measures the devices of --mesh=", mesh, ": ", error.what());
    }
  }
  return kinds[0];
}

void CalibrateTo(const std::string& file, const CalibrateOptions& options) {
  const Machine machine = Calibrate(options);
  if (options.job && options.job->process() != 0) return;
  ReplaceFile(file,
              Cat("# Measured by --calibrate on this machine; docs/simulation.md says how, "
                  "examples/topologies/README.md what the words are.\n",
                  TopologyText(machine)),
              Cat("--calibrate=", file));
}

}  // namespace oneflow_like
