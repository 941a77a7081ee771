defmodule ExTorch.Saver.Cast do
  @moduledoc false
  # A tensor that is converted to another dtype when it is written, in parts of 16 MiB if its elements lie one after
  # another. Only for dense tensors that are not quantized.

  alias ExTorch.{DType, Tensor}

  @type t :: %__MODULE__{tensor: Tensor.t(), dtype: DType.dtype()}
  @enforce_keys [:tensor, :dtype]
  defstruct [:tensor, :dtype]

  # The size of the elements as they are written.
  @spec nbytes(t() | Tensor.t()) :: non_neg_integer()
  def nbytes(%__MODULE__{tensor: tensor, dtype: dtype}),
    do: Tensor.numel(tensor) * DType.size(dtype)

  def nbytes(%Tensor{} = tensor), do: Tensor.nbytes(tensor)
end
