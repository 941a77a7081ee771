#!/usr/bin/env bash
# Builds and tests this checkout on several Debian releases, each in its own chroot, and with PyPI's torch.
#
# usage: matrix.sh [SUITE…]        (default: bookworm trixie sid plain, and pypi if MATRIX_PYPI=1)
#
# plain is trixie without LibTorch: EXTORCH_TORCH=0, in a root that has neither LibTorch nor a C++ compiler.
#
# pypi is this machine with the newest torch of PyPI, a CUDA build of several gigabytes, in a virtual environment that is
# made once. It needs no GPU. PYPI_TORCH is what pip installs: torch, or torch==2.15.0.
#
# The root directories are made once by debootstrap and kept in EXTORCH_CACHE. `make test` installs the packages that it
# needs, so a new root also shows that it works on a fresh machine. Sid changes daily: a failure there is shown, but only
# a failure of another suite makes this script fail.
set -euo pipefail

cache=${EXTORCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/extorch}/matrix
project=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || set -- bookworm trixie sid plain ${MATRIX_PYPI:+pypi}
[ "$(id -u)" = 0 ] || [ "$*" = pypi ] || { echo "make matrix must run as root, which debootstrap and chroot need." >&2; exit 1; }
mkdir -p "$cache"
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep '/debian/\?$' | head -n 1)

make_root() { # make_root SUITE ROOT
  if [ "$1" = pypi ]; then make_environment "$2"; return; fi
  [ -e "$2/.ready" ] && return
  echo "debootstrap $1 into $2"
  rm -rf --one-file-system "$2"
  debootstrap --variant=minbase --include=ca-certificates,make,git "${1/plain/trixie}" "$2" ${mirror:+"$mirror"} >"$cache/$1.debootstrap.log" 2>&1 ||
    { tail -n 5 "$cache/$1.debootstrap.log" >&2; return 1; }
  touch "$2/.ready"
}

make_environment() { # make_environment DIRECTORY
  [ -e "$1/.ready" ] && return
  echo "pip install ${PYPI_TORCH:-torch} into $1"
  rm -rf "$1"
  { python3 -m venv "$1/venv" && "$1/venv/bin/pip" install --no-cache-dir numpy safetensors "${PYPI_TORCH:-torch}"; } \
    >"$cache/pypi.pip.log" 2>&1 || { tail -n 5 "$cache/pypi.pip.log" >&2; return 1; }
  touch "$1/.ready"
}

here() { # here DIRECTORY COMMAND: runs a shell command on this machine, in the checkout of the directory
  (cd "$1/extorch" && env -u LIBTORCH_DIR -u LIBTORCH_VERSION -u LIBTORCH_TARGET EXTORCH_PYTHON="$1/venv/bin/python" sh -c "$2")
}

inside() { # inside ROOT COMMAND: runs a shell command in the root, with /proc, private mounts and a clean environment
  unshare --mount --pid --fork --kill-child -- sh -c '
    mount --make-rprivate / && mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" 2>/dev/null
    for node in null zero full random urandom tty; do
      [ -e "$1/dev/$node" ] || { touch "$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; }
    done
    [ -e "$1/dev/fd" ] || ln -s /proc/self/fd "$1/dev/fd"
    cp -L /etc/resolv.conf "$1/etc/resolv.conf" 2>/dev/null
    [ -e "$1/etc/hosts" ] || echo "127.0.0.1 localhost" >"$1/etc/hosts"
    exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 CI="$3" EXTORCH_BROWSER=0 sh -c "$2"' \
    sh "$1" "$2" "${CI:-}"
}

run() { # run SUITE ROOT COMMAND: in the checkout of the root
  if [ "$1" = pypi ]; then here "$2" "$3"; else inside "$2" "cd /extorch && $3"; fi
}

versions='printf "%s\t%s\t%s\t" \
  "$(elixir --version 2>/dev/null | sed -n "s/^Elixir \([^ ]*\).*/\1/p")" \
  "$(erl -noshell -eval "io:put_chars(erlang:system_info(otp_release)), halt()." 2>/dev/null)" \
  "$(EXTORCH_FETCH=0 scripts/libtorch.sh 2>/dev/null | sed -n "s/^TORCH_VERSION := //p" | grep . || echo none)"'

rows=() red=0
for suite; do
  root=$cache/$suite log=$cache/$suite.log result=red
  if make_root "$suite" "$root"; then
    mkdir -p "$root/extorch"
    # The release file of a mirror may have expired.
    [ "$suite" = pypi ] || echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/99valid"
    # The files of the working tree. Build results of earlier runs stay.
    (cd "$project" && git ls-files -z --cached --others --exclude-standard | xargs -0 -r sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' sh |
      tar --null -T - -cf -) >"$cache/$suite.tar"
    find "$root/extorch" -mindepth 1 -maxdepth 1 ! -name _build ! -name build -exec rm -rf {} +
    tar -C "$root/extorch" -xf "$cache/$suite.tar"
    echo "$suite: make test (log: $log)"
    # Where the release has Python's safetensors, the tests read our files with it.
    safetensors='apt-get install -qy python3-safetensors || true'
    [ "$suite" != pypi ] || safetensors=:
    test="make setup-test && { $safetensors; } && WERROR=1 make test"
    [ "$suite" != plain ] || test='export EXTORCH_TORCH=0 && make setup-test && WERROR=1 make test && ! command -v c++ &&
      ! find / -xdev -name "libtorch*.so*" | grep .'
    if run "$suite" "$root" "$test" >"$log" 2>&1; then result=green; fi
    found=$(run "$suite" "$root" "$versions" || true)
    tests=$(grep -E "^[0-9]+ (doctest|test|propert)|^Result: " "$log" | tail -n 1 || true)
  else
    found=$'-\t-\t-\t' tests="no root: see $cache/$suite.*.log"
  fi
  [ $result = green ] || [ "$suite" = sid ] || red=1
  rows+=("$suite"$'\t'"$found$result"$'\t'"$tests")
done

{
  printf 'suite\tElixir\tOTP\tLibTorch\tresult\ttests\n'
  printf '%s\n' "${rows[@]}"
} | awk -F'\t' '{printf "%-10s %-10s %-5s %-10s %-7s %s\n", $1, $2, $3, $4, $5, $6}'
exit $red
