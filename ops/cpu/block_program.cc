// Compiling and running block programs.
#include "ops/cpu/block_program.h"

#include <algorithm>
#include <array>

#include "core/random.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/loops.h"
#include "ops/cpu/streaming.h"
#include "ops/reference.h"
#include "ops/scalar.h"

namespace oneflow_like::cpu {
namespace {

template <typename F>
void UnaryBlock(const BlockArgs& a) {
  const float* x = a.in[0];
  float* y = a.out;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = F()(x[i]);
}
template <typename F>
void BinaryBlock(const BlockArgs& a) {
  const float *p = a.in[0], *q = a.in[1];
  float* y = a.out;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = F()(p[i], q[i]);
}
template <typename F>
void ConstantBlock(const BlockArgs& a) {
  const float* x = a.in[0];
  float* y = a.out;
  float c = a.constant;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = F()(x[i], c);
}
template <typename F>
void BinaryConstantBlock(const BlockArgs& a) {
  const float *p = a.in[0], *q = a.in[1];
  float* y = a.out;
  float c = a.constant;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = F()(p[i], q[i], c);
}
template <typename F>
void TernaryBlock(const BlockArgs& a) {
  const float *p = a.in[0], *q = a.in[1], *r = a.in[2];
  float* y = a.out;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = F()(p[i], q[i], r[i]);
}

// Sums of products in one pass, as JoinSums finds them.
void ProductSumBlock(const BlockArgs& a) {
  const float *p = a.in[0], *q = a.in[1], *r = a.in[2];
  float* y = a.out;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = p[i] * q[i] + r[i];
}
void AffineBlock(const BlockArgs& a) {
  const float *x = a.in[0], *centre = a.in[1], *factor = a.in[2], *offset = a.in[3];
  float* y = a.out;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = (x[i] - centre[i]) * factor[i] + offset[i];
}
void ProductAffineBlock(const BlockArgs& a) {
  const float *p = a.in[0], *q = a.in[1], *x = a.in[2], *centre = a.in[3], *factor = a.in[4],
              *offset = a.in[5];
  float* y = a.out;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = p[i] * q[i] + ((x[i] - centre[i]) * factor[i] + offset[i]);
}

struct IsTrue {
  float operator()(float x) const { return x != 0.0f ? 1.0f : 0.0f; }
};

// Values stay fp32 inside a program; a cast to a 16-bit type is asked for, and rounds.
template <typename T>
void RoundBlock(const BlockArgs& a) {
  T rounded[64];
  for (int64_t i = 0; i < a.n; i += 64) {
    int64_t n = std::min<int64_t>(64, a.n - i);
    Narrow(a.in[0] + i, n, rounded);
    Widen(rounded, n, a.out + i);
  }
}

struct Named {
  const char* name;
  BlockOp op;
};
const Named kOps[] = {
#define OFL_ROW(name, functor) {name, {UnaryBlock<scalar::functor>, 1, nullptr}},
    OFL_UNARY_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor) {name, {BinaryBlock<scalar::functor>, 2, nullptr}},
        OFL_BINARY_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor) {name, {TernaryBlock<scalar::functor>, 3, nullptr}},
            OFL_TERNARY_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor, attribute) {name, {ConstantBlock<scalar::functor>, 1, attribute}},
                OFL_CONSTANT_SCALARS(OFL_ROW)
#undef OFL_ROW
#define OFL_ROW(name, functor, attribute) {name, {BinaryConstantBlock<scalar::functor>, 2, attribute}},
                    OFL_BINARY_CONSTANT_SCALARS(OFL_ROW)
#undef OFL_ROW
};

bool FloatOrBool(const TensorArg& arg) { return IsFloating(arg.dtype) || arg.dtype == DType::kBool; }

}  // namespace

BlockOp FindBlockOp(const std::string& name) {
  for (const Named& named : kOps) {
    if (name == named.name) return named.op;
  }
  return {};
}

// An input as the blocks see it: the output's index space with this input's strides, axes merged where they
// run on.
struct BlockProgram::View {
  const TensorArg* arg = nullptr;
  bool whole = true;  // element i of the output's piece is element i of this
  int rank = 0;
  int64_t extent[Dims::kMaxRank], stride[Dims::kMaxRank];

