// Collective work of the processes of a job, with one outcome.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace oneflow_like {

class Job;

// Collective: runs `work` on every process. If it throws on some, the Error of the first of them, by number,
// is thrown on all. Returns the results of all, by process. Without a job (nullptr) this process is the only
// one.
std::vector<std::string> Together(Job* job, const std::string& what,
                                  const std::function<std::string()>& work);

// Collective: what `decide` returns in process 0, on all processes; an Error that it throws there is thrown
// on all. The others do not call it.
std::string FromProcessZero(Job* job, const std::string& what, const std::function<std::string()>& decide);

}  // namespace oneflow_like
