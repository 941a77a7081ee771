defmodule ExTorch.Store.Leftovers do
  @moduledoc false
  # Removes the shards that saves leave behind.
  #
  # A save writes its index under a temporary name before it writes a shard, and a list of the old shards before it
  # replaces the old index. So all shards that may have to be removed are named by a temporary index. Its writer holds a
  # lock on it. If the writer has died or is done, the shards that no index of the directory refers to are removed, and
  # then the temporary index. It is the same after a success, after an error and after a kill: which of the two indexes
  # is in place decides what is removed.
  #
  # Another user's temporary index is never touched, so that nobody else can have files removed.

  alias ExTorch.Archive.AtomicFile
  alias ExTorch.Error
  alias ExTorch.Store.{Directory, ShardIndex}

  @prefix ".extorch-index-"

  # Removes what dead saves have left, if there is anything.
  @spec sweep(Path.t()) :: :ok
  def sweep(directory) do
    # No name ends with a zero byte: only the prefix selects.
    with {:ok, [_ | _]} <- Directory.list(directory, @prefix, <<0>>),
         do: Directory.locked(directory, fn -> remove(directory) end)

    :ok
  end

  # Same, with the lock of the directory. Returns the paths of the temporary indexes that remain.
  @spec remove(Path.t()) :: {:ok, [Path.t()]} | {:error, Error.t()}
  def remove(directory) do
    with {:ok, names} <- Directory.list(directory, @prefix, ShardIndex.suffix()) do
      {temporary, indexes} = Enum.split_with(names, &String.starts_with?(&1, @prefix))
      claimed = for name <- temporary, path = Path.join(directory, name), do: {path, claim(path)}
      {dead, alive} = Enum.split_with(claimed, &elem(&1, 1))
      left = if dead == [], do: [], else: remove_unused(dead, references(directory, indexes))
      {:ok, for({path, _} <- left ++ alive, do: path)}
    end
  end

  defp claim(path) do
    case AtomicFile.claim(path) do
      {:ok, file} -> file
      {:error, _} -> nil
    end
  end

  # If an index cannot be read, it may refer to any shard: everything stays for a later save.
  defp remove_unused(dead, :unknown) do
    for {_path, file} <- dead, do: AtomicFile.close(file)
    dead
  end

  defp remove_unused(dead, used) do
    for {path, file} <- dead do
      for shard <- shards(path),
          shard not in used,
          do: Directory.remove(ExTorch.Source.sibling(path, shard))

      AtomicFile.discard(file)
    end

    []
  end

  # Returns the shards of a temporary index. If its writer died before it had written the index, there are none yet.
  @spec shards(Path.t()) :: [String.t()]
  def shards(path) do
    case ShardIndex.read(path) do
      {:ok, weight_map} -> weight_map |> ShardIndex.shards() |> Enum.filter(&shard?/1)
      {:error, _} -> []
    end
  end

  # Only files that are named like shards are removed, since an index may contain any name.
  defp shard?(name), do: name =~ ~r/\A[^\/]*-\d{5}-of-\d{5}(\.[^\/]*)?\z/s

  # Returns the files that the indexes refer to. An index that is not valid cannot be loaded: it refers to nothing.
  defp references(directory, indexes) do
    Enum.reduce_while(indexes, MapSet.new(), fn name, used ->
      case ShardIndex.read(Path.join(directory, name)) do
        {:ok, weight_map} -> {:cont, MapSet.union(used, MapSet.new(Map.values(weight_map)))}
        {:error, %Error{reason: reason}} when reason in [:corrupt, :not_found] -> {:cont, used}
        {:error, _} -> {:halt, :unknown}
      end
    end)
  end
end
