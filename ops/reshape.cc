// reshape: the same bytes under other extents. Its line of labels is computed by factoring the two shapes
// into common groups, so that an axis that survives, is split or merged can stay cut.
#include <cstring>
#include <numeric>

#include "ops/language/functional.h"
#include "ops/manifest.h"
#include "ops/reference.h"

namespace oneflow_like {
namespace {

// What factoring finds: the labels of each axis of x and of y, outermost first.
struct Factoring {
  std::vector<std::vector<std::string>> x, y;
  std::map<std::string, int64_t> extents;
  std::set<std::string> whole;

  std::string Fresh(int64_t extent) {
    std::string label = Letter(static_cast<int>(extents.size()));
    extents[label] = extent;
    return label;
  }
  void Opaque(std::vector<std::string>* axis, int64_t extent) {
    std::string label = Fresh(extent);
    whole.insert(label);
    axis->push_back(label);
  }
};

// One side of the walk: the next axis of extent other than 1, and how much of it no label covers yet.
struct Side {
  const Dims& shape;
  std::vector<std::vector<std::string>>& labels;
  int axis = -1;
  int64_t rest = 0;

  bool Next() {
    while (++axis < shape.rank() && shape[axis] == 1) {
    }
    rest = axis < shape.rank() ? shape[axis] : 0;
    return rest != 0;
  }
};

// The extents of the group have no common factoring left: what remains of it, up to where the products meet
// again, gets labels of one side alone, which cannot be cut.
void CloseOpaque(Factoring* f, Side* x, Side* y) {
  int64_t px = x->rest, py = y->rest;
  f->Opaque(&x->labels[x->axis], x->rest);
  f->Opaque(&y->labels[y->axis], y->rest);
  while (px != py) {
    Side* shorter = px < py ? x : y;
    shorter->Next();
    f->Opaque(&shorter->labels[shorter->axis], shorter->rest);
    (shorter == x ? px : py) *= shorter->rest;
  }
}

// [6,4] and [3,8] become [(a b) c] and [a (b c)] with a=3, b=2, c=4.
void FactorGroup(Factoring* f, Side* x, Side* y) {
  for (;;) {
    int64_t common = std::gcd(x->rest, y->rest);
    if (common > 1) {
      std::string label = f->Fresh(common);
      // A label that is not the outermost of its axis has no contiguous piece to cut.
      if (!x->labels[x->axis].empty() || !y->labels[y->axis].empty()) f->whole.insert(label);
      x->labels[x->axis].push_back(label);
      y->labels[y->axis].push_back(label);
      x->rest /= common;
      y->rest /= common;
    }
    if (x->rest == 1 && y->rest == 1) return;
    if (x->rest == 1) {
      x->Next();
    } else if (y->rest == 1) {
      y->Next();
    } else {
      return CloseOpaque(f, x, y);
    }
  }
}

Factoring Factor(const Dims& from, const Dims& to) {
  Factoring f;
  f.x.resize(from.rank());
  f.y.resize(to.rank());
  if (from.elements() == 0) {
    for (int i = 0; i < from.rank(); ++i) f.Opaque(&f.x[i], from[i]);
    for (int i = 0; i < to.rank(); ++i) f.Opaque(&f.y[i], to[i]);
    return f;
  }
  Side x{from, f.x}, y{to, f.y};
  while (x.Next() && y.Next()) FactorGroup(&f, &x, &y);
  return f;
}

std::string Text(const std::vector<std::vector<std::string>>& axes) {
  std::string text;
  for (const std::vector<std::string>& labels : axes) {
    std::string axis;
    for (const std::string& label : labels) axis += (axis.empty() ? "" : " ") + label;
    if (labels.empty()) axis = "1";
    if (labels.size() > 1) axis = "(" + axis + ")";
    text += (text.empty() ? "" : " ") + axis;
  }
  return text;
}

Factoring FactorCall(const OpCall& call) {
  RequireInputs(call, 1);
  RequireAttr(call, "shape");
  Dims shape = call.attrs->GetDims("shape");
  if (shape.elements() != call.shapes[0].elements()) {
    Fail(call.who, ": ", call.shapes[0].str(), " has ", call.shapes[0].elements(), " elements but ",
         shape.str(), " has ", shape.elements());
  }
  return Factor(call.shapes[0], shape);
}

Status Reshape(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  if (x.data != y.data && y.elements() > 0) std::memcpy(y.data, x.data, y.elements() * SizeOf(y.dtype));
  return Status();
}

}  // namespace

void AddReshape(Catalog* catalog) {
  OpDef def{.name = "reshape", .doc = "The same elements in row-major order under another shape."};
  def.axes_of = [](const OpCall& call) {
    Factoring f = FactorCall(call);
    return "x[" + Text(f.x) + "] -> y[" + Text(f.y) + "]";
  };
  def.whole_of = [](const OpCall& call) { return FactorCall(call).whole; };
  def.extents = [](const OpCall& call) { return FactorCall(call).extents; };
  def.linear = {{"x"}};
  def.view = true;
  def.flops = [](const BoundRule&) { return 0.0; };
  def.grad = [](const GradCall& c) { return std::vector<Tensor>{reshape(c.dout[0], c.in[0].shape())}; };
  def.precision = Precision::kFollow;
  def.reference = Reshape;
  auto to = [](std::vector<int64_t> shape) { return Attrs{{"shape", std::move(shape)}}; };
  def.samples = {{.in = {{8, 6}}, .attrs = to({48})},       {.in = {{4, 12}}, .attrs = to({4, 3, 4})},
                 {.in = {{6, 4}}, .attrs = to({3, 8})},     {.in = {{4, 6}}, .attrs = to({6, 4})},
                 {.in = {{1, 6, 1}}, .attrs = to({6})},     {.in = {{6, 4, 5}}, .attrs = to({6, 1, 20})},
                 {.in = {{12, 5}}, .attrs = to({2, 6, 5})}, {.in = {{1}}, .attrs = to({})}};
  catalog->Add(std::move(def));
}

}  // namespace oneflow_like
