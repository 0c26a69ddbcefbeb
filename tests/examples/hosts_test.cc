// gpt over several hosts: one loss curve on good lines and on bad ones; strangers and wrong tokens; who may
// reach the processes of a job.
// ctest: seconds=18 serial programs=gpt
#include "tests/hosts.h"

#include <gtest/gtest.h>

#include <set>

#include "core/system/exit_codes.h"
#include "tests/processes.h"

namespace oneflow_like {
namespace {

const double kDeadline = 120;  // seconds: keeps a hang from hanging

class HostsTest : public ::testing::Test {
 protected:
  HostsTest() : folder_("hosts_test"), text_(folder_.Write("text.txt", SomeText())) {}

  // Each test in its own namespaces; false, and the test is skipped, where the machine gives none.
  bool MakeHosts(int count) {
    const std::string why = Hosts::Unavailable();
    if (why.empty()) hosts_ = std::make_unique<Hosts>(count, kSeed);
    return why.empty();
  }

  JobCommand Gpt(const std::string& name, const std::string& mesh, int processes) {
    return {.program = std::string(OFL_BINARY_DIR) + "/examples/gpt",
            .flags = {"--text=" + text_, "--layers=4", "--width=32", "--heads=4", "--context=32", "--batch=8",
                      "--steps=20", "--micro_batches=2", "--eval_batches=2", "--sample_tokens=4",
                      "--mesh=" + mesh, "--start_timeout=30"},
            .processes = processes,
            .output = folder_ / name,
            .hosts = hosts_.get()};
  }

  // On a busy machine the monitor may well report a rank that is kept from running (monitor_test).
  static std::string WithoutWarnings(const std::string& err) {
    std::string rest;
    for (const std::string& line : LinesOf(err))
      if (line.find(" is behind: ") == std::string::npos) rest += line + "\n";
    return rest;
  }

  std::vector<double> Losses(const std::string& name, JobCommand command) {
    for (int k = 0; k < command.processes; ++k)
      command.own_flags[k].push_back("--log_json=" + LogOf(name, k));
    ProcessJob job(command);
    EXPECT_TRUE(job.WaitUntil(Seconds() + kDeadline)) << name << " hangs\n" << job.Said();
    for (int k = 0; k < job.count(); ++k) {
      EXPECT_EQ(job[k].code(), 0) << name << " process " << k << "\n" << job[k].err();
      EXPECT_EQ(WithoutWarnings(job[k].err()), "") << name << " process " << k;
      // Who writes a log writes the same.
      const std::vector<double> own = LossesOf(LogOf(name, k));
      EXPECT_TRUE(own.empty() || own == LossesOf(LogOf(name, 0))) << name << " process " << k;
    }
    return LossesOf(LogOf(name, 0));
  }
  std::string LogOf(const std::string& name, int k) const {
    return folder_ / (name + "." + std::to_string(k) + ".json");
  }

  void ExpectSameCurve(const std::string& name, const std::string& mesh) {
    JobCommand alone = Gpt("alone", "cpu:dp=1", 1);
    alone.hosts = nullptr;
    const std::vector<double> wanted = Losses("alone", alone);
    ASSERT_EQ(wanted.size(), 20u);
    EXPECT_LE(CurveDifference(Losses(name, Gpt(name, mesh, 4)), wanted), 1e-5)
        << name << ", lines seeded by " << kSeed;
    EXPECT_GT(hosts_->counts().forwarded, 100);
  }

  // That exit code and one line "error: ..." with all the words.
  static void ExpectError(const Process& p, const std::vector<std::string>& words, int code = kLostPeer) {
    EXPECT_EQ(p.code(), code) << p.err();
    int errors = 0;
    for (const std::string& line : LinesOf(p.err())) {
      if (line.find("error: ") == std::string::npos) continue;
      ++errors;
      for (const std::string& word : words)
        EXPECT_NE(line.find(word), std::string::npos) << word << " | " << line;
    }
    EXPECT_EQ(errors, 1) << p.err();
  }

