// embedding_bag: of each bag of ids the sum, mean or greatest of their rows of a table, without the rows
// themselves; and gradients. Bags are the rows of a padded ids[b l], so that they can be cut like any batch.
// A table cut by rows gives partial sums (or maxima), one cut by columns columns.
#include <cmath>
#include <limits>

#include "ops/bags.h"
#include "ops/language/functional.h"
#include "ops/language/sparse.h"
#include "ops/manifest.h"
#include "ops/statistics.h"

namespace oneflow_like {
namespace {

// --- Reference kernels ---------------------------------------------------------------------------

// The row of a table held here that an id names; -1: held elsewhere.
int64_t RowHere(const Bags& bags, int64_t bag, int64_t j, const TensorArg& table) {
  int64_t row = LoadInt(bags.ids, bag * bags.room() + j) - table.begin[0];
  return row >= 0 && row < table.extent[0] ? row : -1;
}

// The weight of a row in its bag.
double FactorOf(const std::string& mode, const Bags& bags, const TensorArg* weights, int64_t bag, int64_t j) {
  if (mode == "mean") return 1.0 / static_cast<double>(LoadInt(bags.lengths, bag));
  return weights ? LoadFloat(*weights, bag * bags.room() + j) : 1.0;
}

Status EmbeddingBag(const KernelContext& context) {
  const TensorArg &table = context.in[0], &y = context.out[0];
  const Bags bags{context.in[1], context.in[2]};
  const TensorArg* weights = context.in.size() > 3 ? &context.in[3] : nullptr;
  if (Status checked = bags.Check(table.global[0]); !checked.ok()) return checked;
  const std::string& mode = context.spec.attrs.Str("mode");
  int64_t width = table.extent[1];
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    bool greatest = mode == "max" && LoadInt(bags.lengths, bag) > 0;
    for (int64_t d = 0; d < width; ++d) {
      double result = greatest ? -std::numeric_limits<double>::infinity() : 0;
      for (int64_t j = 0, used = bags.Used(bag); j < used; ++j) {
        int64_t row = RowHere(bags, bag, j, table);
        if (row < 0) continue;
        double value = LoadFloat(table, row * width + d);
        if (greatest) {
          result = value > result || std::isnan(value) ? value : result;
        } else {
          result += FactorOf(mode, bags, weights, bag, j) * value;
        }
      }
      StoreFloat(y, bag * width + d, result);
    }
  }
  return Status();
}

// `adds(bag, j, d)` of every id that counts, added up for each row.
template <typename F>
void SumOverIds(const Bags& bags, const TensorArg& dtable, F adds) {
  int64_t width = dtable.extent[1];
  for (int64_t i = 0; i < dtable.elements(); ++i) {
    double sum = 0;
    for (int64_t bag = 0; bag < bags.count(); ++bag) {
      for (int64_t j = 0, used = bags.Used(bag); j < used; ++j)
        if (RowHere(bags, bag, j, dtable) == i / width) sum += adds(bag, j, i % width);
    }
    StoreFloat(dtable, i, sum);
  }
}

Status EmbeddingBagGrad(const KernelContext& context) {
  const Bags bags{context.in[0], context.in[1]};
  const TensorArg &dy = context.in[2], &dtable = context.out[0];
  const TensorArg* weights = context.in.size() > 3 ? &context.in[3] : nullptr;
  if (Status checked = bags.Check(dtable.global[0]); !checked.ok()) return checked;
  const std::string& mode = context.spec.attrs.Str("mode");
  int64_t width = dtable.extent[1];
  SumOverIds(bags, dtable, [&](int64_t bag, int64_t j, int64_t d) {
    return FactorOf(mode, bags, weights, bag, j) * LoadFloat(dy, bag * width + d);
  });
  return Status();
}

// To the first of the bag that is the greatest.
Status EmbeddingBagMaxGrad(const KernelContext& context) {
  const TensorArg &table = context.in[0], &y = context.in[3], &dy = context.in[4], &dtable = context.out[0];
  const Bags bags{context.in[1], context.in[2]};
  if (Status checked = bags.Check(table.global[0]); !checked.ok()) return checked;
  int64_t width = dtable.extent[1];
  auto hit = [&](int64_t bag, int64_t j, int64_t d) {
    return LoadFloat(table, RowHere(bags, bag, j, table) * width + d) == LoadFloat(y, bag * width + d);
  };
  SumOverIds(bags, dtable, [&](int64_t bag, int64_t j, int64_t d) {
    if (!hit(bag, j, d)) return 0.0;
    for (int64_t earlier = 0; earlier < j; ++earlier)
      if (hit(bag, earlier, d)) return 0.0;
    return LoadFloat(dy, bag * width + d);
  });
  return Status();
}

Status EmbeddingBagWeightsGrad(const KernelContext& context) {
  const TensorArg &table = context.in[0], &dy = context.in[3], &dweights = context.out[0];
  const Bags bags{context.in[1], context.in[2]};
  if (Status checked = bags.Check(table.global[0]); !checked.ok()) return checked;
  int64_t width = table.extent[1];
  for (int64_t bag = 0; bag < bags.count(); ++bag) {
    for (int64_t j = 0; j < bags.room(); ++j) {
      int64_t row = j < bags.Used(bag) ? RowHere(bags, bag, j, table) : -1;
      double sum = 0;
      for (int64_t d = 0; d < width && row >= 0; ++d)
        sum += LoadFloat(table, row * width + d) * LoadFloat(dy, bag * width + d);
      StoreFloat(dweights, bag * bags.room() + j, sum);
    }
  }
  return Status();
}

// --- Rules ---------------------------------------------------------------------------------------

bool IsMax(const OpCall& call) { return call.attrs->Str("mode", "sum") == "max"; }

// table, ids, lengths, and perhaps weights.
void CheckBag(const OpCall& call) {
  if (call.shapes.size() != 4) RequireInputs(call, 3);
  RequireFloating(call, 0);
  RequireInteger(call, 1);
  RequireInteger(call, 2);
  RequireAttr(call, "mode");
  const std::string& mode = call.attrs->Str("mode");
  if (mode != "sum" && mode != "mean" && mode != "max")
    Fail(call.who, ": mode is \"", mode, "\" but must be sum, mean or max");
  if (call.shapes[1].rank() != 2)
    Fail(call.who, ": ids ", call.shapes[1].str(), " has ", call.shapes[1].rank(),
         call.shapes[1].rank() == 1 ? " axis" : " axes", " but needs 2: bags, padded to the longest");
  if (call.shapes.size() < 4) return;
  RequireFloating(call, 3);
  if (mode != "sum") Fail(call.who, ": mode is \"", mode, "\" but weights need the mode sum");
}

std::vector<Tensor> BagGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  std::vector<Tensor> din(c.in.size());
  const std::string& mode = c.attrs.Str("mode");
  if (mode == "max") {
    din[0] = Apply(graph, "embedding_bag_max_grad", {c.in[0], c.in[1], c.in[2], c.out[0], c.dout[0]})[0];
    return din;
  }
  std::vector<Tensor> in = {c.in[1], c.in[2], c.dout[0]};
  if (c.in.size() > 3) in.push_back(c.in[3]);
  if (c.wanted[0])
    din[0] = Apply(graph, "embedding_bag_grad", in, {{"mode", mode}, {"rows", c.in[0].shape()[0]}})[0];
  if (c.in.size() > 3 && c.wanted[3])
    din[3] = Apply(graph, "embedding_bag_weights_grad", {c.in[0], c.in[1], c.in[2], c.dout[0]})[0];
  return din;
}

