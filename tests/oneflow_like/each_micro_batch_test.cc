// Variables that are written in each micro-batch: a step of m micro-batches does what m steps of one do, on
// every mesh, and what the host computes.
#include <functional>
#include <regex>

#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

constexpr AssignOptions kEach = {.each_micro_batch = true};
const char* const kMeshes[] = {"cpu:dp=1", "cpu:dp=2",      "cpu:tp=2",      "cpu:dp=3",
                               "cpu:pp=2", "cpu:dp=2,tp=2", "cpu:dp=2,pp=2", "cpu:tp=2,pp=2"};
constexpr int kWide = 3;

std::vector<float> Numbers(const HostTensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

// --- Random programs ---

using Row = std::vector<double>;  // of kWide

// Variables of kWide numbers, each given an affine function of two of: what another one held, what another
// one holds now, the sum and the mean of the micro-batch.
struct Program {
  struct Rule {
    int a, b;  // in the list of sources: old values, then sum and mean, then new values as they are made
    double by, times, offset;
  };
  int variables = 0;
  std::vector<Row> init;
  std::vector<Rule> rules;    // one for each variable
  std::vector<Rule> outputs;  // sources that examples are multiplied with and moved by
  std::vector<Annotation> cuts;
  std::vector<int> stage, output_stage;

  Program(uint64_t seed, int stages) {
    uint64_t at = 0;
    auto draw = [&](int n) { return static_cast<int>(RandomBits(seed, 7, at++) % n); };
    auto rule = [&](int sources) {
      return Rule{draw(sources), draw(sources), 0.25 * (draw(5) - 2), 0.25 * (draw(5) - 2), 0.5 * draw(3)};
    };
    variables = 1 + draw(4);
    for (int i = 0; i < variables; ++i) {
      init.push_back(Row(kWide, draw(5)));
      cuts.push_back(draw(2) ? Annotation{{draw(2) ? "dp" : "tp", S(0)}} : Annotation{});
      stage.push_back(draw(stages));
      rules.push_back(rule(variables + 2 + i));
    }
    for (int i = 0; i < 3; ++i) {
      outputs.push_back(rule(2 * variables + 2));
      output_stage.push_back(draw(stages));
    }
  }
};

// What the host makes of it: gives outputs, and the variables in `state`.
struct HostStep {
  std::vector<Row> rows[3];  // by output
  Row sums[3], last;         // of rows; the first output's source in the last micro-batch
};

HostStep OnHost(const Program& program, const HostTensor& x, int micro_batches, std::vector<Row>* state) {
  HostStep step;
  const int64_t examples = x.shape[0];
  for (int m = 0; m < micro_batches; ++m) {
    const Interval part = Cut({0, examples}, micro_batches, m, 1);
    std::vector<Row> sources = *state;
    Row total(kWide, 0), mean;
    auto at = [&](int64_t row, int i) { return double(x.as<float>()[row * kWide + i]); };
    for (int64_t r = part.begin; r < part.begin + part.extent; ++r)
      for (int i = 0; i < kWide; ++i) total[i] += at(r, i);
    for (double t : total) mean.push_back(t / part.extent);
    sources.insert(sources.end(), {total, mean});
    for (const Program::Rule& rule : program.rules) {
      Row now;
      for (int i = 0; i < kWide; ++i)
        now.push_back(rule.times * sources[rule.a][i] + rule.by * sources[rule.b][i] + rule.offset);
      sources.push_back(now);
    }
    for (int v = 0; v < program.variables; ++v) (*state)[v] = sources[program.variables + 2 + v];
    for (int o = 0; o < 3; ++o) {
      const Program::Rule& rule = program.outputs[o];
      step.sums[o].resize(kWide);
      for (int64_t r = part.begin; r < part.begin + part.extent; ++r) {
        step.rows[o].emplace_back();
        for (int i = 0; i < kWide; ++i) {
          step.rows[o].back().push_back(at(r, i) * sources[rule.a][i] + sources[rule.b][i]);
          step.sums[o][i] += step.rows[o].back()[i];
        }
      }
    }
    step.last = sources[program.outputs[0].a];
  }
  return step;
}

// The same as a graph of the model, for `examples` in a step.
std::map<std::string, Tensor> AsGraph(const Program& program, Scope scope, Tensor x,
                                      std::vector<Tensor>* also) {
  const int last = scope.mesh().axis_size(2) - 1;
  auto on = [&](int stage) { return std::min(stage, last); };
  std::vector<Tensor> sources;
  for (int i = 0; i < program.variables; ++i) {
    std::vector<float> first(program.init[i].begin(), program.init[i].end());
    sources.push_back(scope.Stage("pp", on(program.stage[i]))
                          .State(Cat("v", i), {kWide}, Full(first[0]), {.sbp = program.cuts[i]}));
  }
  sources.push_back(micro_batch_sum(x, {0}));
  sources.push_back(micro_batch_mean(x, {0}));
  for (int i = 0; i < program.variables; ++i) {
    const Program::Rule& rule = program.rules[i];
    Tensor value = shift(scale(sources[rule.a], rule.times) + scale(sources[rule.b], rule.by), rule.offset);
    sources.push_back(assign(sources[i], value, kEach));
    also->push_back(sources.back());
  }
  std::map<std::string, Tensor> outputs;
  for (int o = 0; o < 3; ++o) {
    const Program::Rule& rule = program.outputs[o];
    Tensor rows = to_stage(x, "pp", on(program.output_stage[o])) * sources[rule.a] + sources[rule.b];
    outputs[Cat("rows", o)] = rows;
    outputs[Cat("sum", o)] = sum(rows, {0});
  }
  outputs["last"] = sources[program.outputs[0].a];
  return outputs;
}

void ExpectRow(const float* got, const Row& want, const std::string& where) {
  for (int i = 0; i < kWide; ++i)
    ASSERT_NEAR(got[i], want[i], 1e-4 * (1 + std::abs(want[i]))) << where << " column " << i;
}

TEST(EachMicroBatch, RandomProgramsFollowTheHost) {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    const char* mesh = kMeshes[seed % std::size(kMeshes)];
    const int micro_batches = 1 + static_cast<int>(RandomBits(seed, 8, 0) % 5);
    const int examples = micro_batches * 2 + static_cast<int>(RandomBits(seed, 8, 1) % 7);
    const std::string text = Cat("seed ", seed, " on ", mesh, ", ", examples, " in ", micro_batches, ": ");
    SCOPED_TRACE(text);
    Model model(FullMesh(mesh));
    Program program(seed, 2);
    Tensor x = model.Input("x", {examples, kWide}, DType::kFloat32, {{"dp", S(0)}});
    SessionOptions options;
    options.micro_batches = micro_batches;
    std::map<std::string, Tensor> outputs = AsGraph(program, model.scope(), x, &options.also);
    Session session = Evaluate(outputs, options);
    std::vector<Row> state = program.init;
    for (int step = 0; step < 3; ++step) {
      HostTensor fed = Floats(10 * seed + step, {examples, kWide});
      const HostStep want = OnHost(program, fed, micro_batches, &state);
      StepResult got = session.Run({{"x", fed}});
      for (int o = 0; o < 3; ++o) {
        for (int r = 0; r < examples; ++r)
          ExpectRow(got.Get(Cat("rows", o)).as<float>() + r * kWide, want.rows[o][r],
                    Cat(text, "rows", o, " ", r, " step ", step));
        ExpectRow(got.Get(Cat("sum", o)).as<float>(), want.sums[o], Cat(text, "sum", o, " step ", step));
      }
      ExpectRow(got.Get("last").as<float>(), want.last, Cat(text, "last, step ", step));
    }
    for (int v = 0; v < program.variables; ++v)
      ExpectRow(model.Read(Cat("v", v)).as<float>(), state[v], Cat(text, "v", v));
  }
}

