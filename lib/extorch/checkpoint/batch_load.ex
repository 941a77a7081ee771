defmodule ExTorch.Checkpoint.BatchLoad do
  @moduledoc false
  # Loads whole checkpoints. Each storage is read once. Files and binaries are read by one native call, or by several if they
  # are large or if progress is reported between them.

  alias ExTorch.Checkpoint.{DeviceLoad, Entry, Handle, Options, SourceReader}
  alias ExTorch.{Error, Heap, Memory, Native, Progress, Source, Tensor}
  alias ExTorch.DCP.Folder
  alias ExTorch.Native.Call

  # Bytes of a native call. At the end of each, readers wait for each other, and other processes have a turn on the dirty
  # schedulers; reports of progress need shorter ones.
  @step_bytes 512 * 1024 * 1024
  @progress_bytes 64 * 1024 * 1024
  @collect_bytes 1024 * 1024
  @tensor_words 18

  @type result(value) :: Handle.result(value)

  # Returns the object with its tensors. With `only`, other tensors are left out of dicts and replaced by their entries
  # in lists and tuples. The first clause avoids creating entries where nothing uses them.
  @spec load(Handle.t()) :: result(term())
  def load(%{options: %{only: nil, device: :cpu}} = ckpt) do
    read_all(ckpt, :all, style: Handle.style(ckpt.options))
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

  # Replaces the selected entries by their tensors. Both lists are in file order.
  @spec merge([Entry.t()], [Entry.t()], [term()]) :: [term()]
  def merge([entry | entries], [%{index: index} | selected], [tensor | tensors])
      when entry.index == index do
    [tensor | merge(entries, selected, tensors)]
  end

  def merge([entry | entries], selected, tensors),
    do: [entry | merge(entries, selected, tensors)]

  def merge([], [], []), do: []

  # Removes dict items whose value is an entry.
  @spec prune(term()) :: term()
  def prune(%Entry{} = entry), do: entry

  def prune(%ExTorch.Python.Dict{pairs: pairs} = dict) do
    %{
      dict
      | pairs: for({key, value} <- pairs, not is_struct(value, Entry), do: {key, prune(value)})
    }
  end

  def prune(%_{} = struct), do: struct

  def prune(map) when is_map(map) do
    for {key, value} <- map, not is_struct(value, Entry), into: %{}, do: {key, prune(value)}
  end

  def prune(list) when is_list(list), do: Enum.map(list, &prune/1)

  def prune(tuple) when is_tuple(tuple),
    do: tuple |> Tuple.to_list() |> prune() |> List.to_tuple()

  def prune(other), do: other

  # Reads the tensors of the entries, which are in file order. If `sparing`, reads only the tensors, not their storages,
  # where they are a small part of these; of a source, this is an error.
  @spec tensors(Handle.t(), [Entry.t()], boolean()) :: result([Tensor.t() | struct()])
  def tensors(ckpt, entries, sparing \\ false)

  def tensors(%{options: %{device: :cpu}} = ckpt, entries, sparing),
    do: tensors_at(ckpt, Enum.map(entries, & &1.index), sparing)

  def tensors(ckpt, entries, sparing), do: DeviceLoad.load(ckpt, entries, sparing)

  # Same for the entries with these indices, in any order. The tensors stay on the CPU.
  @spec tensors_at(Handle.t(), [non_neg_integer()], boolean()) ::
          result([Tensor.t() | struct()])
  def tensors_at(ckpt, indices, sparing), do: read_all(ckpt, indices, sparing: sparing)

  # A folder has no batch.
  defp read_all(%{resource: %Folder{} = folder} = ckpt, indices, opts) do
    result =
      with {:ok, tensors} <- Folder.read(indices, folder, ckpt.options),
           do: if(opts[:style], do: Handle.object(ckpt, tensors), else: {:ok, tensors})

    Error.put_path(result, ckpt.source)
  end

  defp read_all(%{source: source, options: %{on_progress: nil} = options} = ckpt, indices, opts)
       when not is_struct(source) do
    sparing = Keyword.get(opts, :sparing, false)

    with {:ok, words} <- words(ckpt.resource, indices) do
      Heap.with_room(words, fn ->
        with {:ok, :large} <- run(ckpt.resource, indices, options.verify, sparing, opts[:style]),
             do: read_all(ckpt, indices, opts, 1)
      end)
    end
    |> Error.put_path(source)
  end

  defp read_all(ckpt, indices, opts), do: read_all(ckpt, indices, opts, 1)

  # A batch load that fails cannot continue. If it exceeds the budget, it is started again, once, after a collection.
  defp read_all(ckpt, indices, opts, tries) do
    case read_once(ckpt, indices, opts) do
      {:collect, _error} when tries > 0 ->
        Memory.collect()
        read_all(ckpt, indices, opts, tries - 1)

      {:collect, error} ->
        {:error, Error.put_path(error, ckpt.source)}

      result ->
        Error.put_path(result, ckpt.source)
    end
  end

  # The batch is closed, because otherwise the storages would stay in memory, and the file open, until the next garbage
  # collection.
  defp read_once(%{options: options} = ckpt, indices, opts) do
    sparing = Keyword.get(opts, :sparing, false)

    with {:ok, {batch, total}} <- begin(ckpt.resource, indices, options.verify, sparing) do
      try do
        with :ok <- read(ckpt, batch, Progress.new(options.on_progress, total)),
             do: finish(batch, opts[:style])
      after
        close(batch)
        Source.prefetch(ckpt.source, fn -> [] end)
      end
    end
  end

  # Returns about how much heap the tensors take, with the containers that they are in.
  defp words(resource, :all), do: Call.batch_load_words(resource)
  defp words(_resource, indices), do: {:ok, @tensor_words * length(indices)}

  # Returns the object if there is a style, otherwise the list of tensors; :large if it takes several steps.
  defp run(resource, indices, verify, sparing, style),
    do: Call.batch_load_run(resource, indices, verify, sparing, style)

  defp begin(resource, indices, verify, sparing),
    do: Call.batch_load_begin(resource, indices, verify, sparing)

  defp finish(batch, style), do: Call.batch_load_finish(batch, style)
  defp close(batch), do: Native.batch_load_close(batch)

  # The bytes of a source are read here, those of files and binaries by the NIF.
  defp read(ckpt, batch, progress, bytes \\ nil) do
    case Memory.account(read_more(ckpt, batch, bytes)) do
      {:ok, {:more, done}} ->
        read(ckpt, batch, Progress.report(progress, done))

      {:ok, {:need, offset, size, done}} ->
        progress = Progress.report(progress, done)
        collect_piece(bytes)
        Source.prefetch(ckpt.source, fn -> [{offset, size} | ahead(batch)] end)

        with {:ok, bytes} <- SourceReader.read_at(ckpt.source, offset, size),
             do: read(ckpt, batch, progress, bytes)

      {:ok, :done} ->
        Progress.finish(progress)

      error ->
        error
    end
  end

  # The piece that was copied is garbage of this process, which would keep several of them.
  defp collect_piece(bytes) when is_binary(bytes) and byte_size(bytes) >= @collect_bytes,
    do: :erlang.garbage_collect(self(), type: :minor)

  defp collect_piece(_bytes), do: true

  defp read_more(%{source: %_{}}, batch, bytes), do: fill(batch, bytes)
  defp read_more(%{options: %{on_progress: nil}}, batch, nil), do: step(batch, @step_bytes)
  defp read_more(_ckpt, batch, nil), do: step(batch, @progress_bytes)

  defp fill(batch, bytes), do: Native.batch_load_fill(batch, bytes)
  defp step(batch, bytes), do: Native.batch_load_step(batch, bytes)

  # The ranges that will be needed after the current one.
  defp ahead(batch), do: Error.unwrap!(Call.batch_load_ahead(batch))
end
