// The head of a language model and its loss, forward and backward: the two operators, which store all logits,
// linear_cross_entropy, which makes them twice in tiles, and linear_cross_entropy_sum, whose forward pass
// makes the gradients of a mean, which are then multiplied by what comes to it. All run in turn in every
// iteration; the counters are medians.
#include <cstring>
#include <memory>
#include <random>

#include "core/device/device.h"
#include "core/device/parallel_for.h"
#include "core/float16.h"
#include "ops/cpu/manifest.h"
#include "ops/language/losses.h"
#include "ops/op.h"
#include "tests/bench/bench.h"

namespace oneflow_like::bench {
namespace {

struct HeadTensor {
  TensorArg arg;
  std::vector<char> memory;
};

// Kernels of the CPU one after another, on operands of their own.
class HeadKernels {
 public:
  explicit HeadKernels(int threads) : threads_(threads) {
    AddReferenceKernels(BuiltinCatalog(), &registry_);
    AddCpuKernels(&registry_);
  }

  TensorArg Give(DType dtype, const Dims& shape, double most) {
    auto tensor = std::make_unique<HeadTensor>();
    tensor->memory.resize(static_cast<size_t>(shape.elements()) * SizeOf(dtype) + 64);
    char* const data = tensor->memory.data() + (64 - reinterpret_cast<uintptr_t>(tensor->memory.data()) % 64);
    tensor->arg = {data, dtype, shape, Dims(shape.rank(), 0), shape};
    std::mt19937 random(static_cast<uint32_t>(tensors_.size()));
    std::uniform_real_distribution<float> between(-1, 1);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const auto value = static_cast<float>(most) * between(random);
      if (dtype == DType::kFloat32) tensor->arg.as<float>()[i] = value;
      if (dtype == DType::kBFloat16) tensor->arg.as<BFloat16>()[i] = ToBFloat16(value);
      if (dtype == DType::kInt32)
        tensor->arg.as<int32_t>()[i] = static_cast<int32_t>(random() % static_cast<uint32_t>(most));
    }
    tensors_.push_back(std::move(tensor));
    return tensors_.back()->arg;
  }

  void Add(const std::string& name, const Attrs& attrs, const std::vector<TensorArg>& in,
           const std::vector<TensorArg>& out) {
    auto step = std::make_unique<Step>();
    step->spec = {.name = name, .attrs = attrs, .in = in, .out = out, .threads = threads_};
    step->kernel = registry_.Make(step->spec, "cpu");
    scratch_bytes_ = std::max(scratch_bytes_, registry_.Scratch(step->spec, "cpu"));
    steps_.push_back(std::move(step));
  }

  int64_t scratch_bytes() const { return scratch_bytes_; }
  // Seconds, or -1 after a failure.
  double Run(void* scratch) {
    const double start = Now();
    for (const auto& step : steps_)
      if (!step->kernel->Run({step->spec, step->spec.in, step->spec.out, scratch}).ok()) return -1;
    return Now() - start;
  }

