defmodule ExTorch.Streaming do
  @moduledoc """
  Checkpoints through sockets, uploads and any Elixir stream: saved and loaded forward only, without a file and without
  the payload in memory twice.

      # one side
      ExTorch.Streaming.send(state, socket)

      # the other: Elixir, or Python with torch.distributed._serialization
      {:ok, state, rest} = ExTorch.Streaming.recv(socket)

  ## Saving

  `save/2` gives an enumerable of iodata. Bytes of tensors appear as binaries that share the tensors' memory, so nothing
  is copied; as long as such a binary lives, that memory is frozen (`ExTorch.Tensor.to_binary/1`). Formats are
  `:streaming` (of `torch.distributed._serialization`, read and written by Python as well), `:zip` (an ordinary `.pt`)
  and `:safetensors`.

      iex> bytes = %{w: ExTorch.tensor([[1.0, 2.0]])} |> ExTorch.Streaming.save(format: :zip) |> Enum.to_list()
      iex> {:ok, state} = ExTorch.load({:binary, IO.iodata_to_binary(bytes)})
      iex> ExTorch.Tensor.to_list(state["w"])
      [[1.0, 2.0]]

  ## Loading

  What comes in pieces of any size is fed to a loader. It recognises what `ExTorch.load/2` recognises: the streaming
  format, zip, legacy, safetensors and plain pickles; tar and gzip it refuses (`gunzip/1` unpacks on the way). It stops
  exactly at the end and gives back what follows.

      iex> [first, second] = [<<8, 0, 0, 0, 0, 0, 0, 0, ?{, ?}, 32, 32>>, "    the next message"]
      iex> {:more, loader} = ExTorch.Streaming.feed(ExTorch.Streaming.loader(), first)
      iex> ExTorch.Streaming.feed(loader, second)
      {:done, %{}, "the next message"}

  Bytes of tensors are copied once, from the piece into the memory that the tensor will own. This needs the description
  before the tensors, which is how `torch.save` writes; archives of TorchScript and C++ have it behind them and are kept
  whole until then, up to the limit `spool_bytes` (1 GiB).

  A loader is a value for one use: feeding it again after it was fed is `:stale`, and while another process is feeding it
  `:busy`. No thread waits for a slow stream.

  ## Options of `loader/1`, `load/2`, `tensors/2` and `recv/2`

  Those of `ExTorch.load/2` but `:mmap` and `:offset`, and

    * `:on_tensor` - a function of a name and a tensor, called in the feeding process as soon as a tensor is complete.

  A stream tells how large it will be, and nothing proves it before it has come: give `limits: [total_bytes: n]` to
  refuse strangers' claims at once.
  """

  alias ExTorch.{Error, Saver}
  alias ExTorch.Streaming.{Loader, Pull, Socket}

  @type loader :: Loader.t()

  @doc """
  A term as an enumerable of iodata, about `:chunk` bytes (1 MiB) at a time.

  Options are `:format` (`:streaming`, `:zip`, `:safetensors` or `:legacy`), `:chunk`, and those of `ExTorch.save/3` that
  are not about files: `:metadata`, `:compact`, `:duplicate`, `:on_progress`. What goes wrong is raised while it is
  enumerated.
  """
  @spec save(term(), keyword()) :: Enumerable.t()
  def save(term, opts \\ []), do: Saver.stream(term, opts)

  @doc "A loader, to be fed with `feed/2`."
  @spec loader(keyword()) :: loader()
  def loader(opts \\ []), do: Loader.new(opts)

  @doc """
  Feeds a piece: `{:more, loader}`, or `{:done, term, rest}` with what followed the checkpoint in this piece.

  After an error the stream is over.
  """
  @spec feed(loader(), iodata()) ::
          {:more, loader()} | {:done, term(), binary()} | {:error, Error.t()}
  def feed(%Loader{} = loader, chunk), do: Loader.feed(loader, chunk)

  @doc """
  The stream has ended. A loader that still expects something cannot be done, so this is always an error: it says how far
  the stream had come.
  """
  @spec ended(loader()) :: {:error, Error.t()}
  def ended(%Loader{} = loader), do: Loader.ended(loader)

  @doc """
  Loads from an enumerable of iodata, and takes no more of it than is needed.

      iex> chunks = ExTorch.Streaming.save([ExTorch.tensor(1), "text"], chunk: 16)
      iex> {:ok, [tensor, "text"], ""} = ExTorch.Streaming.load(chunks)
      iex> ExTorch.Tensor.to_list(tensor)
      1
  """
  @spec load(Enumerable.t(), keyword()) :: {:ok, term(), binary()} | {:error, Error.t()}
  def load(enumerable, opts \\ []) do
    enumerable
    |> Enum.reduce_while({:more, Loader.new(opts)}, fn chunk, {:more, loader} ->
      case Loader.feed(loader, chunk) do
        {:more, loader} -> {:cont, {:more, loader}}
        other -> {:halt, other}
      end
    end)
    |> case do
      {:more, loader} -> Loader.ended(loader)
      {:done, term, rest} -> {:ok, term, rest}
      {:error, error} -> {:error, error}
    end
  end

  @doc "The same, raising: the term and the rest."
  @spec load!(Enumerable.t(), keyword()) :: {term(), binary()}
  def load!(enumerable, opts \\ []), do: Error.bang!(load(enumerable, opts))

  @doc """
  `{name, tensor}` for every tensor of a stream, as each completes: memory holds the tensor at hand and what the consumer
  keeps. What goes wrong is raised.

      iex> chunks = ExTorch.Streaming.save(a: ExTorch.tensor([1]), b: ExTorch.tensor([2]))
      iex> for {name, tensor} <- ExTorch.Streaming.tensors(chunks), do: {name, ExTorch.Tensor.to_list(tensor)}
      [{"a", [1]}, {"b", [2]}]
  """
  @spec tensors(Enumerable.t(), keyword()) :: Enumerable.t()
  def tensors(enumerable, opts \\ []) do
    Stream.resource(
      fn -> {Pull.start(enumerable), Loader.new(opts, false)} end,
      &next_tensors/1,
      fn {pull, _loader} -> Pull.stop(pull) end
    )
  end

  # An error is raised only once what the source was asked for is in the state, which is then stopped.
  defp next_tensors({pull, :over}), do: {:halt, {pull, :over}}
  defp next_tensors({_pull, {:failed, error}}), do: raise(error)

  defp next_tensors({pull, loader}) do
    case Pull.next(pull) do
      {:ok, chunk, pull} ->
        {result, ready} = push(loader, chunk)

        case result do
          {:more, loader} -> {ready, {pull, loader}}
          {:done, _loader, _rest} -> {ready, {pull, :over}}
          {:error, error} -> {ready, {pull, {:failed, error}}}
        end

      {:over, pull} ->
        {:error, error} = Loader.ended(loader)
        {[], {pull, {:failed, error}}}
    end
  end

  defp push(loader, chunk) do
    key = {__MODULE__, make_ref()}
    Process.put(key, [])
    result = Loader.push(loader, chunk, &Process.put(key, [&1 | Process.get(key)]))
    {result, key |> Process.delete() |> Enum.reverse()}
  end

  @doc """
  Unpacks a gzip on the way, so that what is in it can be loaded.

      iex> packed = %{n: 1} |> ExTorch.Streaming.save() |> Enum.to_list() |> :zlib.gzip()
      iex> [packed] |> ExTorch.Streaming.gunzip() |> ExTorch.Streaming.load()
      {:ok, %{"n" => 1}, ""}
  """
  @spec gunzip(Enumerable.t()) :: Enumerable.t()
  defdelegate gunzip(enumerable), to: ExTorch.Streaming.Gzip, as: :stream

  @doc """
  Sends a term through a connected socket of `:gen_tcp`, `:ssl` or `:socket`.

  The socket's own back-pressure is what slows it down. Options are those of `save/2`, and `:timeout` (milliseconds, or
  `:infinity`, which is the default): how long the peer may take for a chunk. After an error the connection is in the
  middle of a message: close it.
  """
  @spec send(term(), Socket.t(), keyword()) :: :ok | {:error, Error.t()}
  def send(term, socket, opts \\ []) do
    {timeout, opts} = Keyword.pop(opts, :timeout, :infinity)
    Socket.send(socket, save(term, opts), timeout)
  end

  @doc "The same, raising."
  @spec send!(term(), Socket.t(), keyword()) :: :ok
  def send!(term, socket, opts \\ []), do: Error.bang!(send(term, socket, opts))

  @doc """
  Receives a term from a connected, passive socket of `:gen_tcp`, `:ssl` or `:socket`.

  What was read past the end comes back as `rest`, and goes in again as `buffer: rest` when the next message is received.
  Options are those of `loader/1`, `:buffer`, `:chunk` (256 KiB), the most that is asked for at once, and `:timeout`
  (milliseconds, `:infinity` by default), how long the peer may take for a chunk. A peer that closes before a message begins is `:closed`, in
  the middle of one `:truncated`.
  """
  @spec recv(Socket.t(), keyword()) :: {:ok, term(), binary()} | {:error, Error.t()}
  def recv(socket, opts \\ []) do
    {own, opts} = Keyword.split(opts, [:buffer, :timeout, :chunk])
    Socket.recv(socket, Loader.new(opts), own)
  end

  @doc "The same, raising: the term and the rest."
  @spec recv!(Socket.t(), keyword()) :: {term(), binary()}
  def recv!(socket, opts \\ []), do: Error.bang!(recv(socket, opts))
end
