// The text of a chain, and the arguments of its launches. The text has three parts: element types and packs
// (kPrelude), the project's own scalar and random headers, and what is written here for the chain: Args, the
// steps of one element, and a loop that loads, computes and stores `kPack` elements at a time.
#include "ops/cuda/generate.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "core/random.h"
#include "ops/cuda/device_text.h"
#include "ops/cuda/walk.h"
#include "ops/scalar.h"

namespace oneflow_like::cuda {
namespace {

// NVRTC has no standard headers; the host compiler is spared them.
constexpr char kPrelude[] = R"ofl(
#if defined(__CUDACC__)
#define OFL_ENTRY __global__ void __launch_bounds__(256)
#define __builtin_fabsf fabsf
#define __builtin_inff() __builtin_bit_cast(float, 0x7F800000)
#define __builtin_copysignf copysignf
#define __builtin_sqrtf sqrtf
#else
extern "C" float powf(float, float) noexcept;
extern "C" float lgammaf(float) noexcept;
extern "C" float erfcf(float) noexcept;
extern "C" float asinhf(float) noexcept;
extern "C" float acoshf(float) noexcept;
extern "C" double floor(double) noexcept;
#endif
namespace std {
class string;
template <typename To, typename From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}
}
namespace oneflow_like {
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
}
)ofl";

constexpr char kElements[] = R"ofl(
namespace oneflow_like {
#if defined(__CUDACC__)
struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };
OFL_HOST_DEVICE float ToFloat(BFloat16 x) { return scalar::FromBits(static_cast<uint32_t>(x.bits) << 16); }
__device__ __forceinline__ float ToFloat(Float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ BFloat16 ToBFloat16(float x) {
  BFloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
__device__ __forceinline__ Float16 ToFloat16(float x) {
  Float16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#define OFL_INLINE __device__ __forceinline__
#define OFL_APART __device__ __noinline__
#define OFL_UNROLL _Pragma("unroll")
#else
#define OFL_INLINE inline
#define OFL_APART inline
#define OFL_UNROLL
#endif
struct Bool { uint8_t value; };
OFL_INLINE float Load(float x) { return x; }
OFL_INLINE float Load(BFloat16 x) { return ToFloat(x); }
OFL_INLINE float Load(Float16 x) { return ToFloat(x); }
OFL_INLINE float Load(Bool x) { return x.value != 0 ? 1.0f : 0.0f; }
OFL_INLINE void Store(float* to, float x) { *to = x; }
OFL_INLINE void Store(BFloat16* to, float x) { *to = ToBFloat16(x); }
OFL_INLINE void Store(Float16* to, float x) { *to = ToFloat16(x); }
OFL_INLINE void Store(Bool* to, float x) { to->value = x != 0.0f; }

template <typename T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack { T at[N]; };

template <typename T, int N>
OFL_INLINE void LoadPack(const void* from, int64_t at, float* x) {
  Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(static_cast<const T*>(from) + at);
  OFL_UNROLL
  for (int e = 0; e < N; ++e) x[e] = Load(pack.at[e]);
}
// Of an operand that broadcasts: along the last axis it runs on, or repeats.
template <typename T, int N>
OFL_INLINE void LoadRow(const void* from, int64_t at, int64_t stride, float* x) {
  if (stride != 0) return LoadPack<T, N>(from, at, x);
  float same = Load(static_cast<const T*>(from)[at]);
  OFL_UNROLL
  for (int e = 0; e < N; ++e) x[e] = same;
}
template <typename T, int N>
OFL_INLINE void StorePack(void* to, int64_t at, const float* x) {
  Pack<T, N> pack;
  OFL_UNROLL
  for (int e = 0; e < N; ++e) Store(&pack.at[e], x[e]);
  *reinterpret_cast<Pack<T, N>*>(static_cast<T*>(to) + at) = pack;
}

OFL_INLINE int64_t Divide(int64_t n, int64_t d, int64_t* rest) {
  if (((n | d) >> 32) == 0) {
    uint32_t small = static_cast<uint32_t>(n), by = static_cast<uint32_t>(d), quotient = small / by;
    *rest = small - quotient * by;
    return quotient;
  }
  int64_t quotient = n / d;
  *rest = n - quotient * d;
  return quotient;
}

OFL_APART uint32_t BitsAt(uint64_t key, uint64_t step, uint64_t index) { return DropBits(key, step, index); }
// The draws of N elements from global index `first` on, `stride` apart: eight share a Philox block.
template <int N>
OFL_INLINE void DrawBits(uint64_t key, uint64_t step, uint64_t first, int64_t stride, uint32_t* bits) {
  if (N % 4 == 0 && stride == 1 && first % (N < 8 ? 4 : 8) == 0) {
    const bool upper = N < 8 && first % 8 != 0;  // half of a block
    OFL_UNROLL
    for (int e = 0; e < N; e += 8) {
      const Philox4 block = Philox(key, (first + e) >> 3, step);
      OFL_UNROLL
      for (int i = 0; i < 8 && e + i < N; ++i)
        bits[e + i] = block.v[i / 2] >> i % 2 * 16 & 0xFFFF;
      OFL_UNROLL
      for (int i = 0; i < 4 && upper; ++i) bits[i] = block.v[2 + i / 2] >> i % 2 * 16 & 0xFFFF;
    }
    return;
  }
  OFL_UNROLL
  for (int e = 0; e < N; ++e) bits[e] = BitsAt(key, step, first + static_cast<uint64_t>(e * stride));
}
OFL_INLINE float Dropout(float x, uint32_t bits, uint32_t least, float scale) {
  return bits >= least ? x * scale : 0.0f;
}
}
)ofl";

const char* TypeName(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "BFloat16";
    case DType::kFloat16:
      return "Float16";
    case DType::kBool:
      return "Bool";
    default:
      return "float";
  }
}

