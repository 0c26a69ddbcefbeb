#include "oneflow_like/simulate/calibrate_devices.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "actor/library_choices.h"
#include "compiler/cost/kernel_cost.h"
#include "core/device/backend.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/model_impl.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"
#include "oneflow_like/simulate/device_timing.h"
#include "oneflow_like/simulate/probe_model.h"

namespace oneflow_like {
namespace {

// Models of sizes that people train, two layers of each: widths from 384 to 2048, sequences from 256 to 4096
// tokens, heads of 64 and 128 channels, grouped heads, vocabularies from bytes to words, experts; and a
// network of convolutions. The first ones say most.
constexpr ProbeShape kDeviceShapes[] = {
    {.batch = 32, .vocabulary = 256, .dropout = 0},
    {.batch = 16, .llama = true, .vocabulary = 32000, .kv_heads = 4, .inner = 3328},
    {.vocabulary = 256, .dropout = 0, .inner = 1536, .experts = 64},
    {.width = 1024, .heads = 8, .llama = true, .vocabulary = 256, .inner = 2048, .experts = 16, .room = 1.25},
    {.width = 2048, .heads = 16, .vocabulary = 50304},
    {.batch = 16, .vocabulary = 256, .erf = true},
    {2, 4096, 2048, 32, true, 1, /*vocabulary=*/32000, /*kv_heads=*/8, /*dropout=*/0, /*inner=*/8192},
    {.batch = 32, .context = 256, .width = 384, .heads = 6, .micro_batches = 2, .vocabulary = 256},
    {.batch = 64, .width = 64, .clip_norm = 0, .side = 224}};
// Such that an emulator computes a kernel in milliseconds.
constexpr ProbeShape Small(ProbeShape shape) {
  shape.batch = 2, shape.context = 16, shape.width = 32, shape.vocabulary = 64;
  return shape;
}
// The same kinds of kernels.
constexpr ProbeShape kSmallShapes[] = {
    Small({.heads = 2, .erf = true}),
    Small({.heads = 4, .llama = true, .kv_heads = 2}),
    Small({.heads = 2, .dropout = 0, .inner = 64, .experts = 4}),
    Small({.heads = 2, .llama = true, .inner = 64, .experts = 4, .room = 1.25}),
    {.batch = 2, .width = 8, .clip_norm = 0, .side = 32}};

// In a batch of some milliseconds, so that all is measured in less than a minute.
const TimingOptions kQuick = {.batch_seconds = 0.001, .batches = 3, .least_runs = 4, .most_sets = 8};
const TimingOptions kOnce = {.batch_seconds = 0, .batches = 1, .least_runs = 1, .most_sets = 1};
// The first kAlsoSmaller models and the model of convolutions are also compiled with a quarter of the batch:
// two sizes of a kernel tell the time of a call from the time of an element.
constexpr size_t kAlsoSmaller = 3;
// Whole steps are timed of the first kAlsoSmaller models, with kStepLayers layers, and of the model of
// convolutions. They run until the clock of a busy card has settled.
constexpr int64_t kStepLayers = 8;
constexpr double kStepsLast = 1;  // seconds
constexpr int kWarmSteps = 3, kLeastSteps = 5, kMostSteps = 100;
constexpr double kMostEstimated = 0.03;  // of a step, by peak and bandwidth: more would tell of these
// How many times as long arithmetic may take in a step: no card computes faster when it is busy, and more
// would be another mistake.
constexpr double kLeastArithmetic = 1, kMostArithmetic = 1.5;

// Of collectives: bytes of the whole tensor.
std::vector<int64_t> SizesOfCollectives(bool small) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = 4096; bytes <= (small ? int64_t{1} << 16 : int64_t{1} << 28); bytes *= 4)
    sizes.push_back(bytes);
  return sizes;
}

// Whether random integers are good enough: operators that look things up by index, or move rows by counts,
// would read beyond their operands.
bool CanBeTimed(const KernelSpec& spec) {
  static const std::set<std::string> kKnown = {"embedding",      "embedding_grad",
                                               "cross_entropy",  "cross_entropy_grad",
                                               "grouped_matmul", "grouped_matmul_grad_weight",
                                               "rope",           "route",
                                               "take_rows",      "return_rows",
                                               "dot_rows"};
  return kKnown.count(spec.name) > 0 || std::all_of(spec.in.begin(), spec.in.end(), [](const TensorArg& arg) {
           return arg.dtype != DType::kInt32 && arg.dtype != DType::kInt64;
         });
}

