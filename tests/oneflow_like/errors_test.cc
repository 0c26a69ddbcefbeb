// Every mistake a user can make gives one Error that names the operator, the axis, the numbers and the user's
// line.
#include <functional>
#include <random>
#include <regex>

#include "core/device/backend.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

struct Mistake {
  int line;            // of the user, 0 where none is known
  const char* wanted;  // regular expression
  std::function<void(Model&)> make;
};

// Each mistake stands on one line of this file, and its message must name that line.
void Check(const char* mesh, const std::vector<Mistake>& mistakes) {
  for (const Mistake& m : mistakes) {
    Model model(FullMesh(mesh));
    std::string error;
    try {
      m.make(model);
      ADD_FAILURE() << "line " << m.line << ": no error, wanted " << m.wanted;
      continue;
    } catch (const Error& e) {
      error = e.what();
    } catch (const std::exception& e) {
      ADD_FAILURE() << "line " << m.line << ": not an Error but " << e.what();
      continue;
    }
    EXPECT_TRUE(std::regex_search(error, std::regex(m.wanted))) << error << "\n  wanted: " << m.wanted;
    if (m.line) {
      EXPECT_NE(error.find(Cat("errors_test.cc:", m.line)), std::string::npos)
          << error << "\n  wanted line " << m.line;
    }
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

#define MISTAKE(wanted, ...)         \
  Mistake {                          \
    __LINE__, wanted, [](Model& m) { \
      (void)m;                       \
      __VA_ARGS__;                   \
    }                                \
  }
#define MISTAKE_NO_LINE(wanted, ...) \
  Mistake {                          \
    0, wanted, [](Model& m) {        \
      (void)m;                       \
      __VA_ARGS__;                   \
    }                                \
  }

// clang-format off: a mistake and what is wanted of its message stand on one line, whose number is checked too.

// An input of some shape and type, made on a line of its own so that an operator's line is the mistake's.
Tensor X(Model& m, const Dims& shape, DType dtype = DType::kFloat32) {
  static int made = 0;
  return m.Input(Cat("x", made++), shape, dtype, {}, shape.rank() ? 0 : -1);
}
Tensor I(Model& m, const Dims& shape) { return X(m, shape, DType::kInt32); }

constexpr int64_t kHuge = 1'000'000'000'000'000'000;

// A table: a mistake, and the words it gets.
TEST(Errors, ShapesAndTypesOfOperators) {
  Check(
      "cpu:dp=2",
      {
          MISTAKE("^matmul at .*axis k is 4 in a but 5 in b", matmul(X(m, {3, 4}), X(m, {5, 6}))),
          MISTAKE("^matmul at .*a has 1 axis, but needs at least 2", matmul(X(m, {3}), X(m, {3, 6}))),
          MISTAKE("^matmul at .*axis 0 of a .2,3,4. is 2 but axis 0 of b .3,4,5. is 3",
                  matmul(X(m, {2, 3, 4}), X(m, {3, 4, 5}))),
          MISTAKE("^matmul at .*b is i32.*floating", matmul(X(m, {3, 4}), I(m, {4, 5}))),
          MISTAKE("^einsum at .*axis d is 4.*5", einsum("bd,de->be", X(m, {3, 4}), X(m, {5, 6}))),
          MISTAKE("^einsum at .*\"bd,de\"", einsum("bd,de", X(m, {3, 4}), X(m, {4, 6}))),
          MISTAKE("^einsum at .*z", einsum("bd,de->bz", X(m, {3, 4}), X(m, {4, 6}))),
          MISTAKE("^einsum at .*", einsum("bdf,de->be", X(m, {3, 4}), X(m, {4, 6}))),
          MISTAKE("^einsum at .*", einsum("", X(m, {3, 4}), X(m, {4, 6}))),
          MISTAKE("^add at .*4.*5", add(X(m, {3, 4}), X(m, {3, 5}))),
          MISTAKE("^mul at .*4.*5", X(m, {3, 4}) * X(m, {3, 5})),
          MISTAKE("^sub at .*f32.*i32.*cast", sub(X(m, {3}), I(m, {3}))),
          MISTAKE("^add_n at .*4.*5", add_n({X(m, {4}), X(m, {5})})),
          MISTAKE("^add_n at .*at least 1", add_n({})),
          MISTAKE("^add at .*: a is a Tensor that was never given a value", add(Tensor(), Tensor())),
          MISTAKE("^add at .*: b is a Tensor that was never given a value", add(X(m, {3}), Tensor())),
          MISTAKE("^less at .*4.*5", less(X(m, {4}), X(m, {5}))),
          MISTAKE("^where at .*f32.*bool", where(X(m, {4}), X(m, {4}), X(m, {4}))),
          MISTAKE("^exp at .*i32.*floating", exp(I(m, {4}))),
          MISTAKE("^gelu at .*i32.*floating", gelu(I(m, {4}))),
          MISTAKE("^sum at .*axis 2 does not exist.*\\[3,4\\] has 2 axes", sum(X(m, {3, 4}), {2})),
          MISTAKE("^max at .*axis -3 does not exist", max(X(m, {3, 4}), {-3})),
          MISTAKE("^sum at .*axis 1 .*twice", sum(X(m, {3, 4}), {1, -1})),
          MISTAKE("^argmax at .*axis 5 does not exist", argmax(X(m, {3, 4}), 5)),
          MISTAKE("^argmax at .*0", argmax(X(m, {3, 0}))),
          MISTAKE("^sum_to at .*", sum_to(X(m, {3, 4}), {5})),
          MISTAKE("^broadcast_to at .*3.*5", broadcast_to(X(m, {3}), {5})),
          MISTAKE("^reshape at .*12 elements but .*10", reshape(X(m, {3, 4}), {5, 2})),
          MISTAKE("^reshape at .*do not divide by 5", reshape(X(m, {3, 4}), {5, -1})),
          MISTAKE("^reshape at .*both -1", reshape(X(m, {3, 4}), {-1, -1})),
          MISTAKE("^reshape at .*-2", reshape(X(m, {3, 4}), {-2, 3})),
          MISTAKE("^transpose at .*", transpose(X(m, {3, 4}), {0, 0})),
          MISTAKE("^transpose at .*", transpose(X(m, {3, 4}), {0})),
          MISTAKE("^slice at .*1.*9.*4", slice(X(m, {3, 4}), 1, 1, 9)),
          MISTAKE("^slice at .*\\[3, 1\\) is not a part of axis 1, which is 4", slice(X(m, {3, 4}), 1, 3, 1)),
          MISTAKE("^slice at .*-1", slice(X(m, {3, 4}), 1, -1, 1)),
          MISTAKE("^concat at .*3.*5", concat({X(m, {3, 4}), X(m, {5, 4})}, 1)),
          MISTAKE("^concat at .*at least 1 part", concat({}, 1)),
          MISTAKE("^split at .*axis 1 is 4.*3", split(X(m, {3, 4}), 1, 3)),
          MISTAKE("^split at .*0", split(X(m, {3, 4}), 1, 0)),
          MISTAKE("^pad at .*-1", pad(X(m, {3, 4}), 1, -1, 0)),
          MISTAKE("^gather at .*f32.*i32", gather(X(m, {3, 4}), X(m, {2}))),
          MISTAKE("^gather at .*", gather(X(m, {}), I(m, {2}))),
          MISTAKE("^pick at .*\\[2\\] but .*\\[3\\]", pick(X(m, {3, 4}), I(m, {2}))),
          MISTAKE("^one_hot at .*-3", one_hot(I(m, {2}), -3)),
          MISTAKE("^one_hot at .*f32", one_hot(X(m, {2}), 3)),
          MISTAKE("^one_hot at .*9 axes.*8", one_hot(I(m, {1, 1, 1, 1, 1, 1, 1, 1}), 3)),
          MISTAKE("^softmax at .*at least 1", softmax(X(m, {}))),
          MISTAKE("^softmax at .*i32", softmax(I(m, {3}))),
          MISTAKE("^cross_entropy at .*\\[2\\] but .*\\[3\\]", cross_entropy(X(m, {3, 4}), I(m, {2}))),
          MISTAKE("^cross_entropy at .*f32.*i32", cross_entropy(X(m, {3, 4}), X(m, {3}))),
          MISTAKE("^cross_entropy at .*logits \\[3,0\\] has 0 classes",
                  cross_entropy(X(m, {3, 0}), I(m, {3}))),
          MISTAKE("^layer_norm at .*4.*5", layer_norm(X(m, {3, 4}), X(m, {5}), X(m, {4}))),
          MISTAKE("^layer_norm at .*eps.*-1", layer_norm(X(m, {3, 4}), X(m, {4}), X(m, {4}), -1)),
          MISTAKE("^rms_norm at .*4.*5", rms_norm(X(m, {3, 4}), X(m, {5}))),
          MISTAKE("^embedding at .*f32.*i32", embedding(X(m, {5, 4}), X(m, {3}))),
          MISTAKE("^embedding at .*3 axes.*2", embedding(X(m, {5, 4, 2}), I(m, {3}))),
          MISTAKE("^attention at .*4.*8",
                  attention(X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 8}), X(m, {1, 2, 3, 4}))),
          MISTAKE("^attention at .*axes.*4", attention(X(m, {2, 3, 4}), X(m, {2, 3, 4}), X(m, {2, 3, 4}))),
          MISTAKE("^attention at .*dropout is 1 .*\\[0, 1\\)",
                  attention(X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), {.dropout = 1})),
          MISTAKE("^dropout at .*p is 1 but must be in \\[0, 1\\)", dropout(X(m, {3}), 1)),
          MISTAKE("^dropout at .*p is -0.1", dropout(X(m, {3}), -.1)),
          MISTAKE("^dropout at .*p is NaN", dropout(X(m, {3}), NAN)),
          MISTAKE("^attention at .*dropout is NaN",
                  attention(X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), {.dropout = NAN})),
          MISTAKE("^attention at .*scale is \\+infinity but must be finite",
                  attention(X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), {.scale = INFINITY})),
          MISTAKE(
              "^attention at .*scale is -infinity but must be finite",
              attention(X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), {.scale = -INFINITY})),
          MISTAKE("^attention at .*scale is NaN but must be finite",
                  attention(X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), X(m, {1, 2, 3, 4}), {.scale = NAN})),
          MISTAKE("^full at .*no graph", full(nullptr, {3}, 1)),
          MISTAKE("^full at .*-2", full(m.Input("a", {1}, DType::kFloat32).graph(), {-2}, 1)),
          MISTAKE("^matmull at .*: there is no operator named \"matmull\"",
                  Apply(X(m, {3}).graph(), "matmull", {})),
      });
}