// One session takes the batch in micro-batches, another one micro-batch in each step.
TEST(EachMicroBatch, IsTheMicroBatchesAsSeparateSteps) {
  for (const char* mesh : kMeshes)
    for (int micro_batches = 1; micro_batches <= 5; ++micro_batches)
      for (uint64_t seed : {101, 102}) {
        const int examples = 4 * micro_batches;
        SCOPED_TRACE(Cat("seed ", seed, " on ", mesh, " in ", micro_batches));
        Program program(seed, 2);
        Model together(FullMesh(mesh)), apart(FullMesh(mesh));
        SessionOptions whole, one;
        whole.micro_batches = micro_batches;
        Tensor x = together.Input("x", {examples, kWide}, DType::kFloat32, {{"dp", S(0)}});
        Tensor part = apart.Input("x", {4, kWide}, DType::kFloat32, {{"dp", S(0)}});
        auto outputs = AsGraph(program, together.scope(), x, &whole.also);
        auto outputs_of_one = AsGraph(program, apart.scope(), part, &one.also);
        Session all = Evaluate(outputs, whole), each = Evaluate(outputs_of_one, one);
        for (int step = 0; step < 2; ++step) {
          HostTensor fed = Floats(seed + step, {examples, kWide});
          StepResult of_all = all.Run({{"x", fed}});
          for (int m = 0; m < micro_batches; ++m) {
            std::vector<float> rows(fed.as<float>() + m * 4 * kWide, fed.as<float>() + (m + 1) * 4 * kWide);
            StepResult of_one = each.Run({{"x", ToHost(rows, {4, kWide})}});
            const float* want = of_one.Get("rows0").as<float>();
            for (int i = 0; i < 4 * kWide; ++i)
              ASSERT_FLOAT_EQ(of_all.Get("rows0").as<float>()[m * 4 * kWide + i], want[i]);
            if (m + 1 < micro_batches) continue;
            EXPECT_LE(Difference(of_all.Get("last"), of_one.Get("last")), 1e-6);
          }
        }
        for (int v = 0; v < program.variables; ++v)
          EXPECT_LE(Difference(together.Read(Cat("v", v)), apart.Read(Cat("v", v))), 1e-6);
      }
}

