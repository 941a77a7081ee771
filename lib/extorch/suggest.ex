defmodule ExTorch.Suggest do
  @moduledoc false
  # Finds similar names, for "did you mean". The names come from files: there may be many, and they may be long. So all
  # of them are only compared by their common beginning and end, which takes linear time. The slow comparison is done
  # for the best of them.

  @max_names 100_000
  @max_bytes 200
  @candidates 5..50
  # The slow comparison takes quadratic time.
  @work 200_000

  @doc "Returns up to `count` names whose similarity (0.0 to 1.0) exceeds `threshold`, the most similar one first."
  @spec similar(Enumerable.t(), String.t(), float(), pos_integer()) :: [String.t()]
  def similar(_names, name, _threshold, _count) when byte_size(name) >= @max_bytes, do: []

  def similar(names, name, threshold, count) do
    names
    |> Stream.take(@max_names)
    |> Stream.filter(&(byte_size(&1) < @max_bytes))
    |> Enum.map(&{common_bytes(&1, name), &1})
    |> Enum.sort(:desc)
    |> Enum.take(candidates(byte_size(name)))
    |> Enum.map(fn {_bytes, key} -> {String.jaro_distance(key, name), key} end)
    |> Enum.filter(fn {score, _key} -> score > threshold end)
    |> Enum.sort(:desc)
    |> Enum.take(count)
    |> Enum.map(fn {_score, key} -> key end)
  end

  @doc "Returns the end of a message, or nil if no name is similar."
  @spec hint(Enumerable.t(), String.t(), float(), pos_integer()) :: String.t() | nil
  def hint(names, name, threshold, count) do
    case similar(names, name, threshold, count) do
      [] -> nil
      names -> "; did you mean #{Enum.map_join(names, ", ", &ExTorch.Error.quoted/1)}?"
    end
  end

  defp candidates(bytes) do
    least..most//_ = @candidates
    div(@work, bytes * bytes + 1) |> max(least) |> min(most)
  end

  # Relative to the longer name: otherwise long names would come first.
  defp common_bytes(a, b) do
    common = :binary.longest_common_prefix([a, b]) + :binary.longest_common_suffix([a, b])
    common / max(1, max(byte_size(a), byte_size(b)))
  end
end
