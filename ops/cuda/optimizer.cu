// sgd_plain, sgd, adam and adamw in place, assign and learning_rate, clip_factor, and loss scaling. Updates
// that follow each other in a segment are one launch: its blocks are dealt out to the tensors, a stretch of
// one tensor each, of which each thread takes four elements at a time, 16 bytes of every fp32 operand. What
// depends on the step is computed on the device, by one thread of each block from launch.act and the number
// of updates made before, so that a recorded launch serves every step.
//
// Floor, bytes per element with fp32 weights and state and a gradient of type G: sgd_plain 8 + sizeof(G), sgd
// 16 + sizeof(G) (reads w, g, v, writes w, v), adam and adamw 24 + sizeof(G). A skipped step (gradients that
// overflowed) in place touches nothing. For biases and norms a launch of their own takes longer than the
// floor: there are as many of them as matrices.
#include <algorithm>
#include <cmath>

#include "ops/cuda/kernels.h"
#include "ops/cuda/operand.h"
#include "ops/cuda/together.h"
#include "ops/language/schedule.h"

namespace oneflow_like::cuda {
namespace {

enum class Rule { kPlain, kSgd, kAdam, kAdamW };

template <Rule kRule>
constexpr bool kAdamLike = kRule == Rule::kAdam || kRule == Rule::kAdamW;
template <Rule kRule>
constexpr size_t kStatesOf = kRule == Rule::kPlain ? 0
                             : kAdamLike<kRule>    ? 2
                                                   : 1;

// The attributes of an update but for its weight decay, which matrices have and biases have not; the
// logarithms turn powers with the number of steps into exponentials.
struct UpdateNumbers {
  double lr = 0, momentum = 0, beta1 = 0, beta2 = 0, eps = 0;
  double log_beta1 = 0, log_beta2 = 0;
  bool nesterov = false, rated = false;  // rated: the last operand is the learning rate
  Schedule schedule;

