defmodule PhoenixUpload.Format do
  @moduledoc "Numbers as people read them, and errors as visitors are told them."

  @doc ~S(1234567 as "1.2 MB".)
  @spec bytes(non_neg_integer()) :: String.t()
  def bytes(number), do: scaled(number, ~w(B kB MB GB TB PB))

  @doc ~S(1234567 as "1.2 M".)
  @spec count(non_neg_integer()) :: String.t()
  def count(number), do: number |> scaled(["", "k", "M", "G", "T", "P"]) |> String.trim()

  defp scaled(number, [unit | _]) when number < 1000, do: "#{number} #{unit}"

  defp scaled(number, [_ | units]) do
    {number, unit} =
      Enum.reduce_while(units, {number / 1000, hd(units)}, fn unit, {number, _} ->
        if number < 999.95, do: {:halt, {number, unit}}, else: {:cont, {number / 1000, unit}}
      end)

    "#{:erlang.float_to_binary(number, decimals: 1)} #{unit}"
  end

  @doc "A number with about four digits."
  @spec number(number() | nil) :: String.t()
  def number(nil), do: "–"
  def number(number) when is_integer(number), do: Integer.to_string(number)

  def number(number) do
    number |> :erlang.float_to_binary(scientific: 3) |> String.to_float() |> Float.to_string()
  end

  @doc """
  What a visitor is told about an upload that failed: the errors of LiveView, and `{:writer_failure, error}` with what the
  writer returned. Nothing of it names files or nodes of the server.
  """
  @spec upload_error(term(), pos_integer()) :: String.t()
  def upload_error(:too_large, max),
    do: "The file is too large: at most #{bytes(max)} are accepted."

  def upload_error(:too_many_files, _max), do: "Choose one file at a time."

  def upload_error(:not_accepted, _max),
    do: "This type of file is not accepted. Choose a checkpoint, for example a .pt file."

  def upload_error({:writer_failure, error}, _max) when is_exception(error), do: error(error)
  def upload_error(:empty, _max), do: "The file is empty."
  def upload_error(_other, _max), do: "The upload was interrupted. Choose the file again."

  @doc "The sentence about an error of ExTorch."
  @spec error(Exception.t()) :: String.t()
  def error(error) do
    text = ExTorch.Error.public_message(error)
    {first, rest} = String.split_at(text, 1)
    "This checkpoint cannot be read. #{String.upcase(first)}#{rest}."
  end
end
