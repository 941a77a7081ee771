#!/usr/bin/env bash
# What CI checks in addition to the tests: formatting, layers, warnings, static analysis, types, sanitizers, a short
# fuzz run, and the short form of `make fire`.
set -euo pipefail
cd "$(dirname "$0")/.."
export LANG=C.UTF-8
: "${EXTORCH_HEX:=0}"
export EXTORCH_HEX

step() { printf '== %s\n' "$*"; }

step "formatting"
mix format --check-formatted
git ls-files '*.[ch]' '*.cpp' '*.hpp' | xargs clang-format --dry-run --Werror

step "layers"
scripts/layers.sh

step "warnings are errors, in the files of the Hex package alone"
scripts/package.sh
MIX_ENV=test mix compile --force --no-deps-check --warnings-as-errors

step "without LibTorch: one library of less than 1 MB"
make --no-print-directory WERROR=1 EXTORCH_TORCH=0 CXX=false MIX_APP_PATH="$PWD/build/werror" all
[ ! -e build/werror/priv/extorch_torch.so ] && [ "$(wc -c <build/werror/priv/extorch.so)" -lt 1000000 ]

# The chosen classes find wrong code, not style. Headers of the system are not analyzed. ctuuninitvar: an xt_error is
# filled only if the status is not ok.
step "cppcheck"
cppcheck --quiet --enable=warning,performance,portability --suppress=missingInclude --suppress=missingIncludeSystem --suppress=ctuuninitvar \
  --inline-suppr --std=c11 -Ic_src --error-exitcode=1 c_src/core c_src/plain c_src/nif

step "dialyzer"
scripts/dialyzer.sh

step "C tests under ASan and UBSan"
scripts/c_tests.sh asan

step "instructions for each of 20,000 tensors"
scripts/instructions.sh

step "fuzzing, ${FUZZ_SECONDS:=5} seconds for each target"
FUZZ_SEED=1 scripts/fuzz.sh "$FUZZ_SECONDS" # the same each time; `make fuzz` searches

step "damaged input, faults and kills"
scripts/fire.sh short

# mix uses the libraries in build/priv/, so the sanitized ones are built there and replaced afterwards, also on failure.
step "ExUnit under ASan and UBSan"
make --no-print-directory -j"$(getconf _NPROCESSORS_ONLN)" SAN=asan all example simulated_device
trap 'make --no-print-directory >/dev/null' EXIT
# +Mea min: every enif_alloc becomes a separate malloc, so that ASan sees overflows.
sanitized() { # sanitized TEST…
  EXTORCH_ASAN=1 LD_PRELOAD=$(${CC:-cc} -print-file-name=libasan.so):$(${CC:-cc} -print-file-name=libubsan.so) ELIXIR_ERL_OPTIONS="+Mea min" \
    ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1:detect_odr_violation=0 \
    MIX_ENV=test mix test --no-deps-check "$@"
}
sanitized

step "ExUnit without LibTorch, under ASan and UBSan"
EXTORCH_TORCH=0 sanitized test/extorch/{tensor,saver} test/extorch/{tensor,diff,store}_test.exs \
  test/extorch/checkpoint/{fixtures,sparse,views}_test.exs test/extorch/checkpoint/hostile/{parts,tensor}_test.exs
echo "check: passed"
