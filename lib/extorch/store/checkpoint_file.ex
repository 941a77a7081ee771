defmodule ExTorch.Store.CheckpointFile do
  @moduledoc false
  # An open checkpoint as the engine sees it.

  alias ExTorch.Checkpoint
  alias ExTorch.Store.Options

  def with(path, options, fun) do
    with {:ok, ckpt} <- Checkpoint.open(path, Options.reading(options)) do
      try do
        fun.(of(ckpt))
      after
        Checkpoint.close(ckpt)
      end
    end
  end

  def of(ckpt) do
    %{
      keys: Checkpoint.keys(ckpt),
      entry: &Checkpoint.entry(ckpt, &1),
      tensor: &Checkpoint.tensor(ckpt, &1)
    }
  end
end