struct Body {
  const char* name;
  const char* functor;
  int operands;
  const char* constant;  // attribute
};
constexpr Body kBodies[] = {
#define OFL_ROW(name, functor) {name, #functor, 1, nullptr},
    OFL_UNARY_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor) {name, #functor, 2, nullptr},
        OFL_BINARY_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor) {name, #functor, 3, nullptr},
            OFL_TERNARY_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor, attribute) {name, #functor, 1, attribute},
                OFL_CONSTANT_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor, attribute) {name, #functor, 2, attribute},
                    OFL_BINARY_CONSTANT_SCALARS(OFL_ROW)
#undef OFL_ROW
};

const Body& BodyOf(const std::string& op) {
  auto found =
      std::find_if(std::begin(kBodies), std::end(kBodies), [&](const Body& b) { return op == b.name; });
  CHECK(found != std::end(kBodies)) << op << " has no scalar body";
  return *found;
}

// The expression of one step, and what it adds to the arguments.
std::string StepText(const FusedStep& step, GeneratedChain* chain) {
  auto value = [&](size_t i) { return Cat("v", step.args[i]); };
  if (step.op == "dropout") {
    const DropRule rule = DropRuleOf(step.attrs.Float("p"));
    size_t d = chain->draws.size();
    chain->draws.push_back(
        {static_cast<uint64_t>(step.attrs.Int("key", 0)), rule.least, static_cast<float>(rule.scale)});
    return Cat("Dropout(", value(0), ", bits", d, "[e], a.least[", d, "], a.scale[", d, "])");
  }
  if (step.op == "cast") {
    DType to = DType::kFloat32;
    ParseDType(step.attrs.Str("dtype"), &to);
    if (to == DType::kBool) return value(0) + " != 0.0f ? 1.0f : 0.0f";
    if (to == DType::kBFloat16) return "ToFloat(ToBFloat16(" + value(0) + "))";
    if (to == DType::kFloat16) return "ToFloat(ToFloat16(" + value(0) + "))";
    return value(0);
  }
  if (step.op == "add_n") {
    std::string sum = value(0);
    for (size_t i = 1; i < step.args.size(); ++i) sum += " + " + value(i);
    return sum;
  }
  const Body& body = BodyOf(step.op);
  CHECK_EQ(static_cast<int>(step.args.size()), body.operands) << step.op;
  std::string text = Cat("scalar::", body.functor, "()(", value(0));
  for (size_t i = 1; i < step.args.size(); ++i) text += ", " + value(i);
  if (body.constant != nullptr) {
    text += Cat(", a.constant[", chain->constants.size(), "]");
    chain->constants.push_back(static_cast<float>(step.attrs.Float(body.constant)));
  }
  return text + ")";
}

// Number of a broadcasting input among them; draws walk with one more.
int RowOf(const GeneratedChain& chain, size_t input) {
  return static_cast<int>(
      std::count(chain.whole.begin(), chain.whole.begin() + static_cast<long>(input), false));
}
int RowsOf(const GeneratedChain& chain) {
  return RowOf(chain, chain.whole.size()) + (chain.draws.empty() ? 0 : 1);
}

