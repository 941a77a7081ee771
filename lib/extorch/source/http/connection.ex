defmodule ExTorch.Source.HTTP.Connection do
  @moduledoc false
  # A client for HTTP/1.1 on a passive socket. The process that uses a connection owns its socket: if it is killed, the
  # socket is closed.
  #
  # Heads of responses are received as lines of limited length. Large bodies are received into native memory, on dirty
  # schedulers (Incoming). Others, and those of TLS, are received with the length that is expected, so that the
  # bytes go from the kernel into the binary that is returned. The first calls ask for little and each of the next for
  # twice as much while they are fast: every call must finish within the timeout, also if the network is slow.

  alias ExTorch.Source.HTTP.URL
  alias ExTorch.Source.Incoming

  @max_line 16 * 1024
  @max_head 64 * 1024
  @min_step 256 * 1024
  @max_step 33 * 1024 * 1024
  @large 1024 * 1024
  @fast_ms 250
  @slow_ms 5_000

  @type t :: %__MODULE__{
          module: :gen_tcp | :ssl,
          socket: :gen_tcp.socket() | :ssl.sslsocket(),
          origin: tuple(),
          timeout: timeout(),
          step: pos_integer(),
          reusable: boolean()
        }
  @type framing :: {:length, non_neg_integer()} | :chunked | :until_closed
  @type response :: %{
          status: 100..599,
          headers: [{String.t(), String.t()}],
          framing: framing()
        }

  @enforce_keys [:module, :socket, :origin, :timeout]
  defstruct [:module, :socket, :origin, :timeout, step: @min_step, reusable: true]

  # ---- Connecting ----

  @spec connect(URL.t(), %{connect_timeout: timeout(), timeout: timeout(), ssl: keyword()}) ::
          {:ok, t()} | {:error, term()}
  def connect(url, options) do
    module = if url.scheme == :https, do: :ssl, else: :gen_tcp
    tls = if module == :ssl, do: tls_options(url.host, options.ssl), else: []

    socket_options = [
      :binary,
      active: false,
      packet: :line,
      packet_size: @max_line,
      buffer: @max_line,
      nodelay: true,
      send_timeout: options.timeout,
      send_timeout_close: true
    ]

    with :ok <- start(module),
         {:ok, socket} <-
           connect(module, address(url.host), url.port, socket_options, tls, options) do
      {:ok,
       %__MODULE__{
         module: module,
         socket: socket,
         origin: URL.origin(url),
         timeout: options.timeout
       }}
    end
  end

  # IPv6 is tried if the name has no IPv4 address.
  defp connect(module, host, port, options, tls, %{connect_timeout: timeout}) do
    case module.connect(host, port, family(host) ++ options ++ tls, timeout) do
      {:error, reason} when reason in [:nxdomain, :eafnosupport] ->
        module.connect(host, port, [:inet6 | options] ++ tls, timeout)

      other ->
        other
    end
  end

  defp family(host) when is_tuple(host) and tuple_size(host) == 8, do: [:inet6]
  defp family(_host), do: []

  defp address(host) do
    host = String.to_charlist(host)

    case :inet.parse_strict_address(host) do
      {:ok, address} -> address
      {:error, _} -> host
    end
  end

  defp start(:gen_tcp), do: :ok

  defp start(:ssl) do
    with {:ok, _} <- Application.ensure_all_started(:ssl), do: :ok
  end

  # The options of the caller replace the defaults: their own certificates, for example.
  defp tls_options(host, own) do
    own_trust? = Enum.any?([:cacerts, :cacertfile, :verify], &Keyword.has_key?(own, &1))
    trust = if own_trust?, do: [], else: [cacerts: :public_key.cacerts_get()]

    defaults =
      [
        verify: :verify_peer,
        depth: 10,
        customize_hostname_check: [
          match_fun: :public_key.pkix_verify_hostname_match_fun(:https)
        ],
        log_level: :none
      ] ++ name_indication(host) ++ trust

    Keyword.merge(defaults, own)
  end

  defp name_indication(host) do
    case :inet.parse_strict_address(String.to_charlist(host)) do
      {:ok, _} -> []
      _ -> [server_name_indication: String.to_charlist(host)]
    end
  end

  @spec close(t() | nil) :: :ok
  def close(nil), do: :ok

  def close(%{module: module, socket: socket}) do
    module.close(socket)
    :ok
  end

  # ---- Requests ----

  # Sends a GET and receives the head of the response.
  @spec get(t(), URL.t(), [{String.t(), String.t()}]) :: {:ok, response(), t()} | {:error, term()}
  def get(conn, url, headers) do
    lines = for {name, value} <- headers, do: [name, ": ", value, "\r\n"]
    head = ["GET ", url.target, " HTTP/1.1\r\nhost: ", URL.authority(url), "\r\n", lines, "\r\n"]

    with :ok <- conn.module.send(conn.socket, head),
         {:ok, response, conn} <- head(conn, 5),
         :ok <- packet(conn, :raw),
         do: {:ok, response, conn}
  end

  # Responses of the class 1xx come before the one that counts.
  defp head(_conn, 0), do: {:error, {:invalid, "too many interim responses"}}

  defp head(conn, tries) do
    with {:ok, line} <- line(conn, 0),
         {:ok, version, status} <- status(line),
         {:ok, headers} <- headers(conn, byte_size(line), []),
         {:ok, framing} <- framing(status, headers) do
      if status in 100..199 do
        head(conn, tries - 1)
      else
        closes? =
          version == 0 or framing == :until_closed or token?(headers, "connection", "close")

        response = %{status: status, headers: headers, framing: framing}
        {:ok, response, %{conn | reusable: not closes?}}
      end
    end
  end

  defp line(_conn, received) when received > @max_head,
    do: {:error, {:invalid, "the head of the response has more than #{@max_head} bytes"}}

  defp line(conn, received) do
    case conn.module.recv(conn.socket, 0, conn.timeout) do
      {:ok, line} when byte_size(line) + received > @max_head -> line(conn, @max_head + 1)
      {:ok, line} -> strip(line)
      {:error, :emsgsize} -> {:error, {:invalid, "a header has more than #{@max_line} bytes"}}
      {:error, reason} -> {:error, reason}
    end
  end

  defp strip(line) do
    if String.ends_with?(line, "\r\n"),
      do: {:ok, binary_part(line, 0, byte_size(line) - 2)},
      else: {:error, {:invalid, "a line of the response is too long or does not end in CR LF"}}
  end

  defp status(<<"HTTP/1.", version, " ", a, b, c, rest::binary>>)
       when version in ?0..?1 and a in ?1..?5 and b in ?0..?9 and c in ?0..?9 and
              (rest == "" or binary_part(rest, 0, 1) == " "),
       do: {:ok, version - ?0, (a - ?0) * 100 + (b - ?0) * 10 + (c - ?0)}

  defp status(_line), do: {:error, {:invalid, "the response does not begin like HTTP/1.1"}}

  defp headers(conn, received, headers) do
    case line(conn, received) do
      {:ok, ""} -> {:ok, Enum.reverse(headers)}
      {:ok, line} -> add_header(conn, received + byte_size(line) + 2, headers, line)
      error -> error
    end
  end

  defp add_header(conn, received, headers, line) do
    with [name, value] <- :binary.split(line, ":"),
         true <- name != "" and token?(name) and printable?(value) do
      headers(conn, received, [{String.downcase(name), String.trim(value)} | headers])
    else
      _ -> {:error, {:invalid, "a header of the response is malformed"}}
    end
  end

  # The characters of RFC 9110's token.
  defp token?(name), do: for(<<c <- name>>, not token_char?(c), do: c) == []
  defp token_char?(c) when c in ?a..?z or c in ?A..?Z or c in ?0..?9, do: true
  defp token_char?(c), do: c in ~c"!#$%&'*+-.^_`|~"
  defp printable?(value), do: for(<<c <- value>>, (c < 32 and c != ?\t) or c == 127, do: c) == []

  @spec header(response() | [{String.t(), String.t()}], String.t()) :: String.t() | nil
  def header(%{headers: headers}, name), do: header(headers, name)

  def header(headers, name) do
    with {_, value} <- List.keyfind(headers, name, 0), do: value
  end

  defp values(headers, name), do: for({^name, value} <- headers, do: value)

  defp token?(headers, name, token) do
    headers
    |> values(name)
    |> Enum.flat_map(&String.split(&1, ","))
    |> Enum.any?(&(String.downcase(String.trim(&1)) == token))
  end

  # How the body ends. Contradictions are errors: they are how requests are smuggled.
  defp framing(status, _headers) when status in 100..199 or status in [204, 304],
    do: {:ok, {:length, 0}}

  defp framing(_status, headers) do
    case {values(headers, "transfer-encoding"), Enum.uniq(values(headers, "content-length"))} do
      {[], []} -> {:ok, :until_closed}
      {[], [length]} -> decimal(length)
      {[encoding], []} -> transfer(String.downcase(encoding))
      _ -> {:error, {:invalid, "the length of the response is ambiguous"}}
    end
  end

  defp transfer("chunked"), do: {:ok, :chunked}

  defp transfer(_encoding),
    do: {:error, {:unsupported, "the server sends a transfer encoding that was not asked for"}}

  defp decimal(text) do
    if text =~ ~r/\A[0-9]{1,18}\z/,
      do: {:ok, {:length, String.to_integer(text)}},
      else: {:error, {:invalid, "the content length is not a decimal number"}}
  end

  # ---- Bodies ----

  # Receives a body of exactly `size` bytes. An error has the bytes that were received before it.
  @spec body(t(), framing(), non_neg_integer()) ::
          {:ok, [binary()], t()} | {:error, term(), [binary()]}
  def body(conn, {:length, size}, size), do: exactly(conn, size, [])

  def body(_conn, {:length, other}, size),
    do: {:error, {:invalid, "the response has #{other} bytes, expected #{size}"}, []}

  def body(conn, :until_closed, size), do: exactly(conn, size, [])
  def body(conn, :chunked, size), do: chunked(conn, size, [])

  defp exactly(conn, 0, received) do
    case packet(conn, :line) do
      :ok -> {:ok, Enum.reverse(received), conn}
      {:error, reason} -> {:error, reason, Enum.reverse(received)}
    end
  end

  defp exactly(%{module: :gen_tcp} = conn, size, []) when size >= @large do
    case Incoming.receive(conn.socket, size, conn.timeout) do
      {:ok, bytes} -> exactly(conn, 0, [bytes])
      {:error, reason, bytes} -> {:error, reason, [bytes]}
      nil -> in_parts(conn, size, [])
    end
  end

  defp exactly(conn, size, received), do: in_parts(conn, size, received)

  defp in_parts(conn, size, received) do
    case receive_part(conn, size) do
      {:ok, bytes, conn} -> exactly(conn, size - byte_size(bytes), [bytes | received])
      {:error, reason} -> {:error, reason, Enum.reverse(received)}
    end
  end

  defp receive_part(conn, size) do
    start = System.monotonic_time(:millisecond)

    with {:ok, bytes} <- conn.module.recv(conn.socket, min(size, conn.step), conn.timeout) do
      elapsed = System.monotonic_time(:millisecond) - start
      {:ok, bytes, %{conn | step: next_step(conn.step, byte_size(bytes), elapsed)}}
    end
  end

  defp next_step(step, received, ms) when ms <= @fast_ms and received == step,
    do: min(2 * step, @max_step)

  defp next_step(step, _received, ms) when ms >= @slow_ms, do: max(div(step, 2), 16 * 1024)
  defp next_step(step, _received, _ms), do: step

  # The sizes of chunks are lines, their data is not.
  defp chunked(conn, size, received) do
    with {:ok, length} <- chunk_size(conn) do
      cond do
        length == 0 and size == 0 -> finish_chunked(conn, received)
        length == 0 -> {:error, {:invalid, "the body is too short"}, Enum.reverse(received)}
        length > size -> {:error, {:invalid, "the body is too long"}, Enum.reverse(received)}
        true -> chunk(conn, length, size, received)
      end
    else
      {:error, reason} -> {:error, reason, Enum.reverse(received)}
    end
  end

  defp chunk(conn, length, size, received) do
    with {:ok, parts, conn} <- chunk_data(conn, length),
         {:ok, ""} <- line(conn, 0) do
      chunked(conn, size - length, Enum.reduce(parts, received, &join/2))
    else
      {:ok, _text} -> {:error, {:invalid, "a chunk is malformed"}, Enum.reverse(received)}
      {:error, reason} -> {:error, reason, Enum.reverse(received)}
      {:error, reason, parts} -> {:error, reason, Enum.reverse(received, parts)}
    end
  end

  # Chunks of a few bytes would be many times as large as the list of them.
  defp join(part, [last | received]) when byte_size(part) + byte_size(last) <= @max_line,
    do: [last <> part | received]

  defp join(part, received), do: [part | received]

  defp chunk_data(conn, length) do
    case packet(conn, :raw) do
      :ok -> exactly(conn, length, [])
      {:error, reason} -> {:error, reason, []}
    end
  end

  defp chunk_size(conn) do
    with :ok <- packet(conn, :line), {:ok, line} <- line(conn, 0) do
      case Integer.parse(hd(String.split(line, ";", parts: 2)), 16) do
        {length, rest} when length in 0..0xFFFFFFFFFFFF and rest in ["", " "] -> {:ok, length}
        _ -> {:error, {:invalid, "the size of a chunk is not a hexadecimal number"}}
      end
    end
  end

  # Trailers are skipped.
  defp finish_chunked(conn, received) do
    case headers(conn, 0, []) do
      {:ok, _trailers} -> {:ok, Enum.reverse(received), conn}
      {:error, reason} -> {:error, reason, Enum.reverse(received)}
    end
  end

  # Receives the next part of a body of any length, for streams.
  @spec part(t(), framing() | :done) ::
          {:ok, binary(), framing() | :done, t()} | {:error, term()}
  def part(conn, {:length, 0}), do: {:ok, "", :done, conn}

  def part(conn, {:length, size}) do
    with {:ok, bytes, conn} <- receive_part(conn, size),
         do: {:ok, bytes, {:length, size - byte_size(bytes)}, conn}
  end

  def part(conn, :until_closed) do
    case conn.module.recv(conn.socket, 0, conn.timeout) do
      {:ok, bytes} -> {:ok, bytes, :until_closed, conn}
      {:error, :closed} -> {:ok, "", :done, conn}
      error -> error
    end
  end

  def part(conn, :chunked) do
    case chunk_size(conn) do
      {:ok, 0} -> {:ok, "", :done, conn}
      {:ok, length} -> part_of_chunk(conn, length)
      error -> error
    end
  end

  defp part_of_chunk(conn, length) when length <= @max_step do
    with {:ok, parts, conn} <- chunk_data(conn, length), {:ok, ""} <- line(conn, 0) do
      {:ok, IO.iodata_to_binary(parts), :chunked, conn}
    else
      {:ok, _text} -> {:error, {:invalid, "a chunk is malformed"}}
      {:error, reason} -> {:error, reason}
      {:error, reason, _parts} -> {:error, reason}
    end
  end

  defp part_of_chunk(_conn, _length),
    do: {:error, {:unsupported, "the server sends chunks of more than #{@max_step} bytes"}}

  defp packet(%{module: :gen_tcp, socket: socket}, packet),
    do: :inet.setopts(socket, packet: packet)

  defp packet(%{module: :ssl, socket: socket}, packet), do: :ssl.setopts(socket, packet: packet)
end
