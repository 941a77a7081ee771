#!/usr/bin/env bash
# Fuzzes the checkpoint reader and the push parser, starting from the fixtures and their pickles. Inputs that crash or
# hang are written to build/fuzz.
#
# usage: fuzz.sh [SECONDS]     for each of the two (default: 60)
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
mkdir -p build/fuzz/checkpoint.corpus build/fuzz/push.corpus
for file in $(find test/fixtures -type f ! -name '*.py' ! -name '*.cpp'); do
  name=$(echo "$file" | tr / _)
  cp "$file" "build/fuzz/checkpoint.corpus/$name"
  python3 -c '
import sys, zipfile
if zipfile.is_zipfile(sys.argv[1]):
    z = zipfile.ZipFile(sys.argv[1])
    open(sys.argv[2], "wb").write(next(z.read(n) for n in z.namelist() if n.endswith("data.pkl")))' \
    "$file" "build/fuzz/checkpoint.corpus/$name.pkl"
  # The sizes of the pieces, the options, the file, and bytes that follow it (see test/c/fuzz/push.c).
  { printf '\007\002'; cat "$file"; printf 'PKPKPK'; } >"build/fuzz/push.corpus/$name.7"
  { printf '\377\000'; cat "$file"; printf 'PKPKPK'; } >"build/fuzz/push.corpus/$name.255"
done
for target in checkpoint push; do
  clang -std=c11 -D_GNU_SOURCE -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -pthread \
    "test/c/fuzz/$target.c" -Ic_src -Itest/c c_src/core/*/*.c -ldeflate -lm -o "build/fuzz/$target"
  "build/fuzz/$target" -max_total_time="$seconds" -max_len=65536 -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=256 \
    -artifact_prefix=build/fuzz/ -print_final_stats=1 "build/fuzz/$target.corpus"
done
