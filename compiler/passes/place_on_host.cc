// Variables in the memory of the host.
// Needs: a lowered, fused graph. Leaves: variables that lie on the host (kOnHost), copies from the host for
// those who read them, and copies to it in place of updates of what they read.
//
// State of an optimizer goes through the device in buckets, in the order in which gradients are ready. A
// bucket begins to come when the updates of the bucket before the last `prefetch` ones have gone, so the
// device holds that many beside the one that is at work. In training in 16 bits the weight itself is such
// state: its narrow copy stays on the device, made anew in each step of a copy that comes in buckets, too.
// Weights that others read are copied for each unit that reads them by gather_weights, as those are that
// ZeRO's third stage gathers. A table whose readers touch few rows (OpDef::chosen) is not copied: kernels
// read and write these rows in the memory of the host.
#include <algorithm>
#include <map>
#include <vector>

#include "compiler/passes/passes.h"

namespace oneflow_like {

namespace {

// Bytes of a bucket of variables, on a rank: so many parts of all, within these bounds.
constexpr double kParts = 16, kLeastBucket = 1 << 20, kMostBucket = 32 << 20;

bool Writes(const Graph& graph, int n, int v) {
  const std::vector<std::pair<int, int>> pairs = graph.InPlace(n);
  return std::any_of(pairs.begin(), pairs.end(),
                     [&](const auto& pair) { return graph.node(n).in[pair.second] == v; });
}

// Whether all who read the variable touch some of its rows alone.
bool IsTableOf(const Graph& graph, const std::vector<int>& readers, int v) {
  const auto touches = [&](int r) {
    const std::vector<int>& in = graph.node(r).in;
    const OpDef* def = graph.catalog().Find(graph.node(r).op);
    return def && !def->chosen.label.empty() && in[0] == v && std::count(in.begin(), in.end(), v) == 1;
  };
  return !readers.empty() && std::all_of(readers.begin(), readers.end(), touches);
}

Node Like(const Node& reader, const char* op, int part) {
  Node node = NodeLike(reader, op);
  node.part = part;
  return node;
}

class HostPlacer {
 public:
  HostPlacer(Graph* graph, const CompileOptions& options)
      : graph_(*graph),
        options_(options),
        offload_(options.decided.offload),
        order_(graph->Order()),
        sizes_(graph->Sizes()) {}

  void Run() {
    readers_ = graph_.Readers();
    position_.assign(graph_.num_nodes(), 0);
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<int>(i);
    FindParts();
    for (int n : order_)
      if (const Node& node = graph_.node(n); node.kind == NodeKind::kVariable && IsLarge(node.out[0]))
        if (offload_.tables && IsTable(node.out[0])) graph_.node(n).attrs.Set(kOnHost, int64_t{1});
    for (int n : order_)
      if (options_.asked.on_host.count(graph_.node(n).name) && graph_.node(n).kind == NodeKind::kVariable)
        graph_.node(n).attrs.Set(kOnHost, int64_t{1});
    PlaceUpdates();
    if (!offload_.weights) CopyForCasts();
    CopyForOthers();
  }

 private:
  bool IsLarge(int v) const {
    return IsFloating(graph_.value(v).dtype) && graph_.value(v).shape.elements() > offload_.small;
  }
  bool OnHost(int v) const { return graph_.OnHost(v); }
  bool Reads(int n, int v) const {
    const std::vector<int>& in = graph_.node(n).in;
    return std::find(in.begin(), in.end(), v) != in.end();
  }

  bool IsTable(int v) const { return IsTableOf(graph_, readers_[v], v); }

  bool IsWeight(const Node& node) const {
    return node.kind == NodeKind::kVariable && node.phase != Phase::kUpdate &&
           node.attrs.Int("frozen", 0) == 0 && node.rate == Rate::kOnce && IsLarge(node.out[0]) &&
           !IsTable(node.out[0]);
  }

  // The casts to a narrower type by which a variable is read in forward and backward passes; none where there
  // are other readers.
  std::vector<int> CastsOf(int v) const {
    std::vector<int> casts;
    for (int r : readers_[v]) {
      const Node& node = graph_.node(r);
      if (node.phase == Phase::kUpdate || node.kind == NodeKind::kFetch || !Reads(r, v)) continue;
      const Value& value = graph_.value(v);
      if (node.op != "cast" || SizeOf(graph_.value(node.out[0]).dtype) >= SizeOf(value.dtype)) return {};
      casts.push_back(r);
    }
    return casts;
  }

  // Whether it goes to the host with the state of its optimizer.
  bool IsState(int v) const {
    const Node& variable = graph_.producer(v);
    if (offload_.optimizer == 0) return false;
    if (variable.phase == Phase::kUpdate) return IsLarge(v) && !IsTable(v);
    return !offload_.weights && IsWeight(variable) && !CastsOf(v).empty();
  }

  double Bytes(int v) const { return PieceBytes(graph_.value(v), sizes_); }

  // Nodes of a bucket are segments of their own.
  void FindParts() {
    for (int n : order_) parts_ = std::max(parts_, graph_.node(n).part + 1);
  }

