defmodule ExTorch.HostileFiles.Child do
  @moduledoc false
  # Runs in a separate VM: makes one call at a time and measures it. Requests and answers are terms with a length of
  # four bytes before them, on the descriptors 3 and 4, so that nothing that is printed can disturb them.
  alias ExTorch.HostileFiles.Calls
  alias ExTorch.{Memory, Tensor}
  alias ExTorch.Python.RawTensor

  @max_walk 20_000_000

  def main do
    {:ok, _} = Application.ensure_all_started(:extorch)
    port = Port.open({:fd, 3, 4}, [:binary, :eof, packet: 4])
    warm_up()
    settle()
    state = %{rss: status("VmRSS"), live: Memory.live()}
    answer(port, {:ready, System.pid()})
    loop(port, state)
  end

  defp loop(port, state) do
    receive do
      {^port, {:data, data}} ->
        {path, call, limits} = :erlang.binary_to_term(data)
        answer(port, measure(path, call, limits, state))
        loop(port, state)

      _other ->
        System.halt(0)
    end
  end

  defp answer(port, term), do: Port.command(port, :erlang.term_to_binary(term))

  # `limits` are those of a result without tensors: what tensors a result has is only searched beyond these.
  defp measure(path, call, limits, state) do
    parent = self()

    {_, monitor} =
      spawn_monitor(fn -> send(parent, {:measured, measure_here(path, call, limits)}) end)

    result =
      receive do
        {:measured, result} ->
          receive do: ({:DOWN, ^monitor, _, _, _} -> result)

        {:DOWN, ^monitor, _, _, reason} ->
          %{
            answer: {:exit, inspect(reason, limit: 20, printable_limit: 200)},
            peak: 0,
            ms: 0,
            own: 0
          }
      end

    leak = leak(state.live)
    Map.merge(result, %{leak: leak, kept: status("VmRSS") - state.rss})
  end

  defp measure_here(path, call, {memory, time}) do
    file = Calls.prepare(call, path)
    live = Memory.live()
    :erlang.garbage_collect()
    :ok = File.write("/proc/self/clear_refs", "5")
    before = status("VmRSS")
    cpu = cpu_ms()
    started = System.monotonic_time(:microsecond)
    {answer, value} = run(call, file)
    wall = div(System.monotonic_time(:microsecond) - started, 1000)
    cpu = cpu_ms() - cpu
    peak = status("VmHWM")
    held = Memory.live()
    native = held.bytes + held.mapped - live.bytes - live.mapped
    ms = min(wall, cpu)
    beyond? = peak - before > memory or ms > time
    # The time of this VM's threads, if the machine is busy with something else.
    %{
      answer: answer,
      peak: peak - before,
      ms: ms,
      wall: wall,
      own: if(beyond?, do: own(value, max(native, 0), path), else: 0)
    }
  end

  defp run(call, file) do
    case Calls.run(call, file) do
      {:ok, value} -> {:ok, value}
      {:error, %ExTorch.Error{} = error} -> {error(error), nil}
      other -> {{:unexpected, inspect(other, limit: 5, printable_limit: 100)}, nil}
    end
  rescue
    error in ExTorch.Error ->
      {error(error), nil}

    error ->
      {{:raised, error |> inspect(limit: 5, printable_limit: 200) |> String.slice(0, 300)}, nil}
  catch
    kind, reason -> {{kind, inspect(reason, limit: 5, printable_limit: 200)}, nil}
  end

  defp error(error),
    do: {:error, error.reason, byte_size(error.message), String.slice(error.message, 0, 160)}

  # ---- What a result may hold ----

  # The bytes of the distinct tensors of a value, or of the file's storages if these are more: a tensor keeps the whole
  # storage that it is a view of. Not more than the native memory that the value holds, because views share it. Data
  # that was read as a binary counts as a tensor does. A gzip file that is too large for its size is opened with a higher
  # limit.
  defp own({:data, data}, _native, _path), do: byte_size(data)

  # Tensors that were used one after another wait for a garbage collection, which `collect_after` bytes cause.
  defp own({:streamed, sizes}, _native, _path) do
    min(Enum.sum(sizes), Enum.max(sizes, fn -> 0 end) + ExTorch.Config.collect_after())
  end

  defp own(value, native, path) do
    {tensors, raw, _} = walk([value], {%{}, %{}, 0})
    logical = sum(tensors)
    min(if(native > logical, do: max(logical, storages(path)), else: logical), native) + sum(raw)
  end

  defp storages(path) do
    case ExTorch.Checkpoint.open(path, limits: [memory: 500_000_000]) do
      {:ok, ckpt} ->
        bytes = ckpt |> ExTorch.Checkpoint.storages() |> Enum.map(& &1.nbytes) |> Enum.sum()
        ExTorch.Checkpoint.close(ckpt)
        bytes

      {:error, _} ->
        0
    end
  end

  defp sum(map), do: map |> Map.values() |> Enum.sum()

  defp walk([], acc), do: acc
  defp walk(_, {_, _, @max_walk} = acc), do: acc

  defp walk([%Tensor{} = tensor | rest], {tensors, raw, n}) do
    size = ExTorch.DType.size(tensor.dtype)
    bytes = Enum.reduce(Tuple.to_list(tensor.shape), size, &(&1 * &2))
    walk(rest, {Map.put(tensors, tensor.resource, bytes), raw, n + 1})
  end

  defp walk([%RawTensor{data: data} | rest], {tensors, raw, n}),
    do: walk(rest, {tensors, Map.put(raw, :erlang.phash2(data), byte_size(data)), n + 1})

  defp walk([%ExTorch.Checkpoint.Entry{} | rest], {tensors, raw, n}),
    do: walk(rest, {tensors, raw, n + 1})

  defp walk([map | rest], {tensors, raw, n}) when is_map(map) do
    # Not through lists of all pairs: a map may be large.
    walk(rest, map |> :maps.iterator() |> walk_map({tensors, raw, n + 1}))
  end

  defp walk([list | rest], {tensors, raw, n}) when is_list(list),
    do: walk(rest, walk(list, {tensors, raw, n + 1}))

  defp walk([tuple | rest], {tensors, raw, n}) when is_tuple(tuple),
    do: walk(rest, walk(Tuple.to_list(tuple), {tensors, raw, n + 1}))

  defp walk([_ | rest], {tensors, raw, n}), do: walk(rest, {tensors, raw, n + 1})

  defp walk_map(iterator, acc) do
    case :maps.next(iterator) do
      {key, value, next} -> walk_map(next, walk([key, value], acc))
      :none -> acc
    end
  end

  # ---- The VM ----

  # What is still in use after a call, or nil.
  defp leak(live, tries \\ 120) do
    settle()
    now = Memory.live()

    cond do
      now == live ->
        nil

      tries > 0 ->
        Process.sleep(25)
        leak(live, tries - 1)

      true ->
        now
    end
  end

  defp settle do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)
    Memory.collect()
  end

  defp warm_up do
    bytes = ExTorch.Case.saved(%{"w" => ExTorch.zeros({4})}, format: :zip)
    for _ <- 1..3, do: {:ok, _} = ExTorch.load({:binary, bytes})
    {:ok, _, _} = ExTorch.Streaming.load([bytes])
    {:error, _} = ExTorch.load({:binary, "not a checkpoint"})
  end

  defp cpu_ms, do: elem(:erlang.statistics(:runtime), 0)

  defp status(field) do
    [_, kb] = Regex.run(~r/#{field}:\s+(\d+) kB/, File.read!("/proc/self/status"))
    String.to_integer(kb) * 1024
  end
end
