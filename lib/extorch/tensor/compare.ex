defmodule ExTorch.Tensor.Compare do
  @moduledoc false
  # Compares the values of two tensors of the same shape, a piece at a time, so that memory stays bounded.

  alias ExTorch.{DType, Options, Tensor}
  alias ExTorch.Tensor.Pieces

  @type stats :: %{
          numel: non_neg_integer(),
          differing: non_neg_integer(),
          beyond: non_neg_integer(),
          nan: non_neg_integer(),
          max: float() | :infinity,
          mean: float() | :infinity
        }
  @type options :: %{
          :rtol => number(),
          :atol => number(),
          :equal_nan => boolean(),
          optional(atom()) => term()
        }

  # Checks the options that tolerances have in common.
  @spec check!(map()) :: :ok
  def check!(options) do
    for key <- [:rtol, :atol],
        value = options[key],
        not (is_number(value) and value >= 0),
        do: Options.invalid!(key, "a number from 0 on", value)

    Options.booleans!(options, [:equal_nan])
  end

  # Returns true if all elements are close.
  @spec close?(Tensor.t(), Tensor.t(), options()) :: boolean()
  def close?(%{shape: shape} = a, %{shape: shape} = b, options) do
    Tensor.equal?(a, b) or
      reduce(plain(a), plain(b), true, fn x, y, true ->
        if piece(x, y, options).beyond == 0, do: {:cont, true}, else: {:halt, false}
      end)
  end

  def close?(_a, _b, _options), do: false

  # Returns how the values differ:
  #
  #   differing - elements that are not equal
  #   beyond    - elements that are not close
  #   nan       - elements that are NaN on one side only, which max and mean leave out
  #   max, mean - of the absolute difference of all elements
  @spec stats(Tensor.t(), Tensor.t(), options()) :: stats()
  def stats(%{shape: shape} = a, %{shape: shape} = b, options) do
    zero = %{differing: 0, beyond: 0, nan: 0, max: 0.0, sum: 0.0}
    numel = Tensor.numel(a)

    total =
      if Tensor.equal?(a, b) do
        zero
      else
        reduce(plain(a), plain(b), zero, fn x, y, total ->
          {:cont, Map.merge(total, piece(x, y, options), &add/3)}
        end)
      end

    {sum, total} = Map.pop!(total, :sum)
    Map.merge(total, %{numel: numel, mean: mean(sum, numel - total.nan)})
  end

  defp add(:max, a, b), do: if(:infinity in [a, b], do: :infinity, else: max(a, b))
  defp add(_key, :infinity, _), do: :infinity
  defp add(_key, _, :infinity), do: :infinity
  defp add(_key, a, b), do: a + b

  defp mean(:infinity, _count), do: :infinity
  defp mean(_sum, 0), do: 0.0
  defp mean(sum, count), do: sum / count

  # ---- One piece ----

  defp piece(x, y, options) do
    {wide_x, wide_y} = {wide(x), wide(y)}
    equal = equal(x, y, wide_x, wide_y)
    {nan_x, nan_y} = {ExTorch.op("isnan", [wide_x]), ExTorch.op("isnan", [wide_y])}
    equal = if options.equal_nan, do: either(equal, both(nan_x, nan_y)), else: equal
    nan = both(either(nan_x, nan_y), ExTorch.logical_not(equal))
    # Equal infinities have no difference, NaNs are counted separately.
    distance = distance(x, y, wide_x, wide_y, equal)
    distance = ExTorch.op("masked_fill", [distance, either(equal, nan), 0.0])
    beyond = both(ExTorch.logical_not(equal), beyond(distance, nan, wide_y, options))

    %{
      differing: count(ExTorch.logical_not(equal)),
      beyond: count(beyond),
      nan: count(nan),
      max: Tensor.to_list(ExTorch.max(distance)),
      sum: Tensor.to_list(ExTorch.sum(distance))
    }
  end

  # The infinities are not within any tolerance, even though infinity <= infinity.
  defp beyond(distance, nan, wide_y, options) do
    allowed =
      ExTorch.add(ExTorch.mul(ExTorch.abs(wide_y), options.rtol * 1.0), options.atol * 1.0)

    within = both(ExTorch.le(distance, allowed), ExTorch.op("isfinite", [distance]))
    either(nan, ExTorch.logical_not(within))
  end

  # Integers of 64 bits are compared exactly: a float64 has 53 bits.
  defp equal(x, y, wide_x, wide_y) do
    if integers?(x, y),
      do: ExTorch.eq(int64(x), int64(y)),
      else: ExTorch.eq(wide_x, wide_y)
  end

  # Integers that differ are at least 1 apart, also if their float64s are equal.
  defp distance(x, y, wide_x, wide_y, equal) do
    distance = ExTorch.abs(ExTorch.sub(wide_x, wide_y))

    if integers?(x, y),
      do: ExTorch.maximum(distance, wide(ExTorch.logical_not(equal))),
      else: distance
  end

  defp integers?(%{dtype: a}, %{dtype: b}) do
    Enum.all?([a, b], &(DType.kind(&1) in [:int, :uint])) and
      (a == b or :uint64 not in [a, b])
  end

  defp int64(%{dtype: :uint64} = tensor), do: ExTorch.op("aten::view.dtype", [tensor, :int64])
  defp int64(tensor), do: Tensor.to(tensor, dtype: :int64)

  defp wide(tensor), do: Pieces.wide(tensor)

  defp both(a, b), do: ExTorch.logical_and(a, b)
  defp either(a, b), do: ExTorch.logical_or(a, b)
  defp count(bools), do: bools |> ExTorch.sum() |> Tensor.to_list()

  # ---- Pieces ----

  defp reduce(a, b, acc, fun) do
    {a, b}
    |> Pieces.stream()
    |> Enum.reduce_while(acc, fn {x, y}, acc -> fun.(x, y, acc) end)
  end

  defp plain(tensor), do: Pieces.plain(tensor)
end
