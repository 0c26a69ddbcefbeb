#!/bin/sh
# Runs every check that needs a GPU and prints one table. In the bundle that bundle.sh makes:
#   ./run.sh                        everything
#   ./run.sh --only=ops,boxing      some of it; --list names all. Groups: correctness, sanitizers, speed
#   ./run.sh --device=1 --logs=DIR  on another GPU; where each check's output goes (default ./logs)
#   ./run.sh --limit=600            no program may take longer, in seconds (default 1800)
#   ./run.sh --total=570            no check begins after so many seconds, and none then running goes on: a table
#                                   in any case, where a command may not take longer
#   ./run.sh --apart                one check at a time; else those of correctness run side by side where there are at
#                                   least eight cores (their seconds are then those of all)
#   ./run.sh --seed=N               of the cuts that 'signatures' draws (default: the time), --signature_seconds=N for
#                                   how long (default 60; 0: all 200,000)
#   ./run.sh --python=FILE          the one that has PyTorch, where it is none of the usual ones
#   ./run.sh --caches=DIR           where compiled kernels are kept (default ./caches, so that they can be taken along
#                                   to the next bare machine; empty: where the user's are)
# Exit code: 0 all passed (skipped: not for this machine, as what needs several cards where there is one), 1 some
# failed, 2 there is no GPU or the backend cannot be loaded, 3 none failed but some could not be run (no PyTorch, no
# compute-sanitizer, no time). README.md beside this file in the source tree says how long each takes.
set -u
cd "$(dirname "$0")" || exit 1

TOGETHER="ops sizes loss_curves narrow_types faults sessions examples programs nccl cards boxing signatures"
CORRECTNESS="$TOGETHER out_of_memory"  # which wants the whole card
SANITIZERS="racecheck memcheck"
MODELS="llama_160m resnet_50 llama_1b moe_64 vit_base bert_base dlrm unet"  # as in peers/steps_cuda.py
FIRST="steps_124M torch_124M model_llama_160m model_resnet_50 model_llama_1b model_moe_64"
REST="ceilings calibrate attention grouped norms kernels_124M model_vit_base model_bert_base model_dlrm model_unet steps_1.3B torch_1.3B kernels_1.3B gemms_124M gemms_1.3B"
SPEED="$FIRST $REST"
CHECKS="$CORRECTNESS $FIRST $SANITIZERS $REST"
apart=no seed=$(date +%s) signature_seconds=60
only= device=0 logs=logs limit=1800 total=0 python= caches=caches
for argument in "$@"; do
  case $argument in
    --only=*) only=$(echo "${argument#*=}" | tr ',' ' ') ;;
    --device=*) device=${argument#*=} ;;
    --logs=*) logs=${argument#*=} ;;
    --limit=*) limit=${argument#*=} ;;
    --total=*) total=${argument#*=} ;;
    --python=*) python=${argument#*=} ;;
    --apart) apart=yes ;;
    --seed=*) seed=${argument#*=} ;;
    --signature_seconds=*) signature_seconds=${argument#*=} ;;
    --caches=*) caches=${argument#*=} ;;
    --list) echo $CHECKS; exit 0 ;;
    *) echo "run.sh: '$argument' is not known; --only=CHECK,... --device=N --logs=DIR --limit=SECONDS --total=SECONDS --apart --seed=N --signature_seconds=N --python=FILE --caches=DIR --list" >&2; exit 1 ;;
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

# Each program's losses on the GPU beside the CPU's, in fp32. A network with batch norms is chaotic: two meshes of the
# CPU differ by 1e-2 at the twelfth step.
PROGRAMS="gpt llama resnet vit bert unet dlrm moe caption insightface"
small_flags() {
  case $1 in
    gpt | llama) echo --layers=2 --context=64 --batch=8 --sample_tokens=0 ;;
    moe | bert) echo --layers=2 --context=64 --batch=8 ;;
    vit) echo --layers=2 --image_size=16 --batch=8 ;;
    caption) echo --layers=2 --image_size=8 --batch=8 ;;
    resnet | unet | insightface) echo --image_size=16 --batch=8 ;;
    dlrm) echo --tables=5 --batch=32 ;;
  esac
}
program_losses() {  # program mesh file
  program=$1 mesh=$2 to=$3
  shift 3
  # shellcheck disable=SC2046
  set -- $(small_flags "$program") --steps=12 --eval_batches=0 "--mesh=$mesh" "--log_json=$to"
  case $program in gpt | llama | moe | bert) set -- "$@" --text=data/jargon.txt.gz ;; esac
  case $mesh in cuda:*) set -- "$@" "--devices=$device" ;; esac
  ours "bin/$program" "$@"
}
programs() {
  wrong= worst=0
  for program in $PROGRAMS; do
    program_losses "$program" cpu:dp=1 "$logs/${program}_12_cpu.json" &&
      program_losses "$program" cuda:dp=1 "$logs/${program}_12_cuda.json" || { wrong="$wrong $program" && continue; }
    steps=12 bound=1e-5
    case $program in resnet | insightface) steps=4 bound=1e-4 ;; esac
    differs=$(paste "$logs/${program}_12_cpu.json" "$logs/${program}_12_cuda.json" | grep '"loss"' |
      sed 's/[^\t]*"loss": *\([^,}]*\)[^\t]*/\1/g' | awk -v steps=$steps '
        NR <= steps { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; lines++ }
        END { if (lines == steps) printf "%.1e", worst; else print "missing" }')
    echo "$program: the losses of $steps steps on the CPU and the GPU differ by $differs of themselves, allowed are $bound"
    awk -v a="$differs" -v b=$bound 'BEGIN { exit !(a != "missing" && a + 0 <= b + 0) }' || wrong="$wrong $program"
    worst=$(awk -v a="$worst" -v b="$differs" 'BEGIN { if (b + 0 > a + 0) print b; else print a }')
  done
  if [ -n "$wrong" ]; then echo "figure: other losses than on the CPU, or none:$wrong" && return 1; fi
  echo "figure: ten programs, CPU and GPU differ by at most $worst"
}

