#!/usr/bin/env bash
# Finds LibTorch and prints its location as make variables. Without one it prints the reason to stderr and fails.
#
# Looks in LIBTORCH_DIR; else in Torchx, if TORCHX_DIR is its source and TORCHX_PRIV what was compiled of it (mix.exs sets
# them if Torchx is a dependency); else in the torch package of a Python (EXTORCH_PYTHON, else python3); else in the
# system. Torchx and ExTorch must use the same LibTorch: two of them crash the VM.
#
# If there is none, or if LIBTORCH_VERSION or LIBTORCH_TARGET (cpu, cu130) ask for one, as with Torchx, it is downloaded
# into a directory that all projects share: EXTORCH_CACHE, else extorch in XDG_CACHE_HOME, else ~/.cache/extorch.
# libtorch.sha256 has the archives. EXTORCH_LIBTORCH_URL is the URL of a mirror or of an archive, for which
# EXTORCH_LIBTORCH_SHA256 may be needed; EXTORCH_FETCH=0 downloads nothing. Progress is printed to descriptor 3.
#
# Prints TORCH_VERSION, TORCH_INCLUDE, TORCH_LIB, TORCH_RPATH (where to search for it at run time; nothing if the system
# does), TORCH_ABI (libstdc++'s C++11 flag), TORCH_STD (the C++ standard that its headers need), TORCH_CUDA (yes or no).
#
# Nothing is piped into a command that does not read to the end: a child of the VM ignores SIGPIPE, and prints an error.
set -euo pipefail

scripts=$(cd "$(dirname "$0")" && pwd)
oldest=1.13
{ : >&3; } 2>/dev/null || exec 3>&2
fail() { printf 'ExTorch: %s\n' "$@" >&2; exit 1; }

# Prints the first line of a file that a command of sed replaces.
first() { sed -n -e "$1" -e 't found' -e b -e ':found' -e 'p;q' "$2" 2>/dev/null || true; }
newer_or_equal() { printf '%s\n' "$2" "$1" | sort -V -C; } # newer_or_equal VERSION THAN

# Accepts a pair of directories that has both the headers and the libraries.
try() { # try INCLUDE_DIR LIB_DIR
  local end
  for end in so dylib; do
    if [ -e "$1/ATen/ATen.h" ] && [ -e "$2/libtorch_cpu.$end" ] && [ -e "$2/libc10.$end" ]; then
      include=$1 lib=$2 suffix=$end
      return
    fi
  done
  return 1
}

# Accepts a directory that has both, as LIBTORCH_DIR does.
try_directory() {
  try "$1/include" "$1/lib" || try "$1/include" "$1/lib/$(uname -m)-linux-gnu" || try "$1/include" "$1/lib64"
}

python_torch() {
  "${EXTORCH_PYTHON:-python3}" -c '
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec else "")' 2>/dev/null || true
}

# Torchx unpacks its LibTorch into its own directory. Its mix.exs has the version. With a LIBTORCH_DIR it has none, but what
# is compiled has a link to its libraries.
torchx_torch() {
  local linked
  if [ -e "${TORCHX_PRIV:-}/libtorch" ]; then
    linked=$(cd -P "$TORCHX_PRIV/libtorch/.." && pwd)
    if try_directory "$linked"; then echo "$linked"; return; fi
  fi
  local version=${LIBTORCH_VERSION:-}
  [ -n "$version" ] ||
    version=$(first 's/.*"LIBTORCH_VERSION", "\([0-9.]*\)".*/\1/' "$TORCHX_DIR/mix.exs")
  echo "$TORCHX_DIR/cache/libtorch-$version-${LIBTORCH_TARGET:-cpu}"
}

# ---- Download ----

# The system as in libtorch.sha256. LibTorch's archives need glibc on Linux.
system_name() {
  local system
  system=$(uname -s | tr '[:upper:]' '[:lower:]')
  if [ "$system" = linux ]; then
    case $(ldd --version 2>&1 || true) in *musl*) system=linux-musl ;; esac
  fi
  echo "$system-$(uname -m)"
}

# Only one at a time, also of several builds. The lock ends with its process.
locked() { # locked FILE COMMAND…
  local file=$1
  shift
  if command -v flock >/dev/null; then flock "$file" "$@"
  elif command -v lockf >/dev/null; then lockf -k "$file" "$@"
  else "$@"; fi
}

