// Reductions.
#include <limits>

#include "tests/peers/values.h"

namespace oneflow_like::peers {

ValueCases ReductionCases() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {
      {"sum",
       {F({3, 4, 5})},
       [](ValueIn x) {
         return sum(x[0], {0, 2});
       }},
      {"sum/all", {F({3, 4, 5})}, [](ValueIn x) { return sum(x[0]); }},
      {"mean", {F({3, 4, 5})}, [](ValueIn x) { return mean(x[0], {-1}, true); }},
      {"max", {F({3, 4, 5})}, [](ValueIn x) { return max(x[0], {1}); }},
      {"max/ties", {I({3, 9}, 3)}, [](ValueIn x) { return max(cast(x[0], DType::kFloat32), {1}); }},
      {"min",
       {F({3, 4, 5})},
       [](ValueIn x) {
         return min(x[0], {0, 1});
       }},
      {"argmax", {F({3, 40})}, [](ValueIn x) { return argmax(x[0], 1); }},
      {"prod", {F({3, 7, 5})}, [](ValueIn x) { return prod(x[0], {1}); }},
      {"prod/axes",
       {F({3, 4, 5})},
       [](ValueIn x) {
         return prod(x[0], {2, 0}, true);
       }},
      {"prod/zeros", {F({3, 9})}, [](ValueIn x) { return prod(relu(x[0]), {1}); }},
      {"prod/one_zero",
       {F({1, 9}, 0.5, 2)},
       [](ValueIn x) { return prod(x[0] - slice(x[0], 1, 4, 5), {1}); }},
      {"var",
       {F({3, 4, 5}, 100, 101)},
       [](ValueIn x) {
         return var(x[0], {0, 2});
       }},
      {"var/biased", {F({3, 4, 5})}, [](ValueIn x) { return var(x[0], {1}, true, 0); }},
      {"stddev", {F({3, 4, 5})}, [](ValueIn x) { return stddev(x[0], {1}); }},
      {"logsumexp",
       {F({3, 4, 5}, -9, 9)},
       [](ValueIn x) {
         return logsumexp(x[0], {0, 2});
       }},
      {"logsumexp/large", {F({3, 40}, 300, 900)}, [](ValueIn x) { return logsumexp(x[0], {1}, true); }},
      {"norm", {F({3, 4, 5})}, [](ValueIn x) { return norm(x[0], 2, {1}); }},
      {"norm/zeros", {F({3, 4})}, [](ValueIn x) { return norm(x[0] - x[0][0], 2, {1}); }},
      {"norm/one",
       {F({3, 4, 5})},
       [](ValueIn x) {
         return norm(x[0], 1, {0, 1});
       }},
      {"norm/infinity", {F({3, 4, 5})}, [](ValueIn x) { return norm(x[0], kInfinity, {2}, true); }},
      {"any", {Flags({30, 3})}, [](ValueIn x) { return any(x[0], {1}); }},
      {"all", {Flags({30, 3})}, [](ValueIn x) { return all(x[0], {1}); }},
      {"masked_mean", {F({6, 5}), Flags({6, 1})}, [](ValueIn x) { return masked_mean(x[0], x[1], {0}); }},
      {"masked_mean/rows",
       {F({40, 2}), Flags({40, 2})},
       [](ValueIn x) { return masked_mean(x[0], x[1], {1}, true); }},
  };
}

}  // namespace oneflow_like::peers
