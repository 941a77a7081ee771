defmodule ExTorch.CLI.DeferredTest do
  # Opening and describing a file does not need LibTorch: `extorch info` does not load it.
  use ExTorch.Case

  # It runs Elixir code whose native calls have their own tests under the sanitizers.
  @moduletag :no_asan
  alias ExTorch.Test.VM

  @script """
  :ok = ExTorch.CLI.defer_libtorch("info")
  {:ok, _} = Application.ensure_all_started(:extorch)
  alias ExTorch.{Checkpoint, Error}
  # a call of the module would load it before the first line runs
  native = ExTorch.Native
  loaded? = fn -> File.read!("/proc/self/maps") =~ "libtorch_cpu" end

  for path <- System.argv(), {:ok, ckpt} <- [Checkpoint.open(path)] do
    [_ | _] = Checkpoint.entries(ckpt)
    {:ok, _} = Checkpoint.object(ckpt)
    Checkpoint.keys(ckpt)
    Checkpoint.storages(ckpt)
    Checkpoint.metadata(ckpt)
    for name <- Checkpoint.records(ckpt), do: {:ok, _} = Checkpoint.read_record(ckpt, name)
    :ok = Checkpoint.close(ckpt)
    {:ok, _} = Checkpoint.open({:binary, File.read!(path)})
    0 = ExTorch.CLI.run(["info", path])
  end

  false = loaded?.()
  false = ExTorch.Memory.budget() == 0
  ExTorch.Memory.collect()

  # every other NIF says that it is not loaded, whatever its arguments are
  for {name, arity} <- native.__info__(:functions),
      name not in [:load, :load_libtorch, :native_load, :native_defer, :memory_set_budget, :memory_set_background] do
    try do
      apply(native, name, List.duplicate(make_ref(), arity))
    rescue
      error in Error -> :not_loaded = error.reason
      ArgumentError -> :ok
    end
  end

  ckpt = Checkpoint.open!(hd(System.argv()))
  :not_loaded = (try do Checkpoint.tensor!(ckpt, "0.weight") rescue error in Error -> error.reason end)
  # the values in a folder of torch.distributed.checkpoint are loaded
  0 = ExTorch.CLI.run(["info", "test/fixtures/dcp/ranks-2"])
  true = loaded?.()
  4 = ExTorch.ones({4}) |> ExTorch.Tensor.numel()
  IO.puts("all is well")
  """

  @tag :torch
  test "info runs without LibTorch, and loads it if it turns out to be needed" do
    files = Path.wildcard("test/fixtures/{2.14.1,more}/*.{pt,stream,safetensors,pkl,npy,npz}")
    {text, status} = VM.run(@script, ["test/fixtures/2.14.1/state_dict.pt" | files])
    assert text =~ ~r/^all is well$/m and status == 0, String.slice(text, -3000..-1//1)
  end
end
