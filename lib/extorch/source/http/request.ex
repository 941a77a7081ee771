defmodule ExTorch.Source.HTTP.Request do
  @moduledoc false
  # Reads ranges of a URL: redirects, retries, and the checks of what the server answers. Runs in the process that owns
  # the connection. Nothing that is returned contains the query of a URL, a header that was sent or a token.

  alias ExTorch.{Error, Telemetry}
  alias ExTorch.Source.HTTP
  alias ExTorch.Source.HTTP.{Connection, URL}

  @max_redirects 5
  @first_delay_ms 250
  @max_delay_ms 30_000
  @max_wait_ms 60_000
  @retried [408, 425, 429, 500, 502, 503, 504]
  @redirects [301, 302, 303, 307, 308]

  @type conn :: Connection.t() | nil
  @typedoc "What the first response says about the file."
  @type description :: %{
          size: non_neg_integer() | nil,
          validator: {:etag | :modified, String.t()} | nil,
          location: (() -> URL.t()),
          ranges: boolean()
        }

  # Reads `length` bytes at `offset`, less if the file is shorter and not described yet.
  @spec range(HTTP.t(), non_neg_integer(), pos_integer(), conn()) ::
          {{:ok, binary(), description()} | {:error, Error.t()}, conn()}
  def range(source, offset, length, conn) do
    {result, conn} = attempt(source, offset, length, [], conn, 0)
    {Error.put_path(result, source.url), conn}
  end

  # Requests the whole file, from a server without ranges. The body is received with Connection.part/2.
  @spec stream(HTTP.t()) ::
          {:ok, Connection.framing() | {:received, binary()}, conn()} | {:error, Error.t()}
  def stream(source), do: Error.put_path(stream(source, 0), source.url)

  defp stream(source, tries) do
    case follow(source, source.target.(), 0, :all, nil, @max_redirects) do
      {:stream, framing, conn} ->
        {:ok, framing, conn}

      {:retry, error, wait_ms, _parts, conn} ->
        close(conn)

        if tries < source.options.retries do
          Process.sleep(wait_ms || delay(tries))
          stream(source, tries + 1)
        else
          {:error, error}
        end

      {:error, error, conn} ->
        close(conn)
        {:error, error}
    end
  end

  # The error of a stream that breaks off.
  @spec stream_error(term()) :: Error.t()
  def stream_error(reason) do
    case failed(reason, [], nil) do
      {:retry, error, _wait, _parts, _conn} -> error
      {:error, error, _conn} -> error
    end
  end

  # `received` has the parts so far: after a failure only the rest is read.
  defp attempt(source, offset, length, received, conn, tries) do
    case exchange(source, offset, length, conn) do
      {:ok, parts, description, conn} ->
        done = :erlang.iolist_size(parts)
        received = received ++ parts
        rest = min(length, (description.size || offset + length) - offset) - done

        cond do
          rest <= 0 or done == 0 ->
            {{:ok, to_binary(received), description}, conn}

          tries < source.options.retries ->
            rest(source, offset + done, rest, received, conn, tries)

          true ->
            {{:error, Error.new(:io, "the server answers with less than it has")}, conn}
        end

      {:error, error, conn} ->
        close(conn)
        {{:error, error}, nil}

      {:retry, error, wait_ms, parts, conn} ->
        close(conn)
        done = :erlang.iolist_size(parts)
        received = received ++ parts

        if tries < source.options.retries do
          Process.sleep(wait_ms || delay(tries))
          rest(source, offset + done, length - done, received, nil, tries)
        else
          {{:error, error}, nil}
        end
    end
  end

  # A server may answer with less than the range, and a connection may end: the rest is asked for.
  defp rest(source, offset, length, received, conn, tries),
    do: attempt(source, offset, length, received, conn, tries + 1)

  # Exponential, with jitter: clients that failed together do not come back together.
  defp delay(tries) do
    longest = min(@first_delay_ms * 2 ** tries, @max_delay_ms)
    div(longest, 2) + :rand.uniform(div(longest, 2))
  end

  defp to_binary([binary]), do: binary
  defp to_binary(parts), do: IO.iodata_to_binary(parts)

  defp close(%Connection{} = conn), do: Connection.close(conn)
  defp close(_none), do: :ok

  # ---- One exchange, with its redirects ----

  defp exchange(source, offset, length, conn) do
    location = if source.opened, do: source.opened.location.(), else: source.target.()
    follow(source, location, offset, length, conn, @max_redirects)
  end

  defp follow(source, url, offset, length, conn, redirects) do
    Telemetry.span(
      :http,
      fn -> %{url: source.url} end,
      fn -> request(source, url, offset, length, conn, redirects) end,
      fn
        {:ok, parts, _, _} -> %{bytes: :erlang.iolist_size(parts)}
        _other -> %{bytes: 0}
      end
    )
  end

  defp request(source, url, offset, length, conn, redirects) do
    with {:ok, response, conn} <- get(source, url, headers(source, url, offset, length), conn) do
      result = answer(source, url, offset, length, response, conn, redirects)
      Telemetry.note(fn -> {%{}, %{status: response.status}} end)
      result
    else
      {:error, reason} -> failed(reason, [], nil)
    end
  end

  defp get(%{options: %{client: nil} = options} = source, url, headers, conn) do
    reused? = conn != nil

    with {:ok, conn} <- connected(conn, url, options) do
      case Connection.get(conn, url, headers) do
        # The server has closed a connection that was idle, or has sent more than its answer.
        {:error, reason}
        when reused? and (reason in [:closed, :econnreset, :epipe] or elem(reason, 0) == :invalid) ->
          Connection.close(conn)
          get(source, url, headers, nil)

        {:error, reason} ->
          Connection.close(conn)
          {:error, reason}

        other ->
          other
      end
    end
  end

  # The option :client: another HTTP client makes the request.
  defp get(%{options: %{client: client}}, url, headers, _conn) do
    case client.(URL.to_string(url), headers) do
      {:ok, status, headers, body} when status in 100..599 and is_binary(body) ->
        headers = for {name, value} <- headers, do: {String.downcase(name), value}
        {:ok, %{status: status, headers: headers, framing: {:received, body}}, nil}

      {:error, reason} when is_atom(reason) ->
        {:error, reason}

      _other ->
        {:error, {:unsupported, "the function :client did not return a response"}}
    end
  end

  defp body(_conn, {:received, body}, size) when byte_size(body) == size, do: {:ok, [body], nil}

  defp body(_conn, {:received, body}, size),
    do: {:error, {:invalid, "the response has #{byte_size(body)} bytes, expected #{size}"}, []}

  defp body(conn, framing, size), do: Connection.body(conn, framing, size)

  defp connected(%Connection{reusable: true} = conn, url, options) do
    if conn.origin == URL.origin(url) do
      {:ok, conn}
    else
      Connection.close(conn)
      connect(url, options)
    end
  end

  defp connected(conn, url, options) do
    close(conn)
    connect(url, options)
  end

  defp connect(url, options),
    do: Connection.connect(url, Map.take(options, [:connect_timeout, :timeout, :ssl]))

  # Credentials are only sent to the origin that they are for.
  @spec headers(HTTP.t(), URL.t(), non_neg_integer(), pos_integer() | :all) ::
          [{String.t(), String.t()}]
  def headers(source, url, offset, length) do
    own = if URL.origin(url) == URL.origin(source.target.()), do: source.headers.(), else: []
    basic = if url.user, do: [{"authorization", "Basic " <> Base.encode64(url.user)}], else: []

    [{"accept-encoding", "identity"}, {"user-agent", "extorch"}] ++
      range_headers(source.opened, offset, length) ++ if(own == [], do: basic, else: own)
  end

  defp range_headers(_opened, _offset, :all), do: []

  defp range_headers(opened, offset, length) do
    range = [{"range", "bytes=#{offset}-#{offset + length - 1}"}]

    case opened do
      %{validator: {_kind, value}} -> range ++ [{"if-range", value}]
      _ -> range
    end
  end

  # ---- Answers ----

  defp answer(_source, _url, _offset, :all, %{status: 200} = response, conn, _redirects) do
    with :ok <- check_encoding(response) do
      {:stream, response.framing, conn}
    else
      {:error, error} -> {:error, error, conn}
    end
  end

  defp answer(_source, _url, _offset, :all, %{status: 206}, conn, _redirects),
    do: {:error, refused(206), conn}

  defp answer(source, url, offset, length, %{status: 206} = response, conn, _redirects) do
    with :ok <- check_encoding(response),
         {:ok, first, last, size} <- content_range(response),
         :ok <- check_range(first, last, size, offset, length),
         description = describe(response, url, size, true),
         :ok <- check_same(source.opened, description) do
      case body(conn, response.framing, last - first + 1) do
        {:ok, parts, conn} -> {:ok, parts, description, conn}
        {:error, reason, parts} -> failed(reason, parts, conn)
      end
    else
      {:error, error} -> {:error, error, conn}
    end
  end

  defp answer(source, url, _offset, _length, %{status: 200} = response, conn, _redirects) do
    size = with {:length, size} <- response.framing, do: size, else: (_ -> nil)

    if source.opened,
      do: {:error, changed(), conn},
      else: whole(response, describe(response, url, size, false), conn)
  end

  defp answer(%{opened: nil}, url, 0, _length, %{status: 416} = response, conn, _redirects) do
    case Connection.header(response.headers, "content-range") do
      "bytes */0" -> {:ok, [], describe(response, url, 0, true), done_with(conn)}
      _ -> {:error, Error.new(:io, "the server refuses ranges with status 416"), conn}
    end
  end

  defp answer(_source, _url, _offset, _length, %{status: 416}, conn, _redirects),
    do: {:error, changed(), conn}

  defp answer(_source, _url, _offset, _length, %{status: status}, conn, redirects)
       when status in @redirects and redirects <= 0,
       do: {:error, Error.new(:io, "more than #{@max_redirects} redirects"), conn}

  defp answer(source, url, offset, length, %{status: status} = response, conn, redirects)
       when status in @redirects do
    with location when is_binary(location) <- Connection.header(response.headers, "location"),
         {:ok, next} <- URL.redirect(url, location) do
      # The body of the redirect is not read.
      close(conn)
      follow(source, next, offset, length, nil, redirects - 1)
    else
      nil -> {:error, Error.new(:io, "the server redirects without a location"), conn}
      {:error, error} -> {:error, error, conn}
    end
  end

  defp answer(_source, _url, _offset, _length, %{status: status} = response, conn, _redirects)
       when status in @retried do
    error = Error.new(:io, "the server answers with status #{status}")

    case wait_ms(Connection.header(response.headers, "retry-after")) do
      {:ok, ms} ->
        {:retry, error, ms, [], conn}

      {:too_long, seconds} ->
        message =
          "the server answers with status #{status} and asks to wait #{seconds} seconds; try again later"

        {:error, Error.new(:busy, message), conn}
    end
  end

  # The location of a redirect may be valid for a limited time: the original URL gives a new one.
  defp answer(%{opened: %{}} = source, url, offset, length, %{status: status}, conn, redirects)
       when status in [400, 401, 403, 404, 410] do
    original = source.target.()

    if url == original or redirects <= 0 do
      {:error, refused(status), conn}
    else
      close(conn)
      opened = %{source.opened | location: source.target}
      follow(%{source | opened: opened}, original, offset, length, nil, redirects - 1)
    end
  end

  defp answer(_source, _url, _offset, _length, %{status: status}, conn, _redirects),
    do: {:error, refused(status), conn}

  # A server without ranges. The body is not read here.
  defp whole(response, description, conn) do
    with :ok <- check_encoding(response) do
      {:ok, [], description, done_with(conn)}
    else
      {:error, error} -> {:error, error, conn}
    end
  end

  # The body of the response is not read: the connection cannot be used again.
  defp done_with(nil), do: nil
  defp done_with(conn), do: %{conn | reusable: false}

  @spec refused(100..599) :: Error.t()
  def refused(status) when status in [401, 403] do
    Error.new(
      :forbidden,
      "the server answers with status #{status}; check the token, the headers or the signature of the URL"
    )
  end

  def refused(status) when status in [404, 410],
    do: Error.new(:not_found, "the server answers with status #{status}")

  def refused(status),
    do: Error.new(:io, "the server answers with the unexpected status #{status}")

  defp changed,
    do: Error.new(:file_changed, "the file on the server changed while it was being read")

  defp failed(%Error{} = error, _parts, conn), do: {:error, error, conn}

  defp failed({:invalid, text}, _parts, conn),
    do: {:error, Error.new(:io, "the server violates HTTP: #{text}"), conn}

  defp failed({:unsupported, text}, _parts, conn),
    do: {:error, Error.new(:unsupported, text), conn}

  defp failed({:tls_alert, {_alert, text}}, _parts, conn) do
    message = "TLS failed: #{text |> to_string() |> String.trim()}"
    {:error, Error.new(:forbidden, message), conn}
  end

  defp failed(reason, parts, conn), do: {:retry, connection_error(reason), nil, parts, conn}

  @spec connection_error(term()) :: Error.t()
  def connection_error(:timeout),
    do: Error.new(:timeout, "the server did not answer in time; see the option timeout")

  def connection_error(:closed),
    do: Error.new(:io, "the server closed the connection before the end of its answer")

  def connection_error(:nxdomain), do: Error.new(:not_found, "the host of the URL is unknown")

  def connection_error(reason) when is_atom(reason),
    do: Error.new(:io, "the connection failed: #{:inet.format_error(reason)}")

  def connection_error(_reason), do: Error.new(:io, "the connection failed")

  # ---- Checks ----

  defp check_encoding(response) do
    case Connection.header(response.headers, "content-encoding") do
      encoding when encoding in [nil, "", "identity"] ->
        :ok

      encoding ->
        {:error,
         Error.new(
           :unsupported,
           "the server compresses the file (#{inspect(encoding)}) although identity was asked for"
         )}
    end
  end

  defp content_range(response) do
    case Regex.run(
           ~r"\Abytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)\z",
           Connection.header(response.headers, "content-range") || ""
         ) do
      [_, first, last, size] when size != "*" ->
        {:ok, String.to_integer(first), String.to_integer(last), String.to_integer(size)}

      _ ->
        {:error, Error.new(:io, "the server answers with an invalid content range")}
    end
  end

  defp check_range(first, last, size, offset, length) do
    if first == offset and last in offset..(offset + length - 1)//1 and last < size,
      do: :ok,
      else:
        {:error,
         Error.new(
           :io,
           "the server answers with bytes #{first} to #{last} of #{size}, " <>
             "expected #{length} bytes at #{offset}"
         )}
  end

  defp check_same(nil, _description), do: :ok

  defp check_same(opened, description) do
    same? =
      opened.size == description.size and
        (opened.validator == nil or opened.validator == description.validator)

    if same?, do: :ok, else: {:error, changed()}
  end

  # A weak ETag does not identify bytes, and must not be used with If-Range.
  defp describe(response, url, size, ranges) do
    etag = Connection.header(response.headers, "etag")
    modified = Connection.header(response.headers, "last-modified")

    validator =
      cond do
        etag && String.starts_with?(etag, "\"") -> {:etag, etag}
        modified -> {:modified, modified}
        true -> nil
      end

    %{size: size, validator: validator, location: fn -> url end, ranges: ranges}
  end

  # Retry-After in seconds or as a date.
  defp wait_ms(nil), do: {:ok, nil}

  defp wait_ms(text) do
    seconds =
      case Integer.parse(text) do
        {seconds, ""} when seconds >= 0 -> seconds
        _ -> seconds_until(text)
      end

    cond do
      seconds == nil -> {:ok, nil}
      seconds * 1000 > @max_wait_ms -> {:too_long, seconds}
      true -> {:ok, max(seconds, 0) * 1000 + :rand.uniform(250)}
    end
  end

  @months ~w(Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec)

  defp seconds_until(text) do
    with [_, day, month, year, hour, minute, second] <-
           Regex.run(~r/\A\w{3}, (\d\d) (\w{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT\z/, text),
         index when is_integer(index) <- Enum.find_index(@months, &(&1 == month)),
         [day, year, hour, minute, second] =
           Enum.map([day, year, hour, minute, second], &String.to_integer/1),
         {:ok, date} <- NaiveDateTime.new(year, index + 1, day, hour, minute, second) do
      max(NaiveDateTime.diff(date, NaiveDateTime.utc_now()), 0)
    else
      _ -> nil
    end
  end
end
