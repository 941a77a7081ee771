defmodule ExTorch.JSON do
  @moduledoc false
  # Reads JSON files with the strict parser of the native library. Only regular files are read, up to a limit, and not
  # through Erlang's file server, which a FIFO would block for all processes. Writes strings.

  alias ExTorch.{Error, Options}
  alias ExTorch.Native.Call

  @spec read(Path.t(), non_neg_integer()) :: {:ok, term()} | {:error, Error.t()}
  def read(path, max_bytes) do
    if Options.path?(path),
      do: Error.put_path(Call.json_read(path, max_bytes), path),
      else: {:error, Error.new(:not_found, "expected a path")}
  end

  @spec parse(binary()) :: {:ok, term()} | {:error, Error.t()}
  def parse(text), do: Call.json_parse(text)

  # Returns a valid string in quotes. Most strings have nothing to escape.
  @spec quoted(String.t()) :: String.t()
  def quoted(text), do: "\"" <> if(plain?(text), do: text, else: escape(text)) <> "\""

  defp plain?(<<char, rest::binary>>) when char in 0x20..0x7E and char not in [?", ?\\],
    do: plain?(rest)

  defp plain?(rest), do: rest == ""

  defp escape(text) do
    for <<char::utf8 <- text>>, into: "" do
      case char do
        ?" -> "\\\""
        ?\\ -> "\\\\"
        ?\n -> "\\n"
        char when char < 0x20 or char in [0x7F, 0x2028, 0x2029] -> code(char)
        char -> <<char::utf8>>
      end
    end
  end

  defp code(char), do: "\\u" <> String.pad_leading(Integer.to_string(char, 16), 4, "0")
end
