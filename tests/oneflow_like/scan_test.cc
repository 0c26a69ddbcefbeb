// Loops (scan) beside the same operators written out for every step: with reference kernels the same bits,
// forward and backward, on every mesh, with micro-batches, stages and recomputation; the size of the plan and
// its memory; what a body cannot do.
// ctest: seconds=20 asan=90 tsan=90
#include <functional>

#include "core/plan/plan_values.h"
#include "oneflow_like/session/session_impl.h"
#include "ops/manifest.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int64_t kRows = 6, kWidth = 4;

// The loop, or the same body for every step.
ScanResult Looped(bool written_out, const ScanBody& body, std::vector<Tensor> states,
                  const std::vector<Tensor>& xs, const ScanOptions& options) {
  if (!written_out) return scan(body, states, xs, options);
  const int64_t axis = options.axis, steps = xs[0].shape()[static_cast<int>(axis)];
  std::vector<std::vector<Tensor>> ys;
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t at = options.reverse ? steps - 1 - t : t;
    std::vector<Tensor> places;
    for (const Tensor& x : xs) places.push_back(squeeze(slice(x, axis, at, at + 1), axis));
    ScanResult step = body(states, places);
    states = step.states;
    ys.resize(step.ys.size());
    for (size_t i = 0; i < ys.size(); ++i) ys[i].push_back(step.ys[i]);
  }
  ScanResult result{states, {}};
  for (std::vector<Tensor>& y : ys) {
    if (options.reverse) std::reverse(y.begin(), y.end());
    result.ys.push_back(stack(y, axis));
  }
  return result;
}

// A cell, its states [rows width], and the width of x[rows steps ..].
struct Cell {
  const char* name;
  int states, inputs;  // inputs: of the width
  bool reverse;
  bool weight;  // the recurrent weight [width, inputs width] among what it reads
  std::function<ScanResult(const std::vector<Tensor>&, const std::vector<Tensor>&, Tensor)> step;
};

const std::vector<Cell>& Cells() {
  using List = const std::vector<Tensor>&;
  static const auto* cells = new std::vector<Cell>{
      {"plain", 1, 1, false, true,
       [](List s, List x, Tensor w) -> ScanResult {
         Tensor h = tanh(matmul(s[0], w) * x[0] + x[0]);
         return {{h}, {h}};
       }},
      {"long short-term memory", 2, 4, false, true,
       [](List s, List x, Tensor w) -> ScanResult {
         std::vector<Tensor> z = split(matmul(s[0], w) + x[0], 1, 4);
         Tensor c = sigmoid(z[1]) * s[1] + sigmoid(z[0]) * tanh(z[2]);
         Tensor h = sigmoid(z[3]) * tanh(c);
         return {{h, c}, {h}};
       }},
      {"gated", 1, 3, true, true,  // the state is read three times in a step
       [](List s, List x, Tensor w) -> ScanResult {
         std::vector<Tensor> of_x = split(x[0], 1, 3), of_h = split(matmul(s[0], w), 1, 3);
         Tensor r = sigmoid(of_x[0] + of_h[0]), z = sigmoid(of_x[1] + of_h[1]);
         Tensor n = tanh(of_x[2] + r * of_h[2]);
         Tensor h = n + z * (s[0] - n);
         return {{h}, {h, r}};
       }},
      {"elementwise", 2, 1, false, false,  // and states that change places
       [](List s, List x, Tensor) -> ScanResult {
         Tensor h = s[1] * sigmoid(x[0]) + s[0];
         return {{s[1], h}, {mul(h, x[0])}};
       }},
  };
  return *cells;
}

struct Setting {
  const char* mesh;
  int micro_batches = 1;
  Recompute recompute = Recompute::kNone;
  bool features = false;  // cut over tp
  std::string str() const { return Cat(mesh, " ", micro_batches, " ", Name(recompute), features ? " features" : ""); }
};

