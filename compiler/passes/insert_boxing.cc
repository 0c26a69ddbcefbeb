// Boxing on every edge whose two ends disagree.
// Needs: signatures. Leaves: every node reads exactly what it wants; one boxing for all readers of a value
// that want the same; each knows why it is there. An update whose result differs from its variable cannot
// arise: its signature is the variable's. A fetch of what differs between micro-batches reads a copy of the
// last one's. Gradients whose sum is to be made in 16 bits (IsCastForSum) are rounded once a rank has added
// up its own terms, or each micro-batch's, and are fp32 again behind the boxing that sums them over ranks.
//
// `exchange` says of a value's rows how many count. None of these nodes is left: their readers read what they
// read, and where that is boxed within a stage the boxing reads the counts, too, which all ranks then have.
#include <map>
#include <optional>

#include "compiler/graph/text.h"
#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"
#include "core/formatted.h"

namespace oneflow_like {

namespace {

std::string Megabytes(double bytes) { return Formatted("%.3g MB", bytes / 1e6); }

class Inserter {
 public:
  Inserter(Graph* graph, const CompileOptions& options)
      : graph_(*graph),
        decided_(options.decided),
        zero_axes_(ZeroAxes(decided_)),
        reduce_axes_(decided_.mesh.FindAxes(decided_.reduce_axis)),
        sizes_(graph->Sizes()) {}

  void Run() {
    for (int n : graph_.Order()) {
      for (size_t i = 0; i < graph_.node(n).in.size(); ++i) {
        int v = graph_.node(n).in[i];
        std::optional<Counts> counts;
        if (const auto counted = counted_.find(v); counted != counted_.end()) {
          v = counted->second.rows;
          if (graph_.node(n).kind != NodeKind::kFetch) counts = counted->second;
        }
        if (const auto sum = sums_.find(v); sum != sums_.end()) v = sum->second;
        if (const NdSbp part = ScatteredFirst(v, n, i); !part.empty()) {
          v = Summed(v, n, graph_.producer(v).slice, part, graph_.producer(v).phase);
          counts.reset();
        }
        // A gradient that is combined for the update belongs to the update; else boxing goes with its reader.
        if (graph_.node(n).kind == NodeKind::kFetch && graph_.Remade(v)) v = LastOf(v);
        const Node& reader = graph_.node(n);
        if (IsExchange(reader)) continue;
        v = counts ? Exchanged(*counts, n, i) : Summed(v, n, reader.slice, reader.want[i], reader.phase);
        graph_.node(n).in[i] = v;
      }
      if (IsExchange(graph_.node(n))) {
        const Node& exchange = graph_.node(n);
        const auto again = counted_.find(exchange.in[0]);
        counted_[exchange.out[0]] = {again == counted_.end() ? exchange.in[0] : again->second.rows,
                                     exchange.in[1], exchange.want[0][0], exchange.want[1][0],
                                     exchange.attrs.Float("share")};
        graph_.Remove(n);
      }
      if (!IsCastForSum(graph_.node(n))) continue;
      sums_[graph_.node(n).out[0]] = graph_.node(n).in[0];
      graph_.Remove(n);
    }
  }

 private:
  // The operands of an exchange, rows and their counts, with the entries of their signatures for time.
  struct Counts {
    int rows, counts;
    Sbp time, time_of_counts;
    double share;  // of the rows that are expected
  };
  static bool IsExchange(const Node& node) { return node.op == "exchange"; }

  // The last micro-batch's of a value that each has its own of.
  int LastOf(int v) {
    auto [it, fresh] = last_.try_emplace(v, -1);
    if (!fresh) return it->second;
    const Value value = graph_.value(v);
    const Node from = graph_.producer(v);
    Node node = NodeLike(from, "copy");
    node.attrs.Set("last", int64_t{1});
    if (from.kind == NodeKind::kVariable) node.phase = Phase::kForward;
    node.why = Cat(value.name, " of the last micro-batch, for an output");
    it->second = graph_.AddReader(std::move(node), v, ".last", value.dtype, value.sbp);
    return it->second;
  }

  // With ZeRO's second stage the signature in which each micro-batch's part of a gradient is added up, cut
  // before it is; empty for other values.
  NdSbp ScatteredFirst(int v, int n, size_t i) const {
    const Value& value = graph_.value(v);
    const NdSbp& want = graph_.node(n).want[i];
    if (decided_.zero < 2 || graph_.times() == 1) return {};
    if (!value.sbp[0].is_partial() || !want[0].is_broadcast()) return {};
    NdSbp part = value.sbp;
    for (int axis : zero_axes_)
      if (part[1 + axis].is_partial() && want[1 + axis].is_split()) part[1 + axis] = want[1 + axis];
    return part == value.sbp ? NdSbp() : part;
  }

  // The signature that a value gets for a reader that wants `want`. Where grains change no cut point, as
  // between the axis of a view and what it was merged of, it keeps its own.
  NdSbp Target(const Value& value, const NdSbp& want) const {
    const NdSbp have = Plain(value.shape, value.sbp, sizes_), plain = Plain(value.shape, want, sizes_);
    NdSbp target = plain;
    if (have[0] == plain[0]) target[0] = value.sbp[0];
    NdSbp all = target;
    for (size_t e = 1; e < all.size(); ++e)
      if (have[e] == plain[e]) all[e] = value.sbp[e];
    return Plain(value.shape, all, sizes_) == plain ? all : target;
  }

