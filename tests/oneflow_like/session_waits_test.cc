// What waits for the steps under way, and what does not: reading and writing variables, a larger session, the
// step after the last that may be in flight; and results that stay while the user holds them. A gate in the
// middle of a step holds it up until the test lets it on.
// ctest: asan=10 waits
#include <atomic>
#include <chrono>
#include <thread>

#include "oneflow_like/session/session_impl.h"
#include "tests/actor/net/job_processes.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

std::atomic<bool> gate_open{true};
std::atomic<int> gate_reached{0};

Status WaitAtGate(const KernelContext& c) {
  ++gate_reached;
  while (!gate_open) std::this_thread::yield();
  std::memcpy(c.out[0].data, c.in[0].data, c.in[0].elements() * sizeof(float));
  return Status();
}

// The identity, once the gate is open.
OpDef GateOperator() {
  OpDef def;
  def.name = "gate";
  def.doc = "The identity.";
  def.axes = "x[a b] -> y[a b]";
  def.linear = {{"x"}};
  def.reference = WaitAtGate;
  def.grad = [](const GradCall& call) { return call.dout; };
  return def;
}

// w learns: one step of Sgd takes away learning_rate * x of it.
struct Gated {
  Model model;
  Tensor y, loss;

  Gated() : model(FullMesh("cpu:dp=1"), Options()) {
    Tensor x = model.Input("x", {2, 3}, DType::kFloat32);
    y = Apply(x.graph(), "gate", {x * model.scope().Weight("w", {3}, Ones())})[0];
    loss = sum(y);
  }
  static ModelOptions Options() {
    ModelOptions options;
    options.threads = 1;
    options.operators = {GateOperator()};
    return options;
  }
  static Feeds Fed(float value) { return {{"x", ToHost(std::vector<float>(6, value), {2, 3})}}; }
  std::vector<float> W() {
    HostTensor w = model.Read("w");
    return {w.as<float>(), w.as<float>() + 3};
  }
};

// A step that waits in the middle; opened by another thread after some time to do the wrong thing in.
class StepAtGate {
 public:
  StepAtGate(Session* session, const Feeds& feeds) {
    gate_reached = 0;
    gate_open = false;
    result_ = session->Run(feeds);
    while (gate_reached == 0) std::this_thread::yield();
    opens_ = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      gate_open = true;
    });
  }
  ~StepAtGate() {
    opens_.join();
    result_.Wait();  // before the gate is closed again
  }
  const StepResult& result() const { return result_; }

 private:
  StepResult result_;
  std::thread opens_;
};

TEST(SessionWaits, ReadGivesWhatTheStepsUnderWayLeave) {
  Gated gated;
  Session train = Train(gated.loss, Sgd{.lr = 0.25});
  train.Run(Gated::Fed(0)).Wait();
  StepAtGate step(&train, Gated::Fed(1));
  EXPECT_EQ(gated.W(), std::vector<float>(3, 0.5f));  // 1 - 0.25 * 2 rows
}

