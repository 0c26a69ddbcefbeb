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

  // Median seconds of an act, at least 9 of them in a third of a second.
  double Seconds(const std::string& op, const std::vector<Dims>& in, const Attrs& attrs,
                 const std::vector<DType>& types) {
    const Inferred inferred = Infer(BuiltinCatalog().Get(op), {op, op, in, types, &attrs});
    std::vector<Operand> operands;
    for (size_t i = 0; i < in.size(); ++i) operands.push_back(MakeOperand(types[i], in[i]));
    for (size_t o = 0; o < inferred.rule.out.size(); ++o)
      operands.push_back(MakeOperand(inferred.dtypes[o], inferred.rule.out[o].shape));
    KernelSpec spec{op, attrs, {}, {}, op, {}};
    for (size_t i = 0; i < operands.size(); ++i)
      (i < in.size() ? spec.in : spec.out).push_back(operands[i].arg);
    std::unique_ptr<Kernel> kernel = registry_.Make(spec, "cpu");
    std::vector<double> seconds;
    (void)kernel->Run({spec, spec.in, spec.out});
    const double begin = Now();
    while (seconds.size() < 9 || Now() - begin < 0.3) {
      const double start = Now();
      (void)kernel->Run({spec, spec.in, spec.out});
      seconds.push_back(Now() - start);
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
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
  // A batch norm is moments of a part and of all and an affine forward, products and a chain backward.
  for (const Dims& plane : {Dims{batch, 112, 112, 64}, Dims{batch, 56, 56, 256}, Dims{batch, 14, 14, 1024},
                            Dims{batch, 7, 7, 2048}}) {
    const Dims c = {plane[3]};
    const std::string name = Cat(plane[1], " ", plane[3]);
    Dims some = plane;
    some[1] = (plane[1] + 15) / 16;
    const Attrs part = {
        {"axis", int64_t{1}}, {"begin", int64_t{0}}, {"end", plane[1]}, {"step", int64_t{16}}};
    const double centre = bench->Seconds("slice", {plane}, part, {t}) +
                          bench->Seconds("channel_moments", {some, c}, {}, {t, f});
    const double moments = bench->Seconds("channel_moments", {plane, c}, {}, {t, f});
    const double affine = bench->Seconds("channel_affine", {plane, c, c, c}, {}, {t, f, f, f});
    const double products = bench->Seconds("channel_products", {plane, plane, c}, {}, {t, t, f});
    const Attrs chain = {{"program", std::string("mul 0 2;sub 1 3;mul 7 4;add 8 5;add_n 6 9")},
                         {"outputs", Pair{10}}};
    const double dx = bench->Seconds("fused", {plane, plane, c, c, c, c}, chain, {t, t, f, f, f, f});
    std::printf("%-34s %8.3f ms (centre %.3f, moments %.3f, affine %.3f)\n", ("batch_norm " + name).c_str(),
                (centre + moments + affine) * 1e3, centre * 1e3, moments * 1e3, affine * 1e3);
    std::printf("%-34s %8.3f ms (products %.3f, chain %.3f)\n", ("batch_norm dx " + name).c_str(),
                (products + dx) * 1e3, products * 1e3, dx * 1e3);
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
  Convolutions(&bench, batch, dtype);
}
