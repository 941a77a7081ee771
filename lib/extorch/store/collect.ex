defmodule ExTorch.Store.Collect do
  @moduledoc false
  # Collects the tensors of modules and saves them, for all stores.

  alias ExTorch.{Error, Source, Telemetry, Tensor}
  alias ExTorch.Store.{Adapter, Leaves, Leftovers, Names, Options, Rules}

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
         {:ok, rules} <- Rules.prepare(options.adapters, targets) do
      kept =
        for {name, leaf, target} <- leaves,
            entry = Leaves.entry(name, target),
            Options.selected?(options, name, fn -> entry end),
            do: {name, leaf, entry}

      with :ok <- Options.check_selected(options, kept, fn -> Enum.map(leaves, &elem(&1, 0)) end),
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
end
