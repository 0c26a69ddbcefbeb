// Kernels of vision on the CPU, a row each: the convolutions of ResNet-50 forward and backward, its pooling,
// and what its batch norms are made of. tests/peers/vision_torch.py prints the same rows of PyTorch.
//   build/tests/vision_benchmark [threads] [batch] [bf16]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/parallel_for.h"
#include "ops/convolution.h"
#include "ops/cpu/manifest.h"
#include "ops/op.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

using Pair = std::vector<int64_t>;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As a device's memory, aligned to 64 bytes.
struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
struct Operand {
  TensorArg arg;
  std::unique_ptr<void, FreeMemory> memory;
};

Operand MakeOperand(DType dtype, const Dims& shape) {
  Operand operand{{nullptr, dtype, shape, Dims(shape.rank(), 0), shape}, {}};
  const size_t bytes = static_cast<size_t>(shape.elements()) * SizeOf(dtype);
  operand.memory.reset(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
  operand.arg.data = operand.memory.get();
  std::mt19937 random(1);
  for (int64_t i = 0; i < shape.elements(); ++i)
    StoreFloat(operand.arg, i, static_cast<double>(random()) / 4e9);
  return operand;
}

class Bench {
 public:
  Bench() {
    AddReferenceKernels(BuiltinCatalog(), &registry_);
    AddCpuKernels(&registry_);
  }

  // Kernels that run one after the other, and what they read and write.
  struct Acts {
    std::vector<std::unique_ptr<Operand>> operands;
    std::vector<KernelSpec> specs;
    std::vector<std::unique_ptr<Kernel>> kernels;

    const Operand* Add(DType dtype, const Dims& shape) {
      operands.push_back(std::make_unique<Operand>(MakeOperand(dtype, shape)));
      return operands.back().get();
    }
  };

  // One more; its first result.
  const Operand* Then(Acts* acts, const std::string& op, const std::vector<const Operand*>& in,
                      const Attrs& attrs) {
    KernelSpec spec{op, attrs, {}, {}, op, {}};
    std::vector<Dims> shapes;
    std::vector<DType> types;
    for (const Operand* operand : in) {
      spec.in.push_back(operand->arg);
      shapes.push_back(operand->arg.extent);
      types.push_back(operand->arg.dtype);
    }
    const Inferred inferred = Infer(BuiltinCatalog().Get(op), {op, op, shapes, types, &attrs});
    const Operand* first = nullptr;
    for (size_t o = 0; o < inferred.rule.out.size(); ++o) {
      const Operand* out = acts->Add(inferred.dtypes[o], inferred.rule.out[o].shape);
      spec.out.push_back(out->arg);
      if (o == 0) first = out;
    }
    acts->specs.push_back(spec);
    acts->kernels.push_back(registry_.Make(spec, "cpu"));
    return first;
  }

  // Median seconds of all of them in turn, at least 9 times in a third of a second.
  double Seconds(const Acts& acts) {
    auto run = [&] {
      for (size_t i = 0; i < acts.kernels.size(); ++i)
        (void)acts.kernels[i]->Run({acts.specs[i], acts.specs[i].in, acts.specs[i].out});
    };
    std::vector<double> seconds;
    run();
    const double begin = Now();
    while (seconds.size() < 9 || Now() - begin < 0.3) {
      const double start = Now();
      run();
      seconds.push_back(Now() - start);
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }

  double Seconds(const std::string& op, const std::vector<Dims>& in, const Attrs& attrs,
                 const std::vector<DType>& types) {
    Acts acts;
    std::vector<const Operand*> operands;
    for (size_t i = 0; i < in.size(); ++i) operands.push_back(acts.Add(types[i], in[i]));
    Then(&acts, op, operands, attrs);
    return Seconds(acts);
  }

  void Row(const std::string& name, const std::string& op, const std::vector<Dims>& in, const Attrs& attrs,
           std::vector<DType> types, double flops = 0) {
    const double seconds = Seconds(op, in, attrs, types);
    std::printf("%-34s %8.3f ms", name.c_str(), seconds * 1e3);
    if (flops > 0) std::printf(" %6.0f GFLOP/s", flops / seconds / 1e9);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  KernelRegistry registry_;
};

struct Layer {
  int64_t size, in, out, window, stride, padding;
};

void Convolutions(Bench* bench, int64_t batch, DType t) {
  for (const Layer& l : std::vector<Layer>{{224, 3, 64, 7, 2, 3},
                                           {56, 64, 64, 1, 1, 0},
                                           {56, 64, 64, 3, 1, 1},
                                           {56, 64, 256, 1, 1, 0},
                                           {56, 256, 64, 1, 1, 0},
                                           {56, 128, 128, 3, 2, 1},
                                           {56, 256, 512, 1, 2, 0},
                                           {28, 128, 128, 3, 1, 1},
                                           {28, 512, 128, 1, 1, 0},
                                           {14, 256, 256, 3, 1, 1},
                                           {14, 1024, 256, 1, 1, 0},
                                           {7, 512, 512, 3, 1, 1},
                                           {7, 2048, 512, 1, 1, 0}}) {
    const int64_t result = ConvolutionExtent(l.size, l.window, l.stride, l.padding, 1);
    const Dims x = {batch, l.size, l.size, l.in}, filter = {l.out, l.window, l.window, l.in},
               y = {batch, result, result, l.out};
    Attrs attrs = {{"stride", Pair{l.stride, l.stride}},
                   {"padding", Pair{l.padding, l.padding}},
                   {"dilation", Pair{1, 1}},
                   {"groups", int64_t{1}}};
    const double flops = 2.0 * y.elements() * l.window * l.window * l.in;
    const std::string name = Cat(l.size, " ", l.in, ">", l.out, " k", l.window, " s", l.stride);
    bench->Row("conv " + name, "conv2d", {x, filter}, attrs, {t, t}, flops);
    Attrs size = attrs, window = attrs;
    size.Set("size", Pair{l.size, l.size});
    window.Set("window", Pair{l.window, l.window});
    bench->Row("conv dx " + name, "conv2d_grad_input", {y, filter}, size, {t, t}, flops);
    bench->Row("conv dw " + name, "conv2d_grad_filter", {x, y}, window, {t, t}, flops);
  }
}

void Others(Bench* bench, int64_t batch, DType t) {
  const DType f = DType::kFloat32;
  const Dims x = {batch, 112, 112, 64}, y = {batch, 56, 56, 64};
  Attrs pool = {{"kernel", Pair{3, 3}}, {"stride", Pair{2, 2}}, {"padding", Pair{1, 1}}};
  bench->Row("max_pool 112 64", "max_pool2d", {x}, pool, {t});
  pool.Set("plane", Pair{112, 112});
  bench->Row("max_pool dx 112 64", "max_pool2d_grad", {y, y}, pool, {t, DType::kInt32});
  bench->Row("avg_pool 7 2048", "avg_pool2d", {{batch, 7, 7, 2048}}, {{"size", Pair{1, 1}}}, {t});
  Attrs resize = {{"mode", std::string("bilinear")}, {"align_corners", int64_t{0}}, {"size", Pair{56, 56}}};
  bench->Row("bilinear 28>56 128", "interpolate", {{batch, 28, 28, 128}}, resize, {t});
  Attrs back = {{"mode", std::string("bilinear")}, {"align_corners", int64_t{0}}, {"plane", Pair{28, 28}}};
  bench->Row("bilinear dx 28>56 128", "interpolate_grad", {{batch, 56, 56, 128}}, back, {t});
  for (const Dims& plane : {Dims{batch, 56, 56, 256}, Dims{batch, 14, 14, 512}}) {
    const Dims c = {plane[3]}, s = {batch, 32};
    const std::string name = Cat(plane[1], " ", plane[3]);
    bench->Row("group_norm " + name, "group_norm", {plane, c, c}, {{"groups", int64_t{32}}, {"eps", 1e-5}},
               {t, f, f});
    bench->Row("group_norm dx " + name, "group_norm_grad", {plane, plane, c, s, s}, {}, {t, t, f, f, f});
  }
}

// Kernels of a batch norm in training: moments of a part and of all and an affine forward, products and a
// chain backward. Each in turn, as in a step: x is not left in a cache by a kernel's last run.
void BatchNorms(Bench* bench, int64_t batch, DType t) {
  for (const Dims& plane : {Dims{batch, 112, 112, 64}, Dims{batch, 56, 56, 256}, Dims{batch, 14, 14, 1024},
                            Dims{batch, 7, 7, 2048}}) {
    const std::string name = Cat(plane[1], " ", plane[3]);
    const Attrs part = {
        {"axis", int64_t{1}}, {"begin", int64_t{0}}, {"end", plane[1]}, {"step", int64_t{16}}};
    const Attrs chain = {{"program", std::string("mul 0 2;sub 1 3;mul 7 4;add 8 5;add_n 6 9")},
                         {"outputs", Pair{10}}};
    Bench::Acts forward, backward;
    auto numbers = [&](Bench::Acts* acts) { return acts->Add(DType::kFloat32, {plane[3]}); };
    const Operand *x = forward.Add(t, plane), *centre = numbers(&forward);
    const Operand* some = bench->Then(&forward, "slice", {x}, part);
    bench->Then(&forward, "channel_moments", {some, centre}, {});
    bench->Then(&forward, "channel_moments", {x, centre}, {});
    bench->Then(&forward, "channel_affine", {x, centre, centre, centre}, {});
    std::printf("%-34s %8.3f ms\n", ("batch_norm " + name).c_str(), bench->Seconds(forward) * 1e3);
    std::vector<const Operand*> in = {backward.Add(t, plane), backward.Add(t, plane), numbers(&backward)};
    bench->Then(&backward, "channel_products", in, {});
    for (int i = 0; i < 3; ++i) in.push_back(numbers(&backward));
    bench->Then(&backward, "fused", in, chain);
    std::printf("%-34s %8.3f ms\n", ("batch_norm dx " + name).c_str(), bench->Seconds(backward) * 1e3);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  using namespace oneflow_like;
  SetParallelThreads(argc > 1 ? std::atoi(argv[1]) : 1);
  const int64_t batch = argc > 2 ? std::atoi(argv[2]) : 8;
  const DType dtype = argc > 3 ? DType::kBFloat16 : DType::kFloat32;
  FlushDenormals();
  Bench bench;
  Others(&bench, batch, dtype);
  BatchNorms(&bench, batch, dtype);
  Convolutions(&bench, batch, dtype);
}
