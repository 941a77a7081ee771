defmodule ExTorch.DCP.Folder do
  @moduledoc false
  # An open folder of torch.distributed.checkpoint. It takes the place of the native resource in ExTorch.Checkpoint; the
  # functions are those of ExTorch.Checkpoint.Handle.

  alias ExTorch.Checkpoint.{Entry, Options}
  alias ExTorch.{Checkpoint, DType, Error, Progress, Source, Tensor}
  alias ExTorch.DCP.{Metadata, Part}
  alias ExTorch.Python.Dict

  @metadata ".metadata"
  @limits [pickle_bytes: 2 ** 30]

  @enforce_keys [:source, :items, :files]
  defstruct [:source, :items, :files]

  # source: the folder; files: name → path, or opened source
  @type t :: %__MODULE__{
          source: Path.t() | Source.t(),
          items: [Metadata.item()],
          files: %{String.t() => Path.t() | Source.t()}
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
      {:ok, %__MODULE__{source: source, items: items, files: files}}
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

  # All parts must be inside their files.
  defp open_files(source, items) do
    ends =
      items
      |> Enum.flat_map(&places/1)
      |> Enum.reduce(%{}, fn place, ends ->
        Map.update(
          ends,
          place.file,
          place.offset + place.length,
          &max(&1, place.offset + place.length)
        )
      end)

    Enum.reduce_while(ends, {:ok, %{}}, fn {name, last}, {:ok, files} ->
      case open_file(Source.child(source, name)) do
        {:ok, file, size} when size >= last ->
          {:cont, {:ok, Map.put(files, name, file)}}

        {:ok, _file, size} ->
          {:halt,
           {:error,
            Error.new(
              :truncated,
              "the file #{name} has #{size} bytes, at least #{last} are needed"
            )}}

        {:error, %Error{} = error} ->
          {:halt, {:error, error}}

        {:error, reason} ->
          text = "the file #{name} cannot be read: #{inspect(reason)}"
          {:halt, {:error, Error.new(if(reason == :enoent, do: :not_found, else: :io), text)}}
      end
    end)
  end

  defp open_file(path) when is_binary(path) do
    with {:ok, size} <- Part.file_size(path), do: {:ok, path, size}
  end

  defp open_file(source) do
    case Source.open(source) do
      {:ok, %module{} = opened} ->
        with {:ok, size} <- module.size(opened), do: {:ok, opened, size}

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
    by_name = folder |> tensors() |> Enum.group_by(fn {item, _} -> item.name end, &elem(&1, 1))
    {:ok, Enum.map(names, &Map.get(by_name, &1, []))}
  end

  defp tensors(folder) do
    for {%{kind: :tensor} = item, index} <-
          folder.items |> Enum.filter(&(&1.kind == :tensor)) |> Enum.with_index(),
        do: {item, entry(item, index)}
  end

  defp entry(item, index) do
    struct(Entry,
      name: item.name,
      path: item.path,
      dtype: item.dtype,
      shape: List.to_tuple(item.shape),
      strides: item.shape |> strides() |> List.to_tuple(),
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
    {strides, _} = shape |> Enum.reverse() |> Enum.map_reduce(1, &{&2, &2 * max(&1, 1)})
    Enum.reverse(strides)
  end

  defp nbytes(item), do: Enum.product(item.shape) * DType.size(item.dtype)

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
    {pairs, []} =
      Enum.flat_map_reduce(folder.items, terms, fn
        %{kind: :tensor} = item, [term | terms] -> {[{item.path, {:ok, term}}], terms}
        item, terms -> {[{item.path, value(folder, item, options)}], terms}
      end)

    case Enum.find(pairs, &match?({_, {:error, _}}, &1)) do
      nil -> nest(for({path, {:ok, value}} <- pairs, do: {path, value}), options.ordered)
      {_, error} -> error
    end
  end

  defp value(folder, item, options) do
    opts = [ordered: options.ordered, strict: options.strict, verify: options.verify]
    Checkpoint.load(part(folder, item.place), opts)
  end

  # Groups the pairs by the first element of their paths. A group with integers is a list.
  defp nest(pairs, ordered) do
    {:ok, build(pairs, ordered)}
  catch
    :conflict ->
      {:error, Error.new(:corrupt, "the paths of the file .metadata contradict each other")}
  end

  defp build(pairs, ordered) do
    keys = pairs |> Enum.map(fn {[key | _], _} -> key end) |> Enum.uniq()

    groups =
      Enum.group_by(pairs, fn {[key | _], _} -> key end, fn {[_ | rest], v} -> {rest, v} end)

    values =
      for key <- keys do
        case groups[key] do
          [{[], value}] ->
            {key, value}

          group ->
            if Enum.any?(group, &match?({[], _}, &1)),
              do: throw(:conflict),
              else: {key, build(group, ordered)}
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
    if last > 1000 + 10 * map_size(values), do: throw(:conflict)
    for i <- 0..last, do: Map.get(values, i)
  end

  # ---- Tensors ----

  # Returns the tensors of the entries, which are in file order.
  @spec read([non_neg_integer()] | :all, t(), Options.t()) :: result([Tensor.t()])
  def read(indices, folder, options) do
    all = tensors(folder)
    wanted = if indices == :all, do: all, else: Enum.map(indices, &Enum.at(all, &1))
    total = Enum.sum(for {item, _} <- wanted, do: nbytes(item))
    read_next(wanted, folder, options, {Progress.new(options.on_progress, total), 0}, [])
  end

  defp read_next([], _folder, _options, {progress, _done}, tensors) do
    Progress.finish(progress)
    {:ok, Enum.reverse(tensors)}
  end

  defp read_next([{item, _} | items], folder, options, {progress, done}, tensors) do
    case tensor(folder, item, options) do
      {:ok, tensor} ->
        done = done + nbytes(item)
        progress = {Progress.report(progress, done), done}
        read_next(items, folder, options, progress, [tensor | tensors])

      error ->
        Enum.each(tensors, &Tensor.release/1)
        error
    end
  end

  # By name or index. Returns the entries with the name if there are none.
  @spec tensor(t(), String.t() | non_neg_integer() | Metadata.item(), Options.t()) ::
          result(Tensor.t() | [Entry.t()])
  def tensor(folder, index, options) when is_integer(index) do
    {item, _} = folder |> tensors() |> Enum.at(index)
    tensor(folder, item, options)
  end

  def tensor(folder, name, options) when is_binary(name) do
    case Enum.find(folder.items, &(&1.kind == :tensor and &1.name == name)) do
      nil -> {:ok, []}
      item -> tensor(folder, item, options)
    end
  end

  def tensor(folder, item, options) do
    box = %{offsets: Enum.map(item.shape, fn _ -> 0 end), sizes: item.shape}
    slice(folder, item, box, options)
  end

  # Reads a part of a tensor, from the chunks that it touches.
  @spec slice(t(), Metadata.item(), map(), Options.t()) :: result(Tensor.t())
  def slice(folder, item, box, options) do
    bytes = Enum.product(box.sizes) * DType.size(item.dtype)

    if bytes > options.limits[:tensor_bytes] do
      {:error,
       Error.new(
         :limit,
         "#{inspect(item.name)} has #{bytes} bytes; see limits: [tensor_bytes: n]"
       )}
    else
      case for chunk <- item.chunks, common = common(chunk, box), do: {chunk, common} do
        [{chunk, _}] when chunk.offsets == box.offsets and chunk.sizes == box.sizes ->
          read_chunk(folder, item, chunk, options)

        parts ->
          assemble(folder, item, box, parts, options)
      end
    end
    |> put_flag(item)
  rescue
    error in Error -> {:error, error}
  end

  # A tensor without dimensions has one element.
  defp common(%{sizes: []}, _box), do: {[], []}
  defp common(chunk, box), do: Metadata.intersection(chunk, box)

  defp put_flag({:ok, tensor}, %{requires_grad: true}),
    do: {:ok, Tensor.requires_grad(tensor, true)}

  defp put_flag(result, _item), do: result

  # One chunk at a time is in memory besides the tensor.
  defp assemble(folder, item, box, parts, options) do
    tensor = ExTorch.zeros(List.to_tuple(box.sizes), dtype: item.dtype)

    Enum.reduce_while(parts, {:ok, tensor}, fn {chunk, {offsets, sizes}}, _ ->
      case read_chunk(folder, item, chunk, options) do
        {:ok, piece} ->
          to = narrow(tensor, offsets, box.offsets, sizes)
          ExTorch.op("aten::copy_", [to, narrow(piece, offsets, chunk.offsets, sizes)])
          Tensor.release(piece)
          {:cont, {:ok, tensor}}

        error ->
          {:halt, error}
      end
    end)
  end

  defp narrow(tensor, offsets, origin, sizes) do
    [offsets, origin, sizes]
    |> Enum.zip()
    |> Enum.with_index()
    |> Enum.reduce(tensor, fn {{offset, from, size}, dim}, tensor ->
      ExTorch.op("aten::narrow", [tensor, dim, offset - from, size])
    end)
  end

  defp read_chunk(folder, item, chunk, options) do
    shape = List.to_tuple(chunk.sizes)

    case Checkpoint.load(part(folder, chunk.place), verify: options.verify) do
      {:ok, %Tensor{shape: ^shape, dtype: dtype} = tensor} when dtype == item.dtype ->
        {:ok, tensor}

      {:ok, other} ->
        found = with %Tensor{} <- other, do: {other.dtype, other.shape}, else: (_ -> :no_tensor)

        {:error,
         Error.new(
           :corrupt,
           "a chunk of #{inspect(item.name)} in #{chunk.place.file} is not what .metadata says: " <>
             "expected #{inspect({item.dtype, shape})}, got #{inspect(found)}"
         )}

      {:error, error} ->
        {:error, error}
    end
  end

  defp part(folder, place) do
    %Part{
      file: Map.fetch!(folder.files, place.file),
      offset: place.offset,
      length: place.length
    }
  end

  # Finds the item of an entry.
  @spec item(t(), Entry.t()) :: Metadata.item()
  def item(folder, entry), do: folder |> tensors() |> Enum.at(entry.index) |> elem(0)
end
