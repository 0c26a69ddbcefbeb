// Gradients of values that are read in slices: random slices, splits, single indices and whole readers, with
// gaps and overlaps, against sums written out here, on every mesh; and that they cost one concat, not a whole
// tensor for each slice.
// ctest: seconds=10
#include <algorithm>
#include <numeric>

#include "core/plan/plan_values.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

struct Draw {
  uint64_t seed;
  uint64_t count = 0;
  int64_t operator()(int64_t limit) { return static_cast<int64_t>(RandomBits(seed, 9, count++) % limit); }
};

// A part of a value: as a tensor, and as the numbers of its elements in the value.
struct Part {
  Tensor tensor;
  Dims shape;
  std::vector<int64_t> at;
};

Part Cut(const Part& whole, int64_t axis, int64_t begin, int64_t end, int64_t step) {
  const int a = static_cast<int>(axis);
  Part part{slice(whole.tensor, axis, begin, end, step), whole.shape, {}};
  part.shape[a] = (end - begin + step - 1) / step;
  int64_t inner = 1, outer = 1;
  for (int i = 0; i < whole.shape.rank(); ++i) (i < a ? outer : inner) *= i == a ? 1 : whole.shape[i];
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t r = begin; r < end; r += step)
      for (int64_t i = 0; i < inner; ++i) part.at.push_back(whole.at[(o * whole.shape[a] + r) * inner + i]);
  return part;
}

// One to five readers of the whole, of parts of one axis for the most part. `first`: the axes that are cut.
std::vector<Part> Readers(const Part& whole, Draw& draw, int first) {
  std::vector<Part> parts;
  const int64_t rank = whole.shape.rank(), most = first + draw(rank - first);
  for (int64_t n = 1 + draw(5); n > 0; --n) {
    const int64_t axis = draw(4) ? most : first + draw(rank - first);
    const int64_t extent = whole.shape[static_cast<int>(axis)];
    const int64_t begin = draw(extent), end = begin + draw(extent - begin + 1);
    switch (draw(7)) {
      case 0:
        parts.push_back(whole);
        break;
      case 1: {
        const int64_t step = 2 + draw(2);
        if (draw(2)) {  // whole columns, where the step divides the extent
          parts.push_back(Cut(whole, axis, draw(step) % extent, extent, step));
          parts.push_back(Cut(whole, axis, draw(step) % extent, extent, step));
        } else {
          parts.push_back(Cut(whole, axis, begin, end, step));
        }
        break;
      }
      case 2: {
        std::vector<Tensor> pieces = split(whole.tensor, axis, extent % 2 ? extent : 2);
        const int64_t rows = extent / static_cast<int64_t>(pieces.size());
        for (size_t i = 0; i < pieces.size(); ++i) {
          parts.push_back(
              Cut(whole, axis, static_cast<int64_t>(i) * rows, static_cast<int64_t>(i + 1) * rows, 1));
          parts.back().tensor = pieces[i];
        }
        break;
      }
      case 3:  // windows of a third, one after another
        for (int64_t i = 0; 3 * i < extent; ++i)
          parts.push_back(Cut(whole, axis, i, std::min(extent, i + 1 + extent / 3), 1));
        break;
      case 4:  // beginnings of growing length
        for (int64_t i = 1; i <= extent; ++i) parts.push_back(Cut(whole, axis, 0, i, 1));
        break;
      case 5: {  // a slice of a slice
        const Part outer = Cut(whole, axis, begin, end, 1);
        const int64_t other = first + draw(rank - first), rows = outer.shape[static_cast<int>(other)];
        const int64_t from = draw(rows + 1);
        parts.push_back(Cut(outer, other, from, from + draw(rows - from + 1), 1));
        parts.push_back(outer);
        break;
      }
      default:
        parts.push_back(Cut(whole, axis, begin, end, 1));
    }
  }
  return parts;
}

struct Setting {
  const char* mesh;
  int micro_batches = 1;
};

constexpr int64_t kBatch = 6;

