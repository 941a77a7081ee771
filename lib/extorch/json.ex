defmodule ExTorch.JSON do
  @moduledoc false
  # The strict JSON reader of the native library. Works on every Elixir version and needs no dependency.

  alias ExTorch.{Error, Memory, Native}

  @spec decode(binary()) :: {:ok, term()} | {:error, Error.t()}
  def decode(text), do: Memory.run(fn -> Native.json_decode(text) end)
end
