#include "actor/net/collectives/collective_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "actor/net/ucx/network.h"

namespace oneflow_like {
namespace {

using Members = std::vector<int>;

std::vector<int64_t> KeyOf(const Box& box) {
  std::vector<int64_t> key(box.begin.begin(), box.begin.end());
  key.insert(key.end(), box.extent.begin(), box.extent.end());
  return key;
}

// Destinations pull, so what several want from the same sources stands in the work of each of them: brought
// together, it crosses the network once for each node.
std::vector<MemberRegion> MergeDestinations(const std::vector<MemberRegion>& regions) {
  std::map<std::pair<std::vector<int64_t>, Members>, size_t> index;
  std::vector<MemberRegion> merged;
  for (const MemberRegion& r : regions) {
    if (r.box.empty() || r.dests.empty()) continue;
    auto [at, added] = index.emplace(std::pair{KeyOf(r.box), r.sources}, merged.size());
    if (added) {
      merged.push_back(r);
    } else {
      Members& dests = merged[at->second].dests;
      dests.insert(dests.end(), r.dests.begin(), r.dests.end());
    }
  }
  for (MemberRegion& r : merged) {
    std::sort(r.dests.begin(), r.dests.end());
    r.dests.erase(std::unique(r.dests.begin(), r.dests.end()), r.dests.end());
  }
  return merged;
}

// One box of both, when they lie side by side.
bool Join(const Box& next, Box* box) {
  int differs = -1;
  for (int a = 0; a < box->begin.rank(); ++a) {
    if (box->begin[a] == next.begin[a] && box->extent[a] == next.extent[a]) continue;
    if (differs >= 0 || box->begin[a] + box->extent[a] != next.begin[a]) return false;
    differs = a;
  }
  if (differs < 0) return false;
  box->extent[differs] += next.extent[differs];
  return true;
}

// Small neighbours with the same ends: few messages matter more than shared work.
std::vector<MemberRegion> JoinSmall(const std::vector<MemberRegion>& regions, int64_t limit_elements) {
  std::map<std::pair<Members, Members>, size_t> last;
  std::vector<MemberRegion> joined;
  for (const MemberRegion& r : regions) {
    auto [at, added] = last.emplace(std::pair{r.sources, r.dests}, joined.size());
    if (!added) {
      MemberRegion& before = joined[at->second];
      if (before.box.elements() + r.box.elements() <= limit_elements && Join(r.box, &before.box)) continue;
      at->second = joined.size();
    }
    joined.push_back(r);
  }
  return joined;
}

// Cuts along the outermost axes, so that a chunk stays contiguous wherever its box was.
void Cut(const Box& box, int64_t limit_elements, std::vector<Box>* chunks) {
  if (box.elements() <= limit_elements) {
    chunks->push_back(box);
    return;
  }
  int axis = 0;
  while (box.extent[axis] == 1) ++axis;
  int64_t row = box.elements() / box.extent[axis];
  int64_t rows = std::max<int64_t>(1, limit_elements / row);
  for (int64_t first = 0; first < box.extent[axis]; first += rows) {
    Box part = box;
    part.begin[axis] += first;
    part.extent[axis] = std::min(rows, box.extent[axis] - first);
    Cut(part, limit_elements, chunks);
  }
}

class OpMaker {
 public:
  OpMaker(const GroupShape& shape, int me, int* chunks, std::vector<ChunkOp>* ops)
      : shape_(shape), me_(me), my_node_(shape.node_of_process[me]), chunks_(*chunks), ops_(*ops) {}

