#!/usr/bin/env bash
# Runs the Dockerfile of guides/deployment.md without Docker: every stage is a root directory made by debootstrap. The
# application loads a checkpoint; ExTorch is the last commit of this checkout. The last root has no LibTorch and no sources.
#
# usage: image.sh          (as root)
#
# Honored: EXTORCH_CACHE; EXTORCH_LIBTORCH_URL and EXTORCH_LIBTORCH_SHA256 (libtorch.sh); for machines without Hex,
# EXTORCH_IMAGE_FILES, a directory that is copied into the first root, such as one with root/.mix/archives, and
# EXTORCH_IMAGE_DEPS, more dependencies of the application.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "make image must run as root, which debootstrap and chroot need." >&2; exit 1; }
cache=${EXTORCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/extorch}/image
roots=$cache/roots context=$cache/context
url=$(sed -n 's/^  @source_url "\(.*\)"/\1/p' mix.exs)

# Prints the root directory of an image, which is copied from a new one.
from() { # from IMAGE STAGE
  local suite=${1#debian:} base root=$roots/$2
  suite=${suite%-slim}
  base=$cache/$suite
  if [ ! -e "$base/.ready" ]; then
    rm -rf --one-file-system "$base"
    debootstrap --variant=minbase "$suite" "$base" ${MIRROR:+"$MIRROR"} >"$cache/debootstrap.log" 2>&1
    echo 'Acquire::Check-Valid-Until "false";' >"$base/etc/apt/apt.conf.d/99valid"
    chroot "$base" apt-get clean
    touch "$base/.ready"
  fi
  cp -a "$base" "$root"
  echo "$root"
}

inside() { # inside COMMAND: in $root and $directory, with /proc and /dev, and the variables of the Dockerfile
  unshare --mount --pid --fork --kill-child -- sh -c '
    mount --make-rprivate / && mount -t proc proc "$1/proc"
    for node in null zero full random urandom tty; do
      [ -e "$1/dev/$node" ] || { touch "$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; }
    done
    [ -e "$1/dev/fd" ] || ln -s /proc/self/fd "$1/dev/fd"
    cp -L /etc/resolv.conf "$1/etc/resolv.conf"
    root=$1 directory=$2 command=$3
    shift 3
    exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@" \
      sh -c "cd $directory && $command"' sh "$root" "$directory" "$1" "${variables[@]}"
}

# ---- The application ----

mkdir -p "$cache"
rm -rf --one-file-system "$roots" "$context"
mkdir -p "$roots" "$context/config" "$context/lib"
cat >"$context/mix.exs" <<END
defmodule MyApp.MixProject do
  use Mix.Project
  def project, do: [app: :my_app, version: "0.1.0", deps: [{:extorch, git: "$url"}${EXTORCH_IMAGE_DEPS:+, $EXTORCH_IMAGE_DEPS}]]
  def application, do: [extra_applications: [:logger]]
end
END
echo '%{}' >"$context/mix.lock"
echo 'import Config; config :extorch, bundle_libtorch: true' >"$context/config/config.exs"
cat >"$context/lib/my_app.ex" <<'END'
defmodule MyApp do
  def sum(path, name), do: path |> ExTorch.load!() |> Map.fetch!(name) |> ExTorch.sum() |> ExTorch.Tensor.to_list()
end
END

# ---- The Dockerfile ----

MIRROR=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | sed -n '/\/debian\/\{0,1\}$/{p;q;}' || true)
root= directory=/ variables=() first=yes
# shellcheck disable=SC2016
sed -n '/^```dockerfile$/,/^```$/{/^```/d;p;}' guides/deployment.md | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' >"$cache/Dockerfile"
while read -r instruction arguments <&4; do
  [ -z "$instruction" ] || echo "== $instruction $arguments"
  case $instruction in
    '') ;;
    FROM)
      root=$(from "${arguments%% *}" "${arguments##* }") directory=/ variables=()
      if [ -n "$first" ]; then
        first=
        git clone -q --bare . "$root/extorch.git"
        printf '[url "/extorch.git"]\n\tinsteadOf = %s\n[safe]\n\tdirectory = *\n' "$url" >"$root/root/.gitconfig"
        [ -z "${EXTORCH_IMAGE_FILES:-}" ] || cp -a "$EXTORCH_IMAGE_FILES/." "$root/"
        variables=(EXTORCH_LIBTORCH_URL="${EXTORCH_LIBTORCH_URL:-}" EXTORCH_LIBTORCH_SHA256="${EXTORCH_LIBTORCH_SHA256:-}")
      fi ;;
    WORKDIR) directory=$arguments; mkdir -p "$root$directory" ;;
    ENV) variables+=("$arguments") ;;
    RUN) inside "$arguments" ;;
    COPY)
      read -ra words <<<"$arguments"
      source=$context
      case ${words[0]} in --from=*) source=$roots/${words[0]#--from=}; words=("${words[@]:1}") ;; esac
      target=${words[-1]}
      case $target in /*) target=$root$target ;; *) target=$root$directory/$target ;; esac
      for word in "${words[@]:0:${#words[@]}-1}"; do cp -aT "$source/$word" "$([ -d "$target" ] && [ -f "$source/$word" ] && echo "$target/$word" || echo "$target")"; done ;;
    CMD) command=$(tr -d '[],"' <<<"$arguments") ;;
    *) echo "image.sh does not know $instruction" >&2; exit 1 ;;
  esac
done 4<"$cache/Dockerfile"

# ---- What was made ----

cp test/fixtures/2.14.1/state_dict.pt "$root/"
! find "$root" -xdev \( -name 'libtorch_cpu.so*' -o -name '*.exs' \) ! -path "$root/app/*" | grep . || exit 1
sum=$(inside "${command% *}"' eval "{:ok, _} = Application.ensure_all_started(:extorch); IO.inspect(MyApp.sum(\"/state_dict.pt\", \"1.weight\"))"')
[ "$sum" = 4.0 ] || { echo "expected 4.0, got $sum" >&2; exit 1; }
inside 'apt-get clean && rm -rf /var/lib/apt/lists/*'
echo "the image loads a checkpoint; root $(du -sm --exclude=app "$root" | cut -f 1) MB, release $(du -sm "$root/app" | cut -f 1) MB," \
  "of which $(du -sm "$root"/app/lib/extorch-*/priv/lib | cut -f 1) MB are bundled"
