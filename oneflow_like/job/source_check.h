// Checks that the processes of a job read the same data and the same weights: hosts may have different files
// under one name, and training would mix them without an error. Looks at a small part of what is read.
#pragma once

#include <string>
#include <vector>

#include "core/boxes/feeds.h"

namespace oneflow_like {

class Job;

// The first difference between what process 0 and another process say, as "process 1 reads other data than
// process 0: file 1 is 7 bytes with hash 1f (/b/text.txt) there and 9 bytes with hash 2e (/a/text.txt) in
// process 0", where `read` is "reads other data"; empty when all (by process) say the same.
std::string DifferenceOfSources(const std::vector<std::vector<SourceFact>>& all, const std::string& read);

// Collective; nothing without a job. Throws Error, the same on all processes, that names `who` reads
// ("session train"), the first difference, the processes, and what to do.
void RequireSameData(Job* job, const std::string& who, const std::vector<SourceFact>& facts);
// The same of weights from `path`.
void RequireSameWeights(Job* job, const std::string& path, const std::vector<SourceFact>& facts);

}  // namespace oneflow_like
