defmodule ExTorch.Cluster.Coordinator do
  @moduledoc false
  # Gives units to workers that are ready, and the units of a worker that is lost to the others. It monitors the process
  # that started it and ends with it; the workers end with the coordinator.
  #
  # A unit is waiting, or it belongs to a worker, which is loading it or has loaded it.
  use GenServer

  alias ExTorch.Checkpoint.{Partition, StateDict}
  alias ExTorch.{Cluster, Error, Filter, Progress, Streaming}
  alias ExTorch.Cluster.Worker

  @start_timeout_ms 60_000
  # Workers that send at the same time, while everything is gathered.
  @fetches 4

  # ---- The caller ----

  @spec start(term(), [node()], keyword()) :: {:ok, pid()} | {:error, Error.t()}
  def start(source, nodes, opts) do
    with {:ok, entries} <- entries(source, opts) do
      units =
        entries |> units(opts[:unit_bytes]) |> Enum.with_index(fn unit, id -> {id, unit} end)

      GenServer.start(__MODULE__, {self(), source, nodes, units, opts})
    end
  end

  # The names must be unique: they are how units are described.
  defp entries(source, opts) do
    Filter.check!(opts[:only], :only)
    only = Filter.prepare(opts[:only])

    StateDict.with_parts(source, opts[:load], fn parts ->
      entries = for {_, entries} <- parts, entry <- entries, do: entry

      selected =
        Enum.filter(entries, fn entry ->
          only == nil or Filter.matches?(only, entry.name, fn -> entry end)
        end)

      names = Enum.map(selected, & &1.name)

      cond do
        selected == [] ->
          {:error, Error.new(:not_found, "no tensor is selected")}

        length(Enum.uniq(names)) < length(names) ->
          {:error, Error.new(:ambiguous, "several tensors have the same name")}

        true ->
          {:ok, selected}
      end
    end)
  end

  defp units(entries, unit_bytes) do
    total = Enum.sum(for entry <- entries, do: entry.nbytes)
    count = entries |> length() |> min(div(total, unit_bytes) + 1)
    by_name = Map.new(entries, &{&1.name, &1})

    # Neighbors stay together: they are read with one request. Parts of different files have equal indexes.
    entries
    |> Enum.with_index(fn entry, index -> %{entry | index: index} end)
    |> Partition.partition(count, &(&1.storage || &1.name))
    |> Enum.reject(&(&1 == []))
    |> Enum.map(fn names -> Enum.map(names, &Map.fetch!(by_name, &1)) end)
  end

  # Waits until all units are loaded.
  @spec await(pid(), Progress.callback() | nil) :: :ok | {:error, Error.t()}
  def await(coordinator, on_progress) do
    monitor = Process.monitor(coordinator)
    send(coordinator, {:await, self(), monitor})
    result = wait(coordinator, monitor, on_progress, nil)
    Process.demonitor(monitor, [:flush])
    result
  end

  defp wait(coordinator, monitor, on_progress, progress) do
    receive do
      {^monitor, {:progress, done, total}} ->
        progress = progress || Progress.new(on_progress, total)
        wait(coordinator, monitor, on_progress, Progress.report(progress, done))

      {^monitor, {:done, total}} ->
        Progress.finish(progress || Progress.new(on_progress, total))

      {^monitor, {:error, error}} ->
        {:error, error}

      {:DOWN, ^monitor, _, _, _} ->
        {:error, Error.new(:closed, "the coordinator of the cluster was stopped")}
    end
  end

  @spec refs(pid()) :: %{String.t() => Cluster.Ref.t()}
  def refs(coordinator) do
    GenServer.call(coordinator, :refs)
  catch
    :exit, _ -> raise Error.new(:released, "the cluster is closed")
  end

  # Asks a worker for tensors.
  @spec fetch(pid(), [String.t()], timeout()) :: {:ok, map()} | {:error, Error.t()}
  def fetch(worker, names, timeout) do
    send(worker, {:send, self(), names})

    with {:ok, tensors, _rest} <- Streaming.recv(worker, timeout: timeout) do
      if map_size(tensors) == length(names),
        do: {:ok, tensors},
        else: {:error, Error.new(:not_found, "the node does not have the tensor")}
    end
  end

  # If a worker is lost, what it had is loaded again by another one, and fetched from there.
  @spec gather(pid(), timeout()) :: {:ok, map()} | {:error, Error.t()}
  def gather(coordinator, timeout), do: gather(coordinator, timeout, %{}, 10)

  defp gather(coordinator, timeout, tensors, tries) do
    with :ok <- await(coordinator, nil) do
      missing = coordinator |> refs() |> Map.drop(Map.keys(tensors))
      by_worker = missing |> Map.values() |> Enum.group_by(& &1.holder, & &1.name)

      {tensors, lost} =
        by_worker
        |> fetch_all(timeout)
        |> Enum.reduce({tensors, nil}, fn
          {:ok, fetched}, {tensors, lost} -> {Map.merge(tensors, fetched), lost}
          {:error, error}, {tensors, _lost} -> {tensors, error}
        end)

      cond do
        lost == nil ->
          {:ok, tensors}

        tries > 0 and lost.reason in [:truncated, :closed] ->
          gather(coordinator, timeout, tensors, tries - 1)

        true ->
          {:error, lost}
      end
    end
  end

  # From several workers at the same time. The tasks are linked to the caller.
  defp fetch_all(by_worker, timeout) do
    by_worker
    |> Task.async_stream(fn {worker, names} -> fetch(worker, names, timeout) end,
      max_concurrency: @fetches,
      ordered: false,
      timeout: :infinity
    )
    |> Enum.map(fn {:ok, result} -> result end)
  end

  @spec stop(pid()) :: :ok
  def stop(coordinator) do
    GenServer.stop(coordinator, :normal)
  catch
    :exit, _ -> :ok
  end

  # ---- The coordinator ----

  # units: %{id => [entry]}; waiting: ids in order; workers: %{pid => %{node, loaded: [id], loading: {id, timer} | nil}}
  # idle: workers without a unit; starting: nodes whose worker is being started; awaiting: [{pid, ref}]
  @impl true
  def init({caller, source, nodes, units, opts}) do
    monitor = Process.monitor(caller)
    this = self()

    for node <- nodes, do: spawn_link(fn -> start_worker(this, node, source, opts[:load]) end)

    {:ok,
     %{
       caller: monitor,
       units: Map.new(units),
       waiting: Enum.map(units, &elem(&1, 0)),
       workers: %{},
       starting: MapSet.new(nodes),
       timeout: opts[:unit_timeout],
       awaiting: [],
       error: nil
     }}
  end

  # Connecting to a node may take long: each is started by a process of its own.
  defp start_worker(coordinator, node, source, opts) do
    result =
      try do
        :erpc.call(node, Worker, :start, [coordinator, source, opts], @start_timeout_ms)
      catch
        _kind, _reason -> {:error, :unreachable}
      end

    send(coordinator, {:started, node, result})
  end

  @impl true
  def handle_call(:refs, _from, state) do
    refs =
      for {pid, worker} <- state.workers,
          id <- worker.loaded,
          entry <- state.units[id],
          into: %{} do
        ref = %Cluster.Ref{
          name: entry.name,
          node: worker.node,
          holder: pid,
          shape: entry.shape,
          dtype: entry.dtype,
          nbytes: entry.nbytes
        }

        {entry.name, ref}
      end

    {:reply, refs, state}
  end

  @impl true
  def handle_info({:await, pid, ref}, state),
    do: {:noreply, report(%{state | awaiting: [{pid, ref} | state.awaiting]})}

  def handle_info({:started, node, {:ok, pid}}, state) do
    Process.monitor(pid)
    workers = Map.put(state.workers, pid, %{node: node, loaded: [], loading: nil, ready: false})
    {:noreply, %{state | workers: workers, starting: MapSet.delete(state.starting, node)}}
  end

  def handle_info({:started, node, {:error, _reason}}, state) do
    error = Error.new(:io, "no worker could be started on #{node}")
    {:noreply, report(%{state | starting: MapSet.delete(state.starting, node), error: error})}
  end

  # A worker may be ready before it is known that it was started.
  def handle_info({:ready, pid}, state) when is_map_key(state.workers, pid),
    do: {:noreply, assign(put_in(state.workers[pid].ready, true))}

  def handle_info({:ready, _pid} = message, state) do
    if MapSet.size(state.starting) > 0, do: Process.send_after(self(), message, 20)
    {:noreply, state}
  end

  def handle_info({:loaded, pid, id}, state) do
    case state.workers do
      %{^pid => %{loading: {^id, timer}} = worker} ->
        Process.cancel_timer(timer)
        worker = %{worker | loading: nil, loaded: [id | worker.loaded]}
        {:noreply, report(assign(%{state | workers: Map.put(state.workers, pid, worker)}))}

      _ ->
        {:noreply, state}
    end
  end

  # The worker ends after this message.
  def handle_info({:failed, _pid, error}, state), do: {:noreply, %{state | error: error}}

  def handle_info({:too_long, pid, id}, state) do
    case state.workers do
      %{^pid => %{loading: {^id, _}}} ->
        Process.exit(pid, :kill)
        {:noreply, report(lose(state, pid))}

      _ ->
        {:noreply, state}
    end
  end

  def handle_info({:DOWN, _, :process, pid, _}, state) when is_map_key(state.workers, pid),
    do: {:noreply, report(lose(state, pid))}

  def handle_info({:DOWN, monitor, _, _, _}, %{caller: monitor} = state),
    do: {:stop, :normal, state}

  def handle_info(_other, state), do: {:noreply, state}

  # What the worker had is to be loaded again.
  defp lose(state, pid) do
    {worker, workers} = Map.pop!(state.workers, pid)

    loading =
      case worker.loading do
        nil ->
          []

        {id, timer} ->
          Process.cancel_timer(timer)
          [id]
      end

    waiting = Enum.sort(loading ++ worker.loaded) ++ state.waiting
    assign(%{state | workers: workers, waiting: waiting})
  end

  defp assign(%{waiting: []} = state), do: state

  defp assign(%{waiting: [id | waiting]} = state) do
    case Enum.find(state.workers, fn {_, worker} -> worker.ready and worker.loading == nil end) do
      nil ->
        state

      {pid, worker} ->
        send(pid, {:unit, id, Enum.map(state.units[id], & &1.name)})
        timer = Process.send_after(self(), {:too_long, pid, id}, state.timeout)
        workers = Map.put(state.workers, pid, %{worker | loading: {id, timer}})
        assign(%{state | waiting: waiting, workers: workers})
    end
  end

  defp report(%{awaiting: []} = state), do: state

  defp report(state) do
    loaded = for {_, worker} <- state.workers, id <- worker.loaded, do: bytes(state.units[id])
    total = Enum.sum(for {_, unit} <- state.units, do: bytes(unit))
    busy? = Enum.any?(state.workers, fn {_, worker} -> worker.loading != nil end)

    message =
      cond do
        state.waiting == [] and not busy? -> {:done, total}
        state.workers == %{} and MapSet.size(state.starting) == 0 -> {:error, lost(state)}
        true -> {:progress, Enum.sum(loaded), total}
      end

    for {pid, ref} <- state.awaiting, do: send(pid, {ref, message})
    if elem(message, 0) == :progress, do: state, else: %{state | awaiting: []}
  end

  defp lost(state), do: state.error || Error.new(:io, "all nodes of the cluster were lost")

  defp bytes(unit), do: Enum.sum(for entry <- unit, do: entry.nbytes)
end
