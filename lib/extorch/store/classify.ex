defmodule ExTorch.Store.Classify do
  @moduledoc false
  # Assigns each name of a file and of a module to one list of the result of ExTorch.Store.apply_to/2, before anything is
  # read.

  alias ExTorch.Error

  alias ExTorch.Store.{
    ApplyResult,
    File,
    Fit,
    Jobs,
    Leaves,
    Names,
    Options,
    Planned,
    Rules
  }

  @type targets :: %{String.t() => Leaves.leaf()}

  # The tensors of the module, also by name, and the names of the file.
  @type unclaimed :: {[Leaves.leaf()], targets(), [Names.pair()]}

  # Chooses rules. Also returns the names in the file by their new names. Without rules there is nothing to choose from.
  @spec choose([Rules.bound()], targets(), [Names.pair()]) ::
          {:ok, Rules.choice(), %{String.t() => String.t()}} | {:error, Error.t()}
  def choose([], _targets, _pairs),
    do: {:ok, %{chosen: [], claimed: %{}, missing: [], kept: [], sources: %{}}, %{}}

  def choose(rules, targets, pairs) do
    from = Map.new(pairs, fn {from, name} -> {name, from} end)
    with {:ok, choice} <- Rules.choose(rules, targets, from), do: {:ok, choice, from}
  end

  # Filters that leave nothing of the module or of the file are an error.
  @spec check_selected(
          ApplyResult.t(),
          [Planned.t()],
          [String.t()],
          Options.t(),
          {[Leaves.leaf()], [Names.pair()]}
        ) :: :ok | {:error, Error.t()}
  def check_selected(_result, [_ | _], _outside, _options, _names), do: :ok

  def check_selected(result, [], outside, options, {leaves, pairs}) do
    unused = Enum.drop(result.unused, -length(outside))
    selected = result.errors ++ result.missing ++ unused

    Options.check_selected(options, selected, fn ->
      Enum.uniq(names(leaves) ++ module_names(pairs))
    end)
  end

  defp names(tuples), do: Enum.map(tuples, &elem(&1, 0))
  defp module_names(pairs), do: Enum.map(pairs, &elem(&1, 1))

  # Assigns each name of the file and of the module to one list of the result. Also returns the tensors to read, in file
  # order.
  @spec classify(File.t() | map(), Options.t(), unclaimed(), [String.t()]) ::
          {ApplyResult.t(), [Planned.t()]}
  def classify(file, options, {leaves, targets, pairs}, outside) do
    entry = File.entry_for_filters(file, options)
    {known, unknown} = split_known(pairs, targets)
    {selected, skipped} = split_selected(known, options, entry)
    {unused, unknown_skipped} = split_selected(unknown, options, entry)
    {planned, errors} = check_all(selected, file, options, targets)

    {missing_skipped, missing} =
      leaves
      |> not_in_file(planned, known)
      |> Enum.split_with(fn {name, _leaf, target} ->
        # There is no entry in the file: filters of the entry receive one that describes the tensor of the module.
        not Options.selected?(options, name, fn -> Leaves.entry(name, target) end)
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
  @spec unclaimed(unclaimed(), Rules.choice()) :: unclaimed()
  def unclaimed(names, %{claimed: claimed}) when claimed == %{}, do: names

  def unclaimed({leaves, targets, pairs}, %{claimed: claimed, chosen: chosen}) do
    used = for %{rule: rule} <- chosen, name <- rule.file, into: %{}, do: {name, true}

    {Enum.reject(leaves, fn {name, _, _} -> is_map_key(claimed, name) end),
     Map.drop(targets, Map.keys(claimed)),
     Enum.reject(pairs, fn {_, name} -> is_map_key(used, name) end)}
  end

  # Adds what the rules are about to the result and to the tensors to read, which stay in file order.
  @spec add_rules(ApplyResult.t(), [Planned.t()], File.t() | map(), Options.t(), tuple()) ::
          {ApplyResult.t(), [Planned.t()], Jobs.jobs()}
  def add_rules(result, planned, file, options, {choice, {jobs, errors, left_out}, targets}) do
    {missing, skipped} =
      Enum.split_with(choice.missing, fn name ->
        Options.selected?(options, name, fn -> Leaves.entry(name, elem(targets[name], 2)) end)
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
end
