#!/usr/bin/env bash
# Installs what bench/peers.exs compares with into build/bench: Python's packages into a virtual environment, and the
# program in bench/peers where there is a cargo. PyPI's torch takes several GB; BENCH_PACKAGES selects other packages.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=${BENCH_PACKAGES:-torch numpy packaging safetensors runai-model-streamer fastsafetensors}
venv=build/bench/venv

python3 -c 'import ensurepip, venv' 2>/dev/null ||
  { echo "Python 3 with venv and pip is missing (apt-get install python3-venv)" >&2; exit 1; }
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
for package in $packages; do
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
    echo "pip could not install $package: it is not compared with" >&2
done

if command -v cargo >/dev/null; then
  CARGO_TARGET_DIR="$PWD/build/bench/peers" cargo build --quiet --release --locked --manifest-path bench/peers/Cargo.toml
else
  echo "cargo was not found: the crates of Rust are not compared with" >&2
fi
