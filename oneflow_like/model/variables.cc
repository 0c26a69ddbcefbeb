#include "oneflow_like/model/variables.h"

#include "compiler/graph/training.h"
#include "compiler/passes/passes.h"
#include "core/boxes/copy_box.h"
#include "core/hash_bytes.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/model/pieces.h"

namespace oneflow_like {

namespace {

// Of a graph whose blocks are on their stages: where a weight lies that was requested outside any stage. With
// the first of its readers that are on one, along the axes that this graph has stages on; on the whole mesh
// where it has none.
void PlaceLoose(const GraphOfModel& dealt, std::map<std::string, Slice>* places) {
  const ModelImpl& model = *dealt.model;
  bool all = true;
  for (const auto& [name, node] : dealt.variables) all = all && model.variables.at(name).settled;
  if (all) return;
  Graph graph = dealt;
  Slice used = WholeMesh(model.mesh);
  for (int n = 0; n < graph.num_nodes(); ++n)
    for (int a = 0; a < model.mesh.rank(); ++a)
      if (graph.node(n).slice.fixed[a] != Slice::kFree) used.fixed[a] = 0;
  const std::vector<std::vector<int>> readers = graph.Readers();
  const std::vector<int> order = graph.Order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    Node& node = graph.node(*it);
    if (node.placed || node.kind == NodeKind::kInput) continue;
    for (int v : node.out)
      for (int r : readers[v])
        if (graph.node(r).placed && (!node.placed || graph.node(r).slice < node.slice)) {
          node.slice = graph.node(r).slice;
          node.placed = true;
        }
  }
  for (const auto& [name, n] : dealt.variables)
    if (!model.variables.at(name).settled)
      (*places)[name] = graph.node(n).placed ? graph.node(n).slice : used;
}

// Variables that the division, or their readers, place elsewhere than the model has them.
std::map<std::string, Slice> PlacesOf(const GraphOfModel& dealt, const StageCuts& division) {
  std::map<std::string, Slice> places;
  for (const BlockStack& stack : dealt.stacks) {
    if (division.count(stack.name) == 0) continue;
    for (const BlockStack::Block& block : stack.blocks)
      for (const auto& [name, n] : dealt.variables)
        if (Within(block.path, name)) places[name] = dealt.node(n).slice;
  }
  PlaceLoose(dealt, &places);
  return places;
}

}  // namespace

void Settle(GraphOfModel* source, const StageCuts& division) {
  ModelImpl& model = *source->model;
  GraphOfModel dealt = *source;
  MoveBlocks(division, &dealt);
  for (const auto& [stack, blocks] : division) model.stages[stack] = blocks;
  for (const auto& [name, slice] : PlacesOf(dealt, division)) {
    ModelVariable& variable = model.variables.at(name);
    variable.node.slice = slice;
    if (variable.settled) continue;
    variable.settled = true;
    variable.node.placed = slice != WholeMesh(model.mesh);
  }
}

Graph SessionGraph(const GraphOfModel& source, const std::map<std::string, int>& outputs,
                   const StageCuts& division, const VariableCuts& cuts) {
  GraphOfModel dealt = source;
  MoveBlocks(division, &dealt);
  const std::map<std::string, Slice> places = PlacesOf(dealt, division);
  Graph graph = std::move(dealt);
  bool stages = false;
  for (int n = 0; n < graph.num_nodes(); ++n)
    stages = stages || graph.node(n).slice != WholeMesh(graph.mesh());
  for (const auto& [name, n] : source.variables) {
    const ModelVariable& known = source.model->variables.at(name);
    Node& node = graph.node(n);
    const auto place = places.find(name);
    node.slice = place == places.end() ? known.node.slice : place->second;
    node.placed = stages || (known.settled ? known.node.placed : node.slice != WholeMesh(graph.mesh()));
    node.fixed = known.node.fixed;
    node.stored = known.node.stored;
    if (const auto cut = cuts.find(name); cut != cuts.end()) {
      node.fixed.insert(cut->second.fixed.begin(), cut->second.fixed.end());
      node.stored.insert(cut->second.stored.begin(), cut->second.stored.end());
    }
  }
  // A node that writes a variable stands where the variable does, also where that was not known when the
  // graph was built.
  for (int n = 0; n < graph.num_nodes(); ++n) {
    const OpDef* def = graph.alive(n) ? graph.catalog().Find(graph.node(n).op) : nullptr;
    if (!def || def->inplace.empty()) continue;
    const Node& variable = graph.producer(graph.node(n).in[def->inplace[0].second]);
    graph.node(n).slice = variable.slice;
    graph.node(n).placed = variable.placed;
  }
  std::vector<int> roots;
  for (const auto& [name, value] : outputs) roots.push_back(graph.value(value).producer);
  graph.KeepOnly(roots);
  return graph;
}

