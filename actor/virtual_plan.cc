// Plans as a machine on paper runs them: actors, streams and credits without anything that has bytes.
#include <algorithm>
#include <set>
#include <utility>

#include "actor/virtual_device.h"
#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

class PaperPlan {
 public:
  PaperPlan(const plan::Plan& plan, const KernelTimes& times, const PaperOptions& options)
      : plan_(plan), times_(times), options_(options) {
    for (const plan::Buffer& buffer : plan.buffer())
      if (IsVariable(buffer)) variables_.insert(buffer.id());
  }

  plan::Plan Make() {
    plan::Plan paper;
    paper.set_name(plan_.name());
    paper.set_rank(plan_.rank());
    paper.set_world(plan_.world());
    paper.set_device_kind("paper");
    paper.set_times(plan_.times());
    paper.set_seed(plan_.seed());
    paper.set_order_hash(plan_.order_hash());
    *paper.mutable_stream() = plan_.stream();
    for (const plan::Actor& actor : plan_.actor()) Add(actor, paper.add_actor());
    return paper;
  }

 private:
  void Add(const plan::Actor& actor, plan::Actor* out) const {
    out->set_id(actor.id());
    out->set_name(actor.name());
    out->set_stream(actor.stream());
    out->set_acts(actor.acts());
    *out->mutable_in() = actor.in();
    *out->mutable_out() = actor.out();
    if (actor.has_collective()) {
      plan::Collective* collective = out->mutable_collective();
      *collective->mutable_rank() = actor.collective().rank();
      *collective->mutable_work() = actor.collective().work();
      collective->set_id(actor.collective().id());
      collective->set_primitive(actor.collective().primitive());
      collective->set_me(actor.collective().me());
      collective->set_share(actor.collective().share());
      out->add_kernel()->set_node(actor.kernel(0).node());
      return;
    }
    AddKernels(actor, out);
  }

  // A kernel for those up to each end: `number` says which one stands for a kernel of the plan.
  void AddKernels(const plan::Actor& actor, plan::Actor* out) const {
    const bool moves = !actor.feed().empty() || !actor.fetch().empty();
    const std::set<int> ends = Ends(actor, out);
    std::vector<int> number(actor.kernel_size());
    int64_t alone = 0, crowded = 0;
    for (int k = 0; k < actor.kernel_size(); ++k) {
      const ThreadTime takes = moves ? ThreadTime(0) : times_(actor, actor.kernel(k));
      alone = std::min(kLastPicosecond, alone + Picoseconds(takes.alone));
      crowded = std::min(kLastPicosecond, crowded + Picoseconds(takes.crowded));
      number[k] = out->kernel_size();
      if (ends.count(k) == 0) continue;
      plan::Kernel* kernel = out->add_kernel();
      kernel->set_node(actor.kernel(k).node());
      BecomePaper(alone, crowded, actor, out->kernel_size() - 1, kernel);
      alone = crowded = 0;
    }
    for (auto* ports : {out->mutable_in(), out->mutable_out()})
      for (plan::Port& port : *ports)
        if (port.kernel() >= 0 && port.kernel() < actor.kernel_size()) port.set_kernel(number[port.kernel()]);
  }

  // Kernels behind which credits go, or all of them. An asynchronous device gives back what several updates
  // read when the last of them has ended, as Loader does.
  std::set<int> Ends(const plan::Actor& actor, plan::Actor* out) const {
    for (plan::Port& port : *out->mutable_in())
      if (options_.asynchronous) port.set_kernel(LastOfUpdates(actor, port.kernel()));
    std::set<int> ends = {actor.kernel_size() - 1};
    for (int k = 0; k < actor.kernel_size() && (options_.each_kernel || !options_.asynchronous); ++k)
      ends.insert(k);
    for (const auto* ports : {&out->in(), &out->out()})
      for (const plan::Port& port : *ports) ends.insert(port.kernel());
    return ends;
  }

  int LastOfUpdates(const plan::Actor& actor, int kernel) const {
    const auto updates = [&](int k) {
      const auto& out = actor.kernel(k).out();
      return !out.empty() && std::all_of(out.begin(), out.end(), [&](const plan::Operand& operand) {
        return variables_.count(operand.buffer()) > 0;
      });
    };
    while (kernel >= 0 && kernel + 1 < actor.kernel_size() && updates(kernel) && updates(kernel + 1) &&
           actor.kernel(kernel).name() == actor.kernel(kernel + 1).name())
      ++kernel;
    return kernel;
  }

  void BecomePaper(int64_t alone, int64_t crowded, const plan::Actor& actor, int index,
                   plan::Kernel* kernel) const {
    kernel->set_name(kPaperKernel);
    for (const auto& [name, value] : {std::pair<const char*, int64_t>{kPaperTime, alone},
                                      {kPaperCrowded, crowded},
                                      {kPaperRank, plan_.rank()},
                                      {kPaperActor, actor.id()},
                                      {kPaperIndex, index},
                                      {kPaperActs, actor.acts()}}) {
      plan::Attr* attr = kernel->add_attr();
      attr->set_name(name);
      attr->set_i(value);
    }
  }

  const plan::Plan& plan_;
  const KernelTimes& times_;
  const PaperOptions options_;
  std::set<int> variables_;  // buffers
};

}  // namespace

plan::Plan PlanOnPaper(const plan::Plan& plan, const KernelTimes& times, const PaperOptions& options) {
  return PaperPlan(plan, times, options).Make();
}

}  // namespace oneflow_like
