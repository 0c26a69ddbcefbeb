// Models and sessions that are one of several processes.
// ctest: asan=10
#include <atomic>
#include <barrier>
#include <fstream>
#include <regex>
#include <set>

#include "compiler/cost/collective_costs.h"
#include "oneflow_like/job/agreement.h"
#include "oneflow_like/job/feeds_check.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/actor/net/stub_network.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

struct Trained {
  std::vector<float> losses;
  Outputs variables, outputs;
};

// Two linear layers, on two stages when the mesh has axis pp, some cut over tp.
Trained TrainOn(const std::string& mesh, ModelOptions options, int64_t hidden = 12,
                const SessionOptions& session_options = {.micro_batches = 2}) {
  options.seed = options.seed == 1 ? 5 : options.seed;
  Model model(FullMesh(mesh), options);
  Tensor x = model.Input("x", {8, 6}, DType::kFloat32, {{"dp", S(0)}});
  Tensor y = model.Input("y", {8, 3}, DType::kFloat32, {{"dp", S(0)}});
  Scope s = model.scope();
  const int last = model.mesh().axis_size(2) - 1;
  Tensor up = s.Stage("pp", 0).Weight("up", {6, hidden}, KaimingNormal(), {{"tp", S(1)}});
  Tensor down = s.Stage("pp", last).Weight("down", {hidden, 3}, KaimingNormal(), {{"tp", S(0)}});
  Tensor guess = matmul(relu(matmul(x, up)), down), loss = mean(square(guess - y));
  TrainOptions train_options;
  static_cast<SessionOptions&>(train_options) = session_options;
  train_options.outputs = {{"guess", guess}};
  Session train = Train(loss, AdamW{.lr = 1e-2}, train_options);
  Trained result;
  for (int step = 0; step < 6; ++step) {
    StepResult r = train.Run({{"x", Floats(step, {8, 6})}, {"y", Floats(100 + step, {8, 3})}});
    result.losses.push_back(r.Scalar("loss"));
    result.outputs["guess"] = r.Get("guess");
  }
  for (const std::string& name : model.Variables()) result.variables[name] = model.Read(name);
  // What is written by all is what all read.
  HostTensor ones = Floats(7, {6, hidden});
  model.Write("up", ones);
  EXPECT_TRUE(SameBytes(model.Read("up"), ones));
  return result;
}

TEST(SessionJobTest, ProcessesShareTheRanksAndAllGetEverythingWhole) {
  const std::pair<const char*, int> runs[] = {
      {"cpu:dp=2", 2}, {"cpu:tp=2", 2}, {"cpu:pp=2", 2}, {"cpu:dp=2,tp=2", 4}, {"cpu:dp=2,tp=2,pp=2", 2}};
  for (auto [mesh, processes] : runs) {
    const Trained alone = TrainOn(mesh, {});
    ASSERT_EQ(alone.variables.size(), 7u) << "two weights, each with two states, and the number of updates";
    std::vector<std::string> errors = RunProcesses(processes, [&](std::shared_ptr<Job> job) {
      ModelOptions options;
      options.job = job;
      options.threads = 1;
      const Trained here = TrainOn(mesh, options);
      EXPECT_EQ(here.losses, alone.losses) << mesh << ", process " << job->process();
      ExpectNear(here.variables, alone.variables, 0, mesh);
      ExpectNear(here.outputs, alone.outputs, 0, mesh);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << mesh;
  }
}

// Processes plan the same messages of counted rows; of ranks without room all of them hear.
TEST(SessionJobTest, ExpertsWithRoomOfRanksCrossProcesses) {
  const Dims shape = {8, 6, 8};
  // A collective that some of these processes never come to does not end, as it does where a process is lost:
  // all meet after the first step is launched, and again when each has its error.
  auto train = [&](
                   std::shared_ptr<Job> job, double room, nn::ExpertOverflow overflow,
                   const std::function<void()>& meet = [] {}) {
    ModelOptions options;
    options.job = std::move(job);
    options.threads = 1;
    options.seed = 5;
    Model model(Mesh::Parse("cpu:dp=4"), options);
    Tensor x = model.Input("x", shape, DType::kFloat32, {{"dp", S(0)}});
    const nn::ExpertsOptions o{
        .experts = 8, .inner = 10, .room = room, .overflow = overflow, .gate_init = Normal(1), .ep = "dp"};
    Tensor y = nn::Experts(model.scope() / "e", nn::RmsNorm(model.scope() / "norm", x), o).y;
    TrainOptions train_options;
    train_options.micro_batches = 2;
    Session session = Train(mean(square(y - x)), AdamW{.lr = 1e-2}, train_options);
    Outputs seen;
    const std::string error = ErrorOf([&] {
      for (int step = 0; step < 5; ++step) {
        const StepResult result = session.Run({{"x", Floats(step, shape)}});
        if (step == 0) meet();
        seen[Cat("loss", step)] = result.Get("loss");
      }
      for (const std::string& name : model.Variables()) seen[name] = model.Read(name);
    });
    meet();
    if (!error.empty()) throw Error(error);
    return seen;
  };
  for (double room : {4., .8}) {
    const Outputs alone = train(nullptr, room, nn::ExpertOverflow::kDrop);
    for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
           ExpectNear(train(job, room, nn::ExpertOverflow::kDrop), alone, 1e-6, Cat("room ", room));
         }))
      EXPECT_EQ(error, "");
  }
  Meeting meeting(2);
  meeting.wire.Hold(true);  // what fails is told when both are there
  std::barrier together(2, [&]() noexcept { meeting.wire.Hold(false); });
  for (const std::string& error : RunProcesses(meeting, [&](std::shared_ptr<Job> job) {
         train(std::move(job), .8, nn::ExpertOverflow::kError, [&] { together.arrive_and_wait(); });
       }))
    EXPECT_TRUE(std::regex_search(
        error, std::regex("nn::Experts 'e' at session_job_test.cc:\\d+.*: experts \\d to \\d are chosen \\d+ "
                          "times in pool \\d but their rank has room for 3")))
        << error;
}

