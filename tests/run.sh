#!/bin/sh
# Everything this project tests: installs what is missing, builds all, runs all tests; then builds the tests of the
# runtime, of several processes, of boxing and of the loss curve with sanitizers and runs those
# (OFL_SKIP_SANITIZERS=1 leaves that out).
set -eu
cd "$(dirname "$0")/.."
. ./install.sh
install_packages

# Tests run side by side: kernel threads that wait for work must leave the cores to others.
export OMP_WAIT_POLICY=passive

cmake -S . -B build -G Ninja
cmake --build build
ctest --test-dir build/tests -j2 --output-on-failure

if [ "${OFL_SKIP_SANITIZERS:-0}" = 1 ]; then
  exit 0
fi

# The libraries that tests are linked with, and no others, are built again; -O1 to keep that short.
sanitize() {
  name=$1 sanitizers=$2
  cmake -S . -B "build/$name" -G Ninja -DOFL_SANITIZE="$sanitizers"
  cmake --build "build/$name" --target "${name}_tests"
  ctest --test-dir "build/$name/tests" -L "^$name\$" -j2 --output-on-failure --no-tests=error
}
ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 sanitize asan address,undefined
# OpenMP's runtime is not built for ThreadSanitizer, which would take its barriers for races: one thread in kernels.
# And UCX's hooks of mmap run in threads that ThreadSanitizer has forgotten already.
OMP_NUM_THREADS=1 UCX_MEM_MMAP_HOOK_MODE=none TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 sanitize tsan thread
