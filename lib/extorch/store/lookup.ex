defmodule ExTorch.Store.Lookup do
  @moduledoc false
  # The tensors of a file by the names that the module has for them.

  alias ExTorch.Checkpoint.Entry
  alias ExTorch.{Error, Suggest, Tensor}
  alias ExTorch.Store.{File, Names, Options}

  @spec keys(File.t() | map(), Options.t()) :: {:ok, [String.t()]} | {:error, Error.t()}
  def keys(file, options) do
    with {:ok, pairs} <- pairs(file, options) do
      entry = File.entry_for_filters(file, options)

      selected =
        for {from, name} <- pairs, Options.selected?(options, name, entry.(from)), do: name

      names = fn -> Enum.map(pairs, &elem(&1, 1)) end
      with :ok <- Options.check_selected(options, selected, names), do: {:ok, selected}
    end
  end

  @spec entry(File.t() | map(), Options.t(), String.t()) :: {:ok, Entry.t()} | {:error, Error.t()}
  def entry(file, options, name) do
    with {:ok, file_name} <- find(file, options, name), do: file.entry.(file_name)
  end

  @spec tensor(File.t() | map(), Options.t(), String.t()) ::
          {:ok, Tensor.t()} | {:error, Error.t()}
  def tensor(file, options, name) do
    with {:ok, file_name} <- find(file, options, name), do: file.tensor.(file_name)
  end

  # Returns the name in the file of a tensor of the module.
  defp find(file, options, name) do
    with {:ok, pairs} <- pairs(file, options) do
      case List.keyfind(pairs, name, 1) do
        {from, _} ->
          {:ok, from}

        nil ->
          hint =
            Suggest.hint(Enum.map(pairs, &elem(&1, 1)), name, 0.8, 1) ||
              "; see ExTorch.Store.keys/1"

          {:error, Error.new(:not_found, "no tensor is named #{Error.quoted(name)}" <> hint)}
      end
    end
  end

  defp pairs(file, options) do
    with {:ok, pairs, _outside, _key} <-
           Names.plan(file.keys, File.all_entries(file), no_auto(options), %{}),
         do: {:ok, pairs}
  end

  # The top-level key can only be determined with a module.
  defp no_auto(%{top_level_key: :auto} = options), do: %{options | top_level_key: nil}
  defp no_auto(options), do: options
end