  View() = default;
  View(const TensorArg& input, const TensorArg& out) : arg(&input) {
    whole = input.elements() == out.elements();
    int skip = out.extent.rank() - input.extent.rank();
    int64_t strides[Dims::kMaxRank], s = 1;
    for (int axis = out.extent.rank() - 1; axis >= 0; --axis) {
      int64_t e = axis >= skip ? input.extent[axis - skip] : 1;
      strides[axis] = e == 1 ? 0 : s;
      s *= e;
    }
    for (int axis = 0; axis < out.extent.rank(); ++axis) {
      if (out.extent[axis] == 1) continue;
      if (rank > 0 && stride[rank - 1] == strides[axis] * out.extent[axis]) {
        extent[rank - 1] *= out.extent[axis];
        stride[rank - 1] = strides[axis];
      } else {
        extent[rank] = out.extent[axis];
        stride[rank++] = strides[axis];
      }
    }
    if (rank == 0) {
      rank = 1;
      extent[0] = 1;
      stride[0] = 0;
    }
  }

  // Elements of the output after which an operand that is broadcast along leading axes (a number for each
  // channel, or one for all) begins again; 0: it does not, or need not be copied.
  int64_t Period() const {
    if (whole) return 0;
    if (rank == 1) return stride[0] == 0 ? 1 : 0;
    return rank == 2 && stride[0] == 0 && stride[1] == 1 ? extent[1] : 0;
  }

  // Offset here of output element `at`, and how many more elements of the last axis follow.
  int64_t Offset(int64_t at, int64_t* run) const {
    int64_t inner = at % extent[rank - 1], offset = inner * stride[rank - 1];
    *run = extent[rank - 1] - inner;
    at /= extent[rank - 1];
    for (int axis = rank - 2; axis >= 0; --axis) {
      offset += at % extent[axis] * stride[axis];
      at /= extent[axis];
    }
    return offset;
  }

  template <typename T>
  void Fill(int64_t at, int64_t n, float* to) const {
    const T* data = arg->as<T>();
    for (int64_t run; n > 0; at += run, to += run, n -= run) {
      const T* from = data + Offset(at, &run);
      run = std::min(run, n);
      if (stride[rank - 1] == 0) {
        std::fill_n(to, run, AsFloat(*from));
      } else {
        if constexpr (std::is_same_v<T, bool>) {
          for (int64_t i = 0; i < run; ++i) to[i] = AsFloat(from[i]);
        } else {
          Widen(from, run, to);
        }
      }
    }
  }

  // `n` elements from `at` on: in place where they lie contiguous, else copied to `buffer`.
  const float* Load(int64_t at, int64_t n, float* buffer) const {
    switch (arg->dtype) {
      case DType::kBool:
        Fill<bool>(at, n, buffer);
        return buffer;
      case DType::kBFloat16:
        Fill<BFloat16>(at, n, buffer);
        return buffer;
      case DType::kFloat16:
        Fill<Float16>(at, n, buffer);
        return buffer;
      default:
        break;
    }
    if (whole) return arg->as<float>() + at;
    int64_t run;
    int64_t offset = Offset(at, &run);
    if (run >= n && stride[rank - 1] == 1) return arg->as<float>() + offset;
    Fill<float>(at, n, buffer);
    return buffer;
  }
};

// The output's piece as runs that are contiguous in the whole tensor: what draws are numbered by.
struct BlockProgram::GlobalRuns {
  const TensorArg* out;
  int leading;      // axes before the run
  int64_t run = 1;  // elements
  explicit GlobalRuns(const TensorArg& piece) : out(&piece), leading(piece.extent.rank()) {
    while (leading > 0) {
      --leading;
      run *= out->extent[leading];
      if (out->extent[leading] != out->global[leading]) break;
    }
  }
  uint64_t Global(int64_t at, int64_t* left) const {
    int64_t inner = at % run, rest = at / run, stride = 1, index = 0;
    *left = run - inner;
    for (int axis = out->extent.rank() - 1; axis >= 0; --axis) {
      index += out->begin[axis] * stride;
      if (axis < leading) {
        index += rest % out->extent[axis] * stride;
        rest /= out->extent[axis];
      }
      stride *= out->global[axis];
    }
    return static_cast<uint64_t>(index + inner);
  }
};

