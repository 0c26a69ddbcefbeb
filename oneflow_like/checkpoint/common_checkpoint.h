// Which checkpoints of a folder all processes of a job have. Hosts that keep folders of their own may have
// different ones: a host was ended before it had completed the newest, or has another disk since.
#pragma once

#include <string>
#include <vector>

namespace oneflow_like {

class Job;

struct CommonCheckpoint {
  std::string path;  // the newest that all have whole; empty: there is none, and a run can begin
  // Later ones, each with a process that lacks it or has another, as sentences.
  std::vector<std::string> passed_over;
};

// Collective: of `path`, a checkpoint or a folder of them. Without a job the newest complete one, whole or
// not. Throws Error, the same on all processes, when `path` is neither; and where processes have checkpoints,
// but none in common, unless those that lack one were cut off while they saved it.
CommonCheckpoint NewestInCommon(Job* job, const std::string& path);

// Collective: why this checkpoint is not one and the same on all processes, with all its files, as a
// sentence; empty when it is.
std::string WhyNotCommon(Job* job, const std::string& checkpoint);

}  // namespace oneflow_like