// v = x * w, read in parts; the loss is the sum of the parts' squares times drawn numbers.
void CheckCase(uint64_t seed, const Setting& run) {
  Draw draw{seed};
  Dims shape{kBatch};
  for (int64_t rank = 1 + draw(3); rank > 0; --rank) shape.push_back(2 + draw(draw(3) ? 6 : 15));
  Model model(FullMesh(run.mesh));
  const Dims row(shape.begin() + 1, shape.end());
  Annotation cut;
  if (draw(2)) cut = {{"tp", S(static_cast<int>(draw(row.rank())))}};
  Tensor w = model.scope().Weight("w", row, Normal(1), cut);
  Tensor x = model.Input("x", shape, DType::kFloat32, {{"dp", S(0)}});
  Part whole{mul(x, w), shape, std::vector<int64_t>(shape.elements())};
  std::iota(whole.at.begin(), whole.at.end(), 0);
  // Micro-batches see rows of the batch only.
  const std::vector<Part> parts = Readers(whole, draw, run.micro_batches > 1 ? 1 : 0);
  std::vector<Tensor> terms;
  std::vector<double> factors(shape.elements(), 0);  // of the squares of v
  for (size_t i = 0; i < parts.size(); ++i) {
    Dims across = parts[i].shape;  // the same for all of the batch, which micro-batches cut
    if (run.micro_batches > 1) across[0] = 1;
    const HostTensor numbers = Floats(seed * 100 + i, across);
    terms.push_back(sum(square(parts[i].tensor) * constant(w.graph(), numbers)));
    for (size_t e = 0; e < parts[i].at.size(); ++e)
      factors[parts[i].at[e]] += numbers.as<float>()[e % std::max<int64_t>(1, numbers.elements())];
  }
  Tensor loss = add_n(terms), first = gradients(loss, {w})[0];
  SessionOptions options;
  options.micro_batches = run.micro_batches;
  Session session =
      Evaluate({{"w", w}, {"first", first}, {"second", gradients(sum(square(first)), {w})[0]}}, options);
  const HostTensor given = Floats(seed + 1, shape);
  StepResult result = session.Run({{"x", given}});
  const std::string where =
      Cat("seed ", seed, " on ", run.mesh, " in ", run.micro_batches, ", ", shape.str());
  const int64_t columns = row.elements();
  for (int64_t j = 0; j < columns; ++j) {
    const double weight = result.Get("w").as<float>()[j];
    double slope = 0;  // of the loss, divided by w
    for (int64_t b = 0; b < kBatch; ++b) {
      const double number = given.as<float>()[b * columns + j];
      slope += 2 * factors[b * columns + j] * number * number;
    }
    const double wanted = slope * weight, second = 2 * slope * slope * weight;
    ASSERT_NEAR(result.Get("first").as<float>()[j], wanted, 2e-5 * (1 + std::abs(wanted)))
        << where << ", " << j;
    ASSERT_NEAR(result.Get("second").as<float>()[j], second, 5e-5 * (1 + std::abs(second)))
        << where << ", " << j;
  }
}

TEST(Slices, HaveTheGradientsOfTheirSums) {
  for (uint64_t seed = 0; seed < 150; ++seed) CheckCase(seed, {"cpu:dp=1"});
  const Setting settings[] = {{"cpu:dp=2"},    {"cpu:tp=2"},    {"cpu:dp=2,tp=2"}, {"cpu:dp=3"},
                              {"cpu:dp=1", 3}, {"cpu:dp=2", 3}, {"cpu:tp=2", 2}};
  for (const Setting& run : settings)
    for (uint64_t seed = 200; seed < 220; ++seed) CheckCase(seed, run);
}

// --- Cost ----------------------------------------------------------------------------------------

std::map<std::string, int> Operators(const Session& session, const Dims& shape) {
  std::map<std::string, int> counts;
  const Graph& graph = session.impl()->compiled.graph;
  for (int n : graph.Order())
    if (IsGradient(graph.node(n).phase) && !graph.node(n).out.empty() &&
        graph.value(graph.node(n).out[0]).shape == shape)
      ++counts[graph.node(n).op];
  return counts;
}

int64_t PeakOf(const Session& session) { return ArenaBytes(PlanOf(session.impl()->compiled, 0).plan); }

using Reads = std::vector<Tensor> (*)(Tensor v);

