defmodule ExTorch.Checkpoint.Reader do
  @moduledoc false
  # Reads single tensors and records, with NIFs from files and binaries, and with ExTorch.Checkpoint.SourceReader from
  # other sources.

  alias ExTorch.Checkpoint.{Entry, Handle, SourceReader}
  alias ExTorch.{Error, Tensor}

  @spec tensor(Handle.t(), Entry.t()) :: Handle.result(Tensor.t())
  def tensor(%{source: %_{} = source, resource: resource, options: options} = ckpt, entry) do
    with {:ok, offset, bytes} <-
           SourceReader.locate(source, resource, entry.index, options.verify),
         {:ok, %Tensor{} = tensor} <-
           SourceReader.decode(resource, entry.index, options.verify, offset, bytes) do
      Handle.to_device(ckpt, tensor, entry)
    else
      {:ok, _raw} ->
        {:error,
         Error.new(
           :unsupported,
           "dtype #{entry.dtype} is not supported by the linked LibTorch; read the bytes with ExTorch.Checkpoint.read_storage/2"
         )}

      {:error, error} ->
        {:error, error}
    end
  end

  def tensor(ckpt, entry) do
    with {:ok, tensor} <- Handle.tensor(ckpt, entry),
         do: Handle.to_device(ckpt, tensor, entry)
  end

  # Reads `length` bytes of a record; nil means all bytes from `offset` on.
  @spec record(Handle.t(), String.t(), non_neg_integer(), non_neg_integer() | nil) ::
          Handle.result(binary())
  def record(ckpt, name, offset, length) do
    case read_record(ckpt, name, offset, length) do
      {:ok, nil} ->
        {:error,
         Error.new(
           :not_found,
           "no record is named #{inspect(name)}; see ExTorch.Checkpoint.records/1",
           ckpt.source
         )}

      {:ok, bytes} ->
        {:ok, bytes}

      {:error, error} ->
        {:error, error}
    end
  end

  defp read_record(%{source: %_{} = source, resource: resource} = ckpt, name, offset, length) do
    with {:ok, position, bytes} <- SourceReader.locate(source, resource, name, true),
         {:ok, record} when is_binary(record) <-
           SourceReader.decode(resource, name, ckpt.options.verify, position, bytes) do
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
