// Operators that choose by index: gather (rows of a table), pick (one element of each row), one_hot, and
// gradients. The axis that is indexed may be cut: each rank serves the indices in its range and gives zero
// for the others.
#include <cstring>

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

Status NoSuchIndex(int64_t id, int64_t limit, const char* axis) {
  return Status(Cat("index ", id, " is outside [0, ", limit, ") of ", axis));
}

// --- Reference kernels ---------------------------------------------------------------------------

Status Gather(const KernelContext& context) {
  const TensorArg &table = context.in[0], &ids = context.in[1], &y = context.out[0];
  int64_t row = InnerOf(table.extent, 0) * static_cast<int64_t>(SizeOf(table.dtype));
  for (int64_t i = 0; i < ids.elements(); ++i) {
    int64_t id = LoadInt(ids, i), local = id - table.begin[0];
    if (id < 0 || id >= table.global[0]) return NoSuchIndex(id, table.global[0], "axis 0");
    if (row == 0) continue;
    if (local >= 0 && local < table.extent[0]) {
      std::memcpy(y.as<char>() + i * row, table.as<char>() + local * row, row);
    } else {
      std::memset(y.as<char>() + i * row, 0, row);
    }
  }
  return Status();
}

Status GatherGrad(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &dy = context.in[1], &dtable = context.out[0];
  int64_t row = InnerOf(dtable.extent, 0);
  return DispatchFloating(dtable.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t i = 0; i < dtable.elements(); ++i) Store(dtable.as<T>() + i, 0.0);
    for (int64_t i = 0; i < ids.elements(); ++i) {
      int64_t id = LoadInt(ids, i), local = id - dtable.begin[0];
      if (id < 0 || id >= dtable.global[0]) return NoSuchIndex(id, dtable.global[0], "axis 0");
      if (local < 0 || local >= dtable.extent[0]) continue;
      for (int64_t k = 0; k < row; ++k) {
        T* to = dtable.as<T>() + local * row + k;
        Store(to, Load(to) + Load(dy.as<T>() + i * row + k));
      }
    }
    return Status();
  });
}

Status Pick(const KernelContext& context) {
  const TensorArg &x = context.in[0], &ids = context.in[1], &y = context.out[0];
  int axis = x.extent.rank() - 1;
  for (int64_t i = 0; i < ids.elements(); ++i) {
    int64_t id = LoadInt(ids, i), local = id - x.begin[axis];
    if (id >= x.global[axis]) return NoSuchIndex(id, x.global[axis], "the last axis");
    bool here = id >= 0 && local >= 0 && local < x.extent[axis];
    StoreFloat(y, i, here ? LoadFloat(x, i * x.extent[axis] + local) : 0);
  }
  return Status();
}

Status PickGrad(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &dy = context.in[1], &dx = context.out[0];
  int axis = dx.extent.rank() - 1;
  int64_t classes = dx.extent[axis];
  for (int64_t i = 0; i < ids.elements(); ++i) {
    int64_t local = LoadInt(ids, i) - dx.begin[axis];
    for (int64_t k = 0; k < classes; ++k) {
      StoreFloat(dx, i * classes + k, k == local ? LoadFloat(dy, i) : 0);
    }
  }
  return Status();
}

Status OneHot(const KernelContext& context) {
  const TensorArg &ids = context.in[0], &y = context.out[0];
  int axis = y.extent.rank() - 1;
  int64_t classes = y.extent[axis];
  for (int64_t i = 0; i < ids.elements(); ++i) {
    int64_t id = LoadInt(ids, i);
    if (id >= y.global[axis]) return NoSuchIndex(id, y.global[axis], "the last axis");
    for (int64_t k = 0; k < classes; ++k) y.as<float>()[i * classes + k] = k + y.begin[axis] == id ? 1 : 0;
  }
  return Status();
}

// --- Rules: letters for the axes of ids, then "v" for the axis that is indexed -------------------

