defmodule ExTorch.Tensor.Pieces do
  @moduledoc false
  # The values of tensors of any size, a piece at a time, so that memory stays bounded.

  alias ExTorch.{DType, Error, Tensor}

  # Elements per piece. A piece needs a few temporary tensors of 8 or 16 bytes per element.
  @piece 512 * 1024

  # Returns a tensor whose values LibTorch can compute with.
  @spec plain(Tensor.t()) :: Tensor.t()
  def plain(%{device: :meta}),
    do: raise(Error.new(:bad_argument, "meta tensors have no values"))

  def plain(tensor) do
    cond do
      DType.kind(tensor.dtype) == :quant -> ExTorch.op("dequantize", [tensor])
      Tensor.strides(tensor) == nil -> ExTorch.op("to_dense", [tensor])
      true -> tensor
    end
  end

  # Returns the values as float64 or complex128.
  @spec wide(Tensor.t()) :: Tensor.t()
  def wide(%{dtype: dtype} = tensor) do
    target = if DType.kind(dtype) == :complex, do: :complex128, else: :float64
    Tensor.to(tensor, dtype: target)
  end

  # Returns pieces of one or two tensors, which have the same shape, as vectors on the CPU.
  @spec stream(Tensor.t() | {Tensor.t(), Tensor.t()}) :: Enumerable.t()
  def stream({a, b}) do
    Stream.map(pieces([a, b]), fn [x, y] -> {vector(x), vector(y)} end)
  end

  def stream(tensor), do: Stream.map(pieces([tensor]), fn [x] -> vector(x) end)

  defp vector(%{device: :cpu} = piece), do: Tensor.reshape(piece, {-1})
  defp vector(piece), do: piece |> Tensor.to(device: :cpu) |> vector()

  defp pieces([%{shape: shape} = first | _] = tensors) do
    numel = Tensor.numel(first)

    cond do
      numel == 0 -> []
      numel <= @piece -> [tensors]
      true -> rows(tensors, elem(shape, 0), div(numel, elem(shape, 0)))
    end
  end

  # Slices are views: only the values of a piece are copied, if at all.
  defp rows(tensors, count, size) when size > @piece do
    Stream.flat_map(0..(count - 1), fn i ->
      tensors |> Enum.map(&Tensor.slice(&1, [i])) |> pieces()
    end)
  end

  defp rows(tensors, count, size) do
    step = div(@piece, size)

    Stream.map(0..div(count - 1, step), fn i ->
      range = (i * step)..(min((i + 1) * step, count) - 1)
      Enum.map(tensors, &Tensor.slice(&1, 0, range))
    end)
  end
end
