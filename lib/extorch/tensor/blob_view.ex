defmodule ExTorch.Tensor.BlobView do
  @moduledoc """
  A tensor over memory that `owner` owns, as returned by `ExTorch.Tensor.Blob.from_blob/2` with the `:owner` option.

  The struct only shows who owns the memory: the tensor alone keeps the owner alive, too.

      iex> memory = :binary.copy(<<1.5::float-32-native>>, 100)
      iex> %{ptr: ptr} = memory |> ExTorch.Tensor.from_binary({100}, :float32) |> ExTorch.Tensor.Blob.to_blob()
      iex> view = ExTorch.Tensor.Blob.from_blob(%{ptr: ptr, shape: {2}, dtype: :float32}, owner: memory)
      iex> ExTorch.Tensor.to_list(view.tensor)
      [1.5, 1.5]
  """

  @type t :: %__MODULE__{tensor: ExTorch.Tensor.t(), owner: term()}

  @enforce_keys [:tensor, :owner]
  defstruct [:tensor, :owner]
end
