#!/bin/sh
# Installs what is missing, builds the tests of a tier and runs them.
#   tests/run.sh          the ordinary tests: at most 20 minutes on two cores, from a fresh clone
#   tests/run.sh --long   the long tests: random and long searches, sanitizers; also builds what no test starts: the CUDA
#                         backend (where there is a toolkit), benchmarks, programs for GPUs
#   tests/run.sh --all    both
#   tests/run.sh --ci=K   the ordinary tests and third K of the long ones (0, 1 or 2); without =K, the third that the time
#                         of the last commit chooses
# With --times the same in build/times, where everything is compiled anew: prints processor-seconds by target and test.
# The last lines say how each part ended; a failure in one does not keep the next from running.
set -eu
cd "$(dirname "$0")/.."
tier=ordinary third= top=build times=
for argument in "$@"; do
  case $argument in
    --long | --all) tier=${argument#--} ;;
    --ci)
      tier=ci
      moment=$(git -c safe.directory="$PWD" log -1 --format=%ct || date +%s)
      third=$((moment % 3))
      ;;
    --ci=[012]) tier=ci third=${argument#--ci=} ;;
    --times) top=build/times times="-DOFL_TIMES=ON -DOFL_CCACHE=OFF" ;;
    *)
      echo "tests/run.sh: '$argument' is not known; there are --long, --all, --ci, --ci=0, --ci=1, --ci=2 and --times" >&2
      exit 2
      ;;
  esac
done
sanitizers=
case $tier in
  ordinary) again= labels=ordinary programs=test_programs ;;
  long) again=--long labels=long programs=long_programs sanitizers="asan tsan" ;;
  all) again=--all labels="ordinary long" programs="test_programs long_programs" sanitizers="asan tsan" ;;
  ci)
    again=--ci=$third labels="ordinary third_$third" programs="test_programs long_programs_$third"
    sanitizers=asan  # as deal_thirds has it in tests/ctest.cmake
    [ "$third" != 2 ] || sanitizers=tsan
    ;;
esac
again="./tests/run.sh${again:+ $again}${times:+ --times}"
echo "The same again: $again"
. ./install.sh
install_packages

# Tests run side by side: kernel threads that wait for work must leave the cores to others.
export OMP_WAIT_POLICY=passive
units=$((3 * $(nproc) + 2))  # of processors: tests/ctest.cmake
[ -z "$times" ] || rm -rf $top
results=$top/test_results
mkdir -p $results
rm -f $results/*
started=$(date +%s)
failed=

# Builds programs of a folder and runs the tests of some labels: name, folder, OFL_SANITIZE, programs, labels.
part() {
  name=$1 folder=$2 begin=$(date +%s)
  # shellcheck disable=SC2086  # lists of words on purpose
  if ! { cmake -S . -B "$folder" -G Ninja -DOFL_NATIVE=ON -DOFL_SANITIZE="$3" $times && cmake --build "$folder" --target $4; }; then
    echo "$name: NOT BUILT" >> $results/summary
    failed="$failed $name"
    return
  fi
  echo "$name: built in $(($(date +%s) - begin)) s" >> $results/summary
  begin=$(date +%s)
  log=$results/$name.log
  ctest --test-dir "$folder/tests" -j $units -L "^($(echo "$5" | tr ' ' '|'))\$" --output-on-failure --no-tests=error -O "$log" ||
    failed="$failed $name"
  echo "$name: run in $(($(date +%s) - begin)) s" >> $results/summary
  sed -n '/^[0-9]*% tests passed, /,$p' "$log" >> $results/summary
  for label in $5; do
    if ! grep -Eq "^$label +=.*\([1-9][0-9]* tests?\)$" "$log"; then
      echo "$name: NO TEST of label $label was run" >> $results/summary
      failed="$failed $name"
    fi
  done
}

part tests $top "" "$programs" "$labels"
for sanitizer in $sanitizers; do
  case $sanitizer in
    asan)
      export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
      part asan $top/asan address,undefined "${programs#test_programs }" "${labels#ordinary }"
      ;;
    tsan)
      # OpenMP's runtime is not built for ThreadSanitizer, which would take its barriers for races: one thread in
      # kernels, whatever a test asks for.
      # And UCX's hooks of mmap run in threads that ThreadSanitizer has forgotten already.
      export OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 UCX_MEM_MMAP_HOOK_MODE=none TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
      part tsan $top/tsan thread "${programs#test_programs }" "${labels#ordinary }"
      ;;
  esac
done

echo
if [ -n "$times" ]; then
  for folder in $top $top/asan $top/tsan; do
    [ -e $folder/seconds ] || continue
    echo "Processor-seconds in $folder, and for tests seconds by the clock:"
    awk '$1 == "test" { tests += $3 + $4; printf "test %s %.1f %.1f\n", $2, $3 + $4, $5 | "sort -k3 -rn" }
         $1 != "test" { targets += $3 + $4; target[$2] += $3 + $4 }
         END { close("sort -k3 -rn")
               for (name in target) printf "target %s %.1f\n", name, target[name] | "sort -k3 -rn"
               close("sort -k3 -rn")
               printf "all targets %.0f\nall tests %.0f\n", targets, tests }' $folder/seconds
  done
  echo
fi
cat $results/summary
echo "The same again: $again"
if [ -n "$failed" ]; then
  echo "FAILED:$failed ($results has what was printed)"
  exit 1
fi
echo "all passed in $(($(date +%s) - started)) s"
