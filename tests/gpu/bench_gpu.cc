// What a GPU can do and what our steps make of it: copy bandwidth and matrix products (the ceilings),
// training steps of two GPT-2s, each kernel of such a step on its own beside the ceilings, and the product
// library's proposals for the step's products.
//   bench_gpu --what=ceilings | steps | kernels | gemms --model=124M --batch=32
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "core/device/library_memory.h"
#include "core/plan/plan_values.h"
#include "core/random.h"
#include "examples/gpt_model.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/simulate/device_timing.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/bench_cases.h"

DEFINE_string(
    what, "ceilings",
    "ceilings, steps (tokens/s of training), kernels (each of a step on its own), gemms (the "
    "library's proposals for each of a step's ten largest products, and sums apart), attention, grouped or "
    "norms (such kernels by what they are asked for)");
DEFINE_string(model, "124M", "tiny (for a test of this program), 10.8M, 124M or 1.3B");
DEFINE_int64(batch, 0,
             "sequences of a step; 0: as many as fit the card's memory, of 1, 2, 3, 4, 6, 8, 12 ... 256");
DEFINE_string(dtype, "bf16", "fp32, bf16 or fp16");
DEFINE_int32(device, 0, "number of the GPU");
DEFINE_int32(steps, 30, "measured, after 5 that are not");
DEFINE_int32(hottest, 10, "kernels that are shown");
DEFINE_bool(tune, true, "steps: take the fastest of the library's proposals; else its first");

namespace oneflow_like::gpu {

using namespace examples;
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int kWarmUp = 5;
constexpr int64_t kVocabulary = 50304;

struct Gpt {
  std::string name;
  GptConfig config;
};

Gpt ModelOfFlag() {
  const std::vector<Gpt> models = {
      {"tiny", {.layers = 1, .width = 32, .heads = 2, .context = 8, .vocabulary = 64}},
      {"10.8M", {.layers = 6, .width = 384, .heads = 6, .context = 256, .vocabulary = 256}},
      {"124M", {.layers = 12, .width = 768, .heads = 12, .context = 1024, .vocabulary = kVocabulary}},
      {"1.3B", {.layers = 24, .width = 2048, .heads = 16, .context = 1024, .vocabulary = kVocabulary}}};
  for (const Gpt& model : models) {
    if (model.name == FLAGS_model) return model;
  }
  Fail("--model=", FLAGS_model, ": must be tiny, 10.8M, 124M or 1.3B");
}

DType DTypeOfFlag() {
  if (FLAGS_dtype == "fp32") return DType::kFloat32;
  if (FLAGS_dtype == "bf16") return DType::kBFloat16;
  if (FLAGS_dtype == "fp16") return DType::kFloat16;
  Fail("--dtype=", FLAGS_dtype, ": must be fp32, bf16 or fp16");
}

// A model and its training on one GPU; compiled when made, loaded by the first step.
class Training {
 public:
  Training(const GptConfig& config, int64_t batch)
      : batch_(batch), config_(config), model_(Mesh("cuda", {{"dp", 1}, {"tp", 1}, {"pp", 1}}), Options()) {
    const Dims shape{batch, config.context};
    Tensor tokens = model_.Input("tokens", shape, DType::kInt32, {{"dp", S(0)}});
    Tensor targets = model_.Input("targets", shape, DType::kInt32, {{"dp", S(0)}});
    TrainOptions options;
    options.dtype = DTypeOfFlag();
    session_ = std::make_unique<Session>(
        Train(GptLoss(model_.scope(), tokens, targets, config), AdamW{.lr = 3e-4}, options));
  }
  Session& session() { return *session_; }
  int64_t tokens() const { return batch_ * config_.context; }
  int64_t PeakBytes() const { return session_->Summaries().at(0).peak_bytes; }

