defmodule ExTorch.Store.Leaves do
  @moduledoc false
  # The tensors of a module by their names, and the module with others in their place.

  alias ExTorch.{Error, Module}

  # {:ok, [{name, leaf, target}]} in the module's own order
  def list(module) do
    leaves = module |> walk("") |> List.flatten()
    names = Enum.map(leaves, &elem(&1, 0))

    case names -- Enum.uniq(names) do
      [] ->
        {:ok, leaves}

      [name | _] ->
        {:error, Error.new(:ambiguous, "the module has two tensors named #{inspect(name)}")}
    end
  end

  defp walk(module, name) do
    case Module.walk(module) do
      {:parts, parts} -> for {key, part} <- parts, do: walk(part, join(name, key))
      {:tensor, target} -> [{name, module, target}]
      :other -> []
    end
  end

  defp join("", key), do: text(key)
  defp join(name, key), do: name <> "." <> text(key)

  defp text(key) when is_binary(key) or is_atom(key) or is_number(key), do: to_string(key)
  defp text(key), do: inspect(key)

  def replace(module, new) when map_size(new) == 0, do: module
  def replace(module, new), do: replace(module, new, "")

  defp replace(module, new, name) do
    case Module.walk(module) do
      {:parts, parts} ->
        Module.rebuild(module, for({key, part} <- parts, do: replace(part, new, join(name, key))))

      {:tensor, _target} ->
        Map.get(new, name, module)

      :other ->
        module
    end
  end
end
