#!/bin/sh
# Runs every check that needs a GPU and prints one table. In the bundle that bundle.sh makes:
#   ./run.sh                        everything
#   ./run.sh --only=ops,boxing      some of it; --list names all. Groups: correctness, sanitizers, speed, models
#   ./run.sh --device=1 --logs=DIR  on another GPU; where each check's output goes (default ./logs)
#   ./run.sh --limit=600            no program may take longer, in seconds (default 1800)
#   ./run.sh --total=540            no check begins after so many seconds, and none then running goes on: a table
#                                   in any case, where a command may not take longer. Without --only= each check has
#                                   its share of them (limit_of), so that one that is slow leaves time to the others
#   ./run.sh --out=DIR              the table, and what all checks printed, packed: at most 8 files of 16 MiB
#   ./run.sh --sanitize=FILTER      of the operators' tests only these under the sanitizers, where time is short
#   ./run.sh --nccl=DIR             a folder with libnccl.so.2 of 2.30 or newer, for 'ranks': several on one card
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
MODELS="llama_160m resnet_50 llama_1b moe_64 vit_base bert_base dlrm unet caption insightface"  # as in peers/steps_cuda.py
FIRST="steps_124M torch_124M model_llama_160m model_resnet_50 model_llama_1b model_moe_64 calibrate"
REST="model_vit_base model_bert_base steps_124M_untuned tf32 steps_1.3B torch_1.3B model_dlrm model_unet model_caption model_insightface ceilings attention grouped norms kernels_124M kernels_1.3B gemms_124M gemms_1.3B"
SPEED="$FIRST $REST"
CHECKS="$CORRECTNESS $FIRST ranks $SANITIZERS $REST"
apart=no seed=$(date +%s) signature_seconds=60
only= device=0 logs=logs limit=1800 total=0 python= caches=caches nccl= out=
sanitize='-Nccl*:Ranks*:Memory*:Faults*:*ModelSizes*'
for argument in "$@"; do
  case $argument in
    --only=*) only=$(echo "${argument#*=}" | tr ',' ' ') ;;
    --device=*) device=${argument#*=} ;;
    --logs=*) logs=${argument#*=} ;;
    --limit=*) limit=${argument#*=} ;;
    --total=*) total=${argument#*=} ;;
    --python=*) python=${argument#*=} ;;
    --nccl=*) nccl=${argument#*=} ;;
    --out=*) out=${argument#*=} ;;
    --sanitize=*) sanitize=${argument#*=} ;;
    --apart) apart=yes ;;
    --seed=*) seed=${argument#*=} ;;
    --signature_seconds=*) signature_seconds=${argument#*=} ;;
    --caches=*) caches=${argument#*=} ;;
    --list) echo $CHECKS; exit 0 ;;
    *) echo "run.sh: '$argument' is not known; --only=CHECK,... --device=N --logs=DIR --limit=SECONDS --total=SECONDS --apart --seed=N --signature_seconds=N --python=FILE --caches=DIR --nccl=DIR --out=DIR --sanitize=FILTER --list" >&2; exit 1 ;;
  esac
done
only=$(for check in $only; do
  case $check in
    correctness) echo $CORRECTNESS ;;
    sanitizers) echo $SANITIZERS ;;
    speed) echo $SPEED ;;
    models) for model in $MODELS; do echo "model_$model"; done ;;
    *) echo $check ;;
  esac
done)
only=$(echo $only)
for check in $only; do
  case " $CHECKS " in
    *" $check "*) ;;
    *) echo "run.sh: there is no check '$check'; there are: $CHECKS; groups: correctness sanitizers speed models" >&2; exit 1 ;;
  esac