  Feeds MakeFeeds(int64_t step) const {
    std::vector<int32_t> ids(tokens() + 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(RandomBits(7, step, i) % static_cast<uint64_t>(config_.vocabulary));
    }
    const Dims shape{batch_, config_.context};
    return {{"tokens", ToHost(std::vector<int32_t>(ids.begin(), ids.end() - 1), shape)},
            {"targets", ToHost(std::vector<int32_t>(ids.begin() + 1, ids.end()), shape)}};
  }

 private:
  static ModelOptions Options() {
    ModelOptions options;
    options.devices = {FLAGS_device};
    options.tune = FLAGS_tune;
    return options;
  }

  int64_t batch_;
  GptConfig config_;
  Model model_;
  std::unique_ptr<Session> session_;
};

// Floating point operations of a step that nobody can save: three products for each weight matrix (forward,
// and the gradients of both operands), and causal attention's six products of which half the positions count.
double FlopsOf(const GptConfig& c, int64_t tokens) {
  const double width = static_cast<double>(c.width), layers = static_cast<double>(c.layers),
               n = static_cast<double>(tokens);
  const double matrices = layers * 12 * width * width + static_cast<double>(c.vocabulary) * width;
  return 6 * n * matrices + 6 * n * static_cast<double>(c.context) * width * layers;
}

// The largest batch whose plan fits what is free: memory is known before the first step.
int64_t BatchOfFlag(const Gpt& gpt) {
  if (FLAGS_batch > 0) return FLAGS_batch;
  int64_t free = 0;
  {
    MeasuredDevice card(TestedBackend(), FLAGS_device);
    free = card.FreeBytes() - kCudaBytesBesides - (int64_t{512} << 20);
  }
  std::vector<int64_t> batches;
  for (int64_t b : {1, 2, 3}) batches.push_back(b);
  for (int64_t b = 4; b <= 256; b *= 2) batches.push_back(b), batches.push_back(b / 2 * 3);
  int64_t best = 0;
  for (int64_t batch : batches) {
    if (Training(gpt.config, batch).PeakBytes() > free) break;
    best = batch;
  }
  if (best == 0)
    Fail("GPT ", gpt.name, " does not fit the ", free, " bytes that are free, even with a batch of 1");
  return best;
}

Ceilings CeilingsNow() {
  MeasuredDevice card(TestedBackend(), FLAGS_device);
  return MeasureCeilings(&card, Emulated());
}

void PrintCeilings(const Ceilings& c) {
  std::printf(
      "result: copy_GBps=%.0f bf16_TFLOPs=%.1f f16_TFLOPs=%.1f f32_TFLOPs=%.1f tf32_TFLOPs=%.1f "
      "launch_us=%.2f\n",
      c.copy / 1e9, c.bf16 / 1e12, c.f16 / 1e12, c.f32 / 1e12, c.tf32 / 1e12, c.launch * 1e6);
  std::printf(
      "figure: copy %.0f GB/s; products bf16 %.0f, f16 %.0f, f32 %.1f, by TF32 %.0f TFLOP/s; a small kernel "
      "%.1f us\n",
      c.copy / 1e9, c.bf16 / 1e12, c.f16 / 1e12, c.f32 / 1e12, c.tf32 / 1e12, c.launch * 1e6);
}

struct HotKernel {
  plan::Kernel kernel;
  int uses = 0;  // in one step
  Timing timing;
  double StepSeconds() const { return uses * timing.seconds; }
};

// The time of a step if nothing were between its kernels: each timed on its own. `failed` is what could
// not be timed.
std::vector<HotKernel> TimeKernels(const plan::Plan& plan, MeasuredDevice* card, std::string* failed);

// The names of what was done in a slower way than it could be; empty where nothing was.
std::string NotByLibraries(const BackendCounts& counts) {
  std::string text;
  auto add = [&](bool wrong, const std::string& what) {
    if (wrong) text += Cat(text.empty() ? "" : ", ", what);
  };
  add(counts.library_products == 0, "no product was cuBLASLt's");
  add(DTypeOfFlag() != DType::kFloat32 && counts.library_attention == 0, "no attention was cuDNN's");
  add(counts.refused_products > 0, Cat(counts.refused_products, " products were refused"));
  add(counts.refused_epilogues > 0, Cat(counts.refused_epilogues, " epilogues were refused"));
  add(counts.refused_attention > 0, Cat(counts.refused_attention, " attention graphs were refused"));
  add(counts.failed_recordings > 0, Cat(counts.failed_recordings, " recordings failed"));
  add(counts.unrecorded_parts > 0,
      Cat(counts.unrecorded_parts, " of ", counts.parts, " lines of kernels were never recorded"));
  return text;
}

void PrintMemory(const Training& training, const BackendCounts& counts) {
  const double mib = 1 << 20;
  const double other = static_cast<double>(counts.other_bytes) / mib,
               told = static_cast<double>(counts.ranks * kCudaBytesOfOthers +
                                          counts.devices * LibraryMemoryHere().bytes) /
                      mib;
  std::printf(
      "memory: %.0f MiB planned, %.0f MiB allocated; libraries and graphs hold %.0f MiB more, the table "
      "allows for %.0f: %s\n",
      static_cast<double>(training.PeakBytes()) / mib, static_cast<double>(counts.allocated_bytes) / mib,
      other, told, other > told ? "TOO LITTLE" : "enough");
}

// Of a step, on all threads.
double HostSeconds(const StepProfile& profile) {
  double host = profile.runtime;
  for (const auto& [kind, spent] : profile.kernels) host += spent;
  return host / static_cast<double>(std::max<int64_t>(profile.steps, 1));
}

// What the host does in a step. Where more kernels are enqueued than the driver has room for, a launch waits
// until some have run, which is no work.
void PrintHost(const StepProfile& profile, const StepProfile& waited) {
  const auto each = [&](int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) * 1e-6 / static_cast<double>(std::max<int64_t>(profile.steps, 1));
  };
  const BackendCounts& d = profile.devices;
  const double all = HostSeconds(profile) * 1e3,
               launching = each(d.graph_nanoseconds - d.graph_wait_nanoseconds),
               waiting = each(d.graph_wait_nanoseconds), recording = each(d.recording_nanoseconds),
               alone = each(d.lone_nanoseconds);
  std::printf(
      "host: %.2f ms a step with two in flight: launching graphs %.2f and waiting there for room %.2f, "
      "recording %.2f, kernels alone %.2f, other %.2f; %.2f ms where each step is waited for (graphs %.2f)\n",
      all, launching, waiting, recording, alone, all - launching - waiting - recording - alone,
      HostSeconds(waited) * 1e3,
      static_cast<double>(waited.devices.graph_nanoseconds) * 1e-6 /
          static_cast<double>(std::max<int64_t>(waited.steps, 1)));
}

