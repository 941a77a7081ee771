defmodule ExTorch.Streaming.Body do
  @moduledoc """
  Loads a checkpoint from a request body in a Plug while it arrives.

      def call(conn, _opts) do
        case ExTorch.Streaming.Body.load(conn, limits: [total_bytes: 20_000_000_000]) do
          {:ok, state, conn} -> Plug.Conn.send_resp(conn, 200, "\#{map_size(state)} entries")
          {:error, error, conn} -> Plug.Conn.send_resp(conn, 422, Exception.message(error))
        end
      end

  The messages of errors describe the body and contain no paths of the server, so they can be sent to the client. After
  an error nothing of the body is kept in memory.

  The body must not have been read before: put the plug in front of `Plug.Parsers`. This module has no dependencies. It
  calls `read_body/2` of the module of the connection struct.
  """

  alias ExTorch.{Error, Options, Streaming}
  alias ExTorch.Streaming.Loader

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

    more(conn, {:more, Streaming.loader(opts)}, read_opts)
  end

  defp conn?(%module{}),
    do: Code.ensure_loaded?(module) and function_exported?(module, :read_body, 2)

  defp conn?(_other), do: false

  defp more(conn, state, read_opts) do
    case read(conn, state, read_opts) do
      {:more, chunk, conn} -> step(conn, feed(state, chunk), read_opts)
      {:ok, chunk, conn} -> finish(conn, feed(state, chunk))
      {:error, reason} -> {:error, read_error(reason), abandon(conn, state)}
    end
  end

  defp read(%module{} = conn, state, read_opts) do
    module.read_body(conn, read_opts)
  catch
    kind, reason ->
      abandon(conn, state)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # The process of a connection may stay idle for long: frees what was received.
  defp abandon(conn, state) do
    with {:more, loader} <- state, do: Streaming.ended(loader)
    conn
  end

  defp step(conn, {:error, error}, _read_opts), do: {:error, error, conn}
  defp step(conn, state, read_opts), do: more(conn, state, read_opts)

  defp feed({:more, loader}, chunk), do: Streaming.feed(loader, chunk)
  defp feed({:done, term, rest}, ""), do: {:done, term, rest}
  defp feed({:done, _term, _rest}, _chunk), do: {:error, trailing_bytes()}

  defp finish(conn, {:done, term, ""}), do: {:ok, term, conn}
  defp finish(conn, {:done, _term, _rest}), do: {:error, trailing_bytes(), conn}
  defp finish(conn, {:error, error}), do: {:error, error, conn}

  defp finish(conn, {:more, loader}) do
    {:error, error} = Streaming.ended(loader)
    {:error, error, conn}
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