TEST(SessionWaits, WriteComesAfterTheStepsUnderWay) {
  Gated gated;
  Session train = Train(gated.loss, Sgd{.lr = 0.25});
  train.Run(Gated::Fed(0)).Wait();
  StepAtGate step(&train, Gated::Fed(1));
  gated.model.Write("w", ToHost(std::vector<float>{7, 8, 9}, {3}));
  EXPECT_EQ(gated.W(), (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(step.result().Scalar("loss"), 6) << "the step reads what was there when it was asked for";
}

// Whichever of them it is, and whatever the others did before.
TEST(SessionWaits, ReadWaitsForTheSessionThatRuns) {
  Gated gated;
  std::vector<Session> sessions;
  for (int i = 0; i < 4; ++i) {
    sessions.push_back(Train(gated.loss, Sgd{.lr = 0.25}));
    sessions.back().Run(Gated::Fed(0)).Wait();
  }
  float w = 1;
  for (Session& session : sessions) {
    StepAtGate step(&session, Gated::Fed(1));
    w -= 0.5f;
    EXPECT_EQ(gated.W(), std::vector<float>(3, w));
  }
}

TEST(SessionWaits, ALargerSessionIsLoadedAfterTheStepsUnderWay) {
  Gated gated;
  Session small = Evaluate({{"y", gated.y}});
  small.Run(Gated::Fed(2)).Wait();
  const ModelImpl* model = gated.model.impl();
  const int64_t before = model->store->ArenaBytes(0);
  Tensor x = gated.model.Input("large", {512, 512}, DType::kFloat32);
  Session large = Evaluate({{"product", matmul(x, x)}});
  StepAtGate step(&small, Gated::Fed(3));
  HostTensor ones = HostTensor::Make(DType::kFloat32, {512, 512});
  std::fill_n(ones.as<float>(), ones.elements(), 1.0f);
  StepResult product = large.Run({{"large", ones}});
  EXPECT_TRUE(gate_open) << "it was loaded in the middle of a step";
  EXPECT_GT(model->store->ArenaBytes(0), before);
  EXPECT_EQ(product.Get("product").as<float>()[17], 512);
  EXPECT_EQ(step.result().Get("y").as<float>()[5], 3);
}

TEST(SessionWaits, RunWaitsOnceSoManyStepsAreInFlight) {
  for (int in_flight : {1, 2, 4}) {
    SCOPED_TRACE(in_flight);
    Gated gated;
    SessionOptions options;
    options.steps_in_flight = in_flight;
    Session session = Evaluate({{"y", gated.y}}, options);
    session.Run(Gated::Fed(0)).Wait();
    gate_open = false;
    std::atomic<bool> taken_in{false};
    std::thread opens([&] {
      for (int i = 0; i < 1000 && !taken_in; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate_open = true;
    });
    std::vector<StepResult> results;
    for (int i = 0; i < in_flight; ++i) results.push_back(session.Run(Gated::Fed(static_cast<float>(i))));
    EXPECT_FALSE(gate_open) << "Run waited for a step";
    taken_in = true;
    results.push_back(session.Run(Gated::Fed(static_cast<float>(in_flight))));
    EXPECT_TRUE(gate_open) << "one more step was taken in";
    for (int i = 0; i <= in_flight; ++i)
      EXPECT_EQ(results[i].Get("y").as<float>()[0], static_cast<float>(i)) << "step " << i;
    opens.join();
  }
}

TEST(SessionWaits, AProfileIsOfWholeSteps) {
  Gated gated;
  Session session = Evaluate({{"y", gated.y}});
  session.Run(Gated::Fed(0)).Wait();
  (void)session.TakeProfile();
  StepAtGate step(&session, Gated::Fed(1));
  EXPECT_EQ(session.TakeProfile().steps, 1);
}

TEST(SessionWaits, FeedsMayChangeOnceRunReturns) {
  Gated gated;
  Session session = Evaluate({{"y", gated.y}});
  Feeds fed = Gated::Fed(5);
  gate_open = false;
  StepResult first = session.Run(fed);
  std::fill_n(fed["x"].as<float>(), 6, -1.0f);
  StepResult second = session.Run(fed);
  gate_open = true;
  EXPECT_EQ(first.Get("y").as<float>()[4], 5);
  EXPECT_EQ(second.Get("y").as<float>()[4], -1);
}

TEST(SessionWaits, ATensorOutlivesItsResultUnchanged) {
  Gated gated;
  Session session = Evaluate({{"y", gated.y}});
  std::vector<HostTensor> kept;
  for (int i = 0; i < 4; ++i) kept.push_back(session.Run(Gated::Fed(static_cast<float>(i))).Get("y"));
  for (int i = 0; i < 8; ++i) session.Run(Gated::Fed(-1)).Wait();
  session.Close();
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 6; ++k) EXPECT_EQ(kept[i].as<float>()[k], static_cast<float>(i)) << "step " << i;
}

// The time in which a worker has nothing to do but to drive the network is waiting, no work of the runtime.
TEST(SessionWaits, ForAnotherProcess) {
  InJob(2, [](int me, std::unique_ptr<Job> own) {
    const std::shared_ptr<Job> job = std::move(own);
    {
      ModelOptions options;
      options.job = job;
      options.threads = 1;
      Model model(Mesh::Parse("cpu:dp=2"), options);
      Tensor x = model.Input("x", {4, 4}, DType::kFloat32, {{"dp", S(0)}});
      Session session = Evaluate({{"y", mean(tanh(x))}});
      for (int step = 0; step < 4; ++step) {
        if (me == 1) Sleep(0.3);
        session.Run({{"x", HostTensor::Make(DType::kFloat32, {4, 4})}}).Wait();
      }
      const StepProfile profile = session.TakeProfile();
      REQUIRE(profile.waiting > profile.runtime, Cat(profile.waiting, " s against ", profile.runtime));
    }
    job->Finish(true);
  });
}

}  // namespace
}  // namespace oneflow_like