std::string IdAxes(const Dims& ids) { return Letters(0, ids.rank()); }
std::string WithAxes(const std::string& axes, const std::string& more) {
  return axes.empty() || more.empty() ? axes + more : axes + " " + more;
}
std::map<std::string, Reduce> FoldIds(const Dims& ids) {
  std::map<std::string, Reduce> folds;
  for (int i = 0; i < ids.rank(); ++i) folds[Letter(i)] = Reduce::kSum;
  return folds;
}
std::map<std::string, int64_t> Classes(const OpCall& call) {
  RequireAttr(call, "classes");
  if (call.attrs->Int("classes") < 1) {
    Fail(call.who, ": classes is ", call.attrs->Int("classes"), " but must be at least 1");
  }
  return {{"v", call.attrs->Int("classes")}};
}
void AddGatherPair(Catalog* catalog) {
  OpDef gather{.name = "gather", .doc = "Rows of the first axis of a table, by index."};
  gather.axes_of = [](const OpCall& call) {
    RequireInputs(call, 2);
    if (call.shapes[0].rank() == 0) Fail(call.who, ": table has no axes but needs at least 1");
    int ids = call.shapes[1].rank();
    std::string row = Letters(ids, ids + call.shapes[0].rank() - 1);
    return "table[" + WithAxes("v", row) + "], ids[" + IdAxes(call.shapes[1]) + "] -> y[" +
           WithAxes(IdAxes(call.shapes[1]), row) + "]";
  };
  gather.folds = {{"v", Reduce::kSum}};
  gather.linear = {{"table"}};
  gather.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireFloating(call, 0);
    RequireInteger(call, 1);
  };
  gather.flops = NoFlops;
  gather.chosen = {"v", "ids"};
  gather.grad = [](const GradCall& c) {
    Attrs attrs = {{"classes", c.in[0].shape()[0]}};
    Tensor dtable = Apply(c.in[0].graph(), "gather_grad", {c.in[1], c.dout[0]}, attrs)[0];
    return std::vector<Tensor>{dtable, Tensor()};
  };
  gather.precision = Precision::kFollow;
  gather.reference = Gather;
  DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  gather.samples = {{.in = {{6, 4}, {5}}, .dtypes = {f, i}, .limit = 6},
                    {.in = {{5, 2, 3}, {4, 6}}, .dtypes = {f, l}, .limit = 5},
                    {.in = {{7}, {6}}, .dtypes = {f, i}, .limit = 7}};
  catalog->Add(std::move(gather));

  OpDef grad{.name = "gather_grad",
             .doc = "The gradient of gather: row i of dy is added to row ids[i] of a table of zeros."};
  grad.axes_of = [](const OpCall& call) {
    RequireInputs(call, 2);
    int ids = call.shapes[0].rank();
    std::string row = Letters(ids, std::max(ids, call.shapes[1].rank()));
    return "ids[" + IdAxes(call.shapes[0]) + "], dy[" + WithAxes(IdAxes(call.shapes[0]), row) +
           "] -> dtable[" + WithAxes("v", row) + "]";
  };
  grad.folds_of = [](const OpCall& call) { return FoldIds(call.shapes[0]); };
  grad.linear = {{"dy"}};
  grad.extents = Classes;
  grad.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireInteger(call, 0);
    RequireFloating(call, 1);
  };
  grad.dtypes = ResultTypes({1});
  grad.flops = [](const BoundRule& rule) { return static_cast<double>(rule.in[1].shape.elements()); };
  grad.grad = [](const GradCall& c) {
    return std::vector<Tensor>{Tensor(), oneflow_like::gather(c.dout[0], c.in[0])};
  };
  grad.reference = GatherGrad;
  grad.samples = {
      {.in = {{5}, {5, 4}}, .attrs = {{"classes", int64_t{6}}}, .dtypes = {i, f}, .limit = 6},
      {.in = {{4, 6}, {4, 6, 3}}, .attrs = {{"classes", int64_t{5}}}, .dtypes = {l, f}, .limit = 5}};
  catalog->Add(std::move(grad));
}

