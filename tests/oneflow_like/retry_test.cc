// nn::Experts with ExpertOverflow::kRetry: steps without room run again, and nothing differs from a training
// with as much room throughout, on every mesh, in one process and in several.
// ctest: seconds=60
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <future>
#include <optional>
#include <regex>
#include <set>

#include "core/device/backend.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/placement.h"
#include "oneflow_like/session/budget.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/oneflow_like/expert_runs.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

constexpr int kSteps = 14;

struct Case {
  Setting setting;
  int steps_in_flight = 2;
  double room = 1.4;
  bool read_each = false;  // results, before the next step is launched
  SkipSteps skip = {};
  Offload offload = {};
};

// Layers whose draws, running numbers, norms and averages all follow the step.
struct RetryModel {
  Model model;
  TrainOptions options;
  std::optional<Session> train;
  Tensor x, y, loss;
  RetryModel(const Setting& run, nn::ExpertsOptions o, int steps_in_flight,
             std::shared_ptr<Job> job = nullptr, const ModelOptions& given = {}, const SkipSteps& skip = {})
      : model(ExpertMesh(run.mesh), OptionsOf(run, std::move(job), given)) {
    o.ep = run.axis;
    o.bias_balance = .01;
    o.aux_loss = .1;
    o.jitter = .1;
    x = model.Input("x", kShape, DType::kFloat32, {{"dp", S(0)}});
    std::vector<Tensor> terms;
    y = nn::layers(model.scope(), x, 2, [&](Scope s, Tensor h, int64_t) {
      const nn::ExpertsResult result = nn::Experts(s / "experts", nn::RmsNorm(s / "norm", h), o);
      terms.push_back(result.loss);
      return h + dropout(result.y, .2);
    });
    loss = mean(square(y - scale(to_stage_of(x, y), .5)));
    for (Tensor& term : terms) loss = loss + to_stage_of(term, loss);
    options.micro_batches = run.micro_batches;
    options.recompute = run.recompute;
    options.schedule = run.schedule;
    options.dtype = run.dtype;
    options.steps_in_flight = steps_in_flight;
    options.clip_norm = 1;
    options.skip = skip;
    Tensor steps = model.scope().State("steps", {}, Full(0), {.dtype = DType::kInt32});
    options.also = {assign(steps, steps + 1)};
    options.average = {.decay = .9};
    options.lr_schedule = {.kind = Schedule::Kind::kCosine, .warmup = 3, .total = 20};
    train.emplace(Train(loss, AdamW{.lr = .02}, options));
  }
  static ModelOptions OptionsOf(const Setting& run, std::shared_ptr<Job> job, ModelOptions options) {
    if (run.zero > 0) options.zero = {.axis = "dp", .stage = run.zero, .small = 0};
    if (job) options.threads = 1;
    options.job = std::move(job);
    return options;
  }
};

nn::ExpertsOptions WithRoom(double room, nn::ExpertOverflow overflow) {
  nn::ExpertsOptions o = SmallExperts();
  o.room = room;
  o.overflow = overflow;
  o.pools = 8;
  return o;
}

struct Trained {
  std::vector<float> losses;
  Outputs variables;
  std::vector<bool> again, skipped;  // by step
  int64_t ran_again = 0;
};

Trained TrainFor(RetryModel* run, bool retries, bool read_each, int steps = kSteps) {
  Trained trained;
  std::vector<StepResult> results;
  for (int step = 0; step < steps; ++step) {
    results.push_back(run->train->Run({{"x", Floats(step, kShape)}}));
    EXPECT_EQ(results.back().step(), step);
    if (read_each) results.back().Wait();
  }
  for (const StepResult& result : results) {
    trained.losses.push_back(result.Scalar("loss"));
    EXPECT_EQ(result.Scalar("block1/experts/dropped"), 0);
    if (retries) trained.again.push_back(result.Scalar("retried") > 0);
    if (run->options.skip.above > 0) trained.skipped.push_back(result.Scalar("skipped") > 0);
  }
  for (const std::string& name : run->model.Variables()) trained.variables[name] = run->model.Read(name);
  if (retries) trained.ran_again = run->train->impl()->retries->count();
  return trained;
}

Trained TrainFor(const Case& c, const nn::ExpertsOptions& o, std::shared_ptr<Job> job = nullptr) {
  RetryModel run(c.setting, o, c.steps_in_flight, std::move(job), {.seed = 6, .offload = c.offload}, c.skip);
  return TrainFor(&run, o.overflow == nn::ExpertOverflow::kRetry, c.read_each);
}

