defmodule ExTorch.Store.PyTorch do
  @moduledoc """
  A store of one checkpoint file. Reads every format of `ExTorch.Checkpoint`, writes what `torch.save` writes.

      store = ExTorch.Store.PyTorch.new("model.pt", top_level_key: "state_dict", only: ~r/^encoder/)

  Collecting writes a dict of the names, under the top-level key where there is one. The options are in `ExTorch.Store`.
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
         term = nest(%ExTorch.Python.Dict{pairs: pairs}, options.top_level_key),
         :ok <- ExTorch.save(term, path, [format: :zip] ++ Options.writing(options)) do
      Engine.collected(path, length(pairs), start)
    end
  end

  defp nest(dict, key) when key in [nil, :auto], do: dict

  defp nest(dict, key) do
    key |> String.split(".") |> Enum.reverse() |> Enum.reduce(dict, &%{&1 => &2})
  end
end
