defmodule ExTorch.Store.Leaves do
  @moduledoc false
  # Lists the tensors of a module by name, and replaces them.

  alias ExTorch.{Error, Tensor}

  @type leaf :: {name :: String.t(), leaf :: term(), target :: ExTorch.Module.target()}

  # Returns the tensors in the order of the module.
  @spec list(term()) :: {:ok, [leaf()]} | {:error, Error.t()}
  def list(module) do
    leaves = module |> walk("", []) |> Enum.reverse()
    by_name = Map.new(leaves, &{elem(&1, 0), true})

    if map_size(by_name) == length(leaves) do
      {:ok, leaves}
    else
      names = Enum.map(leaves, &elem(&1, 0))
      [name | _] = names -- Map.keys(by_name)

      {:error,
       Error.new(:ambiguous, "the module has several tensors named #{Error.quoted(name)}")}
    end
  end

  # The most common leaf does not need the dispatch of the protocol.
  defp walk(%Tensor{} = tensor, name, leaves),
    do: [{name, tensor, %{shape: tensor.shape, dtype: tensor.dtype}} | leaves]

  defp walk(module, name, leaves) do
    case ExTorch.Module.walk(module) do
      {:parts, parts} ->
        Enum.reduce(parts, leaves, fn {key, part}, leaves ->
          walk(part, join(name, key), leaves)
        end)

      {:tensor, target} ->
        [{name, module, target} | leaves]

      :other ->
        leaves
    end
  end

  defp join("", key) when is_binary(key), do: key
  defp join("", key), do: key_to_string(key)
  defp join(name, key), do: name <> "." <> key_to_string(key)

  defp key_to_string(key) when is_binary(key) or is_atom(key) or is_number(key),
    do: to_string(key)

  defp key_to_string(key), do: inspect(key)

  # Returns the module with the leaves in the map, by name, in place of its own.
  @spec replace(term(), %{String.t() => term()}) :: term()
  def replace(module, new) when map_size(new) == 0, do: module
  def replace(module, new), do: replace(module, new, "")

  defp replace(%Tensor{} = tensor, new, name), do: Map.get(new, name, tensor)

  defp replace(module, new, name) do
    case ExTorch.Module.walk(module) do
      {:parts, parts} ->
        ExTorch.Module.rebuild(
          module,
          for({key, part} <- parts, do: replace(part, new, join(name, key)))
        )

      {:tensor, _target} ->
        Map.get(new, name, module)

      :other ->
        module
    end
  end
end