done
began=$(date +%s)
mkdir -p "$logs" ${out:+"$out"} || exit 1
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
# Seconds that a check has in a run of everything within a total. Those of correctness have them side by side.
limit_of() {
  case $1 in
    out_of_memory | ceilings) echo 30 ;;
    steps_* | model_dlrm | model_unet | model_caption | attention | grouped | norms) echo 60 ;;
    model_bert_base) echo 150 ;;  # PyTorch compiles it for longer than the others
    ranks | tf32 | model_* | kernels_*) echo 90 ;;
    torch_*) echo 120 ;;
    racecheck | memcheck | calibrate) echo 150 ;;
    *) echo 210 ;;
  esac
}
check_end=  # of the check under way, where it has a limit
seconds_left() {  # for one program: the limit, or less where less of the check's time or of the total is left
  left=$limit
  now=$(date +%s)
  for end in ${check_end:-} $([ "$total" -gt 0 ] && echo $((began + total))); do
    [ $((end - now)) -lt $left ] && left=$((end - now))
  done
  [ $left -gt 0 ] || left=1
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
  which=$1
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer \
    2>/dev/null | head -n 1)
  if [ -z "$tool" ]; then
    missing "compute-sanitizer is not installed"
    return 1
  fi
  sanitized "$sanitize" "$log.records"
  code=$?
  grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/=* *//; s/^/figure: /'
  # Where the tool does not know the card or its driver nothing has been checked.
  if [ $code -ne 0 ] && grep -q 'Device not supported\|Unable to find injection library\|not supported on this' "$log"; then
    missing "compute-sanitizer does not work on this machine"
  fi
  if [ $code -eq 124 ] || [ $code -eq 137 ]; then
    echo "figure: $(grep -c '\[       OK \]' "$log") tests without an error, then its time was over"
  fi
  if [ "$which" = racecheck ] && [ -s "$log.records" ] && ! grep -q '^\[  FAILED  \]' "$log"; then
    again=$(cut -f 1 "$log.records" | sort -u | tr '\n' ':')
    echo "=== the tests with records once more"
    mv "$log.records" "$log.records_first"
    sanitized "$again" "$log.records"
    sort -u "$log.records_first" > "$log.sorted"
    twice=$(sort -u "$log.records" | comm -12 "$log.sorted" -)
    if [ -n "$twice" ]; then
      echo "figure: the same kernel and case twice: $(echo "$twice" | tr '\t\n' ' ;')"
      return 9
    fi
    echo "figure: $(wc -l < "$log.sorted") records, none of which came again: $(tr '\t\n' ' ;' < "$log.sorted")"
    return 0
  fi
  return $code
}

# Runs the operators of a filter under the tool and writes "TEST<tab>KERNEL" of each record to a file.
sanitized() {
  # NVIDIA's libraries try calls that fail (symbols of other drivers); we look at every status of our own. Memory is
  # watched in all kernels, since operands that we describe wrongly fail in theirs. Races are looked for in ours: theirs
  # order accesses in ways the tool does not see, and take it very long. ("oneflow_like" is in the mangled names, which
  # are compared; generated kernels are called ofl_...) All records are kept: by default the tool prints a hundred.
  filter=$1 records=$2
  set -- "$which" --report-api-errors no --print-limit 0
  if [ "$which" = racecheck ]; then
    set -- "$@" --racecheck-report analysis
    named=$("$tool" --help 2>&1 | grep -o -e '--kernel-name\>' -e '--kernel-regex\>' | head -n 1)
    if [ -n "$named" ]; then set -- "$@" "$named" kns=oneflow_like "$named" kns=ofl_; fi
  fi
  ours "$tool" --tool "$@" --error-exitcode 9 bin/ops_gpu "--device=$device" --quick --apart "--gtest_filter=$filter" \
    > "$log.one" 2>&1
  code=$?
  cat "$log.one"
  race_records "$log.one" > "$records"
  rm -f "$log.one"
  return $code
}

