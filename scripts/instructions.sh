#!/usr/bin/env bash
# Counts the instructions that core executes for each of 20,000 small tensors, to save, open and load them in every
# format, and compares the counts with bench/instructions.txt. Fails if one is more than 10 % above its figure.
#
# usage: instructions.sh [record]     `record` writes the counts to bench/instructions.txt
#
# Another compiler or C library has other counts: they are compared only with those of the same.
set -euo pipefail
cd "$(dirname "$0")/.."
figures=bench/instructions.txt
dir=build/instructions
compile="${CC:-cc} -std=c11 -D_GNU_SOURCE -Ic_src -O2 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror"
environment="$(${CC:-cc} -dumpmachine), $(${CC:-cc} --version | sed -n 1p), libc $(ldd --version 2>&1 | awk 'NR == 1 { print $NF }')"

mkdir -p "$dir"
echo "$compile" | cmp -s - "$dir/flags" || echo "$compile" >"$dir/flags"
make -s -j"$(getconf _NPROCESSORS_ONLN)" -f scripts/c_tests.mk DIR="$dir" COMPILE="$compile" "$dir/core.a"
$compile bench/support/instructions.c "$dir/core.a" -ldeflate -lm -o "$dir/instructions"

# One profile per part: its name is in the line "desc: Trigger", its count in the line "totals".
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
valgrind --tool=callgrind --callgrind-out-file="$files/profile" "$dir/instructions" "$files" >"$dir/valgrind.log" 2>&1 ||
  { tail -n 20 "$dir/valgrind.log" >&2; exit 1; }
awk '/^desc: Trigger: Client Request: / { part = $5 " " $6 }
  /^totals: / && part { printf "%s %d\n", part, $2 / 20000 + 0.5; part = "" }' "$files"/profile.* | sort >"$dir/counts"
[ "$(wc -l <"$dir/counts")" = 12 ] || { echo "callgrind counted $(wc -l <"$dir/counts") parts, expected 12" >&2; exit 1; }

if [ "${1:-}" = record ]; then
  {
    echo "# Instructions for each of 20,000 small tensors: make instructions compares, make instructions RECORD=1 writes."
    echo "environment: $environment"
    cat "$dir/counts"
  } >"$figures"
  cat "$figures"
  exit
fi
recorded=$(sed -n 's/^environment: //p' "$figures")
if [ "$recorded" != "$environment" ]; then
  echo "not compared: the figures are those of $recorded; this is $environment"
  cat "$dir/counts"
  exit
fi
awk 'NR == FNR { if (NF == 3 && $3 ~ /^[0-9]+$/) figure[$1 " " $2] = $3; next }
  { known = figure[$1 " " $2]; change = known ? 100 * ($3 - known) / known : 999
    if (change > 10) failed = 1
    if (change < -10) fewer = 1
    printf "%-5s %-12s %6d instructions a tensor, recorded %6d (%+.1f %%)\n", $1, $2, $3, known, change }
  END { if (fewer) print "more than 10 % fewer: record them with make instructions RECORD=1"
        if (failed) print "more than 10 % more instructions than recorded"
        exit failed }' "$figures" "$dir/counts"
