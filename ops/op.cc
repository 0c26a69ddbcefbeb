// The catalog of operators, and what is derived from a table entry for one use: bound rule, output shapes and
// types.
#include "ops/op.h"

#include <glog/logging.h>

#include <algorithm>
#include <cctype>
#include <variant>

#include "ops/fused.h"
#include "ops/language/calls.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/tf32.h"

namespace oneflow_like {

std::string LackOf(const OpDef& def) {
  if (def.name.empty()) return "a name (OpDef::name)";
  if (def.axes.empty() && !def.axes_of) return "a line of labelled axes (OpDef::axes)";
  if (!ReferenceKernel(def) && !def.view)
    return "a kernel (OpDef::reference), or a program of steps to make one of (OpDef::scalar)";
  return "";
}

void Catalog::Add(OpDef def) {
  CHECK(!def.name.empty()) << "an operator without a name";
  CHECK(!def.axes.empty() || def.axes_of) << "operator " << def.name << " has no line of labelled axes";
  std::string name = def.name;
  CHECK(ops_.emplace(name, std::move(def)).second) << "operator " << name << " is in the catalog twice";
}

const OpDef& Catalog::Get(const std::string& name) const {
  const OpDef* def = Find(name);
  if (def == nullptr) Fail("there is no operator named \"", name, "\"");
  return *def;
}

const OpDef* Catalog::Find(const std::string& name) const {
  auto it = ops_.find(name);
  return it == ops_.end() ? nullptr : &it->second;
}

std::vector<std::string> Catalog::names() const {
  std::vector<std::string> names;
  for (const auto& [name, def] : ops_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

KernelFactory ReferenceKernel(const OpDef& def) {
  if (def.reference != nullptr) return MakeFunctionKernel(def.reference);
  if (def.composed)
    return [make = def.composed](const KernelSpec& spec) { return make(spec, ReferenceInner()); };
  return IsProgram(def) ? ProgramKernel(def) : nullptr;
}

InnerKernels ReferenceInner() {
  return {[](const KernelSpec& spec) { return ReferenceKernel(BuiltinCatalog().Get(spec.name))(spec); },
          [](const KernelSpec& spec) -> int64_t {
            const OpDef& def = BuiltinCatalog().Get(spec.name);
            return def.scratch ? def.scratch(spec) : 0;
          },
          [](const std::string&) { return false; }};
}

Work::Kind KindOfWork(const std::string& category) {
  return category == "attention"                             ? Work::Kind::kAttention
         : category == "matmul" || category == "convolution" ? Work::Kind::kProduct
         : category == kHostCopies                           ? Work::Kind::kHostCopy
                                                             : Work::Kind::kOther;
}

ComputeUnit UnitOfProducts(const KernelSpec& spec) {
  for (const TensorArg& in : spec.in)
    if (IsFloating(in.dtype) && SizeOf(in.dtype) < SizeOf(DType::kFloat32))
      return {ComputeUnit::Kind::kLibrary};
  if (MayRoundToTf32(spec.attrs)) return {ComputeUnit::Kind::kLibrary};
  return {ComputeUnit::Kind::kPlain, "its operands are f32"};
}

const Catalog& GraphBuilder::catalog() const { return BuiltinCatalog(); }

void AddReferenceKernels(const Catalog& catalog, KernelRegistry* registry) {
  for (const std::string& name : catalog.names()) {
    const OpDef& def = catalog.Get(name);
    if (def.composed) {
      registry->AddComposed(name, "reference", def.composed, def.composed_scratch);
    } else if (KernelFactory kernel = ReferenceKernel(def)) {
      registry->Add(name, "reference", kernel, def.scratch);
    }
    if (def.cuda_scratch) registry->State(name, "cuda", def.cuda_scratch);
  }
}

namespace {

// The line of axes says how many inputs there are.
void CheckInputCount(const std::string& axes, const OpCall& call) {
  std::string inputs = axes.substr(0, axes.find("->"));
  size_t count = std::count(inputs.begin(), inputs.end(), '[');
  if (inputs.find('*') == std::string::npos) {
    RequireInputs(call, count);
  } else if (call.shapes.size() < count) {
    Fail(call.who, ": takes at least ", count, " inputs but was given ", call.shapes.size());
  }
}

// A label that is misspelt in a note would be ignored, and what must be whole be cut.
void RequireLabels(const std::string& who, const BoundRule& rule) {
  const auto known = [&](const std::string& label, const char* note) {
    if (rule.extents.count(label) == 0)
      Fail(who, ": ", note, " of its rule names the label ", label, ", which none of its axes has");
  };
  for (const std::string& label : rule.notes.whole) known(label, "whole");
  for (const std::string& label : rule.notes.expandable) known(label, "expandable");
  for (const auto& [label, fold] : rule.notes.folds) known(label, "folds");
  for (const auto& [label, with] : rule.notes.along) known(label, "along");
}

}  // namespace

BoundRule BindOp(const OpDef& def, const OpCall& call) {
  const std::string axes = def.axes_of ? def.axes_of(call) : def.axes;
  CheckInputCount(axes, call);
  RuleNotes notes;
  notes.folds = def.folds_of ? def.folds_of(call) : def.folds;
  notes.linear = def.linear_of ? def.linear_of(call) : def.linear;
  notes.whole = def.whole_of ? def.whole_of(call) : def.whole;
  notes.expandable = def.expandable;
  notes.along = def.along;
  std::map<std::string, int64_t> given;
  if (def.extents) given = def.extents(call);
  const BoundRule rule = Bind(call.who, axes, notes, call.shapes, given);
  if (!def.axes_of) RequireLabels(call.who, rule);  // a computed line may lack those of an optional operand
  return rule;
}

Inferred Infer(const OpDef& def, const OpCall& call) {
  CHECK_EQ(call.shapes.size(), call.dtypes.size());
  CHECK(call.attrs != nullptr);
  if (!def.axes_of) CheckInputCount(def.axes, call);  // computed lines may need what `check` finds
  if (def.check) def.check(call);
  if (!def.any_number)
    for (const auto& [name, attr] : call.attrs->map())
      if (const auto* number = std::get_if<double>(&attr))
        NeedNumber(call.who, name, *number, Domain::kFinite);
  Inferred inferred;
  inferred.rule = BindOp(def, call);
  if (def.dtypes) {
    inferred.dtypes = def.dtypes(call);
  } else if (IsProgram(def)) {
    const std::vector<FusedStep> steps =
        StepsOf(def, *call.attrs, static_cast<int>(call.dtypes.size()), call.who);
    inferred.dtypes = {FusedTypes(steps, call.dtypes).back()};
  } else {
    DType first = call.dtypes.empty() ? DType::kFloat32 : call.dtypes[0];
    inferred.dtypes.assign(inferred.rule.out.size(), first);
  }
  CHECK_EQ(inferred.dtypes.size(), inferred.rule.out.size()) << call.who;
  if (def.typed && call.attrs->Has("dtype") && !ParseDType(call.attrs->Str("dtype"), &inferred.dtypes[0]))
    Fail(call.who, ": there is no type named \"", call.attrs->Str("dtype"), "\"");
  for (const BoundRule::Operand& out : inferred.rule.out) RequireExtents(call.who, out.shape);
  return inferred;
}

std::string Letter(int axis) {
  CHECK(axis >= 0 && axis < 26) << axis;
  return std::string(1, static_cast<char>('a' + axis));
}

std::string Letters(int begin, int end) {
  std::string text;
  for (int axis = begin; axis < end; ++axis) text += (text.empty() ? "" : " ") + Letter(axis);
  return text;
}

std::string FirstOperandName(const std::string& function) {
  return BuiltinCatalog().Find(function) == nullptr ? "x" : OperandName(function, 0);
}

std::string OperandName(const std::string& op, size_t input) {
  const std::string number = Cat("operand ", input + 1);
  const OpDef* def = BuiltinCatalog().Find(op);
  if (def == nullptr) return number;
  std::string line = def->axes;
  for (const Sample& sample : def->samples) {  // a computed line, of a use with enough inputs
    if (!line.empty() || sample.in.size() <= input) continue;
    std::vector<DType> dtypes = sample.dtypes;
    dtypes.resize(sample.in.size(), DType::kFloat32);
    line = def->axes_of({op, op, sample.in, dtypes, &sample.attrs});
  }
  line = line.substr(0, line.find("->"));
  for (size_t i = 0, at = 0;; ++i) {
    const size_t open = line.find('[', at);
    if (open == std::string::npos || line.find('*') != std::string::npos) return number;
    if (i == input)
      return std::isdigit(line[open - 1]) ? number : line.substr(at, open - at);  // "x1": of many
    at = std::min(line.size(), line.find_first_not_of(", ", line.find(']', open) + 1));
  }
}

namespace {

std::string Input(const OpCall& call, size_t input) { return OperandName(call.op, input); }

}  // namespace

void RequireInputs(const OpCall& call, size_t count) {
  if (call.shapes.size() != count) {
    Fail(call.who, ": takes ", count, " input", count == 1 ? "" : "s", " but was given ", call.shapes.size());
  }
}

void RequireFloating(const OpCall& call, size_t input) {
  if (!IsFloating(call.dtypes[input])) {
    Fail(call.who, ": ", Input(call, input), " is ", Name(call.dtypes[input]),
         " but must be of a floating type; cast it");
  }
}

void RequireFloating(const OpCall& call) {
  for (size_t i = 0; i < call.dtypes.size(); ++i) RequireFloating(call, i);
}

void RequireInteger(const OpCall& call, size_t input) {
  if (call.dtypes[input] != DType::kInt32 && call.dtypes[input] != DType::kInt64) {
    Fail(call.who, ": ", Input(call, input), " is ", Name(call.dtypes[input]), " but must be i32 or i64");
  }
}

void RequireSameTypes(const OpCall& call, size_t a, size_t b) {
  if (call.dtypes[a] != call.dtypes[b])
    Fail(call.who, ": ", Input(call, a), " is ", Name(call.dtypes[a]), " but ", Input(call, b), " is ",
         Name(call.dtypes[b]), "; cast one of them");
}

void RequireSameTypes(const OpCall& call, size_t first) {
  for (size_t i = first + 1; i < call.dtypes.size(); ++i) RequireSameTypes(call, first, i);
}

void RequirePictures(const OpCall& call) {
  RequireFloating(call, 0);
  const int rank = call.shapes[0].rank();
  if (rank != 4)
    Fail(call.who, ": ", Input(call, 0), " has ", rank, rank == 1 ? " axis" : " axes",
         " but needs 4 (batch, rows, columns, channels)");
}

std::function<std::vector<DType>(const OpCall&)> ResultTypes(std::vector<std::variant<int, DType>> results) {
  return [results](const OpCall& call) {
    std::vector<DType> types;
    for (const auto& result : results) {
      const int* input = std::get_if<int>(&result);
      types.push_back(input ? call.dtypes[*input] : std::get<DType>(result));
    }
    return types;
  };
}

void RequireArithmetic(const OpCall& call) {
  RequireSameTypes(call);
  if (!call.dtypes.empty() && call.dtypes[0] == DType::kBool) {
    Fail(call.who, ": its operands are bool but must be numbers; cast them");
  }
}

void RequireAttr(const OpCall& call, const std::string& name) {
  if (!call.attrs->Has(name)) Fail(call.who, ": attribute \"", name, "\" is missing");
}

void RequirePair(const OpCall& call, const std::string& name, int64_t least) {
  RequireAttr(call, name);
  const std::vector<int64_t>& pair = call.attrs->Ints(name);
  if (pair.size() != 2)
    Fail(call.who, ": ", name, " has ", pair.size(), " numbers but must have 2, for rows and columns");
  for (int axis : {0, 1}) {
    if (pair[axis] < least)
      Fail(call.who, ": ", name, " of the ", kPlaneAxes[axis], " is ", pair[axis], " but must be at least ",
           least);
  }
}

}  // namespace oneflow_like
