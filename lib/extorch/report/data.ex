defmodule ExTorch.Report.Data do
  @moduledoc false
  # What a page contains, as a map that becomes JSON. Columns are lists with an element for each tensor; what most tensors
  # do not have is a map by index. So 20,000 tensors are about 2 MB. data.js reads it.

  alias ExTorch.{Checkpoint, Error, Progress, Source, Tensor, Text}
  alias ExTorch.Checkpoint.{BatchLoad, Safety, StateDict, Summary, Values}
  alias ExTorch.Report.Histogram
  alias ExTorch.Tensor.Sample

  # Tensors with more elements are sampled.
  @limit 65_536
  # Tensors that are read together, at most.
  @batch 512
  @batch_bytes 32 * 1024 * 1024
  # A sparse tensor is made dense to be read: it may have so many elements.
  @max_dense 4 * 1024 * 1024
  @max_values 2_000
  @max_metadata 500
  @max_names 200
  @max_text 1_000
  # Formats that contain no pickle.
  @data_only [:safetensors, :npy]
  @statistics [:min, :max, :mean, :std]

  # Returns the data of the parts of a source.
  @spec new([StateDict.part()], Checkpoint.source() | nil, keyword()) ::
          {:ok, map()} | {:error, Error.t()}
  def new(parts, source, opts) do
    with {:ok, values} <- values(parts) do
      entries = Summary.entries(parts)
      metadata = parts |> hd() |> elem(0) |> Checkpoint.metadata()

      {:ok,
       %{
         title: title(source),
         format: metadata.format,
         shards: length(parts),
         about: about(metadata),
         view: opts[:view],
         safety: safety(if(opts[:view], do: nil, else: source), parts, metadata)
       }
       |> Map.merge(tensors(entries))
       |> Map.merge(statistics(parts, opts))
       |> Map.merge(pairs(values, @max_values, {:values, :more_values}))
       |> Map.merge(pairs(own(metadata), @max_metadata, {:metadata, :more_metadata}))}
    end
  end

  # The page may be given to others: it has the name of a file, not its directory, and no secrets of a URL.
  defp title(source) do
    name =
      case source do
        path when is_binary(path) -> if(url?(path), do: url_path(path), else: Path.basename(path))
        %_{} -> Source.label(source)
        _ -> "checkpoint"
      end

    text(Text.name(name))
  end

  defp url?(path), do: Source.HTTP.URL.url?(path)
  defp url_path(url), do: url |> String.split(["?", "#"]) |> hd() |> Path.basename()

  defp about(metadata) do
    Enum.filter(
      [
        metadata.producer != to_string(metadata.format) && "written by #{metadata.producer}",
        metadata.compression && "compressed with #{metadata.compression}",
        metadata.byteorder == :big && "big-endian"
      ],
      & &1
    )
  end

  defp own(metadata), do: Enum.sort(metadata[:metadata] || %{})

  defp values([{ckpt, _entries}]) do
    with {:ok, object} <- StateDict.object(ckpt), do: {:ok, Values.list(object, nil)}
  end

  defp values(_parts), do: {:ok, []}

  defp pairs(pairs, most, {key, more}) do
    shown =
      for {name, value} <- Enum.take(pairs, most),
          do: [text(Text.name(name)), text(Text.value(value))]

    %{key => shown, more => max(length(pairs) - most, 0)}
  end

  defp safety(source, parts, metadata) do
    {verdict, names} =
      if metadata.format in @data_only, do: {:data, []}, else: Safety.check(source, parts)

    %{
      verdict:
        case verdict do
          nil -> :safe
          text when is_binary(text) -> :refused
          other -> other
        end,
      message: if(is_binary(verdict), do: text(verdict)),
      names: names |> Enum.take(@max_names) |> Enum.map(&text(Text.name(&1))),
      more: max(length(names) - @max_names, 0)
    }
  end

  # Long text of a file is cut.
  defp text(text) do
    if byte_size(text) > @max_text and String.length(text) > @max_text,
      do: String.slice(text, 0, @max_text) <> "…",
      else: text
  end

  # ---- Tensors ----

  defp tensors(entries) do
    {dtypes, dtype} = indexed(entries, & &1.dtype)
    {shapes, shape} = indexed(entries, & &1.shape)
    {kinds, kind} = indexed(entries, & &1.kind)
    {devices, device} = indexed(entries, &text(Text.name(&1.device)))
    positions = entries |> Enum.with_index() |> Enum.group_by(fn {entry, _} -> entry.storage end)

    %{
      names: names(entries),
      dtypes: dtypes,
      dtype: dtype,
      shapes: shapes,
      shape: shape,
      kinds: kinds,
      kind: kind,
      devices: devices,
      device: device,
      bytes: Enum.map(entries, & &1.nbytes),
      shared: shared(positions),
      again: again(entries)
    }
  end

  # The different values, and the index of each entry's value among them.
  defp indexed(entries, fun) do
    {known, indices} =
      Enum.reduce(entries, {%{}, []}, fn entry, {known, indices} ->
        value = fun.(entry)
        index = Map.get(known, value, map_size(known))
        {Map.put(known, value, index), [index | indices]}
      end)

    {known |> Enum.sort_by(&elem(&1, 1)) |> Enum.map(&elem(&1, 0)), Enum.reverse(indices)}
  end

  # For each name, how many characters it shares with the one before, and the others. Only ASCII is shared, because
  # JavaScript counts other characters differently.
  defp names(entries) do
    {list, _} =
      Enum.flat_map_reduce(entries, "", fn entry, before ->
        name = text(Text.name(entry.name))
        shared = prefix(name, before, 0)
        {[shared, binary_part(name, shared, byte_size(name) - shared)], name}
      end)

    list
  end

  defp prefix(<<char, a::binary>>, <<char, b::binary>>, n) when char < 128,
    do: prefix(a, b, n + 1)

  defp prefix(_a, _b, n), do: n

  defp shared(positions) do
    groups = for {storage, [_, _ | _] = group} <- positions, storage != nil, do: group
    groups |> Enum.map(&Enum.map(&1, fn {_, position} -> position end)) |> Enum.sort()
  end

  # The positions of further names of a tensor.
  defp again(entries) do
    {again, _} =
      entries
      |> Enum.with_index()
      |> Enum.flat_map_reduce(MapSet.new(), fn {entry, position}, seen ->
        view = {entry.storage, Text.view(entry)}

        cond do
          entry.storage == nil -> {[], seen}
          view in seen -> {[position], seen}
          true -> {[], MapSet.put(seen, view)}
        end
      end)

    again
  end

  # ---- Statistics ----

  # The state of a tensor is a letter: data.js and table.js say what they mean.
  defp statistics(parts, opts) do
    total =
      for {_, entries} <- parts, entry <- entries, reduce: 0, do: (sum -> sum + entry.nbytes)

    start = {Progress.new(opts[:on_progress], total), 0}

    {results, {progress, _}} =
      for({ckpt, entries} <- parts, batch <- batches(entries), do: {ckpt, batch})
      |> Enum.flat_map_reduce(start, fn {ckpt, batch}, {progress, done} ->
        done = for entry <- batch, reduce: done, do: (sum -> sum + entry.nbytes)
        {values_of(ckpt, batch, opts[:stats]), {Progress.report(progress, done), done}}
      end)

    Progress.finish(progress)
    columns(results)
  end

  defp columns(results) do
    found = for {_state, stats, _histogram, _note} <- results, stats != nil, do: stats

    by_index = fn key ->
      for {{_, %{^key => n}, _, _}, i} <- Enum.with_index(results),
          n > 0,
          into: %{},
          do: {i, n}
    end

    noted = fn state ->
      for {{^state, _, _, note}, i} <- Enum.with_index(results), into: %{}, do: {i, note}
    end

    @statistics
    |> Map.new(fn key -> {key, Enum.map(found, &short(&1[key]))} end)
    |> Map.merge(%{
      state: for({state, _, _, _} <- results, into: "", do: state),
      histogram: for({_, _, histogram, _} <- results, histogram != nil, into: "", do: histogram),
      bins: Histogram.bins(),
      limit: @limit,
      zeros: by_index.(:zeros),
      nan: by_index.(:nan),
      infinite: by_index.(:infinite),
      sampled: noted.("s"),
      errors: noted.("x")
    })
  end

  # Four digits.
  defp short(nil), do: nil
  defp short(number) when is_integer(number), do: short(number * 1.0)
  defp short(number), do: number |> :erlang.float_to_binary(scientific: 3) |> String.to_float()

  # Small tensors are read together: a read takes longer than their bytes.
  defp batches(entries) do
    Enum.chunk_while(
      entries,
      {[], 0, 0},
      fn entry, {batch, count, bytes} ->
        if count < @batch and bytes + entry.nbytes <= @batch_bytes,
          do: {:cont, {[entry | batch], count + 1, bytes + entry.nbytes}},
          else: {:cont, Enum.reverse(batch), {[entry], 1, entry.nbytes}}
      end,
      fn {batch, _, _} -> {:cont, Enum.reverse(batch), nil} end
    )
  end

  # Returns {state, statistics, histogram, note} of each entry.
  defp values_of(ckpt, batch, stats) do
    states = Enum.map(batch, &left_out(ckpt, &1, stats))
    wanted = for {entry, nil} <- Enum.zip(batch, states), do: entry
    read = if wanted == [], do: [], else: read(ckpt, wanted, stats)

    {results, []} =
      Enum.map_reduce(states, read, fn
        nil, [result | read] -> {result, read}
        state, read -> {{state, nil, nil, nil}, read}
      end)

    results
  end

  # The state of an entry that is not read.
  defp left_out(_ckpt, _entry, :none), do: "o"
  defp left_out(_ckpt, %{kind: :meta}, _stats), do: "m"

  defp left_out(ckpt, entry, stats) do
    elements = Text.elements(entry)

    cond do
      entry.strides == nil and elements > @max_dense -> "z"
      elements > @limit and stats == :sample and is_struct(ckpt.source) -> "n"
      true -> nil
    end
  end

  # If one tensor of a batch cannot be read, each is read by itself.
  defp read(ckpt, entries, stats) do
    case {BatchLoad.tensors(quiet(ckpt), entries), entries} do
      {{:ok, tensors}, _} ->
        results = Enum.map(tensors, &describe(&1, stats))
        # Two names may be one tensor.
        for %Tensor{} = tensor <- tensors, do: Tensor.release(tensor)
        results

      {{:error, error}, [_]} ->
        [{"x", nil, nil, text(error.message)}]

      {{:error, _}, _} ->
        Enum.flat_map(entries, &read(ckpt, [&1], stats))
    end
  end

  # The progress of the report is not that of single tensors.
  defp quiet(ckpt), do: put_in(ckpt.options.on_progress, nil)

  defp describe(%Tensor{device: :meta}, _stats), do: {"m", nil, nil, nil}

  defp describe(%Tensor{} = tensor, stats) do
    plain = Tensor.Pieces.plain(tensor)
    part = if stats == :all, do: plain, else: Sample.view(plain, @limit)
    {found, histogram} = Histogram.of(part)
    sampled? = Tensor.numel(part) < Tensor.numel(plain)

    {if(sampled?, do: "s", else: "e"), found, Histogram.encode(histogram),
     if(sampled?, do: Tensor.numel(part))}
  rescue
    error in Error -> {"x", nil, nil, text(error.message)}
  end

  defp describe(_raw, _stats), do: {"u", nil, nil, nil}
end
