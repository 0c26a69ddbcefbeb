// Checkpoints of hosts without a common disk: who shares a folder is found out by looking, and whatever
// differs between the folders of hosts, a run goes on from the newest checkpoint that all have, or ends in a
// sentence.
// ctest: seconds=8 asan=30 waits
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>

#include "oneflow_like/checkpoint/index.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

constexpr int kLast = 6;  // steps of the run

// Cut over the processes where ZeRO says, so that each host needs its own part.
struct Trained {
  Trained(std::shared_ptr<Job> job, uint64_t data)
      : data_(data),
        model(FullMesh("cpu:dp=2"),
              {.zero = {.axis = "dp", .small = 0}, .threads = 1, .job = std::move(job)}) {
    Tensor x = model.Input("x", {4, 6}, DType::kFloat32, {{"dp", S(0)}});
    Tensor up = model.scope().Weight("up", {6, 8}, Normal(1));
    train = std::make_unique<Session>(Train(mean(square(matmul(x, up))), Adam{.lr = 1e-2}));
  }
  float Step() { return train->Run({{"x", Floats(data_ + model.next_step(), {4, 6})}}).Scalar("loss"); }

  const uint64_t data_;
  Model model;
  std::unique_ptr<Session> train;
};

std::string StepName(int64_t step) { return Cat("step-0000000", step); }

class HostsFolders : public testing::Test {
 protected:
  HostsFolders() { fs::create_directories(folder_); }
  ~HostsFolders() override { fs::remove_all(folder_); }

  std::string Of(const std::string& run, int process) const { return Cat(folder_, "/", run, process); }

  // Processes with a folder each, all with one key of a host, as containers that share network and user have.
  std::vector<std::string> Train(const std::string& run, uint64_t data, int64_t steps,
                                 std::vector<float>* losses = nullptr) {
    return RunProcesses(2, [&](std::shared_ptr<Job> job) {
      Trained here(job, data);
      for (int64_t step = 0; step < steps; ++step) {
        const float loss = here.Step();
        Save(here.model, Of(run, job->process()), {.local = true}).Wait();
        if (losses && job->process() == 0) losses->push_back(loss);
      }
    });
  }

  const std::string folder_ = testing::TempDir() + "/hosts_folders_test." + std::to_string(getpid());
};

TEST_F(HostsFolders, ProcessesOfOneHostMayHaveDisksOfTheirOwn) {
  for (const std::string& error : Train("run", 0, 2)) EXPECT_EQ(error, "");
  for (int process = 0; process < 2; ++process) {
    const std::string folder = Of("run", process);
    EXPECT_EQ(Checkpoints(folder),
              (std::vector<std::string>{folder + "/step-00000001", folder + "/step-00000002"}));
    EXPECT_TRUE(CheckpointIndex::Read(folder + "/step-00000002").local);
    for (const auto& entry : fs::directory_iterator(folder))
      EXPECT_TRUE(entry.path().filename() == ".saving" || entry.path().filename().string()[0] == 's')
          << entry.path();
  }
  // Without `local` the sentence says what to do.
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         Trained here(job, 0);
         Save(here.model, Of("shared", job->process()));
       }))
    for (const char* word : {": process 1 does not see the folder of that name that process 0 has made; ",
                             "let each keep its own (SaveOptions::local, --local)"})
      EXPECT_NE(error.find(word), std::string::npos) << error;
}

// Hosts with one folder between them write one checkpoint, with or without `local`.
TEST_F(HostsFolders, HostsMayShareADisk) {
  for (bool local : {false, true}) {
    const std::string folder = Cat(folder_, "/", local);
    for (const std::string& error : RunProcesses(4, [&](std::shared_ptr<Job> job) {
           for (int p = 0; p < 4; ++p) dynamic_cast<TestJob*>(job.get())->SetHost(p, Cat("host", p));
           Model model(FullMesh("cpu:dp=4"), {.zero = {.axis = "dp", .small = 0}, .threads = 1, .job = job});
           (void)model.scope().Weight("up", {8, 8}, Normal(1));
           Save(model, folder, {.local = local}).Wait();
         }))
      EXPECT_EQ(error, "");
    const CheckpointIndex index = CheckpointIndex::Read(folder + "/step-00000000");
    EXPECT_FALSE(index.local) << "it is whole";
    EXPECT_EQ(index.variables.at("up").pieces.size(), 4u);
  }
}

// Three hosts, of which two share a disk.
TEST_F(HostsFolders, SomeHostsMayShareADisk) {
  for (const std::string& error : RunProcesses(3, [&](std::shared_ptr<Job> job) {
         Model model(FullMesh("cpu:dp=3"), {.zero = {.axis = "dp", .small = 0}, .threads = 1, .job = job});
         (void)model.scope().Weight("up", {9, 8}, Normal(1));
         const std::string folder = Of("run", job->process() == 2);
         Save(model, folder, {.local = true}).Wait();
         Load(model, folder);
       }))
    EXPECT_EQ(error, "");
  EXPECT_EQ(CheckpointIndex::Read(Of("run", 0) + "/step-00000000").variables.at("up").pieces.size(), 2u);
  EXPECT_EQ(CheckpointIndex::Read(Of("run", 1) + "/step-00000000").variables.at("up").pieces.size(), 1u);
}

