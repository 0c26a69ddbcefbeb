// Finds the process that keeps the others waiting: each process measures how long it was busy with its own
// work, that is with its kernels, or not running at all while messages of others were unread; how fast it
// gets data from each peer; and the round trip of a message. Process 0 compares, and logs the slowest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actor/net/ucx/network.h"

namespace oneflow_like {

// The measurements of one process in one window.
struct MonitorReport {
  int32_t process = 0;
  int64_t window = 0;  // number of the window since the start, by the clock of process 0
  double busy = 0;     // share of the time without a collective under way here, or with messages unread
  struct Link {
    int64_t round_trip_ns = 0;       // the shortest recent one
    int64_t bytes = 0, pull_ns = 0;  // large data from that peer, and its time
  };
  std::vector<Link> links;  // by peer; of itself: empty
};

struct Verdict {
  enum class Kind { kNone, kCompute, kLink } kind = Kind::kNone;
  int process = -1, other = -1;  // kLink between two: both; between one process and all: other is -1
  std::string why;               // "it is busy 91 % of the time, the others 35 %"
  bool operator==(const Verdict& v) const {
    return kind == v.kind && process == v.process && other == v.other;
  }
};

// `reports` are by process. A process that is much busier than the others keeps them waiting; else a link
// with an unusual round trip or rate does.
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
  // A message that `process` sent at `sent`, by its clock, is read now.
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
  int64_t looked_ = 0;                      // up to here the lost time since `since_` is known
  int64_t window_start_ = 0, window_ = -1;
  std::vector<MonitorReport::Link> links_;
  std::vector<MonitorReport> reports_;  // process 0: the last of each
  Verdict suspected_, confirmed_;
  int64_t warned_ = 0;
};

}  // namespace oneflow_like
