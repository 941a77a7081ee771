defmodule ExTorch.CLI.JSON do
  @moduledoc false
  # Writes JSON. Floats without a number become strings, and so does everything else that JSON does not have.

  alias ExTorch.JSON

  @spec encode(term()) :: iodata()
  def encode(nil), do: "null"
  def encode(true), do: "true"
  def encode(false), do: "false"
  def encode(number) when is_integer(number), do: Integer.to_string(number)
  def encode(number) when is_float(number), do: to_string(number)
  def encode(atom) when is_atom(atom), do: encode(Atom.to_string(atom))
  def encode(text) when is_binary(text), do: JSON.quoted(valid(text))
  def encode(list) when is_list(list), do: [?[, join(list, &encode/1), ?]]
  def encode(tuple) when is_tuple(tuple), do: encode(Tuple.to_list(tuple))
  def encode(%_{} = struct), do: encode(inspect(struct, limit: 20, printable_limit: 200))

  def encode(map) when is_map(map), do: [?{, join(Enum.sort(map), &pair/1), ?}]

  defp pair({key, value}), do: [encode(text(key)), ?:, encode(value)]

  defp text(key) when is_binary(key) or is_atom(key) or is_number(key), do: to_string(key)
  defp text(key), do: inspect(key)

  defp join(list, fun), do: list |> Enum.map(fun) |> Enum.intersperse(?,)

  defp valid(text), do: if(String.valid?(text), do: text, else: inspect(text, limit: 200))
end
