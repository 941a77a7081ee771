defmodule ExTorch.Tensor.Blob do
  @moduledoc """
  A tensor's memory as an address, for other native libraries in the same OS process, and back.

      iex> t = ExTorch.tensor([1, 2, 3])
      iex> blob = ExTorch.Tensor.Blob.to_blob(t)
      iex> view = ExTorch.Tensor.Blob.from_blob(blob)
      iex> ExTorch.op("add_", [view, 10])
      iex> ExTorch.Tensor.to_list(t)
      [11, 12, 13]

  Both directions are one native call of constant cost; no byte is copied.

  ## Who owns what

    * `to_blob/1` gives the blob an `owner` of its own: the address is good while the blob (or its `owner`) lives, even
      after `ExTorch.Tensor.release/1` of the tensor. The memory never moves: operators that would move it are refused.
    * `from_blob/2` pins the owner natively, in the tensor: a slice of the tensor, or a binary made of it, is enough to
      keep the memory. The owner inside a `%Blob{}` is pinned without asking, and `owner:` pins any other term, for
      example a resource of the library that gave the address, or the binary the address points into.
    * Frozen memory (see `ExTorch.Tensor`) stays frozen, whichever way it is reached.

  `strides` are in elements. What is not plain memory (a conj or neg view, a sparse, quantized or meta tensor) has no
  blob.
  """

  alias ExTorch.{Native, Options, Tensor}

  @type t :: %__MODULE__{
          ptr: non_neg_integer(),
          shape: tuple(),
          strides: tuple(),
          dtype: ExTorch.DType.dtype(),
          device: ExTorch.Device.device(),
          element_size: pos_integer(),
          owner: term()
        }

  @enforce_keys [:ptr, :shape, :strides, :dtype, :device, :element_size]
  defstruct [:ptr, :shape, :strides, :dtype, :device, :element_size, :owner]

  @doc """
  The memory of a tensor (or of a view made by `from_blob/2`).

      iex> t = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
      iex> blob = ExTorch.Tensor.Blob.to_blob(ExTorch.Tensor.transpose(t))
      iex> {blob.shape, blob.strides, blob.dtype, blob.device, blob.element_size}
      {{2, 2}, {1, 2}, :float32, :cpu, 4}
  """
  @spec to_blob(Tensor.t() | Tensor.BlobView.t()) :: t()
  def to_blob(%module{} = tensor) when module in [Tensor, Tensor.BlobView] do
    case Native.blob_to_blob(tensor) do
      {:ok, blob, _} -> blob
      {_, error} -> raise error
    end
  end

  @doc """
  A tensor over memory that something else owns.

  `info` is a `%Blob{}`, or any map or struct with `ptr`, `shape` and `dtype`, and optionally `strides` (in elements,
  contiguous when left out) and `device` (`:cpu` when left out). Options:

    * `:owner` - a term to pin for as long as the memory is seen. With it the result is a
      `%ExTorch.Tensor.BlobView{tensor, owner}`, without it the bare tensor.
    * `:validate` - `true` by default: an address that is not memory of this process is an error instead of a crash.
      `false` saves two system calls; shape, strides and dtype are checked in any case.

  Without an owner the caller answers for the memory.
  """
  @spec from_blob(t() | map(), keyword()) :: Tensor.t() | Tensor.BlobView.t()
  def from_blob(info, opts \\ [])

  # The usual calls are matched: looking through options takes longer than the rest.
  def from_blob(info, []) when is_map(info), do: from_blob(info, nil, true)
  def from_blob(info, validate: validate) when is_map(info), do: from_blob(info, nil, validate)

  def from_blob(info, owner: owner) when is_map(info) do
    %Tensor.BlobView{tensor: from_blob(info, owner, true), owner: owner}
  end

  def from_blob(info, opts) when is_map(info) and is_list(opts) do
    opts = Options.validate!(opts, [:owner, validate: true])
    tensor = from_blob(info, opts[:owner], opts[:validate])

    if Keyword.has_key?(opts, :owner),
      do: %Tensor.BlobView{tensor: tensor, owner: opts[:owner]},
      else: tensor
  end

  defp from_blob(info, owner, validate) do
    case Native.blob_from_blob(info, owner, validate) do
      {:ok, tensor, _} -> tensor
      {_, error} -> raise error
    end
  end
end
