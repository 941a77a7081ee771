defmodule ExTorch.Options do
  @moduledoc false
  # Checks of options that several functions share.

  alias ExTorch.Error

  @max_value 2 ** 40

  # Same as Keyword.validate!/2 but raises an ExTorch.Error that lists the known options.
  def validate!(opts, known, word \\ "option") do
    case Keyword.validate(opts, known) do
      {:ok, opts} ->
        opts

      {:error, unknown} ->
        names = known |> Enum.map(&name/1) |> Enum.sort() |> Enum.join(", ")

        raise Error.new(
                :bad_argument,
                "unknown #{word} #{Enum.map_join(unknown, ", ", &inspect/1)}; expected one of #{names}"
              )
    end
  end

  defp name({key, _default}), do: key
  defp name(key), do: key

  def chunk!(bytes) when bytes in 1..@max_value, do: bytes

  def chunk!(other) do
    raise Error.new(
            :bad_argument,
            "expected chunk to be a positive number of bytes, got #{inspect(other)}"
          )
  end

  def timeout!(:infinity), do: :infinity
  def timeout!(ms) when ms in 0..@max_value, do: ms

  def timeout!(other) do
    raise Error.new(
            :bad_argument,
            "expected timeout to be milliseconds or :infinity, got #{inspect(other)}"
          )
  end

  # Returns true if the binary can be a path. File contents passed by mistake contain zero bytes or are longer.
  def path?(path),
    do: path != "" and byte_size(path) < 4096 and not String.contains?(path, <<0>>)
end
