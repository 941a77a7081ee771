defmodule ExTorch.Store.Names do
  @moduledoc false
  # Maps the names of a file to those of a module: top-level key, renumbering, adapters, remapping.

  alias ExTorch.Error
  alias ExTorch.Store.{Adapter, Options}

  # Names come from the file: what is done with them must not depend on more than their length.
  @max_levels 64
  @max_digits 18
  @max_missing 20
  @max_unused 500
  @max_compared_bytes 127

  @type pair :: {file_name :: String.t(), module_name :: String.t()}

  # Also returns the file names outside the top-level key. `shapes` returns the shapes of all tensors by file name.
  @spec plan([String.t()], (() -> %{String.t() => tuple() | nil}), Options.t(), [String.t()]) ::
          {:ok, [pair()], [String.t()]} | {:error, Error.t()}
  def plan(keys, shapes, options, module_names) do
    if unchanged?(options),
      do: {:ok, Enum.map(keys, &{&1, &1}), []},
      else: plan_renamed(keys, shapes, options, module_names)
  end

  # If nothing renames, there are no collisions, and the shapes are not needed.
  defp unchanged?(options) do
    options.top_level_key == nil and not options.renumber and options.remap == [] and
      not Adapter.renames?(options.adapters)
  end

  defp plan_renamed(keys, shapes, options, module_names) do
    with {:ok, prefix} <- prefix(keys, shapes, options, module_names),
         {inside, outside} = strip_prefix(keys, prefix),
         pairs = rename(inside, shapes, options),
         :ok <- check_collisions(pairs) do
      {:ok, pairs, outside}
    end
  end

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

  defp prefix(_keys, _shapes, %{top_level_key: nil}, _module_names), do: {:ok, ""}

  defp prefix(keys, shapes, %{top_level_key: :auto} = options, module_names) do
    module_names = MapSet.new(module_names)

    # The score of a prefix is the number of names that the module has.
    scores =
      ["" | prefixes(keys)]
      |> Enum.map(fn prefix ->
        {inside, _outside} = strip_prefix(keys, prefix)
        names = rename(inside, shapes, options)
        {Enum.count(names, fn {_, name} -> name in module_names end), prefix}
      end)
      |> Enum.sort_by(fn {score, prefix} -> {-score, byte_size(prefix)} end)

    case scores do
      [{score, prefix}] when score > 0 ->
        {:ok, prefix}

      [{score, prefix}, {second, _} | _] when score > second and score > 0 ->
        {:ok, prefix}

      [{0, _} | _] ->
        {:error, key_error(keys, "no part of the file contains tensors of the module")}

      _ ->
        {:error, key_error(keys, "several parts of the file fit the module", best(scores))}
    end
  end

  defp prefix(keys, _shapes, %{top_level_key: key}, _module_names) do
    if Enum.any?(keys, &String.starts_with?(&1, key <> ".")),
      do: {:ok, key <> "."},
      else: {:error, key_error(keys, "the file has no top-level key #{inspect(key)}")}
  end

  defp prefixes(keys) do
    keys
    |> Enum.flat_map(fn key ->
      parts = key |> String.split(".") |> Enum.drop(-1) |> Enum.take(3)
      for n <- Enum.take(1..3, length(parts)), do: Enum.join(Enum.take(parts, n), ".") <> "."
    end)
    |> Enum.uniq()
    |> Enum.take(200)
  end

  defp best([{score, _} | _] = scores),
    do: for({^score, prefix} <- scores, do: String.trim_trailing(prefix, "."))

  defp key_error(keys, message, candidates \\ nil) do
    candidates = candidates || keys |> prefixes() |> Enum.map(&String.trim_trailing(&1, "."))

    hint =
      case candidates |> Enum.reject(&(&1 == "")) |> Enum.take(5) do
        [] -> ""
        some -> "; top_level_key could be " <> Enum.map_join(some, ", ", &inspect/1)
      end

    Error.new(:not_found, message <> hint)
  end

  # ---- Renumbering ----

  defp renumber(pairs, false), do: pairs

  # Numbers with the same parent are replaced by their rank, down to a level that no module reaches.
  defp renumber(pairs, true) do
    groups =
      for {_file, name} <- pairs, {number, parent} <- numbers(name), reduce: %{} do
        groups -> Map.update(groups, parent, MapSet.new([number]), &MapSet.put(&1, number))
      end

    ranks =
      Map.new(groups, fn {parent, set} ->
        {parent, set |> Enum.sort() |> Enum.with_index() |> Map.new()}
      end)

    for {file, name} <- pairs, do: {file, renumber_name(parts(name), ranks)}
  end

  defp parts(name), do: String.split(name, ".", parts: @max_levels + 1)

  defp numbers(name) do
    parts = parts(name)

    for {part, i} <- Enum.with_index(parts), number = number(part) do
      {number, Enum.take(parts, i)}
    end
  end

  defp number(part) when byte_size(part) <= @max_digits do
    case Integer.parse(part) do
      {number, ""} -> number
      _ -> nil
    end
  end

  defp number(_part), do: nil

  defp renumber_name(parts, ranks) do
    parts
    |> Enum.with_index()
    |> Enum.map_join(".", fn {part, i} ->
      if number = number(part), do: to_string(ranks[Enum.take(parts, i)][number]), else: part
    end)
  end

  # ---- Adapters and collisions ----

  defp adapt(pairs, shapes, adapters) do
    if Adapter.renames?(adapters) do
      shapes = shapes.()
      shapes = Map.new(pairs, fn {file, name} -> {name, shapes[file]} end)
      for {file, name} <- pairs, do: {file, Adapter.rename(adapters, name, shapes)}
    else
      pairs
    end
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
      "#{inspect(a)} and #{inspect(b)} are both renamed to #{inspect(name)}; change remap or the adapters"
    )
  end

  # ---- Suggestions ----

  # Maps missing names to the most similar unused name. The number of names that are compared is limited.
  @spec suggestions([String.t()], [String.t()]) :: %{String.t() => String.t()}
  def suggestions(missing, unused) do
    short? = &(byte_size(&1) <= @max_compared_bytes)
    unused = unused |> Enum.take(@max_unused) |> Enum.filter(short?)

    for name <- Enum.take(missing, @max_missing),
        short?.(name),
        {score, similar} <- [
          Enum.max(Enum.map(unused, &{String.jaro_distance(&1, name), &1}), fn -> {0, nil} end)
        ],
        score > 0.8,
        into: %{},
        do: {name, similar}
  end
end
