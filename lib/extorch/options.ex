defmodule ExTorch.Options do
  @moduledoc false
  # What functions that take options check the same way, in the same words.

  alias ExTorch.Error

  @most 2 ** 40

  # Keyword.validate/2, and an error that lists what there is.
  def validate!(opts, known, word \\ "option") do
    case Keyword.validate(opts, known) do
      {:ok, opts} ->
        opts

      {:error, unknown} ->
        names = known |> Enum.map(&name/1) |> Enum.sort() |> Enum.join(", ")

        raise Error.new(
                :bad_argument,
                "unknown #{word} #{Enum.map_join(unknown, ", ", &inspect/1)}; there are #{names}"
              )
    end
  end

  defp name({key, _default}), do: key
  defp name(key), do: key

  def chunk!(bytes) when bytes in 1..@most, do: bytes

  def chunk!(other),
    do: raise(Error.new(:bad_argument, "chunk is a number of bytes, not #{inspect(other)}"))

  def timeout!(:infinity), do: :infinity
  def timeout!(ms) when ms in 0..@most, do: ms

  def timeout!(other) do
    raise Error.new(:bad_argument, "timeout is milliseconds or :infinity, not #{inspect(other)}")
  end

  # Could a file have this name? What a file holds has zeros in it, or is longer.
  def path?(path),
    do: path != "" and byte_size(path) < 4096 and not String.contains?(path, <<0>>)
end
