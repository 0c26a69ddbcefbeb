#!/bin/sh
# Tests run.sh: run_test.sh                  what it makes of checks that pass, fail, are slow or cannot run; the programs
#                                            and tools are scripts of a line or two
#                   run_test.sh BUILD CHECKS  its checks of this list on the emulator, with the programs of a build folder
set -eu
here=$(cd "$(dirname "$0")" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$place/bin" "$place/data" "$place/peers" "$place/tools"
cp "$here/run.sh" "$place/"
cp "$here"/../peers/gpt_cuda.py "$here"/../peers/gpt_torch.py "$here"/../peers/steps_cuda.py "$here"/../peers/torch_models.py \
  "$place/peers/"
: > "$place/wanted"
cd "$place"

if [ $# -eq 2 ]; then
  for program in ops_gpu runtime_gpu bench_gpu; do ln -s "$1/tests/gpu/${program}_emulated" "bin/$program"; done
  for program in gpt llama resnet vit bert unet dlrm moe caption insightface; do
    ln -s "$1/tests/gpu/programs_emulated" "bin/$program"
  done
  cp /usr/share/doc/jargon-text/jargon.txt.gz data/
  code=0
  ./run.sh "--only=$2" --python=/nonexistent || code=$?
  [ $code -eq 0 ] || cat logs/*.log
  # Processes that share a device, as those of the check 'ranks' do, through the host here.
  for mesh in dp=1 dp=2,tp=2; do
    more=
    if [ $mesh != dp=1 ]; then more="--zero=3 --processes=4"; fi
    # shellcheck disable=SC2086
    bin/gpt --layers=1 --width=32 --heads=2 --context=16 --batch=4 --dropout=0 --eval_batches=0 --sample_tokens=0 \
      --text=data/jargon.txt.gz --steps=5 --devices=0 "--mesh=cuda:$mesh" $more "--log_json=$mesh" || code=1
  done
  paste dp=1 dp=2,tp=2 | sed 's/[^\t]*"loss": *\([^,}]*\)[^\t]*/\1/g' | awk '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) wrong = 1; lines++ }
    END { if (wrong || lines != 5) { print "run_test.sh: four processes on a device have other losses than one"; exit 1 } }' ||
    { paste dp=1 dp=2,tp=2 && code=1; }
  exit $code
fi

# --- Scripts in the place of programs ---

script() {  # path, from stdin; $0, $1 ... are its own
  { echo '#!/bin/sh'; cat; } > "$1"
  chmod +x "$1"
}
script tools/nproc <<'TEXT'
echo 16
TEXT
PATH=$place/tools:$PATH
XDG_CACHE_HOME=$place/caches
export PATH XDG_CACHE_HOME
for program in ops_gpu runtime_gpu bench_gpu gpt; do
  script bin/$program <<'TEXT'
echo 'device: a stub'
mkdir -p "$XDG_CACHE_HOME/oneflow_like"
case "$*" in
  *gtest_filter=Nothing*) exit 0 ;;
  *Narrow*) echo 4000000000 a card > "$XDG_CACHE_HOME/oneflow_like/library_memory" ;;
  *Boxing*) echo 'error: boxing is wrong' && exit 1 ;;
  *Sessions*) sleep 30 ;;
  *what=ceilings*) sleep 30 ;;
esac
echo '[ RUN      ] A.Test'
echo '[       OK ] A.Test'
echo 'figure: a figure'
TEXT
done

wrong=0
expect() {  # what must be in the file, an extended regular expression
  if ! grep -Eq -- "$1" "${2:-out.txt}"; then
    echo "run_test.sh: '$1' is not in:" && cat "${2:-out.txt}"
    wrong=1
  fi
}
run() {  # the exit code it must end with, and arguments
  want=$1 code=0
  shift
  ./run.sh --python=/nonexistent "$@" > out.txt 2>&1 || code=$?
  if [ $code -ne "$want" ]; then
    echo "run_test.sh: run.sh $* ended with $code, not $want:" && cat out.txt
    wrong=1
  fi
}

