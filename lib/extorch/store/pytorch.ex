defmodule ExTorch.Store.PyTorch do
  @moduledoc """
  A store for one checkpoint file. It reads all formats of `ExTorch.Checkpoint` and writes the zip format of
  `torch.save`.

      store = ExTorch.Store.PyTorch.new("model.pt", top_level_key: "state_dict", only: ~r/^encoder/)

  `ExTorch.Store.collect_from/2` saves a dict of names and tensors, nested in the top-level key if there is one. See
  `ExTorch.Store` for the options.
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
         term = nest(%ExTorch.Python.Dict{pairs: pairs}, options.top_level_key),
         :ok <- ExTorch.save(term, path, [format: :zip] ++ Options.writing(options)) do
      Engine.emit_collect(path, length(pairs), start)
    end
  end

  defp nest(dict, key) when key in [nil, :auto], do: dict

  defp nest(dict, key) do
    key |> String.split(".") |> Enum.reverse() |> Enum.reduce(dict, &%{&1 => &2})
  end
end