TEST(Errors, AbsurdSizes) {
  Check("cpu:dp=2",
        {
            MISTAKE("^input 'a' at .*\\[1000000000000000000,10\\].*2\\^48",
                    m.Input("a", {kHuge, 10}, DType::kFloat32)),
            MISTAKE("^input 'a' at .*2\\^48", m.Input("a", {kHuge}, DType::kFloat32)),
            MISTAKE("^weight 'w' at .*2\\^48", m.scope().Weight("w", {1 << 30, 1 << 30, 16}, Zeros())),
            MISTAKE("^input 'a' at .*axis 1 has extent -3", m.Input("a", {2, -3}, DType::kFloat32)),
            MISTAKE("^weight 'w' at .*axis 0 has extent -1", m.scope().Weight("w", {-1}, Zeros())),
            MISTAKE("^broadcast_to at .*2\\^48", broadcast_to(X(m, {1}), {kHuge})),
            MISTAKE("^one_hot at .*2\\^48", one_hot(I(m, {16}), kHuge)),
            MISTAKE("^pad at .*2\\^48", pad(X(m, {1}), 0, kHuge, kHuge)),
            MISTAKE("^pad at .*", pad(X(m, {1}), 0, INT64_MAX, INT64_MAX)),
            MISTAKE("^slice at .*", slice(X(m, {1}), 0, INT64_MIN, INT64_MAX)),
            MISTAKE("^reshape at .*2\\^48", reshape(X(m, {4}), {kHuge, kHuge})),
            MISTAKE("^reshape at .*2\\^48", reshape(X(m, {4}), {kHuge, -1, kHuge})),
            MISTAKE("^matmul at .*2\\^48", matmul(X(m, {int64_t{1} << 40, 1}), X(m, {1, int64_t{1} << 40}))),
            MISTAKE("^full at .*2\\^48", full(X(m, {1}).graph(), {kHuge, kHuge, kHuge, kHuge}, 1)),
            MISTAKE_NO_LINE("at most 8 axes, but 9",
                            m.Input("a", {1, 1, 1, 1, 1, 1, 1, 1, 1}, DType::kFloat32)),
        });
}

