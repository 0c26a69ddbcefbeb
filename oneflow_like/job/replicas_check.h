// Checks that copies on several ranks are still equal, bit for bit: memory or a processor that flips a bit
// reports nothing, and training would continue with different copies.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

// For each variable, the ranks that hold the same piece, and a hash of each one's bytes.
struct Replicas {
  std::string variable;
  std::vector<int> ranks;
  std::vector<uint64_t> hashes;
};
// Describes which ranks differ: the minority; of two, both. Empty when all are equal.
std::string DifferenceOfReplicas(const Replicas& replicas);

// Collective; called between steps. Throws Error, the same on all processes, that names the step, the
// variable and the ranks with their hosts.
void RequireEqualReplicas(ModelImpl* model, int64_t step);

// Collective, with a job; called before a session's first step. Compares the copies that several processes
// hold of these variables, those that have not been compared since they were made or loaded: each piece once
// by each process. Throws Error, the same on all processes, that names the session, a variable, two processes
// and the file from which they have read different values. Variables that the model does not have are
// ignored.
void RequireSameBeginnings(ModelImpl* model, const std::string& session, const std::set<std::string>& names);

// Describes the variables that RequireEqualReplicas cannot compare, "" if there are none: "12 of 40 variables
// (3 of 9 MB) ...". Throws Error if copies may differ in the last bit without a fault: when processes cut the
// mesh's rows unevenly.
std::string WithoutReplicas(ModelImpl* model);

}  // namespace oneflow_like
