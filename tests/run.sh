#!/bin/sh
# Installs what is missing, builds the tests and runs them: 20 to 30 minutes on two cores, from a fresh clone.
#   tests/run.sh          the ordinary tests; builds what they need
#   tests/run.sh --all    everything, at most 60 minutes: also builds the CUDA backend (where there is a toolkit), the
#                         benchmarks and the programs for GPUs, runs the long tests, and runs those of runtime, processes,
#                         boxing and loss curve under sanitizers
# The last lines say how each of them ended; a failure in one does not keep the next from running.
set -eu
cd "$(dirname "$0")/.."
all=no
case ${1-} in
  "") ;;
  --all) all=yes ;;
  *)
    echo "tests/run.sh: '$1' is not known; there is --all" >&2
    exit 2
    ;;
esac
. ./install.sh
install_packages

# Tests run side by side: kernel threads that wait for work must leave the cores to others.
export OMP_WAIT_POLICY=passive
results=build/test_results
mkdir -p $results
rm -f $results/*
failed=

# name, build folder, arguments of ctest
run_tests() {
  name=$1 folder=$2
  shift 2
  begin=$(date +%s)
  ctest --test-dir "$folder/tests" -j2 --output-on-failure --no-tests=error -O "$results/$name.log" "$@" ||
    failed="$failed $name"
  last=$(grep -E 'tests passed|No tests were found' "$results/$name.log" | tail -1)
  echo "$name: ${last:-ctest did not end}, $(($(date +%s) - begin)) s" >> $results/summary
}

# The libraries that tests are linked with, and no others, are built again; -O1 to keep that short.
sanitize() {
  name=$1 sanitizers=$2
  cmake -S . -B "build/$name" -G Ninja -DOFL_SANITIZE="$sanitizers"
  cmake --build "build/$name" --target "${name}_tests"
  run_tests "$name" "build/$name" -L "^$name\$"
}

started=$(date +%s)
cmake -S . -B build -G Ninja
if [ $all = yes ]; then
  cmake --build build
else
  cmake --build build --target test_programs
fi
echo "build: $(($(date +%s) - started)) s" >> $results/summary
if [ $all = yes ]; then
  run_tests tests build  # with the long ones among them: they keep one core busy while the others take the second
  ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 sanitize asan address,undefined
  # OpenMP's runtime is not built for ThreadSanitizer, which would take its barriers for races: one thread in
  # kernels, whatever a test asks for.
  # And UCX's hooks of mmap run in threads that ThreadSanitizer has forgotten already.
  OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 UCX_MEM_MMAP_HOOK_MODE=none TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 sanitize tsan thread
else
  run_tests tests build -LE '^long$'
fi

echo
cat $results/summary
if [ -n "$failed" ]; then
  echo "FAILED:$failed (build/test_results has what was printed)"
  exit 1
fi
echo "all passed in $(($(date +%s) - started)) s"
