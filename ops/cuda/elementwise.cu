// Elementwise operators on integers, where on any type, and casts between all types: what has no place in a
// chain of fp32 values. Rare and small in models, so one kernel looks at types and operator as it runs;
// integers are computed in int64_t, as the reference does.
#include "core/error.h"
#include "ops/cuda/chain.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/typed.h"
#include "ops/cuda/walk.h"

namespace oneflow_like::cuda {
namespace {

// X(operator, its number)
// clang-format off
#define OFL_INTEGER_OPS(X) \
  X("add", kAdd) X("sub", kSub) X("mul", kMul) X("div", kDiv) X("maximum", kMaximum) \
  X("minimum", kMinimum) X("pow", kPow) X("equal", kEqual) X("not_equal", kNotEqual) X("less", kLess) \
  X("less_equal", kLessEqual) X("greater", kGreater) X("greater_equal", kGreaterEqual) X("neg", kNeg) \
  X("scale", kScale) X("shift", kShift) X("add_n", kAddN) X("at_least", kAtLeast) X("at_most", kAtMost) \
  X("remainder", kRemainder) X("floor_divide", kFloorDivide) X("bitwise_and", kBitwiseAnd) \
  X("bitwise_or", kBitwiseOr) X("bitwise_xor", kBitwiseXor) X("bitwise_not", kBitwiseNot) \
  X("left_shift", kLeftShift) X("right_shift", kRightShift) X("where", kWhere) X("cast", kCast)
// clang-format on

#define OFL_NUMBER(name, number) number,
enum class Op : int32_t { OFL_INTEGER_OPS(OFL_NUMBER) };
#undef OFL_NUMBER
struct NamedOp {
  const char* name;
  Op op;
};
#define OFL_NAMED(name, number) {name, Op::number},
constexpr NamedOp kOps[] = {OFL_INTEGER_OPS(OFL_NAMED)};
#undef OFL_NAMED

constexpr int kMostInputs = 64;

struct Params {
  Op op;
  int inputs;
  DType from, to;  // of the last input, of the output
  double constant;
  int64_t count;
  Extents extents;
  Strides rows[3];  // of the inputs; add_n's all run with the output
  const void* in[kMostInputs];
  void* out;
};

// a to the power b as a double: exact while it fits one.
OFL_DEVICE double IntegerPower(int64_t a, int64_t b) {
  double base = static_cast<double>(a), power = 1;
  uint64_t times = b < 0 ? uint64_t{0} - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  for (; times != 0; times >>= 1) {
    if (times & 1) power *= base;
    base *= base;
  }
  return b < 0 ? 1 / power : power;
}

// a - b floor(a / b); 0 where b is 0.
OFL_DEVICE int64_t FloorMod(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// a / b rounded down; 0 where b is 0.
OFL_DEVICE int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(a));
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// Operators on bits, on a number and a bound, and remainder.
OFL_DEVICE int64_t BitsAndBounds(const Params& p, int64_t a, int64_t b) {
  bool past = b < 0 || b > 63;
  switch (p.op) {
    case Op::kAtLeast:
      return static_cast<double>(a) < p.constant ? static_cast<int64_t>(p.constant) : a;
    case Op::kAtMost:
      return static_cast<double>(a) > p.constant ? static_cast<int64_t>(p.constant) : a;
    case Op::kRemainder:
      return FloorMod(a, b);
    case Op::kBitwiseAnd:
      return a & b;
    case Op::kBitwiseOr:
      return a | b;
    case Op::kBitwiseXor:
      return a ^ b;
    case Op::kBitwiseNot:
      return ~a;
    case Op::kLeftShift:
      return past ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
    case Op::kRightShift:
      return past ? (a < 0 ? -1 : 0) : a >> b;
    default:
      return a;
  }
}

OFL_DEVICE int64_t Integers(const Params& p, int64_t a, int64_t b) {
  switch (p.op) {
    case Op::kAdd:
      return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case Op::kSub:
      return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
    case Op::kMul:
      return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case Op::kDiv:
    case Op::kFloorDivide:
      return FloorDivide(a, b);
    case Op::kMaximum:
      return a > b ? a : b;
    case Op::kMinimum:
      return a < b ? a : b;
    case Op::kPow:
      return static_cast<int64_t>(IntegerPower(a, b));
    case Op::kEqual:
      return a == b;
    case Op::kNotEqual:
      return a != b;
    case Op::kLess:
      return a < b;
    case Op::kLessEqual:
      return a <= b;
    case Op::kGreater:
      return a > b;
    case Op::kGreaterEqual:
      return a >= b;
    case Op::kNeg:
      return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(a));
    case Op::kScale:
      return static_cast<int64_t>(static_cast<double>(a) * p.constant);
    case Op::kShift:
      return static_cast<int64_t>(static_cast<double>(a) + p.constant);
    default:
      return BitsAndBounds(p, a, b);
  }
}

OFL_DEVICE void One(const Params& p, int64_t i) {
  if (p.op == Op::kAddN) {
    uint64_t sum = 0;
    for (int k = 0; k < p.inputs; ++k) sum += static_cast<uint64_t>(LoadInteger(p.in[k], p.from, i));
    StoreInteger(p.out, p.to, i, static_cast<int64_t>(sum));
    return;
  }
  Place place = PlaceOf(p.extents, i);
  int64_t first = OffsetAt(place, p.extents, p.rows[0]);
  if (p.op == Op::kWhere) {
    bool condition = static_cast<const uint8_t*>(p.in[0])[first] != 0;
    const void* from = condition ? p.in[1] : p.in[2];
    CopyElement(p.out, i, from, OffsetAt(place, p.extents, p.rows[condition ? 1 : 2]), p.to);
    return;
  }
  if (p.op == Op::kCast && IsFloat(p.from)) {
    StoreReal(p.out, p.to, i, static_cast<double>(LoadReal(p.in[0], p.from, first)));
    return;
  }
  int64_t a = LoadInteger(p.in[0], p.from, first);
  int64_t b = p.inputs > 1 ? LoadInteger(p.in[1], p.from, OffsetAt(place, p.extents, p.rows[1])) : 0;
  StoreInteger(p.out, p.to, i, Integers(p, a, b));
}

OFL_KERNEL void TypedElementwise(Params p) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.count; i += step) One(p, i);
}

