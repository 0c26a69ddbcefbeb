// Whether all processes of a job feed the same: each feeds the whole batch, of which every one takes its
// ranks' part, so different data would train on as a mixture of both.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actor/runtime.h"

namespace oneflow_like {

class Job;

// Steps of a session whose feeds are compared in any case; the others cost nothing.
inline constexpr int64_t kStepsWithCheckedFeeds = 2;

// One line for each input: its name, type, shape and a hash of its bytes.
std::string FeedsText(const Feeds& feeds);
// What is wrong with such texts, by process; empty when all are equal. "input 'x' has other values in process
// 2 than in process 0".
std::string DifferenceOfFeeds(const std::vector<std::string>& texts);

// All processes call it. Throws Error, the same on all of them, that names the session, the step, the input
// and the processes.
void RequireSameFeeds(Job* job, const std::string& session, int64_t step, const Feeds& feeds);

}  // namespace oneflow_like
