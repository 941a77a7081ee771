defmodule ExTorch.Tensor.Blob do
  @moduledoc """
  The memory of a tensor as an address, for other native libraries in the same OS process.

      iex> t = ExTorch.tensor([1, 2, 3])
      iex> blob = ExTorch.Tensor.Blob.to_blob(t)
      iex> view = ExTorch.Tensor.Blob.from_blob(blob)
      iex> ExTorch.op("fill_", [view, 7])
      iex> ExTorch.Tensor.to_list(t)
      [7, 7, 7]

  `to_blob/1` and `from_blob/2` never copy the data.

  ## Fields

    * `:ptr` - the address of the first element
    * `:shape` - a tuple
    * `:strides` - a list, in elements
    * `:dtype`, `:device` - as in `ExTorch.Tensor`
    * `:element_size` - in bytes
    * `:owner` - a tensor that keeps the memory alive

  ## Ownership

    * The `owner` of a blob is a separate `%ExTorch.Tensor{}` over the same memory. The address is valid while the blob
      or its owner is alive, even after `ExTorch.Tensor.release/1` of the tensor that `to_blob/1` was called with. The
      memory never moves: operators that would move it raise an error.
    * `from_blob/2` pins the owner natively. Every tensor, slice and binary made from the result keeps the memory alive
      by itself. The owner of a `%Blob{}` is always pinned. The `:owner` option pins any other term, for example a
      resource of the library that the address comes from, or the binary that the address points into.
    * Frozen memory (see `ExTorch.Tensor`) stays frozen in all views.

  Only plain memory can be a blob. `to_blob/1` raises for conj and neg views and for sparse, quantized and meta tensors.
  """

  alias ExTorch.{Native, Options, Tensor}
  alias ExTorch.Native.Stub

  @type t :: %__MODULE__{
          ptr: non_neg_integer(),
          shape: tuple(),
          strides: [non_neg_integer()],
          dtype: ExTorch.DType.dtype(),
          device: ExTorch.Device.device(),
          element_size: pos_integer(),
          owner: Tensor.t() | nil
        }

  @enforce_keys [:ptr, :shape, :strides, :dtype, :device, :element_size]
  defstruct [:ptr, :shape, :strides, :dtype, :device, :element_size, :owner]

  @doc """
  Returns the memory of a tensor, or of a view made by `from_blob/2`, as a blob.

      iex> t = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
      iex> blob = ExTorch.Tensor.Blob.to_blob(ExTorch.Tensor.transpose(t))
      iex> {blob.shape, blob.strides, blob.dtype, blob.device, blob.element_size}
      {{2, 2}, [1, 2], :float32, :cpu, 4}
      iex> ExTorch.Tensor.to_list(blob.owner)
      [[1.0, 3.0], [2.0, 4.0]]
  """
  @spec to_blob(Tensor.t() | Tensor.BlobView.t()) :: t()
  def to_blob(%module{} = tensor) when module in [Tensor, Tensor.BlobView] do
    case Stub.checked(:blob_to_blob, fn -> Native.blob_to_blob(tensor) end) do
      {:ok, blob, _} -> blob
      {_, error} -> raise error
    end
  end

  def to_blob(other), do: Options.expected!("a tensor or an %ExTorch.Tensor.BlobView{}", other)

  @doc """
  Returns a tensor over memory that something else owns.

  `info` is a `%Blob{}`, or any map or struct with `:ptr`, `:shape` and `:dtype`. `:strides` (in elements) and `:device`
  are optional; the defaults are contiguous strides and `:cpu`. Shape and strides are lists or tuples.

  ## Options

    * `:owner` - a term to pin while any view of the memory exists. With this option the result is a
      `%ExTorch.Tensor.BlobView{}` of the tensor and the owner, without it the bare tensor.
    * `:validate` - if `true` (the default), memory of which a part is not readable raises an error, and memory of which
      a part cannot be written is frozen (see `ExTorch.Tensor`). The kernel is asked on a dirty scheduler, which takes
      some microseconds on Linux 6.11 and newer and on macOS. On older kernels it takes about a millisecond per thousand
      mappings of the process. It is not asked about memory of the tensor that owns a `%Blob{}`. `false` skips the check;
      reading or writing the wrong memory then crashes the VM. Shape, strides and dtype are always checked.
    * `:frozen` - if `true`, the memory is frozen (see `ExTorch.Tensor`) while any view of it exists. Defaults to `false`.

  If neither `info` nor the options have an owner, the caller must keep the memory valid.
  """
  @spec from_blob(t() | map(), keyword()) :: Tensor.t() | Tensor.BlobView.t()
  def from_blob(info, opts \\ [])

  # The common calls are matched here, because validating the options takes longer than the native call.
  def from_blob(info, []) when is_map(info), do: from_blob(info, nil, true, false)

  def from_blob(info, validate: validate) when is_map(info),
    do: from_blob(info, nil, validate, false)

  def from_blob(info, owner: owner) when is_map(info) do
    %Tensor.BlobView{tensor: from_blob(info, owner, true, false), owner: owner}
  end

  def from_blob(info, _opts) when not is_map(info),
    do: Options.expected!("a blob, or a map with :ptr, :shape and :dtype", info)

  def from_blob(info, opts) do
    opts = Options.validate!(opts, [:owner, validate: true, frozen: false])
    tensor = from_blob(info, opts[:owner], opts[:validate], opts[:frozen])

    if Keyword.has_key?(opts, :owner),
      do: %Tensor.BlobView{tensor: tensor, owner: opts[:owner]},
      else: tensor
  end

  defp from_blob(info, owner, validate, frozen)
       when is_boolean(validate) and is_boolean(frozen) do
    case Native.blob_from_blob(info, owner, validate, frozen) do
      {:ok, tensor, _} -> tensor
      {_, error} -> raise error
    end
  end

  defp from_blob(_info, _owner, validate, frozen) do
    {name, value} = if is_boolean(validate), do: {:frozen, frozen}, else: {:validate, validate}
    Options.invalid!(name, "a boolean", value)
  end
end
