// What one process feeds of a step's inputs: the boxes that its ranks read, instead of the whole batch.
#pragma once

#include <map>
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

// What a process must feed, by input: boxes that are disjoint, and that no pair of which makes up a box.
using FeedNeeds = std::map<std::string, std::vector<Box>>;

// Gives one step's feeds after the other. A Session that runs from one counts how long it waited for it.
class FeedSource {
 public:
  virtual ~FeedSource() = default;
  // Of the next step. Throws Error when there is none, or it cannot be read.
  virtual FeedPieces Next() = 0;
};

// Disjoint boxes that hold every element of `boxes`, in the order of their first elements: those that make up
// a box together are one. Boxes that overlap in part become the smallest box around both.
std::vector<Box> Disjoint(std::vector<Box> boxes);

// Why `pieces` cannot be fed to an input of this type and shape of which the boxes `needs` are read; empty:
// they can. "its piece [0:4,0:8] has 4 rows ..." names boxes, never the input.
std::string WrongPieces(DType dtype, const Dims& shape, const std::vector<Box>& needs,
                        const std::vector<FeedPiece>& pieces);

// Every element = value, as the tensor's type has it.
void FillWith(const HostTensor& tensor, double value);

}  // namespace oneflow_like
