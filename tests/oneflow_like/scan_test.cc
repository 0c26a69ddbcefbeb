// Loops (scan) beside the same operators written out for every step: with reference kernels the same bits,
// forward and backward, on every mesh, with micro-batches, stages and recomputation; the size of the plan and
// its memory; what a body cannot do.
// ctest: seconds=20 asan=90 tsan=90
#include <functional>

#include "compiler/graph/text.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/session/session_impl.h"
#include "ops/manifest.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr int64_t kRows = 6, kWidth = 16;

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
      {"normalised", 1, 1, false,
       false,  // an operator that is a program of elementwise ones, joined with others
       [](List s, List x, Tensor) -> ScanResult {
         Tensor g = full(s[0].graph(), {kWidth}, 0.7);
         Tensor h = tanh(batch_norm_eval(x[0] * s[0] + s[0], g, g, g, square(g)));
         return {{h}, {h}};
       }},
      {"attentive", 1, 1, false, true,  // without dropout nothing is drawn
       [](List s, List x, Tensor w) -> ScanResult {
         const Dims tokens{kRows, 4, 1, kWidth / 4};
         Tensor q = reshape(matmul(s[0], w), tokens), v = reshape(x[0], tokens);
         Tensor h = tanh(reshape(attention(q, v, v, {.causal = false}), {kRows, kWidth}) + s[0]);
         return {{h}, {h}};
       }},
  };
  return *cells;
}

struct Setting {
  const char* mesh;
  int micro_batches = 1;
  Recompute recompute = Recompute::kNone;
  bool features = false;  // cut over tp
  std::string str() const {
    return Cat(mesh, " ", micro_batches, " ", Name(recompute), features ? " features" : "");
  }
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
    {"cpu:dp=1", 4},  // 6 rows in pieces of 2 and 1
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
    Tensor scaled =
        x * (model.scope() / "before").Stage("pp", 0).Weight("scale", {cell.inputs * kWidth}, Normal(1));
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
    options.parallel.batch =
        "dp";  // with so few rows it would else be as cheap to compute all of them everywhere
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
      // Where three micro-batches are summed, the graph written out sums each step's gradients over these
      // first, then over the steps: of weights, three terms in another order.
      const bool sums_alike = run.micro_batches < 3;
      const auto same = [&](const HostTensor& a, const HostTensor& b) {
        return sums_alike ? SameBytes(a, b) : Difference(a, b) < 1e-6;
      };
      for (size_t i = 0; i < wanted.size(); ++i)  // the first two are of the first step
        EXPECT_TRUE(i < 2 ? SameBytes(got[i], wanted[i]) : same(got[i], wanted[i]))
            << i << ": " << Difference(got[i], wanted[i]);
      for (const std::string& name : loop.model.Variables()) {
        const HostTensor a = loop.model.Read(name), b = written_out.model.Read(name);
        EXPECT_TRUE(same(a, b)) << name << ": " << Difference(a, b);
      }
    }
}

TEST(Scan, FastKernelsAnd16BitsAreNear) {
  constexpr int64_t kSteps = 5;
  for (const Cell& cell : Cells())
    for (const Setting& run : {kSettings[0], kSettings[7], kSettings[9]})
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        SCOPED_TRACE(Cat(cell.name, " on ", run.str(), " in ", Name(dtype)));
        Net fast(cell, run, false, kSteps, false, dtype), reference(cell, kSettings[0], false, kSteps);
        const std::vector<HostTensor> got = fast.Steps(2, kSteps, cell.inputs),
                                      wanted = reference.Steps(2, kSteps, cell.inputs);
        for (size_t i = 0; i < wanted.size(); ++i)
          EXPECT_LE(Difference(got[i], wanted[i]), dtype == DType::kFloat32 ? 1e-5 : 2e-2) << i;
      }
}

// --- Size ------------------------------------------------------------------------------------------

struct Size {
  int nodes, actors;
  int64_t arena;
  bool operator==(const Size&) const = default;
};

// `wide`: units inside of a step, which no step keeps.
Size SizeOfLoop(int64_t steps, int64_t wide) {
  Model model(FullMesh("cpu:dp=1"));
  Scope s = model.scope();
  Tensor x = model.Input("x", {kRows, steps, kWidth}, DType::kFloat32);
  Tensor up = s.Weight("up", {kWidth, wide}, Normal(1)), down = s.Weight("down", {wide, kWidth}, Normal(1));
  const ScanResult run = scan(
      [&](const std::vector<Tensor>& h, const std::vector<Tensor>& in) -> ScanResult {
        Tensor next = tanh(matmul(relu(matmul(h[0] + in[0], up)), down));
        return {{next}, {}};
      },
      {full(model.scope().graph(), {kRows, kWidth}, 0)}, {x}, {.axis = 1});
  Session session = Train(mean(square(run.states[0])), Sgd{.lr = .1});
  const RankPlan plan = PlanOf(session.impl()->compiled, 0);
  int kernels = 0;
  for (const plan::Actor& actor : plan.plan.actor()) kernels += actor.kernel_size();
  return {kernels, plan.plan.actor_size(), ArenaBytes(plan.plan)};
}

