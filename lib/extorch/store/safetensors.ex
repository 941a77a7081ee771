defmodule ExTorch.Store.Safetensors do
  @moduledoc """
  A store for one safetensors file.

      store = ExTorch.Store.Safetensors.new("model.safetensors", metadata: %{"format" => "pt"})

  It reads all formats of `ExTorch.Checkpoint` and writes safetensors. See `ExTorch.Store` for the options. Safetensors
  cannot represent shared memory: saving tied weights is an error, unless `duplicate: true` is given.
  """
  use ExTorch.Store

  alias ExTorch.Python.Dict
  alias ExTorch.Store.{CheckpointFile, Engine, Options}

  @type t :: %__MODULE__{path: Path.t(), options: map()}
  @enforce_keys [:path, :options]
  defstruct [:path, :options]

  @doc "Creates a store. The file is opened when it is needed. Raises if an option is invalid."
  @spec new(Path.t(), keyword()) :: t()
  def new(path, opts \\ []), do: %__MODULE__{path: path, options: Options.check!(path, opts)}

  @impl true
  def with_file(store, fun), do: CheckpointFile.with(store, fun)

  @impl true
  def collect_from(%{options: options} = store, module) do
    opts = [format: :safetensors, metadata: options.metadata] ++ Options.writing(options)
    Engine.collect_from(store, module, &ExTorch.save(%Dict{pairs: &1}, store.path, opts))
  end
end