# The program and its flags of a model, by its name in peers/steps_cuda.py, and of GPT-2 124M with bytes as its words.
flags_of() {
  if [ "$1" = gpt_124M ]; then
    echo gpt --layers=12 --width=768 --heads=12 --context=1024 --batch=32 --dropout=0
  else
    "$python" peers/steps_cuda.py "$1" --flags 2>/dev/null || sed -n "s/^    \"$1\": \"\(.*\)\",/\1/p" peers/steps_cuda.py
  fi
}

# The median of all steps of a program's log but the first five, in milliseconds.
median_step() {
  sed -n 's/.*"step_ms": *\([0-9.e+-]*\).*/\1/p' "$1" | tail -n +6 | sort -g | awk '{ a[NR] = $1 } END { if (NR) print a[int((NR + 1) / 2)] }'
}

# Describes the card by --calibrate, and compares what --simulate predicts by that file with measured steps.
calibrate() {
  card=$logs/card.txt
  began_here=$(date +%s)
  # --v=1: each kernel that was timed is in the log.
  ours bin/gpt "--calibrate=$card" --mesh=cuda:dp=1 "--devices=$device" --v=1 || return
  took=$(($(date +%s) - began_here))
  cat "$card"
  wrong=0 text="calibrated in $took s"
  for name in gpt_124M llama_160m moe_64; do
    flags=$(flags_of "$name")
    program=${flags%% *}
    # shellcheck disable=SC2086
    set -- ${flags#* } --mesh=cuda:dp=1 --dtype=bf16 --eval_batches=0
    case $program in gpt | llama) set -- "$@" --sample_tokens=0 ;; esac
    ours "bin/$program" "$@" --simulate "--topology=$card" > "$log.simulated" 2>&1 || { cat "$log.simulated" && return 1; }
    cat "$log.simulated"
    predicted=$(awk '/^simulated: a step takes/ { print $5 * ($6 ~ /^ms/ ? 1 : $6 ~ /^us/ ? 0.001 : 1000) }' "$log.simulated")
    ours "bin/$program" "$@" "--devices=$device" --steps=15 "--log_json=$logs/calibrate_$name.json" || return
    measured=$(median_step "$logs/calibrate_$name.json")
    [ -n "$predicted" ] && [ -n "$measured" ] || { echo "error: $name has no predicted or no measured time" && return 1; }
    off=$(awk "BEGIN { printf \"%+.1f\", 100 * ($predicted / $measured - 1) }")
    text="$text; $name predicted $predicted ms, measured $measured ($off %)"
    awk "BEGIN { exit !($off <= 10 && $off >= -10) }" || wrong=1
  done
  echo "figure: $text"
  [ $wrong -eq 0 ] || echo "error: a step is more than 10 % off its prediction"
  return $wrong
}

# A program's step in bf16 beside the same model's in PyTorch, compiled.
model_step() {  # name, as in peers/steps_cuda.py
  flags=$(flags_of "$1")
  program=${flags%% *}
  # shellcheck disable=SC2086
  set -- "$1" ${flags#* } --mesh=cuda:dp=1 "--devices=$device" --dtype=bf16 --steps=25 --eval_batches=0
  name=$1
  shift
  case $program in llama) set -- "$@" --sample_tokens=0 ;; esac
  ours "bin/$program" "$@" "--log_json=$logs/model_$name.json" || return
  own=$(median_step "$logs/model_$name.json")
  [ -n "$own" ] || { echo "error: $program wrote no times of steps" && return 1; }
  text="$own ms a step"
  if sees_gpu; then
    timeout -k 10 "$(seconds_left)" "$python" peers/steps_cuda.py "$name" --device "$device" > "$log.torch" 2>&1
    code=$?
    cat "$log.torch"
    [ $code -eq 0 ] || { echo "figure: $text; PyTorch's ended with $code" && return $code; }
    their=$(json "$log.torch" step_ms)
    text="$text, PyTorch $(json "$log.torch" torch) compiled $their: $(awk "BEGIN { printf \"%.2f\", $their / $own }") times as fast"
  else
    text="$text; $python has no PyTorch 2 that sees a GPU"
  fi
  echo "figure: $text"
}

