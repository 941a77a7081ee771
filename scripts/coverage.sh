#!/usr/bin/env bash
# Runs the C tests of c_src/core with gcov and reports the lines that they do not reach. Fails if they reach less than
# 95 % of the lines, or if they miss an error return that test/c/unreached.txt does not name. Needs gcc.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build/c/coverage
mkdir -p "$dir"
# Each run adds to the counts of the runs before it.
find "$dir" -name '*.gcda' -delete
CC=${CC:-gcc} C_TESTS_DIR=$dir scripts/c_tests.sh coverage
python3 scripts/coverage.py "$dir" test/c/unreached.txt 95
