// gpt as several processes of this machine: the loss curve is that of one process, whatever the mesh, with
// and without shared memory; outputs are labelled; nothing is left. Also run under sanitizers.
// ctest: seconds=17 asan=80 tsan=80 programs=gpt
#include "tests/processes.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace oneflow_like {
namespace {

const double kDeadline = 240;  // seconds, sanitizers included: keeps a hang from hanging

class ProcessesTest : public ::testing::Test {
 protected:
  ProcessesTest() : folder_("processes_test"), text_(folder_.Write("text.txt", SomeText())) {}

  // Runs gpt to its end and gives its losses.
  std::vector<double> Losses(const std::string& name, const std::vector<std::string>& more) {
    const std::string log = folder_ / (name + ".json");
    std::vector<std::string> flags = {
        "--text=" + text_, "--layers=4", "--width=16", "--heads=4", "--context=16", "--batch=8", "--steps=6",
        "--eval_batches=2", "--sample_tokens=4", "--micro_batches=2", "--log_json=" + log,
        // ThreadSanitizer would take the barriers of OpenMP's runtime for races.
        "--kernel_threads=1"};
    flags.insert(flags.end(), more.begin(), more.end());
    const std::string mark = "OFL_TEST_RUN=" + std::to_string(getpid()) + name;
    Process gpt({.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                 .flags = flags,
                 .variables = {{"OFL_TEST_RUN", std::to_string(getpid()) + name}},
                 .output = folder_ / name});
    EXPECT_TRUE(gpt.WaitUntil(Seconds() + kDeadline)) << name << " hangs\n" << gpt.out() << gpt.err();
    EXPECT_EQ(gpt.code(), 0) << name << "\n" << gpt.out() << gpt.err();
    EXPECT_EQ(ProcessesWith(mark), std::vector<pid_t>{}) << name;
    out_ = gpt.out();
    return LossesOf(log);
  }

  // One process, one device.
  const std::vector<double>& Alone() {
    if (alone_.empty()) alone_ = Losses("alone", {});
    EXPECT_EQ(alone_.size(), 6u);
    return alone_;
  }

  void ExpectSameCurve(const std::string& name, const std::vector<std::string>& flags) {
    const std::vector<double>& alone = Alone();
    EXPECT_LE(CurveDifference(Losses(name, flags), alone), 1e-5) << name;
    EXPECT_NE(out_.find("held-out loss"), std::string::npos) << out_;
    EXPECT_NE(out_.find("--- a sample"), std::string::npos) << out_;
  }

