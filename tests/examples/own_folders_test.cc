// Programs whose hosts have disks of their own: two processes, each in a folder where the same flags name
// other files. What differs is said before the first step; what is alike is not noticed; checkpoints go on
// from the newest that both have. And what a run that goes on says of its data and its learning rate.
// ctest: seconds=6 programs=gpt,generate,checkpoint
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/system/exit_codes.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;
using Flags = std::vector<std::string>;

class OwnFolders : public ::testing::Test {
 protected:
  OwnFolders() {
    for (int k = 0; k < 2; ++k) {
      fs::create_directories(At(k, ""));
      Write(k, "text.txt", SomeText());
    }
  }
  std::string At(int process, const std::string& name) const {
    return folder_ / Cat("host.", process, name.empty() ? "" : "/", name);
  }
  void Write(int process, const std::string& name, const std::string& bytes) const {
    folder_.Write(Cat("host.", process, "/", name), bytes);
  }

  // The program with these flags in the folder of each host. Returns what processes printed, process 0 first.
  struct Outcome {
    int code = -1;
    std::string out, err, all;
  };
  Outcome Run(const std::string& program, const Flags& flags, int processes = 2) const {
    const Flags small = {"--layers=1", "--width=16",       "--heads=2",         "--context=16",
                         "--batch=4",  "--eval_batches=0", "--sample_tokens=0", "--kernel_threads=1"};
    JobCommand command{.program = "/bin/sh",
                       .flags = {"-c", "cd \"$0.$RANK\" && exec \"$@\"", folder_ / "host",
                                 Cat(OFL_BINARY_DIR, "/examples/", program)},
                       .processes = processes,
                       .output = folder_ / "printed"};
    if (program == "gpt") command.flags.insert(command.flags.end(), small.begin(), small.end());
    command.flags.insert(command.flags.end(), flags.begin(), flags.end());
    ProcessJob job(command);
    EXPECT_TRUE(job.WaitUntil(Seconds() + 240)) << "it hangs\n" << job.Said();
    Outcome outcome{job[0].code(), job[0].out(), job[0].err()};
    for (int k = 0; k < processes; ++k) {
      EXPECT_EQ(job[k].code(), outcome.code) << job.Said();
      outcome.all += job[k].out() + job[k].err();
    }
    return outcome;
  }
  static void Says(const Outcome& o, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(o.code, code) << o.all;
    for (const std::string& word : words)
      EXPECT_NE(o.all.find(word), std::string::npos) << word << "\n" << o.all;
    if (code != 0) {
      EXPECT_EQ(o.err.find("error: "), o.err.rfind("error: ")) << o.err;
    }
  }
  std::vector<double> Losses() const { return LossesOf(At(0, "log.json")); }

  TestFolder folder_{"own_folders_test"};
};

TEST_F(OwnFolders, TextsAreCompared) {
  const Flags equal = {"--text=text.txt", "--steps=3", "--log_json=log.json"};
  Flags flags = equal;
  flags.push_back("--mesh=cpu:dp=2");
  Says(Run("gpt", flags), 0, {});
  EXPECT_EQ(Losses().size(), 3u);
  std::string other = SomeText();
  other[other.size() / 3] = '#';
  Write(1, "text.txt", other);
  for (const std::string mesh : {"--mesh=cpu:dp=2", "--mesh=cpu:pp=2"}) {
    flags = equal;
    flags.insert(flags.end(), {mesh, "--layers=2"});
    Says(Run("gpt", flags), kUsageError,
         {"the data to learn from: process 1 reads other data than process 0: file 1 is ",
          "(text.txt) there and ", "--compare_data=false"});
  }
  flags = equal;
  flags.insert(flags.end(), {"--mesh=cpu:dp=2", "--compare_data=false"});
  fs::remove(At(0, "log.json"));
  Says(Run("gpt", flags), 0, {});
  EXPECT_EQ(Losses().size(), 3u);
}

TEST_F(OwnFolders, WeightsAreCompared) {
  for (int k = 0; k < 2; ++k) {
    const ShellOutcome made =
        Shell(Cat("cd ", At(k, ""), " && ", OFL_BINARY_DIR,
                  "/examples/gpt --text=text.txt --layers=1 --width=16 --heads=2 --context=16 "
                  "--batch=4 --eval_batches=0 --sample_tokens=0 --steps=",
                  k + 1, " --save=run && ", OFL_BINARY_DIR,
                  "/examples/checkpoint convert run weights.safetensors --weights_only"));
    ASSERT_EQ(made.code, 0) << made.output;
  }
  for (const std::string mesh : {"--mesh=cpu:dp=2", "--mesh=cpu:tp=2"}) {
    const Flags flags = {"--text=text.txt", "--steps=2", mesh};
    Flags load = flags;
    load.push_back("--load=weights.safetensors");
    Says(Run("gpt", load), kUsageError,
         {"process 1 reads other weights than process 0: the file is ", "give all processes the same files"});
    load.back() = "--load=run";
    Says(Run("gpt", load), kUsageError, {"no checkpoint in it is whole for all processes: "});
  }
  fs::copy_file(At(0, "weights.safetensors"), At(1, "weights.safetensors"),
                fs::copy_options::overwrite_existing);
  Says(Run("gpt", {"--text=text.txt", "--steps=2", "--mesh=cpu:tp=2", "--load=weights.safetensors"}), 0,
       {"weights of weights.safetensors"});
  // Prompts of each host.
  fs::remove_all(At(1, "run"));
  fs::copy(At(0, "run"), At(1, "run"), fs::copy_options::recursive);
  for (int k = 0; k < 2; ++k) Write(k, "prompts.txt", Cat("the quick\nthe fox", k, "\n"));
  const Flags generate = {"--load=run", "--prompts=prompts.txt", "--tokens=4", "--mesh=cpu:dp=2"};
  Says(Run("generate", generate), kUsageError,
       {"what is read of prompts", "'prompt 2: ", "process 1 has 'prompt 2: "});
  Write(1, "prompts.txt", "the quick\nthe fox0\n");
  Says(Run("generate", generate), 0, {"--- 1 ---", "--- 2 ---"});
}

