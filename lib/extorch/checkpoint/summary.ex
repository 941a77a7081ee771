defmodule ExTorch.Checkpoint.Summary do
  @moduledoc false
  # The tensors of a checkpoint as a tree of modules, or as a table, with their sizes.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.Text

  @type options :: %{
          depth: pos_integer() | nil,
          sort: :file | :size | :name,
          table: boolean()
        }
  # A line: the name, and the columns after it.
  @type line :: {level :: non_neg_integer(), name :: String.t(), [String.t()]}

  # Returns the lines of a tree, or of a table.
  @spec lines([Entry.t()], options()) :: [line()]
  def lines(entries, %{table: true} = options) do
    for entry <- sort(entries, options.sort), do: leaf(entry, entry.name, 0)
  end

  def lines(entries, options) do
    total = if shared(entries) == [], do: &Text.sum/1, else: &Text.total/1
    options = Map.put(options, :total, total)

    entries
    |> Enum.map(&{String.split(&1.name, "."), &1})
    |> tree(0, options)
  end

  defp sort(entries, :file), do: entries
  defp sort(entries, :name), do: Enum.sort_by(entries, & &1.name)
  defp sort(entries, :size), do: Enum.sort_by(entries, &{-&1.nbytes, &1.index})

  # `named` contains {parts of the name below this level, entry}.
  defp tree(named, level, options), do: named |> group() |> tree_groups(level, options)

  defp tree_groups(groups, level, options) do
    groups
    |> sort_groups(options)
    |> Enum.flat_map(fn
      {name, [{[_], entry}]} -> [leaf(entry, name, level)]
      {name, inside} -> branch(name, inside, level, options)
    end)
  end

  # Groups by the first part, in the order in which the parts come first.
  defp group(named) do
    {groups, order} =
      Enum.reduce(named, {%{}, []}, fn {[part | _], _} = item, {groups, order} ->
        case groups do
          %{^part => items} -> {%{groups | part => [item | items]}, order}
          _ -> {Map.put(groups, part, [item]), [part | order]}
        end
      end)

    Enum.reduce(order, [], fn part, list -> [{part, Enum.reverse(groups[part])} | list] end)
  end

  defp sort_groups(groups, %{sort: :file}), do: groups
  defp sort_groups(groups, %{sort: :name}), do: Enum.sort_by(groups, &elem(&1, 0))

  defp sort_groups(groups, %{sort: :size, total: total}) do
    Enum.sort_by(groups, fn {_, inside} -> -elem(total.(all(inside)), 1) end)
  end

  defp branch(name, inside, level, options) do
    {leaves, deeper} = Enum.split_with(inside, &match?({[_], _}, &1))
    own = for {_, entry} <- leaves, do: leaf(entry, name, level)
    own ++ inside(name, deeper, own == [], level, options)
  end

  defp inside(_name, [], _alone?, _level, _options), do: []

  # A module with one child is on one line with it.
  defp inside(name, deeper, alone?, level, options) do
    case deeper |> drop() |> group() do
      [{child, rest}] when alone? ->
        joined = for {[_ | parts], entry} <- rest, do: {[name <> "." <> child | parts], entry}
        tree(joined, level, options)

      _groups when options.depth != nil and level + 1 >= options.depth ->
        [module(name, all(deeper), level, options)]

      groups ->
        [module(name, all(deeper), level, options) | tree_groups(groups, level + 1, options)]
    end
  end

  defp drop(named), do: for({[_ | parts], entry} <- named, do: {parts, entry})
  defp all(named), do: Enum.map(named, &elem(&1, 1))

  defp module(name, entries, level, options) do
    {elements, bytes} = options.total.(entries)

    {level, Text.name(name),
     [Text.plural(length(entries), "tensor"), Text.count(elements), Text.bytes(bytes)]}
  end

  defp leaf(entry, name, level) do
    type = "#{entry.dtype}#{Text.shape(entry.shape)}"
    {level, Text.name(name), [type, Text.count(Text.elements(entry)), Text.bytes(entry.nbytes)]}
  end

  # Aligns the columns: name and type to the left, numbers to the right.
  @spec format([line()]) :: [iodata()]
  def format(lines) do
    rows =
      for {level, name, columns} <- lines do
        for text <- [[String.duplicate("  ", level), name] | columns],
            text = IO.iodata_to_binary(text),
            do: {text, width(text)}
      end

    widths = Enum.reduce(rows, [0, 0, 0, 0], &max_widths/2)

    for [name, type, elements, {bytes, _} = size] <- rows, [w1, w2, w3, w4] = widths do
      [elem(name, 0), pad(name, w1), elem(type, 0), pad(type, w2), pad(elements, w3 - 2)] ++
        [elem(elements, 0), "  ", pad(size, w4 - 2), bytes]
    end
  end

  defp max_widths(row, widths),
    do: Enum.zip_with(row, widths, fn {_, n}, width -> max(n, width) end)

  defp width(text), do: if(Text.ascii?(text), do: byte_size(text), else: String.length(text))

  # At least two spaces.
  defp pad({_, width}, to), do: :binary.copy(" ", to - width + 2)

  # Returns the entries of all parts. Storages of different shards may have the same key.
  @spec entries([ExTorch.Checkpoint.StateDict.part()]) :: [Entry.t()]
  def entries([{_ckpt, entries}]), do: entries

  def entries(parts) do
    for {{_ckpt, entries}, i} <- Enum.with_index(parts),
        entry <- entries,
        do: if(entry.storage, do: %{entry | storage: "#{i}/#{entry.storage}"}, else: entry)
  end

  # Returns lists of the names that share a storage, where there are several.
  @spec shared([Entry.t()]) :: [[String.t()]]
  def shared(entries) do
    groups = for entry <- entries, entry.storage != nil, do: entry
    groups = Enum.group_by(groups, & &1.storage, & &1)

    for {_, [_, _ | _] = several} <- Enum.sort_by(groups, fn {_, [first | _]} -> first.index end),
        do: Enum.map(several, & &1.name)
  end
end