// Mistakes that stand in no line of a graph.
void Refuse(const char* wanted, const std::function<void()>& make) {
  std::string error = ErrorOf(make);
  EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
}

// Within the limit, but more than the machine has: one sentence, then what a rank would hold, line by line.
TEST(Errors, WhatNoMachineHoldsIsRefusedWithTheTable) {
  Model model(Mesh::Parse("cpu:dp=2"));
  const std::string refused =
      "^session [a-z]+ needs \\d+ bytes of memory, but \\d+ are free of .*What a rank holds:\nrank 0";
  for (const std::string name : {"feed", "weight"}) {
    Tensor huge = name == "feed" ? model.Input("a", {int64_t{1} << 47}, DType::kFloat32)
                                 : model.scope().Weight("w", {int64_t{1} << 46}, Zeros());
    Session session = Evaluate({{"y", sum(huge)}}, {.name = name});
    Refuse(refused.c_str(), [&] { session.Run({}); });
    int64_t all = 0;  // that both ranks take
    for (const RankSummary& s : session.Summaries())
      all += (s.peak_bytes + s.feed_bytes) * static_cast<int64_t>(s.ranks.size());
    std::smatch needs;
    const std::string error = ErrorOf([&] { session.Run({}); });
    ASSERT_TRUE(std::regex_search(error, needs, std::regex("needs (\\d+) bytes")));
    EXPECT_NEAR(std::stod(needs[1]), static_cast<double>(all), 1e-3 * static_cast<double>(all)) << name;
  }
}

bool NoGpuHere() {
  try {
    OpenBackend("cuda");
    return false;
  } catch (const Error&) {
    return true;
  }
}

TEST(Errors, Meshes) {
  Refuse("mesh cpu:dp=0: axis dp has extent 0, must be at least 1", [] { Mesh::Parse("cpu:dp=0"); });
  Refuse("mesh cpu:dp=-2: axis dp has extent -2", [] { Mesh("cpu", {{"dp", -2}}); });
  Refuse("axis dp is named twice", [] { Mesh::Parse("cpu:dp=2,dp=2"); });
  Refuse("9 axes, but a mesh has at most 8", [] { Mesh::Parse("cpu:a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1"); });
  EXPECT_EQ(Mesh::Parse("cpu:a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1").rank(), 8);
  Refuse("device kind \"tpu\" does not exist", [] { Mesh::Parse("tpu:dp=2"); });
  Refuse("\"dp\" cannot be read", [] { Mesh::Parse("cpu:dp"); });
  Refuse("\"dp=x\" cannot be read", [] { Mesh::Parse("cpu:dp=x"); });
  Refuse("\"dp=99999999999\" cannot be read", [] { Mesh::Parse("cpu:dp=99999999999"); });
  Refuse("\"\" cannot be read", [] { Mesh::Parse("cpu:"); });
  Refuse("axis cannot be named time", [] { Mesh::Parse("cpu:time=2"); });
  Refuse("more than 16777216 devices", [] { Mesh::Parse("cpu:a=2000000000,b=2000000000,c=2000000000"); });
  Refuse("device \"cud\"|device kind \"\"", [] { Mesh::Parse(""); });
  if (NoGpuHere()) {
    // Which part is missing depends on the machine.
    Refuse("mesh cuda:dp=2: (a cuda mesh needs|there is no NVIDIA driver|the NVIDIA driver)", [] {
      Model model(Mesh::Parse("cuda:dp=2"));
      Session session = Evaluate({{"y", model.Input("x", {2}, DType::kFloat32)}});
      EXPECT_FALSE(session.Summaries().empty());  // compiling needs no device
      try {
        session.Run({{"x", Floats(1, {2})}});
      } catch (const UsageError&) {  // exit code 64: as the mesh is, it can never run here
        throw;
      } catch (const Error& error) {
        ADD_FAILURE() << "no mistake in the command: " << error.what();
        throw;
      }
    });
  }
}

