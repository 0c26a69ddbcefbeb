#!/bin/sh
# The tiers of tests/run.sh, with stand-ins for what builds and runs: which programs are built, which labels are run, and
# that a part that did not build, did not run a tier or failed is an error.
#   tests/tiers_test.sh
set -u
tests=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tests" "$folder/bin"
cp "$tests/run.sh" "$folder/tests/"
echo 'install_packages() { :; }' > "$folder/install.sh"
cat > "$folder/bin/cmake" <<'SCRIPT'
#!/bin/sh
[ "$1" != --build ] || echo "$@" >> done
case " $BROKEN " in *" $2 "*) exit 1 ;; esac
SCRIPT
# Says, in ctest's words, that each label it was asked for had two tests; none of those in $EMPTY.
cat > "$folder/bin/ctest" <<'SCRIPT'
#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --test-dir) folder=${2%/tests} ;;
    -L) labels=$(echo "$2" | tr -d '^()$' | tr '|' ' ') ;;
    -O) log=$2 ;;
  esac
  shift
done
echo "ctest $folder: $labels" >> done
{
  echo "100% tests passed, 0 tests failed out of 4"
  echo
  echo "Label Time Summary:"
  for label in $labels; do
    case " $EMPTY " in *" $label "*) ;; *) echo "$label    =   0.04 sec*proc (2 tests)" ;; esac
  done
} > "$log"
case " $FAILING " in *" $folder "*) exit 8 ;; esac
SCRIPT
cat > "$folder/bin/git" <<'SCRIPT'
#!/bin/sh
echo 1000000001
SCRIPT
chmod +x "$folder"/bin/*
failed=0

# What is broken, arguments, exit code, then lines that must be in what run.sh did and printed; "no LINE" must not.
expect() {
  what=$1 arguments=$2 wanted=$3
  shift 3
  rm -f "$folder/done"
  code=0
  # shellcheck disable=SC2086  # arguments are several words
  (cd "$folder" && env PATH="$folder/bin:$PATH" BROKEN= EMPTY= FAILING= $what ./tests/run.sh $arguments) > "$folder/printed" 2>&1 || code=$?
  [ "$code" = "$wanted" ] || { echo "$what $arguments: exit code $code, not $wanted"; cat "$folder/printed"; failed=1; }
  for line in "$@"; do
    if ! cat "$folder/done" "$folder/printed" 2>/dev/null | grep -qxF -e "$line"; then
      echo "$what $arguments: no line '$line' in"
      cat "$folder/done" "$folder/printed"
      failed=1
    fi
  done
}
expect_not() {
  if grep -qF -e "$1" "$folder/done"; then
    echo "'$1' is in"
    cat "$folder/done"
    failed=1
  fi
}

expect "" "" 0 "--build build --target test_programs" "ctest build: ordinary" "The same again: ./tests/run.sh"
expect_not long
expect "" --long 0 "--build build --target long_programs" "ctest build: long" "ctest build/asan: long" "ctest build/tsan: long"
expect_not test_programs
expect "" --all 0 "--build build --target test_programs long_programs" "ctest build: ordinary long" \
  "--build build/asan --target long_programs" "ctest build/asan: long" "ctest build/tsan: long" "The same again: ./tests/run.sh --all"
expect "" --ci=1 0 "--build build --target test_programs long_programs_1" "ctest build: ordinary third_1" \
  "--build build/asan --target long_programs_1" "ctest build/asan: third_1" "100% tests passed, 0 tests failed out of 4" \
  "The same again: ./tests/run.sh --ci=1"
expect_not build/tsan
expect "" --ci 0 "ctest build: ordinary third_2" "--build build/tsan --target long_programs_2" "ctest build/tsan: third_2" \
  "The same again: ./tests/run.sh --ci=2"
expect_not build/asan
expect "" "--ci=0 --times" 0 "ctest build/times: ordinary third_0" "The same again: ./tests/run.sh --ci=0 --times"

expect "BROKEN=build" --ci=0 1 "tests: NOT BUILT" "ctest build/asan: third_0" "FAILED: tests (build/test_results has what was printed)"
expect "BROKEN=build/asan" --ci=0 1 "asan: NOT BUILT" "FAILED: asan (build/test_results has what was printed)"
expect "FAILING=build/asan" --ci=0 1 "FAILED: asan (build/test_results has what was printed)"
expect "EMPTY=third_0" --ci=0 1 "tests: NO TEST of label third_0 was run" "FAILED: tests asan (build/test_results has what was printed)"
expect "EMPTY=ordinary" --ci=0 1 "tests: NO TEST of label ordinary was run" "FAILED: tests (build/test_results has what was printed)"
expect "" --most 2 "tests/run.sh: '--most' is not known; there are --long, --all, --ci, --ci=0, --ci=1, --ci=2 and --times"
expect "" --ci=3 2
exit $failed
