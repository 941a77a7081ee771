defmodule ExTorch.Store.ShardWriter do
  @moduledoc false
  # Writes tensors as shards with an index. Renaming the new index over the old one is the only step that changes what
  # the directory contains for a reader:
  #
  #   1. With the lock of the directory: remove what dead saves left behind, choose names that no file has, and write the
  #      index under a temporary name.
  #   2. Without the lock: write the shards.
  #   3. With the lock: list the old shards in a second temporary index, rename the index, remove the old shards.
  #
  # All files are synced to disk before the step that relies on them.

  alias ExTorch.Archive.AtomicFile
  alias ExTorch.{Error, Progress, Saver, Tensor}
  alias ExTorch.Saver.Cast
  alias ExTorch.Store.{Collect, Directory, Leftovers, Options, ShardIndex}

  @spec write(Path.t(), [{String.t(), Tensor.t()}], Options.t()) :: :ok | {:error, Error.t()}
  def write(path, pairs, options) do
    shards = split(pairs, options.max_shard_size)

    with {:ok, _} <- Saver.check_path(path),
         :ok <- ShardIndex.check_counts(length(pairs), length(shards), path),
         {:ok, file, named} <- locked(path, fn -> prepare(path, shards, options) end) do
      try do
        with :ok <- write_shards(path, named, options),
             do: locked(path, fn -> commit(path, file, options) end)
      after
        # The index is closed: what is left belongs to the old index, or to the new one if the save failed.
        AtomicFile.close(file)
        Leftovers.sweep(Path.dirname(path))
      end
    end
  end

  defp locked(path, fun), do: path |> Path.dirname() |> Directory.locked(fun) |> put_path(path)

  # Errors about the directory are errors about the index.
  defp put_path({:error, %Error{path: nil} = error}, path),
    do: {:error, Error.put_path(error, path)}

  defp put_path(result, _path), do: result

  # ---- Names ----

  # Splits the tensors into shards, in their order. A tensor that is too large gets its own shard.
  defp split(pairs, limit) do
    {shards, last, _} =
      Enum.reduce(pairs, {[], [], 0}, fn {_, tensor} = pair, {shards, shard, size} ->
        bytes = Cast.nbytes(tensor)

        if shard != [] and size + bytes > limit,
          do: {[Enum.reverse(shard) | shards], [pair], bytes},
          else: {shards, [pair | shard], size + bytes}
      end)

    Enum.reverse([Enum.reverse(last) | shards])
  end

  # A shard is never replaced, not even one of an old index: a reader may have read that index and open the shard later.
  # So only the first save has the usual names. The others have 16 random digits in them. Python's transformers
  # recognizes both as shards when it removes old ones.
  defp name_shards(path, shards, unique) do
    stem = ShardIndex.stem(path)
    {base, extension} = {Path.rootname(stem), Path.extname(stem)}
    base = if unique, do: "#{base}-#{unique}", else: base
    count = length(shards)
    pad = &String.pad_leading(to_string(&1), 5, "0")

    for {pairs, i} <- Enum.with_index(shards, 1),
        do: {"#{base}-#{pad.(i)}-of-#{pad.(count)}#{extension}", pairs}
  end

  defp sibling(path, name), do: ExTorch.Source.sibling(path, name)

  # ---- 1. Preparing ----

  defp prepare(path, shards, options) do
    usual = name_shards(path, shards, nil)

    with {:ok, unfinished} <- Leftovers.remove(Path.dirname(path)),
         {:ok, unique} <- check_names(path, usual, unfinished, options),
         {:ok, file, digits} <- AtomicFile.open_index(path) do
      named = if unique, do: name_shards(path, shards, digits), else: usual

      with :ok <- write_index(file, named, options.metadata),
           :ok <- if(unique, do: :ok, else: Directory.reserve(sibling(path, elem(hd(usual), 0)))) do
        {:ok, file, named}
      else
        # Another host, which the lock does not exclude, was faster.
        :taken ->
          AtomicFile.discard(file)
          prepare(path, shards, options)

        error ->
          AtomicFile.discard(file)
          error
      end
    end
  end

  # Returns whether unique names are needed: there is an index, or a usual name is in use, now or by an unfinished save.
  defp check_names(path, usual, unfinished, options) do
    names = MapSet.new(usual, &elem(&1, 0))
    existing = Enum.find([path | Enum.map(names, &sibling(path, &1))], &Directory.exists?/1)

    cond do
      existing == nil ->
        {:ok,
         Enum.any?(unfinished, &Enum.any?(Leftovers.shards(&1), fn shard -> shard in names end))}

      options.overwrite ->
        {:ok, true}

      true ->
        {:error, Collect.exists_error(existing)}
    end
  end

  defp write_index(file, named, metadata) do
    pairs = for {shard, pairs} <- named, {name, _} <- pairs, do: {name, shard}
    bytes = for {_, pairs} <- named, {_, t} <- pairs, reduce: 0, do: (n -> n + Cast.nbytes(t))
    write_text(file, ShardIndex.text(pairs, bytes, metadata))
  end

  defp write_text(file, {:ok, text}) do
    case AtomicFile.write(file, text) do
      {:ok, _, _} -> AtomicFile.sync(file)
      {:error, error, _} -> {:error, error}
    end
  end

  defp write_text(_file, error), do: error

  # ---- 2. Writing ----

  # Progress is that of all shards.
  defp write_shards(path, named, options) do
    total = for {_, pairs} <- named, reduce: 0, do: (sum -> sum + nbytes(pairs))
    progress = Progress.new(options.on_progress, total)

    Enum.reduce_while(named, 0, fn {name, pairs}, done ->
      report = fn written, _total -> Progress.report(progress, min(done + written, total)) end
      opts = shard_options(name, %{options | on_progress: report})

      case ExTorch.save(%ExTorch.Python.Dict{pairs: pairs}, sibling(path, name), opts) do
        :ok -> {:cont, done + nbytes(pairs)}
        # The shard is gone: its name would tell nothing.
        error -> {:halt, Error.put_path(error, path)}
      end
    end)
    |> case do
      {:error, error} -> {:error, error}
      _done -> Progress.finish(progress)
    end
  end

  defp nbytes(pairs), do: for({_, tensor} <- pairs, reduce: 0, do: (n -> n + Cast.nbytes(tensor)))

  defp shard_options(name, options) do
    if Path.extname(name) == ".safetensors",
      do:
        [
          format: :safetensors,
          metadata: Map.merge(%{"format" => "pt"}, Map.new(options.metadata))
        ] ++
          Options.writing(options),
      else: [format: :zip] ++ Options.writing(options)
  end

  # ---- 3. Committing ----

  defp commit(path, file, options) do
    with :ok <- check_index(path, options),
         {:ok, old} <- list_old(path) do
      result = AtomicFile.close(file, :ok)
      if old, do: AtomicFile.close(old)
      result
    end
  end

  # Another save may have written the index in the meantime.
  defp check_index(path, options) do
    if not options.overwrite and Directory.exists?(path),
      do: {:error, Collect.exists_error(path)},
      else: :ok
  end

  # Writes a temporary index of the old shards, if there are any.
  defp list_old(path) do
    case old_shards(path) do
      [] -> {:ok, nil}
      shards -> write_old(path, ShardIndex.text(Enum.map(shards, &{&1, &1}), 0, %{}))
    end
  end

  defp write_old(path, text) do
    with {:ok, file, _} <- AtomicFile.open_index(path) do
      case write_text(file, text) do
        :ok ->
          {:ok, file}

        error ->
          AtomicFile.discard(file)
          error
      end
    end
  end

  # Returns the shards of the old index that a save of it can have written: an index may contain any name. An index that
  # cannot be read has none.
  defp old_shards(path) do
    stem = ShardIndex.stem(path)
    [base, extension] = Enum.map([Path.rootname(stem), Path.extname(stem)], &Regex.escape/1)
    shard = Regex.compile!("\\A#{base}(-[0-9a-f]{16})?-\\d{5}-of-\\d{5}#{extension}\\z")

    case ShardIndex.read(path) do
      {:ok, weight_map} -> weight_map |> ShardIndex.shards() |> Enum.filter(&(&1 =~ shard))
      {:error, _} -> []
    end
  end
end
