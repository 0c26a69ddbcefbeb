// A model's graph as text, and back.
#include <map>
#include <sstream>

#include "compiler/graph/text.h"
#include "oneflow_like/model.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {
namespace {

// The text's lines on the mesh of the model that reads them.
std::string OnMesh(const std::string& text, const Mesh& mesh) {
  std::string lines = Cat("mesh ", mesh.str(), "\n"), line;
  std::istringstream in(text);
  while (std::getline(in, line)) lines += (line.rfind("mesh ", 0) == 0 ? "" : line) + "\n";
  return lines;
}

// Adds what a text says to a graph of the model, as if it came from `line`.
class TextToModel {
 public:
  TextToModel(GraphOfModel* graph, const Graph& text, const SourceLine& line)
      : graph_(*graph), text_(text), line_(line) {}

  void Run() {
    graph_.regions() = text_.regions();
    for (int n : text_.Order()) {
      Node node = text_.node(n);
      node.line = line_;
      node.out.clear();
      for (int& v : node.in) v = value_.at(v);
      switch (node.kind) {
        case NodeKind::kVariable:
          value_[text_.node(n).out[0]] = Variable(node, text_.value(text_.node(n).out[0]));
          break;
        case NodeKind::kInput:
        case NodeKind::kOperator:
        case NodeKind::kUpdated:
          Add(node, text_.node(n).out);
          break;
        default:
          Fail("'", node.name, "' is a ", node.op, ", which stands in compiled graphs and not in a model's");
      }
    }
  }

 private:
  int Variable(const Node& node, const Value& v) {
    RequireExtents(Cat("weight '", node.name, "'"), v.shape);
    if (!node.attrs.Has("init") || !node.attrs.Has("key"))
      Fail("weight '", node.name, "' lacks the attributes init and key, which say how it starts");
    ModelVariable made{
        .node = node, .dtype = v.dtype, .shape = v.shape, .settled = node.placed, .said = node.attrs};
    if (node.attrs.Has("literal") && !graph_.model->variables.count(node.name))
      Fail("weight '", node.name,
           "' starts as numbers that a text does not hold; request it before, so that ",
           "the model has them");
    return graph_.Request(Cat("weight '", node.name, "'"), made).id();
  }

  void Add(const Node& node, const std::vector<int>& outputs) {
    std::vector<Graph::NewValue> values;
    for (int v : outputs) values.push_back({text_.value(v).name, text_.value(v).dtype, text_.value(v).shape});
    if (graph_.UniqueName(node.name) != node.name) Fail("there are two of name '", node.name, "'");
    for (const auto& value : values) RequireExtents(Cat("'", value.name, "'"), value.shape);
    const int id = graph_.AddRaw(node, values);
    for (size_t i = 0; i < outputs.size(); ++i) value_[outputs[i]] = graph_.node(id).out[i];
    if (node.kind == NodeKind::kInput) {
      graph_.inputs[node.name] = id;
      graph_.model->input_names.insert(node.name);
    }
    if (node.kind == NodeKind::kOperator) CheckTypes(id);
  }

  // That the results are what the operator gives.
  void CheckTypes(int n) {
    const Node& node = graph_.node(n);
    const OpDef* def = graph_.catalog().Find(node.op);
    if (!def) Fail("there is no operator named \"", node.op, "\"; ModelOptions::operators adds your own");
    const Inferred inferred = Infer(*def, graph_.CallOf(node));
    if (inferred.dtypes.size() != node.out.size())
      Fail(graph_.Describe(node), " has ", node.out.size(), " results but ", node.op, " gives ",
           inferred.dtypes.size());
    for (size_t i = 0; i < node.out.size(); ++i) {
      const Value& v = graph_.value(node.out[i]);
      if (v.shape != inferred.rule.out[i].shape || v.dtype != inferred.dtypes[i])
        Fail(graph_.Describe(node), ": result ", i, " is ", Name(v.dtype), v.shape.str(), " but ", node.op,
             " gives ", Name(inferred.dtypes[i]), inferred.rule.out[i].shape.str());
    }
  }

  GraphOfModel& graph_;
  const Graph& text_;
  const SourceLine line_;
  std::map<int, int> value_;  // of the text's values
};

// With its blocks where a division that the model remembers has them.
GraphOfModel DealtGraph(const GraphOfModel& graph) {
  GraphOfModel dealt = graph;
  MoveBlocks(graph.model->stages, &dealt);
  return dealt;
}

}  // namespace

std::string ModelGraph::Text() const { return ToText(DealtGraph(*impl_)); }
std::string Model::Text() const { return ToText(DealtGraph(impl_->graph)); }

ModelGraph Model::NewGraph(const std::string& name, const std::string& text, Here at) {
  ModelGraph graph = NewGraph(name);
  try {
    TextToModel(graph.impl_.get(), ParseGraph(impl_->catalog, OnMesh(text, impl_->mesh)), SourceLine(at))
        .Run();
  } catch (const std::exception& error) {
    Fail("NewGraph '", name, "' at ", SourceLine(at).str(), ": ", error.what());
  }
  return graph;
}

}  // namespace oneflow_like
