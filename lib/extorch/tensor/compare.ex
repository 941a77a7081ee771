defmodule ExTorch.Tensor.Compare do
  @moduledoc false
  # Compares the values of two tensors of the same shape, a piece at a time, so that memory stays bounded.

  alias ExTorch.{Error, Options, Tensor}
  alias ExTorch.Native.Call
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
        if difference(x, y, options).beyond == 0, do: {:cont, true}, else: {:halt, false}
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
          {:cont, Map.merge(total, difference(x, y, options), &add/3)}
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

  defp difference(x, y, options) do
    {rtol, atol} = {options.rtol * 1.0, options.atol * 1.0}

    {differing, beyond, nan, max, sum} =
      Error.unwrap!(Call.tensor_difference(x, y, rtol, atol, options.equal_nan))

    %{differing: differing, beyond: beyond, nan: nan, max: max, sum: sum}
  end

  # ---- Pieces ----

  defp reduce(a, b, acc, fun) do
    {a, b}
    |> Pieces.stream()
    |> Enum.reduce_while(acc, fn {x, y}, acc -> fun.(x, y, acc) end)
  end

  defp plain(tensor), do: Pieces.plain(tensor)
end
