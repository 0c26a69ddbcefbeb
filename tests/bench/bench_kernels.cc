// The hot kernels, one at a time: every distinct kernel of the measured models' own plans, on memory of its
// own, beside the machine's ceiling. `uses` counts the kernel in one step, `step_ms` is what these uses take.
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "compiler/compile.h"
#include "core/device/parallel_for.h"
#include "core/float16.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/bench/bench.h"

namespace oneflow_like::bench {
namespace {

struct HotKernel {
  plan::Kernel kernel;
  int uses = 0;  // in one step
};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};
using Block = std::unique_ptr<void, FreeDeleter>;

Block MakeOperand(const TensorArg& arg) {
  size_t bytes = (arg.elements() * SizeOf(arg.dtype) + 127) / 64 * 64;
  Block block(std::aligned_alloc(64, bytes));
  std::memset(block.get(), 0, bytes);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  if (arg.dtype == DType::kFloat32) {
    auto* at = static_cast<float*>(block.get());
    for (int64_t i = 0; i < arg.elements(); ++i) at[i] = uniform(random);
  } else if (arg.dtype == DType::kBFloat16) {
    auto* at = static_cast<BFloat16*>(block.get());
    for (int64_t i = 0; i < arg.elements(); ++i) at[i] = ToBFloat16(uniform(random));
  } else if (arg.dtype == DType::kInt32) {
    auto* at = static_cast<int32_t*>(block.get());
    for (int64_t i = 0; i < arg.elements(); ++i) at[i] = static_cast<int32_t>(random() % 256);
  }
  return block;
}

void RunKernel(benchmark::State& state, const HotKernel& hot, const KernelRegistry* registry) {
  const int threads = static_cast<int>(state.range(0));
  KernelSpec spec = ToSpec(hot.kernel);
  std::vector<Block> memory;
  SetParallelThreads(threads);
  FlushDenormals();
  const Ceiling& ceiling = CeilingOf(threads);
  spec.threads = threads;
  std::unique_ptr<Kernel> kernel = registry->Make(spec, "cpu");
  double bytes = 0;
  for (std::vector<TensorArg>* args : {&spec.in, &spec.out}) {
    for (TensorArg& arg : *args) {
      memory.push_back(MakeOperand(arg));
      arg.data = memory.back().get();
      bytes += static_cast<double>(arg.elements() * SizeOf(arg.dtype));
    }
  }
  const OpDef* def = BuiltinCatalog().Find(spec.name);
  if (def != nullptr)
    for (auto [out, in] : def->inplace) spec.out[out].data = spec.in[in].data;
  Block scratch(std::aligned_alloc(64, (registry->Scratch(spec, "cpu") + 127) / 64 * 64));
  KernelContext context{spec, spec.in, spec.out, scratch.get(), 3, 0, 1, 7};
  std::vector<double> seconds;
  (void)kernel->Run(context);
  for (auto _ : state) {
    double start = Now();
    Status status = kernel->Run(context);
    seconds.push_back(Now() - start);
    if (!status.ok()) return state.SkipWithError(status.message().c_str());
  }
  double median = Median(seconds), flops = hot.kernel.flops();
  if (spec.attrs.Int("causal", 0) != 0)
    flops /= 2;  // the plan counts all positions, the kernel skips half of them
  state.counters["uses"] = hot.uses;
  state.counters["step_ms"] = hot.uses * median * 1e3;
  state.counters["GB/s"] = bytes / median / 1e9;
  if (flops > bytes) {  // bound by arithmetic
    state.counters["GFLOP/s"] = flops / median / 1e9;
    const bool narrow = spec.in[0].dtype == DType::kBFloat16;
    state.counters["of_peak"] = flops / median / (narrow ? ceiling.bf16 : ceiling.sgemm);
  } else {
    state.counters["of_triad"] = bytes / median / ceiling.triad;
  }
}

// "einsum bsw,whd->bshd f32[8,256,384] f32[384,6,64]"
std::string NameOf(const plan::Kernel& kernel) {
  KernelSpec spec = ToSpec(kernel);
  std::string text = spec.name;
  if (spec.attrs.Has("equation")) text += " " + spec.attrs.Str("equation");
  if (spec.attrs.Has("program")) text += " '" + spec.attrs.Str("program") + "'";
  for (const TensorArg& arg : spec.in) text += Cat(" ", Name(arg.dtype), arg.extent.str());
  return text;
}

// The plan's distinct kernels by name.
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

}  // namespace

void RegisterKernels() {
  constexpr int64_t kHot = 100000;  // elements a kernel reads at least
  for (const MeasuredModel& measured : MeasuredModels()) {
    std::set<std::string> registered;  // what the bf16 step shares with the fp32 one is measured once
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      // Lives as long as the program: its registry makes the kernels.
      auto* training = new Training(measured, 1, 1, 1, dtype);
      const Session::Impl& session = *training->session().impl();
      for (const auto& [name, hot] : KernelsOf(PlanOf(session.compiled, 0).plan)) {
        int64_t elements = 0;
        for (const TensorArg& arg : ToSpec(hot.kernel).in) elements += arg.elements();
        if (elements < kHot || !registered.insert(name).second) continue;
        benchmark::RegisterBenchmark(Cat("Kernel/", measured.name, "/", name).c_str(), RunKernel, hot,
                                     &session.model->registry)
            ->ArgName("threads")
            ->Arg(1)
            ->Arg(2)
            ->MinTime(0.2)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace oneflow_like::bench