// --- A cache that chunks of a sequence are appended to ---

TEST(EachMicroBatch, ChunksAreAppendedToACache) {
  constexpr int kRoom = 24;
  for (const char* mesh : kMeshes)
    for (int micro_batches : {1, 2, 3, 5}) {
      SCOPED_TRACE(Cat(mesh, " in ", micro_batches));
      const int tokens = 11;
      Model model(FullMesh(mesh));
      Scope s = model.scope();
      Tensor x = model.Input("x", {tokens, kWide}, DType::kFloat32);
      Tensor cache = s.State("cache", {kRoom, kWide}, Full(0));
      Tensor filled = s.State("filled", {}, Full(0), {.dtype = DType::kInt32});
      Tensor ones = cast(equal(x, x), DType::kFloat32);
      Tensor length = cast(scale(micro_batch_sum(ones), 1.0 / kWide), DType::kInt32);
      SessionOptions options;
      options.micro_batches = micro_batches;
      options.also = {assign(filled, filled + length, kEach)};
      Tensor now = assign_slice(cache, 0, filled, x, kEach);
      // Each token is multiplied with the sum of all that were cached up to its chunk's end.
      Session session = Evaluate({{"y", x * sum(now, {0})}}, options);
      std::vector<double> sums(kWide, 0);
      std::vector<float> want(kRoom * kWide, 0);
      for (int step = 0; step < 2; ++step) {
        HostTensor fed = Floats(step + 1, {tokens, kWide});
        StepResult got = session.Run({{"x", fed}});
        for (int m = 0; m < micro_batches; ++m) {
          const Interval part = Cut({0, tokens}, micro_batches, m, 1);
          for (int64_t r = part.begin; r < part.begin + part.extent; ++r)
            for (int i = 0; i < kWide; ++i) {
              sums[i] += fed.as<float>()[r * kWide + i];
              want[(step * tokens + r) * kWide + i] = fed.as<float>()[r * kWide + i];
            }
          for (int64_t r = part.begin; r < part.begin + part.extent; ++r)
            for (int i = 0; i < kWide; ++i)
              ASSERT_NEAR(got.Get("y").as<float>()[r * kWide + i], fed.as<float>()[r * kWide + i] * sums[i],
                          1e-5);
        }
      }
      EXPECT_EQ(Numbers(model.Read("cache")), want);
      EXPECT_EQ(model.Read("filled").as<int32_t>()[0], 2 * tokens);
    }
}

