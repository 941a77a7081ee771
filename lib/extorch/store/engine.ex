defmodule ExTorch.Store.Engine do
  @moduledoc false
  # Applies files to modules and collects the tensors of modules, for all stores.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Filter, Progress, Source, Suggest, Telemetry, Tensor}
  alias ExTorch.Store.{Adapter, ApplyResult, File, Leaves, Leftovers, Names, Options, Planned}

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
         {:ok, pairs, outside} <- Names.plan(file.keys, shapes(file), options, targets),
         {result, planned} = classify(file, options, {leaves, targets}, pairs, outside),
         :ok <- check_selected(result, planned, outside, options, {leaves, pairs}) do
      result = %{result | module: module}

      if options.allow_partial or ApplyResult.complete?(result),
        do: read(file, options, result, leaves, planned),
        else: {:ok, %{result | applied: Enum.map(planned, & &1.name)}, 0}
    end
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

  defp shapes(file) do
    fn ->
      Map.new(entries(file, file.keys), fn
        {key, {:ok, entry}} -> {key, entry.shape}
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
  defp classify(file, options, {leaves, targets}, pairs, outside) do
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
      errors: errors,
      suggestions: Names.suggestions(missing, unused)
    }

    {result, planned}
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
             :ok <- check_entry(entry, target, options) do
          item = %Planned{from: from, name: name, entry: entry, leaf: leaf, target: target}
          {[item | planned], errors}
        else
          error -> {planned, [failure(name, error, target) | errors]}
        end
      end)

    {Enum.reverse(planned), Enum.reverse(errors)}
  end

  # The adapters are run on a meta tensor to determine the resulting shape and dtype.
  defp check_entry(entry, target, %{adapters: []} = options),
    do: compare(entry.shape, entry.dtype, target, options)

  defp check_entry(entry, target, options) do
    case adapt_meta(entry, target, options.adapters) do
      {:ok, %{shape: shape, dtype: dtype}} -> compare(shape, dtype, target, options)
      :unknown -> :ok
    end
  end

  defp adapt_meta(entry, target, adapters) do
    meta = ExTorch.empty(entry.shape, dtype: entry.dtype, device: :meta)
    {:ok, Adapter.adapt(adapters, entry, meta, target)}
  rescue
    # The adapter needs the values: the tensor is checked after reading.
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
      key = if shape_fits, do: :dtype, else: :shape

      message =
        "expected #{key} #{inspect(Map.get(target, key))}, got #{inspect(found[key])}" <>
          if(shape_fits, do: " (use ExTorch.Store.Adapter.Cast to convert)", else: "")

      {:mismatch, message, found}
    end
  end

  # Returns true if the shape can be broadcast to the other: dimensions of size 1 are repeated, leading dimensions
  # added.
  defp broadcasts?(from, to) do
    {from, to} = {Tuple.to_list(from), Tuple.to_list(to)}

    length(from) <= length(to) and
      Enum.zip(Enum.reverse(from), Enum.reverse(to))
      |> Enum.all?(fn {a, b} -> a == b or a == 1 end)
  end

  defp failure(name, {:mismatch, message, found}, target),
    do: failure(name, :bad_argument, message, target, found)

  defp failure(name, {:error, error}, target),
    do: failure(name, error.reason, error.message, target, nil)

  defp failure(name, reason, message, target, found) do
    %{
      name: name,
      reason: reason,
      message: message,
      expected: Map.take(target, [:shape, :dtype]),
      found: found
    }
  end

  # ---- Reading ----

  defp read(file, options, result, leaves, planned) do
    total = Enum.reduce(planned, 0, &(&1.entry.nbytes + &2))
    {first, tied} = tied(planned)
    state = {[], %{}, Progress.new(options.on_progress, total), 0}

    {new, failed, progress, bytes} =
      File.reduce(file, first, state, fn %{name: name} = item, read, state ->
        case tied do
          %{^name => items} -> Enum.reduce(items, state, &fit_item(&1, read, &2, options))
          _ -> fit_item(item, read, state, options)
        end
      end)

    Progress.finish(progress)
    {done, not_done} = split_failed(planned, failed)
    new = :maps.from_list(new)
    values = for {name, leaf, _target} <- leaves, do: Map.get(new, name, leaf)

    result = %{
      result
      | module: Leaves.replace(result.module, values),
        applied: Enum.map(done, & &1.name),
        errors: result.errors ++ Enum.map(not_done, &Map.fetch!(failed, &1.name))
    }

    {:ok, result, bytes}
  end

  defp split_failed(planned, failed) when failed == %{}, do: {planned, []}

  defp split_failed(planned, failed),
    do: Enum.split_with(planned, &(not is_map_key(failed, &1.name)))

  # Tied weights stay tied: several names for the same view of the same storage get the same tensor. Returns the items to
  # read, and by the name of the first item of a view, all its items, if there are several.
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
          else: add_view(item, view(item.entry), first, views)
      end)

    tied =
      for {_, [_, _ | _] = items} <- views,
          items = Enum.reverse(items),
          do: {hd(items).name, items}

    {Enum.reverse(first), Map.new(tied)}
  end

  defp add_view(item, view, first, views) do
    case views do
      %{^view => items} -> {first, %{views | view => [item | items]}}
      _ -> {[item | first], Map.put(views, view, [item])}
    end
  end

  defp view(entry), do: {entry.storage, entry.offset, entry.shape, entry.strides, entry.dtype}

  defp fit_item(item, read, {new, failed, progress, bytes}, options) do
    bytes = bytes + item.entry.nbytes
    progress = Progress.report(progress, bytes)

    with {:ok, tensor} <- read,
         {:ok, value} <- fit(tensor, item.entry, item.leaf, item.target, options) do
      {[{item.name, value} | new], failed, progress, bytes}
    else
      error ->
        {new, Map.put(failed, item.name, failure(item.name, error, item.target)), progress, bytes}
    end
  end

  # Converts a tensor of the file to a leaf of the module.
  defp fit(%{shape: shape, dtype: dtype, device: device} = tensor, _entry, leaf, target, options)
       when is_struct(leaf, Tensor) and leaf.device == device and options.adapters == [] and
              target.shape == shape and target.dtype == dtype,
       do: {:ok, tensor}

  defp fit(tensor, entry, leaf, target, options) do
    tensor = Adapter.adapt(options.adapters, entry, tensor, target)

    with :ok <- compare(tensor.shape, tensor.dtype, target, options) do
      {:ok, ExTorch.Module.from_tensor(leaf, tensor |> cast(target) |> expand(target))}
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

    with {:ok, _by_name} <- Leaves.by_name(leaves) do
      shapes = Map.new(leaves, fn {name, _, target} -> {name, target.shape} end)

      kept =
        for {name, leaf, target} <- leaves,
            entry = placeholder(name, target),
            Options.selected?(options, name, fn -> entry end),
            do: {name, leaf, entry}

      names = fn -> names(leaves) end

      pairs =
        for {name, _, _} <- kept,
            do: {name, Options.rename(options, Adapter.rename(options.adapters, name, shapes))}

      with :ok <- Options.check_selected(options, kept, names),
           :ok <- Names.check_collisions(pairs) do
        tensors =
          for {{_, leaf, entry}, {_, name}} <- Enum.zip(kept, pairs),
              do:
                {name,
                 Adapter.adapt(options.adapters, entry, ExTorch.Module.to_tensor(leaf), nil)}

        {:ok, tensors}
      end
    end
  rescue
    error in Error -> {:error, error}
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
    with {:ok, pairs, _outside} <- Names.plan(file.keys, shapes(file), no_auto(options), %{}) do
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
    with {:ok, pairs, _outside} <- Names.plan(file.keys, shapes(file), no_auto(options), %{}) do
      case List.keyfind(pairs, name, 1) do
        {from, _} ->
          {:ok, from}

        nil ->
          hint = Suggest.hint(module_names(pairs), name, 0.8, 1) || "; see ExTorch.Store.keys/1"
          {:error, Error.new(:not_found, "no tensor is named #{Error.quoted(name)}" <> hint)}
      end
    end
  end

  # The top-level key can only be determined with a module.
  defp no_auto(%{top_level_key: :auto} = options), do: %{options | top_level_key: nil}
  defp no_auto(options), do: options
end
