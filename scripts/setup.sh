#!/usr/bin/env bash
# Installs what a job of the Makefile needs. Does nothing if everything is there.
#
# usage: setup.sh compile|build|test|check|coverage|cross|fuzz|matrix
#
# On Debian and systems based on it, missing packages are installed with apt, as root or with sudo. On other systems, and
# for `compile`, which is the build of a dependency, the script lists what is missing and fails. With EXTORCH_TORCH=0, neither
# LibTorch nor a C++ compiler is needed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
job=${1:?usage: setup.sh compile|build|test|check|coverage|cross|fuzz|matrix}
missing=()  # Debian packages
wanted=()   # descriptions of the same, for other systems

need() { # need PACKAGES DESCRIPTION COMMAND…: the packages are missing if the command fails
  local packages=$1 description=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  for package in $packages; do missing+=("$package"); done
  wanted+=("$description")
}

has_erl_nif() {
  local root
  if [ -n "${ERTS_INCLUDE_DIR:-}" ]; then [ -e "$ERTS_INCLUDE_DIR/erl_nif.h" ]; return; fi
  root=$(erl -noshell -eval 'io:put_chars(code:root_dir()), halt().') && [ -e "$root/usr/include/erl_nif.h" ]
}
# shellcheck disable=SC2086
has_header() { echo "#include <$1>" | ${CC:-cc} ${CFLAGS:-} -E -x c - ; }
# CC and CXX may have arguments.
has_c_compiler() { command -v "$(set -- ${CC:-cc} && echo "$1")"; }
has_compilers() { has_c_compiler && command -v "$(set -- ${CXX:-c++} && echo "$1")"; }
has_torch() { [ "${EXTORCH_TORCH:-}" = 0 ] || EXTORCH_FETCH=0 "$here/libtorch.sh"; }
has_python_torch() { "${EXTORCH_PYTHON:-/usr/bin/python3}" -c 'import torch'; }
has_asan() { [ -e "$(${CC:-cc} -print-file-name=libasan.so)" ]; }
has_fuzzer() { echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer -x c - -o /dev/null; }
has_venv() { python3 -c 'import ensurepip, venv'; }
has_aarch64() { [ "$(uname -m)" = aarch64 ] || command -v qemu-aarch64-static || command -v qemu-aarch64; }
has_nginx() { command -v nginx || [ -x /usr/sbin/nginx ]; }
# Ubuntu has Chromium only as a snap: the tests of pages are skipped there, and where EXTORCH_BROWSER is 0.
has_chromium() { [ "${EXTORCH_BROWSER:-}" = 0 ] || grep -qs '^ID=ubuntu' /etc/os-release || command -v chromium || command -v google-chrome; }
has_otp() { erl -noshell -eval '[{ok, _} = application:ensure_all_started(A) || A <- [ssl, inets]], halt().'; }

case $job in
  compile | build | test | check)
    if [ "${EXTORCH_TORCH:-}" = 0 ]; then need "gcc libc6-dev" "a C11 compiler (gcc or clang; CC)" has_c_compiler
    else need g++ "a C11 and a C++17 compiler (gcc or clang; CC and CXX)" has_compilers; fi
    need erlang-dev "erl_nif.h of Erlang/OTP (ERTS_INCLUDE_DIR)" has_erl_nif
    need libdeflate-dev "libdeflate with its header" has_header libdeflate.h
    ;;
esac
case $job in
  build | test | check)
    need elixir "Elixir 1.14 or newer, with OTP 25 or newer" command -v elixir
    need "erlang-ssl erlang-inets" "Erlang/OTP's ssl and inets applications" has_otp
    need libtorch-dev "LibTorch 1.13 or newer (LIBTORCH_DIR, or a Python with torch)" has_torch
    ;;
esac
case $job in
  test | check)
    # Debian's package brings LibTorch along. Without it, the tests that compare with torch are skipped.
    [ "${EXTORCH_TORCH:-}" = 0 ] ||
      need python3-torch "a Python with torch (EXTORCH_PYTHON), to compare with" has_python_torch
    need strace "strace, to make disks fail" command -v strace
    need nginx-light "nginx, to read checkpoints from" has_nginx
    need openssl "openssl, to make certificates" command -v openssl
    need "chromium fonts-dejavu-core" "Chromium, to test pages in (EXTORCH_BROWSER=0 skips them)" has_chromium
    ;;
esac
case $job in
  check)
    need clang-format "clang-format" command -v clang-format
    need cppcheck "cppcheck" command -v cppcheck
    need erlang-dialyzer "OTP's Dialyzer" command -v dialyzer
    need "gcc g++" "gcc's AddressSanitizer" has_asan
    need valgrind "valgrind with its headers" has_header valgrind/callgrind.h
    ;;
  coverage)
    need gcc "gcc and gcov" command -v gcov
    need python3 "Python 3" command -v python3
    need libdeflate-dev "libdeflate with its header" has_header libdeflate.h
    ;;
  cross)
    need make "make" command -v make
    need elixir "Erlang/OTP 25 or newer" command -v erl
    need erlang-dev "erl_nif.h of Erlang/OTP (ERTS_INCLUDE_DIR)" has_erl_nif
    need python3-venv "Python 3 with venv and pip" has_venv
    need qemu-user-static "qemu's user mode emulator for aarch64" has_aarch64
    ;;
esac
case $job in
  check | fuzz)
    need "clang libclang-rt-dev" "clang with libFuzzer" has_fuzzer
    need python3 "Python 3, to make the first inputs" command -v python3
    need libdeflate-dev "libdeflate with its header" has_header libdeflate.h
    ;;
  matrix)
    need debootstrap "debootstrap" command -v debootstrap
    [ -z "${MATRIX_PYPI:-}" ] || need python3-venv "Python 3 with venv and pip" has_venv
    ;;
esac

[ ${#missing[@]} -gt 0 ] || exit 0

as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
if [ "$job" != compile ] && command -v apt-get >/dev/null && { [ -z "$as_root" ] || command -v sudo >/dev/null; }; then
  echo "installing with apt: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! { $as_root apt-get update -q && $as_root apt-get install -qy --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "apt could not install: ${missing[*]}" >&2
    exit 1
  fi
else
  {
    echo "ExTorch: missing on this machine:"
    printf '  - %s\n' "${wanted[@]}"
    echo "on Debian or Ubuntu, as root: apt-get install ${missing[*]}"
  } >&2
  exit 1
fi
