#!/usr/bin/env bash
# Prints which folders of c_src/core include which, lowest first, and fails if the folders form a cycle.
set -euo pipefail
cd "$(dirname "$0")/../c_src/core"

edges=$(for folder in *; do
  echo "$folder $folder" # tsort lists a folder that includes no other, too
  { grep -rhoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"core/[^/"]+/' "$folder" || true; } |
    sed -E 's|.*"core/([^/]+)/|\1|' | sort -u | while read -r used; do
      [ "$used" = "$folder" ] || echo "$used $folder"
    done
done)
if ! order=$(tsort <<<"$edges" 2>&1); then
  printf 'the folders of core include each other:\n%s\n' "$order" >&2
  exit 1
fi
for folder in $order; do
  used=$(awk -v folder="$folder" '$2 == folder && $1 != folder { printf " %s", $1 }' <<<"$edges")
  echo "core/$folder:${used:- nothing}"
done
