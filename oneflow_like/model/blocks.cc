#include "oneflow_like/model/blocks.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/search/cut_layers.h"

namespace oneflow_like {

namespace {

// Of each block, in order.
std::vector<int> StagesOfBlocks(const std::vector<int64_t>& per_stage, int stages) {
  std::vector<int> of;
  for (size_t s = 0; s < per_stage.size(); ++s)
    of.insert(of.end(), per_stage[s], static_cast<int>(s) % stages);
  return of;
}

std::vector<int64_t> Even(int64_t blocks, int64_t stages) {
  std::vector<int64_t> per_stage;
  auto before = [&](int64_t stage) { return (stage * blocks + stages - 1) / stages; };
  for (int64_t s = 0; s < stages; ++s) per_stage.push_back(before(s + 1) - before(s));
  return per_stage;
}

std::vector<int64_t> ByCost(const GraphOfModel& graph, const BlockStack& stack,
                            const std::vector<int64_t>& most = {}) {
  const Machine& machine = graph.model->machine;
  const int last = graph.mesh().axis_size(stack.axis) - 1;
  std::vector<double> seconds(stack.blocks.size(), 0);
  double before = 0, after = 0;
  for (int n : graph.Order()) {
    const double mine = SecondsWhole(graph, n, machine);
    auto block = std::find_if(stack.blocks.begin(), stack.blocks.end(),
                              [&](const BlockStack::Block& b) { return b.begin <= n && n < b.end; });
    const int stage = graph.node(n).slice.fixed[stack.axis];
    if (block != stack.blocks.end())
      seconds[block - stack.blocks.begin()] += mine;
    else if (graph.stacks.size() == 1 && (stage == 0 || stage == last))
      (stage == 0 ? before : after) += mine;
  }
  return CutLayers(seconds, before, after, (last + 1) * stack.rounds, most);
}

// Of the node that a block reads `x` through, one that stands on the block's stage.
void MoveInto(GraphOfModel* graph, const BlockStack& stack, BlockStack::Block* block, int stage) {
  if (block->move < 0) {
    const Value& x = graph->value(static_cast<int>(block->x));
    Node move;
    move.op = "identity";
    move.in = {static_cast<int>(block->x)};
    move.line = graph->producer(static_cast<int>(block->x)).line;
    move.slice = graph->producer(static_cast<int>(block->x)).slice;
    move.placed = true;
    move.name = graph->UniqueName(ScopeOf(block->path) + "identity");
    const Graph::NewValue out{move.name, x.dtype, x.shape};
    block->move = graph->AddRaw(std::move(move), {out});
    graph->moves[block->move] = -1;
    for (int n = block->begin; n < block->end; ++n)
      for (int& v : graph->node(n).in)
        if (v == block->x) v = graph->node(block->move).out[0];
  }
  graph->node(block->move).slice.fixed[stack.axis] = stage;
}

bool StandsInScope(const GraphOfModel& graph, int n, int axis) {
  const auto standing = graph.standing.find(n);
  return standing != graph.standing.end() && standing->second[axis] != Slice::kFree && !graph.moves.count(n);
}

// Where a node stands along the axis: with the variable that it writes, in the scope that ran when it was
// made, or where its operands say.
int StageOfNode(const GraphOfModel& graph, int n, int axis) {
  const Node& node = graph.node(n);
  if (const OpDef* def = graph.catalog().Find(node.op))
    for (auto [out, in] : def->inplace) return graph.producer(node.in[in]).slice.fixed[axis];
  if (StandsInScope(graph, n, axis)) return node.slice.fixed[axis];
  int stage = Slice::kFree;
  for (int v : node.in)
    if (graph.producer(v).placed) stage = std::max(stage, graph.producer(v).slice.fixed[axis]);
  return stage;
}

bool FollowsOperands(const GraphOfModel& graph, int n) {
  return !graph.node(n).in.empty() && graph.node(n).placed && !graph.moves.count(n);
}

// Gradients that are part of a model stand with their operators and not with their operands.
bool AllFollow(const GraphOfModel& graph, int axis) {
  for (int n : graph.Order())
    if (FollowsOperands(graph, n) && graph.node(n).slice.fixed[axis] != StageOfNode(graph, n, axis))
      return false;
  return true;
}

// After blocks have moved.
void MoveTheRest(GraphOfModel* graph, int axis) {
  for (int n : graph->Order()) {
    int& stage = graph->node(n).slice.fixed[axis];
    auto move = graph->moves.find(n);
    if (move != graph->moves.end() && move->second >= 0)
      stage = graph->producer(move->second).slice.fixed[axis];
    if (FollowsOperands(*graph, n)) stage = StageOfNode(*graph, n, axis);
  }
}

void MoveStack(GraphOfModel* graph, BlockStack* stack, const std::vector<int64_t>& per_stage) {
  const int stages = graph->mesh().axis_size(stack->axis);
  const std::vector<int> was = StagesOfBlocks(stack->per_stage, stages),
                         is = StagesOfBlocks(per_stage, stages);
  for (size_t i = 0; i < stack->blocks.size(); ++i) {
    BlockStack::Block& block = stack->blocks[i];
    if (block.move >= 0 || (i > 0 && is[i] != is[i - 1])) MoveInto(graph, *stack, &block, is[i]);
    auto move = [&](int n) {
      int& stage = graph->node(n).slice.fixed[stack->axis];
      if (stage == was[i]) stage = is[i];
    };
    for (const auto& [name, n] : graph->variables)
      if (Within(block.path, name)) move(n);
    for (int n = block.begin; n < block.end; ++n)
      if (StandsInScope(*graph, n, stack->axis)) move(n);
  }
  stack->per_stage = per_stage;
  MoveTheRest(graph, stack->axis);
}

// What lies somewhere stays there.
bool Lies(const GraphOfModel& graph, const BlockStack& stack) {
  return std::any_of(graph.model->variables.begin(), graph.model->variables.end(), [&](const auto& variable) {
    return !variable.second.layout.sbp.empty() &&
           std::any_of(stack.blocks.begin(), stack.blocks.end(),
                       [&](const BlockStack::Block& b) { return Within(b.path, variable.first); });
  });
}

bool MayMove(const GraphOfModel& graph, const BlockStack& stack) {
  return stack.by_cost && graph.mesh().axis_size(stack.axis) > 1 && graph.model->steps.empty() &&
         !Lies(graph, stack);
}

}  // namespace

Blocks::Blocks(Scope s, const std::string& axis, int64_t n, const std::vector<int64_t>& per_stage, Here at)
    : scope_(std::move(s)), axis_(axis), at_(at), size_(n) {
  const Mesh& mesh = scope_.mesh();
  GraphOfModel* graph = static_cast<GraphOfModel*>(scope_.graph());
  const Pipeline& pipeline = graph->model->options.pipeline;
  if (pipeline.most_blocks > 0) size_ = std::min(n, pipeline.most_blocks);
  if (axis.empty() || mesh.FindAxes(axis).empty()) return;
  const std::string who =
      SourceLine(at_).Who(Cat("blocks", scope_.path().empty() ? "" : " of '" + scope_.path() + "'"));
  const int a = mesh.AxisOrFail(axis, Cat(who, ": stages"));
  if (scope_.IsEverywhere(a)) return;
  BlockStack stack;
  stack.axis = a;
  stack.rounds = pipeline.virtual_stages;
  stack.of = std::exchange(n, size_);
  if (stack.rounds < 1) Fail(who, ": virtual_stages is ", stack.rounds, " but must be at least 1");
  const int64_t groups = int64_t{mesh.axis_size(a)} * stack.rounds;
  const std::string there =
      Cat("mesh axis ", axis, " has ", mesh.axis_size(a), mesh.axis_size(a) == 1 ? " stage" : " stages",
          stack.rounds > 1 ? Cat(", gone round ", stack.rounds, " times") : "");
  if (pipeline.most_blocks == 0) stack.per_stage = per_stage.empty() ? pipeline.layers : per_stage;
  stack.by_cost = stack.per_stage.empty();
  stack.by_options = !stack.by_cost && per_stage.empty();
  if (per_stage.empty() && n < groups)
    Fail(who, ": ", there, " but there are only ", n, " layers; every stage needs at least one",
         stack.rounds > 1 ? " each time" : "");
  const std::string what = !per_stage.empty()             ? "per_stage"
                           : pipeline.layers_from.empty() ? "Pipeline::layers"
                                                          : pipeline.layers_from;
  if (stack.by_cost) stack.per_stage = Even(n, groups);
  if (static_cast<int64_t>(stack.per_stage.size()) != groups)
    Fail(who, ": ", what, " has ", stack.per_stage.size(),
         stack.per_stage.size() == 1 ? " number" : " numbers", " but ", there, "; it needs ", groups);
  for (int64_t layers : stack.per_stage) {
    if (layers < 0) Fail(who, ": ", what, " has ", layers, " layers for a stage, but 0 is the least");
    // All stacks of a model follow it, so a stage would be without work.
    if (layers == 0 && per_stage.empty())
      Fail(who, ": ", what,
           " has 0 layers for a stage, which needs at least one; per_stage of nn::layers may be 0");
  }
  const int64_t sum = std::accumulate(stack.per_stage.begin(), stack.per_stage.end(), int64_t{0});
  if (sum != n) Fail(who, ": ", what, " sums to ", sum, " but there are ", n, " layers");
  stack_ = static_cast<int>(graph->stacks.size());
  graph->stacks.push_back(std::move(stack));
}

Scope Blocks::Next(const std::string& name, Tensor* x) {
  running_.reset();
  const Scope below = scope_ / name;
  if (stack_ < 0) {
    running_.emplace(below);
    return below;
  }
  GraphOfModel* graph = static_cast<GraphOfModel*>(scope_.graph());
  BlockStack& stack = graph->stacks[stack_];
  if (next_ == 0) {
    stack.name = below.path();
    auto cut = graph->model->stages.find(stack.name);
    if (stack.by_cost && cut != graph->model->stages.end() && cut->second.size() == stack.per_stage.size())
      stack.per_stage = cut->second;
  }
  const std::vector<int> stages = StagesOfBlocks(stack.per_stage, graph->mesh().axis_size(stack.axis));
  if (next_ > 0) stack.blocks.back().end = graph->num_nodes();
  BlockStack::Block block;
  block.path = below.path();
  block.x = x->id();
  block.begin = graph->num_nodes();
  const int stage = stages.at(std::min<size_t>(next_, stages.size() - 1));  // whoever builds more than size()
  const Node& from = graph->producer(x->id());
  const int was = from.placed ? from.slice.fixed[stack.axis] : Slice::kFree;
  const bool elsewhere = next_ > 0 ? stage != stages[std::min<size_t>(next_, stages.size()) - 1]
                                   : was != Slice::kFree && was != stage;
  if (elsewhere) {
    *x = to_stage(*x, axis_, stage, at_);
    block.move = graph->value(x->id()).producer;
  }
  stack.blocks.push_back(block);
  ++next_;
  const Scope here = below.Stage(axis_, stage, at_);
  running_.emplace(here);
  return here;
}

void Blocks::End() {
  running_.reset();
  if (stack_ < 0 || next_ == 0) return;
  GraphOfModel* graph = static_cast<GraphOfModel*>(scope_.graph());
  graph->stacks[stack_].blocks.back().end = graph->num_nodes();
}

StageCuts DivisionOf(const GraphOfModel& graph) {
  StageCuts division;
  for (const BlockStack& stack : graph.stacks) {
    if (!stack.by_cost || graph.mesh().axis_size(stack.axis) == 1) continue;
    const auto known = graph.model->stages.find(stack.name);
    if (known != graph.model->stages.end())
      division[stack.name] = known->second;
    else if (!Lies(graph, stack) && AllFollow(graph, stack.axis))
      division[stack.name] = ByCost(graph, stack);
    else
      division[stack.name] = stack.per_stage;
  }
  return division;
}

StageCuts DivisionOfOptions(const GraphOfModel& graph) {
  StageCuts division;
  for (const BlockStack& stack : graph.stacks)
    if (stack.by_options && graph.mesh().axis_size(stack.axis) > 1) division[stack.name] = stack.per_stage;
  return division;
}

void MoveBlocks(const StageCuts& division, GraphOfModel* copy) {
  for (BlockStack& stack : copy->stacks)
    if (const auto to = division.find(stack.name); to != division.end() && to->second != stack.per_stage)
      MoveStack(copy, &stack, to->second);
}

Divisions::Divisions(const GraphOfModel& graph, StageCuts first) : graph_(graph), now_(std::move(first)) {}

bool Divisions::TakeFrom(const std::vector<int>& ranks) {
  bool moved = false;
  for (const BlockStack& stack : graph_.stacks) {
    if (!MayMove(graph_, stack)) continue;
    const int stages = graph_.mesh().axis_size(stack.axis);
    std::vector<int64_t>& now = now_.at(stack.name);
    std::vector<int64_t>& most = most_[stack.name];
    if (most.empty()) most.assign(now.size(), std::ssize(stack.blocks));
    std::set<int> full;
    for (int rank : ranks) full.insert(graph_.mesh().Coords(rank)[stack.axis]);
    for (int stage : full) {
      size_t longest = stage;  // of the stage's rounds
      for (size_t s = stage; s < now.size(); s += stages)
        if (now[s] > now[longest]) longest = s;
      most[longest] = now[longest] - 1;
    }
    std::vector<int64_t> cut = ByCost(graph_, stack, most);
    if (cut.empty()) return false;
    now = std::move(cut);
    moved = true;
  }
  return moved;
}

}  // namespace oneflow_like
