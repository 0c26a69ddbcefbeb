// Runs of a tiny gpt that saves, which tests signal and kill in the middle and compare with undisturbed ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/processes.h"

namespace oneflow_like {

class SavedRuns : public ::testing::Test {
 protected:
  using Flags = std::vector<std::string>;

  static constexpr double kPatience = 240;  // seconds: only what hangs takes as long
  // As many that a run can be stopped in the middle by whoever looks at its log now and then.
  static constexpr int kSteps = 300;

  SavedRuns() : folder_("saved_runs"), text_(folder_.Write("text.txt", SomeText())) {}

  // Of a run that logs to <name>.json; later flags win.
  Flags Run(const std::string& name, const std::string& mesh, int processes, const Flags& more = {}) const {
    Flags flags = {"--text=" + text_,
                   "--layers=1",
                   "--width=16",
                   "--heads=2",
                   "--context=16",
                   "--batch=4",
                   "--eval_batches=1",
                   "--sample_tokens=0",
                   "--kernel_threads=1",
                   "--steps=" + std::to_string(kSteps),
                   "--mesh=" + mesh,
                   "--processes=" + std::to_string(processes),
                   "--log_json=" + (folder_ / (name + ".json"))};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  std::string SaveFlag(const std::string& name) const { return "--save=" + (folder_ / name); }

  std::unique_ptr<Process> Start(const std::string& name, const Flags& flags,
                                 const std::string& program = "gpt",
                                 std::map<std::string, std::string> variables = {}) const {
    variables["OFL_TEST_RUN"] = Mark(name);
    return std::make_unique<Process>(Command{.program = std::string(OFL_BINARY_DIR) + "/examples/" + program,
                                             .flags = flags,
                                             .variables = variables,
                                             .output = folder_ / (name + ".printed")});
  }
  // Its exit code; nothing of it is left.
  int End(Process& run, const std::string& name) const {
    EXPECT_TRUE(run.WaitUntil(Seconds() + kPatience)) << "it hangs\n" << run.out() << run.err();
    EXPECT_EQ(ProcessesWith("OFL_TEST_RUN=" + Mark(name)), std::vector<pid_t>{});
    return run.code();
  }

  // Without the launcher; of a program alone none.
  std::vector<pid_t> Copies(const Process& run, const std::string& name) const {
    std::vector<pid_t> copies = ProcessesWith("OFL_TEST_RUN=" + Mark(name));
    std::erase(copies, run.pid());
    return copies;
  }
  std::vector<double> Losses(const std::string& name) const { return LossesOf(folder_ / (name + ".json")); }

  // Stops all processes of a run that has made `steps`; SIGCONT to its group lets them go on. False when it
  // was too fast, or has ended for a reason of its own.
  bool StopAfter(Process& run, const std::string& name, int steps, int of = kSteps) const {
    const double end = Seconds() + kPatience;
    while (static_cast<int>(Losses(name).size()) < steps && !run.Ended() && Seconds() < end) Sleep(0.002);
    kill(-run.pid(), SIGSTOP);
    Sleep(0.02);
    return !run.Ended() && static_cast<int>(Losses(name).size()) < of - of / 10;
  }

  // Log and last checkpoint of a run that nobody disturbs.
  struct Result {
    std::vector<double> losses;
    std::string bytes;
  };
  const Result& Undisturbed(const std::string& mesh, int processes, const Flags& more = {}) {
    const std::string name = "undisturbed" + std::to_string(undisturbed_.size());
    std::string key = mesh + " " + std::to_string(processes);
    for (const std::string& flag : more) key += " " + flag;
    auto [found, fresh] = undisturbed_.try_emplace(key);
    if (!fresh) return found->second;
    Flags flags = Run(name, mesh, processes, more);
    flags.push_back(SaveFlag(name));
    auto run = Start(name, flags);
    EXPECT_EQ(End(*run, name), 0) << run->err();
    return found->second = {Losses(name), LastBytes(name)};
  }
  void ExpectAsUndisturbed(const std::string& name, const std::string& mesh, int processes) {
    const Result& wanted = Undisturbed(mesh, processes);
    EXPECT_EQ(wanted.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_EQ(Losses(name), wanted.losses);
    EXPECT_FALSE(wanted.bytes.empty());
    EXPECT_TRUE(LastBytes(name) == wanted.bytes) << "the last checkpoints differ";
  }

  static int Count(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
      ++count;
    return count;
  }

  static std::string Mark(const std::string& name) { return std::to_string(getpid()) + name; }

  TestFolder folder_;

 private:
  // Of all tensors in the newest checkpoint.
  std::string LastBytes(const std::string& name) const {
    std::vector<std::string> checkpoints, files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / name, error))
      if (entry.path().filename().string().rfind("step-", 0) == 0) checkpoints.push_back(entry.path());
    if (checkpoints.empty()) return "";
    const std::string last = *std::max_element(checkpoints.begin(), checkpoints.end());
    for (const auto& entry : std::filesystem::directory_iterator(last, error))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::string bytes;
    for (const std::string& file : files) bytes += TextOf(file);
    return bytes;
  }

  std::string text_;
  std::map<std::string, Result> undisturbed_;
};

}  // namespace oneflow_like
