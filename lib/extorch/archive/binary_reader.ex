defmodule ExTorch.Archive.BinaryReader do
  @moduledoc false
  # A reader of a binary.

  @behaviour ExTorch.Archive.Reader

  defstruct [:bytes, position: 0]

  @impl true
  def read(%{position: position, bytes: bytes} = reader, n) do
    case min(n, byte_size(bytes) - position) do
      size when size <= 0 ->
        {:eof, reader}

      size ->
        {:ok, binary_part(bytes, position, size), %{reader | position: position + size}}
    end
  end

  @impl true
  def seek_start(reader, position), do: {:ok, position, %{reader | position: position}}

  @impl true
  def seek_end(reader, offset), do: seek_start(reader, byte_size(reader.bytes) + offset)

  @impl true
  def position(reader), do: {:ok, reader.position, reader}

  @impl true
  def close(_reader), do: :ok
end