std::vector<ModelVariable> NewState(const std::string& who, const ModelImpl& model, const Graph& graph) {
  std::vector<ModelVariable> made;
  for (int n = 0; n < graph.num_nodes(); ++n) {
    if (!graph.alive(n) || graph.node(n).kind != NodeKind::kVariable) continue;
    if (graph.node(n).attrs.Has(kOfPlan)) continue;
    ModelVariable variable;
    variable.node = graph.node(n);
    const Value& value = graph.value(variable.node.out[0]);
    variable.node.out.clear();
    variable.dtype = value.dtype;
    variable.shape = value.shape;
    variable.settled = true;
    auto known = model.variables.find(variable.node.name);
    if (known == model.variables.end()) {
      made.push_back(std::move(variable));
      continue;
    }
    const ModelVariable& there = known->second;
    if (there.shape != variable.shape || there.node.slice != variable.node.slice ||
        there.node.fixed != variable.node.fixed)
      Fail(who, ": variable '", variable.node.name, "' is ", variable.shape.str(), " ",
           variable.node.slice.str(model.mesh), " here but ", there.shape.str(), " ",
           there.node.slice.str(model.mesh), " in a session made before; give this one another name");
  }
  return made;
}

std::string MarkOf(const ModelImpl& model) {
  int64_t number = 0, elements = 0;
  uint64_t hash = 0;
  for (const auto& [name, variable] : model.variables) {
    if (IsTrainingState(name)) continue;
    const std::string text = Cat(name, variable.shape.str());
    hash = HashOfBytes(text.data(), text.size(), hash);
    ++number;
    elements += variable.shape.elements();
  }
  return Cat(number, " weights of ", elements, " elements, ", Hexadecimal(hash));
}

void ModelImpl::Prepare(const plan::Plan& plan) {
  std::vector<std::string> given;
  for (const plan::Variable& variable : plan.variable()) {
    auto known = variables.find(variable.name());
    if (known != variables.end() && known->second.initial.data && !store->Find(plan.rank(), variable.name()))
      given.push_back(variable.name());
  }
  store->Prepare(plan, registry);
  for (const std::string& name : given) {
    const HostTensor& whole = variables.at(name).initial;
    LocalPiece piece(*this, plan.rank(), name);
    ForEachRun(piece.box(), piece.box(), MostElements(whole.dtype), [&](const Box& run) {
      CopyBox(whole.dtype, run, {whole.data.get(), Box::Whole(whole.shape)}, {piece.staging(), run});
      piece.Put(run);
    });
  }
}

const ModelVariable& ModelImpl::Placed(const std::string& name) {
  const ModelVariable& variable = variables.at(name);
  return variable.layout.sbp.empty() ? Require(name) : variable;
}

ModelVariable& ModelImpl::Require(const std::string& name) {
  auto found = variables.find(name);
  if (found == variables.end())
    Fail("variable '", name, "' is not there: neither a weight nor the state of a training has that name");
  ModelVariable& variable = found->second;
  Load();
  WaitIdle();
  if (!variable.layout.sbp.empty()) return variable;
  if (graph.variables.count(name)) Settle(&graph, DivisionOf(graph));
  variable.settled = true;
  Graph alone(&catalog, mesh);
  Node node = variable.node;
  node.phase = Phase::kForward;  // of state it is the update's, and there is none here
  if (variable.on_host) node.attrs.Set(kOnHost, int64_t{1});
  alone.AddRaw(node, {{name, variable.dtype, variable.shape}});
  Decisions decided{.mesh = mesh};
  if (!zero_axes.empty()) decided.zero = options.zero.stage, decided.zero_axis = options.zero.axis;
  const Compiled compiled =
      Compile(std::move(alone), {{.name = "variables", .seed = options.seed}, decided, machine});
  for (const RankPlan& made : PlansOf(compiled, store->ranks())) Prepare(made.plan);
  variable.layout = compiled.graph.LayoutOf(0);
  return variable;
}

}  // namespace oneflow_like