std::unique_ptr<BlockProgram> BlockProgram::Make(const std::vector<FusedStep>& steps,
                                                 const std::vector<DType>& inputs,
                                                 const std::vector<int64_t>& outputs) {
  auto program = std::make_unique<BlockProgram>();
  program->inputs_ = static_cast<int>(inputs.size());
  if (program->inputs_ > kMaxInputs || outputs.size() > kMaxInputs) return nullptr;
  std::vector<int> names(inputs.size());  // value of the program -> value here
  for (size_t i = 0; i < inputs.size(); ++i) names[i] = static_cast<int>(i);
  int next = program->inputs_;
  std::vector<DType> types = FusedTypes(steps, inputs);
  std::vector<DType> local(inputs);
  for (const FusedStep& step : steps) {
    if (!program->Append(step, &next, &names, &local)) return nullptr;
  }
  if (next > kMaxValues) return nullptr;
  for (int64_t output : outputs) program->outputs_.push_back(names[output]);
  program->JoinSums();
  program->values_ = next;
  program->straight_.assign(next, -1);
  for (size_t i = 0; i < outputs.size(); ++i) {
    int value = names[outputs[i]];
    bool is_float = types[outputs[i]] == DType::kFloat32;
    if (value >= program->inputs_ && is_float && program->straight_[value] < 0) {
      program->straight_[value] = static_cast<int>(i);
    }
  }
  program->PlaceValues(next);
  return program;
}

// Adds the instructions of one step; add_n of many terms becomes a chain of additions.
bool BlockProgram::Append(const FusedStep& step, int* next_value, std::vector<int>* names,
                          std::vector<DType>* types) {
  Instruction code;
  std::string op = step.op;
  if (op == "dropout") {
    double p = step.attrs.Float("p");
    if (p > 0) {
      code.key = static_cast<uint64_t>(step.attrs.Int("key"));
      const DropRule rule = DropRuleOf(p);
      code.least = rule.least;
      code.constant = static_cast<float>(rule.scale);
      code.in[0] = (*names)[step.args[0]];
      code.result = (*next_value)++;
      names->push_back(code.result);
      code_.push_back(code);
      return true;
    }
    op = "identity";
  }
  if (op == "cast") {
    DType to = DType::kFloat32;
    ParseDType(step.attrs.Str("dtype"), &to);
    if (to == DType::kFloat32) {  // the values of a program are that already
      names->push_back((*names)[step.args[0]]);
      return true;
    }
    op = "identity";
    if (to == DType::kBool) code.fn = UnaryBlock<IsTrue>;
    if (to == DType::kBFloat16) code.fn = RoundBlock<BFloat16>;
    if (to == DType::kFloat16) code.fn = RoundBlock<Float16>;
  }
  if (op == "add_n" && step.args.size() == 1) op = "identity";
  BlockOp found = FindBlockOp(op == "add_n" ? "add" : op);
  if (found.fn == nullptr) return false;
  if (code.fn == nullptr) code.fn = found.fn;
  code.operands = found.operands;
  if (found.constant != nullptr) code.constant = static_cast<float>(step.attrs.Float(found.constant));
  if (op != "add_n") {
    if (static_cast<int>(step.args.size()) != found.operands) return false;
    for (int i = 0; i < found.operands; ++i) code.in[i] = (*names)[step.args[i]];
    code.result = (*next_value)++;
    code_.push_back(code);
  } else {
    code.in[0] = (*names)[step.args[0]];
    for (size_t i = 1; i < step.args.size(); ++i) {
      code.in[1] = (*names)[step.args[i]];
      code.result = (*next_value)++;
      code_.push_back(code);
      code.in[0] = code.result;
    }
  }
  names->push_back(code.result);
  return true;
}

// Every instruction is a pass over its block, and a sum of products would be two to five of them: where a
// product, or a product of a difference, is read by one addition alone, they become one. A batch norm is such
// a sum, and so is its gradient.
void BlockProgram::JoinSums() {
  const BlockFn add = FindBlockOp("add").fn, sub = FindBlockOp("sub").fn, mul = FindBlockOp("mul").fn;
  std::vector<int> uses(kMaxValues, 0);
  for (const Instruction& code : code_)
    for (int i = 0; i < code.operands; ++i) ++uses[code.in[i]];
  for (int output : outputs_) ++uses[output];
  std::vector<Instruction*> maker(kMaxValues, nullptr);
  auto made = [&](int value, BlockFn fn) {
    Instruction* by = uses[value] == 1 ? maker[value] : nullptr;
    return by != nullptr && by->fn == fn ? by : nullptr;
  };
  auto become = [](Instruction* code, BlockFn fn, std::initializer_list<int> in,
                   std::initializer_list<Instruction*> joined) {
    code->fn = fn;
    code->operands = static_cast<int>(in.size());
    std::copy(in.begin(), in.end(), code->in);
    for (Instruction* gone : joined) gone->result = -1;
  };
  auto join = [&](Instruction* code) {
    if (code->fn != add) return;
    for (int side : {0, 1}) {
      Instruction *product = made(code->in[side], mul), *affine = made(code->in[1 - side], AffineBlock);
      if (product == nullptr || affine == nullptr) continue;
      const int *p = product->in, *a = affine->in;
      return become(code, ProductAffineBlock, {p[0], p[1], a[0], a[1], a[2], a[3]}, {product, affine});
    }
    for (int side : {0, 1}) {
      Instruction* product = made(code->in[side], mul);
      for (int factor : {1, 0}) {
        Instruction* away = product != nullptr ? made(product->in[1 - factor], sub) : nullptr;
        if (away == nullptr) continue;
        const int *d = away->in, by = product->in[factor];
        return become(code, AffineBlock, {d[0], d[1], by, code->in[1 - side]}, {product, away});
      }
    }
    for (int side : {0, 1}) {
      Instruction* product = made(code->in[side], mul);
      if (product == nullptr) continue;
      return become(code, ProductSumBlock, {product->in[0], product->in[1], code->in[1 - side]}, {product});
    }
  };
  for (Instruction& code : code_) {
    join(&code);
    maker[code.result] = &code;
  }
  std::erase_if(code_, [](const Instruction& code) { return code.result < 0; });
}

