// Makes the actors of one rank's plan.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actor/actor.h"

namespace oneflow_like {

struct LoadContext {
  const KernelRegistry* registry = nullptr;
  Store* store = nullptr;
  Collectives* collectives = nullptr;
  const std::map<std::string, int>* inputs = nullptr;  // index of each input and output of a step
  const std::map<std::string, int>* outputs = nullptr;
  const std::vector<HostTensor>* input_tensors = nullptr;  // their types and shapes
  const std::vector<HostTensor>* output_tensors = nullptr;
  const std::vector<std::vector<Box>>* needs = nullptr;  // by input, the boxes that ranks here read;
                                                         // disjoint
  std::vector<std::unique_ptr<BufferCount>>* counts = nullptr;
  std::vector<char* const*> arenas;  // where each of the plan's begins, now and after it grew
  std::map<std::string, char*>* variables = nullptr;  // by name; addresses stay
};

// Adds the plan's actors and streams to `shard`, and returns the stream that computes (nullptr: none does).
// `plan` must outlive it. Throws Error when a kernel is missing or the plan contradicts itself.
DeviceStream* LoadPlan(const plan::Plan& plan, const LoadContext& context, Shard* shard);

}  // namespace oneflow_like