// A training of both stages, or of the second alone: where it counts its updates follows from that.
Session TrainStages(Model& m, bool both, OFL_HERE) {
  Tensor h = relu(to_stage(X(m, {4, 3}), "pp", 0));
  if (both) h = matmul(h, m.scope().Stage("pp", 0).Weight("body", {3, 3}, Ones()));
  h = matmul(to_stage(h, "pp", 1), m.scope().Stage("pp", 1).Weight("head", {3, 2}, Ones()));
  return Train(mean(square(h)), Adam{}, {}, at);
}

// A table: a mistake, and the words it gets.
TEST(Errors, AnnotationsAndStages) {
  Check("cpu:dp=2,tp=2,pp=2", {
    MISTAKE("^input 'a' at .*mesh cpu:dp=2,tp=2,pp=2 has no axis mp, its axes are dp, tp, pp",
            m.Input("a", {4}, DType::kFloat32, {{"mp", S(0)}})),
        MISTAKE("^weight 'w' at .*no axis mp", m.scope().Weight("w", {4}, Zeros(), {{"mp", S(0)}})),
        MISTAKE("^input 'a' at .*mesh axis dp is annotated twice",
                m.Input("a", {4}, DType::kFloat32, {{"dp", S(0)}, {"dp", B()}})),
        MISTAKE("^input 'a' at .*mesh axis dp is annotated twice",
                m.Input("a", {4, 4}, DType::kFloat32, {{"dp*tp", S(0)}, {"dp", S(1)}})),
        MISTAKE("^input 'a' at .*tp\\*mp: there is no axis mp",
                m.Input("a", {4}, DType::kFloat32, {{"tp*mp", S(0)}})),
        MISTAKE("^input 'a' at .*tp:S2 cuts axis 2 but the shape is \\[4,4\\]",
                m.Input("a", {4, 4}, DType::kFloat32, {{"tp", S(2)}})),
        MISTAKE("^weight 'w' at .*tp:S-1 cuts axis -1", m.scope().Weight("w", {4}, Zeros(), {{"tp", S(-1)}})),
        MISTAKE("^annotate 'x.*' at .*dp:S1 cuts axis 1", annotate(X(m, {4}), {{"dp", S(1)}})),
        MISTAKE("^annotate '' at .*undefined", annotate(Tensor(), {{"dp", S(1)}})),
        MISTAKE("^weight 'w' at .*grain 0", m.scope().Weight("w", {4}, Zeros(), {{"tp", S(0, 0)}})),
        MISTAKE("^weight 'w' at .*pp is the pipeline axis",
                m.scope().Stage("pp", 0).Weight("w", {4}, Zeros(), {{"pp", S(0)}})),
        MISTAKE("^stage 'pp' at .*stage 2 is outside axis pp of extent 2", m.scope().Stage("pp", 2)),
        MISTAKE("^stage 'pp' at .*stage -1 is outside", m.scope().Stage("pp", -1)),
        MISTAKE("^stage 'xx' at .*no axis xx", m.scope().Stage("xx", 0)),
        MISTAKE("^to_stage 'x.*' at .*stage 7 is outside axis pp", to_stage(X(m, {4}), "pp", 7)),
        MISTAKE("^to_stage 'x.*' at .*stage 2 is outside axis pp of extent 2", to_stage(X(m, {4}), "pp", 2)),
        MISTAKE("^to_stage 'x.*' at .*stage -1 is outside axis pp", to_stage(X(m, {4}), "pp", -1)),
        MISTAKE("^to_stage 'x.*' at .*no axis xx", to_stage(X(m, {4}), "xx", 0)),
        MISTAKE("^to_stage '' at .*undefined", to_stage(Tensor(), "pp", 0)),
        MISTAKE("^annotate 'x.*' at .*dp:Pmax cannot be held",
                annotate(X(m, {4}), {{"dp", P(Reduce::kMax)}})),
        MISTAKE("^input 'a' at .*dp:P is a partial value", m.Input("a", {4}, DType::kFloat32, {{"dp", P()}})),
        MISTAKE("^weight 'w' at .*tp:Pmin is a partial value",
                m.scope().Weight("w", {4}, Ones(), {{"tp", P(Reduce::kMin)}})),
        MISTAKE(
            "^Train at .*stage pp=1 has no work: mesh cpu:dp=2,tp=2,pp=2 has 2 stages on axis pp but the "
            "model uses 1",
            Train(mean(X(m, {4}) * m.scope().Stage("pp", 0).Weight("w", {4}, Ones())), Sgd{})),
        MISTAKE(
            "^weight 'w' at .*its shape is \\[5\\] but the weight of that name made at errors_test.cc:.* has "
            "\\[4\\]",
            m.scope().Weight("w", {4}, Zeros()), m.scope().Weight("w", {5}, Zeros())),
        MISTAKE(
            "^weight 'w' at .*it starts as normal\\(mean=0 stddev=2\\) but the weight of that name made at "
            "errors_test.cc:.* starts as full\\(value=0\\)",
            m.scope().Weight("w", {4}, Zeros()), m.scope().Weight("w", {4}, Normal(2))),
        MISTAKE(
            "^weight 'w' at .*it is annotated tp:S0 but the weight of that name made at errors_test.cc:.* is "
            "not annotated along tp",
            m.scope().Weight("w", {4}, Zeros()), m.scope().Weight("w", {4}, Zeros(), {{"tp", S(0)}})),
        MISTAKE(
            "^weight 'w' at .*it is annotated tp:B but the weight of that name made at errors_test.cc:.* is "
            "tp:S0",
            m.scope().Weight("w", {4}, Zeros(), {{"tp", S(0)}}),
            m.scope().Weight("w", {4}, Zeros(), {{"tp", B()}})),
        MISTAKE(
            "^weight 'w' at .*it is annotated dp:B but the weight of that name made at errors_test.cc:.* is "
            "not annotated along dp",
            Model zero(m.mesh(), {.zero = {"dp"}});
            zero.scope().Weight("w", {4}, Zeros()); zero.scope().Weight("w", {4}, Zeros(), {{"dp", B()}})),
        MISTAKE(
            "^Train at .*variable 'train:updates' is \\[\\] pp=1 here but \\[\\] pp=0 in a session made "
            "before; give this one another name",
            TrainStages(m, true), TrainStages(m, false)),
        MISTAKE(
            "^weight 'w' at .*it is on stage pp=1 but the weight of that name made at errors_test.cc:.* is "
            "on stage pp=0; move its value there with to_stage",
            m.scope().Stage("pp", 0).Weight("w", {4}, Zeros()),
            m.scope().Stage("pp", 1).Weight("w", {4}, Zeros())),
        MISTAKE(
            "^weight 'w' at .*it is on stage pp=1 but the weight of that name made at errors_test.cc:.* is "
            "on no stage of pp",
            m.scope().Weight("w", {4}, Zeros()), m.scope().Stage("pp", 1).Weight("w", {4}, Zeros())),
        MISTAKE("^weight 'w' at .*it starts as .* made at errors_test.cc",
                m.scope().Weight("w", {4}, Zeros()), m.NewGraph("other").scope().Weight("w", {4}, Ones())),
        MISTAKE("^weight 'a:b/w' at .*names with a ':' are those of optimizer state",
                (m.scope() / "a:b").Weight("w", {4}, Zeros())),
        MISTAKE("^input 'a:b' at .*names with a ':' are those of optimizer state",
                m.Input("a:b", {4}, DType::kFloat32)),
        MISTAKE("^weight 'a\xff' at .*its name is no text in UTF-8", m.scope().Weight("a\xff", {4}, Zeros())),
        MISTAKE_NO_LINE("^shape\\(\\) was asked of a Tensor that was never given a value", Tensor().shape()),
        MISTAKE_NO_LINE("^dtype\\(\\) was asked of a Tensor that was never given", Tensor().dtype()),
        MISTAKE_NO_LINE("^name\\(\\) was asked of a Tensor that was never given", Tensor().name()),
        MISTAKE("^constant at .*the HostTensor has no values", constant(m.builder(), HostTensor())),
        MISTAKE("^relu at .*no graph was given", Apply(nullptr, "relu", {})),
        MISTAKE("^Evaluate at .*the session's name 'a:b' has a ':'",
                Evaluate({{"w", m.scope().Weight("named", {4}, Zeros())}}, {.name = "a:b"})),
        MISTAKE("^weight '' at .*needs a name", m.scope().Weight("", {4}, Zeros())),
        MISTAKE("^weight 'w' at .*Scope was never given a value", Scope().Weight("w", {4}, Zeros())),
        MISTAKE_NO_LINE("Scope that was never given a value", Scope().Stage("pp", 0)),
        MISTAKE("^weight 'w' at .*standard deviation is -1", m.scope().Weight("w", {4}, Normal(-1))),
        MISTAKE("^weight 'w' at .*standard deviation is -0.5",
                m.scope().Weight("w", {4}, TruncatedNormal(-0.5))),
        MISTAKE("^weight 'w' at .*Uniform from 2 to 1", m.scope().Weight("w", {4}, Uniform(2, 1))),
        MISTAKE("^weight 'w' at .*finite", m.scope().Weight("w", {4}, Full(INFINITY))),
        MISTAKE("^input '' at .*needs a name", m.Input("", {4}, DType::kFloat32)),
        MISTAKE("^input 'a' at .*already has an input", m.Input("a", {4}, DType::kFloat32),
                m.Input("a", {4}, DType::kFloat32)),
        MISTAKE("^input 'w' at .*already has a weight", m.scope().Weight("w", {4}, Ones()),
                m.Input("w", {4}, DType::kFloat32)),
        MISTAKE("^weight 'a' at .*already has an input", m.Input("a", {4}, DType::kFloat32),
                m.scope().Weight("a", {4}, Ones())),
        MISTAKE("^input 'a' at .*batch_axis is 1 but the shape is \\[4\\]",
                m.Input("a", {4}, DType::kFloat32, {}, 1)),
        MISTAKE("^input 'a' at .*batch_axis is 0 but the shape is \\[\\]", m.Input("a", {}, DType::kFloat32)),
        MISTAKE("^add at .*: b belongs to another model", Model other(Mesh("cpu", {}));
                add(X(m, {4}), X(other, {4}))),
        MISTAKE("^add at .*: b belongs to another model, or to another graph of this one",
                ModelGraph other = m.NewGraph("other");
                add(X(m, {4}), other.Input("x", {4}, DType::kFloat32))),
  });
}

