#!/bin/sh
# Ours and PyTorch side by side: builds bench and prints one table of ratios. Arguments go to compare.py.
set -eu
cd "$(dirname "$0")/../.."
. ./install.sh
install_packages
if ! /usr/bin/python3 -c 'import torch' 2>/dev/null && [ -z "${OFL_NO_INSTALL:-}" ]; then
  apt_get install -q -y --no-install-recommends python3-torch libopenblas0-openmp ||
    echo "PyTorch could not be installed; compare.py takes another interpreter with --python" >&2
fi
cmake -S . -B build -G Ninja
cmake --build build --target bench
exec /usr/bin/python3 tests/peers/compare.py "$@"
