// Routing rows to experts: route makes the tables that say which token fills which place of which expert;
// take_rows brings tokens to their places, return_rows brings results back, and dot_rows is the gradient of
// their weights. All three gather, and their gradients are one another. Pools are cut, so are experts: a rank
// of some experts serves its places and gives zeros, or partial sums, for the others.
#include "ops/routes.h"

#include "ops/along_axis.h"
#include "ops/choice_queue.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// Of more choices than there is room for, the first of the queue stay, or those of the greatest weight, and
// of equal ones the first. A NaN is the least.
Status Route(const KernelContext& context) {
  const TensorArg &chosen = context.in[0], &slots = context.out[0], &places = context.out[1],
                  &counts = context.out[2];
  const TensorArg* weights = context.in.size() > 1 ? &context.in[1] : nullptr;
  const int64_t choices = chosen.extent[1] * chosen.extent[2], k = chosen.extent[2];
  const int64_t all = slots.extent[1], room = slots.extent[2];
  if (Status checked = CheckIndices(chosen, all); !checked.ok()) return checked;
  for (int64_t i = 0; i < slots.elements(); ++i) slots.as<int32_t>()[i] = -1;
  for (int64_t pool = 0; pool < chosen.extent[0]; ++pool) {
    const int64_t first = pool * choices;
    auto expert = [&](int64_t i) { return LoadInt(chosen, first + i); };
    const ChoiceQueue queue{weights, first, k};
    int32_t* const place = places.as<int32_t>() + first;
    for (int64_t i = 0; i < choices; ++i) {
      int64_t before = 0;
      for (int64_t j = 0; j < choices; ++j) before += expert(j) == expert(i) && queue.StaysBefore(j, i);
      place[i] = before < room ? 0 : -1;
    }
    for (int64_t e = 0; e < all; ++e) {
      int64_t wanted = 0;
      for (int64_t i = 0; i < choices; ++i) wanted += expert(i) == e;
      counts.as<int32_t>()[pool * all + e] = static_cast<int32_t>(wanted);
      if (wanted > room && context.spec.attrs.Int("error") != 0)
        return NoRoom(e, chosen.begin[0] + pool, wanted, room);
    }
    for (int64_t i = 0; i < choices; ++i) {
      if (place[i] < 0) continue;
      int64_t slot = 0;
      for (int64_t j = 0; j < choices; ++j)
        slot += expert(j) == expert(i) && place[j] >= 0 && queue.Earlier(j, i);
      place[i] = static_cast<int32_t>(expert(i) * room + slot);
      slots.as<int32_t>()[(pool * all + expert(i)) * room + slot] = static_cast<int32_t>(i);
    }
  }
  return Status();
}

// in: x[p n w], slots, places and perhaps weights[p n k]; out: y[e p c w].
Status TakeRows(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  const TensorArg* weights = context.in.size() > 3 ? &context.in[3] : nullptr;
  const RouteTables tables = TablesOf(context.in[1], context.in[2]);
  const int64_t width = x.extent.back();
  for (int64_t row = 0; row < tables.rows(); ++row) {
    const int64_t choice = tables.ChoiceOf(row);
    const double weight = weights && choice >= 0 ? LoadFloat(*weights, choice) : 1;
    for (int64_t c = 0; c < width; ++c)
      StoreFloat(y, row * width + c, choice < 0 ? 0.0 : weight * LoadFloat(x, choice / tables.k * width + c));
  }
  return Status();
}

// in: y[e p c w], slots, places and perhaps weights[p n k]; out: x[p n w].
Status ReturnRows(const KernelContext& context) {
  const TensorArg &y = context.in[0], &x = context.out[0];
  const TensorArg* weights = context.in.size() > 3 ? &context.in[3] : nullptr;
  const RouteTables tables = TablesOf(context.in[1], context.in[2]);
  const int64_t width = x.extent.back();
  for (int64_t i = 0; i < x.elements(); ++i) {
    double sum = 0;
    for (int64_t choice = i / width * tables.k; choice < (i / width + 1) * tables.k; ++choice) {
      const int64_t row = tables.RowOf(choice);
      if (row >= 0)
        sum += (weights ? LoadFloat(*weights, choice) : 1) * LoadFloat(y, row * width + i % width);
    }
    StoreFloat(x, i, sum);
  }
  return Status();
}

