defmodule ExTorch.HostileFilesTest do
  # Every file of the catalogue gets an acceptable answer, within bounds of memory and time, and no node ends.
  # test/fire/hostile.exs is the long form.
  use ExUnit.Case
  alias ExTorch.HostileFiles.{Catalogue, Gate, Round}

  @tag :no_asan
  @tag timeout: 1_800_000
  test "no file of the catalogue exceeds memory or time, ends the node, or gets a wrong answer" do
    if File.exists?("/proc/self/clear_refs") do
      Round.with_directory(fn dir ->
        {totals, gate} =
          Catalogue.short()
          |> Enum.with_index()
          |> Enum.reduce({Round.totals(), %Gate{}}, fn {file, i}, acc ->
            Round.one(file, file.n, dir, [form: {:few, i}, slack: 5], acc)
          end)

        Gate.stop(gate)
        assert totals.files > 100
        assert totals.failures == []
      end)
    end
  end
end