# "TEST<tab>KERNEL" of each record of races in a log: the test that was running, and the kernel of the first access,
# without its place in it.
race_records() {
  awk '
    /^\[ RUN      \]/ { test = $4 }
    /^=+ (Error|Warning|Info): .*([Hh]azard|[Rr]ace)/ {
      kernel = $0
      if (kernel ~ /hazard detected/ && (getline next_line) > 0) kernel = next_line
      sub(/.* at /, "", kernel); sub(/\+0x.*/, "", kernel); sub(/^0x[0-9a-f]+ in /, "", kernel)
      print test "\t" kernel
    }' "$1"
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
losses_differ() {  # two files of --log_json, steps -> by how much of themselves, or "missing"
  paste "$1" "$2" | grep '"loss"' | sed 's/[^\t]*"loss": *\([^,}]*\)[^\t]*/\1/g' | awk -v steps="$3" '
    NR <= steps && $1 ~ /^[0-9]/ && $2 ~ /^[0-9]/ { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; lines++ }
    END { if (lines == steps) printf "%.1e", worst; else print "missing" }'
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
    differs=$(losses_differ "$logs/${program}_12_cpu.json" "$logs/${program}_12_cuda.json" $steps)
    echo "$program: the losses of $steps steps on the CPU and the GPU differ by $differs of themselves, allowed are $bound"
    awk -v a="$differs" -v b=$bound 'BEGIN { exit !(a != "missing" && a + 0 <= b + 0) }' || wrong="$wrong $program"
    worst=$(awk -v a="$worst" -v b="$differs" 'BEGIN { if (b + 0 > a + 0) print b; else print a }')
  done
  if [ -n "$wrong" ]; then echo "figure: other losses than on the CPU, or none:$wrong" && return 1; fi
  echo "figure: ten programs, CPU and GPU differ by at most $worst"
}

# Groups of ranks that share the card, each a process, by an NCCL that allows it; and a GPT over such ranks beside one
# rank, and one of whose processes is killed. Under MPS, without which the processes would take turns on the card.
# It changes the environment and sets a trap, for the shell of perform, which does nothing else.
ranks() {
  if [ -z "$nccl" ]; then
    missing "--nccl= names no folder with an NCCL of 2.30 or newer"
    return 1
  fi
  if ! grep -q NCCL_MULTI_RANK_GPU_ENABLE "$nccl/libnccl.so.2" 2>/dev/null; then
    missing "$nccl has $([ -e "$nccl/libnccl.so.2" ] && echo "an NCCL older than 2.30" || echo "no libnccl.so.2")"
    return 1
  fi
  LIBRARIES=$(cd "$nccl" && pwd):$LIBRARIES
  export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_MIN_CTAS=1
  meeting=$(mktemp -d) mps=without
  if command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY="$meeting/pipe" CUDA_MPS_LOG_DIRECTORY="$meeting/log"
    mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    trap 'end_mps; rm -rf "$meeting"; exit 143' TERM INT
    if nvidia-cuda-mps-control -d && echo get_server_list | timeout 10 nvidia-cuda-mps-control > /dev/null; then
      mps=under
    else
      end_mps
      unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    fi
  fi
  ranks_of_card
  code=$?
  if [ $mps = under ]; then
    end_mps
    tail -n 20 "$meeting"/log/*.log
  fi
  rm -rf "$meeting"
  [ $code -ne 0 ] || echo "figure: groups of 2 and 4 ranks, GPTs on 3 meshes, one killed, $mps MPS; $(grep -m 1 -o 'NCCL [0-9.]*' "$log")"
  return $code
}
end_mps() {  # its daemon is no child of ours, and would stay
  echo quit | timeout 10 nvidia-cuda-mps-control > /dev/null 2>&1
}
# 124: its time was over.
ranks_of_card() {
  for size in 2 4; do
    mkdir "$meeting/$size"
    pids=
    for rank in $(seq 0 $((size - 1))); do
      ours bin/ops_gpu "--device=$device" '--gtest_filter=Ranks*' "--rank=$rank" "--ranks=$size" "--meeting=$meeting/$size" \
        > "$meeting/$size.$rank.log" 2>&1 || echo $? >> "$meeting/$size/failed" &
      pids="$pids $!"
    done
    # shellcheck disable=SC2086
    wait $pids
    cat "$meeting/$size".*.log
    # Of the first to end: when it has ended the others may fail, or wait for it until their time is over.
    [ "$(head -n 1 "$meeting/$size/failed" 2>/dev/null)" != 124 ] || return 124
    if [ -e "$meeting/$size/failed" ] || ! grep -q '\[       OK \] Ranks' "$meeting/$size.0.log"; then
      echo "error: a group of $size ranks failed"
      return 1
    fi
  done
  set -- --text=data/jargon.txt.gz --eval_batches=0 --sample_tokens=0 --dropout=0 "--devices=$device"
  ours bin/gpt "$@" --steps=12 --mesh=cuda:dp=1 "--log_json=$logs/ranks_one.json" || return
  for mesh in dp=2 tp=2 dp=2,tp=2; do
    count=2 more=--zero=0
    case $mesh in dp=2,tp=2) count=4 more=--zero=3 ;; esac
    ours bin/gpt "$@" --steps=12 "--mesh=cuda:$mesh" $more "--processes=$count" "--log_json=$logs/ranks_some.json" \
      > "$meeting/gpt.log" 2>&1
    code=$?
    cat "$meeting/gpt.log"
    [ $code -eq 0 ] || return $code
    grep -q 'NCCL [0-9]' "$meeting/gpt.log" || { echo "error: $mesh was not by NCCL" && return 1; }
    differs=$(losses_differ "$logs/ranks_one.json" "$logs/ranks_some.json" 12)
    echo "$mesh with $count processes: losses differ from one rank's by $differs of themselves, allowed are 1e-5"
    awk -v a="$differs" 'BEGIN { exit !(a != "missing" && a + 0 <= 1e-5) }' || { echo "error: $mesh has other losses" && return 1; }
  done
  # One of four is killed in the middle: the others end with an error that names it, and do not wait for it.
  ours bin/gpt "$@" --steps=100000 --mesh=cuda:dp=4 --processes=4 > "$meeting/killed.log" 2>&1 &
  pid=$!
  while kill -0 $pid 2>/dev/null && ! grep -q 'step 1/' "$meeting/killed.log"; do sleep 0.2; done
  sleep 1
  child=$(descendants $pid | tail -n 1)
  killed=$(date +%s)
  [ -z "$child" ] || kill -9 "$child"
  wait $pid
  code=$? waited=$(($(date +%s) - killed))
  cat "$meeting/killed.log"
  echo "process $child was killed, the job ended with $code after $waited s"
  # The others end within seconds: where they had fewer before the job's time was over nothing is known.
  if [ $code -eq 124 ] && { [ -z "$child" ] || [ $waited -lt 20 ]; }; then return 124; fi
  if [ -z "$child" ] || [ $code -eq 0 ] || ! grep -q "error: .*pid $child)" "$meeting/killed.log"; then
    echo "error: the others did not end by themselves, with the one that was killed as their reason"
    return 1
  fi
}
descendants() {  # of a process, parents first
  for status in /proc/[0-9]*/status; do
    if [ "$(sed -n 's/^PPid:[[:space:]]*//p' "$status" 2>/dev/null)" = "$1" ]; then
      child=${status%/status}
      echo "${child#/proc/}"
      descendants "${child#/proc/}"
    fi
  done
}

# The program and its flags of a model, by its name in peers/steps_cuda.py, and of GPT-2 124M with bytes as its words.
# (Without --text= gpt looks for a text that a package of this system has, the others make one up.)
flags_of() {
  if [ "$1" = gpt_124M ]; then
    echo gpt --layers=12 --width=768 --heads=12 --context=1024 --batch=32 --dropout=0 --text=data/jargon.txt.gz
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
  for name in gpt_124M llama_160m moe_64 resnet_50 bert_base; do
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

# What the choice among the library's proposals gains: the step with its first ones, beside the tuned one.
untuned() {
  bench --what=steps --model=124M --batch=32 --tune=false || return
  untuned=$(value "$log" step_ms) tuned=$(value "$logs/steps_124M.log" step_ms)
  [ -z "$tuned" ] || echo "figure: $untuned ms a step untuned, $tuned tuned: $(awk "BEGIN { printf \"%.3f\", $untuned / $tuned }") times as fast"
}

# Steps in fp32, with operands of products and convolutions rounded to TF32 and without.
tf32() {
  text= wrong=0
  for name in gpt_124M resnet_50; do
    flags=$(flags_of "$name")
    program=${flags%% *}
    # shellcheck disable=SC2086
    set -- ${flags#* } --mesh=cuda:dp=1 "--devices=$device" --eval_batches=0 --steps=12
    case $program in gpt) set -- "$@" --sample_tokens=0 --batch=8 ;; esac
    for on in false true; do ours "bin/$program" "$@" --tf32=$on "--log_json=$logs/tf32_${name}_$on.json" || return; done
    whole=$(median_step "$logs/tf32_${name}_false.json") rounded=$(median_step "$logs/tf32_${name}_true.json")
    differs=$(losses_differ "$logs/tf32_${name}_false.json" "$logs/tf32_${name}_true.json" 4)
    [ -n "$whole" ] && [ -n "$rounded" ] || { echo "error: $program wrote no times of steps" && return 1; }
    text="$text${text:+; }$name $whole ms a step in fp32, $rounded with TF32, the losses of 4 steps differ by $differs"
    awk "BEGIN { exit !($rounded < $whole) }" || { echo "error: $name is no faster with TF32" && wrong=1; }
    awk -v a="$differs" 'BEGIN { exit !(a != "missing" && a + 0 <= 1e-2) }' || { echo "error: $name has other losses with TF32" && wrong=1; }
  done
  echo "figure: $text"
  return $wrong
}

# A program's step in bf16 beside the same model's in PyTorch, compiled.
model_step() {  # name, as in peers/steps_cuda.py
  rm -f "$logs/model_$1.twin"
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
    times=$(awk "BEGIN { printf \"%.2f\", $their / $own }")
    text="$text, PyTorch $(json "$log.torch" torch) compiled $their: $times times as fast"
    echo "| $name | $own | $their | $times |" > "$logs/model_$name.twin"
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
  rm -f "$logs/model_gpt_$model.twin"
  shift
  timeout -k 10 "$(seconds_left)" "$python" peers/gpt_cuda.py --model "$model" --device "$device" --batch "$@" || return
  their=$(json "$log" tokens_per_s)
  text="$(printf '%.0f' "$their") tokens/s, batch $(json "$log" batch), PyTorch $(json "$log" torch) compiled"
  own=$(value "$logs/steps_$model.log" tokens_per_s)
  if [ -n "$own" ]; then
    times=$(awk "BEGIN { printf \"%.2f\", $own / $their }")
    text="$text; ours is $times times it"
    if [ "$(value "$logs/steps_$model.log" batch)" = "$(json "$log" batch)" ]; then
      echo "| gpt_$model | $(value "$logs/steps_$model.log" step_ms) | $(json "$log" step_ms) | $times |" > "$logs/model_gpt_$model.twin"
    fi
  fi
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
    ranks) ranks ;;
    examples) examples ;;
    programs) programs ;;
    model_*) model_step "${1#model_}" ;;
    memcheck | racecheck) sanitizer "$1" ;;
    ceilings) bench --what=ceilings ;;
    calibrate) calibrate ;;
    tf32) tf32 ;;
    steps_124M) bench --what=steps --model=124M --batch=32 ;;
    steps_124M_untuned) untuned ;;
    steps_1.3B) bench --what=steps --model=1.3B --batch=8 ;;
    torch_124M) torch_steps 124M 32 ;;
    torch_1.3B) torch_steps 1.3B 8 ;;
    attention | grouped | norms) bench --what="$1" ;;
    kernels_124M) bench --what=kernels --model=124M --batch=32 ;;
    kernels_1.3B) bench --what=kernels --model=1.3B --batch=8 ;;
    gemms_124M) bench --what=gemms --model=124M --batch=32 ;;
    gemms_1.3B) bench --what=gemms --model=1.3B --batch=8 ;;
  esac
}

