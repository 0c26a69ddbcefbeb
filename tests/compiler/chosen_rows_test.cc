// The bytes that estimates count for operators which read, or update, only those parts of a tensor that ids
// name: no more parts than there are ids, however large the tensor is, on every mesh.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "core/plan/plan_values.h"
#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/session/session_impl.h"
#include "ops/language/sparse.h"

namespace oneflow_like {
namespace {

double BytesOf(const TensorArg& arg) { return static_cast<double>(arg.elements() * SizeOf(arg.dtype)); }

// An operator on x and ids, and how many parts of x, along which axis, its kernel touches at most.
struct Case {
  std::string op;
  std::function<Tensor(Model&, std::mt19937*)> make;
  std::function<int64_t(const Dims& x, const Dims& ids)> parts;
  int axis = 0;
};

int64_t Below(std::mt19937* random, int64_t limit) { return 1 + static_cast<int64_t>((*random)() % limit); }

// Large in axis `axis`, or not: with fewer parts than ids all of them may be named.
Dims DrawShape(std::mt19937* random, int rank, int axis) {
  Dims shape;
  for (int a = 0; a < rank; ++a)
    shape.push_back(a == axis ? Below(random, (*random)() % 2 ? 100'000 : 10) : Below(random, 6));
  return shape;
}

Tensor DrawX(Model& model, std::mt19937* random, const Dims& shape) {
  // A table may be cut by rows or by columns.
  const Annotation cuts[] = {{}, {{"tp", S(0)}}, {{"tp", S(shape.rank() - 1)}}};
  return model.scope().Weight("x", shape, Full(0), cuts[(*random)() % 3]);
}

Tensor DrawIds(Model& model, const Dims& shape, bool cut = true) {
  return model.Input("ids", shape, DType::kInt32, cut ? Annotation{{"dp", S(0)}} : Annotation{});
}

std::vector<Case> Cases() {
  const auto all = [](const Dims&, const Dims& ids) { return ids.elements(); };
  return {{"embedding",
           [](Model& m, std::mt19937* r) {
             return embedding(DrawX(m, r, DrawShape(r, 2, 0)), DrawIds(m, {Below(r, 9), Below(r, 5)}));
           },
           all},
          {"embedding_bag",
           [](Model& m, std::mt19937* r) {
             const int64_t bags = Below(r, 9);
             Tensor lengths = m.Input("lengths", {bags}, DType::kInt32, {{"dp", S(0)}});
             return embedding_bag(DrawX(m, r, DrawShape(r, 2, 0)), DrawIds(m, {bags, Below(r, 5)}), lengths);
           },
           all},
          {"gather",
           [](Model& m, std::mt19937* r) {
             return gather(DrawX(m, r, DrawShape(r, 3, 0)), DrawIds(m, {Below(r, 9)}));
           },
           all},
          {"take",
           [](Model& m, std::mt19937* r) {
             return take(DrawX(m, r, DrawShape(r, 3, 1)), 1, DrawIds(m, {Below(r, 9)}));
           },
           all, 1},
          {"take_along_axis",
           [](Model& m, std::mt19937* r) {
             const Dims x = DrawShape(r, 3, 1);
             return take_along_axis(DrawX(m, r, x), DrawIds(m, {x[0], Below(r, 9), x[2]}, false), 1);
           },
           [](const Dims&, const Dims& ids) { return ids[1]; }, 1},
          {"pick",
           [](Model& m, std::mt19937* r) {
             const Dims x = DrawShape(r, 2, 1);
             return pick(DrawX(m, r, x), DrawIds(m, {x[0]}, false));
           },
           [](const Dims&, const Dims&) { return int64_t{1}; }, 1}};
}

TEST(ChosenRows, CountAsManyAsThereAreIds) {
  for (const Case& c : Cases())
    for (int trial = 0; trial < 12; ++trial) {
      std::mt19937 random(trial);
      const std::string mesh = std::vector<std::string>{"cpu:dp=1,tp=1", "cpu:dp=2,tp=1", "cpu:dp=1,tp=3",
                                                        "cpu:dp=2,tp=2"}[random() % 4];
      SCOPED_TRACE(Cat(c.op, ", seed ", trial, ", ", mesh));
      Model model(Mesh::Parse(mesh));
      Tensor y = c.make(model, &random);
      const Session session = Evaluate({{"y", y}});
      const Compiled& compiled = session.impl()->compiled;
      int seen = 0;
      for (int rank = 0; rank < compiled.graph.mesh().size(); ++rank) {
        const plan::Plan plan = PlanOf(compiled, rank).plan;
        for (const plan::Actor& actor : plan.actor())
          for (const plan::Kernel& kernel : actor.kernel()) {
            if (kernel.name() != c.op) continue;
            ++seen;
            const KernelSpec spec = ToSpec(kernel);
            const Dims& x = spec.in[0].extent;
            const int64_t parts = std::min(x[c.axis], c.parts(x, spec.in[1].extent));
            double bytes = x[c.axis] == 0 ? 0
                                          : BytesOf(spec.in[0]) / static_cast<double>(x[c.axis]) *
                                                static_cast<double>(parts);
            for (size_t i = 1; i < spec.in.size(); ++i) bytes += BytesOf(spec.in[i]);
            EXPECT_NEAR(kernel.bytes(), bytes + BytesOf(spec.out[0]), 1e-6 * bytes);
          }
      }
      EXPECT_GT(seen, 0);
    }
}

// Updates of the rows that a batch touches.
TEST(ChosenRows, UpdatesDoNotGrowWithTheirTable) {
  const auto bytes = [](int64_t rows, const std::string& op) {
    Model model(Mesh::Parse("cpu:dp=2,tp=1"));
    Scope s = model.scope();
    Tensor table = s.Weight("table", {rows, 16}, Full(0)), other = s.Weight("other", {rows, 16}, Full(0)),
           state = s.Weight("state", {rows}, Full(1));
    Tensor ids = model.Input("ids", {8}, DType::kInt32, {{"dp", S(0)}});
    Tensor grad = model.Input("grad", {8, 16}, DType::kFloat32, {{"dp", S(0)}});
    TouchedRows touched = unique_rows(ids, grad);
    AdagradState adagrad = adagrad_rows(table, state, touched);
    SessionOptions options;
    options.also = {adagrad.table, adagrad.state, sgd_rows(other, touched)};
    const Session session = Evaluate({}, options);
    double sum = 0;
    const plan::Plan plan = PlanOf(session.impl()->compiled, 0).plan;
    for (const plan::Actor& actor : plan.actor())
      for (const plan::Kernel& kernel : actor.kernel())
        if (kernel.name() == op) sum += kernel.bytes();
    EXPECT_GT(sum, 0) << op;
    return sum;
  };
  for (const std::string op : {"sgd_rows", "adagrad_rows", "add_squares_to_rows"}) {
    EXPECT_EQ(bytes(1000, op), bytes(1'000'000, op)) << op;
    EXPECT_LT(bytes(2, op), bytes(1000, op)) << op;
  }
}

}  // namespace
}  // namespace oneflow_like
