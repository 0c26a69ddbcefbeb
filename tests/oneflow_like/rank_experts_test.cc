// nn::Experts with room of ranks: the curve of places for every token on every mesh; what is dropped where
// there is less room, and the error; routers that send all to one expert; what goes between ranks; memory as
// planned.
// ctest: seconds=60
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <regex>

#include "compiler/compile.h"
#include "compiler/passes/passes.h"
#include "oneflow_like/plan_search.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/expert_runs.h"

namespace oneflow_like {
namespace {

constexpr double kForAll = 8;  // as much room as there is to want on up to 8 ranks

Outputs WithoutTables(const Outputs& shown) {
  Outputs rest;
  for (const auto& [name, tensor] : shown)
    if (name.find("slots") != 0 && name.find("places") != 0 && name.find("counts") != 0) rest[name] = tensor;
  return rest;
}

void ExpectSameCurve(const Setting& run, const Seen& got, const Seen& wanted, double tolerance) {
  ASSERT_EQ(got.losses.size(), wanted.losses.size());
  for (size_t step = 0; step < wanted.losses.size(); ++step)
    ASSERT_NEAR(got.losses[step], wanted.losses[step], tolerance * wanted.losses[step])
        << run.str() << " step " << step;
  ExpectNear(WithoutTables(got.last), WithoutTables(wanted.last), 1e-6, run.str());
}

TEST(RankExperts, WithRoomAreThoseWithPlacesForAll) {
  using enum PipelineSchedule;
  const Setting runs[] = {
      {"cpu:dp=1"},
      {"cpu:dp=1", 4},
      {"cpu:dp=4", 1, 0, "dp"},
      {"cpu:dp=4", 2, 0, "dp"},
      {"cpu:ep=2"},
      {"cpu:dp=2,ep=4"},
      {"cpu:dp=4,ep=2", 2},
      {"cpu:tp=2", 2},
      {"cpu:dp=2,tp=2,ep=2"},
      {"cpu:dp=2,tp=2,pp=2,ep=2", 2},
      {"cpu:dp=2,ep=2", 2, 1},
      {"cpu:dp=2,ep=2", 2, 2},
      {"cpu:dp=2,ep=2", 2, 3, "ep", Recompute::kFull},
      {"cpu:pp=2,ep=2", 4, 0, "ep", Recompute::kFull, kZeroBubble},
      {"cpu:dp=2,cp=2", 2, 3, "dp*cp", Recompute::kFull},
      {"cpu:dp=2,cp=2,tp=2", 1, 0, "dp*cp"},
      {"cpu:dp=2,tp=2,pp=2", 2, 0, "dp*tp"},
  };
  nn::ExpertsOptions plain = SmallExperts(), rich = SmallExperts();
  rich.gated = rich.shared_gate = true;
  rich.shared = 1;
  rich.score = nn::ExpertScore::kSigmoid;
  rich.top_k = 3;
  rich.bias_balance = .01;
  rich.aux_loss = .1;
  rich.jitter = .1;
  for (nn::ExpertsOptions o : {plain, rich}) {
    o.capacity = 0;
    const Seen first = TrainExperts({}, o, 8);
    o.room = kForAll;
    for (const Setting& run : runs) ExpectSameCurve(run, TrainExperts(run, o, 8), first, 1e-6);
  }
}

// In 16 bits a token's rows are added up at their ranks first: near.
TEST(RankExperts, RunInSixteenBits) {
  nn::ExpertsOptions o = SmallExperts();
  o.capacity = 0;
  const Seen first = TrainExperts({}, o, 8);
  o.room = kForAll;
  for (const Setting& given : {Setting{"cpu:dp=1"}, Setting{"cpu:dp=2,ep=2", 2}}) {
    Setting run = given;
    run.dtype = DType::kBFloat16;
    const Seen narrow = TrainExperts(run, o, 8);
    for (size_t step = 0; step < first.losses.size(); ++step)
      EXPECT_NEAR(narrow.losses[step], first.losses[step], .05 * first.losses[step]) << run.str() << step;
  }
}

// Where there are as many ranks, the same choices are dropped in every number of micro-batches and of copies.
TEST(RankExperts, DropTheSameChoicesOnMeshesWithAsManyRanks) {
  nn::ExpertsOptions o = SmallExperts();
  o.room = .8;
  const Seen one = TrainExperts({"cpu:ep=2"}, o, 6);
  EXPECT_GT(*one.last.at("block1/experts/dropped").as<float>(), .01) << "none is dropped";
  for (const Setting& run : {Setting{"cpu:ep=2", 4}, Setting{"cpu:dp=2,ep=2"},
                             Setting{"cpu:dp=2", 2, 0, "dp"}, Setting{"cpu:dp=2,tp=2,ep=2", 2, 1}})
    ExpectSame(run, TrainExperts(run, o, 6), one);
}

// All tokens go to expert `to`; `batch` of them, of one token each.
void ExpectOneExpertAlone(int64_t to, int64_t batch, int64_t pools, double room, const char* mesh) {
  SCOPED_TRACE(Cat("to ", to, " of ", batch, ", room ", room, " on ", mesh));
  nn::ExpertsOptions o = SmallExperts();
  o.room = room;
  o.pools = pools;
  const Mesh of = ExpertMesh(mesh);
  const int64_t ranks = of.SizeAlong(of.FindAxes(o.ep)), each = batch / pools,
                kept = std::min<int64_t>(each, std::max<int64_t>(1, std::ceil(room * each / ranks)));
  ExpectOthersUntouched(to, batch, o, mesh, static_cast<double>(each - kept) / each);
}

TEST(RankExperts, LeaveThoseThatNoneChoosesAlone) {
  for (const char* mesh : {"cpu:dp=1", "cpu:ep=2", "cpu:ep=4", "cpu:tp=2,ep=2"})
    for (int64_t to : {0, 3})
      for (double room : {kForAll, 1., .1}) {
        ExpectOneExpertAlone(to, 1, 1, room, mesh);
        ExpectOneExpertAlone(to, 16, 8, room, mesh);
      }
}

// --- What is planned, and shown

struct SmallPlan {
  Model model{ExpertMesh("cpu:dp=4")};
  std::optional<Session> session;
  explicit SmallPlan(double room, bool trained = true, int64_t layers = 1) {
    nn::ExpertsOptions o = SmallExperts();
    o.experts = 8;
    o.ep = "dp";
    o.room = room;
    Tensor x = model.Input("x", {8, 64, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    x = x * model.scope().Weight("scale", {kWidth}, Ones());  // whose gradient is that of all rows
    Tensor y = nn::layers(model.scope(), x, layers,
                          [&](Scope s, Tensor h, int64_t) { return h + nn::Experts(s / "experts", h, o).y; });
    session.emplace(trained ? Train(mean(square(y)), Sgd{.lr = .1}, {}) : Evaluate({{"y", y}}));
  }
  const Compiled& compiled() const { return session->impl()->compiled; }
};

// Rows, what is chosen of them, and what comes back, and their gradients; each region has the count of one
// pool and rank. Products count the rows that are expected, not the room.
TEST(RankExperts, PlanToMoveAndMultiplyRowsAlone) {
  for (double room : {1.5, 4.}) {
    const SmallPlan plan(room);
    int counted = 0;
    double flops = 0;
    for (const RankPlan& made : PlansOf(plan.compiled(), {0}, 1))
      for (const plan::Actor& actor : made.plan.actor()) {
        for (const plan::Kernel& kernel : actor.kernel())
          if (kernel.name().rfind("grouped_matmul", 0) == 0) flops += kernel.flops();
        const plan::Collective& c = actor.collective();
        for (const plan::RegionList& work : c.work())
          for (const plan::Region& region : work.region()) {
            EXPECT_EQ(region.count() > 0, c.counts() > 0) << actor.name();
            if (region.count() == 0) continue;
            EXPECT_EQ(region.count() - 1, region.box().begin(1) * 4 + region.box().begin(0)) << actor.name();
            EXPECT_EQ(region.box().extent(0) * region.box().extent(1), 1) << actor.name();
          }
        counted += c.counts() > 0;
        if (c.counts() > 0) EXPECT_EQ(c.primitive(), "all_to_all") << actor.name();
      }
    EXPECT_EQ(counted, 6);
    const double choices = 8. / 4 * 64 * 2;  // of a rank
    EXPECT_NEAR(flops, 3 * 2 * (2 * choices * kWidth * kInner), 1e-6 * flops) << "room " << room;
  }
}

// The bytes that are planned are those of the room; there and back, and for gradients.
TEST(RankExperts, SendAtMostTheirRoom) {
  auto sent = [](int64_t layers, bool trained) {
    return SmallPlan(1.5, trained, layers).session->Summaries()[0].bytes_sent;
  };
  const double places = std::min<double>(64, std::ceil(1.5 * 2 * 64 / 4)),
               rows = 3. / 4 * (8. / 4) * 4 * places, counts = 8 * 4 * 4 * 3. / 4;
  EXPECT_EQ(sent(3, false) - sent(1, false), 2 * (rows * 4 * (2 * kWidth + 2 * 2) + counts));
}

TEST(RankExperts, NoMessageOfTheirsIsLeftOutUnseen) {
  const SmallPlan plan(1.5);
  const Graph& compiled = plan.compiled().graph;
  int messages = 0, gathers = 0;
  for (int n : compiled.Order()) {
    if (CountsOf(compiled.node(n)) < 0) continue;
    Graph without = compiled;
    const int to = without.node(n).out[0];
    const std::vector<std::vector<int>> readers = without.Readers();
    for (int r : readers[to])
      for (int& v : without.node(r).in)
        if (v == to) v = without.node(n).in[0];
    without.Remove(n);
    EXPECT_NE(ErrorOf([&] { VerifyGraph(without, Level::kLowered); }), "") << compiled.Describe(n);
    ++messages;
    // Each rank counts for itself.
    Graph apart = compiled;
    Node& node = apart.node(n);
    const int known = node.in[1], own = apart.producer(known).in[0];
    node.in[1] = own;
    EXPECT_NE(ErrorOf([&] { VerifyGraph(apart, Level::kLowered); }), "") << compiled.Describe(n);
    node.want[1] = apart.value(own).sbp;
    const std::string error = ErrorOf([&] { VerifyGraph(apart, Level::kLowered); });
    EXPECT_NE(error.find("ranks do not know it alike"), std::string::npos) << error;
    ++gathers;
  }
  EXPECT_EQ(messages, 6);
  EXPECT_EQ(gathers, 6);
}

// Where blocks are computed again their routes are not, in both forms.
TEST(RankExperts, KeepTheirRoutesWhereBlocksAreRecomputed) {
  for (double room : {0., 1.5}) {
    Model model(ExpertMesh("cpu:dp=2"));
    nn::ExpertsOptions o = SmallExperts();
    o.ep = "dp";
    o.room = room;
    Tensor x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = nn::layers(model.scope(), x, 3,
                          [&](Scope s, Tensor h, int64_t) { return h + nn::Experts(s / "experts", h, o).y; });
    const Session train = Train(mean(square(y)), Sgd{.lr = .1}, {.recompute = Recompute::kFull});
    std::map<std::string, int> times;
    for (const Graph& graph = train.impl()->compiled.graph; int n : graph.Order()) ++times[graph.node(n).op];
    EXPECT_EQ(times[room > 0 ? "route_ranks" : "route"], 3);
    EXPECT_EQ(times["sort_choices"], room > 0 ? 3 : 0);
  }
}

// The search measures their messages as any others.
TEST(RankExperts, AreInPlansThatAreSearchedFor) {
  PlanSpace space;
  space.devices = 4;
  space.batch = 8;
  space.zero = 0;
  space.recompute = Recompute::kNone;
  space.virtual_stages = 1;
  const BuildPlan build = [](const PlanCandidate& candidate) {
    ModelOptions model_options;
    TrainOptions options;
    candidate.Set(&model_options, &options);
    options.parallel = {.batch = "dp", .tensor = "tp", .context = ""};
    Model model(candidate.mesh, model_options);
    nn::ExpertsOptions o = SmallExperts();
    o.ep = "dp";
    o.room = 1.5;
    Tensor x = model.Input("x", {8, 64, kWidth}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = nn::layers(model.scope(), x, 2,
                          [&](Scope s, Tensor h, int64_t) { return h + nn::Experts(s / "experts", h, o).y; });
    return Train(mean(square(y)), Sgd{.lr = .1}, options);
  };
  const PlanSearchResult found = SearchPlans(space, Machine(), build, {.compiled = 4});
  EXPECT_EQ(found.chosen().mesh.size(), 4);
}

// A run with this room drops nothing.
TEST(RankExperts, ShowTheRoomThatIsWanted) {
  nn::ExpertsOptions o = SmallExperts();
  auto dropped = [&](double room, double* wanted) {
    Model model(ExpertMesh("cpu:ep=2"));
    o.room = room;
    Tensor x = model.Input("x", kShape, DType::kFloat32);
    Session train = Train(mean(square(nn::Experts(model.scope() / "e", x, o).y)), Sgd{.lr = .1}, {});
    StepResult r = train.Run({{"x", Floats(0, kShape)}});
    *wanted = r.Scalar("e/room");
    return r.Scalar("e/dropped");
  };
  double wanted = 0, again = 0;
  EXPECT_GT(dropped(.9, &wanted), 0);
  EXPECT_GT(wanted, .9);
  EXPECT_EQ(dropped(wanted, &again), 0);
  EXPECT_EQ(again, wanted);
  EXPECT_GT(dropped(wanted - .2, &again), 0);
}

TEST(RankExperts, NameWhatHasNoRoom) {
  auto refuse = [](const std::string& wanted, const std::function<void()>& run) {
    const std::string error = ErrorOf(run);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  Model model(ExpertMesh("cpu:ep=2"));
  Tensor x = model.Input("x", kShape, DType::kFloat32);
  nn::ExpertsOptions o = SmallExperts();
  o.room = .9;
  o.overflow = nn::ExpertOverflow::kError;
  Session train = Train(mean(nn::Experts(model.scope() / "f", x, o).y), Sgd{}, {});
  refuse(
      "nn::Experts 'f' at rank_experts_test.cc:\\d+.*: experts (0 to 1|2 to 3) are chosen \\d+ times in pool "
      "\\d+ but their rank has room for 6; give more room .*, or let it drop",
      [&] {
        train.Run({{"x", Floats(1, kShape)}}).Wait();
      });
  o.experts = 5;
  refuse(
      "^nn::Experts 'g' at rank_experts_test.cc:\\d+: room is that of a rank, but the 2 ranks of mesh axis "
      "ep do "
      "not divide the 5 experts; make them a multiple, or set room to 0",
      [&] { nn::Experts(model.scope() / "g", x, o); });
  o.room = -1;
  refuse("room is -1 but must be at least 0", [&] { nn::Experts(model.scope() / "h", x, o); });
}

}  // namespace
}  // namespace oneflow_like