// Everything 8 bytes long first, so that there is no padding to agree on.
std::string ArgsText(const GeneratedChain& chain) {
  size_t draws = chain.draws.size(), constants = chain.constants.size();
  int rows = RowsOf(chain);
  std::string text = Cat("struct Args {\n  int64_t n, packs;\n  const int64_t* act;\n  uint64_t seed;\n",
                         "  int64_t first;\n  void* out[", chain.outputs.size(), "];\n");
  if (!chain.inputs.empty()) text += Cat("  const void* in[", chain.inputs.size(), "];\n");
  text += Cat("  int64_t extent[", chain.rank, "];\n");
  if (rows > 0) text += Cat("  int64_t stride[", rows, "][", chain.rank, "];\n");
  if (draws > 0)
    text +=
        Cat("  uint64_t key[", draws, "];\n  uint32_t least[", draws, "];\n  float scale[", draws, "];\n");
  if (constants > 0) text += Cat("  float constant[", constants, "];\n");
  return text + "};\n";
}

size_t ArgBytes(const GeneratedChain& chain) {
  size_t words = 5 + chain.outputs.size() + chain.inputs.size() + static_cast<size_t>(chain.rank) +
                 static_cast<size_t>(RowsOf(chain) * chain.rank) + chain.draws.size();
  size_t bytes = words * 8 + chain.draws.size() * 8 + chain.constants.size() * 4;
  return (bytes + 7) / 8 * 8;
}

// Offsets of the broadcasting operands at element `first`.
std::string WalkText(const GeneratedChain& chain) {
  int rows = RowsOf(chain), rank = chain.rank;
  if (rows == 0) return "";
  std::string text = "  int64_t rest = first, at = 0;\n";
  for (int row = 0; row < rows; ++row) text += Cat("  int64_t o", row, " = 0;\n");
  for (int axis = rank - 1; axis >= 0; --axis) {
    text +=
        axis > 0 ? Cat("  rest = Divide(rest, a.extent[", axis, "], &at);\n") : std::string("  at = rest;\n");
    for (int row = 0; row < rows; ++row)
      text += Cat("  o", row, " += at * a.stride[", row, "][", axis, "];\n");
  }
  return text;
}

// N elements from `first` on, all in one row of the walk.
std::string ElementsText(const GeneratedChain& chain, const Chain& program, const std::string& steps) {
  std::string text =
      "template <int N>\nOFL_INLINE void Elements(const Args& a, int64_t first) {\n" + WalkText(chain);
  int last = chain.rank - 1;
  for (size_t i = 0; i < chain.inputs.size(); ++i) {
    std::string type = TypeName(chain.inputs[i]);
    text += Cat("  float x", i, "[N];\n");
    if (chain.whole[i]) {
      text += Cat("  LoadPack<", type, ", N>(a.in[", i, "], first, x", i, ");\n");
    } else {
      int row = RowOf(chain, i);
      text += Cat("  LoadRow<", type, ", N>(a.in[", i, "], o", row, ", a.stride[", row, "][", last, "], x", i,
                  ");\n");
    }
  }
  int draw = RowsOf(chain) - 1;
  for (size_t d = 0; d < chain.draws.size(); ++d) {
    text += Cat("  uint32_t bits", d, "[N];\n  DrawBits<N>(RandomKey(a.seed, a.key[", d,
                "]), static_cast<uint64_t>(*a.act), static_cast<uint64_t>(a.first + o", draw, "), a.stride[",
                draw, "][", last, "], bits", d, ");\n");
  }
  for (size_t i = 0; i < chain.outputs.size(); ++i) text += Cat("  float y", i, "[N];\n");
  text += "  OFL_UNROLL\n  for (int e = 0; e < N; ++e) {\n";
  for (size_t i = 0; i < chain.inputs.size(); ++i) text += Cat("    const float v", i, " = x", i, "[e];\n");
  text += steps;
  for (size_t i = 0; i < chain.outputs.size(); ++i)
    text += Cat("    y", i, "[e] = v", program.outputs[i], ";\n");
  text += "  }\n";
  for (size_t i = 0; i < chain.outputs.size(); ++i) {
    text += Cat("  StorePack<", TypeName(chain.outputs[i]), ", N>(a.out[", i, "], first, y", i, ");\n");
  }
  return text + "}\n";
}

