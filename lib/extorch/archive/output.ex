defmodule ExTorch.Archive.Output do
  @moduledoc false
  # Handles LibTorch's requests to a writer.

  alias ExTorch.Error
  alias ExTorch.Archive.{AtomicFile, CollectableWriter, IODevice}

  # ---- Opening ----

  def open(path) when is_binary(path), do: AtomicFile.open(path)
  def open({:binary, bytes}) when is_binary(bytes), do: {:ok, CollectableWriter.new(bytes)}
  def open(fun) when is_function(fun, 1), do: {:ok, fun}

  def open(%module{} = writer) do
    cond do
      Code.ensure_loaded?(module) and function_exported?(module, :write, 2) -> {:ok, writer}
      Collectable.impl_for(writer) -> {:ok, CollectableWriter.new(writer)}
      true -> open_device(writer)
    end
  end

  def open(list) when is_list(list) do
    if List.improper?(list), do: IODevice.check!(list, "writer")
    {:ok, CollectableWriter.new(list)}
  end

  def open(other) do
    cond do
      IODevice.device?(other) -> open_device(other)
      Collectable.impl_for(other) -> {:ok, CollectableWriter.new(other)}
      true -> open_device(other)
    end
  end

  defp open_device(device) do
    IODevice.check!(device, "writer")

    {:ok, %IODevice{device: device, owned?: false}}
  end

  # ---- Requests ----

  def handle(writer, {:write, data}), do: write(writer, data)

  defp write(writer, ""), do: {:ok, :ok, writer}

  defp write(fun, data) when is_function(fun) do
    case fun.(data) do
      :ok -> {:ok, :ok, fun}
      {:ok, n} when is_integer(n) and n > 0 and n <= byte_size(data) -> write(fun, rest(data, n))
      {:error, reason} -> {:error, reason, fun}
      other -> {:error, unexpected(other), fun}
    end
  end

  defp write(%module{} = writer, data) do
    case module.write(writer, data) do
      {:ok, n, writer} when is_integer(n) and n > 0 and n <= byte_size(data) ->
        write(writer, rest(data, n))

      {:ok, n, writer} ->
        {:error,
         Error.new(
           :io,
           "expected write to return 1 to #{byte_size(data)} bytes written, got #{inspect(n)}"
         ), writer}

      {:error, reason, writer} ->
        {:error, reason, writer}
    end
  end

  defp unexpected(other) do
    Error.new(
      :io,
      "expected the writer function to return :ok, {:ok, written} or {:error, reason}, got #{inspect(other, limit: 3)}"
    )
  end

  defp rest(data, n), do: binary_part(data, n, byte_size(data) - n)

  # ---- Closing ----

  def close(fun, _outcome) when is_function(fun), do: :ok
  def close(%AtomicFile{} = file, outcome), do: AtomicFile.close(file, outcome)
  def close(%CollectableWriter{} = writer, outcome), do: CollectableWriter.close(writer, outcome)

  def close(%module{} = writer, _outcome) do
    case module.close(writer) do
      {:error, reason} -> {:error, reason}
      _ -> :ok
    end
  end
end
