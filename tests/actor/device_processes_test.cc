// Ranks on asynchronous devices in several processes: what no library of theirs joins goes through memory of
// the host and the collectives of processes.
// ctest: asan=55 tsan=55
#include <gtest/gtest.h>

#include <cmath>

#include "tests/actor/asynchronous_backend.h"
#include "tests/actor/net/job_processes.h"
#include "tests/oneflow_like/small_gpt.h"

namespace oneflow_like {
namespace {

std::vector<float> Losses(const std::string& mesh, int micro_batches, std::shared_ptr<Job> job) {
  SmallGpt given;
  given.mesh = mesh;
  given.micro_batches = micro_batches;
  given.layers = 2;
  given.width = 32;
  given.model_options.kernel_threads = 1;
  given.model_options.job = std::move(job);
  GptProgram program(given);
  Session session = program.MakeTrain();
  std::vector<StepResult> results;
  for (int step = 0; step < 6; ++step) results.push_back(session.Run(program.MakeFeeds(step)));
  std::vector<float> losses;
  for (const StepResult& result : results) losses.push_back(result.Scalar("loss"));
  return losses;
}

void ExpectCurve(int processes, const std::string& mesh, int micro_batches, bool shared_memory) {
  SCOPED_TRACE(mesh);
  Meeting meeting(processes);
  Processes all(processes, [&](int me, Line*) {
    LateBackend backend(1, 31 + me, 200);
    JobOptions options;
    options.shared_memory = shared_memory;
    std::shared_ptr<Job> job = meeting.Join(me, options);
    std::vector<float> one = Losses("cpu:dp=1", 1, nullptr), losses = Losses(mesh, micro_batches, job);
    for (size_t i = 0; i < one.size(); ++i) {
      REQUIRE(std::abs(losses[i] - one[i]) <= 2e-5 * std::abs(one[i]), "step ", i, ": ", losses[i], " for ",
              one[i]);
    }
    job->Finish(true);
  });
  all.ExpectAllWell();
}

TEST(DeviceProcessesTest, OneLossCurveOnDevicesOfTwoProcesses) {
  for (bool shared_memory : {true, false}) {
    ExpectCurve(2, "cuda:dp=2", 1, shared_memory);
    ExpectCurve(2, "cuda:dp=2,pp=2", 2, shared_memory);
  }
}

TEST(DeviceProcessesTest, OneProcessOnTheHostAndOneOnADevice) {
  ExpectCurve(2, "cpu+cuda:pp=2", 4, true);
  ExpectCurve(2, "cuda+cpu:tp=2,pp=2", 2, true);
}

}  // namespace
}  // namespace oneflow_like
