// The life of sessions: closed at any moment, destroyed in any order, and failures that travel to the user.
#include <chrono>
#include <optional>
#include <regex>
#include <thread>

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

TrainOptions Options(int micro_batches, int in_flight) {
  TrainOptions options;
  options.micro_batches = micro_batches;
  options.steps_in_flight = in_flight;
  options.clip_norm = 1;
  return options;
}

TEST(SessionLife, CloseAtAnyMoment) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto draw = [&](int what) { return RandomBits(seed, 0, what); };
    const char* mesh =
        std::vector{"cpu:dp=1", "cpu:dp=2", "cpu:pp=2", "cpu:dp=2,pp=2", "cpu:dp=3"}[draw(0) % 5];
    SCOPED_TRACE(Cat("seed ", seed, " on ", mesh));
    TwoStages two(mesh);
    Session session = Train(two.loss, Adam{}, Options(1 + draw(1) % 3, 1 + draw(2) % 4));
    std::vector<StepResult> results;
    int steps = draw(3) % 8;
    for (int step = 0; step < steps; ++step) results.push_back(session.Run(GoodFeeds(step)));
    std::this_thread::sleep_for(std::chrono::microseconds(draw(4) % 400));
    if (draw(5) % 2 == 0) session.Close();
    if (draw(6) % 3 == 0) session = Evaluate({{"loss", two.loss}});  // destroys the one that runs
    session.Close();
    session.Close();
    bool ended = false;
    for (const StepResult& r : results) {  // each has either its loss or the word that it was closed
      std::string error = ErrorOf([&] { r.Wait(); });
      if (error.empty()) {
        EXPECT_FALSE(ended) << "step " << r.step() << " ended after one that was closed";
        EXPECT_TRUE(std::isfinite(r.Scalar("loss")));
      } else {
        EXPECT_NE(error.find("closed"), std::string::npos) << error;
        ended = true;
      }
    }
    EXPECT_TRUE(std::regex_search(ErrorOf([&] { session.Run(GoodFeeds(0)); }), std::regex("closed")));
    // The model still trains, from what the finished steps left.
    Session again = Train(two.loss, Adam{}, Options(1, 2));
    EXPECT_TRUE(std::isfinite(again.Run(GoodFeeds(9)).Scalar("loss")));
  }
}

TEST(SessionLife, DestructionInAnyOrder) {
  for (int order = 0; order < 6; ++order) {
    SCOPED_TRACE(order);
    std::optional<TwoStages> two("cpu:dp=2,pp=2");
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
    StepResult copy = *result;
    result.reset();
    EXPECT_EQ(copy.step(), 0);
  }
}

TEST(SessionLife, NeverRunOrMoved) {
  TwoStages two("cpu:dp=2");
  { Session never = Train(two.loss, Adam{}); }
  Session a = Train(two.loss, Adam{});
  EXPECT_EQ(a.next_step(), 0);
  Session b = std::move(a);
  EXPECT_TRUE(std::isfinite(b.Run(GoodFeeds(0)).Scalar("loss")));
  EXPECT_EQ(b.next_step(), 1);
  EXPECT_NE(ErrorOf([&] { a.Run(GoodFeeds(0)); }).find("moved"), std::string::npos);
  a.Close();
  a = std::move(b);
  EXPECT_TRUE(std::isfinite(a.Run(GoodFeeds(1)).Scalar("loss")));
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
      Session train = Train(two.loss, Sgd{}, Options(micro_batches, 3)),
              eval = Evaluate({{"loss", two.loss}});
      StepResult good = train.Run(GoodFeeds(0)), bad = train.Run(BadFeeds(1));
      std::string later;
      try {
        later = ErrorOf([&, r = train.Run(GoodFeeds(2))] { r.Wait(); });  // in flight behind the failure
      } catch (const Error& e) {
        later = e.what();
      }
      EXPECT_TRUE(std::isfinite(good.Scalar("loss")));
      std::string error = ErrorOf([&] { bad.Scalar("loss"); });
      EXPECT_TRUE(std::regex_search(error, wanted)) << error;
      EXPECT_EQ(later, error);
      for (int again = 0; again < 2; ++again) EXPECT_EQ(ErrorOf([&] { train.Run(GoodFeeds(3)); }), error);
      // Another session of the model is not touched by it.
      EXPECT_TRUE(std::isfinite(eval.Run(GoodFeeds(4)).Scalar("loss")));
      train.Close();
      EXPECT_TRUE(std::isfinite(eval.Run(GoodFeeds(5)).Scalar("loss")));
      EXPECT_EQ(ErrorOf([&] { bad.Wait(); }), error);
      EXPECT_TRUE(std::isfinite(good.Scalar("loss")));
      Session fresh = Train(two.loss, Sgd{}, Options(micro_batches, 3));
      EXPECT_TRUE(std::isfinite(fresh.Run(GoodFeeds(6)).Scalar("loss")));
    }
}

TEST(SessionLife, NanLossIsReportedWithItsStep) {
  for (const char* mesh : {"cpu:dp=1", "cpu:dp=2,pp=2"}) {
    TwoStages two(mesh);
    Session train = Train(two.loss, Sgd{}, Options(2, 2));
    EXPECT_TRUE(std::isfinite(train.Run(GoodFeeds(0)).Scalar("loss")));
    Feeds feeds = GoodFeeds(1);
    feeds["x"].as<float>()[7] = NAN;
    StepResult bad = train.Run(feeds);
    std::string error = ErrorOf([&] { bad.Scalar("loss"); });
    EXPECT_TRUE(std::regex_search(error, std::regex("^step 1: loss is -?nan"))) << error;
    TrainOptions unchecked = Options(2, 2);
    unchecked.check_finite = false;
    Session free = Train(two.loss, Sgd{}, unchecked);
    EXPECT_TRUE(std::isnan(free.Run(feeds).Scalar("loss"))) << mesh;
  }
}

TEST(SessionLife, RefusedFeedsStartNothing) {
  TwoStages two("cpu:dp=2");
  Session train = Train(two.loss, Sgd{});
  EXPECT_NE(ErrorOf([&] { train.Run({}); }), "");
  EXPECT_EQ(train.next_step(), 0);
  StepResult r = train.Run(GoodFeeds(0));
  EXPECT_EQ(r.step(), 0);
  EXPECT_NE(ErrorOf([&] { r.Get("accuracy"); }).find("'accuracy'"), std::string::npos);
  EXPECT_TRUE(std::isfinite(r.Scalar("loss")));
}

}  // namespace
}  // namespace oneflow_like
