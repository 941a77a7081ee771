#!/usr/bin/env bash
# Measures what must never happen: crashes, hangs, leaks and wrong answers for damaged input. Prints a table with one
# row per gate, and fails if a gate does not hold. Takes about ten minutes on two cores.
#
# usage: fire.sh [short]     the short form takes up to two minutes
#
# Environment: SEED (default: random) of the scripts in test/fire
#
# The sweeps are the C tests of core/checkpoint, which print their numbers with EXTORCH_FIGURES. The scripts of
# test/fire print one line each: "fire: name | number and what it counts | …".
set -euo pipefail
cd "$(dirname "$0")/.."
export LANG=C.UTF-8 EXTORCH_FIGURES=1 EXTORCH_HEX="${EXTORCH_HEX:-0}"
form=${1:-long}
# The short form is part of CI, so it is the same each time.
[ "$form" != short ] || export FUZZ_SEED=1
seed=${SEED:-$([ "$form" = short ] && echo 1 || echo $RANDOM)}
dir=build/fire
rm -rf "$dir"
mkdir -p "$dir"
started=$SECONDS
failures=()
rows=()

case $form in
  long) fuzz_seconds=30 script_seconds=45 tensors=2000000 kills=10000 ;;
  short) fuzz_seconds=3 script_seconds=5 tensors=100000 kills=500 ;;
  *) echo "usage: fire.sh [short]" >&2 && exit 2 ;;
esac

row() { rows+=("$1 | $2"); }

# ---- Sweeps over the fixtures ----

all=$(find test/fixtures -type f ! -path '*/dcp/*' ! -path '*/zoo/*' ! -name '*.json' ! -name '*.py' ! -name '*.cpp' -size -129 | sort)
streamed=$(grep -E '/(2\.14\.1|more)/' <<<"$all")
if [ "$form" = short ]; then
  # one or two small files of each format
  all=$(ls test/fixtures/2.14.1/{tensor.pt,list.pt,tensor.legacy.pt,conj.legacy.pt,tensor.stream,dtypes.safetensors} \
    test/fixtures/more/{tar.pt,numpy5.pkl,state4.pkl,python2.pt,oldest.pt,dtypes.safetensors.gz,cpp_tensor.pt})
  streamed=$all
fi

half() { # half 0|1 FILES: every second line
  awk -v n="$1" 'NR % 2 == n' <<<"$2"
}

test_files() { # test_files VARIANT TEST FILES: builds a C test and runs it over files
  FIXTURES=$3 TESTS=test/c/checkpoint/$2.c scripts/c_tests.sh "$1"
}

sweep() { # sweep NAME VARIANT TEST FILES: two processes, each with half of the files
  local pids=() n
  # The first run, over one small file, builds the test.
  if ! test_files "$2" "$3" test/fixtures/2.14.1/tensor.legacy.pt >"$dir/$1" 2>&1; then
    failures+=("$1: $dir/$1")
    return
  fi
  for n in 0 1; do
    test_files "$2" "$3" "$(half "$n" "$4")" >"$dir/$1.$n" 2>&1 &
    pids+=($!)
  done
  for n in 0 1; do wait "${pids[$n]}" || failures+=("$1: $dir/$1.$n"); done
}

figure() { # figure NAME OF_FIGURE: the sum over both processes
  cat "$dir/$1".[01] 2>/dev/null | awk -v name="$2" '$1 == "figure:" && $2 == name {sum += $3} END {print sum + 0}'
}

echo "== sweeps"
[ "$form" = short ] || export EXTORCH_SWEEP=512 # bytes: see push_test.c and open_test.c
# With sanitizers, which also report leaks. The cuts are too many for that: the fuzz targets cut under sanitizers.
sweep open asan open_test "$all"
sweep push plain push_test "$streamed"

open_figure() { figure open "$1"; }
push_figure() { figure push "$1"; }
row "truncation" "$(open_figure truncations) lengths of $(open_figure truncated_files) files: an error each"
row "bit flips" "$(open_figure flips) when opened, $(push_figure flips) in streams: no report"
row "payload flips" "$(open_figure checked_flips) in records with a checksum: all found by verify"
row "failed allocations" "$(open_figure failed_allocations) when opened, $(push_figure failed_allocations) in streams"
row "failed reads" "$(open_figure failed_reads): an error each"
row "stream splits" "$(push_figure one_cuts) in two pieces, $(push_figure two_cuts) in three: the same values"
row "single bytes" "$(push_figure byte_feeds) files: the same values"
for name in truncations flips checked_flips failed_allocations failed_reads; do
  [ "$(figure open $name)" -gt 0 ] || failures+=("open: no $name")
done
[ "$(figure push two_cuts)" -gt 0 ] || failures+=("push: no cuts")

# ---- Fuzzing ----

echo "== fuzzing"
if scripts/fuzz.sh "$fuzz_seconds" >"$dir/fuzz" 2>"$dir/fuzz.errors"; then
  row "fuzzing" "$(awk '$2 ~ /^[0-9]+$/ {n++; runs += $2} END {print runs " inputs by " n " targets: no finding"}' \
    "$dir/fuzz")"
else
  failures+=("fuzzing: $dir/fuzz.errors")
fi
[ ${#failures[@]} -gt 0 ] || row "leaks" "0 in the sweeps and in fuzzing (LeakSanitizer)"

# ---- The library, in the BEAM ----

make --no-print-directory all example >"$dir/make" 2>&1 || failures+=("make: $dir/make")
beam() { # beam NAME SCRIPT ARGUMENTS…: runs a script of test/fire and takes its line
  local name=$1 script=$2 lines
  shift 2
  echo "== $name"
  FORM=$form MIX_ENV=test mix run --no-deps-check "test/fire/$script.exs" "$@" >"$dir/$name" 2>&1 ||
    failures+=("$name: $dir/$name")
  lines=$(sed -n 's/^fire: //p' "$dir/$name")
  [ "$(grep -c . <<<"$lines")" = 1 ] || failures+=("$name: expected one line that begins with fire: in $dir/$name")
  rows+=("$lines")
}

for script in operators saves lifetimes faults hostile; do beam "$script" "$script" "$script_seconds" "$seed"; done
beam tensors lifetimes --tensors "$tensors"
beam kills lifetimes --kills "$kills"

# ---- The table ----

echo
for line in "${rows[@]}"; do printf '%-20s | %s\n' "${line%% | *}" "${line#* | }"; done
echo
for failure in "${failures[@]}"; do
  echo "failed: $failure" >&2
  file=${failure##* }
  [ ! -f "$file" ] || tail -n 15 "$file" >&2
done
echo "fire: $((SECONDS - started)) seconds, seed $seed, ${#failures[@]} failed"
[ ${#failures[@]} -eq 0 ]
