// What faults_test and soak run as the processes of a job: trains a small GPT through the public API, and at
// a given moment says that it is reached, waits to be struck, or ends in a way no program should.
#include <gflags/gflags.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/oneflow_like/small_gpt.h"

DEFINE_int64(steps, 1000000000, "Training steps");
DEFINE_int64(evaluations, 20, "Evaluation steps after them");
DEFINE_string(moment, "", "compile, step <n>, evaluation <n> or end; empty: none is looked for");
DEFINE_string(act, "mark", "What to do there: mark (go on), exit, return or throw");
DEFINE_string(mark_file, "", "File that is made when the moment is reached");
DEFINE_int32(pause_ms, 0, "How long to stay at the moment, for mark");
DEFINE_int32(exit_code, 0, "For exit and return");
DEFINE_string(progress_file, "", "File that gets the number of the last step, twice a second");

namespace oneflow_like {
namespace {

// Unwinds to the body, which returns: a program that ends early in good order, while its peers train on.
struct Leave {};

void Reach(const std::string& moment) {
  if (moment != FLAGS_moment) return;
  std::ofstream(FLAGS_mark_file) << moment << "\n";
  if (FLAGS_act == "exit") std::exit(FLAGS_exit_code);
  if (FLAGS_act == "return") throw Leave();
  if (FLAGS_act == "throw") throw std::runtime_error("thrown at " + moment + ", as asked for");
  std::this_thread::sleep_for(std::chrono::milliseconds(FLAGS_pause_ms));
}

class Progress {
 public:
  void Step(int64_t step) {
    const auto now = std::chrono::steady_clock::now();
    if (FLAGS_progress_file.empty() || now - last_ < std::chrono::milliseconds(500)) return;
    last_ = now;
    const std::string other = FLAGS_progress_file + ".new";
    std::ofstream(other) << step << "\n";
    std::rename(other.c_str(), FLAGS_progress_file.c_str());
  }

 private:
  std::chrono::steady_clock::time_point last_{};
};

int RunJob(const Launcher& launcher) {
  Reach("compile");
  SmallGpt small;
  small.mesh = launcher.mesh({"dp", "tp", "pp"}, "cpu:dp=1").str();
  small.micro_batches = 2;
  small.width = 32;
  small.parallel.batch = "";  // layouts by cost, which sends more
  small.model_options = launcher.model_options();
  GptProgram program(small);
  Session train = program.MakeTrain();
  Progress progress;
  for (int64_t step = 0; step < FLAGS_steps; ++step) {
    Reach("step " + std::to_string(step));
    train.Run(program.MakeFeeds(step)).Scalar("loss");
    progress.Step(step);
  }
  Session evaluate = program.MakeEvaluate();
  for (int64_t step = 0; step < FLAGS_evaluations; ++step) {
    Reach("evaluation " + std::to_string(step));
    evaluate.Run(program.MakeFeeds(step)).Scalar("loss");
  }
  Reach("end");
  return 0;
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  oneflow_like::Launcher launcher(&argc, &argv, "Trains a small GPT until something happens.");
  return launcher.Main([&] {
    try {
      return oneflow_like::RunJob(launcher);
    } catch (const oneflow_like::Leave&) {
      return FLAGS_exit_code;
    }
  });
}
