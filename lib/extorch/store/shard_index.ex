defmodule ExTorch.Store.ShardIndex do
  @moduledoc false
  # The index of sharded checkpoints: a JSON file whose weight_map maps the names of tensors to the files of their shards.

  alias ExTorch.{Error, JSON, Tensor}

  @max_bytes 64 * 1024 * 1024

  @type weight_map :: %{(name :: String.t()) => file :: String.t()}

  # Returns the path of the index, which may be given as its directory.
  @spec find(Path.t()) :: {:ok, Path.t()} | {:error, Error.t()}
  def find(path) do
    if directory?(path) do
      case Path.wildcard(Path.join(path, "*.index.json")) do
        [index] ->
          {:ok, index}

        [] ->
          {:error, Error.new(:not_found, "the directory contains no index (*.index.json)", path)}

        _ ->
          {:error,
           Error.new(
             :ambiguous,
             "the directory contains several indexes; pass the path of one of them",
             path
           )}
      end
    else
      {:ok, path}
    end
  end

  @spec read(Path.t()) :: {:ok, weight_map()} | {:error, Error.t()}
  def read(index) do
    with {:ok, %{"weight_map" => map}} when is_map(map) <- JSON.read(index, @max_bytes),
         true <- Enum.all?(map, fn {_, file} -> is_binary(file) end) do
      {:ok, map}
    else
      {:error, %Error{reason: :not_found} = error} ->
        {:error, %{error | message: "the index does not exist"}}

      {:error, %Error{} = error} ->
        {:error, error}

      _ ->
        {:error,
         Error.new(:corrupt, "the index has no weight_map from names to file names", index)}
    end
  end

  # Not through the file server.
  @spec directory?(Path.t()) :: boolean()
  def directory?(path) do
    ExTorch.Options.path?(path) and
      match?({:ok, info} when elem(info, 2) == :directory, :file.read_file_info(path, [:raw]))
  end

  # Returns the files of the shards.
  @spec shards(weight_map()) :: [String.t()]
  def shards(weight_map), do: weight_map |> Map.values() |> Enum.uniq() |> Enum.sort()

  # Returns the path of a file in the directory of the index.
  @spec sibling(Path.t(), String.t()) :: Path.t()
  def sibling(index, file), do: Path.join(Path.dirname(index), file)

  # Writes an index atomically. `shards` contains the file and the tensors of each shard.
  @spec write(Path.t(), [{String.t(), [{String.t(), Tensor.t()}]}], Enumerable.t()) ::
          :ok | {:error, Error.t()}
  def write(path, shards, metadata) do
    total =
      for {_, pairs} <- shards,
          {_, tensor} <- pairs,
          reduce: 0,
          do: (sum -> sum + Tensor.nbytes(tensor))

    metadata = Map.new(metadata, fn {key, value} -> {to_string(key), quote_json(value)} end)

    head =
      metadata
      |> Map.put("total_size", to_string(total))
      |> Enum.map_join(",\n", fn {key, value} -> "    #{quote_json(key)}: #{value}" end)

    map =
      for({name, pairs} <- shards, {tensor, _} <- pairs, do: {tensor, name})
      |> Enum.sort()
      |> Enum.map_join(",\n", fn {tensor, name} ->
        "    #{quote_json(tensor)}: #{quote_json(name)}"
      end)

    text = "{\n  \"metadata\": {\n#{head}\n  },\n  \"weight_map\": {\n#{map}\n  }\n}\n"
    temporary = path <> ".extorch-#{System.unique_integer([:positive])}"

    with :ok <- File.write(temporary, text, [:sync]),
         :ok <- File.rename(temporary, path) do
      :ok
    else
      {:error, reason} ->
        File.rm(temporary)

        {:error,
         Error.new(:io, "the index could not be written: #{:file.format_error(reason)}", path)}
    end
  end

  defp quote_json(text) do
    escaped =
      for <<char::utf8 <- text>>, into: "" do
        case char do
          ?" -> "\\\""
          ?\\ -> "\\\\"
          c when c < 0x20 -> "\\u" <> String.pad_leading(Integer.to_string(c, 16), 4, "0")
          c -> <<c::utf8>>
        end
      end

    "\"" <> escaped <> "\""
  end
end