// Gives every value a buffer for as long as it is needed; the block shrinks when many live at once.
void BlockProgram::PlaceValues(int values) {
  std::vector<int> last_use(values, -1);
  for (size_t j = 0; j < code_.size(); ++j) {
    for (int i = 0; i < code_[j].operands; ++i) last_use[code_[j].in[i]] = static_cast<int>(j);
  }
  for (int value : outputs_) last_use[value] = static_cast<int>(code_.size());
  buffer_.assign(values, -1);
  std::vector<int> free;
  int count = 0;
  auto take = [&](int value) {
    if (free.empty()) free.push_back(count++);
    buffer_[value] = free.back();
    free.pop_back();
  };
  for (int value = 0; value < inputs_; ++value) take(value);
  for (size_t j = 0; j < code_.size(); ++j) {
    const Instruction& code = code_[j];
    for (int i = 0; i < code.operands; ++i) {
      int value = code.in[i];
      bool again = std::find(code.in, code.in + i, value) != code.in + i;
      if (!again && last_use[value] == static_cast<int>(j) && buffer_[value] >= 0)
        free.push_back(buffer_[value]);
    }
    if (straight_[code.result] < 0) take(code.result);
  }
  while (block_ * std::max(count, 1) > kBufferFloats) block_ /= 2;
}

namespace {

void DropoutBlock(const BlockArgs& a, const uint16_t* bits, uint32_t least) {
  const float* x = a.in[0];
  float* y = a.out;
  float keep = a.constant;
  OFL_INDEPENDENT
  for (int64_t i = 0; i < a.n; ++i) y[i] = bits[i] >= least ? x[i] * keep : 0.0f;
}

void StoreOutput(const TensorArg& out, int64_t at, int64_t n, const float* from, bool stream) {
  if (out.dtype == DType::kBool) {
    uint8_t* to = out.as<uint8_t>() + at;
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] != 0.0f;
    return;
  }
  DispatchFloating(out.dtype, [&](auto t) {
    using T = decltype(t);
    T* to = out.as<T>() + at;
    if (!stream) return Narrow(from, n, to);
    if constexpr (std::is_same_v<T, float>) {
      StreamCopy(to, from, n * static_cast<int64_t>(sizeof(float)));
    } else {
      T narrow[512];
      Narrow(from, n, narrow);
      StreamCopy(to, narrow, n * static_cast<int64_t>(sizeof(T)));
    }
  });
}

}  // namespace

// Blocks of a whole number of periods begin alike, so what repeats is copied once for all of a range: the
// block to go by, and for each input whether it repeats with it.
int64_t BlockProgram::BlockFor(const View* views, std::array<bool, kMaxInputs>* repeats) const {
  int64_t longest = 1;
  for (int i = 0; i < inputs_; ++i) {
    int64_t period = views[i].Period();
    if (period <= block_) longest = std::max(longest, period);
  }
  const int64_t block = block_ / longest * longest;
  for (int i = 0, slots = 0; i < inputs_; ++i) {
    int64_t period = views[i].Period();
    (*repeats)[i] = period > 0 && block % period == 0 && slots < kMostKept;
    slots += (*repeats)[i];
  }
  return block;
}

