defmodule ExTorch.Checkpoint do
  @moduledoc """
  Checkpoints, opened lazily: what is in a file is known in milliseconds, and a tensor is read when it is asked for.

      {:ok, ckpt} = ExTorch.Checkpoint.open("model.pt")
      ExTorch.Checkpoint.keys(ckpt)
      #=> ["encoder.weight", "encoder.bias", …]
      {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, "encoder.weight")

  The format is recognised by content, never by name: the zip files of `torch.save`, TorchScript and C++ archives (as
  data), the legacy and tar files of old versions, the streaming format of `torch.distributed`, safetensors, plain pickles,
  and a gzip of any of these. Opening reads the archive's directory and the pickle, nothing else; a plain pickle and a gzip
  have to be read whole. `tensor/2` reads just the bytes that the tensor
  sees, straight into memory that it owns: a row of a large storage costs a row. A handle can be used by many processes at
  once; it closes by itself when it is no longer referenced.

  ## Options of `open/2` (and of `ExTorch.load/2`)

    * `:mmap` - `false`. `true` maps the file: tensors share the page cache without a copy. They see changes of the file
      then; when it is truncated under them, operators report `:file_changed` instead of ending the node.
    * `:verify` - `false`. `true` checks the CRC-32 of every record that is read, in formats that have one (zip, gzip).
    * `:strict` - `false`. `true` refuses with `:forbidden` whatever torch's own `weights_only` refuses. Either way nothing
      that a file names is ever imported or called: without it, unknown classes are inert structs (`ExTorch.Python`).
    * `:ordered` - `false`. `true` gives dicts as `%ExTorch.Python.Dict{}`, in their order.
    * `:device` - `:cpu`, another device, or a map or function of where the tensor was saved (`"cuda:0"`).
    * `:offset` - `0`. Where in the file the save begins: legacy files, pickles and streams may hold several, one after the
      other, and `metadata/1` says where the next begins.
    * `:limits` - a keyword list: `pickle_bytes` (64 MiB), `nodes` of the resulting term (8 for every byte of the pickle,
      at least 1,000,000), `depth` (1,000), `tensor_bytes` and `total_bytes`, which count a repeated element each time it
      is seen (1 TiB and 4 TiB), and for `ExTorch.Streaming` `spool_bytes` (1 GiB).

  A source is a path, `{:binary, binary}`, whose memory the tensors share, or a struct that implements `ExTorch.Source`.
  """

  alias ExTorch.Checkpoint.{BatchLoad, Entry, Handle, Options, SourceReader}
  alias ExTorch.{Error, Memory, Native, Tensor}

  @type source :: Path.t() | {:binary, binary()} | ExTorch.Source.t()
  @type name :: String.t() | [term()]
  @type t :: %__MODULE__{resource: reference(), source: source(), options: map()}

  @enforce_keys [:resource, :source, :options]
  defstruct [:resource, :source, :options]

  # ---- Opening ----

  @doc "Opens a checkpoint."
  @spec open(source(), keyword()) :: {:ok, t()} | {:error, Error.t()}
  def open(source, opts \\ []) do
    options = Options.check!(opts)

    case open_or_close(source, Options.native(options)) do
      {:ok, resource} ->
        ckpt = %__MODULE__{resource: resource, source: source, options: options}
        {:ok, if(is_struct(source), do: forget_source(ckpt), else: ckpt)}

      {:error, error} ->
        close_source(source)
        {:error, Error.located(error, source)}
    end
  end

  # A source that raises is closed all the same.
  defp open_or_close(source, native) do
    open_native(source, native)
  catch
    kind, reason ->
      close_source(source)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # What had to be read whole to be opened (a gzip, a plain pickle) is in memory: the source is done with.
  defp forget_source(ckpt) do
    case Error.bang!(Handle.metadata(ckpt)) do
      %{compression: nil, format: format} when format != :pickle ->
        ckpt

      _ ->
        close_source(ckpt.source)
        %{ckpt | source: {:binary, <<>>}}
    end
  end

  @doc "The same, raising."
  @spec open!(source(), keyword()) :: t()
  def open!(source, opts \\ []), do: Error.bang!(open(source, opts))

  defp open_native(path, opts) when is_binary(path) do
    if ExTorch.Options.path?(path),
      do: Memory.run(fn -> Native.checkpoint_open(path, opts) end),
      else:
        {:error,
         Error.new(
           :not_found,
           "expected a path; pass the bytes of a checkpoint as {:binary, bytes}"
         )}
  end

  defp open_native({:binary, binary}, opts) when is_binary(binary), do: open_binary(binary, opts)
  defp open_native(%_{} = source, opts), do: SourceReader.open(source, opts)

  defp open_native(other, _opts) do
    {:error,
     Error.new(
       :bad_argument,
       "expected a path, {:binary, binary} or a struct that implements ExTorch.Source, got #{inspect(other, limit: 5)}"
     )}
  end

  defp open_binary(binary, opts),
    do: Memory.run(fn -> Native.checkpoint_open_binary(binary, opts) end)

  @doc "Closes the handle. Tensors that were read stay good; asking the handle again is `:released`."
  @spec close(t()) :: :ok
  def close(%__MODULE__{resource: resource, source: source}) do
    if Native.checkpoint_close(resource), do: close_source(source)
    :ok
  end

  defp close_source(%module{} = source) do
    module.close(source)
    :ok
  end

  defp close_source(_), do: :ok

  # ---- What is in it ----

  @doc "The names of all tensors, in file order: `\"model.0.weight\"`, `\"optimizer.state.0.step\"`."
  @spec keys(t()) :: [String.t()]
  def keys(%__MODULE__{} = ckpt), do: Error.bang!(Handle.keys(ckpt))

  @doc "All tensors, described, in file order."
  @spec entries(t()) :: [Entry.t()]
  def entries(%__MODULE__{} = ckpt), do: Error.bang!(Handle.entries(ckpt))

  @doc """
  One tensor, described.

  The name is dotted, or the path as a list, whose elements are exact: `[0]` is not `["0"]`, and `[]` is the root. A
  dotted name that several paths share is `:ambiguous`; the message lists them.
  """
  @spec entry(t(), name()) :: {:ok, Entry.t()} | {:error, Error.t()}
  def entry(%__MODULE__{} = ckpt, name) when is_binary(name) do
    case Handle.entry(ckpt, name) do
      {:ok, [entry]} -> {:ok, entry}
      {:ok, []} -> {:error, not_found(ckpt, name)}
      {:ok, several} -> {:error, ambiguous(ckpt, name, several)}
      {:error, error} -> {:error, error}
    end
  end

  def entry(%__MODULE__{} = ckpt, path) when is_list(path) do
    found =
      if Enum.all?(path, &(is_binary(&1) or is_integer(&1))) do
        with {:ok, several} <- Handle.entry(ckpt, Enum.join(path, ".")) do
          # a name with very many owners is looked for one by one
          {:ok, if(length(several) < 20, do: several, else: entries(ckpt))}
        end
      else
        {:ok, entries(ckpt)}
      end

    with {:ok, candidates} <- found do
      case Enum.find(candidates, &(&1.path === path)) do
        nil -> {:error, not_found(ckpt, path)}
        entry -> {:ok, entry}
      end
    end
  end

  @doc "The same, raising."
  @spec entry!(t(), name()) :: Entry.t()
  def entry!(ckpt, name), do: Error.bang!(entry(ckpt, name))

  defp not_found(ckpt, name) do
    asked = if is_binary(name), do: name, else: Enum.map_join(name, ".", &to_text/1)

    near =
      ckpt
      |> keys()
      |> Stream.filter(&(byte_size(&1) < 200 and byte_size(asked) < 200))
      |> Enum.take(20_000)
      |> Enum.map(&{String.jaro_distance(&1, asked), &1})
      |> Enum.filter(fn {score, _} -> score > 0.75 end)
      |> Enum.sort(:desc)
      |> Enum.take(3)
      |> Enum.map_join(", ", fn {_, key} -> inspect(key) end)

    hint = if near == "", do: "; keys/1 lists what there is", else: "; did you mean #{near}?"

    Error.located(
      Error.new(:not_found, "there is no tensor #{inspect(name)}" <> hint),
      ckpt.source
    )
  end

  defp to_text(key) when is_binary(key) or is_integer(key), do: to_string(key)
  defp to_text(key), do: inspect(key)

  defp ambiguous(ckpt, name, entries) do
    paths = Enum.map_join(entries, " and ", &inspect(&1.path))

    Error.located(
      Error.new(
        :ambiguous,
        "#{inspect(name)} stands for several tensors; use the path: #{paths}"
      ),
      ckpt.source
    )
  end

  @doc "The Python object with an `ExTorch.Checkpoint.Entry` in place of every tensor."
  @spec object(t()) :: {:ok, term()} | {:error, Error.t()}
  def object(%__MODULE__{} = ckpt) do
    with {:ok, entries} <- Handle.entries(ckpt), do: Handle.object(ckpt, entries)
  end

  @doc "The same, raising."
  @spec object!(t()) :: term()
  def object!(ckpt), do: Error.bang!(object(ckpt))

  @doc """
  What was found, and what the file says of itself:

    * `:format` - `:zip`, `:torchscript`, `:legacy`, `:tar`, `:streaming`, `:safetensors` or `:pickle`
    * `:compression` - `:gzip` or `nil`
    * `:producer` - who writes such files, as far as they tell: `"torch.save 2.7 or newer"`
    * `:byteorder` - `:little` or `:big`
    * `:version`, `:format_version`, `:alignment` - of the archive, where torch wrote them
    * `:metadata` - a safetensors file's own `__metadata__`, a map of strings
    * `:next_offset` - where the next save in the same file begins (`offset:` opens it), or `nil`
  """
  @spec metadata(t()) :: map()
  def metadata(%__MODULE__{} = ckpt) do
    metadata = Error.bang!(Handle.metadata(ckpt))
    Map.put(metadata, :producer, producer(metadata.format, records(ckpt)))
  end

  # Each version of torch left a trace in what it writes.
  defp producer(:zip, records) do
    cond do
      ".format_version" in records -> "torch.save 2.7 or newer"
      "byteorder" in records -> "torch.save 2.1 to 2.6"
      true -> "torch.save 1.6 to 2.0"
    end
  end

  defp producer(:torchscript, records) do
    if Enum.any?(records, &String.starts_with?(&1, "code/")),
      do: "torch.jit.save, or torch::save in C++",
      else: "TorchScript without code"
  end

  defp producer(:legacy, _), do: "torch.save 0.1.10 to 1.5, or a newer one's old format"
  defp producer(:tar, _), do: "torch.save before 0.1.10"
  defp producer(:streaming, _), do: "torch.distributed"
  defp producer(:safetensors, _), do: "safetensors"
  defp producer(:pickle, _), do: "Python's pickle"

  @doc "The storages that tensors share, in the order the pickle names them."
  @spec storages(t()) :: [%{key: String.t(), nbytes: non_neg_integer(), location: String.t()}]
  def storages(%__MODULE__{} = ckpt), do: Error.bang!(Handle.storages(ckpt))

  @doc "Is there a storage of that key, `\"0\"` or `\"data/0\"`?"
  @spec has_storage?(t(), String.t()) :: boolean()
  def has_storage?(%__MODULE__{} = ckpt, key) when is_binary(key) do
    key = String.replace_prefix(key, "data/", "")
    Enum.any?(storages(ckpt), &(&1.key == key))
  end

  @doc "The archive's records by their names below the root folder: `\"data.pkl\"`, `\"version\"`, `\"data/0\"` …"
  @spec records(t()) :: [String.t()]
  def records(%__MODULE__{} = ckpt), do: Error.bang!(Handle.records(ckpt))

  # ---- Reading ----

  @doc "Reads one tensor. The name is as in `entry/2`."
  @spec tensor(t(), name()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def tensor(%__MODULE__{} = ckpt, name) do
    with {:ok, entry} <- entry(ckpt, name), do: read(ckpt, entry)
  end

  @doc "The same, raising."
  @spec tensor!(t(), name()) :: Tensor.t()
  def tensor!(ckpt, name), do: Error.bang!(tensor(ckpt, name))

  defp read(%{source: %_{} = source, resource: resource, options: options} = ckpt, entry) do
    with {:ok, offset, bytes} <-
           SourceReader.locate(source, resource, entry.index, options.verify),
         {:ok, %Tensor{} = tensor} <-
           SourceReader.decode(resource, entry.index, options.verify, offset, bytes) do
      Handle.to_device(ckpt, tensor, entry)
    else
      {:ok, _raw} ->
        {:error, Error.new(:unsupported, "#{entry.dtype} is newer than the linked LibTorch")}

      {:error, error} ->
        {:error, Error.located(error, source)}
    end
  end

  defp read(ckpt, entry) do
    with {:ok, tensor} <- Handle.tensor(ckpt, entry),
         do: Handle.to_device(ckpt, tensor, entry)
  end

  @doc """
  Goes through the tensors in file order, lazily: `{name, tensor}`, one in memory at a time. Option: `:only`, as in
  `ExTorch.load/2`. A tensor that cannot be read raises.
  """
  @spec stream(t(), keyword()) :: Enumerable.t()
  def stream(%__MODULE__{} = ckpt, opts \\ []) do
    only = %{only: opts[:only]}

    ckpt
    |> entries()
    |> Stream.filter(&Options.selected?(only, &1))
    |> Stream.map(&{&1.name, Error.bang!(read(ckpt, &1))})
  end

  @doc "The bytes of a storage, as they are in the file. The key is `\"0\"` or `\"data/0\"`."
  @spec read_storage(t(), String.t()) :: {:ok, binary()} | {:error, Error.t()}
  def read_storage(%__MODULE__{} = ckpt, key) when is_binary(key),
    do: read_record(ckpt, record_name(key))

  @doc "A part of them; a range that ends past the storage is an error."
  @spec read_storage(t(), String.t(), non_neg_integer(), non_neg_integer()) ::
          {:ok, binary()} | {:error, Error.t()}
  def read_storage(%__MODULE__{} = ckpt, key, offset, length)
      when is_binary(key) and is_integer(offset) and offset >= 0 and is_integer(length) and
             length >= 0 do
    if offset + length < 2 ** 63 do
      read_bytes(ckpt, record_name(key), offset, length)
    else
      {:error,
       Error.located(
         Error.new(:bad_argument, "no storage has #{offset + length} bytes"),
         ckpt.source
       )}
    end
  end

  @doc "A record of the archive, unpacked."
  @spec read_record(t(), String.t()) :: {:ok, binary()} | {:error, Error.t()}
  def read_record(%__MODULE__{} = ckpt, name) when is_binary(name),
    do: read_bytes(ckpt, name, 0, nil)

  @doc "The same, raising."
  @spec read_storage!(t(), String.t()) :: binary()
  def read_storage!(ckpt, key), do: Error.bang!(read_storage(ckpt, key))

  @doc "The same, raising."
  @spec read_storage!(t(), String.t(), non_neg_integer(), non_neg_integer()) :: binary()
  def read_storage!(ckpt, key, offset, length),
    do: Error.bang!(read_storage(ckpt, key, offset, length))

  @doc "The same, raising."
  @spec read_record!(t(), String.t()) :: binary()
  def read_record!(ckpt, name), do: Error.bang!(read_record(ckpt, name))

  defp record_name("data/" <> _ = name), do: name
  defp record_name(key), do: "data/" <> key

  defp read_bytes(%{source: %_{} = source, resource: resource} = ckpt, name, offset, length) do
    with {:ok, at, bytes} <- SourceReader.locate(source, resource, name, true),
         {:ok, record} when is_binary(record) <-
           SourceReader.decode(resource, name, ckpt.options.verify, at, bytes),
         length = length || max(byte_size(record) - offset, 0),
         {:range, true, _} <- {:range, offset + length <= byte_size(record), byte_size(record)} do
      {:ok, binary_part(record, offset, length)}
    else
      {:ok, nil} -> {:error, no_record(ckpt, name)}
      {:range, false, size} -> {:error, past_end(ckpt, offset, length, size)}
      {:error, error} -> {:error, Error.located(error, source)}
    end
  end

  defp read_bytes(ckpt, name, offset, length) do
    case Handle.read_record(ckpt, name, offset, length) do
      {:ok, nil} -> {:error, no_record(ckpt, name)}
      other -> other
    end
  end

  defp no_record(ckpt, name) do
    Error.located(
      Error.new(:not_found, "there is no record #{inspect(name)}; records/1 lists them"),
      ckpt.source
    )
  end

  defp past_end(ckpt, offset, length, size) do
    message = "bytes #{offset} to #{offset + length} are not all in the record, which has #{size}"
    Error.located(Error.new(:bad_argument, message), ckpt.source)
  end

  @doc false
  def load(source, opts) do
    with {:ok, ckpt} <- open(source, opts) do
      try do
        BatchLoad.load(ckpt)
      after
        close(ckpt)
      end
    end
  end
end

defimpl Inspect, for: ExTorch.Checkpoint do
  def inspect(ckpt, _opts) do
    source =
      case ckpt.source do
        path when is_binary(path) -> Path.basename(path)
        {:binary, binary} -> "#{byte_size(binary)} bytes"
        %module{} -> Kernel.inspect(module)
      end

    "#ExTorch.Checkpoint<#{source}, #{length(ExTorch.Checkpoint.keys(ckpt))} tensors>"
  rescue
    ExTorch.Error -> "#ExTorch.Checkpoint<closed>"
  end
end
