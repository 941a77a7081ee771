#!/usr/bin/env bash
# Builds and runs the C tests of c_src/core and c_src/plain.
#
# usage: c_tests.sh [plain|asan|coverage]
#
# With asan the tests run under AddressSanitizer with LeakSanitizer, and UBSan. Environment:
#   CC, CFLAGS    the compiler and further options
#   LIBS          libraries to link (default: -ldeflate)
#   TESTS         the tests to run (default: test/c/*/*_test.c)
#   RUN           a program that runs the tests, such as an emulator after cross compilation
#   C_TESTS_DIR   the build directory (default: build/c/plain or build/c/asan)
set -euo pipefail
cd "$(dirname "$0")/.."
variant=${1:-plain}
dir=${C_TESTS_DIR:-build/c/$variant}
compile="${CC:-cc} -std=c11 -D_GNU_SOURCE -Ic_src -Itest/c -g -O1 -Wall -Wextra -Werror -pthread ${CFLAGS:-}"
case $variant in
  asan) compile="$compile -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
  coverage) compile="$compile -O0 --coverage -fprofile-abs-path" ;;
esac

# make recompiles only what has changed; a change of the flags recompiles everything.
printf '%s\n' "$compile" >"${TMPDIR:-/tmp}/extorch_c_tests.$$"
mkdir -p "$dir"
cmp -s "${TMPDIR:-/tmp}/extorch_c_tests.$$" "$dir/flags" || cp "${TMPDIR:-/tmp}/extorch_c_tests.$$" "$dir/flags"
rm -f "${TMPDIR:-/tmp}/extorch_c_tests.$$"
tests=${TESTS:-$(echo test/c/*/*_test.c)}
make --no-print-directory -j"$(getconf _NPROCESSORS_ONLN)" -f scripts/c_tests.mk DIR="$dir" COMPILE="$compile" \
  LIBS="${LIBS:--ldeflate}" TESTS="$tests"

# FIXTURES selects some of the checkpoints, one per line, for a slow emulator.
fixtures=${FIXTURES:-$(find test/fixtures -type f ! -path '*/dcp/*' ! -path '*/zoo/*' ! -name '*.json' ! -name '*.py' ! -name '*.cpp' | sort)}
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1
# LeakSanitizer does not work under ptrace and without some permissions: a leak must be reported.
if [ "$variant" = asan ]; then
  echo 'int main(int n, char **v) { v[0] = __builtin_malloc(n); v[0] = 0; return 0; }' | ${CC:-cc} -fsanitize=address -O0 -x c - -o "$dir/leak.$$"
  { ${RUN:-} "$dir/leak.$$" 2>&1 || true; rm -f "$dir/leak.$$"; } | grep -q 'detected memory leaks' ||
    { echo "LeakSanitizer does not find a leak on this machine" >&2; exit 1; }
fi
for test in $tests; do
  program=${test#test/c/}
  program=${program%.c}
  case $program in
    checkpoint/open_test) arguments=$fixtures ;;
    # This test takes long per file: only the newest files of each kind.
    checkpoint/push_test) arguments=$(grep -E '/(2\.14\.1|more)/' <<<"$fixtures" || true) ;;
    pickle/scan_test) arguments=$(echo test/fixtures/more/*.pkl) ;;
    *) arguments=$dir ;;
  esac
  # shellcheck disable=SC2086
  ${RUN:-} "$dir/$program" $arguments
done
