defmodule ExTorch.Store.ShardIndex do
  @moduledoc false
  # The index of sharded checkpoints: a JSON file whose weight_map maps the names of tensors to the files of their shards.

  alias ExTorch.Checkpoint.SourceReader
  alias ExTorch.{Error, JSON, Source}
  alias ExTorch.Store.Directory

  # The largest published checkpoints have about 400 shards and 200,000 tensors. All shards are open at the same time.
  @max_bytes 64 * 1024 * 1024
  @max_shards 10_000
  @max_tensors 300_000
  @max_name_bytes 255
  @suffix ".index.json"

  @type weight_map :: %{(name :: String.t()) => file :: String.t()}

  # The end of the name of every index.
  @spec suffix() :: String.t()
  def suffix, do: @suffix

  # Returns the name of an index without its suffix: model.safetensors.
  @spec stem(Path.t()) :: String.t()
  def stem(path), do: path |> Path.basename() |> String.replace_suffix(@suffix, "")

  # Returns the path of the index, which may be given as its directory.
  @spec find(Path.t() | Source.t()) :: {:ok, Path.t() | Source.t()} | {:error, Error.t()}
  def find(%_{} = source), do: {:ok, source}
  def find(path), do: if(directory?(path), do: find_in(path), else: {:ok, path})

  # No name begins with a zero byte: only the suffix selects. Hidden files are not considered.
  defp find_in(directory) do
    with {:ok, names} <- Directory.list(directory, <<0>>, @suffix) do
      case Enum.reject(names, &String.starts_with?(&1, ".")) do
        [index] ->
          {:ok, Path.join(directory, index)}

        [] ->
          {:error,
           Error.new(:not_found, "the directory contains no index (*#{@suffix})", directory)}

        _ ->
          {:error,
           Error.new(
             :ambiguous,
             "the directory contains several indexes; pass the path of one of them",
             directory
           )}
      end
    end
  end

  @spec read(Path.t() | Source.t()) :: {:ok, weight_map()} | {:error, Error.t()}
  def read(%_{} = source) do
    label = Source.label(source)

    with {:ok, text} <- Source.read_all(source, @max_bytes),
         {:ok, json} <- JSON.parse(text) do
      weight_map(json, label)
    else
      {:error, error} ->
        {:error, Error.put_path(SourceReader.source_error(source, :read_at, error), label)}
    end
  end

  def read(index) do
    if directory?(index) do
      {:error, Error.new(:not_found, "the index is a directory, expected a file", index)}
    else
      case JSON.read(index, @max_bytes) do
        {:ok, json} ->
          weight_map(json, index)

        {:error, %{reason: :not_found} = e} ->
          {:error, %{e | message: "the index does not exist"}}

        error ->
          error
      end
    end
  end

  defp weight_map(json, index) do
    with %{"weight_map" => map} when is_map(map) <- json,
         true <- Enum.all?(map, fn {_, file} -> is_binary(file) end) do
      with :ok <- check_names(map, index),
           :ok <- check_counts(map_size(map), length(shards(map)), index),
           do: {:ok, map}
    else
      _ ->
        {:error,
         Error.new(:corrupt, "the index has no weight_map from names to file names", index)}
    end
  end

  # ---- Limits ----

  @spec check_counts(non_neg_integer(), non_neg_integer(), Path.t()) :: :ok | {:error, Error.t()}
  def check_counts(tensors, shards, index) do
    cond do
      tensors > @max_tensors -> too_many("tensors", tensors, @max_tensors, index)
      shards > @max_shards -> too_many("shards", shards, @max_shards, index)
      true -> :ok
    end
  end

  defp too_many(what, count, limit, index) do
    {:error,
     Error.new(:limit, "the index has #{count} #{what}; at most #{limit} are allowed", index)}
  end

  defp check_names(map, index) do
    case Enum.find(map, fn {_, file} -> byte_size(file) > @max_name_bytes end) do
      nil ->
        :ok

      {_, file} ->
        {:error,
         Error.new(
           :limit,
           "the file name of a shard has #{byte_size(file)} bytes; at most #{@max_name_bytes} are allowed",
           index
         )}
    end
  end

  # ---- Files ----

  # Not through the file server.
  @spec directory?(Path.t()) :: boolean()
  def directory?(path) do
    ExTorch.Options.path?(path) and
      match?({:ok, info} when elem(info, 2) == :directory, :file.read_file_info(path, [:raw]))
  end

  # Returns the files of the shards.
  @spec shards(weight_map()) :: [String.t()]
  def shards(weight_map), do: weight_map |> Map.values() |> Enum.uniq() |> Enum.sort()

  # ---- Writing ----

  # Returns an index as JSON. `pairs` contains the names of the tensors with the files of their shards, `bytes` is the
  # size of all tensors.
  @spec text([{String.t(), String.t()}], non_neg_integer(), Enumerable.t()) ::
          {:ok, String.t()} | {:error, Error.t()}
  def text(pairs, bytes, metadata) do
    lines = &Enum.map_join(&1, ",\n", fn {key, value} -> "    #{JSON.quoted(key)}: #{value}" end)

    with :ok <- check_text(pairs) do
      metadata = Map.new(metadata, fn {key, value} -> {to_string(key), JSON.quoted(value)} end)
      head = metadata |> Map.put("total_size", to_string(bytes)) |> lines.()
      map = for({name, file} <- Enum.sort(pairs), do: {name, JSON.quoted(file)}) |> lines.()
      text = "{\n  \"metadata\": {\n#{head}\n  },\n  \"weight_map\": {\n#{map}\n  }\n}\n"

      if byte_size(text) > @max_bytes,
        do:
          {:error,
           Error.new(
             :limit,
             "the index would have #{byte_size(text)} bytes; at most #{@max_bytes} are allowed"
           )},
        else: {:ok, text}
    end
  end

  # JSON cannot contain other bytes.
  defp check_text(pairs) do
    case Enum.find(pairs, fn {name, file} ->
           not String.valid?(name) or not String.valid?(file)
         end) do
      nil ->
        :ok

      {name, file} ->
        bad = if String.valid?(name), do: file, else: name
        {:error, Error.new(:bad_argument, "the name #{Error.quoted(bad)} is not valid UTF-8")}
    end
  end
end
