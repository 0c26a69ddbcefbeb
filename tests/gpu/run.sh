#!/bin/sh
# Runs every check that needs a GPU and prints one table. In the bundle that bundle.sh makes:
#   ./run.sh                        everything
#   ./run.sh --only=ops,boxing      some of it; --list names all. Groups: correctness, sanitizers, speed
#   ./run.sh --device=1 --logs=DIR  on another GPU; where each check's output goes (default ./logs)
#   ./run.sh --limit=600            no program may take longer, in seconds (default 1800)
#   ./run.sh --total=570            no check begins after so many seconds, and none then running goes on: a table
#                                   in any case, where a command may not take longer
#   ./run.sh --python=FILE          the one that has PyTorch, where it is none of the usual ones
#   ./run.sh --caches=DIR           where compiled kernels are kept (default ./caches, so that they can be taken along
#                                   to the next bare machine; empty: where the user's are)
# Exit code: 0 all passed (skipped: not for this machine, as what needs several cards where there is one), 1 some
# failed, 2 there is no GPU or the backend cannot be loaded, 3 none failed but some could not be run (no PyTorch, no
# compute-sanitizer, no time). README.md beside this file in the source tree says how long each takes.
set -u
cd "$(dirname "$0")" || exit 1

FIRST="ops sizes loss_curves narrow_types faults sessions out_of_memory examples nccl cards boxing"
LONG="signatures"  # some 200,000 cases: after what says how fast it is
CORRECTNESS="$FIRST $LONG"
SANITIZERS="memcheck racecheck"
SPEED="ceilings steps_124M torch_124M kernels_124M steps_1.3B torch_1.3B kernels_1.3B gemms_124M gemms_1.3B"
CHECKS="$FIRST $SPEED $LONG $SANITIZERS"
only= device=0 logs=logs limit=1800 total=0 python= caches=caches
for argument in "$@"; do
  case $argument in
    --only=*) only=$(echo "${argument#*=}" | tr ',' ' ') ;;
    --device=*) device=${argument#*=} ;;
    --logs=*) logs=${argument#*=} ;;
    --limit=*) limit=${argument#*=} ;;
    --total=*) total=${argument#*=} ;;
    --python=*) python=${argument#*=} ;;
    --caches=*) caches=${argument#*=} ;;
    --list) echo $CHECKS; exit 0 ;;
    *) echo "run.sh: '$argument' is not known; --only=CHECK,... --device=N --logs=DIR --limit=SECONDS --total=SECONDS --python=FILE --caches=DIR --list" >&2; exit 1 ;;
  esac
done
only=$(for check in $only; do
  case $check in
    correctness) echo $CORRECTNESS ;;
    sanitizers) echo $SANITIZERS ;;
    speed) echo $SPEED ;;
    *) echo $check ;;
  esac
done)
only=$(echo $only)
for check in $only; do
  case " $CHECKS " in
    *" $check "*) ;;
    *) echo "run.sh: there is no check '$check'; there are: $CHECKS; groups: correctness sanitizers speed" >&2; exit 1 ;;
  esac
done
began=$(date +%s)
mkdir -p "$logs" || exit 1
# Ours (kernels compiled by NVRTC), the driver's, and PyTorch's.
if [ -n "$caches" ] && mkdir -p "$caches"; then
  XDG_CACHE_HOME=$(cd "$caches" && pwd)
  CUDA_CACHE_PATH=$XDG_CACHE_HOME/driver TORCHINDUCTOR_CACHE_DIR=$XDG_CACHE_HOME/torch
  TRITON_CACHE_DIR=$XDG_CACHE_HOME/triton
  export XDG_CACHE_HOME CUDA_CACHE_PATH TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR
fi

# Of the Pythons there usually are the first that has PyTorch: for what it measures, and since CUDA's libraries may have
# come with it.
find_python() {
  for candidate in python3 python "${VIRTUAL_ENV:-/opt/venv}/bin/python" "${CONDA_PREFIX:-/opt/conda}/bin/python" \
    /opt/venv/bin/python /opt/conda/bin/python /usr/local/bin/python3 /usr/bin/python3; do
    "$candidate" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null &&
      echo "$candidate" && return
  done
  echo python3
}
[ -n "$python" ] || python=$(find_python)

