// The user's options for overlapping products with their collectives.
#pragma once

namespace oneflow_like {

// A product that reads a gathered operand, or whose partial sums are combined, is computed in chunks of its
// rows, so that the message of one chunk is sent while another is multiplied (Wang et al. 2023, "Overlap
// communication with dependent computation via decomposition"). Along with them, gradients of weights are
// computed while sums of other gradients travel. With kernels that compute each row of a product alike, as
// the reference kernels do, no bit of a result changes.
//
// Under 1F1B and GPipe without virtual stages, a stage also works on two micro-batches at a time where that
// is estimated to save as much of a step, so that one's messages are on their way while the other is
// computed. That changes no bit either, and takes the memory of another micro-batch's activations.
struct Overlap {
  int chunks = 1;       // most chunks; 1: none. Fewer if this number does not divide the rows
  double gain = 0.03;   // least saving, as a part of the estimated time of product and message, or of a step
  bool always = false;  // regardless of the estimate: for tests

  bool operator==(const Overlap&) const = default;
};

}  // namespace oneflow_like
