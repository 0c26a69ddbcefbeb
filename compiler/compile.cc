#include "compiler/compile.h"

#include <glog/logging.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>

#include "compiler/graph/text.h"
#include "core/system/cores.h"

namespace oneflow_like {

namespace {

// All passes on the logical graph. Those of training do nothing to a graph without a train node.
const Pass kPasses[] = {
    {"name_draws", Level::kBuilt, NameDraws},
    {"loss_scale", Level::kBuilt, AddLossScale},
    {"autograd", Level::kBuilt, Autograd},
    {"add_updates", Level::kBuilt, AddUpdates, true},
    {"mixed_precision", Level::kBuilt, MixedPrecision},
    {"place_stages", Level::kPlaced, PlaceStages},
    {"shard_variables", Level::kPlaced, ShardVariables},
    {"choose_signatures", Level::kSigned, ChooseSignatures},
    {"chunk_products", Level::kSigned, ChunkProducts},
    {"insert_boxing", Level::kBoxed, InsertBoxing},
    {"lower_boxing", Level::kLowered, LowerBoxing},
    {"split_gradients", Level::kLowered, SplitGradients},
    {"fuse_epilogue", Level::kLowered, FuseEpilogue},
    {"fuse_accumulate", Level::kLowered, FuseAccumulate},
    {"fuse", Level::kLowered, Fuse},
    {"place_on_host", Level::kLowered, PlaceOnHost},
    {"recompute", Level::kLowered, RepeatForward},
    {"offload_activations", Level::kLowered, OffloadActivations},
    {"gather_weights", Level::kLowered, GatherWeights},
    {"fill_buckets", Level::kLowered, FillBuckets},
    {"choose_algorithms", Level::kLowered, ChooseAlgorithms},
    {"bound_gradients", Level::kLowered, BoundGradients},
    {"line_up_products", Level::kLowered, LineUpProducts},
    {"order_writes", Level::kOrdered, OrderWrites},
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::span<const Pass> Passes() { return kPasses; }

Compiled Compile(Graph graph, const CompileOptions& options, const DumpFn& dump, const WholeFn& whole) {
  Compiled c{std::move(graph), {}, options, {}};
  c.graph.set_times(options.decided.micro_batches);
  int number = 0;
  VerifyGraph(c.graph, Level::kBuilt);
  if (dump) dump(number, "built", ToText(c.graph));
  auto timed = [&](const char* name, auto&& run) {
    double start = Seconds();
    run();
    c.pass_seconds.emplace_back(name, Seconds() - start);
    ++number;
  };
  for (const Pass& pass : kPasses) {
    timed(pass.name, [&] {
      pass.run(&c.graph, options);
      VerifyGraph(c.graph, pass.leaves);
    });
    if (dump) dump(number, pass.name, ToText(c.graph));
    if (whole && pass.whole) whole(c.graph);
  }
  timed("form_segments", [&] { c.logical = FormSegments(c.graph, options); });
  if (dump) dump(number, "form_segments", ToText(c.graph, c.logical));
  timed("order_acts", [&] {
    OrderActs(c.graph, &c.logical);
    VerifyLogicalPlan(c.graph, c.logical);
  });
  if (dump) dump(number, "order_acts", ToText(c.graph, c.logical));
  return c;
}

Graph RunPasses(const std::string& after, const std::string& upto, Graph graph,
                const CompileOptions& options) {
  if (after.empty()) graph.set_times(options.decided.micro_batches);
  bool begun = after.empty();
  for (const Pass& pass : kPasses) {
    if (begun) pass.run(&graph, options);
    begun = begun || after == pass.name;
    if (upto == pass.name) return graph;
  }
  CHECK(false) << "there is no pass " << upto;
  return graph;
}

Compiled CompileAfter(const std::string& pass, Graph graph, const CompileOptions& options) {
  Compiled c{RunPasses(pass, std::prev(std::end(kPasses))->name, std::move(graph), options), {}, options, {}};
  c.logical = FormSegments(c.graph, options);
  OrderActs(c.graph, &c.logical);
  return c;
}

RankPlan PlanOf(const Compiled& compiled, int rank, PlanDetail detail) {
  RankPlan r;
  r.plan = Partition(compiled.graph, compiled.logical, compiled.options, rank, detail);
  r.lower_bound = PlaceMemory(&r.plan, &r.at_peak, &r.live);
  return r;
}

std::vector<RankPlan> PlansOf(const Compiled& compiled, const std::vector<int>& ranks, int threads,
                              PlanDetail detail) {
  std::vector<RankPlan> plans(ranks.size());
  SideBySide(static_cast<int>(ranks.size()), threads,
             [&](int i) { plans[i] = PlanOf(compiled, ranks[i], detail); });
  return plans;
}

void SideBySide(int count, int threads, const std::function<void(int)>& work) {
  namespace tbb = oneapi::tbb;
  std::vector<std::exception_ptr> errors(count);
  const auto one = [&](int i) {
    try {
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
#if defined(__SANITIZE_THREAD__)  // which does not see how oneTBB's library orders its tasks
  threads = 1;
#endif
  if (threads == 0) threads = UsableCores();
  threads = std::min(threads, count);
  if (threads <= 1) {
    for (int i = 0; i < count; ++i) one(i);
  } else {
    tbb::task_arena(threads).execute([&] { tbb::parallel_for(0, count, one, tbb::simple_partitioner()); });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace oneflow_like