// in: x[p n w], y[e p c w], slots, places; out: d[p n k].
Status DotRows(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.in[1], &d = context.out[0];
  const RouteTables tables = TablesOf(context.in[2], context.in[3]);
  const int64_t width = x.extent.back();
  for (int64_t choice = 0; choice < d.elements(); ++choice) {
    const int64_t row = tables.RowOf(choice);
    double sum = 0;
    for (int64_t c = 0; c < width && row >= 0; ++c)
      sum += LoadFloat(x, choice / tables.k * width + c) * LoadFloat(y, row * width + c);
    StoreFloat(d, choice, sum);
  }
  return Status();
}

// --- Rules ---------------------------------------------------------------------------------------

// A table of choices and places, from operand `input` on.
void RequireTables(const OpCall& call, size_t input) {
  for (size_t i = input; i < input + 2; ++i)
    if (call.dtypes[i] != DType::kInt32)
      Fail(call.who, ": ", OperandName(call.op, i), " is ", Name(call.dtypes[i]),
           " but must be i32, as route makes it");
}

bool Weighed(const OpCall& call) { return call.shapes.size() == 4; }

void CheckRows(const OpCall& call) {
  if (!Weighed(call)) RequireInputs(call, 3);
  RequireFloating(call, 0);
  RequireTables(call, 1);
  if (Weighed(call)) RequireFloating(call, 3);
}

std::vector<std::set<std::string>> LinearRows(const OpCall& call, const std::string& rows) {
  if (Weighed(call)) return {{rows}, {"weights"}};
  return {{rows}};
}

// The lines of tokens, places and tables. At ranks (sort_choices) each rank and pool has one run of places.
struct RowLines {
  bool at_ranks;
  std::string tokens, rows, tables, choices;
  // `places`: the number of that operand.
  RowLines(const OpCall& call, size_t places)
      : at_ranks(call.shapes.size() > places && call.shapes[places].rank() == 4),
        tokens(at_ranks ? "[r p n w]" : "[p n w]"),
        rows(at_ranks ? "[r p c w]" : "[e p c w]"),
        tables(at_ranks ? "slots[r p c], places[r p n k]" : "slots[p e c], places[p n k]"),
        choices(at_ranks ? "[r p n k]" : "[p n k]") {}
  // Labels that are summed where places are.
  std::map<std::string, Reduce> Sums() const {
    if (at_ranks) return {{"c", Reduce::kSum}};
    return {{"c", Reduce::kSum}, {"e", Reduce::kSum}};
  }
  std::string Weights(const OpCall& call) const { return Weighed(call) ? ", weights" + choices : ""; }
};
constexpr size_t kPlacesOfRows = 2, kPlacesOfDots = 3;

// The tables, and what follows them.
std::vector<Tensor> Behind(Tensor rows, const GradCall& c, size_t first) {
  std::vector<Tensor> in = {rows};
  in.insert(in.end(), c.in.begin() + static_cast<std::ptrdiff_t>(first), c.in.end());
  return in;
}

// Gradients of rows, two tables and perhaps weights, of which `other` makes those of rows.
std::vector<Tensor> RowsGrad(const GradCall& c, const char* other, bool taken) {
  GraphBuilder* graph = c.in[0].graph();
  std::vector<Tensor> din(c.in.size());
  Tensor rows = c.in[0], dout = c.dout[0];
  if (c.wanted[0]) din[0] = Apply(graph, other, Behind(dout, c, 1), {})[0];
  if (c.in.size() > 3 && c.wanted[3]) {
    Tensor dots =
        Apply(graph, "dot_rows", {taken ? rows : dout, taken ? dout : rows, c.in[1], c.in[2]}, {})[0];
    din[3] = dots.dtype() == c.in[3].dtype() ? dots : cast(dots, c.in[3].dtype());
  }
  return din;
}

