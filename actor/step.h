// What a handle of one step holds: shared by the user's copies of it and the step's slot.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "actor/executor.h"
#include "actor/runtime.h"

namespace oneflow_like {

struct StepHandle::State {
  int64_t step = 0;    // what kernels draw by and schedules follow
  int64_t launch = 0;  // of its runtime, from 0: what processes know it by
  Completion done;
  std::map<std::string, int> names;  // of results
  std::vector<HostTensor> results;   // written by fetch actors before `done`

  // Waits with the executor's help until done or stuck, and gives the first error.
  Status Wait();
  // Any worker; the first one stays.
  void SetError(const std::string& message);
  Status status() const;
  void Reset(int64_t next_step, int64_t next_launch);

  // Both valid until `done`.
  Executor* executor = nullptr;
  std::function<std::string()> describe_stall;

 private:
  mutable std::mutex mutex_;  // a lock, since workers of several ranks may fail at once; taken only then
  std::string error_;
};

}  // namespace oneflow_like