  bool operator==(const UpdateNumbers&) const = default;
};

UpdateNumbers ReadNumbers(const Attrs& attrs) {
  UpdateNumbers numbers;
  numbers.lr = attrs.Float("lr");
  numbers.momentum = attrs.Float("momentum", 0);
  numbers.nesterov = attrs.Int("nesterov", 0) != 0;
  numbers.rated = attrs.Int("rated", 0) != 0;
  numbers.beta1 = attrs.Float("beta1", 0.9);
  numbers.beta2 = attrs.Float("beta2", 0.999);
  numbers.eps = attrs.Float("eps", 1e-8);
  numbers.log_beta1 = std::log(numbers.beta1);  // of 0: -inf, whose exponential is 0
  numbers.log_beta2 = std::log(numbers.beta2);
  numbers.schedule = ReadSchedule(attrs);
  return numbers;
}

// Operands of an update, in the order of their slots in UpdateTensor. Where a rule has fewer states the
// slots of the others hold an operand that it has, and are not touched.
enum Slot { kWeight, kGradient, kFirst, kSecond, kNewWeight, kNewFirst, kNewSecond, kSlots };

struct UpdateTensor {
  void* data[kSlots];
  int64_t count;
  double decay;
  DType dtype[kSlots];
  bool packed;
};

// What is updated by one launch: models have hundreds of small tensors, but most launches few.
constexpr size_t kFewTensors = 44, kManyTensors = 380;
template <size_t kMost>
struct UpdateList {
  UpdateTensor items[kMost];
  uint32_t first[kMost];  // block of each tensor; rising
  int32_t size;
  int64_t stretch;     // elements of a block, a multiple of 4
  FloatView updates;   // no data: not asked for
  FloatView factor;    // no data: 1
  FloatView rate;      // no data: as the numbers say
  const bool* finite;  // not there: yes
};
static_assert(sizeof(UpdateList<kFewTensors>) + sizeof(UpdateNumbers) + sizeof(void*) <= kMostArgumentBytes);
static_assert(sizeof(UpdateList<kManyTensors>) + sizeof(UpdateNumbers) + sizeof(void*) <= kManyArgumentBytes);

// What a block's threads share of this step: filled by one of them.
struct StepNumbers {
  float factor, rate, keep, root;
  bool skipped;
};

// rate: the learning rate, for adam divided by 1 - beta1^steps; keep: 1 - lr decay; root: 1 / sqrt(1 -
// beta2^steps).
template <size_t kMost>
OFL_DEVICE void FillStep(const UpdateList<kMost>& list, const UpdateNumbers& numbers, double decay,
                         const ActState* act, bool adam, StepNumbers* step) {
  double lr = list.rate.data == nullptr ? numbers.lr * FactorAt(numbers.schedule, act->step)
                                        : static_cast<double>(list.rate.At(0));
  double steps = adam ? static_cast<double>(list.updates.At(0)) + 1.0 : 0.0;
  step->factor = list.factor.data == nullptr ? 1.0f : list.factor.At(0);
  step->skipped = list.finite != nullptr && !*list.finite;
  step->keep = static_cast<float>(1.0 - lr * decay);
  step->rate = static_cast<float>(adam ? lr / -::expm1(steps * numbers.log_beta1) : lr);
  step->root = adam ? static_cast<float>(1.0 / ::sqrt(-::expm1(steps * numbers.log_beta2))) : 1.0f;
}

// Views of one type, to be read and written as FloatView is.
template <typename T>
struct TypedView {
  T* data;
  OFL_DEVICE static TypedView Of(const UpdateTensor& tensor, Slot place) {
    return {static_cast<T*>(tensor.data[place])};
  }
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
  OFL_DEVICE static AnyView Of(const UpdateTensor& tensor, Slot place) {
    AnyView view;
    view.data = tensor.data[place];
    view.dtype = tensor.dtype[place];
    return view;
  }
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

template <typename W, typename G>
struct UpdateOperands {
  W w, m, v, new_w, new_m, new_v;
  G g;
  float decay;
};

// N elements from i on.
template <Rule kRule, int N, typename W, typename G>
OFL_DEVICE void UpdateAt(const UpdateOperands<W, G>& op, const UpdateNumbers& numbers,
                         const StepNumbers& step, int64_t i) {
  constexpr size_t kStates = kStatesOf<kRule>;
  Pack<float, N> w = op.w.template Read<N>(i), g = op.g.template Read<N>(i), m = g, v = g;
  if constexpr (kStates > 0) m = op.m.template Read<N>(i);
  if constexpr (kAdamLike<kRule>) v = op.v.template Read<N>(i);
  if (!step.skipped) {
    float decay = op.decay, momentum = static_cast<float>(numbers.momentum);
    float beta1 = static_cast<float>(numbers.beta1), rest1 = static_cast<float>(1.0 - numbers.beta1);
    float beta2 = static_cast<float>(numbers.beta2), rest2 = static_cast<float>(1.0 - numbers.beta2);
    float eps = static_cast<float>(numbers.eps);
    // Of sgd: w -= rate (of_velocity velocity + of_gradient gradient).
    float of_velocity = numbers.nesterov ? momentum : 1.0f, of_gradient = numbers.nesterov ? 1.0f : 0.0f;
    for (int k = 0; k < N; ++k) {
      float gradient = step.factor * g.at[k];
      if (kRule != Rule::kAdamW) gradient += decay * w.at[k];
      if constexpr (kRule == Rule::kPlain) {
        w.at[k] -= step.rate * gradient;
      } else if constexpr (kAdamLike<kRule>) {
        m.at[k] = beta1 * m.at[k] + rest1 * gradient;
        v.at[k] = beta2 * v.at[k] + rest2 * gradient * gradient;
        if (kRule == Rule::kAdamW) w.at[k] *= step.keep;
        w.at[k] -= step.rate * m.at[k] / (sqrtf(v.at[k]) * step.root + eps);
      } else {
        m.at[k] = momentum * m.at[k] + gradient;
        w.at[k] -= step.rate * (of_velocity * m.at[k] + of_gradient * gradient);
      }
    }
  }
  op.new_w.template Write<N>(i, w);
  if constexpr (kStates > 0) op.new_m.template Write<N>(i, m);
  if constexpr (kAdamLike<kRule>) op.new_v.template Write<N>(i, v);
}

template <Rule kRule, typename W, typename G, size_t kMost>
OFL_KERNEL void UpdateElements(UpdateList<kMost> list, UpdateNumbers numbers, const ActState* act) {
  OFL_SHARED StepNumbers step;
  constexpr int N = 4;
  const int t = ItemOf(list, blockIdx.x);
  const UpdateTensor& tensor = list.items[t];
  if (threadIdx.x == 0) FillStep(list, numbers, tensor.decay, act, kAdamLike<kRule>, &step);
  __syncthreads();
  UpdateOperands<W, G> op;
  op.w = W::Of(tensor, kWeight);
  op.g = G::Of(tensor, kGradient);
  op.m = W::Of(tensor, kFirst);
  op.v = W::Of(tensor, kSecond);
  op.new_w = W::Of(tensor, kNewWeight);
  op.new_m = W::Of(tensor, kNewFirst);
  op.new_v = W::Of(tensor, kNewSecond);
  op.decay = static_cast<float>(tensor.decay);
  bool in_place = op.new_w.data == op.w.data && op.new_m.data == op.m.data && op.new_v.data == op.v.data;
  if (step.skipped && in_place) return;
  int64_t begin = int64_t{blockIdx.x - list.first[t]} * list.stretch;
  int64_t end = begin + list.stretch < tensor.count ? begin + list.stretch : tensor.count;
  int64_t packs = (tensor.packed ? end : begin) / N;
  for (int64_t p = begin / N + threadIdx.x; p < packs; p += blockDim.x)
    UpdateAt<kRule, N>(op, numbers, step, p * N);
  for (int64_t i = packs * N + threadIdx.x; i < end; i += blockDim.x)
    UpdateAt<kRule, 1>(op, numbers, step, i);
}

template <Rule kRule>
class UpdateKernel : public CudaKernel {
 public:
  explicit UpdateKernel(const Attrs& attrs)
      : numbers_(ReadNumbers(attrs)), decay_(attrs.Float("weight_decay", 0)) {}

  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    KernelRun run{this, context};
    return LaunchTogether({&run, 1}, launch);
  }
  size_t Together(std::span<const KernelRun> runs) const override;
  Status LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) override;