  TestFolder folder_;
  std::string text_, out_;
  std::vector<double> alone_;
};

TEST_F(ProcessesTest, TwoProcesses) {
  ExpectSameCurve("dp", {"--processes=2", "--mesh=cpu:dp=2"});
  ExpectSameCurve("tp", {"--processes=2", "--mesh=cpu:tp=2"});
  ExpectSameCurve("pp", {"--processes=2", "--mesh=cpu:pp=2"});
}

TEST_F(ProcessesTest, FourProcesses) {
  ExpectSameCurve("dp_pp", {"--processes=4", "--mesh=cpu:dp=2,pp=2"});
  ExpectSameCurve("tp", {"--processes=4", "--mesh=cpu:tp=4"});
}

TEST_F(ProcessesTest, SeveralDevicesPerProcess) {
  ExpectSameCurve("eight", {"--processes=2", "--mesh=cpu:dp=2,tp=2,pp=2"});
}

TEST_F(ProcessesTest, WithoutSharedMemory) {
  ExpectSameCurve("two", {"--processes=2", "--mesh=cpu:dp=2,tp=2", "--shared_memory=false"});
  ExpectSameCurve("four", {"--processes=4", "--mesh=cpu:dp=2,pp=2", "--shared_memory=false"});
}

// Four processes as four hosts of two racks would do it: one curve by every algorithm, and by one twice the
// same bits.
TEST_F(ProcessesTest, EveryAlgorithmOfCollectives) {
  const std::string racks = folder_.Write("racks.txt",
                                          "memory_bandwidth 1e10\nflops_fp32 5e10\nflops_16bit 5e10\n"
                                          "level rack devices 2 latency 5e-6 bandwidth 5e9\n"
                                          "level hall devices 0 latency 2e-5 bandwidth 1e9\n");
  for (const std::string algorithm : {"direct", "two_trips", "ring", "tree", "two_level", "star"}) {
    const std::vector<std::string> flags = {"--processes=4", "--mesh=cpu:dp=4", "--shared_memory=false",
                                            "--topology=" + racks, "--collective=" + algorithm};
    ExpectSameCurve(algorithm, flags);
    if (algorithm == "ring") {
      EXPECT_EQ(Losses("again", flags), Losses("twice", flags));
    }
    std::vector<std::string> explained = flags;
    explained.insert(explained.end(), {"--dry_run", "--explain"});
    Losses("explained", explained);
    const std::string units = algorithm == "two_level" ? " of 2" : "";
    EXPECT_NE(out_.find(" all_reduce by " + algorithm + units + " of "), std::string::npos) << out_;
  }
}

TEST_F(ProcessesTest, OtherProcessesAreLabelled) {
  Losses("labels", {"--processes=2", "--mesh=cpu:dp=2"});
  int own = 0;
  for (const std::string& line : LinesOf(out_)) own += line.rfind("[1] ", 0) != 0;
  EXPECT_GT(own, 0) << out_;
  EXPECT_EQ(out_.find("held-out loss"), out_.rfind("held-out loss")) << "said once, by process 0:\n" << out_;
}

// Started by hand or by srun, which end nobody: those whose flags are right hear of the one that was refused,
// instead of waiting for it.
TEST_F(ProcessesTest, WrongFlagsOfOneProcessEndAll) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"--qwertz=1", "ERROR: unknown command line flag 'qwertz'"},
      {"--steps=some", "ERROR: illegal value 'some' specified for int64 flag 'steps'"},
      {"--lyers=2", "there is no flag --lyers; did you mean --layers?"},
      {"--log_dir=/proc/nowhere", "log folder /proc/nowhere cannot be made: "},
  };
  for (size_t i = 0; i < refused.size(); ++i) {
    const auto& [flag, message] = refused[i];
    const int wrong = static_cast<int>(i % 2), right = 1 - wrong;
    ProcessJob job({.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
                    .flags = {"--text=" + text_, "--steps=1", "--mesh=cpu:dp=2", "--start_timeout=20"},
                    .processes = 2,
                    .output = folder_ / ("refused" + std::to_string(i)),
                    .own_flags = {{wrong, {flag}}}});
    ASSERT_TRUE(job.WaitUntil(Seconds() + kDeadline)) << job.Said();
    EXPECT_EQ(job[wrong].code(), 64) << job.Said();
    EXPECT_NE(job[wrong].err().find(message), std::string::npos) << job.Said();
    EXPECT_EQ(job[right].code(), 64) << job.Said();
    for (const std::string& part :
         {"error: process " + std::to_string(wrong) + " (host ", ") has ended before the start: " + message})
      EXPECT_NE(job[right].err().find(part), std::string::npos) << part << "\n" << job.Said();
  }
}

// A number that no process of the job can have is wrong in one process only, which tells the others.
TEST_F(ProcessesTest, AWrongNumberOfOneProcessEndsAll) {
  const std::string job = Cat("env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", FreePort());
  const std::string program =
      Cat(" " OFL_BINARY_DIR "/examples/gpt --text=", text_, " --steps=1 --mesh=cpu:dp=2 --start_timeout=20");
  const ShellOutcome o = Shell(Cat(job, " RANK=0", program, " & ", job, " RANK=2", program,
                                   "; refused=$?; wait $!; echo codes $refused $?"));
  const std::string message =
      "the environment variable RANK is 2 but WORLD_SIZE is 2; processes are numbered from 0 to 1";
  for (const std::string& part : {"error: " + message, std::string("error: process 2 (host "),
                                  ") has ended before the start: " + message, std::string("codes 64 64")})
    EXPECT_NE(o.output.find(part), std::string::npos) << part << "\n" << o.output;
}

}  // namespace
}  // namespace oneflow_like