constexpr char kLoop[] = R"ofl(
OFL_INLINE void Loop(const Args& a, unsigned block, unsigned blocks, unsigned thread, unsigned threads) {
  int64_t self = static_cast<int64_t>(block) * threads + thread, step = static_cast<int64_t>(blocks) * threads;
  for (int64_t i = self; i < a.packs; i += step) Elements<kPack>(a, i * kPack);
  for (int64_t i = a.packs * kPack + self; i < a.n; i += step) Elements<1>(a, i);
}
#if defined(__CUDACC__)
extern "C" OFL_ENTRY FUNCTION(Args a) {
  Loop(a, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}
#else
extern "C" void FUNCTION(const void* a, unsigned block, unsigned blocks, unsigned thread, unsigned threads) {
  Loop(*static_cast<const Args*>(a), block, blocks, thread, threads);
}
#endif
}
)ofl";

// "ofl_add_gelu_mul": what a profiler shows.
std::string FunctionName(const Chain& program) {
  std::string name = "ofl";
  for (const FusedStep& step : program.steps) {
    if (name.size() + step.op.size() > 60) return name + "_etc";
    name += "_" + step.op;
  }
  return name;
}

// The walk of an act: strides of the operands that broadcast, and of the global index that numbers draws.
struct Walk {
  Extents extents;
  Strides rows[66];
};

void MakeWalk(const GeneratedChain& chain, std::span<const TensorArg> in, const TensorArg& out, Walk* walk) {
  walk->extents = ExtentsOf(out.extent);
  int rows = RowsOf(chain), row = 0;
  if (rows == 0) {  // only whole operands
    walk->extents.rank = 1;
    walk->extents.at[0] = out.elements();
    return;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    if (!chain.whole[i]) walk->rows[row++] = BroadcastStrides(in[i].extent, out.extent.rank());
  }
  if (!chain.draws.empty()) walk->rows[row++] = StridesOf(out.global);
  MergeAxes(&walk->extents, walk->rows, rows);
}

bool AlignedFor(const void* data, DType dtype, int pack) {
  return reinterpret_cast<uintptr_t>(data) %
             std::min<size_t>(16, SizeOf(dtype) * static_cast<size_t>(pack)) ==
         0;
}

// Whether every turn of `pack` elements lies in one row and is aligned in every operand.
bool PacksFit(const GeneratedChain& chain, const KernelContext& context, const Walk& walk) {
  int last = walk.extents.rank - 1;
  if (RowsOf(chain) > 0 && walk.extents.at[last] % chain.pack != 0) return false;
  for (size_t i = 0; i < context.in.size(); ++i) {
    bool repeats = !chain.whole[i] && walk.rows[RowOf(chain, i)].at[last] == 0;
    if (repeats) continue;
    if (!AlignedFor(context.in[i].data, chain.inputs[i], chain.pack)) return false;
    if (chain.whole[i]) continue;
    const Strides& strides = walk.rows[RowOf(chain, i)];
    if (strides.at[last] != 1) return false;
    for (int axis = 0; axis < last; ++axis) {
      if (strides.at[axis] % chain.pack != 0) return false;
    }
  }
  return std::all_of(context.out.begin(), context.out.end(),
                     [&](const TensorArg& out) { return AlignedFor(out.data, out.dtype, chain.pack); });
}

// Writes the arguments one after another, as ArgsText declares them.
class ArgWriter {
 public:
  explicit ArgWriter(std::vector<unsigned char>* to) : to_(to->data()), end_(to->data() + to->size()) {}
  template <typename T>
  void Put(T value) {
    CHECK_LE(to_ + sizeof(T), end_);
    std::memcpy(to_, &value, sizeof(T));
    to_ += sizeof(T);
  }

 private:
  unsigned char *to_, *end_;
};

// Whether every result is rounded to 16 bits (scalar.h).
bool NarrowResults(const GeneratedChain& chain) {
  return std::all_of(chain.outputs.begin(), chain.outputs.end(),
                     [](DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; });
}

}  // namespace

Chain ChainOf(const KernelSpec& spec) {
  Chain chain;
  for (const TensorArg& in : spec.in) chain.inputs.push_back(in.dtype);
  if (spec.name == "fused") {
    chain.steps = ParseFused(spec.attrs.Str("program"), static_cast<int>(spec.in.size()));
    chain.outputs = spec.attrs.Ints("outputs");
    return chain;
  }
  const int operands = static_cast<int>(spec.in.size());
  chain.steps = StepsOf(BuiltinCatalog().Get(spec.name), spec.attrs, operands, spec.name);
  chain.outputs = {static_cast<int64_t>(operands + chain.steps.size()) - 1};
  return chain;
}

