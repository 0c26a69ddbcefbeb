// How much of this host's processor others use: what tells a measurement whether to count.
#pragma once

namespace oneflow_like {

// Linux's counters, which advance in hundredths of a second: for spans of a second or so.
class BusyOthers {
 public:
  // `children`: what children of this process that have ended used is its own, too.
  explicit BusyOthers(bool children = false);
  // The share of all cores that was busy for others since the last call, or since this was made: 0 to 1. 0
  // where the system does not tell.
  double Take();

 private:
  struct Used {
    double wall = 0, all = 0, own = 0;  // seconds; all: of all cores
  };
  Used Now() const;

  const bool children_;
  Used last_;
};

}  // namespace oneflow_like