void ExpectSameBits(const Trained& got, const Trained& wanted, const std::string& what) {
  EXPECT_EQ(got.losses, wanted.losses) << what;
  EXPECT_EQ(got.skipped, wanted.skipped) << what;
  ASSERT_EQ(got.variables.size(), wanted.variables.size()) << what;
  for (const auto& [name, value] : wanted.variables)
    EXPECT_TRUE(SameBytes(got.variables.at(name), value)) << what << " " << name;
}

// The longest run of steps that ran again.
int Longest(const std::vector<bool>& again) {
  int longest = 0, now = 0;
  for (const bool one : again) longest = std::max(longest, now = one ? now + 1 : 0);
  return longest;
}

TEST(Retry, GivesTheBitsOfMoreRoomThroughout) {
  using enum PipelineSchedule;
  const Case cases[] = {
      {{"cpu:ep=2"}, 1},
      {{"cpu:ep=2"}, 2, 1.4, true},
      {{"cpu:dp=2,ep=2"}, 3},
      {{"cpu:dp=4,ep=1", 2, 0, "dp"}, 2, 1.6},
      {{"cpu:dp=2,tp=2,ep=2", 2}, 4, 1.45},
      {{"cpu:dp=2,ep=2", 2, 1}, 3},
      {{"cpu:dp=2,ep=2", 2, 3, "ep", Recompute::kFull}, 2},
      {{"cpu:pp=2,ep=2", 4}, 2},
      {{"cpu:dp=2,pp=2", 4, 2, "dp", Recompute::kSelective, kZeroBubble}, 3},
      {{"cpu:dp=2,tp=2,pp=2", 2, 0, "dp*tp"}, 2, 1.6},
      {{"cpu:dp=2,ep=2", 2, 0, "ep", Recompute::kNone, k1F1B, DType::kBFloat16}, 2},
      {{"cpu:dp=2,ep=2", 2, 0, "ep", Recompute::kNone, k1F1B, DType::kFloat16}, 3},
      {{"cpu:dp=2,ep=2", 2}, 3, 1.4, false, {.above = 4.9}},
      {{"cpu:dp=2,ep=2", 2}, 3, 1.4, false, {}, {.optimizer = 1, .small = 0}},
  };
  std::set<int> longest;
  for (const Case& c : cases) {
    const Trained wanted = TrainFor(c, WithRoom(8, nn::ExpertOverflow::kError));
    const Trained got = TrainFor(c, WithRoom(c.room, nn::ExpertOverflow::kRetry));
    ExpectSameBits(got, wanted, c.setting.str());
    EXPECT_GT(got.ran_again, 0) << c.setting.str();
    EXPECT_LT(got.ran_again, kSteps) << c.setting.str();
    EXPECT_EQ(std::count(got.again.begin(), got.again.end(), true), got.ran_again) << c.setting.str();
    longest.insert(Longest(got.again));
    if (c.skip.above == 0) continue;
    EXPECT_NE(std::count(got.skipped.begin(), got.skipped.end(), true), 0);
    EXPECT_NE(std::count(got.skipped.begin(), got.skipped.end(), false), 0);
  }
  EXPECT_EQ(*longest.begin(), 1) << "a step by itself";
  EXPECT_GT(*longest.rbegin(), 8) << "and many of those in flight";
}

// What a step that runs again changes is all that the one before it has left: also of steps whose gradients
// overflow in fp16.
TEST(Retry, LeavesTheLossScaleToStepsWithRoom) {
  const Case c = {{"cpu:dp=2,ep=2", 2, 0, "ep", Recompute::kNone, PipelineSchedule::k1F1B, DType::kFloat16},
                  3};
  Trained trained[2];
  for (const bool retries : {false, true}) {
    RetryModel run(
        c.setting,
        retries ? WithRoom(c.room, nn::ExpertOverflow::kRetry) : WithRoom(8, nn::ExpertOverflow::kError),
        c.steps_in_flight);
    run.model.Write("train:loss_scale", ToHost<float>({1e13f}, {}));  // too much, in the first steps
    trained[retries] = TrainFor(&run, retries, false);
  }
  ExpectSameBits(trained[true], trained[false], "fp16");
  const float scale = trained[true].variables.at("train:loss_scale").as<float>()[0];
  EXPECT_GT(scale, 1);
  EXPECT_LT(scale, 1e13f / 8) << "no gradient has overflowed";
  EXPECT_GT(trained[true].ran_again, 0);
}