# Those of correctness side by side, one of them wrong; what libraries took is as it was before them.
mkdir -p caches/oneflow_like
echo 300000000 a card > caches/oneflow_like/library_memory
run 1 --only=nccl,narrow_types,boxing --out=kept
expect '^\| nccl \| passed \| a figure \|'
expect '^\| narrow_types \| passed'
expect '^\| boxing \| FAILED \(1\) \| error: boxing is wrong'
expect '^1 failed' kept/table.txt
expect '^300000000 a card' caches/oneflow_like/library_memory
tar -xJf kept/caches.tar.xz -O oneflow_like/library_memory > out.txt
expect '^300000000 a card'
cat kept/logs.tar.xz.* | tar -xJO logs/boxing.log > out.txt
expect 'boxing is wrong'
sed 's/-le 16777216/-le 10/' run.sh > short.sh
chmod +x short.sh
mv run.sh whole.sh && mv short.sh run.sh
run 0 --only=nccl --out=kept
expect '^left out for want of room: kept/caches.tar.xz, [0-9]+ bytes'
[ ! -e kept/caches.tar.xz ] || { echo "run_test.sh: caches without room are kept" && wrong=1; }
mv whole.sh run.sh
[ "$(find kept -type f | wc -l)" -le 8 ] || { echo "run_test.sh: more than 8 files are kept" && wrong=1; }

# Alone it may keep what libraries took.
run 0 --only=narrow_types --apart
expect '^4000000000 a card' caches/oneflow_like/library_memory

# What is slow: without a share of the time it has all that is left; in a run of everything its own part.
run 3 --only=ceilings --total=2
expect '^\| ceilings \| not finished \| no time was left'
sed 's/ceilings) echo 30/ceilings) echo 1/; s/\*) echo 210/*) echo 2/' run.sh > short.sh
mv short.sh run.sh
chmod +x run.sh
run 1 --total=300
expect '^\| sessions \| FAILED \(124\) \| ended after'
expect '^\| ceilings \| not finished \| its 1 s were over'
expect '^\| torch_124M \| not run \| /nonexistent has no PyTorch'
expect '^\| racecheck \| not run \| compute-sanitizer is not installed'
cp "$here/run.sh" .

# The order of a run of everything.
./run.sh --list | tr ' ' '\n' > out.txt
for pair in signatures:steps_124M steps_124M:model_llama_160m model_llama_160m:model_resnet_50 model_resnet_50:model_llama_1b \
  model_llama_1b:model_moe_64 model_moe_64:calibrate calibrate:racecheck racecheck:memcheck memcheck:model_vit_base; do
  first=$(grep -n "^${pair%:*}\$" out.txt | cut -d : -f 1) then=$(grep -n "^${pair#*:}\$" out.txt | cut -d : -f 1)
  [ "$first" -lt "$then" ] || { echo "run_test.sh: ${pair%:*} does not come before ${pair#*:}" && wrong=1; }
done

# A signal: the table so far is kept.
./run.sh --python=/nonexistent --only=nccl,ceilings --apart --out=early > out.txt 2>&1 &
pid=$!
while ! grep -q '^| nccl' early/table.txt 2>/dev/null; do sleep 0.1; done
kill $pid
code=0
wait $pid || code=$?
[ $code -eq 3 ] || { echo "run_test.sh: after a signal it ended with $code" && wrong=1; }
expect 'ended by a signal' early/table.txt
[ -e early/logs.tar.xz.0 ] || { echo "run_test.sh: no logs after a signal" && wrong=1; }

# Races: the same kernel and case twice is a defect, else it was the tool's.
script tools/compute-sanitizer <<'TEXT'
case "$*" in
  *--help*) exit 0 ;;
  *"tool memcheck"*) echo '========= ERROR SUMMARY: 0 errors' && exit 0 ;;
