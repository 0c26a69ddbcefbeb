// Tensor: what a handle says of itself, asked of the graph that holds the value.
#include "ops/language/tensor.h"

#include <glog/logging.h>

namespace oneflow_like {

const Dims& Tensor::shape() const {
  CHECK(defined()) << "shape() of an undefined Tensor";
  return graph_->ShapeOf(id_);
}

DType Tensor::dtype() const {
  CHECK(defined()) << "dtype() of an undefined Tensor";
  return graph_->DTypeOf(id_);
}

const std::string& Tensor::name() const {
  CHECK(defined()) << "name() of an undefined Tensor";
  return graph_->NameOf(id_);
}

}  // namespace oneflow_like