// --- Differences ---

void Cut(const std::string& file, std::mt19937& random) {
  const auto size = fs::file_size(file);
  fs::resize_file(file, random() % size);
}

std::string FileOf(const std::string& checkpoint) {
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (entry.path().extension() == ".safetensors") return entry.path();
  return "";
}

// What became of a host's checkpoints.
enum class Fate { kWhole, kGone, kUnderWay, kDamaged, kOther };

// Of random changes to each host's folder, what each of its checkpoints is then.
std::vector<Fate> ChangeAtRandom(const std::string& folder, const std::string& other_run,
                                 std::mt19937& random, std::string* told) {
  std::vector<Fate> fates(kLast + 1, Fate::kGone);
  const int kind = random() % 8;
  *told += Cat(" kind ", kind);
  int64_t kept = kLast - 2;                      // as it was saved
  if (kind == 1) kept = random() % (kLast - 1);  // an old copy of the folder
  if (kind == 2) kept = 0;                       // empty
  for (int64_t step = 1; step <= kLast - 2; ++step) {
    const std::string path = folder + "/" + StepName(step);
    Fate& fate = fates[step] = Fate::kWhole;
    const int what = kind < 3 ? 0 : random() % 9;
    if (step > kept || what == 1) {
      fs::remove_all(path);
      fate = Fate::kGone;
    } else if (what == 2) {  // as a save that was cut off leaves it
      fs::rename(path, Cat(folder, "/.", StepName(step), ".partial"));
      fate = Fate::kUnderWay;
    } else if (what == 3) {
      Cut(FileOf(path), random);
      fate = Fate::kDamaged;
    } else if (what == 4) {
      Cut(path + "/" + CheckpointIndex::kFile, random);
      fate = Fate::kDamaged;
    } else if (what == 5) {
      fs::remove(FileOf(path));
      fate = Fate::kDamaged;
    } else if (what == 6) {  // of a run with other data
      fs::remove_all(path);
      fs::copy(other_run + "/" + StepName(step), path, fs::copy_options::recursive);
      fate = Fate::kOther;
    }
    *told += Cat(" ", static_cast<int>(fate));
  }
  if (kind == 2 && random() % 2 == 0) fs::remove_all(folder);
  return fates;
}

