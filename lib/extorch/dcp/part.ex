defmodule ExTorch.DCP.Part do
  @moduledoc false
  # A part of a file as a source of its own: each item of a .distcp file is a whole file of torch.save.
  @behaviour ExTorch.Source

  require Record
  Record.defrecordp(:file_info, Record.extract(:file_info, from_lib: "kernel/include/file.hrl"))

  @enforce_keys [:file, :offset, :length]
  defstruct [:file, :offset, :length]

  @type t :: %__MODULE__{
          file: Path.t() | ExTorch.Source.t(),
          offset: non_neg_integer(),
          length: non_neg_integer()
        }

  @impl true
  def size(part), do: {:ok, part.length}

  @impl true
  def read_at(%{file: %module{} = source} = part, offset, length),
    do: module.read_at(source, part.offset + offset, length)

  def read_at(%{file: path} = part, offset, length) do
    with {:ok, file} <- :file.open(path, [:raw, :read, :binary]) do
      result = :file.pread(file, part.offset + offset, length)
      :file.close(file)
      if result == :eof, do: {:ok, ""}, else: result
    end
  end

  @impl true
  def close(_part), do: :ok

  # Only for regular files: a FIFO would block.
  @spec file_size(Path.t()) :: {:ok, non_neg_integer()} | {:error, atom()}
  def file_size(path) do
    with {:ok, size, _id} <- identify(path), do: {:ok, size}
  end

  # Returns the size, and what is equal for two names of one file.
  @spec identify(Path.t()) :: {:ok, non_neg_integer(), term()} | {:error, atom()}
  def identify(path) do
    case :file.read_file_info(path, [:raw]) do
      {:ok, info} when elem(info, 2) == :regular ->
        {:ok, elem(info, 1), {file_info(info, :major_device), file_info(info, :inode)}}

      {:ok, _other} ->
        {:error, :einval}

      {:error, reason} ->
        {:error, reason}
    end
  end
end
