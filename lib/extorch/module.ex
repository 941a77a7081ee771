defprotocol ExTorch.Module do
  @moduledoc """
  How a store walks a module and puts tensors back: maps, lists and tuples nested to any depth, ExTorch tensors, and, where
  they are loaded, Nx tensors and `Axon.ModelState`. A struct takes part by deriving:

      defmodule Net do
        @derive {ExTorch.Module, only: [:encoder, :head]}
        defstruct [:encoder, :head, :config]
      end

  Without `:only` every field takes part. Everything else (numbers, strings, structs that do not derive) is left as it is.

  Names are the keys on the way to a tensor, joined by dots: `"encoder.0.weight"`.
  """
  @fallback_to_any true

  @typedoc "What a tensor of a module has to be."
  @type target :: %{shape: tuple(), dtype: ExTorch.DType.dtype()}

  @doc "`{:parts, [{key, part}]}` of a container, `{:tensor, target}` of a tensor, `:other` of anything else."
  @spec walk(t()) :: {:parts, [{term(), term()}]} | {:tensor, target()} | :other
  def walk(module)

  @doc "The container with other parts, which come in the order of `walk/1`."
  @spec rebuild(t(), [term()]) :: t()
  def rebuild(module, parts)

  @doc "A tensor of a module as an ExTorch tensor, sharing its memory where that is possible."
  @spec to_tensor(t()) :: ExTorch.Tensor.t()
  def to_tensor(leaf)

  @doc "An ExTorch tensor as a tensor of the leaf's own kind, on its device or backend."
  @spec from_tensor(t(), ExTorch.Tensor.t()) :: t()
  def from_tensor(leaf, tensor)
end

defimpl ExTorch.Module, for: Any do
  defmacro __deriving__(module, struct, options) do
    known = struct |> Map.from_struct() |> Map.keys()
    fields = Keyword.get(options, :only, known)

    for field <- fields, field not in known do
      raise ArgumentError, "#{inspect(module)} has no field #{inspect(field)}"
    end

    quote do
      defimpl ExTorch.Module, for: unquote(module) do
        def walk(struct),
          do: {:parts, Enum.map(unquote(fields), &{&1, Map.fetch!(struct, &1)})}

        def rebuild(struct, parts), do: struct!(struct, Enum.zip(unquote(fields), parts))
        def to_tensor(struct), do: ExTorch.Module.Any.to_tensor(struct)
        def from_tensor(struct, _tensor), do: ExTorch.Module.Any.to_tensor(struct)
      end
    end
  end

  def walk(_other), do: :other
  def rebuild(other, _parts), do: other

  def to_tensor(other) do
    raise ExTorch.Error.new(:bad_argument, "this is no tensor: #{inspect(other, limit: 3)}")
  end

  def from_tensor(other, _tensor), do: to_tensor(other)
end

defimpl ExTorch.Module, for: Map do
  def walk(map), do: {:parts, Map.to_list(map)}
  def rebuild(map, parts), do: map |> Map.keys() |> Enum.zip(parts) |> Map.new()
  defdelegate to_tensor(map), to: ExTorch.Module.Any
  defdelegate from_tensor(map, tensor), to: ExTorch.Module.Any
end

defimpl ExTorch.Module, for: List do
  # a keyword list has names, any other list positions
  def walk(list) do
    if list != [] and Keyword.keyword?(list),
      do: {:parts, list},
      else: {:parts, list |> Enum.with_index() |> Enum.map(fn {part, i} -> {i, part} end)}
  end

  def rebuild(list, parts) do
    if list != [] and Keyword.keyword?(list),
      do: list |> Keyword.keys() |> Enum.zip(parts),
      else: parts
  end

  defdelegate to_tensor(list), to: ExTorch.Module.Any
  defdelegate from_tensor(list, tensor), to: ExTorch.Module.Any
end

defimpl ExTorch.Module, for: Tuple do
  def walk(tuple), do: tuple |> Tuple.to_list() |> indexed()
  def rebuild(_tuple, parts), do: List.to_tuple(parts)
  defdelegate to_tensor(tuple), to: ExTorch.Module.Any
  defdelegate from_tensor(tuple, tensor), to: ExTorch.Module.Any

  defp indexed(list),
    do: {:parts, list |> Enum.with_index() |> Enum.map(fn {part, i} -> {i, part} end)}
end

defimpl ExTorch.Module, for: ExTorch.Python.Dict do
  def walk(dict), do: {:parts, dict.pairs}

  def rebuild(dict, parts),
    do: %{dict | pairs: dict.pairs |> Enum.map(&elem(&1, 0)) |> Enum.zip(parts)}

  defdelegate to_tensor(dict), to: ExTorch.Module.Any
  defdelegate from_tensor(dict, tensor), to: ExTorch.Module.Any
end

defimpl ExTorch.Module, for: ExTorch.Tensor do
  def walk(tensor), do: {:tensor, %{shape: tensor.shape, dtype: tensor.dtype}}
  def rebuild(tensor, _parts), do: tensor
  def to_tensor(tensor), do: tensor

  def from_tensor(%{device: device}, %{device: device} = tensor), do: tensor
  def from_tensor(target, tensor), do: ExTorch.Tensor.to(tensor, device: target.device)
end

if Code.ensure_loaded?(Nx) do
  defimpl ExTorch.Module, for: Nx.Tensor do
    def walk(tensor),
      do: {:tensor, %{shape: tensor.shape, dtype: ExTorch.DType.normalize!(tensor.type)}}

    def rebuild(tensor, _parts), do: tensor
    def to_tensor(tensor), do: ExTorch.Nx.from_nx(tensor)

    def from_tensor(%{data: %backend{}, names: names}, tensor) do
      %{ExTorch.Nx.to_nx(tensor, backend: backend) | names: names}
    end
  end
end

if Code.ensure_loaded?(Axon.ModelState) do
  defimpl ExTorch.Module, for: Axon.ModelState do
    def walk(state), do: {:parts, Map.to_list(state.data)}

    def rebuild(state, parts),
      do: %{state | data: state.data |> Map.keys() |> Enum.zip(parts) |> Map.new()}

    defdelegate to_tensor(state), to: ExTorch.Module.Any
    defdelegate from_tensor(state, tensor), to: ExTorch.Module.Any
  end
end