void AddPickPair(Catalog* catalog) {
  OpDef pick{.name = "pick", .doc = "For each row the element that ids says; 0 where ids is negative."};
  pick.axes_of = [](const OpCall& call) {
    RequireInputs(call, 2);
    std::string ids = IdAxes(call.shapes[1]);
    return "x[" + WithAxes(ids, "v") + "], ids[" + ids + "] -> y[" + ids + "]";
  };
  pick.folds = {{"v", Reduce::kSum}};
  pick.linear = {{"x"}};
  pick.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireFloating(call, 0);
    RequireInteger(call, 1);
    const Dims &x = call.shapes[0], &ids = call.shapes[1];
    if (x.rank() == 0) Fail(call.who, ": x has no axes but needs one to pick from");
    if (const Dims rows(x.begin(), x.end() - 1); ids != rows)
      Fail(call.who, ": ids is ", ids.str(), " but x ", x.str(), " without its last axis is ", rows.str());
  };
  pick.flops = NoFlops;
  pick.chosen = {"v", "ids"};
  pick.grad = [](const GradCall& c) {
    Attrs attrs = {{"classes", c.in[0].shape().back()}};
    Tensor dx = Apply(c.in[0].graph(), "pick_grad", {c.in[1], c.dout[0]}, attrs)[0];
    return std::vector<Tensor>{dx, Tensor()};
  };
  pick.reference = Pick;
  DType f = DType::kFloat32, i = DType::kInt32, l = DType::kInt64;
  pick.samples = {{.in = {{6, 5}, {6}}, .dtypes = {f, i}, .limit = 5},
                  {.in = {{2, 6, 7}, {2, 6}}, .dtypes = {f, l}, .limit = 7}};
  catalog->Add(std::move(pick));

  OpDef grad{.name = "pick_grad",
             .doc = "The gradient of pick: dy at the element that was picked, 0 elsewhere."};
  grad.axes_of = [](const OpCall& call) {
    RequireInputs(call, 2);
    std::string ids = IdAxes(call.shapes[0]);
    return "ids[" + ids + "], dy[" + ids + "] -> dx[" + WithAxes(ids, "v") + "]";
  };
  grad.linear = {{"dy"}};
  grad.extents = Classes;
  grad.check = [](const OpCall& call) {
    RequireInputs(call, 2);
    RequireInteger(call, 0);
    RequireFloating(call, 1);
  };
  grad.dtypes = ResultTypes({1});
  grad.flops = NoFlops;
  grad.grad = [](const GradCall& c) {
    return std::vector<Tensor>{Tensor(), oneflow_like::pick(c.dout[0], c.in[0])};
  };
  grad.reference = PickGrad;
  grad.samples = {{.in = {{6}, {6}}, .attrs = {{"classes", int64_t{5}}}, .dtypes = {i, f}, .limit = 5},
                  {.in = {{2, 6}, {2, 6}}, .attrs = {{"classes", int64_t{7}}}, .dtypes = {l, f}, .limit = 7}};
  catalog->Add(std::move(grad));
}

void AddOneHot(Catalog* catalog) {
  OpDef def{.name = "one_hot",
            .doc = "A new last axis with 1 at the class that ids says; all 0 where ids is negative."};
  def.axes = "ids[..] -> y[.. v]";
  def.extents = Classes;
  def.check = [](const OpCall& call) { RequireInteger(call, 0); };
  def.dtypes = ResultTypes({DType::kFloat32});
  def.flops = NoFlops;
  def.reference = OneHot;
  def.samples = {{.in = {{6}}, .attrs = {{"classes", int64_t{5}}}, .dtypes = {DType::kInt32}, .limit = 5},
                 {.in = {{2, 6}}, .attrs = {{"classes", int64_t{7}}}, .dtypes = {DType::kInt64}, .limit = 7}};
  catalog->Add(std::move(def));
}

}  // namespace

void AddGather(Catalog* catalog) {
  AddGatherPair(catalog);
  AddPickPair(catalog);
  AddOneHot(catalog);
}

}  // namespace oneflow_like