// A later request for a weight may say less of it than the first, or say what holds anyway.
TEST(Errors, AWeightThatIsWholeAnywayMayBeSaidToBe) {
  for (const char* zero : {"", "dp"}) {
    Model model(FullMesh("cpu:dp=2,tp=2"), {.zero = {zero}});
    Tensor first = model.scope().Weight("w", {4}, Zeros());
    EXPECT_EQ(model.scope().Weight("w", {4}, Zeros(), {{"tp", B()}}).id(), first.id()) << zero;
    const auto along_dp = [&] { model.scope().Weight("w", {4}, Zeros(), {{"dp", B()}}); };
    EXPECT_EQ(ErrorOf(along_dp).empty(), std::string(zero).empty()) << ErrorOf(along_dp);
  }
}

Tensor Loss(Model& m) { return mean(X(m, {4, 3}) * m.scope().Weight("w", {3}, Ones())); }
TrainOptions MicroBatches(int n) {
  TrainOptions options;
  options.micro_batches = n;
  return options;
}
TrainOptions With(const Schedule& schedule, double clip_norm = 0) {
  TrainOptions options;
  options.lr_schedule = schedule;
  options.clip_norm = clip_norm;
  return options;
}
Session EvaluateIn(const std::map<std::string, Tensor>& outputs, int micro_batches) {
  SessionOptions options;
  options.micro_batches = micro_batches;
  return Evaluate(outputs, options);
}

