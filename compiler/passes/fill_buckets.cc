// Small collectives travel together.
// Needs: a lowered graph. Leaves: gathers of weights, and sums of gradients on their way to updates, that are
// of one kind, group and type, as one collective of several operands, up to `bucket_bytes` of what a rank
// holds of them. With ZeRO's second and third stage a bucket is of one region, so that it holds up no other.
//
// Joining makes no cycle. A value computed from variables alone has a depth: the collectives on the
// longest path to it. A path between two of these never leaves them, but for gathers that wait for a unit
// (Node::after), and those of a bucket wait for the same. A value followed by updates, casts of gradients and
// sums over micro-batches alone has a distance: the collectives on the longest path from it; a path from it
// never leaves these. So along a path between buckets of one sort depth grows, or distance shrinks, and
// members of a bucket have the same.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

// Members of a bucket have these in common.
using BucketKey = std::tuple<std::string,        // operation, mesh axes, time, fold
                             Slice, DType,       //
                             Phase, Rate,        //
                             int,                // depth, or less than 0: distance
                             bool,               // all ranks have pieces of one size, which libraries want
                             std::string,        // region
                             std::vector<int>>;  // what it, or what it is made of, comes after

class BucketFiller {
 public:
  BucketFiller(Graph* graph, const CompileOptions& options)
      : graph_(*graph),
        most_(options.decided.bucket.value_or(0)),
        of_regions_(options.decided.zero >= 2),
        order_(graph->Order()),
        sizes_(graph->Sizes()) {}

  void Run() {
    FindDepths();
    FindDistances();
    std::map<BucketKey, Bucket> open;
    std::map<BucketKey, int64_t> all;
    for (int n : order_)
      if (Joins(n)) all[KeyOf(n)] += BytesOf(n);
    for (int n : order_) {
      if (!Joins(n)) continue;
      const BucketKey key = KeyOf(n);
      Bucket& bucket = open[key];
      const int64_t bytes = BytesOf(n);
      if (bucket.bytes + bytes > MostBytes(all[key])) Close(&bucket);
      bucket.members.push_back(n);
      bucket.bytes += bytes;
    }
    for (auto& [key, bucket] : open) Close(&bucket);
    for (int n = 0; n < graph_.num_nodes(); ++n)
      for (int& before : graph_.node(n).after)
        if (auto joined = bucket_of_.find(before); joined != bucket_of_.end()) before = joined->second;
  }

 private:
  struct Bucket {
    std::vector<int> members;
    int64_t bytes = 0;
  };

  bool Joins(int n) const {
    const Node& node = graph_.node(n);
    return IsCollective(node) && CountsOf(node) < 0 && graph_.producer(node.in[0]).slice == node.slice &&
           (depth_[n] != 0 || distance_[n] != 0);
  }

  // Of a model with layers, what all of them send goes in several buckets, so that the first are on their way
  // while the last are computed; but for what takes no time.
  int64_t MostBytes(int64_t all) const {
    constexpr int64_t kParts = 8, kLittle = 1 << 18;
    const bool layers = graph_.regions().all().size() > 1;
    return layers ? std::min(most_, std::max(kLittle, all / kParts)) : most_;
  }

  void FindDepths() {
    depth_.assign(graph_.num_nodes(), 0);
    waits_.assign(graph_.num_nodes(), {});
    std::vector<bool> of_variables(graph_.num_nodes(), false);
    for (int n : order_) {
      const Node& node = graph_.node(n);
      of_variables[n] = node.kind == NodeKind::kVariable;
      if (IsEnd(node) || node.in.empty() || node.phase == Phase::kUpdate) continue;
      int depth = 0;
      of_variables[n] = true;
      std::set<int> waits(node.after.begin(), node.after.end());
      for (int v : node.in) {
        const int p = graph_.value(v).producer;
        of_variables[n] = of_variables[n] && of_variables[p];
        depth = std::max(depth, depth_[p]);
        waits.insert(waits_[p].begin(), waits_[p].end());
      }
      if (!of_variables[n]) continue;
      depth_[n] = depth + IsCollective(node);
      waits_[n] = std::move(waits);
    }
  }

