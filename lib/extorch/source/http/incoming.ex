defmodule ExTorch.Source.HTTP.Incoming do
  @moduledoc false
  # Receives bytes from a socket of gen_tcp into native memory, on a dirty scheduler (c_src/nif/incoming.c).
  #
  # gen_tcp receives into memory of the VM, on a normal scheduler, which waits for every new page of it. Here, gen_tcp only
  # waits for the next bytes; what has arrived after them is received natively. The result is a binary all the same.

  alias ExTorch.Native.Call

  # What gen_tcp receives at a time. It must arrive within the timeout.
  @step 16 * 1024

  # Returns the bytes, or the error and what was received before it; nil if the socket has no descriptor. Only those of
  # inet_drv have one, which are ports.
  @spec receive(:gen_tcp.socket(), pos_integer(), timeout()) ::
          {:ok, binary()} | {:error, term(), binary()} | nil
  def receive(socket, size, timeout) when is_port(socket) do
    case :inet.getfd(socket) do
      {:ok, descriptor} -> begin(socket, descriptor, size, timeout)
      {:error, _reason} -> nil
    end
  end

  def receive(_socket, _size, _timeout), do: nil

  # The length 0 returns all that the driver has received with the head of the response. Another length returns not more
  # than it says. After either, the driver has no bytes that come before those in the kernel.
  defp begin(socket, descriptor, size, timeout) do
    case Call.incoming_begin(size) do
      {:ok, incoming} -> receive(socket, descriptor, incoming, size, 0, timeout)
      {:error, budget} -> {:error, budget, ""}
    end
  end

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

  defp finish(incoming) do
    {:ok, bytes} = Call.incoming_finish(incoming)
    bytes
  end
end
