// Tensor: a handle to a value of a graph under construction; GraphBuilder: the interface of that graph's
// owner. Operators' gradients and users' models are written with the same functions on Tensors
// (ops/language/functional.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/attrs.h"
#include "core/dims.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/source_location.h"

namespace oneflow_like {

class Catalog;
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
  // The operators that nodes can be of; default: those of this library.
  virtual const Catalog& catalog() const;
  // What gave a value; none where the graph does not know, or where no operator did.
  struct Made {
    std::string op;
    Attrs attrs;
    std::vector<Tensor> in;
  };
  virtual std::optional<Made> MadeBy(int /*id*/) const { return std::nullopt; }
  // The graph around this one, if this is the body of a loop (ops/body.h), whose nodes may read its values.
  virtual GraphBuilder* outer() const { return nullptr; }
  // A tensor of this graph or of one around it as one of this graph; undefined: it is of another one.
  virtual Tensor Take(const Tensor& x) { return x.graph() == this ? x : Tensor(); }
  // Keeps the body of a loop as long as this graph, for handles that leave it.
  void Own(std::shared_ptr<GraphBuilder> body) { bodies_.push_back(std::move(body)); }

 private:
  std::vector<std::shared_ptr<GraphBuilder>> bodies_;
};

}  // namespace oneflow_like
