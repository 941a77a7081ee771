defmodule ExTorch.HostileFiles.MemorySource do
  @moduledoc false
  # A source that costs nothing, so that what is measured is the library.
  @behaviour ExTorch.Source
  defstruct [:bytes]

  @impl true
  def size(%{bytes: bytes}), do: {:ok, byte_size(bytes)}

  @impl true
  def read_at(%{bytes: bytes}, offset, length), do: {:ok, binary_part(bytes, offset, length)}

  @impl true
  def close(_source), do: :ok
end
