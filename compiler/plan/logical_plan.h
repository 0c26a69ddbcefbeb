// The logical plan: segments, edges, buffers and the order of acts, the same for all ranks. Partition cuts
// one rank's physical plan from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/graph/pipeline_schedule.h"
#include "core/plan/token_game.h"

namespace oneflow_like {

enum class StreamKind : uint8_t { kCompute, kLink, kFromHost, kToHost };

// One of the streams that every rank has; it runs one act at a time.
struct LogicalStream {
  std::string name;
  StreamKind kind = StreamKind::kCompute;
  std::vector<int> axes;  // of a link: the mesh axes whose ranks it joins
};

// A chain of nodes that becomes one actor on every rank of its slice.
struct Segment {
  std::string name;
  std::vector<int> nodes;  // in order; views are not among them
  Slice slice;             // of its results
  Slice from;              // of its operands: differs from `slice` for a transfer between stages
  int stream = 0;          // of the plan's; -1: in no stream (feeds and fetches)
  Phase phase = Phase::kForward;
  bool per_micro_batch = false;
  int chunk = 0;       // how often the work on a micro-batch returned to this stage before
  int epoch = 0;       // how many values of the whole batch it comes after, at least
  double seconds = 0;  // estimate of one act
};

// One value kept in a ring of slots. Views share the buffer of their value.
struct LogicalBuffer {
  int value = -1;
  int writer = -1;           // segment; -1: a variable that no segment of this plan writes
  std::vector<int> readers;  // segments other than the writer, ascending
  // Segments that read the variable after an update; `readers` read its old value.
  std::vector<int> result_readers;
  std::string variable;  // lives in the store under this name
  int write_period = 1;  // acts of the writer that share a slot
  int slots = 1;
  int full = 0;
};

// Whether the value is the result of an update in its variable, so that its readers need the variable's new
// contents.
bool IsResult(const Graph& graph, int value);

// Credits between two segments, for these `buffers`; a control edge has none.
struct LogicalEdge {
  int writer = -1, reader = -1;
  int write_period = 1, read_period = 1;
  int slots = 0;  // 0 until the order is known; those of variables and limits are known before
  int full = 0;
  std::vector<int> buffers;
  std::string why;
};

struct LogicalPlan {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  bool exact_groups = false;  // interleaved: ScheduleOf
  // Micro-batches that each part of a stage works on beside one another: one's work fills the time of
  // another's messages. A second one keeps a stash more than the schedule says.
  int beside = 1;
  std::optional<double> second;  // the least gain, as a part of a step, for which there is a second one
  std::vector<LogicalStream> streams;
  std::vector<Segment> segments;
  std::vector<LogicalBuffer> buffers;
  std::vector<LogicalEdge> edges;
  std::vector<int> root;       // per value: the value whose buffer it lives in
  std::vector<int> buffer_of;  // per value: its root's buffer, -1 when it has none
  std::vector<Firing> order;   // one step: transition = segment
  double makespan = 0;         // estimated seconds of a step
  uint64_t hash = 0;           // of the order and the names

  bool On(const Segment& segment, StreamKind kind) const {
    return segment.stream >= 0 && streams[segment.stream].kind == kind;
  }
};

// The token game of a plan: one transition for each segment, one place for each edge, one resource for each
// stream of the ranks at one coordinate of the axes that slices fix.
TokenGame GameOf(const Graph& graph, const LogicalPlan& plan);
// The value of the whole batch because of which `buffer` is kept for all micro-batches, since it is read
// again after that value is complete; -1 when there is none.
int WholeValueBehind(const LogicalPlan& plan, int buffer);
std::string ToText(const Graph& graph, const LogicalPlan& plan);

}  // namespace oneflow_like