// Process `odd` feeds another batch in step `when`; gives the errors of all.
std::vector<std::string> FeedDifferently(int odd, int when, bool check, int* steps_done) {
  std::atomic<int> done{0};
  std::vector<std::string> errors = RunProcesses(3, [&](std::shared_ptr<Job> job) {
    ModelOptions options;
    options.job = job;
    options.threads = 1;
    options.check_feeds = check;
    Model model(FullMesh("cpu:dp=3"), options);
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = model.Input("y", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
    Tensor guess = matmul(x, model.scope().Weight("w", {4, 2}, KaimingNormal()));
    Session train = Train(mean(square(guess - y)), AdamW{.lr = 1e-2});
    for (int step = 0; step < 5; ++step) {
      const int seed = step == when && job->process() == odd ? 1000 : step;
      train.Run({{"x", Floats(seed, {6, 4})}, {"y", Floats(100 + step, {6, 2})}}).Wait();
      ++done;
    }
  });
  *steps_done = done;
  return errors;
}

TEST(SessionJobTest, DifferentFeedsAreRefused) {
  int done = 0;
  for (int when : {0, 1, 4}) {
    for (int odd : {0, 1, 2}) {
      SCOPED_TRACE(Cat("process ", odd, " in step ", when));
      const bool check = when >= kStepsWithCheckedFeeds;
      for (const std::string& error : FeedDifferently(odd, when, check, &done)) {
        EXPECT_NE(error.find(Cat("step ", when, " of session train: input 'x' has other values in process ",
                                 odd == 0 ? 1 : odd, " than in process 0")),
                  std::string::npos)
            << error;
      }
      EXPECT_EQ(done, 3 * when);
    }
  }
  // Without check_feeds later steps exchange nothing.
  for (const std::string& error : FeedDifferently(1, 4, false, &done)) EXPECT_EQ(error, "");
  EXPECT_EQ(done, 15);
}

TEST(SessionJobTest, ReadingWhatIsNowhereIsAnErrorOnAll) {
  std::vector<std::string> errors = RunProcesses(2, [](std::shared_ptr<Job> job) {
    Model model(FullMesh("cpu:dp=2"), {.job = job});
    const std::string error = ErrorOf([&] { model.Write("w", Floats(1, {2})); });
    EXPECT_EQ(error, "variable 'w' is not there: neither a weight nor the state of a training has that name");
    (void)model.Read("w");
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "variable 'w' is not there: neither a weight nor the state of a training has that name");
}

TEST(SessionJobTest, AMeshIsSharedEquallyOrRefused) {
  std::vector<std::string> errors =
      RunProcesses(2, [](std::shared_ptr<Job> job) { Model model(Mesh::Parse("cpu:dp=3"), {.job = job}); });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "mesh cpu:dp=3 has 3 devices, which 2 processes cannot share equally");
}

TEST(SessionJobTest, DifferentModelsAreRefusedByTheFirstLineThatDiffers) {
  std::vector<std::string> errors = RunProcesses(
      3, [](std::shared_ptr<Job> job) { TrainOn("cpu:dp=3", {.job = job}, job->process() == 1 ? 12 : 24); });
  for (const std::string& error : errors) {
    EXPECT_EQ(error.rfind("session train is not the same on all processes: process 0 has '", 0), 0u) << error;
    for (const char* word :
         {"up = variable", "f32[6,24]", "', process 1 has '", "f32[6,12]", " at session_job_test.cc:"})
      EXPECT_NE(error.find(word), std::string::npos) << word << " | " << error;
  }
}

// Between processes that share no memory collectives have algorithms; inside one process there is no choice.
TEST(SessionJobTest, CollectivesBetweenProcessesAreNamed) {
  const auto named = [](const std::string& mesh, ModelOptions options) {
    Model model(FullMesh(mesh), options);
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Tensor y = model.Input("y", {6, 2}, DType::kFloat32, {{"dp", S(0)}});
    Tensor guess = matmul(x, model.scope().Weight("w", {4, 2}, KaimingNormal()));
    const Session train = Train(mean(square(guess - y)), AdamW{.lr = 1e-2});
    const Compiled& compiled = train.impl()->compiled;
    std::set<std::string> all;
    for (int n : compiled.graph.Order())
      if (IsCollective(compiled.graph.node(n))) all.insert(AlgorithmText(compiled.graph.node(n)));
    return std::pair(compiled.options.machine.nodes, all);
  };
  for (const std::string& error : RunProcesses(3, [&](std::shared_ptr<Job> job) {
         const auto& [nodes, cheapest] = named("cpu:dp=6", {.job = job});
         EXPECT_EQ(nodes, (std::vector<int>{0, 0, 2, 2, 4, 4}));
         EXPECT_EQ(cheapest, std::set<std::string>{"direct"});  // a few bytes
         EXPECT_EQ(named("cpu:dp=6", {.collectives = "tree", .job = job}).second,
                   std::set<std::string>{"tree"});
         EXPECT_EQ(named("cpu:dp=1,tp=6", {.job = job}).first.size(), 6u);
       }))
    EXPECT_EQ(error, "");
  EXPECT_EQ(named("cpu:dp=6", {}).first, std::vector<int>());
  EXPECT_EQ(named("cpu:dp=6", {.collectives = "tree"}).second, std::set<std::string>{""});
}

// Every option of which the processes must think alike, given another value by process 2.
TEST(SessionJobTest, DifferentOptionsAreRefusedByName) {
  struct Given {
    std::string mesh = "cpu:dp=3";
    ModelOptions model = {.seed = 2};
    SessionOptions session = {.micro_batches = 2};
  };
  struct Change {
    const char* named;  // the option, and what process 0 and process 2 have
    const char *here, *there;
    std::function<void(Given*)> make;
  };
  const Change changes[] = {
      {"--mesh", "cpu:dp=3,tp=1,pp=1", "cpu:dp=1,tp=3,pp=1", [](Given* g) { g->mesh = "cpu:tp=3"; }},
      {"--seed", "2", "7", [](Given* g) { g->model.seed = 7; }},
      {"--check_feeds", "false", "true", [](Given* g) { g->model.check_feeds = true; }},
      {"--check_replicas", "0", "5", [](Given* g) { g->model.check_replicas = 5; }},
      {"--check_nan", "false", "true", [](Given* g) { g->model.check_nan = true; }},
      {"--tune", "true", "false", [](Given* g) { g->model.tune = false; }},
      {"--tf32", "false", "true", [](Given* g) { g->model.tf32 = true; }},
      {"micro_batches", "2", "4", [](Given* g) { g->session.micro_batches = 4; }},
      {"steps_in_flight", "2", "3", [](Given* g) { g->session.steps_in_flight = 3; }},
      {"schedule", "1f1b", "gpipe", [](Given* g) { g->session.schedule = PipelineSchedule::kGPipe; }},
      {"exact_groups", "false", "true", [](Given* g) { g->session.exact_groups = true; }},
      {"overlap chunks", "1", "4", [](Given* g) { g->session.overlap.chunks = 4; }},
      {"overlap gain", "0.03", "0.5", [](Given* g) { g->session.overlap.gain = .5; }},
      {"overlap always", "false", "true", [](Given* g) { g->session.overlap.always = true; }},
      {"link bandwidth", "0", "1e+06", [](Given* g) { g->model.link.bandwidth = 1e6; }},
      {"collectives", "none", "all_reduce:ring", [](Given* g) { g->model.collectives = "all_reduce:ring"; }},
      {"topology",
       "5e+10 and 5e+10 flops/s, memory 1e+10 bytes/s, overhead 1e-07 s, efficiency 1 and 1, half at 0, "
       "0 devices by 5e+09 bytes/s in 5e-06 s",
       "6.7e+13 and 9.895e+14 flops/s, memory 3.35e+12 bytes/s, overhead 4e-06 s, efficiency 0.73 and 0.5, "
       "half at 128, 4.947e+14 flops/s in TF32, 8 devices by 3.6e+11 bytes/s in 3e-06 s, 0 devices by "
       "4.5e+10 bytes/s in 1.2e-05 s, "
       "copies to hosts by 5.5e+10 bytes/s in 1e-05 s",
       [](Given* g) { g->model.topology = OFL_SOURCE_DIR "/examples/topologies/h100.txt"; }},
      {"virtual_stages", "1", "2", [](Given* g) { g->model.pipeline.virtual_stages = 2; }},
      {"dtype", "f32", "bf16", [](Given* g) { g->session.dtype = DType::kBFloat16; }},
      {"zero", "none", "dp", [](Given* g) { g->model.zero.axis = "dp"; }}};
  for (const Change& change : changes) {
    SCOPED_TRACE(change.named);
    std::vector<std::string> errors = RunProcesses(3, [&](std::shared_ptr<Job> job) {
      Given given;
      if (job->process() == 2) change.make(&given);
      given.model.job = job;
      TrainOn(given.mesh, given.model, 12, given.session);
    });
    for (const std::string& error : errors)
      EXPECT_EQ(error, Cat("session train is not the same on all processes: option ", change.named,
                           ": process 0 has ", change.here, ", process 2 has ", change.there));
  }
}

TEST(AgreementTest, NamesTheFirstDifference) {
  EXPECT_EQ(FirstDifference({"a\nb\n", "a\nb\n"}), "");
  EXPECT_EQ(FirstDifference({"a\nb\nc\n", "a\nb\nd\n", "a\ne\nc\n"}), "process 0 has 'b', process 2 has 'e'");
  EXPECT_EQ(FirstDifference({"a\nb\n", "a\n"}), "process 0 has 'b', process 1 has nothing more");
  EXPECT_EQ(FirstDifference({"a\n", "a\nb\n"}), "process 0 has nothing more, process 1 has 'b'");
  EXPECT_EQ(FirstDifference({"option x=1\n", "option x=1=2\n"}),
            "option x: process 0 has 1, process 1 has 1=2");
  EXPECT_EQ(FirstDifference({"option x=\n", "option x=dp\n"}),
            "option x: process 0 has none, process 1 has dp");
}

// The time in microseconds at which the first slice of a trace begins.
double FirstSliceOf(const std::string& file) {
  std::ifstream in(file);
  double first = 1e30;
  std::smatch found;
  for (std::string line; std::getline(in, line);)
    if (std::regex_search(line, found, std::regex("\"ph\":\"X\".*\"ts\":([0-9.]+)")))
      first = std::min(first, std::stod(found[1]));
  return first;
}

// The first slice of each process of a job in its trace, in microseconds. `prepare` gives a process its
// clock.
std::vector<double> FirstSlices(int processes, const std::function<void(TestJob*, StubNetwork*)>& prepare) {
  const std::string trace = testing::TempDir() + "/trace." + std::to_string(getpid());
  std::vector<std::string> errors = RunProcesses(processes, [&](std::shared_ptr<Job> job) {
    StubNetwork network;
    auto* mine = dynamic_cast<TestJob*>(job.get());
    mine->clock = &network;
    prepare(mine, &network);
    ModelOptions options;
    options.job = job;
    options.threads = 1;
    options.trace_file = trace;
    Model model(FullMesh(Cat("cpu:dp=", processes)), options);
    Tensor x = model.Input("x", {6, 4}, DType::kFloat32, {{"dp", S(0)}});
    Session session = Evaluate({{"y", mean(tanh(x))}});
    session.Run({{"x", Floats(1, {6, 4})}}).Wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  std::vector<double> first;
  for (int p = 0; p < processes; ++p) {
    first.push_back(FirstSliceOf(Cat(trace, ".process", p)));
    std::remove(Cat(trace, ".process", p).c_str());
  }
  return first;
}

// Process 1 is told that process 0's clock is an hour ahead of its own: by that clock it began an hour later.
TEST(SessionJobTest, TracesAreOnProcess0sClock) {
  const std::vector<double> first = FirstSlices(2, [](TestJob* job, StubNetwork* network) {
    network->offset = job->process() == 0 ? 0 : int64_t{3600} * 1000000000;
  });
  EXPECT_NEAR(first[1] - first[0], 3600e6, 600e6);
}

// Hosts that were started at different times have clocks that are days apart: a trace begins near 0 all the
// same. Process 0's clock is an hour ahead of this machine's, which the slices are measured with.
TEST(SessionJobTest, TracesBeginWhenProcess0Does) {
  for (int processes : {2, 3}) {
    const std::vector<double> first = FirstSlices(processes, [](TestJob* job, StubNetwork* network) {
      constexpr int64_t kHour = int64_t{3600} * 1000000000;
      network->offset = kHour;
      if (job->process() > 0) return;
      job->says = [](const std::string& what, const std::string& mine) {
        return what == "start of the trace" ? std::to_string(std::stoll(mine) + kHour) : mine;
      };
    });
    for (double at : first) EXPECT_NEAR(at, 0, 600e6) << "of " << processes << " processes";
  }
}

// Steps of processes that have two threads each last as long as they last, and their parts add up to that.
TEST(SessionJobTest, AProfileOfProcessesAddsUp) {
  std::vector<std::string> errors = RunProcesses(2, [&](std::shared_ptr<Job> job) {
    ModelOptions options;
    options.job = job;
    options.threads = 2;
    Model model(FullMesh("cpu:dp=4"), options);
    Tensor x = model.Input("x", {64, 64}, DType::kFloat32, {{"dp", S(0)}});
    Session session = Evaluate({{"y", mean(tanh(x))}});
    for (int step = 0; step < 4; ++step) session.Run({{"x", Floats(1, {64, 64})}}).Wait();
    const StepProfile profile = session.TakeProfile();
    EXPECT_EQ(profile.threads, 4);
    double sum = profile.waiting + profile.runtime;
    for (const auto& [kind, seconds] : profile.kernels) sum += seconds;
    EXPECT_NEAR(sum, profile.wall * profile.threads, 1e-9 + 1e-6 * sum);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Each kernel of the profile has run as often as in one process with all the ranks, on as much.
TEST(SessionJobTest, AProfileOfProcessesHasTheWorkOfAll) {
  auto kernels = [](std::shared_ptr<Job> job) {
    ModelOptions options;
    options.job = job;
    options.threads = 1;
    Model model(FullMesh("cpu:dp=4"), options);
    Tensor x = model.Input("x", {10, 64}, DType::kFloat32, {{"dp", S(0)}});
    Tensor w = model.scope().Weight("w", {64, 8}, KaimingNormal());
    Session session = Train(mean(square(tanh(matmul(x, w)))), Sgd{});
    for (int step = 0; step < 4; ++step) session.Run({{"x", Floats(1, {10, 64})}}).Wait();
    std::map<std::string, KernelProfile> by_label;
    for (const KernelProfile& kernel : session.TakeProfile().hottest) by_label[kernel.label] = kernel;
    return by_label;
  };
  const std::map<std::string, KernelProfile> alone = kernels(nullptr);
  double flops = 0, bytes = 0;
  for (const auto& [label, kernel] : alone) flops += kernel.flops, bytes += kernel.bytes;
  EXPECT_GT(flops, 0);
  EXPECT_GT(bytes, 0);
  for (int processes : {2, 4}) {
    std::vector<std::string> errors = RunProcesses(processes, [&](std::shared_ptr<Job> job) {
      const std::map<std::string, KernelProfile> here = kernels(job);
      EXPECT_EQ(here.size(), alone.size());
      for (const auto& [label, kernel] : alone) {
        SCOPED_TRACE(Cat(label, " of ", processes, " processes"));
        if (here.count(label) == 0) {
          ADD_FAILURE();
          continue;
        }
        EXPECT_EQ(here.at(label).category, kernel.category);
        EXPECT_EQ(here.at(label).runs, kernel.runs);
        EXPECT_NEAR(here.at(label).flops, kernel.flops, 1e-9 * kernel.flops);
        EXPECT_NEAR(here.at(label).bytes, kernel.bytes, 1e-9 * kernel.bytes);
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace oneflow_like
