defmodule ExTorch.Store.Leaves do
  @moduledoc false
  # Lists the tensors of a module by name, and replaces them.

  alias ExTorch.Error

  @type leaf :: {name :: String.t(), leaf :: term(), target :: ExTorch.Module.target()}

  # Returns the tensors in the order of the module.
  @spec list(term()) :: {:ok, [leaf()]} | {:error, Error.t()}
  def list(module) do
    leaves = module |> walk("") |> List.flatten()
    names = Enum.map(leaves, &elem(&1, 0))

    case names -- Enum.uniq(names) do
      [] ->
        {:ok, leaves}

      [name | _] ->
        {:error, Error.new(:ambiguous, "the module has several tensors named #{inspect(name)}")}
    end
  end

  defp walk(module, name) do
    case ExTorch.Module.walk(module) do
      {:parts, parts} -> for {key, part} <- parts, do: walk(part, join(name, key))
      {:tensor, target} -> [{name, module, target}]
      :other -> []
    end
  end

  defp join("", key), do: key_to_string(key)
  defp join(name, key), do: name <> "." <> key_to_string(key)

  defp key_to_string(key) when is_binary(key) or is_atom(key) or is_number(key),
    do: to_string(key)

  defp key_to_string(key), do: inspect(key)

  # Returns the module with the leaves in the map, by name, in place of its own.
  @spec replace(term(), %{String.t() => term()}) :: term()
  def replace(module, new) when map_size(new) == 0, do: module
  def replace(module, new), do: replace(module, new, "")

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
