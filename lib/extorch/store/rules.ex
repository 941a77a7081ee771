defmodule ExTorch.Store.Rules do
  @moduledoc false
  # Chooses among the rules of the adapters and runs them.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Tensor}
  alias ExTorch.Store.{Adapter, Fit, Leaves, Rule}

  # A rule with the adapters before and after the one that it is from.
  @type bound :: %{
          rule: Rule.t(),
          before: [Adapter.checked()],
          later: [Adapter.checked()]
        }

  # claimed: the tensors of the module that rules are about
  # sources: the names in the file that each of these is made of
  @type choice :: %{
          chosen: [bound()],
          claimed: %{String.t() => true},
          missing: [String.t()],
          kept: [String.t()],
          sources: %{String.t() => [String.t()]}
        }

  # Returns the rules about tensors of the module, in the order of the adapters. Raises if an adapter returns anything
  # else.
  @spec list([Adapter.checked()], %{String.t() => term()}) :: [bound()]
  def list(adapters, targets) do
    for {{module, options}, at} <- Enum.with_index(adapters),
        function_exported?(module, :rules, 2),
        {before, [_ | later]} = Enum.split(adapters, at),
        rule <- check_list!(module.rules(targets, options), module),
        rule = check!(rule, module),
        Enum.any?(rule.module, &is_map_key(targets, &1)),
        do: %{rule: rule, before: before, later: later}
  end

  # The same as a result. `targets` are the leaves of the module by name.
  @spec prepare([Adapter.checked()], %{String.t() => Leaves.leaf()}) ::
          {:ok, [bound()]} | {:error, Error.t()}
  def prepare(adapters, targets) do
    {:ok, list(adapters, Map.new(targets, fn {name, leaf} -> {name, elem(leaf, 2)} end))}
  rescue
    error in Error -> {:error, error}
  end

  defp check_list!(rules, _module) when is_list(rules), do: rules
  defp check_list!(other, module), do: invalid!(module, other)

  defp check!(%Rule{file: file, module: [_ | _] = names, load: load, save: save} = rule, module)
       when is_list(file) and is_function(load, 1) and is_function(save, 1) do
    if Enum.all?(file ++ names, &is_binary/1) and distinct?(file) and distinct?(names),
      do: rule,
      else: invalid!(module, rule)
  end

  defp check!(other, module), do: invalid!(module, other)

  defp distinct?(names), do: Enum.uniq(names) == names

  @spec invalid!(module(), term()) :: no_return()
  defp invalid!(module, other) do
    raise Error.new(
            :bad_argument,
            "expected #{inspect(module)}.rules/2 to return a list of %ExTorch.Store.Rule{} with distinct names, " <>
              "got #{inspect(other, limit: 5)}"
          )
  end

  # Returns the names that the file may have: those of the rules, and those of the tensors without rules.
  @spec expected([bound()], %{String.t() => term()}) :: %{String.t() => term()}
  def expected([], targets), do: targets

  def expected(rules, targets) do
    targets
    |> Map.drop(Enum.flat_map(rules, & &1.rule.module))
    |> Map.merge(Map.from_keys(Enum.flat_map(rules, & &1.rule.file), true))
  end

  # ---- Choosing ----

  # Chooses for each tensor of the module the first rule whose tensors are all in the file.
  @spec choose([bound()], %{String.t() => term()}, %{String.t() => term()}) ::
          {:ok, choice()} | {:error, Error.t()}
  def choose(rules, targets, file_names) do
    chosen = take(rules, &Enum.all?(&1.file, fn name -> is_map_key(file_names, name) end))
    done = chosen |> Enum.flat_map(& &1.rule.module) |> Map.from_keys(true)
    claimed = for %{rule: rule} <- rules, name <- rule.module, is_map_key(targets, name), do: name
    {made, kept} = Enum.split_with(chosen, &(&1.rule.file != []))

    with :ok <- check_used_once(made) do
      {:ok,
       %{
         chosen: made,
         claimed: Map.from_keys(claimed, true),
         missing: claimed |> Enum.uniq() |> Enum.reject(&is_map_key(done, &1)),
         kept:
           for(%{rule: rule} <- kept, name <- rule.module, is_map_key(targets, name), do: name),
         sources: Map.merge(sources(rules), sources(made))
       }}
    end
  end

  # Takes rules in order, if they qualify and none of their tensors of the module is taken.
  defp take(rules, qualifies?) do
    {chosen, _taken} =
      Enum.reduce(rules, {[], %{}}, fn %{rule: rule} = bound, {chosen, taken} ->
        if qualifies?.(rule) and not Enum.any?(rule.module, &is_map_key(taken, &1)),
          do: {[bound | chosen], Map.merge(taken, Map.from_keys(rule.module, true))},
          else: {chosen, taken}
      end)

    Enum.reverse(chosen)
  end

  # The first rule of each name.
  defp sources(rules) do
    for %{rule: %{file: [_ | _]} = rule} <- Enum.reverse(rules),
        name <- rule.module,
        into: %{},
        do: {name, rule.file}
  end

  defp check_used_once(chosen) do
    used = for %{rule: rule} <- chosen, name <- rule.file, do: {name, hd(rule.module)}
    by_name = Map.new(used)

    case Enum.find(used, fn {name, target} -> by_name[name] != target end) do
      nil ->
        :ok

      {name, target} ->
        {:error,
         Error.new(
           :ambiguous,
           "#{Error.quoted(name)} is used by the rules of #{Error.quoted(target)} and of " <>
             "#{Error.quoted(by_name[name])}; write one rule for both, or change the adapters"
         )}
    end
  end

  # ---- Running ----

  # Makes the tensors of the module. `inputs` are {entry, tensor}, `targets` contains nil for tensors that the module does
  # not have. Returns {tensor, ambiguous?} for each target.
  @spec load(bound(), [{term(), Tensor.t()}], [map() | nil]) ::
          {:ok, [{Tensor.t(), boolean()}]} | {:error, Error.t()}
  def load(%{rule: rule} = bound, [{first, _} | _] = inputs, targets) do
    {tensors, flags} =
      inputs
      |> Enum.map(fn {entry, tensor} ->
        Adapter.adapt(bound.before, entry, tensor, common_target(targets))
      end)
      |> Enum.unzip()

    with {:ok, made, guessed} <- run(rule.load, tensors, rule.module) do
      {:ok,
       Enum.zip_with(made, targets, fn tensor, target ->
         {tensor, flag} = Adapter.adapt(bound.later, first, tensor, target)
         {tensor, flag or guessed or Enum.any?(flags)}
       end)}
    end
  end

  # Adapters before a rule know the dtype that the module expects, not the shape.
  defp common_target(targets) do
    case targets |> Enum.reject(&is_nil/1) |> Enum.uniq_by(& &1.dtype) do
      [%{dtype: dtype}] -> %{shape: nil, dtype: dtype}
      _ -> nil
    end
  end

  # Also returns whether the rule guesses.
  defp run(convert, tensors, names) do
    case convert.(tensors) do
      {:error, message} when is_binary(message) -> {:error, Error.new(:bad_argument, message)}
      {:ambiguous, made} -> check_made(made, names, true)
      made -> check_made(made, names, false)
    end
  end

  defp check_made(made, names, guessed) do
    if is_list(made) and length(made) == length(names) and
         Enum.all?(made, &is_struct(&1, Tensor)),
       do: {:ok, made, guessed},
       else: bad_result(names, made)
  end

  defp bad_result(names, other) do
    {:error,
     Error.new(
       :bad_argument,
       "expected the rule to return #{length(names)} tensors, for #{Enum.join(names, ", ")}, " <>
         "got #{inspect(other, limit: 3)}"
     )}
  end

  # Describes the tensors of the file that do not fit: those whose shapes differ from what `save` makes of the targets.
  @spec describe(bound(), [map()], [map() | nil]) :: String.t()
  def describe(%{rule: rule}, entries, targets) do
    expected = file_shapes(rule, targets)

    Enum.zip([rule.file, entries, expected])
    |> Enum.map_join(", ", fn
      {name, %{shape: shape}, expected} when expected in [nil, shape] ->
        "#{name} has shape #{inspect(shape)}"

      {name, %{shape: shape}, expected} ->
        "#{name} has shape #{inspect(shape)}, the module needs #{inspect(expected)}"
    end)
  end

  defp file_shapes(rule, targets) do
    none = Enum.map(rule.file, fn _ -> nil end)

    if Enum.any?(targets, &is_nil/1) do
      none
    else
      case run(rule.save, Enum.map(targets, &Fit.meta/1), rule.file) do
        {:ok, tensors, _} -> Enum.map(tensors, & &1.shape)
        {:error, _} -> none
      end
    end
  rescue
    _ -> Enum.map(rule.file, fn _ -> nil end)
  end

  # ---- Collecting ----

  # Returns {name in the file, first name in the module, shape, function that returns the tensor} for what the rules make,
  # and the tensors of the module that they are about. `kept` contains {name, leaf, entry} of the tensors to save, the
  # keys of `targets` are all names of the module.
  @spec collect([bound()], [{String.t(), term(), map()}], %{String.t() => term()}) ::
          {:ok, [{String.t(), String.t(), tuple(), (() -> Tensor.t())}], %{String.t() => true}}
          | {:error, Error.t()}
  def collect(rules, kept, targets) do
    chosen = take(rules, &Enum.all?(&1.module, fn name -> is_map_key(targets, name) end))
    kept = Map.new(kept, fn {name, leaf, entry} -> {name, {leaf, entry}} end)
    claimed = chosen |> Enum.flat_map(& &1.rule.module) |> Map.from_keys(true)

    with :ok <- check_complete(rules, claimed, targets),
         {:ok, made} <- save_all(Enum.filter(chosen, &(&1.rule.file != [])), kept, []),
         do: {:ok, made, claimed}
  end

  # A rule some of whose tensors the module does not have can be loaded, but not saved.
  defp check_complete(rules, claimed, targets) do
    rules
    |> Enum.find(fn %{rule: rule} ->
      Enum.any?(rule.module, &(is_map_key(targets, &1) and not is_map_key(claimed, &1)))
    end)
    |> case do
      nil ->
        :ok

      %{rule: rule} ->
        lacking = Enum.reject(rule.module, &is_map_key(targets, &1))

        {:error,
         Error.new(
           :bad_argument,
           "#{Enum.join(rule.file, " and ")} cannot be saved: the module does not have #{Enum.join(lacking, ", ")}"
         )}
    end
  end

  defp save_all([], _kept, made), do: {:ok, made |> Enum.reverse() |> Enum.concat()}

  defp save_all([%{rule: rule} = bound | rules], kept, made) do
    case Enum.split_with(rule.module, &is_map_key(kept, &1)) do
      {[], _} ->
        save_all(rules, kept, made)

      {_, []} ->
        with {:ok, new} <- save(bound, kept), do: save_all(rules, kept, [new | made])

      {_, left_out} ->
        {:error,
         Error.new(
           :bad_argument,
           "#{Enum.join(rule.file, " and ")} cannot be saved without #{Enum.join(left_out, ", ")}; " <>
             "let :only and :except select all or none of #{Enum.join(rule.module, ", ")}"
         )}
    end
  end

  defp save(%{rule: rule} = bound, kept) do
    tensors =
      for name <- rule.module, {leaf, entry} = Map.fetch!(kept, name) do
        {tensor, _} = Adapter.adapt(bound.before, entry, ExTorch.Module.to_tensor(leaf), nil)
        tensor
      end

    with {:ok, made, _} <- run(rule.save, tensors, rule.file),
         do: {:ok, Enum.zip_with(rule.file, made, &to_save(&1, &2, bound))}
  end

  defp to_save(name, tensor, %{rule: rule, later: later}) do
    entry =
      struct(Entry,
        name: name,
        path: [name],
        shape: tensor.shape,
        dtype: tensor.dtype,
        kind: :tensor
      )

    {tensor, _} = Adapter.adapt(later, entry, tensor, nil)
    {name, hd(rule.module), tensor.shape, fn -> tensor end}
  end
end
