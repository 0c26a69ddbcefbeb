// The life of sessions: closed at any moment, destroyed in any order, and failures that travel to the user.
// ctest: asan=20
#include <chrono>
#include <optional>
#include <regex>
#include <thread>

#include "oneflow_like/model/model_impl.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

// Two stages: numbers on the first, a table looked up on the second.
struct TwoStages {
  Model model;
  Tensor loss, row;
  int row_line = 0;  // of the embedding

  explicit TwoStages(const std::string& mesh) : model(FullMesh(mesh)) {
    Scope first = model.scope().Stage("pp", 0),
          second = model.scope().Stage("pp", model.mesh().axis_size(2) - 1);
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor ids = model.Input("ids", {6}, DType::kInt32, {{"dp", S(0)}});
    Tensor h = tanh(matmul(x, first.Weight("w", {4, 4}, Normal(.5))));
    row_line = __LINE__ + 1;
    row = embedding(second.Weight("table", {5, 4}, Normal(.5)), ids);
    loss = mean(square(h - row));
  }
};

Feeds GoodFeeds(int64_t step) { return {{"x", Floats(step, {6, 4})}, {"ids", Ids(step, {6}, 5)}}; }
Feeds BadFeeds(int64_t step) {
  Feeds feeds = GoodFeeds(step);
  feeds["ids"].as<int32_t>()[4] = 77;  // of the second rank's half
  return feeds;
}

// The same in plain loops, from the weights that a model has.
struct PlainStages {
  std::vector<double> w, table, gradient;  // the gradient of both, one behind the other

  explicit PlainStages(const Model& model) : w(Of(model.Read("w"))), table(Of(model.Read("table"))) {}
  static std::vector<double> Of(const HostTensor& t) { return {t.as<float>(), t.as<float>() + t.elements()}; }

  double Loss(const Feeds& feeds) {
    const float* x = feeds.at("x").as<float>();
    const int32_t* ids = feeds.at("ids").as<int32_t>();
    gradient.assign(w.size() + table.size(), 0);
    double loss = 0;
    for (int i = 0; i < 6; ++i) {
      for (int c = 0; c < 4; ++c) {
        double sum = 0;
        for (int k = 0; k < 4; ++k) sum += x[i * 4 + k] * w[k * 4 + c];
        const double h = std::tanh(sum), error = h - table[ids[i] * 4 + c], d = 2 * error / 24;
        loss += error * error / 24;
        for (int k = 0; k < 4; ++k) gradient[k * 4 + c] += d * (1 - h * h) * x[i * 4 + k];
        gradient[w.size() + ids[i] * 4 + c] -= d;
      }
    }
    return loss;
  }
  // Gives the loss, then updates by `rule(element, gradient clipped to norm 1)`, which gives what is taken
  // away.
  template <typename Rule>
  double Step(const Feeds& feeds, Rule rule) {
    const double loss = Loss(feeds);
    double norm = 0;
    for (double g : gradient) norm += g * g;
    norm = std::max(1.0, std::sqrt(norm));
    for (size_t i = 0; i < gradient.size(); ++i)
      (i < w.size() ? w[i] : table[i - w.size()]) -= rule(i, gradient[i] / norm);
    return loss;
  }
  double SgdStep(const Feeds& feeds) {
    return Step(feeds, [](size_t, double g) { return Sgd{}.lr * g; });
  }
  double AdamStep(const Feeds& feeds) {
    const Adam adam;
    m.resize(w.size() + table.size());
    v.resize(m.size());
    ++adam_steps;
    return Step(feeds, [&](size_t i, double g) {
      m[i] = adam.beta1 * m[i] + (1 - adam.beta1) * g;
      v[i] = adam.beta2 * v[i] + (1 - adam.beta2) * g * g;
      const double first = m[i] / (1 - std::pow(adam.beta1, adam_steps));
      const double second = v[i] / (1 - std::pow(adam.beta2, adam_steps));
      return adam.lr * first / (std::sqrt(second) + adam.eps);
    });
  }
  std::vector<double> m, v;
  int adam_steps = 0;
};