// Processes that share network and user, but no disk.
TEST_F(OwnFolders, CheckpointsGoOnFromTheNewestThatAllHave) {
  auto run = [&](int steps, const Flags& more = {}) {
    Flags flags = {"--text=text.txt",    "--mesh=cpu:dp=2", "--zero=1",     Cat("--steps=", steps),
                   "--schedule_steps=8", "--save=run",      "--resume=run", "--log_json=log.json",
                   "--save_every=2",     "--keep=0"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Run("gpt", flags);
  };
  Says(run(6), kRunError, {"let each keep its own (SaveOptions::local, --local)"});
  for (int k = 0; k < 2; ++k) fs::remove_all(At(k, "run"));
  fs::remove(At(0, "log.json"));
  const Flags local = {"--local"};
  Says(run(8, local), 0, {"run: no checkpoint yet, a fresh start"});
  const std::vector<double> whole = Losses();
  ASSERT_EQ(whole.size(), 8u);
  // One host lacks the newest, the other an older one is damaged.
  fs::remove_all(At(1, "run/step-00000008"));
  for (const auto& entry : fs::directory_iterator(At(0, "run/step-00000006")))
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 50);
  Says(run(8, local), 0,
       {"passed over: run/step-00000008 is not there for process 1",
        "passed over: run/step-00000006 is not whole for "
        "process 0",
        "going on from run/step-00000004"});
  EXPECT_EQ(Losses(), whole);
  const Outcome again = run(8, local);
  Says(again, 0, {"going on from run/step-00000008", "all of the 8 steps had been made before"});
  EXPECT_EQ(again.all.find("passed over"), std::string::npos) << again.all;
  fs::remove_all(At(1, "run"));
  Says(run(8, local), kUsageError,
       {"run: no checkpoint in it is whole for all processes: run/step-00000008 is not there for process 1",
        "remove the folder on all hosts to begin anew"});
  EXPECT_TRUE(fs::exists(At(0, "run/step-00000008")));
}

// --- A run that goes on ---

TEST_F(OwnFolders, ARunThatGoesOnSaysWhatHasChanged) {
  auto run = [&](int steps, const Flags& more = {}) {
    Flags flags = {"--text=text.txt", Cat("--steps=", steps), "--save=run", "--resume=run",
                   "--log_json=log.json"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Run("gpt", flags, 1);
  };
  auto silent = [&](const Outcome& o) {
    EXPECT_EQ(o.code, 0) << o.all;
    for (const char* words : {"learning rate", "the data is not"})
      EXPECT_EQ(o.all.find(words), std::string::npos) << o.all;
  };
  silent(run(10));
  silent(run(20, {"--schedule_steps=10"}));
  // 0.1 of 1e-3 at the end; the middle of a cosine of 30 steps behind a warm-up of 15.
  Says(run(30, {"--schedule_steps=40"}), 0,
       {"the learning rate of step 20 is 0.001, and was 0.0001 in the saved run (warm-up steps 20 in place "
        "of 5, "
        "steps of its schedule 40 in place of 10); --schedule_steps=10 keeps its schedule"});
  silent(run(40));
  Says(run(41, {"--lr=0.002", "--schedule_steps=40"}), 0,
       {"the learning rate of step 40 is 0.0002, and was 0.0001 in the saved run (highest rate 0.002 in "
        "place of "
        "0.001)\n"});
  Write(0, "text.txt", SomeText() + SomeText());
  const Outcome other = run(42, {"--lr=0.002", "--schedule_steps=40"});
  Says(other, 0,
       {"the data is not that of the saved run, which had ", " samples in place of ",
        ": it goes on at sample 164 of the run, which is sample 164 of epoch 0 and was sample "});
  silent(run(43, {"--lr=0.002", "--schedule_steps=40"}));
  Says(run(44, {"--lr=0.002", "--schedule_steps=40", "--warmup=7"}), 0,
       {"the learning rate of step 43 is 0.0002, as in the saved run, but its schedule has changed (warm-up "
        "steps 7 in place of 20)\n"});
}

// Averages of weights begin where a run goes on with --average, and end where it goes on without.
TEST_F(OwnFolders, ARunThatGoesOnBeginsAndDropsAverages) {
  auto run = [&](int steps, const Flags& more = {}) {
    Flags flags = {"--text=text.txt", Cat("--steps=", steps), "--schedule_steps=20", "--save=run",
                   "--resume=run"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Run("gpt", flags, 1);
  };
  run(4);
  Says(run(6, {"--average=0.9"}), 0,
       {"averages of weights begin with the weights of step 4: the saved run kept none\n"});
  const Outcome third = run(8, {"--average=0.9"});
  EXPECT_EQ(third.code, 0) << third.all;
  EXPECT_EQ(third.all.find("averages of weights"), std::string::npos) << third.all;
  Says(run(9), 0, {"averages of weights that the saved run kept are dropped: --average continues them\n"});
}

}  // namespace
}  // namespace oneflow_like
