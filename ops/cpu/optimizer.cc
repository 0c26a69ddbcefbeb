// Updates in place, each one pass over its operands.
#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/language/schedule.h"

namespace oneflow_like::cpu {
namespace {

struct Update {
  double lr, decay;
  float factor = 1;  // on the gradient
  bool skipped = false;
  Update(const KernelContext& context, size_t factor_input) {
    const Attrs& attrs = context.spec.attrs;
    const bool rated = attrs.Int("rated", 0) != 0;
    const size_t inputs = context.in.size() - rated;
    lr = rated ? context.in.back().as<float>()[0] : attrs.Float("lr") * ScheduleFactor(attrs, context.step);
    decay = attrs.Float("weight_decay", 0);
    if (inputs > factor_input) factor = context.in[factor_input].as<float>()[0];
    skipped = inputs > factor_input + 1 && !*context.in[factor_input + 1].as<bool>();
  }
};

// What a step that is skipped leaves: weight and state as they were.
Status KeepAll(const KernelContext& context) {
  for (size_t o = 0; o < context.out.size(); ++o) {
    const TensorArg& from = context.in[o == 0 ? 0 : o + 1];
    if (from.data != context.out[o].data)
      CopyRuns(context.out[o].data, 0, from.data, 0, 1,
               from.elements() * static_cast<int64_t>(sizeof(float)));
  }
  return Status();
}

// kApart: decay shrinks the weight (adamw) instead of adding to the gradient (adam).
template <bool kApart>
Status RunAdam(const KernelContext& context) {
  Update update(context, 5);
  if (update.skipped) return KeepAll(context);
  const Attrs& attrs = context.spec.attrs;
  double b1 = attrs.Float("beta1", 0.9), b2 = attrs.Float("beta2", 0.999);
  double steps = static_cast<double>(context.in[4].as<float>()[0]) + 1;
  double correct1 = 1 - std::pow(b1, steps), correct2 = 1 - std::pow(b2, steps);
  float factor = update.factor, decay = static_cast<float>(update.decay);
  float beta1 = static_cast<float>(b1), rest1 = static_cast<float>(1 - b1);
  float beta2 = static_cast<float>(b2), rest2 = static_cast<float>(1 - b2);
  float eps = static_cast<float>(attrs.Float("eps", 1e-8));
  float keep = static_cast<float>(1 - update.lr * update.decay),
        rate = static_cast<float>(update.lr / correct1);
  float root = static_cast<float>(1 / std::sqrt(correct2));
  const float *w = context.in[0].as<float>(), *g = context.in[1].as<float>();
  const float *m = context.in[2].as<float>(), *v = context.in[3].as<float>();
  float *new_w = context.out[0].as<float>(), *new_m = context.out[1].as<float>(),
        *new_v = context.out[2].as<float>();
  ParallelFor(context.in[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    OFL_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      float weight = w[i], gradient = factor * g[i];
      if (!kApart) gradient += decay * weight;
      float mean = beta1 * m[i] + rest1 * gradient;
      float square = beta2 * v[i] + rest2 * gradient * gradient;
      if (kApart) weight *= keep;
      new_w[i] = weight - rate * mean / (__builtin_sqrtf(square) * root + eps);
      new_m[i] = mean;
      new_v[i] = square;
    }
  });
  return Status();
}

}  // namespace

Status Sgd(const KernelContext& context) {
  Update update(context, 3);
  if (update.skipped) return KeepAll(context);
  float rate = static_cast<float>(update.lr), decay = static_cast<float>(update.decay),
        factor = update.factor;
  float momentum = static_cast<float>(context.spec.attrs.Float("momentum", 0));
  // w -= rate (of_velocity velocity + of_gradient gradient)
  const bool nesterov = context.spec.attrs.Int("nesterov", 0) != 0;
  float of_velocity = nesterov ? momentum : 1, of_gradient = nesterov ? 1 : 0;
  const float *w = context.in[0].as<float>(), *g = context.in[1].as<float>(), *v = context.in[2].as<float>();
  float *new_w = context.out[0].as<float>(), *new_v = context.out[1].as<float>();
  ParallelFor(context.in[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    OFL_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      float gradient = factor * g[i] + decay * w[i], velocity = momentum * v[i] + gradient;
      new_w[i] = w[i] - rate * (of_velocity * velocity + of_gradient * gradient);
      new_v[i] = velocity;
    }
  });
  return Status();
}

Status SgdPlain(const KernelContext& context) {
  Update update(context, 2);
  if (update.skipped) return KeepAll(context);
  const float rate = static_cast<float>(update.lr), decay = static_cast<float>(update.decay);
  const float factor = update.factor;
  const float *w = context.in[0].as<float>(), *g = context.in[1].as<float>();
  float* new_w = context.out[0].as<float>();
  ParallelFor(context.in[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    OFL_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) new_w[i] = w[i] - rate * (factor * g[i] + decay * w[i]);
  });
  return Status();
}

KernelFactory ForUpdate(KernelFn fn) {
  return [fn](const KernelSpec& spec) {
    bool fits = std::all_of(spec.in.begin(), spec.in.end(), [](const TensorArg& arg) {
      return arg.dtype == DType::kFloat32 || arg.dtype == DType::kBool;  // bool: whether to update
    });
    return fits ? MakeFunctionKernel(fn)(spec) : MakeReference(spec);
  };
}

Status Adam(const KernelContext& context) { return RunAdam<false>(context); }
Status AdamW(const KernelContext& context) { return RunAdam<true>(context); }

}  // namespace oneflow_like::cpu
