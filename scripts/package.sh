#!/usr/bin/env bash
# Builds ExTorch from the files of its Hex package alone, with warnings as errors, and loads a checkpoint with it.
set -euo pipefail
cd "$(dirname "$0")/.."
export LANG=C.UTF-8 EXTORCH_HEX=0 MIX_ENV=prod
package=$PWD/build/package
checkpoint=$PWD/test/fixtures/2.14.1/state_dict.pt

files=$(mix run --no-deps-check --no-compile --no-start -e 'IO.puts(Enum.join(Mix.Project.config()[:package][:files], "\n"))')
rm -rf "$package" && mkdir -p "$package"
# shellcheck disable=SC2086
git ls-files -z --error-unmatch -- $files | xargs -0 tar -cf - | tar -C "$package" -xf -

cd "$package"
make --no-print-directory WERROR=1 all
mix compile --no-deps-check --warnings-as-errors
mix run --no-deps-check -e '
  [path] = System.argv()
  {:ok, tensors} = ExTorch.load(path)
  [1.0, 1.0, 1.0, 1.0] = ExTorch.Tensor.to_list(tensors["1.weight"])
  IO.puts("the package loads a checkpoint of #{map_size(tensors)} tensors")' -- "$checkpoint"