void BlockProgram::RunRange(const KernelContext& context, const View* views, const GlobalRuns& runs,
                            int64_t begin, int64_t end) const {
  alignas(64) float buffers[kBufferFloats];
  alignas(64) float kept[kMostKept][512];
  alignas(64) float streamed[kMostStreamed][512];
  uint16_t bits[512];
  std::array<const float*, kMaxValues> value;
  std::array<bool, kMaxInputs> repeats, streams = {};  // inputs, outputs
  for (size_t i = 0; i < std::min<size_t>(outputs_.size(), kMostStreamed); ++i)
    streams[i] = Streams(context.out[i], context.in);
  const int64_t block = BlockFor(views, &repeats);
  for (int64_t at = begin; at < end; at += block) {
    int64_t n = std::min(block, end - at);
    for (int i = 0, slot = 0; i < inputs_; ++i) {
      if (!repeats[i]) {
        value[i] = views[i].Load(at, n, buffers + buffer_[i] * block_);
      } else if (at == begin) {
        value[i] = views[i].Load(at, n, kept[slot++]);
      }
    }
    for (const Instruction& code : code_) {
      int direct = straight_[code.result];
      float* result = direct < 0        ? buffers + buffer_[code.result] * block_
                      : streams[direct] ? streamed[direct]
                                        : context.out[direct].as<float>() + at;
      BlockArgs args{{}, result, n, code.constant};
      for (int i = 0; i < code.operands; ++i) args.in[i] = value[code.in[i]];
      if (code.fn != nullptr) {
        code.fn(args);
      } else {
        uint64_t key = RandomKey(context.seed, code.key);
        int64_t left;
        for (int64_t i = 0; i < n; i += left) {
          uint64_t global = runs.Global(at + i, &left);
          left = std::min(left, n - i);
          FillDropBits(key, static_cast<uint64_t>(context.step), global, left, bits + i);
        }
        DropoutBlock(args, bits, code.least);
      }
      value[code.result] = result;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      int id = outputs_[i];
      if (straight_[id] != static_cast<int>(i) || streams[i])
        StoreOutput(context.out[i], at, n, value[id], streams[i]);
    }
  }
  EndStream();
}

Status BlockProgram::Run(const KernelContext& context) {
  const TensorArg& out = context.out[0];
  int64_t n = out.elements();
  if (n == 0) return Status();
  View views[kMaxInputs];
  for (int i = 0; i < inputs_; ++i) views[i] = View(context.in[i], out);
  GlobalRuns runs(out);
  ParallelFor(n, kGrain, [&](int64_t begin, int64_t end) { RunRange(context, views, runs, begin, end); });
  return Status();
}

namespace {

KernelPtr MakeProgram(const KernelSpec& spec, const std::vector<FusedStep>& steps,
                      const std::vector<int64_t>& outputs) {
  bool fits = std::all_of(spec.in.begin(), spec.in.end(), FloatOrBool) &&
              std::all_of(spec.out.begin(), spec.out.end(), FloatOrBool);
  if (fits) {
    std::vector<DType> types;
    for (const TensorArg& in : spec.in) types.push_back(in.dtype);
    if (KernelPtr program = BlockProgram::Make(steps, types, outputs)) return program;
  }
  return MakeReference(spec);
}

}  // namespace

KernelPtr MakeElementwise(const KernelSpec& spec) {
  // Arithmetic on bool operands is not what floats would do; only where and logical operators take them.
  bool numbers =
      spec.name == "where" || spec.name.starts_with("logical_") ||
      std::all_of(spec.in.begin(), spec.in.end(), [](const TensorArg& in) { return IsFloating(in.dtype); });
  bool where_of_bools = spec.name == "where" && !IsFloating(spec.in[1].dtype);
  if (!numbers || where_of_bools) return MakeReference(spec);
  const int operands = static_cast<int>(spec.in.size());
  std::vector<FusedStep> steps = StepsOf(BuiltinCatalog().Get(spec.name), spec.attrs, operands, spec.name);
  return MakeProgram(spec, steps, {static_cast<int64_t>(operands + steps.size()) - 1});
}

KernelPtr MakeAddN(const KernelSpec& spec) {
  return AllFloat(spec) ? MakeFunctionKernel(AddN)(spec) : MakeElementwise(spec);
}

KernelPtr MakeFused(const KernelSpec& spec) {
  return MakeProgram(spec, ParseFused(spec.attrs.Str("program"), static_cast<int>(spec.in.size())),
                     spec.attrs.Ints("outputs"));
}

}  // namespace oneflow_like::cpu
