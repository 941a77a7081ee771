defmodule ExTorch.Cluster.Worker do
  @moduledoc false
  # The process on a node that loads units of a checkpoint and keeps their tensors. It ends with the coordinator, which it
  # monitors, also if the nodes are disconnected.
  #
  #   coordinator → worker: {:unit, id, names}
  #   worker → coordinator: {:ready, worker}, {:loaded, worker, id}, {:failed, worker, error}
  #   anyone → worker: {:send, receiver, names}; the tensors are sent with ExTorch.Streaming.send/3

  alias ExTorch.Checkpoint.{BatchLoad, StateDict}
  alias ExTorch.{Error, Source, Streaming}

  @send_timeout_ms 60_000

  # Runs on the node of the worker.
  @spec start(pid(), term(), keyword()) :: DynamicSupervisor.on_start_child()
  def start(coordinator, source, opts) do
    run = fn -> init(coordinator, source, opts) end

    if Process.whereis(ExTorch.Tasks),
      do: Task.Supervisor.start_child(ExTorch.Tasks, run, restart: :temporary),
      else: {:ok, spawn(run)}
  end

  defp init(coordinator, source, opts) do
    Process.monitor(coordinator)

    result =
      StateDict.with_parts(local(source), opts, fn parts ->
        places =
          for {ckpt, entries} <- parts,
              entry <- entries,
              into: %{},
              do: {entry.name, {ckpt, entry}}

        send(coordinator, {:ready, self()})
        serve(coordinator, places, %{})
        {:ok, :ended}
      end)

    with {:error, error} <- result, do: send(coordinator, {:failed, self(), error})
  end

  # The node that has the file reads it directly.
  defp local(%Source.Remote{node: node, path: path}) when node == node(), do: path
  defp local(source), do: source

  defp serve(coordinator, places, tensors) do
    receive do
      {:unit, id, names} ->
        case load(places, names) do
          {:ok, loaded} ->
            send(coordinator, {:loaded, self(), id})
            serve(coordinator, places, Map.merge(tensors, loaded))

          {:error, error} ->
            send(coordinator, {:failed, self(), error})
        end

      {:send, receiver, names} ->
        Streaming.send(Map.take(tensors, names), receiver, timeout: @send_timeout_ms)
        serve(coordinator, places, tensors)

      {:DOWN, _, :process, ^coordinator, _} ->
        :ok

      _other ->
        serve(coordinator, places, tensors)
    end
  end

  defp load(places, names) do
    names
    |> Enum.map(&Map.get(places, &1))
    |> Enum.group_by(fn place -> place && elem(place, 0) end)
    |> Enum.reduce_while({:ok, %{}}, fn {ckpt, found}, {:ok, loaded} ->
      with %{} <- ckpt,
           entries = found |> Enum.map(&elem(&1, 1)) |> Enum.sort_by(& &1.index),
           {:ok, tensors} <- BatchLoad.tensors(ckpt, entries) do
        {:cont, {:ok, Enum.zip(Enum.map(entries, & &1.name), tensors) |> Enum.into(loaded)}}
      else
        nil ->
          {:halt,
           {:error, Error.new(:file_changed, "this node sees another file than the others")}}

        error ->
          {:halt, error}
      end
    end)
  end
end
