// Compiles a model of a few blocks, on dp ranks that have micro-batches of the size in question, and sorts
// kernels, variables and buffers of its first rank by the part of the model that they belong to.
#include "oneflow_like/planner/plan_parts.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "compiler/cost/kernel_cost.h"
#include "compiler/explain.h"
#include "compiler/graph/training.h"
#include "core/plan/plan_values.h"
#include "oneflow_like/model/placement.h"
#include "oneflow_like/session/session_impl.h"
#include "oneflow_like/session/summary.h"

namespace oneflow_like {
namespace {

constexpr int64_t kBlocksMeasured = 2;
constexpr double PartAmounts::*kPartAmounts[] = {
    &PartAmounts::forward,   &PartAmounts::backward, &PartAmounts::update,
    &PartAmounts::weights,   &PartAmounts::state,    &PartAmounts::narrow,
    &PartAmounts::gradients, &PartAmounts::stash,    &PartAmounts::late};

class PartsOfPlan {
 public:
  PartsOfPlan(const Session::Impl& session, const Machine& machine)
      : session_(session),
        compiled_(session.compiled),
        graph_(session.compiled.graph),
        machine_(machine),
        tp_(graph_.mesh().AxisOrFail("tp", "a plan")) {}

  ModelParts Measure() {
    for (const BlockStack& stack : session_.model->graph.stacks) {
      parts_.block.emplace_back();
      parts_.blocks.push_back(stack.of);
    }
    FindPositions();
    made_ = PlanOf(compiled_, 0, PlanDetail::kOutline);
    AddKernels();
    AddVariables();
    AddBuffers();
    FindBoundary();
    for (size_t k = 0; k < parts_.block.size(); ++k)
      Divide(&parts_.block[k], static_cast<double>(session_.model->graph.stacks[k].blocks.size()));
    parts_.plan_hash = HashOf(made_.plan);
    if (made_.plan.device_kind() == "cuda") {
      const RankSummary summary = SummaryOf(session_, 0);  // whose communicators are of another mesh
      parts_.besides = static_cast<double>(summary.library_bytes - summary.communicator_bytes);
    }
    return std::move(parts_);
  }

 private:
  // The stack whose block a node stands in; -1: none.
  int StackOf(const Node& node) const {
    const std::vector<BlockStack>& stacks = session_.model->graph.stacks;
    for (size_t k = 0; k < stacks.size(); ++k)
      for (const BlockStack::Block& block : stacks[k].blocks)
        if (Within(block.path, node.name)) return static_cast<int>(k);
    return -1;
  }

  // Where nodes stand beside all blocks: gradients come in the opposite order.
  void FindPositions() {
    const std::vector<int> order = graph_.Order();
    part_.assign(graph_.num_nodes(), nullptr);
    bool forward_begun = false, backward_begun = false;
    for (int n : order) {
      const Node& node = graph_.node(n);
      const int stack = StackOf(node);
      const bool gradient = IsGradient(node.phase);
      if (stack >= 0) {
        part_[n] = &parts_.block[stack];
        (gradient ? backward_begun : forward_begun) |= node.kind == NodeKind::kOperator || IsCollective(node);
      } else {
        part_[n] = (gradient ? backward_begun : !forward_begun) ? &parts_.before : &parts_.after;
      }
      by_name_[node.name] = n;
    }
    // A variable and its update stand where it is first read.
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      const Node& node = graph_.node(*it);
      if (node.phase != Phase::kForward || StackOf(node) >= 0) continue;
      for (int v : node.in)
        if (const Node& from = graph_.producer(v); from.kind == NodeKind::kVariable && StackOf(from) < 0)
          part_[graph_.value(v).producer] = part_[*it];
    }
  }

  PartOfModel* PartOf(const std::string& node) {
    const auto at = by_name_.find(node);
    return at == by_name_.end() ? &parts_.after : part_[at->second];
  }

  void AddKernels() {
    for (const plan::Actor& actor : made_.plan.actor()) {
      if (actor.has_collective()) {
        for (const plan::Kernel& kernel : actor.kernel()) AddMessage(kernel.node());
        continue;
      }
      for (const plan::Kernel& kernel : actor.kernel()) {
        PartOfModel* part = PartOf(kernel.node());
        const auto at = by_name_.find(kernel.node());
        const Phase phase = at == by_name_.end() ? Phase::kForward : graph_.node(at->second).phase;
        const bool once = phase == Phase::kUpdate || (actor.acts() == 1 && graph_.times() > 1);
        double* seconds = once ? &part->update : phase == Phase::kForward ? &part->forward : &part->backward;
        *seconds += SecondsOf(machine_, kernel);
      }
    }
  }

