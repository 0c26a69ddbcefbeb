// The compiler: from a built graph to the logical plan, through one array of passes. After every pass the
// graph's invariants are verified, the pass is timed, and the graph can be dumped.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/passes/passes.h"
#include "compiler/plan/make_plans.h"

namespace oneflow_like {

struct Compiled {
  Graph graph;
  LogicalPlan logical;
  CompileOptions options;
  std::vector<std::pair<std::string, double>> pass_seconds;
};

// Called after each pass with its number, its name and the text of the resulting graph.
using DumpFn = std::function<void(int number, const std::string& pass, const std::string& text)>;

// Called once, when the graph contains everything that the step computes and nothing is decided yet.
using WholeFn = std::function<void(const Graph& graph)>;

// A pass on the logical graph, and the invariants that hold after it.
struct Pass {
  const char* name;
  Level leaves;
  void (*run)(Graph*, const CompileOptions&);
  bool whole = false;  // from here on the graph contains everything that the step computes
};
std::span<const Pass> Passes();  // in the order they run

// `graph` holds forward nodes and assigns, the fetches, and for training a train node. Throws Error.
Compiled Compile(Graph graph, const CompileOptions& options, const DumpFn& dump = {},
                 const WholeFn& whole = {});

// --- Compilation in parts, for plans that are compared with others and then thrown away: nothing is verified

// The last pass before which only the stages count that blocks are on; and the last before which nothing of
// how values wait for gradients does.
inline constexpr char kBeforeCuts[] = "place_stages", kBeforeWaits[] = "fuse";
// `graph` after all passes behind `after` (empty: from the first on) up to `upto`, itself included.
Graph RunPasses(const std::string& after, const std::string& upto, Graph graph,
                const CompileOptions& options);
// Compiles a graph that has come through all passes up to `pass`, `pass` included, with the passes after it.
Compiled CompileAfter(const std::string& pass, Graph graph, const CompileOptions& options);

// One rank's plan with its memory placed.
struct RankPlan {
  plan::Plan plan;
  int64_t lower_bound = 0;         // largest sum of transient bytes live at once
  std::map<int, int64_t> at_peak;  // those bytes by buffer, all scratch under kScratch
  LiveBytes live;                  // and the live bytes before and after
};
RankPlan PlanOf(const Compiled& compiled, int rank, PlanDetail detail = PlanDetail::kWhole);

// The plans of several ranks, in the order of `ranks`, made side by side on that many threads; 0: one per
// core. Throws what PlanOf throws for the first of the ranks that it refuses.
std::vector<RankPlan> PlansOf(const Compiled& compiled, const std::vector<int>& ranks, int threads = 0,
                              PlanDetail detail = PlanDetail::kWhole);

// Calls work(0) to work(count - 1) side by side on that many threads; 0: one per core. Throws what the first
// of the calls, by number, has thrown.
void SideBySide(int count, int threads, const std::function<void(int)>& work);

}  // namespace oneflow_like
