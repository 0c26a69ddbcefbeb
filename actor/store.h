// The implementation of a store: its memory, and which of the runtimes that share it is running.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actor/runtime.h"
#include "actor/step.h"

namespace oneflow_like {

struct Store::Impl {
  struct Variable {
    VariableInfo info;
    std::unique_ptr<Memory> memory;
    char* data = nullptr;
  };
  struct Arena {
    std::unique_ptr<Memory> memory;
    char* base = nullptr;  // moves when the arena grows
    int64_t bytes = 0;
  };
  struct Rank {
    std::unique_ptr<Device> device;
    std::map<std::string, Variable> variables;
    std::map<std::string, char*> addresses;  // of the variables; entries stay where they are
    std::map<std::string, Arena> arenas;     // by kind of memory; entries stay, too
    int64_t persistent_bytes = 0, persistent_host_bytes = 0;
  };
  std::vector<int> order;
  std::map<int, Rank> ranks;

  // Steps of two runtimes do not overlap: a launch waits for the last step of the other runtime. A lock,
  // because the runtimes may be driven by different threads; held during a launch.
  std::mutex launch_mutex;
  const void* owner = nullptr;
  std::shared_ptr<StepHandle::State> last;
  std::shared_ptr<WriteWatch> watch;  // of the next steps

  Rank& At(int rank);
};

}  // namespace oneflow_like
