defmodule ExTorch.Archive.FunctionReader do
  @moduledoc false
  # A function of position and length as a reader.

  @behaviour ExTorch.Archive.Reader

  defstruct [:fun, :size, at: 0]

  @impl true
  def read(%{fun: fun, at: at} = reader, n) do
    case fun.(at, n) do
      {:ok, data} when is_binary(data) -> {:ok, data, %{reader | at: at + byte_size(data)}}
      :eof -> {:eof, reader}
      {:error, reason} -> {:error, reason, reader}
      other -> {:error, "it answered #{inspect(other, limit: 3)}", reader}
    end
  end

  @impl true
  def seek_start(reader, at), do: {:ok, at, %{reader | at: at}}

  @impl true
  def seek_end(reader, offset), do: seek_start(reader, reader.size + offset)

  @impl true
  def position(reader), do: {:ok, reader.at, reader}

  @impl true
  def close(_reader), do: :ok
end
