// What a model keeps for all its sessions: variables, where they lie and what they are, and the numbers of
// steps.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBatch = 6;

// Everything that counts: each variable, and the next step of each session.
struct State {
  Outputs variables;
  std::map<std::string, int64_t> steps;
};

State StateOf(const Model& model) {
  State state;
  for (const std::string& name : model.Variables()) state.variables[name] = model.Read(name);
  state.steps = model.NextSteps();
  return state;
}

// For a model that has its graphs and sessions, and has run nothing.
void Restore(Model& model, const State& state) {
  for (const auto& [name, value] : state.variables) model.Write(name, value);
  for (const auto& [name, step] : state.steps) model.SetNextStep(name, step);
}

void ExpectSame(const Outputs& got, const Outputs& wanted, const std::string& where) {
  ExpectNear(got, wanted, 0, where);
}

// --- Steps ---

// Dropout, Adam's correction and a schedule: all that follows the number of the step.
struct Stepped {
  Model model;
  Tensor loss, mask;

  explicit Stepped(const std::string& mesh, const ModelOptions& options = {})
      : model(FullMesh(mesh), options) {
    Scope first = model.scope().Stage("pp", 0),
          last = model.scope().Stage("pp", model.mesh().axis_size(2) - 1);
    Tensor x = model.Input("x", {kBatch, 8}, DType::kFloat32, {{"dp", S(0)}});
    Tensor hidden = gelu(matmul(x, first.Weight("up", {8, 16}, Normal(.4), {{"tp", S(1)}})));
    mask = dropout(hidden, .3);
    loss = mean(square(matmul(to_stage(mask, "pp", model.mesh().axis_size(2) - 1),
                              last.Weight("down", {16, 3}, Normal(.4), {{"tp", S(0)}}))));
  }
  Session MakeTrain(const std::string& name = "") {
    TrainOptions options;
    options.name = name;
    options.micro_batches = 2;
    options.lr_schedule = {.kind = Schedule::Kind::kCosine, .warmup = 3, .total = 9};
    options.outputs = {{"mask", mask}};
    return Train(loss, Adam{.lr = .03}, options);
  }
  static Feeds FeedsOf(int64_t step) { return {{"x", Floats(step, {kBatch, 8})}}; }
  // Adds what the steps [from, to) give.
  static void Run(Session& session, int64_t from, int64_t to, Outputs* given) {
    for (int64_t step = from; step < to; ++step) {
      StepResult result = session.Run(FeedsOf(step));
      (*given)[Cat("loss", step)] = result.Get("loss");
      (*given)[Cat("mask", step)] = result.Get("mask");
      EXPECT_EQ(result.step(), step);
    }
  }
};

const char* const kMeshes[] = {"cpu:dp=1", "cpu:dp=2", "cpu:tp=2", "cpu:pp=2", "cpu:dp=2,tp=2,pp=2"};

TEST(Steps, SessionsOfOneTrainingContinueOneAnother) {
  for (const char* mesh : kMeshes) {
    Outputs alone, continued;
    Stepped one(mesh), two(mesh);
    Session whole = one.MakeTrain();
    Stepped::Run(whole, 0, 6, &alone);
    Session first = two.MakeTrain();
    Stepped::Run(first, 0, 2, &continued);
    Session second = two.MakeTrain();
    EXPECT_EQ(second.next_step(), 2);
    Stepped::Run(second, 2, 4, &continued);
    Stepped::Run(first, 4, 5, &continued);  // and back
    EXPECT_EQ(second.next_step(), 5);
    second.Close();
    Session third = two.MakeTrain();
    Stepped::Run(third, 5, 6, &continued);
    ExpectSame(continued, alone, mesh);
    ExpectSame(StateOf(two.model).variables, StateOf(one.model).variables, mesh);
  }
}

