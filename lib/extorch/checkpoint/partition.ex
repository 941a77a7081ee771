defmodule ExTorch.Checkpoint.Partition do
  @moduledoc false
  # Divides the tensors of a checkpoint into parts of about the same size.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.Options

  @type by :: :bytes | :layer | (Entry.t() -> term())

  # Tensors that share a storage stay together.
  @spec partition([Entry.t()], pos_integer(), by()) :: [[String.t()]]
  def partition(entries, n, by) do
    groups = entries |> groups(by) |> Enum.map(&{bytes(&1), &1})

    case by do
      :bytes -> balance(groups, n)
      _ -> divide(groups, n)
    end
    |> Enum.map(fn part -> part |> Enum.sort_by(& &1.index) |> Enum.map(& &1.name) end)
  end

  # The groups in file order.
  defp groups(entries, by) do
    key = key(by)
    keys = entries |> Enum.map(key) |> Enum.uniq()
    grouped = Enum.group_by(entries, key)
    Enum.map(keys, &Map.fetch!(grouped, &1))
  end

  defp key(:bytes), do: &(&1.storage || {:name, &1.name})
  defp key(:layer), do: fn entry -> layer(entry.path, []) end
  defp key(fun) when is_function(fun, 1), do: fun
  defp key(other), do: Options.invalid!(:by, ":bytes, :layer or a function of an entry", other)

  # The path up to the first number: ["model", "layers", 3]. Tensors without a number are a layer of their own.
  defp layer([part | rest], path) do
    if number?(part),
      do: Enum.reverse([part | path]),
      else: layer(rest, [part | path])
  end

  defp layer([], path), do: Enum.reverse(path)

  defp number?(part) when is_integer(part), do: true

  defp number?(part) when is_binary(part) do
    part |> String.split(".") |> Enum.any?(&(&1 =~ ~r/\A\d+\z/))
  end

  defp number?(_other), do: false

  defp bytes(entries) do
    entries
    |> Enum.uniq_by(&(&1.storage || {:name, &1.name}))
    |> Enum.map(& &1.nbytes)
    |> Enum.sum()
  end

  # The largest group goes to the smallest part.
  defp balance(groups, n) do
    parts = for i <- 0..(n - 1), do: {0, i, []}

    groups
    |> Enum.sort_by(fn {bytes, [entry | _]} -> {-bytes, entry.index} end)
    |> Enum.reduce(:gb_sets.from_list(parts), fn {bytes, group}, parts ->
      {{total, i, members}, parts} = :gb_sets.take_smallest(parts)
      :gb_sets.add({total + bytes, i, group ++ members}, parts)
    end)
    |> :gb_sets.to_list()
    |> Enum.sort_by(fn {_, i, _} -> i end)
    |> Enum.map(fn {_, _, members} -> members end)
  end

  # Neighboring groups stay neighbors: each part ends where its share of the bytes ends.
  defp divide(groups, n) do
    total = max(Enum.sum(for {bytes, _} <- groups, do: bytes), 1)

    {placed, _} =
      Enum.map_reduce(groups, 0, fn {bytes, group}, before ->
        {{min(div((before + div(bytes, 2)) * n, total), n - 1), group}, before + bytes}
      end)

    by_part = Enum.group_by(placed, &elem(&1, 0), &elem(&1, 1))
    for i <- 0..(n - 1), do: by_part |> Map.get(i, []) |> Enum.concat()
  end
end
