// Adds up what kernels, shards and the job have counted.
#include "actor/profile.h"

#include <algorithm>

#include "actor/actor.h"

namespace oneflow_like {

std::string KernelLabel(const plan::Actor& actor, const plan::Kernel& kernel) {
  std::string line = SourceLine(kernel.file(), kernel.line()).str();
  if (!line.empty()) line = " " + line;
  const std::string& node = kernel.node().empty() ? actor.name() : kernel.node();
  if (actor.has_collective()) return Cat(actor.collective().primitive(), " ", node, line);
  return Cat(node, ": ", kernel.name(), line);
}

void SetKernels(std::map<std::string, KernelProfile> kernels, StepProfile* profile) {
  for (auto& [label, kernel] : kernels) {
    profile->kernels[kernel.category] += kernel.seconds;
    profile->hottest.push_back(std::move(kernel));
  }
  std::stable_sort(profile->hottest.begin(), profile->hottest.end(),
                   [](const KernelProfile& a, const KernelProfile& b) { return a.seconds > b.seconds; });
}

StepProfile CollectProfile(RunState* run, const std::vector<std::unique_ptr<Shard>>& shards,
                           const TickScale& scale) {
  StepProfile profile;
  profile.steps = run->steps_ended;
  profile.threads = static_cast<int>(shards.size());
  profile.wall = scale.Seconds(run->wall_ticks);
  profile.warm_up_steps = run->warm_up_ended;
  run->steps_ended = run->warm_up_ended = run->wall_ticks = 0;
  std::map<std::string, KernelProfile> kernels;
  int64_t busy = 0, in_kernels = 0;
  for (const auto& shard : shards) {
    busy += shard->TakeBusyTicks();
    for (const auto& actor : shard->actors) {
      for (int i = 0; i < actor->spec->kernel_size(); ++i) {
        KernelCall& call = actor->kernels[i];
        if (call.runs == 0) continue;
        const plan::Kernel& spec = actor->spec->kernel(i);
        std::string label = KernelLabel(*actor->spec, spec);
        KernelProfile& kernel = kernels[label];
        kernel.label = label;
        kernel.category = spec.category().empty() ? "other" : spec.category();
        kernel.runs += call.runs;
        kernel.seconds += scale.Seconds(call.ticks);
        kernel.flops += spec.flops() * call.runs;
        kernel.bytes += spec.bytes() * call.runs;
        in_kernels += call.ticks;
        call.ticks = call.runs = 0;
      }
    }
  }
  // A step that was cut off may have left kernels that its threads no longer count as busy.
  busy = std::max(busy, in_kernels);
  profile.runtime = scale.Seconds(busy - in_kernels);
  profile.waiting = std::max(0.0, profile.wall * profile.threads - scale.Seconds(busy));
  SetKernels(std::move(kernels), &profile);
  return profile;
}

}  // namespace oneflow_like
