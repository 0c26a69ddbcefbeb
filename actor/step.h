// The state of one step: shared by the user's handles and the step's slot.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "actor/executor.h"
#include "actor/runtime.h"

namespace oneflow_like {

struct StepHandle::State {
  int64_t step = 0;    // keys random draws and schedules
  int64_t launch = 0;  // number in its runtime, from 0; identifies it between processes
  Completion done;
  std::map<std::string, int> names;  // of results
  std::vector<HostTensor> results;   // written by fetch actors before `done`

  // Waits with the executor's help until done or stuck, and returns the first error.
  Status Wait();
  // Any worker; the first error is kept.
  void SetError(const std::string& message);
  Status status() const;
  void Reset(int64_t next_step, int64_t next_launch);

  // Both valid until `done`.
  Executor* executor = nullptr;
  std::function<std::string()> describe_stall;

 private:
  mutable std::mutex mutex_;  // a lock, because workers of several ranks may fail at once; taken only on
                              // failure
  std::string error_;
};

}  // namespace oneflow_like
