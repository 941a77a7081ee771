#!/usr/bin/env bash
# What CI asks beyond the tests: formatting of both languages, no warnings, and the same tests under sanitizers.
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

step "warnings are errors"
make --no-print-directory WERROR=1 MIX_APP_PATH="$PWD/build/werror" all
MIX_ENV=test mix compile --force --no-deps-check --warnings-as-errors

step "C unit tests under ASan and UBSan"
scripts/c_tests.sh asan

# The sanitized libraries go where mix looks for them, and the ordinary ones come back whatever happens.
step "ExUnit under ASan and UBSan"
make --no-print-directory SAN=asan all example
trap 'make --no-print-directory >/dev/null' EXIT
# +Mea min: every enif_alloc becomes a malloc of its own, so that an overflow of it is seen.
EXTORCH_ASAN=1 LD_PRELOAD=$(${CC:-cc} -print-file-name=libasan.so):$(${CC:-cc} -print-file-name=libubsan.so) ELIXIR_ERL_OPTIONS="+Mea min" \
  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1:detect_odr_violation=0 \
  MIX_ENV=test mix test --no-deps-check
echo "check: all is well"