TEST(Scan, PlanKeepsItsSizeAndMemoryGrowsByTheStates) {
  const Size few = SizeOfLoop(16, 512), many = SizeOfLoop(256, 512);
  EXPECT_EQ(few.nodes, many.nodes);
  EXPECT_EQ(few.actors, many.actors);
  // A step's state, and its x twice, as the next feed comes in beside it; what lies inside of a step is 32
  // times as much.
  const int64_t grown = (many.arena - few.arena) / 240;
  EXPECT_EQ(grown, 3 * kRows * kWidth * int64_t{sizeof(float)});

  Model model(FullMesh("cpu:dp=1"));
  std::vector<Size> lstm;
  for (int64_t steps : {16, 256}) {
    Tensor x = model.Input(Cat("x", steps), {kRows, steps, kWidth}, DType::kFloat32);
    TrainOptions options;
    options.name = Cat("train", steps);
    Session session = Train(mean(nn::LSTM(model.scope(), x, kWidth).y), Sgd{.lr = .1}, options);
    const RankPlan plan = PlanOf(session.impl()->compiled, 0);
    lstm.push_back({0, plan.plan.actor_size(), 0});
    for (const plan::Actor& actor : plan.plan.actor()) lstm.back().nodes += actor.kernel_size();
  }
  EXPECT_EQ(lstm[0], lstm[1]);
}

// --- Forms -----------------------------------------------------------------------------------------

// Of sessions that evaluate the loop and the graph written out, on one device.
void ExpectSame(double tolerance, const std::function<Tensor(Model&, bool written_out)>& make) {
  HostTensor results[2];
  for (bool written_out : {false, true}) {
    Model model(FullMesh("cpu:dp=1"));
    UseReferenceKernels(&model);
    Tensor y = make(model, written_out);
    Session session = Evaluate({{"y", y}});
    results[written_out] = session.Run({{"x", Floats(5, {kRows, 3, kWidth})}}).Get("y");
  }
  EXPECT_LE(Difference(results[0], results[1]), tolerance);
}

Tensor InputOf(Model& model) { return model.Input("x", {kRows, 3, kWidth}, DType::kFloat32); }
Tensor ZerosOf(Tensor x) { return full(x, {kRows, kWidth}, 0); }

TEST(Scan, LoopsWithinLoopsAndGradientsOfGradients) {
  // An inner loop over the rows, which reads outside of both. It sums and rounds by itself what the graph
  // written out adds up all at once.
  ExpectSame(2e-7, [](Model& model, bool written_out) {
    Tensor x = InputOf(model), w = model.scope().Weight("w", {kWidth}, Normal(1));
    const auto outer = [&](const std::vector<Tensor>& s, const std::vector<Tensor>& in) -> ScanResult {
      const auto inner = [&](const std::vector<Tensor>& t, const std::vector<Tensor>& row) -> ScanResult {
        Tensor next = tanh(w * t[0] + row[0] + row[1]);
        return {{next}, {next}};
      };
      ScanResult rows = Looped(written_out, inner, {full(s[0], {kWidth}, 1)}, {in[0], s[0]}, {.axis = 0});
      return {{rows.ys[0]}, {rows.states[0]}};
    };
    const ScanResult run = Looped(written_out, outer, {ZerosOf(x)}, {x}, {.axis = 1});
    Tensor loss = mean(square(run.states[0])) + mean(run.ys[0]);
    return concat({gradients(loss, {w})[0], reshape(run.ys[0], {3 * kWidth})}, 0);
  });
  HostTensor results[2];
  for (bool written_out : {false, true}) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor x = InputOf(model), w = model.scope().Weight("w", {kWidth, kWidth}, Normal(1));
    const auto body = [&](const std::vector<Tensor>& s, const std::vector<Tensor>& in) -> ScanResult {
      Tensor h = tanh(matmul(s[0], w) + in[0]);
      return {{h}, {h}};
    };
    const ScanResult run = Looped(written_out, body, {ZerosOf(x)}, {x}, {.axis = 1});
    Tensor of_x = gradients(sum(square(run.ys[0])), {x})[0];
    Session session = Evaluate({{"y", gradients(sum(square(of_x)), {w})[0]}});
    results[written_out] = session.Run({{"x", Floats(5, {kRows, 3, kWidth})}}).Get("y");
  }
  EXPECT_LE(Difference(results[0], results[1]), 2e-5);
}