  // `owner`: the member on whose node the sum is made; `dests`: who of all gets it from there. `again`: other
  // nodes make the same sum for themselves.
  void Add(int operand, const Box& box, const Members& sources, const Members& dests, int owner, bool again) {
    const int chunk = chunks_++;
    const int owner_node = shape_.node(owner);
    const bool reduces_elsewhere = NodesOf(sources).size() == 1 && shape_.node(sources[0]) != owner_node;
    // What lies on one node altogether is summed there.
    const int sum_node = reduces_elsewhere ? shape_.node(sources[0]) : owner_node;
    const Members here = On(dests, sum_node);
    const int sum_process = sources.size() == 1 && !here.empty()
                                ? OneOf(here, sum_node, chunk)  // a copy: in turn
                            : reduces_elsewhere ? OneOf(sources, sum_node, chunk)
                                                : shape_.process[owner];
    ChunkOp op;
    op.chunk = chunk;
    op.operand = operand;
    op.box = box;
    if (me_ == sum_process) {
      for (int node : NodesOf(sources)) {
        if (node == my_node_) {
          Members mine = On(sources, node);
          const bool apart = again && mine.size() > 1;  // all nodes add the same terms: the same bits
          op.terms.push_back({-1, std::move(mine), apart});
        } else {
          op.terms.push_back({OneOf(sources, node, chunk), {}});
        }
      }
      op.outs = On(dests, my_node_);
      for (int node : NodesOf(dests)) {
        if (node != my_node_) op.sends.push_back(OneOf(dests, node, chunk));
      }
      ops_.push_back(std::move(op));
    } else if (my_node_ != sum_node && !On(sources, my_node_).empty() &&
               OneOf(sources, my_node_, chunk) == me_) {
      op.terms.push_back({-1, On(sources, my_node_)});
      op.sends.push_back(sum_process);
      // A node that gives and wants the same part gets it back in an op of the same chunk.
      ops_.push_back(std::move(op));
      AddReceive(chunk, operand, box, dests, sum_node, sum_process);
    } else {
      AddReceive(chunk, operand, box, dests, sum_node, sum_process);
    }
  }

 private:
  void AddReceive(int chunk, int operand, const Box& box, const Members& dests, int sum_node,
                  int sum_process) {
    if (my_node_ == sum_node || On(dests, my_node_).empty() || OneOf(dests, my_node_, chunk) != me_) return;
    ChunkOp op;
    op.chunk = chunk;
    op.operand = operand;
    op.box = box;
    op.terms.push_back({sum_process, {}});
    op.outs = On(dests, my_node_);
    ops_.push_back(std::move(op));
  }

  std::set<int> NodesOf(const Members& members) const {
    std::set<int> nodes;
    for (int m : members) nodes.insert(shape_.node(m));
    return nodes;
  }
  Members On(const Members& members, int node) const {
    Members on;
    for (int m : members) {
      if (shape_.node(m) == node) on.push_back(m);
    }
    return on;
  }
  // The process that speaks for a node's members; taken in turn, so that the processes of a node share the
  // work.
  int OneOf(const Members& members, int node, int chunk) const {
    Members on = On(members, node);
    return shape_.process[on[chunk % on.size()]];
  }

  const GroupShape& shape_;
  const int me_, my_node_;
  int& chunks_;
  std::vector<ChunkOp>& ops_;
};

}  // namespace

void AddChunkOps(const std::vector<MemberRegion>& regions, const GroupShape& shape, int me,
                 int64_t element_bytes, const ChunkLimits& limits, int* chunks_so_far,
                 std::vector<ChunkOp>* ops) {
  OpMaker maker(shape, me, chunks_so_far, ops);
  const std::vector<MemberRegion> merged = MergeDestinations(regions);
  int64_t bytes = 0;
  for (const MemberRegion& r : merged) bytes += r.box.elements() * element_bytes;
  int64_t chunk = limits.chunk_bytes;
  // Whoever is late holds them meanwhile, so there are bounds to it.
  if (bytes <= limits.short_act_bytes) chunk = std::min<int64_t>(chunk, Network::kEagerBytes);
  const int64_t large = std::max<int64_t>(1, chunk / element_bytes);
  const int64_t small = std::clamp<int64_t>(limits.latency_bound_bytes / element_bytes, 1, large);
  // Where every node adds up for itself each sends to each other: of larger acts that would be too many
  // messages.
  const int64_t small_act = std::max(limits.latency_bound_bytes, element_bytes);
  for (const MemberRegion& r : JoinSmall(merged, small)) {
    std::set<int> source_nodes, dest_nodes;
    for (int m : r.sources) source_nodes.insert(shape.node(m));
    for (int m : r.dests) dest_nodes.insert(shape.node(m));
    const bool for_itself =
        r.sources.empty() || (source_nodes.size() > 1 && r.box.elements() <= small && bytes <= small_act);
    if (for_itself && (dest_nodes.size() > 1 || shape.node(r.owner) != *dest_nodes.begin())) {
      for (int node : dest_nodes) {
        std::vector<int> dests;
        for (int m : r.dests) {
          if (shape.node(m) == node) dests.push_back(m);
        }
        maker.Add(r.operand, r.box, r.sources, dests, dests[0], source_nodes.size() > 1);
      }
      continue;
    }
    std::vector<Box> chunks;
    Cut(r.box, large, &chunks);
    for (const Box& chunk : chunks) maker.Add(r.operand, chunk, r.sources, r.dests, r.owner, false);
  }
}

}  // namespace oneflow_like