GeneratedChain GenerateChain(const Chain& program, const KernelSpec& spec) {
  GeneratedChain chain;
  chain.inputs = program.inputs;
  size_t smallest = 4;
  for (const TensorArg& in : spec.in) {
    chain.whole.push_back(in.elements() == spec.out[0].elements());
    if (IsFloating(in.dtype)) smallest = std::min(smallest, SizeOf(in.dtype));
  }
  std::vector<DType> types = FusedTypes(program.steps, program.inputs);
  for (int64_t output : program.outputs) {
    chain.outputs.push_back(types[static_cast<size_t>(output)]);
    if (IsFloating(chain.outputs.back())) smallest = std::min(smallest, SizeOf(chain.outputs.back()));
  }
  chain.pack = chain.inputs.size() + chain.outputs.size() > 16 ? 4 : static_cast<int>(16 / smallest);
  std::string steps;
  size_t value = program.inputs.size();
  for (const FusedStep& step : program.steps) {
    steps += Cat("    const float v", value++, " = ", StepText(step, &chain), ";\n");
  }
  if (chain.inputs.size() > 64 || chain.outputs.size() > 64) {
    Fail(spec.node.empty() ? spec.name : spec.node, ": ", chain.inputs.size(), " inputs and ",
         chain.outputs.size(), " outputs are more than the 64 that one elementwise CUDA kernel takes");
  }
  // A few ranks only, so that few texts differ by nothing else.
  int rank = 1;
  if (spec.out[0].elements() > 0) {
    Walk walk;
    MakeWalk(chain, spec.in, spec.out[0], &walk);
    while (rank < walk.extents.rank) rank *= 2;
  }
  chain.rank = rank;
  chain.arg_bytes = ArgBytes(chain);
  chain.function = FunctionName(program);
  chain.source =
      Cat(NarrowResults(chain) ? "#define OFL_NARROW_RESULTS\n" : "", kPrelude, "#if !defined(__CUDACC__)\n",
          kHostDeviceText, kFloat16Text, "#else\n", kHostDeviceText, "#endif\n", kRandomText, kScalarText,
          kElements, "namespace oneflow_like {\n#define FUNCTION ", chain.function,
          "\nconstexpr int kPack = ", chain.pack, ";\n", ArgsText(chain), ElementsText(chain, program, steps),
          kLoop);
  return chain;
}

void PlanLaunch(const GeneratedChain& chain, const KernelContext& context, const void* act,
                int multiprocessors, ChainLaunch* launch) {
  const TensorArg& out = context.out[0];
  int64_t n = out.elements();
  launch->args.resize(chain.arg_bytes);
  launch->grid = {0, 0, 256, 0};
  launch->packs = 0;
  if (n == 0) return;
  Walk walk;
  MakeWalk(chain, context.in, out, &walk);
  CHECK_LE(walk.extents.rank, chain.rank)
      << "an act of " << context.spec.node << " needs more axes than its plan said";
  if (PacksFit(chain, context, walk)) launch->packs = n / chain.pack;
  int64_t items = launch->packs + (n - launch->packs * chain.pack);
  launch->grid = {BlocksFor(items, 256, multiprocessors), 1, 256, 0};

  ArgWriter args(&launch->args);
  args.Put(n);
  args.Put(launch->packs);
  args.Put(act);
  args.Put(context.seed);
  int64_t first = 0;  // global index of the piece's first element
  for (int axis = 0; axis < out.global.rank(); ++axis) first = first * out.global[axis] + out.begin[axis];
  args.Put(first);
  for (const TensorArg& arg : context.out) args.Put(arg.data);
  for (const TensorArg& arg : context.in) args.Put(arg.data);
  int lead = chain.rank - walk.extents.rank;  // axes of extent 1 in front
  for (int axis = 0; axis < chain.rank; ++axis)
    args.Put(axis < lead ? int64_t{1} : walk.extents.at[axis - lead]);
  for (int row = 0; row < RowsOf(chain); ++row) {
    for (int axis = 0; axis < chain.rank; ++axis) {
      args.Put(axis < lead ? int64_t{0} : walk.rows[row].at[axis - lead]);
    }
  }
  for (const GeneratedChain::Draw& draw : chain.draws) args.Put(draw.key);
  for (const GeneratedChain::Draw& draw : chain.draws) args.Put(draw.least);
  for (const GeneratedChain::Draw& draw : chain.draws) args.Put(draw.scale);
  for (float constant : chain.constants) args.Put(constant);
}

}  // namespace oneflow_like::cuda
