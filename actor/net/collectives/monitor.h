// Who keeps the others waiting: each process counts how long it was busy with itself, that is with its
// kernels or not running at all while words of others lay there; how fast it gets data from each peer and how
// long a message takes there and back. Process 0 compares and names the one behind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actor/net/ucx/network.h"

namespace oneflow_like {

// What one process saw in one window.
struct MonitorReport {
  int32_t process = 0;
  int64_t window = 0;  // number of the window since the start, by the clock of process 0
  double busy = 0;     // share of the time in which no collective was under way here, or nobody looked
  struct Link {
    int64_t round_trip_ns = 0;       // the shortest lately
    int64_t bytes = 0, pull_ns = 0;  // large data got from that peer, and how long it took
  };
  std::vector<Link> links;  // by peer; of itself: empty
};

struct Verdict {
  enum class Kind { kNone, kCompute, kLink } kind = Kind::kNone;
  int process = -1, other = -1;  // kLink between two: both; of one process with everybody: other is -1
  std::string why;               // "it is busy 91 % of the time, the others 35 %"
  bool operator==(const Verdict& v) const {
    return kind == v.kind && process == v.process && other == v.other;
  }
};

// `reports` of all processes, by process. A process that is busy much more than the others keeps them
// waiting; else a link whose round trip or rate stands out does.
Verdict Judge(const std::vector<MonitorReport>& reports);

// On the network's thread.
class Monitor final : public Channel {
 public:
  static constexpr double kWindow = 2;  // seconds
  // `describe` names a process for people. Warnings go to the log of process 0.
  Monitor(Network* network, int process, int processes, std::function<std::string(int)> describe);

  void CollectiveBegins();
  void CollectiveEnds();
  void Pulled(int process, int64_t bytes, int64_t ns);
  // A word that `process` sent at `sent`, by its clock, is looked at now.
  void Came(int process, int64_t sent);

  void Deliver(int from, const void* header, size_t header_bytes, std::unique_ptr<Incoming> data) override;
  const Verdict& last() const { return confirmed_; }

 private:
  void Report(int64_t now, int64_t window);
  void Compare();
  int64_t WindowOf(int64_t now) const;

  Network* const network_;
  const int process_, processes_;
  const std::function<std::string(int)> describe_;
  int under_way_ = 0;
  int64_t since_ = 0, in_collectives_ = 0;  // of the window
  int64_t looked_ = 0;                      // until then it is known what of `since_` was lost
  int64_t window_start_ = 0, window_ = -1;
  std::vector<MonitorReport::Link> links_;
  std::vector<MonitorReport> reports_;  // process 0: the last of each
  Verdict suspected_, confirmed_;
  int64_t warned_ = 0;
};

}  // namespace oneflow_like
