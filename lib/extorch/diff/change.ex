defmodule ExTorch.Diff.Change do
  @moduledoc """
  A tensor that differs between two checkpoints. See `ExTorch.Diff`.

    * `name` - its name
    * `what` - what differs: a list of `:shape`, `:dtype` and `:values`
    * `shape`, `dtype` - tuples of those of both tensors
    * `max`, `mean` - the largest and the mean absolute difference of the values, `:infinity` if one value is infinite;
      `nil` if the shapes differ
    * `differing`, `numel` - the number of elements that are not equal, and of all elements
    * `nan` - the number of elements that are NaN in only one of the tensors, which `max` and `mean` leave out
  """

  @type t :: %__MODULE__{
          name: String.t(),
          what: [:shape | :dtype | :values],
          shape: {tuple(), tuple()},
          dtype: {ExTorch.DType.dtype(), ExTorch.DType.dtype()},
          max: float() | :infinity | nil,
          mean: float() | :infinity | nil,
          differing: non_neg_integer() | nil,
          nan: non_neg_integer() | nil,
          numel: non_neg_integer() | nil
        }

  @enforce_keys [:name, :what, :shape, :dtype]
  defstruct [:name, :what, :shape, :dtype, :max, :mean, :differing, :nan, :numel]

  @doc """
  Returns what differs, in words.

      iex> change = %ExTorch.Diff.Change{name: "w", what: [:shape], shape: {{2}, {3}}, dtype: {:int8, :int8}}
      iex> ExTorch.Diff.Change.describe(change)
      "shape {2} → {3}"
  """
  @spec describe(t()) :: String.t()
  def describe(%__MODULE__{shape: {_, _}, dtype: {_, _}} = change) do
    {shape_a, shape_b} = change.shape
    {dtype_a, dtype_b} = change.dtype

    [
      :shape in change.what && "shape #{inspect(shape_a)} → #{inspect(shape_b)}",
      :dtype in change.what && "dtype #{dtype_a} → #{dtype_b}",
      (change.differing || 0) > 0 && describe_values(change)
    ]
    |> Enum.filter(& &1)
    |> Enum.join(", ")
  end

  def describe(other), do: ExTorch.Options.expected!("an %ExTorch.Diff.Change{}", other)

  defp describe_values(change) do
    "max #{number(change.max)}, mean #{number(change.mean)}, #{change.differing} of #{change.numel} elements" <>
      if(change.nan > 0, do: ", #{change.nan} NaN", else: "")
  end

  defp number(:infinity), do: "infinity"

  # Three digits are enough to judge a difference.
  defp number(float) do
    "~.3e" |> :io_lib.format([float]) |> IO.iodata_to_binary() |> String.to_float() |> to_string()
  end
end
