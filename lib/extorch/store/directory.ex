defmodule ExTorch.Store.Directory do
  @moduledoc false
  # The directory of a sharded checkpoint: its lock and its files. Nothing goes through Erlang's file server.

  alias ExTorch.Error
  alias ExTorch.Native.Call

  @wait_ms 60_000
  @pause_ms 20

  # Calls the function while this process holds the lock of the directory. The lock leaves no file behind, and the kernel
  # releases it when its holder dies. Waiting happens here, since a waiting NIF would occupy a scheduler.
  @spec locked(Path.t(), non_neg_integer(), (() -> result)) :: result | {:error, Error.t()}
        when result: term()
  def locked(directory, wait_ms \\ @wait_ms, fun) do
    with {:ok, lock} <- wait(directory, System.monotonic_time(:millisecond) + wait_ms) do
      try do
        fun.()
      after
        unlock(lock)
      end
    end
  end

  defp wait(directory, deadline) do
    case lock(directory) do
      {:ok, nil} ->
        if System.monotonic_time(:millisecond) < deadline do
          Process.sleep(:rand.uniform(@pause_ms))
          wait(directory, deadline)
        else
          {:error,
           Error.new(
             :busy,
             "another process has locked the directory for too long; try again when it has finished",
             directory
           )}
        end

      other ->
        Error.put_path(other, directory)
    end
  end

  defp lock(directory), do: Call.directory_lock(directory)
  defp unlock(lock), do: Call.directory_unlock(lock)

  # Returns the names that have the prefix or the suffix, sorted.
  @spec list(Path.t(), String.t(), String.t()) :: {:ok, [String.t()]} | {:error, Error.t()}
  def list(directory, prefix, suffix) do
    case Call.directory_list(directory, prefix, suffix) do
      {:ok, names} -> {:ok, Enum.sort(names)}
      error -> Error.put_path(error, directory)
    end
  end

  # Also true for a link, whatever it refers to.
  @spec exists?(Path.t()) :: boolean()
  def exists?(path), do: match?({:ok, _}, :file.read_link_info(path, [:raw]))

  # Creates an empty file.
  @spec reserve(Path.t()) :: :ok | :taken | {:error, Error.t()}
  def reserve(path) do
    case :file.open(path, [:raw, :write, :exclusive]) do
      {:ok, file} ->
        _ = :file.close(file)
        :ok

      {:error, :eexist} ->
        :taken

      {:error, reason} ->
        {:error, Error.new(:io, "the file could not be created: #{:file.format_error(reason)}")}
    end
  end

  @spec remove(Path.t()) :: :ok | {:error, atom()}
  def remove(path), do: :file.delete(path, [:raw])
end