const Setting kSettings[] = {
    {"cpu:dp=1"},
    {"cpu:dp=2"},
    {"cpu:dp=4", 1, Recompute::kFull},  // 6 rows over 4 devices
    {"cpu:tp=2"},
    {"cpu:tp=2", 1, Recompute::kNone, true},
    {"cpu:pp=2", 3},
    {"cpu:dp=2,tp=2", 3, Recompute::kFull, true},
    {"cpu:dp=2,pp=2", 3, Recompute::kSelective},
    {"cpu:dp=1", 2},
};

void UseReferenceKernels(Model* model) {
  ModelImpl& impl = *model->impl();
  impl.registry = KernelRegistry();
  AddReferenceKernels(impl.catalog, &impl.registry);
  AddBoxingKernels(&impl.registry);
}

struct Net {
  Net(const Cell& cell, const Setting& run, bool written_out, int64_t steps, bool reference = true,
      DType dtype = DType::kFloat32)
      : model(FullMesh(run.mesh)) {
    if (reference) UseReferenceKernels(&model);
    const int last = model.mesh().axis_size(2) - 1;
    Annotation cut = {{"dp", S(0)}};
    if (run.features) cut.push_back({"tp", S(2)});
    Tensor x = model.Input("x", {kRows, steps, cell.inputs * kWidth}, DType::kFloat32, cut);
    Scope s = (model.scope() / "loop").Stage("pp", last).Region();
    Tensor scaled = x * (model.scope() / "before").Stage("pp", 0).Weight("scale", {cell.inputs * kWidth}, Normal(1));
    Tensor w = cell.weight ? s.Weight("w", {kWidth, cell.inputs * kWidth}, Normal(0.5)) : Tensor();
    std::vector<Tensor> states;
    for (int i = 0; i < cell.states; ++i)
      states.push_back(broadcast_to(s.Weight(Cat("first", i), {kWidth}, Normal(1)), {kRows, kWidth}));
    ScanResult out = s.Run([&] {
      return Looped(written_out, [&](const auto& st, const auto& xs) { return cell.step(st, xs, w); }, states,
                    {scaled}, {.axis = 1, .reverse = cell.reverse});
    });
    Tensor loss = mean(square(out.ys[0]));
    for (size_t i = 1; i < out.ys.size(); ++i) loss = loss + mean(out.ys[i]);
    for (const Tensor& t : out.states) loss = loss + mean(square(t));
    TrainOptions options;
    options.micro_batches = run.micro_batches;
    options.dtype = dtype;
    options.recompute = run.recompute;
    options.outputs = {{"y", out.ys[0]}};
    session.emplace(Train(loss, Sgd{.lr = 0.5}, options));
  }
  std::vector<HostTensor> Steps(int count, int64_t steps, int inputs) {
    std::vector<HostTensor> all;
    for (int i = 0; i < count; ++i) {
      StepResult result = session->Run({{"x", Floats(70 + i, {kRows, steps, inputs * kWidth})}});
      all.push_back(result.Get("y"));
      all.push_back(result.Get("loss"));
    }
    return all;
  }

  Model model;
  std::optional<Session> session;
};

TEST(Scan, GivesTheBitsOfTheGraphWrittenOut) {
  constexpr int64_t kSteps = 5;
  for (const Cell& cell : Cells())
    for (const Setting& run : kSettings) {
      if (run.features && cell.weight) continue;
      SCOPED_TRACE(Cat(cell.name, " on ", run.str()));
      Net loop(cell, run, false, kSteps), written_out(cell, run, true, kSteps);
      const std::vector<HostTensor> got = loop.Steps(3, kSteps, cell.inputs),
                                    wanted = written_out.Steps(3, kSteps, cell.inputs);
      for (size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(SameBytes(got[i], wanted[i])) << i << ": " << Difference(got[i], wanted[i]);
      for (const std::string& name : loop.model.Variables()) {
        const HostTensor a = loop.model.Read(name), b = written_out.model.Read(name);
        EXPECT_TRUE(SameBytes(a, b)) << name << ": " << Difference(a, b);
      }
    }
}

}  // namespace
}  // namespace oneflow_like