// --- Training ---

struct Setting {
  const char* mesh = "cpu:dp=1";
  const char* zero_axis = "";
  int zero_stage = 1;
  Recompute recompute = Recompute::kNone;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool late = false;  // the loss is divided by a number that is of the whole batch
};

// A perceptron whose hidden layer is centred by a running mean, which the backward pass reads, too.
struct Centred {
  explicit Centred(const Setting& run, int micro_batches) : model(FullMesh(run.mesh), OptionsOf(run)) {
    const int last = model.mesh().axis_size(2) - 1;
    Scope first = (model.scope() / "a").Stage("pp", 0), second = (model.scope() / "b").Stage("pp", last);
    first.Region();
    Tensor x = model.Input("x", {12, kWide}, DType::kFloat32, {{"dp", S(0)}});
    Tensor h = tanh(matmul(x, first.Weight("up", {kWide, 4}, Normal(0.5), {{"tp", S(1)}})));
    Tensor centre = first.State("centre", {4}, Full(0.25)), seen = second.State("seen", {}, Full(0));
    Tensor next = assign(centre, scale(centre, 0.5) + scale(micro_batch_mean(h, {0}), 0.5), kEach);
    Tensor y = square(h - centre) * shift(square(centre), 1);
    y = matmul(to_stage(y, "pp", last), second.Weight("down", {4, 2}, Normal(0.5)));
    Tensor count = assign(seen, shift(seen, 1), kEach);
    Tensor squares = square(y) / shift(seen, 1);
    loss = run.late ? sum(squares) / maximum(sum(cast(greater(x, 0), DType::kFloat32)), 1) : mean(squares);
    options.micro_batches = micro_batches;
    options.recompute = run.recompute;
    options.schedule = run.schedule;
    options.also = {next, count};
  }
  static ModelOptions OptionsOf(const Setting& run) {
    ModelOptions options;
    options.zero = {.axis = run.zero_axis, .stage = run.zero_stage};
    options.zero.small = 0;
    return options;
  }

  Model model;
  Tensor loss;
  TrainOptions options;
};

TEST(EachMicroBatch, TrainingIsTheSameOnEveryMesh) {
  const Setting kRuns[] = {{},
                           {"cpu:dp=1", "", 1, Recompute::kFull},
                           {"cpu:dp=2"},
                           {"cpu:tp=2", "", 1, Recompute::kFull},
                           {"cpu:dp=2,tp=2", "dp", 1},
                           {"cpu:dp=3", "dp", 2},
                           {"cpu:dp=2", "dp", 3, Recompute::kFull},
                           {"cpu:pp=2"},
                           {"cpu:pp=2", "", 1, Recompute::kFull},
                           {"cpu:pp=2", "", 1, Recompute::kNone, PipelineSchedule::kGPipe},
                           {"cpu:pp=2", "", 1, Recompute::kNone, PipelineSchedule::kZeroBubble},
                           {"cpu:dp=2,pp=2", "dp", 3}};
  for (int micro_batches : {1, 2, 3, 4})
    for (bool late : {false, true}) {
      std::map<std::string, std::vector<float>> want;
      for (Setting run : kRuns) {
        run.late = late;
        SCOPED_TRACE(
            Cat(run.mesh, " in ", micro_batches, " zero ", run.zero_axis, run.zero_stage, " late ", late));
        Centred program(run, micro_batches);
        Session session = Train(program.loss, AdamW{.lr = 0.05}, program.options);
        std::vector<float> losses;
        for (int step = 0; step < 4; ++step)
          losses.push_back(session.Run({{"x", Floats(step, {12, kWide})}}).Scalar("loss"));
        std::map<std::string, std::vector<float>> got{{"loss", losses}};
        for (const char* name : {"a/up", "a/centre", "b/down", "b/seen"})
          got[name] = Numbers(program.model.Read(name));
        EXPECT_EQ(got.at("b/seen")[0], 4 * micro_batches);
        if (want.empty()) want = got;
        for (const auto& [name, numbers] : want)
          for (size_t i = 0; i < numbers.size(); ++i)
            EXPECT_NEAR(got.at(name)[i], numbers[i], 2e-5) << name << " " << i;
      }
    }
}

