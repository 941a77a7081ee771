defmodule ExTorch.Store.ShardWriter do
  @moduledoc false
  # Writes tensors as shards with an index.

  alias ExTorch.{Error, Tensor}
  alias ExTorch.Store.{Engine, Options, ShardIndex}

  @spec write(Path.t(), [{String.t(), Tensor.t()}], Options.t()) :: :ok | {:error, Error.t()}
  def write(path, pairs, options) do
    named = name_shards(path, split(pairs, options.max_shard_size))

    with :ok <- check_overwrite_shards(path, named, options),
         old = old_shards(path),
         :ok <- write_shards(path, named, options),
         :ok <- ShardIndex.write(path, named, options.metadata) do
      # Remove the shards that only the old index refers to.
      for name <- old -- Enum.map(named, &elem(&1, 0)), do: File.rm(sibling(path, name))
      :ok
    end
  end

  # Splits the tensors into shards, in their order. A tensor that is too large gets its own shard.
  defp split(pairs, limit) do
    {shards, last, _} =
      Enum.reduce(pairs, {[], [], 0}, fn {_, tensor} = pair, {shards, shard, size} ->
        bytes = Tensor.nbytes(tensor)

        if shard != [] and size + bytes > limit,
          do: {[Enum.reverse(shard) | shards], [pair], bytes},
          else: {shards, [pair | shard], size + bytes}
      end)

    Enum.reverse([Enum.reverse(last) | shards])
  end

  defp name_shards(path, shards) do
    {base, extension} = stem(path)
    count = length(shards)
    pad = &String.pad_leading(to_string(&1), 5, "0")

    for {pairs, i} <- Enum.with_index(shards, 1),
        do: {"#{base}-#{pad.(i)}-of-#{pad.(count)}#{extension}", pairs}
  end

  defp check_overwrite_shards(path, named, options) do
    Enum.find_value(named, :ok, fn {name, _} ->
      case Engine.check_overwrite(sibling(path, name), options) do
        :ok -> nil
        error -> error
      end
    end)
  end

  # Returns the shards of the old index. Ignores files whose name is not that of a shard: an index may contain anything.
  defp old_shards(path) do
    {base, extension} = stem(path)
    shard = Regex.compile!("^#{Regex.escape(base)}-\\d{5}-of-\\d{5}#{Regex.escape(extension)}$")

    with true <- File.exists?(path),
         {:ok, weight_map} <- ShardIndex.read(path) do
      weight_map |> ShardIndex.shards() |> Enum.filter(&Regex.match?(shard, &1))
    else
      _ -> []
    end
  end

  defp stem(path) do
    stem = path |> Path.basename() |> String.replace_suffix(".index.json", "")
    {Path.rootname(stem), Path.extname(stem)}
  end

  defp sibling(path, name), do: ShardIndex.sibling(path, name)

  # Writes all shards under temporary names before renaming them, so that a full disk does not damage the old shards.
  defp write_shards(path, named, options) do
    written =
      Enum.reduce_while(named, {:ok, []}, fn {name, pairs}, {:ok, renames} ->
        temporary = sibling(path, ".extorch-new-" <> name)

        case ExTorch.save(
               %ExTorch.Python.Dict{pairs: pairs},
               temporary,
               shard_options(name, options)
             ) do
          :ok -> {:cont, {:ok, [{temporary, sibling(path, name)} | renames]}}
          error -> {:halt, {Error.put_path(error, sibling(path, name)), renames}}
        end
      end)

    case written do
      {:ok, renames} ->
        Enum.find_value(renames, :ok, fn {temporary, target} ->
          case File.rename(temporary, target) do
            :ok ->
              nil

            {:error, reason} ->
              {:error,
               Error.new(
                 :io,
                 "the shard could not be renamed: #{:file.format_error(reason)}",
                 target
               )}
          end
        end)

      {error, renames} ->
        for {temporary, _} <- renames, do: File.rm(temporary)
        error
    end
  end

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
end
