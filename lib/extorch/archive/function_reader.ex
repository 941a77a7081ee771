defmodule ExTorch.Archive.FunctionReader do
  @moduledoc false
  # A reader that calls a function of position and length.

  @behaviour ExTorch.Archive.Reader

  alias ExTorch.Error

  defstruct [:fun, :size, position: 0]

  @impl true
  def read(%{fun: fun, position: position} = reader, n) do
    case fun.(position, n) do
      {:ok, data} when is_binary(data) ->
        {:ok, data, %{reader | position: position + byte_size(data)}}

      :eof ->
        {:eof, reader}

      {:error, reason} ->
        {:error, reason, reader}

      other ->
        {:error, unexpected(other), reader}
    end
  end

  defp unexpected(other) do
    Error.new(
      :io,
      "expected the reader function to return {:ok, data}, :eof or {:error, reason}, got #{inspect(other, limit: 3)}"
    )
  end

  @impl true
  def seek_start(reader, position),
    do: {:ok, position, %{reader | position: position}}

  @impl true
  def seek_end(reader, offset), do: seek_start(reader, reader.size + offset)

  @impl true
  def position(reader), do: {:ok, reader.position, reader}

  @impl true
  def close(_reader), do: :ok
end
