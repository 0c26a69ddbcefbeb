// Moves the pieces of variables that this process's ranks hold, in boxes of at most kPieceBytes, through
// memory that devices copy to and from; and chooses the rank that provides each part if every element is
// needed once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/boxes/runs.h"
#include "oneflow_like/model/model_impl.h"

namespace oneflow_like {

constexpr int64_t kPieceBytes = 1 << 20;
inline int64_t MostElements(DType dtype) { return kPieceBytes / static_cast<int64_t>(SizeOf(dtype)); }

// The piece of a variable that a rank hosted here holds, and host memory to move it through.
class LocalPiece {
 public:
  LocalPiece(const ModelImpl& model, int rank, const std::string& variable);
  const Box& box() const { return info_.box; }
  void* staging() const { return staging_->data(); }
  // `run` must be contiguous in this piece. The result is valid until the next call.
  const void* Get(const Box& run);
  void Put(const Box& run);  // the contents of `staging`

 private:
  size_t Bytes(const Box& run) const { return run.elements() * SizeOf(info_.dtype); }

  Device* const device_;
  const Store::VariableInfo& info_;
  char* data_;
  std::unique_ptr<Memory> staging_;
};

// A part of a variable: the rank that provides it, and the ranks that hold it.
struct Part {
  Box box;
  int giver = 0;             // rank
  Box piece;                 // the giver's
  std::vector<int> holders;  // ranks that hold it, the giver included
  bool sent = false;
};

// Parts that contain every element once. The same on all processes.
std::vector<Part> PartsOf(const ModelImpl& model, const ModelVariable& variable);

}  // namespace oneflow_like
