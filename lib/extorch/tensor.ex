defmodule ExTorch.Tensor do
  @moduledoc """
  A LibTorch tensor: an array of numbers with a shape, a dtype and a device.

      iex> t = ExTorch.tensor([[1, 2, 3], [4, 5, 6]])
      iex> {t.shape, t.dtype, t.device}
      {{2, 3}, :int64, :cpu}
      iex> t |> ExTorch.Tensor.transpose() |> ExTorch.Tensor.to_list()
      [[1, 4], [2, 5], [3, 6]]

  The struct describes the tensor, which is the native `resource`. The resource is freed when it is no longer referenced
  (`ExTorch.Memory`). The shape, dtype and device of a tensor never change. Its values change only if an in-place
  operator is called (`ExTorch.op("add_", …)`). All tensors that share the memory then have the new values.

  ## Binaries and frozen memory

  `from_binary/3` and `to_binary/1` share memory with Erlang binaries instead of copying it. Binaries are immutable.
  Therefore memory that is shared with a binary is *frozen* while the binary is referenced: an operator that would write
  to it, through any tensor, raises `%ExTorch.Error{reason: :frozen}`. `clone/1` returns a copy that is not frozen.
  The indices of sparse tensors and the scales of quantized ones are frozen as well, while the tensor lives, because
  LibTorch relies on their values.
  """
  @moduledoc groups: ["Values", "Properties", "Shapes", "Memory, dtypes and devices"]

  alias ExTorch.{DType, Device, Error, Native, Options}
  alias ExTorch.Native.Call
  alias ExTorch.Native.Stub
  alias ExTorch.Tensor.{Compare, Stats}

  @type t :: %__MODULE__{
          resource: reference(),
          shape: tuple(),
          dtype: DType.dtype(),
          device: Device.device()
        }

  @enforce_keys [:resource, :shape, :dtype, :device]
  defstruct [:resource, :shape, :dtype, :device]

  @max_bins 65_536

  @doc false
  @spec check!(term()) :: t()
  def check!(%__MODULE__{} = tensor), do: tensor
  def check!(other), do: Options.expected!("a tensor (see ExTorch.tensor/2)", other)

  # ---- Conversion from and to Elixir terms ----

  @doc group: "Values"
  @doc """
  Creates a tensor that shares the memory of a binary.

  The tensor keeps the binary alive, and the memory is frozen. If the address of the binary is not a multiple of the
  element size, which can happen with sub-binaries, the data is copied. The copy is frozen as well.

      iex> t = ExTorch.Tensor.from_binary(<<1, 2, 3, 4, 5, 6>>, {2, 3}, :uint8)
      iex> ExTorch.Tensor.to_list(t)
      [[1, 2, 3], [4, 5, 6]]
      iex> ExTorch.Tensor.from_binary(<<1, 2, 3>>, {2}, :int16)
      ** (ExTorch.Error) the binary has 3 bytes, but this shape of int16 needs 4
  """
  @spec from_binary(binary(), tuple() | [non_neg_integer()], DType.input()) :: t()
  def from_binary(binary, shape, dtype) do
    unless is_binary(binary), do: Options.expected!("a binary", binary)
    dtype = DType.normalize!(dtype)
    Error.unwrap!(Call.tensor_from_binary(binary, check_shape!(shape), dtype))
  end

  @doc group: "Values"
  @doc """
  Returns the values as a binary, in row-major order and native byte order.

  The binary shares the memory of a contiguous CPU tensor, which is frozen while the binary is referenced. Other tensors
  are copied once. If another process is inside an operator that writes to the memory, the call waits for its end. The
  values are copied if that takes more than a second, or if another library may write to the memory (`extorch.h`).

      iex> ExTorch.Tensor.to_binary(ExTorch.tensor([1, 2, 3], dtype: :uint8))
      <<1, 2, 3>>
  """
  @spec to_binary(t()) :: binary()
  def to_binary(tensor),
    do: Error.unwrap!(Call.tensor_to_binary(check!(tensor)))

  @doc group: "Values"
  @doc """
  Returns the values as nested lists.

  Floats that Elixir cannot represent become `:nan`, `:infinity` and `:neg_infinity`.

      iex> ExTorch.Tensor.to_list(ExTorch.tensor([[0.5, :infinity], [:nan, -1]]))
      [[0.5, :infinity], [:nan, -1.0]]
      iex> ExTorch.Tensor.to_list(ExTorch.tensor(7))
      7
  """
  @spec to_list(t()) :: term()
  def to_list(tensor), do: Error.unwrap!(Call.tensor_to_list(check!(tensor)))

  # ---- Properties ----

  @doc group: "Properties"
  @doc """
  Returns the strides in elements, one per dimension, or `nil` for sparse tensors.

      iex> ExTorch.Tensor.strides(ExTorch.zeros({2, 3, 4}))
      {12, 4, 1}
  """
  @spec strides(t()) :: tuple() | nil
  def strides(tensor), do: Error.unwrap!(Call.tensor_strides(check!(tensor)))

  @doc group: "Properties"
  @doc """
  Returns the number of elements.

      iex> ExTorch.Tensor.numel(ExTorch.zeros({2, 3}))
      6
  """
  @spec numel(t()) :: non_neg_integer()
  def numel(%__MODULE__{shape: shape}) when is_tuple(shape),
    do: Enum.reduce(Tuple.to_list(shape), 1, &(&1 * &2))

  def numel(other), do: Options.expected!("a tensor (see ExTorch.tensor/2)", other)

  @doc group: "Properties"
  @doc """
  Returns the size of all elements in bytes. This is the size of `to_binary/1`.

      iex> ExTorch.Tensor.nbytes(ExTorch.zeros({2, 3}, dtype: :float16))
      12
  """
  @spec nbytes(t()) :: non_neg_integer()
  def nbytes(tensor), do: numel(tensor) * DType.size(tensor.dtype)

  @doc group: "Values"
  @doc """
  Returns true if both tensors have the same shape, dtype and values. NaN is not equal to itself, as in torch.

      iex> ExTorch.Tensor.equal?(ExTorch.tensor([1, 2]), ExTorch.tensor([1, 2]))
      true
      iex> ExTorch.Tensor.equal?(ExTorch.tensor([1, 2]), ExTorch.tensor([1.0, 2.0]))
      false
  """
  @spec equal?(t(), t()) :: boolean()
  def equal?(a, b), do: Error.unwrap!(Call.tensor_equal(check!(a), check!(b)))

  @doc group: "Values"
  @doc """
  Returns true if both tensors have the same shape and all their values are close, as in `torch.allclose`.

  Two values are close if they are equal, or if `|a - b| <= atol + rtol * |b|`. An infinity is only close to itself.

      iex> a = ExTorch.tensor([1.0, 2.0])
      iex> ExTorch.Tensor.allclose?(a, ExTorch.tensor([1.0, 2.000001]))
      true
      iex> ExTorch.Tensor.allclose?(a, ExTorch.tensor([1.0, 2.1]))
      false
      iex> ExTorch.Tensor.allclose?(a, ExTorch.tensor([1, 2]))
      true

  The dtypes may differ. The values are compared as `:float64` or `:complex128`; integers that are equal are close,
  whatever their size. Sparse tensors are compared as dense ones, quantized tensors by the values they stand for. The
  memory that this needs does not depend on the size of the tensors.

  ## Options

    * `:rtol` - the relative tolerance. Defaults to `1.0e-5`.
    * `:atol` - the absolute tolerance. Defaults to `1.0e-8`.
    * `:equal_nan` - if `true`, NaN is close to NaN. Defaults to `false`.
  """
  @spec allclose?(t(), t(), keyword()) :: boolean()
  def allclose?(a, b, opts \\ []) do
    options = opts |> Options.validate!(rtol: 1.0e-5, atol: 1.0e-8, equal_nan: false) |> Map.new()

    Compare.check!(options)
    Compare.close?(check!(a), check!(b), options)
  end

  @doc group: "Properties"
  @doc """
  Returns statistics of the values.

    * `:numel`, `:zeros`, `:nan`, `:infinite` - how many values there are, and how many of these kinds
    * `:min`, `:max`, `:mean`, `:std` - of the finite values, as floats; `nil` if there are none. `:mean` and `:std` are also
      `nil` if they exceed a float64. Complex numbers count by their absolute value.
    * `:histogram` - how many of the finite values are in each of the intervals of equal width from `:min` to `:max`
    * `:sampled` - whether only a part of the values was read (see `:sample`)

          iex> stats = ExTorch.Tensor.stats(ExTorch.tensor([0.0, 1.0, 2.0, :nan]), bins: 2)
          iex> {stats.numel, stats.zeros, stats.nan, stats.min, stats.max, stats.mean}
          {4, 1, 1, 0.0, 2.0, 1.0}
          iex> stats.histogram
          [1, 2]

  ## Options

    * `:sample` - reads about this many values of a larger tensor, taken evenly. Defaults to `nil`: all values.
    * `:bins` - the number of intervals of the histogram, up to 65,536. Defaults to 24.

  Memory stays bounded for tensors of any size. A sparse tensor is made dense, so one of more than 4,194,304 elements is
  an `:unsupported` error.
  """
  @spec stats(t(), keyword()) :: %{
          numel: non_neg_integer(),
          zeros: non_neg_integer(),
          nan: non_neg_integer(),
          infinite: non_neg_integer(),
          min: float() | nil,
          max: float() | nil,
          mean: float() | nil,
          std: float() | nil,
          histogram: [non_neg_integer()],
          sampled: boolean()
        }
  def stats(tensor, opts \\ []) do
    opts = Options.validate!(opts, sample: nil, bins: 24)
    {sample, bins} = {opts[:sample], opts[:bins]}

    unless sample == nil or (is_integer(sample) and sample > 0),
      do: Options.invalid!(:sample, "a positive integer or nil", sample)

    unless is_integer(bins) and bins in 1..@max_bins,
      do: Options.invalid!(:bins, "an integer from 1 to #{@max_bins}", bins)

    Stats.describe(check!(tensor), sample, bins)
  end

  @doc group: "Properties"
  @doc """
  Returns true if the tensor is marked as requiring a gradient.

  The mark is read from checkpoints and saved to them. ExTorch never computes gradients.

      iex> t = ExTorch.zeros({2})
      iex> ExTorch.Tensor.requires_grad(t)
      false
      iex> t |> ExTorch.Tensor.requires_grad(true) |> ExTorch.Tensor.requires_grad()
      true
  """
  @spec requires_grad(t()) :: boolean()
  def requires_grad(tensor),
    do: Error.unwrap!(Call.tensor_requires_grad(check!(tensor)))

  @doc group: "Properties"
  @doc """
  Returns a tensor that shares the memory and is marked, or not marked, as requiring a gradient.

      iex> ExTorch.ones({2}) |> ExTorch.Tensor.requires_grad(true) |> ExTorch.Tensor.requires_grad()
      true
  """
  @spec requires_grad(t(), boolean()) :: t()
  def requires_grad(tensor, flag) when is_boolean(flag),
    do: set_requires_grad(check!(tensor), flag)

  def requires_grad(_tensor, flag), do: Options.expected!("a boolean", flag)

  defp set_requires_grad(tensor, flag),
    do: Error.unwrap!(Call.tensor_set_requires_grad(tensor, flag))

  @doc group: "Memory, dtypes and devices"
  @doc """
  Releases the tensor immediately instead of at the next garbage collection.

  Using the tensor afterwards raises `:released`. Views, binaries and blobs that share its memory stay valid, and keep
  the memory. Releasing a tensor again has no effect.

      iex> t = ExTorch.zeros({2})
      iex> ExTorch.Tensor.release(t)
      :ok
      iex> ExTorch.Tensor.to_list(t)
      ** (ExTorch.Error) this tensor was released; use it before ExTorch.Tensor.release/1 or keep a clone
  """
  @spec release(t()) :: :ok
  def release(tensor) do
    tensor = check!(tensor)
    Stub.checked(:tensor_release, fn -> Native.tensor_release(tensor) end)
  end

  # ---- Conversion to other dtypes, devices and layouts ----

  @doc group: "Memory, dtypes and devices"
  @doc """
  Converts the tensor to another dtype or device, or both. Does not copy if nothing changes.

      iex> ExTorch.Tensor.to(ExTorch.tensor([1, 2]), :float32).dtype
      :float32
      iex> ExTorch.Tensor.to(ExTorch.tensor([1.5]), dtype: :int32, device: :cpu) |> ExTorch.Tensor.to_list()
      [1]

  ## Options

    * `:dtype` - the new dtype
    * `:device` - the new device
    * `:copy` - if `true`, copies in any case. Defaults to `false`.
    * `:non_blocking` - if `true`, does not wait for copies between pinned memory and a device; see `pin/1`.
      Defaults to `false`.
  """
  @spec to(t(), DType.input() | Device.device() | keyword()) :: t()
  def to(tensor, target)
  def to(tensor, opts) when is_list(opts), do: convert(check!(tensor), opts)

  def to(tensor, target) do
    case Device.normalize(target) do
      {:ok, device} -> to(tensor, device: device)
      :error -> to(tensor, dtype: target)
    end
  end

  defp convert(tensor, opts) do
    opts = Options.validate!(opts, [:dtype, :device, :copy, :non_blocking])

    kwargs =
      Enum.map(opts, fn
        {:dtype, dtype} -> {:dtype, DType.normalize!(dtype)}
        {:device, device} -> {:device, Device.check!(device)}
        {key, flag} when is_boolean(flag) -> {key, flag}
        {key, other} -> Options.invalid!(key, "a boolean", other)
      end)

    ExTorch.op("aten::to.dtype_layout", [tensor], kwargs)
  end

  @doc group: "Memory, dtypes and devices"
  @doc """
  Copies the tensor to pinned (page-locked) memory, from which copies to a device can be asynchronous.

  Raises `:unsupported` if there is no device but the CPU. LibTorch before 2.6 pins memory for CUDA only.

      batch |> ExTorch.Tensor.pin() |> ExTorch.Tensor.to(device: :cuda, non_blocking: true)
  """
  @spec pin(t()) :: t()
  def pin(tensor) do
    tensor = check!(tensor)

    if Device.available() == [:cpu] do
      raise Error.new(
              :unsupported,
              "pinned memory requires a CUDA device, or that of another backend"
            )
    end

    ExTorch.op("aten::pin_memory", [tensor])
  end

  @doc group: "Memory, dtypes and devices"
  @doc """
  Returns a contiguous tensor with the same values. Does not copy if the tensor is contiguous.

      iex> t = ExTorch.Tensor.transpose(ExTorch.zeros({2, 3}))
      iex> {ExTorch.Tensor.strides(t), ExTorch.Tensor.strides(ExTorch.Tensor.contiguous(t))}
      {{1, 3}, {2, 1}}
  """
  @spec contiguous(t()) :: t()
  def contiguous(tensor), do: ExTorch.op("aten::contiguous", [check!(tensor)])

  @doc group: "Memory, dtypes and devices"
  @doc """
  Returns a copy of the tensor. The copy is not frozen.

      iex> frozen = ExTorch.Tensor.from_binary(<<1, 2>>, {2}, :uint8)
      iex> ExTorch.op("fill_", [ExTorch.Tensor.clone(frozen), 3]) |> ExTorch.Tensor.to_list()
      [3, 3]
  """
  @spec clone(t()) :: t()
  def clone(tensor), do: ExTorch.op("aten::clone", [check!(tensor)])

  # ---- Shapes ----

  @doc group: "Shapes"
  @doc """
  Returns a tensor with the same values and another shape. One size may be -1; it is computed from the others.

  The result is a view if the strides allow it, otherwise a copy.

      iex> ExTorch.Tensor.reshape(ExTorch.arange(6), {2, -1}).shape
      {2, 3}
  """
  @spec reshape(t(), tuple() | [integer()]) :: t()
  def reshape(tensor, shape),
    do: ExTorch.op("aten::reshape", [check!(tensor), check_shape!(shape)])

  @doc group: "Shapes"
  @doc """
  Returns a view with two dimensions swapped, by default the last two.

      iex> ExTorch.Tensor.transpose(ExTorch.zeros({2, 3, 4}), 0, 1).shape
      {3, 2, 4}
  """
  @spec transpose(t(), integer(), integer()) :: t()
  def transpose(tensor, a \\ -2, b \\ -1),
    do: ExTorch.op("aten::transpose.int", [check!(tensor), a, b])

  @doc group: "Shapes"
  @doc """
  Returns a view of a part of the tensor.

  The part is given as a dimension and a range, or as a list of selectors, one per dimension from the first on. A
  selector is a range (both ends are included, negative ends count from the end), an integer, which removes the
  dimension, or `:all`.

      iex> t = ExTorch.Tensor.reshape(ExTorch.arange(12), {3, 4})
      iex> ExTorch.Tensor.to_list(ExTorch.Tensor.slice(t, 1, 1..2))
      [[1, 2], [5, 6], [9, 10]]
      iex> ExTorch.Tensor.to_list(ExTorch.Tensor.slice(t, [-1, 0..-1//2]))
      [8, 10]
  """
  @spec slice(t(), [Range.t() | integer() | :all]) :: t()
  def slice(tensor, selectors) do
    unless is_list(selectors) and not List.improper?(selectors),
      do: Options.expected!("a list of selectors such as [0..1, :all]", selectors)

    {result, _dim} =
      Enum.reduce(selectors, {check!(tensor), 0}, fn
        :all, {view, dim} ->
          {view, dim + 1}

        index, {view, dim} when is_integer(index) ->
          {ExTorch.op("aten::select.int", [view, dim, index]), dim}

        range, {view, dim} ->
          {slice(view, dim, range), dim + 1}
      end)

    result
  end

  @doc group: "Shapes"
  @spec slice(t(), integer(), Range.t()) :: t()
  def slice(tensor, dim, range)

  def slice(%__MODULE__{shape: shape} = tensor, dim, first..last//step) when is_integer(dim) do
    rank = tuple_size(shape)

    if dim >= rank or dim < -rank do
      raise Error.new(
              :bad_argument,
              "expected a dimension of the shape #{inspect(shape)}, got #{dim}"
            )
    end

    size = elem(shape, Integer.mod(dim, rank))
    from_end = fn index -> if index < 0, do: index + size, else: index end

    # Elixir gives 0..-1 a step of -1. Here -1 means the last index, so the step is 1.
    step = if step == -1 and first >= 0 and last < 0, do: 1, else: step

    if step < 1 do
      raise Error.new(
              :bad_argument,
              "expected a range with a positive step, got #{inspect(first..last//step)}; \"flip\" reverses a tensor"
            )
    end

    stop = from_end.(last) + 1
    ExTorch.op("aten::slice.Tensor", [tensor, dim, from_end.(first), max(stop, 0), step])
  end

  def slice(tensor, dim, range) do
    check!(tensor)
    unless is_integer(dim), do: Options.expected!("the number of a dimension", dim)
    Options.expected!("a range such as 0..3", range)
  end

  @doc false
  @spec check_shape!(term()) :: [integer()]
  def check_shape!(shape) do
    sizes = if is_tuple(shape), do: Tuple.to_list(shape), else: shape

    if is_list(sizes) and not List.improper?(sizes) and length(sizes) <= 64 and
         Enum.all?(sizes, &(is_integer(&1) and &1 in -1..0x7FFFFFFFFFFFFFFF)) do
      sizes
    else
      raise Error.new(
              :bad_argument,
              "expected a shape to be a tuple of sizes such as {2, 3}, got #{Error.quoted(shape)}"
            )
    end
  end
end