void RunSteps() {
  const Gpt gpt = ModelOfFlag();
  const double peak =
      CeilingsNow().Product(DTypeOfFlag());  // first: then libraries have loaded what they load
  const int64_t batch = BatchOfFlag(gpt);
  auto loaded = std::make_unique<Training>(gpt.config, batch);
  Training& training = *loaded;
  std::vector<Feeds> feeds;
  for (int i = 0; i < 4; ++i) feeds.push_back(training.MakeFeeds(i));
  std::deque<StepResult> in_flight;
  float loss = 0;
  auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      in_flight.push_back(training.session().Run(feeds[i % feeds.size()]));
      if (in_flight.size() < 2) continue;
      loss = in_flight.front().Scalar("loss");
      in_flight.pop_front();
    }
    while (!in_flight.empty()) loss = in_flight.front().Scalar("loss"), in_flight.pop_front();
  };
  run(kWarmUp);
  (void)training.session().TakeProfile();
  const double start = Now();
  run(FLAGS_steps);
  const double seconds = (Now() - start) / FLAGS_steps;
  const StepProfile profile = training.session().TakeProfile();
  // Again, each step waited for: then no call waits for room in the driver's queue.
  for (int i = 0; i < kWarmUp; ++i) (void)training.session().Run(feeds[i % feeds.size()]).Scalar("loss");
  const StepProfile waited = training.session().TakeProfile();
  const double in_launches =
      static_cast<double>(profile.devices.graph_wait_nanoseconds) * 1e-9 / static_cast<double>(FLAGS_steps);
  const double host = std::min(HostSeconds(profile) - in_launches, HostSeconds(waited));
  const double flops = FlopsOf(gpt.config, training.tokens()) / seconds;
  std::printf(
      "result: tokens_per_s=%.0f step_ms=%.3f batch=%lld TFLOPs=%.1f of_peak=%.4f host_share=%.4f "
      "loss=%.4f\n",
      static_cast<double>(training.tokens()) / seconds, seconds * 1e3, static_cast<long long>(batch),
      flops / 1e12, flops / peak, host / seconds, static_cast<double>(loss));
  const BackendCounts now = TestedBackend()->Counts();
  PrintMemory(training, now);
  const plan::Plan plan = PlanOf(training.session().impl()->compiled, 0).plan;
  const double steps = static_cast<double>(std::max<int64_t>(profile.steps, 1));
  std::printf(
      "launches: %.1f graphs a step of %.0f kernels and copies, %.1f kernels alone; %lld recordings\n",
      static_cast<double>(profile.devices.graph_launches) / steps,
      static_cast<double>(profile.devices.graph_nodes) / steps,
      static_cast<double>(profile.devices.lone_launches) / steps, static_cast<long long>(now.graphs));
  PrintHost(profile, waited);
  std::printf(
      "products: %lld timed by this process, %lld of all decided on take another proposal than the "
      "first, %lld groups together\n",
      static_cast<long long>(now.timed_products), static_cast<long long>(now.other_proposals),
      static_cast<long long>(now.products_together));
  const double tokens = static_cast<double>(training.tokens());
  loaded.reset();  // its memory is the kernels' now
  MeasuredDevice card(TestedBackend(), FLAGS_device);
  std::string failed;
  double alone = 0;
  for (const HotKernel& hot : TimeKernels(plan, &card, &failed)) alone += hot.StepSeconds();
  std::printf("between kernels: %.3f ms a step (%.1f %%): its kernels alone take %.3f ms\n",
              (seconds - alone) * 1e3, 100 * (seconds - alone) / seconds, alone * 1e3);
  std::printf(
      "figure: %.0f tokens/s, batch %lld, %.1f ms a step (%.1f between kernels), %.0f TFLOP/s, %.1f %% of "
      "the "
      "measured %s peak, host %.1f %%, %.1f GiB\n",
      tokens / seconds, static_cast<long long>(batch), seconds * 1e3, (seconds - alone) * 1e3, flops / 1e12,
      100 * flops / peak, FLAGS_dtype.c_str(), 100 * host / seconds,
      static_cast<double>(now.allocated_bytes + now.other_bytes) / (1 << 30));
  if (!failed.empty()) std::printf("not timed alone: %s\n", failed.c_str());
  if (const std::string slower = NotByLibraries(now); !slower.empty())
    Fail("the step is slower than it could be: ", slower);
}