# One look at the card before anything else: 2 says that there is none, and why.
ours bin/ops_gpu "--device=$device" --gtest_filter=Nothing > "$logs/device.log" 2>&1
code=$?
sed -n '/^device: /p; /^no GPU/p' "$logs/device.log"
if [ $code -eq 2 ]; then exit 2; fi
if [ $code -ne 0 ]; then cat "$logs/device.log"; exit 1; fi

failed=0 absent=0
each_has_a_share() { [ "$total" -gt 0 ] && [ -z "$only" ]; }
# Runs a check and keeps what became of it beside its log.
perform() {
  log=$logs/$1.log
  rm -f "$log.missing" "$log.skipped" "$log.torch" "$log.ended"
  start=$(date +%s)
  check_end=
  if each_has_a_share; then check_end=$((start + $(limit_of "$1"))); fi
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
    result="not finished" figure="no time was left${figure:+; $figure}" absent=$((absent + 1))
  elif [ "$code" -eq 124 ] && each_has_a_share && ! is_in "$check" "$CORRECTNESS"; then
    # A step or a tool that is slow; what should be right and does not end is a failure.
    result="not finished" figure="its $(limit_of "$check") s were over${figure:+; $figure}" absent=$((absent + 1))
  else
    result="FAILED ($code)" failed=$((failed + 1))
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then figure="ended after $seconds s, or killed"; fi
    reason=$(grep -m 1 -A 1 '^error: \|: Failure$' "$log" | tr '\n|' ' /' | cut -c 1-160)
    [ -n "$figure$reason" ] || reason=$(grep -m 1 'error\|\[  FAILED' "$log" | tr '|' '/' | cut -c 1-160)
    figure="$figure${figure:+${reason:+; }}$reason"
  fi
  # What a library refused and was done in a slower way, for one.
  warnings=$(grep -c '^W[0-9]\{4\}' "$log" 2>/dev/null)
  if [ "${warnings:-0}" -gt 0 ]; then figure="$figure; $warnings warnings in its log"; fi
  say "$(printf '| %s | %s | %s | %s |' "$check" "$result" "$figure" "$seconds")"
}
is_in() {  # a word, words
  case " $2 " in *" $1 "*) return 0 ;; esac
  return 1
}
# Prints a line, which is also in the table that is kept.
say() {
  echo "$1"
  [ -z "$out" ] || echo "$1" >> "$out/table.txt"
}

