defmodule ExTorch.Source do
  @moduledoc """
  A behaviour for reading checkpoints from something other than a path or a binary.

  Functions that read checkpoints accept any struct whose module implements this behaviour. `ExTorch.Source.HTTP` reads
  from web servers, `ExTorch.Source.Remote` from other nodes.

      defmodule MySource do
        @behaviour ExTorch.Source
        defstruct [:file]

        @impl true
        def size(%{file: file}), do: {:ok, File.stat!(file).size}

        @impl true
        def read_at(%{file: file}, offset, length) do
          with {:ok, io} <- File.open(file, [:read, :raw, :binary]), {:ok, bytes} <- :file.pread(io, offset, length) do
            File.close(io)
            {:ok, bytes}
          end
        end

        @impl true
        def close(_), do: :ok
      end

      ExTorch.load(%MySource{file: "model.pt"})

  The callbacks run in the process that calls ExTorch. Opening a checkpoint reads the end of the file, the zip directory
  and the pickle. Reading a tensor reads only its own bytes, and the tensor shares the memory of the binary that
  `c:read_at/3` returned. A whole load reads each byte once, in file order: neighboring small tensors with one call,
  storages up to 32 MiB and compressed ones with one call each, larger ones in ranges of about 8 MiB into their own memory.
  Memory that a tensor shares with a binary is read-only: operators that would write to it raise `:frozen`
  (`ExTorch.Tensor.clone/1` makes a copy).
  """

  alias ExTorch.Checkpoint.SourceReader
  alias ExTorch.Source.HTTP

  @type t :: struct()

  @typedoc "Bytes of a source: the offset and the length."
  @type range :: {offset :: non_neg_integer(), length :: pos_integer()}

  @doc "Returns the size in bytes."
  @callback size(t()) :: {:ok, non_neg_integer()} | {:error, term()}

  @doc "Reads exactly `length` bytes at `offset`."
  @callback read_at(t(), offset :: non_neg_integer(), length :: pos_integer()) ::
              {:ok, binary()} | {:error, term()}

  @doc "Closes the source. Called once, when the checkpoint is closed or could not be opened."
  @callback close(t()) :: :ok | {:error, term()}

  @doc """
  Opens the source before anything else is called. The other callbacks get the struct that it returns.

  A source that can only be read forward returns an enumerable of its bytes: `ExTorch.load/2` loads it like
  `ExTorch.Streaming.load/2`, and `ExTorch.Checkpoint.open/2` keeps the bytes in memory.
  """
  @callback open(t()) :: {:ok, t()} | {:stream, Enumerable.t()} | {:error, term()}

  @doc """
  Announces the ranges that will be read next, in this order, so that they can be requested before they are needed.

  Called with the ranges of one tensor before they are read, and before each `c:read_at/3` of a whole load, with the range
  of that call first, and with an empty list at the end of the load. What was announced before and is not in the list is no longer needed. A range that is announced before its
  turn may turn out to be shorter by up to 128 KiB, or unneeded if it is not longer than that.
  """
  @callback prefetch(t(), [range()]) :: :ok

  @optional_callbacks open: 1, prefetch: 2

  # Returns the source of a URL; other sources as they are.
  @doc false
  @spec resolve(term()) :: {:ok, term()} | {:error, ExTorch.Error.t()}
  def resolve(%URI{} = uri), do: uri |> URI.to_string() |> resolve()

  def resolve(%module{} = source) do
    if implements?(module, :read_at, 3), do: {:ok, source}, else: {:error, unknown(source)}
  end

  def resolve(source) do
    case HTTP.URL.any_scheme(source) do
      nil -> {:ok, source}
      scheme when scheme in ["http", "https"] -> {:ok, HTTP.new(source)}
      scheme -> {:error, ExTorch.Error.new(:unsupported, other_scheme(scheme), source)}
    end
  rescue
    error in ExTorch.Error -> {:error, error}
  end

  @doc false
  @spec unknown(term()) :: ExTorch.Error.t()
  def unknown(other) do
    ExTorch.Error.new(
      :bad_argument,
      "expected a path, a URL, {:binary, binary} or a struct that implements ExTorch.Source, got #{ExTorch.Error.quoted(other)}"
    )
  end

  defp other_scheme("file"), do: "URLs of files are not supported; use the path"

  defp other_scheme("hf"),
    do: "hf:// URLs are not supported; use ExTorch.Source.HTTP.hub(repository, file)"

  defp other_scheme(scheme) do
    "#{scheme}:// URLs are not supported, only http:// and https://; use a URL of HTTP, such as a presigned one, or " <>
      "implement ExTorch.Source"
  end

  # Returns the error for a URL where only paths are accepted; nil for others. `instead` says what to do.
  @doc false
  @spec refuse_url(term(), String.t()) :: nil | ExTorch.Error.t()
  def refuse_url(%URI{} = uri, instead), do: uri |> URI.to_string() |> refuse_url(instead)

  def refuse_url(path, instead) do
    if HTTP.URL.any_scheme(path),
      do: ExTorch.Error.new(:unsupported, "expected a path, got a URL; #{instead}", path)
  end

  # Opens a source, which is a URL, or has a callback for it. Raises what the callback raises.
  @doc false
  @spec open(term()) :: {:ok, term()} | {:stream, Enumerable.t()} | {:error, term()}
  def open(source) do
    with {:ok, source} <- resolve(source) do
      case source do
        %module{} ->
          if implements?(module, :open, 1), do: module.open(source), else: {:ok, source}

        _ ->
          {:ok, source}
      end
    end
  end

  @doc false
  @spec prefetch(term(), (() -> [range()])) :: :ok
  def prefetch(%module{} = source, ranges) do
    if implements?(module, :prefetch, 2), do: module.prefetch(source, ranges.()), else: :ok
  end

  def prefetch(_source, _ranges), do: :ok

  # ---- Files and folders ----

  # Returns the path of a source that has one, otherwise nil. Sources with a path also have siblings and children.
  @doc false
  @spec path(term()) :: String.t() | nil
  def path(path) when is_binary(path), do: path

  def path(%module{} = source),
    do: if(implements?(module, :path, 1), do: module.path(source))

  def path(_other), do: nil

  # Returns the source of another file in the same directory.
  @doc false
  @spec sibling(Path.t() | t(), String.t()) :: Path.t() | t()
  def sibling(path, file) when is_binary(path), do: Path.join(Path.dirname(path), file)
  def sibling(%module{} = source, file), do: module.sibling(source, file)

  # Returns the source of a file in the directory that the source stands for.
  @doc false
  @spec child(Path.t() | t(), String.t()) :: Path.t() | t()
  def child(path, file) when is_binary(path), do: Path.join(path, file)
  def child(%module{} = source, file), do: module.child(source, file)

  # Returns what errors and events call the source: a path, or a URL without secrets.
  @doc false
  @spec label(term()) :: String.t() | nil
  def label(path) when is_binary(path), do: path

  def label(%module{} = source),
    do: if(implements?(module, :label, 1), do: module.label(source), else: inspect(module))

  def label(_other), do: nil

  # Reads a whole file of at most `limit` bytes.
  @doc false
  @spec read_all(t(), non_neg_integer()) :: {:ok, binary()} | {:error, term()}
  def read_all(%_{} = source, limit) do
    case open(source) do
      {:ok, %module{} = opened} ->
        try do
          with {:ok, size} <- SourceReader.size(opened),
               :ok <- check_size(size, limit, opened),
               do: if(size == 0, do: {:ok, ""}, else: SourceReader.read_at(opened, 0, size))
        after
          module.close(opened)
        end

      {:stream, stream} ->
        read_stream(stream, limit, source)

      error ->
        error
    end
  end

  defp check_size(size, limit, source) do
    if size <= limit, do: :ok, else: {:error, too_large(limit, source)}
  end

  defp too_large(limit, source),
    do: ExTorch.Error.new(:limit, "the file has more than #{limit} bytes", label(source))

  # Reads a stream of at most `limit` bytes.
  @doc false
  @spec read_stream(Enumerable.t(), non_neg_integer(), t() | nil) ::
          {:ok, binary()} | {:error, ExTorch.Error.t()}
  def read_stream(stream, limit, source) do
    stream
    |> Enum.reduce_while({[], 0}, fn chunk, {chunks, size} ->
      size = size + :erlang.iolist_size(chunk)
      if size <= limit, do: {:cont, {[chunks, chunk], size}}, else: {:halt, :limit}
    end)
    |> case do
      :limit -> {:error, too_large(limit, source)}
      {chunks, _size} -> {:ok, IO.iodata_to_binary(chunks)}
    end
  rescue
    error in ExTorch.Error -> {:error, error}
  end

  defp implements?(module, function, arity),
    do: Code.ensure_loaded?(module) and function_exported?(module, function, arity)
end