TEST(Steps, AResumedTrainingContinues) {
  for (const char* mesh : kMeshes) {
    Outputs alone, resumed;
    State state;
    {
      Stepped one(mesh);
      Session train = one.MakeTrain();
      Stepped::Run(train, 0, 3, &alone);
      state = StateOf(one.model);
      resumed = alone;
      Stepped::Run(train, 3, 6, &alone);
    }
    Stepped two(mesh);
    for (const auto& [name, step] : state.steps) two.model.SetNextStep(name, step);
    Session train = two.MakeTrain();
    EXPECT_EQ(train.next_step(), 3) << "which was said before there was a session of that name";
    two.model.SetNextStep("train", 0);
    Restore(two.model, state);  // before anything has run
    EXPECT_EQ(train.next_step(), 3);
    Stepped::Run(train, 3, 6, &resumed);
    ExpectSame(resumed, alone, mesh);
  }
}

TEST(Steps, EveryNameCountsItsOwn) {
  Stepped one("cpu:dp=2"), two("cpu:dp=2");
  Outputs alone, beside;
  Session a = one.MakeTrain();
  Stepped::Run(a, 0, 4, &alone);

  Session train = two.MakeTrain(), other = two.MakeTrain("other"),
          eval = Evaluate({{"mask", two.mask}}, {.name = "eval"});
  const HostTensor up = two.model.Read("up"), down = two.model.Read("down");
  for (int step = 0; step < 4; ++step) {
    Stepped::Run(train, step, step + 1, &beside);
    if (step % 2 == 0) {
      const State before = StateOf(two.model);
      EXPECT_EQ(other.Run(Stepped::FeedsOf(90)).step(), step / 2);
      for (const char* weight : {"up", "down"}) two.model.Write(weight, before.variables.at(weight));
    }
    EXPECT_EQ(eval.Run(Stepped::FeedsOf(0)).step(), step);
  }
  ExpectSame(beside, alone, "beside another training and an evaluation");
  EXPECT_EQ(two.model.NextSteps(), (std::map<std::string, int64_t>{{"eval", 4}, {"other", 2}, {"train", 4}}));
  // Two steps of one evaluation draw differently, and the same step of two models alike.
  Session again = Evaluate({{"mask", two.mask}}, {.name = "again"});
  HostTensor first = again.Run(Stepped::FeedsOf(0)).Get("mask"),
             second = again.Run(Stepped::FeedsOf(0)).Get("mask");
  EXPECT_FALSE(SameBytes(first, second));
  two.model.SetNextStep("again", 0);
  EXPECT_TRUE(SameBytes(again.Run(Stepped::FeedsOf(0)).Get("mask"), first));
}

TEST(Steps, SetBackWhileSessionsOfSeveralProcessesLive) {
  for (const std::string& error : RunProcesses(2, [](std::shared_ptr<Job> job) {
         Stepped on("cpu:dp=2", {.threads = 1, .job = job});
         Session train = on.MakeTrain();
         const State start = StateOf(on.model);
         Outputs once, again;
         Stepped::Run(train, 0, 3, &once);
         Restore(on.model, start);
         Stepped::Run(train, 0, 3, &again);
         ExpectSame(again, once, Cat("process ", job->process()));
       }))
    EXPECT_EQ(error, "");
  for (const std::string& error : RunProcesses(2, [](std::shared_ptr<Job> job) {
         Model model(FullMesh("cpu:dp=2"), {.job = job});
         model.SetNextStep("train", 4 + job->process());
       }))
    EXPECT_EQ(error,
              "SetNextStep: session train continues with step 4 on process 0 but with step 5 on process 1");
}

// --- Any order of calls ---

// A model with ZeRO whose training, evaluation, generation and second training are made when they are first
// asked for. Each knows no more of placement than its own graph says.
class Many {
 public:
  explicit Many(const std::string& mesh) : model_(FullMesh(mesh), {.zero = {"dp"}}) {}
  Model& model() { return model_; }

