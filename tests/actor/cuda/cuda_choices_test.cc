// The choice between the library's proposals for products: timed when a session is loaded, kept on disk, read
// there by later runs. The emulated library's proposals take what a test states.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/cuda/backend.h"
#include "core/device/backend.h"
#include "oneflow_like/calibrate.h"
#include "ops/cuda/product_choices.h"
#include "tests/actor/cuda/device_runs.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/oneflow_like/session_fixture.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

SmallGpt Small(const std::string& mesh) {
  SmallGpt given;
  given.mesh = mesh;
  given.width = 32;
  given.heads = 2;
  return given;
}

// What a session's loading does.
struct Loaded {
  int64_t timed = 0;          // products
  int64_t others = 0;         // that take another proposal than the first
  int64_t together = 0;       // kinds of which several are done in one call
  int64_t calls = 0;          // operations enqueued or recorded in three steps
  int64_t kernels = 0;        // of ours, of all steps and of timing
  int64_t bytes = 0;          // of all devices
  std::vector<float> losses;  // of three steps
};

class CudaChoices : public testing::Test {
 protected:
  void SetUp() override {
    const char* before = std::getenv("XDG_CACHE_HOME");
    if (before != nullptr) before_ = before;
    folder_ = fs::path(testing::TempDir()) / Cat("cuda_choices.", getpid());
    fs::create_directories(folder_);
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    if (before_)
      setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    else
      unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
    cuda::Choices().Forget();
  }
  fs::path File() const { return folder_ / "oneflow_like" / "library_products"; }

  // As in a new process.
  Loaded Load(const std::vector<double>& seconds, const std::string& mesh = "cuda:dp=1",
              const std::vector<int>& devices = {0}, bool tune = true, double bias_grad = 0) {
    cuda::Choices().Forget();
    cuda_emulator::Reset();
    cuda_emulator::SetProposalTimes(seconds);
    cuda_emulator::SetBiasGradTime(bias_grad);
    cuda_emulator::SetBatchTime(batch_);
    const std::unique_ptr<Backend> backend = cuda::MakeBackend();
    SetBackend("cuda", backend.get());
    const int64_t before = backend->Counts().timed_products;
    Loaded loaded;
    {
      SmallGpt given = Small(mesh);
      given.model_options = OnDevices(devices);
      given.model_options.tune = tune;
      given.dtype = dtype_;
      GptProgram program(given);
      Session session = program.MakeTrain();
      const int64_t operations = cuda_emulator::GetCounts().operations;
      for (int step = 0; step < 3; ++step)
        loaded.losses.push_back(session.Run(program.MakeFeeds(step)).Scalar("loss"));
      const BackendCounts counts = backend->Counts();
      loaded.timed = counts.timed_products - before;
      loaded.others = counts.other_proposals;
      loaded.together = counts.products_together;
      loaded.calls = cuda_emulator::GetCounts().operations - operations;
      loaded.bytes = cuda_emulator::GetCounts().bytes;
    }
    loaded.kernels = cuda_emulator::GetCounts().kernels;
    SetBackend("cuda", nullptr);
    return loaded;
  }

  static bool IsTogether(const std::string& work) { return work.starts_with("together "); }

  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    std::ifstream file(File());
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  double batch_ = 0;  // seconds that a call of several products takes more
  DType dtype_ = DType::kFloat32;

 private:
  fs::path folder_;
  std::optional<std::string> before_;
};

// Calibration times products in the way in which a training does them.
TEST_F(CudaChoices, CalibrationTimesTheFastest) {
  cuda::Choices().Forget();
  cuda_emulator::Reset();
  cuda_emulator::SetProposalTimes({3, 1, 2});
  const std::unique_ptr<Backend> backend = cuda::MakeBackend();
  SetBackend("cuda", backend.get());
  CalibrateOptions options;
  options.kind = "cuda";
  options.models = 1;
  options.small = true;
  const int64_t before = backend->Counts().timed_products;
  Calibrate(options);
  const BackendCounts counts = backend->Counts();
  EXPECT_GT(counts.timed_products - before, 5);
  EXPECT_EQ(counts.other_proposals, counts.timed_products - before);
  SetBackend("cuda", nullptr);
}