# What libraries take of the card is known by what it lost meanwhile, so that programs side by side would keep for later
# tables what others took.
taken=${XDG_CACHE_HOME:-$HOME/.cache}/oneflow_like/library_memory
put_aside() { if [ -e "$taken" ]; then cp "$taken" "$logs/library_memory"; else rm -f "$logs/library_memory"; fi; }
put_back() { if [ -e "$logs/library_memory" ]; then cp "$logs/library_memory" "$taken"; else rm -f "$taken"; fi; }

# PyTorch compiles the models that will be timed while the checks of correctness run, into the caches: most of a check
# of a model's step is that. One after another, since each wants as much of the card as its step. In a run of everything
# none begins after two minutes; of a list that was asked for all do, unless half of the total is over.
compile_ahead() {
  sees_gpu || return 0
  last=120
  if [ -n "$only" ]; then last=$((total > 0 ? total / 2 : limit)); fi
  for check in $checks; do
    [ $(($(date +%s) - began)) -lt "$last" ] || break
    patience=60
    case $check in
      torch_124M) set -- peers/gpt_cuda.py --model 124M --batch 32 --warm_up 1 --steps 1 ;;
      model_*) set -- peers/steps_cuda.py "${check#model_}" --steps 1 ;;
      *) continue ;;
    esac
    if [ "$check" = model_bert_base ]; then patience=150; fi
    timeout -k 10 $patience "$python" "$@" --device "$device"
    echo "$check: PyTorch ended with $? after $(($(date +%s) - began)) s of the run"
  done
}

