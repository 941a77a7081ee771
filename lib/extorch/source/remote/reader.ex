defmodule ExTorch.Source.Remote.Reader do
  @moduledoc false
  # Reads a file of another node: the process there that has the file open, and the requests of the process here.
  #
  # Each request has a monitor whose alias is the address of the answer: an answer that is no longer wanted is dropped, and
  # a request is answered or fails. Requests are sent ahead up to the window of the source.

  alias ExTorch.Error
  alias ExTorch.Source.{Incoming, Remote}

  # Ranges are read in pieces of this size, or larger by the slack rather than leave a small rest. The pieces of a range are
  # copied into native memory: keeping them as they are takes longer, since the VM needs new memory for the next ones.
  @piece 4 * 1024 * 1024
  @slack 256 * 1024
  @idle_ms 60_000

  # ---- The process that reads ----
  # The process dictionary has {server, [{offset, length, ref}]}: the requests that are under way, in their order.

  @spec identify(Remote.t()) :: {:ok, tuple()} | {:error, Error.t()}
  def identify(source) do
    with {:error, reason} <- on_node(source, :file_identity, [source.path]),
         do: {:error, error(reason, source)}
  end

  @spec read(Remote.t(), non_neg_integer(), pos_integer()) ::
          {:ok, binary()} | {:error, Error.t()}
  def read(source, offset, length) do
    pieces = pieces(offset, length)
    unless under_way?(source, pieces), do: announce(source, pieces)

    case pieces do
      [piece] -> read_piece(source, piece, 1)
      pieces -> with {:ok, incoming} <- Incoming.begin(length), do: join(source, pieces, incoming)
    end
  end

  defp join(_source, [], incoming), do: {:ok, Incoming.finish(incoming)}

  defp join(source, [piece | pieces], incoming) do
    with {:ok, bytes} <- read_piece(source, piece, 1),
         :ok <- send_ahead(source, pieces),
         {:ok, _missing} <- Incoming.append(incoming, bytes),
         do: join(source, pieces, incoming)
  end

  # If the process or the connection is lost, the request is made once more, of a new process.
  defp read_piece(source, {offset, length} = piece, tries) do
    with {:ok, ref} <- request(source, piece) do
      case answer(source, ref) do
        {:ok, bytes} when byte_size(bytes) >= length ->
          {:ok, binary_part(bytes, 0, length)}

        {:ok, bytes} ->
          forget(source)
          text = "the file ends at #{offset + byte_size(bytes)}"
          {:error, Error.new(:truncated, text, Remote.label(source))}

        {:down, _reason} when tries > 0 ->
          forget(source)
          read_piece(source, piece, tries - 1)

        {:down, reason} ->
          forget(source)
          {:error, error(reason, source)}

        {:error, reason} ->
          forget(source)
          {:error, error(reason, source)}
      end
    end
  end

  # Takes the oldest request, which is for this piece, or makes one.
  defp request(source, {offset, length}) do
    case Process.get(key(source)) do
      {server, [{^offset, known, ref} | rest]} when known >= length ->
        Process.put(key(source), {server, rest})
        {:ok, ref}

      _ ->
        cancel(source)

        with {:ok, server} <- server(source),
             do: {:ok, send_request(server, offset, length)}
    end
  end

  defp send_request(server, offset, length) do
    ref = :erlang.monitor(:process, server, alias: :reply_demonitor)
    send(server, {:read, ref, offset, length})
    ref
  end

  defp answer(source, ref) do
    receive do
      {^ref, result} -> result
      {:DOWN, ^ref, _, _, reason} -> {:down, reason}
    after
      source.options.timeout ->
        Process.demonitor(ref, [:flush])
        {:error, :timeout}
    end
  end

  # Announces what is read next.
  @spec prefetch(Remote.t(), [{non_neg_integer(), pos_integer()}]) :: :ok
  def prefetch(source, []), do: cancel(source)

  def prefetch(%{file: nil}, _ranges), do: :ok

  def prefetch(source, ranges) do
    pieces = Enum.flat_map(ranges, fn {offset, length} -> pieces(offset, length) end)
    announce(source, pieces)
  end

  defp announce(source, pieces) do
    unless under_way?(source, pieces), do: cancel(source)
    send_ahead(source, pieces)
  end

  # What is under way must be the beginning of what is read next, or the other way round.
  defp under_way?(source, pieces) do
    {_server, requests} = Process.get(key(source), {nil, []})

    requests != [] and
      Enum.all?(Enum.zip(requests, pieces), fn {{offset, known, _}, {from, length}} ->
        offset == from and known >= length
      end)
  end

  defp send_ahead(source, pieces) do
    with {:ok, server} <- server(source) do
      {_, requests} = Process.get(key(source))
      bytes = Enum.sum(for {_, length, _} <- requests, do: length)
      more = Enum.drop(pieces, length(requests))

      {new, _} =
        Enum.flat_map_reduce(more, bytes, fn {offset, length}, bytes ->
          if bytes == 0 or bytes + length <= source.options.window,
            do: {[{offset, length, send_request(server, offset, length)}], bytes + length},
            else: {:halt, bytes}
        end)

      Process.put(key(source), {server, requests ++ new})
    end

    :ok
  end

  @spec close(Remote.t()) :: :ok
  def close(source) do
    with {server, _} <- Process.get(key(source)), do: send(server, :stop)
    forget(source)
  end

  defp forget(source) do
    cancel(source)
    Process.delete(key(source))
    :ok
  end

  # Answers that have arrived are removed from the mailbox.
  defp cancel(source) do
    with {server, [_ | _] = requests} <- Process.get(key(source)) do
      for {_, _, ref} <- requests do
        Process.demonitor(ref, [:flush])
        receive do: ({^ref, _} -> :ok), after: (0 -> :ok)
      end

      Process.put(key(source), {server, []})
    end

    :ok
  end

  defp key(source), do: {__MODULE__, source.id}

  defp pieces(offset, length) when length <= @piece + @slack, do: [{offset, length}]
  defp pieces(offset, length), do: [{offset, @piece} | pieces(offset + @piece, length - @piece)]

  # ---- Starting ----

  defp server(source) do
    case Process.get(key(source)) do
      {server, _} ->
        {:ok, server}

      nil ->
        with {:ok, server} <- on_node(source, :start, [self(), source.path, source.file]) do
          Process.put(key(source), {server, []})
          {:ok, server}
        else
          {:error, reason} -> {:error, error(reason, source)}
        end
    end
  end

  defp on_node(source, function, args) do
    :erpc.call(source.node, __MODULE__, function, args, source.options.timeout)
  catch
    :error, {:erpc, reason} -> {:error, reason}
    :error, {:exception, :undef, _} -> {:error, :undef}
    _kind, _reason -> {:error, :failed}
  end

  defp error(reason, source) do
    {reason, text} =
      case reason do
        :enoent -> {:not_found, "the file does not exist"}
        :changed -> {:file_changed, "the file changed while it was being read"}
        :no_file -> {:not_found, "it is not a regular file"}
        :timeout -> {:timeout, "the node did not answer in time; see the option timeout"}
        :undef -> {:not_loaded, "the node does not have ExTorch"}
        reason when reason in [:noconnection, :nodedown] -> {:io, "the node cannot be reached"}
        reason when is_atom(reason) -> {:io, "reading failed: #{:file.format_error(reason)}"}
        _ -> {:io, "the reader on the node was killed"}
      end

    Error.new(reason, text, Remote.label(source))
  end

  # ---- The node that has the file ----

  # Size, time, inode and device. Only regular files: a FIFO would block.
  @doc false
  def file_identity(path) do
    case :file.read_file_info(path, [:raw, time: :posix]) do
      {:ok, info} when elem(info, 2) == :regular ->
        {:ok, {elem(info, 1), elem(info, 5), elem(info, 11), elem(info, 9)}}

      {:ok, _} ->
        {:error, :no_file}

      error ->
        error
    end
  end

  # Runs on the node of the file. The process is a child of a supervisor if ExTorch is started there.
  @doc false
  def start(caller, path, identity) do
    with {:ok, ^identity} <- file_identity(path),
         {:ok, pid} <- start_process(fn -> init(caller, path, identity) end) do
      {:ok, pid}
    else
      {:ok, _other} -> {:error, :changed}
      error -> error
    end
  end

  defp start_process(fun) do
    if Process.whereis(ExTorch.Tasks),
      do: Task.Supervisor.start_child(ExTorch.Tasks, fun, restart: :temporary),
      else: {:ok, spawn(fun)}
  end

  defp init(caller, path, identity) do
    Process.monitor(caller)

    with {:ok, file} <- :file.open(path, [:raw, :read, :binary]),
         do: serve(file, path, identity)
  end

  defp serve(file, path, identity) do
    receive do
      {:read, ref, offset, length} ->
        send(ref, {ref, read_checked(file, path, identity, offset, length)})
        # Nothing that was sent stays in this heap.
        :erlang.garbage_collect()
        serve(file, path, identity)

      :stop ->
        :file.close(file)

      {:DOWN, _, :process, _, _} ->
        :file.close(file)
    after
      @idle_ms -> :file.close(file)
    end
  end

  defp read_checked(file, path, identity, offset, length) do
    case :file.pread(file, offset, length) do
      {:ok, bytes} ->
        if file_identity(path) == {:ok, identity}, do: {:ok, bytes}, else: {:error, :changed}

      :eof ->
        {:error, :changed}

      error ->
        error
    end
  end
end
