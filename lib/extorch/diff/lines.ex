defmodule ExTorch.Diff.Lines do
  @moduledoc false
  # A diff as lines of text. The largest differences come last, and then a summary.

  alias ExTorch.Diff.Change
  alias ExTorch.Text

  # At most `max` lines of each kind of difference.
  @spec lines(ExTorch.Diff.t(), pos_integer() | :infinity) :: [String.t()]
  def lines(diff, max) do
    names("only in a", diff.only_a, max) ++
      names("only in b", diff.only_b, max) ++
      values(diff.values, max) ++ changes(diff.changed, max) ++ [summary(diff)]
  end

  defp names(_title, [], _max), do: []
  defp names(title, names, max), do: ["#{title}:" | first(names, max, &"  #{Text.name(&1)}")]

  defp values([], _max), do: []

  defp values(values, max) do
    describe = fn value ->
      "  #{Text.name(value.name)}: #{side(value, :a)} → #{side(value, :b)}"
    end

    ["values:" | first(values, max, describe)]
  end

  defp side(value, key) do
    case value do
      %{^key => term} -> Text.value(term)
      _ -> "none"
    end
  end

  defp changes([], _max), do: []

  defp changes(changed, max) do
    describe = &"  #{Text.name(&1.name)}: #{Change.describe(&1)}"
    ["changed:" | changed |> Enum.sort_by(&weight/1) |> last(max, describe)]
  end

  defp weight(%{what: [:shape | _]}), do: {2, 0}
  defp weight(%{max: :infinity}), do: {1, 0}
  defp weight(%{max: max}), do: {0, max || 0}

  defp first(list, max, fun) do
    {shown, more} = split(list, max)
    Enum.map(shown, fun) ++ more
  end

  defp last(list, max, fun) do
    {shown, more} = list |> Enum.reverse() |> split(max)
    more ++ Enum.reverse(Enum.map(shown, fun))
  end

  defp split(list, :infinity), do: {list, []}

  defp split(list, max) do
    case Enum.split(list, max) do
      {shown, []} -> {shown, []}
      {shown, rest} -> {shown, ["  … #{length(rest)} more"]}
    end
  end

  defp summary(diff) do
    counts =
      for {key, word} <- [
            equal: "equal",
            changed: "changed",
            only_a: "only in a",
            only_b: "only in b",
            values: "other values differ"
          ],
          count = length(Map.fetch!(diff, key)),
          count > 0 or key == :equal,
          do: "#{count} #{word}"

    Enum.join(counts, ", ")
  end
end