// Every state of two hosts' folders goes on from the newest that both have, to the losses of the run that
// nobody disturbed; or it ends in one sentence, the same on both, and nothing is removed.
TEST_F(HostsFolders, AnyDifferenceGoesOnOrIsOneSentence) {
  std::vector<float> losses;
  for (const std::string& error : Train("whole", 0, kLast - 2, &losses)) EXPECT_EQ(error, "");
  for (const std::string& error : Train("other", 100, kLast - 2)) EXPECT_EQ(error, "");
  {
    std::vector<float> all;
    for (const std::string& error : Train("undisturbed", 0, kLast, &all)) EXPECT_EQ(error, "");
    losses = all;
  }
  int went_on = 0, ended = 0, began = 0, passed = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    std::mt19937 random(seed);
    std::string told = Cat("seed ", seed);
    std::vector<std::vector<Fate>> fates;
    for (int process = 0; process < 2; ++process) {
      fs::remove_all(Of("run", process));
      fs::copy(Of("whole", process), Of("run", process), fs::copy_options::recursive);
      told += Cat("; host ", process);
      fates.push_back(ChangeAtRandom(Of("run", process), Of("other", process), random, &told));
    }
    SCOPED_TRACE(told);
    int64_t newest = 0;  // of those that both have whole; or damaged alike
    bool any = false, under_way = true, damaged = false;
    for (int64_t step = 1; step <= kLast; ++step) {
      const Fate a = fates[0][step], b = fates[1][step];
      const bool there =
          (a != Fate::kGone && a != Fate::kUnderWay) || (b != Fate::kGone && b != Fate::kUnderWay);
      any = any || there;
      auto lacks = [](Fate fate) { return fate == Fate::kGone || fate == Fate::kUnderWay; };
      if (there)
        under_way = under_way && (!lacks(a) || a == Fate::kUnderWay) && (!lacks(b) || b == Fate::kUnderWay) &&
                    (lacks(a) || lacks(b));
      if (a == b && a != Fate::kGone && a != Fate::kUnderWay) {
        newest = step;
        damaged = a == Fate::kDamaged;
      }
    }
    std::mutex mutex;
    std::vector<std::string> begun_at(2), names(2);
    auto run = [&] {
      return RunProcesses(2, [&](std::shared_ptr<Job> job) {
        const int me = job->process();
        const std::string folder = Of("run", me);
        Trained here(job, 0);
        std::vector<std::string> passed_over;
        const std::string path = NewestCheckpoint(here.model, folder, &passed_over);
        if (!path.empty()) Load(here.model, folder);
        {
          std::lock_guard<std::mutex> lock(mutex);
          begun_at[me] = path.empty() ? "" : fs::path(path).filename().string();
          names[me] = passed_over.empty() ? "" : passed_over[0];
        }
        const bool another = newest > 0 && !path.empty() && fates[0][newest] == Fate::kOther;
        while (here.model.next_step() < kLast) {
          const int64_t step = here.model.next_step();
          const float loss = here.Step();
          if (!another && loss != losses[step])
            Fail("step ", step, " has loss ", loss, ", not ", losses[step]);
          Save(here.model, folder, {.keep = 3, .local = true}).Wait();
        }
      });
    };
    const std::vector<std::string> errors = run();
    EXPECT_EQ(errors[0].empty(), errors[1].empty()) << errors[0] << " | " << errors[1];
    if (!errors[0].empty()) {
      ++ended;
      EXPECT_TRUE(damaged || (newest == 0 && any && !under_way)) << errors[0];
      for (const std::string& error : errors) {
        EXPECT_EQ(error.find('\n'), std::string::npos) << error;
        EXPECT_NE(error.find("step-0000000"), std::string::npos) << error;
      }
      for (int process = 0; process < 2; ++process)
        for (int64_t step = 1; step <= kLast - 2; ++step) {
          const Fate fate = fates[process][step];
          EXPECT_EQ(fs::exists(Of("run", process) + "/" + StepName(step)),
                    fate != Fate::kGone && fate != Fate::kUnderWay)
              << step << " of host " << process;
        }
      continue;
    }
    EXPECT_FALSE(damaged);
    EXPECT_EQ(begun_at[0], newest == 0 ? "" : StepName(newest));
    EXPECT_EQ(begun_at[1], begun_at[0]);
    ++(newest == 0 ? began : went_on);
    if (!names[0].empty()) {
      ++passed;
      EXPECT_NE(names[0].find("step-0000000"), std::string::npos) << names[0];
      EXPECT_NE(names[0].find("process "), std::string::npos) << names[0];
    }
    // Now both have the same, and the same command is at its end.
    for (const std::string& error : run()) EXPECT_EQ(error, "");
    EXPECT_EQ(begun_at[0], StepName(kLast));
    EXPECT_EQ(names[0], "");
    for (int process = 0; process < 2; ++process) {
      const std::vector<std::string> left = Checkpoints(Of("run", process));
      ASSERT_GE(left.size(), 2u);
      EXPECT_EQ(fs::path(left.back()).filename(), StepName(kLast));
    }
  }
  EXPECT_GT(went_on, 20);
  EXPECT_GT(ended, 10);
  EXPECT_GT(began, 0);
  EXPECT_GT(passed, 10);
}

// What the program is told: which was passed over, where, and why.
TEST_F(HostsFolders, WhatIsPassedOverIsNamed) {
  for (const std::string& error : Train("run", 0, 4)) EXPECT_EQ(error, "");
  fs::remove_all(Of("run", 1) + "/step-00000004");
  fs::resize_file(FileOf(Of("run", 0) + "/step-00000003"), 100);
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         Trained here(job, 0);
         const Loaded loaded = Load(here.model, Of("run", job->process()));
         EXPECT_EQ(loaded.path, Of("run", job->process()) + "/step-00000002");
         ASSERT_EQ(loaded.passed_over.size(), 2u);
         EXPECT_TRUE(loaded.passed_over[0].ends_with("/step-00000004 is not there for process 1"))
             << loaded.passed_over[0];
         EXPECT_NE(loaded.passed_over[1].find("/step-00000003 is not whole for process 0: "),
                   std::string::npos)
             << loaded.passed_over[1];
       }))
    EXPECT_EQ(error, "");
  fs::remove_all(Of("run", 1));
  for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
         Trained here(job, 0);
         NewestCheckpoint(here.model, Of("run", job->process()));
       })) {
    EXPECT_NE(error.find(": no checkpoint in it is whole for all processes: "), std::string::npos) << error;
    EXPECT_NE(
        error.find("/step-00000004 is not there for process 1; bring back what that process had, or remove "
                   "the folder on all hosts to begin anew"),
        std::string::npos)
        << error;
  }
}

// One that all have is not replaced, nor what is no checkpoint.
TEST_F(HostsFolders, OnlyCheckpointsThatSomeLackAreReplaced) {
  for (const std::string& error : Train("run", 0, 2)) EXPECT_EQ(error, "");
  for (const std::string& error : Train("run", 0, 2))
    EXPECT_NE(error.find("/step-00000001: there is such a checkpoint already"), std::string::npos) << error;
  fs::remove_all(Of("run", 1));
  std::ofstream(Of("run", 0) + "/step-00000001/notes.txt") << "mine";
  for (const std::string& error : Train("run", 0, 2))
    EXPECT_NE(error.find("/step-00000001: there is something of that name, and more in it than a checkpoint"),
              std::string::npos)
        << error;
  EXPECT_TRUE(fs::exists(Of("run", 0) + "/step-00000001/notes.txt"));
}

}  // namespace
}  // namespace oneflow_like
