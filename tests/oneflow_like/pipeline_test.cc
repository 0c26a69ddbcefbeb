// Pipeline schedules through the whole path: stages whose forward and backward take equally long (an operator
// of the test's own that waits), compiled, and run in real time with a thread for each stage.
// ctest: seconds=12 waits serial
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "oneflow_like/oneflow_like.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/error_of.h"

namespace oneflow_like {
namespace {

constexpr double kWait = 0.008;   // seconds of one act, for the compiler
std::atomic<double> stretch = 1;  // by which the kernels wait longer

Status Wait(const KernelContext& c) {
  std::this_thread::sleep_for(std::chrono::duration<double>(kWait * stretch));
  std::copy_n(c.in[0].as<float>(), c.in[0].elements(), c.out[0].as<float>());
  return Status();
}

OpDef WaitOperator(const std::string& name) {
  OpDef def;
  def.name = name;
  def.doc = "The identity, after a while.";
  def.axes = "x[a b] -> y[a b]";
  def.linear = {{"x"}};
  def.reference = Wait;
  def.flops = [](const BoundRule& rule) {  // a row is a micro-batch
    return kWait * Machine().flops * static_cast<double>(rule.in[0].shape[0]);
  };
  if (name == "wait")
    def.grad = [](const GradCall& call) { return Apply(call.dout[0].graph(), "wait_grad", {call.dout[0]}); };
  return def;
}

// A product whose two gradients take as long as itself. What it gives does not matter.
std::vector<OpDef> WaitingProduct() {
  auto waiting = [](const char* name, const char* axes, std::vector<std::set<std::string>> linear) {
    OpDef def;
    def.name = name;
    def.doc = "Its first operand, or zeros, after a while.";
    def.axes = axes;
    def.linear = std::move(linear);
    def.category = "matmul";
    def.reference = [](const KernelContext& c) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kWait * stretch));
      float* out = c.out[0].as<float>();
      std::fill_n(out, c.out[0].elements(), 0.0f);
      if (c.out[0].elements() == c.in[0].elements())
        std::copy_n(c.in[0].as<float>(), c.in[0].elements(), out);
      return Status();
    };
    def.flops = [](const BoundRule& rule) {
      return kWait * Machine().flops * static_cast<double>(rule.in[0].shape[0]);
    };
    return def;
  };
  std::vector<OpDef> all = {waiting("wait_product", "x[a b], w[b] -> y[a b]", {{"x"}, {"w"}}),
                            waiting("wait_dx", "dy[a b], w[b] -> dx[a b]", {{"dy"}, {"w"}}),
                            waiting("wait_dw", "x[a b], dy[a b] -> dw[b]", {{"x"}, {"dy"}})};
  all[2].folds = {{"a", Reduce::kSum}};
  all[0].grad = [](const GradCall& call) {
    GraphBuilder* graph = call.dout[0].graph();
    return std::vector<Tensor>{Apply(graph, "wait_dx", {call.dout[0], call.in[1]})[0],
                               Apply(graph, "wait_dw", {call.in[0], call.dout[0]})[0]};
  };
  return all;
}

