defmodule ExTorch.Store.Jobs do
  @moduledoc false
  # Rules with the tensors of a file and of a module that they are applied to.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Tensor}
  alias ExTorch.Store.{ApplyResult, File, Fit, Leaves, Options, Rules}

  # inputs: the names and entries in the file
  # outputs: for each tensor that the rule makes the leaf of the module, or nil if it is not wanted
  # ambiguous: the names for which an adapter guesses
  @type job :: %{
          bound: Rules.bound(),
          inputs: [{String.t(), Entry.t()}],
          outputs: [Leaves.leaf() | nil],
          ambiguous: [String.t()]
        }

  @type jobs :: %{non_neg_integer() => job()}

  # Returns the jobs of the rules by number, what does not fit, and what the filters leave out. `from` maps the names of
  # the rules to those of the file.
  @spec plan(
          [Rules.bound()],
          File.t() | map(),
          Options.t(),
          %{String.t() => Leaves.leaf()},
          %{String.t() => String.t()}
        ) ::
          {jobs(), [ApplyResult.failure()], skipped :: [String.t()]}
  def plan(chosen, file, options, targets, from) do
    names = for %{rule: rule} <- chosen, name <- rule.file, do: Map.fetch!(from, name)
    entries = names |> Enum.zip(File.entries(file, names)) |> Map.new()

    {jobs, failures, skipped} =
      chosen
      |> Enum.with_index()
      |> Enum.reduce({%{}, [], []}, fn {bound, id}, {jobs, failures, skipped} ->
        inputs =
          for name <- bound.rule.file, key = Map.fetch!(from, name), do: {key, entries[key]}

        {wanted, left_out} = wanted(bound.rule, options, targets, inputs)
        {job, failed} = check(bound, inputs, wanted, options)

        {if(job, do: Map.put(jobs, id, job), else: jobs), [failed | failures],
         [left_out | skipped]}
      end)

    {jobs, failures |> Enum.reverse() |> Enum.concat(),
     skipped |> Enum.reverse() |> Enum.concat()}
  end

  defp wanted(rule, options, targets, [{from, entry} | _]) do
    wanted =
      for name <- rule.module do
        with %{^name => leaf} <- targets,
             true <- Options.selected?(options, name, fn -> entry_for_filter(entry, from) end) do
          leaf
        else
          _ -> nil
        end
      end

    left_out =
      for {name, nil} <- Enum.zip(rule.module, wanted), is_map_key(targets, name), do: name

    {wanted, left_out}
  end

  defp entry_for_filter({:ok, entry}, _from), do: entry
  defp entry_for_filter(_error, from), do: %Entry{name: from, path: [from], kind: :tensor}

  # Returns the job for the tensors that fit, or nil, and the failures of the others.
  defp check(bound, inputs, outputs, options) do
    error = Enum.find_value(inputs, fn {_, entry} -> with {:ok, _} <- entry, do: nil end)

    cond do
      not Enum.any?(outputs) ->
        {nil, []}

      error ->
        {nil, failures(outputs, error)}

      true ->
        inputs = for {from, {:ok, entry}} <- inputs, do: {from, entry}
        check_shapes(%{bound: bound, inputs: inputs, outputs: outputs, ambiguous: []}, options)
    end
  end

  defp check_shapes(job, options) do
    case load_meta(job) do
      :unknown -> {job, []}
      {:ok, made} -> check_made(job, made, options)
      error -> {nil, failures(job.outputs, error)}
    end
  end

  # If the rule or an adapter needs the values, the tensors are checked after reading.
  defp load_meta(job) do
    metas = for {_, entry} <- job.inputs, do: {entry, Fit.meta(entry)}
    Rules.load(job.bound, metas, targets(job.outputs))
  rescue
    _ -> :unknown
  end

  defp check_made(job, made, options) do
    {outputs, {failures, ambiguous}} =
      job.outputs
      |> Enum.zip(made)
      |> Enum.map_reduce({[], []}, fn
        {nil, _}, acc ->
          {nil, acc}

        {{name, _, target} = leaf, {tensor, guessed}}, {failures, ambiguous} ->
          case Fit.compare(tensor.shape, tensor.dtype, target, options) do
            :ok -> {leaf, {failures, if(guessed, do: [name | ambiguous], else: ambiguous)}}
            error -> {nil, {[failure(job, name, error, target) | failures], ambiguous}}
          end
      end)

    job = %{job | outputs: outputs, ambiguous: ambiguous}
    {if(Enum.any?(outputs), do: job), Enum.reverse(failures)}
  end

  defp targets(outputs), do: Enum.map(outputs, &(&1 && elem(&1, 2)))

  defp failures(outputs, error),
    do: for({name, _, target} <- outputs, do: Fit.failure(name, error, target))

  # Names the tensors of the file in the message about a shape.
  defp failure(_job, name, {:mismatch, _, %{shape: shape}} = error, %{shape: shape} = target),
    do: Fit.failure(name, error, target)

  defp failure(job, name, {:mismatch, message, found}, target) do
    entries = for {_, entry} <- job.inputs, do: entry
    message = message <> ": " <> Rules.describe(job.bound, entries, targets(job.outputs))
    Fit.failure(name, {:mismatch, message, found}, target)
  end

  # Makes the leaves of the module of the tensors that were read. Returns {name, value, guessed} and the failures.
  @spec run(job(), %{String.t() => {:ok, Tensor.t()} | {:error, Error.t()}}, Options.t()) ::
          {[{String.t(), term(), boolean()}], [ApplyResult.failure()]}
  def run(job, read, options) do
    tensors = for {from, entry} <- job.inputs, do: {entry, Map.fetch!(read, from)}

    case Enum.find_value(tensors, fn {_, tensor} -> with {:ok, _} <- tensor, do: nil end) do
      nil ->
        run_rule(job, for({entry, {:ok, tensor}} <- tensors, do: {entry, tensor}), options)

      error ->
        {[], failures(job.outputs, error)}
    end
  end

  defp run_rule(job, inputs, options) do
    case Rules.load(job.bound, inputs, targets(job.outputs)) do
      {:ok, made} -> to_leaves(job, made, options)
      error -> {[], failures(job.outputs, error)}
    end
  rescue
    error in Error -> {[], failures(job.outputs, {:error, error})}
  end

  defp to_leaves(job, made, options) do
    for {{name, leaf, target}, {tensor, guessed}} <- Enum.zip(job.outputs, made),
        reduce: {[], []} do
      {values, failures} ->
        case Fit.to_leaf(tensor, leaf, target, options) do
          {:ok, value} -> {[{name, value, guessed} | values], failures}
          error -> {values, [failure(job, name, error, target) | failures]}
        end
    end
  end
end
