defmodule ExTorch.Convert do
  @moduledoc false
  # Converts checkpoints from any format to any other. The source is mapped, and the tensors are written from the mapping.

  alias ExTorch.Checkpoint.{BatchLoad, Entry, Handle, StateDict, Values}
  alias ExTorch.Convert.{DTypes, Spool}
  alias ExTorch.{Checkpoint, Error, Filter, Options, Progress, Python, Saver, Store}
  alias ExTorch.Store.{ShardIndex, ShardWriter}

  @reading [strict: false, verify: false, limits: [], offset: 0]
  @writing [
    format: nil,
    metadata: %{},
    fsync: true,
    compact: nil,
    duplicate: false,
    on_progress: nil
  ]
  @options [dtype: nil, tensors_only: false, max_shard_size: nil]
  # The formats that contain any Python object. The others contain names and tensors.
  @object_formats [:zip, :legacy, :streaming]
  # Larger tensors of a source that is not a file are copied to a temporary file.
  @max_source_bytes 32 * 1024 * 1024
  @max_names 5

  @spec convert(Checkpoint.source(), Path.t(), keyword()) :: :ok | {:error, Error.t()}
  def convert(source, sink, opts) do
    {selection, opts} = StateDict.split!(opts, @reading ++ @writing ++ @options)
    {reading, opts} = Keyword.split(opts, Keyword.keys(@reading))
    options = opts |> Map.new() |> check!(selection)
    reading = [mmap: true, ordered: true] ++ reading

    with {:ok, target} <- target(sink, options) do
      StateDict.with_parts(source, reading, fn parts ->
        with {:ok, selection} <- StateDict.resolve(parts, selection) do
          if spool?(parts, selection),
            do: spooled(source, reading, selection, target, options),
            else: convert_parts(parts, selection, target, options, source)
        end
      end)
    end
  end

  # Tensors of a struct that implements ExTorch.Source would all be in memory at the same time.
  defp spool?([{%{source: %_{}}, entries}], selection) do
    bytes =
      for entry <- entries, selected?(selection, entry), reduce: 0, do: (n -> n + entry.nbytes)

    bytes > @max_source_bytes
  end

  defp spool?(_parts, _selection), do: false

  defp spooled(source, reading, selection, target, options) do
    Spool.with_copy(source, Path.dirname(target.path), fn path ->
      StateDict.with_parts(path, reading, &convert_parts(&1, selection, target, options, nil))
    end)
  end

  defp convert_parts(parts, selection, target, options, source) do
    with {:ok, term} <- term(parts, selection, target, options, source),
         do: write(term, target, parts, options)
  end

  defp check!(options, selection) do
    filtered? = selection.only != nil or selection.except != nil
    options = if options.compact == nil, do: %{options | compact: filtered?}, else: options
    Options.booleans!(options, [:tensors_only, :fsync, :compact, :duplicate])
    Progress.check!(options.on_progress)
    Saver.check_format!(options.format)
    Saver.metadata!(options.metadata, :safetensors)
    %{options | dtype: DTypes.check!(options.dtype)}
  end

  # ---- Where to ----

  # Shards are written if there is a maximum size, and to indexes and directories. A directory has no ending.
  defp target(sink, options) do
    with {:ok, sink} <- Saver.check_path(sink) do
      directory? =
        ShardIndex.directory?(sink) or
          (options.max_shard_size != nil and Path.extname(sink) == "" and not File.exists?(sink))

      if options.max_shard_size || directory? || String.ends_with?(sink, ShardIndex.suffix()),
        do: sharded(sink, directory?, options),
        else: single(sink, options)
    end
    |> Error.put_path(sink)
  end

  defp single(path, options) do
    with {:ok, format} <- Saver.format(options.format, path),
         do: {:ok, %{path: path, format: format, shards: nil}}
  end

  defp sharded(sink, directory?, options) do
    path = index_path(sink, directory?, options.format)

    with {:ok, format} <- Saver.format(nil, ShardIndex.stem(path)),
         :ok <- check_shard_format(format, options.format) do
      size = options.max_shard_size || "5GB"
      opts = [overwrite: true, metadata: options.metadata, max_shard_size: size]
      shards = Store.Sharded.new(path, opts).options
      {:ok, %{path: path, format: format, shards: shards, directory?: directory?}}
    end
  end

  defp index_path(sink, true, :zip),
    do: Path.join(sink, "pytorch_model.bin" <> ShardIndex.suffix())

  defp index_path(sink, true, _), do: Path.join(sink, "model.safetensors" <> ShardIndex.suffix())

  defp index_path(sink, false, _format) do
    if String.ends_with?(sink, ShardIndex.suffix()), do: sink, else: sink <> ShardIndex.suffix()
  end

  defp check_shard_format(format, wanted) when wanted in [nil, format], do: :ok

  defp check_shard_format(format, wanted) do
    {:error,
     Error.new(
       :bad_argument,
       "the name of the index determines the format of the shards, which is #{inspect(format)}, " <>
         "but format: #{inspect(wanted)} was given"
     )}
  end

  # ---- What ----

  # Returns the whole object, or a dict of the tensors.
  defp term(parts, selection, target, options, source) do
    flat? =
      options.tensors_only or target.shards != nil or target.format not in @object_formats or
        selection.top_level_key != nil or selection.rename != [] or not match?([_], parts)

    if flat?,
      do: flat(parts, selection, options, source),
      else: whole(hd(parts), selection, options)
  end

  defp flat(parts, selection, options, source) do
    with :ok <- check_lost(parts, selection, options),
         {:ok, items} <- StateDict.items(parts, selection, source),
         {:ok, pairs} <- StateDict.read(items),
         {names, tensors} = Enum.unzip(pairs),
         {:ok, tensors} <- DTypes.cast(tensors, items, options.dtype),
         do: {:ok, %Python.Dict{pairs: Enum.zip(names, tensors)}}
  end

  # What is not a tensor is left out only if that was asked for.
  defp check_lost([{ckpt, _entries}], selection, %{tensors_only: false}) do
    with {:ok, object} <- StateDict.object(ckpt) do
      case Values.list(object, selection.top_level_key) do
        [] -> :ok
        lost -> {:error, Error.put_path(lost_error(lost), ckpt.source)}
      end
    end
  end

  defp check_lost(_parts, _selection, _options), do: :ok

  defp lost_error(lost) do
    names =
      Enum.map_join(Enum.take(lost, @max_names), ", ", fn {name, _} -> Error.quoted(name) end)

    more = if length(lost) > @max_names, do: " and #{length(lost) - @max_names} more", else: ""

    Error.new(
      :bad_argument,
      "only tensors can be converted in this way, but the file also contains #{names}#{more}; " <>
        "use tensors_only: true to leave out what is not a tensor, or top_level_key: to convert a part"
    )
  end

  # Returns the object with its tensors. Those that filters leave out are removed from their dicts.
  defp whole({ckpt, entries}, selection, options) do
    selected = Enum.filter(entries, &selected?(selection, &1))
    names = fn -> Enum.map(entries, & &1.name) end

    with :ok <- check_code(ckpt),
         :ok <- Filter.check_selected(selected, selection.only, selection.except, names),
         {:ok, tensors} <- BatchLoad.tensors(ckpt, selected),
         items = Enum.map(selected, &{&1.name, ckpt, &1}),
         {:ok, tensors} <- DTypes.cast(tensors, items, options.dtype),
         {:ok, object} <- Handle.object(ckpt, BatchLoad.merge(entries, selected, tensors)),
         object = BatchLoad.prune(object),
         :ok <- check_pruned(object) do
      {:ok, object}
    else
      {:error, error} -> {:error, Error.put_path(error, ckpt.source)}
    end
  end

  defp selected?(selection, entry),
    do: Store.Options.selected?(selection, entry.name, fn -> entry end)

  defp check_code(ckpt) do
    with {:ok, metadata} <- Handle.metadata(ckpt) do
      if metadata.format == :torchscript,
        do:
          {:error,
           Error.new(
             :bad_argument,
             "the code of a TorchScript file cannot be converted; use tensors_only: true to convert its tensors"
           )},
        else: :ok
    end
  end

  defp check_pruned(object) do
    case find_entry(object) do
      nil ->
        :ok

      entry ->
        {:error,
         Error.new(
           :bad_argument,
           "#{Error.quoted(entry.name)} cannot be left out, because it is part of a list, a tuple or an object; " <>
             "use tensors_only: true to convert the other tensors"
         )}
    end
  end

  defp find_entry(%Entry{} = entry), do: entry
  defp find_entry(term), do: Enum.find_value(StateDict.children(term), &find_entry/1)

  # ---- Writing ----

  defp write(term, %{shards: nil} = target, parts, options) do
    opts = writing(options) ++ [format: target.format]

    opts =
      if target.format == :safetensors,
        do: [metadata: metadata(parts, options)] ++ opts,
        else: opts

    ExTorch.save(term, target.path, opts)
  end

  defp write(%Python.Dict{pairs: pairs}, target, parts, options) do
    store = Map.merge(target.shards, Map.new(writing(options)))
    # If it cannot be created, the error of the first file says so.
    if target.directory?, do: File.mkdir(Path.dirname(target.path))
    ShardWriter.write(target.path, pairs, %{store | metadata: metadata(parts, options)})
  end

  defp writing(options),
    do: options |> Map.take([:fsync, :compact, :duplicate, :on_progress]) |> Map.to_list()

  # The metadata of safetensors files is kept. Python's transformers expects "format".
  defp metadata(parts, options) do
    given = Map.new(options.metadata, fn {key, value} -> {to_string(key), value} end)

    parts
    |> Enum.map(fn {ckpt, _} -> Checkpoint.metadata(ckpt)[:metadata] || %{} end)
    |> Enum.reduce(%{"format" => "pt"}, &Map.merge(&2, &1))
    |> Map.merge(given)
  end
end