  // --- Updates ---

  struct Update {
    int node;
    int gradient;               // LastBefore
    std::vector<size_t> state;  // operands that lie on the host from now on
    double bytes = 0;
  };

  // By node, the last one in the order that is of no update and that it waits for, as the gradient of a
  // weight, or with clipping that of the last weight; -1: none.
  std::vector<int> LastBefore() const {
    std::vector<int> last(graph_.num_nodes(), -1);
    const auto later = [&](int a, int b) { return b < 0 || (a >= 0 && position_[a] > position_[b]) ? a : b; };
    for (int n : order_)
      for (int v : graph_.node(n).in) {
        const int p = graph_.value(graph_.BehindViews(v)).producer;
        if (graph_.node(p).kind == NodeKind::kVariable) continue;
        last[n] = later(graph_.node(p).phase == Phase::kUpdate ? last[p] : p, last[n]);
      }
    return last;
  }

  std::vector<Update> FindUpdates() const {
    std::vector<Update> updates;
    const std::vector<int> last = LastBefore();
    for (int n : order_) {
      const OpDef* def = graph_.catalog().Find(graph_.node(n).op);
      if (def == nullptr || def->writes_part || graph_.WritesEach(n)) continue;
      Update update{.node = n, .gradient = last[n]};
      for (auto [out, in] : graph_.InPlace(n)) {
        const int v = graph_.node(n).in[in];
        const Node& variable = graph_.producer(v);
        // A variable that another session has placed on the host is copied for this session's update, too.
        const bool is_there = OnHost(v) && !(offload_.tables && IsTable(v));
        if (is_there || IsState(v) || (offload_.weights && IsWeight(variable))) update.state.push_back(in);
      }
      if (update.state.empty()) continue;
      updates.push_back(std::move(update));
    }
    std::stable_sort(updates.begin(), updates.end(),
                     [&](const Update& a, const Update& b) { return ReadyAt(a) < ReadyAt(b); });
    return updates;
  }

  int ReadyAt(const Update& update) const { return update.gradient < 0 ? -1 : position_[update.gradient]; }

  // Lets the share of state that is asked for go, spread evenly over the updates; what is on the host stays.
  void ChooseShare(std::vector<Update>* updates) const {
    double all = 0, gone = 0;
    for (Update& update : *updates) {
      const Node& node = graph_.node(update.node);
      const auto may_stay = [&](size_t in) { return IsState(node.in[in]) && !OnHost(node.in[in]); };
      double bytes = 0;
      for (size_t in : update.state) bytes += IsState(node.in[in]) ? Bytes(node.in[in]) : 0;
      all += bytes;
      if (gone + bytes / 2 <= offload_.optimizer * all ||
          std::none_of(update.state.begin(), update.state.end(), may_stay))
        gone += bytes;
      else
        std::erase_if(update.state, may_stay);
      for (size_t in : update.state) update.bytes += Bytes(node.in[in]);
    }
    std::erase_if(*updates, [](const Update& update) { return update.state.empty(); });
  }

  // Divides things, which have fields `node` and `bytes`, into buckets by slice; keeps their order.
  template <typename T>
  std::map<Slice, std::vector<std::vector<T>>> InBuckets(const std::vector<T>& things) const {
    std::map<Slice, std::vector<std::vector<T>>> buckets;
    std::map<Slice, double> all, bytes;
    for (const T& thing : things) all[graph_.node(thing.node).slice] += thing.bytes;
    for (const T& thing : things) {
      const Slice& slice = graph_.node(thing.node).slice;
      std::vector<std::vector<T>>& of_slice = buckets[slice];
      const double most = std::clamp(all[slice] / kParts, kLeastBucket, kMostBucket);
      if (of_slice.empty() || bytes[slice] + thing.bytes > most) of_slice.emplace_back(), bytes[slice] = 0;
      bytes[slice] += thing.bytes;
      of_slice.back().push_back(thing);
    }
    return buckets;
  }

  void PlaceUpdates() {
    std::vector<Update> updates = FindUpdates();
    ChooseShare(&updates);
    for (const auto& [slice, of_slice] : InBuckets(updates)) {
      std::vector<std::vector<int>> gone;  // by bucket: its copies to the host
      for (const std::vector<Update>& bucket : of_slice) {
        const int before = static_cast<int>(gone.size()) - offload_.prefetch - 1;
        const int first = of_slice[0][0].gradient;
        const std::vector<int> after = before >= 0  ? gone[before]
                                       : first >= 0 ? std::vector<int>{first}
                                                    : std::vector<int>{};
        gone.push_back(PlaceBucket(bucket, after));
      }
    }
  }

  // Returns the nodes that write the variables.
  std::vector<int> PlaceBucket(const std::vector<Update>& bucket, const std::vector<int>& after) {
    const int part = parts_++;
    std::vector<int> writers;
    for (const Update& update : bucket) {
      graph_.node(update.node).part = part;
      for (size_t in : update.state)
        writers.push_back(PlaceState(update.node, static_cast<int>(in), part, after));
    }
    return writers;
  }

