defmodule ExTorch.Diff do
  @moduledoc """
  The differences between two checkpoints, from `ExTorch.diff/3`.

    * `equal` - the names of the tensors that are equal, or close if there are tolerances
    * `changed` - an `ExTorch.Diff.Change` for each tensor that differs
    * `only_a`, `only_b` - the names of the tensors that only one of the checkpoints has
    * `values` - the differences in what is not a tensor: maps with `:name`, and `:a` and `:b` if that checkpoint has
      the value

  Names are in the order of the first checkpoint. `inspect/1` shows the largest differences last, and then a summary.
  """

  alias ExTorch.Checkpoint.{BatchLoad, Reader, StateDict, Values}
  alias ExTorch.{Checkpoint, DType, Error, Options, Progress, Tensor}
  alias ExTorch.Diff.Change
  alias ExTorch.Tensor.Compare

  @type value :: %{:name => String.t(), optional(:a) => term(), optional(:b) => term()}
  @type t :: %__MODULE__{
          equal: [String.t()],
          changed: [Change.t()],
          only_a: [String.t()],
          only_b: [String.t()],
          values: [value()]
        }

  defstruct equal: [], changed: [], only_a: [], only_b: [], values: []

  @reading [strict: false, verify: false, limits: []]
  @options [
    rtol: 0.0,
    atol: 0.0,
    equal_nan: true,
    check_dtype: true,
    values: true,
    on_progress: nil
  ]

  @doc """
  Returns true if there is no difference.

      iex> ExTorch.Diff.equal?(%ExTorch.Diff{equal: ["weight"]})
      true
      iex> ExTorch.Diff.equal?(%ExTorch.Diff{only_a: ["weight"]})
      false
  """
  @spec equal?(t()) :: boolean()
  def equal?(%__MODULE__{} = diff),
    do: {diff.changed, diff.only_a, diff.only_b, diff.values} == {[], [], [], []}

  def equal?(other), do: ExTorch.Options.expected!("an %ExTorch.Diff{}", other)

  @doc false
  defdelegate lines(diff, max), to: ExTorch.Diff.Lines

  # ---- Comparing ----

  @doc false
  @spec diff(Checkpoint.source(), Checkpoint.source(), keyword()) ::
          {:ok, t()} | {:error, Error.t()}
  def diff(a, b, opts) do
    {selection, opts} = StateDict.split!(opts, @options ++ @reading)
    {reading, opts} = Keyword.split(opts, Keyword.keys(@reading))
    options = Map.new(opts)
    Compare.check!(options)
    Options.booleans!(options, [:check_dtype, :values])
    Progress.check!(options.on_progress)
    reading = Keyword.put(reading, :mmap, true)
    # The names of the second checkpoint are those that the first one's are renamed to.
    others = %{selection | rename: []}

    open(a, reading, selection, options.values, fn a_items, a_values ->
      open(b, reading, others, options.values, fn b_items, b_values ->
        with {:ok, diff} <- compare(a_items, b_items, options),
             do: {:ok, %{diff | values: compare_values(a_values, b_values)}}
      end)
    end)
  end

  defp open(source, reading, selection, values?, fun) do
    StateDict.with_parts(source, reading, fn parts ->
      with {:ok, selection} <- StateDict.resolve(parts, selection),
           {:ok, items} <- StateDict.items(parts, selection, source),
           {:ok, values} <- values(parts, selection, values?),
           do: fun.(items, values)
    end)
  end

  # Shards have no other values.
  defp values([{ckpt, _entries}], selection, true) do
    with {:ok, object} <- StateDict.object(ckpt),
         do: {:ok, Values.list(object, selection.top_level_key)}
  end

  defp values(_parts, _selection, _values?), do: {:ok, []}

  defp compare(a, b, options) do
    by_name = Map.new(b, &{elem(&1, 0), &1})
    {common, only_a} = Enum.split_with(a, fn {name, _, _} -> is_map_key(by_name, name) end)
    names = MapSet.new(a, &elem(&1, 0))
    only_b = for {name, _, _} <- b, name not in names, do: name
    total = for {_, _, entry} <- common, reduce: 0, do: (sum -> sum + entry.nbytes)
    progress = Progress.new(options.on_progress, total)

    common
    |> Enum.reduce_while({[], [], progress, 0}, fn item, {equal, changed, progress, done} ->
      {name, _, entry} = item
      done = done + entry.nbytes

      case change(item, Map.fetch!(by_name, name), options) do
        {:ok, nil} -> {:cont, {[name | equal], changed, Progress.report(progress, done), done}}
        {:ok, new} -> {:cont, {equal, [new | changed], Progress.report(progress, done), done}}
        error -> {:halt, error}
      end
    end)
    |> case do
      {:error, error} ->
        {:error, error}

      {equal, changed, progress, _done} ->
        Progress.finish(progress)

        {:ok,
         %__MODULE__{
           equal: Enum.reverse(equal),
           changed: Enum.reverse(changed),
           only_a: Enum.map(only_a, &elem(&1, 0)),
           only_b: only_b
         }}
    end
  end

  defp compare_values(a, b) do
    {map_a, map_b} = {Map.new(a), Map.new(b)}

    for name <- Enum.uniq(Enum.map(a ++ b, &elem(&1, 0))),
        Map.fetch(map_a, name) != Map.fetch(map_b, name) do
      Map.merge(%{name: name}, Map.merge(field(map_a, name, :a), field(map_b, name, :b)))
    end
  end

  defp field(map, name, key) do
    case map do
      %{^name => value} -> %{key => value}
      _ -> %{}
    end
  end

  # ---- One tensor ----

  # Returns {:ok, change}, which is nil if the tensors are equal.
  defp change({name, ckpt_a, a}, {_, ckpt_b, b}, options) do
    change = %Change{
      name: name,
      what: what(a, b, options),
      shape: {a.shape, b.shape},
      dtype: {a.dtype, b.dtype}
    }

    cond do
      a.shape != b.shape -> {:ok, change}
      a.kind == :meta or b.kind == :meta -> {:ok, without_values(change, a, b)}
      true -> compare_both(change, {ckpt_a, a}, {ckpt_b, b}, options)
    end
  end

  defp what(a, b, options) do
    if(a.shape != b.shape, do: [:shape], else: []) ++
      if(options.check_dtype and a.dtype != b.dtype, do: [:dtype], else: [])
  end

  # A meta tensor has no values: only another one is equal to it.
  defp without_values(change, %{kind: kind}, %{kind: kind}),
    do: if(change.what == [], do: nil, else: change)

  defp without_values(change, _a, _b), do: %{change | what: change.what ++ [:values]}

  defp compare_both(change, {ckpt_a, a}, {ckpt_b, b}, options) do
    with {:ok, tensor_a} <- read(ckpt_a, a),
         {:ok, tensor_b} <- read(ckpt_b, b) do
      result = compare_tensors(change, tensor_a, tensor_b, options)
      for %Tensor{} = tensor <- [tensor_a, tensor_b], do: Tensor.release(tensor)
      {:ok, result}
    end
  rescue
    error in Error -> {:error, %{error | message: "#{change.name}: #{error.message}"}}
  end

  # Tensors of several storages, and dtypes that LibTorch does not support, are only read by a batch load.
  defp read(ckpt, %{kind: kind, dtype: dtype} = entry) do
    if kind in [:tensor, :parameter] and DType.supported?(dtype) do
      Reader.entry(ckpt, entry)
    else
      with {:ok, [tensor]} <- BatchLoad.tensors(ckpt, [entry]), do: {:ok, tensor}
    end
  end

  defp compare_tensors(change, %Tensor{} = a, %Tensor{} = b, options) do
    stats = Compare.stats(a, b, options)
    what = change.what ++ if(stats.beyond > 0, do: [:values], else: [])
    if what != [], do: put_stats(%{change | what: what}, stats)
  end

  # The bytes of a dtype that LibTorch does not support.
  defp compare_tensors(change, raw, raw, _options), do: if(change.what != [], do: change)
  defp compare_tensors(change, _a, _b, _options), do: %{change | what: change.what ++ [:values]}

  defp put_stats(change, stats) do
    %{
      change
      | max: stats.max,
        mean: stats.mean,
        differing: stats.differing,
        nan: stats.nan,
        numel: stats.numel
    }
  end
end

defimpl Inspect, for: ExTorch.Diff do
  def inspect(diff, _opts) do
    case ExTorch.Diff.lines(diff, 10) do
      [summary] -> "#ExTorch.Diff<#{summary}>"
      lines -> "#ExTorch.Diff<\n#{Enum.map_join(lines, "\n", &"  #{&1}")}\n>"
    end
  end
end
