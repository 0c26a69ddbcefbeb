// The table entry of "fused" and its reference kernel, which runs the steps' own reference kernels element by
// element.
#include "ops/fused.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>

#include "ops/manifest.h"
#include "ops/reference.h"
#include "ops/scalar.h"

namespace oneflow_like {
namespace {

bool HasScalarBody(const std::string& op) {
  static constexpr const char* kNames[] = {
#define OFL_NAME(name, functor) name,
#define OFL_NAME_OF_CONSTANT(name, functor, attribute) name,
      OFL_UNARY_SCALARS(OFL_NAME) OFL_BINARY_SCALARS(OFL_NAME) OFL_TERNARY_SCALARS(OFL_NAME)
          OFL_CONSTANT_SCALARS(OFL_NAME_OF_CONSTANT)
              OFL_BINARY_CONSTANT_SCALARS(OFL_NAME_OF_CONSTANT) "add_n",
      "cast", "dropout"};
#undef OFL_NAME
#undef OFL_NAME_OF_CONSTANT
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) { return op == name; });
}

bool FloatOrBool(DType dtype) { return IsFloating(dtype) || dtype == DType::kBool; }

FusedStep ParseStep(const std::string& who, const std::string& text, int defined) {
  std::istringstream words(text);
  FusedStep step;
  words >> step.op;
  std::string word, attrs;
  while (words >> word) {
    if (word.find('=') != std::string::npos) {
      attrs += (attrs.empty() ? "" : " ") + word;
      continue;
    }
    int value = -1;
    if (word.find_first_not_of("0123456789") == std::string::npos && word.size() < 9) value = std::stoi(word);
    if (value < 0 || value >= defined) {
      Fail(who, ": step \"", text, "\" reads value ", word, " but only 0 to ", defined - 1,
           " are defined before it");
    }
    step.args.push_back(value);
  }
  if (!HasScalarBody(step.op)) Fail(who, ": step \"", text, "\" does not name an elementwise operator");
  if (step.args.empty()) Fail(who, ": step \"", text, "\" has no operand");
  step.attrs = Attrs::Parse(attrs);
  return step;
}

// One element of one value, of whatever type it has.
struct Element {
  alignas(8) std::array<unsigned char, 8> bytes{};
};

// Runs the steps' reference kernels on single elements. Acts allocate nothing.
class ElementProgram : public Kernel {
 public:
  // `result`: the first output.
  ElementProgram(const std::vector<FusedStep>& steps, const std::vector<DType>& inputs,
                 std::vector<int64_t> outputs, const TensorArg& result)
      : inputs_(inputs.size()),
        outputs_(std::move(outputs)),
        types_(FusedTypes(steps, inputs)),
        values_(types_.size()) {
    const int rank = result.global.rank();
    auto arg = [&](int value) {
      return TensorArg{values_[value].bytes.data(), types_[value], result.global, Dims(rank, 0),
                       Dims(rank, 1)};
    };
    for (size_t j = 0; j < steps.size(); ++j) {
      KernelSpec spec;
      spec.name = steps[j].op;
      spec.attrs = steps[j].attrs;
      for (int value : steps[j].args) spec.in.push_back(arg(value));
      spec.out.push_back(arg(static_cast<int>(inputs_ + j)));
      specs_.push_back(std::move(spec));
      kernels_.push_back(BuiltinCatalog().Get(steps[j].op).reference);
    }
  }

  Status Run(const KernelContext& context) override {
    const TensorArg& shape = context.out[0];
    Status status;
    int64_t at = 0;
    ForEachIndex(shape.extent, [&](const Dims& index) {
      for (size_t i = 0; i < inputs_; ++i) {
        size_t size = SizeOf(types_[i]);
        int64_t offset = BroadcastOffset(context.in[i].extent, index);
        std::memcpy(values_[i].bytes.data(), context.in[i].as<char>() + offset * size, size);
      }
      for (size_t j = 0; j < specs_.size(); ++j) {
        KernelSpec& spec = specs_[j];
        for (TensorArg& arg : spec.in) {
          for (int axis = 0; axis < index.rank(); ++axis) arg.begin[axis] = shape.begin[axis] + index[axis];
        }
        spec.out[0].begin = spec.in[0].begin;
        Status done = kernels_[j](
            {spec, spec.in, spec.out, nullptr, context.step, context.time, context.times, context.seed});
        if (!done.ok()) status = done;
      }
      for (size_t i = 0; i < context.out.size(); ++i) {
        size_t size = SizeOf(context.out[i].dtype);
        std::memcpy(context.out[i].as<char>() + at * size, values_[outputs_[i]].bytes.data(), size);
      }
      ++at;
    });
    return status;
  }

 private:
  const size_t inputs_;
  const std::vector<int64_t> outputs_;
  const std::vector<DType> types_;  // of all values
  std::vector<Element> values_;
  std::vector<KernelSpec> specs_;  // of the steps, on elements of values_
  std::vector<KernelFn> kernels_;
};

std::vector<DType> TypesOf(std::span<const TensorArg> args) {
  std::vector<DType> types;
  for (const TensorArg& arg : args) types.push_back(arg.dtype);
  return types;
}

