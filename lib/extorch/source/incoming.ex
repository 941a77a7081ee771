defmodule ExTorch.Source.Incoming do
  @moduledoc false
  # A binary that arrives in pieces, in native memory (c_src/nif/incoming.c).
  #
  # Native memory has huge pages, and dirty schedulers write to it: it is ready several times sooner than new memory of the
  # VM, which a normal scheduler waits for, page by page. What has arrived is a binary all the same.

  alias ExTorch.Error
  alias ExTorch.Native.Call

  # What gen_tcp receives at a time. It must arrive within the timeout.
  @step 16 * 1024
  @no_descriptor -1

  @type t :: reference()

  # An error if the budget is exceeded.
  @spec begin(pos_integer()) :: {:ok, t()} | {:error, Error.t()}
  def begin(size), do: Call.incoming_begin(size)

  # Copies the bytes to the end of what has arrived.
  @spec append(t(), binary()) :: {:ok, missing :: non_neg_integer()} | {:error, Error.t()}
  def append(incoming, bytes), do: Call.incoming_receive(incoming, @no_descriptor, bytes)

  # Returns what has arrived.
  @spec finish(t()) :: binary()
  def finish(incoming) do
    {:ok, bytes} = Call.incoming_finish(incoming)
    bytes
  end

  # Receives bytes from a socket of gen_tcp. gen_tcp waits for the next bytes; what has arrived after them goes from the
  # kernel to its place, on a dirty scheduler. An error has what was received before it. Returns nil if the socket has no
  # descriptor: only those of inet_drv have one, which are ports.
  @spec receive(:gen_tcp.socket(), pos_integer(), timeout()) ::
          {:ok, binary()} | {:error, term(), binary()} | nil
  def receive(socket, size, timeout) when is_port(socket) do
    with {:ok, descriptor} <- :inet.getfd(socket),
         {:incoming, {:ok, incoming}} <- {:incoming, begin(size)} do
      # The length 0 returns all that the driver has received with the head of the response. Another length returns not
      # more than it says. After either, the driver has no bytes that come before those in the kernel.
      receive(socket, descriptor, incoming, size, 0, timeout)
    else
      {:incoming, {:error, budget}} -> {:error, budget, ""}
      {:error, _no_descriptor} -> nil
    end
  end

  def receive(_socket, _size, _timeout), do: nil

  defp receive(_socket, _descriptor, incoming, 0, _length, _timeout), do: {:ok, finish(incoming)}

  defp receive(socket, descriptor, incoming, missing, length, timeout) do
    with {:ok, bytes} <- :gen_tcp.recv(socket, length, timeout),
         true <- byte_size(bytes) <= missing || {:error, {:invalid, "the body is too long"}},
         {:ok, missing} <- Call.incoming_receive(incoming, descriptor, bytes) do
      receive(socket, descriptor, incoming, missing, min(missing, @step), timeout)
    else
      {:error, reason} -> {:error, reason, finish(incoming)}
    end
  end
end
