defmodule ExTorch.Checkpoint.Values do
  @moduledoc false
  # What a checkpoint contains besides tensors, as a flat list.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.Python.{Dict, Object, Storage, TensorSubclass}

  # Returns {name, value} of everything in the object that is neither a tensor nor a container.
  @spec list(term(), String.t() | nil) :: [{String.t(), term()}]
  def list(object, top_level_key) do
    values = object |> walk("", []) |> Enum.reverse()
    if top_level_key, do: inside(values, top_level_key <> "."), else: values
  end

  defp inside(values, prefix) do
    for {name, value} <- values,
        String.starts_with?(name, prefix),
        do: {String.replace_prefix(name, prefix, ""), value}
  end

  defp walk(%Entry{}, _name, acc), do: acc
  defp walk(%Storage{tensor: %Entry{}}, _name, acc), do: acc
  defp walk(%Dict{pairs: pairs}, name, acc), do: walk_pairs(pairs, name, acc)

  defp walk(%Object{} = object, name, acc) do
    fields = for key <- [:args, :state, :list, :dict], do: {"", Map.fetch!(object, key)}
    walk_pairs([{"class", object.class} | Enum.reject(fields, &empty?/1)], name, acc)
  end

  defp walk(%TensorSubclass{} = subclass, name, acc) do
    walk_pairs(
      [{"class", subclass.class}, {"", subclass.tensor}, {"", subclass.state}],
      name,
      acc
    )
  end

  defp walk(list, name, acc) when is_list(list), do: walk_pairs(indexed(list), name, acc)

  defp walk(tuple, name, acc) when is_tuple(tuple),
    do: tuple |> Tuple.to_list() |> indexed() |> walk_pairs(name, acc)

  defp walk(other, name, acc), do: [{name, other} | acc]

  defp empty?({_key, value}), do: value in [nil, {}, []]
  defp indexed(list), do: Enum.map(Enum.with_index(list), fn {value, i} -> {i, value} end)

  defp walk_pairs(pairs, name, acc),
    do: Enum.reduce(pairs, acc, fn {key, value}, acc -> walk(value, join(name, key), acc) end)

  defp join(name, ""), do: name
  defp join("", key), do: text(key)
  defp join(name, key), do: name <> "." <> text(key)

  defp text(key) when is_binary(key), do: key

  defp text(key) when is_integer(key),
    do: if(Entry.small_integer?(key), do: to_string(key), else: "?")

  defp text(key), do: ExTorch.Error.quoted(key)
end