 private:
  static constexpr size_t kStates = kStatesOf<kRule>;
  // Of what every tensor's update is told: the number of updates, the factor, whether gradients are finite.
  static constexpr size_t kUpdates = 2 + kStates, kFactor = kUpdates + kAdamLike<kRule>;

  static bool Wide(const KernelContext& context);
  UpdateTensor TensorOf(const KernelContext& context) const;
  template <size_t kMost>
  void LaunchSome(std::span<const KernelRun> runs, const LaunchContext& launch) const;
  template <typename W, typename G, size_t kMost>
  void LaunchList(const UpdateList<kMost>& list, unsigned blocks, const LaunchContext& launch) const {
    cuda::Launch(UpdateElements<kRule, W, G, kMost>, Grid{.x = blocks}, launch.stream, list, numbers_,
                 launch.act);
  }

  const UpdateNumbers numbers_;
  const double decay_;
};

// Whether weights and states are fp32, which has kernels of its own, one for each type of gradients.
template <Rule kRule>
bool UpdateKernel<kRule>::Wide(const KernelContext& context) {
  bool wide = context.in[0].dtype == DType::kFloat32;
  for (size_t i = 2; i < 2 + kStates; ++i) wide = wide && context.in[i].dtype == DType::kFloat32;
  return wide;
}

template <Rule kRule>
size_t UpdateKernel<kRule>::Together(std::span<const KernelRun> runs) const {
  const KernelContext& mine = runs[0].context;
  auto joins = [&](const KernelRun& run) {
    auto* other = dynamic_cast<const UpdateKernel*>(run.kernel);
    if (other == nullptr || other->numbers_ != numbers_ || run.context.in.size() != mine.in.size())
      return false;
    for (size_t i = kUpdates; i < mine.in.size(); ++i) {
      if (run.context.in[i].data != mine.in[i].data || run.context.in[i].dtype != mine.in[i].dtype)
        return false;
    }
    return Wide(run.context) == Wide(mine) && (!Wide(mine) || run.context.in[1].dtype == mine.in[1].dtype);
  };
  size_t count = 1;
  while (count < std::min(runs.size(), kManyTensors) && joins(runs[count])) ++count;
  while (count > 1 && !Independent(runs.first(count))) count /= 2;
  return count;
}

template <Rule kRule>
UpdateTensor UpdateKernel<kRule>::TensorOf(const KernelContext& context) const {
  auto in = context.in, out = context.out;
  UpdateTensor tensor{};
  tensor.count = in[0].elements();
  tensor.decay = decay_;
  tensor.packed = Wide(context);
  auto place = [&](Slot at, const TensorArg& arg) {
    tensor.data[at] = arg.data;
    tensor.dtype[at] = arg.dtype;
    tensor.packed = tensor.packed && Aligned(arg.data);
  };
  place(kWeight, in[0]);
  place(kGradient, in[1]);
  place(kFirst, in[kStates == 0 ? 0 : 2]);
  place(kSecond, in[kStates == 0 ? 0 : 1 + kStates]);
  place(kNewWeight, out[0]);
  place(kNewFirst, out[kStates == 0 ? 0 : 1]);
  place(kNewSecond, out[kStates]);
  return tensor;
}

template <Rule kRule>
Status UpdateKernel<kRule>::LaunchTogether(std::span<const KernelRun> runs, const LaunchContext& launch) {
  if (runs.size() <= kFewTensors) {
    LaunchSome<kFewTensors>(runs, launch);
  } else {
    LaunchSome<kManyTensors>(runs, launch);
  }
  return Status();
}

template <Rule kRule>
template <size_t kMost>
void UpdateKernel<kRule>::LaunchSome(std::span<const KernelRun> runs, const LaunchContext& launch) const {
  const KernelContext& mine = runs[0].context;
  UpdateList<kMost> list{};
  for (const KernelRun& run : runs) {
    if (run.context.in[0].elements() == 0) continue;
    list.items[list.size++] = static_cast<UpdateKernel*>(run.kernel)->TensorOf(run.context);
  }
  if (list.size == 0) return;
  const uint32_t blocks = DealOut(&list, 4 * 256, launch.multiprocessors);  // at least four elements a thread
  const size_t inputs = mine.in.size() - numbers_.rated;
  if (numbers_.rated) list.rate = FloatsOf(mine.in[inputs]);
  if (kAdamLike<kRule>) list.updates = FloatsOf(mine.in[kUpdates]);
  if (inputs > kFactor) list.factor = FloatsOf(mine.in[kFactor]);
  if (inputs > kFactor + 1) list.finite = mine.in[kFactor + 1].template as<bool>();
  if (!Wide(mine)) return LaunchList<AnyView, AnyView>(list, blocks, launch);
  WithFloating(mine.in[1].dtype,
               [&](auto g) { LaunchList<TypedView<float>, TypedView<decltype(g)>>(list, blocks, launch); });
}

template <Rule kRule>
std::unique_ptr<Kernel> MakeUpdate(const KernelSpec& spec) {
  return std::make_unique<UpdateKernel<kRule>>(spec.attrs);
}

// --- Variables of the user's ---

Status Assign(const KernelContext& context, const LaunchContext& launch) {
  const TensorArg &value = context.in[1], &to = context.out[0];
  size_t bytes = static_cast<size_t>(value.elements()) * SizeOf(value.dtype);
  if (bytes > 0 && value.data != to.data)
    cudaMemcpyAsync(to.data, value.data, bytes, cudaMemcpyDefault, launch.stream);
  return Status();
}

// --- Scalars: one thread ---

OFL_KERNEL void RateOf(double lr, Schedule schedule, const ActState* act, FloatView rate) {
  if (threadIdx.x == 0) rate.Put(0, static_cast<float>(lr * FactorAt(schedule, act->step)));
}

Status LearningRate(const KernelContext& context, const LaunchContext& launch) {
  const Attrs& attrs = context.spec.attrs;
  Launch(RateOf, Grid{.threads = 32}, launch.stream, attrs.Float("lr"), ReadSchedule(attrs), launch.act,
         FloatsOf(context.out[0]));
  return Status();
}

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

// `applies` may be nullptr: it does.
OFL_KERNEL void NextLossScale(FloatView scale, FloatView steps, const bool* finite, const bool* applies,
                              ScaleRule rule, FloatView new_scale, FloatView new_steps) {
  if (threadIdx.x != 0) return;
  double now = scale.At(0), count = static_cast<double>(steps.At(0)) + 1.0;
  if (applies != nullptr && !*applies) {
    count -= 1;
  } else if (!*finite) {
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
         static_cast<const bool*>(context.in[2].as<bool>()),
         context.in.size() > 3 ? static_cast<const bool*>(context.in[3].as<bool>()) : nullptr, rule,
         FloatsOf(context.out[0]), FloatsOf(context.out[1]));
  return Status();
}

}  // namespace

void AddOptimizerKernels(KernelRegistry* registry) {
  registry->Add("sgd_plain", "cuda", MakeUpdate<Rule::kPlain>);
  registry->Add("sgd", "cuda", MakeUpdate<Rule::kSgd>);
  registry->Add("adam", "cuda", MakeUpdate<Rule::kAdam>);
  registry->Add("adamw", "cuda", MakeUpdate<Rule::kAdamW>);
  registry->Add("assign", "cuda", MakeLaunchKernel(Assign));
  registry->Add("assign_host", "cuda", MakeLaunchKernel(Assign));
  registry->Add("learning_rate", "cuda", MakeLaunchKernel(LearningRate));
  registry->Add("clip_factor", "cuda", MakeLaunchKernel(ClipFactor));
  registry->Add("unscale", "cuda", MakeLaunchKernel(Unscale));
  registry->Add("update_loss_scale", "cuda", MakeLaunchKernel(UpdateLossScale));
}

}  // namespace oneflow_like::cuda