esac
echo run >> "$RECORDS/runs"
echo "$*"
echo '[ RUN      ] Catalog/Ops.Work/softmax'
if [ "$(wc -l < "$RECORDS/runs")" -le "$TIMES" ]; then
  echo '========= Error: Race reported between Write access at void oneflow_like::Rows(int *, float)+0x2d0 in rows.h:42'
  echo '=========     and Read access at void oneflow_like::Rows(int *, float)+0x4d0 in rows.h:85 [508 hazards]'
  echo '[       OK ] Catalog/Ops.Work/softmax'
  echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'
  exit 9
fi
echo '[       OK ] Catalog/Ops.Work/softmax'
echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'
TEXT
RECORDS=$place
export RECORDS TIMES
TIMES=0
run 0 --only=racecheck,memcheck
expect '^\| racecheck \| passed \| RACECHECK SUMMARY: 0 hazards'
expect '^\| memcheck \| passed \| ERROR SUMMARY: 0 errors'
rm -f runs
run 0 --only=racecheck --sanitize='*/softmax'
expect 'bin/ops_gpu --device=0 --quick --apart --gtest_filter=\*/softmax$' logs/racecheck.log
rm -f runs
TIMES=1
run 0 --only=racecheck
expect '^\| racecheck \| passed \| 1 records, none of which came again: Catalog/Ops.Work/softmax void oneflow_like::Rows\(int \*, float\);'
rm -f runs
TIMES=2
run 1 --only=racecheck
expect '^\| racecheck \| FAILED \(9\) \| the same kernel and case twice: Catalog/Ops.Work/softmax void oneflow_like::Rows'

# Predictions beside measured steps: of all five models, on a machine that has no text but the bundle's.
cp bin/gpt stub
for program in gpt llama moe resnet bert; do
  script bin/$program <<'TEXT'
text=
case $0 in */gpt) text=/a/package/has/it/elsewhere ;; esac
for argument in "$@"; do
  case $argument in
    --text=*) text=${argument#*=} ;;
    --log_json=*) to=${argument#*=} ;;
    --calibrate=*) echo measured > "${argument#*=}" && exit ;;
  esac
done
[ -z "$text" ] || [ -e "$text" ] || { echo "error: there is no file $text" && exit 1; }
case "$*" in
  *--simulate*) echo "simulated: a step takes $PREDICTED ms" && exit ;;
esac
for step in 1 2 3 4 5 6 7; do echo "{\"step\": $step, \"step_ms\": 10.0}"; done > "$to"
TEXT
done
echo text > data/jargon.txt.gz
export PREDICTED
PREDICTED=10.5
run 0 --only=calibrate
expect '^\| calibrate \| passed \| calibrated in [0-9]+ s; gpt_124M predicted 10.5 ms, measured 10.0 \(\+5.0 %\); llama_160m .*; moe_64 .*; resnet_50 .*; bert_base .*%\) \|'
PREDICTED=11.5
run 1 --only=calibrate
expect '^\| calibrate \| FAILED \(1\) \| .*; error: a step is more than 10 % off'

# Steps in fp32 with TF32 and without; and with the library's first proposals beside the fastest.
for program in gpt resnet; do
  script bin/$program <<'TEXT'
