// Tensor: a handle to a value of a graph under construction; GraphBuilder: the interface of that graph's
// owner. Operators' gradients and users' models are written with the same functions on Tensors
// (ops/language/functional.h).
#pragma once

#include <string>
#include <vector>

#include "core/attrs.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/source_location.h"

namespace oneflow_like {

class GraphBuilder;

// A place along an axis, with its source line: x[-1].
struct Index {
  int64_t value;
  SourceLocation at;
  Index(int64_t i,
        SourceLocation here = SourceLocation::current())  // NOLINT: implicit on purpose
      : value(i), at(here) {}
};

// Cheap to copy; valid as long as its graph. Not thread-safe.
class Tensor {
 public:
  Tensor() = default;
  Tensor(GraphBuilder* graph, int id) : graph_(graph), id_(id) {}
  bool defined() const { return graph_ != nullptr; }
  GraphBuilder* graph() const { return graph_; }
  int id() const { return id_; }
  const Dims& shape() const;  // global
  DType dtype() const;
  const std::string& name() const;
  // The slice at one index of axis 0, without that axis; negative counts from the end
  // (ops/language/expressions.h).
  Tensor operator[](Index index) const;

 private:
  GraphBuilder* graph_ = nullptr;
  int id_ = -1;
};

class GraphBuilder {
 public:
  virtual ~GraphBuilder() = default;
  // Adds one node and returns its outputs. Infers and checks shapes and types; throws Error naming the
  // operator and the user's line.
  virtual std::vector<Tensor> AddNode(const std::string& op, const std::vector<Tensor>& in,
                                      const Attrs& attrs, const SourceLine& line) = 0;
  virtual const Dims& ShapeOf(int id) const = 0;
  virtual DType DTypeOf(int id) const = 0;
  virtual const std::string& NameOf(int id) const = 0;
  // The end of an error about an operand that belongs to another graph: what to do about it.
  virtual std::string OfAnother() const { return ""; }
};

}  // namespace oneflow_like
