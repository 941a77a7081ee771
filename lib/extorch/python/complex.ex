defmodule ExTorch.Python.Complex do
  @moduledoc """
  A complex number.

      iex> t = ExTorch.tensor([%ExTorch.Python.Complex{re: 1.0, im: -2.0}])
      iex> t.dtype
      :complex64
      iex> ExTorch.Tensor.to_list(t)
      [%ExTorch.Python.Complex{re: 1.0, im: -2.0}]
  """

  @type part :: number() | :nan | :infinity | :neg_infinity
  @type t :: %__MODULE__{re: part(), im: part()}

  @enforce_keys [:re, :im]
  defstruct [:re, :im]
end
