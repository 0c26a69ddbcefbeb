// sgd, adam and adamw in place, clip_factor, and loss scaling. A launch per tensor: each thread takes four
// elements at a time, 16 bytes of every fp32 operand. What depends on the step is computed on the device, by
// one thread of each block from launch.act, so that a recorded launch serves every step.
//
// Floor, bytes per element with fp32 weights and state and a gradient of type G: sgd 16 + sizeof(G) (reads w,
// g, v, writes w, v), adam and adamw 24 + sizeof(G). A skipped step (gradients that overflowed) in place
// touches nothing.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/schedule.h"

namespace oneflow_like::cuda {
namespace {

// The attributes of an update; the logarithms turn powers with the number of steps into exponentials.
struct UpdateNumbers {
  double lr = 0, decay = 0, momentum = 0, beta1 = 0, beta2 = 0, eps = 0;
  double log_beta1 = 0, log_beta2 = 0;
  ScheduleNumbers schedule;
  FloatView factor;              // no data: 1
  const bool* finite = nullptr;  // not there: yes
};

UpdateNumbers ReadNumbers(const KernelContext& context, size_t factor_input) {
  const Attrs& attrs = context.spec.attrs;
  UpdateNumbers numbers;
  numbers.lr = attrs.Float("lr");
  numbers.decay = attrs.Float("weight_decay", 0);
  numbers.momentum = attrs.Float("momentum", 0);
  numbers.beta1 = attrs.Float("beta1", 0.9);
  numbers.beta2 = attrs.Float("beta2", 0.999);
  numbers.eps = attrs.Float("eps", 1e-8);
  numbers.log_beta1 = std::log(numbers.beta1);  // of 0: -inf, whose exponential is 0
  numbers.log_beta2 = std::log(numbers.beta2);
  numbers.schedule = ReadSchedule(attrs);
  if (context.in.size() > factor_input) numbers.factor = FloatsOf(context.in[factor_input]);
  if (context.in.size() > factor_input + 1) numbers.finite = context.in[factor_input + 1].as<bool>();
  return numbers;
}

// What a block's threads share of this step: filled by one of them.
struct StepNumbers {
  float factor, rate, keep, root;
  bool skipped;
};

// rate: the learning rate, for adam divided by 1 - beta1^steps; keep: 1 - lr decay; root: 1 / sqrt(1 -
// beta2^steps).
OFL_DEVICE void FillStep(const UpdateNumbers& numbers, const ActState* act, bool adam, StepNumbers* step) {
  double lr = numbers.lr * FactorAt(numbers.schedule, act->step), steps = static_cast<double>(act->step + 1);
  step->factor = numbers.factor.data == nullptr ? 1.0f : numbers.factor.At(0);
  step->skipped = numbers.finite != nullptr && !*numbers.finite;
  step->keep = static_cast<float>(1.0 - lr * numbers.decay);
  step->rate = static_cast<float>(adam ? lr / -::expm1(steps * numbers.log_beta1) : lr);
  step->root = adam ? static_cast<float>(1.0 / ::sqrt(-::expm1(steps * numbers.log_beta2))) : 1.0f;
}

// Operands of an update; sgd has no second state.
template <typename W, typename G>
struct UpdateOperands {
  W w, m, v, new_w, new_m, new_v;
  G g;
  int64_t count;
  bool packed;
};

// Views of one type, to be read and written as FloatView is.
template <typename T>
struct TypedView {
  T* data;
  OFL_DEVICE float At(int64_t i) const { return Load(data[i]); }
  OFL_DEVICE void Put(int64_t i, float value) const { data[i] = Store<T>(value); }
  template <int N>
  OFL_DEVICE Pack<float, N> Read(int64_t i) const {
    Pack<T, N> pack = LoadPack<N>(data + i);
    Pack<float, N> wide;
    for (int k = 0; k < N; ++k) wide.at[k] = Load(pack.at[k]);
    return wide;
  }
  template <int N>
  OFL_DEVICE void Write(int64_t i, const Pack<float, N>& wide) const {
    Pack<T, N> pack;
    for (int k = 0; k < N; ++k) pack.at[k] = Store<T>(wide.at[k]);
    StorePack(data + i, pack);
  }
};
struct AnyView : FloatView {
  template <int N>
  OFL_DEVICE Pack<float, N> Read(int64_t i) const {
    Pack<float, N> wide;
    for (int k = 0; k < N; ++k) wide.at[k] = At(i + k);
    return wide;
  }
  template <int N>
  OFL_DEVICE void Write(int64_t i, const Pack<float, N>& wide) const {
    for (int k = 0; k < N; ++k) Put(i + k, wide.at[k]);
  }
};

enum class Rule { kSgd, kAdam, kAdamW };

// N elements from i on.
template <Rule kRule, int N, typename W, typename G>
OFL_DEVICE void UpdateAt(const UpdateOperands<W, G>& op, const UpdateNumbers& numbers,
                         const StepNumbers& step, int64_t i) {
  constexpr bool kAdamLike = kRule != Rule::kSgd;
  Pack<float, N> w = op.w.template Read<N>(i), g = op.g.template Read<N>(i), m = op.m.template Read<N>(i),
                 v = m;
  if constexpr (kAdamLike) v = op.v.template Read<N>(i);
  if (!step.skipped) {
    float decay = static_cast<float>(numbers.decay), momentum = static_cast<float>(numbers.momentum);
    float beta1 = static_cast<float>(numbers.beta1), rest1 = static_cast<float>(1.0 - numbers.beta1);
    float beta2 = static_cast<float>(numbers.beta2), rest2 = static_cast<float>(1.0 - numbers.beta2);
    float eps = static_cast<float>(numbers.eps);
    for (int k = 0; k < N; ++k) {
      float gradient = step.factor * g.at[k];
      if (kRule != Rule::kAdamW) gradient += decay * w.at[k];
      if constexpr (kAdamLike) {
        m.at[k] = beta1 * m.at[k] + rest1 * gradient;
        v.at[k] = beta2 * v.at[k] + rest2 * gradient * gradient;
        if (kRule == Rule::kAdamW) w.at[k] *= step.keep;
        w.at[k] -= step.rate * m.at[k] / (sqrtf(v.at[k]) * step.root + eps);
      } else {
        m.at[k] = momentum * m.at[k] + gradient;
        w.at[k] -= step.rate * m.at[k];
      }
    }
  }
  op.new_w.template Write<N>(i, w);
  op.new_m.template Write<N>(i, m);
  if constexpr (kAdamLike) op.new_v.template Write<N>(i, v);
}

template <Rule kRule, typename W, typename G>
OFL_KERNEL void UpdateElements(UpdateOperands<W, G> op, UpdateNumbers numbers, const ActState* act) {
  OFL_SHARED StepNumbers step;
  constexpr int N = 4;
  if (threadIdx.x == 0) FillStep(numbers, act, kRule != Rule::kSgd, &step);
  __syncthreads();
  bool in_place = op.new_w.data == op.w.data && op.new_m.data == op.m.data && op.new_v.data == op.v.data;
  if (step.skipped && in_place) return;
  int64_t me = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, all = int64_t{gridDim.x} * blockDim.x;
  int64_t packs = op.packed ? op.count / N : 0;
  for (int64_t p = me; p < packs; p += all) UpdateAt<kRule, N>(op, numbers, step, p * N);
  for (int64_t i = packs * N + me; i < op.count; i += all) UpdateAt<kRule, 1>(op, numbers, step, i);
}

template <typename View>
View ViewOf(const TensorArg& arg) {
  View view;
  view.data = static_cast<decltype(view.data)>(arg.data);
  if constexpr (std::is_same_v<View, AnyView>) view.dtype = arg.dtype;
  return view;
}

template <Rule kRule, typename W, typename G>
void LaunchUpdate(const KernelContext& context, const LaunchContext& launch) {
  constexpr size_t kState = kRule == Rule::kSgd ? 1 : 2;
  auto in = context.in, out = context.out;
  UpdateOperands<W, G> op;
  op.w = ViewOf<W>(in[0]);
  op.g = ViewOf<G>(in[1]);
  op.m = ViewOf<W>(in[2]);
  op.v = ViewOf<W>(in[1 + kState]);
  op.new_w = ViewOf<W>(out[0]);
  op.new_m = ViewOf<W>(out[1]);
  op.new_v = ViewOf<W>(out[kState]);
  op.count = in[0].elements();
  op.packed = std::is_same_v<W, TypedView<float>>;
  for (size_t i = 0; i < 2 + kState; ++i) op.packed = op.packed && Aligned(in[i].data);
  for (const TensorArg& arg : out) op.packed = op.packed && Aligned(arg.data);
  Grid grid{.x = BlocksFor((op.count + 3) / 4, 256, launch.multiprocessors)};
  Launch(UpdateElements<kRule, W, G>, grid, launch.stream, op, ReadNumbers(context, 2 + kState), launch.act);
}

template <Rule kRule>
Status Update(const KernelContext& context, const LaunchContext& launch) {
  constexpr size_t kState = kRule == Rule::kSgd ? 1 : 2;
  if (context.in[0].elements() == 0) return Status();
  bool wide = context.in[0].dtype == DType::kFloat32;
  for (size_t i = 2; i < 2 + kState; ++i) wide = wide && context.in[i].dtype == DType::kFloat32;
  if (!wide) {
    LaunchUpdate<kRule, AnyView, AnyView>(context, launch);
  } else {
    WithFloating(context.in[1].dtype, [&](auto g) {
      LaunchUpdate<kRule, TypedView<float>, TypedView<decltype(g)>>(context, launch);
    });
  }
  return Status();
}

// --- Scalars: one thread
// -------------------------------------------------------------------------------------------

OFL_KERNEL void ClipFactorOf(FloatView squares, double max_norm, FloatView factor, FloatView norm) {
  if (threadIdx.x != 0) return;
  double length = ::sqrt(static_cast<double>(squares.At(0))), clip = max_norm / (length + 1e-6);
  factor.Put(0, static_cast<float>(clip > 1.0 ? 1.0 : clip));  // a NaN stays one
  norm.Put(0, static_cast<float>(length));
}

Status ClipFactor(const KernelContext& context, const LaunchContext& launch) {
  Launch(ClipFactorOf, Grid{.threads = 32}, launch.stream, FloatsOf(context.in[0]),
         context.spec.attrs.Float("max_norm"), FloatsOf(context.out[0]), FloatsOf(context.out[1]));
  return Status();
}

OFL_KERNEL void UnscaleOf(FloatView squares, FloatView scale, double max_norm, FloatView factor,
                          FloatView norm, bool* finite) {
  if (threadIdx.x != 0) return;
  double by = scale.At(0), length = ::sqrt(static_cast<double>(squares.At(0))) / by;
  double clip = max_norm > 0 && max_norm < length + 1e-6 ? max_norm / (length + 1e-6) : 1.0;
  factor.Put(0, static_cast<float>(clip / by));
  norm.Put(0, static_cast<float>(length));
  *finite = length - length == 0.0;
}

Status Unscale(const KernelContext& context, const LaunchContext& launch) {
  Launch(UnscaleOf, Grid{.threads = 32}, launch.stream, FloatsOf(context.in[0]), FloatsOf(context.in[1]),
         context.spec.attrs.Float("max_norm"), FloatsOf(context.out[0]), FloatsOf(context.out[1]),
         context.out[2].as<bool>());
  return Status();
}

struct ScaleRule {
  double least, most, interval;
};

OFL_KERNEL void NextLossScale(FloatView scale, FloatView steps, const bool* finite, ScaleRule rule,
                              FloatView new_scale, FloatView new_steps) {
  if (threadIdx.x != 0) return;
  double now = scale.At(0), count = static_cast<double>(steps.At(0)) + 1.0;
  if (!*finite) {
    now = now / 2 < rule.least ? rule.least : now / 2;
    count = 0;
  } else if (count >= rule.interval) {
    now = now * 2 > rule.most ? rule.most : now * 2;
    count = 0;
  }
  new_scale.Put(0, static_cast<float>(now));
  new_steps.Put(0, static_cast<float>(count));
}

Status UpdateLossScale(const KernelContext& context, const LaunchContext& launch) {
  const Attrs& attrs = context.spec.attrs;
  ScaleRule rule = {attrs.Float("least", 1), attrs.Float("most", 16777216),
                    static_cast<double>(attrs.Int("interval", 2000))};
  Launch(NextLossScale, Grid{.threads = 32}, launch.stream, FloatsOf(context.in[0]), FloatsOf(context.in[1]),
         static_cast<const bool*>(context.in[2].as<bool>()), rule, FloatsOf(context.out[0]),
         FloatsOf(context.out[1]));
  return Status();
}

}  // namespace

void AddOptimizerKernels(KernelRegistry* registry) {
  registry->Add("sgd", "cuda", MakeLaunchKernel(Update<Rule::kSgd>));
  registry->Add("adam", "cuda", MakeLaunchKernel(Update<Rule::kAdam>));
  registry->Add("adamw", "cuda", MakeLaunchKernel(Update<Rule::kAdamW>));
  registry->Add("clip_factor", "cuda", MakeLaunchKernel(ClipFactor));
  registry->Add("unscale", "cuda", MakeLaunchKernel(Unscale));
  registry->Add("update_loss_scale", "cuda", MakeLaunchKernel(UpdateLossScale));
}

}  // namespace oneflow_like::cuda