bench() { ours bin/bench_gpu "--device=$device" "$@"; }

sees_gpu() {
  "$python" -c 'import torch, sys; sys.exit(not (torch.cuda.is_available() and int(torch.__version__.split(".")[0]) >= 2))' 2>/dev/null
}

torch_steps() {  # model batches...
  if ! sees_gpu; then
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
    signatures) tests ops_gpu 'Catalog/*UnderEverySignature*' "--seconds=$signature_seconds" "--seed=$seed" ;;
    boxing) tests ops_gpu 'Boxing*' && tests runtime_gpu 'Boxing*' ;;
    loss_curves) tests runtime_gpu 'LossCurve*:*VirtualGpus*' ;;
    narrow_types) tests runtime_gpu '*Narrow*' ;;
    nccl) tests ops_gpu 'Nccl*' ;;
    cards) tests runtime_gpu 'Cards*' ;;
    faults) tests runtime_gpu 'Faults*' ;;
    out_of_memory) tests runtime_gpu 'Memory*' && tests ops_gpu 'Memory*' ;;
    sessions) tests runtime_gpu 'Sessions*' ;;
    examples) examples ;;
    programs) programs ;;
    model_*) model_step "${1#model_}" ;;
    memcheck | racecheck) sanitizer "$1" ;;
    ceilings) bench --what=ceilings ;;
    calibrate) calibrate ;;
    steps_124M) bench --what=steps --model=124M --batch=32 ;;
    steps_1.3B) bench --what=steps --model=1.3B ;;
    torch_124M) torch_steps 124M 32 ;;
    torch_1.3B) torch_steps 1.3B 96 64 48 32 24 16 12 8 6 4 2 1 ;;
    attention | grouped | norms) bench --what="$1" ;;
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
# Runs a check and keeps what became of it beside its log.
perform() {
  log=$logs/$1.log
  rm -f "$log.missing" "$log.skipped" "$log.torch" "$log.ended"
  start=$(date +%s)
  if [ "$total" -gt 0 ] && [ $((start - began)) -ge "$total" ]; then
    missing "no time was left"
    code=1
  else
    run_check "$1" > "$log" 2>&1
    code=$?
  fi
  echo "$code $(($(date +%s) - start))" > "$log.ended"
}

# Prints the line of the table of a check that was performed.
tell() {
  check=$1 log=$logs/$1.log
  read -r code seconds < "$log.ended"
  rm -f "$log.ended"
  figure=$(sed -n 's/^figure: //p' "$log" 2>/dev/null | tail -n 1)
  if [ -e "$log.missing" ]; then
    result="not run" figure=$(sed 's/^not run: //' "$log.missing") absent=$((absent + 1))
    rm -f "$log.missing"
  elif [ -e "$log.skipped" ]; then
    result=skipped figure=$(cat "$log.skipped")
    rm -f "$log.skipped"
  elif [ "$code" -eq 0 ]; then
    result=passed
  elif [ "$code" -eq 124 ] && [ "$total" -gt 0 ] && [ $(($(date +%s) - began)) -ge "$total" ]; then
    result="not finished" figure="no time was left" absent=$((absent + 1))
  else
    result="FAILED ($code)" failed=$((failed + 1))
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then figure="ended after $limit s, or killed"; fi
    reason=$(grep -m 1 -A 1 '^error: \|: Failure$' "$log" | tr '\n|' ' /' | cut -c 1-160)
    [ -n "$figure$reason" ] || reason=$(grep -m 1 'error\|\[  FAILED' "$log" | tr '|' '/' | cut -c 1-160)
    figure="$figure${figure:+${reason:+; }}$reason"
  fi
  # What a library refused and was done in a slower way, for one.
  warnings=$(grep -c '^W[0-9]\{4\}' "$log" 2>/dev/null)
  if [ "${warnings:-0}" -gt 0 ]; then figure="$figure; $warnings warnings in its log"; fi
  printf '| %s | %s | %s | %s |\n' "$check" "$result" "$figure" "$seconds"
}

checks=${only:-$CHECKS}
printf '\n| check | result | figure | seconds |\n|---|---|---|---|\n'
together=
if [ $apart = no ] && [ "$(nproc)" -ge 8 ]; then
  for check in $checks; do
    case " $TOGETHER " in *" $check "*) together="$together $check" ;; esac
  done
  for check in $together; do perform "$check" & done
  wait
  for check in $together; do tell "$check"; done
fi
for check in $checks; do
  case " $together " in *" $check "*) continue ;; esac
  perform "$check"
  tell "$check"
done
for check in attention grouped norms kernels_124M kernels_1.3B gemms_124M gemms_1.3B; do
  [ -z "$only" ] || case " $only " in *" $check "*) ;; *) continue ;; esac
  printf '\n%s:\n\n' "$check"
  grep '^|' "$logs/$check.log"
done 2>/dev/null
echo
if [ $failed -gt 0 ]; then echo "$failed failed; what each printed is in $logs/"; exit 1; fi
if [ $absent -gt 0 ]; then echo "none failed, $absent could not be run"; exit 3; fi
echo "all passed"
