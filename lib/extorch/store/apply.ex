defmodule ExTorch.Store.Apply do
  @moduledoc false
  # Applies files to modules, for all stores.

  alias ExTorch.{Error, Source, Telemetry, Tensor}
  alias ExTorch.Store.{ApplyResult, Classify, File, Fill, Jobs, Leaves, Names, Options, Rules}

  @spec apply_to(File.t() | map(), Path.t() | Source.t(), Options.t(), term()) ::
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
         {:ok, rules} <- Rules.prepare(options.adapters, targets),
         expected = Rules.expected(rules, targets),
         {:ok, pairs, outside, key} <-
           Names.plan(file.keys, File.all_entries(file), options, expected),
         {:ok, choice, from} <- Classify.choose(rules, targets, pairs),
         work = Jobs.plan(choice.chosen, file, options, targets, from),
         {_, _, others} = unclaimed = Classify.unclaimed({leaves, targets, pairs}, choice),
         {result, planned} = Classify.classify(file, options, unclaimed, outside),
         {result, planned, jobs} =
           Classify.add_rules(result, planned, file, options, {choice, work, targets}),
         :ok <- Classify.check_selected(result, planned, outside, options, {leaves, others}) do
      result = %{result | module: module, top_level_key: key}

      if options.allow_partial or ApplyResult.complete?(result),
        do: Fill.fill(file, options, result, leaves, {planned, jobs}),
        else: {:ok, not_read(result, planned, jobs), 0}
    end
  end

  # Says what would have been applied.
  defp not_read(result, planned, jobs) do
    guessed = for %{ambiguous: true, name: name} <- planned, into: %{}, do: {name, true}

    guessed = for {_, job} <- jobs, name <- job.ambiguous, into: guessed, do: {name, true}

    applied = Fill.made(planned, jobs)
    %{result | applied: applied, ambiguous: Enum.filter(applied, &is_map_key(guessed, &1))}
  end

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
end
