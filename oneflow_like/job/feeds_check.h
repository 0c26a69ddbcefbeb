// Checks that all processes of a job feed the same data, where they can be compared: inputs that each feeds
// whole, and boxes that several of them feed, must be equal, or training would mix different data without an
// error. Boxes of one process alone are compared where they come from (source_check.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/boxes/feeds.h"

namespace oneflow_like {

class Job;

// The feeds of a session's first steps are always compared; other steps cost nothing.
inline constexpr int64_t kStepsWithCheckedFeeds = 2;

// One line for each input that is fed whole: its name, type, shape and a hash of its bytes; and one for each
// piece, with its box.
std::string FeedsText(const Feeds& feeds, const FeedPieces& pieces = {});
// Describes the difference between such texts, by process: "input 'x' has other values in process 2 than in
// process 0"; empty when all are equal.
std::string DifferenceOfFeeds(const std::vector<std::string>& texts);

// Collective. Throws Error, the same on all processes, that names the session, the step, the input and the
// processes.
void RequireSameFeeds(Job* job, const std::string& session, int64_t step, const Feeds& feeds,
                      const FeedPieces& pieces);

}  // namespace oneflow_like
