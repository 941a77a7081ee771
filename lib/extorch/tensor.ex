defmodule ExTorch.Tensor do
  @moduledoc """
  A LibTorch tensor: an array of numbers with a shape, a dtype and a device.

      iex> t = ExTorch.tensor([[1, 2, 3], [4, 5, 6]])
      iex> {t.shape, t.dtype, t.device}
      {{2, 3}, :int64, :cpu}
      iex> t |> ExTorch.Tensor.transpose() |> ExTorch.Tensor.to_list()
      [[1, 4], [2, 5], [3, 6]]

  The struct describes, the native `resource` is the tensor; it is freed when the last reference to it is gone
  (`ExTorch.Memory`). Shape, dtype and device of a tensor never change. Its values do only when an in-place operator is
  called on it (`ExTorch.op("add_", …)`), and every tensor over the same memory sees that.

  ## Binaries and frozen memory

  `from_binary/3` and `to_binary/1` share memory with Erlang binaries instead of copying it. Binaries are immutable, so
  memory that one sees is *frozen* while the binary lives: an operator that would write to it raises
  `%ExTorch.Error{reason: :frozen}`, whatever view or operator it comes through. `clone/1` gives memory of one's own.
  """

  alias ExTorch.{DType, Device, Error, Memory, Native}

  @type t :: %__MODULE__{
          resource: reference(),
          shape: tuple(),
          dtype: DType.dtype(),
          device: Device.device()
        }

  @enforce_keys [:resource, :shape, :dtype, :device]
  defstruct [:resource, :shape, :dtype, :device]

  # ---- Elixir terms ----

  @doc """
  A tensor over the memory of a binary, without a copy.

  The binary is pinned by the tensor and its memory is frozen. One case copies: when the binary does not start on a
  multiple of the element's size in memory (a sub-binary may not), since processors read whole elements; the copy is
  frozen all the same.

      iex> t = ExTorch.Tensor.from_binary(<<1, 2, 3, 4, 5, 6>>, {2, 3}, :uint8)
      iex> ExTorch.Tensor.to_list(t)
      [[1, 2, 3], [4, 5, 6]]
      iex> ExTorch.Tensor.from_binary(<<1, 2, 3>>, {2}, :int16)
      ** (ExTorch.Error) the binary has 3 bytes, and this shape of int16 needs 4
  """
  @spec from_binary(binary(), tuple() | [non_neg_integer()], DType.input()) :: t()
  def from_binary(binary, shape, dtype)
      when is_binary(binary) and (is_tuple(shape) or is_list(shape)) do
    dtype = DType.normalize!(dtype)
    Memory.run!(fn -> Native.tensor_from_binary(binary, check_shape!(shape), dtype) end)
  end

  @doc """
  The values as a binary, row by row, in native byte order.

  A contiguous CPU tensor is shared: no copy, and its memory is frozen while the binary lives. Any other is copied once.

      iex> ExTorch.Tensor.to_binary(ExTorch.tensor([1, 2, 3], dtype: :uint8))
      <<1, 2, 3>>
  """
  @spec to_binary(t()) :: binary()
  def to_binary(%__MODULE__{} = tensor),
    do: Memory.run!(fn -> Native.tensor_to_binary(tensor) end)

  @doc """
  The values as nested lists. Floats without an Elixir twin are `:nan`, `:infinity` and `:neg_infinity`.

      iex> ExTorch.Tensor.to_list(ExTorch.tensor([[0.5, :infinity], [:nan, -1]]))
      [[0.5, :infinity], [:nan, -1.0]]
      iex> ExTorch.Tensor.to_list(ExTorch.tensor(7))
      7
  """
  @spec to_list(t()) :: term()
  def to_list(%__MODULE__{} = tensor), do: Memory.run!(fn -> Native.tensor_to_list(tensor) end)

  # ---- What it is ----

  @doc """
  Steps between neighbours, in elements, one for each dimension; `nil` for layouts that have none (sparse).

      iex> ExTorch.Tensor.strides(ExTorch.zeros({2, 3, 4}))
      {12, 4, 1}
  """
  @spec strides(t()) :: tuple() | nil
  def strides(%__MODULE__{} = tensor), do: Memory.run!(fn -> Native.tensor_strides(tensor) end)

  @doc """
  Number of elements.

      iex> ExTorch.Tensor.numel(ExTorch.zeros({2, 3}))
      6
  """
  @spec numel(t()) :: non_neg_integer()
  def numel(%__MODULE__{shape: shape}), do: Tuple.product(shape)

  @doc """
  Bytes of the elements: what `to_binary/1` has.

      iex> ExTorch.Tensor.nbytes(ExTorch.zeros({2, 3}, dtype: :float16))
      12
  """
  @spec nbytes(t()) :: non_neg_integer()
  def nbytes(%__MODULE__{dtype: dtype} = tensor), do: numel(tensor) * DType.size(dtype)

  @doc """
  Do both have the same shape, dtype and values? As in torch, NaN equals nothing.

      iex> ExTorch.Tensor.equal?(ExTorch.tensor([1, 2]), ExTorch.tensor([1, 2]))
      true
      iex> ExTorch.Tensor.equal?(ExTorch.tensor([1, 2]), ExTorch.tensor([1.0, 2.0]))
      false
  """
  @spec equal?(t(), t()) :: boolean()
  def equal?(%__MODULE__{} = a, %__MODULE__{} = b),
    do: Memory.run!(fn -> Native.tensor_equal(a, b) end)

  @doc """
  Was the tensor saved as one that requires a gradient? ExTorch keeps the mark and writes it back, and never records a
  gradient.

      iex> t = ExTorch.zeros({2})
      iex> ExTorch.Tensor.requires_grad(t)
      false
      iex> t |> ExTorch.Tensor.requires_grad(true) |> ExTorch.Tensor.requires_grad()
      true
  """
  @spec requires_grad(t()) :: boolean()
  def requires_grad(%__MODULE__{} = tensor),
    do: Memory.run!(fn -> Native.tensor_requires_grad(tensor) end)

  @doc "The same tensor, over the same memory, with the mark set or cleared."
  @spec requires_grad(t(), boolean()) :: t()
  def requires_grad(%__MODULE__{} = tensor, flag) when is_boolean(flag) do
    set_requires_grad(tensor, flag)
  end

  defp set_requires_grad(tensor, flag),
    do: Memory.run!(fn -> Native.tensor_set_requires_grad(tensor, flag) end)

  @doc """
  Gives the memory back now instead of at the next garbage collection. Using the tensor afterwards raises `:released`;
  views, binaries and blobs over its memory stay good. Releasing again does nothing.

      iex> t = ExTorch.zeros({2})
      iex> ExTorch.Tensor.release(t)
      :ok
      iex> ExTorch.Tensor.to_list(t)
      ** (ExTorch.Error) this tensor was released; use it before ExTorch.Tensor.release/1 or keep a clone
  """
  @spec release(t()) :: :ok
  def release(%__MODULE__{} = tensor), do: Native.tensor_release(tensor)

  # ---- Other memory, other types ----

  @doc """
  The tensor in another dtype, on another device, or both. Nothing is copied when it is so already.

      iex> ExTorch.Tensor.to(ExTorch.tensor([1, 2]), :float32).dtype
      :float32
      iex> ExTorch.Tensor.to(ExTorch.tensor([1.5]), dtype: :int32, device: :cpu) |> ExTorch.Tensor.to_list()
      [1]

  Options: `:dtype`, `:device`, `:copy` (always copy), `:non_blocking` (do not wait for the copy between pinned host
  memory and a CUDA device; see `pin/1`).
  """
  @spec to(t(), DType.input() | Device.device() | keyword()) :: t()
  def to(tensor, target)
  def to(%__MODULE__{} = tensor, opts) when is_list(opts), do: convert(tensor, opts)
  def to(tensor, device) when device in [:cpu, :cuda, :mps, :meta], do: to(tensor, device: device)
  def to(tensor, {:cuda, _} = device), do: to(tensor, device: device)
  def to(tensor, dtype), do: to(tensor, dtype: dtype)

  defp convert(tensor, opts) do
    kwargs =
      Enum.map(opts, fn
        {:dtype, dtype} ->
          {:dtype, DType.normalize!(dtype)}

        {:device, device} ->
          {:device, Device.check!(device)}

        {key, flag} when key in [:copy, :non_blocking] and is_boolean(flag) ->
          {key, flag}

        {key, value} ->
          raise Error.new(
                  :bad_argument,
                  "to has no option #{inspect(key)} with #{inspect(value)}"
                )
      end)

    ExTorch.op("aten::to.dtype_layout", [tensor], kwargs)
  end

  @doc """
  The tensor in page-locked host memory, from where copies to a CUDA device need not wait. Raises `:torch` or
  `:unsupported` where there is no CUDA.
  """
  @spec pin(t()) :: t()
  def pin(%__MODULE__{} = tensor) do
    if Device.cuda_count() == 0 do
      raise Error.new(:unsupported, "pinned memory needs a CUDA device, and there is none")
    end

    ExTorch.op("aten::pin_memory", [tensor])
  end

  @doc """
  The values in contiguous memory: the tensor itself when they are.

      iex> t = ExTorch.Tensor.transpose(ExTorch.zeros({2, 3}))
      iex> {ExTorch.Tensor.strides(t), ExTorch.Tensor.strides(ExTorch.Tensor.contiguous(t))}
      {{1, 3}, {2, 1}}
  """
  @spec contiguous(t()) :: t()
  def contiguous(%__MODULE__{} = tensor), do: ExTorch.op("aten::contiguous", [tensor])

  @doc "A copy in memory of its own, never frozen."
  @spec clone(t()) :: t()
  def clone(%__MODULE__{} = tensor), do: ExTorch.op("aten::clone", [tensor])

  # ---- Other shapes ----

  @doc """
  The same values in another shape; one size may be -1 and is worked out. A view where the strides allow it.

      iex> ExTorch.Tensor.reshape(ExTorch.arange(6), {2, -1}).shape
      {2, 3}
  """
  @spec reshape(t(), tuple() | [integer()]) :: t()
  def reshape(%__MODULE__{} = tensor, shape),
    do: ExTorch.op("aten::reshape", [tensor, check_shape!(shape)])

  @doc """
  A view with two dimensions swapped, the last two when none are named.

      iex> ExTorch.Tensor.transpose(ExTorch.zeros({2, 3, 4}), 0, 1).shape
      {3, 2, 4}
  """
  @spec transpose(t(), integer(), integer()) :: t()
  def transpose(%__MODULE__{} = tensor, a \\ -2, b \\ -1),
    do: ExTorch.op("aten::transpose.int", [tensor, a, b])

  @doc """
  A view of a part: a range of one dimension, or one selector for each dimension from the first on. A selector is a
  range with both ends included (negative ends count from the end), an integer, which drops the dimension, or `:all`.

      iex> t = ExTorch.Tensor.reshape(ExTorch.arange(12), {3, 4})
      iex> ExTorch.Tensor.to_list(ExTorch.Tensor.slice(t, 1, 1..2))
      [[1, 2], [5, 6], [9, 10]]
      iex> ExTorch.Tensor.to_list(ExTorch.Tensor.slice(t, [-1, 0..-1//2]))
      [8, 10]
  """
  @spec slice(t(), [Range.t() | integer() | :all]) :: t()
  def slice(%__MODULE__{} = tensor, selectors) when is_list(selectors) do
    {result, _dim} =
      Enum.reduce(selectors, {tensor, 0}, fn
        :all, {view, dim} ->
          {view, dim + 1}

        index, {view, dim} when is_integer(index) ->
          {ExTorch.op("aten::select.int", [view, dim, index]), dim}

        range, {view, dim} ->
          {slice(view, dim, range), dim + 1}
      end)

    result
  end

  @spec slice(t(), integer(), Range.t()) :: t()
  def slice(%__MODULE__{shape: shape} = tensor, dim, first..last//step) when is_integer(dim) do
    rank = tuple_size(shape)

    if dim >= rank or dim < -rank do
      raise Error.new(
              :bad_argument,
              "there is no dimension #{dim} in the shape #{inspect(shape)}"
            )
    end

    size = elem(shape, Integer.mod(dim, rank))
    from_end = fn index -> if index < 0, do: index + size, else: index end

    # 0..-1 is written with a step of -1 by default: the end counts from the end, the step was not meant
    step = if step == -1 and first >= 0 and last < 0, do: 1, else: step

    if step < 1,
      do:
        raise(
          Error.new(:bad_argument, "a slice goes forwards; use \"flip\" to turn a tensor round")
        )

    stop = from_end.(last) + 1
    ExTorch.op("aten::slice.Tensor", [tensor, dim, from_end.(first), max(stop, 0), step])
  end

  defp check_shape!(shape) do
    sizes = if is_tuple(shape), do: Tuple.to_list(shape), else: shape

    if is_list(sizes) and length(sizes) <= 64 and
         Enum.all?(sizes, &(is_integer(&1) and &1 in -1..0x7FFFFFFFFFFFFFFF)) do
      sizes
    else
      raise Error.new(
              :bad_argument,
              "#{inspect(shape)} is no shape: a shape is a tuple of sizes, such as {2, 3}"
            )
    end
  end
end