// A table: a mistake, and the words it gets.
TEST(Errors, TrainAndEvaluate) {
  using Kind = Schedule::Kind;
  Check("cpu:dp=2", {
    MISTAKE("^Train at .*undefined", Train(Tensor(), Sgd{})),
        MISTAKE("^Train at .*mul .* at .*the loss must be one floating point number, but it is f32\\[4,3\\]",
                Train(X(m, {4, 3}) * m.scope().Weight("w", {3}, Ones()), Sgd{})),
        MISTAKE("^Train at .*depends on no weight", Train(mean(X(m, {4})), Sgd{})),
        MISTAKE("argmax .*the loss must be one floating point number, but it is i64\\[\\]",
                Train(argmax(m.scope().Weight("w", {3}, Ones())), Sgd{})),
        MISTAKE("^Train at .*lr is -1", Train(Loss(m), Sgd{.lr = -1})),
        MISTAKE("^Train at .*lr is NaN", Train(Loss(m), Sgd{.lr = NAN})),
        MISTAKE("^Train at .*momentum is 1 but must be in \\[0, 1\\)", Train(Loss(m), Sgd{.momentum = 1})),
        MISTAKE("^Train at .*beta2 is 1.5", Train(Loss(m), Adam{.beta2 = 1.5})),
        MISTAKE("^Train at .*beta1 is 1 but must be in \\[0, 1\\)", Train(Loss(m), AdamW{.beta1 = 1})),
        MISTAKE("^Train at .*alpha is 1 but must be in \\[0, 1\\)", Train(Loss(m), RmsProp{.alpha = 1})),
        MISTAKE("^Train at .*alpha is 1.5 but", Train(Loss(m), RmsProp{.alpha = 1.5})),
        MISTAKE("^Train at .*alpha is -0.5 but", Train(Loss(m), RmsProp{.alpha = -0.5})),
        MISTAKE("^Train at .*alpha is NaN but", Train(Loss(m), RmsProp{.alpha = NAN})),
        MISTAKE("^Train at .*eps is -1", Train(Loss(m), AdamW{.eps = -1})),
        MISTAKE("^Train at .*weight_decay is -infinity", Train(Loss(m), AdamW{.weight_decay = -INFINITY})),
        MISTAKE("^Train at .*warmup is -1",
                Train(Loss(m), Sgd{}, With({.kind = Kind::kLinearWarmup, .warmup = -1}))),
        MISTAKE("^Train at .*linear_warmup schedule rises over 0 steps, .*at least 1; .*constant",
                Train(Loss(m), Sgd{}, With({.kind = Kind::kLinearWarmup}))),
        MISTAKE("^Train at .*cosine schedule ends at step 5, .*later than its warmup of 5",
                Train(Loss(m), Sgd{}, With({.kind = Kind::kCosine, .warmup = 5, .total = 5}))),
        MISTAKE("^Train at .*step schedule changes every 0 steps",
                Train(Loss(m), Sgd{}, With({.kind = Kind::kStep}))),
        MISTAKE("^Train at .*gamma is NaN",
                Train(Loss(m), Sgd{}, With({.kind = Kind::kStep, .every = 1, .gamma = NAN}))),
        MISTAKE_NO_LINE("^LearningRateFactor: the step schedule changes every 0 steps",
                        LearningRateFactor({.kind = Kind::kStep}, 3)),
        MISTAKE("^Train at .*clip_norm is -1", Train(Loss(m), Sgd{}, With({}, -1))),
        MISTAKE("^Train at .*clip_norm is NaN", Train(Loss(m), Sgd{}, With({}, NAN))),
        MISTAKE("^Train at .*clip_groups of \"a\\*\" is 0", TrainOptions o; o.clip_groups = {{"a*", 0}};
                Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Train at .*clip_groups has pattern \"\\*\" twice", TrainOptions o;
                o.clip_groups = {{"*", 1}, {"*", 2}}; Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Train at .*pattern \"none\" of clip_groups is left no weight", TrainOptions o;
                o.clip_groups = {{"none", 1}}; Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Train at .*reduce_dtype is i32, must be f32, bf16 or f16", TrainOptions o;
                o.reduce_dtype = DType::kInt32; Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Train at .*reduce_dtype is f16 but dtype is f32; .* use bf16", TrainOptions o;
                o.reduce_dtype = DType::kFloat16; Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Train at .*the output name 'grad_norm/\\*' is reserved", TrainOptions o; Tensor l = Loss(m);
                o.clip_groups = {{"*", 1}}; o.outputs = {{"grad_norm/*", l}}; Train(l, Sgd{}, o)),
        MISTAKE("^Train at .*the output name 'loss' is reserved", TrainOptions o; Tensor l = Loss(m);
                o.outputs = {{"loss", l}}; Train(l, Sgd{}, o)),
        MISTAKE("^Train at .*output 'y'.*undefined", TrainOptions o; o.outputs = {{"y", Tensor()}};
                Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Train at .*output 'y' belongs to another model", Model other(Mesh("cpu", {}));
                TrainOptions o; o.outputs = {{"y", X(other, {2})}}; Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Evaluate at .*output 'z' belongs to another graph", ModelGraph other = m.NewGraph("other");
                Evaluate({{"y", X(m, {2})}, {"z", other.Input("x", {2}, DType::kFloat32)}})),
        MISTAKE("^Evaluate at .*'x' of SessionOptions::also belongs to another graph",
                ModelGraph other = m.NewGraph("other");
                SessionOptions o; o.also = {other.Input("x", {2}, DType::kFloat32)};
                Evaluate({{"y", X(m, {2})}}, o)),
        MISTAKE("^Train at .*'x' of SessionOptions::also belongs to another graph",
                ModelGraph other = m.NewGraph("other");
                TrainOptions o; o.also = {other.Input("x", {2}, DType::kFloat32)}; Train(Loss(m), Sgd{}, o)),
        MISTAKE("^Evaluate at .*'x' of SessionOptions::also belongs to another graph", Model other(m.mesh());
                SessionOptions o; o.also = {other.Input("x", {2}, DType::kFloat32)};
                Evaluate({{"y", X(m, {2})}}, o)),
        MISTAKE_NO_LINE("^SetNextStep: session train cannot continue with step -1",
                        m.SetNextStep("train", -1)),
        MISTAKE("^Evaluate at .*no outputs", Evaluate({})),
        MISTAKE("^Evaluate at .*output 'y'.*undefined", Evaluate({{"y", Tensor()}})),
        MISTAKE("^Evaluate at .*output 'z' belongs to another model", Model other(Mesh("cpu", {}));
                Evaluate({{"y", X(m, {2})}, {"z", X(other, {2})}})),
        MISTAKE("^Train at .*: micro_batches is 0, must be at least 1",
                Train(Loss(m), Sgd{}, MicroBatches(0))),
        MISTAKE("^Train at .*: micro_batches is 5 but input 'x.*' has a batch of 4",
                Train(Loss(m), Sgd{}, MicroBatches(5))),
        MISTAKE("^Train at .*steps_in_flight is 0", TrainOptions o; o.steps_in_flight = 0;
                Train(Loss(m), Sgd{}, o)),
        MISTAKE_NO_LINE("^ModelOptions::zero.*no axis xx", Model other(m.mesh(), {.zero = {"xx"}})),
        MISTAKE("^Evaluate at .*session train is an evaluation but an earlier one of that name is a training",
                Session t = Train(Loss(m), Sgd{});
                Evaluate({{"y", X(m, {2})}}, {.name = "train"})),
        MISTAKE("needs the whole batch .* 2 micro-batches",
                EvaluateIn({{"y", softmax(transpose(X(m, {4, 3}), {1, 0}))}}, 2)),
        MISTAKE("argmax .*needs the whole batch .* 2 micro-batches",
                EvaluateIn({{"y", argmax(X(m, {4, 3}), 0)}}, 2)),
        MISTAKE("concat .* needs the whole batch .* 4 micro-batches", Tensor x = X(m, {4, 3});
                EvaluateIn({{"y", sum(concat({x, x}, 0))}}, 4)),
        MISTAKE(
            "needs the whole batch .* 2 micro-batches",
            Train(mean(square(softmax(transpose(X(m, {4, 3}) * m.scope().Weight("w", {3}, Ones()), {1, 0})))),
                  Sgd{}, MicroBatches(2))),
  });
}

