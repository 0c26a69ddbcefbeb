// Who is behind is named: the judge on numbers, and jobs on four hosts where one process is slowed, or the
// line of one host is late or narrow. `--cases=N` runs more of them.
// ctest: serial seconds=19
#include "actor/net/collectives/monitor.h"

#include <gflags/gflags.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/actor/net/stub_network.h"
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

// Who is busy half as much again as the median of the others, and 15 points more.
TEST(Judge, KnowsHowBusyIsTooBusy) {
  struct Given {
    double others, one;
    bool named;
  };
  for (const Given& given :
       {Given{0.5, 0.74, false}, Given{0.5, 0.76, true}, Given{0.4, 0.59, false}, Given{0.4, 0.61, true},
        Given{0.2, 0.34, false}, Given{0.2, 0.36, true}, Given{0, 0.14, false}, Given{0, 0.16, true}}) {
    std::vector<MonitorReport> reports = Quiet(5);
    for (MonitorReport& r : reports) r.busy = given.others;
    reports[3].busy = given.one;
    const Verdict v = Judge(reports);
    EXPECT_EQ(v.kind == Verdict::Kind::kCompute, given.named) << given.one << " against " << given.others;
    EXPECT_EQ(v.process, given.named ? 3 : -1);
  }
}

// Three times what is usual, and more than scheduling makes of a round trip.
TEST(Judge, KnowsHowLateIsTooLate) {
  struct Given {
    double usual_ms, one_ms;
    bool named;
  };
  for (const Given& given : {Given{4, 11.9, false}, Given{4, 12.1, true}, Given{0.1, 1.9, false},
                             Given{0.1, 2.1, true}, Given{1, 2.9, false}, Given{1, 3.1, true}}) {
    std::vector<MonitorReport> reports = Quiet(4);
    for (MonitorReport& r : reports)
      for (MonitorReport::Link& link : r.links)
        link.round_trip_ns = static_cast<int64_t>(1e6 * given.usual_ms);
    reports[2].links[1].round_trip_ns = static_cast<int64_t>(1e6 * given.one_ms);
    EXPECT_EQ(Judge(reports).kind == Verdict::Kind::kLink, given.named)
        << given.one_ms << " ms, elsewhere " << given.usual_ms;
  }
}

TEST(Judge, KnowsHowNarrowIsTooNarrow) {
  for (double times : {2.9, 3.1}) {
    std::vector<MonitorReport> reports = Quiet(4);
    reports[2].links[1].pull_ns =
        static_cast<int64_t>(times * static_cast<double>(reports[2].links[1].pull_ns));
    EXPECT_EQ(Judge(reports).kind == Verdict::Kind::kLink, times > 3) << times;
  }
}

// A rate is known from 64 KiB on.
TEST(Judge, TakesNoRateFromAFewBytes) {
  for (int64_t bytes : {(64 << 10) - 1, 64 << 10}) {
    std::vector<MonitorReport> reports = Quiet(4);
    reports[2].links[1] = {100000, bytes, bytes * 100};  // 1 ns for each byte is usual
    EXPECT_EQ(Judge(reports).kind == Verdict::Kind::kLink, bytes == 64 << 10) << bytes;
  }
}

TEST(Judge, TakesNoScheduling) {
  std::vector<MonitorReport> reports = Quiet(4);
  reports[1].links[3].round_trip_ns = 1500000;
  EXPECT_EQ(Judge(reports).kind, Verdict::Kind::kNone);
}

// --- What is reported, and when a verdict counts ---

// Process 1 of a job: what it reports of windows that end when the test says so.
class Reporter {
 public:
  explicit Reporter(int processes = kProcesses) : monitor_(&network_, 1, processes, [](int) { return ""; }) {
    network_.offset = 1000 * kWindow - ClockNow();  // just after the begin of a window
    EndWindow();                                    // the first, which nobody hears of
    EXPECT_TRUE(network_.sent_to[0].empty()) << "the first window holds the loading";
    network_.sent_to.clear();
  }
  Monitor* monitor() { return &monitor_; }
  // A word that process 0 sent at `sent`, by this process's clock, is looked at.
  void Came(int64_t sent) { monitor_.Came(0, sent + network_.offset); }
  // One of process 2, whose clock is so far ahead of this process's.
  void CameOf2(int64_t sent, int64_t ahead) {
    network_.offsets[2] = ahead;
    monitor_.Came(2, sent + ahead);
  }
  // Ends the window and gives its report, if there is one.
  std::string EndWindow() {
    network_.offset += kWindow;
    const int64_t begin = ClockNow();
    monitor_.CollectiveBegins();
    monitor_.CollectiveEnds();
    held_up_ = std::max(held_up_, ClockNow() - begin);
    return network_.sent_to[0].empty() ? "" : network_.sent_to[0].back();
  }
  // The longest that the collective took that ends a window: nothing, unless somebody else had the core.
  int64_t held_up() const { return held_up_; }
  static constexpr int kProcesses = 4;
  static constexpr int64_t kWindow = static_cast<int64_t>(Monitor::kWindow * 1e9);