for argument in "$@"; do
  case $argument in --log_json=*) to=${argument#*=} ;; esac
done
ms=30.0 loss=2.0
case "$*" in *--tf32=true*) ms=$ROUNDED loss=$LOSS ;; esac
for step in 1 2 3 4 5 6 7; do echo "{\"step\": $step, \"loss\": $loss, \"step_ms\": $ms}"; done > "$to"
TEXT
done
export ROUNDED LOSS
ROUNDED=10.0 LOSS=2.001
run 0 --only=tf32
expect '^\| tf32 \| passed \| gpt_124M 30.0 ms a step in fp32, 10.0 with TF32, the losses of 4 steps differ by 5.0e-04; resnet_50 30.0 '
ROUNDED=31.0
run 1 --only=tf32
expect '^\| tf32 \| FAILED \(1\) \| .*; error: gpt_124M is no faster with TF32'
ROUNDED=10.0 LOSS=2.1
run 1 --only=tf32
expect '^\| tf32 \| FAILED \(1\) \| .*; error: gpt_124M has other losses with TF32'
script bin/bench_gpu <<'TEXT'
case "$*" in *--tune=false*) echo 'result: step_ms=66.0' ;; *) echo 'result: step_ms=60.0' ;; esac
TEXT
run 0 --only=steps_124M,steps_124M_untuned
expect '^\| steps_124M_untuned \| passed \| 66.0 ms a step untuned, 60.0 tuned: 1.100 times as fast'

