defmodule ExTorch.HostileFilesTest do
  # Every file of the catalogue gets an acceptable answer, within bounds of memory and time, and no node ends.
  # test/fire/hostile.exs is the long form.
  use ExUnit.Case
  alias ExTorch.HostileFiles.{Catalogue, Gate, Round}

  @tag :no_asan
  test "no file of the catalogue exceeds memory or time, ends the node, or gets a wrong answer" do
    if File.exists?("/proc/self/clear_refs") do
      Round.with_directory(fn dir ->
        {totals, gate} =
          Enum.reduce(Catalogue.short(), {Round.totals(), %Gate{}}, fn file, acc ->
            Round.one(file, file.n, dir, [form: :short], acc)
          end)

        Gate.stop(gate)
        assert totals.files > 100
        assert totals.failures == []
      end)
    end
  end
end