std::vector<Tensor> DotRowsGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  std::vector<Tensor> din(4);
  Tensor x = c.in[0], y = c.in[1], slots = c.in[2], places = c.in[3], weights = c.dout[0];
  if (c.wanted[0]) din[0] = Apply(graph, "return_rows", {y, slots, places, weights}, {})[0];
  if (c.wanted[1]) din[1] = Apply(graph, "take_rows", {x, slots, places, weights}, {})[0];
  return din;
}

// --- Samples: drawn tables, of which few choices and places belong together ---

// x, y, slots and places of one use.
struct RouteShapes {
  Dims x, y, slots, places;
};
RouteShapes OneChoice() { return {{5, 3, 4}, {2, 5, 2, 4}, {5, 2, 2}, {5, 3, 1}}; }
RouteShapes TwoChoices() { return {{6, 2, 3}, {1, 6, 3, 3}, {6, 1, 3}, {6, 2, 2}}; }
RouteShapes ChoicesAtRanks() { return {{2, 3, 4, 3}, {2, 3, 5, 3}, {2, 3, 5}, {2, 3, 4, 2}}; }

// Of x or y, without weights and with them.
std::vector<Sample> RowsSamples(bool taken) {
  using enum DType;
  const RouteShapes one = OneChoice(), two = TwoChoices(), ranks = ChoicesAtRanks();
  return {{.in = {taken ? ranks.x : ranks.y, ranks.slots, ranks.places, ranks.places},
           .dtypes = {kFloat32, kInt32, kInt32, kFloat32}},
          {.in = {taken ? one.x : one.y, one.slots, one.places}, .dtypes = {kFloat32, kInt32, kInt32}},
          {.in = {taken ? two.x : two.y, two.slots, two.places, two.places},
           .dtypes = {kFloat32, kInt32, kInt32, kFloat32}}};
}

void AddRouteTables(Catalog* catalog) {
  OpDef def;
  def.name = "route";
  def.doc = "Which choice of a token fills which place of which expert, and how often each expert is chosen.";
  def.axes_of = [](const OpCall& call) {
    return Cat("chosen[p n k]", call.shapes.size() > 1 ? ", weights[p n k]" : "",
               " -> slots[p e c], places[p n k], counts[p e]");
  };
  def.whole = {"n", "k", "e", "c"};
  def.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{{"e", call.attrs->Int("experts")}, {"c", call.attrs->Int("room")}};
  };
  def.check = [](const OpCall& call) {
    if (call.shapes.size() != 2) RequireInputs(call, 1);
    RequireInteger(call, 0);
    if (call.shapes.size() == 2) RequireFloating(call, 1);
    for (const char* name : {"experts", "room", "error"}) RequireAttr(call, name);
    const int64_t experts = call.attrs->Int("experts"), room = call.attrs->Int("room");
    if (experts < 1) Fail(call.who, ": experts is ", experts, " but must be at least 1");
    if (room < 1) Fail(call.who, ": room is ", room, " but must be at least 1");
    if (experts > INT32_MAX / room)
      Fail(call.who, ": ", experts, " experts with room for ", room, " are more than the ", INT32_MAX,
           " places that a table can number");
    const Dims& shape = call.shapes[0];
    if (shape.rank() == 3 && shape[2] > 0 && shape[1] > INT32_MAX / shape[2])
      Fail(call.who, ": ", shape[1], " tokens with ", shape[2], " choices are more than the ", INT32_MAX,
           " that a table can number");
  };
  def.dtypes = [](const OpCall&) { return std::vector<DType>(3, DType::kInt32); };
  def.flops = [](const BoundRule& rule) { return static_cast<double>(rule.in[0].shape.elements()); };
  def.stops_gradient = true;
  def.stays = true;
  def.any_type = true;
  def.reference = Route;
  auto attrs = [](int64_t experts, int64_t room) {
    return Attrs{{"experts", experts}, {"room", room}, {"error", int64_t{0}}};
  };
  using enum DType;
  def.samples = {
      {.in = {{5, 7, 2}}, .attrs = attrs(4, 2), .dtypes = {kInt32}, .limit = 4},
      {.in = {{3, 6, 2}, {3, 6, 2}}, .attrs = attrs(3, 3), .dtypes = {kInt64, kFloat32}, .limit = 3},
      {.in = {{2, 5, 3}, {2, 5, 3}}, .attrs = attrs(2, 20), .dtypes = {kInt32, kFloat32}, .limit = 2},
      {.in = {{2, 1, 1}}, .attrs = attrs(1, 1), .dtypes = {kInt64}, .limit = 1}};
  catalog->Add(std::move(def));
}

