// What Train makes of a model: operators without a gradient, what messages say of operators, feeds and
// losses.
#include <regex>

#include "oneflow_like/session/session_impl.h"
#include "ops/oracle/samples.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

// --- Operators of the user's ---

// 2x, of any shape.
OpDef Twice(const std::string& name) {
  OpDef def;
  def.name = name;
  def.axes = "x[..] -> y[..]";
  def.reference = [](const KernelContext& context) {
    for (int64_t i = 0; i < context.out[0].elements(); ++i)
      context.out[0].as<float>()[i] = 2 * context.in[0].as<float>()[i];
    return Status();
  };
  return def;
}

ModelOptions WithOperators(std::vector<OpDef> operators) {
  ModelOptions options;
  options.operators = std::move(operators);
  return options;
}

// A chain of products, `depth` weights deep, with a user's operator behind weight `at`: exactly the weights
// up to there are cut off, and the error names them, the operator and its line.
TEST(Training, AnOperatorWithoutGradientIsRefused) {
  const int depth = 5;
  for (int at = 0; at < depth; ++at) {
    Model model(FullMesh("cpu:dp=1"), WithOperators({Twice("twice")}));
    Tensor h = model.Input("x", {4, 3}, DType::kFloat32);
    int line = 0;
    for (int i = 0; i < depth; ++i) {
      h = h * model.scope().Weight(Cat("w", i), {3}, Ones());
      line = i == at ? __LINE__ + 1 : line;
      if (i == at) h = Apply(h.graph(), "twice", {h})[0];
    }
    std::string error = ErrorOf([&] { Train(mean(square(h)), Sgd{}); });
    EXPECT_TRUE(std::regex_search(error, std::regex("^Train at training_test\\.cc:\\d+: twice 'twice' at ")))
        << error;
    EXPECT_NE(error.find(Cat("training_test.cc:", line)), std::string::npos) << error;
    for (int i = 0; i < depth; ++i)
      EXPECT_EQ(error.find(Cat("'w", i, "'")) != std::string::npos, i <= at)
          << i << " at " << at << ": " << error;
  }
}

// An elementwise operator as a program of steps, without a kernel: fused, alone, of no axes, of integers.
TEST(Training, AnOperatorMayBeAProgram) {
  OpDef def;
  def.name = "square_and_more";
  def.axes = "x[..] -> y[..]";
  def.scalar = "mul 0 0;add 1 0";
  def.grad = [](const GradCall& c) { return std::vector<Tensor>{c.dout[0] * (2 * c.in[0] + 1)}; };
  const auto use = [](Tensor x) { return Apply(x.graph(), "square_and_more", {x})[0]; };
  for (bool check_nan : {false, true}) {  // with it nothing is fused
    ModelOptions options = WithOperators({def});
    options.check_nan = check_nan;
    Model model(FullMesh("cpu:dp=2"), options);
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {3}, Ones());
    Session session = Train(use(mean(use(x * w))), Sgd{.lr = 1});
    StepResult step = session.Run({{"x", ToHost(std::vector<float>(12, 1), {4, 3})}});
    EXPECT_FLOAT_EQ(step.Scalar("loss"), 6);  // 1 + 1, and 2 * 2 + 2
    for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(model.Read("w").as<float>()[i], 1 - 5 * 3 / 3.f);
    Tensor ids = model.Input("ids", {3}, DType::kInt32);
    HostTensor given = HostTensor::Make(DType::kInt32, {3});
    for (int i = 0; i < 3; ++i) given.as<int32_t>()[i] = i - 5;
    Session integers = Evaluate({{"y", use(ids)}});
    StepResult whole = integers.Run({{"ids", given}});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(whole.Get("y").as<int32_t>()[i], (i - 5) * (i - 4));
  }
  def.scalar = "";
  EXPECT_NE(ErrorOf([&] {
              Model(FullMesh("cpu:dp=1"), WithOperators({def}));
            }).find("lacks a kernel (OpDef::reference), or a program"),
            std::string::npos);
}

TEST(Training, AnOperatorThatStopsTheGradientIsNoMistake) {
  OpDef stop = Twice("stop");
  stop.stops_gradient = true;
  Model model(FullMesh("cpu:dp=1"), WithOperators({stop}));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32);
  Tensor a = x * model.scope().Weight("a", {3}, Ones());
  Tensor b = Apply(a.graph(), "stop", {a})[0] * model.scope().Weight("b", {3}, Ones());
  Session session = Train(mean(b), Sgd{.lr = 1});
  session.Run({{"x", ToHost(std::vector<float>(12, 1), {4, 3})}}).Wait();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(model.Read("b").as<float>()[i], 1 - 2.0f / 3);
    EXPECT_EQ(model.Read("a").as<float>()[i], 1);
  }
  std::string error = ErrorOf([&] { Train(mean(Apply(a.graph(), "stop", {a})[0]), Sgd{}); });
  EXPECT_TRUE(
      std::regex_search(error, std::regex("^Train at .*no gradient of the loss 'mean.*' reaches a weight: it "
                                          "stops at stop 'stop.*' at training_test\\.cc:")))
      << error;
}

