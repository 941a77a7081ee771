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
  # Above this number of chunks it is not checked that no two of them overlap.
  @max_compared 1000

  @type place :: %{file: String.t(), offset: non_neg_integer(), length: non_neg_integer()}
  @type chunk :: %{offsets: [non_neg_integer()], sizes: [non_neg_integer()], place: place()}
  @type item :: %{
          required(:name) => String.t(),
          required(:path) => [String.t() | non_neg_integer()],
          required(:kind) => :tensor | :value,
          optional(:dtype) => DType.dtype(),
          optional(:shape) => [non_neg_integer()],
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
      {:ok, for({name, description} <- described, do: item!(name, description, places, paths))}
    else
      _ -> {:error, corrupt("it is not a description of torch.distributed.checkpoint")}
    end
  rescue
    error in Error -> {:error, corrupt(error.message)}
  catch
    {:corrupt, error} -> {:error, error}
  end

  defp paths(%Dict{pairs: pairs}), do: Map.new(pairs)
  defp paths(_none), do: %{}

  defp state(%Object{class: %Global{name: name}, state: state}, name), do: state || %Dict{}
  defp state(_other, _name), do: nil

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
         when is_integer(offset) and offset >= 0 and is_integer(length) and length >= 0 <-
           {get(info, "offset"), get(info, "length")} do
      unless get(info, "transform_descriptors") in [nil, [], {}],
        do: fail(:unsupported, "#{inspect(name)} is compressed or encrypted")

      unless Path.basename(file) == file and file not in ["", ".", ".."],
        do: fail(:forbidden, "the file #{inspect(file)} is not in the folder")

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
        fail(:corrupt, "the description of #{inspect(name)} is invalid")
    end
  end

  defp item!(_name, _description, _places, _paths), do: fail(:corrupt, "a name is not a string")

  defp path!(path, name) when is_tuple(path) and tuple_size(path) > 0 do
    path = Tuple.to_list(path)

    if Enum.all?(path, &(is_binary(&1) or (is_integer(&1) and &1 >= 0))),
      do: path,
      else: fail(:corrupt, "the path of #{inspect(name)} is invalid")
  end

  defp path!(_path, name), do: fail(:corrupt, "the path of #{inspect(name)} is invalid")

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
          _ -> fail(:corrupt, "a chunk of #{inspect(item.name)} is invalid")
        end
      end

    item
    |> Map.merge(%{dtype: dtype, shape: shape, requires_grad: requires_grad, chunks: chunks})
    |> check!()
  end

  # The state is a tuple, or a dict in old versions.
  defp properties!(%Object{state: state}, name) do
    {dtype, requires_grad} =
      case state do
        %Dict{} -> {get(state, "dtype"), get(state, "requires_grad")}
        state when is_tuple(state) and tuple_size(state) > 2 -> {elem(state, 0), elem(state, 2)}
        _ -> {nil, nil}
      end

    case dtype do
      %ExTorch.Python.DType{name: dtype} -> {dtype, requires_grad == true}
      _ -> fail(:corrupt, "the dtype of #{inspect(name)} is unknown")
    end
  end

  defp properties!(_other, name), do: fail(:corrupt, "#{inspect(name)} has no properties")

  defp list!(list) when is_list(list), do: list
  defp list!(_other), do: fail(:corrupt, "a list is missing")

  defp dims!(dims) when is_tuple(dims) and tuple_size(dims) <= 64 do
    dims = Tuple.to_list(dims)

    if Enum.all?(dims, &(is_integer(&1) and &1 in 0..(2 ** 62))),
      do: dims,
      else: fail(:corrupt, "a shape has a negative or invalid size")
  end

  defp dims!(_other), do: fail(:corrupt, "a shape is invalid")

  defp fetch!(places, key, name) do
    case places do
      %{^key => place} -> place
      _ -> fail(:corrupt, "the description does not say where #{inspect(name)} is")
    end
  end

  # Checks that the chunks of a tensor cover it exactly, and that their bytes can be there.
  @spec check!(item()) :: item()
  def check!(%{shape: shape, chunks: chunks, dtype: dtype} = item) do
    bytes = DType.size(dtype)

    for %{offsets: offsets, sizes: sizes, place: place} <- chunks do
      inside? =
        length(offsets) == length(shape) and length(sizes) == length(shape) and
          Enum.all?(Enum.zip([offsets, sizes, shape]), fn {o, s, d} -> o + s <= d end)

      unless inside?, do: fail(:corrupt, "a chunk of #{inspect(item.name)} is outside the tensor")

      if place[:length] != nil and Enum.product(sizes) * bytes > place.length,
        do: fail(:corrupt, "a chunk of #{inspect(item.name)} has fewer bytes than elements")
    end

    unless Enum.sum(for c <- chunks, do: Enum.product(c.sizes)) == Enum.product(shape) and
             not overlap?(chunks),
           do: fail(:corrupt, "the chunks of #{inspect(item.name)} do not cover it exactly")

    item
  end

  defp overlap?(chunks) when length(chunks) > @max_compared, do: false
  defp overlap?([]), do: false

  defp overlap?([chunk | chunks]),
    do: Enum.any?(chunks, &intersection(chunk, &1)) or overlap?(chunks)

  # Returns the offsets and sizes of what two boxes have in common, or nil.
  @spec intersection(map(), map()) :: {[non_neg_integer()], [pos_integer()]} | nil
  def intersection(a, b) do
    pairs =
      for {oa, sa, ob, sb} <- Enum.zip([a.offsets, a.sizes, b.offsets, b.sizes]) do
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
      {"planner_data", dict(for item <- items, do: {item.name, List.to_tuple(item.path)})},
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

  defp size(dims), do: call("torch", "Size", {List.to_tuple(dims)})
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
