#include "oneflow_like/memory_check.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "actor/net/talk/job.h"
#include "core/host_memory.h"
#include "core/plan_values.h"
#include "oneflow_like/placement.h"

namespace oneflow_like {

namespace {

// What Store::Prepare will allocate of the host for a plan, and what its inputs will take.
int64_t NewBytes(const Session::Impl& session, const plan::Plan& plan) {
  const ModelImpl& model = *session.model;
  const int64_t feeds = FeedBytes(plan, session.options.steps_in_flight);
  if (plan.device_kind() != "cpu") return feeds;
  std::set<std::string> there;
  for (const Store::VariableInfo& variable : model.store->Variables(plan.rank())) there.insert(variable.name);
  int64_t bytes = std::max<int64_t>(0, ArenaBytes(plan) - model.store->ArenaBytes(plan.rank()));
  for (const plan::Variable& variable : plan.variable())
    if (!there.count(variable.name())) bytes += variable.bytes();
  return bytes + feeds;
}

// A group of control groups is the same wherever its file is the same.
std::string KeyOf(const MemoryLimit& limit) {
  struct stat file = {};
  if (stat(limit.source.c_str(), &file) != 0) return limit.source;
  return Cat(limit.source, ":", file.st_dev, ":", file.st_ino);
}

MemoryOfProcess OfThisProcess(const Session::Impl& session, const std::vector<plan::Plan>& plans) {
  const ModelImpl& model = *session.model;
  const Job* job = model.options.job.get();
  MemoryOfProcess mine{.host = job ? job->peers()[job->process()].host_key : "here",
                       .held = GetHostMemoryStats().bytes};
  for (const plan::Plan& plan : plans) mine.needed += NewBytes(session, plan);
  for (const MemoryLimit& limit : ReadMemoryLimits()) mine.limits.push_back({KeyOf(limit), limit});
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

[[noreturn]] void FailShort(const Session::Impl& session, int process, const std::string& what) {
  const Job* job = session.model->options.job.get();
  const int hosted = session.compiled.graph.mesh().size() / (job ? job->processes() : 1);
  Fail(what, "; use more hosts, cut more, or make the model smaller. What a rank holds:\n",
       RankText(session, SummaryOf(session, process * hosted)));
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

void RequireHostMemory(const Session::Impl& session, const std::vector<plan::Plan>& plans) {
  Job* job = session.model->options.job.get();
  const MemoryOfProcess mine = OfThisProcess(session, plans);
  std::vector<MemoryOfProcess> all;
  if (job) {
    for (const std::string& text :
         job->AllGather(Cat("memory for session ", session.options.name), ToText(mine)))
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
  FailShort(session, found.processes[0],
            Cat("session ", session.options.name, " needs ", found.needed, " bytes of memory", who, ", but ",
                found.left, " are free of the ", found.limit.bytes, " that ", found.limit.source, " allows"));
}

void FailOutOfMemory(const Session::Impl& session, const std::string& reason) {
  const Job* job = session.model->options.job.get();
  FailShort(session, job ? job->process() : 0, Cat("session ", session.options.name, ": ", reason));
}

}  // namespace oneflow_like