class TypedKernel : public CudaKernel {
 public:
  TypedKernel(Op op, double constant) : op_(op), constant_(constant) {}
  Status Launch(const KernelContext& context, const LaunchContext& launch) override {
    const TensorArg& y = context.out[0];
    Params p{};
    p.op = op_;
    p.constant = constant_;
    p.inputs = static_cast<int>(context.in.size());
    p.from = context.in.back().dtype;
    p.to = y.dtype;
    p.count = y.elements();
    if (p.count == 0) return Status();
    p.out = y.data;
    for (int i = 0; i < p.inputs; ++i) p.in[i] = context.in[i].data;
    p.extents = ExtentsOf(y.extent);
    int rows = p.inputs < 3 ? p.inputs : 3;
    for (int i = 0; i < rows; ++i) p.rows[i] = BroadcastStrides(context.in[i].extent, y.extent.rank());
    MergeAxes(&p.extents, p.rows, rows);
    cuda::Launch(TypedElementwise, Grid{BlocksFor(p.count, 256, launch.multiprocessors), 1, 256, 0},
                 launch.stream, p);
    return Status();
  }

 private:
  Op op_;
  double constant_;
};

}  // namespace

KernelPtr MakeTypedElementwise(const KernelSpec& spec) {
  double constant = spec.name == "scale"      ? spec.attrs.Float("factor")
                    : spec.name == "shift"    ? spec.attrs.Float("offset")
                    : spec.attrs.Has("bound") ? spec.attrs.Float("bound")
                                              : 0;
  if (spec.in.size() > static_cast<size_t>(kMostInputs)) {
    Fail(spec.node.empty() ? spec.name : spec.node, ": ", spec.in.size(), " operands are more than the ",
         kMostInputs, " integer tensors one CUDA kernel adds");
  }
  for (const NamedOp& named : kOps) {
    if (spec.name == named.name) return std::make_unique<TypedKernel>(named.op, constant);
  }
  Fail(spec.node.empty() ? spec.name : spec.node, ": there is no CUDA kernel of ", spec.name, " for ",
       spec.in.empty() ? "no" : Name(spec.in[0].dtype), " operands");
}

}  // namespace oneflow_like::cuda