// Processes need not read the same results, nor at the same time.
TEST(Retry, HappensInTheSameStepInAllProcesses) {
  const std::pair<Setting, int> runs[] = {{{"cpu:dp=4", 2, 0, "dp"}, 1},
                                          {{"cpu:dp=4", 2, 1, "dp"}, 2},
                                          {{"cpu:dp=4", 2, 0, "dp"}, 3},
                                          {{"cpu:pp=2,ep=2", 4}, 4}};
  for (const auto& [setting, in_flight] : runs) {
    const double room = setting.axis == std::string("dp") ? 1.6 : 1.45;
    Trained wanted[2];
    const auto train = [&](double room, nn::ExpertOverflow overflow, bool read, std::shared_ptr<Job> job) {
      const int process = job->process();
      const Trained trained = TrainFor({setting, in_flight, room, read && process == 0},
                                       WithRoom(room, overflow), std::move(job));
      if (overflow == nn::ExpertOverflow::kError) {
        wanted[process] = trained;
        return;
      }
      ExpectSameBits(trained, wanted[process], Cat(setting.str(), " process ", process));
      EXPECT_GT(trained.ran_again, 0) << setting.str();
      EXPECT_LT(trained.ran_again, kSteps) << setting.str();
    };
    for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
           train(8, nn::ExpertOverflow::kError, false, std::move(job));
         }))
      EXPECT_EQ(error, "") << setting.str();
    for (const bool read : {false, true})
      for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
             train(room, nn::ExpertOverflow::kRetry, read, std::move(job));
           }))
        EXPECT_EQ(error, "") << setting.str();
  }
}

// --- What reads the variables, and other sessions, between steps

TEST(Retry, EvaluationsSeeWhatStepsThatRanAgainLeft) {
  const Setting setting = {"cpu:dp=2,ep=2", 2};
  std::vector<HostTensor> seen[2];
  for (const bool retries : {false, true}) {
    RetryModel run(
        setting,
        retries ? WithRoom(1.2, nn::ExpertOverflow::kRetry) : WithRoom(8, nn::ExpertOverflow::kError), 3);
    Session eval = Evaluate({{"y", run.y}});
    for (int step = 0; step < 8; ++step) {
      run.train->Run({{"x", Floats(step, kShape)}});  // whose results nobody reads
      if (step % 2 == 1) seen[retries].push_back(eval.Run({{"x", Floats(100 + step, kShape)}}).Get("y"));
    }
    if (retries) {
      EXPECT_GT(run.train->impl()->retries->count(), 0);
    }
  }
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(SameBytes(seen[0][i], seen[1][i])) << i;
}

TEST(Retry, CheckpointsHaveWhatStepsThatRanAgainLeft) {
  const Setting setting = {"cpu:dp=2,ep=2", 2, 1};
  const nn::ExpertsOptions retry = WithRoom(1.2, nn::ExpertOverflow::kRetry),
                           plenty = WithRoom(8, nn::ExpertOverflow::kError);
  const std::string folder = testing::TempDir() + "/retry_test_checkpoint";
  std::filesystem::remove_all(folder);
  RetryModel wanted(setting, plenty, 3);
  TrainFor(&wanted, false, false, 5);
  {
    RetryModel run(setting, retry, 3);
    for (int step = 0; step < 5; ++step) {
      run.train->Run({{"x", Floats(step, kShape)}});
      if (step == 0 || step == 4) Save(run.model, folder);
    }
    EXPECT_GT(run.train->impl()->retries->count(), 0);
  }
  for (const nn::ExpertsOptions& o : {retry, plenty}) {
    RetryModel run(setting, o, 3);
    Load(run.model, folder);
    EXPECT_EQ(run.model.next_step("train"), 5);
    for (const std::string& name : wanted.model.Variables())
      EXPECT_TRUE(SameBytes(run.model.Read(name), wanted.model.Read(name))) << name;
    EXPECT_EQ(run.model.Variables(), wanted.model.Variables());
  }
}

