defmodule ExTorch.Checkpoint.BatchLoad do
  @moduledoc false
  # Loads whole checkpoints. Each storage is read once. Native code reads in steps; progress is reported between them.

  alias ExTorch.Checkpoint.{Entry, Handle, Options, SourceReader}
  alias ExTorch.{Error, Memory, Native, Progress, Tensor}

  @step_bytes 64 * 1024 * 1024

  @type result(value) :: Handle.result(value)

  # Returns the object with its tensors. With `only`, other tensors are left out of dicts and replaced by their entries
  # in lists and tuples. The first clause avoids creating entries where nothing uses them.
  @spec load(Handle.t()) :: result(term())
  def load(%{options: %{only: nil, device: :cpu}} = ckpt) do
    with {:ok, tensors} <- read_all(ckpt, :all), do: Handle.object(ckpt, tensors)
  end

  def load(ckpt) do
    with {:ok, entries} <- Handle.entries(ckpt),
         {:ok, selected} <- Options.select(ckpt, entries),
         {:ok, tensors} <- tensors(ckpt, selected) do
      assemble(ckpt, entries, selected, tensors)
    end
  end

  # Returns the object with the tensors of the selected entries.
  @spec assemble(Handle.t(), [Entry.t()], [Entry.t()], [Tensor.t() | struct()]) :: result(term())
  def assemble(ckpt, entries, selected, tensors) do
    with {:ok, object} <- Handle.object(ckpt, merge(entries, selected, tensors)) do
      {:ok, if(ckpt.options.only, do: prune(object), else: object)}
    end
  end

  # Checks the logical size of all tensors against the limit total_bytes.
  @spec check_total(Handle.t(), non_neg_integer()) :: :ok | {:error, Error.t()}
  def check_total(ckpt, total) do
    limit = ckpt.options.limits[:total_bytes]

    if total <= limit do
      :ok
    else
      {:error,
       Error.new(
         :limit,
         "the tensors have #{total} bytes, which exceeds the limit of #{limit}; raise it with limits: [total_bytes: n]",
         ckpt.source
       )}
    end
  end

  # Replaces the selected entries by their tensors. Both lists are in file order.
  defp merge([entry | entries], [%{index: index} | selected], [tensor | tensors])
       when entry.index == index do
    [tensor | merge(entries, selected, tensors)]
  end

  defp merge([entry | entries], selected, tensors),
    do: [entry | merge(entries, selected, tensors)]

  defp merge([], [], []), do: []

  # Removes dict items whose value is an entry.
  defp prune(%Entry{} = entry), do: entry

  defp prune(%ExTorch.Python.Dict{pairs: pairs} = dict) do
    %{
      dict
      | pairs: for({key, value} <- pairs, not is_struct(value, Entry), do: {key, prune(value)})
    }
  end

  defp prune(%_{} = struct), do: struct

  defp prune(map) when is_map(map) do
    for {key, value} <- map, not is_struct(value, Entry), into: %{}, do: {key, prune(value)}
  end

  defp prune(list) when is_list(list), do: Enum.map(list, &prune/1)

  defp prune(tuple) when is_tuple(tuple),
    do: tuple |> Tuple.to_list() |> prune() |> List.to_tuple()

  defp prune(other), do: other

  # Reads the tensors of the entries, which are in file order.
  @spec tensors(Handle.t(), [Entry.t()]) :: result([Tensor.t() | struct()])
  def tensors(ckpt, entries) do
    with {:ok, tensors} <- read_all(ckpt, Enum.map(entries, & &1.index)) do
      all_to_device(ckpt, tensors, entries)
    end
  end

  # A batch load that fails cannot continue. If it exceeds the budget, it is started again, once, after a collection.
  defp read_all(ckpt, indices, tries \\ 1) do
    case read_once(ckpt, indices) do
      {:collect, _error} when tries > 0 ->
        Memory.collect()
        read_all(ckpt, indices, tries - 1)

      {:collect, error} ->
        {:error, Error.put_path(error, ckpt.source)}

      other ->
        other
    end
  end

  defp read_once(ckpt, indices) do
    with {:ok, {batch, total, logical}} <- begin(ckpt, indices) do
      try do
        with :ok <- check_total(ckpt, logical),
             do: step(ckpt, batch, Progress.new(ckpt.options.on_progress, total))
      after
        close(batch)
      end
    end
  end

  # Without this call the storages would stay in memory, and the file open, until the next garbage collection.
  defp close(batch), do: Native.batch_load_close(batch)

  defp begin(ckpt, indices) do
    result =
      Memory.run(fn -> Native.batch_load_begin(ckpt.resource, indices, ckpt.options.verify) end)

    Error.put_path(result, ckpt.source)
  end

  # The bytes of a source are read here, those of files and binaries by the NIF.
  defp step(ckpt, batch, progress, bytes \\ nil) do
    case Memory.account(native_step(ckpt, batch, bytes)) do
      {:ok, {:more, done}} ->
        step(ckpt, batch, Progress.report(progress, done))

      {:ok, {:need, offset, size, done}} ->
        progress = Progress.report(progress, done)

        with {:ok, bytes} <- SourceReader.read(ckpt.source, offset, size),
             do: step(ckpt, batch, progress, bytes)

      {:ok, {:done, tensors}} ->
        finish(progress, tensors)
        {:ok, tensors}

      {:collect, error} ->
        {:collect, error}

      {:error, error} ->
        {:error, Error.put_path(error, ckpt.source)}
    end
  end

  defp native_step(%{source: %_{}}, batch, bytes), do: Native.batch_load_fill(batch, bytes)
  defp native_step(_ckpt, batch, nil), do: Native.batch_load_step(batch, @step_bytes)

  # If the callback raises, nobody gets the tensors.
  defp finish(progress, tensors) do
    Progress.finish(progress)
  catch
    kind, reason ->
      release(tensors)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  # Tensors of a load that failed would stay in memory until the next garbage collection.
  defp release(tensors), do: for(%Tensor{} = tensor <- tensors, do: Tensor.release(tensor))

  defp all_to_device(ckpt, tensors, entries) do
    entries
    |> Enum.zip(tensors)
    |> Enum.reduce_while([], fn {entry, tensor}, moved ->
      case Handle.to_device(ckpt, tensor, entry) do
        {:ok, tensor} -> {:cont, [tensor | moved]}
        {:error, error} -> {:halt, {:error, error, moved}}
      end
    end)
    |> case do
      {:error, error, moved} ->
        release(tensors ++ moved)
        {:error, error}

      moved ->
        {:ok, Enum.reverse(moved)}
    end
  end
end