  // Those over tp alone: what dp ranks exchange depends on how many they are.
  void AddMessage(const std::string& name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return;
    const Node& node = graph_.node(at->second);
    if (node.phase == Phase::kUpdate) return;
    for (size_t i = 0; i < node.out.size(); ++i) {
      const NdSbp &from = graph_.value(node.in[i]).sbp, &to = graph_.value(node.out[i]).sbp;
      bool others = false;
      for (size_t e = 0; e < from.size(); ++e)
        others = others || (static_cast<int>(e) != 1 + tp_ && from[e] != to[e]);
      if (others || from[1 + tp_] == to[1 + tp_]) continue;
      NdSbp outside = from;
      outside[1 + tp_] = B();
      const Value& value = graph_.value(node.in[i]);
      const PartMessage message = {LargestPiece(value.shape, outside, graph_.Sizes()),
                                   static_cast<int>(SizeOf(value.dtype)), from[1 + tp_], to[1 + tp_]};
      part_[at->second]->messages[IsGradient(node.phase) ? 1 : 0][message] += 1;
    }
  }

  void AddVariables() {
    const std::map<std::string, Purpose> purposes = PurposesOfVariables(compiled_, PurposesOf(compiled_));
    std::set<std::string> written;
    for (const LogicalBuffer& b : compiled_.logical.buffers)
      if (b.writer >= 0) written.insert(b.variable);
    for (const plan::Variable& v : made_.plan.variable()) {
      const double bytes = static_cast<double>(v.bytes());
      PartOfModel* part = PartOf(WeightOf(v.name()));
      const bool is_weight = purposes.at(v.name()) == Purpose::kWeights;
      if (!IsOnHost(v)) (is_weight ? part->weights : part->state) += bytes;
      if (is_weight && written.count(v.name())) part->gradients += bytes;
    }
  }

  // Buffers that products read which make gradients of weights.
  std::set<int> ReadForWeights() const {
    std::set<int> buffers;
    const std::vector<bool> for_updates = ForUpdates(graph_);
    for (int n : graph_.Order())
      for (int v : graph_.node(n).in)
        if (for_updates[n] && graph_.IsHeavy(n)) buffers.insert(compiled_.logical.buffer_of[v]);
    return buffers;
  }

  void AddBuffers() {
    const std::vector<Purpose> purposes = PurposesOf(compiled_);
    const std::set<int> for_weights = ReadForWeights();
    for (const plan::Buffer& b : made_.plan.buffer()) {
      const LogicalBuffer& logical = compiled_.logical.buffers[b.id()];
      const Purpose purpose = purposes[b.id()];
      if (!logical.variable.empty() || logical.writer < 0) continue;
      PartOfModel* part = part_[graph_.value(logical.value).producer];
      const double bytes = static_cast<double>(b.slot_bytes());
      const bool late = for_weights.count(b.id()) > 0;
      if (purpose == Purpose::kStash) part->stash += bytes;
      if (purpose == Purpose::kStash && !late) part->late -= bytes;
      if (purpose == Purpose::kOther && late) part->late += bytes;
      if (purpose == Purpose::kNarrowCopies) part->narrow += bytes;
    }
    for (auto [buffer, bytes] : made_.at_peak)
      if (buffer == kScratch || purposes[buffer] == Purpose::kOther)
        parts_.working += static_cast<double>(bytes);
    double held = 0;
    for (auto [_, bytes] : made_.at_peak) held += static_cast<double>(bytes);
    if (held > 0) parts_.gaps = std::max(1.0, static_cast<double>(ArenaBytes(made_.plan)) / held);
  }

  // What a block gives to the next one.
  void FindBoundary() {
    for (const BlockStack& stack : session_.model->graph.stacks) {
      if (stack.blocks.size() < 2) continue;
      double bytes = 0;
      for (int n : graph_.Order()) {
        const Node& node = graph_.node(n);
        if (node.phase != Phase::kForward || !Within(stack.blocks[0].path, node.name)) continue;
        for (int v : node.out)
          if (ReadBy(v, stack.blocks[1].path))
            bytes += LargestPieceBytes(graph_.value(v), graph_.value(v).sbp, graph_.Sizes());
      }
      parts_.boundary = std::max(parts_.boundary, bytes);
    }
  }

  bool ReadBy(int v, const std::string& path) {
    if (readers_.empty()) readers_ = graph_.Readers();
    return std::any_of(readers_[v].begin(), readers_[v].end(), [&](int r) {
      return graph_.node(r).phase == Phase::kForward && Within(path, graph_.node(r).name);
    });
  }

  static void Divide(PartOfModel* part, double by) {
    for (double PartAmounts::*amount : kPartAmounts) part->*amount /= by;
    for (auto& messages : part->messages)
      for (auto& [message, count] : messages) count /= by;
  }

