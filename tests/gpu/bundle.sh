#!/bin/sh
# Makes the folder and the archive that take the GPU tests and benchmarks to a machine with nothing but a driver and
# CUDA's libraries:
#   tests/gpu/bundle.sh             builds, and makes build/gpu_bundle and build/gpu_bundle.tar.xz
#   tests/gpu/bundle.sh --no-build  of what has been built
#   tests/gpu/bundle.sh --lines     with kernels that know their source lines, for what racecheck and memcheck print: built
#                                   in build/lines, and larger
#   tests/gpu/bundle.sh --check     also unpacks it elsewhere and proves that nothing but glibc and CUDA's libraries is
#                                   missing in it
# There: tar xJf gpu_bundle.tar.xz && gpu_bundle/run.sh
set -eu
cd "$(dirname "$0")/../.."
build=build most_mb=40
make=yes check=no lines=OFF
for argument in "$@"; do
  case $argument in
    --no-build) make=no ;;
    --check) check=yes ;;
    --lines) lines=ON most_mb=60 ;;
    --build=*) build=${argument#*=} ;;
    *) echo "bundle.sh: '$argument' is not known; --no-build --check --lines --build=DIR" >&2; exit 1 ;;
  esac
done
if [ $lines = ON ]; then build=$build/lines; fi
if [ $make = yes ]; then
  [ -e "$build/build.ninja" ] || cmake -S . -B "$build" -G Ninja -DOFL_CUDA_LINES=$lines
  cmake --build "$build" --target gpu_programs
fi
backend=$build/lib/liboneflow_like_cuda.so
if [ ! -e "$backend" ]; then
  echo "bundle.sh: there is no $backend: was there a CUDA toolkit when it was configured?" >&2
  exit 1
fi

# What a machine with a driver and CUDA has: glibc, and NVIDIA's libraries.
theirs='^(linux-vdso|ld-linux.*|lib(c|m|pthread|dl|rt|resolv|util|anl|mvec|nss_.*|nsl|BrokenLocale)|lib(cuda|cudart|cublas|cublasLt|cudnn.*|nccl|nvrtc.*|nvJitLink|nvidia.*|cupti|nvToolsExt))[.]so'
libraries_of() {  # files -> paths of what they need, however deep
  ldd "$@" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) (.*/\1/p' | sort -u | while read -r path; do
    basename "$path" | grep -Eq "$theirs" || echo "$path"
  done
}

bundle=$build/gpu_bundle
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/lib" "$bundle/data" "$bundle/peers"
for program in ops_gpu runtime_gpu bench_gpu programs; do
  strip -o "$bundle/bin/$program" "$build/gpu/bin/$program"
done
for program in gpt llama resnet vit bert unet dlrm moe caption insightface; do
  ln -s programs "$bundle/bin/$program"
done
strip -o "$bundle/lib/liboneflow_like_cuda.so" "$backend"
cp tests/gpu/run.sh "$bundle/"
# What of NVIDIA's it opens, when it is loaded and later: run.sh looks for these.
blas=$(objdump -p "$backend" | sed -n 's/.*NEEDED *\(libcublasLt[.]so[.0-9]*\)/\1/p')
{
  echo "$blas"
  objdump -p "$backend" | sed -n 's/.*NEEDED *\(libcudnn[.]so[.0-9]*\)/\1/p'
  echo "libnvrtc.so.${blas##*.}"
  if grep -aq libnccl.so.2 "$backend"; then echo libnccl.so.2; fi
  echo libcuda.so.1  # the driver's
} > "$bundle/wanted"
cp tests/peers/gpt_cuda.py tests/peers/gpt_torch.py tests/peers/steps_cuda.py tests/peers/torch_models.py "$bundle/peers/"
text=/usr/share/doc/jargon-text/jargon.txt.gz
if [ ! -e $text ]; then
  echo "bundle.sh: no $text (jargon-text): the check 'examples' needs it" >&2
  exit 1
fi
cp $text "$bundle/data/"

# UCX opens its transports from the folder ucx beside libuct. Those for RDMA are left out: they name Debian's folders for the
# libraries they need, and one machine's processes have no use for them.
uct=$(libraries_of "$bundle/bin/gpt" | grep '/libuct[.]so' | head -n 1)
plugins=
if [ -n "$uct" ]; then
  mkdir "$bundle/lib/ucx"
  for plugin in "$(dirname "$(readlink -f "$uct")")"/ucx/*.so.0; do
    if libraries_of "$plugin" | grep -Eq '/lib(ibverbs|rdmacm)[.]so'; then continue; fi
    if [ -e "$plugin" ]; then cp -L "$plugin" "$bundle/lib/ucx/"; fi
    plugins="$plugins $plugin"
  done
fi
# shellcheck disable=SC2086
libraries_of "$bundle"/bin/* "$bundle/lib/liboneflow_like_cuda.so" $plugins | sort -u | while read -r path; do
  cp -L "$path" "$bundle/lib/$(basename "$path")"
done
chmod -R u+w "$bundle"

newest() { objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_2[.][0-9]*' | sort -t. -k2 -n -u | tail -n 1; }
# run.sh can do without the bundle's libstdc++ and libgcc_s.
glibc=$(for file in "$bundle"/bin/* "$bundle"/lib/*.so*; do
  case $file in */libstdc++.so* | */libgcc_s.so*) ;; *) newest "$file" ;; esac
