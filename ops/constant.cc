// Tensors from nothing: full, and the random initialisers. A random element is a function of the seed, the
// node's key and the element's place in the whole tensor, so every mesh draws the same weights.
#include <cmath>
#include <numbers>

#include "core/boxes/copy_box.h"
#include "core/random.h"
#include "ops/inverse_normal.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {

double InverseNormal(double u) { return InverseNormalAt(u); }

namespace {

// The draw of each element of out[0], uniform inside (0, 1), through `value`. Initialisers do not depend on
// the step.
template <typename F>
Status Draw(const KernelContext& context, F value) {
  const TensorArg& y = context.out[0];
  uint64_t key = RandomKey(context.seed, static_cast<uint64_t>(context.spec.attrs.Int("key")));
  int64_t at = 0;
  ForEachIndex(y.extent, [&](const Dims& index) {
    uint32_t bits = RandomBits(key, 0, static_cast<uint64_t>(GlobalIndex(y, index)));
    StoreFloat(y, at++, value((bits + 0.5) / 4294967296.0));
  });
  return Status();
}

Status Uniform(const KernelContext& context) {
  double low = context.spec.attrs.Float("low"), high = context.spec.attrs.Float("high");
  return Draw(context, [=](double u) { return low + (high - low) * u; });
}

Status Normal(const KernelContext& context) {
  double mean = context.spec.attrs.Float("mean"), stddev = context.spec.attrs.Float("stddev");
  return Draw(context, [=](double u) { return mean + stddev * InverseNormal(u); });
}

// The distribution function is cut to the part between -2 and 2 standard deviations and inverted.
Status TruncatedNormal(const KernelContext& context) {
  double mean = context.spec.attrs.Float("mean"), stddev = context.spec.attrs.Float("stddev");
  double below = 0.5 * std::erfc(std::numbers::sqrt2);  // of -2
  return Draw(context, [=](double u) { return mean + stddev * InverseNormal(below + (1 - 2 * below) * u); });
}

Status Full(const KernelContext& context) {
  const TensorArg& y = context.out[0];
  double value = context.spec.attrs.Float("value");
  for (int64_t i = 0; i < y.elements(); ++i) StoreFloat(y, i, value);
  return Status();
}

// The piece of the values that is wanted here.
Status Literal(const KernelContext& context) {
  const TensorArg& y = context.out[0];
  const Blob& values = context.spec.attrs.Bytes("values");
  if (values.data() == nullptr)
    return Status("the values of this literal are not in the text it was read from");
  const Box box{y.begin, y.extent};
  if (box.empty()) return Status();
  // CopyBox does not write where it copies from.
  const Piece whole{const_cast<void*>(static_cast<const void*>(values.data())), Box::Whole(y.global)};
  CopyBox(y.dtype, box, whole, {y.data, box});
  return Status();
}

// An operator without inputs: all its labels are the output's, and any of them may be cut.
OpDef SourceOp(const std::string& name, const std::string& doc, KernelFn reference,
               std::vector<std::string> numbers) {
  OpDef def{.name = name, .doc = doc};
  def.axes_of = [](const OpCall& call) {
    RequireInputs(call, 0);
    RequireAttr(call, "shape");
    return "-> y[" + Letters(0, call.attrs->GetDims("shape").rank()) + "]";
  };
  def.extents = [](const OpCall& call) {
    Dims shape = call.attrs->GetDims("shape");
    std::map<std::string, int64_t> extents;
    for (int i = 0; i < shape.rank(); ++i) extents[Letter(i)] = shape[i];
    return extents;
  };
  def.check = [numbers](const OpCall& call) {
    RequireInputs(call, 0);
    RequireAttr(call, "shape");
    for (const std::string& number : numbers) RequireAttr(call, number);
    Dims shape = call.attrs->GetDims("shape");
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] < 0) Fail(call.who, ": axis ", i, " of ", shape.str(), " is negative");
    }
  };
  def.reference = reference;
  return def;
}

OpDef RandomOp(const std::string& name, const std::string& doc, KernelFn reference, const std::string& first,
               double a, const std::string& second, double b) {
  OpDef def = SourceOp(name, doc, reference, {first, second});
  def.random = true;
  def.dtypes = ResultTypes({DType::kFloat32});
  for (std::vector<int64_t> shape : {std::vector<int64_t>{6, 4}, {7}, {2, 3, 5}}) {
    def.samples.push_back({.attrs = {{"shape", shape}, {first, a}, {second, b}, {"key", int64_t{17}}}});
  }
  return def;
}

std::vector<DType> NamedType(const OpCall& call) {
  DType dtype;
  std::string name = call.attrs->Str("dtype");
  if (!ParseDType(name, &dtype)) Fail(call.who, ": there is no type named \"", name, "\"");
  return {dtype};
}

void AddLiteral(Catalog* catalog) {
  OpDef def =
      SourceOp("constant", "A literal tensor: its values are an attribute.", Literal, {"values", "dtype"});
  def.dtypes = NamedType;
  auto shaped = def.check;
  def.check = [shaped](const OpCall& call) {
    shaped(call);
    const Dims shape = call.attrs->GetDims("shape");
    RequireExtents(call.who, shape);
    const DType dtype = NamedType(call)[0];
    const size_t bytes = static_cast<size_t>(shape.elements()) * SizeOf(dtype);
    if (call.attrs->Bytes("values").size() != bytes) {
      Fail(call.who, ": values are ", call.attrs->Bytes("values").size(), " bytes but ", Name(dtype),
           shape.str(), " takes ", bytes);
    }
  };
  def.flops = [](const BoundRule&) { return 0.0; };
  const float numbers[] = {0, -1, 2.5, 3, 4, 5e-3f};
  def.samples = {{.attrs = {{"shape", std::vector<int64_t>{2, 3}},
                            {"dtype", std::string("f32")},
                            {"values", Blob(numbers, sizeof numbers)}}},
                 {.attrs = {{"shape", std::vector<int64_t>{24}},
                            {"dtype", std::string("u8")},
                            {"values", Blob(numbers, sizeof numbers)}}},
                 {.attrs = {{"shape", std::vector<int64_t>{0, 3}},
                            {"dtype", std::string("i64")},
                            {"values", Blob(numbers, 0)}}}};
  catalog->Add(std::move(def));
}

}  // namespace

void AddConstant(Catalog* catalog) {
  AddLiteral(catalog);
  OpDef full = SourceOp("full", "A tensor of one number.", Full, {"value", "dtype"});
  full.dtypes = NamedType;
  full.any_number = true;
  full.check = [shaped = full.check](const OpCall& call) {
    shaped(call);
    const DType dtype = NamedType(call)[0];
    if (const double value = call.attrs->Float("value"); !Holds(dtype, value))
      Fail(call.who, ": value is ", value, ", which is no number of type ", Name(dtype));
  };
  for (const char* dtype : {"f32", "i64"}) {
    full.samples.push_back(
        {.attrs = {{"shape", std::vector<int64_t>{6, 4}}, {"value", 3.0}, {"dtype", std::string(dtype)}}});
  }
  catalog->Add(std::move(full));
  catalog->Add(RandomOp("uniform", "Evenly distributed in [low, high).", Uniform, "low", -0.5, "high", 1.5));
  catalog->Add(RandomOp("normal", "Normally distributed.", Normal, "mean", 0.5, "stddev", 2.0));
  catalog->Add(RandomOp("truncated_normal",
                        "Normally distributed, inside two standard deviations of the mean.", TruncatedNormal,
                        "mean", 0.5, "stddev", 2.0));
}

}  // namespace oneflow_like
