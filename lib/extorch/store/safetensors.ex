defmodule ExTorch.Store.Safetensors do
  @moduledoc """
  A store of one safetensors file.

      store = ExTorch.Store.Safetensors.new("model.safetensors", metadata: %{"format" => "pt"})

  Reads whatever `ExTorch.Checkpoint` reads, writes safetensors. The options are in `ExTorch.Store`. Safetensors cannot say
  that tensors share memory: tied weights are an error when they are collected, unless `duplicate: true`.
  """
  use ExTorch.Store

  alias ExTorch.Store.{Engine, Options}

  @type t :: %__MODULE__{path: Path.t(), options: map()}
  @enforce_keys [:path, :options]
  defstruct [:path, :options]

  @doc "A store of the file; it is opened when it is needed. Wrong options raise."
  @spec new(Path.t(), keyword()) :: t()
  def new(path, opts \\ []), do: %__MODULE__{path: path, options: Options.check!(path, opts)}

  @impl true
  def with_file(store, fun), do: ExTorch.Store.CheckpointFile.with(store.path, store.options, fun)

  @impl true
  def collect_from(%__MODULE__{path: path, options: options}, module) do
    start = System.monotonic_time()

    with :ok <- Engine.free?(path, options),
         {:ok, pairs} <- Engine.collect(options, module),
         :ok <-
           ExTorch.save(
             %ExTorch.Python.Dict{pairs: pairs},
             path,
             [format: :safetensors, metadata: options.metadata] ++ Options.writing(options)
           ) do
      Engine.collected(path, length(pairs), start)
    end
  end
end
