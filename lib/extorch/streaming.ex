defmodule ExTorch.Streaming do
  @moduledoc """
  Saves and loads checkpoints through sockets, uploads and other streams.

  The data is written and read front to back. No file is needed, and the tensor data is not held in memory twice.

      # the sender
      ExTorch.Streaming.send(state, socket)

      # the receiver: Elixir, or Python with torch.distributed._serialization
      {:ok, state, rest} = ExTorch.Streaming.recv(socket)

  ## Saving

  `save/2` returns an enumerable of iodata. The bytes of tensors are binaries that share the memory of the tensors, so
  they are not copied. This memory is frozen while such a binary is referenced (`ExTorch.Tensor.to_binary/1`). The
  formats are `:streaming` (the format of `torch.distributed._serialization` in Python), `:zip` (the usual format of
  `.pt` files), `:legacy` and `:safetensors`.

      iex> bytes = %{w: ExTorch.tensor([[1.0, 2.0]])} |> ExTorch.Streaming.save(format: :zip) |> Enum.to_list()
      iex> {:ok, state} = ExTorch.load({:binary, IO.iodata_to_binary(bytes)})
      iex> ExTorch.Tensor.to_list(state["w"])
      [[1.0, 2.0]]

  ## Loading

  A loader is fed with chunks of any size. It detects the streaming format, zip, legacy, safetensors and plain pickles.
  The tar format is not supported; use `gunzip/1` for gzip. The loader stops exactly at the end of the checkpoint and
  returns the bytes that follow it.

      iex> [first, second] = [<<8, 0, 0, 0, 0, 0, 0, 0, ?{, ?}, 32, 32>>, "    the next message"]
      iex> {:more, loader} = ExTorch.Streaming.feed(ExTorch.Streaming.loader(), first)
      iex> ExTorch.Streaming.feed(loader, second)
      {:done, %{}, "the next message"}

  The bytes of tensors are copied once, from the chunk into the memory of the tensor. This requires that the description
  of the tensors comes before their bytes, as in files written by `torch.save`. TorchScript and C++ archives have it at
  the end; they are kept in memory until then, up to the limit `spool_bytes` (1 GiB).

  What a loader holds counts in the budget of native memory (`ExTorch.Memory`). It is freed as soon as the loader has
  finished or failed, and if the process that feeds it dies. If a stream is given up before its end, call `ended/1`.

  Each loader can be fed once; feed the loader that is returned. Feeding an old one is a `:stale` error, and feeding one
  that another process is feeding is a `:busy` error. No thread waits for a slow stream.

  ## Options

  `loader/1`, `load/2`, `tensors/2` and `recv/2` take the options of `ExTorch.load/2`, except `:mmap`, `:readers`, `:drop_behind` and `:offset`,
  and:

    * `:on_tensor` - a function of the name and the tensor. It is called in the feeding process when a tensor is
      complete.

  The size that a stream declares cannot be verified before all of it has arrived. Use `limits: [total_bytes: n]` to
  reject streams that declare more than that.
  """
  @moduledoc groups: ["Saving", "Loading", "Sockets and processes"]

  alias ExTorch.{Error, Options, Saver, Telemetry}
  alias ExTorch.Streaming.{Gzip, Loader, Pull, Socket}

  @type loader :: Loader.t()

  @typedoc "A connected socket."
  @type socket :: :gen_tcp.socket() | :ssl.sslsocket() | :socket.socket()

  @doc group: "Saving"
  @doc """
  Returns the bytes of a checkpoint as an enumerable of iodata.

  Invalid options raise immediately, other errors during the enumeration.

      iex> %{"n" => 1} |> ExTorch.Streaming.save(format: :legacy) |> ExTorch.Streaming.load()
      {:ok, %{"n" => 1}, ""}

  ## Options

    * `:format` - `:streaming`, `:zip`, `:safetensors` or `:legacy`. Defaults to `:streaming`.
    * `:chunk` - the approximate size of the elements in bytes. Defaults to 1 MiB.
    * `:metadata`, `:compact`, `:duplicate`, `:on_progress` - as in `ExTorch.save/3`
  """
  @spec save(term(), keyword()) :: Enumerable.t()
  def save(term, opts \\ []), do: Saver.stream(term, opts)

  @doc group: "Loading"
  @doc """
  Creates a loader. Feed it with `feed/2`.

      iex> loader = ExTorch.Streaming.loader(limits: [total_bytes: 1_000_000])
      iex> Enum.into(ExTorch.Streaming.save(%{"n" => 1}), loader)
      {:ok, %{"n" => 1}, ""}
  """
  @spec loader(keyword()) :: loader()
  def loader(opts \\ []), do: Loader.new(opts)

  @doc group: "Loading"
  @doc """
  Feeds a chunk to a loader.

  Returns `{:more, loader}` if the checkpoint is incomplete, and `{:done, term, rest}` if it is complete. `rest`
  contains the bytes of the chunk that follow the checkpoint. The loader cannot be used after an error.

      iex> bytes = %{"n" => 1} |> ExTorch.Streaming.save() |> Enum.to_list() |> IO.iodata_to_binary()
      iex> <<first::binary-size(20), rest::binary>> = bytes
      iex> {:more, loader} = ExTorch.Streaming.loader() |> ExTorch.Streaming.feed(first)
      iex> ExTorch.Streaming.feed(loader, rest)
      {:done, %{"n" => 1}, ""}
  """
  @spec feed(loader(), iodata()) ::
          {:more, loader()} | {:done, term(), binary()} | {:error, Error.t()}
  def feed(loader, chunk), do: Loader.feed(loader, chunk)

  @doc group: "Loading"
  @doc """
  Ends the stream of a loader.

  The checkpoint is incomplete in this case, so the result is always an error. Its message contains the number of bytes
  received.

      iex> {:more, loader} = ExTorch.Streaming.loader() |> ExTorch.Streaming.feed("PK")
      iex> {:error, error} = ExTorch.Streaming.ended(loader)
      iex> error.reason
      :truncated
  """
  @spec ended(loader()) :: {:error, Error.t()}
  def ended(loader), do: Loader.ended(loader)

  @doc group: "Loading"
  @doc """
  Loads a checkpoint from an enumerable of iodata.

  Takes no more elements than needed. Returns the term and the bytes of the last element that follow the checkpoint.

      iex> chunks = ExTorch.Streaming.save([ExTorch.tensor(1), "text"], chunk: 16)
      iex> {:ok, [tensor, "text"], ""} = ExTorch.Streaming.load(chunks)
      iex> ExTorch.Tensor.to_list(tensor)
      1
  """
  @spec load(Enumerable.t(), keyword()) :: {:ok, term(), binary()} | {:error, Error.t()}
  def load(enumerable, opts \\ [])
  def load(binary, _opts) when is_binary(binary), do: {:error, no_enumerable(binary)}

  def load(enumerable, opts) do
    observed(:load, &Telemetry.measure/1, fn ->
      case feed_all(enumerable, Loader.new(opts)) do
        {:more, loader} -> Loader.ended(loader)
        {:done, term, rest} -> {:ok, term, rest}
        {:error, error} -> {:error, error}
      end
    end)
  end

  defp observed(direction, measure, fun),
    do: Telemetry.span(:stream, fn -> %{direction: direction} end, fun, measure)

  defp no_enumerable(binary) do
    what = if Options.path?(binary), do: "a string", else: "a binary"

    Error.new(
      :bad_argument,
      "expected an enumerable of chunks, got #{what}; ExTorch.load/2 reads paths and URLs, and bytes are a list of one chunk"
    )
  end

  # The state of the loader is the accumulator of a suspended reduction, so that it is known if the enumerable raises.
  defp feed_all(enumerable, loader), do: feed_next(Pull.start(Gzip.counted(enumerable)), loader)

  defp feed_next(pull, loader) do
    case Pull.next(pull) do
      {:ok, chunk, pull} ->
        with {:more, loader} <- feed_or_stop(pull, loader, chunk), do: feed_next(pull, loader)

      {:done, _pull} ->
        {:more, loader}

      {:raised, exception, _pull} ->
        Loader.ended(loader)
        Pull.reraise(exception)
    end
  end

  # Stops the enumerable unless it is needed further. A callback may raise.
  defp feed_or_stop(pull, loader, chunk) do
    result = Loader.feed(loader, chunk)
    unless match?({:more, _}, result), do: Pull.stop(pull)
    result
  catch
    kind, reason ->
      Pull.stop(pull)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  @doc group: "Loading"
  @doc "Same as `load/2` but returns `{term, rest}` and raises on error."
  @spec load!(Enumerable.t(), keyword()) :: {term(), binary()}
  def load!(enumerable, opts \\ []), do: Error.unwrap!(load(enumerable, opts))

  @doc group: "Loading"
  @doc """
  Returns a stream of `{name, tensor}`, each emitted when the tensor is complete.

  Tensors are not kept in memory after they have been emitted. Invalid options raise immediately, other errors during
  the enumeration.

      iex> chunks = ExTorch.Streaming.save(a: ExTorch.tensor([1]), b: ExTorch.tensor([2]))
      iex> for {name, tensor} <- ExTorch.Streaming.tensors(chunks), do: {name, ExTorch.Tensor.to_list(tensor)}
      [{"a", [1]}, {"b", [2]}]
  """
  @spec tensors(Enumerable.t(), keyword()) :: Enumerable.t()
  def tensors(enumerable, opts \\ []) do
    options = Loader.check!(opts)
    if is_binary(enumerable), do: raise(no_enumerable(enumerable))

    Stream.resource(
      fn -> {Pull.start(Gzip.counted(enumerable)), {:more, Loader.start(options, false)}} end,
      &next_tensors/1,
      &stop_tensors/1
    )
  end

  defp stop_tensors({pull, state}) do
    with {:more, loader} <- state, do: Loader.ended(loader)
    Pull.stop(pull)
  end

  # Errors are raised by the next call, when the accumulator has the new `pull` and the tensors that were complete have
  # been emitted. Stream.resource/3 then passes this `pull` to the function that stops it.
  defp next_tensors({pull, :done}), do: {:halt, {pull, :done}}
  defp next_tensors({_pull, {:failed, error}}), do: raise(error)
  defp next_tensors({_pull, {:raised, exception}}), do: Pull.reraise(exception)

  defp next_tensors({pull, {:more, loader}}) do
    case Pull.next(pull) do
      {:ok, chunk, pull} ->
        {result, ready} = push(loader, chunk)

        case result do
          {:more, loader} -> {ready, {pull, {:more, loader}}}
          {:done, nil, _rest} -> {ready, {pull, :done}}
          {:error, error} -> {ready, {pull, {:failed, error}}}
        end

      {:done, pull} ->
        {:error, error} = Loader.ended(loader)
        {[], {pull, {:failed, error}}}

      {:raised, exception, pull} ->
        Loader.ended(loader)
        {[], {pull, {:raised, exception}}}
    end
  end

  defp push(loader, chunk) do
    key = {__MODULE__, make_ref()}
    Process.put(key, [])
    result = Loader.push(loader, chunk, &Process.put(key, [&1 | Process.get(key)]))
    {result, key |> Process.delete() |> Enum.reverse()}
  end

  @doc group: "Loading"
  @doc """
  Decompresses an enumerable of gzip data lazily.

  Give the result to `load/2` or `tensors/2` directly: they know how many bytes it had before it was decompressed, and
  refuse data that expands too much besides the bytes of tensors. A loader that is fed with the elements one by one
  counts their decompressed bytes.

      iex> packed = %{n: 1} |> ExTorch.Streaming.save() |> Enum.to_list() |> :zlib.gzip()
      iex> [packed] |> ExTorch.Streaming.gunzip() |> ExTorch.Streaming.load()
      {:ok, %{"n" => 1}, ""}
  """
  @spec gunzip(Enumerable.t()) :: Enumerable.t()
  defdelegate gunzip(enumerable), to: Gzip, as: :new

  @doc group: "Sockets and processes"
  @doc """
  Sends a term through a connected socket of `:gen_tcp`, `:ssl` or `:socket`, or to a process.

  A process, which may be on another node, receives it with `recv(sender)`. Up to eight chunks are under way at a time; the
  bytes of tensors are sent from their own memory.

  Blocks while the socket's send buffer is full. After an error, a part of the message may have been sent: close the
  socket.

      {:ok, socket} = :gen_tcp.connect(~c"10.0.0.5", 5000, [:binary, active: false])
      :ok = ExTorch.Streaming.send(%{"weight" => tensor}, socket)

  ## Options

  All options of `save/2`, and:

    * `:timeout` - how long the peer may take for one chunk, in milliseconds, or `:infinity`. Defaults to `:infinity`.
  """
  @spec send(term(), socket() | pid(), keyword()) :: :ok | {:error, Error.t()}
  def send(term, socket, opts \\ []) do
    opts = Options.validate!(opts, [timeout: :infinity] ++ Saver.stream_options())
    {timeout, opts} = Keyword.pop!(opts, :timeout)

    observed(:send, fn _result -> Telemetry.measure([term]) end, fn ->
      if is_pid(socket),
        do: ExTorch.Streaming.Process.send(socket, save(term, opts), Options.timeout!(timeout)),
        else: Socket.send(socket, save(term, opts), timeout)
    end)
  end

  @doc group: "Sockets and processes"
  @doc "Same as `send/3` but raises on error."
  @spec send!(term(), socket() | pid(), keyword()) :: :ok
  def send!(term, socket, opts \\ []), do: Error.unwrap!(send(term, socket, opts))

  @doc group: "Sockets and processes"
  @doc """
  Receives a term from a connected, passive socket of `:gen_tcp`, `:ssl` or `:socket`, or from a process that calls `send/3`
  (then `:buffer` and `:chunk` are not used).

  Returns the term and the bytes that were read past its end. Pass these bytes as `:buffer` when you receive the next
  message. If the peer closes the connection before a message begins, the error is `:closed`, within a message it is
  `:truncated`.

      {:ok, listener} = :gen_tcp.listen(5000, [:binary, active: false])
      {:ok, socket} = :gen_tcp.accept(listener)
      {:ok, state, rest} = ExTorch.Streaming.recv(socket, timeout: 30_000)
      {:ok, next, rest} = ExTorch.Streaming.recv(socket, buffer: rest)

  ## Options

  All options of `loader/1`, and:

    * `:buffer` - bytes that were received before. Defaults to `""`.
    * `:chunk` - the maximum number of bytes to receive at once. Defaults to 256 KiB.
    * `:timeout` - how long the peer may take for one chunk, in milliseconds, or `:infinity`. Defaults to `:infinity`.
  """
  @spec recv(socket() | pid(), keyword()) :: {:ok, term(), binary()} | {:error, Error.t()}
  def recv(socket, opts \\ []) do
    known = Socket.recv_options()
    opts = Options.validate!(opts, known ++ Loader.known_options())
    {socket_opts, opts} = Keyword.split(opts, Keyword.keys(known))
    options = Loader.check!(opts)

    observed(:recv, &Telemetry.measure/1, fn ->
      if is_pid(socket),
        do:
          ExTorch.Streaming.Process.recv(socket, options, Options.timeout!(socket_opts[:timeout])),
        else: Socket.recv(socket, options, socket_opts)
    end)
  end

  @doc group: "Sockets and processes"
  @doc "Same as `recv/2` but returns `{term, rest}` and raises on error."
  @spec recv!(socket() | pid(), keyword()) :: {term(), binary()}
  def recv!(socket, opts \\ []), do: Error.unwrap!(recv(socket, opts))
end
