// Which device a rank has: its own where there are enough, else neighbours share one.
#include "oneflow_like/model/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/system/cores.h"
#include "oneflow_like/session/session_impl.h"
#include "tests/actor/asynchronous_backend.h"
#include "tests/oneflow_like/thread_job.h"

namespace oneflow_like {
namespace {

void ExpectDealtOut(const Model& model, int given) {
  const int ranks = model.mesh().size();
  std::vector<int> held(given, 0);
  int64_t before = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t device = DeviceOf(*model.impl(), rank, given);
    ASSERT_GE(device, before) << "rank " << rank << " is not beside its neighbour";
    ASSERT_LT(device, given) << "rank " << rank;
    ++held[device];
    before = device;
  }
  const auto [least, most] = std::minmax_element(held.begin(), held.end());
  if (ranks <= given) {
    EXPECT_EQ(*most, 1) << "each has its own";
  } else {
    EXPECT_LE(*most - *least, 1) << "shares are even";
  }
}

TEST(Placement, RanksThatShareADeviceAreNeighbours) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int given = 1; given <= 9; ++given) {
      SCOPED_TRACE(Cat(ranks, " ranks on ", given, " devices"));
      ExpectDealtOut(Model(Mesh("cuda", {{"dp", ranks}})), given);
    }
}

TEST(Placement, ProcessesOfAHostShareItsDevices) {
  for (int processes : {2, 4})
    for (const std::string& error : RunProcesses(processes, [&](std::shared_ptr<Job> job) {
           ModelOptions options;
           options.job = job;
           for (int given = 1; given <= 9; ++given) {
             SCOPED_TRACE(Cat("8 ranks of ", processes, " processes on ", given, " devices"));
             ExpectDealtOut(Model(Mesh("cuda", {{"dp", 8}}), options), given);
           }
         }))
      EXPECT_EQ(error, "");
}

TEST(Placement, ProcessesKnowWhetherTheyShareDevices) {
  EXPECT_FALSE(SharesDevices(*Model(Mesh("cuda", {{"dp", 2}})).impl()));
  for (const char* kind : {"cuda", "cpu", "cpu+cuda"})
    for (int given = 1; given <= 5; ++given)
      for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
             ModelOptions options;
             options.job = job;
             for (int d = 0; d < given; ++d) options.devices.push_back(d);
             const Model model(Mesh::Parse(Cat(kind, ":pp=8")), options);
             // Eight ranks on three devices: the second one's are of both processes.
             EXPECT_EQ(SharesDevices(*model.impl()),
                       std::string(kind) == "cuda" && (given == 1 || given == 3))
                 << kind << " " << given;
           }))
        EXPECT_EQ(error, "");
}

// Communicators and staging memory are counted alike by all processes, as device_collectives_test has them
// made.
TEST(Placement, ProcessesAgreeWhetherGroupsShareADevice) {
  struct Case {
    bool backend;       // whether this host's library lets them
    const char* other;  // process 1's answer
    int ranks;
    bool by_library;
  };
  for (const Case& given : {Case{true, "yes", 2, true}, Case{true, "no", 2, false},
                            Case{false, "yes", 2, false}, Case{true, "yes", 4, false}}) {
    SCOPED_TRACE(Cat(given.backend, ", ", given.other, ", ", given.ranks, " ranks"));
    LateBackend backend(1, 1, 0, true, given.backend);
    for (const std::string& error : RunProcesses(2, [&](std::shared_ptr<Job> job) {
           static_cast<TestJob&>(*job).says = [&](const std::string& what, const std::string& mine) {
             return what == "whether groups share devices" && job->process() == 1 ? given.other : mine;
           };
           ModelOptions options;
           options.job = job;
           Model model(Mesh("cuda", {{"dp", given.ranks}}), options);
           const Tensor x = model.Input("x", {8, 4}, DType::kFloat32, {{"dp", S(0)}});
           const Tensor w = model.scope().Weight("w", {4, 4}, Normal(0.02f));
           const Session train = Train(mean(matmul(x, w)), AdamW{}, {});
           const ModelImpl& impl = *model.impl();
           model.impl()->Load();
           const int first = job->process() * given.ranks / 2;
           const MemoryBesides besides = MemoryBesidesPlan(impl, PlanOf(train.impl()->compiled, first).plan);
           EXPECT_EQ(besides.communicators > 0, given.by_library) << "process " << job->process();
           EXPECT_EQ(impl.groups_share_devices, given.by_library) << "process " << job->process();
         }))
      EXPECT_EQ(error, "");
  }
}

// A process has the cores that machine and control groups leave it beside the others of its host.
TEST(Placement, ProcessesOfAHostShareItsCores) {
  Meeting meeting(4);
  TestJob job(&meeting, 0, 4);
  const int here = std::max(1, UsableCores() / 4);
  EXPECT_EQ(CoresHere(&job), here) << "of processes that do not say";
  auto limit = [&](int process, const std::string& key, double cores) {
    job.SetCores(process, ToText(std::vector<CoreLimit>{{"", "machine", 64}, {"", key, cores}}));
  };
  for (int p = 0; p < 4; ++p) limit(p, Cat("container", p), 6.5);
  EXPECT_EQ(CoresHere(&job), 6);
  limit(1, "container0", 6.5);
  EXPECT_EQ(CoresHere(&job), 3);
  job.SetHost(1, "another");
  EXPECT_EQ(CoresHere(&job), 6) << "there that group is another one";
  EXPECT_EQ(CoresHere(nullptr), UsableCores());
}

}  // namespace
}  // namespace oneflow_like
