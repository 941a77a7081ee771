defmodule ExTorch.JSON do
  @moduledoc false
  # Reads JSON files with the strict parser of the native library. Only regular files are read, up to a limit, and not
  # through Erlang's file server, which a FIFO would block for all processes.

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
end