struct WaitingPipeline {
  // Stages of products; rounds > 0: that many over the stages.
  WaitingPipeline(int stages, int micro_batches, PipelineSchedule schedule, int rounds)
      : model(Mesh("cpu", {{"pp", stages}}), Options(stages)) {
    Tensor h = model.Input("x", {micro_batches, 4}, DType::kFloat32);
    // A product before them, so that somebody waits for the gradient of what enters the first one.
    h = matmul(h, model.scope().Stage("pp", 0).Weight("first", {4, 4}, Ones()));
    for (int i = 0; i < stages * rounds; ++i) {
      Scope stage = model.scope().Stage("pp", i % stages);
      if (i > 0) h = to_stage(h, "pp", i % stages);
      h = Apply(h.graph(), "wait_product", {h, stage.Weight("w" + std::to_string(i), {4}, Ones())})[0];
    }
    Finish(square(h), micro_batches, schedule);  // the backward pass reads what the last stage computed
  }
  WaitingPipeline(int stages, int micro_batches, PipelineSchedule schedule)
      : model(Mesh("cpu", {{"pp", stages}}), Options(stages)) {
    Tensor h = model.Input("x", {micro_batches, 4}, DType::kFloat32);
    for (int i = 0; i < stages; ++i) {
      Scope stage = model.scope().Stage("pp", i);
      h = mul(i == 0 ? h : to_stage(h, "pp", i), stage.Weight("w" + std::to_string(i), {4}, Ones()));
      h = Apply(h.graph(), "wait", {square(h)})[0];  // the backward reads what the stage computed
    }
    Finish(h, micro_batches, schedule);
  }
  void Finish(Tensor h, int micro_batches, PipelineSchedule schedule) {
    TrainOptions options;
    options.micro_batches = micro_batches;
    options.schedule = schedule;
    session = std::make_unique<Session>(Train(mean(h), Sgd{.lr = 0.0}, options));
    feed = {{"x", HostTensor::Make(DType::kFloat32, {micro_batches, 4})}};
  }
  static ModelOptions Options(int stages) {
    ModelOptions options;
    options.threads = stages;
    options.operators = WaitingProduct();
    for (const char* name : {"wait", "wait_grad"}) options.operators.push_back(WaitOperator(name));
    return options;
  }
  const LogicalPlan& plan() const { return session->impl()->compiled.logical; }
  int StageOf(int segment) const { return plan().segments[segment].slice.fixed[0]; }

  // "F0 F1 B0 ..." of one stage, as compiled.
  std::string Order(int stage) const {
    std::string text;
    for (const Firing& f : plan().order) {
      const Segment& s = plan().segments[f.transition];
      if (!plan().On(s, StreamKind::kCompute) || !s.per_micro_batch || StageOf(f.transition) != stage)
        continue;
      text += (text.empty() ? "" : " ") + std::string(s.phase == Phase::kForward ? "F" : "B") +
              std::to_string(f.act);
    }
    return text;
  }

  // Most slots of what a stage computes forward and keeps for backward. (What it receives has one slot more:
  // the next micro-batch may arrive early.)
  int Stash(int stage) const {
    int slots = 0;
    for (const LogicalBuffer& b : plan().buffers) {
      if (b.writer < 0 || StageOf(b.writer) != stage) continue;
      const Segment& writer = plan().segments[b.writer];
      if (writer.phase != Phase::kForward || !plan().On(writer, StreamKind::kCompute)) continue;
      for (int r : b.readers)
        if (plan().segments[r].phase == Phase::kBackward &&
            plan().On(plan().segments[r], StreamKind::kCompute))
          slots = std::max(slots, b.slots);
    }
    return slots;
  }

  // From the first act of a step to the end of the last forward or backward act, over the time a stage spends
  // in them. A busy machine stretches the waits as well.
  double TimeOverWork(int stages) {
    session->Run(feed).Wait();  // loads everything
    session->impl()->runtime->Record(true);
    session->Run(feed).Wait();
    session->impl()->runtime->Record(false);
    double first = 1e300, last = 0, inside = 0;
    for (const ActRecord& r : session->impl()->runtime->TakeRecords())
      if (r.stream == 0 && plan().segments[r.actor].per_micro_batch) {
        first = std::min(first, r.start);
        last = std::max(last, r.end);
        inside += r.end - r.start;
      }
    return (last - first) / (inside / stages);
  }

  Model model;
  std::unique_ptr<Session> session;
  Feeds feed;
};

std::string OneForwardOneBackward(int stages, int stage, int micro_batches) {
  std::string text;
  int f = 0, b = 0;
  auto add = [&](char what, int act) {
    text += (text.empty() ? "" : " ") + std::string(1, what) + std::to_string(act);
  };
  for (; f < std::min(stages - stage, micro_batches); ++f) add('F', f);
  while (b < micro_batches) {
    add('B', b++);
    if (f < micro_batches) add('F', f++);
  }
  return text;
}

