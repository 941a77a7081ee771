defmodule ExTorch.Store.File do
  @moduledoc false
  # The open file of a store: one checkpoint, or the shards of an index.
  #
  # `keys`, `entry` and `tensor` are what ExTorch.Store.with_file/2 documents. A store of the user's may return a map with
  # just these; then each tensor is read alone.

  alias ExTorch.{Checkpoint, Error, Filter, Tensor}
  alias ExTorch.Checkpoint.{BatchLoad, Entry, Handle, Lookup, Reader}
  alias ExTorch.Store.{Leaves, Options}

  # Tensors are read in batches of about this size, so that tensors that are converted are not held twice.
  @batch_bytes 64 * 1024 * 1024

  @type result(value) :: {:ok, value} | {:error, Error.t()}

  # parts: the checkpoints by the name of their shard; nil for the only one
  # part_of: the shard of each tensor; nil if there is only one checkpoint
  @type t :: %__MODULE__{
          keys: [String.t()],
          entry: (String.t() -> result(Entry.t())),
          tensor: (String.t() -> result(Tensor.t())),
          parts: %{(String.t() | nil) => Handle.t()},
          part_of: %{String.t() => String.t()} | nil
        }
  @enforce_keys [:keys, :parts, :part_of]
  defstruct [:keys, :entry, :tensor, :parts, :part_of]

  @spec new([String.t()], %{(String.t() | nil) => Handle.t()}, %{String.t() => String.t()} | nil) ::
          t()
  def new(keys, parts, part_of) do
    file = %__MODULE__{keys: keys, parts: parts, part_of: part_of}
    %{file | entry: &entry(file, &1), tensor: &Checkpoint.tensor(checkpoint(file, &1), &1)}
  end

  defp entry(file, name), do: hd(entries(file, [name]))

  # Returns the entries of names of the file, with one native call for each checkpoint.
  @spec entries(t() | map(), [String.t()]) :: [result(Entry.t())]
  def entries(%__MODULE__{part_of: nil, parts: %{nil => ckpt}}, names),
    do: part_entries(ckpt, names)

  def entries(%__MODULE__{} = file, names) do
    found =
      for {part, names} <- Enum.group_by(names, &part(file, &1)),
          ckpt = Map.fetch!(file.parts, part),
          {name, result} <- Enum.zip(names, part_entries(ckpt, names)),
          into: %{},
          do: {name, put_part(result, part)}

    Enum.map(names, &Map.fetch!(found, &1))
  end

  def entries(%{entry: entry}, names), do: Enum.map(names, entry)

  defp part_entries(ckpt, names) do
    case Handle.entries(ckpt, names) do
      {:ok, lists} -> Enum.zip_with(names, lists, &Lookup.one(ckpt, &1, &2))
      error -> Enum.map(names, fn _ -> error end)
    end
  end

  # Storages of different shards may have the same key: makes it unique.
  defp put_part({:ok, %{storage: storage} = entry}, part) when storage != nil,
    do: {:ok, %{entry | storage: part <> "/" <> storage}}

  defp put_part(result, _part), do: result

  defp part(%{part_of: nil}, _name), do: nil
  defp part(%{part_of: part_of}, name), do: Map.fetch!(part_of, name)

  defp checkpoint(file, name), do: Map.fetch!(file.parts, part(file, name))

  # Reads the tensors for the leaves, in their order, if the file has exactly these and each has its own storage. Also
  # returns their bytes. Returns nil if anything is different, or if the tensors cannot be read together.
  @spec read_all(t() | map(), [Leaves.leaf()]) :: {[Tensor.t()], non_neg_integer()} | nil
  def read_all(%__MODULE__{part_of: nil, parts: %{nil => ckpt}}, leaves) do
    with {:ok, {indices, bytes}} <- Handle.match(ckpt, leaves),
         {:ok, tensors} <- BatchLoad.tensors_at(ckpt, indices, true) do
      {tensors, bytes}
    else
      _ -> nil
    end
  end

  def read_all(_file, _leaves), do: nil

  # Reads the tensors of {name in the file, entry}. Calls the function with each result, in the same order, and the
  # accumulator.
  @spec reduce(t() | map(), [item], acc, (item, result(Tensor.t()), acc -> acc)) :: acc
        when item: %{:from => String.t(), :entry => Entry.t(), optional(atom()) => term()},
             acc: term()
  def reduce(%__MODULE__{}, [], acc, _fun), do: acc

  def reduce(%__MODULE__{} = file, [first | items], acc, fun) do
    part = part(file, first.from)
    {batch, items} = take_batch(file, part, items, [first], first.entry.nbytes)
    reduce(file, items, reduce_batch(Map.fetch!(file.parts, part), batch, acc, fun), fun)
  end

  def reduce(%{tensor: tensor}, items, acc, fun),
    do: Enum.reduce(items, acc, &fun.(&1, tensor.(&1.from), &2))

  # Returns the items of one checkpoint up to the size of a batch, and the others.
  defp take_batch(file, part, [%{entry: %{nbytes: nbytes}} = item | items], batch, bytes)
       when bytes + nbytes <= @batch_bytes do
    if part(file, item.from) == part,
      do: take_batch(file, part, items, [item | batch], bytes + nbytes),
      else: {Enum.reverse(batch), [item | items]}
  end

  defp take_batch(_file, _part, items, batch, _bytes), do: {Enum.reverse(batch), items}

  # If a batch cannot be read, its tensors are read one by one: each has its own error. So are the tensors of a source of
  # which only small parts of their storages are needed.
  defp reduce_batch(ckpt, batch, acc, fun) do
    case BatchLoad.tensors(ckpt, Enum.map(batch, & &1.entry), true) do
      {:ok, tensors} ->
        Enum.zip_reduce(batch, tensors, acc, fn
          item, %Tensor{} = tensor, acc -> fun.(item, {:ok, tensor}, acc)
          item, _not_supported, acc -> fun.(item, Reader.entry(ckpt, item.entry), acc)
        end)

      {:error, _error} ->
        Enum.reduce(batch, acc, &fun.(&1, Reader.entry(ckpt, &1.entry), &2))
    end
  end

  # ---- For names and filters ----

  # Returns a function that returns the entries of all names, or nil for those that have none.
  @spec all_entries(t() | map()) :: (() -> %{String.t() => Entry.t() | nil})
  def all_entries(file) do
    fn ->
      Map.new(entries_by_name(file), fn
        {key, {:ok, entry}} -> {key, entry}
        {key, {:error, _}} -> {key, nil}
      end)
    end
  end

  # Returns the function that gives filters the entry of a name of the file.
  @spec entry_for_filters(t() | map(), Options.t()) :: (String.t() -> (() -> Entry.t() | nil))
  def entry_for_filters(file, options) do
    if Filter.takes_entry?(options.only) or Filter.takes_entry?(options.except) do
      entries = entries_by_name(file)
      fn from -> fn -> entry_or_placeholder(entries[from], from) end end
    else
      fn _from -> fn -> nil end end
    end
  end

  defp entry_or_placeholder({:ok, entry}, _from), do: entry
  defp entry_or_placeholder(_, from), do: Leaves.entry(from, %{shape: nil, dtype: nil})

  # Returns the entries of all names, or errors, by name.
  defp entries_by_name(file), do: file.keys |> Enum.zip(entries(file, file.keys)) |> Map.new()
end
