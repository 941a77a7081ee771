defmodule ExTorch.Store.Fill do
  @moduledoc false
  # Reads the tensors that ExTorch.Store.apply_to/2 has planned, and puts them into the module.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.Progress
  alias ExTorch.Store.{ApplyResult, File, Fit, Jobs, Leaves, Options, Planned}

  # Reads what is planned. Returns the result with the module, and the number of bytes.
  #
  # new: {name, value} of the leaves, failed: failures by name, waiting: the tensors of a job by its number, until all of
  # them are read
  @spec fill(
          File.t() | map(),
          Options.t(),
          ApplyResult.t(),
          [Leaves.leaf()],
          {[Planned.t()], Jobs.jobs()}
        ) :: {:ok, ApplyResult.t(), non_neg_integer()}
  def fill(file, options, result, leaves, {planned, jobs}) do
    total = Enum.reduce(planned, 0, &(&1.entry.nbytes + &2))
    {first, tied} = tied(planned)

    state = %{
      new: [],
      failed: %{},
      guessed: %{},
      waiting: %{},
      jobs: jobs,
      progress: Progress.new(options.on_progress, total),
      bytes: 0
    }

    state =
      File.reduce(file, first, state, fn %{from: from} = item, read, state ->
        case tied do
          %{^from => items} -> Enum.reduce(items, state, &fit_item(&1, read, &2, options))
          _ -> fit_item(item, read, state, options)
        end
      end)

    Progress.finish(state.progress)
    new = :maps.from_list(state.new)
    values = for {name, leaf, _target} <- leaves, do: Map.get(new, name, leaf)
    {applied, failed} = split_failed(made(planned, jobs), state.failed)

    result = %{
      result
      | module: Leaves.replace(result.module, values),
        applied: applied,
        ambiguous: Enum.filter(applied, &is_map_key(state.guessed, &1)),
        errors: result.errors ++ Enum.map(failed, &Map.fetch!(state.failed, &1))
    }

    {:ok, result, state.bytes}
  end

  # Returns the names of the module that the items stand for. The first input of a job stands for all that it makes.
  @spec made([Planned.t()], Jobs.jobs()) :: [String.t()]
  def made(planned, jobs) when jobs == %{}, do: Enum.map(planned, & &1.name)

  def made(planned, jobs) do
    Enum.flat_map(planned, fn
      %{job: nil, name: name} ->
        [name]

      %{job: id, from: from} ->
        case Map.fetch!(jobs, id) do
          %{inputs: [{^from, _} | _], outputs: outputs} -> for {name, _, _} <- outputs, do: name
          _ -> []
        end
    end)
  end

  defp split_failed(names, failed) when failed == %{}, do: {names, []}
  defp split_failed(names, failed), do: Enum.split_with(names, &(not is_map_key(failed, &1)))

  # Tied weights stay tied: several names for the same view of the same storage get the same tensor. Returns the items to
  # read, and by the name in the file of the first item of a view, all its items, if there are several.
  defp tied(planned) do
    storages = Enum.map(planned, & &1.entry.storage)

    # In most cases each tensor has its own storage.
    if map_size(Map.from_keys(storages, true)) == length(storages),
      do: {planned, %{}},
      else: tied(planned, Enum.frequencies(storages))
  end

  defp tied(planned, by_storage) do
    {first, views} =
      Enum.reduce(planned, {[], %{}}, fn %{entry: %{storage: storage}} = item, {first, views} ->
        if storage == nil or :erlang.map_get(storage, by_storage) == 1,
          do: {[item | first], views},
          else: add_view(item, Entry.view(item.entry), first, views)
      end)

    tied =
      for {_, [_, _ | _] = items} <- views,
          items = Enum.reverse(items),
          do: {hd(items).from, items}

    {Enum.reverse(first), Map.new(tied)}
  end

  defp add_view(item, view, first, views) do
    case views do
      %{^view => items} -> {first, %{views | view => [item | items]}}
      _ -> {[item | first], Map.put(views, view, [item])}
    end
  end

  defp fit_item(item, read, state, options) do
    bytes = state.bytes + item.entry.nbytes
    state = %{state | bytes: bytes, progress: Progress.report(state.progress, bytes)}

    if item.job == nil,
      do: fit_leaf(item, read, state, options),
      else: add_input(item, read, state, options)
  end

  defp fit_leaf(%{name: name, target: target} = item, read, state, options) do
    with {:ok, tensor} <- read,
         {:ok, value, guessed} <- Fit.fit(tensor, item.entry, item.leaf, target, options) do
      add_value({name, value, guessed}, state)
    else
      error -> %{state | failed: Map.put(state.failed, name, Fit.failure(name, error, target))}
    end
  end

  defp add_value({name, value, guessed}, state) do
    state = %{state | new: [{name, value} | state.new]}
    if guessed, do: %{state | guessed: Map.put(state.guessed, name, true)}, else: state
  end

  # Runs the job when this was the last of its inputs.
  defp add_input(%{job: id, from: from}, read, state, options) do
    job = Map.fetch!(state.jobs, id)
    inputs = state.waiting |> Map.get(id, %{}) |> Map.put(from, read)

    if map_size(inputs) < length(job.inputs) do
      %{state | waiting: Map.put(state.waiting, id, inputs)}
    else
      {values, failures} = Jobs.run(job, inputs, options)
      failed = Map.merge(state.failed, Map.new(failures, &{&1.name, &1}))
      state = %{state | waiting: Map.delete(state.waiting, id), failed: failed}
      Enum.reduce(values, state, &add_value/2)
    end
  end
end
