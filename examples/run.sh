#!/bin/sh
# From a fresh machine to a trained GPT: installs what is missing, builds, trains on a 2x2x2 mesh of virtual CPU
# devices, and prints a sample. Flags given here go to gpt and win over those below, e.g. --steps=1000.
set -eu
cd "$(dirname "$0")/.."
. ./install.sh
install_packages

cmake -S . -B build -G Ninja
cmake --build build --target gpt

case " $* " in
  *" --text"* | *" -text"*) ;;
  *)
    if [ ! -e "$text_file" ]; then
      echo "There is no $text_file of package jargon-text; training on README.md instead" >&2
      set -- --text=README.md "$@"
    fi
    ;;
esac
exec build/examples/gpt --mesh=cpu:dp=2,tp=2,pp=2 --layers=4 --width=128 --heads=4 --context=128 --batch=16 \
  --micro_batches=4 --steps=1200 --lr=2e-3 "$@"
