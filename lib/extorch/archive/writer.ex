defmodule ExTorch.Archive.Writer do
  @moduledoc """
  A behaviour for structs that `ExTorch.Archive.save/3` can write to.

  Each callback returns the writer, changed or not. `c:write/2` may write fewer bytes than given; the others are passed
  again. The writer may keep the data.
  """

  @type t :: struct()

  @doc "Writes the data, or a part from its beginning. Returns the number of bytes written."
  @callback write(t(), data :: binary()) ::
              {:ok, written :: pos_integer(), t()} | {:error, term(), t()}

  @doc "Closes the writer. Called exactly once, also after errors."
  @callback close(t()) :: :ok | {:error, term()}
end
