#include "compiler/search/cut_layers.h"

#include <algorithm>

namespace oneflow_like {

namespace {

// Of all stages up to one.
struct CutUpTo {
  double longest = 0, squares = 0;
  int64_t begin = 0;  // of the last of them
  bool operator<(const CutUpTo& other) const {
    return longest != other.longest ? longest < other.longest : squares < other.squares;
  }
};

}  // namespace

std::vector<int64_t> CutLayers(const std::vector<double>& seconds, double before, double after, int stages,
                               const std::vector<int64_t>& most) {
  const int64_t n = static_cast<int64_t>(seconds.size());
  std::vector<double> sum(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + seconds[i];
  auto stage = [&](int s, int64_t begin, int64_t end) {
    return sum[end] - sum[begin] + (s == 0 ? before : 0) + (s == stages - 1 ? after : 0);
  };
  // The shortest that the longest stage can be; then, below that, the most even.
  double bound = 1e300;
  std::vector<std::vector<CutUpTo>> best;
  for (bool even : {false, true}) {
    best.assign(stages, std::vector<CutUpTo>(n + 1, {1e300, 1e300, -1}));
    for (int s = 0; s < stages; ++s)
      for (int64_t end = s + 1; end <= n - (stages - 1 - s); ++end)
        for (int64_t begin = s == 0 ? 0 : s; begin < (s == 0 ? 1 : end); ++begin) {
          if (!most.empty() && end - begin > most[s]) continue;
          const CutUpTo ahead = s == 0 ? CutUpTo{} : best[s - 1][begin];
          const double mine = stage(s, begin, end);
          CutUpTo cut{std::max(ahead.longest, mine), ahead.squares + mine * mine, begin};
          if (cut.longest > bound * (1 + 1e-12)) continue;
          if (even) cut.longest = 0;
          if (cut < best[s][end]) best[s][end] = cut;
        }
    bound = best[stages - 1][n].longest;
    if (best[stages - 1][n].begin < 0) return {};
  }
  std::vector<int64_t> layers(stages);
  for (int64_t s = stages - 1, end = n; s >= 0; --s) {
    layers[s] = end - best[s][end].begin;
    end = best[s][end].begin;
  }
  return layers;
}

double SecondsWhole(const Graph& graph, int n, const Machine& machine) {
  const Node& node = graph.node(n);
  if (node.kind != NodeKind::kOperator) return 0;
  return SecondsOf(machine, LocalWork(graph, n, graph.RuleOf(n)).work(), graph, node) + machine.overhead;
}

}  // namespace oneflow_like
