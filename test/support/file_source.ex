defmodule ExTorch.Test.FileSource do
  @moduledoc false
  # A source that reads a file in Elixir. `log` is a process that gets a message for every call, or nil.
  @behaviour ExTorch.Source
  defstruct [:path, :log]

  @impl true
  def size(%{path: path}), do: {:ok, File.stat!(path).size}

  @impl true
  def read_at(%{path: path} = source, offset, length) do
    if source.log, do: send(source.log, {:read, offset, length})
    {:ok, io} = File.open(path, [:read, :raw, :binary])
    result = :file.pread(io, offset, length)
    File.close(io)
    result
  end

  @impl true
  def close(source) do
    if source.log, do: send(source.log, :closed)
    :ok
  end
end
