defmodule ExTorch.Store.Sharded do
  @moduledoc """
  A store for the shards of a Hugging Face index: `model.safetensors.index.json` or `pytorch_model.bin.index.json`, with
  the shards in the same directory.

      store = ExTorch.Store.Sharded.new("model/model.safetensors.index.json", max_shard_size: "2GB")

  The path is the path of the index, or of a directory that contains one index. `ExTorch.Store.collect_from/2` writes
  the shards and then the index. The name of the index determines the format of the shards.

  It is an error if a shard is missing, if it is not in the directory of the index, or if several shards have a tensor
  of the same name.

  ## Options

  All options of `ExTorch.Store`, and:

    * `:max_shard_size` - the maximum size of a shard: bytes, or a string like `"5GB"`, `"500MB"` or `"5GiB"`. A larger
      tensor gets its own shard. Defaults to `"5GB"`.
  """
  use ExTorch.Store

  alias ExTorch.{Checkpoint, Error, JSON, Tensor}
  alias ExTorch.Store.{Engine, Options}

  @index_limit 64 * 1024 * 1024

  @type t :: %__MODULE__{path: Path.t(), options: map()}
  @enforce_keys [:path, :options]
  defstruct [:path, :options]

  @doc "Creates a store. The files are opened when they are needed. Raises if an option is invalid."
  @spec new(Path.t(), keyword()) :: t()
  def new(path, opts \\ []) do
    options = Options.check!(path, opts, max_shard_size: "5GB")
    size = parse_size!(options.max_shard_size)
    %__MODULE__{path: path, options: %{options | max_shard_size: size}}
  end

  defp parse_size!(bytes) when is_integer(bytes) and bytes > 0, do: bytes

  defp parse_size!(text) when is_binary(text) do
    units = %{
      "" => 1,
      "KB" => 1.0e3,
      "MB" => 1.0e6,
      "GB" => 1.0e9,
      "KIB" => 1024,
      "MIB" => 1024 ** 2,
      "GIB" => 1024 ** 3
    }

    with {number, unit} when number > 0 <- Float.parse(text),
         {:ok, factor} <- Map.fetch(units, unit |> String.trim() |> String.upcase()) do
      trunc(number * factor)
    else
      _ -> invalid_size!(text)
    end
  end

  defp parse_size!(other), do: invalid_size!(other)

  @spec invalid_size!(term()) :: no_return()
  defp invalid_size!(value) do
    ExTorch.Options.invalid!(:max_shard_size, "a number of bytes or a string like \"5GB\"", value)
  end

  # ---- Reading ----

  @impl true
  def with_file(store, fun) do
    with {:ok, index} <- index_path(store.path),
         {:ok, weight_map} <- read_index(index),
         {:ok, shards} <- open_all(index, weight_map, store.options) do
      try do
        with {:ok, keys} <- check_names(index, weight_map, shards),
             do: fun.(file(keys, weight_map, shards))
      after
        Enum.each(shards, fn {_, ckpt} -> Checkpoint.close(ckpt) end)
      end
    end
  end

  # Returns true if ExTorch.load/2 should load the source as an index: an index, or a directory that contains one.
  @doc false
  def index?(path) when is_binary(path),
    do:
      String.ends_with?(path, ".index.json") or
        (File.dir?(path) and match?({:ok, _}, index_path(path)))

  def index?(_source), do: false

  # Loads all shards as one dict. Checks the names of all shards before reading tensors.
  @doc false
  def load(path, opts) do
    Checkpoint.Options.check!(opts)

    with {:ok, index} <- index_path(path),
         {:ok, _keys} <- keys(new(index, Keyword.take(opts, [:strict, :verify, :limits]))),
         {:ok, weight_map} <- read_index(index) do
      weight_map
      |> Map.values()
      |> Enum.uniq()
      |> Enum.sort()
      |> Enum.reduce_while({:ok, []}, fn shard, {:ok, loaded} ->
        case ExTorch.load(sibling(index, shard), opts) do
          {:ok, %ExTorch.Python.Dict{pairs: pairs}} ->
            {:cont, {:ok, loaded ++ pairs}}

          {:ok, map} when is_map(map) ->
            {:cont, {:ok, loaded ++ Map.to_list(map)}}

          {:ok, _} ->
            {:halt,
             {:error, Error.new(:corrupt, "the shard #{shard} does not contain a dict", index)}}

          error ->
            {:halt, error}
        end
      end)
      |> case do
        {:ok, pairs} ->
          {:ok, if(opts[:ordered], do: %ExTorch.Python.Dict{pairs: pairs}, else: Map.new(pairs))}

        error ->
          error
      end
    end
  end

  defp file(keys, weight_map, shards) do
    in_shard = fn fun ->
      fn name -> fun.(Map.fetch!(shards, Map.fetch!(weight_map, name)), name) end
    end

    %{
      keys: keys,
      # Storages of different shards may have the same key: make it unique.
      entry:
        in_shard.(fn ckpt, name ->
          with {:ok, entry} <- Checkpoint.entry(ckpt, name),
               do:
                 {:ok,
                  if(entry.storage,
                    do: %{entry | storage: weight_map[name] <> "/" <> entry.storage},
                    else: entry
                  )}
        end),
      tensor: in_shard.(&Checkpoint.tensor/2)
    }
  end

  defp index_path(path) do
    if File.dir?(path) do
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

  defp read_index(index) do
    with {:ok, %{size: size}} when size <= @index_limit <- File.stat(index),
         {:ok, text} <- File.read(index),
         {:ok, %{"weight_map" => map}} when is_map(map) <-
           JSON.decode(text),
         true <- Enum.all?(map, fn {_, file} -> is_binary(file) end) do
      {:ok, map}
    else
      {:ok, %{size: _}} ->
        {:error, Error.new(:limit, "the index exceeds #{@index_limit} bytes", index)}

      {:error, %Error{} = error} ->
        {:error, Error.put_path(error, index)}

      {:error, :enoent} ->
        {:error, Error.new(:not_found, "the index does not exist", index)}

      {:error, reason} ->
        {:error,
         Error.new(:io, "the index could not be read: #{:file.format_error(reason)}", index)}

      _ ->
        {:error,
         Error.new(:corrupt, "the index has no weight_map from names to file names", index)}
    end
  end

  defp open_all(index, weight_map, options) do
    weight_map
    |> Map.values()
    |> Enum.uniq()
    |> Enum.sort()
    |> Enum.reduce_while({:ok, %{}}, fn name, {:ok, shards} ->
      with :ok <- check_inside(name, index),
           {:ok, ckpt} <- Checkpoint.open(sibling(index, name), Options.reading(options)) do
        {:cont, {:ok, Map.put(shards, name, ckpt)}}
      else
        {:error, error} ->
          Enum.each(shards, fn {_, ckpt} -> Checkpoint.close(ckpt) end)
          {:halt, {:error, shard_error(error, name)}}
      end
    end)
  end

  # Shards must be in the directory of the index.
  defp check_inside(name, index) do
    if Path.type(name) == :relative and Path.basename(name) == name and
         name not in ["", ".", ".."],
       do: :ok,
       else:
         {:error,
          Error.new(
            :forbidden,
            "the shard #{inspect(name)} is not in the directory of the index",
            index
          )}
  end

  defp shard_error(%{reason: :not_found} = error, name),
    do: %{error | message: "the shard #{name} is missing; download the directory again"}

  defp shard_error(error, _name), do: error

  # Returns the names in the order of the shards. Each must be in the shard that the index gives, and in no other.
  defp check_names(index, weight_map, shards) do
    shards
    |> Enum.sort()
    |> Enum.flat_map(fn {shard, ckpt} -> Enum.map(Checkpoint.keys(ckpt), &{&1, shard}) end)
    |> Enum.reduce_while({:ok, [], %{}}, fn {name, shard}, {:ok, keys, seen} ->
      case seen do
        %{^name => other} ->
          {:halt,
           {:error,
            Error.new(
              :ambiguous,
              "#{inspect(name)} is in two shards, #{other} and #{shard}",
              index
            )}}

        _ ->
          keys = if weight_map[name] == shard, do: [name | keys], else: keys
          {:cont, {:ok, keys, Map.put(seen, name, shard)}}
      end
    end)
    |> case do
      {:ok, keys, seen} ->
        case Enum.find(weight_map, fn {name, shard} -> seen[name] != shard end) do
          nil ->
            {:ok, Enum.reverse(keys)}

          {name, shard} ->
            {:error,
             Error.new(
               :corrupt,
               "#{inspect(name)} is not in #{shard}, although the index refers to it",
               index
             )}
        end

      error ->
        error
    end
  end

  # ---- Writing ----

  @impl true
  def collect_from(%__MODULE__{path: path, options: options}, module) do
    start = System.monotonic_time()

    with :ok <- check_index_name(path),
         :ok <- Engine.check_overwrite(path, options),
         {:ok, pairs} <- Engine.collect(options, module),
         shards = split(pairs, options.max_shard_size),
         named = name_shards(path, shards),
         :ok <- check_overwrite_shards(path, named, options),
         old = old_shards(path),
         :ok <- write_shards(path, named, options),
         :ok <- write_index(path, named, options) do
      # Remove the shards that only the old index refers to.
      for name <- old -- Enum.map(named, &elem(&1, 0)), do: File.rm(sibling(path, name))
      Engine.emit_collect(path, length(pairs), start)
    end
  end

  defp check_index_name(path) do
    if String.ends_with?(path, ".index.json"),
      do: :ok,
      else:
        {:error,
         Error.new(
           :bad_argument,
           "expected the name of the index to end in .index.json, as in model.safetensors.index.json",
           path
         )}
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
         {:ok, weight_map} <- read_index(path) do
      weight_map |> Map.values() |> Enum.uniq() |> Enum.filter(&Regex.match?(shard, &1))
    else
      _ -> []
    end
  end

  defp stem(path) do
    stem = path |> Path.basename() |> String.replace_suffix(".index.json", "")
    {Path.rootname(stem), Path.extname(stem)}
  end

  defp sibling(path, name), do: Path.join(Path.dirname(path), name)

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

  defp write_index(path, named, options) do
    total =
      for {_, pairs} <- named,
          {_, tensor} <- pairs,
          reduce: 0,
          do: (sum -> sum + Tensor.nbytes(tensor))

    metadata =
      Map.new(options.metadata, fn {key, value} -> {to_string(key), quote_json(value)} end)

    head =
      metadata
      |> Map.put("total_size", to_string(total))
      |> Enum.map_join(",\n", fn {key, value} -> "    #{quote_json(key)}: #{value}" end)

    map =
      for({name, pairs} <- named, {tensor, _} <- pairs, do: {tensor, name})
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
