// Whether all processes of a job feed the same: what each feeds of an input whole, and boxes of it that
// several of them feed, must be alike, or different data would train on as a mixture.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/feeds.h"

namespace oneflow_like {

class Job;

// Steps of a session whose feeds are compared in any case; the others cost nothing.
inline constexpr int64_t kStepsWithCheckedFeeds = 2;

// One line for each input that is fed whole: its name, type, shape and a hash of its bytes; and one for each
// piece, with its box.
std::string FeedsText(const Feeds& feeds, const FeedPieces& pieces = {});
// What is wrong with such texts, by process; empty when all are equal. "input 'x' has other values in process
// 2 than in process 0".
std::string DifferenceOfFeeds(const std::vector<std::string>& texts);

// All processes call it. Throws Error, the same on all of them, that names the session, the step, the input
// and the processes.
void RequireSameFeeds(Job* job, const std::string& session, int64_t step, const Feeds& feeds,
                      const FeedPieces& pieces);

}  // namespace oneflow_like
