defmodule ExTorch.Checkpoint.Reader do
  @moduledoc false
  # Reads single tensors and records, with NIFs from files and binaries, and with ExTorch.Checkpoint.SourceReader from
  # other sources.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{Entry, Handle, Lookup, SourceReader}
  alias ExTorch.{Error, Tensor}

  # Reads a tensor by its dotted name or path. By name, from a file or binary, this is one native call.
  @spec tensor(Handle.t(), Checkpoint.name()) :: Handle.result(Tensor.t())
  def tensor(%{source: source, options: %{device: :cpu}} = ckpt, name)
      when is_binary(name) and not is_struct(source) do
    case Handle.tensor(ckpt, name) do
      {:ok, entries} when is_list(entries) -> Lookup.one(ckpt, name, entries)
      result -> result
    end
  end

  def tensor(ckpt, name) do
    with {:ok, entry} <- Lookup.entry(ckpt, name), do: entry(ckpt, entry)
  end

  # Reads the tensor of an entry.
  @spec entry(Handle.t(), Entry.t()) :: Handle.result(Tensor.t())
  def entry(ckpt, entry) do
    with {:ok, tensor} <- read(ckpt, entry.index), do: Handle.to_device(ckpt, tensor, entry)
  end

  defp read(%{source: %_{} = source} = ckpt, index),
    do: SourceReader.read(source, ckpt.resource, index, ckpt.options.verify)

  defp read(ckpt, index), do: Handle.tensor(ckpt, index)

  # Reads `length` bytes of a record; nil means all bytes from `offset` on.
  @spec record(Handle.t(), String.t(), non_neg_integer(), non_neg_integer() | nil) ::
          Handle.result(binary())
  def record(ckpt, name, offset, length) do
    case read_record(ckpt, name, offset, length) do
      {:ok, nil} ->
        {:error,
         Error.new(
           :not_found,
           "no record is named #{Error.quoted(name)}; see ExTorch.Checkpoint.records/1",
           ckpt.source
         )}

      {:ok, bytes} ->
        {:ok, bytes}

      {:error, error} ->
        {:error, error}
    end
  end

  defp read_record(%{source: %_{} = source} = ckpt, name, offset, length) do
    with {:ok, record} when is_binary(record) <-
           SourceReader.read(source, ckpt.resource, name, ckpt.options.verify) do
      part(record, offset, length || max(byte_size(record) - offset, 0))
    end
  end

  defp read_record(ckpt, name, offset, length),
    do: Handle.read_record(ckpt, name, offset, length)

  defp part(record, offset, length) when offset + length <= byte_size(record),
    do: {:ok, binary_part(record, offset, length)}

  defp part(record, offset, length) do
    {:error,
     Error.new(
       :bad_argument,
       "the range from #{offset} to #{offset + length} exceeds the record, which has #{byte_size(record)} bytes"
     )}
  end
end
