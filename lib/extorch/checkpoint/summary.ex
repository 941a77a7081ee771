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
    entries
    |> Enum.map(&{String.split(&1.name, "."), &1})
    |> tree(0, options)
  end

  defp sort(entries, :file), do: entries
  defp sort(entries, :name), do: Enum.sort_by(entries, & &1.name)
  defp sort(entries, :size), do: Enum.sort_by(entries, &{-&1.nbytes, &1.index})

  # `named` contains {parts of the name below this level, entry}.
  defp tree(named, level, options) do
    named
    |> group()
    |> sort_groups(options.sort)
    |> Enum.flat_map(fn
      {name, [{[_], entry}]} -> [leaf(entry, name, level)]
      {name, inside} -> branch(name, inside, level, options)
    end)
  end

  # Groups by the first part, in the order in which the parts come first.
  defp group(named) do
    groups = Enum.group_by(named, fn {[part | _], _} -> part end)

    for part <- Enum.uniq(Enum.map(named, fn {[part | _], _} -> part end)),
        do: {part, groups[part]}
  end

  defp sort_groups(groups, :file), do: groups
  defp sort_groups(groups, :name), do: Enum.sort_by(groups, &elem(&1, 0))

  defp sort_groups(groups, :size) do
    Enum.sort_by(groups, fn {_, inside} -> -elem(Text.total(entries(inside)), 1) end)
  end

  defp branch(name, inside, level, options) do
    {leaves, deeper} = Enum.split_with(inside, &match?({[_], _}, &1))
    all = entries(inside)

    cond do
      # A module with one child is on one line with it.
      leaves == [] and match?([_], group(drop(inside))) ->
        [{child, rest}] = group(drop(inside))
        joined = for {[_ | parts], entry} <- rest, do: {[name <> "." <> child | parts], entry}
        tree(joined, level, options)

      options.depth != nil and level + 1 >= options.depth ->
        [module(name, all, level)]

      true ->
        own = for {_, entry} <- leaves, do: leaf(entry, name, level)
        own ++ inside(name, deeper, level, options)
    end
  end

  defp inside(_name, [], _level, _options), do: []

  defp inside(name, deeper, level, options),
    do: [module(name, entries(deeper), level) | tree(drop(deeper), level + 1, options)]

  defp drop(named), do: for({[_ | parts], entry} <- named, do: {parts, entry})
  defp entries(named), do: Enum.map(named, &elem(&1, 1))

  defp module(name, entries, level) do
    {elements, bytes} = Text.total(entries)

    {level, Text.name(name),
     [Text.plural(length(entries), "tensor"), Text.count(elements), Text.bytes(bytes)]}
  end

  defp leaf(entry, name, level) do
    type = "#{entry.dtype}#{Text.shape(entry.shape)}"
    {level, Text.name(name), [type, Text.count(Text.elements(entry)), Text.bytes(entry.nbytes)]}
  end

  # Aligns the columns.
  @spec format([line()]) :: [iodata()]
  def format(lines) do
    rows =
      for {level, name, columns} <- lines, do: [String.duplicate("  ", level) <> name | columns]

    widths = rows |> Enum.reduce([0, 0, 0, 0], &max_widths/2)

    for row <- rows do
      [name, type | numbers] = Enum.zip(row, widths)
      left = for {text, width} <- [name, type], do: [String.pad_trailing(text, width), "  "]
      right = for {text, width} <- numbers, do: [String.pad_leading(text, width), "  "]
      String.trim_trailing(IO.iodata_to_binary([left, right]))
    end
  end

  defp max_widths(row, widths) do
    for {text, width} <- Enum.zip(row, widths), do: max(String.length(text), width)
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
