// Rows that go to ranks: route_ranks makes the tables of which token goes to which place of which rank,
// exchange says how many of the places are filled, and sort_choices orders the rows that came to a rank by
// its experts. take_rows and return_rows (routes.cc) move the rows. A rank is a set of experts of the model,
// wherever it is.
#include <cstring>

#include "ops/along_axis.h"
#include "ops/choice_queue.h"
#include "ops/language/sparse.h"
#include "ops/manifest.h"
#include "ops/routes.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

Status RouteRanks(const KernelContext& context) {
  const TensorArg &chosen = context.in[0], &slots = context.out[0], &places = context.out[1],
                  &rows = context.out[2], &kept = context.out[3], &counts = context.out[4];
  const int64_t tokens = chosen.extent[1], k = chosen.extent[2], choices = tokens * k;
  const int64_t ranks = slots.extent[1], places_of_rank = slots.extent[2], experts = counts.extent[1],
                each = experts / ranks, room = context.spec.attrs.Int("room");
  if (Status checked = CheckIndices(chosen, experts); !checked.ok()) return checked;
  for (int64_t i = 0; i < slots.elements(); ++i) slots.as<int32_t>()[i] = -1;
  for (int64_t pool = 0; pool < chosen.extent[0]; ++pool) {
    const int64_t first = pool * choices;
    const ChoiceQueue queue{context.in.size() > 1 ? &context.in[1] : nullptr, first, k};
    auto expert = [&](int64_t i) { return LoadInt(chosen, first + i); };
    int32_t* const place = places.as<int32_t>() + first;
    float* const keeps = kept.as<float>() + first;
    for (int64_t i = 0; i < choices; ++i) {
      int64_t before = 0;
      for (int64_t j = 0; j < choices; ++j)
        before += expert(j) / each == expert(i) / each && queue.StaysBefore(j, i);
      keeps[i] = before < room ? static_cast<float>(expert(i) + 1) : 0;
      place[i] = -1;
    }
    for (int64_t e = 0; e < experts; ++e) {
      int64_t wanted = 0;
      for (int64_t i = 0; i < choices; ++i) wanted += expert(i) == e;
      counts.as<int32_t>()[pool * experts + e] = static_cast<int32_t>(wanted);
    }
    for (int64_t r = 0; r < ranks; ++r) {
      int64_t filled = 0, wanted = 0;
      for (int64_t token = 0; token < tokens; ++token) {
        bool there = false;
        for (int64_t i = token * k; i < (token + 1) * k; ++i) {
          if (expert(i) / each != r) continue;
          ++wanted;
          if (keeps[i] == 0 || there) continue;
          there = true;
          place[i] = static_cast<int32_t>(r * places_of_rank + filled);
          slots.as<int32_t>()[(pool * ranks + r) * places_of_rank + filled++] = static_cast<int32_t>(i);
        }
      }
      rows.as<int32_t>()[pool * ranks + r] = static_cast<int32_t>(filled);
      if (wanted > room && context.spec.attrs.Int("error") != 0)
        return NoRoomAtRank(r * each, (r + 1) * each - 1, chosen.begin[0] + pool, wanted, room);
    }
  }
  return Status();
}

// In: kept[r p c k]; out: slots[r p n], places[r p c k], counts[r p e].
Status SortChoices(const KernelContext& context) {
  const TensorArg &kept = context.in[0], &slots = context.out[0], &places = context.out[1],
                  &counts = context.out[2];
  const int64_t choices = kept.extent[2] * kept.extent[3], room = slots.extent[2], experts = counts.extent[2];
  for (int64_t i = 0; i < slots.elements(); ++i) slots.as<int32_t>()[i] = -1;
  for (int64_t i = 0; i < counts.elements(); ++i) counts.as<int32_t>()[i] = 0;
  for (int64_t pair = 0; pair < kept.extent[0] * kept.extent[1]; ++pair) {
    const int64_t rank = kept.begin[0] + pair / kept.extent[1];
    auto expert = [&](int64_t i) { return ExpertAt(LoadFloat(kept, pair * choices + i), rank, experts); };
    for (int64_t i = 0; i < choices; ++i) {
      int64_t before = 0;
      for (int64_t j = 0; j < choices && expert(i) >= 0; ++j)
        before += expert(j) >= 0 && (expert(j) < expert(i) || (expert(j) == expert(i) && j < i));
      const bool fits = expert(i) >= 0 && before < room;
      places.as<int32_t>()[pair * choices + i] = fits ? static_cast<int32_t>(before) : -1;
      if (!fits) continue;
      slots.as<int32_t>()[pair * room + before] = static_cast<int32_t>(i);
      ++counts.as<int32_t>()[pair * experts + expert(i)];
    }
  }
  return Status();
}