// A result may be read on several threads: none sees what a step left before it ran again.
TEST(Retry, ResultsAreReadOnTwoThreads) {
  const Setting setting = {"cpu:dp=2,ep=2", 2};
  RetryModel run(setting, WithRoom(.8, nn::ExpertOverflow::kRetry), 2),
      wanted(setting, WithRoom(8, nn::ExpertOverflow::kError), 2);
  for (int step = 0; step < 8; ++step) {
    const Feeds feeds = {{"x", Floats(step, kShape)}};
    const StepResult result = run.train->Run(feeds);
    auto other = std::async(std::launch::async, [result] { return result.Scalar("loss"); });
    EXPECT_EQ(result.step(), step);
    const float loss = result.Scalar("loss");
    EXPECT_EQ(loss, wanted.train->Run(feeds).Scalar("loss")) << step;
    EXPECT_EQ(loss, other.get()) << step;
  }
}

// Back to an earlier step, while others are in flight.
TEST(Retry, CheckpointsAreReadBetweenSteps) {
  const Setting setting = {"cpu:dp=2,ep=2", 2};
  const std::string folder = testing::TempDir() + "/retry_test_read";
  Trained trained[2];
  for (const bool retries : {false, true}) {
    std::filesystem::remove_all(folder);
    RetryModel run(
        setting,
        retries ? WithRoom(1.2, nn::ExpertOverflow::kRetry) : WithRoom(8, nn::ExpertOverflow::kError), 3);
    const auto train = [&](int first, int steps) {
      for (int step = 0; step < steps; ++step) run.train->Run({{"x", Floats(first + step, kShape)}});
    };
    train(0, 4);
    Save(run.model, folder).Wait();
    train(4, 3);
    Load(run.model, folder);
    EXPECT_EQ(run.train->next_step(), 4);
    train(104, 3);
    for (const std::string& name : run.model.Variables())
      trained[retries].variables[name] = run.model.Read(name);
  }
  ExpectSameBits(trained[true], trained[false], "read");
}

// A step that is closed before anybody has waited for it has run again, too.
TEST(Retry, SessionsEndWithAllStepsDone) {
  const Setting setting = {"cpu:dp=2,ep=2", 2};
  Outputs seen[2];
  for (const bool retries : {false, true}) {
    RetryModel run(
        setting,
        retries ? WithRoom(1.2, nn::ExpertOverflow::kRetry) : WithRoom(8, nn::ExpertOverflow::kError), 3);
    std::vector<StepResult> results;
    for (int step = 0; step < 2; ++step) results.push_back(run.train->Run({{"x", Floats(step, kShape)}}));
    run.train->Close();
    EXPECT_GT(results[1].Scalar("loss"), 0) << "which is known after the end";
    if (retries) {
      EXPECT_GT(results[0].Scalar("retried"), 0);
    }
    for (const std::string& name : run.model.Variables()) seen[retries][name] = run.model.Read(name);
  }
  ExpectNear(seen[1], seen[0], 0, "closed");
}

// Numbers come again, while steps that had them before have hardly ended: none runs again with their feeds.
TEST(Retry, StepsWhoseNumbersComeAgainHaveTheirOwnFeeds) {
  const Setting setting = {"cpu:dp=2,ep=2", 2};
  for (const int before : {6, 7}) {
    Trained trained[2];
    for (const bool retries : {false, true}) {
      RetryModel run(
          setting,
          retries ? WithRoom(1.2, nn::ExpertOverflow::kRetry) : WithRoom(8, nn::ExpertOverflow::kError), 2);
      for (int step = 0; step < before; ++step) run.train->Run({{"x", Floats(step, kShape)}});
      run.model.SetNextStep("train", before - 1);
      for (int step = before - 1; step < before + 3; ++step)
        trained[retries].losses.push_back(run.train->Run({{"x", Floats(100 + step, kShape)}}).Scalar("loss"));
      for (const std::string& name : run.model.Variables())
        trained[retries].variables[name] = run.model.Read(name);
    }
    ExpectSameBits(trained[true], trained[false], Cat(before, " steps before"));
  }
}

// --- Memory, and what is said