  // Only of nodes with nothing but updates and sums behind them.
  void FindDistances() {
    distance_.assign(graph_.num_nodes(), 0);
    std::vector<bool> leads_on(graph_.num_nodes(), false);
    std::vector<int> behind(graph_.num_nodes(), 0);  // longest path from what reads it
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
      const Node& node = graph_.node(*it);
      const bool on_its_way = node.phase == Phase::kUpdate || IsCollective(node) || IsLocalBoxing(node) ||
                              IsCastForSum(node) || node.kind == NodeKind::kFetch || graph_.IsView(*it);
      leads_on[*it] = leads_on[*it] || !on_its_way;
      const int distance = behind[*it] + IsCollective(node);
      if (IsCollective(node) && !leads_on[*it]) distance_[*it] = distance;
      auto tell = [&](int before) {
        leads_on[before] = leads_on[before] || leads_on[*it];
        behind[before] = std::max(behind[before], distance);
      };
      for (int v : node.in) tell(graph_.value(v).producer);
      for (int before : node.after) tell(before);
    }
  }

  BucketKey KeyOf(int n) const {
    const Node& node = graph_.node(n);
    const Value& in = graph_.value(node.in[0]);
    std::string how = Cat(node.op, " ", node.attrs.str(), " ", in.sbp[0].str());
    for (const Sbp& s : in.sbp)
      if (s.is_partial()) how += Cat(" ", Name(s.fold));
    // A weight gathered once for many micro-batches holds up none of their layers.
    const bool by_region = of_regions_ && (node.rate != Rate::kOnce || graph_.times() == 1);
    // A gather in several steps waits in the first.
    std::vector<int> after(node.after);
    if (depth_[n] > 0) after.assign(waits_[n].begin(), waits_[n].end());
    std::sort(after.begin(), after.end());
    return {how,
            node.slice,
            in.dtype,
            node.phase,
            node.rate,
            depth_[n] > 0 ? depth_[n] : -distance_[n],
            IsEven(n),
            by_region ? graph_.regions().Of(node.name) : "",
            std::move(after)};
  }

  bool IsEven(int n) const {
    const Node& node = graph_.node(n);
    for (int v : {node.in[0], node.out[0]}) {
      const Value& value = graph_.value(v);
      std::vector<int> last(sizes_);
      for (int& coord : last) --coord;
      if (Largest(v) != LocalBox(value.shape, value.sbp, sizes_, last).elements()) return false;
    }
    return true;
  }

  int64_t Largest(int v) const {
    return LargestPiece(graph_.value(v).shape, graph_.value(v).sbp, sizes_).elements();
  }

  int64_t BytesOf(int n) const {
    const Node& node = graph_.node(n);
    return std::max(Largest(node.in[0]), Largest(node.out[0])) *
           static_cast<int64_t>(SizeOf(graph_.value(node.in[0]).dtype));
  }

  // One node in place of the members, whose values stay what they are.
  void Close(Bucket* bucket) {
    const std::vector<int> members = std::move(bucket->members);
    *bucket = Bucket();
    if (members.size() < 2) return;
    Node joined = graph_.node(members[0]);
    joined.name = graph_.UniqueName(Cat(joined.name, "+", members.size() - 1));
    joined.in.clear();
    joined.out.clear();
    joined.want.clear();
    const int id = graph_.AddRaw(std::move(joined), {});
    for (int n : members) {
      const Node member = graph_.node(n);
      Node& all = graph_.node(id);
      all.in.push_back(member.in[0]);
      all.want.push_back(member.want[0]);
      graph_.value(member.out[0]).producer = id;
      graph_.value(member.out[0]).output = static_cast<int>(all.out.size());
      all.out.push_back(member.out[0]);
      bucket_of_[n] = id;
      graph_.Remove(n);
    }
  }

  Graph& graph_;
  const int64_t most_;     // bytes of a bucket
  const bool of_regions_;  // gradients and weights are sent for each region
  const std::vector<int> order_;
  const std::vector<int> sizes_;
  std::vector<int> depth_, distance_;  // by node; 0: neither
  std::vector<std::set<int>> waits_;   // by node with a depth: what it comes after, and what it is made of
  std::map<int, int> bucket_of_;       // nodes that were joined
};

}  // namespace

void FillBuckets(Graph* graph, const CompileOptions& options) {
  if (options.decided.bucket.value_or(0) > 0) BucketFiller(graph, options).Run();
}

}  // namespace oneflow_like
