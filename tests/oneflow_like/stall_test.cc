// Waits are told when nothing moves or SIGQUIT asks: a kernel that does not end, a process that is
// stopped, data that do not come and a program that does not call Run are named, and the run goes on. The
// test starts itself as the program that waits.
// ctest: tsan=20 waits
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <regex>
#include <thread>

#include "oneflow_like/job/stalls.h"
#include "oneflow_like/launcher.h"
#include "oneflow_like/oneflow_like.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

constexpr double kPatience = 60;  // seconds: only what hangs takes as long

const char* const kFolder = "STALL_TEST_FOLDER";  // what is to go on waits for a file "end" there
const char* const kWhere = "STALL_TEST_WHERE";    // where the program waits: kernel, data, program, nowhere
constexpr int64_t kStep = 2;                      // in this step

bool MayGoOn() { return std::filesystem::exists(std::string(std::getenv(kFolder)) + "/end"); }
bool WaitsIn(const char* where) { return std::strcmp(std::getenv(kWhere), where) == 0; }
void WaitForEnd() {
  while (!MayGoOn()) Sleep(0.005);
}

// A copy; the first rank's waits.
Status WaitingCopy(const KernelContext& context) {
  const TensorArg &x = context.in[0], &y = context.out[0];
  std::memcpy(y.data, x.data, x.elements() * sizeof(float));
  if (std::getenv(kFolder) != nullptr && WaitsIn("kernel") && context.step == kStep && x.begin[0] == 0)
    WaitForEnd();
  return {};
}

OpDef WaitingOperator() {
  OpDef def;
  def.name = "waiting_copy";
  def.axes = "x[n d] -> y[n d]";
  def.reference = WaitingCopy;
  def.grad = [](const GradCall& call) -> std::vector<Tensor> { return {call.dout[0]}; };
  return def;
}

Session MakeTraining(Model* model) {
  Tensor x = model->Input("x", {8, 4}, DType::kFloat32, {{"dp", S(0)}});
  Tensor w = model->scope().Weight("w", {4, 4}, Normal(1));
  Tensor y = Apply(x.graph(), "waiting_copy", {x}, {}, Here::current())[0];  // the line that is named
  return Train(mean(square(matmul(y, w))), Sgd{.lr = 1e-6});
}

// Large numbers tell all processes to end, by the loss.
constexpr float kLarge = 1e4;

class SlowSource final : public FeedSource {
 public:
  explicit SlowSource(Box box) : box_(std::move(box)) {}
  FeedPieces Next() override {
    if (next_++ == kStep && WaitsIn("data")) WaitForEnd();
    FeedPieces pieces;
    HostTensor values = HostTensor::Make(DType::kFloat32, box_.extent);
    std::fill_n(values.as<float>(), values.elements(), MayGoOn() ? kLarge : 1.f);
    pieces["x"].push_back({box_, values});
    return pieces;
  }

 private:
  const Box box_;
  int64_t next_ = 0;
};

int RunProgram(int argc, char** argv) {
  Launcher launcher(&argc, &argv, "Waits where it is told to.");
  return launcher.Main([&] {
    ModelOptions options = launcher.model_options();
    options.operators = {WaitingOperator()};
    Model model(launcher.mesh({"dp"}, "cpu:dp=2"), options);
    Session train = MakeTraining(&model);
    SlowSource source(train.Needs("x").at(0));
    float loss = 0;
    for (int64_t step = 0; step <= kStep || (WaitsIn("nowhere") && loss < kLarge); ++step) {
      if (step == kStep && WaitsIn("program")) WaitForEnd();
      StepResult result = WaitsIn("data") ? train.Run(source) : train.Run({}, source.Next());
      loss = result.Scalar("loss");
      if (step == kStep - 1) std::ofstream(std::string(std::getenv(kFolder)) + "/ran");
    }
    return 0;
  });
}

// The program, started, which waits.
class Waiting {
 public:
  Waiting(const std::string& where, const std::vector<std::string>& flags)
      : folder_("stall_test." + std::to_string(number_++)),
        process_(Command{.program = std::filesystem::read_symlink("/proc/self/exe"),
                         .flags = flags,
                         .variables = {{kFolder, folder_ / "."}, {kWhere, where}},
                         .output = folder_ / "output"}) {}

  Process& process() { return process_; }
  std::string Said() const { return process_.out() + process_.err(); }
  // Until it has said what matches all of these, each in one line.
  bool Says(const std::vector<std::string>& patterns) {
    return Until([&] {
      const std::vector<std::string> lines = LinesOf(Said());
      return std::all_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
        const std::regex wanted(pattern);
        return std::any_of(lines.begin(), lines.end(),
                           [&](const std::string& line) { return std::regex_search(line, wanted); });
      });
    });
  }
  int Reports() const {
    const std::string said = Said(), mark = "who waits for what";
    int reports = 0;
    for (size_t at = said.find(mark); at != said.npos; at = said.find(mark, at + 1)) ++reports;
    return reports;
  }
  // Lets it go on: then it ends well.
  void ExpectGoodEnd() {
    folder_.Write("end", "");
    ASSERT_TRUE(process_.WaitUntil(Seconds() + kPatience)) << Said();
    EXPECT_EQ(process_.code(), 0) << Said();
  }
  bool Exists(const std::string& file) {
    return Until([&] { return std::filesystem::exists(folder_ / file); });
  }
  std::vector<pid_t> Copies() const {
    std::vector<pid_t> copies = ProcessesWith(std::string(kFolder) + "=" + (folder_ / "."));
    std::erase(copies, process_.pid());
    return copies;
  }
  template <typename F>
  bool Until(F done) {
    for (const double end = Seconds() + kPatience; !done(); Sleep(0.01))
      if (Seconds() > end || process_.Ended()) return done();
    return true;
  }

 private:
  static inline int number_ = 0;
  TestFolder folder_;
  Process process_;
};

