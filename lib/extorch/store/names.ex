defmodule ExTorch.Store.Names do
  @moduledoc false
  # From the names of a file to those of a module: top-level key, numbers, adapters, remapping.

  alias ExTorch.Error
  alias ExTorch.Store.{Adapter, Options}

  # {:ok, [{file name, module name}], [file names outside the top-level key]}
  def plan(keys, shapes, options, module_names) do
    if as_they_are?(options),
      do: {:ok, Enum.map(keys, &{&1, &1}), []},
      else: renamed(keys, shapes, options, module_names)
  end

  # Nothing renames: then nothing collides that did not before, and a large file costs no more than its names.
  defp as_they_are?(options) do
    options.top_level_key == nil and not options.renumber and options.remap == [] and
      not Adapter.renames?(options.adapters)
  end

  defp renamed(keys, shapes, options, module_names) do
    with {:ok, prefix} <- prefix(keys, shapes, options, module_names),
         {inside, outside} = inside(keys, prefix),
         named = named(inside, shapes, options),
         :ok <- check_collisions(named) do
      {:ok, named, outside}
    end
  end

  defp named(pairs, shapes, options) do
    pairs
    |> renumber(options.renumber)
    |> adapted(shapes, options.adapters)
    |> Enum.map(fn {file, name} -> {file, Options.rename(options, name)} end)
  end

  # ---- The top-level key ----

  defp inside(keys, ""), do: {Enum.map(keys, &{&1, &1}), []}

  defp inside(keys, prefix) do
    size = byte_size(prefix)

    {inside, outside} = Enum.split_with(keys, &String.starts_with?(&1, prefix))
    {Enum.map(inside, &{&1, binary_part(&1, size, byte_size(&1) - size)}), outside}
  end

  defp prefix(_keys, _shapes, %{top_level_key: nil}, _module_names), do: {:ok, ""}

  defp prefix(keys, shapes, %{top_level_key: :auto} = options, module_names) do
    wanted = MapSet.new(module_names)

    scores =
      ["" | prefixes(keys)]
      |> Enum.map(fn prefix ->
        {inside, _} = inside(keys, prefix)
        {Enum.count(named(inside, shapes, options), fn {_, name} -> name in wanted end), prefix}
      end)
      |> Enum.sort_by(fn {score, prefix} -> {-score, byte_size(prefix)} end)

    case scores do
      [{score, prefix}] when score > 0 -> {:ok, prefix}
      [{score, prefix}, {second, _} | _] when score > second and score > 0 -> {:ok, prefix}
      [{0, _} | _] -> {:error, no_key(keys, "no part of the file has the module's names")}
      _ -> {:error, no_key(keys, "several parts of the file fit the module", best(scores))}
    end
  end

  defp prefix(keys, _shapes, %{top_level_key: key}, _module_names) do
    if Enum.any?(keys, &String.starts_with?(&1, key <> ".")),
      do: {:ok, key <> "."},
      else: {:error, no_key(keys, "the file has no top-level key #{inspect(key)}")}
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

  defp no_key(keys, what, candidates \\ nil) do
    candidates = candidates || keys |> prefixes() |> Enum.map(&String.trim_trailing(&1, "."))

    hint =
      case candidates |> Enum.reject(&(&1 == "")) |> Enum.take(5) do
        [] -> ""
        some -> "; top_level_key could be " <> Enum.map_join(some, ", ", &inspect/1)
      end

    Error.new(:not_found, what <> hint)
  end

  # ---- Numbers ----

  defp renumber(pairs, false), do: pairs

  # Numbered parts below the same name are counted anew, in their order.
  defp renumber(pairs, true) do
    groups =
      for {_file, name} <- pairs, {number, parent} <- numbers(name), reduce: %{} do
        groups -> Map.update(groups, parent, MapSet.new([number]), &MapSet.put(&1, number))
      end

    ranks =
      Map.new(groups, fn {parent, set} ->
        {parent, set |> Enum.sort() |> Enum.with_index() |> Map.new()}
      end)

    for {file, name} <- pairs, do: {file, count_anew(String.split(name, "."), [], ranks)}
  end

  defp numbers(name) do
    parts = String.split(name, ".")

    for {part, i} <- Enum.with_index(parts), {number, ""} <- [Integer.parse(part)] do
      {number, Enum.take(parts, i)}
    end
  end

  defp count_anew(parts, _parent, ranks) do
    parts
    |> Enum.with_index()
    |> Enum.map_join(".", fn {part, i} ->
      case Integer.parse(part) do
        {number, ""} -> to_string(ranks[Enum.take(parts, i)][number])
        _ -> part
      end
    end)
  end

  # ---- Adapters and collisions ----

  defp adapted(pairs, shapes, adapters) do
    if Adapter.renames?(adapters) do
      all = shapes.()
      short = Map.new(pairs, fn {file, name} -> {name, all[file]} end)
      for {file, name} <- pairs, do: {file, Adapter.rename(adapters, name, short)}
    else
      pairs
    end
  end

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
      "#{inspect(a)} and #{inspect(b)} both become #{inspect(name)}; make remap tell them apart"
    )
  end

  # ---- Likeness ----

  # For each missing name the unused one most like it. Long lists are cut: a suggestion is for people.
  def suggestions(missing, unused) do
    unused = unused |> Enum.take(2000) |> Enum.filter(&(byte_size(&1) < 200))

    for name <- Enum.take(missing, 50),
        byte_size(name) < 200,
        {score, near} <- [
          Enum.max(Enum.map(unused, &{likeness(&1, name), &1}), fn -> {0, nil} end)
        ],
        score > 0.8,
        into: %{},
        do: {name, near}
  end

  defp likeness(a, b), do: String.jaro_distance(a, b)
end
