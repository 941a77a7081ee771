defmodule ExTorch.Source.HTTP do
  @moduledoc """
  Reads checkpoints from a web server, an object store or a model hub, with byte ranges.

      {:ok, ckpt} = ExTorch.Checkpoint.open("https://example.com/model.pt")
      {:ok, tensor} = ExTorch.Checkpoint.tensor(ckpt, "encoder.weight")

      source = ExTorch.Source.HTTP.new("https://example.com/model.pt", token: fn -> System.fetch_env!("TOKEN") end)
      {:ok, state} = ExTorch.load(source, only: ~r/^encoder/)

      ExTorch.load(ExTorch.Source.HTTP.hub("org/model", "model.safetensors"))

  Functions that take a path of a checkpoint, an index or a folder also take a URL. Only the directory, the pickle and
  the requested tensors are transferred: opening takes two to four requests, a tensor one or two more. A whole load
  reads neighboring tensors with one request, and up to `:connections` ranges at the same time.

  ## Requests

    * Connections are kept for the next request. They belong to a process that is linked to the reading process by a
      monitor: if that is killed, they are closed at once. They are also closed after ten seconds without a request.
    * A request is repeated after a timeout, a broken connection and the statuses 408, 425, 429, 500, 502, 503 and 504,
      up to `:retries` times, with exponential back-off and jitter, or after the time that the server gives in
      `Retry-After` (up to a minute). What was received before the failure is kept.
    * Up to five redirects are followed, from `https` only to `https`. Headers, tokens and user names are only sent to
      the scheme, host and port of the URL itself.
    * The ETag (or the date of the last modification) and the size must stay the same. If the file changes while it is
      being read, the error is `:file_changed`.
    * A server without byte ranges is read forward: `ExTorch.load/2` loads the stream while it arrives, and
      `ExTorch.Checkpoint.open/2` keeps up to `limits: [spool_bytes: n]` bytes in memory.
    * With `https`, the certificate and the host name are verified with the certificates of the operating system.

  Proxies of the environment are not used; see the option `:client`.

  ## Secrets

  Headers, tokens, user names and the query of the URL, which contains the signature of a presigned URL, are never part
  of an error, a log, an event or the result of `inspect/1`.

  ## Memory

  A load needs the memory of its tensors, and up to `:ahead` bytes for what is received ahead (48 MiB by default).
  Storages up to 32 MiB use the bytes as they were received, so that nothing is needed besides them. Over `http`, what is
  received counts as native memory (`ExTorch.Memory`); over `https`, it is received into binaries of the VM, which keeps
  some of the memory of freed ones: about 60 MiB in all were measured.
  """
  @behaviour ExTorch.Source

  alias ExTorch.{Error, Options}
  alias ExTorch.Source.HTTP.{Cache, Connection, Fetcher, Request, URL}

  # The head and the tail of the file are kept: they contain the header or pickle, and the directory of a zip file, whose
  # end record is searched for in the last 66 KiB.
  @head 64 * 1024
  @tail 72 * 1024
  @defaults [
    headers: [],
    token: nil,
    retries: 4,
    timeout: 30_000,
    connect_timeout: 10_000,
    connections: 4,
    ahead: 48 * 1024 * 1024,
    ssl: [],
    client: nil,
    cache: nil,
    cache_bytes: 16 * 1024 ** 3
  ]

  # target, headers: functions, so that nothing that prints terms can print secrets
  # opened: what the first request has learned, nil before
  @enforce_keys [:id, :url, :target, :headers, :options]
  defstruct [:id, :url, :target, :headers, :options, :opened]

  @typep target :: URL.t()

  @typedoc "A file on a server. `url` is the URL without query and user. The other fields are private."
  @type t :: %__MODULE__{
          id: reference(),
          url: String.t(),
          target: (() -> target()),
          headers: (() -> [{String.t(), String.t()}]),
          options: map(),
          opened: map() | nil
        }

  @doc """
  Creates a source. Makes no request. Raises if the URL or an option is invalid.

  ## Options

    * `:headers` - a list or map of additional headers. They are only sent to the host of the URL.
    * `:token` - a function that returns a token, or `nil` for none, or the token itself. It is called for every request
      and sent as `authorization: Bearer …`.
    * `:retries` - how often a request is repeated. Defaults to 4.
    * `:timeout` - how long the server may take for the next bytes, in milliseconds. Defaults to 30,000. Bodies are
      received in steps of 16 KiB to 33 MiB, depending on the speed; each step must be complete within this time.
    * `:connect_timeout` - in milliseconds. Defaults to 10,000.
    * `:connections` - how many requests a process may have at the same time. Defaults to 4.
    * `:ahead` - how many bytes may be received ahead of the reader. Defaults to 48 MiB.
    * `:ssl` - options of `:ssl.connect/3`, such as `cacertfile: path`.
    * `:cache` - a directory that keeps what was read, in blocks of 1 MiB, for all processes and nodes of the machine.
      Only files with an ETag or a date are cached. The directory may be removed at any time.
    * `:cache_bytes` - the size of the cache. The blocks that were not used for the longest time are removed. Defaults to
      16 GiB.
    * `:client` - a function that makes the requests, `fn url, headers -> {:ok, status, headers, body} end` or
      `{:error, reason}`, to use another HTTP client. With Req:

          fn url, headers ->
            case Req.get(url, headers: headers, decode_body: false, compressed: false, retry: false, redirect: false) do
              {:ok, %{status: status, body: body, headers: headers}} ->
                {:ok, status, for({name, [value | _]} <- headers, do: {name, value}), body}

              {:error, %{reason: reason}} ->
                {:error, reason}
            end
          end
  """
  @spec new(String.t(), keyword()) :: t()
  def new(url, opts \\ [])

  def new(url, opts) when is_binary(url) do
    options = check!(opts)

    case URL.parse(url) do
      {:ok, target} -> build(target, options)
      {:error, error} -> raise error
    end
  end

  def new(_other, _opts), do: raise(Error.new(:bad_argument, "expected a URL as a string"))

  defp build(target, options) do
    {headers, options} = Map.pop!(options, :headers)
    {token, options} = Map.pop!(options, :token)

    %__MODULE__{
      id: make_ref(),
      url: URL.redacted(target),
      target: fn -> target end,
      headers: fn -> headers ++ authorization(token) end,
      options: options
    }
  end

  defp authorization(token) do
    case if(is_function(token), do: token.(), else: token) do
      empty when empty in [nil, ""] -> []
      text when is_binary(text) -> [{"authorization", "Bearer " <> safe!(text)}]
    end
  end

  defp check!(opts) do
    options = opts |> Options.validate!(@defaults) |> Map.new()

    for key <- [:timeout, :connect_timeout, :connections, :ahead, :cache_bytes],
        value = options[key],
        not (is_integer(value) and value > 0 and value < 2 ** 48),
        do: Options.invalid!(key, "a positive integer", value)

    unless is_integer(options.retries) and options.retries in 0..1000,
      do: Options.invalid!(:retries, "an integer from 0 to 1,000", options.retries)

    unless Keyword.keyword?(options.ssl),
      do: Options.invalid!(:ssl, "a keyword list", options.ssl)

    unless options.client == nil or is_function(options.client, 2),
      do: Options.invalid!(:client, "a function of a URL and headers", options.client)

    unless options.cache == nil or (is_binary(options.cache) and Options.path?(options.cache)),
      do: Options.invalid!(:cache, "the path of a directory", options.cache)

    # The values of these options are not shown: they are secret.
    unless options.token == nil or is_binary(options.token) or is_function(options.token, 0),
      do: raise(Error.new(:bad_argument, "expected :token to be a function or a string"))

    %{options | headers: headers!(options.headers)}
  end

  defp headers!(headers)
       when is_list(headers) or (is_map(headers) and not is_struct(headers)) do
    if is_list(headers) and List.improper?(headers),
      do: raise(Error.new(:bad_argument, "expected :headers to be a list or map"))

    for header <- headers do
      with {name, value} when is_binary(value) and (is_binary(name) or is_atom(name)) <- header do
        {name |> to_string() |> safe!() |> String.downcase(), safe!(value)}
      else
        _ -> raise Error.new(:bad_argument, "expected :headers to be names and strings")
      end
    end
  end

  defp headers!(_), do: raise(Error.new(:bad_argument, "expected :headers to be a list or map"))

  # A line break in a value would begin another header.
  defp safe!(text) do
    if for(<<c <- text>>, c < 32 or c == 127, do: c) == [],
      do: text,
      else: raise(Error.new(:bad_argument, "a header or token contains a control character"))
  end

  @doc """
  Creates a source for a file of a model repository of the Hugging Face hub, or of a server with the same layout.

      ExTorch.Source.HTTP.hub("org/model", "model.safetensors", revision: "refs/pr/1")
      ExTorch.Source.HTTP.hub("org/model", "model.safetensors.index.json")

  Takes the options of `new/2`, and `:revision` (a branch, tag or commit, `"main"` by default) and `:endpoint` (by default
  the variable `HF_ENDPOINT`, or the public hub). The token is by default the variable `HF_TOKEN`, read at each request.
  """
  @spec hub(String.t(), String.t(), keyword()) :: t()
  def hub(repository, file, opts \\ []) do
    unless is_binary(repository) and is_binary(file),
      do: raise(Error.new(:bad_argument, "expected a repository and a file as strings"))

    unless Keyword.keyword?(opts), do: check!(opts)

    {revision, opts} = Keyword.pop(opts, :revision, "main")

    {endpoint, opts} =
      Keyword.pop(opts, :endpoint, System.get_env("HF_ENDPOINT") || "https://huggingface.co")

    unless is_binary(revision) and is_binary(endpoint),
      do: raise(Error.new(:bad_argument, "expected :revision and :endpoint to be strings"))

    path =
      [segments!(repository), "resolve", URL.encode(revision), segments!(file)] |> Enum.join("/")

    opts = Keyword.put_new(opts, :token, fn -> System.get_env("HF_TOKEN") end)
    new(String.trim_trailing(endpoint, "/") <> "/" <> path, opts)
  end

  defp segments!(path) do
    segments = String.split(path, "/")

    if Enum.any?(segments, &(&1 in ["", ".", ".."])),
      do: raise(Error.new(:bad_argument, "expected a relative path without empty segments"))

    Enum.map_join(segments, "/", &URL.encode/1)
  end

  # Returns the source of another file in the same directory, with the same options.
  @doc false
  @spec sibling(t(), String.t()) :: t()
  def sibling(source, file) do
    target = URL.sibling(source.target.(), file)

    %{
      source
      | id: make_ref(),
        url: URL.redacted(target),
        target: fn -> target end,
        opened: nil
    }
  end

  # Returns the source of a file in this directory.
  @doc false
  @spec child(t(), String.t()) :: t()
  def child(source, file) do
    target = source.target.()
    folder = String.trim_trailing(URL.path(target), "/") <> "/"
    sibling(%{source | target: fn -> %{target | target: folder} end}, file)
  end

  # Returns the path of the URL, decoded: the name of the file decides whether it is an index.
  @doc false
  @spec path(t()) :: String.t()
  def path(source), do: source.target.() |> URL.path() |> URI.decode()

  @doc false
  @spec label(t()) :: String.t()
  def label(source), do: source.url

  # ---- ExTorch.Source ----

  @impl true
  def open(%__MODULE__{opened: nil} = source) do
    with {:ok, head, description} <- Fetcher.first(source, @head) do
      if description.ranges,
        do: open_tail(%{source | opened: Map.merge(description, %{head: head, tail: ""})}),
        else: {:stream, stream(source)}
    end
  end

  def open(source), do: {:ok, source}

  # The directory of a zip file is at its end. Other formats begin with their description.
  defp open_tail(%{opened: %{head: <<"PK", 3, 4, _::binary>>, size: size}} = source)
       when size > @head + @tail do
    with {:ok, tail} <- fetch(source, size - @tail, @tail),
         do: {:ok, put_in(source.opened.tail, tail)}
  end

  defp open_tail(source), do: {:ok, source}

  @impl true
  def size(%__MODULE__{opened: %{size: size}}), do: {:ok, size}

  def size(source) do
    case open(source) do
      {:ok, source} ->
        size(source)

      {:stream, _} ->
        {:error, Error.new(:unsupported, "the server has no byte ranges", source.url)}

      error ->
        error
    end
  end

  @impl true
  def read_at(%__MODULE__{opened: nil} = source, offset, length) do
    case open(source) do
      {:ok, source} ->
        read_at(source, offset, length)

      {:stream, _} ->
        {:error, Error.new(:unsupported, "the server has no byte ranges", source.url)}

      error ->
        error
    end
  end

  def read_at(%__MODULE__{opened: %{size: size, head: head, tail: tail}} = source, offset, length) do
    tail_at = size - byte_size(tail)

    cond do
      offset + length > size ->
        {:error, Error.new(:truncated, "the range ends after the end of the file", source.url)}

      offset + length <= byte_size(head) ->
        {:ok, binary_part(head, offset, length)}

      offset >= tail_at ->
        {:ok, binary_part(tail, offset - tail_at, length)}

      true ->
        fetch(source, offset, length)
    end
  end

  defp fetch(%{options: %{cache: nil}} = source, offset, length),
    do: Fetcher.read(source, offset, length)

  defp fetch(source, offset, length),
    do: Cache.read(source, offset, length, &Fetcher.read(source, &1, &2))

  @impl true
  def prefetch(%__MODULE__{options: %{cache: nil}} = source, ranges),
    do: Fetcher.prefetch(source, ranges)

  # What is in the cache must not be requested.
  def prefetch(source, ranges), do: Fetcher.prefetch(source, Cache.missing(source, ranges))

  @impl true
  def close(%__MODULE__{}), do: :ok

  # ---- Servers without ranges ----

  # Returns the body as a stream. The process that enumerates it owns the connection.
  @doc false
  @spec stream(t()) :: Enumerable.t()
  def stream(source) do
    Stream.resource(
      fn -> start_stream(source) end,
      fn
        {_conn, :done} = state -> {:halt, state}
        {conn, framing} -> next_part(source, conn, framing)
      end,
      fn {conn, _framing} -> Connection.close(conn) end
    )
  end

  defp start_stream(source) do
    case Request.stream(source) do
      {:ok, framing, conn} -> {conn, framing}
      {:error, error} -> raise error
    end
  end

  defp next_part(source, conn, framing) do
    case part(conn, framing) do
      {:ok, bytes, framing, conn} ->
        {[bytes], {conn, framing}}

      {:error, reason} ->
        raise Error.put_path(Request.stream_error(reason), source.url)
    end
  end

  defp part(conn, {:received, body}), do: {:ok, body, :done, conn}
  defp part(conn, framing), do: Connection.part(conn, framing)
end

defimpl Inspect, for: ExTorch.Source.HTTP do
  def inspect(source, _opts), do: "#ExTorch.Source.HTTP<#{source.url}>"
end
