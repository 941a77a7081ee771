defmodule ExTorch.HostileFiles.Entry do
  @moduledoc false
  # An element of the catalogue that is a whole file.

  @doc "A file of the catalogue."
  def file(name, n, range, expect, make, more \\ []) do
    Map.merge(
      %{name: name, n: n, range: range, kind: :file, gzip: false, make: make, expect: expect},
      Map.new(more)
    )
  end
end
