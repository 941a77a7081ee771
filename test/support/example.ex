defmodule ExTorch.Test.Example do
  @moduledoc false
  # A third-party NIF library (test/support/example_nif.c), built by `make example`.
  @on_load :load

  def load do
    library =
      if System.get_env("EXTORCH_ASAN"), do: "build/asan/example_nif", else: "build/example_nif"

    :erlang.load_nif(String.to_charlist(Path.expand(library)), 0)
  end

  def take(_tensor), do: :erlang.nif_error(:not_loaded)
  def describe(_kept), do: :erlang.nif_error(:not_loaded)
  def memory(_pid, _id), do: :erlang.nif_error(:not_loaded)
  def pages(_kind), do: :erlang.nif_error(:not_loaded)
end
