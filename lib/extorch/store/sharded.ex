defmodule ExTorch.Store.Sharded do
  @moduledoc """
  A store of several files and their index, as Hugging Face has them: `model.safetensors.index.json` or
  `pytorch_model.bin.index.json` with its shards beside it.

      store = ExTorch.Store.Sharded.new("model/model.safetensors.index.json", max_shard_size: "2GB")

  The path is the index, or a folder with one index in it. Collecting writes shards of at most `:max_shard_size` (bytes, or
  `"5GB"`, `"500MB"`, `"5GiB"`; 5 GB unless told; a tensor larger than that has a shard of its own), the format by the
  index's name, and the index last. The other options are in `ExTorch.Store`.

  Every shard is opened when it is first needed. A shard that is missing, a path that leaves the folder, and a name that two
  shards have are errors.
  """
  use ExTorch.Store

  alias ExTorch.{Checkpoint, Error, JSON, Tensor}
  alias ExTorch.Store.{Engine, Options}

  @index_limit 64 * 1024 * 1024

  @type t :: %__MODULE__{path: Path.t(), options: map()}
  @enforce_keys [:path, :options]
  defstruct [:path, :options]

  @doc "A store of the index; its files are opened when they are needed. Wrong options raise."
  @spec new(Path.t(), keyword()) :: t()
  def new(path, opts \\ []) do
    options = Options.check!(path, opts, max_shard_size: "5GB")
    %__MODULE__{path: path, options: %{options | max_shard_size: bytes!(options.max_shard_size)}}
  end

  defp bytes!(n) when is_integer(n) and n > 0, do: n

  defp bytes!(text) when is_binary(text) do
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
      _ -> bytes!(:wrong)
    end
  end

  defp bytes!(other) do
    raise Error.new(
            :bad_argument,
            "max_shard_size is a number of bytes or \"5GB\", not #{inspect(other)}"
          )
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

  # ExTorch.load/2 of an index, or of a folder that has one: all shards as one dict.
  @doc false
  def index?(path) when is_binary(path),
    do:
      String.ends_with?(path, ".index.json") or
        (File.dir?(path) and match?({:ok, _}, index_path(path)))

  def index?(_source), do: false

  @doc false
  def load(path, opts) do
    # the names are checked first: what two shards have, or none, is found without reading it
    with {:ok, index} <- index_path(path),
         {:ok, _keys} <- keys(new(index, Keyword.take(opts, [:strict, :verify, :limits]))),
         {:ok, weight_map} <- read_index(index) do
      weight_map
      |> Map.values()
      |> Enum.uniq()
      |> Enum.sort()
      |> Enum.reduce_while({:ok, []}, fn shard, {:ok, done} ->
        case ExTorch.load(Path.join(Path.dirname(index), shard), opts) do
          {:ok, %ExTorch.Python.Dict{pairs: pairs}} ->
            {:cont, {:ok, done ++ pairs}}

          {:ok, map} when is_map(map) ->
            {:cont, {:ok, done ++ Map.to_list(map)}}

          {:ok, _} ->
            {:halt, {:error, located(:corrupt, "the shard #{shard} holds no dict", index)}}

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
    ask = fn fun ->
      fn name -> fun.(Map.fetch!(shards, Map.fetch!(weight_map, name)), name) end
    end

    %{
      keys: keys,
      # storages of two shards may have one key
      entry:
        ask.(fn ckpt, name ->
          with {:ok, entry} <- Checkpoint.entry(ckpt, name),
               do:
                 {:ok,
                  if(entry.storage,
                    do: %{entry | storage: weight_map[name] <> "/" <> entry.storage},
                    else: entry
                  )}
        end),
      tensor: ask.(&Checkpoint.tensor/2)
    }
  end

  defp index_path(path) do
    if File.dir?(path) do
      case Path.wildcard(Path.join(path, "*.index.json")) do
        [index] -> {:ok, index}
        [] -> {:error, located(:not_found, "the folder has no index (*.index.json)", path)}
        _ -> {:error, located(:ambiguous, "the folder has several indexes; name one", path)}
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
        {:error, located(:limit, "an index of more than #{@index_limit} bytes", index)}

      {:error, %Error{} = error} ->
        {:error, Error.located(error, index)}

      {:error, :enoent} ->
        {:error, located(:not_found, "there is no such index", index)}

      {:error, reason} ->
        {:error,
         located(:io, "the index could not be read: #{:file.format_error(reason)}", index)}

      _ ->
        {:error, located(:corrupt, "the index has no weight_map of names and files", index)}
    end
  end

  defp open_all(index, weight_map, options) do
    folder = Path.dirname(index)

    weight_map
    |> Map.values()
    |> Enum.uniq()
    |> Enum.sort()
    |> Enum.reduce_while({:ok, %{}}, fn name, {:ok, shards} ->
      with :ok <- check_inside(name, index),
           {:ok, ckpt} <- Checkpoint.open(Path.join(folder, name), Options.reading(options)) do
        {:cont, {:ok, Map.put(shards, name, ckpt)}}
      else
        {:error, error} ->
          Enum.each(shards, fn {_, ckpt} -> Checkpoint.close(ckpt) end)
          {:halt, {:error, shard_error(error, name)}}
      end
    end)
  end

  # Shards lie beside their index, and nowhere else.
  defp check_inside(name, index) do
    if Path.type(name) == :relative and Path.basename(name) == name and
         name not in ["", ".", ".."],
       do: :ok,
       else:
         {:error,
          located(:forbidden, "the shard #{inspect(name)} is not in the index's folder", index)}
  end

  defp shard_error(%{reason: :not_found} = error, name),
    do: %{error | message: "the shard #{name} is missing: fetch it, or the whole folder, again"}

  defp shard_error(error, _name), do: error

  # Names in the order of the shards; each in the shard that the index says, and in no other.
  defp check_names(index, weight_map, shards) do
    shards
    |> Enum.sort()
    |> Enum.flat_map(fn {shard, ckpt} -> Enum.map(Checkpoint.keys(ckpt), &{&1, shard}) end)
    |> Enum.reduce_while({:ok, [], %{}}, fn {name, shard}, {:ok, keys, seen} ->
      case seen do
        %{^name => other} ->
          {:halt,
           {:error,
            located(:ambiguous, "#{inspect(name)} is in two shards, #{other} and #{shard}", index)}}

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
             located(
               :corrupt,
               "the index says that #{inspect(name)} is in #{shard}, and it is not",
               index
             )}
        end

      error ->
        error
    end
  end

  defp located(reason, message, path), do: Error.located(Error.new(reason, message), path)

  # ---- Writing ----

  @impl true
  def collect_from(%__MODULE__{path: path, options: options}, module) do
    start = System.monotonic_time()

    with :ok <- check_index_name(path),
         :ok <- Engine.free?(path, options),
         {:ok, pairs} <- Engine.collect(options, module),
         shards = split(pairs, options.max_shard_size),
         named = name_shards(path, shards),
         :ok <- free_shards(path, named, options),
         old = old_shards(path),
         :ok <- write_shards(path, named, options),
         :ok <- write_index(path, named, options) do
      # shards of ours that only the old index named are of no use any more
      for name <- old -- Enum.map(named, &elem(&1, 0)), do: File.rm(beside(path, name))
      Engine.collected(path, length(pairs), start)
    end
  end

  defp check_index_name(path) do
    if String.ends_with?(path, ".index.json"),
      do: :ok,
      else:
        {:error,
         located(
           :bad_argument,
           "an index is named like model.safetensors.index.json or pytorch_model.bin.index.json",
           path
         )}
  end

  # Tensors stay in their order; one that is too large has a shard of its own.
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

  defp free_shards(path, named, options) do
    Enum.find_value(named, :ok, fn {name, _} ->
      case Engine.free?(Path.join(Path.dirname(path), name), options) do
        :ok -> nil
        error -> error
      end
    end)
  end

  # Only what has the name of a shard: an index may say anything.
  defp old_shards(path) do
    {base, extension} = stem(path)
    ours = Regex.compile!("^#{Regex.escape(base)}-\\d{5}-of-\\d{5}#{Regex.escape(extension)}$")

    with true <- File.exists?(path),
         {:ok, weight_map} <- read_index(path) do
      weight_map |> Map.values() |> Enum.uniq() |> Enum.filter(&Regex.match?(ours, &1))
    else
      _ -> []
    end
  end

  defp stem(path) do
    stem = path |> Path.basename() |> String.replace_suffix(".index.json", "")
    {Path.rootname(stem), Path.extname(stem)}
  end

  defp beside(path, name), do: Path.join(Path.dirname(path), name)

  # All are written under other names first, and only then put in place: a full disk leaves the old ones as they were.
  defp write_shards(path, named, options) do
    written =
      Enum.reduce_while(named, {:ok, []}, fn {name, pairs}, {:ok, done} ->
        temporary = beside(path, ".extorch-new-" <> name)

        case ExTorch.save(
               %ExTorch.Python.Dict{pairs: pairs},
               temporary,
               shard_options(name, options)
             ) do
          :ok -> {:cont, {:ok, [{temporary, beside(path, name)} | done]}}
          error -> {:halt, {Error.located(error, beside(path, name)), done}}
        end
      end)

    case written do
      {:ok, pairs} ->
        Enum.find_value(pairs, :ok, fn {temporary, target} ->
          case File.rename(temporary, target) do
            :ok ->
              nil

            {:error, reason} ->
              {:error,
               located(
                 :io,
                 "the shard could not be put in its place: #{:file.format_error(reason)}",
                 target
               )}
          end
        end)

      {error, pairs} ->
        for {temporary, _} <- pairs, do: File.rm(temporary)
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
         located(:io, "the index could not be written: #{:file.format_error(reason)}", path)}
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