TEST(Errors, MemoryBudget) {
  ModelOptions options;
  options.memory_budget = 10'000;
  Model model(FullMesh("cpu:dp=2"), options);
  Tensor x = model.Input("x", {4, 100}, DType::kFloat32);
  Tensor y = matmul(x, model.scope().Weight("w", {100, 100}, Ones()));
  std::string error = ErrorOf([&] { Evaluate({{"y", y}}); });
  EXPECT_TRUE(std::regex_search(error, std::regex("^Evaluate at errors_test.cc:\\d+: session eval needs "
                                                  "\\d+ bytes on rank 0 but the budget is 10000")))
      << error;
  EXPECT_NE(error.find("variable w"), std::string::npos) << error;
  Evaluate({{"x", x}});  // and a smaller one is not
}

// Of every rank: here the one that holds most is not the first.
TEST(Errors, MemoryBudgetOfEveryStage) {
  for (int large : {0, 1, 2}) {
    ModelOptions options;
    options.memory_budget = 10'000;
    Model model(FullMesh("cpu:pp=3"), options);
    Tensor h = model.Input("x", {4, 10}, DType::kFloat32);
    for (int stage = 0; stage < 3; ++stage) {
      Scope s = model.scope().Stage("pp", stage);
      h = matmul(to_stage(h, "pp", stage), s.Weight(Cat("w", stage), {10, 10}, Ones()));
      if (stage == large)
        h = matmul(matmul(h, s.Weight("up", {10, 200}, Ones())), s.Weight("down", {200, 10}, Ones()));
    }
    std::string error = ErrorOf([&] { Evaluate({{"y", h}}); });
    EXPECT_TRUE(std::regex_search(error, std::regex(Cat("session eval needs \\d{5} bytes on rank ", large,
                                                        " but the budget is 10000"))))
        << error;
  }
}