void AddTakeRows(Catalog* catalog) {
  OpDef def{.name = "take_rows",
            .doc = "Tokens at their places among the rows of experts, 0 at places that none fills."};
  def.axes_of = [](const OpCall& call) {
    const RowLines lines(call, kPlacesOfRows);
    return Cat("x", lines.tokens, ", ", lines.tables, lines.Weights(call), " -> y", lines.rows);
  };
  def.folds = {{"n", Reduce::kSum}};
  def.whole = {"k"};
  def.linear_of = [](const OpCall& call) { return LinearRows(call, "x"); };
  def.check = CheckRows;
  def.flops = NoFlops;
  def.grad = [](const GradCall& c) { return RowsGrad(c, "return_rows", true); };
  def.precision = Precision::kFollow;
  def.wide = {"weights"};
  def.reference = TakeRows;
  def.samples = RowsSamples(true);
  catalog->Add(std::move(def));
}

void AddReturnRows(Catalog* catalog) {
  OpDef def{.name = "return_rows",
            .doc = "For each token the sum of the rows at its places, each times its weight."};
  def.axes_of = [](const OpCall& call) {
    const RowLines lines(call, kPlacesOfRows);
    return Cat("y", lines.rows, ", ", lines.tables, lines.Weights(call), " -> x", lines.tokens);
  };
  def.folds_of = [](const OpCall& call) { return RowLines(call, kPlacesOfRows).Sums(); };
  def.whole = {"k"};
  def.linear_of = [](const OpCall& call) { return LinearRows(call, "y"); };
  def.check = CheckRows;
  def.flops = [](const BoundRule& rule) {
    return 2.0 * static_cast<double>(rule.out[0].shape.elements()) *
           static_cast<double>(rule.extents.at("k"));
  };
  def.grad = [](const GradCall& c) { return RowsGrad(c, "take_rows", false); };
  def.precision = Precision::kFollow;
  def.wide = {"weights"};
  def.reference = ReturnRows;
  def.samples = RowsSamples(false);
  catalog->Add(std::move(def));
}

void AddDotRows(Catalog* catalog) {
  OpDef def;
  def.name = "dot_rows";
  def.doc = "For each choice the product of its token's row with the row at its place: gradients of weights.";
  def.axes_of = [](const OpCall& call) {
    const RowLines lines(call, kPlacesOfDots);
    return Cat("x", lines.tokens, ", y", lines.rows, ", ", lines.tables, " -> d", lines.choices);
  };
  def.folds_of = [](const OpCall& call) {
    std::map<std::string, Reduce> sums = RowLines(call, kPlacesOfDots).Sums();
    sums["w"] = Reduce::kSum;
    return sums;
  };
  def.whole = {"k"};
  def.linear = {{"x"}, {"y"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 4);
    RequireFloating(call, 0);
    RequireFloating(call, 1);
    RequireTables(call, 2);
  };
  def.dtypes = ResultTypes({DType::kFloat32});
  def.flops = [](const BoundRule& rule) {
    return 2.0 * static_cast<double>(rule.out[0].shape.elements()) *
           static_cast<double>(rule.extents.at("w"));
  };
  def.grad = DotRowsGrad;
  def.any_type = true;
  def.reference = DotRows;
  using enum DType;
  for (const RouteShapes& s : {OneChoice(), TwoChoices(), ChoicesAtRanks()})
    def.samples.push_back(
        {.in = {s.x, s.y, s.slots, s.places}, .dtypes = {kFloat32, kFloat32, kInt32, kInt32}});
  catalog->Add(std::move(def));
}

}  // namespace

void AddRoutes(Catalog* catalog) {
  AddRouteTables(catalog);
  AddTakeRows(catalog);
  AddReturnRows(catalog);
  AddDotRows(catalog);
}

}  // namespace oneflow_like