TEST(Stalls, NameAKernelThatDoesNotEndAndWhoWaitsForIt) {
  Waiting program("kernel", {"--stall_seconds=0.3", "--threads=2"});
  EXPECT_TRUE(
      program.Says({"nothing has moved for [0-9.]+ s; who waits for what:", "^  session train:",
                    "rank 0: is in .*waiting_copy stall_test.cc:[0-9]+ for [0-9.]+ s",
                    "rank 1, .* step 2.*: all_[a-z]+ .* has arrived and waits for rank 0, whose thread "
                    "is in a kernel",
                    "the program: in StepResult::Wait or a read of step 2 of session train, for"}))
      << program.Said();
  const double since = Seconds();
  const int before = program.Reports();
  EXPECT_TRUE(program.Until([&] { return program.Reports() >= before + 3; })) << "it is repeated";
  EXPECT_GE(Seconds() - since, 2 * 0.3) << "but not more often than asked for";
  program.ExpectGoodEnd();
}

TEST(Stalls, NameDataThatDoNotCome) {
  Waiting program("data", {"--stall_seconds=0.3"});
  EXPECT_TRUE(
      program.Says({"nothing has moved",
                    "the program: in Session::Run of session train, which waits for data from its source"}))
      << program.Said();
  program.ExpectGoodEnd();
}

TEST(Stalls, NameAProgramThatDoesNotCallRun) {
  Waiting program("program", {"--stall_seconds=0.3"});
  EXPECT_TRUE(
      program.Says({"nothing has moved",
                    "the program: in code of its own for [0-9.]+ s, since StepResult::Wait .*; no step is "
                    "under way, Session::Run was not called"}))
      << program.Said();
  program.ExpectGoodEnd();
}

TEST(Stalls, NameAProcessThatIsStopped) {
  Waiting program("nowhere", {"--processes=2", "--stall_seconds=0.5", "--peer_timeout=60"});
  ASSERT_TRUE(program.Exists("ran")) << program.Said();
  std::vector<pid_t> copies = program.Copies();
  ASSERT_EQ(copies.size(), 2u);
  pid_t second = 0;
  for (pid_t pid : copies)
    if (TextOf("/proc/" + std::to_string(pid) + "/environ").find("ONEFLOW_LIKE_PROCESS=1") !=
        std::string::npos)
      second = pid;
  ASSERT_NE(second, 0);
  kill(second, SIGSTOP);
  EXPECT_TRUE(program.Says(
      {"process 0: nothing has moved",
       "of other processes: all_[a-z]+ .* \\(train\\) with rank 1 \\(.*pid " + std::to_string(second) + "\\)",
       "rank 0, .*: all_[a-z]+ .* has arrived and waits for other processes, of ranks 1"}))
      << program.Said();
  kill(second, SIGCONT);
  program.ExpectGoodEnd();
}

// Where it asks, no flag is needed; and to the launcher it means all copies.
TEST(Stalls, SigquitAsksEveryProcessAndEndsNone) {
  for (int processes : {1, 2}) {
    SCOPED_TRACE(processes);
    Waiting program("program", {"--processes=" + std::to_string(processes), "--mesh=cpu:dp=2"});
    ASSERT_TRUE(program.Exists("ran")) << program.Said();
    for (int times = 1; times <= 2; ++times) {
      program.process().Signal(SIGQUIT);
      EXPECT_TRUE(program.Until([&] { return program.Reports() == times * processes; })) << program.Said();
    }
    std::vector<std::string> patterns = {"asked by SIGQUIT; who waits for what:",
                                         "the program: in code of its own .*; no step is under way"};
    for (int p = 0; p < processes && processes > 1; ++p)
      patterns.push_back(Cat("process ", p, ": asked by SIGQUIT"));
    EXPECT_TRUE(program.Says(patterns)) << program.Said();
    EXPECT_EQ(program.Said().find("nothing has moved"), std::string::npos)
        << "it was not asked to look by itself";
    program.ExpectGoodEnd();
  }
}

// For ThreadSanitizer: whoever asks, at any moment, changes nothing.
TEST(Stalls, AskingDisturbsNoStep) {
  std::vector<float> losses[2];
  for (bool asks : {false, true}) {
    ModelOptions options;
    options.operators = {WaitingOperator()};
    options.threads = 2;
    options.stalls = std::make_shared<StallWatch>(0, -1);
    std::atomic<bool> stop{false};
    std::atomic<int> reports{0};
    std::thread asking([&] {
      while (asks && !stop) {
        EXPECT_NE(options.stalls->Report().find("the program: in "), std::string::npos);
        ++reports;
      }
    });
    for (int session = 0; session < 3; ++session) {
      Model model(Mesh::Parse("cpu:dp=2"), options);
      Session train = MakeTraining(&model);
      for (int step = 0; step < 50 || (asks && reports < 20 * (session + 1)); ++step) {
        const float loss =
            train.Run({{"x", Floats(static_cast<uint64_t>(step % 50), {8, 4})}}).Scalar("loss");
        if (step < 50 && session == 0) losses[asks].push_back(loss);
      }
      if (session == 1) train.Run({{"x", Floats(1, {8, 4})}});  // closed while it is under way
    }
    stop = true;
    asking.join();
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  if (std::getenv(oneflow_like::kFolder) != nullptr) return oneflow_like::RunProgram(argc, argv);
  std::signal(SIGQUIT, SIG_DFL);  // a shell that starts the test in the background has it ignored
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
