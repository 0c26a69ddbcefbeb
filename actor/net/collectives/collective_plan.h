// The work of each process in one act of a collective that crosses processes. Every process computes it by
// itself from the members' plans, with the same outcome everywhere.
//
// A *node* is a set of processes that reach each other's pieces by address (one host with shared memory),
// else one process: the participants of core/plan/collective_algorithm.h. A part of the index space is summed
// on each node that holds sources and sent on its way to the part's root, the node that owns it unless the
// algorithm says otherwise; each node on the way adds its own sum, in the order of nodes. From the root the
// sum takes the way back to each node that needs it. Parts are cut into chunks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/boxes/copy_box.h"
#include "core/plan.pb.h"
#include "core/plan/collective_algorithm.h"

namespace oneflow_like {

// The processes and nodes of a group's members.
struct GroupShape {
  std::vector<int> process;          // by member
  std::vector<int> node_of_process;  // by process of the job: the node's first process
  std::vector<int> unit_of_process;  // of nodes in one unit of links, for kTwoLevel; empty: one unit
  int node(int member) const { return node_of_process[process[member]]; }
};

// A region of one member's work (plan.Collective.work).
struct MemberRegion : Region {
  int owner = 0;  // the member that does this work
};

// One process's part in one chunk: it collects the terms, in order, writes the sum to the pieces of its node
// and sends it on.
struct ChunkOp {
  struct Term {
    int process = -1;          // the sum comes from this process; -1: the sources' pieces, on this node
    std::vector<int> sources;  // members, when process is -1
    bool apart = false;  // the sources are summed separately first, as this node's sum is on other nodes
  };
  int chunk = 0;  // its number in the act, the same for all processes
  int operand = 0;
  Box box;
  int64_t count = -1;  // Region::count: the rows of the box that the act moves
  std::vector<Term> terms;
  std::vector<int> outs;   // members of this node whose out pieces get it
  std::vector<int> sends;  // processes that get it
};

struct ChunkLimits {
  int64_t chunk_bytes = 512 << 10;
  // Largest operand in bytes that every node adds up for itself, if no algorithm is named.
  int64_t latency_bound_bytes = 4 << 10;
  // Acts of at most this many bytes are cut into chunks that travel with their messages (network.h).
  int64_t short_act_bytes = 4 << 20;
};

// Adds the ops of process `me` for one operand's `regions` of all members, in the order of members; they do
// not depend on other operands. `chunks`: the number of the act's chunks so far. `algorithm`: without one,
// kDirect for few bytes, else kTwoTrips.
void AddChunkOps(const std::vector<MemberRegion>& regions, const GroupShape& shape, int me,
                 int64_t element_bytes, const ChunkLimits& limits, int* chunks, std::vector<ChunkOp>* ops,
                 std::optional<CollectiveAlgorithm> algorithm = {});

}  // namespace oneflow_like