// By sum and mean: the gradient of a row's gradient is a bag of rows of it.
std::vector<Tensor> BagGradGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  Tensor g = c.dout[0], ids = c.in[0], lengths = c.in[1], dy = c.in[2];
  std::vector<Tensor> din(c.in.size()), in = {g, ids, lengths};
  if (c.in.size() > 3) in.push_back(c.in[3]);
  if (c.wanted[2]) din[2] = Apply(graph, "embedding_bag", in, {{"mode", c.attrs.Str("mode")}})[0];
  if (c.in.size() > 3 && c.wanted[3])
    din[3] = Apply(graph, "embedding_bag_weights_grad", {g, ids, lengths, dy})[0];
  return din;
}

std::vector<Tensor> BagWeightsGradGrad(const GradCall& c) {
  GraphBuilder* graph = c.in[0].graph();
  Tensor g = c.dout[0], table = c.in[0], ids = c.in[1], lengths = c.in[2], dy = c.in[3];
  std::vector<Tensor> din(4);
  if (c.wanted[0])
    din[0] = Apply(graph, "embedding_bag_grad", {ids, lengths, dy, g},
                   {{"mode", "sum"}, {"rows", table.shape()[0]}})[0];
  if (c.wanted[3]) din[3] = Apply(graph, "embedding_bag", {table, ids, lengths, g}, {{"mode", "sum"}})[0];
  return din;
}

// [b l]: which places count.
Tensor PlacesOf(Tensor ids, Tensor lengths) {
  const int64_t bags = ids.shape()[0], places = ids.shape()[1];
  Tensor place = arange(ids.graph(), 0, static_cast<double>(places), 1, lengths.dtype());
  return less(reshape(place, {1, places}), reshape(lengths, {bags, 1}));
}

