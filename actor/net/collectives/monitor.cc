#include "actor/net/collectives/monitor.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace oneflow_like {
namespace {

// What counts as behind: busy this much more than the median of the others, ...
constexpr double kBusyFactor = 1.5, kBusyMargin = 0.15;
// ... a round trip or a time per byte this many times the median of the other links.
constexpr double kLinkFactor = 3;
constexpr int64_t kLeastRoundTrip = 2000000;  // below 2 ms a round trip is a matter of scheduling, ...
constexpr int64_t kLeastLying = 2000000;      // ... and so is a word that lies there
constexpr int64_t kLeastBytes = 64 << 10;     // less says nothing about a rate

// The upper one of the middle two, so that of two processes neither is far from it.
double UpperMedian(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int Percent(double share) { return static_cast<int>(std::lround(100 * share)); }

Verdict JudgeBusy(const std::vector<MonitorReport>& reports) {
  Verdict verdict;
  double worst = 0;
  for (const MonitorReport& r : reports) {
    std::vector<double> others;
    for (const MonitorReport& o : reports) {
      if (o.process != r.process) others.push_back(o.busy);
    }
    const double median = UpperMedian(others);
    if (r.busy < kBusyFactor * median || r.busy < median + kBusyMargin || r.busy <= worst) continue;
    worst = r.busy;
    verdict.kind = Verdict::Kind::kCompute;
    verdict.process = r.process;
    verdict.why = Cat("it computes, or is kept from running, ", Percent(r.busy),
                      " % of the time, the others ", Percent(median), " %, and wait for it");
  }
  return verdict;
}

// Badness of each pair of processes, both directions together; 0 where nothing is known.
struct PairTable {
  int n;
  std::vector<double> at;
  explicit PairTable(int n) : n(n), at(n * n) {}
  double& operator()(int a, int b) { return at[std::min(a, b) * n + std::max(a, b)]; }
};

// The pair, or the process all of whose pairs stand out.
Verdict JudgeLinks(PairTable table, double least, const std::function<std::string(double, double)>& say) {
  Verdict verdict;
  std::vector<double> known;
  for (int a = 0; a < table.n; ++a) {
    for (int b = a + 1; b < table.n; ++b) {
      if (table(a, b) > 0) known.push_back(table(a, b));
    }
  }
  if (known.size() < 2) return verdict;
  // The quieter third is what the network can do: with few processes one of them touches most pairs.
  std::sort(known.begin(), known.end());
  const double usual = known[known.size() / 4];
  auto slow = [&](int a, int b) { return table(a, b) > std::max(least, kLinkFactor * usual); };
  double worst = 0;
  for (int p = 0; p < table.n; ++p) {
    int pairs = 0, slow_pairs = 0, last = -1;
    double most = 0;
    for (int q = 0; q < table.n; ++q) {
      if (q == p || table(p, q) <= 0) continue;
      ++pairs;
      if (!slow(p, q)) continue;
      ++slow_pairs;
      last = q;
      most = std::max(most, table(p, q));
    }
    if (slow_pairs == 0 || most < worst) continue;
    const bool all = slow_pairs == pairs && pairs > 1;
    if (!all && verdict.kind == Verdict::Kind::kLink && verdict.other == -1) continue;
    if (most == worst && !all) continue;
    worst = most;
    verdict = {Verdict::Kind::kLink, p, all ? -1 : last, say(most, usual)};
  }
  return verdict;
}

}  // namespace

Verdict Judge(const std::vector<MonitorReport>& reports) {
  Verdict verdict = JudgeBusy(reports);
  if (verdict.kind != Verdict::Kind::kNone) return verdict;
  const int n = static_cast<int>(reports.size());
  PairTable trips(n), rates(n);
  for (int p = 0; p < n; ++p) {
    for (int q = 0; q < n && q < static_cast<int>(reports[p].links.size()); ++q) {
      const MonitorReport::Link& link = reports[p].links[q];
      if (q == p) continue;
      trips(p, q) = std::max(trips(p, q), static_cast<double>(link.round_trip_ns));
      if (link.bytes >= kLeastBytes) {
        rates(p, q) =
            std::max(rates(p, q), static_cast<double>(link.pull_ns) / static_cast<double>(link.bytes));
      }
    }
  }
  verdict = JudgeLinks(trips, static_cast<double>(kLeastRoundTrip), [](double most, double usual) {
    return Cat("a message takes ", most / 1e6, " ms there and back, elsewhere ", usual / 1e6, " ms");
  });
  if (verdict.kind != Verdict::Kind::kNone) return verdict;
  return JudgeLinks(rates, 0, [](double most, double usual) {
    return Cat("data comes at ", 1e3 / most, " MB/s, elsewhere at ", 1e3 / usual, " MB/s");
  });
}

Monitor::Monitor(Network* network, int process, int processes, std::function<std::string(int)> describe)
    : network_(network),
      process_(process),
      processes_(processes),
      describe_(std::move(describe)),
      links_(processes),
      reports_(processes) {
  for (MonitorReport& r : reports_) r.window = -1;
}

int64_t Monitor::WindowOf(int64_t now) const {
  const int64_t there = process_ == 0 ? now : now + network_->OffsetTo(0).offset_ns;
  return there / static_cast<int64_t>(kWindow * kSecond);
}

void Monitor::CollectiveBegins() {
  if (under_way_++ == 0) since_ = looked_ = ClockNow();
}

void Monitor::CollectiveEnds() {
  const int64_t now = ClockNow();
  if (--under_way_ == 0) in_collectives_ += now - since_;
  const int64_t window = WindowOf(now);
  if (window != window_) Report(now, window);
}

void Monitor::Pulled(int process, int64_t bytes, int64_t ns) {
  links_[process].bytes += bytes;
  links_[process].pull_ns += ns;
}

// From when it should have been here until now nobody looked, as the process was stopped or got no core: that
// part of the collective under way is not the others' doing.
void Monitor::Came(int process, int64_t sent) {
  if (under_way_ == 0) return;
  const Network::ClockOffset clock = network_->OffsetTo(process);
  const int64_t now = ClockNow(), due = sent - clock.offset_ns + clock.round_trip_lately_ns / 2;
  const int64_t lay = now - std::max(due, looked_);
  looked_ = now;
  if (lay >= kLeastLying) in_collectives_ -= lay;
}

void Monitor::Report(int64_t now, int64_t window) {
  if (under_way_ > 0) {
    in_collectives_ += now - since_;
    since_ = looked_ = now;
  }
  const int64_t length = now - window_start_;
  // The first window is cut short and holds the loading.
  if (window_ >= 0 && length > 0) {
    struct {
      int32_t process, links;
      int64_t window;
      double busy;
    } header{process_, processes_, window_,
             1 - std::min(1.0, static_cast<double>(in_collectives_) / static_cast<double>(length))};
    std::string text(reinterpret_cast<const char*>(&header), sizeof header);
    for (int p = 0; p < processes_; ++p) {
      if (p != process_) links_[p].round_trip_ns = network_->OffsetTo(p).round_trip_lately_ns;
    }
    // The slowest links alone, where not all fit a header.
    const int most =
        static_cast<int>((1000 - sizeof header) / (sizeof(int64_t) + sizeof(MonitorReport::Link)));
    std::vector<int> order;
    for (int p = 0; p < processes_; ++p) {
      if (p != process_) order.push_back(p);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return links_[a].pull_ns > links_[b].pull_ns; });
    if (static_cast<int>(order.size()) > most) order.resize(most);
    for (int p : order) {
      int64_t peer = p;
      text.append(reinterpret_cast<const char*>(&peer), sizeof peer);
      text.append(reinterpret_cast<const char*>(&links_[p]), sizeof links_[p]);
    }
    if (process_ == 0) {
      Deliver(0, text.data(), text.size(), nullptr);
    } else {
      network_->Send(0, Network::kMonitor, text.data(), text.size(), nullptr, 0, nullptr);
    }
  }
  window_ = window;
  window_start_ = now;
  in_collectives_ = 0;
  std::fill(links_.begin(), links_.end(), MonitorReport::Link());
}

