// The user's options for overlapping products with their collectives.
#pragma once

namespace oneflow_like {

// A product that reads a gathered operand, or whose partial sums are combined, is computed in chunks of its
// rows, so that the message of one chunk is sent while another is multiplied (Wang et al. 2023, "Overlap
// communication with dependent computation via decomposition"). Along with them, gradients of weights are
// computed while sums of other gradients travel. With kernels that compute each row of a product alike, as
// the reference kernels do, no bit of a result changes.
struct Overlap {
  int chunks = 1;       // most chunks; 1: none. Fewer if this number does not divide the rows
  double gain = 0.03;   // least saving, as a part of the estimated time of product and message
  bool always = false;  // regardless of the estimate: for tests
};

}  // namespace oneflow_like