TEST(PipelineTest, OneForwardOneBackwardOrderAndStash) {
  for (int p = 2; p <= 4; ++p)
    for (int m = 4; m <= 16; ++m) {
      WaitingPipeline pipeline(p, m, PipelineSchedule::k1F1B);
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(pipeline.Order(i), OneForwardOneBackward(p, i, m))
            << "p=" << p << " m=" << m << " stage " << i;
        EXPECT_EQ(pipeline.Stash(i), std::min(p - i, m)) << "p=" << p << " m=" << m << " stage " << i;
      }
      double ideal = 2 * m * kWait;
      EXPECT_NEAR(pipeline.plan().makespan / ideal - 1, double(p - 1) / m, 0.05) << "p=" << p << " m=" << m;
    }
}

TEST(PipelineTest, GPipeRunsAllForwardsFirst) {
  WaitingPipeline pipeline(3, 5, PipelineSchedule::kGPipe);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pipeline.Order(i), "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4") << "stage " << i;
    EXPECT_EQ(pipeline.Stash(i), 5) << "stage " << i;
  }
}

// A stage that would idle in a training, whichever it is, is an Error that names it; an evaluation may use a
// part of the mesh.
TEST(PipelineTest, ATrainingHasWorkForEveryStage) {
  constexpr int kStages = 3;
  for (int used = 1; used < 1 << kStages; ++used) {
    SCOPED_TRACE("stages used, a bit each: " + std::to_string(used));
    Model model(Mesh("cpu", {{"pp", kStages}}));
    Tensor h = model.Input("x", {4, 4}, DType::kFloat32);
    int idle = -1;  // the first
    for (int i = 0; i < kStages; ++i) {
      if (used >> i & 1)
        h = mul(to_stage(h, "pp", i),
                model.scope().Stage("pp", i).Weight("w" + std::to_string(i), {4}, Ones()));
      else if (idle < 0)
        idle = i;
    }
    EXPECT_EQ(ErrorOf([&] { Evaluate({{"h", h}}); }), "");
    const std::string error = ErrorOf([&] { Train(mean(h), Sgd{}); });
    const std::string wanted = idle < 0 ? "" : "stage pp=" + std::to_string(idle) + " has no work";
    EXPECT_NE(error.find(wanted), std::string::npos) << error << "\n  wanted: " << wanted;
    EXPECT_EQ(error.empty(), wanted.empty()) << error;
  }
}

// Waiting takes no core, but other work on this machine delays some acts by milliseconds, however long they
// are: of some tries, later ones with longer waits, the one closest to the schedule's own counts.
void ExpectBubble(WaitingPipeline* pipeline, int stages, double paper, const std::string& where) {
  constexpr int kTries = 18, kTriesOfALength = 3;
  double closest = 1e300;
  stretch = 1;
  for (int attempt = 0; attempt < kTries && std::abs(closest - paper) > 0.05; ++attempt) {
    if (attempt > 0 && attempt % kTriesOfALength == 0) stretch = 2 * stretch;
    const double bubble = pipeline->TimeOverWork(stages) - 1;
    if (std::abs(bubble - paper) < std::abs(closest - paper)) closest = bubble;
  }
  std::printf("%s: bubble %.3f, on paper %.3f, of acts of %.0f ms\n", where.c_str(), closest, paper,
              kWait * stretch * 1e3);
  EXPECT_NEAR(closest, paper, 0.05) << where;
}

TEST(PipelineTest, BubbleInRealTime) {
  for (int p = 2; p <= 4; ++p)
    for (int m : {4, 8, 16}) {
      WaitingPipeline pipeline(p, m, PipelineSchedule::k1F1B);
      ExpectBubble(&pipeline, p, double(p - 1) / m, Cat("1F1B, p=", p, " m=", m));
    }
}

TEST(PipelineTest, BubbleInRealTimeOfRoundsAndSplitGradients) {
  for (int p : {2, 4})
    for (int m : {4, 6, 8}) {
      WaitingPipeline interleaved(p, m, PipelineSchedule::kInterleaved, 2);
      ExpectBubble(&interleaved, p, (p - 1) / (2.0 * m), Cat("interleaved, 2 rounds, p=", p, " m=", m));
      WaitingPipeline apart(p, m, PipelineSchedule::kZeroBubble, 1);
      ExpectBubble(&apart, p, (p - 1) / (3.0 * m), Cat("zero bubble, p=", p, " m=", m));
    }
}

}  // namespace
}  // namespace oneflow_like
