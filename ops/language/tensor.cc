// Tensor: what a handle says of itself, asked of the graph that holds the value.
#include "ops/language/tensor.h"

namespace oneflow_like {
namespace {

const GraphBuilder& Given(const GraphBuilder* graph, const char* what) {
  if (graph == nullptr) Fail(what, " was asked of a Tensor that was never given a value");
  return *graph;
}

}  // namespace

const Dims& Tensor::shape() const { return Given(graph_, "shape()").ShapeOf(id_); }
DType Tensor::dtype() const { return Given(graph_, "dtype()").DTypeOf(id_); }
const std::string& Tensor::name() const { return Given(graph_, "name()").NameOf(id_); }

}  // namespace oneflow_like
