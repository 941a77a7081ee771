defmodule ExTorch.Store.Safetensors do
  @moduledoc """
  A store for one safetensors file.

      store = ExTorch.Store.Safetensors.new("model.safetensors", metadata: %{"format" => "pt"})

  It reads all formats of `ExTorch.Checkpoint` and writes safetensors. See `ExTorch.Store` for the options. Safetensors
  cannot represent shared memory: saving tied weights is an error, unless `duplicate: true` is given.
  """
  use ExTorch.Store

  alias ExTorch.Store.{Engine, Options}

  @type t :: %__MODULE__{path: Path.t(), options: map()}
  @enforce_keys [:path, :options]
  defstruct [:path, :options]

  @doc "Creates a store. The file is opened when it is needed. Raises if an option is invalid."
  @spec new(Path.t(), keyword()) :: t()
  def new(path, opts \\ []), do: %__MODULE__{path: path, options: Options.check!(path, opts)}

  @impl true
  def with_file(store, fun), do: ExTorch.Store.CheckpointFile.with(store.path, store.options, fun)

  @impl true
  def collect_from(%__MODULE__{path: path, options: options}, module) do
    start = System.monotonic_time()

    with :ok <- Engine.check_overwrite(path, options),
         {:ok, pairs} <- Engine.collect(options, module),
         :ok <-
           ExTorch.save(
             %ExTorch.Python.Dict{pairs: pairs},
             path,
             [format: :safetensors, metadata: options.metadata] ++ Options.writing(options)
           ) do
      Engine.emit_collect(path, length(pairs), start)
    end
  end
end