TEST(Scan, ReadsFromOutsideAndAnOperatorOfTheUsersOwn) {
  HostTensor results[2];
  for (bool written_out : {false, true}) {
    OpDef twice;
    twice.name = "twice";
    twice.axes = "x[..] -> y[..]";
    twice.scalar = "scale 0 factor=2.0";
    twice.samples = {{.in = {{3}}}};
    ModelOptions options;
    options.operators = {twice};
    Model model(FullMesh("cpu:dp=1"), options);
    Tensor x = InputOf(model), w = model.scope().Weight("w", {kRows, kRows}, Normal(1));
    const auto body = [&](const std::vector<Tensor>& s, const std::vector<Tensor>& in) -> ScanResult {
      Tensor h = tanh(matmul(w * 2, s[0]) + Apply(in[0].graph(), "twice", {in[0]}, {})[0]);
      return {{h}, {w}};  // w first, what is made of it outside, and w itself
    };
    const ScanResult run = Looped(written_out, body, {ZerosOf(x)}, {x}, {.axis = 1});
    Session session = Evaluate({{"y", concat({reshape(run.ys[0], {-1}), reshape(run.states[0], {-1})}, 0)}});
    results[written_out] = session.Run({{"x", Floats(5, {kRows, 3, kWidth})}}).Get("y");
  }
  EXPECT_LE(Difference(results[0], results[1]), 1e-5);
}

TEST(Scan, IsReadBackFromTheGraphsText) {
  OpDef noted;  // with an attribute that holds what separates the words of the text
  noted.name = "noted";
  noted.axes = "x[..] -> y[..]";
  noted.scalar = "scale 0 factor=2.0";
  noted.samples = {{.in = {{3}}}};
  ModelOptions options;
  options.operators = {noted};
  Model model(FullMesh("cpu:dp=1"), options);
  Tensor x = nn::GRU(model.scope(), InputOf(model), kWidth).y;
  const auto body = [](const std::vector<Tensor>& s, const std::vector<Tensor>& in) -> ScanResult {
    return {{Apply(s[0].graph(), "noted", {s[0] + in[0]}, {{"note", std::string("a: \"b\" @c !d \\")}})[0]},
            {}};
  };
  Tensor last = scan(body, {ZerosOf(x)}, {x}, {.axis = 1}).states[0];
  Session session = Evaluate({{"last", last}});
  const Graph& graph = session.impl()->compiled.graph;
  const std::string text = ToText(graph);
  EXPECT_EQ(ToText(ParseGraph(graph.catalog(), text)), text);
}

TEST(Scan, SaysWhatABodyCannotDo) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = InputOf(model), h = ZerosOf(x), state = model.scope().State("s", {kRows, kWidth}, Zeros());
  Tensor escaped;
  using List = const std::vector<Tensor>&;
  const auto error = [&](const ScanBody& body, ScanOptions options = {.axis = 1}) {
    return ErrorOf([&] { scan(body, {h}, {x}, options); });
  };
  const auto expect = [](const std::string& got, const std::string& part) {
    EXPECT_NE(got.find(part), std::string::npos) << got << "\nwithout: " << part;
  };
  expect(error([&](List s, List) -> ScanResult { return {{dropout(s[0], 0.5)}, {}}; }), "draws at random");
  expect(error([&](List s, List) -> ScanResult { return {{assign(state, s[0])}, {}}; }), "writes a variable");
  expect(error([&](List s, List) -> ScanResult {
           Tensor t = constant(s[0].graph(), Floats(1, {kWidth}));
           return {{s[0] * t}, {}};
         }),
         "outside of the body");
  expect(error([&](List s, List) -> ScanResult {
           return {{sum(s[0], {0})}, {}};
         }),
         "state 0 is f32[6,16] before a step but f32[16] after it");
  expect(error([&](List, List) -> ScanResult { return {{}, {}}; }), "the body gives 0 states but has 1");
  expect(error(ScanBody()), "scan at scan_test.cc");
  expect(error(ScanBody()), "the body is an empty function");
  expect(error(
             [&](List s, List) -> ScanResult {
               return {{s[0]}, {}};
             },
             {.axis = 3}),
         "axis 3 does not exist");
  expect(error(
             [&](List s, List) -> ScanResult {
               return {{s[0]}, {}};
             },
             {.axis = 1, .steps = 5}),
         "steps is 5");
  expect(ErrorOf([&] {
           scan([&](List s, List) -> ScanResult { return {{s[0]}, {}}; }, {h}, {});
         }),
         "ScanOptions::steps says how many");
  expect(error([&](List s, List) -> ScanResult {
           return {{annotate(s[0], {{"tp", S(1)}})}, {}};
         }),
         "a value of a loop's body");
  expect(error([&](List s, List) -> ScanResult {
           return {{to_stage(s[0], "pp", 0)}, {}};
         }),
         "a value of a loop's body");
  EXPECT_EQ(error([&](List s, List) -> ScanResult {
              escaped = s[0] * 2;
              return {{s[0]}, {escaped}};
            }),
            "");
  expect(ErrorOf([&] { (void)(escaped + 1); }), "a value of a loop's body that has ended");
  expect(ErrorOf([&] { (void)(escaped + x); }), "a value of a loop's body that has ended");
}

