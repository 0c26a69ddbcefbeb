#include "distance.h"

#include "core/device/parallel_for.h"

using namespace oneflow_like;

// What stands between these two lines is in oneflow_like/README.md.
// [operator]
Status DistanceKernel(const KernelContext& context) {
  const TensorArg &x = context.in[0], &c = context.in[1], &y = context.out[0];  // the pieces of this rank
  const int64_t rows = c.extent[0], width = c.extent[1];
  ParallelFor(x.extent[0], 64, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < rows; ++j) {
        const float *a = x.as<float>() + i * width, *b = c.as<float>() + j * width;
        float sum = 0;
        for (int64_t d = 0; d < width; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
        y.as<float>()[i * rows + j] = sum;
      }
  });
  return {};
}

OpDef DistanceOperator() {
  OpDef def;
  def.name = "distance";
  def.axes = "x[n d], c[k d] -> y[n k]";  // shapes and every way to cut them follow from this line
  def.folds = {{"d", Reduce::kSum}};      // with d cut, ranks have sums over their parts of it
  def.reference = DistanceKernel;         // runs on the CPU
  def.check = [](const OpCall& call) {    // that kernel reads floats
    for (DType type : call.dtypes)
      if (type != DType::kFloat32) Fail(call.who, ": x and c must be f32");
  };
  def.samples = {{.in = {{4, 3}, {5, 3}}}};  // shapes for OracleTest, which cuts them in every way
  def.grad = [](const GradCall& call) -> std::vector<Tensor> {
    Tensor x = call.in[0], c = call.in[1], dy = call.dout[0], turned = transpose(dy, {1, 0});
    return {2 * (x * sum(dy, {1}, true) - matmul(dy, c)),
            2 * (c * sum(turned, {1}, true) - matmul(turned, x))};
  };
  return def;
}

Tensor Distance(Tensor x, Tensor c, Here at) { return Apply(x.graph(), "distance", {x, c}, {}, at)[0]; }
// [operator]
