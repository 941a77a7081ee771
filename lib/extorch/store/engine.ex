defmodule ExTorch.Store.Engine do
  @moduledoc false
  # Applying and collecting, whatever the file is. A file is a map of `keys` (in file order), and functions `entry` and
  # `tensor` of a file name.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Module, Progress, Telemetry, Tensor}
  alias ExTorch.Store.{Adapter, ApplyResult, Leaves, Names, Options}

  # ---- Applying ----

  def apply_to(file, path, options, module) do
    start = System.monotonic_time()

    with {:ok, leaves} <- Leaves.list(module),
         names = Enum.map(leaves, &elem(&1, 0)),
         {:ok, pairs, outside} <- Names.plan(file.keys, shapes(file), options, names) do
      {result, wanted} = sort(file, options, leaves, pairs, outside)
      result = %{result | module: module}

      {result, bytes} =
        if options.allow_partial or ApplyResult.complete?(result),
          do: read(file, options, result, wanted),
          else: {%{result | applied: for({_, name, _, _, _} <- wanted, do: name)}, 0}

      Telemetry.execute(
        [:extorch, :store, :apply],
        %{
          duration: System.monotonic_time() - start,
          bytes: bytes,
          applied: length(result.applied),
          missing: length(result.missing),
          errors: length(result.errors)
        },
        %{path: path}
      )

      answer(result, options, module, path)
    end
  end

  defp answer(result, options, module, path) do
    if options.allow_partial or ApplyResult.complete?(result) do
      {:ok, result}
    else
      reason = if result.errors == [], do: :not_found, else: hd(result.errors).reason
      # what was read before something failed is not kept
      result = %{result | module: module}

      error =
        Error.new(
          reason,
          "the module would stay incomplete (allow_partial: true accepts that)\n" <>
            ApplyResult.summary(result)
        )

      {:error, Error.located(%{error | result: result}, path)}
    end
  end

  defp shapes(file) do
    fn ->
      Map.new(file.keys, fn key ->
        case file.entry.(key) do
          {:ok, entry} -> {key, entry.shape}
          _ -> {key, nil}
        end
      end)
    end
  end

  # Every name of both sides into one list; and what is to be read, in file order.
  defp sort(file, options, leaves, pairs, outside) do
    targets = Map.new(leaves, fn {name, leaf, target} -> {name, {leaf, target}} end)

    entry = fn from ->
      fn ->
        case file.entry.(from) do
          {:ok, entry} -> entry
          {:error, _} -> described(from, %{shape: nil, dtype: nil})
        end
      end
    end

    {known, strange} = Enum.split_with(pairs, fn {_, name} -> is_map_key(targets, name) end)

    {wanted, skipped} =
      Enum.split_with(known, fn {from, name} -> Options.selected?(options, name, entry.(from)) end)

    {unused, strange_skipped} =
      if options.only == nil and options.except == nil,
        do: {strange, []},
        else:
          Enum.split_with(strange, fn {from, name} ->
            Options.selected?(options, name, entry.(from))
          end)

    found = MapSet.new(known, &elem(&1, 1))

    {left_out, missing} =
      leaves
      |> Enum.map(&elem(&1, 0))
      |> Enum.reject(&MapSet.member?(found, &1))
      |> Enum.split_with(fn name ->
        # a filter that looks at the entry sees what the module has
        not Options.selected?(options, name, fn -> described(name, elem(targets[name], 1)) end)
      end)

    unused = Enum.map(unused, &elem(&1, 0)) ++ outside
    {good, errors} = check_all(wanted, file, options, targets)

    result = %ApplyResult{
      missing: missing,
      skipped:
        Enum.map(skipped, &elem(&1, 1)) ++ Enum.map(strange_skipped, &elem(&1, 0)) ++ left_out,
      unused: unused,
      errors: errors,
      suggestions: Names.suggestions(missing, unused)
    }

    {result, good}
  end

  # ---- Shapes and dtypes, before anything is read ----

  defp check_all(wanted, file, options, targets) do
    {good, errors} =
      Enum.reduce(wanted, {[], []}, fn {from, name}, {good, errors} ->
        {leaf, target} = Map.fetch!(targets, name)

        with {:ok, entry} <- file.entry.(from),
             :ok <- foresee(entry, target, options) do
          {[{from, name, entry, leaf, target} | good], errors}
        else
          {:error, error} -> {good, [failure(name, error, target) | errors]}
        end
      end)

    {Enum.reverse(good), Enum.reverse(errors)}
  end

  # What the adapters would make of it, tried on a tensor without values.
  defp foresee(entry, target, %{adapters: []} = options),
    do: compare(entry.shape, entry.dtype, target, options)

  defp foresee(entry, target, options) do
    case try_on_meta(entry, target, options.adapters) do
      {:ok, %{shape: shape, dtype: dtype}} -> compare(shape, dtype, target, options)
      :unknown -> :ok
    end
  end

  defp try_on_meta(entry, target, adapters) do
    meta = ExTorch.empty(entry.shape, dtype: entry.dtype, device: :meta)
    {:ok, Adapter.adapt(adapters, entry, meta, target)}
  rescue
    # it wants to see values: then it is checked when they are there
    _ -> :unknown
  end

  defp compare(shape, dtype, target, options) do
    shape_fits =
      shape == target.shape or (not options.validate and broadcasts?(shape, target.shape))

    dtype_fits = dtype == target.dtype or not options.validate

    if shape_fits and dtype_fits do
      :ok
    else
      found = %{shape: shape, dtype: dtype}
      what = if shape_fits, do: "dtype", else: "shape"

      message =
        "expected #{what} #{inspect(Map.get(target, String.to_existing_atom(what)))}, found #{inspect(found[String.to_existing_atom(what)])}" <>
          if(shape_fits, do: " (ExTorch.Store.Adapter.Cast converts)", else: "")

      {:error, %{Error.new(:bad_argument, message) | result: found}}
    end
  end

  # Sizes of 1 may repeat, and leading ones may be absent; nothing is cut.
  defp broadcasts?(from, to) do
    {from, to} = {Tuple.to_list(from), Tuple.to_list(to)}

    length(from) <= length(to) and
      Enum.zip(Enum.reverse(from), Enum.reverse(to))
      |> Enum.all?(fn {a, b} -> a == b or a == 1 end)
  end

  defp failure(name, error, target) do
    found = if is_map(error.result), do: error.result

    %{
      name: name,
      reason: error.reason,
      message: error.message,
      expected: Map.take(target, [:shape, :dtype]),
      found: found
    }
  end

  # ---- Reading ----

  defp read(file, options, result, wanted) do
    total = Enum.reduce(wanted, 0, fn {_, _, entry, _, _}, sum -> sum + entry.nbytes end)
    shared = shared_storages(wanted)
    progress = Progress.new(options.on_progress, total)

    {new, errors, _cache, {progress, bytes}} =
      Enum.reduce(wanted, {%{}, [], %{}, {progress, 0}}, fn item,
                                                            {new, errors, cache,
                                                             {progress, bytes}} ->
        {from, name, entry, leaf, target} = item
        {read, cache} = once(file, from, entry, shared, cache)
        progress = Progress.report(progress, bytes + entry.nbytes)
        at = {progress, bytes + entry.nbytes}

        with {:ok, tensor} <- read,
             {:ok, value} <- fit(tensor, entry, leaf, target, options) do
          {Map.put(new, name, value), errors, cache, at}
        else
          {:error, error} -> {new, [failure(name, error, target) | errors], cache, at}
        end
      end)

    Progress.finish(progress)
    applied = for {_, name, _, _, _} <- wanted, Map.has_key?(new, name), do: name
    errors = result.errors ++ Enum.reverse(errors)

    {%{result | module: Leaves.replace(result.module, new), applied: applied, errors: errors},
     bytes}
  end

  # Tied weights stay tied: what is the same view of the same storage is read once.
  defp shared_storages(wanted) do
    for {_, _, entry, _, _} <- wanted, entry.storage != nil, reduce: %{} do
      counts -> Map.update(counts, view(entry), 1, &(&1 + 1))
    end
  end

  defp view(entry), do: {entry.storage, entry.offset, entry.shape, entry.strides, entry.dtype}

  defp once(file, from, entry, shared, cache) do
    key = view(entry)

    cond do
      Map.get(shared, key, 0) < 2 ->
        {file.tensor.(from), cache}

      Map.has_key?(cache, key) ->
        {{:ok, cache[key]}, cache}

      true ->
        case file.tensor.(from) do
          {:ok, tensor} -> {{:ok, tensor}, Map.put(cache, key, tensor)}
          error -> {error, cache}
        end
    end
  end

  defp fit(tensor, entry, leaf, target, options) do
    tensor = Adapter.adapt(options.adapters, entry, tensor, target)

    with :ok <- compare(tensor.shape, tensor.dtype, target, options) do
      {:ok, Module.from_tensor(leaf, tensor |> cast(target) |> expand(target))}
    end
  rescue
    error in Error -> {:error, error}
  end

  defp cast(%{dtype: dtype} = tensor, %{dtype: dtype}), do: tensor
  defp cast(tensor, target), do: Tensor.to(tensor, dtype: target.dtype)

  defp expand(%{shape: shape} = tensor, %{shape: shape}), do: tensor

  defp expand(tensor, target) do
    ExTorch.op("expand", [tensor, Tuple.to_list(target.shape)]) |> ExTorch.Tensor.contiguous()
  end

  # ---- Collecting ----

  # {:ok, [{file name, tensor}]}
  def collect(options, module) do
    with {:ok, leaves} <- Leaves.list(module) do
      shapes = Map.new(leaves, fn {name, _, target} -> {name, target.shape} end)

      kept =
        for {name, leaf, target} <- leaves,
            entry = described(name, target),
            Options.selected?(options, name, fn -> entry end),
            do: {name, leaf, entry}

      pairs =
        for {name, _, _} <- kept,
            do: {name, Options.rename(options, Adapter.rename(options.adapters, name, shapes))}

      with :ok <- Names.check_collisions(pairs) do
        tensors =
          for {{_, leaf, entry}, {_, name}} <- Enum.zip(kept, pairs),
              do: {name, Adapter.adapt(options.adapters, entry, Module.to_tensor(leaf), nil)}

        {:ok, tensors}
      end
    end
  rescue
    error in Error -> {:error, error}
  end

  defp described(name, target) do
    struct(Entry,
      name: name,
      path: [name],
      shape: target.shape,
      dtype: target.dtype,
      kind: :tensor
    )
  end

  def free?(_path, %{overwrite: true}), do: :ok

  def free?(path, _options) do
    if File.exists?(path) do
      error = Error.new(:bad_argument, "the file exists; overwrite: true replaces it")
      {:error, Error.located(error, path)}
    else
      :ok
    end
  end

  def collected(path, count, start) do
    Telemetry.execute(
      [:extorch, :store, :collect],
      %{duration: System.monotonic_time() - start, tensors: count},
      %{path: path}
    )
  end

  # ---- What a module would see ----

  def keys(file, options) do
    with {:ok, pairs, _outside} <- Names.plan(file.keys, shapes(file), no_auto(options), []),
         do: {:ok, Enum.map(pairs, &elem(&1, 1))}
  end

  def find(file, options, name) do
    with {:ok, pairs, _outside} <- Names.plan(file.keys, shapes(file), no_auto(options), []) do
      case List.keyfind(pairs, name, 1) do
        {from, _} ->
          {:ok, from}

        nil ->
          near = Names.suggestions([name], Enum.map(pairs, &elem(&1, 1)))
          hint = if near[name], do: "; did you mean #{inspect(near[name])}?", else: ""
          {:error, Error.new(:not_found, "there is no tensor #{inspect(name)}" <> hint)}
      end
    end
  end

  # Without a module there is nothing to find the key by.
  defp no_auto(%{top_level_key: :auto} = options), do: %{options | top_level_key: nil}
  defp no_auto(options), do: options
end
