#include "oneflow_like/job/together.h"

#include "actor/net/talk/job.h"
#include "core/error.h"

namespace oneflow_like {

std::vector<std::string> Together(Job* job, const std::string& what,
                                  const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = "+" + work();
  } catch (const std::exception& error) {
    mine = Cat("-", error.what());
  }
  std::vector<std::string> all = {mine};
  if (job) all = job->AllGather(what, mine);
  for (const std::string& text : all)
    if (text[0] == '-') Fail(text.substr(1));
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

std::string FromProcessZero(Job* job, const std::string& what, const std::function<std::string()>& decide) {
  return Together(job, what, [&] { return !job || job->process() == 0 ? decide() : std::string(); })[0];
}

}  // namespace oneflow_like
