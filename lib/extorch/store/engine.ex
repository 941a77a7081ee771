defmodule ExTorch.Store.Engine do
  @moduledoc false
  # Applies files to modules and collects the tensors of modules, for all stores.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Filter, Progress, Source, Suggest, Telemetry, Tensor}

  alias ExTorch.Store.{
    Adapter,
    ApplyResult,
    File,
    Fit,
    Jobs,
    Leaves,
    Leftovers,
    Names,
    Options,
    Planned,
    Rules
  }

  # A map is what the store of a user passes.
  @type file :: File.t() | map()

  # ---- Applying ----

  @spec apply_to(file(), Path.t() | Source.t(), Options.t(), term()) ::
          {:ok, ApplyResult.t()} | {:error, Error.t()}
  def apply_to(file, path, options, module) do
    Telemetry.span(
      :apply,
      fn -> Telemetry.source(path) end,
      fn -> apply_and_check(file, path, options, module) end,
      fn _result -> %{} end
    )
  end

  defp apply_and_check(file, path, options, module) do
    leaves = Leaves.list(module)

    with {:ok, result, bytes} <- apply_steps(file, options, module, leaves) do
      Telemetry.note(fn ->
        {%{
           bytes: bytes,
           tensors: length(result.applied),
           missing: length(result.missing),
           errors: length(result.errors)
         }, %{}}
      end)

      check_complete(result, options, module, Source.label(path))
    end
  end

  defp apply_steps(file, options, module, leaves) do
    case apply_exactly(file, options, module, leaves) do
      nil -> apply_leaves(file, options, module, leaves)
      found -> found
    end
  end

  # The most common case takes few steps and little memory: the file has exactly the tensors of the module, and nothing is
  # renamed, left out or converted. Otherwise nil.
  defp apply_exactly(file, options, module, leaves) do
    with %{only: nil, except: nil, adapters: [], on_progress: nil} <- options,
         true <- Names.unchanged?(options),
         true <- Enum.all?(leaves, &match?({_, %Tensor{device: :cpu}, _}, &1)),
         {tensors, bytes} <- File.read_all(file, leaves) do
      {:ok, %ApplyResult{module: Leaves.replace(module, tensors), applied: file.keys}, bytes}
    else
      _ -> nil
    end
  end

  defp apply_leaves(file, options, module, leaves) do
    with {:ok, targets} <- Leaves.by_name(leaves),
         {:ok, rules} <- rules(options, targets),
         expected = Rules.expected(rules, targets),
         {:ok, pairs, outside, key} <-
           Names.plan(file.keys, all_entries(file), options, expected),
         {:ok, choice, from} <- choose(rules, targets, pairs),
         work = Jobs.plan(choice.chosen, file, options, targets, from),
         {_, _, others} = unclaimed = unclaimed({leaves, targets, pairs}, choice),
         {result, planned} = classify(file, options, unclaimed, outside),
         {result, planned, jobs} =
           add_rules(result, planned, file, options, {choice, work, targets}),
         :ok <- check_selected(result, planned, outside, options, {leaves, others}) do
      result = %{result | module: module, top_level_key: key}

      if options.allow_partial or ApplyResult.complete?(result),
        do: read(file, options, result, leaves, {planned, jobs}),
        else: {:ok, not_read(result, planned, jobs), 0}
    end
  end

  # Says what would have been applied.
  defp not_read(result, planned, jobs) do
    guessed = for %{ambiguous: true, name: name} <- planned, into: %{}, do: {name, true}

    guessed = for {_, job} <- jobs, name <- job.ambiguous, into: guessed, do: {name, true}

    applied = made(planned, jobs)
    %{result | applied: applied, ambiguous: Enum.filter(applied, &is_map_key(guessed, &1))}
  end

  defp rules(options, targets) do
    {:ok,
     Rules.list(options.adapters, Map.new(targets, fn {name, leaf} -> {name, elem(leaf, 2)} end))}
  rescue
    error in Error -> {:error, error}
  end

  # Also returns the names in the file by their new names. Without rules there is nothing to choose from.
  defp choose([], _targets, _pairs),
    do: {:ok, %{chosen: [], claimed: %{}, missing: [], kept: [], sources: %{}}, %{}}

  defp choose(rules, targets, pairs) do
    from = Map.new(pairs, fn {from, name} -> {name, from} end)
    with {:ok, choice} <- Rules.choose(rules, targets, from), do: {:ok, choice, from}
  end

  # Filters that leave nothing of the module or of the file are an error.
  defp check_selected(_result, [_ | _], _outside, _options, _names), do: :ok

  defp check_selected(result, [], outside, options, {leaves, pairs}) do
    unused = Enum.drop(result.unused, -length(outside))
    selected = result.errors ++ result.missing ++ unused

    Options.check_selected(options, selected, fn ->
      Enum.uniq(names(leaves) ++ module_names(pairs))
    end)
  end

  defp names(tuples), do: Enum.map(tuples, &elem(&1, 0))
  defp module_names(pairs), do: Enum.map(pairs, &elem(&1, 1))

  defp check_complete(result, options, module, path) do
    if options.allow_partial or ApplyResult.complete?(result) do
      {:ok, result}
    else
      reason = if result.errors == [], do: :not_found, else: hd(result.errors).reason
      # Discard the tensors that were read before the failure.
      result = %{result | module: module}

      error =
        Error.new(
          reason,
          "the tensors of the file do not fit the module (use allow_partial: true to apply those that do)\n" <>
            ApplyResult.summary(result),
          path
        )

      {:error, %{error | result: result}}
    end
  end

  # Returns the entries of the names, or errors, by name.
  defp entries(file, names), do: names |> Enum.zip(File.entries(file, names)) |> Map.new()

  # Returns a function that returns the entries of all names, or nil for those that have none.
  defp all_entries(file) do
    fn ->
      Map.new(entries(file, file.keys), fn
        {key, {:ok, entry}} -> {key, entry}
        {key, {:error, _}} -> {key, nil}
      end)
    end
  end

  # Returns the function that gives filters the entry of a name of the file.
  defp entry_for_filters(file, options) do
    if Filter.takes_entry?(options.only) or Filter.takes_entry?(options.except) do
      entries = entries(file, file.keys)
      fn from -> fn -> entry_or_placeholder(entries[from], from) end end
    else
      fn _from -> fn -> nil end end
    end
  end

  defp entry_or_placeholder({:ok, entry}, _from), do: entry
  defp entry_or_placeholder(_, from), do: placeholder(from, %{shape: nil, dtype: nil})

  # Assigns each name of the file and of the module to one list of the result. Also returns the tensors to read, in file
  # order.
  defp classify(file, options, {leaves, targets, pairs}, outside) do
    entry = entry_for_filters(file, options)
    {known, unknown} = split_known(pairs, targets)
    {selected, skipped} = split_selected(known, options, entry)
    {unused, unknown_skipped} = split_selected(unknown, options, entry)
    {planned, errors} = check_all(selected, file, options, targets)

    {missing_skipped, missing} =
      leaves
      |> not_in_file(planned, known)
      |> Enum.split_with(fn {name, _leaf, target} ->
        # There is no entry in the file: filters of the entry receive one that describes the tensor of the module.
        not Options.selected?(options, name, fn -> placeholder(name, target) end)
      end)

    missing = names(missing)
    unused = names(unused) ++ outside

    result = %ApplyResult{
      missing: missing,
      skipped: module_names(skipped) ++ names(unknown_skipped) ++ names(missing_skipped),
      unused: unused,
      errors: errors
    }

    {result, planned}
  end

  # Leaves out the tensors of the module and of the file that rules are about.
  defp unclaimed(names, %{claimed: claimed}) when claimed == %{}, do: names

  defp unclaimed({leaves, targets, pairs}, %{claimed: claimed, chosen: chosen}) do
    used = for %{rule: rule} <- chosen, name <- rule.file, into: %{}, do: {name, true}

    {Enum.reject(leaves, fn {name, _, _} -> is_map_key(claimed, name) end),
     Map.drop(targets, Map.keys(claimed)),
     Enum.reject(pairs, fn {_, name} -> is_map_key(used, name) end)}
  end

  # Adds what the rules are about to the result and to the tensors to read, which stay in file order.
  defp add_rules(result, planned, file, options, {choice, {jobs, errors, left_out}, targets}) do
    {missing, skipped} =
      Enum.split_with(choice.missing, fn name ->
        Options.selected?(options, name, fn -> placeholder(name, elem(targets[name], 2)) end)
      end)

    missing = result.missing ++ missing
    expected = for name <- missing, do: {name, Map.get(choice.sources, name, [name])}

    result = %{
      result
      | missing: missing,
        skipped: result.skipped ++ left_out ++ skipped ++ choice.kept,
        errors: result.errors ++ errors,
        sources: choice.sources,
        suggestions: Names.suggestions(expected, result.unused)
    }

    {result, in_file_order(planned, jobs, file), jobs}
  end

  defp in_file_order(planned, jobs, _file) when jobs == %{}, do: planned

  defp in_file_order(planned, jobs, file) do
    inputs =
      for {id, job} <- jobs,
          {from, entry} <- job.inputs,
          do: %Planned{from: from, entry: entry, job: id}

    position = file.keys |> Enum.with_index() |> Map.new()
    Enum.sort_by(planned ++ inputs, &Map.fetch!(position, &1.from))
  end

  # In most cases the module has all names of the file: then the list is not copied.
  defp split_known(pairs, targets) do
    known? = fn {_, name} -> is_map_key(targets, name) end
    if Enum.all?(pairs, known?), do: {pairs, []}, else: Enum.split_with(pairs, known?)
  end

  defp split_selected(pairs, %{only: nil, except: nil}, _entry), do: {pairs, []}

  defp split_selected(pairs, options, entry) do
    Enum.split_with(pairs, fn {from, name} -> Options.selected?(options, name, entry.(from)) end)
  end

  # Returns the leaves of the module that the file does not have. The names of what is planned are unique.
  defp not_in_file(leaves, planned, known) do
    if length(planned) == length(leaves) do
      []
    else
      known = known |> module_names() |> Map.from_keys(true)
      Enum.reject(leaves, fn {name, _, _} -> is_map_key(known, name) end)
    end
  end

  # ---- Checking shapes and dtypes before reading ----

  defp check_all(selected, file, options, targets) do
    entries = File.entries(file, names(selected))

    {planned, errors} =
      Enum.zip_reduce(selected, entries, {[], []}, fn {from, name}, result, {planned, errors} ->
        {_name, leaf, target} = Map.fetch!(targets, name)

        with {:ok, entry} <- result,
             {:ok, ambiguous} <- Fit.check(entry, target, options) do
          item = %Planned{from: from, name: name, entry: entry, leaf: leaf, target: target}
          {[%{item | ambiguous: ambiguous} | planned], errors}
        else
          error -> {planned, [Fit.failure(name, error, target) | errors]}
        end
      end)

    {Enum.reverse(planned), Enum.reverse(errors)}
  end

  # ---- Reading ----

  # new: {name, value} of the leaves, failed: failures by name, waiting: the tensors of a job by its number, until all of
  # them are read
  defp read(file, options, result, leaves, {planned, jobs}) do
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
  defp made(planned, jobs) when jobs == %{}, do: Enum.map(planned, & &1.name)

  defp made(planned, jobs) do
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

  # ---- Collecting ----

  # Saves the tensors of a module with the function `save`, which receives the names in the file and the tensors.
  @spec collect_from(store, term(), ([{String.t(), Tensor.t()}] -> :ok | {:error, Error.t()})) ::
          :ok | {:error, Error.t()}
        when store: %{
               :path => Path.t() | Source.t(),
               :options => Options.t(),
               optional(atom()) => term()
             }
  def collect_from(%{path: %_{} = source}, _module, _save) do
    {:error,
     Error.new(
       :unsupported,
       "cannot save to a URL or another source, which are only read; use a path",
       Source.label(source)
     )}
  end

  def collect_from(%{path: path, options: options}, module, save) do
    Telemetry.span(
      :collect,
      fn -> Telemetry.source(path) end,
      fn -> collect_and_save(path, options, module, save) end,
      fn _result -> %{} end
    )
  end

  defp collect_and_save(path, options, module, save) do
    with :ok <- check_overwrite(path, options),
         {:ok, pairs} <- collect(options, module),
         :ok <- save.(pairs) do
      Leftovers.sweep(Path.dirname(path))
      Telemetry.note(fn -> {%{tensors: length(pairs)}, %{}} end)
    end
  end

  # Returns the tensors with their names in the file.
  defp collect(options, module) do
    leaves = Leaves.list(module)

    with {:ok, targets} <- Leaves.by_name(leaves),
         {:ok, rules} <- rules(options, targets) do
      kept =
        for {name, leaf, target} <- leaves,
            entry = placeholder(name, target),
            Options.selected?(options, name, fn -> entry end),
            do: {name, leaf, entry}

      with :ok <- Options.check_selected(options, kept, fn -> names(leaves) end),
           {:ok, made, claimed} <- Rules.collect(rules, kept, targets),
           do: name_all(unclaimed_of(kept, claimed, options) ++ made, options)
    end
  rescue
    error in Error -> {:error, error}
  end

  # Returns {name, name in the module, shape, function that returns the tensor} of the tensors without rules.
  defp unclaimed_of(kept, claimed, options) do
    for {name, leaf, entry} <- kept, not is_map_key(claimed, name) do
      {name, name, entry.shape,
       fn ->
         {tensor, _} = Adapter.adapt(options.adapters, entry, ExTorch.Module.to_tensor(leaf), nil)

         tensor
       end}
    end
  end

  defp name_all(made, options) do
    shapes = Map.new(made, fn {name, _, shape, _} -> {name, shape} end)

    named =
      for {name, from, _, tensor} <- made do
        {from, Options.rename(options, Adapter.rename(options.adapters, name, shapes)), tensor}
      end

    with :ok <- Names.check_collisions(for {from, name, _} <- named, do: {from, name}),
         do: {:ok, for({from, name, tensor} <- named, do: {name, evaluate(tensor, from)})}
  end

  # The error has the name of the tensor.
  defp evaluate(tensor, name) do
    tensor.()
  rescue
    error in Error ->
      message = "the tensor #{Error.quoted(name)}: #{error.message}"
      reraise %{error | message: message}, __STACKTRACE__
  end

  # Returns an entry for a tensor of the module.
  defp placeholder(name, target) do
    struct(Entry,
      name: name,
      path: [name],
      shape: target.shape,
      dtype: target.dtype,
      kind: :tensor
    )
  end

  # Returns an error if the file exists and must not be overwritten.
  @spec check_overwrite(Path.t(), Options.t()) :: :ok | {:error, Error.t()}
  def check_overwrite(_path, %{overwrite: true}), do: :ok

  def check_overwrite(path, _options) do
    if match?({:ok, _}, :file.read_file_info(path, [:raw])),
      do: {:error, exists_error(path)},
      else: :ok
  end

  @spec exists_error(Path.t()) :: Error.t()
  def exists_error(path) do
    Error.new(:bad_argument, "the file already exists; use overwrite: true to replace it", path)
  end

  # ---- Names of the module ----

  @spec keys(file(), Options.t()) :: {:ok, [String.t()]} | {:error, Error.t()}
  def keys(file, options) do
    with {:ok, pairs} <- pairs(file, options) do
      entry = entry_for_filters(file, options)

      selected =
        for {from, name} <- pairs, Options.selected?(options, name, entry.(from)), do: name

      names = fn -> module_names(pairs) end
      with :ok <- Options.check_selected(options, selected, names), do: {:ok, selected}
    end
  end

  @spec entry(file(), Options.t(), String.t()) :: {:ok, Entry.t()} | {:error, Error.t()}
  def entry(file, options, name) do
    with {:ok, file_name} <- find(file, options, name), do: file.entry.(file_name)
  end

  @spec tensor(file(), Options.t(), String.t()) :: {:ok, Tensor.t()} | {:error, Error.t()}
  def tensor(file, options, name) do
    with {:ok, file_name} <- find(file, options, name), do: file.tensor.(file_name)
  end

  # Returns the name in the file of a tensor of the module.
  defp find(file, options, name) do
    with {:ok, pairs} <- pairs(file, options) do
      case List.keyfind(pairs, name, 1) do
        {from, _} ->
          {:ok, from}

        nil ->
          hint = Suggest.hint(module_names(pairs), name, 0.8, 1) || "; see ExTorch.Store.keys/1"
          {:error, Error.new(:not_found, "no tensor is named #{Error.quoted(name)}" <> hint)}
      end
    end
  end

  defp pairs(file, options) do
    with {:ok, pairs, _outside, _key} <-
           Names.plan(file.keys, all_entries(file), no_auto(options), %{}),
         do: {:ok, pairs}
  end

  # The top-level key can only be determined with a module.
  defp no_auto(%{top_level_key: :auto} = options), do: %{options | top_level_key: nil}
  defp no_auto(options), do: options
end
