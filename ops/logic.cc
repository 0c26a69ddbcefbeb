// Elementwise operators on truth values and on the bits of integers; remainder; which numbers are finite.
#include <cmath>

#include "ops/elementwise.h"
#include "ops/language/calls.h"

namespace oneflow_like {
namespace {

// --- Truth values --------------------------------------------------------------------------------

std::vector<DType> GivesBool(const OpCall&) { return {DType::kBool}; }

void RequireBool(const OpCall& call) {
  for (size_t i = 0; i < call.dtypes.size(); ++i) {
    if (call.dtypes[i] != DType::kBool) {
      Fail(call.who, ": ", OperandName(call.op, i), " is ", Name(call.dtypes[i]),
           " but must be bool; compare it with a number");
    }
  }
}

// Samples of one kind of type for all operands.
void OfType(OpDef* def, DType dtype, int64_t limit) {
  for (Sample& s : def->samples) {
    s.dtypes.assign(s.in.size(), dtype);
    s.limit = limit;
  }
}

OpDef LogicalOp(OpDef def) {
  def.check = RequireBool;
  def.dtypes = GivesBool;
  def.stops_gradient = true;
  OfType(&def, DType::kBool, 2);
  return def;
}

void AddLogical(Catalog* catalog) {
  catalog->Add(LogicalOp(BinaryOp("logical_and", "Whether both are true.",
                                  Binary<[](auto a, auto b) { return a != 0 && b != 0; }, true>, nullptr)));
  catalog->Add(LogicalOp(BinaryOp("logical_or", "Whether one of both is true.",
                                  Binary<[](auto a, auto b) { return a != 0 || b != 0; }, true>, nullptr)));
  catalog->Add(
      LogicalOp(BinaryOp("logical_xor", "Whether exactly one of both is true.",
                         Binary<[](auto a, auto b) { return (a != 0) != (b != 0); }, true>, nullptr)));
  catalog->Add(LogicalOp(UnaryOp("logical_not", "Whether it is false.",
                                 Unary<[](auto x, const Attrs&) { return x == 0; }>, nullptr)));
}

// A question about floating numbers.
template <auto kF>
Status Asks(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  for (int64_t i = 0; i < y.elements(); ++i) y.as<bool>()[i] = kF(LoadFloat(x, i));
  return Status();
}

void AddQuestions(Catalog* catalog) {
  for (OpDef def : {UnaryOp("isfinite", "Whether x is neither infinite nor NaN; no gradient flows.",
                            Asks<[](double x) { return std::isfinite(x); }>, nullptr),
                    UnaryOp("isnan", "Whether x is NaN; no gradient flows.",
                            Asks<[](double x) { return std::isnan(x); }>, nullptr)}) {
    def.dtypes = GivesBool;
    def.stops_gradient = true;
    catalog->Add(std::move(def));
  }
}

// --- Bits ----------------------------------------------------------------------------------------

void RequireIntegers(const OpCall& call) {
  for (size_t i = 0; i < call.dtypes.size(); ++i) {
    if (IsFloating(call.dtypes[i]) || call.dtypes[i] == DType::kBool) {
      Fail(call.who, ": ", OperandName(call.op, i), " is ", Name(call.dtypes[i]),
           " but must be i32, i64 or u8");
    }
  }
  RequireSameTypes(call);
}

// Such operators have no scalar body: floats do not hold all bits of an integer.
OpDef BitsOp(OpDef def) {
  def.scalar.clear();
  def.check = RequireIntegers;
  def.stops_gradient = true;
  OfType(&def, DType::kInt32, 100);
  std::vector<Sample> wide = def.samples;
  for (Sample& s : wide) s.dtypes.assign(s.in.size(), DType::kInt64);
  def.samples.insert(def.samples.end(), wide.begin(), wide.end());
  return def;
}

// Kernels compute in int64_t, where operands of floating types do not come.
template <typename V, typename F>
V OfBits(V a, V b, F f) {
  return static_cast<V>(f(static_cast<int64_t>(a), static_cast<int64_t>(b)));
}
int64_t ShiftLeft(int64_t a, int64_t by) {
  return by < 0 || by > 63 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << by);
}
int64_t ShiftRight(int64_t a, int64_t by) { return by < 0 || by > 63 ? (a < 0 ? -1 : 0) : a >> by; }

void AddBits(Catalog* catalog) {
  auto add = [catalog](const char* name, const char* doc, KernelFn reference) {
    catalog->Add(BitsOp(BinaryOp(name, doc, reference, nullptr)));
  };
  add("bitwise_and", "The bits that both have.",
      Binary<[](auto a, auto b) { return OfBits(a, b, [](int64_t x, int64_t y) { return x & y; }); }, false>);
  add("bitwise_or", "The bits that one of both has.",
      Binary<[](auto a, auto b) { return OfBits(a, b, [](int64_t x, int64_t y) { return x | y; }); }, false>);
  add("bitwise_xor", "The bits that exactly one of both has.",
      Binary<[](auto a, auto b) { return OfBits(a, b, [](int64_t x, int64_t y) { return x ^ y; }); }, false>);
  add("left_shift", "a * 2^b without the bits that leave; 0 where b is negative or above 63.",
      Binary<[](auto a, auto b) { return OfBits(a, b, ShiftLeft); }, false>);
  add("right_shift", "floor(a / 2^b); a's sign alone where b is negative or above 63.",
      Binary<[](auto a, auto b) { return OfBits(a, b, ShiftRight); }, false>);
  catalog->Add(BitsOp(
      UnaryOp("bitwise_not", "The bits that x has not.",
              Unary<[](auto x, const Attrs&) { return static_cast<decltype(x)>(~static_cast<int64_t>(x)); }>,
              nullptr)));
}

// --- Remainder -----------------------------------------------------------------------------------

template <typename V>
V FloorMod(V a, V b) {
  if constexpr (std::is_integral_v<V>) {
    if (b == 0 || b == -1) return 0;
    V rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  } else {
    V rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
}

void AddRemainder(Catalog* catalog) {
  OpDef def = BinaryOp(
      "remainder", "a - b floor(a / b), of b's sign; of integers 0 where b is 0.",
      Binary<[](auto a, auto b) { return FloorMod(a, b); }, false>,
      [](const GradCall& c, Tensor dy) {
        Tensor db = c.wanted[1] ? neg(mul(dy, floor_divide(c.in[0], c.in[1]))) : Tensor();
        return std::vector<Tensor>{dy, db};
      },
      {}, 1, 20);
  std::vector<Sample> integers = def.samples;
  for (Sample& s : integers) {
    s.dtypes = {DType::kInt32, DType::kInt32};
    s.limit = 50;
  }
  def.samples.insert(def.samples.end(), integers.begin(), integers.end());
  catalog->Add(WidePrecision(std::move(def)));
}

}  // namespace

void AddLogic(Catalog* catalog) {
  AddLogical(catalog);
  AddQuestions(catalog);
  AddBits(catalog);
  AddRemainder(catalog);
}

}  // namespace oneflow_like
