// When the buffers of a rank's plan are alive.
//
// Time is the position in the compute stream's list of kernels, which is the same in every step. A slot lives
// from the first kernel that writes it to the last that reads it. Collectives and transfers run beside that
// stream: such an act starts after its operands were announced and after the acts before it in its own stream
// started, and it has ended when an act of the compute stream that waits for its result starts; where neither
// is known (feeds, fetches, sends to another stage) nothing bounds a buffer's life.
#pragma once

#include <vector>

#include "core/plan.pb.h"

namespace oneflow_like {

struct Span {
  int begin, end;  // positions, inclusive
};

struct Lifetime {
  std::vector<Span> messages;  // one for each that a step writes, in their order, up to one nothing bounds
  bool bounded = false;        // all of them
};

struct Lifetimes {
  int positions = 0;                     // of a step
  std::vector<std::vector<int>> starts;  // by actor of the plan, where its acts in the compute stream begin
  std::vector<Lifetime> buffers;         // by id; empty of variables
};

Lifetimes FindLifetimes(const plan::Plan& plan);
// Whether actor number `actor` of the plan is in a stream of that kind.
bool InStream(const plan::Plan& plan, int actor, plan::StreamKind kind);

}  // namespace oneflow_like
