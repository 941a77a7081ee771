defmodule ExTorch.Store.PyTorch do
  @moduledoc """
  A store for one checkpoint file. It reads all formats of `ExTorch.Checkpoint` and writes the zip format of
  `torch.save`.

      store = ExTorch.Store.PyTorch.new("model.pt", top_level_key: "state_dict", only: ~r/^encoder/)

  `ExTorch.Store.collect_from/2` saves a dict of names and tensors, nested in the top-level key if there is one. See
  `ExTorch.Store` for the options.
  """
  use ExTorch.Store.CheckpointFile

  alias ExTorch.Python.Dict
  alias ExTorch.Store.{Collect, Options}

  @impl true
  def collect_from(store, module) do
    Collect.collect_from(store, module, fn pairs ->
      %Dict{pairs: pairs}
      |> nest(store.options.top_level_key)
      |> ExTorch.save(store.path, [format: :zip] ++ Options.writing(store.options))
    end)
  end

  defp nest(dict, key) when key in [nil, :auto], do: dict

  defp nest(dict, key) do
    key |> String.split(".") |> Enum.reverse() |> Enum.reduce(dict, &%{&1 => &2})
  end
end