 private:
  struct Step {
    KernelSpec spec;
    std::unique_ptr<Kernel> kernel;
  };
  int threads_;
  KernelRegistry registry_;
  std::vector<std::unique_ptr<HeadTensor>> tensors_;
  std::vector<std::unique_ptr<Step>> steps_;
  int64_t scratch_bytes_ = 0;
};

void Head(benchmark::State& state, DType dtype) {
  const int threads = static_cast<int>(state.range(0));
  const int64_t rows = state.range(1), hidden = state.range(2), classes = state.range(3),
                tile = state.range(4);
  SetParallelThreads(threads);
  FlushDenormals();
  HeadKernels two(threads), tiles(threads), once(threads);
  for (HeadKernels* kernels : {&two, &tiles, &once}) {
    const TensorArg x = kernels->Give(dtype, {rows, hidden}, 1),
                    w = kernels->Give(dtype, {classes, hidden}, 0.1),
                    target = kernels->Give(DType::kInt32, {rows}, static_cast<double>(classes)),
                    loss = kernels->Give(DType::kFloat32, {rows}, 1),
                    lse = kernels->Give(DType::kFloat32, {rows}, 1),
                    dloss = kernels->Give(DType::kFloat32, {rows}, 1),
                    dw = kernels->Give(DType::kFloat32, {classes, hidden}, 1),
                    dx = kernels->Give(dtype, {rows, hidden}, 1);
    if (kernels == &once) {
      const TensorArg total = kernels->Give(DType::kFloat32, {}, 1);
      kernels->Add("linear_cross_entropy_sum", {{"tile", tile}, {"keep", int64_t{1}}}, {x, w, target, dloss},
                   {total, loss, lse, dw, dx});
      kernels->Add("mul", {}, {dw, total}, {dw});
      kernels->Add("mul", {}, {dx, dtype == DType::kFloat32 ? total : kernels->Give(dtype, {}, 1)}, {dx});
      continue;
    }
    if (kernels == &tiles) {
      kernels->Add("linear_cross_entropy", {{"tile", tile}}, {x, w, target}, {loss, lse});
      kernels->Add("linear_cross_entropy_grad", {{"tile", tile}, {"dw", int64_t{1}}, {"dx", int64_t{1}}},
                   {x, w, target, lse, dloss}, {dw, dx});
      continue;
    }
    const TensorArg logits = kernels->Give(dtype, {rows, classes}, 1),
                    slope = kernels->Give(dtype, {rows, classes}, 1);
    kernels->Add("einsum", {{"equation", "tk,ck->tc"}}, {x, w}, {logits});
    kernels->Add("cross_entropy", {}, {logits, target}, {loss, lse});
    kernels->Add("cross_entropy_grad", {}, {logits, target, lse, dloss}, {slope});
    kernels->Add("einsum", {{"equation", "tc,ck->tk"}}, {slope, w}, {dx});
    kernels->Add("einsum", {{"equation", "tc,tk->ck"}}, {slope, x}, {dw});
  }
  const int64_t room =
      (std::max({two.scratch_bytes(), tiles.scratch_bytes(), once.scratch_bytes()}) + 127) / 64 * 64;
  const std::unique_ptr<void, void (*)(void*)> scratch(std::aligned_alloc(64, static_cast<size_t>(room)),
                                                       std::free);
  std::vector<double> of_two, of_tiles, of_once;
  for (auto _ : state) {
    of_two.push_back(two.Run(scratch.get()));
    of_tiles.push_back(tiles.Run(scratch.get()));
    of_once.push_back(once.Run(scratch.get()));
    if (of_two.back() < 0 || of_tiles.back() < 0 || of_once.back() < 0)
      return state.SkipWithError("a kernel failed");
  }
  state.counters["two_ms"] = 1e3 * Median(of_two);
  state.counters["tiles_ms"] = 1e3 * Median(of_tiles);
  state.counters["once_ms"] = 1e3 * Median(of_once);
  state.counters["tiles/two"] = Median(of_tiles) / Median(of_two);
  state.counters["once/two"] = Median(of_once) / Median(of_two);
  state.counters["logits_MB"] =
      2e-6 * static_cast<double>(rows * classes) * static_cast<double>(SizeOf(dtype));
  state.counters["scratch_MB"] = 1e-6 * static_cast<double>(tiles.scratch_bytes());
}

void Sizes(benchmark::internal::Benchmark* of) {
  of->ArgNames({"threads", "rows", "hidden", "classes", "tile"})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  for (int64_t threads : {1, 2})
    for (int64_t tile : {128, 256, 512}) of->Args({threads, 1024, 512, 16384, tile});
}
BENCHMARK_CAPTURE(Head, f32, DType::kFloat32)->Apply(Sizes);
BENCHMARK_CAPTURE(Head, bf16, DType::kBFloat16)->Apply(Sizes);

}  // namespace
}  // namespace oneflow_like::bench
