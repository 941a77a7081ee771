defmodule ExTorch.Archive.Input do
  @moduledoc false
  # Handles LibTorch's requests to a reader.

  alias ExTorch.{Error, Source}
  alias ExTorch.Archive.{BinaryReader, FunctionReader, IODevice}

  # start: the position of the archive in the reader; position: the current position of the reader
  defstruct [:reader, :start, :size, :position]

  @no_url "ExTorch.load/2 and ExTorch.Checkpoint.open/2 read the tensors of archives from URLs"

  # ---- Opening ----

  def open(path) when is_binary(path) do
    with nil <- Source.refuse_url(path, @no_url),
         {:ok, device} <- File.open(path, [:read, :raw, :binary]) do
      begin(%IODevice{device: device, owned?: true})
    else
      %Error{} = error -> {:error, error}
      {:error, reason} -> {:error, open_error(reason)}
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
    IODevice.check!(device, "reader")

    # Devices that do not support seeking (StringIO) are read into memory.
    if IODevice.seeks?(device),
      do: begin(%IODevice{device: device, owned?: false}),
      else: begin(%BinaryReader{bytes: IODevice.read_rest(device)})
  end

  defp open_error(:enoent), do: Error.new(:not_found, "the file does not exist")

  defp open_error(reason),
    do: Error.new(:io, "the file could not be opened: #{:file.format_error(reason)}")

  # The archive extends from the reader's position to its end. Closes the reader on failure.
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
        {:error, reader_error(reason)}

      {:raised, kind, reason, stacktrace} ->
        module.close(reader)
        :erlang.raise(kind, reason, stacktrace)
    end
  end

  defp measure(module, reader) do
    with {:ok, start, reader} <- module.position(reader),
         {:ok, stop, reader} <- module.seek_end(reader, 0) do
      size = max(stop - start, 0)
      {:ok, %__MODULE__{reader: reader, start: start, size: size, position: stop}}
    end
  end

  defp reader_error(%Error{} = error), do: error
  defp reader_error(reason), do: Error.new(:io, "the reader failed: #{inspect(reason)}")

  # ---- Requests ----

  def handle(state, :size), do: {:ok, state.size, state}

  def handle(state, {:read, offset, size}) do
    with {:ok, state} <- seek(state, state.start + offset), do: read(state, size, [])
  end

  defp seek(%{position: position} = state, position), do: {:ok, state}

  defp seek(%{reader: %module{} = reader} = state, position) do
    case module.seek_start(reader, position) do
      {:ok, ^position, reader} ->
        {:ok, %{state | reader: reader, position: position}}

      {:ok, other, reader} ->
        error =
          Error.new(
            :io,
            "expected seek_start to return the position #{position}, got #{inspect(other)}"
          )

        {:error, error, %{state | reader: reader}}

      {:error, reason, reader} ->
        {:error, reason, %{state | reader: reader}}
    end
  end

  defp read(state, 0, parts), do: {:ok, parts |> Enum.reverse() |> IO.iodata_to_binary(), state}

  defp read(%{reader: %module{} = reader} = state, size, parts) do
    case module.read(reader, size) do
      {:ok, data, reader} when is_binary(data) and data != "" and byte_size(data) <= size ->
        state = %{state | reader: reader, position: state.position + byte_size(data)}
        read(state, size - byte_size(data), [data | parts])

      {:ok, data, reader} ->
        error =
          Error.new(
            :io,
            "expected read to return 1 to #{size} bytes, got #{inspect(data, limit: 3)}"
          )

        {:error, error, %{state | reader: reader}}

      {:eof, reader} ->
        error =
          Error.new(
            :truncated,
            "the reader ended at byte #{state.position}, expected #{state.start + state.size} bytes"
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
