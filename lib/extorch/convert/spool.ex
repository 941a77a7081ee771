defmodule ExTorch.Convert.Spool do
  @moduledoc false
  # Copies a source to a temporary file, so that it can be mapped.

  alias ExTorch.Checkpoint.SourceReader
  alias ExTorch.{Error, Source}

  @chunk 8 * 1024 * 1024

  # Calls the function with the path of a copy of the source, which is removed afterwards.
  @spec with_copy(Source.t(), Path.t(), (Path.t() -> result)) :: result | {:error, Error.t()}
        when result: term()
  def with_copy(%module{} = source, directory, fun) do
    digits = "#{System.pid()}-#{System.unique_integer([:positive])}-#{System.os_time()}"
    path = Path.join(directory, ".extorch-#{digits}.spool")

    try do
      with {:ok, size} <- module.size(source),
           :ok <- write(path, source, size),
           do: fun.(path)
    after
      :file.delete(path, [:raw])
    end
  end

  defp write(path, source, size) do
    case :file.open(path, [:write, :exclusive, :raw, :binary]) do
      {:ok, io} ->
        result = copy(io, path, source, 0, size)
        with :ok <- :file.close(io) |> io_result(path), do: result

      error ->
        io_result(error, path)
    end
  end

  defp copy(_io, _path, _source, size, size), do: :ok

  defp copy(io, path, source, at, size) do
    length = min(@chunk, size - at)

    with {:ok, bytes} <- SourceReader.read_at(source, at, length),
         :ok <- io |> :file.write(bytes) |> io_result(path),
         do: copy(io, path, source, at + length, size)
  end

  defp io_result(:ok, _path), do: :ok

  defp io_result({:error, reason}, path) do
    {:error,
     Error.new(
       :io,
       "the copy of the source could not be written: #{:file.format_error(reason)}",
       path
     )}
  end
end
