defmodule ExTorch do
  @moduledoc """
  PyTorch tensors and checkpoints as first-class citizens of the BEAM.

      iex> a = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
      iex> b = ExTorch.matmul(a, a) |> ExTorch.add(0.5)
      iex> ExTorch.Tensor.to_list(b)
      [[7.5, 10.5], [15.5, 22.5]]

  This module loads checkpoints (`load/2`; `ExTorch.Checkpoint` opens them lazily), makes tensors, does the arithmetic and reductions people reach for, and calls any other operator of
  LibTorch by its name (`op/3`). `ExTorch.Tensor` is about a tensor's memory and shape.

  ## Schedulers

  A call that is known to be brief runs where it is called: views of any size, pointwise operators and reductions whose
  result has at most 2,048 elements, lists of at most 256. Everything else, and everything whose length is not known
  beforehand, runs on a dirty scheduler. The threshold is where the work outgrows the cost of the switch
  (`bench/op.exs`).
  """

  import Kernel, except: [abs: 1, div: 2, max: 2, min: 2, round: 1, floor: 1, ceil: 1]

  alias ExTorch.{Device, DType, Error, Memory, Native, Options, Tensor}

  @type scalar ::
          number() | boolean() | :nan | :infinity | :neg_infinity | ExTorch.Python.Complex.t()
  @type operand :: Tensor.t() | scalar()

  @doc """
  A tensor from a number or nested lists of numbers.

  Without `:dtype` integers become `:int64`, floats `:float32`, booleans `:bool` and complex numbers `:complex64`; mixed
  lists take the widest. A value that the dtype cannot hold is an error.

      iex> ExTorch.tensor([[1, 2], [3, 4]], dtype: :float32)
      #ExTorch.Tensor<
        float32[2][2] cpu
        [
          [1.0, 2.0],
          [3.0, 4.0]
        ]
      >
      iex> ExTorch.tensor([[1, 2], [3]])
      ** (ExTorch.Error) the list is ragged: element [1] has length 1, but its siblings have length 2

  Options: `:dtype`, `:device`.
  """
  @spec tensor(scalar() | list(), keyword()) :: Tensor.t()
  def tensor(numbers, opts \\ []) do
    opts = Options.validate!(opts, [:dtype, :device])
    dtype = opts[:dtype] && DType.normalize!(opts[:dtype])
    device = Device.check!(opts[:device] || :cpu)
    Memory.run!(fn -> Native.tensor(numbers, dtype, device) end)
  end

  @doc """
  Calls an operator of LibTorch by its name.

  The name is `"add"`, where the arguments choose the overload, or a full `"aten::add.Tensor"`. Arguments are tensors,
  numbers, booleans, strings, `nil`, lists and tuples of those, dtypes (`:float32`), devices (`:cpu`, `{:cuda, 0}`),
  layouts and memory formats (`:channels_last`); keyword arguments have the names and defaults of the schema. One
  result comes as itself, several as a tuple.

      iex> x = ExTorch.tensor([[1.0, 5.0, 3.0]])
      iex> {values, indices} = ExTorch.op("topk", [x, 2])
      iex> {ExTorch.Tensor.to_list(values), ExTorch.Tensor.to_list(indices)}
      {[[5.0, 3.0]], [[1, 2]]}
      iex> ExTorch.op("einsum", ["ij,kj->ik", [x, x]]) |> ExTorch.Tensor.to_list()
      [[35.0]]
      iex> ExTorch.op("sum", [x], dim: 1, keepdim: true).shape
      {1, 1}
      iex> ExTorch.op("matmull", [x, x])
      ** (ExTorch.Error) there is no operator "matmull"; did you mean "matmul"?

  No gradient is ever recorded. Operators that end in `_` write to their first argument; memory that a binary sees is
  refused (`:frozen`), and so are operators that would move memory (`"set_"`, `"resize_"` to a larger size). Operators
  that change shape in place (`"t_"`, `"squeeze_"`) leave the tensor as it was and return the changed one.

  Operators are for code you trust: LibTorch checks most of their arguments, not all. Names that begin with `_` are its
  own business and need the full `"aten::_name"`.
  """
  @spec op(String.t() | atom(), list(), keyword() | map()) :: term()
  def op(name, args, kwargs \\ [])
  def op(name, args, kwargs) when is_map(kwargs), do: op(name, args, Map.to_list(kwargs))

  def op(name, args, kwargs) when is_atom(name), do: op(Atom.to_string(name), args, kwargs)

  def op(name, args, kwargs) when is_binary(name) and is_list(args) and is_list(kwargs) do
    if byte_size(name) in 1..255 do
      Memory.run!(fn -> Native.op(name, args, kwargs) end)
    else
      raise Error.new(:not_found, "there is no operator with a name of #{byte_size(name)} bytes")
    end
  end

  @doc """
  The version of the linked LibTorch and the number of threads it uses inside an operator.

      iex> %{version: version, num_threads: threads} = ExTorch.info()
      iex> is_binary(version) and threads > 0
      true
  """
  @spec info() :: %{version: String.t(), num_threads: pos_integer()}
  def info do
    {version, threads} = Native.info()
    %{version: version, num_threads: threads}
  end

  @doc "Seeds LibTorch's random numbers, for the whole node."
  @spec manual_seed(non_neg_integer()) :: :ok
  def manual_seed(seed) when is_integer(seed) and seed >= 0, do: Native.manual_seed(seed)

  # ---- Checkpoints ----

  @doc """
  Loads a whole checkpoint: the Python object as Elixir data (`ExTorch.Python`), with tensors in place.

      {:ok, state_dict} = ExTorch.load("model.pt")
      state_dict["encoder.weight"]

  A path may also be a Hugging Face index (`model.safetensors.index.json`) or the folder that has it: all its shards come as
  one map. Each storage is read once, and tensors that shared memory share it again. `ExTorch.Checkpoint` opens the same files
  lazily and documents the sources and the options `:mmap`, `:verify`, `:strict`, `:ordered`, `:device` and `:limits`.
  Besides those:

    * `:only` - names, regular expressions, functions of the name (or of name and entry), or a list of such: the only
      tensors to read. The others are left out of dicts; in lists and tuples an `ExTorch.Checkpoint.Entry` keeps their
      place.
    * `:on_progress` - a function of bytes done and bytes in total, called about ten times a second and at the end.
  """
  @spec load(ExTorch.Checkpoint.source(), keyword()) :: {:ok, term()} | {:error, Error.t()}
  def load(source, opts \\ []) do
    if ExTorch.Store.Sharded.index?(source),
      do: ExTorch.Store.Sharded.load(source, opts),
      else: ExTorch.Checkpoint.load(source, opts)
  end

  @doc "The same, raising."
  @spec load!(ExTorch.Checkpoint.source(), keyword()) :: term()
  def load!(source, opts \\ []), do: Error.bang!(load(source, opts))

  @doc """
  Saves a term to a file that Python's `torch.load` reads: the inverse of `load/2`, structs of `ExTorch.Python` included.

      iex> path = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> ExTorch.save(%{"weight" => ExTorch.tensor([1.0, 2.0]), "epoch" => 3}, path)
      :ok
      iex> {:ok, %{"epoch" => 3, "weight" => weight}} = ExTorch.load(path)
      iex> ExTorch.Tensor.to_list(weight)
      [1.0, 2.0]
      iex> File.rm!(path)
      :ok

  Maps, keyword lists and `%ExTorch.Python.Dict{}` become dicts (the last two keep their order), other lists lists, tuples
  tuples, `MapSet`s sets, atoms strings, `nil` None. Strings are UTF-8; bytes go into `%ExTorch.Python.Bytes{}`. A struct
  that is not ours, a pid or a function is refused, with its place in the term.

  Tensors that share memory share it in the file; a view of a part of a storage writes the whole storage, as torch does,
  unless `compact: true`. Their bytes go from where they are to the file without a copy. The file appears whole or not at
  all: it is written aside, synced, and put in the place of the old one, whose permissions it takes over.

  Options:

    * `:format` - `:zip` (what `torch.save` writes today), `:legacy` (before 1.6), `:streaming` (`torch.distributed`) or
      `:safetensors`. By default `:safetensors` for a path that ends in `.safetensors`, else `:zip`.
    * `:compact` - `false`. `true` writes only the bytes that tensors see.
    * `:fsync` - `true`. `false` does not wait for the disk: faster, and still never half-written while the machine runs.
    * `:metadata` - a map of strings, for safetensors.
    * `:duplicate` - `false`. Safetensors cannot say that tensors share memory: an error, unless `true` writes it twice.
    * `:on_progress` - a function of bytes done and bytes in total, called about ten times a second and at the end.

  Safetensors holds a map of names and tensors; other layouts than row-major are made so on the way.
  """
  @spec save(term(), Path.t(), keyword()) :: :ok | {:error, Error.t()}
  def save(term, path, opts \\ []), do: ExTorch.Saver.save(term, path, opts)

  @doc "The same, raising."
  @spec save!(term(), Path.t(), keyword()) :: :ok
  def save!(term, path, opts \\ []), do: Error.bang!(save(term, path, opts))

  # ---- Making tensors ----

  @doc """
  Zeros. Options of all makers: `:dtype`, `:device`.

      iex> ExTorch.zeros({2, 2}, dtype: :int8) |> ExTorch.Tensor.to_list()
      [[0, 0], [0, 0]]
  """
  @spec zeros(tuple() | list(), keyword()) :: Tensor.t()
  def zeros(shape, opts \\ []), do: op("aten::zeros", [shape], maker!(opts))

  @doc "Ones."
  @spec ones(tuple() | list(), keyword()) :: Tensor.t()
  def ones(shape, opts \\ []), do: op("aten::ones", [shape], maker!(opts))

  @doc """
  One value everywhere.

      iex> ExTorch.full({3}, 2.5) |> ExTorch.Tensor.to_list()
      [2.5, 2.5, 2.5]
  """
  @spec full(tuple() | list(), scalar(), keyword()) :: Tensor.t()
  def full(shape, value, opts \\ []), do: op("aten::full", [shape, value], maker!(opts))

  @doc "Memory that nothing was written to: its values are arbitrary."
  @spec empty(tuple() | list(), keyword()) :: Tensor.t()
  def empty(shape, opts \\ []), do: op("aten::empty.memory_format", [shape], maker!(opts))

  @doc """
  Numbers from `start` (0 when left out) to below `stop`. Also takes `:step`.

      iex> ExTorch.arange(2, 8, step: 2) |> ExTorch.Tensor.to_list()
      [2, 4, 6]
  """
  @spec arange(number()) :: Tensor.t()
  def arange(stop), do: arange(0, stop, [])

  @spec arange(number(), number() | keyword()) :: Tensor.t()
  def arange(stop, opts) when is_list(opts), do: arange(0, stop, opts)
  def arange(start, stop), do: arange(start, stop, [])

  @spec arange(number(), number(), keyword()) :: Tensor.t()
  def arange(start, stop, opts) do
    {step, opts} = Keyword.pop(opts, :step, 1)
    op("aten::arange.start_step", [start, stop, step], maker!(opts))
  end

  @doc "Random numbers, uniform from 0 to below 1 (`manual_seed/1`)."
  @spec rand(tuple() | list(), keyword()) :: Tensor.t()
  def rand(shape, opts \\ []), do: op("aten::rand", [shape], maker!(opts))

  @doc "Random numbers of the standard normal distribution."
  @spec randn(tuple() | list(), keyword()) :: Tensor.t()
  def randn(shape, opts \\ []), do: op("aten::randn", [shape], maker!(opts))

  # ---- Arithmetic: element by element, broadcast ----

  for name <-
        ~w(add sub mul div pow remainder maximum minimum eq ne lt le gt ge logical_and logical_or)a do
    @doc "torch's `#{name}`, element by element; either side may be broadcast, and the second may be a number."
    @spec unquote(name)(operand(), operand()) :: Tensor.t()
    def unquote(name)(a, b), do: op(unquote("#{name}"), [a, b])
  end

  for name <-
        ~w(neg abs exp log sqrt rsqrt sin cos tanh sigmoid relu floor ceil round logical_not)a do
    @doc "torch's `#{name}`, element by element."
    @spec unquote(name)(Tensor.t()) :: Tensor.t()
    def unquote(name)(%Tensor{} = tensor), do: op(unquote("aten::#{name}"), [tensor])
  end

  @doc """
  The matrix product, batched and broadcast as torch does it.

      iex> ExTorch.matmul(ExTorch.ones({2, 3}), ExTorch.ones({3, 1})) |> ExTorch.Tensor.to_list()
      [[3.0], [3.0]]
  """
  @spec matmul(Tensor.t(), Tensor.t()) :: Tensor.t()
  def matmul(%Tensor{} = a, %Tensor{} = b), do: op("aten::matmul", [a, b])

  # ---- Reductions ----

  @reductions [
    sum: "the sum",
    mean: "the mean",
    prod: "the product",
    amax: "the largest value",
    amin: "the smallest value",
    argmax: "the index of the largest value",
    argmin: "the index of the smallest value",
    any: "is any element true",
    all: "are all elements true"
  ]
  for {name, words} <- @reductions do
    @doc "#{String.capitalize(words)}, of everything or along `:dim`. Options: `:dim`, `:keepdim`."
    @spec unquote(name)(Tensor.t(), keyword()) :: Tensor.t()
    def unquote(name)(%Tensor{} = tensor, opts \\ []), do: op(unquote("#{name}"), [tensor], opts)
  end

  @doc """
  The largest value of everything, or along `:dim`.

      iex> t = ExTorch.tensor([[1, 7], [5, 2]])
      iex> {ExTorch.Tensor.to_list(ExTorch.max(t)), ExTorch.Tensor.to_list(ExTorch.max(t, dim: 0))}
      {7, [5, 7]}
  """
  @spec max(Tensor.t(), keyword()) :: Tensor.t()
  def max(tensor, opts \\ []), do: amax(tensor, opts)

  @doc "The smallest value of everything, or along `:dim`."
  @spec min(Tensor.t(), keyword()) :: Tensor.t()
  def min(tensor, opts \\ []), do: amin(tensor, opts)

  @doc """
  The softmax along a dimension.

      iex> ExTorch.softmax(ExTorch.zeros({2}), 0) |> ExTorch.Tensor.to_list()
      [0.5, 0.5]
  """
  @spec softmax(Tensor.t(), integer()) :: Tensor.t()
  def softmax(%Tensor{} = tensor, dim), do: op("aten::softmax.int", [tensor, dim])

  @doc """
  One tensor of several, along an existing dimension.

      iex> ExTorch.cat([ExTorch.tensor([1]), ExTorch.tensor([2, 3])]) |> ExTorch.Tensor.to_list()
      [1, 2, 3]
  """
  @spec cat([Tensor.t()], integer()) :: Tensor.t()
  def cat(tensors, dim \\ 0) when is_list(tensors), do: op("aten::cat", [tensors, dim])

  @doc "One tensor of several, along a new dimension."
  @spec stack([Tensor.t()], integer()) :: Tensor.t()
  def stack(tensors, dim \\ 0) when is_list(tensors), do: op("aten::stack", [tensors, dim])

  # ---- Options ----

  defp maker!(opts) do
    opts
    |> Options.validate!([:dtype, :device])
    |> Enum.map(fn
      {:dtype, dtype} -> {:dtype, DType.normalize!(dtype)}
      {:device, device} -> {:device, Device.check!(device)}
    end)
  end
end
