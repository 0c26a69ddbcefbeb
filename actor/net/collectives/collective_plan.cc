#include "actor/net/collectives/collective_plan.h"

#include <algorithm>
#include <map>
#include <set>
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
      const bool joins =
          r.count == before.count && before.box.elements() + r.box.elements() <= limit_elements;
      if (joins && Join(r.box, &before.box)) continue;
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
  OpMaker(const GroupShape& shape, int me, CollectiveAlgorithm algorithm, int* chunks,
          std::vector<ChunkOp>* ops)
      : shape_(shape),
        algorithm_(algorithm),
        me_(me),
        my_node_(shape.node_of_process[me]),
        chunks_(*chunks),
        ops_(*ops) {}

  // `owner`: the member on whose node the sum is made; `dests`: who of all gets it from there. `again`: other
  // nodes make the same sum for themselves.
  void Add(int operand, const Box& box, int64_t count, const Members& sources, const Members& dests,
           int owner, bool again) {
    const int chunk = chunks_++;
    const std::vector<int> source_nodes = NodesOf(sources), dest_nodes = NodesOf(dests);
    const int root = RootOf(source_nodes, dest_nodes, shape_.node(owner));
    const Members here = On(dests, root);
    const int sum_process =
        sources.size() == 1 && !here.empty() ? OneOf(here, root, chunk)  // a copy: in turn
        : root == shape_.node(owner)         ? shape_.process[owner]
                                     : OneOf(On(sources, root).empty() ? dests : sources, root, chunk);
    const auto process_of = [&](int node, const Members& members) {
      return node == root ? sum_process : OneOf(members, node, chunk);
    };
    // Towards the root.
    if (!On(sources, my_node_).empty() || me_ == sum_process) {
      ChunkOp op = {chunk, operand, box, count, {}, {}, {}};
      const int next = AddTerms(source_nodes, sources, root, again, process_of, &op);
      if (next >= 0) op.sends.push_back(process_of(next, sources));
      if (me_ == sum_process) AddDests(dest_nodes, dests, root, process_of, &op);
      if (me_ == process_of(my_node_, sources)) ops_.push_back(std::move(op));
    }
    // Back: a node that gives and wants the same part gets it in a second op of the chunk.
    if (my_node_ == root || On(dests, my_node_).empty() || process_of(my_node_, dests) != me_) return;
    ChunkOp op = {chunk, operand, box, count, {}, {}, {}};
    const int before = AddDests(dest_nodes, dests, root, process_of, &op);
    op.terms.push_back({process_of(before, dests), {}});
    ops_.push_back(std::move(op));
  }

 private:
  // The node on which the sum is made. Sources that lie on one node altogether are summed there.
  int RootOf(const std::vector<int>& sources, const std::vector<int>& dests, int owner) const {
    if (sources.size() == 1) return sources[0];
    if (algorithm_ != CollectiveAlgorithm::kStar || sources.empty() || dests.size() < 2) return owner;
    return std::min(sources[0], dests[0]);
  }

  std::vector<int> WayOf(const std::vector<int>& nodes, int root) const {
    return WayTo(algorithm_, shape_.unit_of_process, nodes, root);
  }
  static std::vector<int> With(std::vector<int> nodes, int node) {
    const auto at = std::lower_bound(nodes.begin(), nodes.end(), node);
    if (at == nodes.end() || *at != node) nodes.insert(at, node);
    return nodes;
  }

  // The terms that this node adds up, in the order of nodes: its own sources, and sums of those whose way
  // leads here. Gives the node that the sum goes to; -1: it stays.
  template <typename ProcessOf>
  int AddTerms(const std::vector<int>& source_nodes, const Members& sources, int root, bool again,
               const ProcessOf& process_of, ChunkOp* op) const {
    if (sources.empty()) return -1;
    const std::vector<int> nodes = With(source_nodes, root);
    const std::vector<int> way = WayOf(nodes, root);
    int next = -1;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i] == my_node_) {
        next = way[i];
        Members mine = On(sources, my_node_);
        if (mine.empty()) continue;
        const bool apart = again && mine.size() > 1;  // all nodes add the same terms: the same bits
        op->terms.push_back({-1, std::move(mine), apart});
      } else if (way[i] == my_node_) {
        op->terms.push_back({process_of(nodes[i], sources), {}});
      }
    }
    return next;
  }

  // Members of this node that get the sum, and the nodes that get it from here. Gives the node that it comes
  // from; -1: it is made here.
  template <typename ProcessOf>
  int AddDests(const std::vector<int>& dest_nodes, const Members& dests, int root,
               const ProcessOf& process_of, ChunkOp* op) const {
    const std::vector<int> nodes = With(dest_nodes, root);
    const std::vector<int> way = WayOf(nodes, root);
    int before = -1;
    op->outs = On(dests, my_node_);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i] == my_node_) before = way[i];
      if (way[i] == my_node_) op->sends.push_back(process_of(nodes[i], dests));
    }
    return before;
  }

  std::vector<int> NodesOf(const Members& members) const {
    std::set<int> nodes;
    for (int m : members) nodes.insert(shape_.node(m));
    return {nodes.begin(), nodes.end()};
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
  const CollectiveAlgorithm algorithm_;
  const int me_, my_node_;
  int& chunks_;
  std::vector<ChunkOp>& ops_;
};

}  // namespace