TEST(Retry, BothPlansShareOneArenaAsPlanned) {
  for (const Setting& setting : {Setting{"cpu:dp=2,ep=2", 2}, Setting{"cpu:dp=4", 2, 3, "dp"}}) {
    RetryModel run(setting, WithRoom(1.2, nn::ExpertOverflow::kRetry), 2);
    const auto bytes_of = [&](const Compiled& compiled, int rank) {
      return ArenaBytes(PlanOf(compiled, rank).plan);
    };
    const Session::Impl& session = *run.train->impl();
    TrainFor(&run, true, false, 4);
    EXPECT_GT(session.retries->count(), 0);
    const Store& store = *run.model.impl()->store;
    for (int rank = 0; rank < 4; ++rank) {
      const RankSummary said = SummaryOf(session, rank);
      const int64_t few = bytes_of(session.compiled, rank),
                    more = bytes_of(session.retries->compiled(), rank);
      EXPECT_EQ(said.retry_transient_bytes, more) << setting.str();
      EXPECT_EQ(said.transient_bytes, std::max(few, more)) << setting.str();
      EXPECT_EQ(store.ArenaBytes(rank), said.transient_bytes) << setting.str();
      // With what is no state of the model.
      EXPECT_EQ(store.PersistentBytes(rank), said.persistent_bytes) << setting.str();
      EXPECT_EQ(said.peak_bytes, said.persistent_bytes + said.transient_bytes) << setting.str();
      int64_t purposes = 0;
      for (const auto& [purpose, bytes] : said.purposes) purposes += bytes;
      EXPECT_EQ(purposes, said.peak_bytes) << setting.str();
    }
    EXPECT_NE(run.train->SummaryText().find("for steps in which experts had no room"), std::string::npos);
  }
}

// Also where a memory budget is given, with which signatures are those of the first plan.
TEST(Retry, BothPlansHaveTheSameSignatures) {
  for (const int64_t budget : {int64_t{0}, int64_t{1} << 30}) {
    RetryModel run({"cpu:dp=2,tp=2,ep=2", 2}, WithRoom(1.2, nn::ExpertOverflow::kRetry), 2, nullptr,
                   {.memory_budget = budget});
    const Session::Impl& session = *run.train->impl();
    const Graph &few = session.compiled.graph, &more = session.retries->compiled().graph;
    std::map<std::string, int> nodes;
    for (int n : more.Order()) nodes[more.node(n).name] = n;
    int compared = 0;
    for (int n : few.Order()) {
      const auto other = nodes.find(few.node(n).name);
      if (other == nodes.end() || few.node(n).kind != NodeKind::kOperator) continue;
      EXPECT_EQ(few.node(n).want, more.node(other->second).want) << few.Describe(n);
      for (size_t o = 0; o < few.node(n).out.size(); ++o)
        EXPECT_EQ(few.value(few.node(n).out[o]).sbp, more.value(more.node(other->second).out[o]).sbp)
            << few.Describe(n);
      ++compared;
    }
    EXPECT_GT(compared, 50);
  }
}

// Streams and groups of the second plan are its own; searches within a budget know of them, too.
TEST(Retry, DevicesHaveTheStreamsOfBothPlans) {
  RetryModel run({"cuda:dp=2,ep=2", 2}, WithRoom(1.2, nn::ExpertOverflow::kRetry), 2);
  const Session::Impl& session = *run.train->impl();
  const Asked asked = AskedOf(run.loss, AdamW{.lr = .02}, run.options, SourceLine{});
  const Budget budget = BudgetOf(asked, *asked.source);
  const plan::Plan few = PlanOf(session.compiled, 0).plan, more = PlanOf(session.retries->compiled(), 0).plan;
  const MemoryBesides of_few = MemoryBesidesPlan(*session.model, few),
                      of_more = MemoryBesidesPlan(*session.model, more);
  EXPECT_EQ(SummaryOf(session, 0).library_bytes,
            2 * kCudaBytesBesides - kCudaBytesOfOthers + of_few.device + of_more.device - of_more.libraries);
  EXPECT_EQ(budget.beside(few),
            2 * (kCudaBytesBesides + of_few.device) - kCudaBytesOfOthers - of_few.libraries);
  EXPECT_GT(of_few.communicators, 0);
}

// What a search within a budget chose is by the signatures of the first plan, also where it is read back.
TEST(Retry, SavedPlansRepeat) {
  Setting setting = {"cpu:dp=2,tp=2,ep=2", 2};
  setting.recompute = Recompute::kAuto;
  const nn::ExpertsOptions o = WithRoom(1.2, nn::ExpertOverflow::kRetry);
  const RetryModel found(setting, o, 2, nullptr, {.memory_budget = int64_t{1} << 30});
  EXPECT_FALSE(found.train->Plan().decisions.waits.empty());
  setting.recompute = Recompute::kNone;
  const RetryModel read(setting, o, 2, nullptr, {.plan = found.train->Plan().decisions});
  const auto signed_as = [](const RetryModel& of) {
    const Graph& graph = *of.train->impl()->compiled.options.asked.signed_as;
    std::string text;
    for (int n : graph.Order())
      for (int v : graph.node(n).out) text += Cat(graph.node(n).name, " ", graph.value(v).shape.str(), "\n");
    return text;
  };
  EXPECT_EQ(signed_as(read), signed_as(found));
  EXPECT_EQ(read.train->impl()->compiled.logical.hash, found.train->impl()->compiled.logical.hash);
}

