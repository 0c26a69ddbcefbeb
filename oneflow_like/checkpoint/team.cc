#include "oneflow_like/checkpoint/team.h"

#include "actor/net/talk/job.h"

namespace oneflow_like {

Team::Team(const ModelImpl& model, bool local) {
  const Job* job = model.options.job.get();
  if (!job) return;
  me = job->process();
  processes.clear();
  for (int p = 0; p < job->processes(); ++p)
    if (!local || job->peers()[p].host_key == job->peers()[me].host_key) processes.push_back(p);
}

}  // namespace oneflow_like
