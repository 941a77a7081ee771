#!/usr/bin/env bash
# Fuzzes the readers and writers of c_src/core under libFuzzer, AddressSanitizer and UBSan, and prints a table. The
# first inputs are made from the fixtures; test/c/fuzz/corpus has those that earlier runs have found. Inputs that crash,
# hang or use too much memory are written to build/fuzz/findings.
#
# usage: fuzz.sh [SECONDS]     for each target (default: FUZZ_SECONDS, or 60)
#        fuzz.sh merge         adds the new inputs of build/fuzz to test/c/fuzz/corpus, removes those that add nothing
#
# Environment: TARGETS (default: all), JOBS at once (default: 2), FUZZ_SEED (default: random)
set -euo pipefail
cd "$(dirname "$0")/.."
dir=build/fuzz
targets=${TARGETS:-checkpoint push pickle directory view save}
limits="-max_len=65536 -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512"
export ASAN_OPTIONS=allocator_may_return_null=1:malloc_context_size=8

make --no-print-directory -j"$(getconf _NPROCESSORS_ONLN)" -f scripts/fuzz.mk DIR="$dir" TARGETS="$targets"
rm -rf "$dir/seeds"
python3 test/c/fuzz/seeds.py "$dir/seeds"
mkdir -p "$dir/findings"
for target in $targets; do mkdir -p "$dir/corpus/$target" "test/c/fuzz/corpus/$target"; done

run() { # run TARGET: creates DIR/TARGET.passed if nothing was found
  rm -f "$dir/$1.passed"
  # shellcheck disable=SC2086
  "$dir/$1" $limits -max_total_time="$seconds" -seed="${FUZZ_SEED:-0}" -print_final_stats=1 -dict="$dir/seeds/dictionary" \
    -artifact_prefix="$dir/findings/$1-" "$dir/corpus/$1" "$dir/seeds/$1" "test/c/fuzz/corpus/$1" >"$dir/$1.log" 2>&1 &&
    touch "$dir/$1.passed"
}

# The corpus in the repository: small inputs that reach, together, every edge that any input has reached. The fixtures
# are given first, so that nothing is kept that a fixture reaches. Only edges count, not how often they are taken, which
# would keep many more inputs.
merge() { # merge TARGET
  local all=$dir/merged/$1
  rm -rf "$all" "$all.new"
  mkdir -p "$all" "$all.new"
  # shellcheck disable=SC2086
  "$dir/$1" $limits -merge=1 -use_counters=0 "$all" "$dir/seeds/$1" >"$dir/$1.merge.log" 2>&1
  # The same input may be in both; cp refuses to write a file twice.
  find "test/c/fuzz/corpus/$1" -type f -size -17 -exec cp -t "$all.new" {} +
  find "$dir/corpus/$1" -type f -size -17 -exec cp -t "$all.new" {} +
  # shellcheck disable=SC2086
  "$dir/$1" $limits -merge=1 -use_counters=0 "$all" "$all.new" >>"$dir/$1.merge.log" 2>&1
  rm -rf "test/c/fuzz/corpus/$1"
  mkdir "test/c/fuzz/corpus/$1"
  # Every input of the repository has its own contents as name.
  for input in "$all.new"/*; do
    [ ! -e "$all/$(basename "$input")" ] || cp "$input" "test/c/fuzz/corpus/$1/"
  done
  echo "$1: $(ls "test/c/fuzz/corpus/$1" | wc -l) inputs, $(du -bs "test/c/fuzz/corpus/$1" | cut -f1) bytes"
}

if [ "${1:-}" = merge ]; then
  for target in $targets; do merge "$target"; done
  exit
fi

seconds=${1:-${FUZZ_SECONDS:-60}}
failed=()
for target in $targets; do
  while [ "$(jobs -r | wc -l)" -ge "${JOBS:-2}" ]; do sleep 0.2; done
  run "$target" &
done
wait
for target in $targets; do [ -e "$dir/$target.passed" ] || failed+=("$target"); done

stat() { sed -n "s/^stat::$2: *//p" "$dir/$1.log"; }
printf '%-12s %10s %8s %7s %9s %7s %9s\n' target runs per-sec edges features inputs peak-MiB
for target in $targets; do
  reached=$(grep -oE 'cov: [0-9]+ ft: [0-9]+ corp: [0-9]+' "$dir/$target.log" | tail -n 1 | tr -dc '0-9 ' | xargs)
  # shellcheck disable=SC2086
  printf '%-12s %10s %8s %7s %9s %7s %9s\n' "$target" "$(stat "$target" number_of_executed_units)" \
    "$(stat "$target" average_exec_per_sec)" ${reached:-- - -} "$(stat "$target" peak_rss_mb)"
done
for target in "${failed[@]}"; do
  echo "== $target failed: $dir/$target.log" >&2
  grep -vE '^#[0-9]+\s' "$dir/$target.log" | tail -n 40 >&2
done
[ ${#failed[@]} -eq 0 ]