TEST(Retry, BothPlansAreDumped) {
  const std::string folder = testing::TempDir() + "/retry_test_dump";
  std::filesystem::remove_all(folder);
  RetryModel run({"cpu:ep=2"}, WithRoom(1.2, nn::ExpertOverflow::kRetry), 2, nullptr, {.dump_dir = folder});
  run.train->Run({{"x", Floats(0, kShape)}}).Wait();
  for (const char* file : {"plan_rank1.txt", "plan_rank1_more_room.txt"})
    EXPECT_TRUE(std::filesystem::exists(folder + "/train/" + file)) << file;
}

// Traces are written last: what is being closed is, then.
TEST(Retry, SessionsCloseWhereTracesCannotBeWritten) {
  const std::string file = testing::TempDir() + "/retry_test_trace";
  std::filesystem::remove(file);
  RetryModel run({"cpu:dp=2,ep=2"}, WithRoom(1.2, nn::ExpertOverflow::kRetry), 2, nullptr,
                 {.trace_file = file});
  for (int step = 0; step < 3; ++step) run.train->Run({{"x", Floats(step, kShape)}});
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little = {100, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string error = ErrorOf([&] { run.train->Close(); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find("cannot be written"), std::string::npos) << error;
  EXPECT_NE(ErrorOf([&] { run.train->impl()->runtime->Launch({}); }).find("closed"), std::string::npos);
}

class Warnings : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const google::LogMessageTime&,
            const char* message, size_t size) override {
    if (severity == google::GLOG_WARNING) texts.emplace_back(message, size);
  }
  std::vector<std::string> texts;
};

TEST(Retry, IsToldOnce) {
  const Warnings warnings;
  RetryModel run({"cpu:dp=2,ep=2"}, WithRoom(1.2, nn::ExpertOverflow::kRetry), 2);
  const Trained trained = TrainFor(&run, true, false);
  EXPECT_GT(trained.ran_again, 2);
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_TRUE(std::regex_search(
      warnings.texts[0], std::regex("session train: in step \\d+ experts had no room for \\d+ choices")))
      << warnings.texts[0];
  const std::string profile = run.train->ProfileText();
  EXPECT_NE(profile.find(Cat("  ", trained.ran_again, " steps in which experts had no room")),
            std::string::npos)
      << profile;
  EXPECT_TRUE(std::regex_search(profile,
                                std::regex("with room 1\\.\\d+ block\\*/experts would have dropped nothing")))
      << profile;
}

// Before anything is waited for, too.
TEST(Retry, ProfilesCountStepsInFlight) {
  RetryModel run({"cpu:dp=2,ep=2"}, WithRoom(.8, nn::ExpertOverflow::kRetry), 2);
  for (int step = 0; step < 2; ++step) run.train->Run({{"x", Floats(step, kShape)}});
  const std::string profile = run.train->ProfileText();
  EXPECT_NE(profile.find("  2 steps in which experts had no room"), std::string::npos) << profile;
}

void ExpectNoRoom(const std::string& error) {
  EXPECT_TRUE(std::regex_search(
      error, std::regex("nn::Experts 'block\\d/experts' at retry_test.cc:\\d+.*: experts \\d to \\d are "
                        "chosen \\d+ times in pool \\d+ but their rank has room for \\d+")))
      << error;
}

TEST(Retry, FailsWhereTheSecondPlanHasNoRoomEither) {
  nn::ExpertsOptions o = WithRoom(.8, nn::ExpertOverflow::kRetry);
  o.retry_room = .9;
  for (const bool reads : {false, true}) {  // Session::Run throws, too
    RetryModel run({"cpu:dp=2,ep=2"}, o, 2);
    ExpectNoRoom(ErrorOf([&] {
      for (int step = 0; step < kSteps; ++step) {
        const StepResult result = run.train->Run({{"x", Floats(step, kShape)}});
        if (reads) result.Wait();
      }
    }));
  }
}

