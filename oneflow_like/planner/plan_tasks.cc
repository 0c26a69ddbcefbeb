#include "oneflow_like/planner/plan_tasks.h"

#include <oneapi/tbb/parallel_for.h>

namespace oneflow_like {

void SideBySide(int count, const std::function<void(int)>& task) {
#if defined(__SANITIZE_THREAD__)  // which does not see how oneTBB's library orders its tasks
  for (int i = 0; i < count; ++i) task(i);
#else
  oneapi::tbb::parallel_for(0, count, task, oneapi::tbb::simple_partitioner());
#endif
}

}  // namespace oneflow_like
