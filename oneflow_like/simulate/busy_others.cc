#include "oneflow_like/simulate/busy_others.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

namespace oneflow_like {
namespace {

double SecondsOfUse(int whose) {
  rusage usage{};
  getrusage(whose, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

BusyOthers::BusyOthers(bool children) : children_(children), last_(Now()) {}

BusyOthers::Used BusyOthers::Now() const {
  Used used;
  used.wall = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  // cpu user nice system idle iowait irq softirq steal, of all cores together.
  std::ifstream in("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (in >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal)
    used.all = (user + nice + system + irq + softirq + steal) / static_cast<double>(sysconf(_SC_CLK_TCK));
  used.own = SecondsOfUse(RUSAGE_SELF) + (children_ ? SecondsOfUse(RUSAGE_CHILDREN) : 0);
  return used;
}

double BusyOthers::Take() {
  const Used now = Now();
  const double cores = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const double others = (now.all - last_.all) - (now.own - last_.own), span = cores * (now.wall - last_.wall);
  last_ = now;
  return span > 0 ? std::clamp(others / span, 0.0, 1.0) : 0;
}

}  // namespace oneflow_like