# CUDA's libraries where the linker does not find them itself: the toolkit's folder, and what comes with PyTorch. Only
# for our programs; their own libraries (lib/) are found by path and come first.
WANTED=$(cat wanted 2>/dev/null)
folders_to_look_in() {
  printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/local/cuda-*/lib64 /usr/local/cuda-*/lib \
    /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu/nvidia/current
  "$python" -c '
import glob, os, site, sys
roots = dict.fromkeys([p for p in sys.path if p] + site.getsitepackages() + [site.getusersitepackages()])
for root in roots:
  for pattern in (("nvidia", "*", "lib"), ("torch", "lib")):
    print(*sorted(glob.glob(os.path.join(root, *pattern))), sep="\n")
print(os.path.join(sys.prefix, "lib"))' 2>/dev/null
}
cuda_libraries() {
  folders_to_look_in | while read -r folder; do
    for library in $WANTED; do
      if [ -n "$folder" ] && [ -e "$folder/$library" ]; then printf '%s:' "$folder" && break; fi
    done
  done
}
LIBRARIES=$(echo "$(cuda_libraries)${LD_LIBRARY_PATH:-}" | sed 's/:$//')
# UCX looks for transports beside itself, and then where its package had them: not another UCX's of this machine.
ours() {
  LD_LIBRARY_PATH="$LIBRARIES" UCX_MODULE_DIR="$PWD/lib/ucx" timeout -k 10 "$(seconds_left)" "$@"
}
seconds_left() {  # for one program: the limit, or less where less of the total is left
  left=$limit
  if [ "$total" -gt 0 ]; then
    rest=$((began + total - $(date +%s)))
    [ $rest -lt $left ] && left=$rest
    [ $left -gt 0 ] || left=1
  fi
  echo $left
}
where_is() {  # a library -> its path as the loader finds it; nothing: it does not
  for folder in $(echo "$LIBRARIES" | tr ':' ' '); do
    if [ -e "$folder/$1" ]; then echo "$folder/$1" && return; fi
  done
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n "s|^[[:space:]]*$1 .* => ||p" | head -n 1
}
for library in $WANTED; do
  path=$(where_is "$library")
  echo "library: $library $([ -n "$path" ] && echo "is $path" || echo "is NOT FOUND: put its folder into LD_LIBRARY_PATH")"
done

# The bundle's C++ library may want a newer glibc than this machine has. Then the machine's own may do.
if ldd bin/ops_gpu 2>&1 | grep -q "GLIBC_[0-9.]*' not found (required by .*/lib/lib\(stdc++\|gcc_s\)"; then
  echo "library: libstdc++.so.6 is this machine's, since the bundle's wants a newer glibc"
  mkdir -p lib/unused && mv lib/libstdc++.so.6 lib/libgcc_s.so.1 lib/unused/
fi

# The value of `key=` in the last line that begins with "result:".
value() { grep '^result:' "$1" 2>/dev/null | tail -n 1 | tr ' ' '\n' | sed -n "s/^$2=//p"; }
json() { sed -n "s/.*\"$2\": \"\{0,1\}\([^,\"}]*\).*/\1/p" "$1" 2>/dev/null | tail -n 1; }

missing() { echo "not run: $*" > "$log.missing"; }

skipped() { echo "$*" > "$log.skipped"; }

tests() {  # program filter; with no test that is for this machine the check is skipped
  program=$1 filter=$2
  shift 2
  ours "bin/$program" "--device=$device" "--gtest_filter=$filter" "$@" || return
  if grep -q '\[       OK \]' "$log"; then return; fi
  grep -q '\[  SKIPPED \]' "$log" || { echo "figure: $program has no test $filter" && return 1; }
  skipped "$(sed -n '/: Skipped$/{n;p;}' "$log" | head -n 1)"
}

