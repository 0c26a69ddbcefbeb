// The gradient of a table as the rows that a batch touched (unique_rows), and updates of those rows alone
// (sgd_rows, adagrad_rows), which in place cost what the batch touches, however large the table.
#include <cmath>
#include <cstring>

#include "ops/language/calls.h"
#include "ops/language/functional.h"
#include "ops/language/numbers.h"
#include "ops/manifest.h"
#include "ops/touched_rows.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

Status UniqueRows(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &grad = context.in[1], &rows = context.out[0],
                  &values = context.out[1];
  const ListParts parts = PartsOf(context.spec.attrs, ids, 0);
  const int64_t width = values.extent[1], places = parts.places > 0 ? parts.places : ids.elements();
  int64_t last = -1;
  for (int64_t r = 0; r < ids.elements(); ++r) {
    if (parts.Begins(r)) last = -1;
    const int64_t begin = places > 0 ? r / places * places : 0, end = begin + places;  // of the part
    int64_t next = -1;
    for (int64_t i = begin; i < end; ++i) {
      int64_t id = LoadInt(ids, i);
      if (id > last && (next < 0 || id < next)) next = id;
    }
    DispatchType(rows.dtype, [&](auto t) { Store(rows.as<decltype(t)>() + r, next); });
    for (int64_t d = 0; d < width; ++d) {
      double sum = 0;
      for (int64_t i = begin; i < end; ++i)
        if (next >= 0 && LoadInt(ids, i) == next) sum += LoadFloat(grad, i * width + d);
      StoreFloat(values, r * width + d, sum);
    }
    if (next >= 0) last = next;  // else the places that are left get the same
  }
  return Status();
}

void CopyTo(const TensorArg& from, const TensorArg& to) {
  if (from.data != to.data && from.elements() > 0)
    std::memcpy(to.data, from.data, from.elements() * SizeOf(from.dtype));
}

// update(i, row): place i of the list, row of the piece of the table that is held here.
template <typename F>
void ForRowsHere(const TensorArg& rows, const TensorArg& table, const ListParts& parts, F update) {
  for (int64_t i = 0; i < rows.elements(); ++i) {
    int64_t id = LoadInt(rows, i), row = id - table.begin[0];
    if (id >= 0 && row >= 0 && row < table.extent[0] && parts.Has(i, id)) update(i, row);
  }
}

Status SgdRowsReference(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &values = context.in[2], &table = context.out[0];
  return UpdateTouched(context, 3, CopyTo, [&](const RowsUpdate& update, const ListParts& parts) {
    double decay = context.spec.attrs.Float("weight_decay", 0);
    int64_t width = table.extent[1];
    ForRowsHere(rows, table, parts, [&](int64_t i, int64_t row) {
      for (int64_t d = 0; d < width; ++d) {
        double weight = LoadFloat(table, row * width + d);
        double gradient = update.factor * LoadFloat(values, i * width + d) + decay * weight;
        StoreFloat(table, row * width + d, weight - update.lr * gradient);
      }
    });
  });
}

Status AddSquaresReference(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &squares = context.in[2], &state = context.out[0];
  return UpdateTouched(context, 3, CopyTo, [&](const RowsUpdate& update, const ListParts& parts) {
    ForRowsHere(rows, state, parts, [&](int64_t i, int64_t row) {
      StoreFloat(state, row, LoadFloat(state, row) + update.factor * update.factor * LoadFloat(squares, i));
    });
  });
}

Status AdagradRowsReference(const KernelContext& context) {
  const TensorArg &rows = context.in[1], &values = context.in[2], &state = context.in[3],
                  &table = context.out[0];
  return UpdateTouched(context, 4, CopyTo, [&](const RowsUpdate& update, const ListParts& parts) {
    double eps = context.spec.attrs.Float("eps", 1e-8);
    int64_t width = table.extent[1];
    ForRowsHere(rows, table, parts, [&](int64_t i, int64_t row) {
      double rate = update.lr * update.factor / (std::sqrt(LoadFloat(state, row)) + eps);
      for (int64_t d = 0; d < width; ++d) {
        double weight = LoadFloat(table, row * width + d);
        StoreFloat(table, row * width + d, weight - rate * LoadFloat(values, i * width + d));
      }
    });
  });
}