// By max: what came to dy is taken back from the row that it was given to. A step past the place of the
// greatest is the only way in which table and y matter.
std::vector<Tensor> BagMaxGradGrad(const GradCall& c) {
  Tensor table = c.in[0], ids = c.in[1], y = c.in[3];
  std::vector<Tensor> din(5);
  if (!c.wanted[4]) return din;
  const int64_t bags = ids.shape()[0], places = ids.shape()[1], width = y.shape()[1];
  if (places == 0 || table.shape()[0] == 0) {  // all bags are empty
    din[4] = zeros_like(c.in[4]);
    return din;
  }
  Tensor here = PlacesOf(ids, c.in[2]);
  Tensor named = where(here, ids, full(ids.graph(), {}, 0, ids.dtype()));  // others may be any number
  Tensor rows = InType(gather(table, named), DType::kFloat32);
  Tensor greatest = equal(rows, reshape(InType(y, DType::kFloat32), {bags, 1, width}));
  Tensor hit = cast(logical_and(greatest, reshape(here, {bags, places, 1})), DType::kFloat32);
  Tensor row = take_along_axis(named, argmax(hit, 1), 1);  // [b d]
  Tensor back = take_along_axis(c.dout[0], row, 0);
  din[4] = InType(where(greater(max(hit, {1}), 0), back, 0), c.in[4].dtype());
  return din;
}

// Every place of a bag as a row of its own; those past its length name none.
std::pair<Tensor, Tensor> RowsOfBags(const Attrs& attrs, const std::vector<Tensor>& in) {
  Tensor ids = in[0], lengths = in[1], dy = in[2];
  const int64_t bags = ids.shape()[0], places = ids.shape()[1], width = dy.shape()[1];
  Tensor named = where(PlacesOf(ids, lengths), ids, full(ids.graph(), {1, 1}, -1, ids.dtype()));
  Tensor each = reshape(dy, {bags, 1, width});
  if (attrs.Str("mode") == "mean") {
    Tensor count = maximum(lengths, full(ids.graph(), {1}, 1, lengths.dtype()));
    each = each / reshape(cast(count, dy.dtype()), {bags, 1, 1});
  }
  if (in.size() > 3) each = each * reshape(in[3], {bags, places, 1});
  return {reshape(named, {bags * places}),
          reshape(broadcast_to(each, {bags, places, width}), {bags * places, width})};
}

double RowsFlops(const BoundRule& rule) {
  return static_cast<double>(rule.extents.at("b")) * rule.extents.at("l") * rule.extents.at("d");
}

void AddForward(Catalog* catalog) {
  OpDef def{.name = "embedding_bag",
            .doc = "The sum, mean or greatest of the rows of table that the first ids of each bag name."};
  def.axes_of = [](const OpCall& call) {
    return Cat("table[v d], ids[b l], lengths[b]", call.shapes.size() > 3 ? ", weights[b l]" : "",
               " -> y[b d]");
  };
  def.folds_of = [](const OpCall& call) {
    Reduce fold = IsMax(call) ? Reduce::kMax : Reduce::kSum;
    return std::map<std::string, Reduce>{{"v", fold}, {"l", fold}};
  };
  def.linear_of = [](const OpCall& call) {
    std::vector<std::set<std::string>> linear;
    if (!IsMax(call)) linear.push_back({"table"});
    if (call.shapes.size() > 3) linear.push_back({"weights"});
    return linear;
  };
  def.check = CheckBag;
  def.flops = RowsFlops;
  def.chosen = {"v", "ids"};
  def.grad = BagGrad;
  def.reference = EmbeddingBag;
  def.precision = Precision::kNarrow;
  def.wide = {"weights"};
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  for (const char* mode : {"sum", "mean", "max"}) {
    def.samples.push_back({{{7, 3}, {5, 4}, {5}}, {{"mode", mode}}, {f, i, l}, 4});
    def.samples.push_back({{{5, 2}, {3, 6}, {3}}, {{"mode", mode}}, {f, l, i}, 5});
  }
  def.samples.push_back({{{7, 3}, {5, 4}, {5}, {5, 4}}, {{"mode", "sum"}}, {f, l, l, f}, 4});
  catalog->Add(std::move(def));
}