TEST(Training, AGradientOfTooFewOperandsIsRefused) {
  OpDef def = Twice("twice");
  def.grad = [](const GradCall&) { return std::vector<Tensor>(); };
  Model model(FullMesh("cpu:dp=1"), WithOperators({def}));
  Tensor w = model.scope().Weight("w", {3}, Ones());
  std::string error = ErrorOf([&] { Train(mean(Apply(w.graph(), "twice", {w})[0]), Sgd{}); });
  EXPECT_TRUE(std::regex_search(error, std::regex("twice 'twice' at .*gives 0 tensors for its 1 operands")))
      << error;
}

// Also one with the right number of elements.
TEST(Training, AGradientOfAnotherShapeIsRefused) {
  for (Dims shape : {Dims{3, 2}, Dims{6}, Dims{1, 2, 3}, Dims{2}, Dims{2, 3}}) {
    OpDef def = Twice("twice");
    def.grad = [shape](const GradCall& call) {
      Tensor dy = call.dout[0];
      return std::vector<Tensor>{shape.elements() == 6 ? reshape(dy, shape) : sum(dy, {1})};
    };
    Model model(FullMesh("cpu:dp=1"), WithOperators({def}));
    Tensor w = model.scope().Weight("w", {2, 3}, Ones());
    const std::string error = ErrorOf([&] { Train(mean(Apply(w.graph(), "twice", {w})[0]), Sgd{}); });
    const std::string wanted =
        Cat("the gradient of operand 0 has shape ", shape.str(), " but the operand has ", w.shape().str());
    const bool right = shape == w.shape();
    EXPECT_EQ(error.find(wanted) == std::string::npos, right) << error;
    EXPECT_EQ(error.empty(), right) << error;
  }
}

// Who is blamed when no gradient arrives: the operator behind which it ends, not those behind it that pass
// it.
TEST(Training, ABlockedGradientNamesWhoBlocksIt) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor w = model.scope().Weight("w", {4, 3}, Ones());
  int line = __LINE__ + 1;
  Tensor best = argmax(w), chosen = scale(cast(best, DType::kFloat32), 2);
  std::string error = ErrorOf([&] { Train(mean(chosen), Sgd{}); });
  EXPECT_NE(error.find(Cat("it stops at argmax 'argmax' at training_test.cc:", line)), std::string::npos)
      << error;
  line = __LINE__ + 1;
  Tensor above = cast(greater(w, scale(w, 0.5)), DType::kFloat32);
  error = ErrorOf([&] { Train(mean(above), Sgd{}); });
  EXPECT_NE(error.find(Cat("it stops at greater 'greater' at training_test.cc:", line)), std::string::npos)
      << error;
}

// mish(x) = x tanh(log(1 + e^x)), as a program of built-in scalar functions.
OpDef Mish(const std::string& program) {
  OpDef def = Twice("users_mish");
  def.scalar = program;
  def.reference = [](const KernelContext& context) {
    for (int64_t i = 0; i < context.out[0].elements(); ++i) {
      double x = context.in[0].as<float>()[i];
      context.out[0].as<float>()[i] = static_cast<float>(x * std::tanh(std::log1p(std::exp(x))));
    }
    return Status();
  };
  def.grad = [](const GradCall& c) {
    Tensor x = c.in[0], t = tanh(log(shift(exp(x), 1)));
    return std::vector<Tensor>{c.dout[0] * (t + x * sigmoid(x) * (shift(neg(square(t)), 1)))};
  };
  return def;
}

int CountOf(const Session& session, const std::string& op) {
  const Graph& graph = session.impl()->compiled.graph;
  int count = 0;
  for (int n : graph.Order()) count += graph.node(n).op == op;
  return count;
}