// The weights as they are before the first step; they exist once a session has run.
PlainStages StartOf(const TwoStages& two) {
  Session eval = Evaluate({{"loss", two.loss}});
  eval.Run(GoodFeeds(0)).Wait();
  return PlainStages(two.model);
}

constexpr double kNear = 1e-5;  // of losses around 1, in fp32

TrainOptions Options(int micro_batches, int in_flight) {
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.steps_in_flight = in_flight;
  options.clip_norm = 1;
  return options;
}

// Whatever ranks hold the same of a variable is the same to the bit.
void ExpectCopiesAreEqual(const Model& model) {
  for (const std::string& name : model.Variables()) {
    (void)model.Read(name);                    // so that it is there
    std::map<std::string, std::string> first;  // by box
    const Store& store = *model.impl()->store;
    for (int rank : store.ranks()) {
      const Store::VariableInfo* info = store.Find(rank, name);
      if (info == nullptr) continue;
      std::string bytes(info->box.elements() * SizeOf(info->dtype), '\0');
      std::memcpy(bytes.data(), model.impl()->store->Variable(rank, name), bytes.size());
      auto [it, fresh] = first.try_emplace(info->box.str(), bytes);
      EXPECT_TRUE(fresh || it->second == bytes) << name << " of rank " << rank;
    }
  }
}

TEST(SessionLife, CloseAtAnyMoment) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto draw = [&](int what) { return RandomBits(seed, 0, what); };
    const char* mesh =
        std::vector{"cpu:dp=1", "cpu:dp=2", "cpu:pp=2", "cpu:dp=2,pp=2", "cpu:dp=3"}[draw(0) % 5];
    SCOPED_TRACE(Cat("seed ", seed, " on ", mesh));
    TwoStages two(mesh);
    PlainStages plain = StartOf(two);
    Session session = Train(two.loss, Adam{}, Options(1 + draw(1) % 3, 1 + draw(2) % 4));
    std::vector<StepResult> results;
    int steps = draw(3) % 8;
    for (int step = 0; step < steps; ++step) results.push_back(session.Run(GoodFeeds(step)));
    std::this_thread::sleep_for(std::chrono::microseconds(draw(4) % 400));
    if (draw(5) % 2 == 0) session.Close();
    if (draw(6) % 3 == 0) session = Evaluate({{"loss", two.loss}});  // destroys the one that runs
    session.Close();
    session.Close();
    for (const StepResult& r : results)  // steps of training come to their end
      EXPECT_NEAR(r.Scalar("loss"), plain.AdamStep(GoodFeeds(r.step())), kNear) << "step " << r.step();
    ExpectCopiesAreEqual(two.model);
    EXPECT_TRUE(std::regex_search(ErrorOf([&] { session.Run(GoodFeeds(0)); }), std::regex("closed")));
    // The model still trains, from what the finished steps left.
    const double left = PlainStages(two.model).Loss(GoodFeeds(9));
    Session again = Train(two.loss, Adam{}, Options(1, 2));
    EXPECT_NEAR(again.Run(GoodFeeds(9)).Scalar("loss"), left, kNear);
  }
}

TEST(SessionLife, ASessionThatIsGoneLeavesNoResults) {
  TwoStages two("cpu:dp=2");
  for (int k = 0; k < 3; ++k) {
    Session session = Train(two.loss, Adam{}, Options(1, 2));
    session.Run(GoodFeeds(k)).Wait();
  }
  EXPECT_TRUE(two.model.impl()->last_steps.empty()) << "of the last steps, kept for nobody";
}

