#!/usr/bin/env bash
# Compiles c_src/core, c_src/plain and c_src/nif for other systems, and runs the C tests of core for 64-bit ARM in an emulator.
#
# The compiler is `zig cc`, from the PyPI package ziglang. It brings the headers of all targets. libdeflate is compiled
# from the sources in the PyPI package deflate. Both are downloaded once, into a cache directory. The C++ layer is not
# compiled, because it needs a LibTorch of the target.
#
# Honored: EXTORCH_CACHE (the cache directory), ERTS_INCLUDE_DIR, V=1 (show commands)
set -euo pipefail
cd "$(dirname "$0")/.."

zig_version=0.17.0
deflate_version=0.9.0
deflate_sha256=962e0a6f1ea3a94b900a8ea0ce138fa92bfcbafda5b86367104a259ffcd3462b
targets="aarch64-macos aarch64-linux-gnu x86_64-linux-musl"

# The emulator is too slow for all checkpoints: one or two of each format.
fixtures="test/fixtures/2.14.1/dtypes.pt
test/fixtures/2.14.1/tensor.pt
test/fixtures/2.14.1/conj.legacy.pt
test/fixtures/2.14.1/quantized.legacy.pt
test/fixtures/2.14.1/state_dict.stream
test/fixtures/2.14.1/dtypes.safetensors
test/fixtures/more/cpp_tensor.pt
test/fixtures/more/several.pt
test/fixtures/more/tar.pt
test/fixtures/more/state_dict.pt.gz
test/fixtures/more/numpy5.pkl"

cache=${EXTORCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/extorch}/zig
python=$cache/$zig_version/bin/python
deflate=$cache/deflate-$deflate_version/libdeflate
export ZIG_GLOBAL_CACHE_DIR=$cache/cache
jobs=$(getconf _NPROCESSORS_ONLN)
[ -z "${V:-}" ] || set -x

step() { printf '== %s\n' "$*"; }

# Each download is complete before it gets its final name.
get_zig() {
  local new=$cache/$zig_version.new
  [ ! -x "$python" ] || return 0
  step "downloading zig $zig_version"
  rm -rf "$new" && mkdir -p "$cache"
  python3 -m venv "$new"
  "$new/bin/python" -m pip install -q --disable-pip-version-check "ziglang==$zig_version"
  mv "$new" "$cache/$zig_version"
}

get_deflate() {
  local new=$cache/deflate.new archive=deflate-$deflate_version.tar.gz
  [ ! -d "$deflate" ] || return 0
  step "downloading the sources of libdeflate"
  rm -rf "$new" && mkdir -p "$new"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary deflate --dest "$new" \
    "deflate==$deflate_version"
  echo "$deflate_sha256  $new/$archive" | sha256sum --quiet --check
  tar -xzf "$new/$archive" -C "$new"
  rm -rf "${deflate%/*}"
  mv "$new/deflate-$deflate_version" "${deflate%/*}"
  rm -rf "$new"
}

# Sets $library to a static libdeflate for the target.
build_deflate() { # build_deflate TARGET
  local target=$1 objects
  library=$cache/libdeflate-$deflate_version-$zig_version-$target.a
  [ ! -e "$library" ] || return 0
  objects=$(mktemp -d)
  for source in "$deflate"/lib/*.c "$deflate"/lib/arm/*.c; do
    $zig cc -target "$target" -std=c11 -O2 -I"$deflate" -c "$source" \
      -o "$objects/$(basename "$(dirname "$source")")_$(basename "$source" .c).o"
  done
  $zig ar rcs "$library.new" "$objects"/*.o
  mv "$library.new" "$library"
  rm -rf "$objects"
}

get_zig
get_deflate
zig=$("$python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
: "${ERTS_INCLUDE_DIR:=$(erl -noshell -eval 'io:format("~ts/usr/include", [code:root_dir()]), halt().')}"

# clang takes `{NULL}` for an incomplete initializer; gcc does not.
flags="-std=c11 -D_GNU_SOURCE -Ic_src -O2 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror
  -Wno-missing-field-initializers -isystem $ERTS_INCLUDE_DIR -isystem $deflate"
for target in $targets; do
  step "core, plain and nif for $target"
  rm -rf "build/cross/$target"
  for source in c_src/core/*/*.c c_src/plain/*.c c_src/nif/*.c; do
    object=build/cross/$target/${source#c_src/}
    mkdir -p "${object%/*}"
    # shellcheck disable=SC2086
    echo cc -target "$target" $flags -c "$source" -o "${object%.c}.o"
  done | xargs -P "$jobs" -L 1 "$zig"
done

# Finds functions that macOS does not have. There, the linker refuses undefined symbols.
step "linking core for aarch64-macos"
build_deflate aarch64-macos
$zig cc -target aarch64-macos -dynamiclib build/cross/aarch64-macos/core/*/*.o "$library" \
  -o build/cross/aarch64-macos/core.dylib

# Linked statically, so that the emulator needs no libraries of the target.
step "C tests of core for aarch64-linux"
run=
if [ "$(uname -m)" != aarch64 ]; then run=$(command -v qemu-aarch64-static || command -v qemu-aarch64); fi
build_deflate aarch64-linux-musl
CC="$zig cc -target aarch64-linux-musl" CFLAGS="-O2 -DSTATIC_TESTS -Wno-missing-field-initializers -isystem $deflate" \
  LIBS="-static $library" RUN=$run FIXTURES=$fixtures C_TESTS_DIR=build/cross/c_tests scripts/c_tests.sh