TEST_F(CudaChoices, TheFastestIsTakenAndLaterRunsReadIt) {
  const Loaded first = Load({3, 1, 2});
  EXPECT_GT(first.timed, 5);
  EXPECT_EQ(first.others, first.timed);
  const std::map<std::string, int64_t> kept = cuda::ReadChoices(File());
  EXPECT_EQ(static_cast<int64_t>(kept.size()), first.timed);
  for (const auto& [work, proposal] : kept) EXPECT_EQ(proposal, IsTogether(work) ? 2 : 1) << work;
  const Loaded second = Load({1, 3, 2});  // who timed would choose another
  EXPECT_EQ(second.timed, 0);
  EXPECT_EQ(second.others, first.timed);
  EXPECT_EQ(second.losses, first.losses);
}

// Where the library's gradient of a bias takes longer, products of weights' gradients take sums of our own,
// in this process, in later ones, and on all ranks.
TEST_F(CudaChoices, SumsApartAreTakenWhereTheyAreFaster) {
  const Loaded usual = Load({3, 1, 2});
  fs::remove(File());
  const Loaded first = Load({3, 1, 2}, "cuda:dp=1", {0}, true, 4);
  EXPECT_EQ(first.timed, usual.timed);
  int64_t apart = 0;
  for (const auto& [work, proposal] : cuda::ReadChoices(File())) {
    const bool gradient = work.find(" bias_grad or sums ") != std::string::npos;
    EXPECT_EQ(proposal, (gradient ? kSumsApart + 1 : 1) + IsTogether(work)) << work;
    apart += gradient;
  }
  EXPECT_GT(apart, 1);
  ASSERT_EQ(first.losses.size(), usual.losses.size());
  for (size_t i = 0; i < first.losses.size(); ++i) EXPECT_NEAR(first.losses[i], usual.losses[i], 1e-5);
  const Loaded second = Load({3, 1, 2}, "cuda:dp=1", {0}, true, 0);  // who timed would choose another
  EXPECT_EQ(second.timed, 0);
  EXPECT_EQ(second.losses, first.losses);
  const Loaded off = Load({3, 1, 2}, "cuda:dp=1", {0}, false, 4);
  EXPECT_GT(second.kernels, off.kernels) << "a sum is a kernel of its own";
  fs::remove(File());
  const Loaded ranks = Load({3, 1, 2}, "cuda:dp=2", {0, 1}, true, 4);
  int64_t of_ranks = 0;
  for (const auto& [work, proposal] : cuda::ReadChoices(File())) of_ranks += proposal == kSumsApart + 1;
  EXPECT_GT(of_ranks, 1);
  EXPECT_EQ(ranks.timed, ranks.others) << "one times for both";
}

// Products of queries, keys and values, and of the gradients of their weights, are one call each where that
// is faster: in this process, in later ones, on all ranks, with the same losses.
TEST_F(CudaChoices, ProductsGoTogetherWhereThatIsFaster) {
  dtype_ = DType::kBFloat16;  // in fp32 forward products read variables, which lie anywhere
  const Loaded off = Load({3, 1, 2}, "cuda:dp=1", {0}, false);
  EXPECT_EQ(off.together, 0);
  const Loaded first = Load({3, 1, 2});
  EXPECT_EQ(first.together, 2) << "forward, and of gradients";
  EXPECT_EQ(first.losses, off.losses);
  batch_ = 10;
  const Loaded second = Load({3, 1, 2});  // who timed would choose otherwise
  EXPECT_EQ(second.timed, 0);
  EXPECT_EQ(second.together, first.together);
  EXPECT_EQ(second.losses, off.losses);
  // Of three calls one, in four layers, forward and of gradients, in three steps, none of which is a replay.
  EXPECT_EQ(off.calls - second.calls, 2 * 4 * 2 * 3);
  fs::remove(File());
  const Loaded slower = Load({3, 1, 2}), slower_kept = Load({3, 1, 2});
  EXPECT_GT(slower.timed, 0);
  EXPECT_EQ(slower.together, 0);
  EXPECT_EQ(slower_kept.calls, off.calls);
  batch_ = 0;
  const Loaded ranks_off = Load({3, 1, 2}, "cuda:dp=2", {0, 1}, false);
  fs::remove(File());
  const Loaded ranks = Load({3, 1, 2}, "cuda:dp=2", {0, 1});
  EXPECT_EQ(ranks.together, 2) << "one times for both";
  EXPECT_EQ(ranks.losses, ranks_off.losses);
}

