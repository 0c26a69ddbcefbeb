#include "oneflow_like/checkpoint/together.h"

#include "actor/net/talk/job.h"

namespace oneflow_like {

std::vector<std::string> Together(const ModelImpl& model, const std::string& what,
                                  const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = "+" + work();
  } catch (const std::exception& error) {
    mine = Cat("-", error.what());
  }
  std::vector<std::string> all = {mine};
  if (Job* job = model.options.job.get()) all = job->AllGather(what, mine);
  for (const std::string& text : all)
    if (text[0] == '-') Fail(text.substr(1));
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

Team::Team(const ModelImpl& model, bool local) {
  const Job* job = model.options.job.get();
  if (!job) return;
  me = job->process();
  processes.clear();
  for (int p = 0; p < job->processes(); ++p)
    if (!local || job->peers()[p].host_key == job->peers()[me].host_key) processes.push_back(p);
}

}  // namespace oneflow_like