sanitizer() {
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer \
    2>/dev/null | head -n 1)
  if [ -z "$tool" ]; then
    missing "compute-sanitizer is not installed"
    return 1
  fi
  # NVIDIA's libraries try calls that fail (symbols of other drivers); we look at every status of our own. Memory is
  # watched in all kernels, since operands that we describe wrongly fail in theirs. Races are looked for in ours: theirs
  # order accesses in ways the tool does not see, and take it very long. ("oneflow_like" is in the mangled names, which
  # are compared; generated kernels are called ofl_...)
  set -- "$1" --report-api-errors no
  if [ "$1" = racecheck ]; then
    named=$("$tool" --help 2>&1 | grep -o -e '--kernel-name\>' -e '--kernel-regex\>' | head -n 1)
    if [ -n "$named" ]; then set -- "$@" "$named" kns=oneflow_like "$named" kns=ofl_; fi
  fi
  ours "$tool" --tool "$@" --error-exitcode 9 bin/ops_gpu "--device=$device" --quick --apart \
    '--gtest_filter=-Nccl*:Memory*:Faults*:*ModelSizes*'
  code=$?
  grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/=* *//; s/^/figure: /'
  # Where the tool does not know the card or its driver nothing has been checked.
  if [ $code -ne 0 ] && grep -q 'Device not supported\|Unable to find injection library\|not supported on this' "$log"; then
    missing "compute-sanitizer does not work on this machine"
  fi
  return $code
}

# The first losses on the GPU beside the CPU's, and a run to the end.
examples() {
  common="--text=data/jargon.txt.gz --steps=20 --eval_batches=0 --sample_tokens=0 --dropout=0"
  ours bin/gpt --mesh=cpu:dp=1 $common --log_json="$logs/gpt_cpu.json" || return
  ours bin/gpt --mesh=cuda:dp=1 --devices=$device $common --log_json="$logs/gpt_cuda.json" || return
  ours bin/gpt --mesh=cuda:dp=2,tp=2,pp=2 --devices=$device --micro_batches=4 --text=data/jargon.txt.gz --steps=20 \
    --eval_batches=2 --sample_tokens=20 || return
  paste "$logs/gpt_cpu.json" "$logs/gpt_cuda.json" | sed 's/[^\t]*"loss": *\([^,}]*\)[^\t]*/\1/g' | awk '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; lines++ }
    END { printf "figure: gpt, %d steps, cpu and GPU differ by %.1e\n", lines, worst; exit !(lines == 20 && worst <= 1e-3) }'
}

bench() { ours bin/bench_gpu "--device=$device" "$@"; }

torch_steps() {  # model batches...
  if ! "$python" -c 'import torch, sys; sys.exit(not (torch.cuda.is_available() and int(torch.__version__.split(".")[0]) >= 2))' 2>/dev/null
  then
    missing "$python has no PyTorch 2 that sees a GPU"
    return 1
  fi
  model=$1
  shift
  timeout -k 10 "$(seconds_left)" "$python" peers/gpt_cuda.py --model "$model" --device "$device" --batch "$@" || return
  their=$(json "$log" tokens_per_s)
  text="$(printf '%.0f' "$their") tokens/s, batch $(json "$log" batch), PyTorch $(json "$log" torch) compiled"
  own=$(value "$logs/steps_$model.log" tokens_per_s)
  if [ -n "$own" ]; then text="$text; ours is $(awk "BEGIN { printf \"%.2f\", $own / $their }") times it"; fi
  echo "figure: $text"
}

