// Whether this is a build under sanitizers, where a step takes five to fifteen times as long: what only
// repeats itself, with another seed or more often, is done less often there (tests/README.md).
#pragma once

namespace oneflow_like {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace oneflow_like
