defmodule ExTorch.DCP.Metadata do
  @moduledoc false
  # The file .metadata: a pickle of torch.distributed.checkpoint.metadata.Metadata, as a list of items and back.
  #
  #   state_dict_metadata  name → TensorStorageMetadata{properties, size, chunks} or BytesStorageMetadata
  #   planner_data         name → path in the nested object, a tuple; integers are positions in lists
  #   storage_data         MetadataIndex{fqn, offset, index} → _StorageInfo{relative_path, offset, length}

  alias ExTorch.{DType, Error}
  alias ExTorch.Python.{Dict, Global, Object}

  @package "torch.distributed.checkpoint.metadata"
  @max_size 2 ** 62
  # The classes have at most nine fields.
  @max_fields 32
  # Paths have a depth as objects have.
  @max_path 1000
  # Chunks may be split in this many dimensions; with few chunks, in any number.
  @max_split 4
  @max_compared 32

  @type place :: %{file: String.t(), offset: non_neg_integer(), length: non_neg_integer()}
  @type chunk :: %{
          required(:offsets) => tuple(),
          required(:sizes) => tuple(),
          optional(:place) => place()
        }
  # Shapes, offsets, sizes and paths are tuples, as in the pickle, so that those of the file are not copied.
  @type item :: %{
          required(:name) => String.t(),
          required(:path) => tuple(),
          required(:kind) => :tensor | :value,
          optional(:dtype) => DType.dtype(),
          optional(:shape) => tuple(),
          optional(:requires_grad) => boolean(),
          optional(:chunks) => [chunk()],
          optional(:place) => place()
        }

  # ---- Reading ----

  # Returns the items of the object that the pickle contains, in file order.
  @spec items(term()) :: {:ok, [item()]} | {:error, Error.t()}
  def items(object) do
    with %Dict{} = state <- state(object, "Metadata"),
         %Dict{pairs: described} <- get(state, "state_dict_metadata"),
         %Dict{pairs: places} <- get(state, "storage_data") do
      paths = paths(get(state, "planner_data"))
      places = Map.new(places, &place!/1)
      check_count!(described, map_size(places))
      {:ok, for({name, description} <- described, do: item!(name, description, places, paths))}
    else
      _ -> {:error, corrupt("it is not a description of torch.distributed.checkpoint")}
    end
  rescue
    error in Error -> {:error, corrupt(error.message)}
  catch
    {:corrupt, error} -> {:error, error}
  end

  # Every chunk has a place; chunks without elements may share one. A list of chunks may be that of many tensors.
  defp check_count!(described, places) do
    Enum.reduce(described, 0, fn {_name, description}, count ->
      chunks =
        with %Dict{} = state <- state(description, "TensorStorageMetadata"),
             do: get(state, "chunks")

      count = if is_list(chunks), do: count + length(chunks), else: count

      if count > 16 * places + 100_000,
        do: fail(:corrupt, "it has more chunks than places"),
        else: count
    end)
  end

  defp paths(%Dict{pairs: pairs}), do: Map.new(pairs)
  defp paths(_none), do: %{}

  defp state(%Object{class: %Global{name: name}, state: state}, name),
    do: fields(state || %Dict{})

  defp state(_other, _name), do: nil

  # One state may be that of many objects, and is searched for each.
  defp fields(%Dict{pairs: pairs} = state) do
    if Enum.drop(pairs, @max_fields) == [],
      do: state,
      else: fail(:corrupt, "an object has too many fields")
  end

  defp fields(state), do: state

  defp get(dict, key) do
    case Dict.fetch(dict, key) do
      {:ok, value} -> value
      _ -> nil
    end
  end

  defp place!({index, info}) do
    with %Dict{} = index <- state(index, "MetadataIndex"),
         %Dict{} = info <- state(info, "_StorageInfo"),
         {name, file} when is_binary(name) and is_binary(file) <-
           {get(index, "fqn"), get(info, "relative_path")},
         {offset, length}
         when offset in 0..@max_size and length in 0..@max_size <-
           {get(info, "offset"), get(info, "length")} do
      unless get(info, "transform_descriptors") in [nil, [], {}],
        do: fail(:unsupported, "#{Error.quoted(name)} is compressed or encrypted")

      unless Path.basename(file) == file and file not in ["", ".", ".."] and
               ExTorch.Options.path?(file),
             do: fail(:forbidden, "the file #{Error.quoted(file)} is not in the folder")

      position = get(index, "offset")
      {{name, position && dims!(position)}, %{file: file, offset: offset, length: length}}
    else
      _ -> fail(:corrupt, "an entry of storage_data is invalid")
    end
  end

  defp item!(name, description, places, paths) when is_binary(name) do
    path = path!(Map.get(paths, name, {name}), name)

    case {state(description, "TensorStorageMetadata"), state(description, "BytesStorageMetadata")} do
      {%Dict{} = tensor, nil} ->
        tensor!(%{name: name, path: path, kind: :tensor}, tensor, places)

      {nil, %Dict{}} ->
        %{name: name, path: path, kind: :value, place: fetch!(places, {name, nil}, name)}

      _ ->
        fail(:corrupt, "the description of #{Error.quoted(name)} is invalid")
    end
  end

  defp item!(_name, _description, _places, _paths), do: fail(:corrupt, "a name is not a string")

  defp path!(path, name) when is_tuple(path) and tuple_size(path) > @max_path,
    do: fail(:limit, "the path of #{Error.quoted(name)} has more than #{@max_path} elements")

  defp path!(path, name) when is_tuple(path) and tuple_size(path) > 0 do
    if path |> Tuple.to_list() |> Enum.all?(&(is_binary(&1) or (is_integer(&1) and &1 >= 0))),
      do: path,
      else: fail(:corrupt, "the path of #{Error.quoted(name)} is invalid")
  end

  defp path!(_path, name), do: fail(:corrupt, "the path of #{Error.quoted(name)} is invalid")

  defp tensor!(item, state, places) do
    shape = dims!(get(state, "size"))
    {dtype, requires_grad} = properties!(get(state, "properties"), item.name)

    chunks =
      for chunk <- list!(get(state, "chunks")) do
        with %Dict{} = chunk <- state(chunk, "ChunkStorageMetadata") do
          offsets = dims!(get(chunk, "offsets"))
          place = fetch!(places, {item.name, offsets}, item.name)
          %{offsets: offsets, sizes: dims!(get(chunk, "sizes")), place: place}
        else
          _ -> fail(:corrupt, "a chunk of #{Error.quoted(item.name)} is invalid")
        end
      end

    item
    |> Map.merge(%{dtype: dtype, shape: shape, requires_grad: requires_grad, chunks: chunks})
    |> check!()
  end

  # The state is a tuple, or a dict in old versions.
  defp properties!(%Object{state: state}, name) do
    {dtype, requires_grad} =
      case fields(state) do
        %Dict{} -> {get(state, "dtype"), get(state, "requires_grad")}
        state when is_tuple(state) and tuple_size(state) > 2 -> {elem(state, 0), elem(state, 2)}
        _ -> {nil, nil}
      end

    case dtype do
      %ExTorch.Python.DType{name: dtype} -> {dtype, requires_grad == true}
      _ -> fail(:corrupt, "the dtype of #{Error.quoted(name)} is unknown")
    end
  end

  defp properties!(_other, name), do: fail(:corrupt, "#{Error.quoted(name)} has no properties")

  defp list!(list) when is_list(list), do: list
  defp list!(_other), do: fail(:corrupt, "a list is missing")

  defp dims!(dims) when is_tuple(dims) and tuple_size(dims) <= 64 do
    if dims |> Tuple.to_list() |> Enum.all?(&(&1 in 0..@max_size)),
      do: dims,
      else: fail(:corrupt, "a shape has a negative or invalid size")
  end

  defp dims!(_other), do: fail(:corrupt, "a shape is invalid")

  defp fetch!(places, key, name) do
    case places do
      %{^key => place} -> place
      _ -> fail(:corrupt, "the description does not say where #{Error.quoted(name)} is")
    end
  end

  # ---- Chunks ----

  # Returns the number of elements of a shape.
  @spec numel(tuple()) :: non_neg_integer()
  def numel(shape), do: shape |> Tuple.to_list() |> Enum.reduce(1, &*/2)

  # Checks that the chunks of a tensor cover it exactly, and that their bytes can be there. Chunks without elements are
  # left out, unless there is no other.
  @spec check!(item()) :: item()
  def check!(%{shape: shape, chunks: chunks, dtype: dtype} = item) do
    bytes = DType.size(dtype)
    for chunk <- chunks, do: check_chunk!(chunk, shape, bytes, item.name)
    chunks = with [] <- Enum.filter(chunks, &(numel(&1.sizes) > 0)), do: Enum.take(chunks, 1)

    unless Enum.sum(for c <- chunks, do: numel(c.sizes)) == numel(shape) and
             disjoint?(chunks, shape, item.name),
           do: fail(:corrupt, "the chunks of #{Error.quoted(item.name)} do not cover it exactly")

    %{item | chunks: chunks}
  end

  defp check_chunk!(%{offsets: offsets, sizes: sizes} = chunk, shape, bytes, name) do
    inside? =
      tuple_size(offsets) == tuple_size(shape) and tuple_size(sizes) == tuple_size(shape) and
        inside?(offsets, sizes, shape, tuple_size(shape))

    unless inside?, do: fail(:corrupt, "a chunk of #{Error.quoted(name)} is outside the tensor")

    if chunk[:place] && numel(sizes) * bytes > chunk.place.length,
      do: fail(:corrupt, "a chunk of #{Error.quoted(name)} has fewer bytes than elements")
  end

  defp inside?(_offsets, _sizes, _shape, 0), do: true

  defp inside?(offsets, sizes, shape, n),
    do:
      elem(offsets, n - 1) + elem(sizes, n - 1) <= elem(shape, n - 1) and
        inside?(offsets, sizes, shape, n - 1)

  # Returns whether chunks that have as many elements as the tensor do not overlap. Only the dimensions matter in which
  # a chunk is not as large as the tensor.
  defp disjoint?(chunks, _shape, _name) when chunks == [] or tl(chunks) == [], do: true

  defp disjoint?(chunks, shape, name) do
    split =
      for d <- dimensions(shape),
          Enum.any?(chunks, &(elem(&1.sizes, d) != elem(shape, d))),
          do: d

    boxes =
      for c <- chunks,
          do: for(d <- split, do: {elem(c.offsets, d), elem(c.offsets, d) + elem(c.sizes, d)})

    cond do
      length(split) <= @max_split ->
        corners(boxes) == corners([for(d <- split, do: {0, elem(shape, d)})])

      length(boxes) <= @max_compared ->
        not overlap?(boxes)

      true ->
        fail(:limit, "#{Error.quoted(name)} is split in more than #{@max_split} dimensions")
    end
  end

  defp dimensions({}), do: []
  defp dimensions(shape), do: Enum.to_list(0..(tuple_size(shape) - 1))

  # The corners of the boxes, with the sign that each has in the sum of their indicator functions, without those that
  # cancel out. Boxes cover a box exactly if they have its corners: a function is determined by its mixed difference.
  defp corners(boxes) do
    boxes
    |> Enum.reduce(%{}, fn box, sums -> add_corners(box, [], 1, sums) end)
    |> Enum.reject(fn {_, sum} -> sum == 0 end)
    |> Map.new()
  end

  defp add_corners([], corner, sign, sums), do: Map.update(sums, corner, sign, &(&1 + sign))

  defp add_corners([{from, to} | ranges], corner, sign, sums) do
    sums = add_corners(ranges, [from | corner], sign, sums)
    add_corners(ranges, [to | corner], -sign, sums)
  end

  defp overlap?([]), do: false

  defp overlap?([box | boxes]) do
    meets? = fn other ->
      Enum.zip(box, other) |> Enum.all?(fn {{a, b}, {c, d}} -> max(a, c) < min(b, d) end)
    end

    Enum.any?(boxes, meets?) or overlap?(boxes)
  end

  # Returns the offsets and sizes of what two boxes have in common, or nil.
  @spec intersection(map(), map()) :: {[non_neg_integer()], [pos_integer()]} | nil
  def intersection(a, b) do
    lists = Enum.map([a.offsets, a.sizes, b.offsets, b.sizes], &Tuple.to_list/1)

    pairs =
      for {oa, sa, ob, sb} <- Enum.zip(lists) do
        from = max(oa, ob)
        {from, min(oa + sa, ob + sb) - from}
      end

    if Enum.all?(pairs, fn {_, size} -> size > 0 end), do: Enum.unzip(pairs)
  end

  @spec fail(Error.reason(), String.t()) :: no_return()
  defp fail(:corrupt, text), do: throw({:corrupt, corrupt(text)})
  defp fail(reason, text), do: throw({:corrupt, Error.new(reason, text)})

  defp corrupt(text), do: Error.new(:corrupt, "the file .metadata is invalid: #{text}")

  # ---- Writing ----

  # Returns the pickle. Its classes are those of torch 2.1 and newer.
  @spec pickle([item()]) :: {:ok, binary()} | {:error, Error.t()}
  def pickle(items) do
    state = [
      {"state_dict_metadata", dict(for item <- items, do: {item.name, describe(item)})},
      {"planner_data", dict(for item <- items, do: {item.name, item.path})},
      {"storage_data", dict(Enum.flat_map(items, &places/1))},
      {"storage_meta", nil},
      {"version", "1.0.0"}
    ]

    # The pickle of a zip file is a pickle without storages.
    bytes =
      object("Metadata", state)
      |> ExTorch.Streaming.save(format: :zip)
      |> Enum.to_list()
      |> IO.iodata_to_binary()

    with {:ok, ckpt} <- ExTorch.Checkpoint.open({:binary, bytes}),
         do: ExTorch.Checkpoint.read_record(ckpt, "data.pkl")
  rescue
    error in Error -> {:error, error}
  end

  defp describe(%{kind: :value}), do: object("BytesStorageMetadata", nil)

  defp describe(item) do
    chunks =
      for chunk <- item.chunks do
        object("ChunkStorageMetadata", [
          {"offsets", size(chunk.offsets)},
          {"sizes", size(chunk.sizes)}
        ])
      end

    object("TensorStorageMetadata", [
      {"properties", properties(item)},
      {"size", size(item.shape)},
      {"chunks", chunks}
    ])
  end

  defp properties(item) do
    layout = call("torch.serialization", "_get_layout", {"torch.strided"})
    format = call(@package, "_MEM_FORMAT_ENCODING", {0})
    dtype = %ExTorch.Python.DType{name: item.dtype}
    %{object("TensorProperties", nil) | state: {dtype, layout, item.requires_grad, format, false}}
  end

  defp places(%{kind: :value} = item),
    do: [{object("MetadataIndex", [{"fqn", item.name}, {"index", nil}]), info(item.place)}]

  defp places(item) do
    for {chunk, i} <- Enum.with_index(item.chunks) do
      index = [{"fqn", item.name}, {"index", i}, {"offset", size(chunk.offsets)}]
      {object("MetadataIndex", index), info(chunk.place)}
    end
  end

  defp info(place) do
    state = [
      {"relative_path", place.file},
      {"offset", place.offset},
      {"length", place.length}
    ]

    object("torch.distributed.checkpoint.filesystem", "_StorageInfo", state)
  end

  defp size(dims), do: call("torch", "Size", {dims})
  defp dict(pairs), do: %Dict{pairs: pairs}

  defp call(module, name, args),
    do: %Object{class: %Global{module: module, name: name}, args: args, new: false}

  defp object(name, state), do: object(@package, name, state)

  defp object(module, name, state) do
    %Object{
      class: %Global{module: module, name: name},
      state: state && dict(state),
      args: {},
      new: true
    }
  end
end
