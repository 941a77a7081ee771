defmodule ExTorch.Store.Safetensors do
  @moduledoc """
  A store for one safetensors file.

      store = ExTorch.Store.Safetensors.new("model.safetensors", metadata: %{"format" => "pt"})

  It reads all formats of `ExTorch.Checkpoint` and writes safetensors. See `ExTorch.Store` for the options. Safetensors
  cannot represent shared memory: saving tied weights is an error, unless `duplicate: true` is given.
  """
  use ExTorch.Store.CheckpointFile

  alias ExTorch.Python.Dict
  alias ExTorch.Store.{Collect, Options}

  @impl true
  def collect_from(%{options: options} = store, module) do
    opts = [format: :safetensors, metadata: options.metadata] ++ Options.writing(options)
    Collect.collect_from(store, module, &ExTorch.save(%Dict{pairs: &1}, store.path, opts))
  end
end