 private:
  StubNetwork network_;
  Monitor monitor_;
  int64_t held_up_ = 0;
};

// Process 0, which is told of windows.
class Listener {
 public:
  explicit Listener(int processes = Reporter::kProcesses)
      : processes_(processes),
        monitor_(&network_, 0, processes, [](int p) { return "process " + std::to_string(p); }) {}
  void Tell(int process, const std::string& report) {
    monitor_.Deliver(process, report.data(), report.size(), nullptr);
  }
  // A window of all processes: `report` is of `victim`, `usual` of the others.
  void TellAll(int victim, const std::string& report, const std::string& usual) {
    for (int p = 0; p < processes_; ++p) Tell(p, p == victim ? report : usual);
  }
  const Verdict& last() const { return monitor_.last(); }

 private:
  const int processes_;
  StubNetwork network_;
  Monitor monitor_;
};

void WaitSomeTime() { std::this_thread::sleep_for(std::chrono::milliseconds(40)); }

// One window with a process that has no collective, and one in which it waits all along.
struct Windows {
  Windows() {
    while (!Make()) {
    }
  }
  // False: others had the core at the wrong moment.
  bool Make() {
    Reporter reporter;
    WaitSomeTime();
    busy = reporter.EndWindow();
    reporter.monitor()->CollectiveBegins();
    (void)reporter.EndWindow();  // a window that begins inside a collective ...
    WaitSomeTime();
    waiting = reporter.EndWindow();  // ... and ends there
    reporter.monitor()->CollectiveEnds();
    (void)reporter.EndWindow();
    WaitSomeTime();
    busy_again = reporter.EndWindow();
    return reporter.held_up() < 100000;
  }
  std::string busy, waiting, busy_again;
};

TEST(Monitor, AVerdictCountsWhenTwoWindowsAgree) {
  const Windows windows;
  Listener listener;
  listener.TellAll(2, windows.busy, windows.waiting);
  EXPECT_EQ(listener.last().kind, Verdict::Kind::kNone) << "after one window";
  listener.TellAll(1, windows.busy, windows.waiting);
  EXPECT_EQ(listener.last().kind, Verdict::Kind::kNone) << "they do not agree";
  listener.TellAll(1, windows.busy, windows.waiting);
  EXPECT_EQ(listener.last().kind, Verdict::Kind::kCompute);
  EXPECT_EQ(listener.last().process, 1);
  listener.TellAll(1, windows.waiting, windows.waiting);
  EXPECT_EQ(listener.last().process, 1) << "nor is it taken back after one";
  listener.TellAll(1, windows.waiting, windows.waiting);
  EXPECT_EQ(listener.last().kind, Verdict::Kind::kNone);
}

TEST(Monitor, AWindowIsJudgedWhenAllHaveReportedAnew) {
  const Windows windows;
  Listener listener;
  listener.TellAll(2, windows.busy, windows.waiting);
  for (int again = 0; again < 5; ++again) {
    for (int p : {2, 0, 1}) listener.Tell(p, p == 2 ? windows.busy : windows.waiting);
    EXPECT_EQ(listener.last().kind, Verdict::Kind::kNone) << "process 3 has not reported";
  }
  listener.Tell(3, windows.waiting);
  EXPECT_EQ(listener.last().process, 2);
}