// Kernels that differ in nothing that their time depends on have one name.
std::string NameOfKernel(plan::Kernel kernel) {
  for (auto clear : {&plan::Kernel::clear_node, &plan::Kernel::clear_file, &plan::Kernel::clear_line,
                     &plan::Kernel::clear_function, &plan::Kernel::clear_scratch_offset})
    (kernel.*clear)();
  for (plan::Attr& attr : *kernel.mutable_attr())
    if (attr.name() == "key") attr.Clear();  // of random draws
  for (auto* operands : {kernel.mutable_in(), kernel.mutable_out()})
    for (plan::Operand& operand : *operands)
      for (auto clear :
           {&plan::Operand::clear_buffer, &plan::Operand::clear_period, &plan::Operand::clear_skip})
        (operand.*clear)();
  return kernel.SerializeAsString();
}

// "attention bf16 call 1 flop 1e+09 byte 2e+06: 0.00015 s".
std::string TextOf(const KernelSample& sample) {
  std::ostringstream text;
  text << sample.name << " " << Name(sample.dtype);
  for (const NamedAmount& amount : kAmounts)
    if (sample.work.*amount.value != 0) text << " " << amount.name << " " << sample.work.*amount.value;
  for (const std::string& step : sample.steps) text << " step " << step;
  text << ": " << sample.seconds << " s";
  return text.str();
}

struct TimedKernel {
  plan::Kernel kernel;
  KernelSample sample;
  EstimatedSample estimated;
};

// The kernels of a training step that are not in `known` yet.
std::vector<TimedKernel> NewKernels(const std::string& kind, const ProbeShape& shape, DType dtype,
                                    std::set<std::string>* known) {
  Model model(Mesh(kind, {{"dp", 1}}));
  Session session = DeviceProbe(&model, shape, dtype);
  std::vector<TimedKernel> kernels;
  const RankPlan made = PlanOf(session.impl()->compiled, 0);
  for (const plan::Actor& actor : made.plan.actor()) {
    if (!actor.feed().empty() || !actor.fetch().empty() || actor.has_collective()) continue;
    for (const plan::Kernel& kernel : actor.kernel()) {
      const Work::Kind work = KindOfWork(kernel.category());
      if (work == Work::Kind::kHostCopy || kernel.in_size() + kernel.out_size() == 0) continue;
      if (!CanBeTimed(ToSpec(kernel)) || !known->insert(NameOfKernel(kernel)).second) continue;
      kernels.push_back({kernel, {HostWorkOf(kernel, model.impl()->registry, 0)}});
      kernels.back().sample.threads = 0;
      kernels.back().estimated = {WorkOf(kernel), RateType(kernel)};
    }
  }
  return kernels;
}

class DeviceCalibration {
 public:
  explicit DeviceCalibration(const CalibrateOptions& options)
      : options_(options), backend_(OpenBackend(options.kind)), numbers_(options.devices) {
    if (numbers_.empty())
      for (int d = 0; d < backend_->device_count(); ++d) numbers_.push_back(d);
    for (int d : numbers_)
      if (d < 0 || d >= backend_->device_count())
        Fail("device ", d, " of --devices does not exist, this host has ", backend_->device_count(), " ",
             options.kind, " devices, numbered from 0");
    card_ = std::make_unique<MeasuredDevice>(backend_, numbers_[0]);
  }

  Machine Measure() {
    Machine machine;
    Tell("copies and large products");
    machine.name = CardName();
    machine.memory_bytes = static_cast<double>(card_->FreeBytes());
    const Ceilings ceilings = MeasureCeilings(card_.get(), quick(), timing());
    machine.topology.memory_bandwidth = Rounded(ceilings.copy);
    machine.flops = ceilings.f32;
    machine.tf32_flops = Rounded(ceilings.tf32);
    machine.narrow_flops = std::max(ceilings.bf16, ceilings.f16);
    machine.overhead = Rounded(std::max(ceilings.launch, 0.0));
    const HostCopies host = MeasureHostCopies(card_.get(), quick());
    machine.host = {.latency = Rounded(host.latency), .bandwidth = Rounded(host.bandwidth), .known = true};
    const std::vector<KernelSample> samples = MeasureKernels();
    for (const EstimatedSample& s : estimated_) {
      if (s.work.kind != Work::Kind::kProduct) continue;
      double* peak = s.dtype == DType::kFloat32 ? &machine.flops : &machine.narrow_flops;
      *peak = std::max(*peak, s.work.flops / s.seconds);
    }
    machine.flops = Rounded(machine.flops);
    machine.narrow_flops = Rounded(machine.narrow_flops);
    machine.kernels = FitKernels(samples);
    machine.efficiency = FitEfficiency(machine, estimated_);
    AddSteps(FitSteps(MeasureSteps(machine)), samples, &machine);
    MeasureLinks(&machine);
    return machine;
  }