// Where all ranks hold more than the budget, what the message names is enough for all, and no byte less is.
TEST(Errors, MemoryBudgetThatIsNamedIsEnough) {
  for (int seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    const int stages = 2 + static_cast<int>(random() % 3), tp = 1 + static_cast<int>(random() % 3);
    std::vector<int64_t> widths;
    for (int stage = 0; stage < stages; ++stage) widths.push_back(1 + static_cast<int64_t>(random() % 200));
    const auto error = [&](int64_t budget) {
      ModelOptions options;
      options.memory_budget = budget;
      Model model(FullMesh(Cat("cpu:tp=", tp, ",pp=", stages)), options);
      Tensor h = model.Input("x", {4, 10}, DType::kFloat32);
      for (int stage = 0; stage < stages; ++stage) {
        const Scope s = (model.scope() / Cat("stage", stage)).Stage("pp", stage);
        const Tensor up = s.Weight("up", {10, widths[stage]}, Ones(), {{"tp", S(1)}});
        h = matmul(matmul(to_stage(h, "pp", stage), up), s.Weight("down", {widths[stage], 10}, Ones()));
      }
      return ErrorOf([&] { Train(mean(square(h)), Adam{}); });
    };
    const std::regex named(
        "session train needs (\\d+) bytes on rank \\d+ but the budget is (\\d+); what it holds");
    const std::string least = error(1);
    std::smatch found;
    ASSERT_TRUE(std::regex_search(least, found, named)) << "seed " << seed << ": " << least;
    const int64_t bytes = std::stoll(found[1]);
    EXPECT_EQ(error(bytes), "") << "seed " << seed;
    const std::string less = error(bytes - 1);
    EXPECT_NE(less.find(Cat("needs ", bytes, " bytes on rank")), std::string::npos)
        << "seed " << seed << ": " << less;
  }
}

TEST(Errors, FeedsOutputsAndVariables) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {4, 3}, DType::kFloat32), w = model.scope().Weight("w", {3}, Ones());
  Session session = Evaluate({{"y", x * w}});
  HostTensor good = Floats(1, {4, 3});
  Refuse("input 'x' of session eval, f32\\[4,3\\], is missing", [&] { session.Run({}); });
  Refuse(
      "feed 'z' is no input of session eval, nor of another graph of its model; the session's inputs are 'x'",
      [&] {
        session.Run({{"x", good}, {"z", good}});
      });
  Refuse("feed 'x' is f32\\[3,4\\] but the input is f32\\[4,3\\]", [&] {
    session.Run({{"x", Floats(1, {3, 4})}});
  });
  Refuse("feed 'x' is i32\\[4,3\\] but the input is f32\\[4,3\\]", [&] {
    session.Run({{"x", Ids(1, {4, 3}, 5)}});
  });
  Refuse("feed 'x' holds no data", [&] {
    session.Run({{"x", HostTensor{DType::kFloat32, {4, 3}, nullptr}}});
  });
  StepResult r = session.Run({{"x", good}});
  Refuse("no output 'z'; its outputs are 'y'", [&] { r.Get("z"); });
  Refuse("output 'y' is f32\\[4,3\\], not one number", [&] { r.Scalar("y"); });
  Refuse("variable 'v' is not there", [&] { model.Read("v"); });
  Refuse("variable 'w' is f32\\[3\\] but the value written is f32\\[4,3\\]", [&] { model.Write("w", good); });
  Refuse("variable 'w' is f32\\[3\\] but the value written is i32\\[3\\]",
         [&] { model.Write("w", Ids(1, {3}, 2)); });
  Refuse("holds no data", [&] { model.Write("w", HostTensor{DType::kFloat32, {3}, nullptr}); });
  Refuse("result of no step", [] { StepResult().Wait(); });
  Refuse("ToHost: 2 values do not fill shape \\[3\\]", [] { ToHost<float>({1, 2}, {3}); });
  Refuse("no memory|2\\^48|negative", [] { HostTensor::Make(DType::kFloat32, {int64_t{1} << 46}); });
  for (int i = 0; i < 12; ++i) EXPECT_EQ(r.Get("y").as<float>()[i], good.as<float>()[i]);
}

TEST(Errors, NamesThatMeetAreNoMistake) {
  Model model(FullMesh("cpu:dp=2"));
  Tensor x = model.Input("x", {2}, DType::kFloat32);
  Scope s = model.scope() / "s";
  Tensor y = add(x, s.Weight("w", {2}, Ones()));  // an operator named s/add
  Tensor z = y + s.Weight("add", {2}, Full(3)) + model.Input("s/mul", {2}, DType::kFloat32);
  z = z * s.Weight("other", {2}, Ones());
  Session session = Evaluate({{"z", z}});
  StepResult r = session.Run({{"x", ToHost<float>({1, 2}, {2})}, {"s/mul", ToHost<float>({10, 10}, {2})}});
  EXPECT_TRUE(SameBytes(r.Get("z"), ToHost<float>({15, 16}, {2})));
  EXPECT_EQ(model.Variables(), (std::vector<std::string>{"s/add", "s/other", "s/w"}));
}

}  // namespace
}  // namespace oneflow_like
