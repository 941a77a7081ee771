defmodule ExTorch.Checkpoint do
  @moduledoc """
  Reads checkpoints lazily: opening a file takes milliseconds, and a tensor is read when it is requested.

      {:ok, ckpt} = ExTorch.Checkpoint.open("model.pt")
      ExTorch.Checkpoint.keys(ckpt)
      #=> ["encoder.weight", "encoder.bias", …]
      {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, "encoder.weight")

  ## Sources

  A source is a path, a URL (`ExTorch.Source.HTTP`), `{:binary, binary}` or a struct whose module implements
  `ExTorch.Source`. Tensors of a `{:binary, binary}` share the memory of the binary.

  ## Formats

  The format is detected from the content, never from the file name: the zip files of `torch.save`, TorchScript and C++
  archives (as data), the legacy and tar formats of old versions, the streaming format of `torch.distributed`,
  safetensors, plain pickles, numpy's `.npy` (a single tensor) and `.npz`, and gzip files of any of these. A folder of
  `torch.distributed.checkpoint` (`ExTorch.DCP`) is opened like a file.

  Opening reads only the zip directory (or header) and the pickle. Plain pickles and gzip files are read entirely. A
  gzip file is decompressed in memory; one that expands to much more than its size is better read through
  `ExTorch.Streaming.gunzip/1`.
  `tensor/3` reads only the bytes of that tensor, directly into the memory of the tensor: reading one row of a large
  storage reads only that row.

  A checkpoint is `Enumerable`: its elements are `{name, tensor}` in file order, and each tensor is read when it is
  reached. `ckpt["encoder.weight"]` reads one tensor, and is `nil` if there is none of this name.

  A handle can be used by several processes at the same time. It is closed by `close/1`, or by the garbage collector
  when it is no longer referenced.

  ## Options

  Options of `open/2` and `ExTorch.load/2`:

    * `:mmap` - if `true`, maps the file into memory. Tensors then share the page cache without a copy, and changes to
      the file are visible in them. If the file is truncated, operators on these tensors return `:file_changed` errors.
      With `:populate` the whole file is read and mapped before the call returns, by several threads, for files of which
      everything is used soon: then there are no page faults, and no single reads from the disk, while it is used.
      Defaults to `false`.
    * `:readers` - how many threads read a large file, from 1 to 64, or `nil`. Threads are used for reads of a few
      megabytes and more, and end with the call. With `nil` there is one for each scheduler that is online, but at most
      8, and where there are more than two, one less, if the file is in the page cache; and 8 if it has to be read from
      the disk. Defaults to `nil`.
    * `:drop_behind` - if `true`, what is read does not stay in the page cache of the system, for files that are read
      once: with `false`, a large file may push everything else out of the cache. A file that has to be read from the
      disk is then read past the cache (`O_DIRECT`) where the system and the alignment of its tensors allow it, which is
      also faster; otherwise the pages are dropped after they were read. `nil` is `true` for a load of more than half of
      the memory (or of the budget, see `ExTorch.Config`), and otherwise `false`. Not for `mmap: true`. Defaults to `nil`.
    * `:verify` - if `true`, checks the CRC-32 of every record that is read, in formats that have one (zip, gzip).
      Defaults to `false`.
    * `:strict` - if `true`, returns a `:forbidden` error for everything that the `weights_only` of the newest torch
      (2.15) refuses. Otherwise unknown classes become inert structs (`ExTorch.Python`). Nothing that a file refers to is
      ever imported or called, whatever this option is. Defaults to `false`.
    * `:ordered` - if `true`, returns dicts as `%ExTorch.Python.Dict{}`, which keeps their order. Defaults to `false`.
    * `:device` - the device of the tensors, or a map or function from the device a tensor was saved on (`"cuda:0"`) to
      the device to use. Defaults to `:cpu`.
    * `:offset` - where the checkpoint begins in the file, in bytes. Legacy files, pickles and streams may contain
      several checkpoints one after another; see `:next_offset` of `metadata/1`. Defaults to `0`.
    * `:limits` - a keyword list of limits:
        * `:pickle_bytes` - the size of the pickle (64 MiB)
        * `:memory` - the bytes that the file may make the node hold besides its tensors: the object tree, the index,
          decompressed data and the resulting terms (56 MiB and 15 times the size of the file; shards share the 56 MiB,
          and a compressed pickle counts as its stored bytes). An object that a file contains many times becomes one
          term, but counts each time: messages copy it each time.
        * `:nodes` - the number of nodes in the resulting term (no limit besides `:memory`)
        * `:depth` - the nesting depth (1,000)
        * `:tensor_bytes`, `:total_bytes` - the size of one tensor and of all tensors (1 TiB and 4 TiB). Elements that
          share memory (an expanded tensor) are counted separately.
        * `:spool_bytes` - the bytes that `ExTorch.Streaming` keeps in memory while it waits for the description of the
          tensors (1 GiB)
    * `:only`, `:on_progress` - used by `ExTorch.load/2`
  """
  @moduledoc groups: ["Opening", "Contents", "Reading"]

  alias ExTorch.Checkpoint.{
    Entry,
    Handle,
    Lookup,
    Opening,
    Options,
    Partition,
    Reader,
    StateDict,
    Summary
  }

  alias ExTorch.Archive.IODevice
  alias ExTorch.{Error, Filter, Tensor}
  alias ExTorch.DCP.Folder

  @behaviour Access

  @typedoc "Where a checkpoint is read from."
  @type source :: Path.t() | {:binary, binary()} | ExTorch.Source.t()

  @typedoc "The name of a tensor: a dotted string, or the path as a list of keys."
  @type name :: String.t() | [term()]

  # source: nil if nothing can be read from it any more, and for the checkpoint of a loader
  @typep folder :: Folder.t()
  @typep options :: Options.t()

  @typedoc "An open checkpoint. The fields are private."
  @type t :: %__MODULE__{
          resource: reference() | folder(),
          source: source() | nil,
          options: options()
        }

  @enforce_keys [:resource, :source, :options]
  defstruct [:resource, :source, :options]

  # What a function that takes a checkpoint was given. A path is the usual mistake.
  defp check!(%__MODULE__{options: %{}} = ckpt), do: ckpt

  defp check!(other) do
    ExTorch.Options.expected!(
      "an open checkpoint, as ExTorch.Checkpoint.open!/2 returns it",
      other
    )
  end

  defp name!(name) when is_binary(name), do: name

  defp name!(name) do
    if is_list(name) and not List.improper?(name),
      do: name,
      else: ExTorch.Options.expected!("the name of a tensor to be a string or a path", name)
  end

  defp string!(name) when is_binary(name), do: name
  defp string!(other), do: ExTorch.Options.expected!("the name of a storage or record", other)

  # ---- Opening ----

  @doc group: "Opening"
  @doc """
  Opens a checkpoint. See the module documentation for the options.

      iex> {:ok, ckpt} = ExTorch.Checkpoint.open("test/fixtures/2.14.1/state_dict.pt")
      iex> ckpt
      #ExTorch.Checkpoint<state_dict.pt (zip), 9 tensors, 139 parameters, 560 B, float32 8, int64 1: 0.weight, 0.bias, 1.weight, …>
      iex> {:error, error} = ExTorch.Checkpoint.open("README.md")
      iex> error.reason
      :corrupt
  """
  @spec open(source(), keyword()) :: {:ok, t()} | {:error, Error.t()}
  def open(source, opts \\ []), do: Opening.open(source, Options.check!(opts))

  @doc group: "Opening"
  @doc "Same as `open/2` but raises on error."
  @spec open!(source(), keyword()) :: t()
  def open!(source, opts \\ []), do: Error.unwrap!(open(source, opts))

  @doc group: "Opening"
  @doc """
  Closes the handle.

  Tensors that were read stay valid. Further calls with the handle return or raise `:released`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.close(ckpt)
      :ok
  """
  @spec close(t()) :: :ok
  def close(ckpt), do: Opening.close(check!(ckpt))

  # ---- Contents ----

  @doc group: "Contents"
  @doc """
  Returns the names of all tensors in file order: `"model.0.weight"`, `"optimizer.state.0.step"`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.keys(ckpt) |> Enum.take(3)
      ["0.weight", "0.bias", "1.weight"]
  """
  @spec keys(t()) :: [String.t()]
  def keys(ckpt), do: Error.unwrap!(Handle.keys(check!(ckpt)))

  @doc group: "Contents"
  @doc """
  Returns the entries of all tensors in file order, without reading the tensors.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ckpt |> ExTorch.Checkpoint.entries() |> hd()
      #ExTorch.Checkpoint.Entry<0.weight: float32[4][3][3][3], 432 B, storage 0>
  """
  @spec entries(t()) :: [Entry.t()]
  def entries(ckpt), do: Error.unwrap!(Handle.entries(check!(ckpt)))

  @doc group: "Contents"
  @doc """
  Returns the entry of one tensor, without reading the tensor.

  The name is a dotted string or a path. A path is a list of keys that are compared strictly: `[0]` is not `["0"]`, and
  `[]` is the root. A dotted name that matches several paths is an `:ambiguous` error; the message lists the paths.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> {:ok, entry} = ExTorch.Checkpoint.entry(ckpt, "0.weight")
      iex> {entry.dtype, entry.shape, entry.nbytes}
      {:float32, {4, 3, 3, 3}, 432}
      iex> {:error, error} = ExTorch.Checkpoint.entry(ckpt, "0.wait")
      iex> error.reason
      :not_found
  """
  @spec entry(t(), name()) :: {:ok, Entry.t()} | {:error, Error.t()}
  def entry(ckpt, name), do: Lookup.entry(check!(ckpt), name!(name))

  @doc group: "Contents"
  @doc "Same as `entry/2` but raises on error."
  @spec entry!(t(), name()) :: Entry.t()
  def entry!(ckpt, name), do: Error.unwrap!(entry(ckpt, name))

  @doc group: "Contents"
  @doc """
  Divides the tensors into `n` lists of names, to be loaded by `n` processes or nodes.

  The option `:by` is:

    * `:bytes` - the lists have about the same number of bytes (the default)
    * `:layer` - the same, but tensors of a layer (`"layers.3."`) stay together and the layers keep their order, as for a
      pipeline
    * a function of an entry - the same for tensors for which it returns the same term

  Tensors that share a storage stay together with `:bytes`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.partition(ckpt, 2) |> Enum.map(&length/1)
      [1, 8]
  """
  @spec partition(t(), pos_integer(), keyword()) :: [[String.t()]]
  def partition(ckpt, n, opts \\ []) do
    opts = ExTorch.Options.validate!(opts, by: :bytes)

    unless is_integer(n) and n in 1..1_000_000,
      do: ExTorch.Options.expected!("a number of parts from 1 to 1,000,000", n)

    ckpt |> entries() |> Partition.partition(n, opts[:by])
  end

  @doc group: "Contents"
  @doc """
  Returns the Python object with an `ExTorch.Checkpoint.Entry` in place of each tensor.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/nested.pt")
      iex> {:ok, object} = ExTorch.Checkpoint.object(ckpt)
      iex> object["epoch"]
      12
      iex> object["model"]["0.bias"]
      #ExTorch.Checkpoint.Entry<model.0.bias: float32[3], 12 B, storage 1>
  """
  @spec object(t()) :: {:ok, term()} | {:error, Error.t()}
  def object(ckpt) do
    ckpt = check!(ckpt)
    with {:ok, entries} <- Handle.entries(ckpt), do: Handle.object(ckpt, entries)
  end

  @doc group: "Contents"
  @doc "Same as `object/1` but raises on error."
  @spec object!(t()) :: term()
  def object!(ckpt), do: Error.unwrap!(object(ckpt))

  @doc group: "Contents"
  @doc """
  Returns the detected format and the file's own metadata.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> metadata = ExTorch.Checkpoint.metadata(ckpt)
      iex> {metadata.format, metadata.producer}
      {:zip, "torch.save 2.7 or newer"}

    * `:format` - `:zip`, `:torchscript`, `:legacy`, `:tar`, `:streaming`, `:safetensors`, `:pickle`, `:npy`, `:npz` or
      `:dcp`
    * `:compression` - `:gzip` or `nil`
    * `:producer` - the software that writes such files, if it can be determined: `"torch.save 2.7 or newer"`
    * `:byteorder` - `:little` or `:big`
    * `:version`, `:format_version`, `:alignment` - the contents of these records, if the file has them
    * `:checksums` - `:present`, or `:absent` if the file was written without (`verify: true` cannot find damage in it
      then); `nil` for formats that have none
    * `:constants` - the number of constants of a TorchScript file, which are among the attributes as
      `"CONSTANTS" => %{"c0" => …}`; a frozen module has all its tensors there. `nil` for other formats
    * `:metadata` - the `__metadata__` of a safetensors file, a map of strings
    * `:next_offset` - where the next checkpoint in the same file begins (see the option `:offset`), or `nil`
  """
  @spec metadata(t()) :: map()
  def metadata(ckpt) do
    metadata = Error.unwrap!(Handle.metadata(check!(ckpt)))
    Map.put(metadata, :producer, producer(metadata.format, records(ckpt)))
  end

  # torch has added records over time, so they show the version that wrote the file.
  defp producer(:zip, records) do
    cond do
      ".format_version" in records -> "torch.save 2.7 or newer"
      "byteorder" in records -> "torch.save 2.1 to 2.6"
      true -> "torch.save 1.6 to 2.0"
    end
  end

  defp producer(:torchscript, records) do
    if Enum.any?(records, &String.starts_with?(&1, "code/")),
      do: "torch.jit.save, or torch::save of C++",
      else: "TorchScript without code"
  end

  defp producer(:legacy, _), do: "torch.save 0.1.10 to 1.5, or newer in the legacy format"
  defp producer(:tar, _), do: "torch.save before 0.1.10"
  defp producer(:streaming, _), do: "torch.distributed"
  defp producer(:safetensors, _), do: "safetensors"
  defp producer(format, _) when format in [:npy, :npz], do: "numpy"
  defp producer(:dcp, _), do: "torch.distributed.checkpoint"
  defp producer(:pickle, _), do: "Python's pickle"

  @doc group: "Contents"
  @doc """
  Prints the tensors as a tree of modules, with their dtypes, shapes, numbers of elements and bytes.

      ExTorch.Checkpoint.summary(ckpt)
      encoder   2 tensors      8  32 B
        weight  float32[2][3]  6  24 B
        bias    float32[2]     2   8 B
      2 tensors, 8 parameters, 32 B

  ## Options

    * `:depth` - how many levels to print. Defaults to `nil`: all.
    * `:sort` - the order within a module: `:file`, `:name` or `:size`. Defaults to `:file`.
    * `:table` - if `true`, prints one line for each tensor instead of a tree. Defaults to `false`.
    * `:only` - which tensors to print, as in `ExTorch.load/2`
    * `:device` - the IO device to print to. Defaults to `:stdio`.
  """
  @spec summary(t(), keyword()) :: :ok
  def summary(ckpt, opts \\ []) do
    ckpt = check!(ckpt)

    opts =
      ExTorch.Options.validate!(opts,
        depth: nil,
        sort: :file,
        table: false,
        only: nil,
        device: :stdio
      )

    ExTorch.Options.booleans!(opts, [:table])

    unless opts[:depth] == nil or (is_integer(opts[:depth]) and opts[:depth] > 0),
      do: ExTorch.Options.invalid!(:depth, "a positive number", opts[:depth])

    unless opts[:sort] in [:file, :name, :size],
      do: ExTorch.Options.invalid!(:sort, ":file, :name or :size", opts[:sort])

    unless IODevice.device?(opts[:device]),
      do: ExTorch.Options.invalid!(:device, "an IO device", opts[:device])

    Filter.check!(opts[:only], :only)
    filtered = %{ckpt | options: %{ckpt.options | only: Filter.prepare(opts[:only])}}
    entries = filtered |> Options.select(entries(ckpt)) |> Error.unwrap!()
    {elements, bytes} = ExTorch.Text.total(entries)
    count = ExTorch.Text.plural(length(entries), "tensor")
    total = "#{count}, #{ExTorch.Text.count(elements)} parameters, #{ExTorch.Text.bytes(bytes)}"
    lines = entries |> Summary.lines(Map.new(opts)) |> Summary.format()
    print(opts[:device], Enum.intersperse(lines ++ [total], "\n"))
  end

  defp print(device, lines) do
    IO.puts(device, lines)
  rescue
    error in ErlangError ->
      reraise Error.new(:io, "the IO device returned an error: #{inspect(error.original)}"),
              __STACKTRACE__
  end

  @doc group: "Contents"
  @doc """
  Returns all storages, in the order in which the pickle refers to them.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.storages(ckpt) |> hd()
      %{key: "0", nbytes: 432, location: "cpu"}
  """
  @spec storages(t()) :: [%{key: String.t(), nbytes: non_neg_integer(), location: String.t()}]
  def storages(ckpt), do: Error.unwrap!(Handle.storages(check!(ckpt)))

  @doc group: "Contents"
  @doc """
  Returns true if there is a storage with the key, which is `"0"` or `"data/0"`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> {ExTorch.Checkpoint.has_storage?(ckpt, "0"), ExTorch.Checkpoint.has_storage?(ckpt, "data/9")}
      {true, false}
  """
  @spec has_storage?(t(), String.t()) :: boolean()
  def has_storage?(ckpt, key) do
    key = key |> string!() |> String.replace_prefix("data/", "")
    Enum.any?(storages(ckpt), &(&1.key == key))
  end

  @doc group: "Contents"
  @doc """
  Returns the names of the records, without the root directory: `"data.pkl"`, `"version"`, `"data/0"`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.records(ckpt) |> Enum.take(3)
      ["data.pkl", ".format_version", ".storage_alignment"]
  """
  @spec records(t()) :: [String.t()]
  def records(ckpt), do: Error.unwrap!(Handle.records(check!(ckpt)))

  # ---- Reading ----

  @doc group: "Reading"
  @doc """
  Reads one tensor. The name is as in `entry/2`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, "1.weight")
      iex> tensor
      #ExTorch.Tensor<
        float32[4] cpu
        [1.0, 1.0, 1.0, 1.0]
      >

  Takes the options `:as` and `:backend` of `ExTorch.load/2`. A checkpoint that was opened with `mmap: true` is copied at
  most once to Nx.
  """
  @spec tensor(t(), name(), keyword()) :: {:ok, Tensor.t() | struct()} | {:error, Error.t()}
  def tensor(ckpt, name, opts \\ [])
  def tensor(ckpt, name, []), do: read_tensor(ckpt, name)

  def tensor(ckpt, name, opts) do
    {result, others} = ExTorch.Options.result!(opts)
    ExTorch.Options.validate!(others, [:as, :backend])

    with {:ok, tensor} <- read_tensor(ckpt, name) do
      case ExTorch.Options.convert({:ok, %{name => tensor}}, result, ckpt.source) do
        {:ok, %{^name => %Error{} = error}} -> {:error, Error.put_path(error, ckpt.source)}
        {:ok, %{^name => converted}} -> {:ok, converted}
        error -> error
      end
    end
  end

  defp read_tensor(ckpt, name) do
    ckpt = check!(ckpt)
    name = name!(name)

    ExTorch.Telemetry.span(
      :read,
      fn -> ckpt.source |> ExTorch.Telemetry.source() |> Map.put(:name, name) end,
      fn -> Reader.tensor(ckpt, name) end,
      &ExTorch.Telemetry.measure/1
    )
  end

  @doc group: "Reading"
  @doc "Same as `tensor/3` but raises on error."
  @spec tensor!(t(), name(), keyword()) :: Tensor.t() | struct()
  def tensor!(ckpt, name, opts \\ []), do: Error.unwrap!(tensor(ckpt, name, opts))

  @doc group: "Reading"
  @doc """
  Returns a lazy stream of `{name, tensor}` in file order.

  Each tensor is read when the stream reaches it; small tensors are read a few hundred at a time. A tensor that cannot be
  read raises. Takes the option `:only` of `ExTorch.load/2`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ckpt |> ExTorch.Checkpoint.stream(only: ~r/bias/) |> Enum.map(fn {name, tensor} -> {name, tensor.shape} end)
      [{"0.bias", {4}}, {"1.bias", {4}}, {"2.bias", {2}}]
  """
  @spec stream(t(), keyword()) :: Enumerable.t()
  def stream(ckpt, opts \\ []) do
    ckpt = check!(ckpt)
    [only: only] = ExTorch.Options.validate!(opts, only: nil)
    Filter.check!(only, :only)
    filtered = %{ckpt | options: %{ckpt.options | only: Filter.prepare(only)}}

    filtered
    |> Options.select(entries(ckpt))
    |> Error.unwrap!()
    |> then(&Reader.stream(ckpt, &1))
  end

  @doc group: "Reading"
  @doc """
  Reads the tensors of any source as a flat map of names and tensors.

  The source may be any checkpoint, also a whole pickled module, a TorchScript file, a Hugging Face index or the
  directory that contains one. The names are those of `keys/1`. Names of one tensor stay tied: they share memory.
  Parameters keep their `requires_grad` mark. Of a pickled module, the map has what its `state_dict()` has in Python:
  parameters and persistent buffers, but no other attributes. Of a TorchScript file, it has all tensors: the file does not
  say in its data which attributes are parameters.

      iex> path = Path.join(System.tmp_dir!(), "extorch_doc_#{System.unique_integer([:positive])}.pt")
      iex> training = %{"model" => %{"weight" => ExTorch.ones({2}), "bias" => ExTorch.zeros({1})}, "epoch" => 3}
      iex> ExTorch.save!(training, path)
      iex> {:ok, tensors} = ExTorch.Checkpoint.state_dict(path)
      iex> Map.keys(tensors)
      ["model.bias", "model.weight"]
      iex> {:ok, tensors} = ExTorch.Checkpoint.state_dict(path, top_level_key: :auto, only: {:prefix, "w"})
      iex> Map.keys(tensors)
      ["weight"]
      iex> File.rm!(path)
      :ok

  Two tensors with the same dotted name are an `:ambiguous` error.

  ## Options

  All options of `ExTorch.load/2` (`ordered: true` returns an `%ExTorch.Python.Dict{}` in file order), and:

    * `:top_level_key` - the key of the tensors to return, without which they are named: `"state_dict"`, `"model.ema"`.
      `:auto` is the key of the state dict or module in the root of the file, if the root is not one itself. If there
      are several, it is the first of `state_dict`, `model_state_dict`, `model`, `module`, `network`, `net`, `weights` and
      `params` that is there; otherwise it is an error. Defaults to `nil`: all tensors, those of an optimizer too.
    * `:rename` - a list of `{regex, replacement}`, applied one after another, or a function of the name. It is an error
      if two names become the same.
    * `:only`, `:except` - filters as in `ExTorch.load/2`, of the resulting names
  """
  @spec state_dict(source(), keyword()) ::
          {:ok, %{String.t() => Tensor.t()} | ExTorch.Python.Dict.t()} | {:error, Error.t()}
  def state_dict(source, opts \\ []) do
    {selection, opts} = StateDict.split!(opts, Options.known_options())
    Options.check!(opts)

    StateDict.with_parts(source, opts, fn parts ->
      with {:ok, items} <- StateDict.items(parts, selection, source),
           {:ok, pairs} <- StateDict.read(items),
           do:
             {:ok,
              if(opts[:ordered], do: %ExTorch.Python.Dict{pairs: pairs}, else: Map.new(pairs))}
    end)
  end

  @doc group: "Reading"
  @doc "Same as `state_dict/2` but raises on error."
  @spec state_dict!(source(), keyword()) :: %{String.t() => Tensor.t()} | ExTorch.Python.Dict.t()
  def state_dict!(source, opts \\ []), do: Error.unwrap!(state_dict(source, opts))

  @doc group: "Reading"
  @doc """
  Reads the bytes of a storage as they are in the file. The key is `"0"` or `"data/0"`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> {:ok, bytes} = ExTorch.Checkpoint.read_storage(ckpt, "2")
      iex> for <<number::float-little-32 <- bytes>>, do: number
      [1.0, 1.0, 1.0, 1.0]
  """
  @spec read_storage(t(), String.t()) :: {:ok, binary()} | {:error, Error.t()}
  def read_storage(ckpt, key), do: read_record(ckpt, record_name(string!(key)))

  @doc group: "Reading"
  @doc """
  Reads `length` bytes of a storage from `offset` on. It is an error if the storage is shorter.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.read_storage(ckpt, "2", 0, 4)
      {:ok, <<1.0::float-little-32>>}
  """
  @spec read_storage(t(), String.t(), non_neg_integer(), non_neg_integer()) ::
          {:ok, binary()} | {:error, Error.t()}
  def read_storage(ckpt, key, offset, length) do
    ckpt = check!(ckpt)

    for number <- [offset, length],
        not (is_integer(number) and number >= 0),
        do: ExTorch.Options.expected!("a number of bytes", number)

    if offset + length < 2 ** 63 do
      Reader.record(ckpt, record_name(string!(key)), offset, length)
    else
      {:error,
       Error.new(
         :bad_argument,
         "expected offset + length below 2 ** 63, got #{offset + length}",
         ckpt.source
       )}
    end
  end

  @doc group: "Reading"
  @doc """
  Reads a record and decompresses it. See `records/1`.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> ExTorch.Checkpoint.read_record(ckpt, "byteorder")
      {:ok, "little"}
  """
  @spec read_record(t(), String.t()) :: {:ok, binary()} | {:error, Error.t()}
  def read_record(ckpt, name), do: Reader.record(check!(ckpt), string!(name), 0, nil)

  @doc group: "Reading"
  @doc "Same as `read_storage/2` but raises on error."
  @spec read_storage!(t(), String.t()) :: binary()
  def read_storage!(ckpt, key), do: Error.unwrap!(read_storage(ckpt, key))

  @doc group: "Reading"
  @doc "Same as `read_storage/4` but raises on error."
  @spec read_storage!(t(), String.t(), non_neg_integer(), non_neg_integer()) :: binary()
  def read_storage!(ckpt, key, offset, length),
    do: Error.unwrap!(read_storage(ckpt, key, offset, length))

  @doc group: "Reading"
  @doc "Same as `read_record/2` but raises on error."
  @spec read_record!(t(), String.t()) :: binary()
  def read_record!(ckpt, name), do: Error.unwrap!(read_record(ckpt, name))

  defp record_name("data/" <> _ = name), do: name
  defp record_name(key), do: "data/" <> key

  # ---- Access ----

  @doc group: "Reading"
  @doc """
  Reads one tensor, for `ckpt["encoder.weight"]`, which is `nil` if there is no such tensor. Other errors are raised.

      iex> ckpt = ExTorch.Checkpoint.open!("test/fixtures/2.14.1/state_dict.pt")
      iex> {ckpt["1.weight"].shape, ckpt["no such tensor"]}
      {{4}, nil}
  """
  @spec fetch(t(), name()) :: {:ok, Tensor.t()} | :error
  @impl Access
  def fetch(ckpt, name) do
    case tensor(ckpt, name) do
      {:ok, tensor} -> {:ok, tensor}
      {:error, %Error{reason: :not_found}} -> :error
      {:error, error} -> raise error
    end
  end

  @doc false
  @spec get_and_update(t(), name(), function()) :: no_return()
  @impl Access
  def get_and_update(_ckpt, _name, _fun), do: read_only()

  @doc false
  @spec pop(t(), name()) :: no_return()
  @impl Access
  def pop(_ckpt, _name), do: read_only()

  @spec read_only() :: no_return()
  defp read_only do
    raise Error.new(
            :bad_argument,
            "a checkpoint cannot be changed; change the map of ExTorch.Checkpoint.state_dict/2 and save it"
          )
  end

  @doc false
  @spec load(source(), keyword()) :: {:ok, term()} | {:error, Error.t()}
  def load(source, opts), do: Opening.load(source, opts)
end
