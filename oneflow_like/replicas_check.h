// Whether what several ranks hold alike is still alike, bit for bit: memory or a processor that changes a bit
// says nothing, and training goes on with a mixture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oneflow_like/model_impl.h"

namespace oneflow_like {

// Of each variable, the ranks that hold the same piece, and a hash of what each has.
struct Replicas {
  std::string variable;
  std::vector<int> ranks;
  std::vector<uint64_t> hashes;
};
// Which rank differs: the fewer; of two, either. Empty when all are equal.
std::string DifferenceOfReplicas(const Replicas& replicas);

// All processes call it, between steps. Throws Error, the same on all of them, that names the step, the
// variable and the ranks with their hosts.
void RequireEqualReplicas(ModelImpl* model, int64_t step);

// What RequireEqualReplicas cannot compare, "" when that is nothing: "12 of 40 variables (3 of 9 MB) ...".
// Throws Error where equal ranks may well differ in the last bit: processes that cut the mesh's rows
// unevenly.
std::string WithoutReplicas(ModelImpl* model);

}  // namespace oneflow_like
