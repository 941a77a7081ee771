defmodule ExTorch.DCP.Writer do
  @moduledoc false
  # Writes folders of torch.distributed.checkpoint: a .distcp file for each writer, then .metadata.

  alias ExTorch.{DCP, Error, Streaming, Tensor}
  alias ExTorch.Archive.AtomicFile
  alias ExTorch.DCP.{Chunk, Metadata, Part}
  alias ExTorch.Python.Dict

  @metadata ".metadata"
  @max_numbers 10_000

  @spec write(term(), Path.t(), non_neg_integer(), boolean()) ::
          {:ok, DCP.part()} | {:error, Error.t()}
  def write(term, folder, rank, fsync) do
    with {:ok, folder} <- ExTorch.Saver.check_path(folder),
         {:ok, leaves} <- flatten(term),
         :ok <- File.mkdir_p(folder),
         {:ok, name, file} <- create(folder, rank, 0) do
      try do
        items = write_items(leaves, file, name)
        if fsync, do: ok!(:file.datasync(file))
        ok!(:file.close(file))
        {:ok, %{file: name, items: items}}
      catch
        kind, reason ->
          :file.close(file)
          :file.delete(Path.join(folder, name))
          failed(kind, reason, __STACKTRACE__)
      end
    else
      {:error, reason} when is_atom(reason) -> {:error, io_error(reason)}
      error -> error
    end
    |> Error.put_path(folder)
  end

  defp failed(:throw, {:io, reason}, _stack), do: {:error, io_error(reason)}
  defp failed(:error, %Error{} = error, _stack), do: {:error, error}
  defp failed(kind, reason, stack), do: :erlang.raise(kind, reason, stack)

  defp io_error(reason), do: Error.new(:io, "cannot write: #{:file.format_error(reason)}")

  defp ok!(:ok), do: :ok
  defp ok!({:error, reason}), do: throw({:io, reason})

  # Files of the checkpoint that is replaced keep their names until .metadata has been replaced.
  defp create(folder, rank, number) do
    name = "__#{rank}_#{number}.distcp"

    case :file.open(Path.join(folder, name), [:raw, :write, :binary, :exclusive]) do
      {:ok, file} -> {:ok, name, file}
      {:error, :eexist} when number < @max_numbers -> create(folder, rank, number + 1)
      error -> error
    end
  end

  defp write_items(leaves, file, name) do
    {items, _offset} =
      Enum.map_reduce(leaves, 0, fn {path, leaf}, offset ->
        {value, item} = item(path, leaf)
        length = write_stream(Streaming.save(value, format: :zip, compact: true), file)
        place = %{file: name, offset: offset, length: length}
        {put_place(item, place), offset + length}
      end)

    items
  end

  # The bytes of tensors are written from their own memory.
  defp write_stream(stream, file) do
    Enum.reduce(stream, 0, fn iodata, total ->
      ok!(:file.write(file, iodata))
      total + :erlang.iolist_size(iodata)
    end)
  end

  defp item(path, %Tensor{} = tensor) do
    tensor_item(path, tensor, Tuple.duplicate(0, tuple_size(tensor.shape)), tensor.shape)
  end

  defp item(path, %Chunk{tensor: tensor, offsets: offsets, shape: shape}),
    do: tensor_item(path, tensor, offsets, shape)

  defp item(path, value),
    do: {value, %{name: name(path), path: List.to_tuple(path), kind: :value}}

  defp tensor_item(path, tensor, offsets, shape) do
    {Tensor.contiguous(tensor),
     %{
       name: name(path),
       path: List.to_tuple(path),
       kind: :tensor,
       dtype: tensor.dtype,
       shape: shape,
       requires_grad: Tensor.requires_grad(tensor),
       chunks: [%{offsets: offsets, sizes: tensor.shape}]
     }}
  end

  defp name(path), do: Enum.join(path, ".")

  defp put_place(%{kind: :value} = item, place), do: Map.put(item, :place, place)

  defp put_place(%{chunks: [chunk]} = item, place),
    do: %{item | chunks: [Map.put(chunk, :place, place)]}

  # ---- Leaves ----

  # Returns {path, leaf} for every leaf, as torch flattens state dicts: dicts, and the lists that contain tensors.
  defp flatten(term) do
    leaves = term |> leaves([]) |> List.flatten()
    names = Enum.map(leaves, fn {path, _} -> name(path) end)

    case {dict?(term), names -- Enum.uniq(names)} do
      {true, []} ->
        {:ok, leaves}

      {true, [name | _]} ->
        {:error, Error.new(:bad_argument, "two values have the name #{inspect(name)}")}

      {false, _} ->
        {:error,
         Error.new(
           :bad_argument,
           "expected a map to save as a folder, got #{inspect(term, limit: 3)}"
         )}
    end
  rescue
    error in Error -> {:error, error}
  end

  defp dict?(%Dict{}), do: true
  defp dict?(%_{}), do: false
  defp dict?(term), do: is_map(term) or (is_list(term) and term != [] and Keyword.keyword?(term))

  defp leaves(%Dict{pairs: [_ | _] = pairs}, path), do: pairs(pairs, path)
  defp leaves(%_{} = leaf, path), do: [{Enum.reverse(path), leaf}]

  defp leaves(map, path) when is_map(map) and map_size(map) > 0,
    do: map |> Enum.sort() |> pairs(path)

  defp leaves(list, path) when is_list(list) do
    cond do
      list != [] and Keyword.keyword?(list) -> pairs(list, path)
      tensors?(list) -> elements(list, path)
      true -> [{Enum.reverse(path), list}]
    end
  end

  defp leaves(tuple, path) when is_tuple(tuple) do
    if tensors?(tuple),
      do: elements(Tuple.to_list(tuple), path),
      else: [{Enum.reverse(path), tuple}]
  end

  defp leaves(leaf, path), do: [{Enum.reverse(path), leaf}]

  defp pairs(pairs, path), do: for({key, value} <- pairs, do: leaves(value, [key(key) | path]))

  defp elements(list, path),
    do: for({value, i} <- Enum.with_index(list), do: leaves(value, [i | path]))

  defp key(key) when is_binary(key), do: key
  defp key(key) when is_atom(key) or is_integer(key) or is_float(key), do: to_string(key)

  defp key(key),
    do: raise(Error.new(:bad_argument, "the key #{inspect(key)} cannot be part of a name"))

  defp tensors?(%Tensor{}), do: true
  defp tensors?(%Chunk{}), do: true
  defp tensors?(%Dict{pairs: pairs}), do: Enum.any?(pairs, fn {_, value} -> tensors?(value) end)
  defp tensors?(%_{}), do: false
  defp tensors?(map) when is_map(map), do: Enum.any?(map, fn {_, value} -> tensors?(value) end)
  defp tensors?([head | tail]), do: tensors?(head) or tensors?(tail)
  defp tensors?({_key, _value} = pair), do: tensors?(Tuple.to_list(pair))
  defp tensors?(tuple) when is_tuple(tuple), do: tensors?(Tuple.to_list(tuple))
  defp tensors?(_other), do: false

  # ---- The commit ----

  @spec commit(Path.t(), [DCP.part()], boolean()) :: :ok | {:error, Error.t()}
  def commit(folder, parts, fsync) do
    with {:ok, items} <- merge(Enum.flat_map(parts, & &1.items)),
         {:ok, pickle} <- Metadata.pickle(items),
         old = old_files(folder),
         :ok <- replace(folder, pickle, fsync) do
      used = MapSet.new(items, fn item -> item |> places() |> Enum.map(& &1.file) end)
      used = used |> Enum.concat() |> MapSet.new()

      # The old .metadata may name any file of the folder.
      for name <- old ++ Enum.map(parts, & &1.file),
          name not in used and name =~ ~r/\A__\d+_\d+\.distcp\z/,
          do: :file.delete(Path.join(folder, name))

      :ok
    else
      {:error, reason} when is_atom(reason) -> {:error, io_error(reason)}
      error -> error
    end
    |> Error.put_path(folder)
  end

  defp places(%{kind: :value, place: place}), do: [place]
  defp places(%{chunks: chunks}), do: Enum.map(chunks, & &1.place)

  # Joins what several writers have of one name. The order is that of the first writer.
  defp merge(items) do
    by_name = Enum.group_by(items, & &1.name)
    {:ok, for(name <- items |> Enum.map(& &1.name) |> Enum.uniq(), do: merge_item(by_name[name]))}
  catch
    {:corrupt, error} -> {:error, %{error | reason: :bad_argument}}
  end

  defp merge_item([%{kind: :value} = first | _]), do: first

  defp merge_item([first | rest] = items) do
    for other <- rest,
        Map.take(other, [:kind, :dtype, :shape]) != Map.take(first, [:kind, :dtype, :shape]),
        do:
          throw(
            {:corrupt,
             Error.new(:bad_argument, "the writers disagree about #{inspect(first.name)}")}
          )

    chunks = items |> Enum.flat_map(& &1.chunks) |> Enum.uniq_by(&{&1.offsets, &1.sizes})
    Metadata.check!(%{first | chunks: Enum.sort_by(chunks, & &1.offsets)})
  end

  defp old_files(folder) do
    with {:ok, _} <- Part.file_size(Path.join(folder, @metadata)),
         {:ok, object} <- ExTorch.Checkpoint.load(Path.join(folder, @metadata), ordered: true),
         {:ok, items} <- Metadata.items(object) do
      items |> Enum.flat_map(&places/1) |> Enum.map(& &1.file) |> Enum.uniq()
    else
      _ -> []
    end
  end

  # Syncing the directory also makes the names of the .distcp files durable.
  defp replace(folder, pickle, true) do
    with {:ok, file} <- AtomicFile.open(Path.join(folder, @metadata)) do
      case AtomicFile.write(file, pickle) do
        {:ok, _size, file} ->
          AtomicFile.close(file, :ok)

        {:error, error, file} ->
          AtomicFile.close(file)
          {:error, error}
      end
    end
  end

  defp replace(folder, pickle, false) do
    temporary = Path.join(folder, ".metadata.tmp-#{:rand.uniform(1_000_000_000_000)}")

    with :ok <- :file.write_file(temporary, pickle, [:raw, :exclusive]),
         :ok <- :file.rename(temporary, Path.join(folder, @metadata)) do
      :ok
    else
      error ->
        :file.delete(temporary)
        error
    end
  end
end
