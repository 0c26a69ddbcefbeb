// bench: what the parts of the runtime and the whole steps cost, beside what the machine could do.
//   build/tests/bench --benchmark_filter='^Act|^Message|^Boxing|^Kernel|^GptStep|^Ceiling'
// tests/PERFORMANCE.md says how to read it.
#include "tests/bench/bench.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  oneflow_like::bench::RegisterBoxing();
  oneflow_like::bench::RegisterKernels();
  oneflow_like::bench::RegisterGptSteps();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