void AddChunkOps(const std::vector<MemberRegion>& regions, const GroupShape& shape, int me,
                 int64_t element_bytes, const ChunkLimits& limits, int* chunks_so_far,
                 std::vector<ChunkOp>* ops, std::optional<CollectiveAlgorithm> algorithm) {
  const std::vector<MemberRegion> merged = MergeDestinations(regions);
  int64_t bytes = 0;
  for (const MemberRegion& r : merged) bytes += r.box.elements() * element_bytes;
  int64_t chunk = limits.chunk_bytes;
  // Whoever is late holds them meanwhile, so there are bounds to it.
  if (bytes <= limits.short_act_bytes) chunk = std::min<int64_t>(chunk, Network::kEagerBytes);
  const int64_t large = std::max<int64_t>(1, chunk / element_bytes);
  int64_t small = std::clamp<int64_t>(limits.latency_bound_bytes / element_bytes, 1, large);
  // Where every node adds up for itself each sends to each other: of larger acts that would be too many
  // messages, unless they were counted.
  const int64_t small_act = std::max(limits.latency_bound_bytes, element_bytes);
  const int64_t most_for_itself = algorithm ? (*algorithm == CollectiveAlgorithm::kDirect ? large : 0)
                                  : bytes <= small_act ? small
                                                       : 0;
  // A node that has the whole sum from one other wants it in few messages.
  if (algorithm == CollectiveAlgorithm::kDirect || algorithm == CollectiveAlgorithm::kStar) small = large;
  OpMaker maker(shape, me, algorithm.value_or(CollectiveAlgorithm::kTwoTrips), chunks_so_far, ops);
  for (const MemberRegion& r : JoinSmall(merged, small)) {
    std::set<int> source_nodes, dest_nodes;
    for (int m : r.sources) source_nodes.insert(shape.node(m));
    for (int m : r.dests) dest_nodes.insert(shape.node(m));
    std::vector<Box> chunks;
    Cut(r.box, large, &chunks);
    for (const Box& box : chunks) {
      const bool for_itself =
          r.sources.empty() || (source_nodes.size() > 1 && box.elements() <= most_for_itself);
      if (!for_itself || (dest_nodes.size() == 1 && shape.node(r.owner) == *dest_nodes.begin())) {
        maker.Add(r.operand, box, r.count, r.sources, r.dests, r.owner, false);
        continue;
      }
      for (int node : dest_nodes) {
        std::vector<int> dests;
        for (int m : r.dests) {
          if (shape.node(m) == node) dests.push_back(m);
        }
        maker.Add(r.operand, box, r.count, r.sources, dests, dests[0], source_nodes.size() > 1);
      }
    }
  }
}

}  // namespace oneflow_like
