defmodule ExTorch.Streaming.Process do
  @moduledoc false
  # Sends and receives checkpoints between processes, also of different nodes. The receiver acknowledges each chunk; at most
  # @window chunks are under way. Each side monitors the other.
  #
  #   sender → receiver: {tag, sender, {:chunk, iovec}} …, {tag, sender, {:last, iovec}}, or :stopped after :stop
  #   receiver → sender: {tag, receiver, :ack} for each chunk but the last, then :done; :stop after an error

  alias ExTorch.Error
  alias ExTorch.Streaming.Loader

  @tag __MODULE__
  @window 8
  @max_rest 1024 * 1024

  # ---- Sending ----

  @spec send(pid(), Enumerable.t(), timeout()) :: :ok | {:error, Error.t()}
  def send(receiver, stream, timeout) do
    monitor = Process.monitor(receiver)

    try do
      # One chunk is kept back, so that the last one can be marked.
      stream
      |> Enum.reduce_while({nil, 0}, fn iodata, {kept, pending} ->
        with {:ok, pending} <- send_chunk(receiver, monitor, kept, pending, timeout),
             do: {:cont, {:erlang.iolist_to_iovec(iodata), pending}},
             else: (error -> {:halt, error})
      end)
      |> case do
        {:error, error} ->
          {:error, error}

        {kept, _pending} ->
          message(receiver, {:last, kept || []})
          wait_done(receiver, monitor, timeout)
      end
    rescue
      error in Error ->
        message(receiver, :stopped)
        {:error, error}
    after
      Process.demonitor(monitor, [:flush])
    end
  end

  defp send_chunk(_receiver, _monitor, nil, pending, _timeout), do: {:ok, pending}

  defp send_chunk(receiver, monitor, chunk, pending, timeout) do
    message(receiver, {:chunk, chunk})
    wait(receiver, monitor, pending + 1, timeout)
  end

  defp message(receiver, content), do: Kernel.send(receiver, {@tag, self(), content})

  # Waits until fewer than @window chunks are under way.
  defp wait(_receiver, _monitor, pending, _timeout) when pending < @window, do: {:ok, pending}

  defp wait(receiver, monitor, pending, timeout) do
    with :ack <- answer(receiver, monitor, timeout),
         do: wait(receiver, monitor, pending - 1, timeout)
  end

  defp wait_done(receiver, monitor, timeout) do
    with :ack <- answer(receiver, monitor, timeout), do: wait_done(receiver, monitor, timeout)
  end

  defp answer(receiver, monitor, timeout) do
    receive do
      {@tag, ^receiver, :ack} ->
        :ack

      {@tag, ^receiver, :done} ->
        :ok

      {@tag, ^receiver, :stop} ->
        message(receiver, :stopped)
        {:error, Error.new(:closed, "the receiving process refused the checkpoint")}

      {:DOWN, ^monitor, _, _, reason} ->
        {:error, Error.new(:closed, "the receiving process ended: #{reason(reason)}")}
    after
      timeout -> {:error, Error.new(:timeout, "timeout while waiting for the receiving process")}
    end
  end

  # ---- Receiving ----

  @spec recv(pid(), Loader.options(), timeout()) :: {:ok, term(), binary()} | {:error, Error.t()}
  def recv(sender, options, timeout) do
    monitor = Process.monitor(sender)

    try do
      next(sender, monitor, Loader.start(options, true), timeout)
    after
      Process.demonitor(monitor, [:flush])
    end
  end

  defp next(sender, monitor, loader, timeout) do
    receive do
      {@tag, ^sender, {:chunk, chunk}} ->
        Kernel.send(sender, {@tag, self(), :ack})

        case Loader.feed(loader, chunk) do
          {:more, loader} -> next(sender, monitor, loader, timeout)
          {:done, term, rest} -> finish(sender, monitor, timeout, term, rest)
          {:error, error} -> stop(sender, monitor, timeout, {:error, error})
        end

      {@tag, ^sender, {:last, chunk}} ->
        Kernel.send(sender, {@tag, self(), :done})

        case Loader.feed(loader, chunk) do
          {:more, loader} -> Loader.ended(loader)
          {:done, term, rest} -> {:ok, term, rest}
          {:error, error} -> {:error, error}
        end

      {@tag, ^sender, :stopped} ->
        Loader.ended(loader)

      {:DOWN, ^monitor, _, _, reason} ->
        Loader.ended(loader)
        {:error, Error.new(:truncated, "the sending process ended: #{reason(reason)}")}
    after
      timeout ->
        Loader.ended(loader)
        {:error, Error.new(:timeout, "timeout while waiting for the sending process")}
    end
  end

  # The checkpoint is complete before its last chunk: only what formats have at their end may follow.
  defp finish(sender, monitor, timeout, term, rest) do
    receive do
      {@tag, ^sender, {kind, chunk}} ->
        rest = IO.iodata_to_binary([rest | chunk])
        Kernel.send(sender, {@tag, self(), if(kind == :last, do: :done, else: :ack)})

        cond do
          byte_size(rest) > @max_rest -> stop(sender, monitor, timeout, trailing())
          kind == :last -> {:ok, term, rest}
          true -> finish(sender, monitor, timeout, term, rest)
        end

      {@tag, ^sender, :stopped} ->
        {:ok, term, rest}

      {:DOWN, ^monitor, _, _, _} ->
        {:ok, term, rest}
    after
      timeout -> {:ok, term, rest}
    end
  end

  defp trailing, do: {:error, Error.new(:corrupt, "more data follows the end of the checkpoint")}

  # Removes what is under way from the mailbox.
  defp stop(sender, monitor, timeout, result) do
    Kernel.send(sender, {@tag, self(), :stop})
    drain(sender, monitor, timeout)
    result
  end

  defp drain(sender, monitor, timeout) do
    receive do
      {@tag, ^sender, content} when content == :stopped or elem(content, 0) == :last -> :ok
      {@tag, ^sender, _chunk} -> drain(sender, monitor, timeout)
      {:DOWN, ^monitor, _, _, _} -> :ok
    after
      timeout -> :ok
    end
  end

  defp reason(:noconnection), do: "the nodes are disconnected"
  defp reason(:noproc), do: "it does not exist"
  defp reason(_other), do: "it was stopped"
end
