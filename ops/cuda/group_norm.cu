// group_norm and its gradient: a block for each group of a sample, which goes through it three times forward
// (mean, variance, result; the caches hold most groups) and twice backward. Floor, bytes: forward x and y
// once each, gradient dy, x and dx once each, and dy and x once more for dgamma and dbeta, which are sums of
// columns (channel_sums.h).
#include "ops/cuda/channel_sums.h"
#include "ops/cuda/kernels.h"

namespace oneflow_like::cuda {
namespace {

struct GroupShape {
  int64_t batch, rows, groups, width;  // rows: of one sample; width: channels of a group

  OFL_DEVICE int64_t elements() const { return rows * width; }
  // Offset of element e of group g of sample n, and its channel.
  OFL_DEVICE int64_t At(int64_t n, int64_t g, int64_t e) const {
    int64_t row = e / width;
    return ((n * rows + row) * groups + g) * width + (e - row * width);
  }
};
GroupShape ShapeOfGroups(const TensorArg& x, const TensorArg& statistic) {
  GroupShape s{x.extent[0], 1, statistic.extent[1], 0};
  for (int axis = 1; axis + 1 < x.extent.rank(); ++axis) s.rows *= x.extent[axis];
  if (s.groups > 0) s.width = x.extent.back() / s.groups;
  return s;
}

// The sum over a group of f(element), in all threads.
template <typename F>
OFL_DEVICE float GroupSum(const GroupShape& s, float* room, F&& f) {
  float sum = 0.0f;
  for (int64_t e = threadIdx.x; e < s.elements(); e += blockDim.x) sum += f(e);
  return BlockSum(sum, room);
}

template <typename T>
OFL_KERNEL void NormGroups(GroupShape s, const T* x, FloatView gamma, FloatView beta, T* y, FloatView means,
                           FloatView rstds, float eps) {
  OFL_SHARED float room[32];
  float share = s.elements() > 0 ? 1.0f / static_cast<float>(s.elements()) : 0.0f;
  for (int64_t i = blockIdx.x; i < s.batch * s.groups; i += gridDim.x) {
    int64_t n = i / s.groups, g = i - n * s.groups;
    auto at = [&](int64_t e) { return Load(x[s.At(n, g, e)]); };
    float mean = GroupSum(s, room, at) * share;
    float variance = GroupSum(s, room, [&](int64_t e) { return (at(e) - mean) * (at(e) - mean); }) * share;
    float rstd = 1.0f / sqrtf(variance + eps);
    for (int64_t e = threadIdx.x; e < s.elements(); e += blockDim.x) {
      int64_t channel = g * s.width + e % s.width;
      y[s.At(n, g, e)] = Store<T>((at(e) - mean) * rstd * gamma.At(channel) + beta.At(channel));
    }
    if (threadIdx.x != 0) continue;
    means.Put(i, mean);
    rstds.Put(i, rstd);
  }
}

// With m = (x - mean) rstd and d = dy gamma: dx = rstd (d - mean(d) - m mean(d m)).
template <typename T>
OFL_KERNEL void GradGroups(GroupShape s, FloatView dy, const T* x, FloatView gamma, FloatView means,
                           FloatView rstds, T* dx) {
  OFL_SHARED float room[32];
  float share = s.elements() > 0 ? 1.0f / static_cast<float>(s.elements()) : 0.0f;
  for (int64_t i = blockIdx.x; i < s.batch * s.groups; i += gridDim.x) {
    int64_t n = i / s.groups, g = i - n * s.groups;
    float mean = means.At(i), rstd = rstds.At(i);
    auto d = [&](int64_t e) { return dy.At(s.At(n, g, e)) * gamma.At(g * s.width + e % s.width); };
    auto m = [&](int64_t e) { return (Load(x[s.At(n, g, e)]) - mean) * rstd; };
    float mean_d = GroupSum(s, room, d) * share;
    float mean_dm = GroupSum(s, room, [&](int64_t e) { return d(e) * m(e); }) * share;
    for (int64_t e = threadIdx.x; e < s.elements(); e += blockDim.x)
      dx[s.At(n, g, e)] = Store<T>(rstd * (d(e) - mean_d - m(e) * mean_dm));
  }
}

// Of dgamma and dbeta.
template <typename T>
struct ParameterTerms {
  GroupShape s;
  FloatView dy;
  const T* x;
  FloatView means, rstds;
  OFL_DEVICE TwoTerms operator()(int64_t row, int64_t c) const {
    int64_t at = row * s.groups * s.width + c, statistic = row / s.rows * s.groups + c / s.width;
    float d = dy.At(at);
    return {d * (Load(x[at]) - means.At(statistic)) * rstds.At(statistic), d};
  }
};

Grid GridOf(const GroupShape& s) {
  return {.x = static_cast<unsigned>(std::min<int64_t>(s.batch * s.groups, int64_t{1} << 20))};
}

Status GroupNorm(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const GroupShape s = ShapeOfGroups(x, context.out[1]);
  const float eps = static_cast<float>(context.spec.attrs.Float("eps"));
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(NormGroups<T>, GridOf(s), launch.stream, s, x.as<T>(), FloatsOf(context.in[1]),
           FloatsOf(context.in[2]), y.as<T>(), FloatsOf(context.out[1]), FloatsOf(context.out[2]), eps);
  });
  return Status();
}

Status GroupNormGrad(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &x = context.in[1], &dx = context.out[0];
  const GroupShape s = ShapeOfGroups(x, context.in[3]);
  FloatView dy = FloatsOf(context.in[0]), gamma = FloatsOf(context.in[2]), means = FloatsOf(context.in[3]),
            rstds = FloatsOf(context.in[4]);
  if (Status room = RequireRoom(x.extent.back(), launch); !room.ok()) return room;
  WithFloating(x.dtype, [&](auto t) {
    using T = decltype(t);
    Launch(GradGroups<T>, GridOf(s), launch.stream, s, dy, x.as<T>(), gamma, means, rstds, dx.as<T>());
    ParameterTerms<T> terms{s, dy, x.as<T>(), means, rstds};
    SumChannels(s.batch * s.rows, s.groups * s.width, terms, FloatsOf(context.out[1]),
                FloatsOf(context.out[2]), launch);
  });
  return Status();
}

}  // namespace

void AddGroupNormKernels(KernelRegistry* registry) {
  registry->Add("group_norm", "cuda", MakeLaunchKernel(GroupNorm));
  registry->Add("group_norm_grad", "cuda", MakeLaunchKernel(GroupNormGrad));
}

}  // namespace oneflow_like::cuda