// Gradient operators of v's shape, v[6, 12] being read so.
std::map<std::string, int> Cost(Reads reads) {
  Model model(Mesh::Parse("cpu:dp=1"), {.check_nan = true});  // so that nothing is fused
  Tensor w = model.scope().Weight("w", {6, 12}, Normal(1));
  std::vector<Tensor> terms;
  for (const Tensor& part : reads(exp(w))) terms.push_back(sum(exp(part)));
  return Operators(Train(add_n(terms), Sgd{.lr = .1}), {6, 12});
}

TEST(Slices, HaveOneConcatForAGradient) {
  using Counts = std::map<std::string, int>;
  // The exponential's gradient is a product.
  EXPECT_EQ(Cost([](Tensor v) { return split(v, 1, 4); }), (Counts{{"concat", 1}, {"mul", 1}}));
  EXPECT_EQ(Cost([](Tensor v) { return std::vector<Tensor>{v[0], v[1], v[2], v[3], v[4], v[5]}; }),
            (Counts{{"concat", 1}, {"mul", 1}}));
  EXPECT_EQ(Cost([](Tensor v) {
              return std::vector<Tensor>{slice(v, 1, 9, 11), slice(v, 1, 2, 5), slice(v, 1, 5, 6)};
            }),
            (Counts{{"concat", 1}, {"mul", 1}}));  // zeros in gaps
  EXPECT_EQ(Cost([](Tensor v) {
              return std::vector<Tensor>{slice(v, 1, 0, 8), slice(v, 1, 4, 12), slice(v, 1, 4, 8)};
            }),
            (Counts{{"concat", 1}, {"mul", 1}}));  // a sum where they overlap
  EXPECT_EQ(Cost([](Tensor v) {
              std::vector<Tensor> parts = split(v, 1, 3);
              parts.push_back(v);
              return parts;
            }),
            (Counts{{"add_n", 1}, {"concat", 1}, {"mul", 2}, {"broadcast_to", 1}}));
  EXPECT_EQ(Cost([](Tensor v) {
              std::vector<Tensor> parts = split(v, 1, 3);
              for (const Tensor& row : split(v, 0, 2)) parts.push_back(row);
              return parts;
            }),
            (Counts{{"add_n", 1}, {"concat", 2}, {"mul", 1}}));  // of two axes
  EXPECT_EQ(Cost([](Tensor v) {
              return std::vector<Tensor>{slice(v, 1, 0, 12, 3), slice(v, 1, 2, 12, 3)};
            }),
            (Counts{{"reshape", 1}, {"mul", 1}}));  // of columns, which one concat of another shape joins
}

// The memory of a step is a few times what is sliced, however many slices there are.
TEST(Slices, TakeNoMoreMemoryInGreatNumber) {
  constexpr int64_t kElements = 3 << 16;
  auto peak = [](int64_t count, bool overlap) {
    Model model(Mesh::Parse("cpu:dp=1"));
    Tensor w = model.scope().Weight("w", {count, kElements / count}, Normal(1));
    Tensor v = exp(w);
    std::vector<Tensor> terms;
    for (int64_t i = 0; i < count; ++i)
      terms.push_back(sum(square(overlap ? slice(v, 0, i, std::min(count, i + 2)) : v[i])));
    return PeakOf(Train(add_n(terms), Sgd{.lr = .1}));
  };
  for (bool overlap : {false, true}) {
    const int64_t few = peak(4, overlap), many = peak(256, overlap);
    EXPECT_LT(many, few + few / 2) << (overlap ? "overlapping" : "apart");
  }
}

// --- Models --------------------------------------------------------------------------------------

constexpr int64_t kWidth = 8;

// Gates of each step are slices of one projection, which stands on another stage than the second layer.
Tensor Recurrent(Scope s, Tensor x) {
  s.Region();
  const int64_t steps = x.shape()[1];
  Tensor all = matmul(x, s.Weight("in", {kWidth, 4 * kWidth}, Normal(.4)));
  Tensor own = s.Weight("own", {kWidth, 4 * kWidth}, Normal(.4), {{"tp", S(0)}});
  Tensor h, c;
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < steps; ++t) {
    Tensor gates = select(all, 1, t);
    if (h.defined()) gates = gates + matmul(h, own);
    std::vector<Tensor> g = split(gates, 1, 4);
    Tensor in = sigmoid(g[0]) * tanh(g[1]);
    c = c.defined() ? sigmoid(g[2]) * c + in : in;
    h = sigmoid(g[3]) * tanh(c);
    outputs.push_back(h);
  }
  return stack(outputs, 1);
}

