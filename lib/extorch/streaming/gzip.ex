defmodule ExTorch.Streaming.Gzip do
  @moduledoc false
  # A gzip, unpacked piece by piece: a small one may hold much, so what comes out is bounded at each step. Several gzips one
  # after the other are one, as for gunzip.

  alias ExTorch.Error

  @window_with_gzip_header 31

  def stream(enumerable) do
    Stream.transform(enumerable, &open/0, &unpack/2, &:zlib.close/1)
  end

  defp open do
    z = :zlib.open()
    :ok = :zlib.inflateInit(z, @window_with_gzip_header, :reset)
    z
  end

  defp unpack(chunk, z), do: {Stream.unfold({:input, chunk}, &step(z, &1)), z}

  defp step(_z, :over), do: nil

  defp step(z, state) do
    input = with {:input, chunk} <- state, do: chunk

    case :zlib.safeInflate(z, input) do
      {:continue, output} -> {output, []}
      {:finished, output} -> {output, :over}
    end
  rescue
    error in ErlangError ->
      reraise Error.new(:corrupt, "the gzip is broken: #{inspect(error.original)}"),
              __STACKTRACE__
  end
end
