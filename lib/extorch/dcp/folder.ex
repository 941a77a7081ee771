defmodule ExTorch.DCP.Folder do
  @moduledoc false
  # An open folder of torch.distributed.checkpoint. It takes the place of the native resource in ExTorch.Checkpoint; the
  # functions are those of ExTorch.Checkpoint.Handle.

  alias ExTorch.Checkpoint.{Entry, Options, SourceReader}
  alias ExTorch.{Checkpoint, DType, Error, Progress, Source, Tensor}
  alias ExTorch.DCP.{Metadata, Part}
  alias ExTorch.Python.Dict

  @metadata ".metadata"
  @limits [pickle_bytes: 2 ** 30]
  # Parts of up to @small bytes are read from pieces of a file of about @window bytes, which usually have several.
  @small 64 * 1024
  @window 1024 * 1024

  @enforce_keys [:source, :items, :tensors, :by_name, :files]
  defstruct [:source, :items, :tensors, :by_name, :files]

  # source: the folder; tensors: the items that are tensors; by_name: name → index of the tensor;
  # files: name → {path or opened source, where its last part ends}
  @type t :: %__MODULE__{
          source: Path.t() | Source.t(),
          items: [Metadata.item()],
          tensors: tuple(),
          by_name: %{String.t() => non_neg_integer()},
          files: %{String.t() => {Path.t() | Source.t(), non_neg_integer()}}
        }
  @type result(value) :: {:ok, value} | {:error, Error.t()}

  # Returns true for a directory that contains .metadata, and for a URL or remote path that ends in a slash.
  @spec folder?(term()) :: boolean()
  def folder?(path) when is_binary(path),
    do:
      ExTorch.Options.path?(path) and match?({:ok, _}, Part.file_size(Path.join(path, @metadata)))

  def folder?(source), do: String.ends_with?(Source.path(source) || "", "/")

  @spec open(Path.t() | Source.t(), Options.t()) :: result(t())
  def open(source, options) do
    opts = [ordered: true, strict: false, limits: @limits]

    with {:ok, object} <- Checkpoint.load(Source.child(source, @metadata), opts),
         {:ok, items} <- Metadata.items(object),
         :ok <- check_total(items, options),
         {:ok, files} <- open_files(source, items) do
      tensors = Enum.filter(items, &(&1.kind == :tensor))
      by_name = for {item, i} <- Enum.with_index(tensors), into: %{}, do: {item.name, i}

      {:ok,
       %__MODULE__{
         source: source,
         items: items,
         tensors: List.to_tuple(tensors),
         by_name: by_name,
         files: files
       }}
    else
      {:error, error} -> {:error, %{error | path: error.path || Source.label(source)}}
    end
  end

  defp check_total(items, options) do
    total = Enum.sum(for %{kind: :tensor} = item <- items, do: nbytes(item))
    limit = options.limits[:total_bytes]

    if total <= limit,
      do: :ok,
      else:
        {:error,
         Error.new(
           :limit,
           "the tensors have #{total} bytes, which exceeds the limit of #{limit}; raise it with limits: [total_bytes: n]"
         )}
  end

  # All parts must be inside their files, which must not have many times their bytes: each is read.
  defp open_files(source, items) do
    ends =
      for item <- items,
          %{file: file, offset: offset, length: length} <- places(item),
          reduce: %{} do
        ends ->
          Map.update(ends, file, {offset + length, length}, fn {last, total} ->
            {max(last, offset + length), total + length}
          end)
      end

    opened =
      Enum.reduce_while(ends, {:ok, %{}, %{}}, fn {name, {last, total}}, {:ok, files, totals} ->
        case open_file(Source.child(source, name)) do
          {:ok, file, size, id} when size >= last ->
            sums = fn {size, sum} -> {size, sum + total} end
            totals = Map.update(totals, id || name, {size, total}, sums)
            {:cont, {:ok, Map.put(files, name, {file, last}), totals}}

          {:ok, _file, size, _id} ->
            text = "the file #{Error.quoted(name)} has #{size} bytes, at least #{last} are needed"
            {:halt, {:error, Error.new(:truncated, text)}}

          {:error, %Error{} = error} ->
            {:halt, {:error, error}}

          {:error, reason} ->
            text = "the file #{Error.quoted(name)} cannot be read: #{inspect(reason)}"
            {:halt, {:error, Error.new(if(reason == :enoent, do: :not_found, else: :io), text)}}
        end
      end)

    with {:ok, files, totals} <- opened do
      if Enum.all?(totals, fn {_, {size, total}} -> total <= 4 * size end),
        do: {:ok, files},
        else: {:error, Error.new(:corrupt, "the parts of the files overlap each other")}
    end
  end

  defp open_file(path) when is_binary(path) do
    with {:ok, size, id} <- Part.identify(path), do: {:ok, path, size, id}
  end

  defp open_file(source) do
    case Source.open(source) do
      {:ok, %module{} = opened} ->
        with {:ok, size} <- module.size(opened), do: {:ok, opened, size, nil}

      {:stream, _} ->
        {:error, Error.new(:unsupported, "the server has no byte ranges")}

      error ->
        error
    end
  end

  defp places(%{kind: :value, place: place}), do: [place]
  defp places(%{chunks: chunks}), do: Enum.map(chunks, & &1.place)

  # ---- Contents ----

  @spec keys(t()) :: result([String.t()])
  def keys(folder), do: {:ok, for(%{kind: :tensor} = item <- folder.items, do: item.name)}

  @spec entries(t()) :: result([Entry.t()])
  def entries(folder), do: {:ok, folder |> tensors() |> Enum.map(&elem(&1, 1))}

  @spec entries(t(), [String.t()]) :: result([[Entry.t()]])
  def entries(folder, names) do
    {:ok,
     for name <- names do
       case folder.by_name do
         %{^name => index} -> [entry(elem(folder.tensors, index), index)]
         _ -> []
       end
     end}
  end

  defp tensors(folder) do
    for {item, index} <- folder.tensors |> Tuple.to_list() |> Enum.with_index(),
        do: {item, entry(item, index)}
  end

  defp entry(item, index) do
    struct(Entry,
      name: item.name,
      path: Tuple.to_list(item.path),
      dtype: item.dtype,
      shape: item.shape,
      strides: strides(item.shape),
      offset: 0,
      nbytes: nbytes(item),
      storage: nil,
      requires_grad: item.requires_grad,
      device: "cpu",
      kind: :tensor,
      index: index
    )
  end

  defp strides(shape) do
    dims = shape |> Tuple.to_list() |> Enum.reverse()
    {strides, _} = Enum.map_reduce(dims, 1, &{&2, &2 * max(&1, 1)})
    strides |> Enum.reverse() |> List.to_tuple()
  end

  defp nbytes(item), do: Metadata.numel(item.shape) * DType.size(item.dtype)

  @spec metadata(t()) :: result(map())
  def metadata(folder) do
    {:ok,
     %{
       format: :dcp,
       compression: nil,
       byteorder: :little,
       version: nil,
       format_version: nil,
       alignment: nil,
       metadata: %{},
       next_offset: nil,
       files: folder.files |> Map.keys() |> Enum.sort()
     }}
  end

  # Returns the nested object with one of the terms in place of each tensor.
  @spec object(t(), [term()], Options.t()) :: result(term())
  def object(folder, terms, options) do
    values = max(Enum.count(folder.items, &(&1.kind == :value)), 1)

    folder.items
    |> Enum.reduce_while({[], terms, nil}, fn
      %{kind: :tensor} = item, {pairs, [term | terms], window} ->
        {:cont, {[{item.path, term} | pairs], terms, window}}

      item, {pairs, terms, window} ->
        {result, window} = value(folder, item.place, values, options, window)

        case result do
          {:ok, value} -> {:cont, {[{item.path, value} | pairs], terms, window}}
          error -> {:halt, error}
        end
    end)
    |> case do
      {:error, error} -> {:error, error}
      {pairs, [], _window} -> pairs |> Enum.reverse() |> nest(options.ordered)
    end
  end

  # A value may be a compressed file. All of them together have the memory of one file.
  defp value(folder, place, values, options, window) do
    opts = [
      ordered: options.ordered,
      strict: options.strict,
      verify: options.verify,
      limits: [files: values]
    ]

    {source, window} = source(folder, place, window)
    {with({:ok, source} <- source, do: Checkpoint.load(source, opts)), window}
  end

  # Groups the pairs by the first element of their paths. A group with integers is a list.
  defp nest(pairs, ordered) do
    {:ok, build(for({path, value} <- pairs, do: {Tuple.to_list(path), value}), ordered)}
  catch
    :conflict ->
      {:error, Error.new(:corrupt, "the paths of the file .metadata contradict each other")}
  end

  defp build(pairs, ordered) do
    {keys, groups} =
      Enum.reduce(pairs, {[], %{}}, fn {[key | rest], value}, {keys, groups} ->
        case groups do
          %{^key => group} -> {keys, %{groups | key => [{rest, value} | group]}}
          _ -> {[key | keys], Map.put(groups, key, [{rest, value}])}
        end
      end)

    keys = Enum.reverse(keys)

    values =
      for key <- keys do
        case Map.fetch!(groups, key) do
          [{[], value}] ->
            {key, value}

          group ->
            if Enum.any?(group, &match?({[], _}, &1)),
              do: throw(:conflict),
              else: {key, build(Enum.reverse(group), ordered)}
        end
      end

    cond do
      values != [] and Enum.all?(keys, &is_integer/1) -> list(Map.new(values))
      Enum.any?(keys, &is_integer/1) -> throw(:conflict)
      ordered -> %Dict{pairs: values}
      true -> Map.new(values)
    end
  end

  # Positions without a value are None, as in torch. There cannot be many of them.
  defp list(values) do
    last = values |> Map.keys() |> Enum.max()
    if last > 16 + 4 * map_size(values), do: throw(:conflict)
    for i <- 0..last, do: Map.get(values, i)
  end

  # ---- Tensors ----

  # Returns the tensors of the entries, which are in file order.
  @spec read([non_neg_integer()] | :all, t(), Options.t()) :: result([Tensor.t()])
  def read(indices, folder, options) do
    wanted =
      if indices == :all,
        do: Tuple.to_list(folder.tensors),
        else: Enum.map(indices, &elem(folder.tensors, &1))

    progress = Progress.new(options.on_progress, wanted |> Enum.map(&nbytes/1) |> Enum.sum())
    read_next(wanted, folder, options, {progress, 0, nil}, [])
  end

  defp read_next([], _folder, _options, {progress, _done, _window}, tensors) do
    Progress.finish(progress)
    {:ok, Enum.reverse(tensors)}
  end

  defp read_next([item | items], folder, options, {progress, done, window}, tensors) do
    case slice(folder, item, whole(item), options, window) do
      {{:ok, tensor}, window} ->
        done = done + nbytes(item)
        state = {Progress.report(progress, done), done, window}
        read_next(items, folder, options, state, [tensor | tensors])

      {error, _window} ->
        Enum.each(tensors, &Tensor.release/1)
        error
    end
  end

  # By name or index. Returns the entries with the name if there are none.
  @spec tensor(t(), String.t() | non_neg_integer(), Options.t()) ::
          result(Tensor.t() | [Entry.t()])
  def tensor(folder, index, options) when is_integer(index) do
    item = elem(folder.tensors, index)
    slice(folder, item, whole(item), options)
  end

  def tensor(folder, name, options) when is_binary(name) do
    case folder.by_name do
      %{^name => index} -> tensor(folder, index, options)
      _ -> {:ok, []}
    end
  end

  defp whole(item), do: %{offsets: Tuple.duplicate(0, tuple_size(item.shape)), sizes: item.shape}

  # Reads a part of a tensor, from the chunks that it touches.
  @spec slice(t(), Metadata.item(), map(), Options.t()) :: result(Tensor.t())
  def slice(folder, item, box, options), do: folder |> slice(item, box, options, nil) |> elem(0)

  # The window is the piece of a file that was read last, or nil.
  defp slice(folder, item, box, options, window) do
    bytes = Metadata.numel(box.sizes) * DType.size(item.dtype)

    {result, window} =
      if bytes > options.limits[:tensor_bytes] do
        text = "#{Error.quoted(item.name)} has #{bytes} bytes; see limits: [tensor_bytes: n]"
        {{:error, Error.new(:limit, text)}, window}
      else
        case for chunk <- item.chunks, common = common(chunk, box), do: {chunk, common} do
          [{chunk, _}] when chunk.offsets == box.offsets and chunk.sizes == box.sizes ->
            read_whole(folder, item, chunk, options, window)

          parts ->
            assemble(folder, item, box, parts, options, window)
        end
      end

    {put_flag(result, item), window}
  rescue
    error in Error -> {{:error, error}, nil}
  end

  # A tensor without dimensions has one element.
  defp common(%{sizes: {}}, _box), do: {[], []}
  defp common(chunk, box), do: Metadata.intersection(chunk, box)

  defp put_flag({:ok, tensor}, %{requires_grad: true}),
    do: {:ok, Tensor.requires_grad(tensor, true)}

  defp put_flag(result, _item), do: result

  # A small tensor shares the memory of the window.
  defp read_whole(folder, item, chunk, options, window) do
    case read_chunk(folder, item, chunk, options, window) do
      {{:ok, tensor}, window} when chunk.place.length <= @small ->
        {{:ok, Tensor.clone(tensor)}, window}

      result ->
        result
    end
  end

  # One chunk at a time is in memory besides the tensor.
  defp assemble(folder, item, box, parts, options, window) do
    tensor = ExTorch.zeros(box.sizes, dtype: item.dtype)
    origin = Tuple.to_list(box.offsets)

    Enum.reduce_while(parts, {{:ok, tensor}, window}, fn {chunk, {offsets, sizes}}, {_, window} ->
      case read_chunk(folder, item, chunk, options, window) do
        {{:ok, piece}, window} ->
          to = narrow(tensor, offsets, origin, sizes)
          from = narrow(piece, offsets, Tuple.to_list(chunk.offsets), sizes)
          ExTorch.op("aten::copy_", [to, from])
          Tensor.release(piece)
          {:cont, {{:ok, tensor}, window}}

        {error, window} ->
          Tensor.release(tensor)
          {:halt, {error, window}}
      end
    end)
  end

  defp narrow(tensor, offsets, origin, sizes) do
    [offsets, origin, sizes]
    |> Enum.zip()
    |> Enum.with_index()
    |> Enum.reduce(tensor, fn {{offset, from, size}, dim}, tensor ->
      if {offset - from, size} == {0, elem(tensor.shape, dim)},
        do: tensor,
        else: ExTorch.op("aten::narrow", [tensor, dim, offset - from, size])
    end)
  end

  defp read_chunk(folder, item, chunk, options, window) do
    shape = chunk.sizes
    {source, window} = source(folder, chunk.place, window)

    result =
      case with({:ok, source} <- source, do: Checkpoint.load(source, verify: options.verify)) do
        {:ok, %Tensor{shape: ^shape, dtype: dtype} = tensor} when dtype == item.dtype ->
          {:ok, tensor}

        {:ok, other} ->
          found = with %Tensor{} <- other, do: {other.dtype, other.shape}, else: (_ -> :no_tensor)

          {:error,
           Error.new(
             :corrupt,
             "a chunk of #{Error.quoted(item.name)} in #{Error.quoted(chunk.place.file)} is not what .metadata " <>
               "says: expected #{inspect({item.dtype, shape})}, got #{inspect(found)}"
           )}

        {:error, error} ->
          {:error, error}
      end

    {result, window}
  end

  # Returns a part as a source, and the window.
  defp source(folder, %{file: file, offset: offset, length: length}, window)
       when length > @small do
    {file, _last} = Map.fetch!(folder.files, file)
    {{:ok, %Part{file: file, offset: offset, length: length}}, window}
  end

  defp source(
         _folder,
         %{file: file, offset: offset, length: length},
         {file, from, bytes} = window
       )
       when offset >= from and offset + length <= from + byte_size(bytes),
       do: {{:ok, {:binary, binary_part(bytes, offset - from, length)}}, window}

  # A single part is read alone; after it, those behind it are read too.
  defp source(folder, %{file: name, offset: offset, length: length} = place, window) do
    {file, last} = Map.fetch!(folder.files, name)
    size = if window, do: min(max(@window, length), last - offset), else: length

    case SourceReader.read_at(%Part{file: file, offset: offset, length: size}, 0, size) do
      {:ok, bytes} -> source(folder, place, {name, offset, bytes})
      error -> {error, window}
    end
  end

  # Finds the item of an entry.
  @spec item(t(), Entry.t()) :: Metadata.item()
  def item(folder, entry), do: elem(folder.tensors, entry.index)
end