Session TrainRecurrent(Model& model, int64_t batch, int64_t steps, const TrainOptions& options) {
  Scope first = model.scope().Stage("pp", 0), last = model.scope().Stage("pp", model.mesh().axis_size(2) - 1);
  Tensor x = model.Input("x", {batch, steps, kWidth}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = Recurrent(first / "below", x);
  y = Recurrent(last / "above", to_stage(y, "pp", model.mesh().axis_size(2) - 1));
  // The first step and the last are read once more, by parts of a weight with a gap between them.
  Tensor w = (last / "head").Weight("w", {kWidth, 9}, Normal(.4), {{"tp", S(0)}});
  Tensor loss = mean(square(y)) + mean(exp(matmul(select(y, 1, 0), slice(w, 1, 1, 4)))) +
                mean(exp(matmul(select(y, 1, -1), slice(w, 1, 5, 8))));
  return Train(loss, Sgd{.lr = .5}, options);
}

std::vector<float> CurveOf(const char* mesh, TrainOptions options) {
  Model model(FullMesh(mesh));
  options.clip_norm = 1;
  Session train = TrainRecurrent(model, kBatch, 5, options);
  std::vector<float> curve;
  for (int step = 0; step < 4; ++step)
    curve.push_back(train.Run({{"x", Floats(3, {kBatch, 5, kWidth})}}).Scalar("loss"));
  return curve;
}

TEST(Slices, TrainAlikeOnEveryMesh) {
  const std::vector<float> wanted = CurveOf("cpu:dp=1", {});
  EXPECT_LT(wanted[3], wanted[0]);
  struct {
    const char* mesh;
    int micro_batches;
    Recompute recompute;
    DType dtype;
  } settings[] = {{"cpu:dp=2", 1, Recompute::kNone, DType::kFloat32},
                  {"cpu:tp=2", 2, Recompute::kNone, DType::kFloat32},
                  {"cpu:pp=2", 3, Recompute::kNone, DType::kFloat32},
                  {"cpu:dp=1", 3, Recompute::kFull, DType::kFloat32},
                  {"cpu:dp=2,tp=2,pp=2", 3, Recompute::kSelective, DType::kFloat32},
                  {"cpu:dp=2", 1, Recompute::kNone, DType::kBFloat16},
                  {"cpu:pp=2", 2, Recompute::kFull, DType::kFloat16}};
  for (const auto& run : settings) {
    TrainOptions options;
    options.micro_batches = run.micro_batches;
    options.recompute = run.recompute;
    options.dtype = run.dtype;
    const std::vector<float> got = CurveOf(run.mesh, options);
    const double tolerance = run.dtype == DType::kFloat32 ? 2e-5 : 2e-2;
    for (size_t step = 0; step < wanted.size(); ++step)
      EXPECT_NEAR(got[step] / wanted[step], 1, tolerance)
          << run.mesh << " " << Name(run.dtype) << ", step " << step;
  }
}

// Four times the steps: four times the memory and the operators, and no more.
TEST(Slices, OfARecurrentNetworkGrowWithItsSteps) {
  auto measure = [](int64_t steps) {
    Model model(FullMesh("cpu:dp=1"));
    Session session = TrainRecurrent(model, 32, steps, {});
    return std::pair(PeakOf(session), static_cast<int64_t>(session.impl()->compiled.graph.Order().size()));
  };
  const auto [few_bytes, few_nodes] = measure(16);
  const auto [many_bytes, many_nodes] = measure(64);
  EXPECT_LT(many_bytes, 4.5 * static_cast<double>(few_bytes));
  EXPECT_LT(many_nodes, 4.5 * static_cast<double>(few_nodes));
}

}  // namespace
}  // namespace oneflow_like
