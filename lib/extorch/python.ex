defmodule ExTorch.Python do
  @moduledoc """
  Structs for Python values that have no Elixir equivalent.

  The structs only describe the values: nothing in them is imported or called. Saving them writes the same Python values
  again. This is how Python values are represented:

  | Python | Elixir |
  |---|---|
  | `dict`, `OrderedDict`, `defaultdict`, `Counter` | a map; `%Dict{}` with `ordered: true` |
  | `list`, `tuple`, `torch.Size` | list, tuple, tuple |
  | `str` | a string; `%RawText{}` if it contains lone surrogates |
  | `int`, `float`, `bool`, `None` | integer, float or `:infinity`, `:neg_infinity`, `:nan`, boolean, `nil` |
  | `set`, `frozenset` | `MapSet` |
  | `bytes`, `bytearray`, `complex` | `%Bytes{}`, `%ByteArray{}`, `%Complex{}` |
  | `torch.dtype`, `torch.device` | `%DType{}`, `%Device{}` |
  | a tensor with a dtype that the linked LibTorch does not support | `%RawTensor{}` |
  | a tensor of a subclass, or with attributes | `%TensorSubclass{}` |
  | a numpy array | a tensor; `%Object{}` if torch does not have the dtype |
  | a numpy scalar | `%NumpyScalar{}` |
  | a storage outside a tensor | `%Storage{}` |
  | a class, function or other global | `%Global{}` |
  | an object of any other class | `%Object{}` |
  | a list, dict or object that contains itself, where it does | `%Ref{}` |
  """

  @doc """
  Returns the tensors of a nested tensor.

  A nested tensor in a checkpoint is an `%Object{}` of `torch._utils._rebuild_nested_tensor`: a buffer, and the sizes,
  strides and offset of each tensor. The returned tensors share the memory of the buffer.

      {:ok, %{"sentences" => nested}} = ExTorch.load("batch.pt")
      for tensor <- ExTorch.Python.unnest(nested), do: tensor.shape
      #=> [{12, 768}, {7, 768}]
  """
  @spec unnest(struct()) :: [ExTorch.Tensor.t()]
  def unnest(%{
        __struct__: ExTorch.Python.Object,
        class: %{module: "torch._utils", name: "_rebuild_nested_tensor"},
        args: {%ExTorch.Tensor{} = buffer, sizes, strides, offsets}
      }) do
    [sizes, strides, offsets] = Enum.map([sizes, strides, offsets], &table/1)

    # The arguments are as they are in the file.
    unless match?([_], Enum.uniq([length(sizes), length(strides), length(offsets)])) and
             Enum.all?(sizes ++ strides, &is_list/1) and Enum.all?(offsets, &is_integer/1) and
             Enum.all?(Enum.concat(sizes ++ strides), &is_integer/1),
           do:
             raise(
               ExTorch.Error.new(:corrupt, "the parts of the nested tensor do not fit together")
             )

    for {size, stride, offset} <- Enum.zip([sizes, strides, offsets]),
        do: ExTorch.op("as_strided", [buffer, size, stride, offset])
  end

  def unnest(other) do
    raise ExTorch.Error.new(
            :bad_argument,
            "expected a nested tensor, got #{inspect(other, limit: 3)}"
          )
  end

  # Elements that share memory count as often as they occur.
  defp table(%ExTorch.Tensor{} = tensor) do
    if ExTorch.Tensor.numel(tensor) > 10_000_000,
      do: raise(ExTorch.Error.new(:limit, "the nested tensor has more than 10,000,000 sizes"))

    list = ExTorch.Tensor.to_list(tensor)
    if is_list(list), do: list, else: [list]
  end

  defp table(list) when is_list(list), do: list
  defp table(tuple) when is_tuple(tuple), do: Tuple.to_list(tuple)
  defp table(other), do: [other]

  defmodule Dict do
    @moduledoc """
    A dict that keeps its order: `pairs` is a list of `{key, value}`.

        iex> ExTorch.Python.Dict.fetch(%ExTorch.Python.Dict{pairs: [{"a", 1}]}, "a")
        {:ok, 1}
    """
    @type t :: %__MODULE__{pairs: [{term(), term()}]}
    defstruct pairs: []

    @doc """
    Returns the value of a key.

        iex> dict = %ExTorch.Python.Dict{pairs: [{"b", 1}, {"a", 2}]}
        iex> {ExTorch.Python.Dict.fetch(dict, "a"), ExTorch.Python.Dict.fetch(dict, "c")}
        {{:ok, 2}, :error}
    """
    @spec fetch(t(), term()) :: {:ok, term()} | :error
    def fetch(%__MODULE__{pairs: pairs}, key) do
      case List.keyfind(pairs, key, 0) do
        {_, value} -> {:ok, value}
        nil -> :error
      end
    end

    def fetch(other, _key), do: ExTorch.Options.expected!("an %ExTorch.Python.Dict{}", other)
  end

  defmodule Bytes do
    @moduledoc "A Python `bytes` object."
    @type t :: %__MODULE__{data: binary()}
    @enforce_keys [:data]
    defstruct [:data]
  end

  defmodule ByteArray do
    @moduledoc "A Python `bytearray` object."
    @type t :: %__MODULE__{data: binary()}
    @enforce_keys [:data]
    defstruct [:data]
  end

  defmodule RawText do
    @moduledoc """
    A Python string with lone surrogates. `data` is the string in UTF-8, with the surrogates encoded like other code
    points, which makes it invalid UTF-8.
    """
    @type t :: %__MODULE__{data: binary()}
    @enforce_keys [:data]
    defstruct [:data]
  end

  defmodule DType do
    @moduledoc "A `torch.dtype`."
    @type t :: %__MODULE__{name: ExTorch.DType.dtype()}
    @enforce_keys [:name]
    defstruct [:name]
  end

  defmodule Device do
    @moduledoc "A `torch.device`."
    @type t :: %__MODULE__{type: String.t(), index: non_neg_integer() | nil}
    @enforce_keys [:type]
    defstruct [:type, :index]
  end

  defmodule Global do
    @moduledoc "A global that a pickle refers to by name: a class, a function or a constant."
    @type t :: %__MODULE__{module: String.t(), name: String.t()}
    @enforce_keys [:module, :name]
    defstruct [:module, :name]
  end

  defmodule Object do
    @moduledoc """
    An object of any other class: the arguments that Python would create it from.

    Python would call `class` (usually a `%Global{}`) with `args`, or `class.__new__(*args)` if `new` is `true`. Then it
    would set `state` on the object, append the elements of `list` and insert the items of `dict`. Fields that the
    pickle does not have are `nil`.
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

  defmodule Ref do
    @moduledoc """
    Refers to a container of the same object: a list, dict, tuple or `%Object{}` that contains itself cannot be an Elixir
    term, so it has a reference where it contains itself.

        # a = []; a.append(a); {"list": a}
        %{"list": [%ExTorch.Python.Ref{path: ["list"], up: 1}]}

    `path` is the place of the container in the object of the file: keys of dicts and positions in lists and tuples, as
    in the path of an entry, and `:class`, `:args`, `:state`, `:list`, `:dict` and `:tensor` for the fields of
    `%Object{}` and `%TensorSubclass{}`. A step into the key of a dict is `:key`.

    `up` and `down` say the same as seen from the reference: `up` containers up (1 is the one that the reference is in),
    then along the path `down`, which is usually empty. Only these are used when the reference is saved, so that a part
    of an object can be saved by itself, as long as it includes the container that is referred to.

    An object that is part of a cycle appears once. Another object of the file that also refers to it has a reference to
    that place.
    """
    @type t :: %__MODULE__{path: [term()], up: pos_integer(), down: [term()]}
    @enforce_keys [:up]
    defstruct path: [], up: nil, down: []
  end

  defmodule Storage do
    @moduledoc """
    A storage outside a tensor, such as the result of `tensor.storage()` in Python.

    `tensor` contains all its elements, in one dimension. It shares memory with the tensors of the file that have the
    same storage, and they share a storage again when both are saved. An untyped storage has the dtype `:uint8`, as
    `torch.load` gives it.

    Only `tensor` is needed to save a storage: `ExTorch.save(%{"s" => %ExTorch.Python.Storage{tensor: t}}, "s.pt")`. It
    must be contiguous and have one dimension. Formats without a pickle cannot represent storages.
    """
    @type t :: %__MODULE__{
            key: String.t() | nil,
            dtype: ExTorch.DType.dtype() | nil,
            numel: non_neg_integer() | nil,
            location: String.t() | nil,
            tensor:
              ExTorch.Tensor.t()
              | ExTorch.Python.RawTensor.t()
              | ExTorch.Checkpoint.Entry.t()
              | nil
          }
    defstruct [:key, :dtype, :numel, :location, :tensor]
  end

  defmodule NumpyScalar do
    @moduledoc "A numpy scalar such as `numpy.float32(1.5)`: a number and its dtype."
    @type t :: %__MODULE__{dtype: ExTorch.DType.dtype(), value: term()}
    @enforce_keys [:dtype, :value]
    defstruct [:dtype, :value]
  end

  defmodule TensorSubclass do
    @moduledoc """
    A tensor of a subclass of `torch.Tensor`, or a tensor with attributes.

    `tensor` is the underlying tensor, or an `%Object{}` for wrapper classes, whose tensors are in `state`. `class` is a
    `%Global{}`, and `state` contains the attributes, usually as a map.
    """
    @type t :: %__MODULE__{tensor: term(), class: Global.t(), state: term()}
    @enforce_keys [:tensor, :class]
    defstruct [:tensor, :class, :state]
  end

  defmodule RawTensor do
    @moduledoc """
    A tensor with a dtype that the linked LibTorch does not support.

    `data` begins with the first element of the tensor. `strides` are in elements.
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
