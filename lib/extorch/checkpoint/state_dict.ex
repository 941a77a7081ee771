defmodule ExTorch.Checkpoint.StateDict do
  @moduledoc false
  # The tensors of any source as a flat list of names, for ExTorch.Checkpoint.state_dict/2, ExTorch.convert/3 and
  # ExTorch.diff/3. A source is one checkpoint, or the shards of an index.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{BatchLoad, Entry, Handle}
  alias ExTorch.{Error, Filter, Options}
  alias ExTorch.Python.{Dict, Object}
  alias ExTorch.Store

  @defaults [top_level_key: nil, only: nil, except: nil, rename: []]
  # The keys that training scripts use for the state dict of the model, the most specific ones first.
  @usual_keys ~w(state_dict model_state_dict model module network net weights params)

  @type part :: {Handle.t(), [Entry.t()]}
  @type item :: {name :: String.t(), Handle.t(), Entry.t()}
  @type options :: %{
          top_level_key: String.t() | :auto | nil,
          only: Filter.prepared() | nil,
          except: Filter.prepared() | nil,
          rename: list() | (String.t() -> String.t())
        }
  @typep result(value) :: {:ok, value} | {:error, Error.t()}

  # Checks the options that select and name tensors. Also returns the other ones, which are those of `known`.
  @spec split!(keyword(), keyword()) :: {options(), keyword()}
  def split!(opts, known) do
    {selection, others} =
      opts
      |> Options.validate!(Keyword.merge(known, @defaults))
      |> Keyword.split(Keyword.keys(@defaults))

    {check!(Map.new(selection)), others}
  end

  defp check!(options) do
    unless options.top_level_key in [nil, :auto] or is_binary(options.top_level_key),
      do: Options.invalid!(:top_level_key, "a string or :auto", options.top_level_key)

    Filter.check!(options.only, :only)
    Filter.check!(options.except, :except)

    %{
      options
      | only: Filter.prepare(options.only),
        except: Filter.prepare(options.except),
        rename: Store.Options.check_remap!(options.rename, :rename)
    }
  end

  # ---- Opening ----

  # Opens the source, calls the function with its parts and closes them. A part is a checkpoint and its entries.
  @spec with_parts(Checkpoint.source(), keyword(), ([part()] -> result)) ::
          result | {:error, Error.t()}
        when result: term()
  def with_parts(source, opts, fun) do
    with {:ok, parts} <- open_parts(source, opts) do
      try do
        fun.(parts)
      after
        Enum.each(parts, fn {ckpt, _entries} -> Checkpoint.close(ckpt) end)
      end
    end
  end

  # Opens the source. Its parts are closed by the caller or by the garbage collector.
  @spec open_parts(Checkpoint.source(), keyword()) :: result([part()])
  def open_parts(source, opts) do
    if index = Store.Sharded.index(source) do
      with {:ok, _keys, weight_map, shards} <- Store.Sharded.open_shards(index, opts),
           do:
             {:ok,
              for({shard, ckpt} <- Enum.sort(shards), do: shard_part(ckpt, shard, weight_map))}
    else
      with {:ok, ckpt} <- Checkpoint.open(source, opts),
           {:ok, entries} <- Handle.entries(ckpt),
           do: {:ok, [{ckpt, entries}]}
    end
  end

  # An index need not refer to all tensors of a shard.
  defp shard_part(ckpt, shard, weight_map) do
    {ckpt, Enum.filter(Checkpoint.entries(ckpt), &(weight_map[&1.name] == shard))}
  end

  # ---- Names ----

  # Replaces the top-level key :auto by the key that it stands for.
  @spec resolve([part()], options()) :: result(options())
  def resolve(parts, options) do
    with {:ok, key} <- top_level_key(options.top_level_key, parts),
         do: {:ok, %{options | top_level_key: key}}
  end

  # Returns the selected tensors with their names, in file order.
  @spec items([part()], options(), term()) :: result([item()])
  def items(parts, options, source \\ nil) do
    with {:ok, all} <- all_items(parts),
         :ok <- check_unique(all),
         {:ok, options} <- resolve(parts, options),
         {:ok, renamed} <- rename(all, options),
         selected = Enum.filter(renamed, &selected?(options, &1)),
         names = fn -> Enum.map(renamed, &elem(&1, 0)) end,
         :ok <- Filter.check_selected(selected, options.only, options.except, names) do
      {:ok, selected}
    else
      {:error, error} -> {:error, Error.put_path(error, error.path || source)}
    end
  end

  defp all_items(parts) do
    Enum.reduce_while(parts, {:ok, []}, fn {ckpt, entries}, {:ok, items} ->
      case not_in_state_dict(ckpt, entries) do
        {:ok, hidden} ->
          part = for entry <- entries, entry.index not in hidden, do: {entry.name, ckpt, entry}
          {:cont, {:ok, [part | items]}}

        error ->
          {:halt, error}
      end
    end)
    |> case do
      {:ok, items} -> {:ok, items |> Enum.reverse() |> Enum.concat()}
      error -> error
    end
  end

  defp check_unique(items) do
    Enum.reduce_while(items, %{}, fn {name, _, entry}, seen ->
      case seen do
        %{^name => path} -> {:halt, {:error, ambiguous(name, path, entry.path)}}
        _ -> {:cont, Map.put(seen, name, entry.path)}
      end
    end)
    |> case do
      {:error, error} -> {:error, error}
      _ -> :ok
    end
  end

  defp ambiguous(name, a, b) do
    Error.new(
      :ambiguous,
      "the paths #{inspect(a, limit: 20)} and #{inspect(b, limit: 20)} have the same name #{inspect(name)}; " <>
        "read them with ExTorch.Checkpoint.tensor/3"
    )
  end

  defp rename(items, options) do
    keys = Enum.map(items, &elem(&1, 0))

    plan = %{
      top_level_key: options.top_level_key,
      remap: options.rename,
      renumber: false,
      adapters: []
    }

    with {:ok, pairs, _outside, _key} <- Store.Names.plan(keys, fn -> %{} end, plan, %{}) do
      by_name = Map.new(items, &{elem(&1, 0), &1})
      {:ok, for({key, name} <- pairs, do: put_elem(Map.fetch!(by_name, key), 0, name))}
    end
  end

  defp selected?(options, {name, _ckpt, entry}),
    do: Store.Options.selected?(options, name, fn -> %{entry | name: name} end)

  # ---- Reading ----

  # Reads the tensors of the items, each storage once. Returns them with their names.
  @spec read([item()]) :: result([{String.t(), ExTorch.Tensor.t() | struct()}])
  def read(items) do
    items
    |> Enum.chunk_by(fn {_, ckpt, _} -> ckpt.resource end)
    |> Enum.reduce_while({:ok, []}, fn [{_, ckpt, _} | _] = part, {:ok, read} ->
      case BatchLoad.tensors(ckpt, Enum.map(part, &elem(&1, 2))) do
        {:ok, tensors} -> {:cont, {:ok, [Enum.zip(Enum.map(part, &elem(&1, 0)), tensors) | read]}}
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, read} -> {:ok, read |> Enum.reverse() |> Enum.concat()}
      error -> error
    end
  end

  # ---- Pickled modules ----

  # Returns the indices of the tensors that belong to a pickled nn.Module, but not to its state dict: attributes that
  # are not parameters, and buffers that are not persistent.
  defp not_in_state_dict(_ckpt, []), do: {:ok, MapSet.new()}

  defp not_in_state_dict(ckpt, _entries) do
    with {:ok, object} <- object(ckpt), do: {:ok, MapSet.new(hidden(object, false, []))}
  end

  # The object with entries in place of tensors, and dicts in their order.
  @spec object(Handle.t()) :: result(term())
  def object(ckpt) do
    with {:ok, entries} <- Handle.entries(ckpt),
         do: Handle.object(put_in(ckpt.options.ordered, true), entries)
  end

  defp hidden(%Entry{index: index}, true, acc), do: [index | acc]
  defp hidden(%Entry{}, false, acc), do: acc

  defp hidden(%Object{} = object, hide, acc) do
    case module_parts(object) do
      {:ok, parts} when not hide ->
        Enum.reduce(parts, acc, fn {value, hide}, acc -> hidden(value, hide, acc) end)

      _ ->
        Enum.reduce(children(object), acc, &hidden(&1, hide, &2))
    end
  end

  defp hidden(term, hide, acc), do: Enum.reduce(children(term), acc, &hidden(&1, hide, &2))

  # Returns the values of a module's state, each with whether it is outside the state dict.
  defp module_parts(%Object{state: %Dict{pairs: pairs}}) do
    state = Map.new(pairs)

    case state do
      %{"_parameters" => %Dict{}, "_buffers" => %Dict{pairs: buffers}, "_modules" => %Dict{}} ->
        transient = state["_non_persistent_buffers_set"]
        transient = if is_struct(transient, MapSet), do: transient, else: MapSet.new()
        {kept, others} = Map.split(state, ["_parameters", "_modules"])

        {:ok,
         for({_, value} <- kept, do: {value, false}) ++
           for({name, value} <- buffers, do: {value, MapSet.member?(transient, name)}) ++
           for({_, value} <- Map.delete(others, "_buffers"), do: {value, true})}

      _ ->
        :error
    end
  end

  defp module_parts(_object), do: :error

  # Returns the terms inside a term.
  @spec children(term()) :: [term()]
  def children(%Dict{pairs: pairs}), do: Enum.flat_map(pairs, &Tuple.to_list/1)
  def children(%MapSet{}), do: []
  def children(%_{} = struct), do: struct |> Map.from_struct() |> Map.values()
  def children(map) when is_map(map), do: Enum.flat_map(map, &Tuple.to_list/1)
  def children(list) when is_list(list), do: list
  def children(tuple) when is_tuple(tuple), do: Tuple.to_list(tuple)
  def children(_other), do: []

  # ---- The top-level key ----

  # :auto is the part of the root that is a state dict or a module; nil if the root is one.
  defp top_level_key(:auto, [{ckpt, _entries}]) do
    with {:ok, object} <- object(ckpt), do: auto_key(object, ckpt.source)
  end

  defp top_level_key(:auto, _shards), do: {:ok, nil}
  defp top_level_key(key, _parts), do: {:ok, key}

  defp auto_key(%Dict{pairs: pairs} = root, source) do
    candidates = for {key, value} <- pairs, is_binary(key), state_dict?(value), do: key

    cond do
      state_dict?(root) -> {:ok, nil}
      candidates == [] -> {:ok, nil}
      match?([_], candidates) -> {:ok, hd(candidates)}
      key = Enum.find(@usual_keys, &(&1 in candidates)) -> {:ok, key}
      true -> {:error, several(candidates, source)}
    end
  end

  defp auto_key(_root, _source), do: {:ok, nil}

  defp several(candidates, source) do
    names = candidates |> Enum.take(5) |> Enum.map_join(", ", &inspect/1)

    Error.new(
      :ambiguous,
      "the file contains several state dicts: top_level_key could be #{names}",
      source
    )
  end

  defp state_dict?(%Dict{pairs: pairs}) do
    Enum.any?(pairs, fn {key, value} -> is_binary(key) and tensor?(value) end)
  end

  defp state_dict?(%Object{} = object), do: match?({:ok, _}, module_parts(object))
  defp state_dict?(_other), do: false

  defp tensor?(%Entry{}), do: true
  defp tensor?(%ExTorch.Python.TensorSubclass{}), do: true
  defp tensor?(_other), do: false
end
