defmodule ExTorch.Tensor.Sample do
  @moduledoc false
  # A part of a large tensor that represents its values: rows at equal distances. It is a view, so that only the pages of
  # a mapped file that it covers are read.

  alias ExTorch.Tensor

  # Neighbours that are taken together.
  @row 1024

  # Returns the tensor, or a view of about `limit` of its elements.
  @spec view(Tensor.t(), pos_integer()) :: Tensor.t()
  def view(tensor, limit) do
    numel = Tensor.numel(tensor)

    cond do
      numel <= limit -> tensor
      contiguous?(tensor) -> tensor |> rows(numel) |> step(0, factor(numel, limit))
      true -> every_dimension(tensor, limit)
    end
  end

  # Whether a dimension is where the elements of the next ones end.
  defp contiguous?(tensor) do
    sizes = Tuple.to_list(tensor.shape)
    strides = tensor |> Tensor.strides() |> Tuple.to_list()

    {contiguous?, _} =
      sizes
      |> Enum.zip(strides)
      |> List.foldr({true, 1}, fn {size, stride}, {so_far, expected} ->
        {so_far and (size == 1 or stride == expected), expected * size}
      end)

    contiguous?
  end

  defp rows(tensor, numel) do
    whole = div(numel, @row) * @row
    flat = Tensor.reshape(tensor, {-1})
    Tensor.reshape(ExTorch.op("aten::narrow", [flat, 0, 0, whole]), {-1, @row})
  end

  # The first dimensions become smaller, then the next ones.
  defp every_dimension(tensor, limit) do
    Enum.reduce(0..(tuple_size(tensor.shape) - 1)//1, tensor, fn dim, view ->
      step(view, dim, factor(Tensor.numel(view), limit))
    end)
  end

  defp factor(numel, limit), do: div(numel + limit - 1, limit)

  defp step(view, _dim, 1), do: view

  defp step(view, dim, factor) do
    size = elem(view.shape, dim)
    ExTorch.op("aten::slice.Tensor", [view, dim, 0, size, min(factor, max(size, 1))])
  end
end
