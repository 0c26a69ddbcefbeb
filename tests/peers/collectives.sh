#!/bin/sh
# Collectives of ours, Gloo and Open MPI side by side: builds the programs and prints the tables. Arguments go to
# collectives.py.
set -eu
cd "$(dirname "$0")/../.."
. ./install.sh
# Only this comparison needs them: not for everybody who builds.
optional_packages="$optional_packages libgloo-dev libopenmpi-dev openmpi-bin"
install_packages
cmake -S . -B build -G Ninja
cmake --build build --target ours_collectives
for target in gloo_collectives mpi_collectives; do
  if ninja -C build -t query "$target" >/dev/null 2>&1; then cmake --build build --target "$target"; fi
done
exec python3 tests/peers/collectives.py "$@"
