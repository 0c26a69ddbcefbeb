// Tasks side by side on oneTBB's threads.
#pragma once

#include <functional>

namespace oneflow_like {

// task(0) .. task(count - 1), each once; returns when all have. They must not throw.
void SideBySide(int count, const std::function<void(int)>& task);

}  // namespace oneflow_like
