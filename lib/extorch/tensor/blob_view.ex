defmodule ExTorch.Tensor.BlobView do
  @moduledoc """
  A tensor over memory that `owner` owns (`ExTorch.Tensor.Blob.from_blob/2`).

  The pair is for people: the tensor alone keeps the owner too.

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
