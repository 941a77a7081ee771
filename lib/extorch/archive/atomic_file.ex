defmodule ExTorch.Archive.AtomicFile do
  @moduledoc false
  # A writer that replaces a file atomically when it is closed with the outcome :ok, and leaves it unchanged otherwise.

  @behaviour ExTorch.Archive.Writer

  alias ExTorch.Native.Call

  @type t :: %__MODULE__{file: reference()}
  defstruct [:file]

  def open(path) do
    with {:ok, path} <- ExTorch.Saver.check_path(path),
         {:ok, file} <- Call.atomic_file_open(path) do
      {:ok, %__MODULE__{file: file}}
    end
  end

  # Opens the index of a sharded checkpoint. Also returns 16 random hexadecimal digits. The file has a temporary name, and
  # it is kept unless it is committed: see ExTorch.Store.Leftovers.
  @spec open_index(Path.t()) :: {:ok, t(), String.t()} | {:error, ExTorch.Error.t()}
  def open_index(path) do
    with {:ok, path} <- ExTorch.Saver.check_path(path),
         {:ok, opened} <- Call.atomic_file_open_index(path) do
      {file, digits} = opened
      {:ok, %__MODULE__{file: file}, digits}
    end
  end

  # Opens the temporary file of an index, or returns nil if its writer may be alive.
  @spec claim(Path.t()) :: {:ok, t() | nil} | {:error, ExTorch.Error.t()}
  def claim(path) do
    with {:ok, path} <- ExTorch.Saver.check_path(path),
         {:ok, file} <- Call.atomic_file_claim(path) do
      {:ok, if(file, do: %__MODULE__{file: file})}
    end
  end

  # Makes the data durable under the temporary name.
  @spec sync(t()) :: :ok | {:error, ExTorch.Error.t()}
  def sync(%{file: file}) do
    with {:ok, _} <- Call.atomic_file_sync(file), do: :ok
  end

  # Closes the file and removes it, also if it is an index.
  @spec discard(t()) :: :ok | {:error, ExTorch.Error.t()}
  def discard(%{file: file}) do
    with {:ok, _} <- Call.atomic_file_discard(file), do: :ok
  end

  @impl true
  def write(%{file: file} = writer, data) do
    case Call.atomic_file_write(file, data) do
      {:ok, :ok} -> {:ok, byte_size(data), writer}
      {:error, error} -> {:error, error, writer}
    end
  end

  @impl true
  def close(writer), do: close(writer, :error)

  def close(%{file: file}, outcome) do
    with {:ok, :ok} <- Call.atomic_file_close(file, outcome == :ok),
         do: :ok
  end
end
