defmodule ExTorch.Native.CallTest do
  # Counts native calls: what is done for every tensor or chunk must not be more than one.
  use ExTorch.Case
  alias ExTorch.{Checkpoint, Store, Streaming}

  @moduletag :tmp_dir

  # Returns the names of the NIFs that the function calls, in order.
  defp native_calls(fun) do
    modules = [Native, Native.Call]
    Enum.each(modules, &Code.ensure_loaded!/1)

    for module <- modules, {name, arity} <- module.__info__(:functions) do
      :erlang.trace_pattern({module, name, arity}, true, [:local])
    end

    me = self()

    task =
      Task.async(fn ->
        receive do: (:go -> fun.())
        :ok
      end)

    :erlang.trace(task.pid, true, [:call, {:tracer, me}])
    send(task.pid, :go)
    :ok = Task.await(task)
    # a NIF that Native.Call calls counts once
    for {Native, name} <- traced([]), do: name
  after
    :erlang.trace_pattern({Native, :_, :_}, false, [:local])
    :erlang.trace_pattern({Native.Call, :_, :_}, false, [:local])
  end

  defp traced(calls) do
    receive do
      {:trace, _pid, :call, {module, name, _args}} -> traced([{module, name} | calls])
    after
      100 -> Enum.reverse(calls)
    end
  end

  defp without_memory(calls), do: Enum.reject(calls, &String.starts_with?("#{&1}", "memory_"))

  defp save(dir, count) do
    path = Path.join(dir, "#{count}.pt")
    tensors = for i <- 1..count, into: %{}, do: {"t#{i}", ExTorch.full({16}, i)}
    ExTorch.save!(tensors, path, fsync: false)
    {path, tensors}
  end

  test "a tensor by name", %{tmp_dir: dir} do
    {path, _} = save(dir, 10)

    for source <- [path, {:binary, File.read!(path)}] do
      ckpt = Checkpoint.open!(source)

      assert native_calls(fn -> Checkpoint.tensor!(ckpt, "t3") end) |> without_memory() ==
               [:checkpoint_tensor]

      Checkpoint.close(ckpt)
    end
  end

  test "a load", %{tmp_dir: dir} do
    {path, _} = save(dir, 100)

    assert native_calls(fn -> ExTorch.load!(path) end) |> without_memory() ==
             ~w(checkpoint_open batch_load_words batch_load_run checkpoint_close)a
  end

  test "apply_to makes the same number of calls for any number of tensors", %{tmp_dir: dir} do
    [few, many] =
      for count <- [10, 300] do
        {path, module} = save(dir, count)
        store = Store.PyTorch.new(path)

        native_calls(fn ->
          {:ok, %{applied: applied}} = Store.apply_to(store, module)
          ^count = length(applied)
        end)
        |> without_memory()
      end

    assert few == many
    assert length(few) < 12
  end

  test "a chunk of a stream", %{tmp_dir: dir} do
    {path, tensors} = save(dir, 50)
    bytes = File.read!(path)

    chunks =
      for at <- 0..(byte_size(bytes) - 1)//1000,
          do: binary_part(bytes, at, min(1000, byte_size(bytes) - at))

    calls =
      native_calls(fn ->
        {:ok, loaded, ""} = Enum.into(chunks, Streaming.loader())
        50 = map_size(loaded)
        true = Enum.all?(loaded, fn {name, tensor} -> Tensor.equal?(tensor, tensors[name]) end)

        [] =
          for {key, _} <- Process.get(), is_tuple(key), elem(key, 0) == Streaming.Loader, do: key
      end)
      |> without_memory()

    assert Enum.count(calls, &(&1 == :loader_feed)) <= length(chunks)
    calls = Enum.reject(calls, &(&1 in [:loader_feed, :tensor_equal]))
    assert calls == ~w(loader_new loader_finish loader_release)a
  end

  test "an enumerable that raises frees what the loader holds", %{tmp_dir: dir} do
    path = dir |> save(50) |> elem(0)
    bytes = File.read!(path)
    Memory.collect()
    before = Memory.live()

    chunks =
      Stream.map([0, 5000, :raise], fn
        :raise -> raise "mine"
        at -> binary_part(bytes, at, 5000)
      end)

    assert_raise RuntimeError, "mine", fn -> Enum.into(chunks, Streaming.loader()) end
    assert_live(before)
  end
end