 private:
  bool quick() const { return options_.small || options_.time; }
  TimingOptions timing() const { return quick() ? kOnce : kQuick; }
  void Tell(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  // "NVIDIA-H100-80GB-HBM3": a name is one word.
  std::string CardName() const {
    std::string name = backend_->Describe(numbers_[0]);
    name = name.substr(0, name.find(','));
    for (char& c : name)
      if (c == ' ' || c == '#') c = '-';
    return name;
  }

  std::span<const ProbeShape> Shapes() const {
    const auto all = options_.small ? std::span<const ProbeShape>(kSmallShapes)
                                    : std::span<const ProbeShape>(kDeviceShapes);
    return all.first(std::min(all.size(), static_cast<size_t>(options_.models)));
  }

  std::vector<KernelSample> MeasureKernels() {
    const auto shapes = Shapes();
    const size_t models = shapes.size();
    std::vector<KernelSample> samples;
    std::set<std::string> known;
    std::string failed;
    int failures = 0;
    for (size_t m = 0; m < models; ++m)
      for (const auto& [dtype, parts] : {std::pair{DType::kBFloat16, 1}, std::pair{DType::kBFloat16, 4},
                                         std::pair{DType::kFloat32, 4}, std::pair{DType::kFloat32, 8}}) {
        if (dtype == DType::kFloat32 && m > (parts == 8 ? 1 : 0)) continue;  // seldom trained, and slow
        if (parts == 4 && m >= kAlsoSmaller && shapes[m].side == 0) continue;
        ProbeShape shape = shapes[m];
        shape.batch = std::max<int64_t>(1, shape.batch / parts);
        std::vector<TimedKernel> kernels = NewKernels(options_.kind, shape, dtype, &known);
        Tell(Cat("model ", m + 1, " of ", models, " in ", Name(dtype), ": ", kernels.size(), " kernels"));
        DecideProducts(kernels);
        for (TimedKernel& one : kernels) {
          try {
            one.sample.seconds = Time(one.kernel);
            samples.push_back(one.sample);
            VLOG(1) << "timed " << TextOf(one.sample);
            if (one.kernel.category() == "convolution") continue;  // estimates are those of products
            one.estimated.seconds = one.sample.seconds;
            estimated_.push_back(one.estimated);
          } catch (const Error& error) {
            if (++failures == 1) failed = Cat(one.kernel.name(), ": ", error.what());
          }
        }
      }
    LOG_IF(WARNING, failures > 0) << "calibration: " << failures
                                  << " kernels could not be timed, the first is " << failed;
    return samples;
  }

  // A plan that is loaded has the library's ways of its products timed, and takes the fastest: kernels are
  // timed as they will run.
  void DecideProducts(const std::vector<TimedKernel>& kernels) {
    if (options_.time) return;
    std::vector<std::unique_ptr<Kernel>> made;  // notes what is to be decided
    int64_t largest = 0;
    for (const TimedKernel& one : kernels) {
      if (one.estimated.work.kind != Work::Kind::kProduct) continue;
      try {
        made.push_back(card_->registry.Make(ToSpec(one.kernel), options_.kind));
        largest = std::max(largest, static_cast<int64_t>(one.kernel.bytes()));
      } catch (const Error&) {
        continue;  // the failure is told where it is timed
      }
    }
    constexpr int64_t kBetween = 1 << 20;  // operands are aligned, and the library's work lies beside them
    const int64_t bytes = 2 * largest + kBetween;
    std::unique_ptr<Memory> scratch;
    try {
      scratch = card_->device->Allocate(bytes, "operands of products that are timed");
    } catch (const Error&) {
      return;  // the largest of them does not fit, and the first way of each stands
    }
    DecideLibraryChoices(backend_, {{0, card_->device.get(), card_->stream.get(), scratch->data(), bytes}},
                         {}, "calibration",
                         /*tune=*/true);
  }

  double Time(const plan::Kernel& kernel) {
    if (options_.time) return options_.time(kernel);
    return std::max(TimeKernel(card_.get(), ToSpec(kernel), kernel.scratch_bytes(), timing()).seconds, 1e-9);
  }

  // Of kernels that would take what `machine` says.
  std::vector<StepSample> MeasureSteps(const Machine& machine) {
    std::vector<StepSample> samples;
    if (options_.time && !options_.time_step) return samples;
    const auto shapes = Shapes();
    for (size_t m = 0; m < shapes.size(); ++m) {
      ProbeShape shape = shapes[m];
      if (m >= kAlsoSmaller && shape.side == 0) continue;
      if (!options_.small) shape.layers = kStepLayers;
      ModelOptions options;
      options.devices = {numbers_[0]};
      Model model(Mesh(options_.kind, {{"dp", 1}}), options);
      Session session = DeviceProbe(&model, shape, DType::kBFloat16);
      const RankPlan made = PlanOf(session.impl()->compiled, 0);
      StepSample sample;
      double estimated = 0;
      for (const plan::Actor& actor : made.plan.actor())
        for (const plan::Kernel& kernel : actor.kernel()) {
          if (!actor.feed().empty() || !actor.fetch().empty() || actor.has_collective()) continue;
          const HostWork of = HostWorkOf(kernel, model.impl()->registry, 0);
          const std::optional<ThreadSeconds> measured = MeasuredSeconds(machine, of, 0);
          const double seconds = actor.acts() * (measured ? measured->alone : SecondsOf(machine, kernel));
          (Arithmetic(of.work.kind) ? sample.arithmetic : sample.others) += seconds;
          if (!measured) estimated += seconds;
          sample.kernels += actor.acts();
        }
      if (const double all = sample.arithmetic + sample.others; estimated > kMostEstimated * all) {
        LOG(WARNING) << "calibration: steps of model " << m + 1 << " tell nothing, as "
                     << PercentText(estimated, all) << " of their time is of kernels that were not timed";
        continue;
      }
      Tell(Cat("steps of model ", m + 1));
      try {
        sample.seconds = options_.time_step ? options_.time_step(made.plan)
                                            : StepSeconds(&session, ProbeFeeds(shape), quick());
      } catch (const Error& error) {  // memory is short on small cards
        LOG(WARNING) << "calibration: no step of model " << m + 1 << " was timed: " << error.what();
        continue;
      }
      VLOG(1) << "a step of model " << m + 1 << " takes " << sample.seconds << " s, its " << sample.kernels
              << " kernels alone " << sample.arithmetic << " s of arithmetic and " << sample.others
              << " s of others";
      samples.push_back(sample);
    }
    return samples;
  }

  static bool Arithmetic(Work::Kind kind) {
    return kind == Work::Kind::kProduct || kind == Work::Kind::kAttention;
  }

  static double StepSeconds(Session* session, const Feeds& feeds, bool once) {
    const auto steps = [&](int count) {
      const auto start = std::chrono::steady_clock::now();
      for (int step = 1; step < count; ++step) session->Run(feeds);
      session->Run(feeds).Wait();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
    };
    steps(kWarmSteps);
    if (once) return steps(1);
    return steps(std::clamp(static_cast<int>(kStepsLast / steps(kLeastSteps)), kLeastSteps, kMostSteps));
  }

  void AddSteps(const StepFit& fit, const std::vector<KernelSample>& samples, Machine* machine) const {
    VLOG(1) << "in steps, arithmetic takes " << fit.arithmetic << " times as long, and " << fit.between
            << " s are between two kernels";
    std::set<std::string> arithmetic;
    for (const KernelSample& s : samples)
      if (Arithmetic(s.work.kind)) arithmetic.insert(s.name);
    for (MeasuredKernel& kernel : machine->kernels) {
      // fp32 does not come near to a card's power.
      if (arithmetic.count(kernel.name) > 0 && SizeOf(kernel.dtype) == 2)
        for (const NamedAmount& amount : kAmounts)
          kernel.each.*amount.value = Rounded(fit.arithmetic * kernel.each.*amount.value);
      kernel.each.calls = Rounded(kernel.each.calls + fit.between);
    }
    for (double* part : {&machine->efficiency.product, &machine->efficiency.attention})
      *part = Rounded(std::min(1.0, *part / fit.arithmetic));
    machine->overhead = Rounded(machine->overhead + fit.between);
  }

  // One level that joins the cards; a single card is joined with none.
  void MeasureLinks(Machine* machine) {
    machine->shared = {false};
    const int cards = static_cast<int>(numbers_.size());
    Topology::Link link = {
        .devices = cards, .latency = machine->overhead, .bandwidth = machine->topology.memory_bandwidth / 2};
    if (cards > 1 && backend_->HasGroups()) {
      std::vector<std::unique_ptr<MeasuredDevice>> devices;
      for (int d = 0; d < cards; ++d)
        devices.push_back(std::make_unique<MeasuredDevice>(backend_, numbers_[d], d));
      const std::vector<int64_t> sizes = SizesOfCollectives(quick());
      for (int members = 2; members <= cards;
           members = members < cards ? std::min(2 * members, cards) : cards + 1) {
        std::vector<MeasuredDevice*> group;
        for (int m = 0; m < members; ++m) group.push_back(devices[m].get());
        for (const Primitive primitive : {Primitive::kSend, Primitive::kAllReduce, Primitive::kReduceScatter,
                                          Primitive::kAllGather, Primitive::kAllToAll}) {
          if (primitive == Primitive::kSend && members > 2) continue;
          Tell(Cat(oneflow_like::Name(primitive), " among ", members, " devices"));
          MeasuredCollective measured = {primitive, members, members, {}};
          for (const auto& [bytes, seconds] : TimeCollective(backend_, group, primitive, sizes))
            measured.points.emplace_back(bytes, Rounded(seconds));
          if (primitive == Primitive::kSend) TakeLink(measured, &link);
          machine->collectives.push_back(std::move(measured));
        }
      }
    }
    machine->topology.links = {link};
  }

  static void TakeLink(const MeasuredCollective& send, Topology::Link* link) {
    const auto& [few, first] = send.points.front();
    const auto& [many, last] = send.points.back();
    link->latency = first;
    if (last > first) link->bandwidth = Rounded((many - few) / (last - first));
  }

  const CalibrateOptions& options_;
  Backend* const backend_;
  std::vector<int> numbers_;
  std::unique_ptr<MeasuredDevice> card_;
  std::vector<EstimatedSample> estimated_;  // of the kernels that were timed
};

}  // namespace

