// The feeds of one process: the boxes of a step's inputs that its ranks read, instead of the whole batch.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dims.h"
#include "core/host_tensor.h"

namespace oneflow_like {

// A part of an input. `values` is of the input's type and has the box's extents as its shape.
struct FeedPiece {
  Box box;
  HostTensor values;
};
using FeedPieces = std::map<std::string, std::vector<FeedPiece>>;  // by input

// The boxes that a process must feed, by input: disjoint, and no two of them together form a box.
using FeedNeeds = std::map<std::string, std::vector<Box>>;

// Something that is to be equal in all processes which read from one source: {"samples", "4096"}. `where` is
// for messages and may differ: the file that this process has.
struct SourceFact {
  std::string what, value, where = {};
};

// Provides the feeds of one step after the other. A Session that runs from one measures how long it waits for
// it.
class FeedSource {
 public:
  virtual ~FeedSource() = default;
  // The next step's feeds. Throws Error when there are none, or they cannot be read.
  virtual FeedPieces Next() = 0;
  // The shape of what it feeds to an input in a step, of all processes together, the batch first; nullopt:
  // not known.
  virtual std::optional<Dims> ShapeOf(const std::string& /*input*/) const { return std::nullopt; }
  // What the processes of a job compare once, before the first step from this source; empty: nothing.
  virtual std::vector<SourceFact> Facts() const { return {}; }
  bool compared = false;  // whether they have, set by Session::Run
};

// Disjoint boxes that contain every element of `boxes`, in the order of their first elements: two that
// together form a box are joined. Boxes that overlap in part become the smallest box around both.
std::vector<Box> Disjoint(std::vector<Box> boxes);

// The reason why `pieces` cannot be fed to an input of this type and shape of which the boxes `needs` are
// read; empty if they can. "its piece [0:4,0:8] has 4 rows ..." names boxes, never the input.
std::string WrongPieces(DType dtype, const Dims& shape, const std::vector<Box>& needs,
                        const std::vector<FeedPiece>& pieces);

// Sets every element to `value`, converted to the tensor's type.
void FillWith(const HostTensor& tensor, double value);

}  // namespace oneflow_like