  static constexpr uint64_t kSeed = 20240607;
  TestFolder folder_;
  std::string text_;
  std::unique_ptr<Hosts> hosts_;
};

#define NEED_HOSTS(count) \
  if (!MakeHosts(count)) GTEST_SKIP() << Hosts::Unavailable()

// The figures of the lines are those of the programs: what ping would say.
TEST_F(HostsTest, LinesDelayLoseAndCut) {
  NEED_HOSTS(2);
  auto connects = [&](double deadline) {
    Process p({.program = "/bin/bash",
               .flags = {"-c", "exec 3<>/dev/tcp/" + Hosts::address(1) + "/9; true"},
               .output = folder_ / "connect",
               .hosts = hosts_.get(),
               .host = 0});
    const double start = Seconds();
    return p.WaitUntil(start + deadline) ? p.ended_at() - start : INFINITY;
  };
  connects(10);                 // finds the address
  EXPECT_LT(connects(10), 10);  // refused, but answered
  hosts_->SetAllLines({.delay_ms = 150});
  const double slow = connects(10);
  EXPECT_GE(slow, 0.3);
  EXPECT_LT(slow, 10);
  hosts_->SetAllLines({});
  hosts_->SetLine(1, {.cut = true});
  EXPECT_EQ(connects(0.5), INFINITY);
  hosts_->SetLine(1, {});
  const auto before = hosts_->counts();
  hosts_->SetLine(0, {.loss = 1});
  EXPECT_EQ(connects(0.5), INFINITY);
  EXPECT_GT(hosts_->counts().lost, before.lost);
}

TEST_F(HostsTest, OneLossCurveOverFourHosts) {
  NEED_HOSTS(4);
  ExpectSameCurve("dp2_pp2", "cpu:dp=2,pp=2");
  ExpectSameCurve("dp4", "cpu:dp=4");
  ExpectSameCurve("tp4", "cpu:tp=4");
}

TEST_F(HostsTest, OneLossCurveOverBadLines) {
  NEED_HOSTS(4);
  hosts_->SetAllLines({.delay_ms = 5, .loss = 0.01, .mbit = 50});
  ExpectSameCurve("bad", "cpu:dp=2,pp=2");
  EXPECT_GT(hosts_->counts().lost, 0);
}

// Two processes on each of two hosts: shared memory inside, the network between.
TEST_F(HostsTest, TwoProcessesOnEachOfTwoHosts) {
  NEED_HOSTS(2);
  ExpectSameCurve("dp4", "cpu:dp=4");
  ExpectSameCurve("tp4", "cpu:tp=4");
  ExpectSameCurve("dp2_pp2", "cpu:dp=2,pp=2");
}

TEST_F(HostsTest, MissingTokenBeyondLoopbackIsRefused) {
  NEED_HOSTS(2);
  JobCommand command = Gpt("no_token", "cpu:dp=2", 2);
  command.token.clear();
  ProcessJob job(command);
  ASSERT_TRUE(job.WaitUntil(Seconds() + kDeadline)) << job.Said();
  for (int k = 0; k < 2; ++k) ExpectError(job[k], {"ONEFLOW_LIKE_TOKEN"}, kUsageError);
}

TEST_F(HostsTest, WrongTokenIsRefused) {
  NEED_HOSTS(2);
  JobCommand right = Gpt("token", "cpu:dp=2", 2), wrong = right;
  for (JobCommand* command : {&right, &wrong}) command->flags.push_back("--start_timeout=3");
  wrong.token = "some other secret";
  right.processes = 0;
  ProcessJob job(right);
  right.processes = 2;
  job.Start(right, 0);
  job.Start(wrong, 1);
  ASSERT_TRUE(job.WaitUntil(Seconds() + kDeadline)) << job.Said();
  ExpectError(job[0], {"1"});      // who is missing
  ExpectError(job[1], {"token"});  // why it was not let in
}

// Secrets stay out of what is printed.
TEST_F(HostsTest, TheTokenIsNeverPrinted) {
  NEED_HOSTS(2);
  JobCommand command = Gpt("secret", "cpu:dp=2", 2);
  command.token = "Xq81-unmistakable-token";
  ProcessJob job(command);
  ASSERT_TRUE(job.WaitUntil(Seconds() + kDeadline)) << job.Said();
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(job[k].code(), 0) << job[k].err();
    EXPECT_EQ((job[k].out() + job[k].err()).find(command.token), std::string::npos);
  }
}

// A local job can be reached from this machine alone: while process 0 waits for the others, and while they
// train.
TEST_F(HostsTest, LocalJobsListenOnLoopbackOnly) {
  JobCommand command = Gpt("local", "cpu:dp=2", 2);
  command.flags.push_back("--steps=1000000");
  command.processes = 0;
  ProcessJob job(command);
  command.processes = 2;
  job.Start(command, 0);
  auto check = [&](const std::string& when) {
    std::set<std::string> all;
    for (int k = 0; k < job.count(); ++k)
      for (const std::string& address : ListeningAddresses(job[k].pid())) {
        all.insert(address);
        EXPECT_EQ(address.rfind("0100007F:", 0), 0u)
            << when << ": process " << k << " listens on " << address;
      }
    return all.size();
  };
  const double deadline = Seconds() + kDeadline;
  while (check("alone") == 0 && Seconds() < deadline && !job[0].Ended()) Sleep(0.01);
  EXPECT_GT(check("alone"), 0u) << job.Said();
  job.Start(command, 1);
  while (job[0].out().find("step") == std::string::npos && Seconds() < deadline && !job[0].Ended())
    Sleep(0.05);
  EXPECT_FALSE(job[0].Ended()) << job.Said();
  check("training");
}

}  // namespace
}  // namespace oneflow_like