TEST(UsersElementwise, FusesLikeABuiltIn) {
  const char* program = "exp 0;shift 1 offset=1.0;log 2;tanh 3;mul 0 4";
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2"})
    for (bool alone : {false, true}) {
      std::vector<float> values[2], weights[2];
      for (int fused = 0; fused < 2; ++fused) {
        Model model(FullMesh(mesh), WithOperators({Mish(fused ? program : "")}));
        Tensor x = model.Input("x", {6, 5}, DType::kFloat32, {{"dp", S(0)}}), h = x;
        if (!alone) h = relu(x) - scale(x, 0.5);
        Tensor y = Apply(h.graph(), "users_mish", {h})[0];
        if (!alone) y = square(y) + x;
        Session session = Evaluate({{"y", y}});
        EXPECT_EQ(CountOf(session, "users_mish"), !fused) << mesh;
        EXPECT_EQ(CountOf(session, "fused"), fused ? 1 : alone ? 0 : 2) << mesh;
        HostTensor got = session.Run({{"x", Floats(3, {6, 5})}}).Get("y");
        values[fused].assign(got.as<float>(), got.as<float>() + 30);
        Session train = Train(mean(y * model.scope().Weight("w", {5}, Ones())), Sgd{.lr = 1});
        train.Run({{"x", Floats(3, {6, 5})}}).Wait();
        HostTensor w = model.Read("w");
        weights[fused].assign(w.as<float>(), w.as<float>() + 5);
      }
      for (int i = 0; i < 30; ++i)
        EXPECT_NEAR(values[1][i], values[0][i], 2e-6) << mesh << " alone " << alone;
      for (int i = 0; i < 5; ++i)
        EXPECT_NEAR(weights[1][i], weights[0][i], 2e-6) << mesh << " alone " << alone;
    }
  Model model(FullMesh("cpu:dp=1"), WithOperators({Mish("exp 0;sinh 1")}));
  Tensor x = model.Input("x", {3}, DType::kFloat32);
  const std::string error = ErrorOf([&] { Apply(x.graph(), "users_mish", {x}); });
  EXPECT_TRUE(std::regex_search(error, std::regex("^users_mish at training_test\\.cc:\\d+: step \"sinh 1\" "
                                                  "does not name an elementwise operator")))
      << error;
}

// --- What messages call an operator ---

// Every entry of the catalog with operands it does not take: the message opens with its name and the user's
// line, and says the name no second time.
TEST(Messages, OpenWithTheOperatorAndTheLineOnce) {
  int refused = 0;
  std::set<std::string> silent;
  for (const std::string& name : BuiltinCatalog().names()) {
    const OpDef& def = BuiltinCatalog().Get(name);
    int before = refused;
    for (const Sample& sample : def.samples) {
      Model model(FullMesh("cpu:dp=1"));
      Tensor any = model.Input("any", {1}, DType::kFloat32);
      int inputs = 0;
      std::vector<Sample> wrong;
      auto change = [&](auto&& make) {
        Sample s = sample;
        s.dtypes = oracle::InputTypes(sample);
        make(&s);
        wrong.push_back(std::move(s));
      };
      change([](Sample* s) { s->attrs = Attrs(); });
      change([](Sample* s) {
        s->in.push_back({2, 3, 4});
        s->dtypes.push_back(DType::kBool);
      });
      for (size_t i = 0; i < sample.in.size(); ++i) {
        change([i](Sample* s) {
          s->in.erase(s->in.begin() + i);
          s->dtypes.erase(s->dtypes.begin() + i);
        });
        change([i](Sample* s) { s->in[i].push_back(17); });
        change([i](Sample* s) { s->in[i] = {}; });
        for (DType dtype : {DType::kBool, DType::kInt32, DType::kFloat32, DType::kBFloat16})
          change([i, dtype](Sample* s) { s->dtypes[i] = dtype; });
        for (int a = 0; a < sample.in[i].rank(); ++a) change([i, a](Sample* s) { s->in[i][a] += 13; });
      }
      for (const Sample& s : wrong) {
        std::vector<Tensor> in;
        for (size_t i = 0; i < s.in.size(); ++i)
          in.push_back(model.Input(Cat("x", inputs++), s.in[i], s.dtypes[i], {}, -1));
        int line = __LINE__ + 1;
        std::string error = ErrorOf([&] { Apply(any.graph(), name, in, s.attrs); });
        if (error.empty()) continue;
        ++refused;
        std::string what = Cat(oracle::SampleText(def, s), ": ", error);
        std::string opening = Cat(name, " at training_test.cc:", line, ": ");
        EXPECT_EQ(error.rfind(opening, 0), 0u) << what;
        EXPECT_EQ(error.find(name + ": "), std::string::npos) << what;
        EXPECT_EQ(error.find(name + " at ", 1), std::string::npos) << what;
        EXPECT_EQ(error.find('\n'), std::string::npos) << what;
      }
    }
    if (refused == before) silent.insert(name);
  }
  EXPECT_GT(refused, 500);
  EXPECT_EQ(silent, std::set<std::string>()) << "entries that take anything";
}

