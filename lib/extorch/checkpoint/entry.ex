defmodule ExTorch.Checkpoint.Entry do
  @moduledoc """
  The description of one tensor in a checkpoint.

    * `name` - the path joined by dots
    * `path` - the keys that lead to the tensor
    * `dtype`, `shape` - as in `ExTorch.Tensor`
    * `strides`, `offset` - in elements of the storage
    * `nbytes` - the size of the elements in bytes
    * `storage` - the key of the storage; several entries may share one
    * `requires_grad` - whether the tensor was saved with `requires_grad`
    * `device` - the device the tensor was saved on (`"cuda:0"`)
    * `kind` - `:tensor`, `:parameter`, `:meta`, `:quantized`, `:storage` (all elements of a storage outside a tensor),
      or a sparse layout (`:sparse_coo`, `:sparse_csr`, …). Sparse tensors have several storages and no strides.
    * `index` - the position in file order, from 0
  """

  @type t :: %__MODULE__{
          name: String.t(),
          path: [term()],
          dtype: ExTorch.DType.dtype(),
          shape: tuple(),
          strides: tuple() | nil,
          offset: non_neg_integer(),
          nbytes: non_neg_integer(),
          storage: String.t() | nil,
          requires_grad: boolean(),
          device: String.t(),
          kind:
            :tensor
            | :parameter
            | :meta
            | :quantized
            | :storage
            | :sparse_coo
            | :sparse_csr
            | :sparse_csc
            | :sparse_bsr
            | :sparse_bsc,
          index: non_neg_integer()
        }

  # Larger integers have no text in names: to convert them takes time that grows with the square of their size.
  @doc false
  @spec small_integer?(term()) :: boolean()
  def small_integer?(key), do: is_integer(key) and key in -(2 ** 63)..(2 ** 63 - 1)

  # Entries with the same view and a storage are the same memory.
  @doc false
  @spec view(t()) :: term()
  def view(entry), do: {entry.storage, entry.offset, entry.shape, entry.strides, entry.dtype}

  defstruct [
    :name,
    :path,
    :dtype,
    :shape,
    :strides,
    :offset,
    :nbytes,
    :storage,
    :requires_grad,
    :device,
    :kind,
    :index
  ]
end

defimpl Inspect, for: ExTorch.Checkpoint.Entry do
  alias ExTorch.Text

  # One line. Fields that are as usual are left out.
  def inspect(%{shape: shape, nbytes: bytes} = entry, _opts)
      when is_tuple(shape) and is_integer(bytes) do
    parts = [
      "#{entry.dtype}#{Text.shape(shape)}",
      Text.bytes(bytes),
      entry.kind != :tensor && to_string(entry.kind),
      entry.requires_grad && entry.kind != :parameter && "requires_grad",
      entry.device not in ["cpu", nil] && Text.name(entry.device),
      entry.storage && "storage #{Text.name(entry.storage)}"
    ]

    "#ExTorch.Checkpoint.Entry<#{Text.name(entry.name)}: #{parts |> Enum.filter(& &1) |> Enum.join(", ")}>"
  end

  def inspect(entry, opts), do: Inspect.Any.inspect(entry, opts)
end