  static constexpr const char* kCalls[] = {"train", "evaluate", "generate", "tune", "read"};
  void Make(const std::string& call) {
    if (call == "read" || sessions_.count(call)) return;
    graphs_.push_back(model_.NewGraph(call));
    ModelGraph& graph = graphs_.back();
    const int last = model_.mesh().axis_size(2) - 1;
    Tensor x = graph.Input("x", {kBatch, 8}, DType::kFloat32, {{"dp", S(0)}});
    // The training annotates and places; the others take what it, or the default, says.
    const bool says = call == "train";
    Scope s = graph.scope(), first = says ? s.Stage("pp", 0) : s, second = says ? s.Stage("pp", last) : s;
    Annotation columns = says ? Annotation{{"tp", S(1)}} : Annotation{};
    if (!says && !declared_) {  // whichever graph comes first
      first = s.Stage("pp", 0), second = s.Stage("pp", last), columns = {{"tp", S(1)}};
    }
    declared_ = true;
    Tensor hidden = dropout(tanh(matmul(x, first.Weight("up", {8, 10}, Normal(.4), columns))), .2);
    if (call == "generate") {
      sessions_.emplace(call, Evaluate({{"out", argmax(hidden)}, {"hidden", hidden}}, {.name = call}));
      return;
    }
    Tensor out = matmul(to_stage(hidden, "pp", last), second.Weight("down", {10, 7}, Normal(.4)));
    Tensor bias = second.Weight("bias", {7}, Zeros());
    Tensor loss = mean(square(out + bias));
    if (call == "evaluate") {
      sessions_.emplace(call, Evaluate({{"loss", loss}, {"out", out}}, {.name = call, .micro_batches = 2}));
      return;
    }
    TrainOptions options;
    options.name = call;
    options.micro_batches = call == "tune" ? 1 : 3;
    options.outputs = {{"out", out}};
    sessions_.emplace(call, call == "tune" ? Train(loss, Sgd{.lr = .2, .momentum = .9}, options)
                                           : Train(loss, AdamW{.lr = .02}, options));
  }
  Outputs Call(const std::string& call) {
    Make(call);
    Outputs given;
    if (call == "read") {
      for (const char* weight : {"up", "down", "bias"}) {
        const std::vector<std::string> there = model_.Variables();
        if (std::count(there.begin(), there.end(), weight)) given[weight] = model_.Read(weight);
      }
      return given;
    }
    for (int run = 0; run < 2; ++run) {
      StepResult result = sessions_.at(call).Run({{"x", Floats(run, {kBatch, 8})}});
      for (const char* name : {"loss", "out", "hidden"})
        if (ErrorOf([&] { result.Get(name); }).empty()) given[Cat(name, run)] = result.Get(name);
    }
    return given;
  }

 private:
  Model model_;
  std::vector<ModelGraph> graphs_;
  std::map<std::string, Session> sessions_;
  bool declared_ = false;
};

void CheckOrder(const std::string& mesh, const std::vector<std::string>& make,
                const std::vector<std::string>& calls) {
  std::string where = mesh;
  for (const std::string& call : make) where += Cat(" make ", call);
  for (const std::string& call : calls) where += Cat(" ", call);
  Many many(mesh);
  for (const std::string& call : make) many.Make(call);
  State state;  // as it would be if each call had been the only one of its model
  try {
    for (const std::string& call : calls) {
      Many alone(mesh);
      if (call != "read") alone.Make(call);
      State known;
      for (const std::string& name : alone.model().Variables())
        if (state.variables.count(name)) known.variables[name] = state.variables.at(name);
      if (state.steps.count(call)) known.steps[call] = state.steps.at(call);
      Restore(alone.model(), known);
      const Outputs wanted = alone.Call(call), given = many.Call(call);
      if (call == "read") {
        for (const auto& [name, value] : given)
          if (state.variables.count(name)) {
            EXPECT_TRUE(SameBytes(value, state.variables.at(name))) << where << ": reading " << name;
          }
        continue;
      }
      ExpectSame(given, wanted, Cat(where, ": ", call));
      State after = StateOf(alone.model());
      for (auto& [name, value] : after.variables) state.variables[name] = value;
      state.steps[call] = after.steps[call];
    }
    for (const auto& [name, value] : state.variables)
      EXPECT_TRUE(SameBytes(many.model().Read(name), value)) << where << ": " << name << " at the end";
  } catch (const Error& error) {
    ADD_FAILURE() << where << ": " << error.what();
  }
}

