defmodule ExTorch.Test.JSON do
  @moduledoc false
  # A reader for the JSON of the fixtures. OTP has one since version 27.

  def decode!(text) do
    {value, ""} = value(skip(text))
    value
  end

  defp value("[" <> rest), do: items(skip(rest), [])
  defp value("{" <> rest), do: pairs(skip(rest), %{})
  defp value("\"" <> rest), do: string(rest, [])
  defp value("true" <> rest), do: {true, skip(rest)}
  defp value("false" <> rest), do: {false, skip(rest)}
  defp value("null" <> rest), do: {nil, skip(rest)}

  defp value(text) do
    {integer, rest} = Integer.parse(text)
    {integer, skip(rest)}
  end

  defp items("]" <> rest, done), do: {Enum.reverse(done), skip(rest)}
  defp items("," <> rest, done), do: items(skip(rest), done)

  defp items(text, done) do
    {item, rest} = value(text)
    items(rest, [item | done])
  end

  defp pairs("}" <> rest, done), do: {done, skip(rest)}
  defp pairs("," <> rest, done), do: pairs(skip(rest), done)

  defp pairs("\"" <> text, done) do
    {key, ":" <> rest} = string(text, [])
    {item, rest} = value(skip(rest))
    pairs(rest, Map.put(done, key, item))
  end

  defp string("\"" <> rest, done),
    do: {done |> Enum.reverse() |> IO.iodata_to_binary(), skip(rest)}

  defp string("\\u" <> <<hex::binary-size(4), rest::binary>>, done) do
    string(rest, [<<String.to_integer(hex, 16)::utf8>> | done])
  end

  defp string("\\n" <> rest, done), do: string(rest, ["\n" | done])
  defp string("\\" <> <<char, rest::binary>>, done), do: string(rest, [char | done])
  defp string(<<char, rest::binary>>, done), do: string(rest, [char | done])

  defp skip(<<space, rest::binary>>) when space in [?\s, ?\n, ?\r, ?\t], do: skip(rest)
  defp skip(rest), do: rest
end
