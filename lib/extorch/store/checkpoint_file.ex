defmodule ExTorch.Store.CheckpointFile do
  @moduledoc false
  # Opens a checkpoint as the file map that ExTorch.Store.Engine uses.

  alias ExTorch.Checkpoint
  alias ExTorch.Store.{Engine, Options}

  @spec with(store, (Engine.file() -> result)) :: result | {:error, ExTorch.Error.t()}
        when result: term(),
             store: %{:path => Path.t(), :options => Options.t(), optional(atom()) => term()}
  def with(store, fun) do
    with {:ok, ckpt} <- Checkpoint.open(store.path, Options.reading(store.options)) do
      try do
        fun.(file(ckpt))
      after
        Checkpoint.close(ckpt)
      end
    end
  end

  defp file(ckpt) do
    %{
      keys: Checkpoint.keys(ckpt),
      entry: &Checkpoint.entry(ckpt, &1),
      tensor: &Checkpoint.tensor(ckpt, &1)
    }
  end
end