// --- Each kernel of a step on its own

// "einsum bsw,whd->bshd bf16[32,1024,768] bf16[768,12,64]"
std::string NameOf(const plan::Kernel& kernel) {
  KernelSpec spec = ToSpec(kernel);
  std::string text = spec.name;
  for (const char* attr : {"equation", "program"}) {
    if (spec.attrs.Has(attr)) text += " '" + spec.attrs.Str(attr) + "'";
  }
  for (const TensorArg& arg : spec.in) text += Cat(" ", Name(arg.dtype), arg.extent.str());
  return text;
}

std::map<std::string, HotKernel> KernelsOf(const plan::Plan& plan) {
  std::map<std::string, HotKernel> kernels;
  for (const plan::Actor& actor : plan.actor()) {
    if (!actor.feed().empty() || !actor.fetch().empty() || actor.has_collective()) continue;
    for (const plan::Kernel& kernel : actor.kernel()) {
      HotKernel& hot = kernels[NameOf(kernel)];
      hot.kernel = kernel;
      hot.uses += actor.acts();
    }
  }
  return kernels;
}

// What bounds it, and its rate beside that ceiling. Causal attention does half the work the plan counts.
std::string Rate(const HotKernel& hot, const Ceilings& ceilings) {
  const KernelSpec spec = ToSpec(hot.kernel);
  const double flops = hot.kernel.flops() / (spec.attrs.Int("causal", 0) != 0 ? 2 : 1);
  const DType dtype = spec.in.empty() ? DType::kFloat32 : spec.in[0].dtype;
  const bool arithmetic = hot.kernel.category() == "matmul" || hot.kernel.category() == "attention" ||
                          hot.kernel.category() == "convolution";
  char text[120];
  if (arithmetic) {
    const double rate = flops / hot.timing.seconds;
    std::snprintf(text, sizeof text, "%.1f TFLOP/s, %.0f %% of products' %.0f", rate / 1e12,
                  100 * rate / ceilings.Product(dtype), ceilings.Product(dtype) / 1e12);
  } else {
    const double rate = hot.timing.bytes / hot.timing.seconds;
    std::snprintf(text, sizeof text, "%.0f GB/s, %.0f %% of a copy's %.0f", rate / 1e9,
                  100 * rate / ceilings.copy, ceilings.copy / 1e9);
  }
  return text;
}