TEST(SessionLife, DestructionInAnyOrder) {
  for (int order = 0; order < 6; ++order) {
    SCOPED_TRACE(order);
    std::optional<TwoStages> two("cpu:dp=2,pp=2");
    PlainStages plain = StartOf(*two);
    std::optional<Session> train(Train(two->loss, Adam{}, Options(2, 2))),
        eval(Evaluate({{"loss", two->loss}}));
    std::optional<StepResult> result = train->Run(GoodFeeds(0)), other;
    if (order % 2 == 0) other = eval->Run(GoodFeeds(1));
    if (order / 2 == 0) {
      two.reset(), train.reset(), eval.reset();
    } else if (order / 2 == 1) {
      eval.reset(), two.reset(), train.reset();
    } else {
      train.reset(), eval.reset(), two.reset();
    }
    std::string error = ErrorOf([&] { result->Wait(); });
    EXPECT_TRUE(error.empty() || error.find("closed") != std::string::npos) << error;
    if (error.empty()) {
      EXPECT_NEAR(result->Scalar("loss"), plain.AdamStep(GoodFeeds(0)), kNear);
    }
    StepResult copy = *result;
    result.reset();
    EXPECT_EQ(copy.step(), 0);
  }
}

TEST(SessionLife, NeverRunOrMoved) {
  TwoStages two("cpu:dp=2");
  PlainStages plain = StartOf(two);
  TrainOptions clipped;
  clipped.clip_norm = 1;
  { Session never = Train(two.loss, Adam{}); }
  Session a = Train(two.loss, Adam{}, clipped);
  EXPECT_EQ(a.next_step(), 0);
  Session b = std::move(a);
  EXPECT_NEAR(b.Run(GoodFeeds(0)).Scalar("loss"), plain.AdamStep(GoodFeeds(0)), kNear);
  EXPECT_EQ(b.next_step(), 1);
  EXPECT_NE(ErrorOf([&] { a.Run(GoodFeeds(0)); }).find("moved"), std::string::npos);
  a.Close();
  a = std::move(b);
  EXPECT_NEAR(a.Run(GoodFeeds(1)).Scalar("loss"), plain.AdamStep(GoodFeeds(1)), kNear);
  Session closed = Evaluate({{"loss", two.loss}});
  closed.Close();
  EXPECT_NE(ErrorOf([&] { closed.Run(GoodFeeds(0)); }).find("closed"), std::string::npos);
}

TEST(SessionLife, KernelFailureTravels) {
  for (const char* mesh : {"cpu:dp=2,pp=2", "cpu:dp=1", "cpu:dp=2"})
    for (int micro_batches : {1, 3}) {
      SCOPED_TRACE(Cat(mesh, ", ", micro_batches, " micro-batches"));
      TwoStages two(mesh);
      std::regex wanted(
          Cat("embedding.*session_life_test\\.cc:", two.row_line, ".*id 77 is outside the table of 5 rows"));
      PlainStages plain = StartOf(two);
      Session train = Train(two.loss, Sgd{}, Options(micro_batches, 3)),
              eval = Evaluate({{"loss", two.loss}});
      StepResult good = train.Run(GoodFeeds(0)), bad = train.Run(BadFeeds(1));
      std::string later;
      try {
        later = ErrorOf([&, r = train.Run(GoodFeeds(2))] { r.Wait(); });  // in flight behind the failure
      } catch (const Error& e) {
        later = e.what();
      }
      const double first = plain.SgdStep(GoodFeeds(0));
      EXPECT_NEAR(good.Scalar("loss"), first, kNear);
      std::string error = ErrorOf([&] { bad.Scalar("loss"); });
      EXPECT_TRUE(std::regex_search(error, wanted)) << error;
      EXPECT_EQ(later, error);
      for (int again = 0; again < 2; ++again) EXPECT_EQ(ErrorOf([&] { train.Run(GoodFeeds(3)); }), error);
      // Another session of the model is not touched by it. Of what the failed step would have changed nothing
      // is.
      EXPECT_NEAR(eval.Run(GoodFeeds(4)).Scalar("loss"), plain.Loss(GoodFeeds(4)), kNear);
      train.Close();
      EXPECT_NEAR(eval.Run(GoodFeeds(5)).Scalar("loss"), plain.Loss(GoodFeeds(5)), kNear);
      EXPECT_EQ(ErrorOf([&] { bad.Wait(); }), error);
      EXPECT_NEAR(good.Scalar("loss"), first, kNear);
      Session fresh = Train(two.loss, Sgd{}, Options(micro_batches, 3));
      EXPECT_NEAR(fresh.Run(GoodFeeds(6)).Scalar("loss"), plain.SgdStep(GoodFeeds(6)), kNear);
    }
}