// Steps that have run again well stay so where one behind them fails.
TEST(Retry, StepsBeforeOneThatFailsAreDone) {
  nn::ExpertsOptions o = WithRoom(.8, nn::ExpertOverflow::kRetry);
  o.retry_room = 1.9;
  RetryModel run({"cpu:dp=2,ep=2"}, o, 4),
      wanted({"cpu:dp=2,ep=2"}, WithRoom(8, nn::ExpertOverflow::kError), 4);
  const auto x = [](int step) {
    HostTensor value = Floats(step, kShape);  // all tokens of step 2 are alike: they choose the same experts
    if (step == 2)
      for (int64_t i = 0; i < value.elements(); ++i) value.as<float>()[i] = i % kWidth == 2 ? 1 : 0;
    return Feeds{{"x", value}};
  };
  std::vector<StepResult> results;
  for (int step = 0; step < 4; ++step) results.push_back(run.train->Run(x(step)));
  for (int step = 0; step < 2; ++step)
    EXPECT_EQ(results[step].Scalar("loss"), wanted.train->Run(x(step)).Scalar("loss")) << step;
  for (int step = 2; step < 4; ++step) ExpectNoRoom(ErrorOf([&] { results[step].Wait(); }));
  ExpectNoRoom(ErrorOf([&] { run.train->Run(x(4)); }));
}

TEST(Retry, RefusesWhatItCannotDo) {
  const auto refuse = [](const std::string& wanted, const std::function<void()>& run) {
    const std::string error = ErrorOf(run);
    EXPECT_TRUE(std::regex_search(error, std::regex(wanted))) << error << "\n  wanted: " << wanted;
  };
  const auto build = [](double room, double retry_room, nn::ExpertOverflow overflow) {
    nn::ExpertsOptions o = WithRoom(room, overflow);
    o.retry_room = retry_room;
    RetryModel run({"cpu:ep=2"}, o, 2);
  };
  using enum nn::ExpertOverflow;
  refuse("overflow is kRetry, but steps run again for lack of room of ranks alone; set room",
         [&] { build(0, 0, kRetry); });
  refuse("retry_room is 2, which only overflow kRetry has a use for", [&] { build(1, 2, kDrop); });
  refuse("retry_room is 1 but must be at least room, which is 2", [&] { build(2, 1, kRetry); });
  refuse("retry_room is -1 but must be at least 0", [&] { build(2, -1, kRetry); });
  const auto write = [](bool part) {
    Model model(ExpertMesh("cpu:ep=2"));
    Scope s = model.scope();
    Tensor x = model.Input("x", kShape, DType::kFloat32);
    Tensor y = nn::Experts(s / "e", x, WithRoom(1.2, kRetry)).y;
    Tensor kept = s.State("kept", {kBatch, kTokens, kWidth}, Zeros());
    TrainOptions options;
    options.also = {part ? assign_slice(kept, 0, full(s.graph(), Dims{}, 0, DType::kInt32), y)
                         : assign(kept, y, {.each_micro_batch = true})};
    Train(mean(y), Sgd{}, options);
  };
  refuse(
      "assign_slice 'e/assign_slice' at retry_test.cc:\\d+: it writes a part of a variable, which a step "
      "that experts have no room for .* cannot take back",
      [&] { write(true); });
  refuse(
      "assign 'e/assign' at retry_test.cc:\\d+: it writes in each micro-batch, which a step that experts "
      "have no room for",
      [&] { write(false); });
  refuse("the output name 'retried' is reserved; rename yours", [&] {
    Model model(ExpertMesh("cpu:ep=2"));
    Tensor x = model.Input("x", kShape, DType::kFloat32);
    Tensor y = nn::Experts(model.scope() / "e", x, WithRoom(1.2, kRetry)).y;
    TrainOptions options;
    options.outputs = {{"retried", mean(y)}};
    Train(mean(y), Sgd{}, options);
  });
  refuse("any number of their rows", [&] {
    Model model(ExpertMesh("cpu:ep=2"));
    Tensor x = model.Input("x", kShape, DType::kFloat32);
    nn::ExpertsOptions o = WithRoom(1.2, kRetry);
    o.activation = [](Tensor h) { return h + full(h.graph(), h.shape(), 1); };
    Evaluate({{"y", nn::Experts(model.scope() / "e", x, o).y}});
  });
}

}  // namespace
}  // namespace oneflow_like