download() {
  local system target=${LIBTORCH_TARGET:-cpu} version=${LIBTORCH_VERSION:-} url=${EXTORCH_LIBTORCH_URL:-https://download.pytorch.org}
  local sha256 path cache row name
  system=$(system_name)
  row=$(awk -v s="$system" -v t="$target" -v v="$version" \
    '!/^#/ && $4 == s && $3 == t && (v == "" || $2 == v) { print $1, $5; exit }' "$scripts/libtorch.sha256")
  read -r sha256 path <<<"${row:-- -}"
  sha256=${EXTORCH_LIBTORCH_SHA256:-$sha256}
  case $url in
    *.zip | *.whl) ;;
    *)
      [ "$path" != - ] || fail "there is no archive of LibTorch for $system, target $target${LIBTORCH_VERSION:+, version $LIBTORCH_VERSION}, in scripts/libtorch.sha256." \
        "Set LIBTORCH_DIR to a LibTorch, or EXTORCH_LIBTORCH_URL and EXTORCH_LIBTORCH_SHA256 to an archive."
      url=${url%/}/$path ;;
  esac
  [ "$sha256" != - ] || fail "the SHA-256 of $url is not known. Set EXTORCH_LIBTORCH_SHA256 to it."
  cache=${EXTORCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/extorch}/libtorch
  name=${url##*/} name=${name%.*}
  torch=$cache/${name//%2B/+}-${sha256:0:8}
  try "$torch/include" "$torch/lib" && return
  [ "${EXTORCH_FETCH:-}" != 0 ] || fail "LibTorch was not found, and EXTORCH_FETCH=0 forbids to download it." \
    "Set LIBTORCH_DIR to an unpacked LibTorch, or install one: apt-get install libtorch-dev, or pip install torch."
  mkdir -p "$cache"
  locked "$torch.lock" elixir "$scripts/fetch_libtorch.exs" "$url" "$sha256" "$torch" 2>&3 ||
    fail "LibTorch could not be downloaded."
  try "$torch/include" "$torch/lib" || fail "$url is not an archive of LibTorch: include/ATen/ATen.h, lib/libtorch_cpu or lib/libc10 is missing in $torch."
}

# ---- Search ----

include= lib=
if [ -n "${LIBTORCH_DIR:-}" ]; then
  try_directory "$LIBTORCH_DIR" ||
    fail "LIBTORCH_DIR=$LIBTORCH_DIR does not contain LibTorch." \
      "Expected include/ATen/ATen.h, lib/libtorch_cpu.so and lib/libc10.so in it."
elif [ -n "${TORCHX_DIR:-}" ]; then
  torch=$(torchx_torch)
  try_directory "$torch" ||
    fail "Torchx is a dependency, but its LibTorch is not in $torch." \
      "Compile Torchx first: mix deps.compile torchx. Or set LIBTORCH_DIR to a LibTorch for both, and compile both again."
elif [ -z "${LIBTORCH_VERSION:-}${LIBTORCH_TARGET:-}${EXTORCH_LIBTORCH_URL:-}" ]; then
  torch=$(python_torch)
  if [ -z "$torch" ] || ! try "$torch/include" "$torch/lib"; then
    for dir in /usr/lib/"$(uname -m)"-linux-gnu /usr/lib64 /usr/lib /usr/local/lib /opt/libtorch/lib /opt/homebrew/lib; do
      try "${dir%/lib*}/include" "$dir" && break
    done
  fi
fi
[ -n "$include" ] || download

# Without links: make compares the directory with those of the compiler, for which -isystem must not be used.
include=$(cd "$include" && pwd -P) lib=$(cd "$lib" && pwd -P)

# Debian has version.h beside the C++ API; elsewhere the macros are in torch/version.h since 1.8.
header=
for candidate in "$include/torch/version.h" "$include/torch/headeronly/version.h" "$include/torch/csrc/api/include/torch/version.h"; do
  if [ -e "$candidate" ] && grep -q 'define TORCH_VERSION_MAJOR' "$candidate"; then header=$candidate; break; fi
done
[ -n "$header" ] || fail "the LibTorch in $include has no version.h: its headers are incomplete."
number() { first "s/^#define TORCH_VERSION_$1 \([0-9]*\).*/\1/" "$header"; }
version=$(number MAJOR).$(number MINOR)
newer_or_equal "$version" "$oldest" ||
  fail "LibTorch $version in $lib is too old: ExTorch needs $oldest or newer."

if grep -aq 'NSt7__cxx1112basic_string' "$lib/libc10.$suffix"; then abi=1; else abi=0; fi
std=c++17
newer_or_equal "$version" 2.9 && std=c++20
# A release with Torchx has its LibTorch in the directory of Torchx.
rpath=$lib
[ -z "${TORCHX_DIR:-}" ] || TORCHX_DIR=$(cd "$TORCHX_DIR" && pwd -P)
case $lib in
  /usr/lib | /usr/lib64 | /usr/lib/*-linux-gnu) rpath= ;;
  "${TORCHX_DIR:-none}"/*)
    origin='$$ORIGIN'
    [ $suffix = so ] || origin=@loader_path
    rpath="$origin/../../torchx-$(first 's/.*@version "\(.*\)".*/\1/' "$TORCHX_DIR/mix.exs")/priv/libtorch $lib" ;;
esac
cuda=no
[ -e "$lib/libtorch_cuda.so" ] && cuda=yes

cat <<END
TORCH_VERSION := $version.$(number PATCH)
TORCH_INCLUDE := $include
TORCH_LIB := $lib
TORCH_RPATH := $rpath
TORCH_ABI := $abi
TORCH_STD := $std
TORCH_CUDA := $cuda
END
