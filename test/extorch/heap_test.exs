defmodule ExTorch.HeapTest do
  use ExTorch.Case

  alias ExTorch.Heap
  alias ExTorch.Test.{Pickle, Zip}

  @flags [:min_heap_size, :min_bin_vheap_size]

  # Runs in a process of its own, whose heap is small.
  defp in_process(fun), do: Task.await(Task.async(fun))

  defp settings do
    {:garbage_collection, settings} = Process.info(self(), :garbage_collection)
    Keyword.take(settings, @flags)
  end

  defp heap do
    {:total_heap_size, words} = Process.info(self(), :total_heap_size)
    words
  end

  test "makes room and restores the settings" do
    {before, inside, later} =
      in_process(fn ->
        before = settings()
        {heap() < 100_000, Heap.with_room(100_000, &heap/0), settings() == before}
      end)

    assert before
    assert inside >= 100_000
    assert later
  end

  test "restores the settings after an exception" do
    assert in_process(fn ->
             before = settings()

             assert_raise RuntimeError, fn ->
               Heap.with_room(100_000, fn -> raise "failed" end)
             end

             settings() == before
           end)
  end

  test "does nothing for few words, for a large heap and for a limited one" do
    collections = fn fun ->
      in_process(fn ->
        fun.()
        {:garbage_collection, before} = Process.info(self(), :garbage_collection)
        Heap.with_room(100_000, fn -> :ok end)
        {:garbage_collection, later} = Process.info(self(), :garbage_collection)
        {before[:minor_gcs] == later[:minor_gcs], heap()}
      end)
    end

    assert in_process(fn -> Heap.with_room(1000, &heap/0) end) < 10_000
    assert {true, _words} = collections.(fn -> Process.put(:kept, Enum.to_list(1..100_000)) end)
    assert {true, words} = collections.(fn -> Process.flag(:max_heap_size, 50_000) end)
    assert words < 50_000
  end

  # The VM ends if it cannot allocate a heap.
  test "does not ask for more than 64 MiB" do
    words = in_process(fn -> Heap.with_room(1_000_000_000_000, &heap/0) end)
    assert words in 8_000_000..20_000_000
  end

  # What a file refers to many times, and what is not on the heap, needs no room there. A large file has a large allowance.
  @tag :tmp_dir
  test "an object that looks larger than it is", %{tmp_dir: dir} do
    path = Path.join(dir, "file.pt")
    large = String.duplicate("x", 60_000)
    [memoize, get] = [<<"q", 0>>, <<"h", 0>>]
    texts = [Pickle.text(large), memoize, String.duplicate(get, 10_000)]
    pickle = Pickle.make(["](", texts, Pickle.text(large <> "x"), "e"])
    unused = {"archive/unused", <<0::100_000_000-unit(8)>>}
    File.write!(path, Zip.checkpoint(pickle, %{}, more: [unused]))

    {count, words} =
      in_process(fn ->
        object = ExTorch.load!(path)
        {length(object), heap()}
      end)

    assert count == 10_002
    assert words < 1_000_000
  end

  @tag :tmp_dir
  test "a load of many tensors leaves the settings of its process", %{tmp_dir: dir} do
    path = Path.join(dir, "many.safetensors")
    tensor = ExTorch.tensor([1.0, 2.0])
    names = for i <- 1..3000, do: "layers.#{i}.weight"
    ExTorch.save!(Map.new(names, &{&1, ExTorch.Tensor.clone(tensor)}), path, fsync: false)

    assert in_process(fn ->
             before = settings()
             loaded = ExTorch.load!(path)
             :erlang.garbage_collect()

             settings() == before and Enum.sort(Map.keys(loaded)) == Enum.sort(names) and
               Enum.all?(loaded, fn {_name, t} -> ExTorch.Tensor.to_list(t) == [1.0, 2.0] end)
           end)
  end

  @tag :tmp_dir
  test "a process with a limited heap loads many tensors", %{tmp_dir: dir} do
    path = Path.join(dir, "many.pt")
    tensors = Map.new(1..3000, &{"weight_#{&1}", ExTorch.tensor([&1])})
    ExTorch.save!(tensors, path, fsync: false)

    assert in_process(fn ->
             Process.flag(:max_heap_size, 4_000_000)
             map_size(ExTorch.load!(path))
           end) == 3000
  end
end
