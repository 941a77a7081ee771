defmodule ExTorch.Test.Terms do
  @moduledoc false
  # Terms that hold tensors, as terms that can be compared with ==.
  alias ExTorch.{DType, Tensor}
  alias ExTorch.Python.RawTensor

  @doc """
  The term with every tensor replaced by its dtype, shape, strides, requires_grad and bytes.

  `strides: false` leaves out the strides, for tensors that were saved compactly.
  """
  def plain(term, opts \\ [])

  def plain(%Tensor{} = tensor, opts) do
    strides = if Keyword.get(opts, :strides, true), do: Tensor.strides(tensor)
    {:tensor, tensor.dtype, tensor.shape, strides, Tensor.requires_grad(tensor), bytes(tensor)}
  end

  def plain(%MapSet{} = set, _opts), do: set
  def plain(%module{} = struct, opts), do: {module, struct |> Map.from_struct() |> plain(opts)}

  def plain(map, opts) when is_map(map),
    do: Map.new(map, fn {key, value} -> {plain(key, opts), plain(value, opts)} end)

  def plain(list, opts) when is_list(list), do: Enum.map(list, &plain(&1, opts))

  def plain(tuple, opts) when is_tuple(tuple),
    do: tuple |> Tuple.to_list() |> plain(opts) |> List.to_tuple()

  def plain(other, _opts), do: other

  @doc "The elements of a tensor in row-major order. Those of a quantized tensor are its integers."
  def bytes(%Tensor{device: :meta}), do: :meta

  def bytes(%Tensor{dtype: dtype} = tensor) when dtype in [:qint8, :quint8, :qint32],
    do: bytes(ExTorch.op("int_repr", [tensor]))

  def bytes(%Tensor{} = tensor) do
    dense = if Tensor.strides(tensor), do: tensor, else: ExTorch.op("to_dense", [tensor])
    Tensor.to_binary(dense)
  end

  def bytes(%RawTensor{shape: shape, strides: strides, data: data, dtype: dtype}) do
    size = DType.size(dtype)

    Enum.zip(Tuple.to_list(shape), Tuple.to_list(strides))
    |> Enum.reduce([0], fn {n, stride}, offsets ->
      for at <- offsets, i <- Enum.take(0..n, n), do: at + i * stride
    end)
    |> Enum.map_join(&binary_part(data, &1 * size, size))
  end

  @doc "A small training state: two tensors and plain values."
  def state do
    %{
      "w" => ExTorch.rand({300, 70}),
      "b" => ExTorch.tensor([1, 2, 3]),
      "step" => 7,
      "name" => "ü"
    }
  end
end