TEST(Orders, EveryOrderOfCallsGivesWhatEachGivesAlone) {
  std::vector<std::string> calls(std::begin(Many::kCalls), std::end(Many::kCalls));
  std::sort(calls.begin(), calls.end());
  const char* meshes[] = {"cpu:dp=2,pp=2", "cpu:dp=3", "cpu:dp=2,tp=2", "cpu:dp=2"};
  int number = 0;
  do {
    CheckOrder(meshes[number++ % 4], {}, calls);
  } while (std::next_permutation(calls.begin(), calls.end()));
  EXPECT_EQ(number, 120);
}

TEST(Orders, NeitherDoesTheOrderOfMakingThem) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(Cat("seed ", seed));
    auto shuffled = [&](uint64_t what) {
      std::vector<std::string> calls(std::begin(Many::kCalls), std::end(Many::kCalls));
      for (size_t i = calls.size(); i > 1; --i) std::swap(calls[i - 1], calls[RandomBits(seed, what, i) % i]);
      return calls;
    };
    CheckOrder(seed % 2 ? "cpu:dp=2,pp=2" : "cpu:dp=2,tp=2", shuffled(0), shuffled(1));
  }
}

// --- Variables ---

TEST(Variables, AreReadAndWrittenBeforeAnythingHasRun) {
  for (const char* mesh : kMeshes)
    for (const char* zero : {"", "dp"}) {
      Stepped first(mesh, {.zero = {zero}}), then(mesh, {.zero = {zero}});
      EXPECT_EQ(first.model.Variables(), (std::vector<std::string>{"down", "up"}));
      const HostTensor up = first.model.Read("up");
      Session train = then.MakeTrain();
      EXPECT_EQ(then.model.Variables(),
                (std::vector<std::string>{"down", "train:adam_m/down", "train:adam_m/up", "train:adam_v/down",
                                          "train:adam_v/up", "train:updates", "up"}));
      Session eval = Evaluate({{"loss", then.loss}});
      eval.Run(Stepped::FeedsOf(0)).Wait();
      EXPECT_TRUE(SameBytes(then.model.Read("up"), up)) << mesh << " " << zero;

      first.model.Write("up", Floats(3, {8, 16}));
      Session trained = first.MakeTrain();
      first.model.Write("train:adam_m/down", Floats(4, {16, 3}));
      EXPECT_TRUE(SameBytes(first.model.Read("up"), Floats(3, {8, 16})));
      EXPECT_TRUE(SameBytes(first.model.Read("train:adam_m/down"), Floats(4, {16, 3})));
      then.model.Write("up", Floats(3, {8, 16}));
      then.model.Write("train:adam_m/down", Floats(4, {16, 3}));
      Outputs a, b;
      Stepped::Run(trained, 0, 2, &a);
      Stepped::Run(train, 0, 2, &b);
      ExpectSame(a, b, Cat(mesh, " ", zero));
    }
}