// What was counted in one window is not counted in the next.
TEST(Monitor, AReportIsOfItsWindowAlone) {
  const Windows windows;
  for (const std::string& busy : {windows.busy, windows.busy_again}) {
    Listener listener;
    for (int again = 0; again < 2; ++again) listener.TellAll(2, busy, windows.waiting);
    EXPECT_EQ(listener.last().process, 2);
    EXPECT_NE(listener.last().why.find("100 % of the time, the others 0 %"), std::string::npos)
        << listener.last().why;
  }
  // And so with data: a slow transfer of one window is gone in the next.
  Reporter reporter;
  reporter.monitor()->CollectiveBegins();
  (void)reporter.EndWindow();
  auto window = [&](int64_t ns) {
    for (int p : {0, 2, 3}) reporter.monitor()->Pulled(p, 1 << 20, ns);
    return reporter.EndWindow();
  };
  const std::string quick = window(1000000), slow = window(10000000), quick_again = window(1000000);
  Listener listener;
  for (int again = 0; again < 2; ++again) listener.TellAll(1, slow, quick);
  EXPECT_EQ(listener.last().kind, Verdict::Kind::kLink);
  EXPECT_EQ(listener.last().process, 1);
  for (int again = 0; again < 2; ++again) listener.TellAll(1, quick_again, quick);
  EXPECT_EQ(listener.last().kind, Verdict::Kind::kNone);
}

// A report has room for some thirty links. The slowest are among them, whoever they lead to.
TEST(Monitor, ReportsTheSlowestOfManyLinks) {
  constexpr int kMany = 64;
  for (int slow : {0, 2, 31, 33, 63}) {
    Reporter reporter(kMany);
    reporter.monitor()->CollectiveBegins();
    (void)reporter.EndWindow();
    auto window = [&](int64_t ns) {
      for (int p = 0; p < kMany; ++p)
        if (p != 1) reporter.monitor()->Pulled(p, 1 << 20, p == slow ? ns : 1000000 + p);
      return reporter.EndWindow();
    };
    const std::string usual = window(1000000), late = window(10000000);
    reporter.monitor()->CollectiveEnds();
    Listener listener(kMany);
    for (int again = 0; again < 2; ++again) listener.TellAll(1, late, usual);
    EXPECT_EQ(listener.last().kind, Verdict::Kind::kLink) << slow;
    EXPECT_EQ(std::minmax(listener.last().process, listener.last().other), std::minmax(1, slow));
  }
}

// A word that lay there while this process was stopped: that time is not the others' doing. Words that are
// looked at a little late, as threads are scheduled, are none of that.
TEST(Monitor, AStoppedProcessIsBusyWithItself) {
  const Windows windows;
  for (bool stopped : {true, false}) {
    Reporter reporter;
    reporter.monitor()->CollectiveBegins();
    (void)reporter.EndWindow();
    int64_t looked = ClockNow();
    if (stopped) {
      WaitSomeTime();
      reporter.Came(looked);
    } else {
      for (int word = 0; word < 100; ++word) {
        int64_t now = 0;
        while ((now = ClockNow()) - looked < 300000) std::this_thread::yield();
        // Where others had the core for long the word is one that has just been sent.
        reporter.Came(now - looked < 1000000 ? looked : now + 1000000000);
        looked = now;
      }
    }
    const std::string report = reporter.EndWindow();
    Listener listener;
    for (int again = 0; again < 2; ++again) listener.TellAll(2, report, windows.waiting);
    EXPECT_EQ(listener.last().kind == Verdict::Kind::kCompute, stopped) << listener.last().why;
    reporter.monitor()->CollectiveEnds();
  }
}

// The clocks of two hosts may differ by any time, either way.
TEST(Monitor, HowLongAWordLayIsByTheClockOfItsSender) {
  const Windows windows;
  for (int64_t ahead_s : {0, 1, -1, 100000, -100000})
    for (bool lay : {true, false}) {
      SCOPED_TRACE(std::to_string(ahead_s) + (lay ? " s ahead, it lay there" : " s ahead, it is new"));
      Reporter reporter;
      reporter.monitor()->CollectiveBegins();
      (void)reporter.EndWindow();
      const int64_t before = ClockNow();
      WaitSomeTime();
      // A new one is of a second later: or it were old where others take the core just here.
      reporter.CameOf2(lay ? before : ClockNow() + 1000000000, ahead_s * 1000000000);
      const std::string report = reporter.EndWindow();
      reporter.monitor()->CollectiveEnds();
      Listener listener;
      for (int again = 0; again < 2; ++again) listener.TellAll(1, report, windows.waiting);
      EXPECT_EQ(listener.last().kind == Verdict::Kind::kCompute, lay) << listener.last().why;
    }
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
