// The logical plan: segments, edges, buffers and the order of acts, the same for all ranks. Partition cuts
// one rank's physical plan from it.
#pragma once

#include <string>
#include <vector>

#include "compiler/graph.h"
#include "core/token_game.h"

namespace oneflow_like {

enum class StreamKind : uint8_t { kCompute, kLink, kNone };  // kNone: feed and fetch, in no list
const char* Name(StreamKind kind);

// A straight line of nodes that becomes one actor on every rank of its slice.
struct Segment {
  std::string name;
  std::vector<int> nodes;  // in order; views are not among them
  Slice slice;             // of its results
  Slice from;              // of its operands: differs from `slice` for a transfer between stages
  StreamKind stream = StreamKind::kCompute;
  Phase phase = Phase::kForward;
  bool per_micro_batch = false;
  int epoch = 0;       // how many values of the whole batch it comes after, at least
  double seconds = 0;  // estimate of one act
};

// One value kept in a ring of slots. Views share the buffer of the value they look at.
struct LogicalBuffer {
  int value = -1;
  int writer = -1;           // segment; -1: a variable that no segment of this plan writes
  std::vector<int> readers;  // segments other than the writer, ascending
  std::string variable;      // lives in the store under this name
  int write_period = 1;      // acts of the writer that share a slot
  int slots = 1;
  int full = 0;
};

// Credits between two segments; `buffers` stand behind it, none for a control edge.
struct LogicalEdge {
  int writer = -1, reader = -1;
  int write_period = 1, read_period = 1;
  int slots = 0;  // 0 until the order is known
  int full = 0;
  std::vector<int> buffers;
  std::string why;
};

struct LogicalPlan {
  std::vector<Segment> segments;
  std::vector<LogicalBuffer> buffers;
  std::vector<LogicalEdge> edges;
  std::vector<int> root;       // per value: the value whose buffer it lives in
  std::vector<int> buffer_of;  // per value: its root's buffer, -1 when it has none
  std::vector<Firing> order;   // one step: transition = segment
  double makespan = 0;         // estimated seconds of a step
  uint64_t hash = 0;           // of the order and the names
};

// The token game of a plan: one transition for each segment, one place for each edge, one resource for each
// (slice coordinate, stream).
TokenGame GameOf(const Graph& graph, const LogicalPlan& plan);
std::string ToText(const Graph& graph, const LogicalPlan& plan);

}  // namespace oneflow_like
