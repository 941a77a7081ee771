#!/usr/bin/env bash
# Puts the shared libraries that a release has to bring along into a directory: those that the given libraries need,
# directly or not, under the names by which they are needed. They are hard links if possible, else copies, because the cache
# that LibTorch is in may be gone when the release is made.
#
# usage: bundle.sh DIRECTORY LIBRARY…     (TORCH_LIB: LibTorch's directory; TORCH_CUDA=yes; TORCHX_DIR: see libtorch.sh)
#
# The target has to have the C and C++ runtimes (glibc, libstdc++, libgcc), which Erlang needs too, and the drivers of its
# devices. If Torchx is a dependency, LibTorch is in the release as a part of Torchx.
set -euo pipefail

directory=$1
shift
fail() { printf 'ExTorch: %s\n' "$@" >&2; exit 1; }

# Prints "NAME PATH" of each library that is needed.
needed() {
  if [ "$(uname -s)" = Darwin ]; then needed_dylibs "$@"; else needed_sos "$@"; fi
}

needed_sos() {
  local output
  output=$(ldd "$@") || fail "ldd $* failed: $output"
  awk '
    $2 != "=>" || $1 ~ /^(lib(c|m|dl|rt|pthread|util|resolv|anl|stdc\+\+|gcc_s|cuda)\.so\.|libc\.musl-|ld-)/ { next }
    { print $1, ($3 == "not" ? "-" : $3) }' <<<"$output"
}

# Not run by the tests. Libraries of the system (/usr/lib, /System) and names that are not relative are not bundled.
needed_dylibs() {
  local name file seen=" "
  while [ $# -gt 0 ]; do
    for name in $(otool -L "$1" | awk '/^\t@rpath\// { sub("@rpath/", "", $1); print $1 }'); do
      case $seen in *" $name "*) continue ;; esac
      seen+="$name "
      file=$TORCH_LIB/$name
      [ -e "$file" ] || file=-
      echo "$name $file"
      [ "$file" = - ] || set -- "$@" "$file"
    done
    shift
  done
}

# LibTorch for CUDA loads some libraries by name. All of those that are beside a needed one are taken, unless that is one
# of the system; not those for Python.
beside() { # reads what needed prints
  local name file directories
  directories=$(while read -r name file; do case $file in /usr/* | /lib* | -) ;; *) echo "${file%/*}" ;; esac; done | sort -u)
  for file in $(printf '%s/*.so*\n' $directories); do
    case $file in *_python.so* | *shm.so*) continue ;; esac
    [ -L "$file" ] || echo "${file##*/} $file"
  done
}

rm -rf "$directory" # before the libraries are searched for: it is where they would be found first
new=$directory.new
rm -rf "$new"
mkdir -p "$new"
list=$(needed "$@")
[ "${TORCH_CUDA:-no}" != yes ] || list+=$'\n'$(beside <<<"$list")
list=$(sort -u <<<"$list")
while read -r name file; do
  [ -n "$name" ] || continue
  [ "$file" != - ] || fail "$name, which $* need, was not found, and cannot be bundled."
  if [ -n "${TORCHX_DIR:-}" ] && [ "${file%/*}" = "$TORCH_LIB" ]; then continue; fi
  ln -fL "$file" "$new/$name" 2>/dev/null || cp -fL "$file" "$new/$name"
done <<<"$list"
mv "$new" "$directory"
read -r size _ <<<"$(du -sm "$directory")"
count=$(find "$directory" -type f | wc -l)
echo "ExTorch: releases will contain what it needs (bundle_libtorch): $((count)) libraries, $size MB"