// --- Recurrences -----------------------------------------------------------------------------------

TEST(Scan, NamesTheOperatorOfItsBodyThatFails) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor table = model.scope().Weight("table", {5, kWidth}, Normal(1));
  Tensor ids = model.Input("ids", {kRows, 3}, DType::kInt32);
  const ScanResult run = scan(
      [&](const std::vector<Tensor>& s, const std::vector<Tensor>& x) -> ScanResult {
        return {{s[0] + embedding(table, x[0])}, {}};
      },
      {full(table.graph(), {kRows, kWidth}, 0)}, {ids}, {.axis = 1});
  Session session = Evaluate({{"h", run.states[0]}});
  const std::string error = ErrorOf([&] { session.Run({{"ids", Ids(1, {kRows, 3}, 1000)}}).Get("h"); });
  EXPECT_NE(error.find("in its embedding: id "), std::string::npos) << error;
  EXPECT_NE(error.find(" is outside the table of 5 rows"), std::string::npos) << error;
}

TEST(LinearRecurrence, InChunksIsCutAlongTheSequence) {
  constexpr int64_t kLong = 64, kFew = 4;
  HostTensor wanted, wanted_w;
  for (const auto& [mesh, chunks] : {std::pair{"cpu:dp=1", 1}, {"cpu:tp=2", 4}, {"cpu:tp=4", 4}}) {
    SCOPED_TRACE(mesh);
    Model model(FullMesh(mesh));
    const Annotation cut = {{"tp", S(1)}};
    Tensor a = model.Input("a", {kRows, kLong, kFew}, DType::kFloat32, cut);
    Tensor b = model.Input("b", {kRows, kLong, kFew}, DType::kFloat32, cut);
    Tensor w = model.scope().Weight("w", {kFew}, Ones());
    Tensor y = linear_recurrence(sigmoid(a * w), b, 1, {}, {.chunks = chunks});
    Session whole = Evaluate({{"y", y}}), session = Train(mean(square(y)), Sgd{.lr = .1});
    const Feeds feeds = {{"a", Floats(1, {kRows, kLong, kFew})}, {"b", Floats(2, {kRows, kLong, kFew})}};
    const HostTensor got = whole.Run(feeds).Get("y");
    session.Run(feeds).Wait();
    const HostTensor trained = model.Read("w");
    if (chunks == 1) wanted_w = trained;
    EXPECT_LE(Difference(trained, wanted_w), 1e-6);
    if (chunks == 1) wanted = got;
    EXPECT_LE(Difference(got, wanted), 1e-5);
    const Graph& graph = session.impl()->compiled.graph;
    int recurrences = 0;
    for (int n : graph.Order()) {
      if (graph.node(n).op != "linear_recurrence" || chunks == 1) continue;
      const Value& h = graph.value(graph.node(n).out[0]);
      if (h.shape.rank() < 4) continue;  // from chunk to chunk
      EXPECT_EQ(h.sbp[2], S(1)) << h.name;
      ++recurrences;
    }
    EXPECT_GE(recurrences, chunks == 1 ? 0 : 4) << "forward and backward";
  }
}

TEST(Recurrent, LayersRefuseWhatDoesNotFit) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = InputOf(model), flat = model.Input("flat", {kRows, kWidth}, DType::kFloat32);
  Scope s = model.scope();
  EXPECT_NE(ErrorOf([&] { nn::LSTM(s / "a", flat, 4); }).find("needs at least 3 axes"), std::string::npos);
  EXPECT_NE(ErrorOf([&] { nn::LSTM(s / "b", x, 0); }).find("n is 0 but must be positive"), std::string::npos);
  EXPECT_NE(ErrorOf([&] { nn::GRU(s / "c", x, 3, {.h = flat}); }).find("h is [6,16] but must be [6,3]"),
            std::string::npos);
  EXPECT_NE(ErrorOf([&] { linear_recurrence(x, x, 1, {}, {.chunks = 2}); }).find("chunks is 2"),
            std::string::npos);
}

}  // namespace
}  // namespace oneflow_like
