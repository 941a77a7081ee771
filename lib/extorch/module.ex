defprotocol ExTorch.Module do
  @moduledoc """
  The protocol of modules: values that contain tensors, which `ExTorch.Store` reads and replaces.

  It is implemented for maps, lists and tuples nested to any depth, for ExTorch tensors, and for Nx tensors and
  `Axon.ModelState` if these libraries are available. An Nx tensor keeps its backend, its names and its vectorized axes; a
  template becomes a tensor of the default backend. A quantized tensor of Axon (`Axon.Quantization.QTensor`) stands for the
  float32 matrix that it was made of: what is applied is quantized again, what is saved are its values. Structs derive the
  protocol:

      defmodule Net do
        @derive {ExTorch.Module, only: [:encoder, :head]}
        defstruct [:encoder, :head, :config]
      end

  Without `:only`, all fields are included. All other values (numbers, strings, structs that do not derive the protocol)
  are ignored and stay unchanged.

  The name of a tensor consists of the keys that lead to it, joined by dots: `"encoder.0.weight"`.

  ## The name of this protocol

  The protocol is named after `torch.nn.Module`. Elixir also has a `Module`. To keep both available, do not alias the
  protocol as `Module`: use its full name, or `alias ExTorch.Module, as: TorchModule`.
  """
  @fallback_to_any true

  @typedoc "The shape and dtype that a tensor of a module must have."
  @type target :: %{shape: tuple(), dtype: ExTorch.DType.dtype()}

  @doc """
  Returns the structure of a value.

      iex> ExTorch.Module.walk([1, "text"])
      {:parts, [{0, 1}, {1, "text"}]}
      iex> ExTorch.Module.walk(ExTorch.zeros({2}))
      {:tensor, %{shape: {2}, dtype: :float32}}
      iex> ExTorch.Module.walk("text")
      :other

    * `{:parts, [{key, part}]}` - the value is a container
    * `{:tensor, target}` - the value is a tensor
    * `:other` - the value is anything else
  """
  @spec walk(t()) :: {:parts, [{term(), term()}]} | {:tensor, target()} | :other
  def walk(module)

  @doc """
  Returns the container with its parts replaced. The parts are in the order of `walk/1`.

      iex> ExTorch.Module.rebuild([bias: 1, weight: 2], [10, 20])
      [bias: 10, weight: 20]
  """
  @spec rebuild(t(), [term()]) :: t()
  def rebuild(module, parts)

  @doc """
  Converts a tensor of a module to an ExTorch tensor, without a copy if possible.

      iex> ExTorch.Module.to_tensor(ExTorch.zeros({2})).shape
      {2}
  """
  @spec to_tensor(t()) :: ExTorch.Tensor.t()
  def to_tensor(leaf)

  @doc """
  Converts an ExTorch tensor to the type of the leaf, on the device or backend of the leaf.

      iex> ExTorch.Module.from_tensor(ExTorch.zeros({2}), ExTorch.tensor([1.0, 2.0])) |> ExTorch.Tensor.to_list()
      [1.0, 2.0]
  """
  @spec from_tensor(t(), ExTorch.Tensor.t()) :: t()
  def from_tensor(leaf, tensor)
end

defimpl ExTorch.Module, for: Any do
  use ExTorch.Store.Container

  defmacro __deriving__(module, struct, options) do
    known = struct |> Map.from_struct() |> Map.keys()
    fields = Keyword.fetch!(ExTorch.Options.validate!(options, only: known), :only)

    for field <- fields, field not in known do
      raise ArgumentError, "#{inspect(module)} has no field #{inspect(field)}"
    end

    quote do
      defimpl ExTorch.Module, for: unquote(module) do
        use ExTorch.Store.Container

        def walk(struct),
          do: {:parts, Enum.map(unquote(fields), &{&1, Map.fetch!(struct, &1)})}

        def rebuild(struct, parts), do: struct!(struct, Enum.zip(unquote(fields), parts))
      end
    end
  end

  def walk(_other), do: :other
  def rebuild(other, _parts), do: other
end

