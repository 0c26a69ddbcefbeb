// The body of a loop: the operators of one step as a small graph, recorded by the functions that build any
// graph. It is stored as a text among the loop's attributes, so plans, hashes and copies hold it:
//
//   f32[32a,128] f32[32a,512] f32[128,512]          the types of its inputs
//   matmul(0 2) f32[32a,512] 4194304                operator, operands, results, floating point operations
//   slice(3) f32[32a,128] 0 axis=1 begin=0 end=128  and attributes
//   -> 7 9 fold b                                   its results; labels whose parts are partial sums
//
// Values are numbered: inputs, then results line by line. A letter behind an extent is the axis's label: axes
// of one label can be cut together, by the rules of the operators between them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ops/op.h"

namespace oneflow_like {

class Body : public GraphBuilder {
 public:
  struct Value {
    DType dtype = DType::kFloat32;
    Dims shape;
    std::string labels;  // a letter for each axis, ' ': none
    int producer = -1;   // node; -1: an input
  };
  struct Node {
    std::string op;
    Attrs attrs;
    std::vector<int> in, out;
    double flops = 0;  // of the whole tensors
  };

  // `outer`: the graph whose tensors the body may read; nullptr: none.
  explicit Body(const Catalog& catalog, GraphBuilder* outer = nullptr) : catalog_(catalog), outer_(outer) {}

  Tensor AddInput(DType dtype, const Dims& shape);
  // Ends the recording: what is added later, through a handle that has left the body, is an Error.
  void Close() { closed_ = true; }

  // GraphBuilder. Operands of the outer graph become inputs (`read`). Throws Error for operators that no loop
  // can run.
  std::vector<Tensor> AddNode(const std::string& op, const std::vector<Tensor>& in, const Attrs& attrs,
                              const SourceLine& line) override;
  const Dims& ShapeOf(int id) const override { return values_[id].shape; }
  DType DTypeOf(int id) const override { return values_[id].dtype; }
  const std::string& NameOf(int) const override;
  const Catalog& catalog() const override { return catalog_; }
  GraphBuilder* outer() const override { return outer_; }
  Tensor Take(const Tensor& x) override;
  std::optional<Made> MadeBy(int id) const override;

  // Gives node `node` the outputs that its gradient reads (OpDef::keep).
  void Keep(int node);
  // Drops nodes that no result needs.
  void DropUnread();
  // The labels of all values. Axes of the same place in both values of a pair have one label, whatever the
  // operators say. A label is kept only if an input or a result has it and all results without it are sums
  // over it; the first `states` results are the states after the step, which cannot be sums.
  void SetLabels(const std::vector<std::pair<int, int>>& pairs, size_t states);

  std::string Text() const;
  // Throws Error, beginning with `who`, for a text that is no body.
  static Body Parse(const Catalog& catalog, const std::string& text, const std::string& who);

  const std::vector<Value>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<int> inputs, results;
  std::vector<Tensor> read;  // of the outer graph; the last inputs, in this order
  std::string folds;         // labels

 private:
  OpCall CallOf(const Node& node) const;
  void AddOutputs(int node, const Inferred& inferred);

  const Catalog& catalog_;
  GraphBuilder* outer_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::map<int, int> input_of_;  // by value of the outer graph
  bool closed_ = false;
};

// The gradients with respect to the body's values `of`: the parts that their readers give, in the order in
// which autograd finds them in a longer graph; none where no gradient flows. `given`: the gradients of
// values, likewise in parts. Operators are added to the body. Throws Error for one that has no gradient.
std::vector<std::vector<Tensor>> GradientParts(Body* body, std::map<int, std::vector<Tensor>> given,
                                               const std::vector<int>& of);

}  // namespace oneflow_like
