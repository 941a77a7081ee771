#!/usr/bin/env bash
# Builds and runs the C tests of core/.
#
# usage: c_tests.sh [plain|asan]
#
# asan adds AddressSanitizer and UBSan. CC and CFLAGS choose the compiler, RUN the program that runs the tests (an
# emulator for cross builds), TESTS the tests (default: all), C_TESTS_DIR the folder of the build.
set -euo pipefail
cd "$(dirname "$0")/.."
variant=${1:-plain}
dir=${C_TESTS_DIR:-build/c/$variant}
compile="${CC:-cc} -std=c11 -D_GNU_SOURCE -Ic_src -Itest/c -g -O1 -Wall -Wextra -Werror -pthread ${CFLAGS:-}"
[ "$variant" != asan ] || compile="$compile -fsanitize=address,undefined -fno-sanitize-recover=all"

# Core is compiled once, by make, so that only what changed is compiled again.
printf '%s\n' "$compile" >"${TMPDIR:-/tmp}/extorch_c_tests.$$"
mkdir -p "$dir"
cmp -s "${TMPDIR:-/tmp}/extorch_c_tests.$$" "$dir/flags" || cp "${TMPDIR:-/tmp}/extorch_c_tests.$$" "$dir/flags"
rm -f "${TMPDIR:-/tmp}/extorch_c_tests.$$"
make --no-print-directory -j"$(getconf _NPROCESSORS_ONLN)" -f scripts/c_tests.mk DIR="$dir" COMPILE="$compile" \
  LIBS="${LIBS:--ldeflate}" ${TESTS:+TESTS="$TESTS"}

# FIXTURES selects some of the checkpoints, one per line, for a slow emulator.
fixtures=${FIXTURES:-$(find test/fixtures -type f ! -name '*.json' ! -name '*.py' ! -name '*.cpp' | sort)}
export ASAN_OPTIONS=allocator_may_return_null=1
for program in $(find "$dir" -type f -name '*_test' | sort); do
  case $(basename "$program") in
    open_test) arguments=$fixtures ;;
    # Every cut of a file takes time: only the newest files of each kind.
    push_test) arguments=$(grep -E '/(2\.14\.1|more)/' <<<"$fixtures") ;;
    *) arguments=$dir ;;
  esac
  # shellcheck disable=SC2086
  ${RUN:-} "$program" $arguments
done