  const Session::Impl& session_;
  const Compiled& compiled_;
  const Graph& graph_;
  const Machine& machine_;
  const int tp_;
  ModelParts parts_;
  RankPlan made_;
  std::vector<PartOfModel*> part_;  // by node
  std::map<std::string, int> by_name_;
  std::vector<std::vector<int>> readers_;
};

// Of a group of so many members, each `stride` devices from the next, and of the groups beside it.
std::vector<AlgorithmCost> AlgorithmsOf(const LinkLevels& levels, Primitive primitive, int members,
                                        int stride, int node) {
  if (node == 0 || !HasAlgorithm(primitive, CollectiveAlgorithm::kRing)) return {};
  std::map<int, Participant> by_node;
  for (int m = 0; m < members; ++m)
    ++by_node.try_emplace(m * stride / node, Participant{int64_t{m} * stride, 0}).first->second.members;
  if (by_node.size() < 2) return {};
  std::vector<Participant> group;
  for (const auto& [number, participant] : by_node) group.push_back(participant);
  std::vector<double> beside(levels.topology.links.size(), 1);
  for (size_t level = 1; level < beside.size(); ++level) {
    const int unit = levels.topology.links[level - 1].devices;
    if (!levels.IsShared(level) || unit == 0) continue;
    const double all = std::min(unit, members * stride),
                 here = (std::min(unit, members * stride) - 1) / stride + 1;
    beside[level] = std::max(1.0, all / here);
  }
  return CostsOfCollective(primitive, group, levels, beside);
}

PartOfModel OnLine(const PartOfModel& few, const PartOfModel& many, double at) {
  const auto line = [at](double a, double b) { return std::max(0.0, a + (b - a) * at); };
  PartOfModel part = many;
  part.forward = line(few.forward, many.forward);
  part.backward = line(few.backward, many.backward);
  part.stash = line(few.stash, many.stash);
  part.late = few.late + (many.late - few.late) * at;
  return part;
}

}  // namespace

void PartAmounts::Add(const PartAmounts& other, double count) {
  for (double PartAmounts::*amount : kPartAmounts) this->*amount += count * other.*amount;
}

bool PartMessage::operator<(const PartMessage& other) const {
  const auto key = [](const PartMessage& m) { return std::make_tuple(m.element_bytes, m.from, m.to); };
  if (key(*this) < key(other)) return true;
  if (key(other) < key(*this)) return false;
  const std::string a = shape.str(), b = other.shape.str();
  return a < b;
}

double SecondsOfMessage(const Machine& machine, const PartMessage& message, int members, int stride,
                        int node) {
  if (members == 1) return 0;
  const Mesh group("cpu", {{"member", members}, {"other", stride}});
  const Slice whole = WholeMesh(group);
  const LinkLevels levels{machine.topology, machine.shared};
  const BoxingLoad load =
      LoadOfBoxingStep(group, 1, message.shape, message.element_bytes, {whole, {B(), message.from, B()}},
                       {whole, {B(), message.to, B()}}, levels);
  if (const MeasuredCollective* measured = MeasuredOf(machine, load)) return measured->SecondsOf(load.bytes);
  const std::vector<AlgorithmCost> costs = AlgorithmsOf(levels, load.primitive, members, stride, node);
  if (costs.empty()) return load.seconds();
  return load.copies + Choose(costs, load.bytes).seconds(load.bytes);
}

ModelParts MeasureParts(const PlanSpace& space, const Machine& machine, const BuildPlan& build,
                        PlanCandidate like, int64_t samples) {
  // Several micro-batches tell what is done once a step from what each of them does.
  constexpr int64_t kRanks = 32;
  const int64_t all = space.batch / samples;
  int64_t m = std::min<int64_t>(2, all);
  while (all % m != 0 || (all / m > kRanks && m < all)) ++m;
  const int tp = like.extent("tp");
  like.mesh = Mesh(space.kind, {{"dp", static_cast<int>(all / m)}, {"tp", tp}, {"pp", 1}});
  like.micro_batches = static_cast<int>(m);
  like.virtual_stages = 1;
  like.schedule = PipelineSchedule::k1F1B;
  like.zero = 0;
  like.most_blocks = kBlocksMeasured;
  like.open_cuts = space.cuts;
  const Session session = build(like);
  ModelParts parts = PartsOfPlan(*session.impl(), machine).Measure();
  parts.samples = samples;
  parts.tp = tp;
  parts.node = space.kind == "cpu" ? session.impl()->model->devices_of_node : 0;
  return parts;
}

ModelParts PartsAt(const ModelParts& few, const ModelParts& many, int64_t samples) {
  if (few.samples == many.samples) return few;
  const double at =
      static_cast<double>(samples - few.samples) / static_cast<double>(many.samples - few.samples);
  const auto line = [at](double a, double b) { return std::max(0.0, a + (b - a) * at); };
  ModelParts parts = many;
  parts.samples = samples;
  parts.before = OnLine(few.before, many.before, at);
  parts.after = OnLine(few.after, many.after, at);
  for (size_t k = 0; k < parts.block.size(); ++k) parts.block[k] = OnLine(few.block[k], many.block[k], at);
  parts.boundary = line(few.boundary, many.boundary);
  parts.working = line(few.working, many.working);
  parts.gaps = std::max(few.gaps, many.gaps);
  return parts;
}

}  // namespace oneflow_like
