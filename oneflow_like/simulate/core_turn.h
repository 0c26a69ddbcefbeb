// How the system's scheduler lets threads share a core.
#pragma once

namespace oneflow_like {

// Seconds for which a thread runs before another one gets its turn on their core: the median over a quarter
// of a second, in which two threads of this call share one. 0: the system lets threads choose no core, or
// they took no turns.
double MeasureCoreTurn();

}  // namespace oneflow_like
