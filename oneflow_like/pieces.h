// The pieces of variables that this process's ranks hold, moved in boxes of at most kPieceBytes through
// memory that devices copy to and from; and who gives which part where every element is wanted once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/runs.h"
#include "oneflow_like/model_impl.h"

namespace oneflow_like {

constexpr int64_t kPieceBytes = 1 << 20;
inline int64_t MostElements(DType dtype) { return kPieceBytes / static_cast<int64_t>(SizeOf(dtype)); }

// The piece of a variable that a rank hosted here has, and memory of the host to move it through.
class LocalPiece {
 public:
  LocalPiece(const ModelImpl& model, int rank, const std::string& variable);
  const Box& box() const { return info_.box; }
  void* staging() const { return staging_->data(); }
  // `run` is without gaps here. Valid until the next call.
  const void* Get(const Box& run);
  void Put(const Box& run);  // what `staging` holds

 private:
  size_t Bytes(const Box& run) const { return run.elements() * SizeOf(info_.dtype); }

  Device* const device_;
  const Store::VariableInfo& info_;
  char* data_;
  std::unique_ptr<Memory> staging_;
};

// A part of a variable: who gives it, and whether processes lack it.
struct Part {
  Box box;
  int giver = 0;             // rank
  Box piece;                 // the giver's
  std::vector<int> holders;  // ranks that have it too, the giver among them
  bool sent = false;
};

// Every element once. The same on all processes.
std::vector<Part> PartsOf(const ModelImpl& model, const ModelVariable& variable);

}  // namespace oneflow_like
