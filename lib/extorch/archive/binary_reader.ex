defmodule ExTorch.Archive.BinaryReader do
  @moduledoc false
  # A binary as a reader.

  @behaviour ExTorch.Archive.Reader

  defstruct [:bytes, at: 0]

  @impl true
  def read(%{at: at, bytes: bytes} = reader, n) do
    case min(n, byte_size(bytes) - at) do
      left when left <= 0 -> {:eof, reader}
      size -> {:ok, binary_part(bytes, at, size), %{reader | at: at + size}}
    end
  end

  @impl true
  def seek_start(reader, at), do: {:ok, at, %{reader | at: at}}

  @impl true
  def seek_end(reader, offset), do: seek_start(reader, byte_size(reader.bytes) + offset)

  @impl true
  def position(reader), do: {:ok, reader.at, reader}

  @impl true
  def close(_reader), do: :ok
end