// Random shapes and layouts: what was written is read, before and after the pieces were first used.
TEST(Variables, OfEveryLayoutAreMovedPieceByPiece) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    auto draw = [&](int what, int limit) { return static_cast<int>(RandomBits(seed, 1, what) % limit); };
    const char* meshes[] = {"cpu:dp=2", "cpu:dp=3,tp=2", "cpu:dp=2,tp=2,pp=2", "cpu:tp=4"};
    Model model(FullMesh(meshes[draw(0, 4)]), {.zero = {draw(1, 2) ? "dp" : ""}});
    Dims shape;
    for (int a = 0, rank = 1 + draw(2, 3); a < rank; ++a)
      shape.push_back(1 + draw(10 + a, 700 / (1 + 8 * a)));
    Annotation cut;
    if (draw(3, 2)) cut.push_back({"tp", S(draw(4, shape.rank()))});
    Scope scope = model.scope();
    if (draw(5, 2)) scope = scope.Stage("pp", draw(6, model.mesh().axis_size(2)));
    SCOPED_TRACE(Cat("seed ", seed, " on ", model.mesh().str(), " ", shape.str()));
    Tensor w = scope.Weight("w", shape, Normal(1), cut);
    const HostTensor value = Floats(seed, shape);
    if (draw(7, 2)) model.Write("w", value);
    Session look = Evaluate({{"w", scale(w, 1)}});
    const HostTensor seen = look.Run({}).Get("w");
    EXPECT_TRUE(SameBytes(model.Read("w"), seen));
    model.Write("w", value);
    EXPECT_TRUE(SameBytes(look.Run({}).Get("w"), value));
    EXPECT_TRUE(SameBytes(model.Read("w"), value));
  }
}

// ZeRO cuts along the longest axis that no annotation cuts: one that keeps a weight whole takes none.
TEST(Variables, ZeroCutsTheLongestFreeAxis) {
  struct Case {
    Dims shape;
    Annotation sbp;
    int64_t elements;  // of a rank's piece
  };
  for (const Case& c :
       {Case{{64, 3}, {}, 32 * 3}, Case{{64, 3}, {{"tp", B()}}, 32 * 3}, Case{{3, 64}, {{"tp", B()}}, 3 * 32},
        Case{{256}, {{"tp", B()}}, 128}, Case{{256}, {{"tp", S(0)}}, 128},
        Case{{4, 6, 64}, {{"tp", S(2)}}, 4 * 3 * 32}, Case{{64, 6, 4}, {{"tp", B()}}, 32 * 6 * 4}}) {
    Model model(FullMesh("cpu:dp=2,tp=2"), {.zero = {"dp"}});
    Tensor x = model.Input("x", c.shape, DType::kFloat32);
    Session train = Train(mean(square(x * model.scope().Weight("w", c.shape, Ones(), c.sbp))), AdamW{});
    for (const RankSummary& s : train.Summaries())  // the weight, two like it, and the number of updates
      EXPECT_EQ(s.persistent_bytes, 3 * 4 * c.elements + 64)
          << c.shape.str() << " " << (c.sbp.empty() ? "" : c.sbp[0].second.str()) << " on rank " << s.rank;
  }
}

// What some process has not is sent once, by one that has it; nothing of it goes with the texts of process 0.
TEST(Variables, ProcessesSendOnlyWhatOthersLack) {
  struct Case {
    const char* mesh;
    int processes;
    Annotation cut;
    const char* zero;
    double sent;  // of the variable
  };
  // 80 MB: more than may be on its way at once.
  const Dims shape = {5003, 4001};
  for (const Case& c :
       {Case{"cpu:dp=2", 2, {}, "", 0}, Case{"cpu:tp=2", 2, {{"tp", S(1)}}, "", 1},
        Case{"cpu:dp=2", 2, {}, "dp", 1}, Case{"cpu:dp=2,tp=2", 2, {{"tp", S(0)}}, "", 0},
        Case{"cpu:tp=2,pp=2", 2, {{"tp", S(0)}}, "", 1}, Case{"cpu:dp=2,tp=2", 4, {{"tp", S(0)}}, "", 1}}) {
    SCOPED_TRACE(Cat(c.mesh, " on ", c.processes, " processes ", c.zero));
    const bool large = c.cut.size() == 1 && c.cut[0].second.axis == 1;
    const Dims extents = large ? shape : Dims{37, 53};
    const HostTensor value = Floats(8, extents);
    Meeting meeting(c.processes);
    for (const std::string& error : RunProcesses(meeting, [&](std::shared_ptr<Job> job) {
           Model model(FullMesh(c.mesh), {.zero = {c.zero}, .threads = 1, .job = job});
           model.scope().Weight("w", extents, Zeros(), c.cut);
           model.Write("w", value);
           EXPECT_TRUE(SameBytes(model.Read("w"), value)) << "process " << job->process();
         }))
      EXPECT_EQ(error, "");
    EXPECT_EQ(meeting.wire.output_bytes, static_cast<int64_t>(c.sent * value.bytes()));
    EXPECT_LT(meeting.longest, 200u);
  }
}

