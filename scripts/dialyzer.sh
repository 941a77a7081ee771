#!/usr/bin/env bash
# Runs OTP's Dialyzer over the compiled library. Exits with an error if there are warnings.
#
# usage: dialyzer.sh
#
# The PLT of OTP and Elixir is built once and kept in EXTORCH_CACHE, per version of both. Optional dependencies (Nx, Axon,
# telemetry) need not be installed: calls to unknown functions are not reported.
set -euo pipefail
cd "$(dirname "$0")/.."
export LANG=C.UTF-8 MIX_ENV=${MIX_ENV:-dev}
: "${EXTORCH_HEX:=0}"
export EXTORCH_HEX

command -v dialyzer >/dev/null || { echo "dialyzer was not found (apt-get install erlang-dialyzer)" >&2; exit 1; }

# Dialyzer reads the debug information of Elixir modules with Elixir's own code.
ERL_LIBS=$(elixir -e 'IO.write(Path.dirname(:code.lib_dir(:elixir)))')${ERL_LIBS:+:$ERL_LIBS}
export ERL_LIBS
versions=$(elixir -e 'IO.write("otp-#{System.otp_release()}-#{:erlang.system_info(:version)}-elixir-#{System.version()}")')
cache=${EXTORCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/extorch}/dialyzer
plt=$cache/$versions-mix.plt
mkdir -p "$cache"

# Applications that are not installed are left out, as their calls are not reported anyway.
if [ ! -e "$plt" ]; then
  echo "building $plt"
  directories=$(elixir -e '
    for app <- [:erts, :kernel, :stdlib, :crypto, :public_key, :ssl, :inets, :elixir, :logger, :mix],
        dir = :code.lib_dir(app),
        is_list(dir),
        ebin = Path.join(dir, "ebin"),
        File.dir?(ebin),
        do: IO.puts(ebin)')
  # shellcheck disable=SC2086  # one argument per line; the paths of OTP and Elixir have no spaces
  dialyzer --build_plt --output_plt "$plt.$$" --quiet -r $directories >"$plt.log" 2>&1 || [ $? = 2 ] ||
    { tail -n 20 "$plt.log" >&2; exit 1; }
  mv "$plt.$$" "$plt"
fi

mix compile --no-deps-check
ebin=$(mix run --no-compile --no-start --no-deps-check -e 'IO.write(Path.join(Mix.Project.app_path(), "ebin"))')

# Not all versions of Dialyzer have all of these.
help=$(dialyzer --help)
flags=()
for flag in -Wno_unknown -Werror_handling -Wextra_return -Wmissing_return; do
  if grep -q -e "^ *$flag\\b" <<<"$help"; then flags+=("$flag"); fi
done
dialyzer --plt "$plt" --no_check_plt --quiet "${flags[@]}" -r "$ebin"
echo "dialyzer: no warnings"
