defmodule ExTorch.Python do
  @moduledoc """
  Python values that Elixir has no twin for, as small inert structs. Nothing in them is resolved or run; they say what
  the file says, and saving writes the same again.

  | Python | Elixir |
  |---|---|
  | `dict`, `OrderedDict`, `defaultdict`, `Counter` | a map; `%Dict{}` with `ordered: true` |
  | `list`, `tuple`, `torch.Size` | list, tuple, tuple |
  | `str` | a string; `%RawText{}` when it holds lone surrogates |
  | `int`, `float`, `bool`, `None` | integer, float or `:infinity`, `:neg_infinity`, `:nan`, boolean, `nil` |
  | `set`, `frozenset` | `MapSet` |
  | `bytes`, `bytearray`, `complex` | `%Bytes{}`, `%ByteArray{}`, `%Complex{}` |
  | `torch.dtype`, `torch.device` | `%DType{}`, `%Device{}` |
  | a tensor of a dtype that the linked LibTorch lacks | `%RawTensor{}` |
  | a tensor of a class of its own, or with attributes | `%TensorSubclass{}` |
  | a numpy array | a tensor; `%Object{}` where torch has no such dtype |
  | a numpy scalar | `%NumpyScalar{}` |
  | a bare storage | `%Storage{}` |
  | a class, function or module member | `%Global{}` |
  | an object of any other class | `%Object{}` |
  """

  @doc """
  The tensors that a nested tensor holds. A file's nested tensor is an `%Object{}` of `torch._utils._rebuild_nested_tensor`:
  one buffer, and the sizes, strides and offset of each part. The parts share the buffer's memory.
  """
  @spec unnest(struct()) :: [ExTorch.Tensor.t()]
  def unnest(%{
        __struct__: ExTorch.Python.Object,
        class: %{module: "torch._utils", name: "_rebuild_nested_tensor"},
        args: {%ExTorch.Tensor{} = buffer, sizes, strides, offsets}
      }) do
    [sizes, strides, offsets] = Enum.map([sizes, strides, offsets], &ExTorch.Tensor.to_list/1)

    for {size, stride, offset} <- Enum.zip([sizes, strides, offsets]),
        do: ExTorch.op("as_strided", [buffer, size, stride, offset])
  end

  def unnest(other) do
    raise ExTorch.Error.new(
            :bad_argument,
            "this is no nested tensor: #{inspect(other, limit: 3)}"
          )
  end

  defmodule Dict do
    @moduledoc """
    A dict in its order: `pairs` is a list of `{key, value}`.

        iex> ExTorch.Python.Dict.fetch(%ExTorch.Python.Dict{pairs: [{"a", 1}]}, "a")
        {:ok, 1}
    """
    @type t :: %__MODULE__{pairs: [{term(), term()}]}
    defstruct pairs: []

    @doc "The value of a key."
    @spec fetch(t(), term()) :: {:ok, term()} | :error
    def fetch(%__MODULE__{pairs: pairs}, key) do
      case List.keyfind(pairs, key, 0) do
        {_, value} -> {:ok, value}
        nil -> :error
      end
    end
  end

  defmodule Bytes do
    @moduledoc "Python's `bytes`."
    @type t :: %__MODULE__{data: binary()}
    @enforce_keys [:data]
    defstruct [:data]
  end

  defmodule ByteArray do
    @moduledoc "Python's `bytearray`."
    @type t :: %__MODULE__{data: binary()}
    @enforce_keys [:data]
    defstruct [:data]
  end

  defmodule RawText do
    @moduledoc "A Python string with lone surrogates, which is no valid UTF-8: `data` has them encoded as if they were."
    @type t :: %__MODULE__{data: binary()}
    @enforce_keys [:data]
    defstruct [:data]
  end

  defmodule DType do
    @moduledoc "A `torch.dtype` as a value in a checkpoint."
    @type t :: %__MODULE__{name: ExTorch.DType.dtype()}
    @enforce_keys [:name]
    defstruct [:name]
  end

  defmodule Device do
    @moduledoc "A `torch.device` as a value in a checkpoint."
    @type t :: %__MODULE__{type: String.t(), index: non_neg_integer() | nil}
    @enforce_keys [:type]
    defstruct [:type, :index]
  end

  defmodule Global do
    @moduledoc "Something a file names: a class, a function, a constant. Only the name is here."
    @type t :: %__MODULE__{module: String.t(), name: String.t()}
    @enforce_keys [:module, :name]
    defstruct [:module, :name]
  end

  defmodule Object do
    @moduledoc """
    An object of a class that has no twin: what it would be made of, and nothing made.

    `class` (mostly a `%Global{}`) would be called with `args`, or with `new: true` made by `class.__new__(*args)`; then
    `state` set on it, `list` appended and `dict` filled in. What the file does not have is `nil`.
    """
    @type t :: %__MODULE__{
            class: term(),
            args: tuple(),
            state: term(),
            list: list() | nil,
            dict: map() | Dict.t() | nil,
            new: boolean()
          }
    @enforce_keys [:class]
    defstruct [:class, :state, :list, :dict, args: {}, new: false]
  end

  defmodule Storage do
    @moduledoc "A bare storage, outside any tensor; `ExTorch.Checkpoint.read_storage/2` has its bytes."
    @type t :: %__MODULE__{
            key: String.t(),
            dtype: ExTorch.DType.dtype(),
            numel: non_neg_integer(),
            location: String.t()
          }
    @enforce_keys [:key, :dtype, :numel, :location]
    defstruct [:key, :dtype, :numel, :location]
  end

  defmodule NumpyScalar do
    @moduledoc "A numpy scalar such as `numpy.float32(1.5)`: a number and its dtype."
    @type t :: %__MODULE__{dtype: ExTorch.DType.dtype(), value: term()}
    @enforce_keys [:dtype, :value]
    defstruct [:dtype, :value]
  end

  defmodule TensorSubclass do
    @moduledoc """
    A tensor of a class of its own, or one that was given attributes.

    `tensor` is what it is made of: mostly a tensor; an `%Object{}` for wrapper classes, whose tensors are in `state`.
    `class` is a `%Global{}`, `state` the attributes, mostly a map.
    """
    @type t :: %__MODULE__{tensor: term(), class: Global.t(), state: term()}
    @enforce_keys [:tensor, :class]
    defstruct [:tensor, :class, :state]
  end

  defmodule RawTensor do
    @moduledoc """
    A tensor of a dtype that the linked LibTorch does not have. `data` begins at its first element; `strides` count
    elements.
    """
    @type t :: %__MODULE__{
            dtype: ExTorch.DType.dtype(),
            shape: tuple(),
            strides: tuple(),
            data: binary()
          }
    @enforce_keys [:dtype, :shape, :strides, :data]
    defstruct [:dtype, :shape, :strides, :data]
  end
end
