defmodule ExTorch.Archive.Target do
  @moduledoc false
  # A path as a writer: a file beside it, which takes its place when all is written and is removed otherwise.

  @behaviour ExTorch.Archive.Writer

  alias ExTorch.Error

  defstruct [:path, :aside, :device]

  def open(path) do
    # under the name of saves that did not end, which the next save into the folder sweeps
    name = ".extorch-save-#{:erlang.unique_integer([:positive])}-#{System.os_time()}"
    aside = Path.join(Path.dirname(path), name)

    case File.open(aside, [:write, :raw, :binary, :exclusive]) do
      {:ok, device} -> {:ok, %__MODULE__{path: path, aside: aside, device: device}}
      {:error, reason} -> {:error, failed(path, reason)}
    end
  end

  @impl true
  def write(%{device: device} = target, data) do
    case :file.write(device, data) do
      :ok -> {:ok, byte_size(data), target}
      {:error, reason} -> {:error, failed(target.path, reason), target}
    end
  end

  @impl true
  def close(target), do: close(target, :error)

  def close(%{device: device} = target, :ok) do
    result =
      with :ok <- :file.sync(device),
           :ok <- :file.close(device),
           do: File.rename(target.aside, target.path)

    case result do
      :ok ->
        :ok

      {:error, reason} ->
        :file.close(device)
        File.rm(target.aside)
        {:error, failed(target.path, reason)}
    end
  end

  def close(%{device: device} = target, :error) do
    :file.close(device)
    File.rm(target.aside)
    :ok
  end

  defp failed(path, :enoent),
    do: %{Error.new(:not_found, "the folder does not exist: make it first") | path: path}

  defp failed(path, reason),
    do: %{
      Error.new(:io, "the archive cannot be written: #{:file.format_error(reason)}")
      | path: path
    }
end
