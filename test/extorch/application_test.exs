defmodule ExTorch.ApplicationTest do
  use ExTorch.Case, async: false
  alias ExTorch.Test.VM

  # Loading them takes longer than most first calls.
  test "loads all modules when it starts" do
    {output, 0} =
      VM.run("""
      {:ok, _} = Application.ensure_all_started(:extorch)
      modules = Application.spec(:extorch, :modules)
      true = ExTorch.Checkpoint in modules
      IO.inspect(Enum.reject(modules, &:code.is_loaded/1))
      """)

    assert output |> String.split("\n", trim: true) |> List.last() == "[]"
  end
end