TEST(Variables, AWeightMayBearTheNameOfState) {
  auto trained = [](const std::string& second) {
    Model model(FullMesh("cpu:dp=2"));
    Tensor x = model.Input("x", {4, 3}, DType::kFloat32, {{"dp", S(0)}});
    Scope s = model.scope();
    Tensor y = matmul(x * s.Weight("w", {3}, Full(.5)), s.Weight(second, {3, 3}, Full(.25)));
    TrainOptions options;
    options.dtype = DType::kFloat16;
    Session train = Train(mean(square(y)), Adam{.lr = .1}, options);
    for (int step = 0; step < 3; ++step) train.Run({{"x", Floats(step, {4, 3})}}).Wait();
    Outputs all;
    for (const std::string& name : model.Variables()) all[name] = model.Read(name);
    EXPECT_EQ(all.size(), 9u);  // two weights, their state, the number of updates, the scale of the loss
    return std::pair(all.at("w"), all.at(second));
  };
  const auto wanted = trained("other");
  for (const char* name : {"adam_m/w", "adam_v/w", "loss_scale", "train/adam_m/w"}) {
    const auto got = trained(name);
    EXPECT_TRUE(SameBytes(got.first, wanted.first) && SameBytes(got.second, wanted.second)) << name;
  }
}

TEST(Variables, AWeightOutsideStagesLiesWhereItIsRead) {
  const HostTensor x = Floats(1, {kBatch, 4});
  Outputs wanted;
  for (int order = 0; order < 4; ++order) {
    Model model(FullMesh("cpu:pp=2"));
    std::optional<Session> train, eval;
    Tensor in = model.Input("x", {kBatch, 4}, DType::kFloat32);
    auto h = [&](Scope s) { return tanh(matmul(in, s.Stage("pp", 0).Weight("up", {4, 4}, Normal(.5)))); };
    Tensor scaled = to_stage(h(model.scope()), "pp", 1) * model.scope().Weight("free", {4}, Ones());
    Tensor loss =
        mean(square(matmul(scaled, model.scope().Stage("pp", 1).Weight("down", {4, 2}, Normal(.5)))));
    Tensor other = model.scope().Weight("free", {4}, Ones());  // on no stage here
    auto make_eval = [&] { eval.emplace(Evaluate({{"free", scale(other, 2)}})); };
    if (order % 2 == 0) make_eval();
    if (order == 2) eval->Run({}).Wait();
    if (order == 3) (void)model.Read("free");
    train.emplace(Train(loss, Sgd{.lr = .5}));
    if (order % 2 == 1) make_eval();
    Outputs got;
    for (int step = 0; step < 3; ++step) got[Cat("loss", step)] = train->Run({{"x", x}}).Get("loss");
    got["free"] = eval->Run({}).Get("free");
    got["read"] = model.Read("free");
    if (order == 0) wanted = got;
    ExpectSame(got, wanted, Cat("order ", order));
    EXPECT_GT(Difference(got["read"], wanted["loss0"]), 0);
  }
}

}  // namespace
}  // namespace oneflow_like
