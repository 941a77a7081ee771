defmodule ExTorch.JSON do
  @moduledoc false
  # Decodes JSON with the strict parser of the native library, since Elixir before 1.18 has none.

  alias ExTorch.{Error, Memory, Native}

  @spec decode(binary()) :: {:ok, term()} | {:error, Error.t()}
  def decode(text), do: Memory.run(fn -> Native.json_decode(text) end)
end