// --- Mistakes ---

TEST(EachMicroBatch, MistakesAreNamed) {
  Model model(FullMesh("cpu:dp=2"));
  Scope s = model.scope();
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
  Tensor v = s.State("v", {3}, Full(0)), wide = s.State("wide", {4, 3}, Full(0)),
         w = s.Weight("w", {3}, Full(1));
  SessionOptions two;
  two.micro_batches = 2;
  auto refuse = [](const char* wanted, const std::function<void()>& make) {
    const std::string error = ErrorOf(make);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  auto evaluate = [&](std::vector<Tensor> also, Tensor y) {
    two.also = std::move(also);
    Evaluate({{"y", y}}, two);
  };
  refuse(
      "^Evaluate at .*assign '[^']*' at each_micro_batch_test.cc:\\d+: '[^']*' differs between the 2 "
      "micro-batches",
      [&] { evaluate({assign(v, micro_batch_sum(x, {0}))}, x); });
  refuse(
      "^Evaluate at .*assign '[^']*' at each_micro_batch_test.cc:\\d+: '[^']*' differs between the 2 "
      "micro-batches",
      [&] {
        Tensor other = s.State("other", {3}, Full(0));
        evaluate({assign(v, shift(v, 1), kEach), assign(other, scale(v, 2))}, x);
      });
  refuse(
      "^Evaluate at .*assign.* at each_micro_batch_test.cc:\\d+: it needs the whole batch of 'x', but 2 "
      "micro-batches",
      [&] { evaluate({assign(wide, x, kEach)}, x); });
  refuse(
      "^Evaluate at .*assign.* at each_micro_batch_test.cc:\\d+: variable 'v' is written in each of 2 "
      "micro-batches, "
      "but between a reader of it and this stands .* at each_micro_batch_test.cc:\\d+, which is of the whole "
      "batch",
      [&] { evaluate({assign(v, mean(x * v, {0}), kEach)}, x); });
  refuse("^Evaluate at .*variable 'v' is given a value by assign .* already", [&] {
    evaluate({assign(v, shift(v, 1), kEach), assign(v, shift(v, 2), kEach)}, x);
  });
  TrainOptions train;
  train.micro_batches = 2;
  refuse(
      "^Train at .*micro_batch_mean at each_micro_batch_test.cc:\\d+, in its sum '[^']*': it gives each "
      "micro-batch a value of its "
      "own, and no "
      "gradient of .*w.* goes through that",
      [&] { Train(mean(square(x - micro_batch_mean(x * w, {0}))), Sgd{}, train); });
  // A count that depends on w and lets no gradient through is in nobody's way.
  Tensor kept = cast(greater(x * w, 0), DType::kFloat32);
  Train(mean(square(x * w)) + mean(micro_batch_sum(kept, {0})), Sgd{}, train);
  train.also = {assign(w, shift(w, 1), kEach)};
  refuse("^Train at .*variable 'w' is given a value by .* already",
         [&] { Train(mean(square(x * w)), Sgd{}, train); });
  // The gradient of v * w is a sum over micro-batches that v would have to be multiplied with one by one.
  train.also = {assign(v, shift(v, 1), kEach)};
  refuse(
      "^Train at .*: the gradient of weight 'w' depends on variable 'v' at each_micro_batch_test.cc:\\d+, "
      "which differs between the 2 micro-batches; combine that with what is of the batch first",
      [&] { Train(mean(square(x * (v * w))), Sgd{}, train); });
}

}  // namespace
}  // namespace oneflow_like
