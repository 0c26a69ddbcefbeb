#include "compiler/cost/cost.h"

#include <algorithm>

#include "ops/tf32.h"

namespace oneflow_like {

double SecondsOf(const Machine& machine, const Work& work, DType dtype, bool tf32) {
  // Each byte is read on one side and written on the other.
  if (work.kind == Work::Kind::kHostCopy)
    return machine.host.latency + work.bytes / 2 / machine.host.bandwidth;
  const Efficiency& e = machine.efficiency;
  double flops = work.flops;
  if (flops > 0 && work.kind != Work::Kind::kOther) {
    // The smallest of the extents m, n and k of a product: all of them together over the largest operand.
    const double extent = flops / 2 / std::max(1.0, work.largest);
    flops *= (1 + e.half_extent / extent) / (work.kind == Work::Kind::kAttention ? e.attention : e.product);
  }
  return flops / machine.FlopsOf(dtype, tf32) + work.bytes / machine.topology.memory_bandwidth;
}

DType RateType(const Graph& graph, const Node& node) {
  DType type = DType::kFloat32;
  for (int v : node.in) type = NarrowerFloat(type, graph.value(v).dtype);
  return type;
}

double SecondsOf(const Machine& machine, const Work& work, const Graph& graph, const Node& node) {
  return SecondsOf(machine, work, RateType(graph, node), MayRoundToTf32(node.attrs));
}

int ActsOf(const Graph& graph, const Node& node) {
  bool each = node.rate == Rate::kEachAct;
  if (node.rate == Rate::kRemade)  // of a part of the batch
    for (const NdSbp& want : node.want) each = each || (!want.empty() && want[0].is_split());
  return each ? graph.times() : 1;
}

// --- LocalWork ---

LocalWork::LocalWork(const Graph& graph, int n, BoundRule rule)
    : def_(graph.catalog().Find(graph.node(n).op)), rule_(std::move(rule)) {
  SetNode(graph, n);
  // Of a merged axis the outermost label longer than 1 is the one that can be cut: it comes first from here
  // on.
  for (auto* operands : {&rule_.in, &rule_.out})
    for (BoundRule::Operand& operand : *operands)
      for (BoundRule::Axis& axis : operand.axes)
        while (axis.labels.size() > 1 && rule_.extents.at(axis.labels[0]) == 1)
          axis.labels.erase(axis.labels.begin());
}

void LocalWork::SetNode(const Graph& graph, int n) {
  if (def_ && def_->flops_of) flops_ = def_->flops_of(graph.node(n).attrs);
  element_bytes_.clear();
  for (const auto* values : {&graph.node(n).in, &graph.node(n).out})
    for (int v : *values) element_bytes_.push_back(SizeOf(graph.value(v).dtype));
}

void LocalWork::Change(int64_t* what, int64_t value) {
  if (*what == value) return;
  changed_.push_back({what, *what});
  *what = value;
}

void LocalWork::Undo() {
  for (; !changed_.empty(); changed_.pop_back()) *changed_.back().first = changed_.back().second;
}

void LocalWork::CutOperand(BoundRule::Operand* operand, const Sbp& sbp, int64_t parts, int64_t index) {
  if (!sbp.is_split()) return;
  int64_t* extent = &operand->shape[sbp.axis];
  Change(extent, oneflow_like::Cut({0, *extent}, parts, index, sbp.grain).extent);
  const std::vector<std::string>& labels = operand->axes[sbp.axis].labels;
  if (labels.empty()) return;
  int64_t inner = 1;
  for (size_t l = 1; l < labels.size(); ++l) inner *= rule_.extents.at(labels[l]);
  if (inner > 0) Change(&rule_.extents.at(labels[0]), (*extent + inner - 1) / inner);
}

void LocalWork::Cut(const std::vector<Sbp>& in, const std::vector<Sbp>& out, int64_t parts, int64_t index) {
  if (parts == 1) return;
  for (size_t i = 0; i < rule_.in.size(); ++i) CutOperand(&rule_.in[i], in[i], parts, index);
  for (size_t i = 0; i < rule_.out.size(); ++i) CutOperand(&rule_.out[i], out[i], parts, index);
}

// Elements of an operand that are read or written: of OpDef::chosen no more parts than there are ids that an
// element of the operand's other axes meets.
double LocalWork::Touched(const BoundRule::Operand& operand) const {
  const auto elements = static_cast<double>(operand.shape.elements());
  const auto of = [](const BoundRule::Operand& o, const std::string& label) {
    const auto has = [&](const BoundRule::Axis& axis) {
      return std::find(axis.labels.begin(), axis.labels.end(), label) != axis.labels.end();
    };
    return std::find_if(o.axes.begin(), o.axes.end(), has) - o.axes.begin();
  };
  const auto cut = of(operand, def_->chosen.label);
  if (cut == std::ssize(operand.axes) || elements == 0) return elements;
  double ids = 1;
  for (const BoundRule::Operand& by : rule_.in)
    for (size_t a = 0; by.name == def_->chosen.by && a < by.axes.size(); ++a) {
      const std::vector<std::string>& labels = by.axes[a].labels;
      if (labels.empty() || of(operand, labels[0]) == std::ssize(operand.axes))
        ids *= static_cast<double>(by.shape[static_cast<int>(a)]);
    }
  const auto parts = static_cast<double>(operand.shape[static_cast<int>(cut)]);
  return elements / parts * std::min(parts, ids);
}

Work LocalWork::work() const {
  Work work;
  if (def_ == nullptr || def_->view) return work;
  work.calls = 1;
  work.flops = flops_ ? flops_(rule_) : def_->flops ? def_->flops(rule_) : rule_.Volume();
  work.kind = KindOfWork(def_->category);
  size_t i = 0;
  for (const auto* operands : {&rule_.in, &rule_.out})
    for (const BoundRule::Operand& operand : *operands) {
      if (work.kind == Work::Kind::kHostCopy) {  // of assign_host the variable is not read
        work.bytes = 2.0 * static_cast<double>(rule_.out[0].shape.elements()) * element_bytes_.back();
        return work;
      }
      const bool in_part = !def_->chosen.label.empty() && (operands == &rule_.in || !def_->inplace.empty());
      const double elements = in_part ? Touched(operand) : static_cast<double>(operand.shape.elements());
      work.bytes += elements * element_bytes_[i++];
      work.largest = std::max(work.largest, elements);
    }
  return work;
}

// --- CostModel ---

Work CostModel::BoxingAt(const Node& node, const std::vector<int>& coords) const {
  Work work = {.calls = 1};
  for (const auto* values : {&node.in, &node.out})
    for (int v : *values) {
      const Value& value = graph_.value(v);
      // Of the whole that a time_gather makes, an act writes the part that it reads.
      const NdSbp& sbp = node.primitive == Primitive::kTimeGather ? node.want[0] : value.sbp;
      work.bytes +=
          static_cast<double>(LocalBox(value.shape, sbp, sizes_, coords).elements()) * SizeOf(value.dtype);
    }
  return work;
}

Work CostModel::PieceAt(const Node& node, LocalWork* whole, const std::vector<int>& coords) const {
  std::vector<Sbp> in(node.in.size()), out(node.out.size());
  for (size_t e = 0; e < sizes_.size(); ++e) {
    if (sizes_[e] == 1 || (e > 0 && node.slice.fixed[e - 1] != Slice::kFree)) continue;
    for (size_t i = 0; i < in.size(); ++i) in[i] = node.want[i][e];
    for (size_t i = 0; i < out.size(); ++i) out[i] = graph_.value(node.out[i]).sbp[e];
    whole->Cut(in, out, sizes_[e], coords[e]);
  }
  Work work = whole->work();
  if (SumsOverTime(node))  // the sum so far is read as well
    work.bytes += static_cast<double>(whole->out(0).elements() * SizeOf(graph_.value(node.out[0]).dtype));
  whole->Undo();
  return work;
}

LocalWork* CostModel::WholeOf(int n) {
  const BoundRule& rule = graph_.RuleOf(n);
  const auto known = whole_.find(&rule);
  if (known == whole_.end()) return &whole_.try_emplace(&rule, graph_, n, rule).first->second;
  known->second.SetNode(graph_, n);
  return &known->second;
}

Work CostModel::WorkAt(int n, const std::vector<int>& coords) {
  const Node& node = graph_.node(n);
  if (IsEnd(node)) return {};
  if (graph_.catalog().Find(node.op) == nullptr) return BoxingAt(node, coords);
  return PieceAt(node, WholeOf(n), coords);
}

Work CostModel::WorkOfStep(int n, const std::vector<int>& mesh_coords) {
  const Node& node = graph_.node(n);
  if (IsEnd(node)) return {};
  const bool boxing = graph_.catalog().Find(node.op) == nullptr;
  LocalWork* const whole = boxing ? nullptr : WholeOf(n);
  std::vector<int> coords(1, 0);
  coords.insert(coords.end(), mesh_coords.begin(), mesh_coords.end());
  auto act = [&](int t) {
    coords[0] = t;
    return boxing ? BoxingAt(node, coords) : PieceAt(node, whole, coords);
  };
  const int acts = ActsOf(graph_, node);
  Work first = act(0);
  // Pieces of later acts are no larger: where the last is like the first, all are.
  Work last = acts > 1 ? act(acts - 1) : first;
  if (first.flops == last.flops && first.bytes == last.bytes)
    return {.calls = acts * first.calls, .flops = acts * first.flops, .bytes = acts * first.bytes};
  Work step = {
      .calls = acts * first.calls, .flops = first.flops + last.flops, .bytes = first.bytes + last.bytes};
  for (int t = 1; t + 1 < acts; ++t) {
    Work between = act(t);
    step.flops += between.flops;
    step.bytes += between.bytes;
  }
  return step;
}

double CostModel::Seconds(int n) {
  const Node& node = graph_.node(n);
  if (IsEnd(node)) return 0;
  if (IsCollective(node)) return Boxing(n).seconds / ActsOf(graph_, node);
  Work work = WorkAt(n, std::vector<int>(1 + graph_.mesh().rank(), 0));
  return SecondsOf(machine_, work, graph_, node) + machine_.overhead;
}

BoxingCost CostModel::Boxing(int n) const {
  const Node& node = graph_.node(n);
  BoxingCost all;
  for (size_t i = 0; i < node.out.size(); ++i) {
    const Value& v = graph_.value(node.in[i]);
    auto cost = [&](size_t element_bytes) {
      return CostOfBoxingStep(graph_.mesh(), graph_.times(), v.shape, static_cast<int64_t>(element_bytes),
                              graph_.LayoutOf(node.in[i]), graph_.LayoutOf(node.out[i]), machine_.topology);
    };
    BoxingCost one = cost(SizeOf(v.dtype));
    if (const double share = ShareMoved(node); share < 1) {
      const double latency = cost(0).seconds;
      one = {.seconds = latency + (one.seconds - latency) * share, .moved = one.moved * share};
    }
    all.moved += one.moved;
    all.seconds += one.seconds - (i == 0 ? 0 : cost(0).seconds);  // the latency of a message once
  }
  return all;
}

}  // namespace oneflow_like