done | sort -t. -k2 -n -u | tail -n 1 | sed 's/GLIBC_//')
# A driver serves every CUDA of its major version: the first of each.
major=${blas##*.}
case $major in
  13) driver=580 ;;
  12) driver=525 ;;
  *) echo "bundle.sh: the first driver for CUDA $major is not known here" >&2; exit 1 ;;
esac
cat > "$bundle/README.txt" <<TEXT
GPU tests and benchmarks of oneflow_like, made by tests/gpu/bundle.sh.
Needs: Linux on x86-64 with glibc $glibc or newer, NVIDIA's driver $driver or newer, and the libraries of CUDA $major: cuBLAS,
NVRTC, and for what uses them cuDNN 9 and NCCL 2. PyTorch 2 (python3) and compute-sanitizer where there are such.
Run: ./run.sh        one table; exit code 0: all passed. ./run.sh --list names the checks.
     ./run.sh --total=540 --out=kept            as much as nine minutes have room for, and everything printed in few files
     ./run.sh --only=correctness --total=590    where a command may take ten minutes; speed and sanitizers are groups, too
TEXT
tar -C "$build" -cJf "$bundle.tar.xz" gpu_bundle
mb=$(($(stat -c %s "$bundle.tar.xz") / 1000000))
echo "$bundle.tar.xz: $mb MB packed, $(du -sm "$bundle" | cut -f 1) MB unpacked, needs glibc $glibc"
if [ $mb -gt $most_mb ]; then echo "bundle.sh: more than $most_mb MB" >&2; exit 1; fi
[ $check = yes ] || exit 0

# Elsewhere, with an empty environment: which libraries the loader really opens.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
tar -C "$place" -xJf "$bundle.tar.xz"
outside() {  # a program and its arguments: what it opened that lies neither in the bundle nor is a machine's own
  ( cd "$place" && env -i PATH=/usr/bin:/bin LD_DEBUG=files UCX_MODULE_DIR="$place/gpu_bundle/lib/ucx" "$@" 2>&1 \
      >/dev/null ) |
    sed -n 's/.*calling init: //p' | sort -u | while read -r path; do
      case $path in "$place"/*) continue ;; esac
      basename "$path" | grep -Eq "$theirs" || echo "$path"
    done
}
wrong=$(outside "$place/gpu_bundle/bin/gpt" --mesh=cpu:dp=2 --text="$place/gpu_bundle/data/jargon.txt.gz" --steps=2 \
  --eval_batches=0 --sample_tokens=0
  outside "$place/gpu_bundle/bin/gpt" --processes=2 --mesh=cpu:dp=2 --text="$place/gpu_bundle/data/jargon.txt.gz" \
    --steps=2 --eval_batches=0 --sample_tokens=0
  outside "$place/gpu_bundle/bin/ops_gpu" --gtest_filter=Nothing
  outside "$place/gpu_bundle/bin/runtime_gpu" --gtest_filter=Nothing
  outside "$place/gpu_bundle/bin/bench_gpu")
if [ -n "$wrong" ]; then
  echo "bundle.sh: these came from this machine and are missing in the bundle:" >&2
  echo "$wrong" | sort -u >&2
  exit 1
fi
echo "unpacked in an empty folder, the programs opened nothing of this machine but glibc's and CUDA's libraries"
( cd "$place/gpu_bundle" && env -i PATH=/usr/bin:/bin bin/gpt --mesh=cpu:dp=2 --text=data/jargon.txt.gz --steps=2 \
    --eval_batches=0 --sample_tokens=0 > "$place/gpt.log" 2>&1 ) || { cat "$place/gpt.log"; exit 1; }
code=0
( cd "$place/gpu_bundle" && env -i PATH=/usr/bin:/bin ./run.sh --only=ops ) || code=$?
case $code in
  0) ;;
  2) echo "there is no GPU here, and run.sh says so" ;;
  *) echo "bundle.sh: run.sh --only=ops ended with $code" >&2; exit 1 ;;
esac
