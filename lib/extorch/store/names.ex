defmodule ExTorch.Store.Names do
  @moduledoc false
  # Maps the names of a file to those of a module: top-level key, renumbering, adapters, remapping.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.Error
  alias ExTorch.Store.{Adapter, Options}

  # Names come from the file: what is done with them must not depend on more than their length.
  @max_prefix 5
  @max_equivalent 8
  @max_levels 64
  @max_digits 18
  @max_missing 50
  @max_unused 2000

  @type pair :: {file_name :: String.t(), module_name :: String.t()}

  # Also returns the file names outside the top-level key, and this key. `entries` returns the entries of all tensors by
  # file name, nil for those that have none. The keys of `module_names` are the names of the module.
  @spec plan([String.t()], (() -> %{String.t() => Entry.t() | nil}), Options.t(), %{
          String.t() => term()
        }) ::
          {:ok, [pair()], [String.t()], String.t() | nil} | {:error, Error.t()}
  def plan(keys, entries, options, module_names) do
    if unchanged?(options),
      do: {:ok, Enum.map(keys, &{&1, &1}), [], nil},
      else: plan_renamed(keys, entries, options, module_names)
  end

  # If nothing renames, there are no collisions, and the shapes are not needed.
  @spec unchanged?(Options.t()) :: boolean()
  def unchanged?(options) do
    options.top_level_key == nil and not options.renumber and options.remap == [] and
      not Adapter.renames?(options.adapters)
  end

  defp plan_renamed(keys, entries, options, module_names) do
    shapes = if Adapter.renames?(options.adapters), do: shapes(entries.())

    with {:ok, prefix} <- prefix(keys, {shapes, entries}, options, module_names),
         {inside, outside} = strip_prefix(keys, prefix),
         pairs = rename(inside, shapes, options),
         :ok <- check_collisions(pairs) do
      {:ok, pairs, outside, if(prefix != "", do: String.trim_trailing(prefix, "."))}
    end
  end

  defp shapes(entries), do: Map.new(entries, fn {name, entry} -> {name, entry && entry.shape} end)

  defp rename(pairs, shapes, options) do
    pairs
    |> renumber(options.renumber)
    |> adapt(shapes, options.adapters)
    |> Enum.map(fn {file, name} -> {file, Options.rename(options, name)} end)
  end

  # ---- The top-level key ----

  # Returns {[{key, key without the prefix}], [keys without this prefix]}.
  defp strip_prefix(keys, ""), do: {Enum.map(keys, &{&1, &1}), []}

  defp strip_prefix(keys, prefix) do
    size = byte_size(prefix)

    {inside, outside} = Enum.split_with(keys, &String.starts_with?(&1, prefix))
    {Enum.map(inside, &{&1, binary_part(&1, size, byte_size(&1) - size)}), outside}
  end

  defp prefix(_keys, _tensors, %{top_level_key: nil}, _module_names), do: {:ok, ""}

  defp prefix(keys, {shapes, entries}, %{top_level_key: :auto} = options, module_names) do
    case scores(keys, shapes, options, module_names) do
      [] ->
        {:error, key_error("no part of the file contains tensors of the module", prefixes(keys))}

      [{_, prefix}] ->
        {:ok, prefix}

      [{score, prefix}, {second, _} | _] when score > second ->
        {:ok, prefix}

      scores ->
        best = best(scores)

        if equivalent?(best, keys, entries, &rename(&1, shapes, options), module_names),
          do: {:ok, hd(best)},
          else: {:error, key_error("several parts of the file fit the module", best)}
    end
  end

  defp prefix(keys, _tensors, %{top_level_key: key}, _module_names) do
    if Enum.any?(keys, &String.starts_with?(&1, key <> ".")),
      do: {:ok, key <> "."},
      else: {:error, key_error("the file has no top-level key #{inspect(key)}", prefixes(keys))}
  end

  # Keys are equivalent if the tensors of the module are the same memory below each of them.
  defp equivalent?(prefixes, keys, entries, rename, module_names) do
    length(prefixes) <= @max_equivalent and
      match?([_], Enum.uniq(views(prefixes, keys, entries.(), rename, module_names)))
  end

  defp views(prefixes, keys, entries, rename, module_names) do
    for prefix <- prefixes, {inside, _} = strip_prefix(keys, prefix) do
      for {key, name} <- rename.(inside), is_map_key(module_names, name), into: %{} do
        case entries[key] do
          %{storage: storage} = entry when storage != nil -> {name, Entry.view(entry)}
          _ -> {name, key}
        end
      end
    end
  end

  # Returns {number of names that the module has, prefix} for each prefix with such names, the best first. Each name is
  # renumbered once: the numbers below a prefix have the same ranks whether the prefix is there or not.
  defp scores(keys, shapes, options, module_names) do
    pairs = keys |> Enum.map(&{&1, &1}) |> renumber(options.renumber)

    for level <- 0..@max_prefix,
        {prefix, inside} <- Enum.group_by(below(pairs, level), &elem(&1, 0), &elem(&1, 1)),
        score = score(rename(inside, shapes, %{options | renumber: false}), module_names),
        score > 0 do
      {score, prefix}
    end
    |> Enum.sort_by(fn {score, prefix} -> {-score, byte_size(prefix)} end)
  end

  defp score(pairs, module_names),
    do: Enum.count(pairs, fn {_, name} -> is_map_key(module_names, name) end)

  # Returns {prefix, {key, rest of the new name}} for each name that has this many levels.
  defp below(pairs, level) do
    for {key, name} <- pairs, {prefix, _} <- [cut(key, level)], {_, rest} <- [cut(name, level)] do
      {prefix, {key, rest}}
    end
  end

  # Cuts a name after its first levels. Returns nil if it has not so many.
  defp cut(name, levels, at \\ 0)

  defp cut(name, 0, at),
    do: {binary_part(name, 0, at), binary_part(name, at, byte_size(name) - at)}

  defp cut(name, levels, at) do
    case :binary.match(name, ".", scope: {at, byte_size(name) - at}) do
      {dot, 1} -> cut(name, levels - 1, dot + 1)
      :nomatch -> nil
    end
  end

  # Some prefixes, for messages.
  defp prefixes(keys) do
    keys
    |> Stream.flat_map(fn key ->
      for n <- 1..@max_prefix, {prefix, _} <- [cut(key, n)], do: prefix
    end)
    |> Stream.take(200)
    |> Enum.uniq()
  end

  defp best([{score, _} | _] = scores), do: for({^score, prefix} <- scores, do: prefix)

  defp key_error(message, prefixes) do
    hint =
      case prefixes |> Enum.reject(&(&1 == "")) |> Enum.take(5) do
        [] ->
          ""

        some ->
          "; top_level_key could be " <>
            Enum.map_join(some, ", ", &Error.quoted(String.trim_trailing(&1, ".")))
      end

    Error.new(:not_found, message <> hint)
  end

  # ---- Renumbering ----

  defp renumber(pairs, false), do: pairs

  # Numbers with the same parent, which is the name before them, are replaced by their rank, down to a level that no
  # module reaches.
  defp renumber(pairs, true) do
    groups =
      for {_file, name} <- pairs, {number, at} <- numbers(name), reduce: %{} do
        groups -> Map.update(groups, binary_part(name, 0, at), [number], &[number | &1])
      end

    # The rank of a number that is alone is 0.
    ranks =
      for {parent, [_, _ | _] = numbers} <- groups,
          do: {parent, numbers |> :lists.usort() |> Enum.with_index() |> Map.new()},
          into: %{}

    for {file, name} <- pairs, do: {file, renumber_name(name, ranks)}
  end

  # Returns the parts of a name with their positions.
  defp parts(name) do
    {parts, _} =
      name
      |> String.split(".", parts: @max_levels + 1)
      |> Enum.map_reduce(0, fn part, at -> {{part, at}, at + byte_size(part) + 1} end)

    parts
  end

  defp numbers(name),
    do: for({part, at} <- parts(name), number = number(part), do: {number, at})

  defp number(part) when byte_size(part) <= @max_digits do
    case Integer.parse(part) do
      {number, ""} -> number
      _ -> nil
    end
  end

  defp number(_part), do: nil

  defp renumber_name(name, ranks) do
    Enum.map_join(parts(name), ".", fn {part, at} ->
      if number = number(part),
        do: Integer.to_string(rank(ranks, binary_part(name, 0, at), number)),
        else: part
    end)
  end

  defp rank(ranks, parent, number) do
    case ranks do
      %{^parent => %{^number => rank}} -> rank
      _ -> 0
    end
  end

  # ---- Adapters and collisions ----

  # `shapes` is nil if no adapter renames.
  defp adapt(pairs, nil, _adapters), do: pairs

  defp adapt(pairs, shapes, adapters) do
    shapes = Map.new(pairs, fn {file, name} -> {name, shapes[file]} end)
    for {file, name} <- pairs, do: {file, Adapter.rename(adapters, name, shapes)}
  end

  @spec check_collisions([{String.t(), String.t()}]) :: :ok | {:error, Error.t()}
  def check_collisions(pairs) do
    Enum.reduce_while(pairs, %{}, fn {from, name}, seen ->
      case seen do
        %{^name => other} -> {:halt, {:error, collision(other, from, name)}}
        _ -> {:cont, Map.put(seen, name, from)}
      end
    end)
    |> case do
      {:error, error} -> {:error, error}
      _ -> :ok
    end
  end

  defp collision(a, b, name) do
    Error.new(
      :ambiguous,
      "#{Error.quoted(a)} and #{Error.quoted(b)} are both renamed to #{Error.quoted(name)}; change remap or the adapters"
    )
  end

  # ---- Suggestions ----

  # Maps missing names to the most similar unused name. They come with the names that the file should have. The number of
  # names that are compared is limited.
  @spec suggestions([{String.t(), [String.t()]}], [String.t()]) :: %{String.t() => String.t()}
  def suggestions(missing, unused) do
    unused = Enum.take(unused, @max_unused)

    for {name, expected} <- Enum.take(missing, @max_missing),
        similar = expected |> Enum.find_value(&similar(unused, &1)),
        into: %{},
        do: {name, similar}
  end

  defp similar(unused, name), do: unused |> ExTorch.Suggest.similar(name, 0.8, 1) |> List.first()
end