// However often and in whichever way the step is asked, and no other session or step has anything to do with
// it.
TEST(SessionLife, ALossThatIsNotFiniteIsReportedWithItsStep) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,pp=2"})
    for (const float poison : {NAN, INFINITY, -INFINITY}) {
      SCOPED_TRACE(Cat(mesh, " ", poison));
      Model model(FullMesh(mesh));
      Scope last = model.scope().Stage("pp", model.mesh().axis_size(2) - 1);
      Tensor x = model.Input("x", {4, 2}, DType::kFloat32, {{"dp", S(0)}});
      Tensor h = x * model.scope().Stage("pp", 0).Weight("v", {2}, Ones());
      Tensor loss = mean(to_stage(h, "pp", model.mesh().axis_size(2) - 1) * last.Weight("w", {2}, Ones()));
      const Feeds good = {{"x", ToHost(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, {4, 2})}};
      const Feeds bad = {{"x", ToHost(std::vector<float>{1, 2, 3, 4, 5, 6, poison, 8}, {4, 2})}};
      Session train = Train(loss, Sgd{.lr = 0}, Options(2, 3));
      Session eval = Evaluate({{"loss", loss}});  // whose numbers are the user's affair
      StepResult before = train.Run(good), at = train.Run(bad);
      EXPECT_EQ(before.Scalar("loss"), 4.5f);
      const std::regex wanted(Cat("^step 1: loss is ",
                                  std::isnan(poison) ? "NaN"
                                  : poison > 0       ? "\\+infinity"
                                                     : "-infinity",
                                  "; lower the"));
      for (int again = 0; again < 2; ++again) {
        for (const std::string& error : {ErrorOf([&] { at.Wait(); }), ErrorOf([&] { at.Scalar("loss"); }),
                                         ErrorOf([&] { at.Get("grad_norm"); })})
          EXPECT_TRUE(std::regex_search(error, wanted)) << error;
      }
      EXPECT_EQ(before.Scalar("loss"), 4.5f);
      const float seen = eval.Run(bad).Scalar("loss");
      EXPECT_TRUE(std::isnan(poison) || std::isnan(seen) ? std::isnan(seen) : seen == poison) << seen;
      TrainOptions unchecked = Options(2, 2);
      unchecked.check_finite = false;
      Session free = Train(loss, Sgd{.lr = 0}, unchecked);
      EXPECT_FALSE(std::isfinite(free.Run(bad).Scalar("loss")));
    }
}

TEST(SessionLife, RefusedFeedsStartNothing) {
  TwoStages two("cpu:dp=2");
  PlainStages plain = StartOf(two);
  Session train = Train(two.loss, Sgd{});
  EXPECT_NE(ErrorOf([&] { train.Run({}); }), "");
  EXPECT_EQ(train.next_step(), 0);
  StepResult r = train.Run(GoodFeeds(0));
  EXPECT_EQ(r.step(), 0);
  EXPECT_NE(ErrorOf([&] { r.Get("accuracy"); }).find("'accuracy'"), std::string::npos);
  EXPECT_NEAR(r.Scalar("loss"), plain.Loss(GoodFeeds(0)), kNear);
}

}  // namespace
}  // namespace oneflow_like
