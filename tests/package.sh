#!/bin/sh
# Builds the .deb and the archive, and tries both in bare systems of the release of Debian that runs here. As root, with
# debootstrap and the mirror that apt uses; no part of run.sh.
#   tests/package.sh                 builds in build/release, makes the systems in build/systems (2 GB)
#   tests/package.sh BUILD SYSTEMS   takes or makes these folders instead
# SYSTEMS/bare is made once; SYSTEMS/deb and SYSTEMS/archive are made anew from it.
set -eu
cd "$(dirname "$0")/.."
build=${1-build/release}
mkdir -p "${2-build/systems}"
systems=$(cd "${2-build/systems}" && pwd)
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "tests/package.sh: needs root and debootstrap (apt-get install debootstrap)" >&2
  exit 2
fi
fail() {
  echo "tests/package.sh: $*" >&2
  exit 1
}

# Runs shell commands in a system, whose mounts and processes end with them.
inside() {
  # shellcheck disable=SC2016  # for the shell inside
  unshare --mount --pid --fork --kill-child sh -ec '
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    chroot "$1" env -i HOME=/root DEBIAN_FRONTEND=noninteractive \
      PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -ec "$2"' sh "$systems/$1" "$2"
}
# All files but those in which dpkg, apt and ldconfig keep their own books.
files_of() {
  (cd "$systems/$1" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./var/lib/dpkg -o -path ./var/log \
    -o -path ./var/cache \) -prune -o -print | sort)
}
# The programs of folder $2 in system $1: those of the build, each with all its libraries and its version; gpt trains,
# in one process and in two. Leaves losses in $1/root/losses.
try_programs() {
  (cd "$build/examples" && find . -maxdepth 1 -type f -perm -100 | sort) > "$systems/$1/root/built"
  (cd "$systems/$1/$2" && find . -type f | sort) > "$systems/$1/root/installed"
  diff "$systems/$1/root/built" "$systems/$1/root/installed" || fail "$1: not the programs that were built"
  inside "$1" "
    for program in /$2/*; do
      if ldd \$program | grep 'not found'; then echo \$program lacks a library >&2; exit 1; fi
      \$program --version | grep -x 'oneflow_like $version' > /root/version || { echo \$program --version fails >&2; exit 1; }
    done
    cd /root
    seq 1 20000 > text
    gpt='/$2/gpt --text=text --layers=2 --width=32 --heads=4 --context=32 --batch=8 --steps=20 --eval_batches=1 --sample_tokens=0'
    \$gpt --mesh=cpu:dp=2,tp=2 --log_json=one > log
    \$gpt --mesh=cpu:dp=2,tp=2 --processes=2 --log_json=two > log
    for run in one two; do grep -o '\"loss\": *[0-9.e+-]*' \$run > losses.\$run; done
    cmp losses.one losses.two
    test \$(wc -l < losses.one) = 20
    head -n 1 losses.one; tail -n 1 losses.one"
}

if [ ! -e "$build/build.ninja" ]; then
  cmake -S . -B "$build" -G Ninja -DOFL_TESTS=OFF
fi
cmake --build "$build"
(cd "$build" && rm -rf oneflow-like[-_]*.deb oneflow-like-*.tar.gz && cpack)
deb=$(echo "$build"/oneflow-like_*.deb)
archive=$(echo "$build"/oneflow-like-*.tar.gz)
version=$(dpkg-deb -f "$deb" Version)
echo "--- $deb"
dpkg-deb -f "$deb"
ls -l "$deb" "$archive"

if [ ! -e "$systems/bare/etc/os-release" ]; then
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # shellcheck disable=SC2016  # apt-get's
  mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$release //p" | head -n 1)
  [ -n "$mirror" ] || fail "apt has no mirror of $release"
  debootstrap --variant=minbase "$release" "$systems/bare" "$mirror"
fi
for system in deb archive; do
  rm -rf --one-file-system "${systems:?}/$system"
  cp -a "$systems/bare" "$systems/$system"
done
cp /etc/resolv.conf /etc/hosts "$systems/deb/etc/"

echo "--- the archive, where no package was added"
mkdir "$systems/archive/opt/moved"
tar -xzf "$archive" -C "$systems/archive/opt/moved" --strip-components=1
try_programs archive opt/moved/libexec/oneflow_like
inside archive '
  cd /root
  if /opt/moved/libexec/oneflow_like/gpt --text=text --mesh=cuda:dp=1 > log 2> error; then exit 1; fi
  cat error
  grep -q "^error: .*a cuda mesh needs" error' || fail "archive: without NVIDIA's driver a cuda mesh is not refused in a sentence"

echo "--- the .deb, with what it depends on, cmake and make"
cp "$deb" "$systems/deb/root/oneflow-like.deb"
cp -r tests/consumer "$systems/deb/root/consumer"
inside deb "
  apt-get update -q -o APT::Sandbox::User=root
  apt-get install -q -y --no-install-recommends -o APT::Sandbox::User=root /root/oneflow-like.deb cmake make > /root/apt.log
  dpkg --purge oneflow-like"
files_of deb > "$systems/without"
inside deb "dpkg -i /root/oneflow-like.deb; dpkg --verify oneflow-like"
try_programs deb usr/libexec/oneflow_like
cmp "$systems/deb/root/losses.one" "$systems/archive/root/losses.one" || fail ".deb and archive learn differently"
inside deb "
  cmake -S /root/consumer -B /tmp/consumer -DCMAKE_BUILD_TYPE=Release
  cmake --build /tmp/consumer
  /tmp/consumer/consumer /root/rows.csv
  rm -rf /root/[a-np-z]* && dpkg --purge oneflow-like"
files_of deb > "$systems/after"
sed -i '\,^./root/,d' "$systems/without" "$systems/after"
diff "$systems/without" "$systems/after" || fail "the .deb leaves files behind"

# Levels of CPU kernels that this processor is above, on emulated ones; below the lowest, a sentence.
if command -v qemu-x86_64-static >/dev/null; then
  cp "$(command -v qemu-x86_64-static)" "$systems/archive/root/qemu"
  gpt="/opt/moved/libexec/oneflow_like/gpt --text=/root/text --layers=1 --width=16 --heads=2 --context=8 --batch=2 --steps=2"
  for level in Nehalem:x86-64-v2 Haswell:x86-64-v3; do
    inside archive "
      /root/qemu -cpu ${level%:*} $gpt --version | grep -x '  kernels   ${level#*:}'
      /root/qemu -cpu ${level%:*} $gpt --eval_batches=0 --sample_tokens=0 | grep '^2 steps'" || fail "no kernels of ${level#*:}"
  done
  inside archive "
    if /root/qemu -cpu qemu64 $gpt 2> /root/error; then exit 1; fi
    grep '^error: this program needs a processor of level x86-64-v2' /root/error" || fail "a processor below x86-64-v2 is not told"
else
  echo "no qemu-x86_64-static (qemu-user-static): kernels of lower levels are not tried"
fi
echo "tests/package.sh: all passed"
