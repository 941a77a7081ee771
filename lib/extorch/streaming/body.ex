defmodule ExTorch.Streaming.Body do
  @moduledoc """
  Loads a checkpoint from the body of a request as it arrives, in any Plug.

      def call(conn, _opts) do
        case ExTorch.Streaming.Body.load(conn, limits: [total_bytes: 20_000_000_000]) do
          {:ok, state, conn} -> Plug.Conn.send_resp(conn, 200, "\#{map_size(state)} entries")
          {:error, error, conn} -> Plug.Conn.send_resp(conn, 422, Exception.message(error))
        end
      end

  Nothing must have read the body before: put the plug in front of `Plug.Parsers`. The module needs no dependency; it
  calls `read_body/2` of the connection it is given.
  """

  alias ExTorch.{Error, Streaming}

  @read_bytes 1024 * 1024

  @doc """
  Reads the body and gives what it holds.

  Options are those of `ExTorch.Streaming.loader/1`, and `:length` (1 MiB), `:read_length` and `:read_timeout` of
  `Plug.Conn.read_body/2`. Bytes behind the checkpoint are an error, since nobody would see them.
  """
  @spec load(conn, keyword()) :: {:ok, term(), conn} | {:error, Error.t(), conn}
        when conn: struct()
  def load(%_{} = conn, opts \\ []) do
    {read, opts} = Keyword.split(opts, [:length, :read_length, :read_timeout])
    read = Keyword.merge([length: @read_bytes], read)
    more(conn, {:more, Streaming.loader(opts)}, read)
  end

  defp more(%module{} = conn, state, read) do
    case module.read_body(conn, read) do
      {:more, chunk, conn} -> step(conn, feed(state, chunk), read)
      {:ok, chunk, conn} -> finish(conn, feed(state, chunk))
      {:error, reason} -> {:error, failed(reason), conn}
    end
  end

  defp step(conn, {:error, error}, _read), do: {:error, error, conn}
  defp step(conn, state, read), do: more(conn, state, read)

  defp feed({:more, loader}, chunk), do: Streaming.feed(loader, chunk)
  defp feed({:done, term, rest}, ""), do: {:done, term, rest}
  defp feed({:done, _term, _rest}, _chunk), do: {:error, too_much()}

  defp finish(conn, {:done, term, ""}), do: {:ok, term, conn}
  defp finish(conn, {:done, _term, _rest}), do: {:error, too_much(), conn}
  defp finish(conn, {:error, error}), do: {:error, error, conn}

  defp finish(conn, {:more, loader}) do
    {:error, error} = Streaming.ended(loader)
    {:error, error, conn}
  end

  defp too_much, do: Error.new(:corrupt, "the body goes on behind the checkpoint")

  defp failed(:timeout), do: Error.new(:timeout, "the client was silent for too long")

  defp failed(reason),
    do: Error.new(:io, "the body could not be read: #{inspect(reason)}")
end
