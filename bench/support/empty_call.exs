defmodule Bench.EmptyCall do
  @moduledoc false
  # Compiles and loads empty_call.c.
  @on_load :load

  def load do
    library = Path.join(System.tmp_dir!(), "extorch_empty_call")
    include = Path.join([:code.root_dir(), "usr", "include"])
    source = Path.join(__DIR__, "empty_call.c")
    args = ["-O2", "-shared", "-fPIC", "-I", include, "-o", library <> ".so", source]
    {_, 0} = System.cmd(System.get_env("CC", "cc"), args)
    :erlang.load_nif(String.to_charlist(library), 0)
  end

  def empty_call, do: :erlang.nif_error(:not_loaded)
end