// The same of kernels, which find out in a step.
TEST(Messages, OfAStepOpenWithTheOperatorAndTheLineOnce) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor ids = model.Input("ids", {2}, DType::kInt32), x = model.Input("x", {2, 3}, DType::kFloat32);
  Tensor table = model.scope().Weight("table", {3, 4}, Ones());
  int line = __LINE__ + 1;
  const std::vector<std::pair<std::string, Tensor>> lookups = {{"embedding", embedding(table, ids)},
                                                               {"gather", gather(table, ids)},
                                                               {"pick", pick(x, ids)},
                                                               {"one_hot", one_hot(ids, 3)},
                                                               {"cross_entropy", cross_entropy(x, ids)}};
  for (size_t i = 0; i < lookups.size(); ++i) {
    const auto& [name, y] = lookups[i];
    Session session = Evaluate({{"y", y}});
    HostTensor wrong = ToHost<int32_t>({1, 77}, {2});
    std::string error = ErrorOf([&] { session.Run({{"ids", wrong}, {"x", Floats(1, {2, 3})}}).Wait(); });
    std::smatch found;
    ASSERT_TRUE(std::regex_match(error, found, std::regex("(\\w+) at training_test\\.cc:(\\d+): .*77.*")))
        << error;
    EXPECT_EQ(found[1], name);
    EXPECT_EQ(std::stoi(found[2]), line + static_cast<int>(i)) << error;
    EXPECT_EQ(error.find(name, 1), std::string::npos) << error;
  }
}

TEST(Messages, OutputsThatTrainingGivesItself) {
  Model model(FullMesh("cpu:dp=1"));
  Tensor x = model.Input("x", {2}, DType::kFloat32);
  Tensor loss = mean(square(x * model.scope().Weight("w", {2}, Ones())));
  for (bool clips : {false, true})
    for (const char* name : {"loss", "grad_norm", "mine"}) {
      TrainOptions options;
      options.clip_norm = clips ? 1 : 0;
      options.outputs = {{name, x}};
      const bool taken = name == std::string("loss") || (clips && name == std::string("grad_norm"));
      const std::string error = ErrorOf([&] { Train(loss, Sgd{}, options); });
      EXPECT_EQ(error.find(Cat("the output name '", name, "' is reserved")) != std::string::npos, taken)
          << error;
      EXPECT_EQ(error.empty(), !taken) << error;
    }
}

TEST(Messages, NumbersThatAreNotFinite) {
  EXPECT_EQ(Cat(NAN, " ", -NAN, " ", INFINITY, " ", -INFINITY, " ", 0.5f), "NaN NaN +infinity -infinity 0.5");
  for (auto [value, text] : {std::pair{NAN, "NaN"}, std::pair{-NAN, "NaN"}, std::pair{INFINITY, "+infinity"},
                             std::pair{-INFINITY, "-infinity"}}) {
    Model model(FullMesh("cpu:dp=1"));
    Tensor x = model.Input("x", {2}, DType::kFloat32);
    Session session = Train(mean(x * model.scope().Weight("w", {2}, Ones())), Sgd{});
    std::string error = ErrorOf([&, value = value] {
      session.Run({{"x", ToHost<float>({value, 1}, {2})}}).Wait();
    });
    EXPECT_NE(error.find(Cat("loss is ", text, ";")), std::string::npos) << error;
  }
}

// --- Feeds ---

// One Feeds with all the model's inputs serves every graph of it, and gives what each one's own would.
TEST(Feeds, ServeTrainingAndEvaluation) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,pp=2"}) {
    Model model(FullMesh(mesh));
    Scope first = model.scope().Stage("pp", 0),
          last = model.scope().Stage("pp", model.mesh().axis_size(2) - 1);
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32), t = model.Input("t", {4, 3}, DType::kFloat32);
    Tensor h = x * first.Weight("w", {3}, Ones());
    Tensor y = to_stage(h, "pp", model.mesh().axis_size(2) - 1) * last.Weight("v", {3}, Ones());
    Session train = Train(mean(square(y - t)), Sgd{.lr = 0}), evaluate = Evaluate({{"y", y}});
    Feeds all = {{"x", Floats(1, {4, 3})}, {"t", Floats(2, {4, 3})}};
    EXPECT_TRUE(SameBytes(evaluate.Run(all).Get("y"), Floats(1, {4, 3}))) << mesh;
    float loss = train.Run(all).Scalar("loss");
    EXPECT_GT(loss, 0);
    EXPECT_TRUE(SameBytes(evaluate.Run({{"x", all.at("x")}}).Get("y"), Floats(1, {4, 3}))) << mesh;
    std::string error = ErrorOf([&] { evaluate.Run({{"x", all.at("x")}, {"z", all.at("t")}}); });
    EXPECT_EQ(error,
              "feed 'z' is no input of session eval, nor of another graph of its model; the session's inputs "
              "are 'x'");
    error = ErrorOf([&] { train.Run({{"x", all.at("x")}}); });
    EXPECT_EQ(error, "input 't' of session train, f32[4,3], is missing in the feeds");
    EXPECT_EQ(train.Run(all).Scalar("loss"), loss) << "a refused step has changed something";
  }
}

}  // namespace
}  // namespace oneflow_like
