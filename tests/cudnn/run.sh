#!/bin/sh
# Builds cuDNN's plans for our graphs of attention, without a card (cudnn_plans.cc):
#   tests/cudnn/run.sh BUILD [FOLDER]   BUILD: the build folder; FOLDER: include/ and lib/ of an installed cuDNN
# Without FOLDER, or where it is not whole, the wheels of cuDNN, NVRTC and CUDA's headers are fetched from PyPI into
# BUILD/cudnn, once: of a version that devices.h was tried with, since others may want more of a description. Exit
# code 77: skipped, with the reason, where they cannot be had.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(cd "$1" && pwd) installed=${2:-}
work=$build/cudnn
mkdir -p "$work"
skip() { echo "skipped: $*"; exit 77; }

whole() { [ -e "$1/include/cudnn_graph.h" ] && [ -e "$1/lib/libcudnn_engines_runtime_compiled.so.9" ] &&
  ls "$1"/lib/libnvrtc.so.* >/dev/null 2>&1 && [ -e "$1/include/cuda_runtime.h" ]; }

if [ -n "$installed" ] && whole "$installed"; then
  includes="-I$installed/include" libraries=$installed/lib
else
  if [ ! -e "$work/fetched" ]; then
    rm -rf "$work/wheels" "$work/unpacked"
    timeout 240 python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/wheels" \
      'nvidia-cudnn-cu13==9.28.*' 'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-crt>=13,<14' \
      > "$work/fetch.log" 2>&1 || skip "the wheels of cuDNN cannot be fetched in 240 s: $(grep -m 1 -i error "$work/fetch.log")"
    for wheel in "$work"/wheels/*.whl; do
      python3 -m zipfile -e "$wheel" "$work/unpacked" || skip "$wheel cannot be unpacked"
    done
    touch "$work/fetched"
  fi
  includes= libraries=
  for folder in "$work"/unpacked/nvidia/*; do
    [ -d "$folder/include" ] && includes="$includes -I$folder/include"
    [ -d "$folder/lib" ] && libraries="$libraries${libraries:+:}$folder/lib"
  done
fi

cudnn=
for folder in $(echo "$libraries" | tr ':' ' '); do
  [ -e "$folder/libcudnn.so.9" ] && cudnn=$folder/libcudnn.so.9
done
[ -n "$cudnn" ] || { echo "there is no libcudnn.so.9 in $libraries"; exit 1; }
mkdir -p "$work/driver"
# Newer versions are linked with the driver: what they name beside the functions of driver.c does nothing.
nm -D --undefined-only "$(dirname "$cudnn")"/libcudnn*.so.9 | sed -n 's/^ *U \(cu[A-Z][A-Za-z0-9_]*\)$/\1/p' | sort -u |
  while read -r name; do grep -q "\b$name\b" tests/cudnn/driver.c || echo "int $name(void) { return 801; }"; done \
  > "$work/more.c"
cc -O1 -fPIC -shared -o "$work/driver/libcuda.so.1" tests/cudnn/driver.c "$work/more.c" || exit 1
# shellcheck disable=SC2086
c++ -std=c++20 -O1 -DOFL_HAVE_CUDNN -I. $includes -o "$work/cudnn_plans" tests/cudnn/cudnn_plans.cc \
  ops/cuda/flash_graph_cudnn.cc ops/cuda/convolution_graph_cudnn.cc ops/cuda/graph_cudnn.cc "$cudnn" \
  -Wl,--unresolved-symbols=ignore-in-shared-libs || exit 1
LD_LIBRARY_PATH="$work/driver:$libraries" "$work/cudnn_plans"
