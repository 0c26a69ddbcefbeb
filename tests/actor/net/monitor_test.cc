// Who is behind is named: the judge on numbers, and jobs on four hosts where one process is slowed, or the
// line of one host is late or narrow. `--cases=N` runs more of them.
#include "actor/net/collectives/monitor.h"

#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/processes.h"

DEFINE_int32(cases, 3, "Jobs with something injected: slow compute, a late line and a narrow line in turn");
DEFINE_uint64(seed, 0, "Draws whom it hits and how hard; 0: a fixed one");

namespace oneflow_like {
namespace {

std::vector<MonitorReport> Quiet(int processes) {
  std::vector<MonitorReport> reports(processes);
  for (int p = 0; p < processes; ++p) {
    reports[p].process = p;
    reports[p].busy = 0.5 + 0.02 * p;
    reports[p].links.assign(processes, {100000, 10 << 20, 10000000});
    reports[p].links[p] = {};
  }
  return reports;
}

TEST(Judge, NamesNobodyWhenAllAreAlike) {
  for (int n : {2, 3, 4, 16}) EXPECT_EQ(Judge(Quiet(n)).kind, Verdict::Kind::kNone) << n;
}

TEST(Judge, NamesWhoIsBusy) {
  for (int n : {2, 4, 16}) {
    std::vector<MonitorReport> reports = Quiet(n);
    for (MonitorReport& r : reports) r.busy = 0.3;
    reports[1].busy = 0.95;
    Verdict v = Judge(reports);
    EXPECT_EQ(v.kind, Verdict::Kind::kCompute);
    EXPECT_EQ(v.process, 1);
    EXPECT_NE(v.why.find("95 %"), std::string::npos) << v.why;
  }
}

TEST(Judge, NamesTheProcessAllOfWhoseLinksAreLate) {
  std::vector<MonitorReport> reports = Quiet(4);
  for (int p = 0; p < 4; ++p) {
    if (p != 2) reports[p].links[2].round_trip_ns = reports[2].links[p].round_trip_ns = 20000000;
  }
  Verdict v = Judge(reports);
  EXPECT_EQ(v.kind, Verdict::Kind::kLink);
  EXPECT_EQ(v.process, 2);
  EXPECT_EQ(v.other, -1);
}

TEST(Judge, NamesOneLinkAlone) {
  std::vector<MonitorReport> reports = Quiet(4);
  reports[1].links[3].round_trip_ns = 20000000;
  Verdict v = Judge(reports);
  EXPECT_EQ(v.kind, Verdict::Kind::kLink);
  EXPECT_EQ(v.process, 1);
  EXPECT_EQ(v.other, 3);
}

TEST(Judge, NamesANarrowLine) {
  std::vector<MonitorReport> reports = Quiet(4);
  for (int p = 1; p < 4; ++p) reports[p].links[0].pull_ns *= 10;
  Verdict v = Judge(reports);
  EXPECT_EQ(v.kind, Verdict::Kind::kLink);
  EXPECT_EQ(v.process, 0);
  EXPECT_EQ(v.other, -1);
}

TEST(Judge, TakesNoScheduling) {
  std::vector<MonitorReport> reports = Quiet(4);
  reports[1].links[3].round_trip_ns = 1500000;
  EXPECT_EQ(Judge(reports).kind, Verdict::Kind::kNone);
}

// The first line in what process 0 logs that says who is behind.
std::string FirstBehind(const Process& process) {
  for (const std::string& line : LinesOf(process.err())) {
    if (line.find(" is behind: ") != std::string::npos) return line;
  }
  return "";
}

TEST(Monitor, NamesWhatIsInjected) {
  const std::string why = Hosts::Unavailable();
  if (!why.empty()) GTEST_SKIP() << "no network namespaces here: " << why;
  const uint64_t seed = FLAGS_seed ? FLAGS_seed : 11;
  std::mt19937_64 random(seed);
  TestFolder folder("monitor_test");
  int right = 0;
  for (int i = 0; i < FLAGS_cases; ++i) {
    Hosts hosts(4, seed + i);
    const int kind = i % 3, victim = static_cast<int>(random() % 4);
    ProcessJob job({.program = std::string(OFL_BINARY_DIR) + "/tests/fault_program",
                    .flags = {"--mesh=cpu:dp=4", "--start_timeout=60"},
                    .processes = 4,
                    .output = folder / ("case" + std::to_string(i)),
                    .hosts = &hosts});
    Line line;
    std::string what = "the process is stopped half of the time";
    if (kind == 1) line.delay_ms = 10 + static_cast<double>(random() % 20);
    if (kind == 2) line.mbit = 4 + static_cast<double>(random() % 8);
    if (kind == 1) what = "its line is late by " + std::to_string(line.delay_ms) + " ms";
    if (kind == 2) what = "its line carries " + std::to_string(line.mbit) + " Mbit/s";
    Sleep(1);
    hosts.SetLine(victim, line);
    const double started = Seconds();
    std::string said;
    for (double deadline = Seconds() + 40; said.empty() && Seconds() < deadline;) {
      if (kind == 0) {
        job[victim].Signal(SIGSTOP);
        Sleep(0.1);
        job[victim].Signal(SIGCONT);
      }
      Sleep(0.1);
      said = FirstBehind(job[0]);
    }
    std::printf("case %d: %s, %.1f s: %s\n", i, what.c_str(), Seconds() - started, said.c_str());
    std::fflush(stdout);
    const bool link = said.find("network link of") != std::string::npos;
    const bool named = said.find("rank " + std::to_string(victim) + " (") != std::string::npos;
    if (named && link == (kind != 0)) {
      ++right;
    } else {
      ADD_FAILURE() << "case " << i << " of seed " << seed << ": host " << victim << ", " << what
                    << "; said '" << said << "'\n"
                    << job.Said();
    }
  }
  std::printf("%d of %d right\n", right, FLAGS_cases);
}

}  // namespace
}  // namespace oneflow_like

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return RUN_ALL_TESTS();
}