# Into --out: everything that the checks printed or wrote, and the kernels that we have compiled with what we know of
# the machine (not the caches of the driver and of PyTorch, which are larger), so that they can be given to the next
# one. The table is there already.
keep() {
  [ -n "$out" ] || return 0
  for log in "$logs"/*; do  # of a tool that had very much to say the two ends
    [ "$(stat -c %s "$log")" -gt 33554432 ] || continue
    { head -c 16777216 "$log"; echo "... left out ..."; tail -c 16777216 "$log"; } > "$log.cut" && mv "$log.cut" "$log"
  done
  rm -f "$out"/logs.tar.xz.*
  tar -C "$(dirname "$logs")" -I 'xz -T0 -2' -cf - "$(basename "$logs")" | split -b 16m -d -a 1 - "$out/logs.tar.xz."
  for part in "$out"/logs.tar.xz.[6-9]; do
    [ ! -e "$part" ] || { echo "left out for want of room: $part" && rm "$part"; }
  done
  if [ -d "$(dirname "$taken")" ]; then
    tar -C "$(dirname "$(dirname "$taken")")" -I 'xz -T0 -2' -cf "$out/caches.tar.xz" oneflow_like
    bytes=$(stat -c %s "$out/caches.tar.xz")
    [ "$bytes" -le 16777216 ] || {
      echo "left out for want of room: $out/caches.tar.xz, $bytes bytes; take along $(dirname "$taken")"
      rm "$out/caches.tar.xz"
    }
  fi
}

checks=${only:-$CHECKS}
# A signal ends what runs, and the table and the logs so far are kept. (A shell that waits for a command in the
# foreground would look at it afterwards; so checks run in the background.)
end_early() {
  trap '' TERM INT
  # shellcheck disable=SC2046
  kill $(descendants $$) 2>/dev/null
  say "ended by a signal"
  keep
  wait  # a check may have a daemon to end
  exit 3
}
trap end_early TERM INT
[ -z "$out" ] || { rm -f "$out/table.txt" && cp "$logs/device.log" "$out/table.txt"; }
say ''
say '| check | result | figure | seconds |'
say '|---|---|---|---|'
together=
if [ $apart = no ] && [ "$(nproc)" -ge 8 ]; then
  for check in $checks; do
    if is_in "$check" "$TOGETHER"; then together="$together $check"; fi
  done
  put_aside
  if [ -n "$together" ]; then compile_ahead > "$logs/compile_ahead.log" 2>&1 & fi
  for check in $together; do perform "$check" & done
  wait
  put_back
  for check in $together; do tell "$check"; done
  [ -z "$together" ] || keep
fi
for check in $checks; do
  if is_in "$check" "$together"; then continue; fi
  perform "$check" &
  wait $!
  tell "$check"
done
rows=$(for check in $checks; do
  case $check in
    torch_*) name=gpt_${check#torch_} ;;
    model_*) name=${check#model_} ;;
    *) continue ;;
  esac
  cat "$logs/model_$name.twin" 2>/dev/null
done)
if [ -n "$rows" ]; then
  say ''
  say '| model | ms a step | PyTorch compiled | times as fast |'
  say '|---|--:|--:|--:|'
  say "$rows"
fi
for check in attention grouped norms kernels_124M kernels_1.3B gemms_124M gemms_1.3B; do
  if [ -n "$only" ] && ! is_in "$check" "$only"; then continue; fi
  grep -q '^|' "$logs/$check.log" || continue
  say ''
  say "$check:"
  say ''
  say "$(grep '^|' "$logs/$check.log")"
done 2>/dev/null
say ''
code=0
if [ $failed -gt 0 ]; then
  say "$failed failed; what each printed is in $logs/" && code=1
elif [ $absent -gt 0 ]; then
  say "none failed, $absent could not be run" && code=3
else
  say "all passed"
fi
keep
exit $code
