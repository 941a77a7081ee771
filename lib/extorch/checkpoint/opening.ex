defmodule ExTorch.Checkpoint.Opening do
  @moduledoc false
  # Opens checkpoints of every kind: files, binaries, sources, streams and folders. Loads them as a whole.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{BatchLoad, Handle, Options, SourceReader}
  alias ExTorch.{Error, Native, Source, Telemetry}
  alias ExTorch.DCP.Folder
  alias ExTorch.Native.Call
  alias ExTorch.Native.Stub
  alias ExTorch.Store.{Sharded, ShardIndex}

  @spec open(Checkpoint.source(), Options.t()) :: Handle.result(Handle.t())
  def open(source, options) do
    Telemetry.span(
      :open,
      fn -> Telemetry.source(source) end,
      fn -> opened(source, options) |> noted() end,
      fn
        {:ok, ckpt} -> sizes(ckpt)
        _error -> %{tensors: 0, bytes: 0}
      end
    )
  end

  # Tells a handler of telemetry the format.
  defp noted({:ok, ckpt} = result) do
    Telemetry.note(fn ->
      case Handle.metadata(ckpt) do
        {:ok, metadata} -> {%{}, %{format: metadata.format}}
        _error -> {%{}, %{}}
      end
    end)

    result
  end

  defp noted(error), do: error

  defp sizes(ckpt) do
    with {:ok, keys} <- Handle.keys(ckpt), {:ok, storages} <- Handle.storages(ckpt) do
      %{tensors: length(keys), bytes: storages |> Enum.map(& &1.nbytes) |> Enum.sum()}
    else
      _error -> %{tensors: 0, bytes: 0}
    end
  end

  defp opened(source, options) do
    case open_or_folder(source, options) do
      {:folder, folder} -> {:ok, folder}
      {:ok, source} -> open_file(source, options)
      {:stream, stream} -> open_stream(stream, options)
      {:error, error} -> {:error, SourceReader.source_error(source, :open, error)}
    end
  end

  # Opens a source, or a folder of torch.distributed.checkpoint that is not on this machine as a checkpoint. A path is found to
  # be a directory when it is opened.
  defp open_or_folder(source, options) do
    with {:ok, source} <- Source.resolve(source) do
      if is_struct(source) and Folder.folder?(source) do
        with {:ok, folder} <- open_folder(source, options), do: {:folder, folder}
      else
        Source.open(source)
      end
    end
  end

  defp open_folder(source, options) do
    with {:ok, folder} <- Folder.open(source, options) do
      {:ok, %Checkpoint{resource: folder, source: Source.label(source), options: options}}
    end
  end

  defp open_directory(path, options) do
    if Folder.folder?(path), do: open_folder(path, options), else: {:error, no_file(path)}
  end

  defp no_file(directory) do
    case ShardIndex.find(directory) do
      {:error, %{reason: :ambiguous} = error} -> error
      _ -> Error.new(:io, "the path is a directory, expected a file", directory)
    end
  end

  defp open_file(source, options) do
    with :directory <- open_source(source, options), do: open_directory(source, options)
  end

  defp open_source(source, options) do
    case open_or_close(source, Options.native(options)) do
      {:ok, :directory} ->
        :directory

      {:ok, resource} ->
        ckpt = %Checkpoint{resource: resource, source: source, options: options}
        {:ok, if(is_struct(source), do: drop_source(ckpt), else: ckpt)}

      {:error, error} ->
        close_source(source)
        {:error, Error.put_path(error, source)}
    end
  end

  # A source that can only be read forward is kept in memory.
  defp open_stream(stream, options) do
    case Source.read_stream(stream, options.limits[:spool_bytes], nil) do
      {:ok, bytes} ->
        open_source({:binary, bytes}, options)

      {:error, %{reason: :limit} = error} ->
        advice =
          "; it can only be read forward: load it with ExTorch.load/2, or use limits: [spool_bytes: n]"

        {:error, %{error | message: error.message <> advice}}

      {:error, error} ->
        {:error, error}
    end
  end

  # Closes the source also if one of its callbacks raises.
  defp open_or_close(source, native) do
    open_native(source, native)
  catch
    kind, reason ->
      close_source(source)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # Gzip files and plain pickles were read entirely when they were opened: the source is no longer needed.
  defp drop_source(ckpt) do
    case Error.unwrap!(Handle.metadata(ckpt)) do
      %{compression: nil, format: format} when format != :pickle ->
        ckpt

      _ ->
        close_source(ckpt.source)
        %{ckpt | source: nil}
    end
  end

  defp open_native(path, opts) when is_binary(path) do
    if ExTorch.Options.path?(path),
      do: Call.checkpoint_open(path, opts),
      else:
        {:error,
         Error.new(
           :not_found,
           "expected a path; pass the bytes of a checkpoint as {:binary, bytes}"
         )}
  end

  defp open_native({:binary, binary}, opts) when is_binary(binary), do: open_binary(binary, opts)
  defp open_native(%_{} = source, opts), do: SourceReader.open(source, opts)

  defp open_native(other, _opts), do: {:error, Source.unknown(other)}

  defp open_binary(binary, opts),
    do: Call.checkpoint_open_binary(binary, opts)

  @spec close(Handle.t()) :: :ok
  def close(%{resource: %Folder{}}), do: :ok

  def close(%{resource: resource, source: source}) do
    closed = Stub.checked(:checkpoint_close, fn -> Native.checkpoint_close(resource) end)
    if closed, do: close_source(source)
    :ok
  end

  defp close_source(%module{} = source) do
    module.close(source)
    :ok
  end

  defp close_source(_), do: :ok

  # Opens, reads and closes.
  @spec load(Checkpoint.source(), keyword()) :: Handle.result(term())
  def load(source, opts) do
    options = Options.check!(opts)

    case open_or_folder(source, options) do
      {:folder, folder} -> {:ok, folder} |> noted() |> elem(1) |> BatchLoad.load()
      {:ok, source} -> load_source(source, options, opts)
      {:stream, stream} -> load_stream(stream, opts)
      {:error, error} -> {:error, SourceReader.source_error(source, :open, error)}
    end
  end

  defp load_source(source, options, opts) do
    case open_source(source, options) do
      {:ok, ckpt} -> load_and_close(ckpt)
      :directory -> load_directory(source, options, opts)
      error -> error
    end
  end

  defp load_and_close(ckpt) do
    noted({:ok, ckpt})
    BatchLoad.load(ckpt)
  after
    close(ckpt)
  end

  # The shards of an index, or a folder of torch.distributed.checkpoint.
  defp load_directory(path, options, opts) do
    if index = Sharded.index_in(path),
      do: Sharded.load(index, opts),
      else: with({:ok, ckpt} <- open_directory(path, options), do: load_and_close(ckpt))
  end

  defp load_stream(stream, opts) do
    with {:ok, object, _rest} <-
           ExTorch.Streaming.load(stream, Keyword.drop(opts, Options.file_options())),
         do: {:ok, object}
  rescue
    error in Error -> {:error, error}
  end
end
