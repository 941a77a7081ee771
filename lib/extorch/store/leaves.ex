defmodule ExTorch.Store.Leaves do
  @moduledoc false
  # Lists the tensors of a module by name, and replaces them.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Tensor}

  @type leaf :: {name :: String.t(), leaf :: term(), target :: ExTorch.Module.target()}

  # Returns the tensors in the order of the module.
  @spec list(term()) :: [leaf()]
  def list(module), do: module |> walk("", []) |> Enum.reverse()

  # Returns the tensors by name.
  @spec by_name([leaf()]) :: {:ok, %{String.t() => leaf()}} | {:error, Error.t()}
  def by_name(leaves) do
    by_name = Map.new(leaves, &{elem(&1, 0), &1})

    if map_size(by_name) == length(leaves) do
      {:ok, by_name}
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

  # Returns an entry for a tensor of the module.
  @spec entry(String.t(), ExTorch.Module.target() | %{shape: nil, dtype: nil}) :: Entry.t()
  def entry(name, target) do
    struct(Entry,
      name: name,
      path: [name],
      shape: target.shape,
      dtype: target.dtype,
      kind: :tensor
    )
  end

  # Returns the module with these values in place of its tensors, in the order of list/1.
  @spec replace(term(), [term()]) :: term()
  def replace(module, values) do
    {module, []} = take(module, values)
    module
  end

  defp take(%Tensor{}, [value | values]), do: {value, values}

  defp take(module, values) do
    case ExTorch.Module.walk(module) do
      {:parts, parts} ->
        {parts, values} = take_parts(parts, values, [])
        {ExTorch.Module.rebuild(module, parts), values}

      {:tensor, _target} ->
        {hd(values), tl(values)}

      :other ->
        {module, values}
    end
  end

  defp take_parts([{_key, %Tensor{}} | parts], [value | values], taken),
    do: take_parts(parts, values, [value | taken])

  defp take_parts([{_key, part} | parts], values, taken) do
    {part, values} = take(part, values)
    take_parts(parts, values, [part | taken])
  end

  defp take_parts([], values, taken), do: {Enum.reverse(taken), values}
end