Status Exchange(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (x.data != y.data && y.elements() > 0) std::memcpy(y.data, x.data, y.elements() * SizeOf(y.dtype));
  return Status();
}

// --- Rules ---------------------------------------------------------------------------------------

void RequireTableOf(const OpCall& call, int64_t parts, int64_t room) {
  if (room < 1) Fail(call.who, ": room is ", room, " but must be at least 1");
  if (parts > INT32_MAX / room)
    Fail(call.who, ": ", parts, " ranks with room for ", room, " are more than the ", INT32_MAX,
         " places that a table can number");
  const Dims& shape = call.shapes[0];
  const int rank = shape.rank();
  if (rank >= 2 && shape[rank - 1] > 0 && shape[rank - 2] > INT32_MAX / shape[rank - 1])
    Fail(call.who, ": ", shape[rank - 2], " rows with ", shape[rank - 1], " choices are more than the ",
         INT32_MAX, " that a table can number");
}

int64_t PlacesOfRank(const OpCall& call) {
  const int64_t room = call.attrs->Int("room");
  return call.shapes[0].rank() == 3 ? std::max<int64_t>(1, std::min(room, call.shapes[0][1])) : room;
}

void AddRouteRanks(Catalog* catalog) {
  OpDef def;
  def.name = "route_ranks";
  def.doc =
      "Which token fills which place of which rank, for those of its choices that are of this rank's "
      "experts.";
  def.axes_of = [](const OpCall& call) {
    return Cat("chosen[p n k]", call.shapes.size() > 1 ? ", weights[p n k]" : "",
               " -> slots[p r c], places[p n k], rows[p r], kept[p n k], counts[p e]");
  };
  def.whole = {"n", "k", "r", "e", "c"};
  def.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{
        {"e", call.attrs->Int("experts")}, {"r", call.attrs->Int("ranks")}, {"c", PlacesOfRank(call)}};
  };
  def.check = [](const OpCall& call) {
    if (call.shapes.size() != 2) RequireInputs(call, 1);
    RequireInteger(call, 0);
    if (call.shapes.size() == 2) RequireFloating(call, 1);
    for (const char* name : {"experts", "ranks", "room", "error"}) RequireAttr(call, name);
    const int64_t experts = call.attrs->Int("experts"), ranks = call.attrs->Int("ranks");
    if (experts < 1) Fail(call.who, ": experts is ", experts, " but must be at least 1");
    if (ranks < 1 || experts % ranks != 0)
      Fail(call.who, ": ranks is ", ranks, " and does not divide the ", experts, " experts");
    constexpr int64_t kMostExperts = 1 << 24;  // that f32 numbers
    if (experts >= kMostExperts)
      Fail(call.who, ": experts is ", experts, " but must be below ", kMostExperts);
    RequireTableOf(call, ranks, call.attrs->Int("room"));
  };
  def.dtypes = [](const OpCall&) {
    using enum DType;
    return std::vector<DType>{kInt32, kInt32, kInt32, kFloat32, kInt32};
  };
  def.flops = [](const BoundRule& rule) { return static_cast<double>(rule.in[0].shape.elements()); };
  def.stops_gradient = true;
  def.stays = true;
  def.any_type = true;
  def.reference = RouteRanks;
  auto attrs = [](int64_t experts, int64_t ranks, int64_t room) {
    return Attrs{{"experts", experts}, {"ranks", ranks}, {"room", room}, {"error", int64_t{0}}};
  };
  using enum DType;
  def.samples = {
      {.in = {{5, 7, 2}}, .attrs = attrs(4, 2, 5), .dtypes = {kInt32}, .limit = 4},
      {.in = {{3, 6, 2}, {3, 6, 2}}, .attrs = attrs(6, 3, 3), .dtypes = {kInt64, kFloat32}, .limit = 6},
      {.in = {{2, 5, 3}, {2, 5, 3}}, .attrs = attrs(2, 2, 20), .dtypes = {kInt32, kFloat32}, .limit = 2},
      {.in = {{2, 1, 1}}, .attrs = attrs(1, 1, 1), .dtypes = {kInt64}, .limit = 1}};
  catalog->Add(std::move(def));
}

