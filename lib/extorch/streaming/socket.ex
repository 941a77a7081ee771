defmodule ExTorch.Streaming.Socket do
  @moduledoc false
  # Sending to and receiving from connected sockets of three kinds.

  alias ExTorch.{Error, Options}
  alias ExTorch.Streaming.Loader

  @type t :: :gen_tcp.socket() | :ssl.sslsocket() | :socket.socket()

  # As much as stays in the processor's cache until it is copied.
  @chunk 256 * 1024
  # Less than this is not worth a receive of its own: then whatever is there is taken.
  @small 64 * 1024
  @most 64 * 1024 * 1024

  # ---- Which kind: the module it belongs to. Only who has a socket of ssl needs that application ----

  defp kind(socket) when is_port(socket), do: :gen_tcp
  defp kind({:"$inet", _module, _socket}), do: :gen_tcp
  defp kind({:"$socket", _reference}), do: :socket
  defp kind(socket) when is_tuple(socket) and elem(socket, 0) == :sslsocket, do: :ssl

  defp kind(other) do
    raise Error.new(:bad_argument, "#{inspect(other, limit: 3)} is no connected socket")
  end

  # ---- Sending ----

  def send(socket, chunks, timeout) do
    kind = kind(socket)
    Options.timeout!(timeout)

    try do
      with_send_timeout(kind, socket, timeout, fn -> send_all(kind, socket, chunks, timeout) end)
    rescue
      # what cannot be saved
      error in Error -> {:error, error}
    end
  end

  defp send_all(kind, socket, chunks, timeout) do
    Enum.reduce_while(chunks, {:ok, 0}, fn chunk, {:ok, sent} ->
      case write(kind, socket, chunk, timeout) do
        :ok -> {:cont, {:ok, sent + :erlang.iolist_size(chunk)}}
        {:error, reason} -> {:halt, {:error, failed(reason, "sending", sent)}}
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

  # Sockets of gen_tcp and ssl have the timeout as an option, which is put back afterwards.
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
        {:error, failed(reason, "sending", 0)}
    end
  end

  # ---- Receiving ----

  def recv(socket, loader, opts) do
    timeout = Keyword.get(opts, :timeout, :infinity)
    chunk = Keyword.get(opts, :chunk, @chunk)
    Options.timeout!(timeout)
    Options.chunk!(chunk)
    link = %{kind: kind(socket), socket: socket, timeout: timeout, chunk: chunk}
    buffer = IO.iodata_to_binary(Keyword.get(opts, :buffer, ""))
    state = if buffer == "", do: {:more, loader}, else: Loader.feed(loader, buffer)
    more(state, link, byte_size(buffer))
  end

  defp more({:more, loader}, link, got) do
    case read(link, ask(loader.missing, link)) do
      {:ok, data} -> more(Loader.feed(loader, data), link, got + byte_size(data))
      {:error, reason} -> stopped(loader, reason, got)
    end
  end

  defp more({:done, term, rest}, _link, _got), do: {:ok, term, rest}
  defp more({:error, error}, _link, _got), do: {:error, error}

  # Above 64 MiB gen_tcp has no memory, whatever there is.
  defp ask(missing, link) do
    if missing >= @small, do: missing |> min(link.chunk) |> min(@most), else: 0
  end

  defp stopped(loader, reason, got) when reason in [:closed, :epipe, :econnreset] and got > 0,
    do: Loader.ended(loader)

  defp stopped(loader, reason, got) do
    _over = Loader.ended(loader)
    {:error, failed(reason, "receiving", got)}
  end

  defp read(%{kind: :socket} = link, size) do
    case :socket.recv(link.socket, size, [], link.timeout) do
      {:ok, data} -> {:ok, data}
      {:error, {reason, _data}} -> {:error, reason}
      {:error, reason} -> {:error, reason}
    end
  end

  # In list mode it is a list.
  defp read(%{kind: module} = link, size) do
    with {:ok, data} <- module.recv(link.socket, size, link.timeout),
         do: {:ok, IO.iodata_to_binary(data)}
  end

  # ---- Errors ----

  defp failed(:timeout, what, bytes),
    do: Error.new(:timeout, "the peer took too long for a chunk, after #{what} #{bytes} bytes")

  defp failed(reason, _what, 0) when reason in [:closed, :econnreset],
    do: Error.new(:closed, "the peer closed the connection, and no message had begun")

  defp failed(:closed, what, bytes),
    do: Error.new(:truncated, "the peer closed the connection after #{what} #{bytes} bytes")

  defp failed(:einval, "receiving", _bytes),
    do:
      Error.new(:io, "the socket cannot be asked for bytes: it has to be passive, active: false")

  defp failed(reason, what, bytes),
    do: Error.new(:io, "#{what} failed after #{bytes} bytes: #{inspect(reason)}")
end
