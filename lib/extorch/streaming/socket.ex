defmodule ExTorch.Streaming.Socket do
  @moduledoc false
  # Sends to and receives from sockets of :gen_tcp, :ssl and :socket.

  alias ExTorch.{Error, Options}
  alias ExTorch.Streaming.Loader

  @type t :: ExTorch.Streaming.socket()

  # Small enough to stay in the CPU cache until it is copied.
  @chunk 256 * 1024
  # If fewer bytes are expected, receives whatever is available.
  @small 64 * 1024
  # gen_tcp returns :enomem for larger receives.
  @max_receive 64 * 1024 * 1024

  # ---- The kind of a socket is the module of its functions ----

  defp kind(socket) when is_port(socket), do: :gen_tcp
  defp kind({:"$inet", _module, _socket}), do: :gen_tcp
  defp kind({:"$socket", _reference}), do: :socket

  defp kind(socket)
       when is_tuple(socket) and tuple_size(socket) > 1 and elem(socket, 0) == :sslsocket,
       do: :ssl

  defp kind(other) do
    raise Error.new(
            :bad_argument,
            "expected a socket of :gen_tcp, :ssl or :socket, got #{inspect(other, limit: 3)}"
          )
  end

  # ---- Sending ----

  @spec send(t(), Enumerable.t(), timeout()) :: :ok | {:error, Error.t()}
  def send(socket, chunks, timeout) do
    kind = kind(socket)
    timeout = Options.timeout!(timeout)

    try do
      with_send_timeout(kind, socket, timeout, fn -> send_all(kind, socket, chunks, timeout) end)
    rescue
      # The stream of chunks raises if the term cannot be saved.
      error in Error -> {:error, error}
    end
  end

  defp send_all(kind, socket, chunks, timeout) do
    Enum.reduce_while(chunks, {:ok, 0}, fn chunk, {:ok, sent} ->
      case write(kind, socket, chunk, timeout) do
        :ok -> {:cont, {:ok, sent + :erlang.iolist_size(chunk)}}
        {:error, reason} -> {:halt, {:error, socket_error(reason, "sending", sent)}}
      end
    end)
    |> case do
      {:ok, _sent} -> :ok
      {:error, error} -> {:error, error}
    end
  end

  defp write(:socket, socket, chunk, timeout) do
    chunk |> :erlang.iolist_to_iovec() |> write_all(socket, timeout)
  end

  defp write(module, socket, chunk, _timeout), do: module.send(socket, chunk)

  defp write_all([], _socket, _timeout), do: :ok

  defp write_all([part | parts], socket, timeout) do
    case :socket.send(socket, part, [], timeout) do
      :ok -> write_all(parts, socket, timeout)
      {:ok, rest} -> write_all([rest | parts], socket, timeout)
      {:error, {reason, _rest}} -> {:error, reason}
      {:error, reason} -> {:error, reason}
    end
  end

  # For gen_tcp and ssl the timeout is a socket option. It is restored afterwards.
  defp with_send_timeout(kind, _socket, timeout, fun)
       when kind == :socket or timeout == :infinity,
       do: fun.()

  defp with_send_timeout(kind, socket, timeout, fun) do
    module = if kind == :ssl, do: :ssl, else: :inet

    case module.getopts(socket, [:send_timeout]) do
      {:ok, before} ->
        module.setopts(socket, send_timeout: timeout)

        try do
          fun.()
        after
          module.setopts(socket, before)
        end

      {:error, reason} ->
        {:error, socket_error(reason, "sending", 0)}
    end
  end

  # ---- Receiving ----

  # The options of recv/3 with their defaults.
  @spec recv_options() :: keyword()
  def recv_options, do: [buffer: "", timeout: :infinity, chunk: @chunk]

  @spec recv(t(), Loader.options(), keyword()) :: {:ok, term(), binary()} | {:error, Error.t()}
  def recv(socket, loader_options, opts) do
    conn = %{
      kind: kind(socket),
      socket: socket,
      timeout: Options.timeout!(opts[:timeout]),
      chunk: Options.chunk!(opts[:chunk])
    }

    buffer = buffer!(opts[:buffer])
    loader = Loader.start(loader_options, true)
    state = if buffer == "", do: {:more, loader}, else: Loader.feed(loader, buffer)
    receive_all(state, conn, byte_size(buffer))
  end

  defp buffer!(buffer) do
    IO.iodata_to_binary(buffer)
  rescue
    ArgumentError -> Options.invalid!(:buffer, "iodata", buffer)
  end

  defp receive_all({:more, loader}, conn, received) do
    case read_or_end(loader, conn) do
      {:ok, data} -> receive_all(Loader.feed(loader, data), conn, received + byte_size(data))
      {:error, reason} -> receive_failed(loader, reason, received)
    end
  end

  defp receive_all({:done, term, rest}, _conn, _received), do: {:ok, term, rest}
  defp receive_all({:error, error}, _conn, _received), do: {:error, error}

  # A process that catches the exception of an invalid socket keeps nothing.
  defp read_or_end(loader, conn) do
    read(conn, receive_size(Loader.expected(loader), conn))
  catch
    kind, reason ->
      Loader.ended(loader)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # 0 means any number of bytes.
  defp receive_size(expected, conn) do
    if expected >= @small, do: expected |> min(conn.chunk) |> min(@max_receive), else: 0
  end

  defp receive_failed(loader, reason, received)
       when reason in [:closed, :epipe, :econnreset] and received > 0,
       do: Loader.ended(loader)

  defp receive_failed(loader, reason, received) do
    _error = Loader.ended(loader)
    {:error, socket_error(reason, "receiving", received)}
  end

  defp read(%{kind: :socket} = conn, size) do
    case :socket.recv(conn.socket, size, [], conn.timeout) do
      {:ok, data} -> {:ok, data}
      {:error, {reason, _data}} -> {:error, reason}
      {:error, reason} -> {:error, reason}
    end
  end

  # The data is a list if the socket is in list mode.
  defp read(%{kind: module} = conn, size) do
    with {:ok, data} <- module.recv(conn.socket, size, conn.timeout),
         do: {:ok, IO.iodata_to_binary(data)}
  end

  # ---- Errors ----

  defp socket_error(:timeout, action, bytes),
    do: Error.new(:timeout, "timeout while waiting for the peer, after #{action} #{bytes} bytes")

  defp socket_error(reason, _action, 0) when reason in [:closed, :econnreset],
    do: Error.new(:closed, "the peer closed the connection before a message began")

  defp socket_error(:closed, action, bytes),
    do: Error.new(:truncated, "the peer closed the connection after #{action} #{bytes} bytes")

  defp socket_error(:einval, "receiving", _bytes),
    do: Error.new(:io, "cannot receive from an active socket; make it passive with active: false")

  defp socket_error(reason, action, bytes),
    do: Error.new(:io, "#{action} failed after #{bytes} bytes: #{inspect(reason)}")
end
