// Kernels of vision on the CPU, a row each: the convolutions of ResNet-50 and the depthwise ones of
// MobileNet-v2, forward and backward, pooling, and what batch norms are made of. tests/peers/vision_torch.py
// prints the same rows of PyTorch.
//   build/tests/vision_benchmark [threads] [batch] [bf16|fp16] [only=REGEX]
#include <array>

#include "ops/convolution.h"
#include "tests/ops/kernel_bench.h"

namespace oneflow_like {
namespace {

using Pair = std::vector<int64_t>;

struct Layer {
  int64_t size, in, out, window, stride, padding;
};

void Convolutions(const KernelBench& bench, int64_t batch, DType t) {
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
    bench.Row("conv " + name, "conv2d", {x, filter}, attrs, {t, t}, flops);
    Attrs size = attrs, window = attrs;
    size.Set("size", Pair{l.size, l.size});
    window.Set("window", Pair{l.window, l.window});
    bench.Row("conv dx " + name, "conv2d_grad_input", {y, filter}, size, {t, t}, flops);
    bench.Row("conv dw " + name, "conv2d_grad_filter", {x, y}, window, {t, t}, flops);
  }
}

void Depthwise(const KernelBench& bench, int64_t batch, DType t) {
  for (const auto& [size, channels, stride] : std::vector<std::array<int64_t, 3>>{
           {112, 32, 1}, {56, 144, 2}, {28, 192, 1}, {14, 576, 1}, {7, 960, 1}}) {
    const int64_t result = ConvolutionExtent(size, 3, stride, 1, 1);
    const Dims x = {batch, size, size, channels}, filter = {channels, 3, 3, 1},
               y = {batch, result, result, channels};
    const Attrs attrs = {{"stride", Pair{stride, stride}},
                         {"padding", Pair{1, 1}},
                         {"dilation", Pair{1, 1}},
                         {"groups", channels}};
    const double flops = 18.0 * static_cast<double>(y.elements());
    const std::string name = Cat(size, " ", channels, " s", stride);
    bench.Row("depthwise " + name, "conv2d", {x, filter}, attrs, {t, t}, flops);
    Attrs plane = attrs, window = attrs;
    plane.Set("size", Pair{size, size});
    window.Set("window", Pair{3, 3});
    bench.Row("depthwise dx " + name, "conv2d_grad_input", {y, filter}, plane, {t, t}, flops);
    bench.Row("depthwise dw " + name, "conv2d_grad_filter", {x, y}, window, {t, t}, flops);
  }
}

void Others(const KernelBench& bench, int64_t batch, DType t) {
  const DType f = DType::kFloat32;
  const Dims x = {batch, 112, 112, 64}, y = {batch, 56, 56, 64};
  Attrs pool = {{"kernel", Pair{3, 3}}, {"stride", Pair{2, 2}}, {"padding", Pair{1, 1}}};
  bench.Row("max_pool 112 64", "max_pool2d", {x}, pool, {t});
  pool.Set("plane", Pair{112, 112});
  bench.Row("max_pool dx 112 64", "max_pool2d_grad", {y, y}, pool, {t, DType::kInt32});
  bench.Row("avg_pool 7 2048", "avg_pool2d", {{batch, 7, 7, 2048}}, {{"size", Pair{1, 1}}}, {t});
  Attrs resize = {{"mode", std::string("bilinear")}, {"align_corners", int64_t{0}}, {"size", Pair{56, 56}}};
  bench.Row("bilinear 28>56 128", "interpolate", {{batch, 28, 28, 128}}, resize, {t});
  Attrs back = {{"mode", std::string("bilinear")}, {"align_corners", int64_t{0}}, {"plane", Pair{28, 28}}};
  bench.Row("bilinear dx 28>56 128", "interpolate_grad", {{batch, 56, 56, 128}}, back, {t});
  for (const Dims& plane : {Dims{batch, 56, 56, 256}, Dims{batch, 14, 14, 512}}) {
    const Dims c = {plane[3]}, s = {batch, 32};
    const std::string name = Cat(plane[1], " ", plane[3]);
    bench.Row("group_norm " + name, "group_norm", {plane, c, c}, {{"groups", int64_t{32}}, {"eps", 1e-5}},
              {t, f, f});
    bench.Row("group_norm dx " + name, "group_norm_grad", {plane, plane, c, s, s}, {}, {t, t, f, f, f});
  }
}

// Kernels of a batch norm in training: moments of a part and of all and an affine forward, products and a
// chain backward. Each in turn, as in a step: x is not left in a cache by a kernel's last run.
void BatchNorms(const KernelBench& bench, int64_t batch, DType t) {
  for (const Dims& plane : {Dims{batch, 112, 112, 64}, Dims{batch, 56, 56, 256}, Dims{batch, 14, 14, 1024},
                            Dims{batch, 7, 7, 2048}}) {
    const std::string name = Cat(plane[1], " ", plane[3]);
    const Attrs part = {
        {"axis", int64_t{1}}, {"begin", int64_t{0}}, {"end", plane[1]}, {"step", int64_t{16}}};
    const Attrs chain = {{"program", std::string("mul 0 2;sub 1 3;mul 7 4;add 8 5;add_n 6 9")},
                         {"outputs", Pair{10}}};
    auto numbers = [&](KernelBench::Acts* acts) { return acts->Add(DType::kFloat32, {plane[3]}); };
    if (bench.Wanted("batch_norm " + name)) {
      KernelBench::Acts acts;
      const KernelBench::Operand *x = acts.Add(t, plane), *centre = numbers(&acts);
      const KernelBench::Operand* some = bench.Then(&acts, "slice", {x}, part)[0];
      bench.Then(&acts, "channel_moments", {some, centre}, {});
      bench.Then(&acts, "channel_moments", {x, centre}, {});
      bench.Then(&acts, "channel_affine", {x, centre, centre, centre}, {});
      bench.Row("batch_norm " + name, acts);
    }
    if (bench.Wanted("batch_norm dx " + name)) {
      KernelBench::Acts acts;
      std::vector<const KernelBench::Operand*> in = {acts.Add(t, plane), acts.Add(t, plane), numbers(&acts)};
      bench.Then(&acts, "channel_products", in, {});
      for (int i = 0; i < 3; ++i) in.push_back(numbers(&acts));
      bench.Then(&acts, "fused", in, chain);
      bench.Row("batch_norm dx " + name, acts);
    }
  }
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  using namespace oneflow_like;
  const KernelBenchOptions options(argc, argv);
  const KernelBench bench(options);
  Others(bench, options.batch, options.dtype);
  BatchNorms(bench, options.batch, options.dtype);
  Convolutions(bench, options.batch, options.dtype);
  Depthwise(bench, options.batch, options.dtype);
}