  // Whether reading the value so sums a gradient's terms over ranks that are to be sent in another type.
  bool SumsNarrow(int v, int n, const NdSbp& want) const {
    if (!IsCastForSum(graph_.node(n))) return false;
    const NdSbp& have = graph_.value(v).sbp;
    const Slice& slice = graph_.producer(v).slice;
    for (size_t e = 1; e < have.size(); ++e)
      if (Narrows(e) && sizes_[e] > 1 && slice.fixed[e - 1] == Slice::kFree && have[e] == P() &&
          !want[e].is_partial())
        return true;
    return false;
  }

  // Whether terms along the axis of an entry are sent in another type.
  bool Narrows(size_t entry) const {
    return reduce_axes_.empty() || HasAxis(reduce_axes_, static_cast<int>(entry) - 1);
  }

  // Boxed; of a gradient whose terms are sent in another type with casts around it.
  int Summed(int v, int n, Slice slice, NdSbp want, Phase phase) {
    if (!SumsNarrow(v, n, want)) return Boxed(v, n, slice, want, phase);
    const Node from = graph_.producer(v);
    // Sums along other axes, and over micro-batches, come first.
    NdSbp own = graph_.value(v).sbp;
    for (size_t e = 1; e < own.size(); ++e)
      if (!Narrows(e)) own[e] = want[e];
    if (want[0].is_broadcast()) own[0] = B();
    v = Boxed(v, n, from.slice, own, from.phase);
    v = Cast(v, n, *decided_.reduce_dtype, from.phase);
    v = Boxed(v, n, slice, want, phase);
    return Cast(v, n, DType::kFloat32, phase);
  }

  int Cast(int v, int n, DType to, Phase phase) {
    auto [it, fresh] = cast_.try_emplace({v, to}, -1);
    if (!fresh) return it->second;
    const Value value = graph_.value(v);
    Node node;
    node.op = "cast";
    node.attrs = {{"dtype", std::string(Name(to))}, {kTerms, int64_t{1}}};
    node.slice = graph_.producer(v).slice;
    node.phase = phase;
    node.line = graph_.node(n).line;
    node.why = Cat("cast ", value.name, ": ", Name(value.dtype), "→", Name(to), ", around the sum for ",
                   graph_.Describe(n));
    it->second = graph_.AddReader(std::move(node), v, Cat(".", Name(to)), to, value.sbp);
    return it->second;
  }

  // Returns what operand `i` of node `n` reads in place of an exchange: the rows themselves, behind a boxing
  // that moves only those that count.
  int Exchanged(const Counts& of, int n, size_t i) {
    const Node reader = graph_.node(n);
    const NdSbp& have = graph_.value(of.rows).sbp;
    const Slice slice = graph_.producer(of.rows).slice;
    // Counts are those of the micro-batch that is moved.
    const bool same_time = have[0] == of.time && reader.want[i][0] == of.time;
    if (slice != reader.slice || !same_time)
      return Boxed(of.rows, n, reader.slice, reader.want[i], reader.phase);
    return Boxed(of.rows, n, slice, reader.want[i], reader.phase, &of);
  }

  int Boxed(int v, int n, const Slice& slice, NdSbp want, Phase phase, const Counts* counts = nullptr) {
    const Value value = graph_.value(v);
    const Slice from = graph_.producer(v).slice;
    if (want != value.sbp) want = Target(value, want);
    if (want == value.sbp && from == slice) return v;
    std::vector<std::string> key;
    for (const Sbp& s : want) key.push_back(s.str());
    auto [it, fresh] = boxed_.try_emplace({v, slice, key}, -1);
    if (!fresh) {
      // Also where a gradient's reader came to it first.
      if (phase == Phase::kForward) graph_.node(graph_.value(it->second).producer).phase = phase;
      return it->second;
    }
    Node node;
    node.op = "boxing";
    node.slice = slice;
    node.phase = phase;
    node.line = graph_.node(n).line;
    node.why = Cat("boxing ", value.name, ": ", SbpText(graph_, from, value.sbp), " -> ",
                   SbpText(graph_, slice, want), ", ",
                   Megabytes(value.shape.elements() * double(SizeOf(value.dtype))), ", wanted by ",
                   graph_.Describe(n));
    const int result = graph_.AddReader(std::move(node), v, ".b", value.dtype, want);
    it->second = result;
    if (counts != nullptr) {
      NdSbp everywhere(want.size(), B());
      everywhere[0] = counts->time_of_counts;
      const Phase made = graph_.producer(counts->counts).phase;
      const int known = Boxed(counts->counts, n, from, everywhere, made);
      Node& boxing = graph_.node(graph_.value(result).producer);
      boxing.in.push_back(known);
      boxing.want.push_back(graph_.value(known).sbp);
      boxing.attrs.Set("share", counts->share);
    }
    return result;
  }

  Graph& graph_;
  const Decisions& decided_;
  const MeshAxes zero_axes_, reduce_axes_;
  const std::vector<int> sizes_;
  std::map<int, Counts> counted_;              // results of exchanges
  std::map<int, int> last_;                    // of values
  std::map<int, int> sums_;                    // in place of what casts for sums gave
  std::map<std::pair<int, DType>, int> cast_;  // of values
  std::map<std::tuple<int, Slice, std::vector<std::string>>, int> boxed_;
};

}  // namespace

void InsertBoxing(Graph* graph, const CompileOptions& options) { Inserter(graph, options).Run(); }

}  // namespace oneflow_like
