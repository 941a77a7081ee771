defmodule ExTorch.Store.Sharded do
  @moduledoc """
  A store for the shards of a Hugging Face index: `model.safetensors.index.json` or `pytorch_model.bin.index.json`, with
  the shards in the same directory.

      store = ExTorch.Store.Sharded.new("model/model.safetensors.index.json", max_shard_size: "2GB")

  The path is the path of the index, or of a directory that contains one index. It may also be the URL of an index, or
  a source like `ExTorch.Source.HTTP.hub("org/model", "model.safetensors.index.json")`. The name of the index determines the
  format of the shards.

  It is an error if a shard is missing, if it is not in the directory of the index, or if several shards have a tensor
  of the same name. An index may have 64 MiB, 10,000 shards and 300,000 tensors.

  ## Saving

  `ExTorch.Store.collect_from/2` writes new shards beside the old ones, syncs them to disk, replaces the index with one
  rename and then removes the shards of the old index. Whatever happens in between, the directory contains the old or
  the new checkpoint, never a mixture.

    * A save never replaces a shard. The first save of an index has the usual names
      (`model-00001-of-00003.safetensors`). A save that replaces an index adds 16 random digits
      (`model-0123456789abcdef-00001-of-00003.safetensors`), because readers may have read the old index and open its
      shards later. Readers find the shards by the index, in Python as well.
    * If the node is killed, the next save into the directory by a store removes what is left of the save.
    * Several processes and nodes may save the same index at the same time. The one that renames its index last wins, and
      the shards of the others are removed. A lock on the directory, which leaves no file, is held while the index is
      replaced. `:busy` is returned if another process holds it for a minute.
    * Shards to which another index in the directory refers, and files that are not named like shards of this index,
      are never removed.
    * If the index is a symbolic link, the link is replaced and not its target.

  A load or an `apply_to/2` during a save reads the old or the new checkpoint.

  ## Options

  All options of `ExTorch.Store`, and:

    * `:max_shard_size` - the maximum size of a shard: bytes, or a string like `"5GB"`, `"500MB"` or `"5GiB"`. A larger
      tensor gets its own shard. Defaults to `"5GB"`.
  """
  use ExTorch.Store

  alias ExTorch.Checkpoint.BatchLoad
  alias ExTorch.{Checkpoint, Error, Filter, Source, Telemetry}
  alias ExTorch.Python.Dict
  alias ExTorch.Store.{Collect, File, Options, ShardIndex, ShardWriter}

  @type t :: %__MODULE__{path: Path.t() | ExTorch.Source.t(), options: map()}
  @enforce_keys [:path, :options]
  defstruct [:path, :options]

  @tries 10
  @max_shard_size 2 ** 62

  @doc """
  Creates a store. The files are opened when they are needed. Raises if an option is invalid.

      ExTorch.Store.Sharded.new("model/model.safetensors.index.json", max_shard_size: "2GB")
  """
  @spec new(Path.t() | ExTorch.Source.t(), keyword()) :: t()
  def new(path, opts \\ []) do
    options = Options.check!(path, opts, max_shard_size: "5GB")
    size = parse_size!(options.max_shard_size)
    %__MODULE__{path: Options.source!(path), options: %{options | max_shard_size: size}}
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

    with {number, unit} when number > 0 and number < @max_shard_size <- Float.parse(text),
         {:ok, factor} <- Map.fetch(units, unit |> String.trim() |> String.upcase()),
         bytes when bytes > 0 <- trunc(number * factor) do
      bytes
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
    with_shards(store.path, Options.reading(store.options), fn keys, weight_map, shards ->
      fun.(File.new(keys, shards, weight_map))
    end)
  end

  # Returns the index to load: the source, or the one in this directory. Otherwise nil.
  @doc false
  def index(source) do
    cond do
      index?(source) -> source
      is_binary(source) and ShardIndex.directory?(source) -> index_in(source)
      true -> nil
    end
  end

  # Returns whether the name of the source is that of an index.
  @doc false
  def index?(source) do
    path = with {:ok, source} <- Source.resolve(source), do: Source.path(source), else: (_ -> nil)
    path != nil and String.ends_with?(path, ShardIndex.suffix())
  end

  # Returns the index in a directory, or nil.
  @doc false
  def index_in(directory) do
    case ShardIndex.find(directory) do
      {:ok, index} -> index
      {:error, _} -> nil
    end
  end

  # Loads all shards as one dict. Checks the names of all shards before reading tensors.
  @doc false
  def load(path, opts) do
    Checkpoint.Options.check!(opts)
    Telemetry.note(fn -> {%{}, %{format: :sharded}} end)

    with_shards(path, opts, fn keys, _weight_map, shards ->
      with {:ok, shards} <- select(Enum.sort(shards), opts[:only], keys, path),
           {:ok, pairs} <- load_pairs(shards, []),
           do: {:ok, if(opts[:ordered], do: %Dict{pairs: pairs}, else: Map.new(pairs))}
    end)
  end

  # A filter must select a tensor of any shard, not of every shard.
  defp select(shards, nil, _keys, _path), do: {:ok, shards}

  defp select(shards, only, keys, path) do
    {used, unused} =
      Enum.split_with(shards, fn {_, ckpt} -> selects?(ckpt.options.only, ckpt) end)

    with :ok <- Filter.check_selected(used, Filter.prepare(only), fn -> keys end) do
      nothing = for {shard, ckpt} <- unused, do: {shard, put_in(ckpt.options.only, [])}
      {:ok, List.keysort(used ++ nothing, 0)}
    else
      error -> Error.put_path(error, path)
    end
  end

  # Entries are much larger than names, so they are only made if they are needed.
  defp selects?(only, ckpt) do
    if Filter.takes_entry?(only),
      do:
        Enum.any?(Checkpoint.entries(ckpt), fn entry ->
          Filter.matches?(only, entry.name, fn -> entry end)
        end),
      else: Enum.any?(Checkpoint.keys(ckpt), &Filter.matches?(only, &1, fn -> nil end))
  end

  defp load_pairs([], loaded), do: {:ok, loaded |> Enum.reverse() |> Enum.concat()}

  defp load_pairs([{shard, ckpt} | shards], loaded) do
    case BatchLoad.load(ckpt) do
      {:ok, %Dict{pairs: pairs}} ->
        load_pairs(shards, [pairs | loaded])

      {:ok, map} when is_map(map) ->
        load_pairs(shards, [Map.to_list(map) | loaded])

      {:ok, _} ->
        {:error, Error.new(:corrupt, "the shard #{shard} does not contain a dict", ckpt.source)}

      error ->
        error
    end
  end

  # Opens all shards, calls the function with the names in file order, the weight map and the checkpoints by file name,
  # and closes them.
  @doc false
  def with_shards(path, opts, fun) do
    with {:ok, keys, weight_map, shards} <- open_shards(path, opts) do
      try do
        fun.(keys, weight_map, shards)
      after
        close_all(shards)
      end
    end
  end

  # Opens all shards. They are closed by the caller or by the garbage collector.
  @doc false
  def open_shards(path, opts) do
    with {:ok, path} <- Source.resolve(path),
         {:ok, index} <- ShardIndex.find(path),
         {:ok, weight_map} <- ShardIndex.read(index),
         do: open_current(index, weight_map, opts, @tries)
  end

  # A save may replace the index after it was read, and remove its shards: then the new index is opened. Once the shards
  # are open, they can be read even if they are removed.
  defp open_current(index, weight_map, opts, tries) do
    with {:error, error} <- open_checked(index, weight_map, opts) do
      case ShardIndex.read(index) do
        {:ok, newer} when newer != weight_map and tries > 1 ->
          open_current(index, newer, opts, tries - 1)

        {:ok, newer} when newer != weight_map ->
          {:error,
           Error.new(
             :file_changed,
             "the index was replaced #{@tries} times while its shards were being opened; try again",
             index
           )}

        _ ->
          {:error, error}
      end
    end
  end

  defp open_checked(index, weight_map, opts) do
    with {:ok, shards} <- open_all(index, weight_map, opts) do
      case check_names(index, weight_map, shards) do
        {:ok, keys} ->
          {:ok, keys, weight_map, shards}

        error ->
          close_all(shards)
          error
      end
    end
  end

  defp close_all(shards), do: Enum.each(shards, fn {_, ckpt} -> Checkpoint.close(ckpt) end)

  defp open_all(index, weight_map, opts) do
    names = ShardIndex.shards(weight_map)
    limits = Keyword.put(opts[:limits] || [], :files, max(length(names), 1))
    opts = Keyword.put(opts, :limits, limits)

    names
    |> Enum.reduce_while({:ok, %{}}, fn name, {:ok, shards} ->
      with :ok <- check_inside(name, index),
           {:ok, ckpt} <- Checkpoint.open(Source.sibling(index, name), opts) do
        {:cont, {:ok, Map.put(shards, name, ckpt)}}
      else
        {:error, error} ->
          close_all(shards)
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
            "the shard #{Error.quoted(name)} is not in the directory of the index",
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
              "#{Error.quoted(name)} is in two shards, #{other} and #{shard}",
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
               "#{Error.quoted(name)} is not in #{shard}, although the index refers to it",
               index
             )}
        end

      error ->
        error
    end
  end

  # ---- Writing ----

  @impl true
  def collect_from(store, module) do
    with :ok <- check_index_name(store.path),
         do:
           Collect.collect_from(store, module, &ShardWriter.write(store.path, &1, store.options))
  end

  defp check_index_name(path) do
    if String.ends_with?(Source.path(path) || "", ".index.json"),
      do: :ok,
      else:
        {:error,
         Error.new(
           :bad_argument,
           "expected the name of the index to end in .index.json, as in model.safetensors.index.json",
           path
         )}
  end
end
