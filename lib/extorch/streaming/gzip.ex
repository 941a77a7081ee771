defmodule ExTorch.Streaming.Gzip do
  @moduledoc false
  # Decompresses gzip data in steps of bounded size, because little input may expand to a lot of output. Several gzip
  # members one after another are decompressed as one, as gunzip does.

  alias ExTorch.Error

  @window_with_gzip_header 31

  @spec stream(Enumerable.t()) :: Enumerable.t()
  def stream(enumerable) do
    Stream.transform(enumerable, &open/0, &inflate/2, &:zlib.close/1)
  end

  defp open do
    z = :zlib.open()
    :ok = :zlib.inflateInit(z, @window_with_gzip_header, :reset)
    z
  end

  defp inflate(chunk, z), do: {Stream.unfold({:input, chunk}, &step(z, &1)), z}

  defp step(_z, :done), do: nil

  defp step(z, state) do
    input = with {:input, chunk} <- state, do: chunk

    case :zlib.safeInflate(z, input) do
      {:continue, output} -> {output, []}
      {:finished, output} -> {output, :done}
    end
  rescue
    error in ErlangError ->
      reraise Error.new(:corrupt, "invalid gzip data: #{inspect(error.original)}"),
              __STACKTRACE__
  end
end
