defmodule ExTorch.Archive.AtomicFile do
  @moduledoc false
  # A writer that replaces a file atomically when it is closed with the outcome :ok, and leaves it unchanged otherwise.

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
  def write(%{file: file} = writer, data) do
    case Memory.run(fn -> Native.atomic_file_write(file, data) end) do
      {:ok, :ok} -> {:ok, byte_size(data), writer}
      {:error, error} -> {:error, error, writer}
    end
  end

  @impl true
  def close(writer), do: close(writer, :error)

  def close(%{file: file}, outcome) do
    with {:ok, :ok} <- Memory.run(fn -> Native.atomic_file_close(file, outcome == :ok) end),
         do: :ok
  end
end
