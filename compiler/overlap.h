// Products beside their collectives: what the user asks for.
#pragma once

namespace oneflow_like {

// A product that reads a gathered operand, or whose partial sums are combined, is made in chunks of its rows,
// so that the message of one chunk travels while another is multiplied (Wang et al. 2023, "Overlap
// communication with dependent computation via decomposition"). Along with them, gradients of weights are
// computed while sums of other gradients travel. With kernels that compute each row of a product alike, as
// the reference kernels do, no bit of a result changes.
struct Overlap {
  int chunks = 1;       // at most so many; 1: none. Rows that so many do not divide are dealt in fewer
  double gain = 0.03;   // part of the estimated time of product and message that must be saved
  bool always = false;  // whatever the estimate says: for tests
};

}  // namespace oneflow_like