// --- Rules ---------------------------------------------------------------------------------------

bool InParts(const OpCall& call) { return call.attrs->Int("parts", 0) > 0; }

// Of a merged axis the number of parts.
std::map<std::string, int64_t> PartsAlone(const OpCall& call) {
  if (!InParts(call)) return {};
  return {{"r", call.attrs->Int("parts")}};
}

// That the parts divide the first axis of an operand.
void CheckListParts(const OpCall& call, size_t input) {
  const int64_t parts = call.attrs->Int("parts", 0);
  if (parts < 0) Fail(call.who, ": parts is ", parts, " but must be at least 0");
  const Dims& shape = call.shapes[input];
  if (parts > 0 && shape.rank() > 0 && shape[0] % parts != 0)
    Fail(call.who, ": ", OperandName(call.op, input), " ", shape.str(), " has ", shape[0], " rows, which ",
         parts, " parts do not divide");
}

// "table[v d], rows[n], values[n d] -> new_table[v d]" of an update, with the axes in parts if they are.
std::string AxesOfUpdate(const OpCall& call, const std::string& axes) {
  if (!InParts(call)) return axes;
  std::string merged;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool label = (axes[i] == 'v' || axes[i] == 'n') && axes[i - 1] == '[';
    merged += label ? Cat("(r ", axes[i], ")") : std::string(1, axes[i]);
  }
  return merged;
}

// The optional last inputs, after `least` others.
std::string Switches(const OpCall& call, size_t least) {
  std::string text;
  if (call.shapes.size() > least) text += ", factor[]";
  if (call.shapes.size() > least + 1) text += ", finite[]";
  return text;
}

// Floating inputs but for the rows.
void CheckRowsUpdate(const OpCall& call, size_t least) {
  size_t inputs = call.shapes.size();
  if (inputs < least || inputs > least + 2) RequireInputs(call, least);
  for (size_t input = 0; input < std::min(inputs, least + 1); ++input) {
    if (input != 1) RequireFloating(call, input);
  }
  RequireInteger(call, 1);
  CheckListParts(call, 0);
  CheckListParts(call, 1);
  if (inputs == least + 2 && call.dtypes.back() != DType::kBool)
    Fail(call.who, ": finite is ", Name(call.dtypes.back()), " but must be bool");
  RequireAttr(call, "lr");
  CheckSchedule(call.who, *call.attrs);
  for (const char* name : {"lr", "weight_decay"})
    NeedNumber(call.who, name, call.attrs->Float(name, 0), Domain::kNotNegative);
  NeedNumber(call.who, "eps", call.attrs->Float("eps", 0), Domain::kDivisor);
}

// One row, which rises whatever is drawn; with the switches one, and with both.
void AddRowsSamples(OpDef* def, const std::vector<Dims>& in, const std::vector<DType>& types) {
  for (int more = 0; more < 3; ++more) {
    Sample sample{.in = in, .attrs = {{"lr", 0.1}}, .dtypes = types, .limit = 5, .low = 0.1, .high = 1};
    for (int i = 0; i < more; ++i) {
      sample.in.push_back({});
      sample.dtypes.push_back(i == 0 ? DType::kFloat32 : DType::kBool);
    }
    sample.attrs.Set(in.size() == 3 ? "weight_decay" : "eps", 0.01);
    def->samples.push_back(sample);
    sample.attrs.Set("parts", int64_t{4});  // of one row each
    for (Dims& shape : sample.in)
      if (shape.rank() > 0) shape[0] *= shape[0] == 1 ? 4 : 1;
    sample.in[0][0] = 8;
    if (in.size() == 4) sample.in[3][0] = 8;
    sample.limit = 8;
    def->samples.push_back(sample);
  }
}