std::vector<HotKernel> TimeKernels(const plan::Plan& plan, MeasuredDevice* card, std::string* failed) {
  std::vector<HotKernel> kernels;
  for (auto& [name, hot] : KernelsOf(plan)) {
    if (!card->registry.Has(hot.kernel.name(), "cuda")) continue;
    try {
      hot.timing = TimeKernel(card, ToSpec(hot.kernel), hot.kernel.scratch_bytes());
      kernels.push_back(hot);
    } catch (const Error& error) {
      if (failed->empty()) *failed = Cat(name, ": ", error.what());
    }
  }
  return kernels;
}

void RunKernels() {
  const Gpt gpt = ModelOfFlag();
  auto loaded = std::make_unique<Training>(gpt.config, BatchOfFlag(gpt));
  (void)loaded->session().Run(loaded->MakeFeeds(0)).Scalar("loss");  // decides how products are done
  const plan::Plan plan = PlanOf(loaded->session().impl()->compiled, 0).plan;
  loaded.reset();  // its memory is the kernels' now
  MeasuredDevice card(TestedBackend(), FLAGS_device);
  const Ceilings ceilings = MeasureCeilings(&card, Emulated());
  std::string failed;  // of several the first: the table is of the others
  std::vector<HotKernel> kernels = TimeKernels(plan, &card, &failed);
  std::sort(kernels.begin(), kernels.end(),
            [](const HotKernel& a, const HotKernel& b) { return a.StepSeconds() > b.StepSeconds(); });
  double all = 0, ten = 0;
  for (const HotKernel& hot : kernels) all += hot.StepSeconds();
  std::printf(
      "| ms a step | share | uses | us each | rate | kernel | line |\n|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < kernels.size() && i < static_cast<size_t>(FLAGS_hottest); ++i) {
    const HotKernel& hot = kernels[i];
    ten += hot.StepSeconds();
    std::printf("| %.3f | %.1f %% | %d | %.1f | %s | %s | %s:%d |\n", hot.StepSeconds() * 1e3,
                100 * hot.StepSeconds() / all, hot.uses, hot.timing.seconds * 1e6,
                Rate(hot, ceilings).c_str(), NameOf(hot.kernel).c_str(), hot.kernel.file().c_str(),
                hot.kernel.line());
  }
  PrintCeilings(ceilings);
  std::printf("figure: all kernels alone %.2f ms a step, the %d hottest %.0f %% of it\n", all * 1e3,
              FLAGS_hottest, 100 * ten / all);
  if (!failed.empty()) Fail("not timed: ", failed);
}

