defmodule ExTorch.Archive.IODevice do
  @moduledoc false
  # A reader and writer of an IO device: a process or a raw file.

  # It also implements ExTorch.Archive.Writer. Declaring both is a compiler warning, because both have close/1.
  @behaviour ExTorch.Archive.Reader

  alias ExTorch.Error

  @reply_timeout_ms 500

  # owned?: whether close/1 closes the device
  defstruct [:device, :owned?]

  @spec device?(term()) :: boolean()
  def device?(device) when is_pid(device), do: true

  def device?(device) when is_atom(device),
    do: device in [:stdio, :stderr] or is_pid(Process.whereis(device))

  def device?(device),
    do: is_tuple(device) and tuple_size(device) > 1 and elem(device, 0) == :file_descriptor

  # Raises if the value, which should be a reader or writer, is not an IO device.
  @spec check!(term(), String.t()) :: :ok
  def check!(device, role) do
    unless device?(device) do
      raise Error.new(
              :bad_argument,
              "expected a #{role}, got #{inspect(device, limit: 3)}; see ExTorch.Archive"
            )
    end

    :ok
  end

  # Only files support seeking. Other devices may not reply to the request, so there is a timeout. The alias drops a
  # reply that arrives after it.
  def seeks?(device) when is_pid(device) do
    ref = :erlang.monitor(:process, device, alias: :reply_demonitor)
    send(device, {:file_request, ref, ref, {:position, :cur}})

    receive do
      {:file_reply, ^ref, reply} -> match?({:ok, _}, reply)
      {:DOWN, ^ref, _, _, _} -> false
    after
      @reply_timeout_ms ->
        Process.demonitor(ref, [:flush])
        false
    end
  end

  def seeks?(device), do: not is_atom(device) and match?({:ok, _}, :file.position(device, :cur))

  # Reads the rest of a device that does not support seeking.
  def read_rest(device) do
    case IO.binread(device, :eof) do
      data when is_binary(data) -> data
      :eof -> ""
      {:error, reason} -> raise device_error(reason)
    end
  end

  @impl true
  def read(%{device: device} = reader, n) do
    case :file.read(device, n) do
      {:ok, data} -> {:ok, IO.iodata_to_binary(data), reader}
      :eof -> {:eof, reader}
      {:error, reason} -> {:error, device_error(reason), reader}
    end
  end

  def write(%{device: device} = writer, data) do
    case write_all(device, data) do
      :ok -> {:ok, byte_size(data), writer}
      {:error, reason} -> {:error, device_error(reason), writer}
    end
  end

  # IO.binwrite/2 raises errors since Elixir 1.16.
  defp write_all(:stdio, data), do: :file.write(:standard_io, data)
  defp write_all(:stderr, data), do: :file.write(:standard_error, data)
  defp write_all(device, data), do: :file.write(device, data)

  @impl true
  def seek_start(reader, position), do: seek(reader, {:bof, position})

  @impl true
  def seek_end(reader, offset), do: seek(reader, {:eof, offset})

  @impl true
  def position(reader), do: seek(reader, :cur)

  defp seek(%{device: device} = reader, location) do
    case :file.position(device, location) do
      {:ok, position} -> {:ok, position, reader}
      {:error, reason} -> {:error, device_error(reason), reader}
    end
  end

  @impl true
  def close(%{owned?: false}), do: :ok
  def close(%{device: device}), do: :file.close(device)

  defp device_error(reason),
    do: Error.new(:io, "the IO device returned an error: #{:file.format_error(reason)}")
end