void AddUniqueRows(Catalog* catalog) {
  using enum DType;
  OpDef def{.name = "unique_rows",
            .doc = "The rows that ids name, rising, each once, then -1; and the sums of their gradients."};
  def.axes_of = [](const OpCall& call) {
    return InParts(call) ? "ids[(r n)], grad[(r n) d] -> rows[(r n)], values[(r n) d]"
                         : "ids[n], grad[n d] -> rows[n], values[n d]";
  };
  def.extents = PartsAlone;
  def.whole = {"n"};
  def.linear = {{"grad", "values"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireInteger(call, 0);
    RequireFloating(call, 1);
    CheckListParts(call, 0);
  };
  def.dtypes = ResultTypes({0, DType::kFloat32});
  def.any_type = true;
  def.reference = UniqueRows;
  def.samples = {{.in = {{6}, {6, 3}}, .dtypes = {kInt64, kFloat32}, .limit = 4},
                 {.in = {{9}, {9, 2}}, .dtypes = {kInt32, kFloat32}, .limit = 30},
                 {.in = {{20}, {20, 3}}, .attrs = {{"parts", 4}}, .dtypes = {kInt32, kFloat32}, .limit = 6}};
  catalog->Add(std::move(def));
}

}  // namespace

void AddSparseRows(Catalog* catalog) {
  using enum DType;
  AddUniqueRows(catalog);

  OpDef sgd{.name = "sgd_rows", .doc = "table -= lr (values + weight_decay table), of the touched rows."};
  sgd.axes_of = [](const OpCall& call) {
    return AxesOfUpdate(call, "table[v d], rows[n], values[n d]" + Switches(call, 3) + " -> new_table[v d]");
  };
  sgd.check = [](const OpCall& call) { CheckRowsUpdate(call, 3); };
  sgd.flops = [](const BoundRule& rule) { return 4.0 * static_cast<double>(rule.in[2].shape.elements()); };
  sgd.extents = PartsAlone;
  sgd.chosen = {"v", "rows"};
  sgd.reference = SgdRowsReference;
  sgd.inplace = {{0, 0}};
  AddRowsSamples(&sgd, {{5, 3}, {1}, {1, 3}}, {kFloat32, kInt64, kFloat32});
  catalog->Add(std::move(sgd));

  // The state is an operator of its own: it has no columns, so only there are the table's free to be cut.
  OpDef squares{.name = "add_squares_to_rows",
                .doc = "state += factor^2 squares, of the touched rows: the state of adagrad_rows."};
  squares.axes_of = [](const OpCall& call) {
    return AxesOfUpdate(call, "state[v], rows[n], squares[n]" + Switches(call, 3) + " -> new_state[v]");
  };
  squares.check = [](const OpCall& call) { CheckRowsUpdate(call, 3); };
  squares.extents = PartsAlone;
  squares.chosen = {"v", "rows"};
  squares.reference = AddSquaresReference;
  squares.inplace = {{0, 0}};
  AddRowsSamples(&squares, {{5}, {1}, {1}}, {kFloat32, kInt64, kFloat32});
  catalog->Add(std::move(squares));

  OpDef adagrad;
  adagrad.name = "adagrad_rows";
  adagrad.doc =
      "AdaGrad with a state for each row: table -= lr values / (sqrt(state) + eps), of the touched rows; the "
      "state has their squares already.";
  adagrad.axes_of = [](const OpCall& call) {
    return AxesOfUpdate(
        call, "table[v d], rows[n], values[n d], state[v]" + Switches(call, 4) + " -> new_table[v d]");
  };
  adagrad.check = [](const OpCall& call) { CheckRowsUpdate(call, 4); };
  adagrad.flops = [](const BoundRule& rule) {
    return 4.0 * static_cast<double>(rule.in[2].shape.elements());
  };
  adagrad.extents = PartsAlone;
  adagrad.chosen = {"v", "rows"};
  adagrad.reference = AdagradRowsReference;
  adagrad.inplace = {{0, 0}};
  AddRowsSamples(&adagrad, {{5, 3}, {1}, {1, 3}, {5}}, {kFloat32, kInt32, kFloat32, kFloat32});
  catalog->Add(std::move(adagrad));
}

}  // namespace oneflow_like
