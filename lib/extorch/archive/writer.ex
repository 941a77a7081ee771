defmodule ExTorch.Archive.Writer do
  @moduledoc """
  What `ExTorch.Archive.save/3` can write to: a struct whose module implements these callbacks.

  The writer is a value that each callback gives back, changed or not. It may write fewer bytes than it is given, and says
  how many: the rest comes again. Data is the writer's to keep.
  """

  @type t :: struct()

  @doc "Writes data, or its beginning."
  @callback write(t(), data :: binary()) ::
              {:ok, written :: pos_integer(), t()} | {:error, term(), t()}

  @doc "Called once, when nothing more will be written, also after an error."
  @callback close(t()) :: :ok | {:error, term()}
end
