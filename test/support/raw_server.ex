defmodule ExTorch.Test.RawServer do
  @moduledoc false
  # A server on the loopback interface that answers each request with the bytes that a function returns: for answers that
  # nginx never gives.

  @doc """
  Starts a server. The function gets the number of the request, from 1 on, and the requested range as `{offset, length}` or
  nil. It returns iodata, `{:close, iodata}` to close the connection after it, or a function of the socket. Returns the URL.
  """
  def start(answer) do
    {:ok, listener} =
      :gen_tcp.listen(0, [:binary, ip: {127, 0, 0, 1}, active: false, packet: :line, backlog: 64])

    {:ok, port} = :inet.port(listener)
    counter = :counters.new(1, [])

    server =
      spawn_link(fn ->
        receive do: (:go -> accept(listener, answer, counter))
      end)

    :gen_tcp.controlling_process(listener, server)
    send(server, :go)
    "http://127.0.0.1:#{port}/model.pt"
  end

  defp accept(listener, answer, counter) do
    {:ok, socket} = :gen_tcp.accept(listener)
    connection = spawn(fn -> receive do: (:go -> serve(socket, answer, counter)) end)
    :gen_tcp.controlling_process(socket, connection)
    send(connection, :go)
    accept(listener, answer, counter)
  end

  defp serve(socket, answer, counter) do
    with {:ok, range} <- request(socket, nil) do
      :counters.add(counter, 1, 1)

      case answer.(:counters.get(counter, 1), range) do
        fun when is_function(fun, 1) ->
          fun.(socket)

        {:close, data} ->
          :gen_tcp.send(socket, data)
          :gen_tcp.close(socket)

        data ->
          :gen_tcp.send(socket, data)
          serve(socket, answer, counter)
      end
    end
  end

  defp request(socket, range) do
    case :gen_tcp.recv(socket, 0) do
      {:ok, "\r\n"} ->
        {:ok, range}

      {:ok, line} ->
        case Regex.run(~r/^range: bytes=(\d+)-(\d*)/i, line) do
          [_, first, ""] ->
            request(socket, {String.to_integer(first), 2 ** 62})

          [_, first, last] ->
            first = String.to_integer(first)
            request(socket, {first, String.to_integer(last) - first + 1})

          nil ->
            request(socket, range)
        end

      error ->
        error
    end
  end

  @doc "The usual answer to a range request. Options: headers, content_range, body, status, length."
  def partial(bytes, {offset, length}, opts \\ []) do
    length = min(length, byte_size(bytes) - offset)
    body = Keyword.get(opts, :body, binary_part(bytes, offset, length))
    default = "bytes #{offset}-#{offset + length - 1}/#{byte_size(bytes)}"
    range = Keyword.get(opts, :content_range, default)

    [
      "HTTP/1.1 206 Partial Content\r\ncontent-range: #{range}\r\n",
      "content-length: #{Keyword.get(opts, :length, byte_size(body))}\r\n",
      Keyword.get(opts, :headers, "etag: \"one\"\r\n"),
      "\r\n",
      body
    ]
  end
end