// --- The product library's proposals

constexpr int kShapes = 10, kAgain = 3;

// Seconds of the ways of a product by their numbers, as a plan that is loaded times them; none where there is
// one way.
std::map<int64_t, double> TimesAtLoad(MeasuredDevice* card, const plan::Kernel& kernel,
                                      std::set<std::string>* seen) {
  const KernelSpec spec = ToSpec(kernel);
  int64_t bytes = int64_t{1} << 16;
  for (const std::vector<TensorArg>* side : {&spec.in, &spec.out})
    for (const TensorArg& arg : *side) bytes += arg.elements() * static_cast<int64_t>(SizeOf(arg.dtype));
  const std::unique_ptr<Kernel> made = card->registry.Make(spec, "cuda");  // notes what is to be chosen
  std::map<int64_t, double> seconds;
  for (const LibraryChoice& choice : TestedBackend()->OpenChoices(card->device.get())) {
    if (!seen->insert(choice.work).second) continue;
    const auto scratch = card->device->Allocate(bytes, "operands of " + spec.name);
    TestedBackend()->TimeProposals(choice.work, card->stream.get(), scratch->data(), bytes, &seconds);
  }
  return seconds;
}

// The fastest of the numbers from `first` to before `end`.
std::vector<int64_t> FastestOf(const std::map<int64_t, double>& seconds, int64_t first, int64_t end) {
  std::vector<int64_t> numbers;
  for (const auto& [number, each] : seconds)
    if (number >= first && number < end) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end(),
            [&](int64_t a, int64_t b) { return seconds.at(a) < seconds.at(b); });
  if (numbers.size() > kAgain) numbers.resize(kAgain);
  return numbers;
}

// Microseconds on operands that are in no cache; 0 where the library refuses it, which is known by what the
// backend counted, as it is done in another way then.
double TimeProposal(MeasuredDevice* card, const plan::Kernel& kernel, int64_t number) {
  KernelSpec spec = ToSpec(kernel);
  spec.attrs.Set("gemm_choice", number);
  const int64_t refused = TestedBackend()->Counts().Refused();
  const double seconds = TimeKernel(card, spec, kernel.scratch_bytes()).seconds;
  return TestedBackend()->Counts().Refused() == refused ? seconds * 1e6 : 0;
}

struct Fastest {
  double us = 0;  // 0: there is none
  int64_t number = -1;
  void Take(double other_us, int64_t other) {
    if (other_us > 0 && (us == 0 || other_us < us)) *this = {other_us, other};
  }
  std::string str() const {
    if (us == 0) return "- | -";
    return Cat(static_cast<int64_t>(us * 10) / 10.0, " | ", number % kSumsApart + 1);
  }
};

// Microseconds of the product and then, in other launches, what its epilogue would do; 0 without epilogue.
double TimeSteps(MeasuredDevice* card, const plan::Kernel& kernel) {
  KernelSpec spec = ToSpec(kernel);
  if (!spec.name.starts_with("linear") || spec.name.starts_with("linear_c")) return 0;
  spec.attrs.Set("steps", int64_t{1});
  return TimeKernel(card, spec, kernel.scratch_bytes()).seconds * 1e6;
}

