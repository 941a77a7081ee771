defmodule ExTorch.Archive.AtomicFile do
  @moduledoc false
  # A path as a writer: a file that appears there when all is written, and leaves nothing otherwise.

  @behaviour ExTorch.Archive.Writer

  alias ExTorch.{Memory, Native}

  defstruct [:file]

  def open(path) do
    with {:ok, path} <- ExTorch.Saver.check_path(path),
         {:ok, file} <- Memory.run(fn -> Native.atomic_file_open(path) end) do
      {:ok, %__MODULE__{file: file}}
    end
  end

  @impl true
  def write(%{file: file} = target, data) do
    case Memory.run(fn -> Native.atomic_file_write(file, data) end) do
      {:ok, :ok} -> {:ok, byte_size(data), target}
      {:error, error} -> {:error, error, target}
    end
  end

  @impl true
  def close(target), do: close(target, :error)

  def close(%{file: file}, outcome) do
    with {:ok, :ok} <- Memory.run(fn -> Native.atomic_file_close(file, outcome == :ok) end),
         do: :ok
  end
end
