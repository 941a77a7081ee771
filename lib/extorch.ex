defmodule ExTorch do
  @moduledoc """
  PyTorch tensors and checkpoints for Elixir.

      iex> a = ExTorch.tensor([[1.0, 2.0], [3.0, 4.0]])
      iex> b = ExTorch.matmul(a, a) |> ExTorch.add(0.5)
      iex> ExTorch.Tensor.to_list(b)
      [[7.5, 10.5], [15.5, 22.5]]

  This module loads and saves checkpoints (`load/2`, `save/3`), creates tensors, has functions for common arithmetic
  and reductions, and calls any other LibTorch operator by name (`op/3`). See also:

    * `ExTorch.Checkpoint` - opens checkpoints and reads single tensors on demand
    * `ExTorch.Streaming` - reads and writes checkpoints through sockets and other streams
    * `ExTorch.Tensor` - the memory, shape and dtype of a tensor

  ## Without LibTorch

  Where ExTorch was built with `EXTORCH_TORCH=0`, or `config :extorch, torch: false` leaves LibTorch out, tensors are memory.
  All that reads, writes, converts and shares them works: checkpoints, streams, stores, Nx, blobs. So do the operators that
  only make views, copies and new tensors: `Tensor.slice/2`, `Tensor.reshape/2`, `Tensor.to/2`, `zeros/2`, `randn/2`, `cat/2`,
  `op("copy_", …)` and a few more. `diff/3` and `Tensor.stats/2` do not need LibTorch either. Every other operator returns `:unsupported`, and `info/0` has no version.

  ## Schedulers

  Calls that are known to be short run on the calling scheduler: views of any size, pointwise operators and reductions
  whose result has at most 2,048 elements, and conversions of lists of at most 256 elements. All other calls run on a
  dirty scheduler. Below these thresholds, switching to a dirty scheduler would take longer than the work itself
  (`bench/op.exs`).
  """
  @moduledoc groups: [
               "Checkpoints",
               "Creating tensors",
               "Elementwise",
               "Reductions",
               "Joining and products",
               "LibTorch"
             ]

  import Kernel, except: [abs: 1, div: 2, max: 2, min: 2, round: 1, floor: 1, ceil: 1]

  alias ExTorch.{Device, DType, Error, Native, Options, Telemetry, Tensor}
  alias ExTorch.Native.Call

  @type scalar ::
          number() | boolean() | :nan | :infinity | :neg_infinity | ExTorch.Python.Complex.t()
  @type operand :: Tensor.t() | scalar()

  @typedoc "The sizes of the dimensions: `{2, 3}`, `[2, 3]`, or `3` for one dimension."
  @type shape :: tuple() | [non_neg_integer()] | non_neg_integer()

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor from a number or from nested lists of numbers.

  Without `:dtype`, integers become `:int64`, floats `:float32`, booleans `:bool` and complex numbers `:complex64`. A
  list of mixed values gets the widest of these dtypes. A value that does not fit the dtype raises an error.

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

  ## Options

    * `:dtype` - the dtype of the tensor; inferred from the values by default.
    * `:device` - the device of the tensor. Defaults to `ExTorch.Device.default/0`, which is `:cpu`.
  """
  @spec tensor(scalar() | list(), keyword()) :: Tensor.t()
  def tensor(numbers, opts \\ []) do
    opts = Options.validate!(opts, [:dtype, :device])
    dtype = opts[:dtype] && DType.normalize!(opts[:dtype])
    device = if opts[:device], do: Device.check!(opts[:device]), else: Device.default()
    Error.unwrap!(Call.tensor(numbers, dtype, device))
  end

  @doc group: "LibTorch"
  @doc """
  Calls a LibTorch operator by name.

  The name is either short (`"add"`; the arguments select the overload) or full (`"aten::add.Tensor"`). Arguments are
  tensors, numbers, booleans, strings, `nil`, lists and tuples of these, dtypes (`:float32`), devices (`:cpu`,
  `{:cuda, 0}`), layouts and memory formats (`:channels_last`). Keyword arguments have the names and defaults of the
  operator's schema. Several results are returned as a tuple.

      iex> x = ExTorch.tensor([[1.0, 5.0, 3.0]])
      iex> {values, indices} = ExTorch.op("topk", [x, 2])
      iex> {ExTorch.Tensor.to_list(values), ExTorch.Tensor.to_list(indices)}
      {[[5.0, 3.0]], [[1, 2]]}
      iex> ExTorch.op("einsum", ["ij,kj->ik", [x, x]]) |> ExTorch.Tensor.to_list()
      [[35.0]]
      iex> ExTorch.op("sum", [x], dim: 1, keepdim: true).shape
      {1, 1}
      iex> ExTorch.op("matmull", [x, x])
      ** (ExTorch.Error) unknown operator "matmull"; did you mean "matmul"?

  Gradients are never recorded. Operators that end in `_` write to their first argument. They raise `:frozen` if an
  Erlang binary shares that memory. Operators that would move memory (`"set_"`, `"resize_"` to a larger size) raise an
  error. Operators that change the shape in place (`"t_"`, `"squeeze_"`) return a new tensor and leave their argument
  unchanged.

  Do not pass operator names or arguments from untrusted input: LibTorch checks most arguments, but not all of them.
  Names that begin with `_` are internal to LibTorch and must be given in full (`"aten::_name"`).
  """
  @spec op(String.t() | atom(), list(), keyword() | map()) :: term()
  def op(name, args, kwargs \\ [])

  def op(name, args, kwargs) when is_map(kwargs) and not is_struct(kwargs),
    do: op(name, args, Map.to_list(kwargs))

  def op(name, args, kwargs) when is_atom(name) and name != nil,
    do: op(Atom.to_string(name), args, kwargs)

  def op(name, args, kwargs) when is_binary(name) and is_list(args) and is_list(kwargs) do
    if byte_size(name) in 1..255 do
      Error.unwrap!(Call.op(name, args, kwargs))
    else
      raise Error.new(
              :not_found,
              "expected an operator name of 1 to 255 bytes, got #{byte_size(name)} bytes"
            )
    end
  end

  def op(name, args, _kwargs) when not (is_binary(name) and is_list(args)) do
    if is_binary(name),
      do: Options.expected!("the arguments of #{Error.quoted(name)} in a list", args),
      else: Options.expected!("the name of an operator", name)
  end

  def op(_name, _args, kwargs),
    do: Options.expected!("keyword arguments to be a keyword list or a map", kwargs)

  @doc group: "LibTorch"
  @doc """
  Returns the version of the linked LibTorch and the number of threads it uses within an operator. The version is `nil`
  without LibTorch.

      iex> %{version: version, num_threads: threads} = ExTorch.info()
      iex> (is_binary(version) or version == nil) and threads > 0
      true
  """
  @spec info() :: %{version: String.t() | nil, num_threads: pos_integer()}
  def info do
    {version, threads} = Native.info()
    %{version: version, num_threads: threads}
  end

  @doc group: "LibTorch"
  @doc """
  Seeds LibTorch's random number generators, for the whole node.

      iex> ExTorch.manual_seed(42)
      :ok
  """
  @spec manual_seed(non_neg_integer()) :: :ok
  def manual_seed(seed) when is_integer(seed) and seed in 0..0xFFFFFFFFFFFFFFFF,
    do: Native.manual_seed(seed)

  def manual_seed(other), do: Options.expected!("a seed from 0 to 2 ** 64 - 1", other)

  # ---- Checkpoints ----

  @doc group: "Checkpoints"
  @doc """
  Loads a whole checkpoint.

  Returns the Python object as Elixir data (`ExTorch.Python`), tensors included.

      {:ok, state_dict} = ExTorch.load("model.pt")
      state_dict["encoder.weight"]

  The source may be a URL (`ExTorch.Source.HTTP`). It may also be a Hugging Face index (`model.safetensors.index.json`)
  or the directory that contains it; all shards are then returned as one map. It may also be a folder of
  `torch.distributed.checkpoint` (`ExTorch.DCP`). Each storage is read once, and tensors that shared memory when they were saved
  share it again. Use `ExTorch.Checkpoint` to read single tensors of the same files on demand.

  ## Options

  All options of `ExTorch.Checkpoint.open/2` (`:mmap`, `:readers`, `:drop_behind`, `:verify`, `:strict`,
  `:ordered`, `:device`, `:offset`, `:limits`), and:

    * `:only` - which tensors to read: a name, `{:prefix, "encoder."}`, a regular expression, a function of the name, a
      function of the name and the `ExTorch.Checkpoint.Entry`, or a list of these. Other tensors are left out of dicts.
      In lists and tuples they are replaced by their entry. A filter that selects nothing is an error, except the empty
      list, which reads only what is not a tensor.
    * `:on_progress` - a function `fn done, total -> … end` of bytes, or a function of one map
      `%{done: bytes, total: bytes}`. It is called about ten times a second, first after a tenth of a second, and once at
      the end, when `done` is `total`; not at all after an error. `:bar` shows a bar with the rate and the time left on
      standard error, if that is a terminal.
    * `:as` - `:nx` returns Nx tensors (`ExTorch.Nx`). A file is mapped, unless `mmap: false` is given, so that a tensor is
      copied at most once on its way: not at all to `Nx.BinaryBackend`, whose tensors then share the page cache, and once
      to other backends, after which the mapping is gone. In place of a tensor without elements is an `%ExTorch.Error{}`,
      because Nx has none. Defaults to `:tensor`.
    * `:backend` - the backend for `as: :nx`, or `{backend, options}`. Defaults to `Nx.default_backend/0`.
  """
  @spec load(ExTorch.Checkpoint.source(), keyword()) :: {:ok, term()} | {:error, Error.t()}
  def load(source, opts \\ []) do
    {result, opts} = Options.result!(opts)
    opts = if result != :tensor, do: Keyword.put_new(opts, :mmap, true), else: opts

    Telemetry.span(
      :load,
      fn -> Telemetry.source(source) end,
      fn -> load_source(source, opts) end,
      &Telemetry.measure/1
    )
    |> Options.convert(result, source)
  end

  defp load_source(source, opts) do
    if ExTorch.Store.Sharded.index?(source),
      do: ExTorch.Store.Sharded.load(source, opts),
      else: ExTorch.Checkpoint.load(source, opts)
  end

  @doc group: "Checkpoints"
  @doc "Same as `load/2` but raises on error."
  @spec load!(ExTorch.Checkpoint.source(), keyword()) :: term()
  def load!(source, opts \\ []), do: Error.unwrap!(load(source, opts))

  @doc group: "Checkpoints"
  @doc """
  Saves a term to a file that Python's `torch.load` can read.

  This is the inverse of `load/2`, including the structs of `ExTorch.Python`.

      iex> path = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> ExTorch.save(%{"weight" => ExTorch.tensor([1.0, 2.0]), "epoch" => 3}, path)
      :ok
      iex> {:ok, %{"epoch" => 3, "weight" => weight}} = ExTorch.load(path)
      iex> ExTorch.Tensor.to_list(weight)
      [1.0, 2.0]
      iex> File.rm!(path)
      :ok

  Maps, keyword lists and `%ExTorch.Python.Dict{}` become dicts (the last two keep their order). Other lists become
  lists, tuples become tuples, `MapSet`s become sets, atoms become strings and `nil` becomes `None`. Strings must be
  valid UTF-8; use `%ExTorch.Python.Bytes{}` for bytes. Other structs, pids, references and functions are errors; the
  message contains their position in the term.

  Tensors that share memory also share it in the file. A view of a part of a storage saves the whole storage, as torch
  does, unless `compact: true` is given. The bytes of contiguous CPU tensors are written without a copy.

  The file is replaced atomically: it is written under a temporary name, synced to disk and then renamed. It keeps the
  permissions of the file it replaces.

  ## Options

    * `:format` - `:zip` (the format of `torch.save` since 1.6), `:legacy` (before 1.6), `:streaming`
      (`torch.distributed`), `:safetensors`, `:npy` (one tensor), `:npz` (a map of tensors), or `:dcp`: a folder of `torch.distributed.checkpoint` (`ExTorch.DCP`), with
      the option `:fsync` only. By default the ending of the path decides: `.safetensors` is
      `:safetensors`, `.npy` and `.npz` are those of numpy, and `.pt`, `.pth`, `.bin`, `.ckpt`, `.pkl`, `.tar` and no ending are `:zip`. Other endings are an
      error.
    * `:compact` - if `true`, saves only the bytes that tensors refer to instead of whole storages. Defaults to `false`.
    * `:fsync` - if `false`, does not wait until the data is on disk. This is faster. The file is still replaced
      atomically, but may be lost or incomplete after a power failure. Defaults to `true`.
    * `:metadata` - a map of strings; safetensors only.
    * `:duplicate` - safetensors cannot represent shared memory: tensors that share memory are an error, unless this is
      `true`, which saves their bytes once per tensor. Defaults to `false`.
    * `:on_progress` - as in `load/2`.

  A term saved as safetensors must be a map of names to tensors. Tensors that are not contiguous are made contiguous.
  """
  @spec save(term(), Path.t(), keyword()) :: :ok | {:error, Error.t()}
  def save(term, path, opts \\ []), do: ExTorch.Saver.save(term, path, opts)

  @doc group: "Checkpoints"
  @doc "Same as `save/3` but raises on error."
  @spec save!(term(), Path.t(), keyword()) :: :ok
  def save!(term, path, opts \\ []), do: Error.unwrap!(save(term, path, opts))

  @doc group: "Checkpoints"
  @doc """
  Converts a checkpoint from any format to any other.

      iex> pt = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> st = Path.rootname(pt) <> ".safetensors"
      iex> ExTorch.save!(%{"model" => %{"w" => ExTorch.tensor([1.5, 2.0])}, "epoch" => 3}, pt)
      iex> ExTorch.convert(pt, st, top_level_key: "model", dtype: :bfloat16)
      :ok
      iex> ExTorch.load!(st)["w"].dtype
      :bfloat16
      iex> {:error, error} = ExTorch.convert(pt, st)
      iex> error.message
      "only tensors can be converted in this way, but the file also contains \\"epoch\\"; use tensors_only: true to leave out what is not a tensor, or top_level_key: to convert a part"
      iex> Enum.each([pt, st], &File.rm!/1)
      :ok

  The source is as in `ExTorch.Checkpoint.state_dict/2`. The sink is the path of a file, which is replaced atomically as
  in `save/3`; with `:max_shard_size`, or if it is a directory or ends in `.index.json`, the result is a Hugging Face
  index with shards. With `:max_shard_size`, a path without an ending is a directory, which is created.

  A file is mapped, and its tensors are written from the mapping, so that memory stays bounded. With `:dtype`, one
  converted tensor is in memory at a time. Records that cannot be
  mapped (compressed, misaligned or of the other byte order) are read into memory. A source that is not a file is copied
  to a temporary file beside the sink, unless its tensors have less than 32 MiB.

  From one of the formats of `torch.save` to another, the whole object is kept: optimizer values, nested dicts, classes.
  All else contains only names and tensors: safetensors, shards, and the result of `:top_level_key`, `:rename` or
  `tensors_only: true`. These have the names of `ExTorch.Checkpoint.state_dict/2`. It is an error if the file contains
  other values, which would be lost, unless `tensors_only: true` is given. The `__metadata__` of safetensors files is kept
  in safetensors files.

  ## Options

    * `:format` - as in `save/3`
    * `:dtype` - the dtype to convert floats to; or a map of dtypes (`%{float32: :float16, int64: :int32}`); or a function
      of the name, or of the name and the entry, that returns a dtype or `nil`
    * `:only`, `:except` - filters as in `load/2`. Other tensors are left out.
    * `:top_level_key`, `:rename` - as in `ExTorch.Checkpoint.state_dict/2`
    * `:tensors_only` - if `true`, leaves out what is not a tensor. Defaults to `false`.
    * `:max_shard_size` - as in `ExTorch.Store.Sharded`
    * `:metadata`, `:fsync`, `:duplicate` - as in `save/3`; `:metadata` is added to that of the source
    * `:compact` - as in `save/3`. Defaults to `true` with `:only` or `:except`, otherwise to `false`.
    * `:strict`, `:verify`, `:limits`, `:offset` - as in `load/2`
    * `:on_progress` - as in `load/2`, about what is written
  """
  @spec convert(ExTorch.Checkpoint.source(), Path.t(), keyword()) :: :ok | {:error, Error.t()}
  def convert(source, sink, opts \\ []), do: ExTorch.Convert.convert(source, sink, opts)

  @doc group: "Checkpoints"
  @doc "Same as `convert/3` but raises on error."
  @spec convert!(ExTorch.Checkpoint.source(), Path.t(), keyword()) :: :ok
  def convert!(source, sink, opts \\ []), do: Error.unwrap!(convert(source, sink, opts))

  @doc group: "Checkpoints"
  @doc """
  Compares two checkpoints: names, shapes, dtypes and values.

  The sources are as in `ExTorch.Checkpoint.state_dict/2`: any files, in any format. The tensors are compared one after
  another, a piece at a time, so that memory stays bounded. Dtypes that the linked LibTorch does not support are compared
  as bytes.

      iex> a = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> b = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> ExTorch.save!(%{"w" => ExTorch.tensor([1.0, 2.0]), "epoch" => 1}, a)
      iex> ExTorch.save!(%{"w" => ExTorch.tensor([1.0, 2.5]), "epoch" => 2}, b)
      iex> {:ok, diff} = ExTorch.diff(a, b)
      iex> diff
      #ExTorch.Diff<
        values:
          epoch: 1 → 2
        changed:
          w: max 0.5, mean 0.25, 1 of 2 elements
        0 equal, 1 changed, 1 other values differ
      >
      iex> ExTorch.diff!(a, b, atol: 0.5, values: false)
      #ExTorch.Diff<1 equal>
      iex> Enum.each([a, b], &File.rm!/1)
      :ok

  ## Options

    * `:rtol`, `:atol` - values within these tolerances are not a difference: `|a - b| <= atol + rtol * |b|`. Both
      default to `0.0`: values must be equal.
    * `:equal_nan` - if `false`, NaN differs from NaN. Defaults to `true`.
    * `:check_dtype` - if `false`, tensors of different dtypes are equal if their values are. Defaults to `true`.
    * `:values` - if `false`, compares only tensors. Defaults to `true`.
    * `:top_level_key`, `:only`, `:except` - as in `ExTorch.Checkpoint.state_dict/2`, for both checkpoints.
      `top_level_key: :auto` compares a training checkpoint with an exported model.
    * `:rename` - as in `ExTorch.Checkpoint.state_dict/2`: gives the tensors of `a` their names in `b`
    * `:strict`, `:verify`, `:limits`, `:on_progress` - as in `load/2`
  """
  @spec diff(ExTorch.Checkpoint.source(), ExTorch.Checkpoint.source(), keyword()) ::
          {:ok, ExTorch.Diff.t()} | {:error, Error.t()}
  def diff(a, b, opts \\ []), do: ExTorch.Diff.diff(a, b, opts)

  @doc group: "Checkpoints"
  @doc "Same as `diff/3` but raises on error."
  @spec diff!(ExTorch.Checkpoint.source(), ExTorch.Checkpoint.source(), keyword()) ::
          ExTorch.Diff.t()
  def diff!(a, b, opts \\ []), do: Error.unwrap!(diff(a, b, opts))

  @doc group: "Checkpoints"
  @doc """
  Writes an HTML page about a checkpoint: a treemap, a table of the tensors with statistics and histograms, what is shared,
  what is not a tensor, and whether torch's `weights_only` accepts it.

  The sink is the path of a file, which is replaced atomically. See `ExTorch.Report` for the page and the options.

      ExTorch.report("model.pt", "model.html")
  """
  @spec report(ExTorch.Checkpoint.source() | ExTorch.Checkpoint.t(), Path.t(), keyword()) ::
          :ok | {:error, Error.t()}
  def report(source, sink, opts \\ []), do: ExTorch.Report.write(source, sink, opts)

  @doc group: "Checkpoints"
  @doc "Same as `report/3` but raises on error."
  @spec report!(ExTorch.Checkpoint.source() | ExTorch.Checkpoint.t(), Path.t(), keyword()) :: :ok
  def report!(source, sink, opts \\ []), do: Error.unwrap!(report(source, sink, opts))

  # ---- Creating tensors ----

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor of zeros.

  Options: `:dtype` (`:float32` by default) and `:device` (`ExTorch.Device.default/0` by default). All functions that create tensors take
  these options.

      iex> ExTorch.zeros({2, 2}, dtype: :int8) |> ExTorch.Tensor.to_list()
      [[0, 0], [0, 0]]
  """
  @spec zeros(shape(), keyword()) :: Tensor.t()
  def zeros(shape, opts \\ []), do: op("aten::zeros", [shape!(shape)], creation_options!(opts))

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor of ones.

      iex> ExTorch.ones(3, dtype: :int64) |> ExTorch.Tensor.to_list()
      [1, 1, 1]
  """
  @spec ones(shape(), keyword()) :: Tensor.t()
  def ones(shape, opts \\ []), do: op("aten::ones", [shape!(shape)], creation_options!(opts))

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor whose elements all have the same value.

      iex> ExTorch.full({3}, 2.5) |> ExTorch.Tensor.to_list()
      [2.5, 2.5, 2.5]
  """
  @spec full(shape(), scalar(), keyword()) :: Tensor.t()
  def full(shape, value, opts \\ []),
    do: op("aten::full", [shape!(shape), value], creation_options!(opts))

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor with uninitialized memory: its values are arbitrary.

      iex> ExTorch.empty({2, 3}, dtype: :float16).shape
      {2, 3}
  """
  @spec empty(shape(), keyword()) :: Tensor.t()
  def empty(shape, opts \\ []),
    do: op("aten::empty.memory_format", [shape!(shape)], creation_options!(opts))

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor of the numbers from `start` (0 by default) up to, but not including, `stop`.

  Takes the additional option `:step` (1 by default).

      iex> ExTorch.arange(2, 8, step: 2) |> ExTorch.Tensor.to_list()
      [2, 4, 6]
  """
  @spec arange(number()) :: Tensor.t()
  def arange(stop), do: arange(0, stop, [])

  @doc group: "Creating tensors"
  @spec arange(number(), number() | keyword()) :: Tensor.t()
  def arange(stop, opts) when is_list(opts), do: arange(0, stop, opts)
  def arange(start, stop), do: arange(start, stop, [])

  @doc group: "Creating tensors"
  @spec arange(number(), number(), keyword()) :: Tensor.t()
  def arange(start, stop, opts) do
    opts = Options.validate!(opts, [:dtype, :device, step: 1])
    {step, opts} = Keyword.pop!(opts, :step)
    op("aten::arange.start_step", [start, stop, step], creation_options!(opts))
  end

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor of random numbers, uniformly distributed over [0, 1). See `manual_seed/1`.

      iex> ExTorch.rand({2, 3}).shape
      {2, 3}
  """
  @spec rand(shape(), keyword()) :: Tensor.t()
  def rand(shape, opts \\ []), do: op("aten::rand", [shape!(shape)], creation_options!(opts))

  @doc group: "Creating tensors"
  @doc """
  Creates a tensor of random numbers from the standard normal distribution. See `manual_seed/1`.

      iex> ExTorch.randn({2, 3}, dtype: :float64).dtype
      :float64
  """
  @spec randn(shape(), keyword()) :: Tensor.t()
  def randn(shape, opts \\ []), do: op("aten::randn", [shape!(shape)], creation_options!(opts))

  # ---- Elementwise arithmetic, with broadcasting ----

  # The second and third elements are the operands of an example, the fourth is its result.
  @binary [
    {:add, [1, 2], 10, [11, 12]},
    {:sub, [1, 2], 10, [-9, -8]},
    {:mul, [1, 2], 10, [10, 20]},
    {:div, [1, 3], 2, [0.5, 1.5]},
    {:pow, [2, 3], 2, [4, 9]},
    {:remainder, [5, -5], 3, [2, 1]},
    {:maximum, [1, 5], [3, 3], [3, 5]},
    {:minimum, [1, 5], [3, 3], [1, 3]},
    {:eq, [1, 5], 5, [false, true]},
    {:ne, [1, 5], 5, [true, false]},
    {:lt, [1, 5], 5, [true, false]},
    {:le, [1, 5], 5, [true, true]},
    {:gt, [1, 5], 1, [false, true]},
    {:ge, [1, 5], 1, [true, true]},
    {:logical_and, [true, false], [true, true], [true, false]},
    {:logical_or, [true, false], [false, false], [true, false]}
  ]
  for {name, a, b, result} <- @binary do
    second = if is_list(b), do: "ExTorch.tensor(#{inspect(b)})", else: inspect(b)

    @doc """
    Applies torch's `#{name}` elementwise, with broadcasting. The second operand may be a number.

        iex> ExTorch.#{name}(ExTorch.tensor(#{inspect(a)}), #{second}) |> ExTorch.Tensor.to_list()
        #{inspect(result)}
    """
    @doc group: "Elementwise"
    @spec unquote(name)(operand(), operand()) :: Tensor.t()
    def unquote(name)(a, b), do: op(unquote("#{name}"), [a, b])
  end

  # The second element is the operand of an example, the third is its result.
  @unary [
    {:neg, [1, -2], [-1, 2]},
    {:abs, [1, -2], [1, 2]},
    {:exp, [0.0], [1.0]},
    {:log, [1.0], [0.0]},
    {:sqrt, [4.0, 9.0], [2.0, 3.0]},
    {:rsqrt, [4.0, 16.0], [0.5, 0.25]},
    {:sin, [0.0], [0.0]},
    {:cos, [0.0], [1.0]},
    {:tanh, [0.0], [0.0]},
    {:sigmoid, [0.0], [0.5]},
    {:relu, [1.5, -2.0], [1.5, 0.0]},
    {:floor, [1.5, -1.5], [1.0, -2.0]},
    {:ceil, [1.5, -1.5], [2.0, -1.0]},
    {:round, [1.25, 2.75], [1.0, 3.0]},
    {:logical_not, [true, false], [false, true]}
  ]
  for {name, operand, result} <- @unary do
    @doc """
    Applies torch's `#{name}` elementwise.

        iex> ExTorch.#{name}(ExTorch.tensor(#{inspect(operand)})) |> ExTorch.Tensor.to_list()
        #{inspect(result)}
    """
    @doc group: "Elementwise"
    @spec unquote(name)(Tensor.t()) :: Tensor.t()
    def unquote(name)(tensor), do: op(unquote("aten::#{name}"), [Tensor.check!(tensor)])
  end

  @doc group: "Joining and products"
  @doc """
  Returns the matrix product, with torch's rules for batches and broadcasting.

      iex> ExTorch.matmul(ExTorch.ones({2, 3}), ExTorch.ones({3, 1})) |> ExTorch.Tensor.to_list()
      [[3.0], [3.0]]
  """
  @spec matmul(Tensor.t(), Tensor.t()) :: Tensor.t()
  def matmul(a, b), do: op("aten::matmul", [Tensor.check!(a), Tensor.check!(b)])

  # ---- Reductions ----

  # The third element is the operand of an example, the fourth its result along the last dimension.
  @reductions [
    sum: {"Returns the sum of the elements", [:dim, :keepdim, :dtype], [[1, 2], [3, 4]], [3, 7]},
    mean:
      {"Returns the mean of the elements", [:dim, :keepdim, :dtype], [[1.0, 2.0], [3.0, 5.0]],
       [1.5, 4.0]},
    prod:
      {"Returns the product of the elements", [:dim, :keepdim, :dtype], [[1, 2], [3, 4]], [2, 12]},
    amax: {"Returns the largest element", [:dim, :keepdim], [[1, 2], [4, 3]], [2, 4]},
    amin: {"Returns the smallest element", [:dim, :keepdim], [[1, 2], [4, 3]], [1, 3]},
    argmax:
      {"Returns the index of the largest element", [:dim, :keepdim], [[1, 2], [4, 3]], [1, 0]},
    argmin:
      {"Returns the index of the smallest element", [:dim, :keepdim], [[1, 2], [4, 3]], [0, 1]},
    any:
      {"Returns a bool tensor that is true if any element is true", [:dim, :keepdim],
       [[true, false], [false, false]], [true, false]},
    all:
      {"Returns a bool tensor that is true if all elements are true", [:dim, :keepdim],
       [[true, true], [true, false]], [true, false]}
  ]
  for {name, {sentence, known, operand, result}} <- @reductions do
    names = Enum.map_join(known, ", ", &"`#{inspect(&1)}`")

    @doc """
    #{sentence}, over the whole tensor or along `:dim`. Options: #{names}.

        iex> ExTorch.#{name}(ExTorch.tensor(#{inspect(operand)}), dim: 1) |> ExTorch.Tensor.to_list()
        #{inspect(result)}
    """
    @doc group: "Reductions"
    @spec unquote(name)(Tensor.t(), keyword()) :: Tensor.t()
    def unquote(name)(tensor, opts \\ []),
      do: op(unquote("#{name}"), [Tensor.check!(tensor)], Options.validate!(opts, unquote(known)))
  end

  @doc group: "Reductions"
  @doc """
  Returns the largest element, over the whole tensor or along `:dim`. Options: `:dim`, `:keepdim`.

      iex> t = ExTorch.tensor([[1, 7], [5, 2]])
      iex> {ExTorch.Tensor.to_list(ExTorch.max(t)), ExTorch.Tensor.to_list(ExTorch.max(t, dim: 0))}
      {7, [5, 7]}
  """
  @spec max(Tensor.t(), keyword()) :: Tensor.t()
  def max(tensor, opts \\ []), do: amax(tensor, opts)

  @doc group: "Reductions"
  @doc """
  Returns the smallest element, over the whole tensor or along `:dim`. Options: `:dim`, `:keepdim`.

      iex> ExTorch.min(ExTorch.tensor([[1, 7], [5, 2]]), dim: 1) |> ExTorch.Tensor.to_list()
      [1, 2]
  """
  @spec min(Tensor.t(), keyword()) :: Tensor.t()
  def min(tensor, opts \\ []), do: amin(tensor, opts)

  @doc group: "Reductions"
  @doc """
  Returns the softmax along a dimension.

      iex> ExTorch.softmax(ExTorch.zeros({2}), 0) |> ExTorch.Tensor.to_list()
      [0.5, 0.5]
  """
  @spec softmax(Tensor.t(), integer()) :: Tensor.t()
  def softmax(tensor, dim), do: op("aten::softmax.int", [Tensor.check!(tensor), dim])

  @doc group: "Joining and products"
  @doc """
  Concatenates tensors along an existing dimension.

      iex> ExTorch.cat([ExTorch.tensor([1]), ExTorch.tensor([2, 3])]) |> ExTorch.Tensor.to_list()
      [1, 2, 3]
  """
  @spec cat([Tensor.t()], integer()) :: Tensor.t()
  def cat(tensors, dim \\ 0), do: op("aten::cat", [tensors!(tensors), dim])

  @doc group: "Joining and products"
  @doc """
  Concatenates tensors along a new dimension.

      iex> ExTorch.stack([ExTorch.tensor([1, 2]), ExTorch.tensor([3, 4])]) |> ExTorch.Tensor.to_list()
      [[1, 2], [3, 4]]
  """
  @spec stack([Tensor.t()], integer()) :: Tensor.t()
  def stack(tensors, dim \\ 0), do: op("aten::stack", [tensors!(tensors), dim])

  # ---- Arguments ----

  defp shape!(size) when is_integer(size), do: Tensor.check_shape!([size])
  defp shape!(shape), do: Tensor.check_shape!(shape)

  defp tensors!(tensors) do
    if is_list(tensors) and not List.improper?(tensors),
      do: Enum.map(tensors, &Tensor.check!/1),
      else: Options.expected!("a list of tensors", tensors)
  end

  defp creation_options!(opts) do
    default = Device.default()
    opts = Options.validate!(opts, [:dtype, :device])

    if(default == :cpu, do: opts, else: Keyword.put_new(opts, :device, default))
    |> Enum.map(fn
      {:dtype, dtype} -> {:dtype, DType.normalize!(dtype)}
      {:device, device} -> {:device, Device.check!(device)}
    end)
  end
end