void AddSortChoices(Catalog* catalog) {
  OpDef def{.name = "sort_choices",
            .doc = "Which choice of a row that came to a rank is where in the runs of the rank's experts."};
  def.axes = "kept[r p c k] -> slots[r p n], places[r p c k], counts[r p e]";
  def.whole = {"c", "k", "n", "e"};
  def.extents = [](const OpCall& call) {
    const int64_t ranks = call.shapes[0].rank() > 0 ? call.shapes[0][0] : 1;
    return std::map<std::string, int64_t>{{"e", ranks > 0 ? call.attrs->Int("experts") / ranks : 1},
                                          {"n", call.attrs->Int("room")}};
  };
  def.check = [](const OpCall& call) {
    RequireInputs(call, 1);
    RequireFloating(call, 0);
    for (const char* name : {"experts", "room"}) RequireAttr(call, name);
    const Dims& shape = call.shapes[0];
    const int64_t experts = call.attrs->Int("experts");
    if (experts < 1 || (shape.rank() == 4 && (shape[0] < 1 || experts % shape[0] != 0)))
      Fail(call.who, ": axis r is ", shape.rank() == 4 ? shape[0] : 0, " and does not divide the ", experts,
           " experts");
    RequireTableOf(call, 1, call.attrs->Int("room"));
  };
  def.dtypes = [](const OpCall&) { return std::vector<DType>(3, DType::kInt32); };
  def.flops = [](const BoundRule& rule) { return static_cast<double>(rule.in[0].shape.elements()); };
  def.stops_gradient = true;
  def.stays = true;
  def.reference = SortChoices;
  auto attrs = [](int64_t experts, int64_t room) { return Attrs{{"experts", experts}, {"room", room}}; };
  def.samples = {{.in = {{2, 3, 4, 2}}, .attrs = attrs(6, 5), .low = 0, .high = 7.9},
                 {.in = {{3, 2, 5, 1}}, .attrs = attrs(3, 9), .low = 0, .high = 4.9},
                 {.in = {{1, 1, 1, 3}}, .attrs = attrs(4, 1), .low = 0, .high = 6}};
  catalog->Add(std::move(def));
}

void AddExchange(Catalog* catalog) {
  OpDef def;
  def.name = "exchange";
  def.doc = "y itself, with the number of its rows that are not 0: boxing behind it moves these alone.";
  def.axes = "y[r p c w], counts[p r] -> z[r p c w]";
  def.linear = {{"y"}};
  def.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    if (call.dtypes[1] != DType::kInt32)
      Fail(call.who, ": counts is ", Name(call.dtypes[1]), " but must be i32, as route_ranks makes it");
    RequireAttr(call, "share");
    const double share = call.attrs->Float("share");
    if (!(share > 0 && share <= 1)) Fail(call.who, ": share is ", share, " but must be above 0, at most 1");
  };
  def.view = true;
  def.flops = NoFlops;
  def.grad = [](const GradCall& c) {
    return std::vector<Tensor>{Apply(c.in[0].graph(), "exchange", {c.dout[0], c.in[1]}, c.attrs)[0],
                               Tensor()};
  };
  def.precision = Precision::kFollow;
  def.reference = Exchange;
  using enum DType;
  def.samples = {{.in = {{2, 4, 3, 2}, {4, 2}}, .attrs = {{"share", 1.0}}, .dtypes = {kFloat32, kInt32}},
                 {.in = {{3, 2, 2, 4}, {2, 3}}, .attrs = {{"share", 0.5}}, .dtypes = {kFloat32, kInt32}}};
  catalog->Add(std::move(def));
}

}  // namespace

void AddRankRoutes(Catalog* catalog) {
  AddRouteRanks(catalog);
  AddSortChoices(catalog);
  AddExchange(catalog);
}

}  // namespace oneflow_like
