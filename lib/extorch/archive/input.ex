defmodule ExTorch.Archive.Input do
  @moduledoc false
  # What LibTorch asks of a reader: its size, and bytes at a position.

  alias ExTorch.Error
  alias ExTorch.Archive.{BinaryReader, FunctionReader, IODevice}

  defstruct [:reader, :start, :size, :at]

  # ---- Which kind ----

  def open(path) when is_binary(path) do
    case File.open(path, [:read, :raw, :binary]) do
      {:ok, device} -> begin(%IODevice{device: device, ours: true})
      {:error, reason} -> {:error, no_file(reason)}
    end
  end

  def open({:binary, bytes}) when is_binary(bytes), do: begin(%BinaryReader{bytes: bytes})

  def open({fun, size}) when is_function(fun, 2) and is_integer(size) and size >= 0,
    do: begin(%FunctionReader{fun: fun, size: size})

  def open(%module{} = reader) do
    if Code.ensure_loaded?(module) and function_exported?(module, :seek_end, 2),
      do: begin(reader),
      else: open_device(reader)
  end

  def open(other), do: open_device(other)

  defp open_device(device) do
    unless IODevice.device?(device) do
      raise Error.new(
              :bad_argument,
              "#{inspect(device, limit: 3)} is no reader: see ExTorch.Archive"
            )
    end

    # What cannot seek (StringIO) is read whole.
    if IODevice.seeks?(device),
      do: begin(%IODevice{device: device, ours: false}),
      else: begin(%BinaryReader{bytes: IODevice.rest(device)})
  end

  defp no_file(:enoent), do: Error.new(:not_found, "there is no such file")

  defp no_file(reason),
    do: Error.new(:io, "the file cannot be read: #{:file.format_error(reason)}")

  # The archive lies between the reader's position and its end. A reader that fails here is closed here.
  defp begin(%module{} = reader) do
    measured =
      try do
        measure(module, reader)
      catch
        kind, reason -> {:raised, kind, reason, __STACKTRACE__}
      end

    case measured do
      {:ok, state} ->
        {:ok, state}

      {:error, reason, reader} ->
        module.close(reader)
        {:error, failed(reason)}

      {:raised, kind, reason, stacktrace} ->
        module.close(reader)
        :erlang.raise(kind, reason, stacktrace)
    end
  end

  defp measure(module, reader) do
    with {:ok, start, reader} <- module.position(reader),
         {:ok, stop, reader} <- module.seek_end(reader, 0) do
      {:ok, %__MODULE__{reader: reader, start: start, size: max(stop - start, 0), at: stop}}
    end
  end

  defp failed(%Error{} = error), do: error
  defp failed(reason), do: Error.new(:io, "the reader failed: #{inspect(reason)}")

  # ---- What is asked ----

  def answer(state, :size), do: {:ok, state.size, state}

  def answer(state, {:read, at, size}) do
    with {:ok, state} <- seek(state, state.start + at), do: read(state, size, [])
  end

  defp seek(%{at: at} = state, at), do: {:ok, state}

  defp seek(%{reader: %module{} = reader} = state, at) do
    case module.seek_start(reader, at) do
      {:ok, ^at, reader} ->
        {:ok, %{state | reader: reader, at: at}}

      {:ok, other, reader} ->
        {:error, "it went to #{inspect(other)} instead of #{at}", %{state | reader: reader}}

      {:error, reason, reader} ->
        {:error, reason, %{state | reader: reader}}
    end
  end

  defp read(state, 0, parts), do: {:ok, parts |> Enum.reverse() |> IO.iodata_to_binary(), state}

  defp read(%{reader: %module{} = reader} = state, left, parts) do
    case module.read(reader, left) do
      {:ok, data, reader} when is_binary(data) and data != "" and byte_size(data) <= left ->
        state = %{state | reader: reader, at: state.at + byte_size(data)}
        read(state, left - byte_size(data), [data | parts])

      {:ok, data, reader} ->
        {:error, "it gave #{inspect(data, limit: 3)} where #{left} bytes were asked for",
         %{state | reader: reader}}

      {:eof, reader} ->
        error =
          Error.new(
            :truncated,
            "the reader ended at byte #{state.at}, and said that it has #{state.start + state.size}"
          )

        {:error, error, %{state | reader: reader}}

      {:error, reason, reader} ->
        {:error, reason, %{state | reader: reader}}
    end
  end

  def close(%{reader: %module{} = reader}, _outcome) do
    with {:error, _} = error <- module.close(reader), do: error
  end
end
