#!/usr/bin/env bash
# Checks that every file of c_src includes only what its layer may use (see ARCHITECTURE.md).
set -euo pipefail
cd "$(dirname "$0")/.."

include='#[[:space:]]*include[[:space:]]*'
# Headers of the C standard that do not depend on the system, unlike time.h and signal.h.
standard='<(assert|ctype|errno|float|inttypes|limits|math|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|string)\.h>'
any='<[a-zA-Z0-9_./-]+>'
failed=

report() { # report RULE LINES
  [ -n "$2" ] || return 0
  printf '%s:\n%s\n' "$1" "$2" >&2
  failed=1
}

allow() { # allow DIRECTORY PATTERN…: each include must match one of the patterns
  local directory=$1 IFS='|'
  shift
  report "$directory must not include" "$(grep -rnE "^[[:space:]]*$include" "c_src/$directory" | grep -vE "$include($*)")"
}

deny() { # deny DIRECTORY PATTERN
  report "$1 must not include" "$(grep -rnE "^[[:space:]]*$include$2" "c_src/$1")"
}

set +e # grep fails when it finds nothing
allow core/base "$standard" '"core/base/'
allow core/os "$any" '"core/(base|os)/'
allow core/memory "$standard" '"core/(base|os|memory)/'
allow core/tensor "$standard" '"core/(base|memory|tensor)/'
allow core/pickle "$standard" '"core/(base|os|memory|tensor|pickle)/'
allow core/checkpoint "$standard" '<libdeflate\.h>' '"core/(base|os|memory|tensor|pickle|checkpoint)/'
allow core/formats "$standard" '<libdeflate\.h>' '"core/'
allow nif "$standard" '<erl_nif\.h>' '"core/' '"nif/' '"torch/(torch|value)\.h"' '"plain/plain\.h"' '"include/extorch\.h"'
allow plain "$standard" '"core/(base|memory)/' '"plain/' '"torch/(torch|value)\.h"'
allow torch "$any" '"core/(base|memory)/' '"torch/'
deny core '[<"](erl_nif|ATen|c10|torch)'
deny torch '[<"](erl_nif|nif)'
scripts/include_graph.sh || failed=1
[ -z "$failed" ]
