// The estimate of plans in chunks: a message beside products, against both one after the other.
#include <algorithm>

#include "compiler/cost/cost.h"
#include "compiler/search/chunk_plans.h"
#include "sbp/boxing.h"

namespace oneflow_like {

namespace {

// Reading and writing so many bytes, with `kernels` kernels.
double CopySeconds(const Machine& machine, double bytes, int64_t kernels) {
  return 2 * bytes / machine.topology.memory_bandwidth + static_cast<double>(kernels) * machine.overhead;
}

// Of the message of one of `chunks`, in one act.
double MessageSeconds(const Graph& graph, const Machine& machine, const ChunkPlan& plan, int64_t chunks) {
  const Value& value = graph.value(plan.value);
  Dims shape = value.shape;
  shape[plan.rows.axis] /= chunks;
  const Slice& slice = graph.producer(plan.value).slice;
  return CostOfBoxing(graph.mesh(), graph.times(), shape, static_cast<int64_t>(SizeOf(value.dtype)),
                      {slice, value.sbp}, {slice, plan.want}, machine.topology)
             .seconds /
         ActsOf(graph, graph.node(plan.products[0].node));
}

// Of a product on one of `chunks` of its rows; operands that have none are read whole.
double ProductSeconds(const Graph& graph, const Machine& machine, const ChunkedProduct& product,
                      int64_t chunks, CostModel* cost) {
  const Node& node = graph.node(product.node);
  Work work = cost->WorkAt(product.node, std::vector<int>(1 + graph.mesh().rank(), 0));
  const double parts = static_cast<double>(chunks);
  work.flops /= parts;
  work.bytes = work.largest = 0;
  const auto touch = [&](int v, const NdSbp& sbp, double of) {
    const double bytes = LargestPieceBytes(graph.value(v), sbp, graph.Sizes()) / of;
    work.bytes += bytes;
    work.largest = std::max(work.largest, bytes / static_cast<double>(SizeOf(graph.value(v).dtype)));
  };
  touch(node.out[0], graph.value(node.out[0]).sbp, parts);
  for (size_t i = 0; i < node.in.size(); ++i)
    touch(node.in[i], node.want[i], product.rows.in[i] < 0 ? 1 : parts);
  return SecondsOf(machine, work, graph, node) + machine.overhead;
}

// Of the copies that cutting into chunks and joining them takes.
double CopiesSeconds(const Graph& graph, const Machine& machine, const ChunkPlan& plan, int64_t chunks) {
  const auto copy = [&](int v, const NdSbp& sbp, int64_t kernels) {
    return CopySeconds(machine, LargestPieceBytes(graph.value(v), sbp, graph.Sizes()), kernels);
  };
  double copies = 0;
  for (const auto& [n, rows] : plan.products) {
    const Node& node = graph.node(n);
    if (plan.gather) copies += copy(node.out[0], graph.value(node.out[0]).sbp, 1);
    for (size_t i = 0; i < rows.in.size() && !plan.gather; ++i)
      if (rows.in[i] >= 0) copies += copy(node.in[i], node.want[i], chunks);
  }
  if (plan.gather) copies += copy(plan.value, graph.value(plan.value).sbp, chunks);
  if (!plan.gather || !plan.others.empty()) copies += copy(plan.value, plan.want, 1);
  return copies;
}

// An act in so many chunks.
double SecondsInChunks(const Graph& graph, const Machine& machine, const ChunkPlan& plan, int64_t chunks,
                       CostModel* cost) {
  const double message = MessageSeconds(graph, machine, plan, chunks), parts = static_cast<double>(chunks);
  double product = 0, behind = 0;
  for (const ChunkedProduct& p : plan.products) product += ProductSeconds(graph, machine, p, chunks, cost);
  for (int n : plan.behind) behind += cost->Seconds(n);
  if (chunks == 1) return product + std::max(message, behind);
  const double line = product + (parts - 1) * std::max(product, message) + message;
  return CopiesSeconds(graph, machine, plan, chunks) + std::max(line, parts * product + behind);
}

}  // namespace

int64_t MostChunks(const Dims& shape, const ChunkAxis& rows, int wanted) {
  for (int64_t chunks = wanted; chunks > 1; --chunks)
    if (shape[rows.axis] > 0 && shape[rows.axis] % (rows.pieces * chunks) == 0) return chunks;
  return 1;
}

bool ChooseChunks(const Graph& graph, const Machine& machine, const Overlap& overlap, CostModel* cost,
                  ChunkPlan* plan) {
  for (int n : plan->behind) plan->before += cost->Seconds(n);
  plan->before += MessageSeconds(graph, machine, *plan, 1);
  for (const ChunkedProduct& p : plan->products) plan->before += ProductSeconds(graph, machine, p, 1, cost);
  double least = plan->before * (1 - overlap.gain);
  bool taken = false;
  const Dims& shape = graph.value(plan->value).shape;
  const int64_t most = MostChunks(shape, plan->rows, overlap.chunks);
  for (int64_t chunks = plan->behind.empty() ? 2 : 1; chunks <= most; ++chunks) {
    if (shape[plan->rows.axis] % (plan->rows.pieces * chunks) != 0) continue;
    const double seconds = SecondsInChunks(graph, machine, *plan, chunks, cost);
    if (seconds > least && !overlap.always) continue;
    least = plan->after = seconds;
    plan->chunks = chunks;
    taken = true;
  }
  return taken;
}

}  // namespace oneflow_like
