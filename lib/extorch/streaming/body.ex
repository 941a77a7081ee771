defmodule ExTorch.Streaming.Body do
  @moduledoc """
  Loads a checkpoint from a request body in a Plug while it arrives.

      def call(conn, _opts) do
        case ExTorch.Streaming.Body.load(conn, limits: [total_bytes: 20_000_000_000]) do
          {:ok, state, conn} -> Plug.Conn.send_resp(conn, 200, "\#{map_size(state)} entries")
          {:error, error, conn} -> Plug.Conn.send_resp(conn, 422, ExTorch.Error.public_message(error))
        end
      end

  A body that is compressed with gzip (`content-encoding: gzip`, or a `.pt.gz` file) is decompressed as it arrives. The
  limits apply to the decompressed data.

  The messages of errors describe the body and contain no paths of the server, so they can be sent to the client. After
  an error nothing of the body is kept in memory.

  The connection may be kept alive after the response, and its process then keeps the term until it is garbage collected.
  A server with many connections loads in a process of its own, as the guide *Phoenix* shows.

  The body must not have been read before: put the plug in front of `Plug.Parsers`. This module has no dependencies. It
  calls `read_body/2` of the module of the connection struct.
  """

  alias ExTorch.{Error, Options}
  alias ExTorch.Streaming.{Loader, Upload}

  @read_options [:read_length, :read_timeout, length: 1024 * 1024]

  @doc """
  Reads the request body and returns the term it contains.

  Bytes after the checkpoint are an error.

      case ExTorch.Streaming.Body.load(conn, read_timeout: 60_000) do
        {:ok, state, conn} -> send_resp(conn, 200, "\#{map_size(state)} entries")
        {:error, error, conn} -> send_resp(conn, 422, Exception.message(error))
      end

  ## Options

  All options of `ExTorch.Streaming.loader/1`, and `:length` (1 MiB by default), `:read_length` and `:read_timeout` of
  `Plug.Conn.read_body/2`.
  """
  @spec load(conn, keyword()) :: {:ok, term(), conn} | {:error, Error.t(), conn}
        when conn: struct()
  def load(conn, opts \\ []) do
    unless conn?(conn), do: Options.expected!("a connection such as a %Plug.Conn{}", conn)
    opts = Options.validate!(opts, @read_options ++ Loader.known_options())
    {read_opts, opts} = Keyword.split(opts, [:length, :read_length, :read_timeout])

    for {key, value} <- read_opts,
        not (is_integer(value) and value > 0),
        do: Options.invalid!(key, "a positive integer", value)

    more(conn, Upload.new(opts), read_opts)
  end

  defp conn?(%module{}),
    do: Code.ensure_loaded?(module) and function_exported?(module, :read_body, 2)

  defp conn?(_other), do: false

  defp more(conn, upload, read_opts) do
    case read(conn, upload, read_opts) do
      {:more, chunk, conn} -> step(conn, feed(upload, chunk), read_opts)
      {:ok, chunk, conn} -> finish(conn, feed(upload, chunk))
      {:error, reason} -> {:error, read_error(reason), abandon(conn, upload)}
    end
  end

  defp read(%module{} = conn, upload, read_opts) do
    module.read_body(conn, read_opts)
  catch
    kind, reason ->
      abandon(conn, upload)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # The process of a connection may stay idle for long: frees what was received.
  defp abandon(conn, upload) do
    Upload.finish(upload)
    conn
  end

  defp feed(upload, chunk) do
    case Upload.feed(upload, chunk) do
      {:more, upload} ->
        {:ok, upload}

      {:done, upload, false} ->
        {:ok, upload}

      {:done, upload, true} ->
        Upload.finish(upload)
        {:error, trailing_bytes()}

      {:error, error} ->
        {:error, error}
    end
  end

  defp step(conn, {:ok, upload}, read_opts), do: more(conn, upload, read_opts)
  defp step(conn, {:error, error}, _read_opts), do: {:error, error, conn}

  defp finish(conn, result) do
    with {:ok, upload} <- result,
         {:ok, term} <- Upload.finish(upload) do
      {:ok, term, conn}
    else
      {:error, error} -> {:error, error, conn}
    end
  end

  defp trailing_bytes,
    do: Error.new(:corrupt, "the request body has more bytes after the end of the checkpoint")

  defp read_error(:timeout),
    do: Error.new(:timeout, "timeout while reading the request body; see the option read_timeout")

  defp read_error(reason) when is_atom(reason),
    do: Error.new(:io, "the request body could not be read: #{inspect(reason)}")

  # Anything else may contain paths of the server, and the message may be sent to the client.
  defp read_error(_reason), do: Error.new(:io, "the request body could not be read")
end
