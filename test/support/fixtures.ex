defmodule ExTorch.Test.Fixtures do
  @moduledoc false
  # The files of test/fixtures and the descriptions beside them, which make.py and more.py wrote.
  import ExUnit.Assertions
  alias ExTorch.Test.{FileSource, JSON, Terms}

  @doc "What a file contains: a list of maps with the path, kind, dtype, shape, strides and bytes of every leaf."
  def description(file) do
    candidates = [
      file <> ".json",
      String.replace(file, ~r/(\.proto4|\.legacy)?\.(pt|stream)$/, ".json")
    ]

    candidates |> Enum.find(&File.exists?/1) |> File.read!() |> JSON.decode!()
  end

  @doc """
  What weights_only=True accepts: `"files"`, whether torch loads each fixture, by the path below test/fixtures; `"globals"`;
  and the version of the `"torch"` that says so, the newest when weights_only.py was run.
  """
  def weights_only, do: "test/fixtures/weights_only.json" |> File.read!() |> JSON.decode!()

  @doc "The file as each kind of source: a path, a binary, and a struct."
  def sources(file), do: [file, {:binary, File.read!(file)}, %FileSource{path: file}]

  @doc "Compares the entry of a tensor, and what was read for it, with its description."
  def assert_tensor(expected, entry, read, context \\ nil) do
    context = context || inspect(expected["path"])
    dtype = String.to_existing_atom(expected["dtype"])
    assert {entry.dtype, Tuple.to_list(entry.shape)} == {dtype, expected["shape"]}, context
    assert entry.requires_grad == expected["requires_grad"], context
    assert Base.encode16(Terms.bytes(read), case: :lower) == expected["bytes"], context
  end
end
