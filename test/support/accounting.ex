defmodule ExTorch.Test.Accounting do
  @moduledoc false
  # Checks the lists of an ExTorch.Store.ApplyResult.
  import ExUnit.Assertions

  @doc "Asserts that every name of the module and of the file is in exactly one of the lists. Returns the result."
  def account(result, module_names, file_names) do
    all =
      result.applied ++
        result.missing ++ result.skipped ++ result.unused ++ Enum.map(result.errors, & &1.name)

    assert all -- Enum.uniq(all) == []
    for name <- module_names, do: assert(Enum.count(all, &(&1 == name)) == 1, name)
    for name <- file_names, do: assert(name in all, name)
    result
  end
end
