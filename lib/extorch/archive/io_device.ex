defmodule ExTorch.Archive.IODevice do
  @moduledoc false
  # An IO device as reader and writer: a process, or a raw file.

  # and ExTorch.Archive.Writer; but two behaviours with a callback in common are a warning
  @behaviour ExTorch.Archive.Reader

  alias ExTorch.Error

  @patience_ms 500

  defstruct [:device, :ours]

  def device?(device) when is_pid(device), do: true

  def device?(device) when is_atom(device),
    do: device in [:stdio, :stderr] or is_pid(Process.whereis(device))

  def device?(device), do: is_tuple(device) and elem(device, 0) == :file_descriptor

  # Only files can move. Other devices do not even answer when they are asked to, so a process is given a moment; through
  # an alias, so that an answer that comes later is dropped.
  def seeks?(device) when is_pid(device) do
    ref = :erlang.monitor(:process, device, alias: :reply_demonitor)
    send(device, {:file_request, ref, ref, {:position, :cur}})

    receive do
      {:file_reply, ^ref, reply} -> match?({:ok, _}, reply)
      {:DOWN, ^ref, _, _, _} -> false
    after
      @patience_ms ->
        Process.demonitor(ref, [:flush])
        false
    end
  end

  def seeks?(device), do: not is_atom(device) and match?({:ok, _}, :file.position(device, :cur))

  # All that is left of a device that cannot seek.
  def rest(device) do
    case IO.binread(device, :eof) do
      data when is_binary(data) -> data
      :eof -> ""
      {:error, reason} -> raise failed(reason)
    end
  end

  @impl true
  def read(%{device: device} = reader, n) do
    case :file.read(device, n) do
      {:ok, data} -> {:ok, IO.iodata_to_binary(data), reader}
      :eof -> {:eof, reader}
      {:error, reason} -> {:error, failed(reason), reader}
    end
  end

  def write(%{device: device} = writer, data) do
    case write_all(device, data) do
      :ok -> {:ok, byte_size(data), writer}
      {:error, reason} -> {:error, failed(reason), writer}
    end
  end

  defp write_all(device, data) when is_pid(device) or is_atom(device),
    do: IO.binwrite(device, data)

  defp write_all(device, data), do: :file.write(device, data)

  @impl true
  def seek_start(reader, at), do: move(reader, {:bof, at})

  @impl true
  def seek_end(reader, offset), do: move(reader, {:eof, offset})

  @impl true
  def position(reader), do: move(reader, :cur)

  defp move(%{device: device} = reader, where) do
    case :file.position(device, where) do
      {:ok, at} -> {:ok, at, reader}
      {:error, reason} -> {:error, failed(reason), reader}
    end
  end

  @impl true
  def close(%{ours: false}), do: :ok
  def close(%{device: device}), do: :file.close(device)

  defp failed(reason), do: Error.new(:io, "the device failed: #{:file.format_error(reason)}")
end