  // Lets operand `in` of an update wait on the host; returns the node that writes it there.
  int PlaceState(int update, int in, int part, const std::vector<int>& after) {
    const int v = graph_.node(update).in[in];
    graph_.node(graph_.value(v).producer).attrs.Set(kOnHost, int64_t{1});
    int out = 0;
    for (auto [o, i] : graph_.InPlace(update))
      if (i == in) out = o;
    if (graph_.node(update).op == "assign") {  // reads nothing of the variable
      graph_.node(update).op = kAssignHost;
      ReadCopies(v, update, part, after);
      for (int r : readers_[graph_.node(update).out[out]])  // of what it assigns, which is on the device
        for (int& operand : graph_.node(r).in)
          if (operand == graph_.node(update).out[out]) operand = graph_.node(update).in[1];
      return update;
    }
    ReadCopies(v, -1, part, after);
    const int made = graph_.node(update).out[out];
    const int id =
        graph_.value(graph_.AddReader(Like(graph_.node(update), kAssignHost, part), v, ".to_host")).producer;
    graph_.node(id).in.push_back(made);
    graph_.node(id).want.push_back(graph_.value(made).sbp);
    return id;
  }

  // Lets all who read variable `v` in the phase of updates read a copy on the device, but for node `writer`.
  void ReadCopies(int v, int writer, int part, const std::vector<int>& after) {
    int copy = -1;
    for (int r : readers_[v]) {
      if (r == writer || graph_.node(r).phase != Phase::kUpdate || graph_.node(r).kind == NodeKind::kFetch)
        continue;
      if (copy < 0) copy = AddFromHost(v, graph_.node(r), part, after);
      for (int& in : graph_.node(r).in)
        if (in == v) in = copy;
    }
  }

  int AddFromHost(int v, const Node& reader, int part, const std::vector<int>& after) {
    Node node = Like(reader, kFromHost, part);
    node.slice = graph_.producer(v).slice;
    node.after = after;
    return graph_.AddReader(std::move(node), v, ".from_host");
  }

  // --- Casts of weights ---

  struct NarrowCopy {
    int node;  // the cast
    double bytes = 0;
  };

  // In the order in which narrow copies are first read.
  void CopyForCasts() {
    std::vector<std::pair<int, NarrowCopy>> sorted;
    for (int n : order_) {
      if (graph_.node(n).kind != NodeKind::kVariable || !OnHost(graph_.node(n).out[0])) continue;
      for (int cast : CastsOf(graph_.node(n).out[0])) {
        int first = static_cast<int>(order_.size());
        for (int r : readers_[graph_.node(cast).out[0]]) first = std::min(first, position_[r]);
        sorted.push_back({first, {cast, Bytes(graph_.node(n).out[0])}});
      }
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<NarrowCopy> copies;
    for (const auto& [first, copy] : sorted) copies.push_back(copy);
    for (const auto& [slice, of_slice] : InBuckets(copies)) {
      std::vector<std::vector<int>> made;  // by bucket
      for (const std::vector<NarrowCopy>& bucket : of_slice) {
        const int before = static_cast<int>(made.size()) - offload_.prefetch - 1;
        const int part = parts_++;
        std::vector<int>& casts = made.emplace_back();
        for (const NarrowCopy& copy : bucket) {
          Node& cast = graph_.node(copy.node);
          cast.part = part;
          const int copied = AddFromHost(cast.in[0], graph_.node(copy.node), part,
                                         before >= 0 ? made[before] : std::vector<int>{});
          graph_.node(copy.node).in[0] = copied;
          casts.push_back(copy.node);
        }
      }
    }
  }

  // --- Other readers ---

  // Forward and backward read one copy of a weight here, which gather_weights repeats for each unit.
  void CopyForOthers() {
    for (int n : order_) {
      if (graph_.node(n).kind != NodeKind::kVariable) continue;
      const int v = graph_.node(n).out[0];
      if (offload_.weights && IsWeight(graph_.node(n))) graph_.node(n).attrs.Set(kOnHost, int64_t{1});
      if (!OnHost(v) || (offload_.tables && IsTable(v))) continue;
      int copies[2] = {-1, -1};
      for (int r : readers_[v]) {
        if (!Reads(r, v) || Writes(graph_, r, v)) continue;
        // Nodes behind a write, for example of a cache, are in the phase of updates.
        int& copy = copies[graph_.node(r).phase == Phase::kUpdate];
        if (copy < 0) copy = AddFromHost(v, graph_.node(r), -1, {});
        for (int& in : graph_.node(r).in)
          if (in == v) in = copy;
      }
    }
  }

  Graph& graph_;
  const CompileOptions& options_;
  const Offload& offload_;
  const std::vector<int> order_, sizes_;
  std::vector<int> position_;  // by node, in the order
  std::vector<std::vector<int>> readers_;
  int parts_ = 0;
};

}  // namespace

void PlaceOnHost(Graph* graph, const CompileOptions& options) {
  const Offload& offload = options.decided.offload;
  if (offload.optimizer > 0 || offload.weights || offload.tables || !options.asked.on_host.empty())
    HostPlacer(graph, options).Run();
}

}  // namespace oneflow_like