void RunGemms() {
  const Gpt gpt = ModelOfFlag();
  Training training(gpt.config, BatchOfFlag(gpt));
  MeasuredDevice card(TestedBackend(), FLAGS_device);
  std::vector<HotKernel> products;
  for (auto& [name, hot] : KernelsOf(PlanOf(training.session().impl()->compiled, 0).plan))
    if (hot.kernel.category() == "matmul") products.push_back(hot);
  std::stable_sort(products.begin(), products.end(), [](const HotKernel& a, const HotKernel& b) {
    return a.uses * a.kernel.flops() > b.uses * b.kernel.flops();
  });
  if (products.size() > kShapes) products.resize(kShapes);
  // Of all before the first is run, which decides for the products that it consists of.
  std::vector<std::map<int64_t, double>> at_load;
  std::set<std::string> seen;
  const double start = Now();
  for (const HotKernel& product : products) at_load.push_back(TimesAtLoad(&card, product.kernel, &seen));
  const double choosing = Now() - start;
  double first = 0, best = 0, taken = 0;
  std::printf(
      "| product | uses | first us | best us | which | sums apart us | which | TFLOP/s | by steps us | "
      "us of each when a plan is loaded, by number |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < products.size(); ++i) {
    const HotKernel& product = products[i];
    std::vector<int64_t> numbers = {0};
    for (int64_t number : FastestOf(at_load[i], 1, kSumsApart)) numbers.push_back(number);
    std::vector<int64_t> apart = FastestOf(at_load[i], kSumsApart, 2 * kSumsApart);
    if (apart.empty() && product.kernel.name() == "linear_grad_weight") apart = {kSumsApart};
    Fastest fused, separate;
    double usual = 0;
    for (int64_t number : numbers) {
      const double us = TimeProposal(&card, product.kernel, number);
      if (number == 0) usual = us;
      fused.Take(us, number);
    }
    for (int64_t number : apart) separate.Take(TimeProposal(&card, product.kernel, number), number);
    if (usual == 0) Fail(NameOf(product.kernel), ": the library refuses it");
    const double least = separate.us > 0 ? std::min(fused.us, separate.us) : fused.us;
    std::string all;
    for (const auto& [number, seconds] : at_load[i])
      all += Cat(all.empty() ? "" : " ", number >= kSumsApart ? "apart " : "", number % kSumsApart + 1, ": ",
                 static_cast<int64_t>(seconds * 1e7) / 10.0);
    std::printf("| %s | %d | %.1f | %s | %s | %.1f | %.1f | %s |\n", NameOf(product.kernel).c_str(),
                product.uses, usual, fused.str().c_str(), separate.str().c_str(),
                product.kernel.flops() / least / 1e6, TimeSteps(&card, product.kernel), all.c_str());
    first += product.uses * usual;
    best += product.uses * fused.us;
    taken += product.uses * least;
  }
  std::printf(
      "figure: %d products of a step take %.2f ms by the library's first proposals, %.2f by the best, %.2f "
      "with sums of our own where they are faster (%.1f %% less); choosing took %.2f s\n",
      static_cast<int>(products.size()), first / 1e3, best / 1e3, taken / 1e3, 100 * (first - taken) / first,
      choosing);
}

int Run() {
  std::printf("device: %s\n", TestedBackend()->Describe(FLAGS_device).c_str());
  if (FLAGS_what == "ceilings") {
    PrintCeilings(CeilingsNow());
  } else if (FLAGS_what == "steps") {
    RunSteps();
  } else if (FLAGS_what == "kernels") {
    RunKernels();
  } else if (FLAGS_what == "gemms") {
    RunGemms();
  } else if (FLAGS_what == "norms") {
    const double copy = CeilingsNow().copy;
    MeasuredDevice card(TestedBackend(), FLAGS_device);
    PrintNorms(&card, Emulated(), copy);
  } else if (FLAGS_what == "attention" || FLAGS_what == "grouped") {
    MeasuredDevice card(TestedBackend(), FLAGS_device);
    (FLAGS_what == "grouped" ? PrintGroupedProducts : PrintAttention)(&card, Emulated());
  } else {
    Fail("--what=", FLAGS_what, ": must be ceilings, steps, kernels, gemms, attention, grouped or norms");
  }
  return 0;
}

}  // namespace
}  // namespace oneflow_like::gpu

int main(int argc, char** argv) {
  gflags::SetUsageMessage("Measures a GPU and training steps on it.");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  try {
    oneflow_like::gpu::TestedBackend();
  } catch (const std::exception& error) {
    std::printf("no GPU to measure: %s\n", error.what());
    return 2;
  }
  try {
    return oneflow_like::gpu::Run();
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
}