void AddGrad(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef grad{.name = "embedding_bag_grad",
             .doc = "Gradient of embedding_bag, by sum or mean, with respect to its table of `rows` rows."};
  grad.axes_of = [](const OpCall& call) {
    return Cat("ids[b l], lengths[b], dy[b d]", call.shapes.size() > 3 ? ", weights[b l]" : "",
               " -> dtable[v d]");
  };
  grad.folds = {{"b", Reduce::kSum}, {"l", Reduce::kSum}};
  grad.linear_of = [](const OpCall& call) {
    std::vector<std::set<std::string>> linear = {{"dy"}};
    if (call.shapes.size() > 3) linear.push_back({"weights"});
    return linear;
  };
  grad.extents = [](const OpCall& call) {
    return std::map<std::string, int64_t>{{"v", call.attrs->Int("rows")}};
  };
  grad.check = [](const OpCall& call) {
    if (call.shapes.size() != 4) RequireInputs(call, 3);
    RequireInteger(call, 0);
    RequireInteger(call, 1);
    for (size_t input = 2; input < call.shapes.size(); ++input) RequireFloating(call, input);
    RequireAttr(call, "rows");
    RequireAttr(call, "mode");
  };
  grad.dtypes = ResultTypes({2});
  grad.rows = RowsOfBags;
  grad.grad = BagGradGrad;
  grad.flops = RowsFlops;
  grad.any_type = grad.typed = true;
  grad.reference = EmbeddingBagGrad;
  for (const char* mode : {"sum", "mean"})
    grad.samples.push_back({{{5, 4}, {5}, {5, 3}}, {{"mode", mode}, {"rows", int64_t{7}}}, {i, l, f}, 4});
  grad.samples.push_back(
      {{{3, 6}, {3}, {3, 2}, {3, 6}}, {{"mode", "sum"}, {"rows", int64_t{5}}}, {l, i, f, f}, 5});
  catalog->Add(std::move(grad));
}

void AddMaxGrad(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef of_max;
  of_max.name = "embedding_bag_max_grad";
  of_max.doc = "Gradient of embedding_bag by max: dy to the first row of the bag that is the greatest.";
  of_max.axes = "table[v d], ids[b l], lengths[b], y[b d], dy[b d] -> dtable[v d]";
  of_max.folds = {{"b", Reduce::kSum}};
  of_max.whole = {"v", "l"};  // the first of equals is known only where all of them are
  of_max.linear = {{"dy"}};
  of_max.check = [](const OpCall& call) {
    RequireInputs(call, 5);
    for (size_t input : {0, 3, 4}) RequireFloating(call, input);
    RequireInteger(call, 1);
    RequireInteger(call, 2);
  };
  of_max.flops = RowsFlops;
  of_max.grad = BagMaxGradGrad;
  of_max.chosen = {"v", "ids"};
  of_max.any_type = of_max.typed = true;
  of_max.reference = EmbeddingBagMaxGrad;
  // Where all are equal every id is the greatest.
  of_max.samples = {{{{4, 3}, {5, 4}, {5}, {5, 3}, {5, 3}}, {}, {f, i, l, f, f}, 4},
                    {{{4, 3}, {5, 4}, {5}, {5, 3}, {5, 3}}, {}, {f, l, i, f, f}, 4, 1, 1}};
  catalog->Add(std::move(of_max));
}

void AddWeightsGrad(Catalog* catalog) {
  const DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  OpDef weights{.name = "embedding_bag_weights_grad",
                .doc = "Gradient of embedding_bag with respect to its weights: the row times dy."};
  weights.axes = "table[v d], ids[b l], lengths[b], dy[b d] -> dweights[b l]";
  weights.folds = {{"v", Reduce::kSum}, {"d", Reduce::kSum}};
  weights.linear = {{"table"}, {"dy"}};
  weights.check = [](const OpCall& call) {
    RequireInputs(call, 4);
    RequireFloating(call, 0);
    RequireInteger(call, 1);
    RequireInteger(call, 2);
    RequireFloating(call, 3);
  };
  weights.dtypes = ResultTypes({DType::kFloat32});
  weights.flops = RowsFlops;
  weights.chosen = {"v", "ids"};
  weights.grad = BagWeightsGradGrad;
  weights.any_type = true;
  weights.reference = EmbeddingBagWeightsGrad;
  weights.samples = {{{{7, 3}, {5, 4}, {5}, {5, 3}}, {}, {f, i, l, f}, 4},
                     {{{5, 2}, {3, 6}, {3}, {3, 2}}, {}, {f, l, i, f}, 5}};
  catalog->Add(std::move(weights));
}

}  // namespace

void AddEmbeddingBag(Catalog* catalog) {
  AddForward(catalog);
  AddGrad(catalog);
  AddMaxGrad(catalog);
  AddWeightsGrad(catalog);
}

}  // namespace oneflow_like