Status Fused(const KernelContext& context) {
  const std::vector<FusedStep> steps =
      ParseFused(context.spec.attrs.Str("program"), static_cast<int>(context.in.size()));
  return ElementProgram(steps, TypesOf(context.in), context.spec.attrs.Ints("outputs"), context.out[0])
      .Run(context);
}

std::vector<FusedStep> ProgramOf(const OpCall& call) {
  return ParseFused(call.attrs->Str("program"), static_cast<int>(call.shapes.size()), call.who);
}

void Check(const OpCall& call) {
  RequireAttr(call, "program");
  RequireAttr(call, "outputs");
  for (size_t i = 0; i < call.dtypes.size(); ++i) {
    if (!FloatOrBool(call.dtypes[i])) {
      Fail(call.who, ": operand ", i + 1, " is ", Name(call.dtypes[i]),
           " but must be of a floating type or bool");
    }
  }
  int64_t values = static_cast<int64_t>(call.shapes.size() + ProgramOf(call).size());
  for (int64_t output : call.attrs->Ints("outputs")) {
    if (output < 0 || output >= values) {
      Fail(call.who, ": output ", output, " is not among the ", values, " values of the program");
    }
  }
}

}  // namespace

bool IsProgram(const OpDef& def) { return def.scalar.find(' ') != std::string::npos; }

std::vector<FusedStep> StepsOf(const OpDef& def, const Attrs& attrs, int operands, const std::string& who) {
  if (IsProgram(def)) return ParseFused(def.scalar, operands, who);
  FusedStep step{def.name, {}, attrs};
  for (int i = 0; i < operands; ++i) step.args.push_back(i);
  return {step};
}

KernelFactory ProgramKernel(const OpDef& def) {
  return [program = def.scalar](const KernelSpec& spec) {
    const int operands = static_cast<int>(spec.in.size());
    const std::vector<FusedStep> steps = ParseFused(program, operands, spec.name);
    const int64_t last = operands + static_cast<int64_t>(steps.size()) - 1;
    return std::make_unique<ElementProgram>(steps, TypesOf(spec.in), std::vector<int64_t>{last}, spec.out[0]);
  };
}

bool Fusible(const OpDef& def, const std::vector<DType>& in, const std::vector<DType>& out) {
  return (HasScalarBody(def.name) || IsProgram(def)) && !in.empty() && out.size() == 1 &&
         std::all_of(in.begin(), in.end(), FloatOrBool) && std::all_of(out.begin(), out.end(), FloatOrBool);
}

std::string FusedProgram(const std::vector<FusedStep>& steps) {
  std::string text;
  for (const FusedStep& step : steps) {
    if (!text.empty()) text += ';';
    text += step.op;
    for (int value : step.args) text += Cat(" ", value);
    std::string attrs = step.attrs.str();
    if (!attrs.empty()) text += " " + attrs;
  }
  return text;
}

std::vector<FusedStep> ParseFused(const std::string& program, int num_inputs, const std::string& who) {
  std::vector<FusedStep> steps;
  std::istringstream lines(program);
  std::string text;
  while (std::getline(lines, text, ';')) {
    steps.push_back(ParseStep(who, text, num_inputs + static_cast<int>(steps.size())));
  }
  return steps;
}

std::vector<DType> FusedTypes(const std::vector<FusedStep>& steps, const std::vector<DType>& inputs) {
  std::vector<DType> types = inputs;
  for (const FusedStep& step : steps) {
    OpCall call;
    call.op = step.op;
    call.who = "fused " + step.op;
    for (int value : step.args) call.dtypes.push_back(types[value]);
    call.shapes.resize(step.args.size());
    call.attrs = &step.attrs;
    const OpDef& def = BuiltinCatalog().Get(step.op);
    types.push_back(def.dtypes ? def.dtypes(call)[0] : call.dtypes[0]);
  }
  return types;
}

void AddFused(Catalog* catalog) {
  OpDef def{.name = "fused",
            .doc = "A chain of elementwise operators in one pass over memory; made by the compiler."};
  def.axes_of = [](const OpCall& call) {
    std::string in, out;
    for (size_t i = 0; i < call.shapes.size(); ++i) in += Cat(i ? ", " : "", "x", i, "[..]");
    size_t outputs = call.attrs->Ints("outputs").size();
    for (size_t i = 0; i < outputs; ++i) out += Cat(i ? ", " : "", "y", i, "[..]");
    return in + " -> " + out;
  };
  def.check = Check;
  def.dtypes = [](const OpCall& call) {
    std::vector<DType> types = FusedTypes(ProgramOf(call), call.dtypes), out;
    for (int64_t output : call.attrs->Ints("outputs")) out.push_back(types[output]);
    return out;
  };
  def.flops = [](const BoundRule& rule) { return rule.Volume() * static_cast<double>(rule.in.size()); };
  def.reference = Fused;
  def.samples = {
      {.in = {{6, 4}, {4}},
       .attrs = {{"program", std::string("add 0 1;gelu 2;mul 3 0")},
                 {"outputs", std::vector<int64_t>{2, 4}}}},
      {.in = {{3, 5}, {3, 1}},
       .attrs = {{"program", std::string("mul 0 1;dropout 2 key=17 p=0.5;greater 3 1;where 4 0 3")},
                 {"outputs", std::vector<int64_t>{3, 4, 5}}}}};
  catalog->Add(std::move(def));
}

}  // namespace oneflow_like