# A list that was asked for is compiled ahead where checks of correctness run, however late: no two minutes end it.
script tools/python_of_torch <<'TEXT'
case "$*" in
  *--flags) echo "$2 --batch=64" | sed 's/_base//' ;;
  peers/*) echo "$*" >> "$RECORDS/compiled" && echo '{"step_ms": 20.0, "torch": "2.0"}' ;;
esac
TEXT
mv bin/llama bin/vit
mv bin/moe bin/bert
sed 's/last=120/last=0/' run.sh > short.sh
chmod +x short.sh
mv short.sh run.sh
run 0 --only=nccl,model_vit_base,model_bert_base "--python=$place/tools/python_of_torch"
expect '^\| model_bert_base \| passed \| 10.0 ms a step, PyTorch 2.0 compiled 20.0: 2.00 times as fast \|'
expect '^peers/steps_cuda.py vit_base --steps 1 --device 0' compiled
expect '^peers/steps_cuda.py bert_base --steps 1 --device 0' compiled
cp "$here/run.sh" .
mv stub bin/gpt

# Several ranks on a card.
run 3 --only=ranks
expect '^\| ranks \| not run \| --nccl= names no folder'
mkdir old new
run 3 --only=ranks --nccl=old
expect '^\| ranks \| not run \| old has no libnccl.so.2'
echo 'NCCL 2.28' > old/libnccl.so.2
run 3 --only=ranks --nccl=old
expect '^\| ranks \| not run \| old has an NCCL older than 2.30'
echo NCCL_MULTI_RANK_GPU_ENABLE > new/libnccl.so.2
script bin/ops_gpu <<'TEXT'
case "$*" in
  *gtest_filter=Nothing*) exit 0 ;;
  *--rank=*) [ "$SLOW" != ops_gpu ] || { touch "$RECORDS/slow" && sleep 100; } ;;
esac
case "$*" in
  *--rank=1*) echo "$*, $NCCL_MULTI_RANK_GPU_ENABLE $NCCL_NVLS_ENABLE $NCCL_MAX_CTAS $LD_LIBRARY_PATH" ;;
esac
echo '[       OK ] Ranks.ShareADevice'
TEXT
script bin/gpt <<'TEXT'
for argument in "$@"; do
  case $argument in
    --log_json=*) to=${argument#*=} ;;
    --steps=100000)
      [ "$SLOW" != gpt ] || sleep 100
      sleep 100 &
      echo 'step 1/100000'
      wait $! || { [ -n "$SILENT" ] || echo "error: rank 3 (host here, pid $!): its connection was closed" && exit 137; } ;;
  esac
done
case "$*" in *--processes*) echo 'NCCL 2.30.7, 1 GPUs in this process' ;; esac
for loss in 1 2 3 4 5 6 7 8 9 10 11 12; do
  case "$*" in
    *dp=2,tp=2*) echo "{\"step\": $loss, \"loss\": $loss.$OFF}" ;;
    *) echo "{\"step\": $loss, \"loss\": $loss.0}" ;;
  esac
done > "$to"
TEXT
OFF=00001 SILENT='' SLOW=''
export OFF SILENT SLOW
run 0 --only=ranks --nccl=new
expect '^\| ranks \| passed \| groups of 2 and 4 ranks, GPTs on 3 meshes, one killed, without MPS; NCCL 2.30.7 \|'
expect "--rank=1 --ranks=4 --meeting=/.*, 1 0 2 $place/new" logs/ranks.log
# Under MPS, whose daemon does not stay: not if it is of no use, nor after a signal.
script tools/nvidia-cuda-mps-control <<'TEXT'
if [ "$*" = -d ]; then touch "$RECORDS/daemon" && exit; fi
read -r order
case $order in
  quit) rm "$RECORDS/daemon" ;;
  *) [ -z "$USELESS" ] ;;
esac
TEXT
no_daemon() { [ ! -e daemon ] || { echo "run_test.sh: MPS is left behind $1" && wrong=1; }; }
export USELESS
USELESS=''
run 0 --only=ranks --nccl=new
expect '^\| ranks \| passed \| .*, under MPS'
no_daemon "by a run"
USELESS=yes
run 0 --only=ranks --nccl=new
expect '^\| ranks \| passed \| .*, without MPS'
no_daemon "by a run without it"
USELESS='' SLOW=ops_gpu
./run.sh --python=/nonexistent --only=ranks --nccl=new > out.txt 2>&1 &
pid=$!
while [ ! -e slow ]; do sleep 0.1; done
[ -e daemon ] || { echo "run_test.sh: MPS is not there" && wrong=1; }
kill $pid
wait $pid || :
no_daemon "by a signal"
rm tools/nvidia-cuda-mps-control

# No time is no wrong result.
run 3 --only=ranks --nccl=new --total=3
expect '^\| ranks \| not finished \| no time was left'
SLOW=gpt
run 1 --only=ranks --nccl=new --limit=3
expect '^\| ranks \| FAILED \(124\) \| ended after'
SLOW=''
SILENT=yes
run 1 --only=ranks --nccl=new
expect '^\| ranks \| FAILED \(1\) \| error: the others did not end by themselves'
OFF=001
run 1 --only=ranks --nccl=new
expect '^\| ranks \| FAILED \(1\) \| error: dp=2,tp=2 has other losses'
sed -i 's/NCCL 2.30.7/none/' bin/gpt
run 1 --only=ranks --nccl=new
expect '^\| ranks \| FAILED \(1\) \| error: dp=2 was not by NCCL'

# A library with code for two architectures, and PTX, keeps that of one.
if python3 - "$here/trim_library.py" <<'TEXT'
import struct, subprocess, sys
entry = lambda kind, arch, code: struct.pack("<HHIQQII", kind, 1, 40, len(code), 0, 0, arch)[:40].ljust(40, b"\0") + code
def container(*entries):
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, entries))) + b"".join(entries)
# Only its header and its table of sections are read; the code stands behind them.
library = open("/bin/sh", "rb").read() + container(entry(2, 80, b"eighty.."), entry(2, 90, b"ninety..")) + container(entry(1, 90, b"assembly"))
open("whole", "wb").write(library)
assert b"eighty.." in library and struct.unpack_from("<I", library, library.index(b"ninety..") - 12)[0] == 90
subprocess.run([sys.executable, sys.argv[1], "whole", "part", "90"], check=True)
assert open("part", "rb").read() == library.replace(b"eighty..", bytes(8)).replace(b"assembly", bytes(8))
assert subprocess.run([sys.executable, sys.argv[1], "whole", "part", "75"], capture_output=True).returncode != 0
TEXT
then :; else
  echo "run_test.sh: trim_library.py keeps too much or too little" && wrong=1
fi

[ $wrong -eq 0 ] && echo "run.sh does as it should"
exit $wrong
