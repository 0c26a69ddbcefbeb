#include "oneflow_like/job/memory_check.h"

#include <algorithm>
#include <sstream>

#include "actor/net/talk/job.h"
#include "core/plan/plan_values.h"
#include "core/system/control_groups.h"
#include "core/system/host_memory.h"
#include "oneflow_like/model/placement.h"

namespace oneflow_like {

namespace {

// What Store::Prepare will allocate of the host for a plan, and what its inputs will take.
int64_t NewBytes(const ModelImpl& model, const plan::Plan& plan, int steps_in_flight) {
  const bool cpu = plan.device_kind() == "cpu";
  const auto grows = [&](const char* memory) {
    return std::max<int64_t>(0, ArenaBytes(plan, memory) - model.store->ArenaBytes(plan.rank(), memory));
  };
  int64_t bytes = FeedBytes(plan, steps_in_flight) + grows("host") + (cpu ? grows("device") : 0);
  for (const plan::Variable& variable : plan.variable())
    if ((cpu || IsOnHost(variable)) && !model.store->Find(plan.rank(), variable.name()))
      bytes += variable.bytes();
  return bytes;
}

MemoryOfProcess OfThisProcess(const ModelImpl& model, const std::vector<plan::Plan>& plans,
                              const std::vector<plan::Plan>& more, int steps_in_flight) {
  const Job* job = model.options.job.get();
  MemoryOfProcess mine{.host = job ? job->peers()[job->process()].host_key : "here",
                       .held = GetHostMemoryStats().bytes};
  for (const plan::Plan& plan : plans) mine.needed += NewBytes(model, plan, steps_in_flight);
  for (const auto* all : {&plans, &more})
    for (const plan::Plan& plan : *all)
      if (plan.device_kind() == "cuda") mine.needed += MemoryBesidesPlan(model, plan).host;
  for (const MemoryLimit& limit : ReadMemoryLimits()) mine.limits.push_back({KeyOfFile(limit.source), limit});
  return mine;
}

std::string ToText(const MemoryOfProcess& process) {
  std::string text = Cat(process.host, '\n', process.needed, ' ', process.held, '\n');
  for (const auto& [key, limit] : process.limits)
    text += Cat(limit.shared ? 1 : 0, ' ', limit.bytes, ' ', limit.left, '\n', limit.source, '\n', key, '\n');
  return text;
}

MemoryOfProcess FromText(const std::string& text) {
  MemoryOfProcess process;
  std::istringstream in(text);
  std::string line;
  std::getline(in, process.host);
  in >> process.needed >> process.held;
  for (MemoryLimit limit; in >> limit.shared >> limit.bytes >> limit.left;) {
    std::string key;
    std::getline(in, line);
    std::getline(in, limit.source);
    std::getline(in, key);
    process.limits.push_back({key, limit});
  }
  return process;
}

// `process`: whose first rank is described.
[[noreturn]] void FailShort(const ModelImpl& model, int process, const std::string& what,
                            const std::function<std::string(int rank)>& consumers) {
  const Job* job = model.options.job.get();
  const int hosted = model.mesh.size() / (job ? job->processes() : 1);
  Fail(what, "; use more hosts, cut more, or make the model smaller. What a rank holds:\n",
       consumers(process * hosted));
}

}  // namespace

ShortMemory FindShortMemory(const std::vector<MemoryOfProcess>& processes) {
  for (size_t p = 0; p < processes.size(); ++p) {
    for (const auto& [key, limit] : processes[p].limits) {
      ShortMemory sum{.limit = limit, .left = limit.left};
      int64_t held = 0;
      for (size_t q = 0; q < processes.size(); ++q) {
        const MemoryOfProcess& other = processes[q];
        const bool alike = std::any_of(other.limits.begin(), other.limits.end(),
                                       [&, &key = key](const auto& theirs) { return theirs.first == key; });
        if (q != p && !(limit.shared && alike && other.host == processes[p].host)) continue;
        sum.processes.push_back(static_cast<int>(q));
        sum.needed += other.needed;
        held += other.held;
      }
      sum.left = LeftOf(limit, held);
      if (sum.needed > sum.left) return sum;
    }
  }
  return {};
}

void RequireHostMemory(const ModelImpl& model, const std::string& session,
                       const std::vector<plan::Plan>& plans, const std::vector<plan::Plan>& more,
                       int steps_in_flight, const std::function<std::string(int rank)>& consumers) {
  Job* job = model.options.job.get();
  const MemoryOfProcess mine = OfThisProcess(model, plans, more, steps_in_flight);
  std::vector<MemoryOfProcess> all;
  if (job) {
    for (const std::string& text : job->AllGather(Cat("memory for session ", session), ToText(mine)))
      all.push_back(FromText(text));
  } else {
    all.push_back(mine);
  }
  const ShortMemory found = FindShortMemory(all);
  if (found.processes.empty()) return;
  std::string who;
  if (job) {
    for (int p : found.processes) who += Cat(who.empty() ? "" : ", ", p);
    who = Cat(found.processes.size() == 1 ? " for process " : " for processes ", who, " on host ",
              job->peers()[found.processes[0]].host);
  }
  FailShort(model, found.processes[0],
            Cat("session ", session, " needs ", found.needed, " bytes of memory", who, ", but ", found.left,
                " are free of the ", found.limit.bytes, " that ", found.limit.source, " allows"),
            consumers);
}

void FailOutOfMemory(const ModelImpl& model, const std::string& session, const std::string& reason,
                     const std::function<std::string(int rank)>& consumers) {
  const Job* job = model.options.job.get();
  FailShort(model, job ? job->process() : 0, Cat("session ", session, ": ", reason), consumers);
}

}  // namespace oneflow_like