Efficiency FitEfficiency(const Machine& machine, const std::vector<EstimatedSample>& samples) {
  constexpr double kHalfExtent = 128;  // as in all files of GPUs
  Efficiency fit = {.half_extent = kHalfExtent};
  for (const Work::Kind kind : {Work::Kind::kProduct, Work::Kind::kAttention}) {
    double ideal = 0, left = 0;  // seconds of arithmetic at the peak; and measured, without what bytes take
    for (const EstimatedSample& s : samples) {
      if (s.work.kind != kind || SizeOf(s.dtype) == 4) continue;
      const double extent = s.work.flops / 2 / std::max(1.0, s.work.largest);
      ideal += s.work.flops * (1 + kHalfExtent / extent) / machine.FlopsOf(s.dtype);
      left += s.seconds - s.work.bytes / machine.topology.memory_bandwidth - machine.overhead;
    }
    if (ideal > 0)
      (kind == Work::Kind::kProduct ? fit.product : fit.attention) =
          Rounded(std::clamp(ideal / std::max(left, 1e-12), 0.001, 1.0));
  }
  return fit;
}

StepFit FitSteps(const std::vector<StepSample>& samples) {
  StepFit fit;
  if (samples.empty()) return fit;
  std::vector<std::vector<double>> both;
  std::vector<double> left, weights, between;
  for (const StepSample& s : samples) {
    both.push_back({s.arithmetic, s.kernels});
    left.push_back(s.seconds - s.others);
    weights.push_back(1 / (s.seconds * s.seconds));
  }
  fit.arithmetic = std::clamp(FitNonNegative(both, left, weights)[0], kLeastArithmetic, kMostArithmetic);
  for (size_t i = 0; i < samples.size(); ++i)
    between.push_back((left[i] - fit.arithmetic * samples[i].arithmetic) / samples[i].kernels);
  fit.between = std::max(0.0, Median(between));
  return fit;
}

Machine CalibrateDevices(const CalibrateOptions& options) { return DeviceCalibration(options).Measure(); }

}  // namespace oneflow_like