void Monitor::Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) {
  const char* at = static_cast<const char*>(header);
  const char* end = at + header_bytes;
  struct {
    int32_t process, links;
    int64_t window;
    double busy;
  } head;
  CHECK_GE(header_bytes, sizeof head);
  memcpy(&head, at, sizeof head);
  at += sizeof head;
  MonitorReport& report = reports_[from];
  report.process = from;
  report.window = head.window;
  report.busy = head.busy;
  report.links.assign(processes_, {});
  for (int64_t peer; at + sizeof peer + sizeof(MonitorReport::Link) <= end;) {
    memcpy(&peer, at, sizeof peer);
    memcpy(&report.links[peer], at + sizeof peer, sizeof(MonitorReport::Link));
    at += sizeof peer + sizeof(MonitorReport::Link);
  }
  // Once everybody has reported anew: a window in which a process ends no collective has no report of it.
  for (const MonitorReport& r : reports_) {
    if (r.window < 0) return;
  }
  Compare();
  for (MonitorReport& r : reports_) r.window = -1;
}

// A verdict counts when two windows agree.
void Monitor::Compare() {
  Verdict verdict = Judge(reports_);
  const bool twice = verdict == suspected_;
  suspected_ = verdict;
  if (!twice) return;
  const int64_t now = ClockNow();
  const bool news = !(verdict == confirmed_);
  confirmed_ = verdict;
  if (verdict.kind == Verdict::Kind::kNone || (!news && now - warned_ < 30 * kSecond)) return;
  warned_ = now;
  if (verdict.kind == Verdict::Kind::kCompute) {
    LOG(WARNING) << describe_(verdict.process) << " is behind: " << verdict.why;
  } else if (verdict.other < 0) {
    LOG(WARNING) << "the network link of " << describe_(verdict.process) << " is behind: " << verdict.why;
  } else {
    LOG(WARNING) << "the network link between " << describe_(verdict.process) << " and "
                 << describe_(verdict.other) << " is behind: " << verdict.why;
  }
}

}  // namespace oneflow_like