// What an earlier version kept, which knew no sums apart, is timed again.
TEST_F(CudaChoices, ChoicesWithoutSumsApartAreMadeAgain) {
  const Loaded first = Load({3, 1, 2});
  std::vector<LibraryChoice> old;
  for (const auto& [work, proposal] : cuda::ReadChoices(File())) {
    old.push_back({work, proposal});
    const size_t at = work.find(" or sums");
    if (at != std::string::npos) old.back().work.erase(at, 8);
  }
  fs::remove(File());
  ASSERT_TRUE(cuda::AddChoices(File(), old));
  const Loaded again = Load({3, 1, 2}, "cuda:dp=1", {0}, true, 4);
  EXPECT_GT(again.timed, 1);
  EXPECT_LT(again.timed, first.timed);
}

TEST_F(CudaChoices, ALittleFasterIsNotFaster) {
  batch_ = 595;  // three in one call take 893, beside 900
  EXPECT_EQ(Load({300, 299, 298}).others, 0);
  EXPECT_FALSE(Lines().empty());
  fs::remove(File());
  batch_ = 0;
  const Loaded better = Load({300, 299, 290});
  EXPECT_GT(better.others, 0);
  EXPECT_EQ(better.others, better.timed);
}

// Lines are by themselves: what is damaged is timed again, and the others are not.
TEST_F(CudaChoices, DamagedLinesAreTimedAgain) {
  const Loaded first = Load({3, 1, 2});
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(static_cast<int64_t>(lines.size()), first.timed);
  {
    std::ofstream file(File());
    file << "no line of this file\n\n";
    for (size_t i = 0; i < lines.size(); ++i) {
      std::string line = lines[i];
      if (i == 0) line[line.find(' ') + 1] = '2';
      if (i + 1 == lines.size()) line.resize(line.size() - 3);
      file << line << (i + 1 == lines.size() ? "" : "\n");
    }
  }
  const Loaded again = Load({3, 1, 2});
  EXPECT_EQ(again.timed, 2);
  EXPECT_EQ(again.others, first.others);
  EXPECT_EQ(Lines(), lines);
}

TEST_F(CudaChoices, WithoutAFolderEachRunTimes) {
  std::ofstream(File().parent_path()) << "a file where the folder would be";
  for (int run = 0; run < 2; ++run) {
    const Loaded loaded = Load({3, 1, 2});
    EXPECT_GT(loaded.timed, 0);
    EXPECT_EQ(loaded.others, loaded.timed);
  }
}

TEST_F(CudaChoices, SwitchedOffTheFirstProposalsStand) {
  const Loaded off = Load({3, 1, 2}, "cuda:dp=1", {0}, false);
  EXPECT_EQ(off.timed, 0);
  EXPECT_EQ(off.others, 0);
  EXPECT_FALSE(fs::exists(File()));
  const Loaded on = Load({3, 1, 2});
  EXPECT_GT(on.timed, 0);
  EXPECT_EQ(Load({3, 1, 2}, "cuda:dp=1", {0}, false).others, 0) << "what is kept is not read either";
}

// Operands lie in the arena while they are timed, the library's work space is the stream's.
TEST_F(CudaChoices, TimingTakesNoMemory) {
  const Loaded off = Load({3, 1, 2}, "cuda:dp=2", {0}, false), on = Load({3, 1, 2}, "cuda:dp=2", {0});
  EXPECT_GT(on.timed, 0);
  EXPECT_EQ(on.bytes, off.bytes);
  EXPECT_EQ(on.losses, off.losses) << "of the emulated library all proposals are the same";
}

TEST_F(CudaChoices, RanksOnCardsOfOneKindShareWhatOneTimes) {
  const Loaded one = Load({3, 1, 2}, "cuda:dp=2", {0});
  fs::remove(File());
  const Loaded two = Load({3, 1, 2}, "cuda:dp=2", {0, 1});
  EXPECT_GT(two.timed, 0);
  EXPECT_EQ(two.timed, one.timed);
}

// Two sessions of a process: a product keeps what it was decided to be.
TEST_F(CudaChoices, AChoiceStaysInAProcess) {
  const std::string work = "product of a test";
  cuda::Choices().Decide({{work, 2}}, false);
  cuda::Choices().Decide({{work, 1}}, true);
  EXPECT_EQ(cuda::Choices().Decided(work), 2);
}

}  // namespace
}  // namespace oneflow_like
