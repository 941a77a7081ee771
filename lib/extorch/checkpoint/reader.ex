defmodule ExTorch.Checkpoint.Reader do
  @moduledoc false
  # Reads single tensors and records, with NIFs from files and binaries, and with ExTorch.Checkpoint.SourceReader from
  # other sources.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{BatchLoad, Entry, Handle, Lookup, SourceReader}
  alias ExTorch.{Error, Tensor}

  # Tensors that a stream reads with one call: at most this many, of at most so many bytes together.
  @group_count 500
  @group_bytes 256 * 1024

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
  def entry(%{options: %{device: :cpu}} = ckpt, entry), do: read(ckpt, entry.index)

  # A load to a device may also return what is not a tensor, which has its own error here.
  def entry(ckpt, entry) do
    quiet = %{ckpt | options: %{ckpt.options | on_progress: nil}}

    case BatchLoad.tensors(quiet, [entry], true) do
      {:ok, [%Tensor{} = tensor]} -> {:ok, tensor}
      {:ok, [_other]} -> read(ckpt, entry.index)
      {:error, error} -> {:error, error}
    end
  end

  # Returns a lazy stream of {name, tensor}. Small tensors are read together, a few at first, since a stream may be
  # halted early. Raises what reading one tensor raises.
  @spec stream(Handle.t(), [Entry.t()]) :: Enumerable.t()
  def stream(ckpt, entries) do
    quiet = %{ckpt | options: %{ckpt.options | on_progress: nil}}

    {entries, 1}
    |> Stream.unfold(&next_group/1)
    |> Stream.flat_map(&read_group(quiet, &1))
  end

  # Tensors of one storage are not read together: they would share memory, or not, depending on their places.
  defp next_group({[], _most}), do: nil

  defp next_group({[first | entries], most}) do
    {group, rest} = take_group(entries, most - 1, first.nbytes, %{first.storage => true}, [first])
    {group, {rest, min(2 * most, @group_count)}}
  end

  defp take_group(
         [%{nbytes: nbytes, storage: storage} = entry | entries],
         most,
         bytes,
         storages,
         group
       )
       when most > 0 and bytes + nbytes <= @group_bytes and
              (is_nil(storage) or not is_map_key(storages, storage)),
       do:
         take_group(entries, most - 1, bytes + nbytes, Map.put(storages, storage, true), [
           entry | group
         ])

  defp take_group(entries, _most, _bytes, _storages, group), do: {Enum.reverse(group), entries}

  defp read_group(ckpt, [entry]), do: read_each(ckpt, [entry])

  # If the group cannot be read, each tensor has its own error.
  defp read_group(ckpt, entries) do
    case BatchLoad.tensors(ckpt, entries, true) do
      {:ok, tensors} ->
        if Enum.all?(tensors, &is_struct(&1, Tensor)),
          do: Enum.zip_with(entries, tensors, &{&1.name, &2}),
          else: read_each(ckpt, entries)

      {:error, _error} ->
        read_each(ckpt, entries)
    end
  end

  defp read_each(ckpt, entries),
    do: Stream.map(entries, &{&1.name, Error.unwrap!(entry(ckpt, &1))})

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