run_check() {
  case $1 in
    ops) tests ops_gpu 'Catalog/*Has*:Catalog/*InEveryType*:Larger*:Together*:Faults*' ;;
    sizes) tests ops_gpu '*ModelSizes*' ;;
    signatures) tests ops_gpu 'Catalog/*UnderEverySignature*' ;;
    boxing) tests ops_gpu 'Boxing*' && tests runtime_gpu 'Boxing*' ;;
    loss_curves) tests runtime_gpu 'LossCurve*:*VirtualGpus*' ;;
    narrow_types) tests runtime_gpu '*Narrow*' ;;
    nccl) tests ops_gpu 'Nccl*' ;;
    cards) tests runtime_gpu 'Cards*' ;;
    faults) tests runtime_gpu 'Faults*' ;;
    out_of_memory) tests runtime_gpu 'Memory*' && tests ops_gpu 'Memory*' ;;
    sessions) tests runtime_gpu 'Sessions*' ;;
    examples) examples ;;
    memcheck | racecheck) sanitizer "$1" ;;
    ceilings) bench --what=ceilings ;;
    steps_124M) bench --what=steps --model=124M --batch=32 ;;
    steps_1.3B) bench --what=steps --model=1.3B ;;
    torch_124M) torch_steps 124M 32 ;;
    torch_1.3B) torch_steps 1.3B 96 64 48 32 24 16 12 8 6 4 2 1 ;;
    kernels_124M) bench --what=kernels --model=124M --batch=32 ;;
    kernels_1.3B) bench --what=kernels --model=1.3B ;;
    gemms_124M) bench --what=gemms --model=124M --batch=32 ;;
    gemms_1.3B) bench --what=gemms --model=1.3B ;;
  esac
}

# One look at the card before anything else: 2 says that there is none, and why.
ours bin/ops_gpu "--device=$device" --gtest_filter=Nothing > "$logs/device.log" 2>&1
code=$?
sed -n '/^device: /p; /^no GPU/p' "$logs/device.log"
if [ $code -eq 2 ]; then exit 2; fi
if [ $code -ne 0 ]; then cat "$logs/device.log"; exit 1; fi

failed=0 absent=0
printf '\n| check | result | figure | seconds |\n|---|---|---|---|\n'
for check in ${only:-$CHECKS}; do
  log=$logs/$check.log
  rm -f "$log.missing" "$log.skipped"
  start=$(date +%s)
  if [ "$total" -gt 0 ] && [ $((start - began)) -ge "$total" ]; then
    missing "no time was left"
    code=1
  else
    run_check "$check" > "$log" 2>&1
    code=$?
  fi
  seconds=$(($(date +%s) - start))
  figure=$(sed -n 's/^figure: //p' "$log" | tail -n 1)
  if [ -e "$log.missing" ]; then
    result="not run" figure=$(sed 's/^not run: //' "$log.missing") absent=$((absent + 1))
    rm -f "$log.missing"
  elif [ -e "$log.skipped" ]; then
    result=skipped figure=$(cat "$log.skipped")
    rm -f "$log.skipped"
  elif [ $code -eq 0 ]; then
    result=passed
  elif [ $code -eq 124 ] && [ "$total" -gt 0 ] && [ $(($(date +%s) - began)) -ge "$total" ]; then
    result="not finished" figure="no time was left" absent=$((absent + 1))
  else
    result="FAILED ($code)" failed=$((failed + 1))
    if [ $code -eq 124 ] || [ $code -eq 137 ]; then figure="ended after $limit s, or killed"; fi
    reason=$(grep -m 1 -A 1 '^error: \|: Failure$' "$log" | tr '\n|' ' /' | cut -c 1-160)
    [ -n "$figure$reason" ] || reason=$(grep -m 1 'error\|\[  FAILED' "$log" | tr '|' '/' | cut -c 1-160)
    figure="$figure${figure:+${reason:+; }}$reason"
  fi
  # What a library refused and was done in a slower way, for one.
  warnings=$(grep -c '^W[0-9]\{4\}' "$log" 2>/dev/null)
  if [ "${warnings:-0}" -gt 0 ]; then figure="$figure; $warnings warnings in its log"; fi
  printf '| %s | %s | %s | %s |\n' "$check" "$result" "$figure" "$seconds"
done
for check in kernels_124M kernels_1.3B gemms_124M gemms_1.3B; do
  [ -z "$only" ] || case " $only " in *" $check "*) ;; *) continue ;; esac
  printf '\n%s:\n\n' "$check"
  grep '^|' "$logs/$check.log"
done 2>/dev/null
echo
if [ $failed -gt 0 ]; then echo "$failed failed; what each printed is in $logs/"; exit 1; fi
if [ $absent -gt 0 ]; then echo "none failed, $absent could not be run"; exit 3; fi
echo "all passed"
