defmodule ExTorch.Checkpoint.Entry do
  @moduledoc """
  A tensor in a checkpoint, described and not read.

  `name` is the path joined by dots, `path` the path itself with keys as they are. `strides` and `offset` count elements
  in `storage`, whose key may be shared by several entries; `nbytes` is what the tensor's elements take. `device` is where
  it was when it was saved (`"cuda:0"`), `kind` is `:tensor`, `:parameter`, `:meta`, `:quantized`, or a sparse layout
  (`:sparse_coo`, `:sparse_csr` …), which has several storages and no strides. `index` is its place in the file's order.
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
            | :sparse_coo
            | :sparse_csr
            | :sparse_csc
            | :sparse_bsr
            | :sparse_bsc,
          index: non_neg_integer()
        }

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
