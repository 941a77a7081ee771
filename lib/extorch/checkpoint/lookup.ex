defmodule ExTorch.Checkpoint.Lookup do
  @moduledoc false
  # Finds the entry of a tensor by its dotted name or path.

  alias ExTorch.Checkpoint
  alias ExTorch.Checkpoint.{Entry, Handle}
  alias ExTorch.{Error, Suggest}

  # Handle.entries/2 returns at most this many entries for a name.
  @max_entries 20

  @spec entry(Handle.t(), Checkpoint.name()) :: Handle.result(Entry.t())
  def entry(ckpt, name) when is_binary(name) do
    with {:ok, [entries]} <- Handle.entries(ckpt, [name]), do: one(ckpt, name, entries)
  end

  def entry(ckpt, path) when is_list(path) do
    with {:ok, candidates} <- candidates(ckpt, path) do
      case Enum.find(candidates, &(&1.path === path)) do
        nil -> {:error, not_found(ckpt, path)}
        entry -> {:ok, entry}
      end
    end
  end

  # Returns the only entry with a name, or an error that says why there is none.
  @spec one(Handle.t(), String.t(), [Entry.t()]) :: Handle.result(Entry.t())
  def one(_ckpt, _name, [entry]), do: {:ok, entry}
  def one(ckpt, name, []), do: {:error, not_found(ckpt, name)}
  def one(ckpt, name, several), do: {:error, ambiguous(ckpt, name, several)}

  # Returns the entries that may have the path: those with the same dotted name, or all of them if there may be more than
  # the NIF returns, or if a key has no unique dotted name.
  defp candidates(ckpt, path) do
    if Enum.all?(path, &(is_binary(&1) or Entry.small_integer?(&1))) do
      with {:ok, [entries]} <- Handle.entries(ckpt, [Enum.join(path, ".")]),
           do: if(length(entries) < @max_entries, do: {:ok, entries}, else: Handle.entries(ckpt))
    else
      Handle.entries(ckpt)
    end
  end

  defp not_found(ckpt, name) do
    dotted = if is_binary(name), do: name, else: Enum.map_join(name, ".", &key_to_string/1)

    case Handle.keys(ckpt) do
      {:ok, keys} ->
        hint = Suggest.hint(keys, dotted, 0.75, 3) || "; see ExTorch.Checkpoint.keys/1"
        Error.new(:not_found, "no tensor is named #{Error.quoted(name)}" <> hint, ckpt.source)

      {:error, error} ->
        error
    end
  end

  defp key_to_string(key) when is_binary(key), do: key
  defp key_to_string(key), do: Error.quoted(key)

  defp ambiguous(ckpt, name, entries) do
    paths = Enum.map_join(entries, " and ", &Error.quoted(&1.path))

    Error.new(
      :ambiguous,
      "#{Error.quoted(name)} matches several tensors; use one of the paths #{paths}",
      ckpt.source
    )
  end
end