defimpl ExTorch.Module, for: Map do
  use ExTorch.Store.Container

  def walk(map), do: {:parts, Map.to_list(map)}
  def rebuild(map, parts), do: map |> Map.keys() |> :lists.zip(parts) |> :maps.from_list()
end

defimpl ExTorch.Module, for: List do
  use ExTorch.Store.Container

  # The parts of a keyword list are named by its keys, those of other lists by their position.
  def walk(list) do
    cond do
      List.improper?(list) -> :other
      list != [] and Keyword.keyword?(list) -> {:parts, list}
      true -> {:parts, list |> Enum.with_index() |> Enum.map(fn {part, i} -> {i, part} end)}
    end
  end

  def rebuild(list, parts) do
    if list != [] and Keyword.keyword?(list),
      do: list |> Keyword.keys() |> Enum.zip(parts),
      else: parts
  end
end

defimpl ExTorch.Module, for: Tuple do
  use ExTorch.Store.Container

  def walk(tuple), do: tuple |> Tuple.to_list() |> indexed()
  def rebuild(_tuple, parts), do: List.to_tuple(parts)

  defp indexed(list),
    do: {:parts, list |> Enum.with_index() |> Enum.map(fn {part, i} -> {i, part} end)}
end

defimpl ExTorch.Module, for: ExTorch.Python.Dict do
  use ExTorch.Store.Container

  def walk(dict), do: {:parts, dict.pairs}

  def rebuild(dict, parts),
    do: %{dict | pairs: dict.pairs |> Enum.map(&elem(&1, 0)) |> Enum.zip(parts)}
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
    # Vectorized axes are leading dimensions.
    def walk(tensor) do
      shape = Keyword.values(tensor.vectorized_axes) ++ Tuple.to_list(tensor.shape)
      {:tensor, %{shape: List.to_tuple(shape), dtype: dtype(tensor.type)}}
    end

    # LibTorch has no types of less than eight bits. No tensor of a file has such a type: this is an error of this tensor.
    defp dtype(type) do
      case ExTorch.DType.normalize(type) do
        {:ok, dtype} -> dtype
        {:error, _} -> type
      end
    end

    def rebuild(tensor, _parts), do: tensor
    def to_tensor(tensor), do: ExTorch.Nx.from_nx(tensor)
    def from_tensor(target, tensor), do: ExTorch.Nx.convert_like(tensor, target)
  end
end

if Code.ensure_loaded?(Nx) do
  defimpl ExTorch.Module, for: ExTorch.Nx.LazyTensor do
    def walk(%{entry: entry}), do: {:tensor, %{shape: entry.shape, dtype: entry.dtype}}
    def rebuild(lazy, _parts), do: lazy
    def to_tensor(lazy), do: ExTorch.Nx.LazyTensor.read!(lazy)
    def from_tensor(_lazy, tensor), do: ExTorch.Nx.to_nx(tensor)
  end
end

if Code.ensure_loaded?(Axon.ModelState) do
  defimpl ExTorch.Module, for: Axon.ModelState do
    use ExTorch.Store.Container

    def walk(state), do: {:parts, Map.to_list(state.data)}

    def rebuild(state, parts),
      do: %{state | data: state.data |> Map.keys() |> Enum.zip(parts) |> Map.new()}
  end
end

if Code.ensure_loaded?(Axon.Quantization.QTensor) do
  # Stands for the matrix that was quantized. A symmetric quantization of each column: the zero points are zero.
  defimpl ExTorch.Module, for: Axon.Quantization.QTensor do
    def walk(quantized), do: {:tensor, %{shape: quantized.value.shape, dtype: :float32}}
    def rebuild(quantized, _parts), do: quantized

    def to_tensor(quantized) do
      value = Nx.as_type(quantized.value, quantized.scale.type)
      value |> Nx.multiply(quantized.scale) |> Nx.as_type(:f32) |> ExTorch.Nx.from_nx()
    end

    def from_tensor(quantized, tensor) do
      tensor
      |> ExTorch.Nx.convert_like(quantized.value)
      |> Axon.Quantization.QTensor.from_tensor()
    end
  end
end
